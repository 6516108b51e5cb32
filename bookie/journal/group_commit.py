"""Group commit: what the journal's pump writes next.

The bookie's event loop puts records into a queue; whenever the device is free, the pump takes
all that has gathered, up to the largest commit, and writes it as one block. ``take`` usually
runs on the pump's own thread. Who may touch what:

- the queue of records, the deque of ready segments and the deque of commits: both sides, by
  single operations that the interpreter makes atomic (``append``, ``popleft``, ``[0]``);
- the position: written by the pump as one tuple, read by the loop;
- everything else that ``take`` changes: the pump alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from tallybook.core.batch import Buffer
from tallybook.core.errors import check
from tallybook.core.limits import BLOCK_BYTES
from tallybook.runtime.disk import DiskFile, PlannedWrite

from .format import BLOCK_HEADER_BYTES, RECORD_HEADER_BYTES, Mark, aligned, put_block_header

OnDurable = Callable[[], None]


Queued: TypeAlias = tuple[bytes, Buffer, int, OnDurable, float]
"""A record on its way to the disk: header, body, charge in bytes, whom to call, when it was appended.

A plain tuple, because one is made for every batch.
"""


_SINCE_SECONDS: Final = 4


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


class GroupCommit:
    """The ``WriteSource`` of the journal.

    Args:
        instance: journal instance, 16 bytes.
        begin: segment and block number of the first block.
        segment_bytes, max_commit_bytes: the geometry.
        ready: segments that may be written next, in order; the keeper appends, ``take`` takes.
        on_commit: called on the loop, in order, with each block that became durable.
        on_failure: called on the loop when a write failed.
    """

    def __init__(
        self,
        *,
        instance: bytes,
        begin: Mark,
        segment_bytes: int,
        max_commit_bytes: int,
        ready: deque[Segment],
        on_commit: Callable[[Commit], None],
        on_failure: Callable[[Exception], None],
    ) -> None:
        self._instance = instance
        self._segment_bytes = segment_bytes
        self._max_commit_bytes = max_commit_bytes
        self._ready = ready
        self._on_commit = on_commit
        self._on_failure = on_failure
        self._queue: deque[Queued] = deque()
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
        """Queue one record. Kick the pump afterwards."""
        self._queue.append(record)

    def want_seal(self) -> None:
        """Ask for a seal behind the last block, unless more records come first. Kick the pump afterwards."""
        self._seal_wanted = True

    def stop(self) -> None:
        """Hand out nothing more, and tell of nothing more."""
        self._stopped = True

    def oldest_since(self) -> float | None:
        """When the oldest record that is not durable was appended; ``None`` where there is none."""
        try:
            head = self._queue[0][_SINCE_SECONDS]
        except IndexError:
            head = None
        # Read second: what the pump took meanwhile is older than what it left.
        return self._commits[0].since_seconds if self._commits else head

    # -- the pump's side ------------------------------------------------------------------

    def take(self, buffer: memoryview) -> PlannedWrite | None:
        """Build the next block in ``buffer``; ``None`` where there is nothing to write, or no segment to hold it."""
        if self._stopped:
            return None
        if self._queue:
            return self._take_records(buffer)
        if self._seal_wanted and not self._last_is_seal:
            return self._take_seal(buffer)
        return None

    def _take_records(self, buffer: memoryview) -> PlannedWrite | None:
        queue = self._queue
        _, _, charge, _, since_seconds = queue[0]
        limit = self._room_for(charge)
        if not limit:
            return None
        commit = Commit(Mark(self.position.segment, self._next_block), [], 0, since_seconds)
        # Before its records leave the queue, so that ``oldest_since`` sees them in one place or the other.
        self._commits.append(commit)
        limit = min(limit, self._max_commit_bytes)
        at = BLOCK_HEADER_BYTES
        while queue:
            header, body, charge, on_durable, _ = queue[0]
            start = at + RECORD_HEADER_BYTES
            end = start + len(body)
            if end > limit:
                break
            buffer[at:start] = header
            buffer[start:end] = body
            queue.popleft()
            commit.on_durable.append(on_durable)
            commit.charge_bytes += charge
            at = end
        return self._plan(buffer, commit, at - BLOCK_HEADER_BYTES)

    def _take_seal(self, buffer: memoryview) -> PlannedWrite | None:
        self._seal_wanted = False
        if not self._room_for(BLOCK_BYTES):
            return None
        commit = Commit(Mark(self.position.segment, self._next_block), [], 0, 0.0)
        return self._plan(buffer, commit, 0)

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

    def _plan(self, buffer: memoryview, commit: Commit, body_bytes: int) -> PlannedWrite | None:
        file = self._file
        if file is None:
            return None
        segment, offset = self.position
        count = len(commit.on_durable)
        self._previous_crc = put_block_header(
            buffer,
            instance=self._instance,
            mark=commit.mark,
            offset=offset,
            record_count=count,
            body_bytes=body_bytes,
            previous_crc=self._previous_crc,
        )
        commit.size_bytes = size = aligned(BLOCK_HEADER_BYTES + body_bytes)
        self._next_block += 1
        self._last_is_seal = not count
        if count:
            self._seal_wanted = False
        self.position = Position(segment, offset + size)
        return PlannedWrite(file, offset, size, commit)

    # -- back on the event loop -----------------------------------------------------------

    def done(self, write: PlannedWrite) -> None:
        """A block is durable: tell whoever waits for its records."""
        commit = write.token
        if self._stopped or not isinstance(commit, Commit):
            return
        if commit.on_durable:
            self._commits.popleft()
        self._on_commit(commit)

    def failed(self, write: PlannedWrite | None, error: Exception) -> None:
        """A write failed, or ``take``. What became of the block is unknown; nothing is written or told after it."""
        self.stop()
        self._on_failure(error)
