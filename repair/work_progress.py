"""Counts what a replicator does of one task, so that its renewals can say how far it is."""

from __future__ import annotations

from tallybook.runtime.clock import Clock

from .mender import Mended
from .task_progress import MOST_UNDER_WAY, LedgerProgress, TaskProgress
from .tasks import Task


class WorkProgress:
    """What was done of one task before, and what its present holder does."""

    def __init__(self, task: Task, clock: Clock) -> None:
        before = task.progress
        # Whoever has handed it out may be of a version that does not say how many there are.
        self._done = before if before.ledgers else before._replace(ledgers=len(task.ledger_ids))
        self._clock = clock
        self._under_way: dict[int, Mended] = {}
        self._told_at = clock.monotonic()
        self._told_bytes = self._done.copied_bytes

    @property
    def under_way(self) -> list[int]:
        """Ledgers that are being mended, ascending."""
        return sorted(self._under_way)

    def begin(self, ledger_id: int) -> Mended:
        """A ledger is mended from now on; what comes of it is to be noted in the answer."""
        done = self._under_way[ledger_id] = Mended()
        return done

    def end(self, ledger_id: int, done: Mended) -> None:
        """It was."""
        self._under_way.pop(ledger_id, None)
        self._done = _with(self._done, done)

    def told(self) -> TaskProgress:
        """How far it is now, and how fast it has gone since this was asked last."""
        found = self._done
        for done in self._under_way.values():
            found = _with(found, done)._replace(not_mended=found.not_mended)
        now = self._clock.monotonic()
        elapsed, copied = now - self._told_at, found.copied_bytes - self._told_bytes
        self._told_at, self._told_bytes = now, found.copied_bytes
        ledgers = [
            LedgerProgress(ledger_id, done.places_seen, done.places_due, done.size, done.expected_bytes)
            for ledger_id, done in sorted(self._under_way.items())
        ]
        return found._replace(
            bytes_per_second=round(copied / elapsed) if elapsed > 0 else 0, under_way=tuple(ledgers[:MOST_UNDER_WAY])
        )


def _with(found: TaskProgress, done: Mended) -> TaskProgress:
    return found._replace(
        not_mended=found.not_mended + bool(done.left),
        places=found.places + done.places_seen,
        batches=found.batches + done.batches,
        copied_bytes=found.copied_bytes + done.size,
    )
