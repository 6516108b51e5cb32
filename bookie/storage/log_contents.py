"""Contents of an entry log, and which batches are live: those that an index row points at.

A batch without a row was never acked from there, has moved, or belongs to a dropped ledger.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Container, Iterator, Sequence
from contextlib import aclosing
from typing import Final

from tallybook.core.errors import DiskFailed, EntryUnknown
from tallybook.core.limits import MIB
from tallybook.runtime.concurrency.rate_limit import RateLimiter

from .entry_log.live_bytes import LogBytes
from .entry_log.logs import EntryLogs
from .index.port import MAX_FIND_ROWS, WRITE_BATCH_ROWS, Index
from .index.survey import RowKey
from .location import IndexRow

PIECE_BYTES: Final = 4 * MIB
"""About how many bytes are examined, or moved, at a time."""


class LogContents:
    """Compares entry logs with the index."""

    def __init__(self, index: Index, logs: EntryLogs) -> None:
        self._index = index
        self._logs = logs

    async def pieces(self, log_id: int) -> AsyncGenerator[list[IndexRow], None]:
        """All batches of a settled log, as the rows that would point at them, in pieces.

        Raises:
            DamagedFile: at the end; some may be missing.
            EntryUnknown: it cannot be read.
        """
        piece, size = list[IndexRow](), 0
        try:
            async with aclosing(self._logs.durable_batches(log_id)) as batches:
                async for row, location in batches:
                    piece.append(IndexRow(row.ledger_id, row.first_entry_id, location))
                    size += location.size
                    if size >= PIECE_BYTES or len(piece) == WRITE_BATCH_ROWS:
                        yield piece
                        piece, size = [], 0
        except DiskFailed as error:
            # A failed read changes nothing; only a failed write ends the process.
            raise EntryUnknown(error.message) from error
        if piece:
            yield piece

    async def live(self, piece: Sequence[IndexRow]) -> list[IndexRow]:
        """The rows that the index has unchanged.

        Raises:
            EntryUnknown: part of the index cannot be read.
        """
        return await self._index.known_among(piece)

    async def measure(self, log_id: int) -> LogBytes:
        """Count all and live bytes of a settled log.

        Raises:
            DamagedFile, EntryUnknown: as for ``pieces`` and ``live``.
        """
        everything = live = 0
        async with aclosing(self.pieces(log_id)) as pieces:
            async for piece in pieces:
                everything += size_of(piece)
                live += size_of(await self.live(piece))
        return LogBytes(everything, live)

    async def rows_into(self, log_ids: Container[int], pace: RateLimiter) -> AsyncGenerator[list[IndexRow], None]:
        """All rows that point into these logs, page by page, for logs whose tables are damaged. Scans the whole index.

        Args:
            pace: limits the rows examined per second.

        Raises:
            EntryUnknown: a part of the index cannot be read, so that some may be missing.
        """
        at: RowKey | None = RowKey(0, 0)
        while at is not None:
            page = await self._index.survey_from(at, MAX_FIND_ROWS)
            for unreadable in page.unreadable:
                ledger_id, entry_id = unreadable.begin
                raise EntryUnknown(f"the index cannot be read from ledger {ledger_id}, entry {entry_id} on")
            yield [row for row in page.rows if row.location.log_id in log_ids]
            await pace.spend(len(page.rows))
            at = page.behind


def in_pieces(rows: Sequence[IndexRow]) -> Iterator[Sequence[IndexRow]]:
    """Split rows into pieces of about ``PIECE_BYTES``; a larger batch is a piece of its own."""
    start = size = 0
    for at, row in enumerate(rows):
        if size + row.location.size > PIECE_BYTES and at > start:
            yield rows[start:at]
            start, size = at, 0
        size += row.location.size
    if start < len(rows):
        yield rows[start:]


def size_of(rows: Sequence[IndexRow]) -> int:
    """Bytes of the batches that rows point at."""
    return sum(row.location.size for row in rows)
