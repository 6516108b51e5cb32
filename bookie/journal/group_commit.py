"""Group commit: what the journal's pump writes next.

The bookie's event loop copies records into the open block while the device writes the block
before it. Whenever the device is free, the pump takes what has gathered, gives it a header, and
writes it; the other buffer is then the open block. Records that find the open block full wait,
and come in as soon as there is room.

``take`` usually runs on the pump's own thread. A lock, held for no longer than copying takes,
keeps it and the event loop apart. Two things are shared without it: the position, which is
replaced as one tuple, and the deque of ready segments, by single operations that the interpreter
makes atomic.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from tallybook.core.errors import InvariantViolation, check
from tallybook.core.limits import BLOCK_BYTES
from tallybook.runtime.disk import DiskFile, PlannedWrite

from .format import Mark, aligned, put_block_header
from .open_block import OnDurable, OpenBlock, Queued


class Segment(NamedTuple):
    """A segment that may be written: its header is durable, and the superblock knows."""

    number: int
    file: DiskFile


class Position(NamedTuple):
    """Where the next block goes."""

    segment: int
    offset: int


@dataclass(slots=True)
class Commit:
    """One block on its way to the disk."""

    mark: Mark
    on_durable: list[OnDurable]
    charge_bytes: int
    since_seconds: float
    """When its oldest record was appended."""
    size_bytes: int = 0
    """What it takes on the device, padding included."""
    taken_seconds: float = 0.0
    """When the device was free for it."""


class GroupCommit:
    """The ``WriteSource`` of the journal.

    Args:
        instance: journal instance, 16 bytes.
        begin: segment and block number of the first block.
        segment_bytes: the geometry.
        buffers: two, each of the size of the largest commit.
        ready: segments that may be written next, in order; the keeper appends, ``take`` takes.
        on_commit: called on the loop, in order, with each block that became durable.
        on_failure: called on the loop when a write failed.
        monotonic: the clock; called on the pump's thread.
    """

    def __init__(
        self,
        *,
        instance: bytes,
        begin: Mark,
        segment_bytes: int,
        buffers: tuple[memoryview, memoryview],
        ready: deque[Segment],
        on_commit: Callable[[Commit], None],
        on_failure: Callable[[Exception], None],
        monotonic: Callable[[], float],
    ) -> None:
        self._monotonic = monotonic
        self._instance = instance
        self._segment_bytes = segment_bytes
        self._ready = ready
        self._on_commit = on_commit
        self._on_failure = on_failure
        self._lock = threading.Lock()
        self._open, self._written = map(OpenBlock, buffers)
        self._waiting: deque[Queued] = deque()
        self._commits: deque[Commit] = deque()
        self._stopped = False
        self._seal_wanted = False
        self._file: DiskFile | None = None
        self._next_block = begin.block
        self._previous_crc = 0
        self._last_is_seal = True
        self.position = Position(begin.segment - 1, segment_bytes)
        """Starts out behind a full segment, so that the first block opens the first ready one."""

    # -- the event loop's side ------------------------------------------------------------

    def put(self, record: Queued) -> None:
        """Take one record over. Kick the pump afterwards."""
        with self._lock:
            self._waiting.append(record)
            self._fill()

    def want_seal(self) -> None:
        """Ask for a seal behind the last block, unless more records come first. Kick the pump afterwards."""
        with self._lock:
            self._seal_wanted = True

    def stop(self) -> None:
        """Hand out nothing more, and tell of nothing more."""
        with self._lock:
            self._stopped = True

    def oldest_since(self) -> float | None:
        """When the oldest record that is not durable was appended; ``None`` where there is none."""
        with self._lock:
            if self._commits:
                return self._commits[0].since_seconds
            return self._open.since_seconds if self._open else None  # nothing waits while the open block is empty

    def _fill(self) -> None:
        waiting, block = self._waiting, self._open
        while waiting and block.fits(waiting[0]):
            block.add(waiting[0])
            waiting.popleft()

    # -- the pump's side ------------------------------------------------------------------

    def take(self) -> PlannedWrite | None:
        """Finish the open block; ``None`` where there is nothing to write, or no segment to hold it."""
        with self._lock:
            if self._stopped:
                return None
            self._fill()  # a block at most, where neither ``put`` nor ``done`` came since the last write was taken
            if self._open:
                return self._take_records()
            if self._seal_wanted and not self._last_is_seal:
                return self._take_seal()
            return None

    def _take_records(self) -> PlannedWrite | None:
        limit = self._room_for(self._open.first_charge_bytes)
        if not limit:
            return None
        block = self._next_block_opens()
        if block.end > limit:
            block.move_rest(limit, self._open)
        commit = Commit(
            Mark(self.position.segment, self._next_block), block.on_durable, block.charge_bytes, block.since_seconds
        )
        commit.taken_seconds = self._monotonic()
        self._commits.append(commit)
        return self._plan(block, commit)

    def _take_seal(self) -> PlannedWrite | None:
        self._seal_wanted = False
        if not self._room_for(BLOCK_BYTES):
            return None
        return self._plan(self._next_block_opens(), Commit(Mark(self.position.segment, self._next_block), [], 0, 0.0))

    def _next_block_opens(self) -> OpenBlock:
        """The block that was open until now. Its place is taken by the one whose write is over."""
        block = self._open
        self._open, self._written = self._written, block
        self._open.clear()
        return block

    def _room_for(self, size: int) -> int:
        """Bytes that may be written at ``position``, which moves to the next segment if ``size`` needs it; 0: none."""
        remaining = self._segment_bytes - self.position.offset
        if remaining >= size:
            return remaining
        if not self._ready:
            return 0
        segment = self._ready.popleft()
        check(segment.number == self.position.segment + 1, f"segment {segment.number} does not follow {self.position}")
        self._file = segment.file
        self.position = Position(segment.number, BLOCK_BYTES)
        return self._segment_bytes - BLOCK_BYTES

    def _plan(self, block: OpenBlock, commit: Commit) -> PlannedWrite:
        file = self._file
        if file is None:
            raise InvariantViolation("a block without a segment to hold it")
        segment, offset = self.position
        count = len(block)
        self._previous_crc = put_block_header(
            block.buffer,
            instance=self._instance,
            mark=commit.mark,
            offset=offset,
            record_count=count,
            body_bytes=block.body_bytes,
            body_crc=block.body_crc,
            previous_crc=self._previous_crc,
        )
        commit.size_bytes = size = aligned(block.end)
        self._next_block += 1
        self._last_is_seal = not count
        if count:
            self._seal_wanted = False
        self.position = Position(segment, offset + size)
        return PlannedWrite(file, offset, block.buffer[:size], commit)

    # -- back on the event loop -----------------------------------------------------------

    def done(self, write: PlannedWrite) -> None:
        """A block is durable: tell whoever waits for its records."""
        commit = write.token
        if self._stopped or not isinstance(commit, Commit):
            return
        with self._lock:
            if commit.on_durable:
                self._commits.popleft()
            self._fill()
        self._on_commit(commit)

    def failed(self, write: PlannedWrite | None, error: Exception) -> None:
        """A write failed, or ``take``. What became of the block is unknown; nothing is written or told after it."""
        self.stop()
        self._on_failure(error)
