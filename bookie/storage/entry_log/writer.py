"""The entry log that is being written.

Appends go to one log at a time. It is finished with a footer when an append finds it full, and when the bookie stops;
after a crash it stays without a footer, and nothing is ever added to it: the bookie begins a new log at its next boot.
So bytes that were once durable are never near bytes that are being written.

A failure for lack of space is undone by cutting the log to its previous length, and may be retried. Any other failure
is final for this object, since the state of the device is unknown.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Final

from tallybook.core.batch import decode_header
from tallybook.core.buffers import Buffer
from tallybook.core.errors import DiskFailed, DiskFull, InvalidBatch
from tallybook.core.limits import BLOCK_BYTES
from tallybook.runtime.disk.port import Disk, DiskFile

from ..location import Location
from .format import (
    LOG_HEADER_BYTES,
    MAX_STRETCH_BATCH_BYTES,
    MAX_STRETCH_BATCHES,
    PART_HEADER_BYTES,
    TABLE_ROW_BYTES,
    LedgerShare,
    LogFile,
    TableRow,
    add_to_map,
    aligned,
    encode_footer,
    encode_log_header,
    encode_stretch,
    take_from_map,
)

_PADDING: Final = bytes(BLOCK_BYTES)

Paced = Callable[[int], Awaitable[None]]
"""Called after each write with its size in bytes; waits to keep the rate."""


async def unpaced(_size: int) -> None:
    """No limit."""


class LogWriter:
    """One entry log, from its creation to its footer. Not for concurrent use."""

    def __init__(self, log: LogFile, file: DiskFile) -> None:
        self.log = log
        self._file = file
        self._durable_bytes = LOG_HEADER_BYTES
        self.size = LOG_HEADER_BYTES
        self.ledgers: dict[int, LedgerShare] = {}

    @property
    def durable_bytes(self) -> int:
        """Length of the log that survives a crash."""
        return self._durable_bytes

    @staticmethod
    async def create(disk: Disk, directory: str, log: LogFile) -> LogWriter:
        """Make the file, its header and its name durable.

        Raises:
            DiskFull: nothing is left behind.
            DiskFailed: the file may exist.
        """
        try:
            file = await disk.open(log.path, create=True, direct=True)
        except FileNotFoundError as error:
            raise DiskFailed(f"{directory} is missing: no entry log can be created there") from error
        try:
            await file.write(0, [encode_log_header(log)])
            await file.sync()
            await disk.sync_directory(directory)
        except DiskFull:
            await file.close()
            await disk.unlink(log.path)
            raise
        except DiskFailed:
            await file.close()
            raise
        return LogWriter(log, file)

    async def append(self, batches: Sequence[Buffer], paced: Paced) -> list[Location]:
        """Write ``batches`` in stretches of about 1 MiB. Nothing is durable yet.

        Raises:
            InvalidBatch: one of them is not well-formed; the log is unchanged.
            DiskFull: the log is unchanged.
            DiskFailed: the log must not be written any more.
        """
        start, locations, written = self.size, list[Location](), list[TableRow]()
        try:
            for stretch in _stretches(batches):
                rows = [_table_row(batch) for batch in stretch]
                size = await self._write_stretch(stretch, rows, locations)
                written += rows
                for row in rows:
                    add_to_map(self.ledgers, row)
                await paced(size)
        except (DiskFull, InvalidBatch):
            await self._cut(start)
            for row in written:
                take_from_map(self.ledgers, row)
            raise
        return locations

    async def _write_stretch(
        self, stretch: Sequence[Buffer], rows: Sequence[TableRow], locations: list[Location]
    ) -> int:
        """Write one stretch, add the locations of its batches to ``locations``, and return the bytes written."""
        start = self.size
        position = start + PART_HEADER_BYTES + len(rows) * TABLE_ROW_BYTES
        for row in rows:
            locations.append(Location(self.log.log_id, position, row.size, row.entry_count))
            position += row.size
        head = encode_stretch(self.log, start, rows, self._durable_bytes)
        padding = memoryview(_PADDING)[: aligned(position) - position]
        await self._file.write(start, [head, *stretch, padding])
        self.size = aligned(position)
        return self.size - start

    async def finish(self) -> None:
        """Write the footer, after everything before it is durable, which it states. It is durable itself after
        ``sync``.

        Raises:
            DiskFull: the log is unchanged.
            DiskFailed: the log must not be written any more.
        """
        await self.sync()
        footer = encode_footer(self.log, self.size, self.ledgers)
        try:
            await self._file.write(self.size, [footer])
        except DiskFull:
            await self._cut(self.size)
            raise
        self.size += len(footer)

    async def sync(self) -> None:
        """Make everything written durable.

        Raises:
            DiskFailed: the state of what was not durable before is unknown.
        """
        if self._durable_bytes < self.size:
            # Read before the wait: later writes are not covered.
            size = self.size
            await self._file.sync()
            self._durable_bytes = size

    async def close(self) -> None:
        """Close the file."""
        await self._file.close()

    async def _cut(self, size: int) -> None:
        """Undo an append: the index will never have rows for it."""
        try:
            await self._file.truncate(size)
        except DiskFull as error:
            raise DiskFailed(f"{self.log.path} cannot be cut to {size} bytes: {error}") from error
        self.size = size


def _table_row(batch: Buffer) -> TableRow:
    header = decode_header(batch)
    return TableRow(header.ledger_id, header.first_entry_id, header.lac, header.entry_count, header.total_bytes)


def _stretches(batches: Sequence[Buffer]) -> Iterator[Sequence[Buffer]]:
    """Split ``batches`` where the next one would make a stretch too large."""
    start = stretch_bytes = 0
    for index, batch in enumerate(batches):
        if index - start == MAX_STRETCH_BATCHES or stretch_bytes + len(batch) > MAX_STRETCH_BATCH_BYTES:
            yield batches[start:index]
            start, stretch_bytes = index, 0
        stretch_bytes += len(batch)
    if start < len(batches):
        yield batches[start:]
