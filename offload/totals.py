"""Counters of an offloader: work done, backlog, failures. For its status, metrics and log."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from tallybook.runtime.logging import logger

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


@dataclass(slots=True)
class _Failure:
    tries: int
    again_at: float


@dataclass(slots=True)
class Failures:
    """Retry times of ledgers that could not be archived, and of objects that the store refuses.

    Args:
        first_pause: first pause in seconds.
    """

    first_pause: float
    known: dict[int | str, _Failure] = field(default_factory=dict)
    """By ledger id or object key."""

    def add(self, name: int | str, now: float) -> None:
        """Count a failure; each doubles the pause."""
        tries = self.known[name].tries + 1 if name in self.known else 1
        # The exponent is bounded: an object refused for years must not overflow a float.
        pause = min(self.first_pause * 2 ** min(tries - 1, 30), MAX_RETRY_SECONDS)
        self.known[name] = _Failure(tries, now + pause)
        if len(self.known) > MAX_REMEMBERED_FAILURES:
            del self.known[next(iter(self.known))]

    def waits(self, name: int | str, now: float) -> bool:
        """Whether it is too early for a retry."""
        failure = self.known.get(name)
        return failure is not None and now < failure.again_at
