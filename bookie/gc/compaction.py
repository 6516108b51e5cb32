"""Compaction: copies what still counts out of an entry log, and removes the log.

One log at a time, in pieces of some MiB, which is what a crash may leave to be written twice; each in this order:

1. the batches that the index has in this log are read, and checked like any that is read;
2. they are written to a log that only compaction writes, so that what lasts lies with what lasts, and synced;
3. the rows of the index are changed to point there.

When the whole log was gone through and nothing in it counts, the index is synced and the log removed. A crash before 3
leaves copies without rows, which are nothing; after it, the batch has moved, and is not copied again. So at no time is
a row without its batch.

What is damaged cannot be copied. Then the log stays, and with it the rows that point at the damage: whoever reads there
is told so, until a repair has brought another copy. The rest of it has moved nevertheless. Where a log does not tell
all that is in it, since its footer or a table is damaged, the rows of the index that point into it say what counts.

It runs between rounds of the collector, never beside one: a ledger that is dropped gets no rows from here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from contextlib import aclosing
from typing import Any, Protocol

from tallybook.core.batch import Buffer
from tallybook.core.errors import EntryCorrupt
from tallybook.core.marks import sometimes
from tallybook.runtime.logging import logger
from tallybook.runtime.pace import Pace

from .damage import DamageList, batch_of
from .storage.index import Index
from .storage.location import IndexRow, Location
from .storage.log_contents import LogContents, WalkableLogs, in_pieces

_log = logger("bookie.compaction")

Undisturbed = Callable[[Coroutine[Any, Any, None]], Awaitable[None]]
"""Makes a change to its end, also where whoever waits for it is cancelled."""


class CompactableLogs(WalkableLogs, Protocol):
    """The part of the entry logs that compaction needs."""

    async def read_many(self, rows: Sequence[IndexRow]) -> list[bytes]:
        """The batches of ``rows``, up to the first that cannot be had."""

    async def append(self, batches: Sequence[Buffer], *, paced: bool = True, aside: bool = False) -> list[Location]:
        """Write batches."""

    async def sync(self) -> None:
        """Make them durable."""

    async def remove(self, log_id: int) -> int:
        """Delete a log, durably; how many bytes it had."""

    async def give_back(self) -> None:
        """Give back the room of what was removed, piece by piece."""


class Compaction:
    """Copies logs.

    Args:
        pace: of what is copied, in bytes.
        undisturbed: see ``Undisturbed``.
        damage: where batches are noted that cannot be copied.
    """

    def __init__(
        self,
        contents: LogContents,
        index: Index,
        logs: CompactableLogs,
        pace: Pace,
        undisturbed: Undisturbed,
        damage: DamageList,
    ) -> None:
        self._contents = contents
        self._index = index
        self._logs = logs
        self._pace = pace
        self._undisturbed = undisturbed
        self._damage = damage
        self.copied_batches = 0
        self.copied_bytes = 0

    async def compact(self, log_id: int) -> int:
        """Move all that counts out of a settled log; the bytes of the log if it could be removed, else 0.

        Raises:
            DamagedFile: it is not certain what was in it; it stays.
            EntryUnknown: index or log cannot be read; some of it may have moved.
            DiskFull: likewise.
            DiskFailed: the device failed in the middle of a change.
        """
        whole = True
        async with aclosing(self._contents.pieces(log_id)) as pieces:
            async for piece in pieces:
                whole &= await self._move(await self._contents.live(piece))
        if not whole:
            sometimes("compaction: a log stays for what is damaged in it")
            return 0
        return await self.remove(log_id)

    async def compact_by_index(self, log_ids: Collection[int], pace: Pace) -> dict[int, int]:
        """Move all that counts out of settled logs whose tables are damaged; the bytes of those that were removed.

        Args:
            pace: of the rows of the index that are looked at.

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
        """Remove a log that no row points into; how many bytes it had.

        Raises:
            DiskFull: it is there yet.
            DiskFailed: the device failed in the middle of a change.
        """
        removed = 0

        async def remove() -> None:
            nonlocal removed
            # A row that was changed and is not durable would point into this log again after a crash.
            await self._index.sync()
            removed = await self._logs.remove(log_id)

        await self._undisturbed(remove())
        await self._logs.give_back()
        return removed

    async def _move(self, rows: Sequence[IndexRow]) -> bool:
        """Move these batches; whether none of them is left behind."""
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
            await self._pace.spend(size)
            await self._undisturbed(self._write(rows[: len(batches)], batches))
            self.copied_batches += len(batches)
            self.copied_bytes += size
            rows = rows[len(batches) :]
        return whole

    async def _write(self, rows: Sequence[IndexRow], batches: Sequence[Buffer]) -> None:
        """Steps 2 and 3."""
        locations = await self._logs.append(batches, paced=False, aside=True)
        await self._logs.sync()
        await self._index.apply(
            [row._replace(location=location) for row, location in zip(rows, locations, strict=True)],
            {},
            makes_room=True,
        )
        sometimes("compaction: moves batches")
