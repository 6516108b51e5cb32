"""Runs all checkers over metadata, bookies and the archive bucket, and applies safe fixes.

Without a task board nothing is changed. With one, only two fixes are applied: ledgers are published as repair tasks,
and undecodable repair tasks are deleted (the auditor finds their ledgers again). An operator decides about everything
else; each finding comes with a remedy. The listings are paged, and the check can be interrupted at any point.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from tallybook.client.ports import ClientWorld
from tallybook.metadata.records.kinds import LedgerOwner, RecordKind
from tallybook.metadata.store import MetadataStore, Ok

from ..tasks import LEDGERS_PER_TASK, TaskBoard, make_tasks
from .copies import check_copies, check_inventories
from .finding import FsckFinding, PublishRepairTask, RemoveRecord
from .metadata import check_cookies, check_ledgers, check_records, check_restored_store

if TYPE_CHECKING:
    from tallybook.archive.objects.port import ObjectStore
    from tallybook.archive.reader import ArchiveReader

__all__ = ["Fsck", "FsckFinding", "FsckTotals", "OpenArchive"]

FSCK_REASON: Final = "found by fsck"


class OpenArchive(NamedTuple):
    """The open archive of the cluster."""

    store: ObjectStore
    reader: ArchiveReader


@dataclass(slots=True)
class FsckTotals:
    """The progress of a check."""

    steps: int = 0
    """Ledgers, records and objects checked, by all checkers together."""
    findings: int = 0
    """Findings except notes."""
    notes: int = 0
    mended: int = 0
    """Findings to which a fix was applied."""


class Fsck:
    """One run of the check.

    Args:
        kinds: the known kinds of metadata records.
        owners: the kinds of records that own ledgers.
        bucket: the archive, if it is to be checked.
        board: where ledgers that need repair are published; ``None``: change nothing.
    """

    def __init__(
        self,
        world: ClientWorld,
        kinds: Sequence[RecordKind],
        owners: Sequence[LedgerOwner],
        bucket: OpenArchive | None,
        board: TaskBoard | None,
    ) -> None:
        self._world = world
        self._kinds = kinds
        self._owners = owners
        self._bucket = bucket
        self._board = board
        self._to_repair: list[int] = []
        self.totals = FsckTotals()

    async def run(self) -> AsyncIterator[FsckFinding]:
        """Yield findings as they are found.

        Raises:
            MetadataUnavailable: the metadata store does not answer.
        """
        async for found in self._check_all():
            if (
                found.fix is not None
                and self._board is not None
                and not await self._apply(found.fix, self._world.store)
            ):
                found = found._replace(fix=None, remedy="it has changed since it was checked: run fsck again")
            if found.how_bad == "note":
                self.totals.notes += 1
            else:
                self.totals.findings += 1
            yield found
        await self._publish(1)

    async def _check_all(self) -> AsyncIterator[FsckFinding]:
        world = self._world
        parts = [
            check_restored_store(world.store, self._step),
            check_ledgers(world.store, self._owners, self._step),
            check_records(world.store, self._kinds, self._step),
            check_cookies(world.store, world.membership, self._step),
            check_copies(world, self._step),
            check_inventories(world, self._step),
        ]
        if self._bucket is not None:
            from .bucket import check_bucket  # noqa: PLC0415 (needs the extra archive)

            parts.append(check_bucket(world.store, self._bucket.store, self._bucket.reader, self._step))
        for part in parts:
            async for found in part:
                yield found

    def _step(self) -> None:
        self.totals.steps += 1

    async def _apply(self, fix: PublishRepairTask | RemoveRecord, store: MetadataStore) -> bool:
        """Apply a fix, or leave it to the repair; false if the record has changed meanwhile."""
        if isinstance(fix, RemoveRecord):
            removed = isinstance(await store.delete_record(fix.name, fix.version), Ok)
            self.totals.mended += removed
            return removed
        self.totals.mended += 1
        if fix.ledger_id not in self._to_repair[-1:]:
            self._to_repair.append(fix.ledger_id)
        await self._publish(LEDGERS_PER_TASK)
        return True

    async def _publish(self, least: int) -> None:
        """Publish the gathered ledgers if there are at least ``least``."""
        if self._board is not None and len(self._to_repair) >= least:
            await self._board.publish(make_tasks(self._to_repair, thorough=True, why=FSCK_REASON))
            self._to_repair.clear()
