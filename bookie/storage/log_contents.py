"""What is in an entry log, and what of it counts: the batches that the index has where they lie.

The index decides. A batch that no row points at was never acknowledged from there, or has moved, or is of a ledger that
was dropped.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Container, Iterator, Sequence
from contextlib import aclosing
from typing import Final, Protocol

from tallybook.core.errors import DiskFailed, EntryUnknown
from tallybook.core.limits import MIB
from tallybook.runtime.pace import Pace

from .entry_log_format import TableRow
from .index import MAX_FIND_ROWS, WRITE_BATCH_ROWS, Index
from .live_bytes import Measured
from .location import IndexRow, Location
from .told import RowKey

PIECE_BYTES: Final = 4 * MIB
"""About how much is looked at, or moved, at a time."""


class WalkableLogs(Protocol):
    """The part of the entry logs that tells what is in them."""

    def durable_batches(self, log_id: int) -> AsyncGenerator[tuple[TableRow, Location], None]:
        """Every batch of a settled log; ``DamagedFile`` at the end, where any may be missing."""


class LogContents:
    """Goes through entry logs beside the index."""

    def __init__(self, index: Index, logs: WalkableLogs) -> None:
        self._index = index
        self._logs = logs

    async def pieces(self, log_id: int) -> AsyncGenerator[list[IndexRow], None]:
        """All batches of a settled log as rows that would point at them, so many at a time.

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
            # A read that fails changes nothing; only a write that does ends the node.
            raise EntryUnknown(error.message) from error
        if piece:
            yield piece

    async def live(self, piece: Sequence[IndexRow]) -> list[IndexRow]:
        """Those that the index has where they lie.

        Raises:
            EntryUnknown: it cannot be told.
        """
        return await self._index.known_among(piece)

    async def measure(self, log_id: int) -> Measured:
        """How much is in a settled log, and how much of it counts.

        Raises:
            DamagedFile, EntryUnknown: as for ``pieces`` and ``live``.
        """
        everything = live = 0
        async with aclosing(self.pieces(log_id)) as pieces:
            async for piece in pieces:
                everything += size_of(piece)
                live += size_of(await self.live(piece))
        return Measured(everything, live)

    async def rows_into(self, log_ids: Container[int], pace: Pace) -> AsyncGenerator[list[IndexRow], None]:
        """All rows that point into these logs, page by page: what counts in logs that do not tell what is in them.

        It goes through the whole index.

        Args:
            pace: of the rows that are looked at.

        Raises:
            EntryUnknown: a part of the index cannot be read, so that some may be missing.
        """
        at: RowKey | None = RowKey(0, 0)
        while at is not None:
            page = await self._index.survey_from(at, MAX_FIND_ROWS)
            for untold in page.untold:
                ledger_id, entry_id = untold.begin
                raise EntryUnknown(f"the index does not tell what it has from ledger {ledger_id}, entry {entry_id} on")
            yield [row for row in page.rows if row.location.log_id in log_ids]
            await pace.spend(len(page.rows))
            at = page.behind


def in_pieces(rows: Sequence[IndexRow]) -> Iterator[Sequence[IndexRow]]:
    """Rows cut to so many that their batches are a piece, or one that is larger."""
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
