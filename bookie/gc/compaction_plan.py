"""Which entry logs are worth copying what is left of them: decisions, no I/O.

Copying a log of which a fifth counts writes one byte for four that come free; at four fifths it is four bytes for
one. So little is left alone for long, and much only until the bookie is short of disk, or once in a while.

A share of each log says nothing of the whole: where nine of ten ledgers go at once, logs of which a quarter is left may
be most of what the bookie has. So there is a bound for the whole, too: beyond it, logs that are worth it one by one
only once in a while are copied at once, until the rest is within it.
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


class Bounds(NamedTuple):
    """What is worth copying.

    Attributes:
        below: a log of which less than this part counts.
        garbage: of all logs together; where more than this part counts no more, the next bound holds.
        below_if_much: a log of which less than this part counts, while so much is garbage.
    """

    below: float
    garbage: float = 1.0
    below_if_much: float = 0.0

    def of_one(self, all_bytes: int, garbage_bytes: int) -> float:
        """The bound of one log, where all together have so many bytes."""
        much = garbage_bytes > self.garbage * all_bytes
        return max(self.below, self.below_if_much) if much else self.below


def worth_copying(logs: Iterable[LogFacts], bounds: Bounds) -> list[LogFacts]:
    """Those worth copying, and those of which nothing counts, in the order in which copying gives most for least."""
    ordered = sorted(logs, key=lambda facts: (facts.live_part, facts.log_id))
    all_bytes, garbage_bytes = _totals(ordered)
    chosen = []
    for facts in ordered:
        if facts.live_bytes and facts.live_part >= bounds.of_one(all_bytes, garbage_bytes):
            break
        chosen.append(facts)
        all_bytes -= facts.all_bytes - facts.live_bytes
        garbage_bytes -= facts.all_bytes - facts.live_bytes
    return chosen


def worth_finishing(log: LogFacts, others: Iterable[LogFacts], bounds: Bounds) -> bool:
    """Whether a log that is written is worth copying as well as ``others``, so that it should end now."""
    return log in worth_copying([log, *others], bounds)


def _totals(logs: Iterable[LogFacts]) -> tuple[int, int]:
    """Bytes of all batches, and of those that do not count."""
    all_bytes = live_bytes = 0
    for facts in logs:
        all_bytes += facts.all_bytes
        live_bytes += facts.live_bytes
    return all_bytes, all_bytes - live_bytes
