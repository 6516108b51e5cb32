"""When the index gives back the room of what was dropped from it.

What is dropped stays in the files of the index until they are written anew, and until then everybody who searches
near it passes over it. To write them anew costs about their size; so it is done once for very many ledgers and rows,
for the range of ids in which they were. What a crash makes forgotten here waits for the index's own tidying up.
"""

from __future__ import annotations

from collections.abc import Sequence

from tallybook.runtime.logging import logger

from .storage.index import Index

_log = logger("bookie.index_upkeep")


class IndexUpkeep:
    """Counts what is dropped, and has the index compacted when it is enough.

    Args:
        after: so many ledgers and rows are enough; 0: they never are.
    """

    def __init__(self, index: Index, after: int) -> None:
        self._index = index
        self._after = after
        self._first = self._last = -1
        self._count = 0
        """Ledgers and rows dropped since the last compaction, all of them in ledgers ``first .. last``."""
        self.compactions = 0

    def dropped(self, ledger_ids: Sequence[int], row_count: int) -> None:
        """These ledgers left the index, with so many rows."""
        lowest, highest = min(ledger_ids), max(ledger_ids)
        self._first = min(self._first, lowest) if self._count else lowest
        self._last = max(self._last, highest)
        self._count += len(ledger_ids) + row_count

    async def compact_if_worth(self) -> None:
        """Compact the index, if enough was dropped.

        Raises:
            DiskFull, DiskFailed, DamagedFile: as ``Index.compact``; what was dropped is not forgotten.
        """
        if not self._after or self._count < self._after:
            return
        first, last, count = self._first, self._last, self._count
        await self._index.compact(first, last)
        self._first, self._last, self._count = -1, -1, 0
        self.compactions += 1
        _log.info("index compacted", first_ledger_id=first, last_ledger_id=last, gone_count=count)
