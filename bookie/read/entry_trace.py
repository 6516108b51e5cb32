"""Traces one entry: where this bookie has its batch, and whether the stored copy is intact.

For an operator, not for the read path: the copy on the disk is read and checked again, independent of the caches.
A copy in the write cache is the newest and will replace the one in an entry log, so it decides the verdict if there
is one; else the disk decides, and the read cache never does.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple, TypeAlias

from tallybook.core.answers import CopyPlace, CopyTrace
from tallybook.core.batch import verify_batch
from tallybook.core.buffers import Buffer
from tallybook.core.errors import EntryCorrupt, EntryUnknown, InvalidArgument, InvalidBatch, NewerFormat
from tallybook.core.ids import MAX_ID, NO_ENTRY

from ..journal.batch_search import JournalLocation
from ..ledgers.state import Ledger
from ..ledgers.table import LedgerTable
from ..storage.flushed_batches import FlushedBatches
from ..storage.index.port import Index
from ..storage.read_cache import ReadCache
from ..storage.write_cache import WriteCache

JournalLookup: TypeAlias = Callable[[int, int], Awaitable[JournalLocation | None]]
"""Finds the batch of an entry in the journal, if it is there."""


class _Finding(NamedTuple):
    """The verdict about the batch."""

    verdict: str
    why: str = ""
    first: int = NO_ENTRY
    last: int = NO_ENTRY
    crc: int = 0
    size: int = 0


class EntryTracer:
    """Answers where a copy is stored."""

    def __init__(
        self,
        table: LedgerTable,
        cache: WriteCache,
        read_cache: ReadCache,
        index: Index,
        stored: FlushedBatches,
        in_journal: JournalLookup,
    ) -> None:
        self._table = table
        self._cache = cache
        self._read_cache = read_cache
        self._index = index
        self._stored = stored
        self._in_journal = in_journal

    async def trace(self, ledger_id: int, entry_id: int) -> CopyTrace:
        """See ``LedgerStore.trace``.

        Raises:
            InvalidArgument: the id is out of range.
            DiskFailed: the state of the ledger cannot be read.
        """
        if not 0 <= entry_id <= MAX_ID:
            raise InvalidArgument(f"entry id {entry_id} is out of range")
        async with self._table.using(ledger_id) as ledger:
            places: list[CopyPlace] = []
            in_memory = await self._in_memory(ledger_id, entry_id, places)
            stored = await self._on_disk(ledger, entry_id, places)
            if ledger.deleted:
                finding = _Finding("deleted", f"ledger {ledger_id} was deleted")
                places.clear()
            else:
                finding = in_memory or stored
            return CopyTrace(
                finding.verdict, finding.why, finding.first, finding.last, finding.crc, finding.size,
                ledger.lac, ledger.fenced, ledger.limbo, tuple(places),
            )  # fmt: skip

    async def _in_memory(self, ledger_id: int, entry_id: int, places: list[CopyPlace]) -> _Finding | None:
        """The verdict of the write cache, if it has the entry; also lists copies in the journal and the read cache."""
        cached = self._cache.find(ledger_id, entry_id)
        kept = self._read_cache.peek(ledger_id, entry_id)
        if cached is not None:
            places.append(CopyPlace("write cache", "waits for a checkpoint", len(cached.batch)))
            # Only now: a batch that has left the write cache does not need the journal any more.
            located = await self._in_journal(ledger_id, entry_id)
            if located is not None:
                segment, block = located.mark
                where = f"segment {segment} block {block}: {located.path} offset {located.offset}"
                places.append(CopyPlace("journal", where, located.size))
        if kept is not None:
            places.append(CopyPlace("read cache", f"entries {kept.first} to {kept.last}", len(kept.batch)))
        return None if cached is None else _verdict(cached.batch, cached.first, cached.last)

    async def _on_disk(self, ledger: Ledger, entry_id: int, places: list[CopyPlace]) -> _Finding:
        try:
            row = await self._index.find(ledger.ledger_id, entry_id)
            copy = None if row is None else await self._stored.on_disk(row)
        except EntryUnknown as error:
            return _Finding("unknown", error.message)
        if copy is None:
            if ledger.limbo:
                return _Finding("unknown", "the entry may have been lost: the ledger is in limbo")
            return _Finding("absent")
        row, batch, failure = copy
        at = row.location
        places.append(CopyPlace("entry log", f"log {at.log_id} offset {at.offset}", at.size))
        if batch is not None:
            return _verdict(batch, row.first_entry_id, row.last_entry_id)
        verdict = "damaged" if isinstance(failure, EntryCorrupt) else "unknown"
        why = "" if failure is None else failure.message
        return _Finding(verdict, why, row.first_entry_id, row.last_entry_id, 0, at.size)


def _verdict(batch: Buffer, first: int, last: int) -> _Finding:
    try:
        crc = verify_batch(batch).crc
    except NewerFormat as error:
        return _Finding("unknown", error.message, first, last, 0, len(batch))
    except InvalidBatch as error:
        return _Finding("damaged", error.message, first, last, 0, len(batch))
    return _Finding("intact", "", first, last, crc, len(batch))
