"""Maintains the superblock, and prepares segments ahead of the writer.

Everything here is off the add path. One lock serialises all writes, so that only one change of the superblock is in
flight, and ``close`` can wait until the device is idle.

The order that keeps the journal safe, for every segment:

1. the trim mark that frees its old contents is durable in both slots of the superblock;
2. its file is filled and its new header is durable;
3. the superblock lists it as prepared;
4. only then does the writer get it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final

from tallybook.core.coverage import sometimes
from tallybook.core.errors import DiskFailed, DiskFull, StorageError
from tallybook.runtime.clock import Clock
from tallybook.runtime.logging import logger
from tallybook.runtime.tasks import Tasks

from .format import JournalMark
from .group_commit import ReadySegment
from .segments import SegmentFiles
from .superblock import Superblock
from .superblock_file import SuperblockFile

_log = logger("bookie.journal")

FILL_PAUSE_SECONDS: Final = 0.001
"""Pause between two pieces of zeros: leaves most of the device to the journal's own writes."""

FULL_PAUSE_SECONDS: Final = 1.0
"""Pause before filling continues after the disk was full."""


class SegmentRecycler:
    """Owns the superblock and the segment files.

    Args:
        free_bytes: free space of the file system.
        min_free_bytes: free space that is left untouched while ``least_ready`` segments are ready.
        least_ready: with fewer segments ready, adds may be refused until there are more.
        on_ready: called on the loop when ``ready`` has one more segment.
        on_failure: called on the loop when a write failed; nothing is written afterwards.
    """

    def __init__(
        self,
        superblock: SuperblockFile,
        files: SegmentFiles,
        clock: Clock,
        tasks: Tasks,
        free_bytes: Callable[[], Awaitable[int]],
        min_free_bytes: int,
        least_ready: int,
        on_ready: Callable[[], None],
        on_failure: Callable[[Exception], None],
    ) -> None:
        self._superblock = superblock
        self._files = files
        self._clock = clock
        self._tasks = tasks
        self._free_bytes = free_bytes
        self._min_free_bytes = min_free_bytes
        self._least_ready = least_ready
        self._reported_full = False
        self._on_ready = on_ready
        self._on_failure = on_failure
        self._lock = asyncio.Lock()
        self._wake = asyncio.Event()
        self._failure: Exception | None = None
        self._closed = False
        self._running: asyncio.Task[None] | None = None
        self.ready: deque[ReadySegment] = deque()
        """Segments ready for writing, in order."""

    @property
    def facts(self) -> Superblock:
        """The durable contents of both slots of the superblock."""
        return self._superblock.facts

    def run_in_background(self) -> None:
        """Start to prepare segments as soon as they are free."""
        self._wake.set()
        self._running = self._tasks.spawn(self._prepare_for_ever(), name="journal-segments", essential=True)

    async def prepare_next(self) -> None:
        """Prepare the next segment, which must be free.

        Raises:
            DiskFull, DiskFailed: it could not be prepared.
        """
        segment = self.facts.prepared + 1
        while await self._fill_piece(segment):
            pass
        async with self._lock:
            made = await self._files.begin_life(segment, self.facts.instance, self.facts.boot)
            await self._superblock.write(replace(self.facts, prepared=segment))
        self.ready.append(made)
        self._on_ready()

    async def trim(self, mark: JournalMark) -> None:
        """Make ``mark`` durable as the trim mark, unless a later one is; then free the segments below it.

        Raises:
            DiskFull, DiskFailed: the journal has failed.
        """
        if mark <= self.facts.trim:
            return
        # In a task of its own: a cancelled caller must not leave half a write to collide with the next one.
        task = self._tasks.spawn(self._write_trim(mark), name="journal-trim")
        error = await asyncio.shield(task)
        if error is not None:
            raise error

    async def close(self, *, final: Callable[[Superblock], Superblock] | None = None) -> None:
        """Wait for the write in flight and stop; ``final`` makes the facts that are written last.

        Raises:
            DiskFull, DiskFailed: the final facts could not be written.
        """
        self._closed = True
        async with self._lock:
            if self._running is not None:
                self._running.cancel()
            try:
                if final is not None and self._failure is None:
                    await self._superblock.write(final(self.facts))
            finally:
                await self._files.close()
                await self._superblock.close()
        if self._running is not None:
            await asyncio.gather(self._running, return_exceptions=True)

    async def _write_trim(self, mark: JournalMark) -> Exception | None:
        async with self._lock:
            if self._closed:
                return DiskFailed("the journal was closed before the mark was durable")
            if self._failure is not None or mark <= self.facts.trim:
                return self._failure
            try:
                await self._superblock.write(replace(self.facts, trim=mark))
            except StorageError as error:
                self._fail(error)
        self._wake.set()
        return self._failure

    async def _fill_piece(self, segment: int) -> bool:
        async with self._lock:
            return await self._files.fill_piece(segment)

    async def _prepare_for_ever(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                while self._next_is_free():
                    await self._fill_patiently(self.facts.prepared + 1)
                    await self.prepare_next()
            except StorageError as error:
                self._fail(error)
                raise

    async def _fill_patiently(self, segment: int) -> None:
        """Fill the file of ``segment`` without delaying the journal's own writes."""
        more = True
        while more:
            pause_seconds = FILL_PAUSE_SECONDS
            try:
                if await self._may_grow(segment):
                    more = await self._fill_piece(segment)
                else:
                    pause_seconds = FULL_PAUSE_SECONDS
            except DiskFull:
                sometimes("journal: no space for a segment")
                # The writer uses segments strictly in order: once the ready ones are used, it waits for this one.
                pause_seconds = FULL_PAUSE_SECONDS
            if more:
                await self._clock.sleep(pause_seconds)

    async def _may_grow(self, segment: int) -> bool:
        """Whether the file of ``segment`` may still grow, given the free space that checkpoints need.

        If too few other segments are ready, it may: no file is used again before all others were, so the writer would
        otherwise stop for good.
        """
        growth_bytes = self._files.next_piece_bytes(segment)
        if not self._min_free_bytes or not growth_bytes or len(self.ready) < self._least_ready:
            return True
        free_bytes = await self._free_bytes()
        full = free_bytes < self._min_free_bytes + growth_bytes
        if full and not self._reported_full:
            _log.warning(
                "journal stays smaller than configured until its writer needs more",
                journal_segment=segment,
                free_bytes=free_bytes,
                min_free_bytes=self._min_free_bytes,
            )
        self._reported_full = full
        return not full

    def _next_is_free(self) -> bool:
        """Whether the file of the next segment holds nothing that replay needs."""
        old_life = self.facts.prepared + 1 - self.facts.geometry.segment_count
        return old_life < self.facts.trim.segment

    def _fail(self, error: Exception) -> None:
        if self._failure is None:
            sometimes("journal: failed while it kept its segments")
            self._failure = error
            self._on_failure(error)
