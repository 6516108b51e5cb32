"""Multipart upload: splits an object into parts, sends a few at a time, and completes or removes them.

The first thousand parts have 8 MiB, the next thousand 16 MiB, and so on up to 2 GiB, so that 10,000 parts exceed the
maximum object size of 5 TiB. Bytes in flight are limited: 16 MiB, or two parts if parts are larger than half of that.
With the part being collected, an upload of up to 8 GiB uses 24 MiB, one of up to 24 GiB 48 MiB, one of 100 GiB 190 MiB.
An object of one part is written by a single put.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final, Protocol

from tallybook.core.batch import Buffer
from tallybook.core.errors import ArchiveUnavailable, TallybookError, check
from tallybook.core.limits import MIB
from tallybook.runtime.tasks import Tasks

FIRST_PART_BYTES: Final = 8 * MIB
GROWS_EVERY: Final = 1_000
LARGEST_PART_BYTES: Final = 2_048 * MIB
MAX_PARTS: Final = 10_000
IN_FLIGHT_BYTES: Final = 16 * MIB


def part_bytes(number: int) -> int:
    """Size of part ``number`` (the first is 1) if it is not the last one."""
    return min(FIRST_PART_BYTES << (number - 1) // GROWS_EVERY, LARGEST_PART_BYTES)


class PartStore(Protocol):
    """Destination of parts. Every call retries as needed."""

    async def whole(self, key: str, data: bytes) -> None:
        """Write a small object in one request."""

    async def begin(self, key: str) -> str:
        """Open an upload; returns its id."""

    async def part(self, key: str, upload_id: str, number: int, data: bytes) -> str:
        """Send a part; returns its tag."""

    async def complete(self, key: str, upload_id: str, tags: list[str], size: int) -> None:
        """Complete an object of ``size`` bytes from the parts."""

    async def take_back(self, key: str, upload_id: str) -> None:
        """Remove the parts."""


class MultipartUpload:
    """An ``Upload`` over a ``PartStore``.

    Args:
        tasks: run the uploads of parts.
    """

    def __init__(self, store: PartStore, key: str, tasks: Tasks) -> None:
        self._store = store
        self._key = key
        self._tasks = tasks
        self._upload_id = ""
        self._gathered: list[memoryview] = []
        self._gathered_bytes = 0
        self._size = 0
        self._cut = 0
        self._sending: deque[tuple[asyncio.Task[str], int]] = deque()
        self._sending_bytes = 0
        self._tags: list[str] = []
        self._given_up = False

    async def write(self, data: Buffer) -> None:
        """Collect full parts and send them; waits while too many bytes are in flight."""
        check(not self._given_up, f"the upload of {self._key} has ended")
        rest = memoryview(data).cast("B")
        self._size += rest.nbytes
        while rest.nbytes:
            room = part_bytes(self._cut + 1) - self._gathered_bytes
            self._gathered.append(rest[:room])
            self._gathered_bytes += min(room, rest.nbytes)
            rest = rest[room:]
            if self._gathered_bytes == part_bytes(self._cut + 1):
                await self._send()

    async def finish(self) -> None:
        """Send the last part, wait for all parts, complete the object."""
        check(not self._given_up, f"the upload of {self._key} has ended")
        if not self._cut:
            await self._store.whole(self._key, b"".join(self._gathered))
            return
        if self._gathered_bytes:
            await self._send()
        while self._sending:
            await self._sent()
        await self._store.complete(self._key, self._upload_id, self._tags, self._size)

    async def abort(self) -> None:
        """Remove all parts, after no part is in flight: one that arrived later would stay."""
        self._given_up = True
        self._gathered.clear()
        tasks = [task for task, _ in self._sending]
        if self._upload_id:
            # In its own task, so that it is done even if the caller is being cancelled.
            await asyncio.shield(self._tasks.spawn(self._take_back(tasks), name=f"abort {self._key}"))

    async def _take_back(self, sending: list[asyncio.Task[str]]) -> None:
        await asyncio.gather(*sending, return_exceptions=True)
        try:
            await self._store.take_back(self._key, self._upload_id)
        except TallybookError:
            return  # it is listed among the unfinished ones

    async def _send(self) -> None:
        """Send the collected bytes as one part, when enough in-flight bytes are free."""
        if not self._upload_id:
            self._upload_id = await self._store.begin(self._key)
        data, self._gathered, self._gathered_bytes = b"".join(self._gathered), [], 0
        while self._sending and self._sending_bytes + len(data) > max(IN_FLIGHT_BYTES, 2 * len(data)):
            await self._sent()
        self._cut += 1
        if self._cut > MAX_PARTS:
            raise ArchiveUnavailable(f"{self._key}: an object has at most {MAX_PARTS} parts")
        sending = self._tasks.spawn(self._part(self._cut, data), name=f"part {self._cut} of {self._key}")
        self._sending.append((sending, len(data)))
        self._sending_bytes += len(data)

    async def _part(self, number: int, data: bytes) -> str:
        if self._given_up:
            raise ArchiveUnavailable(f"{self._key}: the upload was given up")
        return await self._store.part(self._key, self._upload_id, number, data)

    async def _sent(self) -> None:
        """Wait for the oldest part. Parts continue even if the caller is cancelled."""
        task, size = self._sending[0]
        await asyncio.wait([task])
        self._sending.popleft()
        self._sending_bytes -= size
        self._tags.append(task.result())
