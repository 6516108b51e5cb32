"""Lines of the log that could come with every call or entry: the first of a kind in a while, and how many had none.

Pure: whoever asks says what time it is.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

MOST_KINDS: Final = 256
"""That are told apart at a time; when there are more, one that was not met for longest begins anew."""


class Seldom:
    """Says which lines are due.

    Args:
        seconds: between two lines of one kind.
    """

    def __init__(self, seconds: float = 1.0) -> None:
        self._seconds = seconds
        self._kinds: dict[Hashable, tuple[float, int]] = {}
        """From when on the next line is due, and how many were left out since the last one."""

    def due(self, now: float, kind: Hashable) -> int | None:
        """How many of this kind were left out since its last line; ``None``: leave this one out, too."""
        next_at, untold = self._kinds.pop(kind, (now, 0))
        if now < next_at:
            self._kinds[kind] = next_at, untold + 1
            return None
        self._kinds[kind] = now + self._seconds, 0
        if len(self._kinds) > MOST_KINDS:
            del self._kinds[next(iter(self._kinds))]
        return untold

    def forget(self, kind: Hashable) -> None:
        """What this kind was about is over: the next line of it is due at once."""
        self._kinds.pop(kind, None)
