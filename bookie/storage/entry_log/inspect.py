"""Looking into an entry log from outside: what ``tallybook entrylog dump`` and ``verify`` show.

Reads everything, changes nothing, and does not give up at damage: each finding names the
offset, and the walk goes on behind it. It needs no bookie, only the file.

What is intact and of a later format is no damage, and found as what it is. Where that is the log, or a part of it,
nothing can be said of what follows: only of a batch is it known where it ends.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tallybook.core.batch import BatchHeader, verify_batch
from tallybook.core.errors import DamagedFile, DiskFailed, InvalidBatch, NewerFormat
from tallybook.runtime.disk import Disk, DiskFile

from .entry_log_format import (
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
from .entry_log_lengths import FILE_NAME as LENGTHS_FILE
from .entry_log_lengths import read_lengths
from .entry_log_walk import Damage, Part, Stretch, walk
from .location import Location

MAX_REPORTED_DAMAGE: Final = 1_000


class FoundLog(NamedTuple):
    """The log itself, from its header, or from what follows where the header is damaged.

    One of a later format is known by its name alone, and its directory not at all.
    """

    directory_uuid: str
    log_id: int
    size: int


class FoundStretch(NamedTuple):
    """The head of a stretch; its batches follow."""

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


Found = FoundLog | FoundStretch | FoundBatch | Footer | Damage | LaterFormat


@dataclass(slots=True)
class LogReport:
    """What a whole entry log holds. Counts and the ledger map are of intact batches.

    Attributes:
        finished: it has an intact footer.
        damage: what is wrong with bytes that were once durable, by offset; at most ``MAX_REPORTED_DAMAGE``.
        torn: what is wrong behind the last byte vouched for: what a power loss leaves, or damage.
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
    damage: list[Damage] = field(default_factory=list)
    torn: list[Damage] = field(default_factory=list)
    later: list[LaterFormat] = field(default_factory=list)


async def verify_entry_log(disk: Disk, path: str) -> LogReport:
    """Read a whole log and report on it.

    Raises:
        FileNotFoundError: there is no such file.
    """
    report = LogReport(path)
    found_damage: list[Damage] = []
    async with aclosing(inspect_entry_log(disk, path)) as everything:
        async for found in everything:
            if isinstance(found, Damage):
                found_damage = [*found_damage, found][:MAX_REPORTED_DAMAGE]
            elif isinstance(found, LaterFormat):
                report.later = [*report.later, found][:MAX_REPORTED_DAMAGE]
            else:
                _count(report, found)
    report.damage = [each for each in found_damage if each.offset < max(report.vouched, LOG_HEADER_BYTES)]
    report.torn = [each for each in found_damage if each not in report.damage]
    return report


async def lost_bytes(disk: Disk, directory: str) -> list[Damage | LaterFormat]:
    """What was durable once in the logs of ``directory`` and is not there: logs that are missing, or end too early.

    What is known of it may be of a later format.

    Raises:
        FileNotFoundError: there is no such directory.
        DiskFailed: it cannot be read.
    """
    note = f"{directory}/{LENGTHS_FILE}"
    try:
        lengths = await read_lengths(disk, directory, None)
    except DamagedFile as error:
        return [Damage(0, 0, error.message)]
    except NewerFormat as error:
        return [LaterFormat(0, error.message)]
    found: list[Damage | LaterFormat] = []
    present = set(await disk.list(directory))
    for log_id, noted in sorted(lengths.items()):
        if removed_name(log_id) in present:
            continue  # it went while there was no room for a note
        path = f"{directory}/{log_name(log_id)}"
        size = await _size(disk, path) if log_name(log_id) in present else None
        if size is None:
            found.append(Damage(0, noted, f"{path} is missing: by {note}, {noted} bytes of it were durable"))
        elif size < noted:
            what = f"{path}, offset {size}: the file ends here, but by {note}, {noted} bytes were durable"
            found.append(Damage(size, noted - size, what))
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
        yield Damage(0, 0, f"{path} cannot be read further: {error}")
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
                    yield Damage(part.offset, 0, what)
                continue
            header = part.header
            yield FoundStretch(header.offset, header.batch_count, header.batch_bytes, header.vouched)
            data = await file.read(header.batches_offset, header.end - header.batches_offset)
            for found in _batches(log, part, data):
                yield found
            for row, _ in part.batches:
                add_to_map(ledgers, row)


async def _parts(log: LogFile, file: DiskFile, size: int) -> AsyncGenerator[Part | LaterFormat, None]:
    """What a walk comes by, up to the first part of a later format."""
    end = LOG_HEADER_BYTES
    async with aclosing(walk(log, file.read, size)) as parts:
        try:
            async for part in parts:
                if isinstance(part, Stretch):
                    end = part.header.end
                elif isinstance(part, Damage):
                    end = part.offset + part.size
                yield part
        except NewerFormat as error:
            yield LaterFormat(end, error.message)


async def _identity(path: str, file: DiskFile) -> tuple[LogFile, Damage | None]:
    """Which log this is, and what is wrong with its header."""
    named_id = parse_log_name(path.rpartition("/")[2])
    try:
        log = decode_log_header(path, await file.read(0, LOG_HEADER_BYTES))
    except DamagedFile as error:
        first_part = await file.read(LOG_HEADER_BYTES, PART_HEADER_BYTES)
        claimed = part_identity(first_part) if len(first_part) == PART_HEADER_BYTES else (bytes(16), -1)
        return LogFile(path, *claimed), Damage(0, LOG_HEADER_BYTES, error.message)
    if named_id is not None and named_id != log.log_id:
        what = f"the header is that of entry log {log.log_id}"
        return log, Damage(0, LOG_HEADER_BYTES, log.damaged(0, what).message)
    return log, None


def _batches(log: LogFile, stretch: Stretch, data: bytes) -> Iterator[FoundBatch | Damage | LaterFormat]:
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
                yield Damage(location.offset, row.size, log.damaged(location.offset, what).message)
        else:
            yield FoundBatch(header, location)
    padding_at = stretch.header.batch_bytes
    if any(data[padding_at:]):
        offset = start + padding_at
        yield Damage(offset, len(data) - padding_at, log.damaged(offset, "the padding is not zero (harmless)").message)


def _checked(row: TableRow, batch: bytes) -> BatchHeader:
    header = verify_batch(batch)
    if row != TableRow(header.ledger_id, header.first_entry_id, header.lac, header.entry_count, header.total_bytes):
        raise InvalidBatch(f"it is of ledger {header.ledger_id} from entry {header.first_entry_id} on")
    return header


def _count(report: LogReport, found: FoundLog | FoundStretch | FoundBatch | Footer) -> None:
    if isinstance(found, FoundLog):
        report.directory_uuid, report.log_id, report.size = found
    elif isinstance(found, FoundStretch):
        report.stretches += 1
        report.vouched = max(report.vouched, found.vouched)
    elif isinstance(found, FoundBatch):
        header = found.header
        row = TableRow(header.ledger_id, header.first_entry_id, header.lac, header.entry_count, header.total_bytes)
        add_to_map(report.ledgers, row)
        report.batches += 1
        report.batch_bytes += row.size
    else:
        report.finished = True
        report.vouched = found.offset + PART_HEADER_BYTES
