"""Reads entry logs: single batches, runs of them, and the contents of a whole log.

Every batch is checked before it is returned: it must be intact, and be the one that the index means (this detects
misdirected writes and wrong rows). Ranges of bytes are not: who asks for one checks it. Wrong bytes are CORRUPT; a disk
or file that returns none is UNKNOWN. Neither is ever ABSENT.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing
from typing import Final, assert_never

from tallybook.core.batch import verify_batch
from tallybook.core.errors import DamagedFile, DiskFailed, EntryCorrupt, EntryUnknown, InvalidBatch, OutOfFiles
from tallybook.core.limits import BLOCK_BYTES, KIB, MIB
from tallybook.runtime.disk.port import Disk, DiskFile
from tallybook.runtime.logging import logger

from ..location import IndexRow, Location
from ..open_files import OpenFiles
from .format import (
    LOG_HEADER_BYTES,
    MAX_TABLE_BYTES,
    PART_HEADER_BYTES,
    Footer,
    LedgerShare,
    LogFile,
    TableRow,
    add_to_map,
    decode_log_header,
)
from .scan import LogDamage, Stretch, read_footer, walk

_log = logger("bookie.entry_logs")

MAX_READ_BYTES: Final = MIB
"""Adjacent batches are read in one piece up to this size."""

MAX_INLINE_BYTES: Final = 64 * KIB
"""So much is copied from the page cache on the event loop."""

MAX_GAP_BYTES: Final = BLOCK_BYTES + PART_HEADER_BYTES + MAX_TABLE_BYTES
"""Batches count as adjacent across the padding and the table between two stretches."""


class EntryLogReader:
    """Reads the entry logs of one bookie.

    Args:
        path_of: the file of a log.
        directory_uuid: 16 bytes; logs of another bookie are rejected.
        max_open_files: number of logs that stay open.
    """

    def __init__(self, disk: Disk, path_of: Callable[[int], str], directory_uuid: bytes, max_open_files: int) -> None:
        self._path_of = path_of
        self._directory_uuid = directory_uuid
        self.files = OpenFiles(disk, max_open_files)
        """Files that are open."""

    def log(self, log_id: int) -> LogFile:
        """The log's identity and path."""
        return LogFile(self._path_of(log_id), self._directory_uuid, log_id)

    async def read(self, ledger_id: int, first_entry_id: int, location: Location) -> bytes:
        """Read the batch at ``location``, which must have these ids; see ``EntryLogs.read``."""
        return self._verified(await self.read_range(location), IndexRow(ledger_id, first_entry_id, location))

    async def read_many(self, rows: Sequence[IndexRow]) -> list[bytes]:
        """Read the batches of ``rows``; see ``EntryLogs.read_many``."""
        batches: list[bytes] = []
        try:
            for run in _runs(rows):
                async with aclosing(self._read_run(run)) as pieces:
                    async for row, data in pieces:
                        batches.append(self._verified(data, row))
        except (EntryCorrupt, EntryUnknown):
            # For a later batch the caller gets the error when it reads that one.
            if not batches:
                raise
        return batches

    async def _read_run(self, run: Sequence[IndexRow]) -> AsyncGenerator[tuple[IndexRow, bytes], None]:
        """Read adjacent batches at once; if that fails, one by one, so that a bad sector costs only one."""
        first, last = run[0].location, run[-1].location
        try:
            data = await self.read_range(first._replace(size=last.offset + last.size - first.offset))
        except EntryUnknown as error:
            if len(run) == 1:
                raise
            _log.error(
                "adjacent batches cannot be read at once; reading them one by one",
                ledger_id=run[0].ledger_id,
                first_entry_id=run[0].first_entry_id,
                batch_count=len(run),
                error=error.message,
            )
            for row in run:
                yield row, await self.read_range(row.location)
            return
        for row in run:
            start = row.location.offset - first.offset
            yield row, data[start : start + row.location.size]

    def read_cached(self, location: Location) -> bytes | None:
        """Bytes of a log, unchecked; see ``EntryLogs.read_cached``."""
        file = self.files.find(self.log(location.log_id).path) if location.size <= MAX_INLINE_BYTES else None
        try:
            return None if file is None else file.read_cached(location.offset, location.size)
        except DiskFailed:
            return None  # the ordinary read reports it

    async def read_range(self, location: Location) -> bytes:
        """Read bytes of a log, unchecked; see ``EntryLogs.read_range``."""
        path = self.log(location.log_id).path
        try:
            async with self.files.use(path) as file:
                return await file.read(location.offset, location.size)
        except FileNotFoundError as error:
            raise EntryUnknown(f"{path} is missing") from error
        except (DiskFailed, OutOfFiles) as error:
            raise EntryUnknown(f"{path}, offset {location.offset}: {error}") from error

    def _verified(self, data: bytes, row: IndexRow) -> bytes:
        """Check that ``data`` is the batch of ``row``, and return it."""
        try:
            header = verify_batch(data)
        except InvalidBatch as error:
            raise self._corrupt(row, error.message) from error
        if (header.ledger_id, header.first_entry_id, header.entry_count) != (
            row.ledger_id,
            row.first_entry_id,
            row.location.entry_count,
        ):
            raise self._corrupt(
                row,
                f"it is of ledger {header.ledger_id}, {header.entry_count} entries from {header.first_entry_id} on",
            )
        return data

    def _corrupt(self, row: IndexRow, what: str) -> EntryCorrupt:
        location = row.location
        return EntryCorrupt(
            f"the batch of ledger {row.ledger_id} from entry {row.first_entry_id} on is damaged: "
            f"{self.log(location.log_id).path}, offset {location.offset}: {what}"
        )

    # -- whole logs --------------------------------------------------------------------------

    async def scan(self, log_id: int, at_least: int = 0) -> AsyncGenerator[tuple[TableRow, Location], None]:
        """Every batch in the tables of a log; see ``EntryLogs.scan``. ``at_least`` bytes must be intact."""
        log = self.log(log_id)
        try:
            async with self.files.use(log.path) as file, aclosing(_scan(log, file, at_least)) as batches:
                async for found in batches:
                    yield found
        except FileNotFoundError as error:
            raise DamagedFile(f"{log.path} is missing") from error

    async def ledger_map(self, log_id: int) -> dict[int, LedgerShare]:
        """Size of each ledger in a log, from its footer, or else from its tables."""
        footer = await self.footer(log_id)
        return await self._map_of_tables(log_id, 0) if footer is None else footer.ledgers

    async def complete_map(self, log_id: int, at_least: int) -> dict[int, LedgerShare]:
        """``ledger_map``, only if nothing durable is missing; see ``EntryLogs.complete_map``.

        Args:
            at_least: durable bytes of the log; 0 if unknown.
        """
        footer = await self.footer(log_id)
        if footer is not None:
            return footer.ledgers
        await self._check_vouched(log_id, at_least)
        return await self._map_of_tables(log_id, at_least)

    async def scan_whole(self, log_id: int, at_least: int) -> AsyncGenerator[tuple[TableRow, Location], None]:
        """Every batch of a log; if it ends without an error, nothing durable is missing."""
        if await self.footer(log_id) is None:
            await self._check_vouched(log_id, at_least)
        async with aclosing(self.scan(log_id, at_least)) as batches:
            async for found in batches:
                yield found

    async def _check_vouched(self, log_id: int, at_least: int) -> None:
        path = self.log(log_id).path
        try:
            async with self.files.use(path) as file:
                size = await file.size()
        except FileNotFoundError as error:
            raise DamagedFile(f"{path} is missing") from error
        if not at_least and size > LOG_HEADER_BYTES:
            raise DamagedFile(f"{path} has no footer, and its durable length is unknown")

    async def _map_of_tables(self, log_id: int, at_least: int) -> dict[int, LedgerShare]:
        ledgers: dict[int, LedgerShare] = {}
        async with aclosing(self.scan(log_id, at_least)) as batches:
            async for row, _ in batches:
                add_to_map(ledgers, row)
        return ledgers

    async def footer(self, log_id: int) -> Footer | None:
        """The footer of a log, or ``None`` if it has no intact one."""
        log = self.log(log_id)
        try:
            async with self.files.use(log.path) as file:
                return await read_footer(log, file.read, await file.size())
        except FileNotFoundError as error:
            raise DamagedFile(f"{log.path} is missing") from error
        except DamagedFile:
            # The tables have the same data, and show whether the log is damaged otherwise.
            return None

    async def is_foreign(self, log_id: int) -> bool:
        """Whether the header of a log is intact, and names another log or data directory."""
        log = self.log(log_id)
        try:
            async with self.files.use(log.path) as file:
                return decode_log_header(log.path, await file.read(0, LOG_HEADER_BYTES)) != log
        except (FileNotFoundError, DamagedFile):
            return False

    async def check_ends(self, log_id: int, at_least: int) -> None:
        """Check the length and the header of a log, and its footer if it has one. The rest is not read.

        Args:
            at_least: durable bytes of it.

        Raises:
            DamagedFile: one of them fails its checks, or the log is missing.
            DiskFailed: it cannot be read.
        """
        log = self.log(log_id)
        try:
            async with self.files.use(log.path) as file:
                size = await file.size()
                if size < at_least:
                    raise DamagedFile(
                        f"{log.path}, offset {size}: the file ends here, but {at_least} bytes were durable"
                    )
                damage = await _header_damage(log, file, size)
                if damage is not None:
                    raise DamagedFile(damage.what)
                await read_footer(log, file.read, size)
        except FileNotFoundError as error:
            raise DamagedFile(f"{log.path} is missing, of which {at_least} bytes were durable") from error

    async def forget(self, log_id: int) -> asyncio.Event:
        """Close a log that is removed; the returned event is set when its last reader is done."""
        return await self.files.forget(self.log(log_id).path)

    async def close(self) -> None:
        """Close every log."""
        await self.files.close()


