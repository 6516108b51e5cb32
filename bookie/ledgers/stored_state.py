"""Reads the durable state of ledgers from the index."""

from __future__ import annotations

from dataclasses import replace

from tallybook.core.errors import DamagedFile, EntryUnknown, StorageError
from tallybook.runtime.logging import logger
from tallybook.runtime.metrics.usage import Meter

from ..storage.index.port import Index
from .state import LedgerRow, decode_row

_log = logger("bookie.ledgers")


class StoredState:
    """Reads the state of ledgers. If it is damaged, a fence may be lost, and the ledger is in limbo.

    Args:
        index_path: for messages.
        meter: measures every read.
    """

    def __init__(self, index: Index, index_path: str, meter: Meter) -> None:
        self._index = index
        self._index_path = index_path
        self._meter = meter

    async def load(self, ledger_id: int) -> LedgerRow | None:
        """Read the state of a ledger."""
        with self._meter.timing():
            return await self._row(ledger_id)

    async def _row(self, ledger_id: int) -> LedgerRow:
        row = LedgerRow()
        try:
            data = await self._index.load_state(ledger_id)
            if data is not None:
                row = decode_row(ledger_id, data)
        except (DamagedFile, EntryUnknown) as error:
            row = self._in_limbo(row, ledger_id, error)
        try:
            # A crash during a checkpoint may have left batches without the newer state.
            last_held = await self._index.last_entry(ledger_id)
        except EntryUnknown as error:
            return self._in_limbo(row, ledger_id, error)
        return replace(row, last_held=max(row.last_held, last_held))

    def _in_limbo(self, row: LedgerRow, ledger_id: int, error: StorageError) -> LedgerRow:
        """``row`` in limbo, if ``error`` means a damaged index; raises it if the disk fails, which may be transient."""
        if not isinstance(error, DamagedFile) and not isinstance(error.__cause__, DamagedFile):
            raise error
        _log.error("ledger in limbo until repaired", ledger_id=ledger_id, path=self._index_path, error=error.message)
        return replace(row, limbo=True)
