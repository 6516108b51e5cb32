"""Compares the throughput of the journal with raw writes to the same device.

A real journal gets records that fill one write of the given size each. It alternates with raw writes of the same size
in short turns within one run, so that other load on the machine affects both.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tallybook.bookie.journal.format import BLOCK_HEADER_BYTES, RECORD_HEADER_BYTES, BatchRecord
from tallybook.bookie.journal.journal import Journal
from tallybook.core.errors import DiskFailed, InvalidArgument
from tallybook.core.limits import BLOCK_BYTES, MAX_COMMIT_BYTES, MIB
from tallybook.core.settings import JournalSettings
from tallybook.runtime.clock import Clock, RealClock
from tallybook.runtime.disk.os_disk import RealDisk
from tallybook.runtime.rng import SeededRng, SystemRng
from tallybook.runtime.tasks import Tasks

from .latency import median
from .raw_device import RawDevice

TURN_SECONDS: Final = 0.25
MAX_SEGMENT_BYTES: Final = 64 * MIB
WRITES_PER_SEGMENT: Final = 1024
"""Segments are smaller for small writes; otherwise filling the ring once would take longer than the measurement."""
SEGMENT_COUNT: Final = 4
TRIM_AT_FRACTION: Final = 0.5
DRAIN_SECONDS: Final = 30.0

_POLL_SECONDS: Final = 0.005
_NS_PER_S: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class JournalResult:
    """Medians over all turns with writes of one size. ``ratio`` is the median of the ratios of adjacent turns."""

    write_bytes: int
    journal_mb_per_s: float
    raw_mb_per_s: float
    ratio: float

    def as_record(self) -> dict[str, float]:
        """The figures, by name."""
        return {
            "write_bytes": self.write_bytes,
            "journal_mb_per_s": round(self.journal_mb_per_s, 2),
            "raw_mb_per_s": round(self.raw_mb_per_s, 2),
            "ratio": round(self.ratio, 3),
        }


async def measure_journal(directory: Path, sizes: Sequence[int], seconds: float) -> list[JournalResult]:
    """Compare for each of ``sizes``, for ``seconds`` each; in a new folder in ``directory``, an absolute path.

    Raises:
        InvalidArgument: a size is no multiple of 4 KiB, or above the largest commit; the directory cannot be used.
        DiskFailed: the directory takes no direct writes.
    """
    for size in sizes:
        if size % BLOCK_BYTES or not BLOCK_BYTES <= size <= MAX_COMMIT_BYTES:
            raise InvalidArgument(f"a journal write is 4 KiB .. {MAX_COMMIT_BYTES} bytes in steps of 4 KiB, not {size}")
    turns = max(1, round(seconds / TURN_SECONDS / 2))
    try:
        os.makedirs(directory, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix="tallybook-bench-", dir=directory))
    except OSError as error:
        raise InvalidArgument(f"{directory} cannot be used: {error.strerror}") from error
    disk = RealDisk()
    try:
        with RawDevice(scratch / "raw") as raw:
            return [await _compare(disk, scratch / str(size), raw, size, turns) for size in sizes]
    finally:
        await disk.close()
        shutil.rmtree(scratch)


async def _compare(disk: RealDisk, directory: Path, raw: RawDevice, size: int, turns: int) -> JournalResult:
    """Alternate turns of both with one size of write."""
    clock = RealClock()
    failures: list[Exception] = []
    tasks = Tasks("bench-journal", lambda _, error: failures.append(DiskFailed(str(error))))
    # With this limit for a commit, every record is a write of its own.
    settings = JournalSettings(
        segment_bytes=_segment_bytes(size),
        segment_count=SEGMENT_COUNT,
        max_commit_bytes=max(size, 2 * BLOCK_BYTES),
    )
    recovered = await Journal.recover(disk, str(directory), settings, SystemRng())
    journal = await recovered.start(clock, tasks, failures.append, on_space=lambda: None)
    load = _JournalLoad(journal, size, clock)
    pairs: list[tuple[float, float]] = []
    try:
        await load.fill_ring()
        for _ in range(turns):
            ours = await load.run(TURN_SECONDS)
            # Blocks the event loop, so that the journal does not write meanwhile.
            pairs.append((ours, raw.bytes_per_second(size, TURN_SECONDS)))
            if failures:
                raise failures[0]
    finally:
        await journal.close(clean=False)
        await tasks.close()
    journal_rates, raw_rates = zip(*pairs, strict=True)
    return JournalResult(
        size, median(journal_rates) / 1e6, median(raw_rates) / 1e6, median([ours / theirs for ours, theirs in pairs])
    )


def _segment_bytes(write_bytes: int) -> int:
    return min(MAX_SEGMENT_BYTES, WRITES_PER_SEGMENT * write_bytes)


class _JournalLoad:
    """Keeps a journal busy with records that fill one write each."""

    def __init__(self, journal: Journal, write_bytes: int, clock: Clock) -> None:
        self._journal = journal
        self._write_bytes = write_bytes
        self._clock = clock
        body = SeededRng(2).token(write_bytes - BLOCK_HEADER_BYTES - RECORD_HEADER_BYTES)
        self._record = BatchRecord(body)
        # Two small records would share one write, so only one is in flight then.
        self._depth = 1 if write_bytes == BLOCK_BYTES else 2
        self._running = False
        self._writes = 0
        self._last_ns = 0

    async def fill_ring(self) -> None:
        """Write to all segments once: new segments are zero-filled first, which must not be measured."""
        ring_bytes = _segment_bytes(self._write_bytes) * (SEGMENT_COUNT + 1)
        written = 0.0
        while written < ring_bytes:
            before = self._writes
            await self.run(TURN_SECONDS)
            written += (self._writes - before) * self._write_bytes

    async def run(self, seconds: float) -> float:
        """Write for ``seconds``; returns bytes per second up to the last durable write."""
        before, began = self._writes, time.monotonic_ns()
        self._running = True
        for _ in range(self._depth):
            self._append()
        while time.monotonic_ns() < began + seconds * _NS_PER_S:
            await self._clock.sleep(_POLL_SECONDS)
            if self._journal.used_fraction > TRIM_AT_FRACTION:
                await self._journal.trim(self._journal.durable_mark())
        self._running = False
        if not await self._journal.drained(DRAIN_SECONDS):
            raise DiskFailed(f"the journal did not drain within {DRAIN_SECONDS} s")
        return (self._writes - before) * self._write_bytes * _NS_PER_S / (self._last_ns - began)

    def _append(self) -> None:
        self._journal.append(self._record, self._durable)

    def _durable(self) -> None:
        self._writes += 1
        self._last_ns = time.monotonic_ns()
        if self._running:
            self._append()
