"""Goes over all of a cluster's storage, metadata, bookies and bucket: what is wrong, how bad it is, what mends it.

Nothing is changed without ``repair``, and with it only what cannot do harm: ledgers are handed to the repair, which
copies and verifies; a task that nobody can read is deleted, since what it was about is found again. All else is for a
person to decide, so it comes with an explanation. Work is paged, and can be cut off anywhere.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from tallybook.archive.objects.port import ObjectStore
from tallybook.archive.reader import ArchiveReader
from tallybook.client.ports import ClientWorld
from tallybook.metadata.store import MetadataStore, Ok

from .fsck_age import check_age
from .fsck_bucket import check_bucket
from .fsck_copies import check_copies, check_held
from .fsck_finding import Finding, Mend, RemoveRecord
from .fsck_metadata import check_cookies, check_ledgers, check_records
from .fsck_records import LedgerOwner, RecordKind
from .tasks import LEDGERS_OF_A_TASK, TaskBoard, tasks_of

__all__ = ["Bucket", "Finding", "Fsck", "FsckTotals"]

WHY: Final = "found by fsck"


class Bucket(NamedTuple):
    """The archive of the cluster, opened."""

    store: ObjectStore
    reader: ArchiveReader


@dataclass(slots=True)
class FsckTotals:
    """How far it has come."""

    steps: int = 0
    """Ledgers, records and objects that were looked at, in all parts."""
    findings: int = 0
    """That are more than a note."""
    notes: int = 0
    mended: int = 0
    """Findings about which something was done."""


class Fsck:
    """One check of everything.

    Args:
        kinds: what records there can be.
        owners: what ledgers can have been made for.
        bucket: the archive, if there is one and it is to be looked at.
        board: where ledgers are handed out that need repair; ``None``: change nothing.
    """

    def __init__(
        self,
        world: ClientWorld,
        kinds: Sequence[RecordKind],
        owners: Sequence[LedgerOwner],
        bucket: Bucket | None,
        board: TaskBoard | None,
    ) -> None:
        self._world = world
        self._kinds = kinds
        self._owners = owners
        self._bucket = bucket
        self._board = board
        self._to_mend: list[int] = []
        self.totals = FsckTotals()

    async def run(self) -> AsyncIterator[Finding]:
        """What is found, as it is found.

        Raises:
            MetadataUnavailable: the metadata store does not answer.
        """
        async for found in self._look():
            if found.fix is not None and self._board is not None and not await self._do(found.fix, self._world.store):
                found = found._replace(fix=None, remedy="it has changed since it was looked at: run fsck again")
            if found.how_bad == "note":
                self.totals.notes += 1
            else:
                self.totals.findings += 1
            yield found
        await self._hand_out(1)

    async def _look(self) -> AsyncIterator[Finding]:
        world = self._world
        parts = [
            check_age(world.store, self._step),
            check_ledgers(world.store, self._owners, self._step),
            check_records(world.store, self._kinds, self._step),
            check_cookies(world.store, world.membership, self._step),
            check_copies(world, self._step),
            check_held(world, self._step),
        ]
        if self._bucket is not None:
            parts.append(check_bucket(world.store, self._bucket.store, self._bucket.reader, self._step))
        for part in parts:
            async for found in part:
                yield found

    def _step(self) -> None:
        self.totals.steps += 1

    async def _do(self, fix: Mend | RemoveRecord, store: MetadataStore) -> bool:
        """Whether it was done, or will be by the repair."""
        if isinstance(fix, RemoveRecord):
            removed = isinstance(await store.delete_record(fix.name, fix.version), Ok)
            self.totals.mended += removed
            return removed
        self.totals.mended += 1
        if fix.ledger_id not in self._to_mend[-1:]:
            self._to_mend.append(fix.ledger_id)
        await self._hand_out(LEDGERS_OF_A_TASK)
        return True

    async def _hand_out(self, least: int) -> None:
        """Hand out what was gathered, if there is so much."""
        if self._board is not None and len(self._to_mend) >= least:
            await self._board.publish(tasks_of(self._to_mend, thorough=True, why=WHY))
            self._to_mend.clear()
