"""An open file of a simulated disk."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tallybook.core.buffers import Buffer
from tallybook.core.errors import DiskFailed, DiskFull, InvalidArgument
from tallybook.core.limits import BLOCK_BYTES, SECTOR_BYTES

from .content import Content
from .faults import Effect

if TYPE_CHECKING:
    from .disk import SimDisk
    from .step import DiskStep


class SimFile:
    """A ``DiskFile`` over a ``DiskState``; a power loss invalidates it."""

    def __init__(self, disk: SimDisk, path: str, inode: int, *, writable: bool, durable: bool, aligned: bool) -> None:
        self._disk = disk
        self._path = path
        self._inode = inode
        self._writable = writable
        self._durable = durable
        self._aligned = aligned
        self._life = disk.life
        self._closed = False
        disk.state.files[inode].handles += 1

    @property
    def path(self) -> str:
        """Path under which it was opened."""
        return self._path

    async def read(self, offset: int, size: int) -> bytes:
        """Up to ``size`` bytes from ``offset``."""
        step = self._begin("read", offset, size)
        await step.in_flight()
        found = self._content.read(offset, size)
        step.ended()
        return found

    def read_cached(self, offset: int, size: int) -> bytes | None:
        """Half of the blocks are in memory: those with an even number."""
        self._check_open("read")
        in_memory = offset // BLOCK_BYTES % 2 == 0 and offset + size <= self._content.size
        return self._content.read(offset, size) if in_memory else None

    async def write(self, offset: int, buffers: Sequence[Buffer]) -> None:
        """Write ``buffers`` back to back; durable on return if the file was opened durable."""
        data = b"".join(buffers)
        if self._aligned and (offset % BLOCK_BYTES or len(data) % BLOCK_BYTES):
            raise InvalidArgument(f"{self._path}: a write of {offset}+{len(data)} is not aligned")
        name = "write-durable" if self._durable else "write"
        step = self._begin(name, offset, len(data), changes=True, data=data)
        if step.effect is Effect.PART:
            data = data[: len(data) // 2 // SECTOR_BYTES * SECTOR_BYTES]
        fitting = self._fitting(offset, data)
        change = self._disk.state.write(self._inode, self._path, offset, fitting) if fitting and step.acts else None
        try:
            await step.in_flight()
        except (DiskFailed, DiskFull):
            self._drop(step, set() if change is None else {change.number})
            raise
        if change is not None and self._durable:
            self._disk.state.settle_write(change)
        if len(fitting) < len(data):
            raise DiskFull(f"no space for {self._path}: {len(fitting)} of {len(data)} bytes written")
        step.ended()

    async def sync(self) -> None:
        """Make every write that ended before this call durable."""
        step = self._begin("sync", changes=True)
        numbers = {change.number for change in self._disk.state.files[self._inode].pending}
        try:
            await step.in_flight()
        except DiskFailed:
            self._drop(step, numbers)
            raise
        self._disk.state.settle(self._inode, numbers)
        self._disk.synced(self._inode)
        step.ended()

    async def size(self) -> int:
        """Length in bytes."""
        step = self._begin("size")
        await step.in_flight()
        return self._content.size

    async def truncate(self, size: int) -> None:
        """Cut, or extend with zeros."""
        step = self._begin("truncate", size, changes=True)
        if step.acts:
            self._disk.state.resize(self._inode, self._path, size)
        await step.in_flight()
        step.ended()

    async def close(self) -> None:
        """Release the file; a second close does nothing."""
        if self._closed or self._life != self._disk.life:
            return
        self._closed = True
        self._disk.state.files[self._inode].handles -= 1

    @property
    def _content(self) -> Content:
        return self._disk.state.files[self._inode].current

    def _begin(
        self, name: str, offset: int = 0, size: int = 0, *, changes: bool = False, data: bytes = b""
    ) -> DiskStep:
        self._check_open(name)
        if changes and not self._writable:
            raise DiskFailed(f"{name} {self._path}: it was opened for reading only")
        return self._disk.begin(name, self._path, offset, size, data=data)

    def _check_open(self, name: str) -> None:
        self._disk.check_life(self._life, self._path)
        if self._closed:
            raise DiskFailed(f"{name} {self._path}: the file is closed")

    def _fitting(self, offset: int, data: bytes) -> bytes:
        """The part of the data for which the disk has space; a write may be partial, as on a real disk."""
        growth = offset + len(data) - self._content.size
        if growth <= 0:
            return data
        missing = growth - self._disk.free_bytes()
        return data if missing <= 0 else data[: max(0, len(data) - missing) // SECTOR_BYTES * SECTOR_BYTES]

    def _drop(self, step: DiskStep, numbers: set[int]) -> None:
        if step.effect is Effect.CACHE_ONLY and self._life == self._disk.life:
            self._disk.state.forget(self._inode, numbers)
