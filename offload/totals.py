"""Counters of an offloader: work done, backlog, failures. For its status, metrics and log."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tallybook.runtime.clock import Clock
from tallybook.runtime.concurrency.backoff import Backoff
from tallybook.runtime.logging import logger
from tallybook.runtime.metrics.part_metrics import PartMetrics
from tallybook.runtime.rng import Rng

_log = logger("offload")

MAX_RETRY_SECONDS: Final = 3_600.0
MAX_REMEMBERED_FAILURES: Final = 10_000


@dataclass(slots=True)
class Totals:
    """Work done since the start. Sizes in bytes."""

    rounds: int = 0
    ledgers_archived: int = 0
    ledgers_moved: int = 0
    """By compaction."""
    objects_written: int = 0
    payload_bytes: int = 0
    object_bytes: int = 0
    ledgers_released: int = 0
    objects_removed: int = 0
    uploads_aborted: int = 0
    failures: int = 0
    last_error: str = ""

    def failed(self, why: str, **about: object) -> None:
        """Count a failure, and log it.

        Args:
            about: fields of the log line.
        """
        self.failures += 1
        self.last_error = why
        _log.warning("cannot archive", error=why, **about)

    def ended_early(self, why: str) -> None:
        """Count a pass that ended with an error; the caller raises or logs it."""
        self.failures += 1
        self.last_error = why


@dataclass(frozen=True, slots=True)
class Backlog:
    """Work left at the begin or the end of the last pass, successful or not. Sizes in bytes."""

    ledgers: int = 0
    archived_ledgers: int = 0
    archived_bytes: int = 0
    waiting_ledgers: int = 0
    """Closed, not archived, and old and large enough."""
    waiting_bytes: int = 0
    oldest_waiting_s: int = 0
    """Waiting time of the ledger that has waited longest."""
    unreleased_ledgers: int = 0
    """Archived, and still kept by bookies."""
    orphans: int = 0


BACKLOG_METRICS: Final = (
    PartMetrics[Backlog]()
    .gauge("ledgers", "tallybook_offload_ledgers", "Ledgers in the last pass.", lambda backlog: backlog.ledgers)
    .gauge(
        "archived_ledgers",
        "tallybook_offload_archived_ledgers",
        "Those that are archived.",
        lambda backlog: backlog.archived_ledgers,
    )
    .gauge(
        "archived_bytes", "tallybook_offload_archived_bytes", "Their payload.", lambda backlog: backlog.archived_bytes
    )
    .gauge(
        "waiting_ledgers",
        "tallybook_offload_waiting_ledgers",
        "Closed ledgers that are due for archiving: old and large enough, and not archived yet.",
        lambda backlog: backlog.waiting_ledgers,
    )
    .gauge("waiting_bytes", "tallybook_offload_waiting_bytes", "Their payload.", lambda backlog: backlog.waiting_bytes)
    .gauge(
        "oldest_waiting_s",
        "tallybook_offload_oldest_waiting_seconds",
        "How long the oldest of them has waited.",
        lambda backlog: backlog.oldest_waiting_s,
    )
    .gauge(
        "unreleased_ledgers",
        "tallybook_offload_unreleased_ledgers",
        "Archived ledgers that bookies must keep.",
        lambda backlog: backlog.unreleased_ledgers,
    )
    .gauge(
        "orphans",
        "tallybook_offload_orphans",
        "Orphaned objects that wait to be removed.",
        lambda backlog: backlog.orphans,
    )
)


class Failures:
    """Retry times of ledgers that could not be archived, and of objects that the store refuses.

    Args:
        first_s: bound of the first pause in seconds; each failure doubles it.
    """

    def __init__(self, clock: Clock, rng: Rng, first_s: float) -> None:
        self._clock = clock
        self._rng = rng
        self._first_s = first_s
        self._known: dict[int | str, tuple[Backoff, float]] = {}
        """By ledger id or object key: the pauses, and when the current one ends."""

    def __contains__(self, name: int | str) -> bool:
        return name in self._known

    def add(self, name: int | str) -> None:
        """Count a failure."""
        if name in self._known:
            pauses, _ = self._known[name]
        else:
            pauses = Backoff(self._clock, self._rng, first_s=self._first_s, longest_s=MAX_RETRY_SECONDS)
        self._known[name] = pauses, self._clock.monotonic() + pauses.next_s()
        if len(self._known) > MAX_REMEMBERED_FAILURES:
            del self._known[next(iter(self._known))]

    def waits(self, name: int | str) -> bool:
        """Whether it is too early for a retry."""
        return name in self._known and self._clock.monotonic() < self._known[name][1]
