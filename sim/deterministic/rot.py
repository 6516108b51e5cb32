"""Damages durable bytes of a simulated disk, as years of bit rot would.

Each method changes the durable bytes and the bytes that readers see, as if nothing were cached.
"""

from __future__ import annotations

from tallybook.core.errors import check
from tallybook.core.limits import SECTOR_BYTES

from .content import Content
from .state import DiskState, FileState, split


class Rot:
    """Damages files of one disk. Paths must exist; sectors are 512 bytes."""

    def __init__(self, state: DiskState) -> None:
        self._state = state

    def flip_bit(self, path: str, offset: int, bit: int = 0) -> None:
        """Invert one bit of the byte at ``offset``."""
        for content in self._both(path):
            content.write(offset, bytes([content.read(offset, 1)[0] ^ (1 << bit)]), remember=False)

    def overwrite(self, path: str, offset: int, data: bytes) -> None:
        """Overwrite bytes at ``offset``."""
        for content in self._both(path):
            content.write(offset, data, remember=False)

    def zero_sector(self, path: str, sector: int) -> None:
        """Zero one sector."""
        for content in self._both(path):
            self._put(content, sector, bytes(SECTOR_BYTES))

    def stale_sector(self, path: str, sector: int) -> None:
        """Restore one sector as before its page was last overwritten: a lost write."""
        for content in self._both(path):
            self._put(content, sector, content.stale(sector * SECTOR_BYTES, SECTOR_BYTES))

    def copy_sector(self, path: str, sector: int, from_path: str, from_sector: int) -> None:
        """Copy another file's sector here: a misdirected write."""
        data = self._file(from_path).durable.read(from_sector * SECTOR_BYTES, SECTOR_BYTES)
        for content in self._both(path):
            self._put(content, sector, data)

    def swap_sectors(self, path: str, sector: int, other_path: str, other_sector: int) -> None:
        """Exchange two sectors."""
        mine = self._file(path).durable.read(sector * SECTOR_BYTES, SECTOR_BYTES)
        self.copy_sector(path, sector, other_path, other_sector)
        for content in self._both(other_path):
            self._put(content, other_sector, mine)

    def truncate(self, path: str, size: int) -> None:
        """Cut the file, or extend it with zeros."""
        for content in self._both(path):
            content.resize(size)

    def remove(self, path: str) -> None:
        """Remove the file's name."""
        directory, name = split(path)
        for names in (self._state.directories[directory].durable, self._state.directories[directory].current):
            names.pop(name, None)

    def duplicate(self, path: str, new_path: str) -> None:
        """Create a second file with the same bytes."""
        source = self._file(path)
        inode = self._state.create(new_path)
        directory, _ = split(new_path)
        self._state.settle_names(directory, {change.number for change in self._state.directories[directory].pending})
        self._state.files[inode] = FileState(source.durable.fork(), source.durable.fork())

    def _put(self, content: Content, sector: int, data: bytes) -> None:
        """Replace a sector without extending the file."""
        start = sector * SECTOR_BYTES
        content.write(start, data[: max(0, content.size - start)], remember=False)

    def _both(self, path: str) -> tuple[Content, Content]:
        file = self._file(path)
        return file.durable, file.current

    def _file(self, path: str) -> FileState:
        inode = self._state.inode(path)
        check(inode is not None, f"no such file to damage: {path}")
        return self._state.files[inode or 0]
