"""Group commit: builds the next block while the device writes the current one.

The event loop copies records into the open block while the device writes the block before it. Whenever the device is
free, the pump takes the open block, adds a header, and writes it; the other buffer becomes the open block. Records that
find the open block full wait, and are copied as soon as there is space.

``take`` usually runs on the pump's own thread. A lock, held only while copying, protects the open block. Two things are
shared without it: the position, which is replaced as one tuple, and the deque of ready segments, through single
operations that the interpreter makes atomic.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import Final, NamedTuple, TypeAlias

from tallybook.core.buffers import Buffer
from tallybook.core.errors import InvariantViolation, check
from tallybook.core.limits import BLOCK_BYTES
from tallybook.runtime.disk.port import DiskFile, PlannedWrite

from .format import BLOCK_HEADER_BYTES, RECORD_HEADER_BYTES, JournalMark, add_to_crc, aligned, put_block_header

OnDurable = Callable[[], None]

Queued: TypeAlias = tuple[bytes, Buffer, int, OnDurable, float]
"""A queued record: header, body, charge in bytes, callback, time of the append.

A plain tuple, because one is made for every batch.
"""


_END: Final = attrgetter("end")


class _PendingRecord(NamedTuple):
    """A record in the block."""

    end: int
    charge_bytes: int
    on_durable: OnDurable
    since_seconds: float


class OpenBlock:
    """The open block: records are copied into it as they arrive, so that little is left to do once the device is free.

        [ header, written last | record | record | ... | zeros ]

    It fills ``buffer``, which it reuses for later blocks.

    Attributes:
        end: bytes used so far, header included.
        body_crc: CRC of all records so far.
    """

    __slots__ = ("_records", "body_crc", "buffer", "end")

    def __init__(self, buffer: memoryview) -> None:
        self.buffer = buffer
        self.clear()

    def clear(self) -> None:
        """Start a new block."""
        self.end = BLOCK_HEADER_BYTES
        self.body_crc = 0
        self._records: list[_PendingRecord] = []

    def __len__(self) -> int:
        """Number of records so far."""
        return len(self._records)

    @property
    def body_bytes(self) -> int:
        """Bytes of all records so far."""
        return self.end - BLOCK_HEADER_BYTES

    @property
    def charge_bytes(self) -> int:
        """The charges of all records; see ``space.charge_bytes``."""
        return sum(record.charge_bytes for record in self._records)

    @property
    def first_charge_bytes(self) -> int:
        """The charge of the first record."""
        return self._records[0].charge_bytes

    @property
    def since_seconds(self) -> float:
        """When the first record was appended."""
        return self._records[0].since_seconds

    @property
    def on_durable(self) -> list[OnDurable]:
        """The callbacks of all records."""
        return [record.on_durable for record in self._records]

    def fits(self, record: Queued) -> bool:
        """Whether one more record fits."""
        return self.end + RECORD_HEADER_BYTES + len(record[1]) <= len(self.buffer)

    def add(self, record: Queued) -> None:
        """Copy one record in; it must fit. If that fails, the block is unchanged."""
        header, body, charge_bytes, on_durable, since_seconds = record
        buffer, start = self.buffer, self.end
        body_start = start + RECORD_HEADER_BYTES
        end = body_start + len(body)
        buffer[start:body_start] = header
        buffer[body_start:end] = body
        body_crc = add_to_crc(self.body_crc, buffer[start:end])
        self._records.append(_PendingRecord(end, charge_bytes, on_durable, since_seconds))
        self.body_crc, self.end = body_crc, end

    def move_rest(self, limit: int, rest: OpenBlock) -> None:
        """Keep the records that end within ``limit`` bytes, at least one; move the others to ``rest``, which is
        empty."""
        keep = bisect_right(self._records, limit, key=_END)
        cut = self._records[keep - 1].end
        shift = cut - BLOCK_HEADER_BYTES
        rest.end = self.end - shift
        rest.buffer[BLOCK_HEADER_BYTES : rest.end] = self.buffer[cut : self.end]
        rest._records = [record._replace(end=record.end - shift) for record in self._records[keep:]]
        self._records = self._records[:keep]
        self.end = cut
        for block in (self, rest):
            block.body_crc = add_to_crc(0, block.buffer[BLOCK_HEADER_BYTES : block.end])


class ReadySegment(NamedTuple):
    """A segment ready for writing: its header is durable, and the superblock lists it."""

    number: int
    file: DiskFile


class BlockPosition(NamedTuple):
    """Where the next block is written."""

    segment: int
    offset: int


@dataclass(slots=True)
class Commit:
    """One block on its way to the disk."""

    mark: JournalMark
    on_durable: list[OnDurable]
    charge_bytes: int
    since_seconds: float
    """When its oldest record was appended."""
    size_bytes: int = 0
    """Its size on the device, padding included."""
    taken_seconds: float = 0.0
    """When the device became free for it."""


class GroupCommit:
    """The ``WriteSource`` of the journal.

    Args:
        instance: journal instance, 16 bytes.
        begin: segment and block number of the first block.
        segment_bytes: size of a segment.
        buffers: two, each of the size of the largest commit.
        ready: segments ready for writing, in order; the segment recycler appends, ``take`` removes.
        on_commit: called on the loop, in order, with each block that became durable.
        on_failure: called on the loop when a write failed.
        monotonic: the clock; called on the pump's thread.
    """

    def __init__(
        self,
        *,
        instance: bytes,
        begin: JournalMark,
        segment_bytes: int,
        buffers: tuple[memoryview, memoryview],
        ready: deque[ReadySegment],
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
        self.position = BlockPosition(begin.segment - 1, segment_bytes)
        """Starts after a full segment, so that the first block opens the first ready one."""

    # -- on the event loop ----------------------------------------------------------------

    def put(self, record: Queued) -> None:
        """Queue one record. Kick the pump afterwards."""
        with self._lock:
            self._waiting.append(record)
            self._fill()

    def want_seal(self) -> None:
        """Request a seal after the last block, unless more records come first. Kick the pump afterwards."""
        with self._lock:
            self._seal_wanted = True

    def stop(self) -> None:
        """Plan no more writes, and report none."""
        with self._lock:
            self._stopped = True

    def oldest_since(self) -> float | None:
        """When the oldest record that is not durable was appended; ``None`` if there is none."""
        with self._lock:
            if self._commits:
                return self._commits[0].since_seconds
            return self._open.since_seconds if self._open else None  # nothing waits while the open block is empty

    def _fill(self) -> None:
        waiting, block = self._waiting, self._open
        while waiting and block.fits(waiting[0]):
            block.add(waiting[0])
            waiting.popleft()

    # -- on the pump's thread -------------------------------------------------------------

    def take(self) -> PlannedWrite | None:
        """Finish the open block; ``None`` if there is nothing to write, or no segment for it."""
        with self._lock:
            if self._stopped:
                return None
            self._fill()  # at most one block, if neither ``put`` nor ``done`` was called since the last take
            if self._open:
                return self._take_records()
            if self._seal_wanted and not self._last_is_seal:
                return self._take_seal()
            return None

    def _take_records(self) -> PlannedWrite | None:
        limit = self._space_for(self._open.first_charge_bytes)
        if not limit:
            return None
        block = self._next_block_opens()
        if block.end > limit:
            block.move_rest(limit, self._open)
        commit = Commit(
            JournalMark(self.position.segment, self._next_block),
            block.on_durable,
            block.charge_bytes,
            block.since_seconds,
        )
        commit.taken_seconds = self._monotonic()
        self._commits.append(commit)
        return self._plan(block, commit)

    def _take_seal(self) -> PlannedWrite | None:
        self._seal_wanted = False
        if not self._space_for(BLOCK_BYTES):
            return None
        return self._plan(
            self._next_block_opens(), Commit(JournalMark(self.position.segment, self._next_block), [], 0, 0.0)
        )

    def _next_block_opens(self) -> OpenBlock:
        """Return the open block and replace it by the one whose write has finished."""
        block = self._open
        self._open, self._written = self._written, block
        self._open.clear()
        return block

    def _space_for(self, size: int) -> int:
        """Bytes that may be written at ``position``, which moves to the next segment if ``size`` needs it; 0: none."""
        remaining = self._segment_bytes - self.position.offset
        if remaining >= size:
            return remaining
        if not self._ready:
            return 0
        segment = self._ready.popleft()
        check(segment.number == self.position.segment + 1, f"segment {segment.number} does not follow {self.position}")
        self._file = segment.file
        self.position = BlockPosition(segment.number, BLOCK_BYTES)
        return self._segment_bytes - BLOCK_BYTES

    def _plan(self, block: OpenBlock, commit: Commit) -> PlannedWrite:
        file = self._file
        if file is None:
            raise InvariantViolation("there is no segment for a block")
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
        self.position = BlockPosition(segment, offset + size)
        return PlannedWrite(file, offset, block.buffer[:size], commit)

    # -- back on the event loop -----------------------------------------------------------

    def done(self, write: PlannedWrite) -> None:
        """Notify the waiters of a durable block."""
        commit = write.token
        if self._stopped or not isinstance(commit, Commit):
            return
        with self._lock:
            if commit.on_durable:
                self._commits.popleft()
            self._fill()
        self._on_commit(commit)

    def failed(self, write: PlannedWrite | None, error: Exception) -> None:
        """A write or ``take`` failed. The state of the block is unknown; nothing is written or reported afterwards."""
        self.stop()
        self._on_failure(error)
