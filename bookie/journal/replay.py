"""Reads a journal back: finds its blocks, classifies damage, and returns the records in order.

There are two passes. ``survey`` examines every place where a block can lie, checks everything and classifies failures
(``torn_tail.py``); nothing is returned before it has seen the whole ring. ``read_records`` then reads the intact runs
again. Memory is bounded by a few times the largest block, independent of the size of the ring.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final, NamedTuple

from tallybook.core.errors import DamagedFile, DiskFailed, NewerFormat
from tallybook.core.limits import BLOCK_BYTES, MAX_COMMIT_BYTES
from tallybook.runtime.disk.port import Disk, DiskFile

from .format import (
    BLOCK_HEADER_BYTES,
    BlockHeader,
    JournalRecord,
    MalformedRecord,
    SegmentHeader,
    body_is_intact,
    decode_block_header,
    decode_records,
    decode_segment_header,
    newer_block,
    record_spans,
)
from .superblock import Superblock
from .torn_tail import BlockRange, Chain, DamageKind, ScanFindings

PIECE_BYTES: Final = MAX_COMMIT_BYTES
"""How many bytes are read at once."""


class FileWindow:
    """A file that is read in pieces and viewed in slices."""

    def __init__(self, file: DiskFile) -> None:
        self._file = file
        self._start = 0
        self._data = b""

    async def view(self, offset: int, size: int) -> memoryview:
        """``size`` bytes from ``offset``, fewer at the end of the file.

        Raises:
            DiskFailed: the device cannot read them.
        """
        if not self._start <= offset <= offset + size <= self._start + len(self._data):
            await self._load(offset, size)
        at = offset - self._start
        return memoryview(self._data)[at : at + size]

    async def _load(self, offset: int, size: int) -> None:
        try:
            data = await self._file.read(offset, max(size, PIECE_BYTES))
        except DiskFailed:
            # The unreadable part may lie further on: retry with only the requested bytes.
            data = await self._file.read(offset, size)
        self._start, self._data = offset, data


class SegmentFile(NamedTuple):
    """One file of the ring, as found."""

    path: str
    size: int
    """Size in bytes, or -1 if the file is missing."""
    header: SegmentHeader | None
    readable: bool = True
    """Whether the device could read its first block."""


async def survey(disk: Disk, directory: str, facts: Superblock) -> ScanFindings:
    """Find every block after the trim mark, and everything that is damaged.

    Raises:
        DiskFailed: the directory or a file cannot be opened.
        NewerFormat: something has a later version, or needs one; then the journal cannot be interpreted.
    """
    chain = Chain(facts)
    expected = facts.expected_segments()
    if expected:
        files = [
            await read_segment_file(disk, f"{directory}/{facts.geometry.file_name(slot)}")
            for slot in range(facts.geometry.segment_count)
        ]
        for segment in expected:
            await _survey_segment(disk, facts, segment, files, chain)
    return chain.findings()


async def read_records(disk: Disk, facts: Superblock, runs: tuple[BlockRange, ...]) -> AsyncIterator[JournalRecord]:
    """The records of ``runs``, in the order in which they were appended.

    Raises:
        DamagedFile: a block that ``survey`` found intact is no longer intact.
    """
    for run in runs:
        async for header, body in read_blocks(disk, facts, run):
            for record in decode_records(body, header.record_count):
                yield record


async def read_blocks(disk: Disk, facts: Superblock, run: BlockRange) -> AsyncIterator[tuple[BlockHeader, memoryview]]:
    """The blocks of one run: header and body. A body is valid until the next one is read.

    Raises:
        DamagedFile: a block that ``survey`` found intact is no longer intact.
    """
    file = await disk.open(run.path, writable=False)
    try:
        window = FileWindow(file)
        offset = run.start
        while offset < run.end:
            header = await _header_at(window, offset, run.segment, facts)
            if header is None or not await _is_intact(window, offset, header):
                raise DamagedFile(f"{run.path} at {offset}: the block changed while it was being replayed")
            yield header, await _body_at(window, offset, header)
            offset += header.total_bytes
    finally:
        await file.close()


async def read_segment_file(disk: Disk, path: str) -> SegmentFile:
    """Size and header of one file of the ring.

    Raises:
        DiskFailed: it cannot be opened.
        NewerFormat: the header has a later version.
    """
    try:
        file = await disk.open(path, writable=False)
    except FileNotFoundError:
        return SegmentFile(path, -1, None)
    try:
        first = await _first_bytes(file)
        return SegmentFile(path, await file.size(), decode_segment_header(first or b""), readable=first is not None)
    except NewerFormat as error:
        raise NewerFormat(f"{path}: {error.message}") from None
    finally:
        await file.close()


async def _first_bytes(file: DiskFile) -> bytes | None:
    try:
        return await file.read(0, BLOCK_BYTES)
    except DiskFailed:
        # An unreadable header counts as none; the segment is reported.
        return None


def _belongs(header: SegmentHeader | None, segment: int, facts: Superblock) -> bool:
    return header is not None and header[:2] == (facts.instance, segment)


async def _survey_segment(disk: Disk, facts: Superblock, segment: int, files: list[SegmentFile], chain: Chain) -> None:
    home = files[segment % len(files)]
    found = home
    if not _belongs(home.header, segment, facts):
        elsewhere = [file for file in files if _belongs(file.header, segment, facts)]
        kind = _what_is_wrong(home, facts)
        chain.broken(DamageKind.MISPLACED if elsewhere else kind, home.path, 0, readable=bool(elsewhere))
        found = elsewhere[0] if elsewhere else home
    if found.size < 0:
        return
    file = await disk.open(found.path, writable=False)
    try:
        end = min(found.size, facts.geometry.segment_bytes)
        await _walk(FileWindow(file), found.path, segment, end, facts, chain)
    finally:
        await file.close()
    if found.size < facts.geometry.segment_bytes:
        # Reported after the existing blocks: the missing ones come after them.
        chain.broken(DamageKind.SHORT, found.path, found.size)


def _what_is_wrong(file: SegmentFile, facts: Superblock) -> DamageKind:
    if file.size < 0:
        return DamageKind.MISSING
    if not file.readable:
        return DamageKind.UNREADABLE
    if file.header is None:
        return DamageKind.HEADER
    return DamageKind.FOREIGN if file.header.instance != facts.instance else DamageKind.MISPLACED


async def _walk(window: FileWindow, path: str, segment: int, end: int, facts: Superblock, chain: Chain) -> None:
    """Report to ``chain`` every place of one segment at which a block of it can begin."""
    offset = BLOCK_BYTES
    reported_unreadable = False
    while offset < end:
        step = BLOCK_BYTES
        try:
            header = await _header_at(window, offset, segment, facts)
            if header is None or offset + header.total_bytes > facts.geometry.segment_bytes:
                chain.hole(path, offset)
            else:
                step, reported_unreadable = header.total_bytes, False
                intact = header.block <= facts.trim.block or await _is_intact(window, offset, header)
                chain.block(path, offset, header, intact=intact)
        except NewerFormat as error:
            raise NewerFormat(f"{path} at {offset}: {error.message}") from None
        except DiskFailed:
            if not reported_unreadable:
                chain.broken(DamageKind.UNREADABLE, path, offset)
                reported_unreadable = True
        offset += step


async def _header_at(window: FileWindow, offset: int, segment: int, facts: Superblock) -> BlockHeader | None:
    """The header of the block at ``offset``, if there is one and it belongs there."""
    data = await window.view(offset, BLOCK_BYTES)
    header = decode_block_header(data)
    if header is None and (newer := newer_block(data, facts.instance, segment, offset)) is not None:
        raise newer
    if header is None or header[:2] != (facts.instance, segment) or header.offset != offset:
        return None
    return header


async def _body_at(window: FileWindow, offset: int, header: BlockHeader) -> memoryview:
    whole = await window.view(offset, header.total_bytes)
    return whole[BLOCK_HEADER_BYTES : BLOCK_HEADER_BYTES + header.body_bytes]


async def _is_intact(window: FileWindow, offset: int, header: BlockHeader) -> bool:
    body = await _body_at(window, offset, header)
    if not body_is_intact(header, body):
        return False
    try:
        record_spans(body, header.record_count)
    except MalformedRecord:
        return False
    return True
