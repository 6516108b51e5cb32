"""Selects the entry logs to free: those without live bytes, and others if compaction pays. Decisions only, no I/O.

Compacting a log with a fifth of live bytes writes one byte for four that are freed; with four fifths live, four bytes
for one. So logs with few live bytes are compacted soon, others only when the bookie is short of disk space, or once in
a while.

The live part of each log is not enough: if nine of ten ledgers are deleted at once, logs with a quarter of live bytes
may be most of the storage. So there is a limit for all logs together: above it, logs that would otherwise be compacted
only once in a while are compacted at once, until the total is within the limit.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class LogUsage(NamedTuple):
    """A complete log: bytes of all batches in it, and of the live ones."""

    log_id: int
    all_bytes: int
    live_bytes: int

    @property
    def live_part(self) -> float:
        """Live part, 0 to 1."""
        return self.live_bytes / self.all_bytes if self.all_bytes else 0.0


class CompactionLimits(NamedTuple):
    """Limits that decide which logs are compacted.

    Attributes:
        below: compact logs with a smaller live part.
        garbage: if a larger part of all logs together is dead, the next limit applies.
        below_if_much: compact logs with a smaller live part, while so much is dead.
    """

    below: float
    garbage: float = 1.0
    below_if_much: float = 0.0

    def of_one(self, all_bytes: int, garbage_bytes: int) -> float:
        """The limit for one log, given the bytes of all logs together."""
        much = garbage_bytes > self.garbage * all_bytes
        return max(self.below, self.below_if_much) if much else self.below


def worth_freeing(logs: Iterable[LogUsage], bounds: CompactionLimits) -> list[LogUsage]:
    """The logs worth compacting, and those without live bytes, those with most gain for least cost first."""
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


def worth_finishing(log: LogUsage, others: Iterable[LogUsage], bounds: CompactionLimits) -> bool:
    """Whether a growing log would be worth compacting as well as ``others``, so that it should be finished now."""
    return log in worth_freeing([log, *others], bounds)


def _totals(logs: Iterable[LogUsage]) -> tuple[int, int]:
    """Bytes of all batches, and of the dead ones."""
    all_bytes = live_bytes = 0
    for facts in logs:
        all_bytes += facts.all_bytes
        live_bytes += facts.live_bytes
    return all_bytes, all_bytes - live_bytes
