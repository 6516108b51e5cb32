"""Compacts the index after many drops, to free their space.

Dropped rows stay in the files of the index until compaction, and searches near them must pass over them. Compaction
costs about the size of the range; so it is done once for very many ledgers and rows, for their range of ids. After a
crash, the counts here are lost, and RocksDB's own compaction must do.
"""

from __future__ import annotations

from collections.abc import Sequence

from tallybook.runtime.logging import logger

from .port import Index

_log = logger("bookie.index_upkeep")


class IndexMaintenance:
    """Counts drops, and compacts the index when there are enough.

    Args:
        after: number of ledgers and rows that is enough; 0 disables it.
    """

    def __init__(self, index: Index, after: int) -> None:
        self._index = index
        self._after = after
        self._first = self._last = -1
        self._count = 0
        """Ledgers and rows dropped since the last compaction, all of them in ledgers ``first .. last``."""
        self.compactions = 0

    def dropped(self, ledger_ids: Sequence[int], row_count: int) -> None:
        """Count dropped ledgers and their rows."""
        lowest, highest = min(ledger_ids), max(ledger_ids)
        self._first = min(self._first, lowest) if self._count else lowest
        self._last = max(self._last, highest)
        self._count += len(ledger_ids) + row_count

    async def compact_if_worth(self) -> None:
        """Compact the index, if enough was dropped.

        Raises:
            DiskFull, DiskFailed, DamagedFile: as ``Index.compact``; the counts are kept.
        """
        if not self._after or self._count < self._after:
            return
        first, last, count = self._first, self._last, self._count
        await self._index.compact(first, last)
        self._first, self._last, self._count = -1, -1, 0
        self.compactions += 1
        _log.info("index compacted", first_ledger_id=first, last_ledger_id=last, gone_count=count)
