"""Compaction: copies live batches out of an entry log, and removes the log.

One log at a time, in pieces of some MiB, which is what a crash may cause to be written twice. For each piece:

1. the batches that the index has in this log are read, and verified like any read;
2. they are written to a log that only compaction writes, so that long-lived batches are together, and synced;
3. the index rows are changed to point there.

Once nothing in the log is live, the index is synced and the log removed. A crash before step 3 leaves copies without
rows, which are dead. Where a footer or table is damaged, the index rows say what is live. A log with damaged batches
stays, with their rows, so that reads report them until a repair has brought copies. Never during a collector's pass: a
dropped ledger gets no rows from here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from contextlib import aclosing
from typing import Any

from tallybook.core.buffers import Buffer
from tallybook.core.coverage import sometimes
from tallybook.core.errors import EntryCorrupt
from tallybook.runtime.concurrency.rate_limit import RateLimiter
from tallybook.runtime.logging import logger

from ..scrub.damage_list import DamageList, batch_of
from ..storage.entry_log.logs import Appender, EntryLogs
from ..storage.index.port import Index
from ..storage.location import IndexRow
from ..storage.log_contents import LogContents, in_pieces

_log = logger("bookie.compaction")

Undisturbed = Callable[[Coroutine[Any, Any, None]], Awaitable[None]]
"""Completes a change even if its caller is cancelled."""


class Compaction:
    """Compacts entry logs.

    Args:
        spend: waits until background work of so many bytes may begin.
        undisturbed: see ``Undisturbed``.
        damage: list of damaged batches, which cannot be copied.
    """

    def __init__(
        self,
        contents: LogContents,
        index: Index,
        logs: EntryLogs,
        spend: Callable[[int], Awaitable[None]],
        undisturbed: Undisturbed,
        damage: DamageList,
    ) -> None:
        self._contents = contents
        self._index = index
        self._logs = logs
        self._spend = spend
        self._undisturbed = undisturbed
        self._damage = damage
        self.copied_batches = 0
        self.copied_bytes = 0

    async def compact(self, log_id: int) -> int:
        """Move all live batches out of a settled log. Returns the size of the log if it could be removed, else 0.

        Raises:
            DamagedFile: its contents are uncertain; it stays.
            EntryUnknown: index or log cannot be read; some batches may have moved.
            DiskFull: likewise.
            DiskFailed: the device failed in the middle of a change.
        """
        whole = True
        async with aclosing(self._contents.pieces(log_id)) as pieces:
            async for piece in pieces:
                whole &= await self._move(await self._contents.live(piece))
        if not whole:
            sometimes("compaction: keeps a log that has a damaged batch")
            return 0
        return await self.remove(log_id)

    async def compact_by_index(self, log_ids: Collection[int], pace: RateLimiter) -> dict[int, int]:
        """Move all live batches out of settled logs whose tables are damaged. Returns the sizes of the removed ones.

        Args:
            pace: limits the index rows examined per second.

        Raises:
            EntryUnknown, DiskFull, DiskFailed: as for ``compact``.
        """
        whole = set(log_ids)
        async with aclosing(self._contents.rows_into(log_ids, pace)) as pages:
            async for page in pages:
                for piece in in_pieces(sorted(page, key=lambda row: row.location)):
                    for log_id in {row.location.log_id for row in piece}:
                        if not await self._move([row for row in piece if row.location.log_id == log_id]):
                            whole.discard(log_id)
        return {log_id: await self.remove(log_id) for log_id in sorted(whole)}

    async def remove(self, log_id: int) -> int:
        """Remove a log that no row points into; returns its size in bytes.

        Raises:
            DiskFull: it still exists.
            DiskFailed: the device failed in the middle of a change.
        """
        removed = 0

        async def remove() -> None:
            nonlocal removed
            # After a crash, a changed row that is not durable would point into this log again.
            await self._index.sync()
            removed = await self._logs.remove(log_id)

        await self._undisturbed(remove())
        await self._logs.free_removed()
        return removed

    async def _move(self, rows: Sequence[IndexRow]) -> bool:
        """Move these batches; returns whether all have moved."""
        whole = True
        while rows:
            try:
                batches = await self._logs.read_many(rows)
            except EntryCorrupt as error:
                _log.warning(
                    "batch cannot be compacted",
                    ledger_id=rows[0].ledger_id,
                    first_entry_id=rows[0].first_entry_id,
                    log_id=rows[0].location.log_id,
                    error=error.message,
                )
                self._damage.add(batch_of(rows[0]))
                rows, whole = rows[1:], False
                continue
            size = sum(map(len, batches))
            await self._spend(size)
            await self._undisturbed(self._write(rows[: len(batches)], batches))
            self.copied_batches += len(batches)
            self.copied_bytes += size
            rows = rows[len(batches) :]
        return whole

    async def _write(self, rows: Sequence[IndexRow], batches: Sequence[Buffer]) -> None:
        """Steps 2 and 3."""
        locations = await self._logs.append(batches, appender=Appender.COMPACTION)
        await self._logs.sync()
        await self._index.apply(
            [row._replace(location=location) for row, location in zip(rows, locations, strict=True)],
            {},
            frees_space=True,
        )
        sometimes("compaction: moves batches")
