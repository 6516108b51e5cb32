"""Walking through an entry log: every part in order, damage stepped over.

A walk reads the tables of the stretches, not their batches. Where no intact part begins, it
looks for the next one block by block; a part says itself where it lies, so nothing else is
taken for one.

Whether damage matters, the log says as well. Each stretch *vouches* for the bytes that were
durable when it was written, and a footer for all before it. Damage below the highest such
offset is damage. Above it, it may be what a power loss left of an append that was never
synced; the index has no row for that.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Final, NamedTuple

from tallybook.core.errors import DamagedFile, NewerFormat
from tallybook.core.limits import BLOCK_BYTES, KIB

from .entry_log_format import (
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
from .location import Location

ReadAt = Callable[[int, int], Awaitable[bytes]]
"""Up to ``size`` bytes from ``offset``, fewer only at the end of the log."""

_SEARCH_BYTES: Final = 256 * KIB


class Stretch(NamedTuple):
    """An intact header with its table. The batches themselves were not looked at."""

    header: StretchHeader
    batches: list[tuple[TableRow, Location]]


class Damage(NamedTuple):
    """``size`` bytes from ``offset`` that belong to no intact part."""

    offset: int
    size: int
    what: str


Part = Stretch | Footer | Damage


async def walk(log: LogFile, read: ReadAt, size: int) -> AsyncGenerator[Part, None]:
    """The parts of a log of ``size`` bytes, behind its header block.

    Raises:
        NewerFormat: a newer Tallybook has written the next part of it.
        DiskFailed: it cannot be read.
    """
    position = LOG_HEADER_BYTES
    while position < size:
        try:
            part = await _part_at(log, read, position, size)
        except DamagedFile as error:
            resumed = await _next_part(log, read, position + BLOCK_BYTES, size)
            yield Damage(position, resumed - position, error.message)
            position = resumed
            continue
        yield part
        if isinstance(part, Footer):
            return
        position = part.header.end
    if position > max(size, LOG_HEADER_BYTES):
        yield Damage(size, position - size, log.damaged(size, "the log ends within a stretch").message)


async def read_footer(log: LogFile, read: ReadAt, size: int) -> Footer | None:
    """The footer, found from the end of a log; ``None`` where the log is not finished.

    Raises:
        DamagedFile, NewerFormat: there is a footer, and it is damaged, or of a later format.
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
    """Where the next intact part begins, of whatever version, at or after ``position``; else the end of the log."""
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
        # Whoever walks on to it says so, behind the damage.
        return True
    return True
