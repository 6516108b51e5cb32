"""Scans an entry log: every part in order, stepping over damage.

A scan reads the tables of the stretches, not their batches. Where no intact part begins, it searches for the next one
block by block; a part states its own offset, so nothing else is mistaken for one.

The log also says whether damage matters. Each stretch *vouches* for the bytes that were durable when it was written,
and a footer for all before it. Below the highest such offset, damage is damage. Above it, it may be the remainder of an
append that was never synced before a power loss; the index has no row for that.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Final, NamedTuple

from tallybook.core.errors import DamagedFile, NewerFormat
from tallybook.core.limits import BLOCK_BYTES, KIB

from ..location import Location
from .format import (
    END_MARK_BYTES,
    FOOTER_MAGIC,
    LOG_HEADER_BYTES,
    MAX_TABLE_BYTES,
    PART_HEADER_BYTES,
    STRETCH_MAGIC,
    Footer,
    LogFile,
    StretchHeader,
    TableRow,
    check_footer_header,
    decode_end_mark,
    decode_footer,
    decode_stretch_header,
    decode_table,
    part_magic,
)

ReadAt = Callable[[int, int], Awaitable[bytes]]
"""Reads up to ``size`` bytes from ``offset``, fewer only at the end of the log."""

_SEARCH_BYTES: Final = 256 * KIB


class Stretch(NamedTuple):
    """An intact header with its table. The batches themselves were not read."""

    header: StretchHeader
    batches: list[tuple[TableRow, Location]]


class LogDamage(NamedTuple):
    """``size`` bytes from ``offset`` that belong to no intact part."""

    offset: int
    size: int
    what: str


Part = Stretch | Footer | LogDamage


async def walk(log: LogFile, read: ReadAt, size: int) -> AsyncGenerator[Part, None]:
    """The parts of a log of ``size`` bytes, after its header block.

    Raises:
        NewerFormat: the next part has a later version.
        DiskFailed: it cannot be read.
    """
    position = LOG_HEADER_BYTES
    while position < size:
        try:
            part = await _part_at(log, read, position, size)
        except DamagedFile as error:
            resumed = await _next_part(log, read, position + BLOCK_BYTES, size)
            yield LogDamage(position, resumed - position, error.message)
            position = resumed
            continue
        yield part
        if isinstance(part, Footer):
            return
        position = part.header.end
    if position > max(size, LOG_HEADER_BYTES):
        yield LogDamage(size, position - size, log.damaged(size, "the log ends within a stretch").message)


async def read_footer(log: LogFile, read: ReadAt, size: int) -> Footer | None:
    """The footer, found from the end of a log; ``None`` if the log is not finished.

    Raises:
        DamagedFile, NewerFormat: the footer is damaged, or of a later format.
        DiskFailed: it cannot be read.
    """
    if size < LOG_HEADER_BYTES + BLOCK_BYTES:
        return None
    offset = decode_end_mark(await read(size - END_MARK_BYTES, END_MARK_BYTES))
    if offset is None or not LOG_HEADER_BYTES <= offset < size:
        return None
    return await _footer_at(log, read, offset, size, await read(offset, PART_HEADER_BYTES))


async def _footer_at(log: LogFile, read: ReadAt, offset: int, size: int, head: bytes) -> Footer:
    check_footer_header(log, offset, head, size - offset)
    return decode_footer(log, offset, await read(offset, size - offset))


async def _part_at(log: LogFile, read: ReadAt, position: int, size: int) -> Stretch | Footer:
    head = await read(position, PART_HEADER_BYTES + MAX_TABLE_BYTES)
    if part_magic(head) == FOOTER_MAGIC:
        return await _footer_at(log, read, position, size, head)
    header = decode_stretch_header(log, position, head)
    return Stretch(header, decode_table(log, header, head))


async def _next_part(log: LogFile, read: ReadAt, position: int, size: int) -> int:
    """Offset of the next intact part of any version, at or after ``position``; else the end of the log."""
    while position < size:
        window = await read(position, _SEARCH_BYTES)
        for at in range(0, len(window), BLOCK_BYTES):
            if window[at : at + 4] in (STRETCH_MAGIC, FOOTER_MAGIC) and await _is_part(log, read, position + at, size):
                return position + at
        position += _SEARCH_BYTES
    return size


async def _is_part(log: LogFile, read: ReadAt, position: int, size: int) -> bool:
    try:
        await _part_at(log, read, position, size)
    except DamagedFile:
        return False
    except NewerFormat:
        # The scan raises it when it reaches that part, after reporting the damage before it.
        return True
    return True
