"""The segment files of the ring, and how one is prepared for writing.

A file is filled with zeros once, before its first use, so that every block overwrites allocated space, which needs no
work of the file system. For each new use of a file its segment header is written again; the old blocks stay until they
are overwritten, and are not accepted in the new use, because they carry the old segment number.
"""

from __future__ import annotations

import contextlib
from typing import Final

from tallybook.core.limits import BLOCK_BYTES, KIB
from tallybook.runtime.disk.port import Disk, DiskFile

from .format import SEGMENT_PREFIX, RingGeometry, SegmentHeader, encode_segment_header, segment_file_name
from .group_commit import ReadySegment

FILL_PIECE_BYTES: Final = 256 * KIB
"""Zeros written at once: small, because the journal's own writes wait behind them on the device."""

_ZEROS: Final = bytes(FILL_PIECE_BYTES)


class SegmentFiles:
    """All files of the ring, open for durable writing."""

    def __init__(self, files: list[DiskFile], filled_bytes: list[int], geometry: RingGeometry) -> None:
        self._files = files
        self._filled_bytes = filled_bytes
        self._geometry = geometry

    @classmethod
    async def open(cls, disk: Disk, directory: str, geometry: RingGeometry) -> SegmentFiles:
        """Open the files, create missing ones, and resize others to this geometry.

        Must be called only when nothing in them is needed any more.

        Raises:
            DiskFailed: a file cannot be opened.
        """
        files, filled = [], []
        async with contextlib.AsyncExitStack() as undo:
            for slot in range(geometry.segment_count):
                file = await disk.open(f"{directory}/{segment_file_name(slot)}", create=True, durable=True)
                undo.push_async_callback(file.close)
                size = await file.size()
                if size > geometry.segment_bytes:
                    await file.truncate(geometry.segment_bytes)
                    await file.sync()
                files.append(file)
                filled.append(min(size, geometry.segment_bytes) // BLOCK_BYTES * BLOCK_BYTES)
            await _remove_others(disk, directory, geometry)
            # Otherwise a crash could remove the name of a file from which records were acked.
            await disk.sync_directory(directory)
            undo.pop_all()
        return cls(files, filled, geometry)

    def next_piece_bytes(self, segment: int) -> int:
        """By how much ``fill_piece`` would grow the file of ``segment``; 0 if it has its full size."""
        done = self._filled_bytes[segment % self._geometry.segment_count]
        return min(FILL_PIECE_BYTES, self._geometry.segment_bytes - done)

    async def fill_piece(self, segment: int) -> bool:
        """Write the next piece of zeros, if the file of ``segment`` was never filled to its end.

        Returns:
            Whether there was something to write.

        Raises:
            DiskFull: there is no space for it; may be called again.
            DiskFailed: the device refused it.
        """
        slot = segment % self._geometry.segment_count
        done = self._filled_bytes[slot]
        size = self.next_piece_bytes(segment)
        if not size:
            return False
        await self._files[slot].write(done, [_ZEROS[:size]])
        self._filled_bytes[slot] = done + size
        return True

    async def begin_life(self, segment: int, instance: bytes, boot: int) -> ReadySegment:
        """Write the header of ``segment`` to its file, durably.

        Raises:
            DiskFull, DiskFailed: the device refused it.
        """
        file = self._files[segment % self._geometry.segment_count]
        header = SegmentHeader(instance, segment, boot, self._geometry.segment_bytes)
        await file.write(0, [encode_segment_header(header)])
        return ReadySegment(segment, file)

    async def close(self) -> None:
        """Release the files."""
        async with contextlib.AsyncExitStack() as stack:
            for file in self._files:
                stack.push_async_callback(file.close)


async def segment_file_names(disk: Disk, directory: str) -> list[str]:
    """The names in ``directory`` that are segment files, of any geometry.

    Raises:
        FileNotFoundError: there is no such directory.
    """
    return [name for name in await disk.list(directory) if name.startswith(SEGMENT_PREFIX)]


async def _remove_others(disk: Disk, directory: str, geometry: RingGeometry) -> None:
    """Remove files of a larger ring than this one."""
    wanted = {segment_file_name(slot) for slot in range(geometry.segment_count)}
    for name in await segment_file_names(disk, directory):
        if name not in wanted:
            await disk.unlink(f"{directory}/{name}")
