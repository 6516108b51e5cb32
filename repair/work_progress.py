"""Counts what a replicator does for one task, for the progress in its renewals."""

from __future__ import annotations

from tallybook.runtime.clock import Clock

from .ledger_repair import RepairResult
from .task_progress import MAX_IN_FLIGHT, LedgerProgress, TaskProgress
from .tasks import Task


class WorkProgress:
    """The progress of one task: what earlier replicators did, plus what this one does."""

    def __init__(self, task: Task, clock: Clock) -> None:
        before = task.progress
        # The auditor may be of a version that does not write the number of ledgers.
        self._done = before if before.ledgers else before._replace(ledgers=len(task.ledger_ids))
        self._clock = clock
        self._in_flight: dict[int, RepairResult] = {}
        self._snapshot_at = clock.monotonic()
        self._snapshot_bytes = self._done.copied_bytes

    @property
    def ledgers_in_flight(self) -> list[int]:
        """Ledgers that are being repaired, ascending."""
        return sorted(self._in_flight)

    def begin(self, ledger_id: int) -> RepairResult:
        """Start the repair of a ledger; returns the result for the caller to fill."""
        done = self._in_flight[ledger_id] = RepairResult()
        return done

    def end(self, ledger_id: int, done: RepairResult) -> None:
        """The repair of the ledger has ended."""
        self._in_flight.pop(ledger_id, None)
        self._done = _with(self._done, done)

    def snapshot(self) -> TaskProgress:
        """The progress so far, with the rate since the last snapshot."""
        found = self._done
        for done in self._in_flight.values():
            found = _with(found, done)._replace(not_mended=found.not_mended)
        now = self._clock.monotonic()
        elapsed, copied = now - self._snapshot_at, found.copied_bytes - self._snapshot_bytes
        self._snapshot_at, self._snapshot_bytes = now, found.copied_bytes
        ledgers = [
            LedgerProgress(ledger_id, done.replicas_checked, done.replicas_due, done.copied_bytes, done.expected_bytes)
            for ledger_id, done in sorted(self._in_flight.items())
        ]
        return found._replace(
            bytes_per_second=round(copied / elapsed) if elapsed > 0 else 0, under_way=tuple(ledgers[:MAX_IN_FLIGHT])
        )


def _with(found: TaskProgress, done: RepairResult) -> TaskProgress:
    return found._replace(
        not_mended=found.not_mended + bool(done.errors),
        places=found.places + done.replicas_checked,
        batches=found.batches + done.batches,
        copied_bytes=found.copied_bytes + done.copied_bytes,
    )
