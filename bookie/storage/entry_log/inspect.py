"""Inspects an entry log file, for the commands ``tallybook entrylog dump`` and ``verify``.

Reads everything, changes nothing, and continues after damage: each finding has its offset. It needs only the file, no
running bookie.

Intact data of a later format is reported as such, not as damage. If that is the log, or a part of it, nothing after it
can be interpreted: only of a batch is the end known.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Final, NamedTuple, assert_never

from tallybook.core.batch import BatchHeader, verify_batch
from tallybook.core.errors import DamagedFile, DiskFailed, InvalidBatch, NewerFormat
from tallybook.runtime.disk.port import Disk, DiskFile

from ..location import Location
from .format import (
    LOG_HEADER_BYTES,
    PART_HEADER_BYTES,
    Footer,
    LedgerShare,
    LogFile,
    TableRow,
    add_to_map,
    decode_log_header,
    log_name,
    parse_log_name,
    part_identity,
    removed_name,
)
from .lengths import FILE_NAME as LENGTHS_FILE
from .lengths import read_lengths
from .scan import LogDamage, Part, Stretch, walk

MAX_REPORTED_DAMAGE: Final = 1_000


class FoundLog(NamedTuple):
    """The log itself, from its header, or from a later part if the header is damaged.

    A log of a later format is known by its name alone, without its directory.
    """

    directory_uuid: str
    log_id: int
    size: int


class FoundStretch(NamedTuple):
    """The header of a stretch; its batches follow."""

    offset: int
    batch_count: int
    batch_bytes: int
    vouched: int


class FoundBatch(NamedTuple):
    """An intact batch."""

    header: BatchHeader
    location: Location


class LaterFormat(NamedTuple):
    """Something intact that only a newer Tallybook can read."""

    offset: int
    what: str


Found = FoundLog | FoundStretch | FoundBatch | Footer | LogDamage | LaterFormat


@dataclass(slots=True)
class LogReport:
    """Contents of a whole entry log. Counts and the ledger map are of intact batches.

    Attributes:
        finished: it has an intact footer.
        damage: damage of bytes that were once durable, by offset; at most ``MAX_REPORTED_DAMAGE``.
        torn: damage after the last byte vouched for: from a power loss, or real.
        later: what only a newer Tallybook can read; at most ``MAX_REPORTED_DAMAGE``.
    """

    path: str
    directory_uuid: str = ""
    log_id: int = -1
    size: int = 0
    finished: bool = False
    stretches: int = 0
    batches: int = 0
    batch_bytes: int = 0
    vouched: int = 0
    ledgers: dict[int, LedgerShare] = field(default_factory=dict)
    damage: list[LogDamage] = field(default_factory=list)
    torn: list[LogDamage] = field(default_factory=list)
    later: list[LaterFormat] = field(default_factory=list)


async def verify_entry_log(disk: Disk, path: str) -> LogReport:
    """Read a whole log and report on it.

    Raises:
        FileNotFoundError: there is no such file.
    """
    report = LogReport(path)
    found_damage: list[LogDamage] = []
    async with aclosing(inspect_entry_log(disk, path)) as everything:
        async for found in everything:
            match found:
                case LogDamage():
                    found_damage = [*found_damage, found][:MAX_REPORTED_DAMAGE]
                case LaterFormat():
                    report.later = [*report.later, found][:MAX_REPORTED_DAMAGE]
                case _:
                    _count(report, found)
    report.damage = [each for each in found_damage if each.offset < max(report.vouched, LOG_HEADER_BYTES)]
    report.torn = [each for each in found_damage if each not in report.damage]
    return report


async def lost_bytes(disk: Disk, directory: str) -> list[LogDamage | LaterFormat]:
    """Bytes that were durable in the logs of ``directory`` and are gone: logs that are missing, or too short.

    The length note may be of a later format, which is reported, too.

    Raises:
        FileNotFoundError: there is no such directory.
        DiskFailed: it cannot be read.
    """
    note = f"{directory}/{LENGTHS_FILE}"
    try:
        lengths = await read_lengths(disk, directory, None)
    except DamagedFile as error:
        return [LogDamage(0, 0, error.message)]
    except NewerFormat as error:
        return [LaterFormat(0, error.message)]
    found: list[LogDamage | LaterFormat] = []
    present = set(await disk.list(directory))
    for log_id, noted in sorted(lengths.items()):
        if removed_name(log_id) in present:
            continue  # removed while there was no space for a note
        path = f"{directory}/{log_name(log_id)}"
        size = await _size(disk, path) if log_name(log_id) in present else None
        if size is None:
            found.append(
                LogDamage(0, noted, f"{path} is missing: according to {note}, {noted} bytes of it were durable")
            )
        elif size < noted:
            what = f"{path}, offset {size}: the file ends here, but according to {note}, {noted} bytes were durable"
            found.append(LogDamage(size, noted - size, what))
    return found


async def _size(disk: Disk, path: str) -> int:
    file = await disk.open(path, writable=False)
    try:
        return await file.size()
    finally:
        await file.close()


async def inspect_entry_log(disk: Disk, path: str) -> AsyncGenerator[Found, None]:
    """Everything in a log, in order, damage included.

    Raises:
        FileNotFoundError: there is no such file.
    """
    file = await disk.open(path, writable=False)
    try:
        size = await file.size()
        async with aclosing(_inspect(path, file, size)) as everything:
            async for found in everything:
                yield found
    except DiskFailed as error:
        yield LogDamage(0, 0, f"{path} cannot be read further: {error}")
    finally:
        await file.close()


async def _inspect(path: str, file: DiskFile, size: int) -> AsyncGenerator[Found, None]:
    try:
        log, damage = await _identity(path, file)
    except NewerFormat as error:
        named_id = parse_log_name(path.rpartition("/")[2])
        yield FoundLog("", -1 if named_id is None else named_id, size)
        yield LaterFormat(0, error.message)
        return
    yield FoundLog(str(uuid.UUID(bytes=log.directory_uuid)), log.log_id, size)
    if damage is not None:
        yield damage
    ledgers: dict[int, LedgerShare] = {}
    async with aclosing(_parts(log, file, size)) as parts:
        async for part in parts:
            if not isinstance(part, Stretch):
                yield part
                if isinstance(part, Footer) and part.ledgers != ledgers:
                    what = log.damaged(part.offset, "the ledger map differs from the tables").message
                    yield LogDamage(part.offset, 0, what)
                continue
            header = part.header
            yield FoundStretch(header.offset, header.batch_count, header.batch_bytes, header.vouched)
            data = await file.read(header.batches_offset, header.end - header.batches_offset)
            for found in _batches(log, part, data):
                yield found
            for row, _ in part.batches:
                add_to_map(ledgers, row)


async def _parts(log: LogFile, file: DiskFile, size: int) -> AsyncGenerator[Part | LaterFormat, None]:
    """The parts of a log, up to the first one of a later format."""
    end = LOG_HEADER_BYTES
    async with aclosing(walk(log, file.read, size)) as parts:
        try:
            async for part in parts:
                if isinstance(part, Stretch):
                    end = part.header.end
                elif isinstance(part, LogDamage):
                    end = part.offset + part.size
                yield part
        except NewerFormat as error:
            yield LaterFormat(end, error.message)


async def _identity(path: str, file: DiskFile) -> tuple[LogFile, LogDamage | None]:
    """The identity of the log, and the damage of its header, if any."""
    named_id = parse_log_name(path.rpartition("/")[2])
    try:
        log = decode_log_header(path, await file.read(0, LOG_HEADER_BYTES))
    except DamagedFile as error:
        first_part = await file.read(LOG_HEADER_BYTES, PART_HEADER_BYTES)
        claimed = part_identity(first_part) if len(first_part) == PART_HEADER_BYTES else (bytes(16), -1)
        return LogFile(path, *claimed), LogDamage(0, LOG_HEADER_BYTES, error.message)
    if named_id is not None and named_id != log.log_id:
        what = f"the header is that of entry log {log.log_id}"
        return log, LogDamage(0, LOG_HEADER_BYTES, log.damaged(0, what).message)
    return log, None


def _batches(log: LogFile, stretch: Stretch, data: bytes) -> Iterator[FoundBatch | LogDamage | LaterFormat]:
    """Check every batch of a stretch, and its padding."""
    start = stretch.header.batches_offset
    for row, location in stretch.batches:
        begin = location.offset - start
        try:
            header = _checked(row, data[begin : begin + row.size])
        except (InvalidBatch, NewerFormat) as error:
            what = f"the batch of ledger {row.ledger_id} from entry {row.first_entry_id} on: {error.message}"
            if isinstance(error, NewerFormat):
                yield LaterFormat(location.offset, f"{log.path}, offset {location.offset}: {what}")
            else:
                yield LogDamage(location.offset, row.size, log.damaged(location.offset, what).message)
        else:
            yield FoundBatch(header, location)
    padding_at = stretch.header.batch_bytes
    if any(data[padding_at:]):
        offset = start + padding_at
        yield LogDamage(
            offset, len(data) - padding_at, log.damaged(offset, "the padding is not zero (harmless)").message
        )


def _checked(row: TableRow, batch: bytes) -> BatchHeader:
    header = verify_batch(batch)
    if row != TableRow(header.ledger_id, header.first_entry_id, header.lac, header.entry_count, header.total_bytes):
        raise InvalidBatch(f"it is of ledger {header.ledger_id} from entry {header.first_entry_id} on")
    return header


def _count(report: LogReport, found: FoundLog | FoundStretch | FoundBatch | Footer) -> None:
    match found:
        case FoundLog():
            report.directory_uuid, report.log_id, report.size = found
        case FoundStretch():
            report.stretches += 1
            report.vouched = max(report.vouched, found.vouched)
        case FoundBatch():
            header = found.header
            row = TableRow(header.ledger_id, header.first_entry_id, header.lac, header.entry_count, header.total_bytes)
            add_to_map(report.ledgers, row)
            report.batches += 1
            report.batch_bytes += row.size
        case Footer():
            report.finished = True
            report.vouched = found.offset + PART_HEADER_BYTES
        case _:
            assert_never(found)
