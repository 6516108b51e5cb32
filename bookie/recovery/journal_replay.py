"""Journal replay: applies journal records to the write cache and the ledger states at boot.

Every record was accepted once, so nothing is refused here. A batch that was checkpointed before the crash comes again
with the same ids and bytes, and its row is written again. Memory stays bounded: whenever the write cache is full, it is
flushed, and the journal keeps everything until all of it was.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import assert_never

from tallybook.core.batch import decode_header
from tallybook.core.coverage import sometimes

from ..journal.format import (
    BatchRecord,
    DeleteRecord,
    ExplicitLacRecord,
    FenceRecord,
    JournalRecord,
    LedgerIdentityRecord,
    LedgerKeyRecord,
    StateRecord,
)
from ..ledgers.key_verification import verifier_from_record
from ..ledgers.state import Ledger
from ..ledgers.table import LedgerTable
from ..storage.write_cache import WriteCache


class JournalReplay:
    """Applies journal records.

    Args:
        spill: flushes the write cache.
    """

    def __init__(self, table: LedgerTable, cache: WriteCache, spill: Callable[[], Awaitable[None]]) -> None:
        self._table = table
        self._cache = cache
        self._spill = spill
        self.record_count = 0

    async def run(self, records: AsyncIterator[JournalRecord]) -> None:
        """Apply ``records``, in order, and flush what they leave in memory.

        Raises:
            DamagedFile, DiskFailed: the journal cannot be read, or its contents cannot be stored.
        """
        async for record in records:
            self.record_count += 1
            if isinstance(record, BatchRecord):
                await self._batch(record)
            else:
                async with self._table.using(record.ledger_id) as ledger:
                    self._change(ledger, record)
                    self._table.mark_dirty(ledger)
        await self._spill()

    async def _batch(self, record: BatchRecord) -> None:
        header = decode_header(record.batch)
        if not self._cache.fits(len(record.batch)):
            sometimes("replay: the write cache was full")
            await self._spill()
        async with self._table.using(header.ledger_id) as ledger:
            if ledger.deleted:
                return
            self._cache.put(header.ledger_id, header.first_entry_id, header.last_entry_id, record.batch)
            ledger.last_held = max(ledger.last_held, header.last_entry_id)
            ledger.raise_lac(header.lac)
            self._table.mark_dirty(ledger)

    def _change(self, ledger: Ledger, record: StateRecord) -> None:
        match record:
            case FenceRecord(_, verifier):
                ledger.learn_verifier(verifier_from_record(verifier))
                ledger.set_fenced()
            case LedgerKeyRecord(_, verifier):
                ledger.learn_verifier(verifier_from_record(verifier))
            case LedgerIdentityRecord(_, verifier, identity):
                ledger.learn_verifier(verifier_from_record(verifier), identity)
            case ExplicitLacRecord(_, lac):
                ledger.explicit_lac = max(ledger.explicit_lac, lac)
                ledger.raise_lac(lac)
            case DeleteRecord():
                ledger.set_deleted()
                self._cache.forget(ledger.ledger_id)
            case _:
                assert_never(record)
