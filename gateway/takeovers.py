"""What somebody else has taken of late, and is not taken back at once.

Two clients that both insist on a stream, or on a subscription, would otherwise take it from each other as fast as they
can ask, and neither would get anything done.
"""

from __future__ import annotations

from typing import Final

from tallybook.runtime.clock import Clock

LEAVE_ALONE_SECONDS: Final = 10.0
"""How long what was lost is not taken back: as long as an owner's session, so that clients learn of it."""


class Losses:
    """What this gateway has lost in the last seconds, each by a name of its own."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lost: dict[str, float] = {}
        """And when."""

    def note(self, name: str) -> bool:
        """Somebody else has taken it; whether that is news."""
        news = not self.lately(name)
        self._lost[name] = self._clock.monotonic()
        return news

    def lately(self, name: str) -> bool:
        """Whether it was lost so short a time ago that it is left alone."""
        now = self._clock.monotonic()
        self._lost = {each: when for each, when in self._lost.items() if now - when < LEAVE_ALONE_SECONDS}
        return name in self._lost
