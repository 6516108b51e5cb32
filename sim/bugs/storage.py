"""Planted bugs in background work of a bookie: compaction, garbage collection, scrub, disk watermarks."""

# A wrong function has the arguments of the correct one, and does not use all of them.
# ruff: noqa: ARG001

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any, Final

from tallybook.bookie.directories.watermarks import DiskLevel, Watermarks
from tallybook.bookie.gc.entry_log_compaction import Compaction
from tallybook.bookie.gc.plan import GarbagePolicy
from tallybook.bookie.ledgers.disposition import LedgerDisposition
from tallybook.bookie.scrub.scrubber import Scrubber
from tallybook.bookie.storage.entry_log.logs import Appender, EntryLogs
from tallybook.bookie.storage.entry_log.truncation import UnlinkedFile
from tallybook.bookie.storage.log_contents import LogContents

from .bug import Bug


def _index_not_synced(_right: Any) -> Any:
    async def remove(self: Compaction, log_id: int) -> int:
        removed: int = await self._logs.remove(log_id)
        return removed

    return remove


def _copies_not_synced(_right: Any) -> Any:
    async def write(self: Compaction, rows: Any, batches: Any) -> None:
        locations = await self._logs.append(batches, appender=Appender.COMPACTION)
        moved = [row._replace(location=location) for row, location in zip(rows, locations, strict=True)]
        await self._index.apply(moved, {})

    return write


def _last_one_forgotten(right: Any) -> Any:
    async def live(self: LogContents, piece: Any) -> Any:
        found = await right(self, piece)
        return found[:-1] if len(found) > 1 else found

    return live


def _removed_first(right: Any) -> Any:
    async def compact(self: Compaction, log_id: int) -> int:
        found = []
        async with aclosing(self._contents.pieces(log_id)) as pieces:
            async for piece in pieces:
                rows = await self._contents.live(piece)
                found.append((rows, await self._logs.read_many(rows) if rows else []))
        removed: int = await self.remove(log_id)
        for rows, batches in found:
            if batches:
                await self._undisturbed(self._write(rows[: len(batches)], batches))
        return removed

    return compact


def _damage_kept_quiet(_right: Any) -> Any:
    def found_damaged(self: Scrubber, row: Any, error: Any) -> None:
        """Do not report it."""

    return found_damaged


def _short_for_good(right: Any) -> Any:
    def level(self: Watermarks, used_part: float, before: DiskLevel) -> DiskLevel:
        found: DiskLevel = before if before is DiskLevel.SHORT else right(self, used_part, before)
        return found

    return level


def _gone_immediately(_right: Any) -> Any:
    def is_garbage(self: GarbagePolicy, ledger_id: int, disposition: LedgerDisposition) -> bool:
        return disposition is not LedgerDisposition.KEPT

    return is_garbage


def _missing_twice(right: Any) -> Any:
    def is_garbage(self: GarbagePolicy, ledger_id: int, disposition: LedgerDisposition) -> bool:
        before = self._before.get(ledger_id)
        found: bool = right(self, ledger_id, disposition)
        return found or (
            disposition is LedgerDisposition.MISSING and before is not None and before[0] is LedgerDisposition.MISSING
        )

    return is_garbage


def _approval_ends_the_delay(right: Any) -> Any:
    def is_garbage(self: GarbagePolicy, ledger_id: int, disposition: LedgerDisposition) -> bool:
        found: bool = right(self, ledger_id, disposition)
        return found or (disposition is LedgerDisposition.MISSING and self._approved)

    return is_garbage


def _due_immediately(right: Any) -> Any:
    def due_at(self: GarbagePolicy) -> float | None:
        return None if right(self) is None else 0.0

    return due_at


def _cut_first(right: Any) -> Any:
    async def remove(self: EntryLogs, log_id: int) -> int:
        unread = asyncio.Event()
        unread.set()
        file = await self._disk.open(self._directories.path_of(log_id))
        await UnlinkedFile(file, self.size_of(log_id), self._piece_bytes, unread, self._clock).truncate_in_steps()
        removed: int = await right(self, log_id)
        return removed

    return remove


STORAGE_BUGS: Final[dict[str, Bug]] = {
    "log removed before the index is synced": Bug(
        "compaction removes a log before the moved index rows are durable",
        "I1 I2 I10 I11 I12",
        [(Compaction, "remove", _index_not_synced)],
    ),
    "copies not synced": Bug(
        "compaction moves index rows to copies that are not durable",
        "I1 I2 I10 I11 I12",
        [(Compaction, "_write", _copies_not_synced)],
    ),
    "batch that counts left behind": Bug(
        "compaction removes a log without copying all live batches",
        "I1 I2 I10 I11 I12",
        [(LogContents, "live", _last_one_forgotten)],
    ),
    "log removed before its batches have moved": Bug(
        "compaction removes a log before it has written the copied batches",
        "I1 I2 I10 I11 I12",
        [(Compaction, "compact", _removed_first)],
    ),
    "scrub keeps damage quiet": Bug(
        "a scrub does not add damaged batches to the damage list",
        "L7",
        [(Scrubber, "_found_damaged", _damage_kept_quiet)],
    ),
    "read-only for good": Bug(
        "a bookie that ran short of disk space stays read-only after space was freed",
        "L2",
        [(Watermarks, "level", _short_for_good)],
    ),
    "unknown ledgers dropped": Bug(
        "a bookie drops ledgers whose metadata cannot be read now",
        "I12 I16",
        [(GarbagePolicy, "is_garbage", _gone_immediately)],
    ),
    "missing in two rounds is enough": Bug(
        "a bookie drops a ledger whose metadata were missing in two passes, without a delay",
        "I12 I16",
        [(GarbagePolicy, "is_garbage", _missing_twice)],
        of_fault="rows_away",
    ),
    "approval ends the delay": Bug(
        "a bookie drops a missing ledger as soon as an operator approves, without the delay",
        "I12 I16",
        [(GarbagePolicy, "is_garbage", _approval_ends_the_delay), (GarbagePolicy, "due_at", _due_immediately)],
        of_fault="rows_away",
    ),
    "log cut before it is gone": Bug(
        "a removed log is truncated before it is unlinked and its noted length is removed",
        "boot",
        [(EntryLogs, "remove", _cut_first)],
    ),
}