def _runs(rows: Sequence[IndexRow]) -> Iterator[Sequence[IndexRow]]:
    """Split ``rows`` where the next batch is not adjacent to the previous one, or one read would become too large."""
    start = 0
    for index in range(1, len(rows) + 1):
        if index == len(rows) or not _adjoins(rows[start].location, rows[index - 1].location, rows[index].location):
            yield rows[start:index]
            start = index


def _adjoins(first: Location, before: Location, after: Location) -> bool:
    gap = after.offset - (before.offset + before.size)
    return (
        after.log_id == before.log_id
        and 0 <= gap <= MAX_GAP_BYTES
        and after.offset + after.size - first.offset <= MAX_READ_BYTES
    )


async def _scan(log: LogFile, file: DiskFile, at_least: int) -> AsyncGenerator[tuple[TableRow, Location], None]:
    size = await file.size()
    if size < at_least:
        raise DamagedFile(f"{log.path}, offset {size}: the file ends here, but {at_least} bytes were durable")
    damage = await _header_damage(log, file, size)
    vouched = at_least
    async with aclosing(walk(log, file.read, size)) as parts:
        async for part in parts:
            match part:
                case LogDamage():
                    damage = damage or part
                case Footer():
                    vouched = part.offset
                case Stretch():
                    vouched = max(vouched, part.header.vouched)
                    for found in part.batches:
                        yield found
                case _:
                    assert_never(part)
    # The first damage has the lowest offset: if any lies below the vouched offset, it does.
    if damage is not None and (damage.offset < vouched or damage.offset == 0):
        raise DamagedFile(damage.what)


async def _header_damage(log: LogFile, file: DiskFile, size: int) -> LogDamage | None:
    """Damage of the header, which is durable before anything else is written."""
    if size <= LOG_HEADER_BYTES:
        return None
    try:
        found = decode_log_header(log.path, await file.read(0, LOG_HEADER_BYTES))
    except DamagedFile as error:
        return LogDamage(0, LOG_HEADER_BYTES, error.message)
    if found != log:
        what = f"the file is entry log {found.log_id} of directory {found.directory_uuid.hex()}"
        return LogDamage(0, LOG_HEADER_BYTES, log.damaged(0, what).message)
    return None
