"""Tracing one entry: every place where this bookie has its batch, and whether what is stored is intact.

For an operator with a question, not for the read path: what is on the disk is read anew and checked,
whatever the caches have. A copy in the write cache is the newest one, and will be written over what lies
in an entry log, so it decides where there is one; else the disk does, and the read cache never.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple, TypeAlias

from tallybook.core.answers import CopyPlace, CopyTrace
from tallybook.core.batch import Buffer, verify_batch
from tallybook.core.errors import EntryCorrupt, EntryUnknown, InvalidArgument, InvalidBatch, NewerFormat
from tallybook.core.ids import MAX_ID, NO_ENTRY

from .journal.locate import Located
from .ledger_state import Ledger
from .ledger_table import LedgerTable
from .storage.index import Index
from .storage.read_cache import ReadCache
from .storage.stored import StoredBatches
from .storage.write_cache import WriteCache

JournalLookup: TypeAlias = Callable[[int, int], Awaitable[Located | None]]
"""Where the journal has the batch of an entry, if it was found there."""


class _Finding(NamedTuple):
    """What is to be said of the batch."""

    verdict: str
    why: str = ""
    first: int = NO_ENTRY
    last: int = NO_ENTRY
    crc: int = 0
    size: int = 0


class Tracer:
    """Answers where a copy lies."""

    def __init__(
        self,
        table: LedgerTable,
        cache: WriteCache,
        read_cache: ReadCache,
        index: Index,
        stored: StoredBatches,
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
            InvalidArgument: no such entry can be.
            DiskFailed: the state of the ledger cannot be read.
        """
        if not 0 <= entry_id <= MAX_ID:
            raise InvalidArgument(f"cannot trace entry {entry_id}")
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
        """What the write cache says, if it has the entry; copies in the journal and the read cache are only told of."""
        cached = self._cache.find(ledger_id, entry_id)
        kept = self._read_cache.peek(ledger_id, entry_id)
        if cached is not None:
            places.append(CopyPlace("write cache", "waits for a checkpoint", len(cached.batch)))
            # Only now: what has left the write cache needs no journal any more.
            located = await self._in_journal(ledger_id, entry_id)
            if located is not None:
                segment, block = located.mark
                where = f"segment {segment} block {block}: {located.path} offset {located.offset}"
                places.append(CopyPlace("journal", where, located.size))
        if kept is not None:
            places.append(CopyPlace("read cache", f"entries {kept.first} to {kept.last}", len(kept.batch)))
        return None if cached is None else _judged(cached.batch, cached.first, cached.last)

    async def _on_disk(self, ledger: Ledger, entry_id: int, places: list[CopyPlace]) -> _Finding:
        try:
            row = await self._index.find(ledger.ledger_id, entry_id)
            copy = None if row is None else await self._stored.on_disk(row)
        except EntryUnknown as error:
            return _Finding("unknown", error.message)
        if copy is None:
            if ledger.limbo:
                return _Finding("unknown", "it may have been lost: the ledger is in limbo")
            return _Finding("absent")
        row, batch, failure = copy
        at = row.location
        places.append(CopyPlace("entry log", f"log {at.log_id} offset {at.offset}", at.size))
        if batch is not None:
            return _judged(batch, row.first_entry_id, row.last_entry_id)
        verdict = "damaged" if isinstance(failure, EntryCorrupt) else "unknown"
        why = "" if failure is None else failure.message
        return _Finding(verdict, why, row.first_entry_id, row.last_entry_id, 0, at.size)


def _judged(batch: Buffer, first: int, last: int) -> _Finding:
    try:
        crc = verify_batch(batch).crc
    except NewerFormat as error:
        return _Finding("unknown", error.message, first, last, 0, len(batch))
    except InvalidBatch as error:
        return _Finding("damaged", error.message, first, last, 0, len(batch))
    return _Finding("intact", "", first, last, crc, len(batch))
