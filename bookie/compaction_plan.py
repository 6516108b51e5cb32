"""Which entry logs are worth copying what is left of them: decisions, no I/O.

Copying a log of which a fifth counts writes one byte for four that come free; at four fifths it is four bytes for
one. So little is left alone for long, and much only until the bookie is short of disk, or once in a while.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class LogFacts(NamedTuple):
    """One log to which nothing is added any more: bytes of all batches in it, and of those that count."""

    log_id: int
    all_bytes: int
    live_bytes: int

    @property
    def live_part(self) -> float:
        """Part of it that counts."""
        return self.live_bytes / self.all_bytes if self.all_bytes else 0.0


def worth_copying(logs: Iterable[LogFacts], *, below: float) -> list[LogFacts]:
    """Those of which less than this part counts, or nothing, in the order in which copying gives most for least."""
    chosen = (facts for facts in logs if facts.live_part < below or not facts.live_bytes)
    return sorted(chosen, key=lambda facts: (facts.live_part, facts.log_id))
