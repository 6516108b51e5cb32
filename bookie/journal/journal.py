"""The write-ahead journal of a bookie: records in it survive a crash.

    recovered = await Journal.recover(...)               # reads only
    async for record in recovered.records(): ...         # never checkpointed so far; the caller checkpoints all of it
    journal = await recovered.start(...)                 # trims that, begins to write
    journal.append(record, on_durable)
    mark = journal.durable_mark()                        # then the caller checkpoints everything up to the mark
    await journal.trim(mark)

Nothing is written before ``start``, so a crash during recovery changes nothing. A failed write ends the journal:
``on_failure`` is called once, nothing is acked any more, and nothing is retried. docs/reference/formats/journal.md has
the format, docs/understand/guarantees.md the requirements on the device.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from functools import partial
from typing import Final

from tallybook.core.errors import DamagedFile, DiskFailed, InvalidArgument, StorageError, check
from tallybook.core.settings import JournalSettings
from tallybook.runtime.clock import Clock
from tallybook.runtime.disk.port import Disk
from tallybook.runtime.metrics.histogram import Histogram
from tallybook.runtime.rng import Rng
from tallybook.runtime.tasks import Tasks

from .format import INSTANCE_BYTES, JournalMark, JournalRecord, RingGeometry, encode_record
from .group_commit import Commit, GroupCommit, OnDurable
from .replay import read_records, survey
from .segment_recycler import SegmentRecycler
from .segments import SegmentFiles, segment_file_names
from .space import RingSpace, charge_bytes
from .superblock import Superblock
from .superblock_file import FILE_NAME, SuperblockFile, read_superblock
from .torn_tail import DamageKind, JournalDamage, ScanFindings

PREPARED_AT_START: Final = 2
"""Segments prepared before ``start`` returns, so that the writer never waits for the first roll."""

STALLED_SECONDS: Final = 60.0
"""A device that keeps a record waiting this long has failed, even if its write ends later."""

WATCH_SECONDS: Final = 5.0
"""Interval of checks of the device."""

_TIMER_SLACK_SECONDS: Final = 0.001


class RecoveredJournal:
    """The contents of a journal before anything is written to it.

    Attributes:
        boot: the boot counter of the next incarnation; 1 in the first.
        fresh: there was no journal here.
        clean: the last incarnation ended with everything checkpointed; there is nothing to replay.
        damage: parts that were durable and cannot be read. The caller decides what that means for its ledgers;
            records after them are replayed nevertheless.
    """

    def __init__(
        self,
        disk: Disk,
        directory: str,
        settings: JournalSettings,
        facts: Superblock,
        findings: ScanFindings,
        *,
        fresh: bool,
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._settings = settings
        self._facts = facts
        self._findings = findings
        self._started = False
        self.fresh = fresh
        self.boot = facts.boot + 1
        self.clean = facts.clean
        self.damage: tuple[JournalDamage, ...] = findings.damage

    @property
    def refused(self) -> bool:
        """Whether the device refused to read part of it: another attempt may read more."""
        return any(damage.kind is DamageKind.UNREADABLE for damage in self.damage)

    async def records(self) -> AsyncIterator[JournalRecord]:
        """Every record after the trim mark, in the order of its append. May be read more than once.

        Raises:
            DamagedFile: a file changed since ``Journal.recover`` read it.
        """
        async for record in read_records(self._disk, self._facts, self._findings.ranges):
            yield record

    async def start(
        self,
        clock: Clock,
        tasks: Tasks,
        on_failure: Callable[[Exception], None],
        *,
        on_space: Callable[[], None],
        min_free_bytes: int = 0,
        boot: int = 0,
    ) -> Journal:
        """Trim what was replayed, which the caller has checkpointed, and begin to write.

        The new boot counter is durable before anything else. Writing begins in a new segment, with block numbers above
        anything that may be on the disk, so data left by a crash is never next to a live block. A changed geometry
        takes effect now, when nothing on the disk is needed.

        Args:
            on_failure: called once, on the loop, when the journal has failed.
            on_space: called on the loop when ``Journal.space_bytes`` may have grown.
            min_free_bytes: free space that the journal uses only for a segment without which it could not continue.
            boot: the boot counter of the bookie, if that is higher than this journal's.

        Raises:
            DiskFull, DiskFailed: it cannot start; everything is unchanged, or as after a crash.
            InvariantViolation: it was called before; a second incarnation begins with ``recover``.
        """
        check(not self._started, "a recovered journal is started once")
        self._started = True
        self.boot = max(self.boot, boot)
        async with contextlib.AsyncExitStack() as undo:
            superblock = await self._next_superblock()
            undo.push_async_callback(superblock.close)
            files = await SegmentFiles.open(self._disk, self._directory, superblock.facts.geometry)
            undo.push_async_callback(files.close)

            async def free_bytes() -> int:
                return (await self._disk.space(self._directory)).free_bytes

            least_ready = RingSpace(superblock.facts.geometry, self._settings.max_commit_bytes).least_ready
            recycler = partial(
                SegmentRecycler, superblock, files, clock, tasks, free_bytes, min_free_bytes, least_ready
            )
            journal = Journal(
                self._disk, self._settings, superblock.facts, recycler, clock, tasks, on_failure, on_space
            )
            undo.pop_all()
            undo.push_async_callback(journal.close, clean=False)
            await journal.begin()
            undo.pop_all()
        return journal

    async def _next_superblock(self) -> SuperblockFile:
        facts = self._next_facts()
        if self.fresh:
            await self._disk.make_directory(self._directory)
            return await SuperblockFile.create(self._disk, self._directory, facts)
        superblock = await SuperblockFile.open(self._disk, self._directory, self._facts)
        try:
            await superblock.write(facts)
        except StorageError:
            await superblock.close()
            raise
        return superblock

    def _next_facts(self) -> Superblock:
        begin = self._facts.next_begin()
        return replace(
            self._facts,
            boot=self.boot,
            clean=False,
            trim=JournalMark(begin.segment, begin.block - 1),
            begin=begin,
            prepared=begin.segment - 1,
            geometry=RingGeometry(self._settings.segment_bytes, self._settings.segment_count),
            previous_clean=self.clean,
            previous_end=self._findings.end,
            previous_damage=len(self.damage),
        )


class Journal:
    """A running journal. Everything but the pump's own work happens on the event loop."""

    def __init__(
        self,
        disk: Disk,
        settings: JournalSettings,
        facts: Superblock,
        make_recycler: Callable[[Callable[[], None], Callable[[Exception], None]], SegmentRecycler],
        clock: Clock,
        tasks: Tasks,
        on_failure: Callable[[Exception], None],
        on_space: Callable[[], None],
    ) -> None:
        self._clock = clock
        self._tasks = tasks
        self._on_failure = on_failure
        self._on_space = on_space
        self._ring = RingSpace(facts.geometry, settings.max_commit_bytes)
        self._max_body_bytes = self._ring.max_body_bytes
        self._seal_after_seconds = settings.seal_after_ms / 1000
        self._recycler = make_recycler(self._segment_ready, self._fail)
        self._source = GroupCommit(
            instance=facts.instance,
            begin=facts.begin,
            segment_bytes=facts.geometry.segment_bytes,
            buffers=(disk.buffer(settings.max_commit_bytes), disk.buffer(settings.max_commit_bytes)),
            ready=self._recycler.ready,
            on_commit=self._committed,
            on_failure=self._fail,
            monotonic=clock.monotonic,
        )
        self.last_commit: Commit | None = None
        """The block that became durable last."""
        self.commits = 0
        """Group commits with records in them."""
        self.written_bytes = 0
        """Bytes of all blocks written, headers and padding included."""
        self.commit_seconds = Histogram()
        """For each group commit, the time from its oldest record's append until it was durable."""
        self._pump = disk.pump(self._source, name="journal")
        self._mark = facts.trim
        self._last_records = facts.trim
        self._queued_count = 0
        self._queued_bytes = 0
        self._failure: Exception | None = None
        self._closed = False
        self._idle = asyncio.Event()
        self._unsealed = asyncio.Event()
        self._last_commit_seconds = 0.0
        self._background: list[asyncio.Task[None]] = []

    @staticmethod
    async def recover(disk: Disk, directory: str, settings: JournalSettings, rng: Rng) -> RecoveredJournal:
        """Read the journal in ``directory``; writes nothing. If there is none, ``start`` creates one.

        Raises:
            DamagedFile: the superblock is unreadable, or missing although there are segment files. The
                message names it.
            DiskFailed: the device refuses to open a file.
        """
        read = await read_superblock(disk, directory)
        if read is not None:
            findings = await survey(disk, directory, read.facts)
            return RecoveredJournal(disk, directory, settings, read.facts, findings, fresh=False)
        await _refuse_orphans(disk, directory)
        facts = _facts_before_the_first_life(rng.token(INSTANCE_BYTES), settings)
        return RecoveredJournal(disk, directory, settings, facts, ScanFindings((), (), facts.trim), fresh=True)

    @staticmethod
    async def create(disk: Disk, directory: str, settings: JournalSettings, rng: Rng, *, boot: int) -> None:
        """Create an empty journal in ``directory``, which exists, before its first incarnation.

        Args:
            boot: the boot counter of the bookie so far.

        Raises:
            DamagedFile: there are segment files.
            DiskFull, DiskFailed: it could not be created, or may exist.
        """
        await _refuse_orphans(disk, directory)
        facts = _facts_before_the_first_life(rng.token(INSTANCE_BYTES), settings)
        await (await SuperblockFile.create(disk, directory, replace(facts, boot=boot))).close()

    async def begin(self) -> None:
        """Prepare the first segments and start the background work; called by ``RecoveredJournal.start``."""
        for _ in range(PREPARED_AT_START):
            await self._recycler.prepare_next()
        self._recycler.run_in_background()
        self._background = [
            self._tasks.spawn(self._seal_in_silence(), name="journal-sealer", essential=True),
            self._tasks.spawn(self._watch_device(), name="journal-watch", essential=True),
        ]

    # -- writing --------------------------------------------------------------------------

    def append(self, record: JournalRecord, on_durable: OnDurable) -> None:
        """Queue ``record``; ``on_durable`` is called on the loop once it is durable. Never waits.

        Records become durable in the order of their appends. Records beyond ``space_bytes`` stay queued until a trim
        frees space.

        Raises:
            InvalidArgument: the record does not fit one group commit.
            DiskFull, DiskFailed: the journal has failed.
        """
        if self._failure is not None:
            raise self._failure
        check(not self._closed, "append to a closed journal")
        header, body = encode_record(record)
        size = len(body)
        if size > self._max_body_bytes:
            raise InvalidArgument(f"a journal record of {size} bytes exceeds {self._max_body_bytes}")
        charge = charge_bytes(size)
        try:
            self._source.put((header, body, charge, on_durable, self._clock.monotonic()))
        except Exception as error:
            # A defect. Whether the record will be written is unknown, so the journal ends; the caller gets the error
            # first.
            self._source.stop()
            asyncio.get_running_loop().call_soon(self._fail, error)
            raise
        self._queued_count += 1
        self._queued_bytes += charge
        self._pump.kick()

    def space_bytes(self, *, urgent: bool = False) -> int:
        """How many bytes can be appended now and will be written without waiting for a trim.

        A batch of at most this size fits, in addition to everything queued; a larger one must be refused. Part of the
        ring is kept for ``urgent`` records: fences and LACs.
        """
        # Inlines ``max_queued_bytes``, which explains the order, to save a call for each batch.
        remaining = self._ring.geometry.segment_bytes - self._source.position.offset
        free = self._ring.writable_bytes(remaining, len(self._recycler.ready)) - self._queued_bytes
        reserve = 0 if urgent else self._ring.reserve_bytes
        return self._ring.largest_body(free - reserve)

    @property
    def queued_bytes(self) -> int:
        """Bytes appended and not yet durable, as space in the ring: each record charged alone in a block."""
        return self._queued_bytes

    @property
    def max_queued_bytes(self) -> int:
        """How many bytes may be queued now, such that all of it will be written without waiting for a trim."""
        # In this order: the pump takes a ready segment first and moves its position second, so a segment may be missed
        # for a moment, but is never counted twice.
        remaining = self._ring.geometry.segment_bytes - self._source.position.offset
        return self._ring.writable_bytes(remaining, len(self._recycler.ready))

    def oldest_queued_age_seconds(self) -> float:
        """How long the oldest record that is not durable has been waiting; 0 if there is none."""
        since = self._source.oldest_since()
        return 0.0 if since is None else max(0.0, self._clock.monotonic() - since)

    @property
    def write_seconds(self) -> Histogram:
        """Durations of the journal's writes."""
        return self._pump.write_seconds

    @property
    def used_fraction(self) -> float:
        """Part of the ring between trim mark and writer, 0 to 1; at the mark's end in whole segments."""
        geometry = self._ring.geometry
        position = self._source.position
        segments = position.segment - self._recycler.facts.trim.segment
        used = segments * geometry.segment_bytes + position.offset
        return min(1.0, max(0.0, used / (geometry.segment_bytes * geometry.segment_count)))

    def durable_mark(self) -> JournalMark:
        """The position up to which every record is durable, and its ``on_durable`` was called."""
        return self._mark

    # -- trimming and stopping ------------------------------------------------------------

    async def trim(self, mark: JournalMark) -> None:
        """Discard everything up to ``mark``, an earlier ``durable_mark``, which is checkpointed.

        Returns when the mark is durable. Marks never go back: a lower one changes nothing. Segments that lie wholly
        below are recycled; the one that holds the mark is not.

        Raises:
            DiskFull, DiskFailed: the journal has failed.
        """
        check(not self._closed, "trim of a closed journal")
        check(mark <= self._mark, f"trim to {mark}, but only {self._mark} is durable")
        await self._recycler.trim(mark)

    async def drained(self, timeout_seconds: float | None = None) -> bool:
        """Wait until everything appended is durable. ``False`` on a timeout.

        Raises:
            DiskFull, DiskFailed: the journal has failed.
        """
        try:
            async with asyncio.timeout(timeout_seconds):
                while self._queued_count and self._failure is None:
                    self._idle.clear()
                    await self._idle.wait()
        except TimeoutError:
            return False
        if self._failure is not None:
            raise self._failure
        return True

    async def close(self, *, clean: bool) -> None:
        """Stop. Records that are queued and not being written are dropped, without a callback.

        Args:
            clean: everything appended is durable, checkpointed and trimmed; the next boot then replays nothing.

        Raises:
            InvariantViolation: ``clean`` is not true. The journal is closed nevertheless, as after a crash.
            DiskFull, DiskFailed: the last facts could not be written.
        """
        if self._closed:
            return
        self._closed = True
        for task in self._background:
            task.cancel()
        try:
            await self._pump.close()
        except BaseException:
            self._source.stop()  # a write that ends later must not be reported
            raise
        all_trimmed = (
            self._failure is None and not self._queued_count and self._last_records <= self._recycler.facts.trim
        )
        self._source.stop()
        await self._recycler.close(final=self._clean_facts if clean and all_trimmed else None)
        check(all_trimmed or not clean, "a clean stop with records that are not trimmed")

    def _clean_facts(self, facts: Superblock) -> Superblock:
        # A last seal may lie after the caller's mark.
        return replace(facts, clean=True, trim=max(facts.trim, self._mark))

    # -- events ---------------------------------------------------------------------------

    def _segment_ready(self) -> None:
        self._pump.kick()
        self._on_space()

    def _committed(self, commit: Commit) -> None:
        self.written_bytes += commit.size_bytes
        if commit.on_durable:
            self.commits += 1
            self._last_commit_seconds = now = self._clock.monotonic()
            self.commit_seconds.observe(now - commit.since_seconds)
            self._queued_count -= len(commit.on_durable)
            self._queued_bytes -= commit.charge_bytes
            self._last_records = commit.mark
            self._unsealed.set()
            self.last_commit = commit
            try:
                for on_durable in commit.on_durable:
                    on_durable()
            except Exception as error:  # noqa: BLE001 - a callback that raises is a defect; it ends the journal
                # The rest of this block was never notified, and would wait for ever.
                self._fail(error)
                return
        self._mark = commit.mark
        self._on_space()
        if not self._queued_count:
            self._idle.set()

    def _fail(self, error: Exception) -> None:
        if self._failure is not None:
            return
        self._failure = error
        self._source.stop()
        self._idle.set()
        self._on_failure(error)

    async def _watch_device(self) -> None:
        """End the journal once a record has waited too long: a write that never returns raises nothing.

        Two checks in a row must agree. After a pause of the whole process the first one means nothing, since the device
        was not slow.
        """
        stalled = False
        while self._failure is None:
            await self._clock.sleep(WATCH_SECONDS)
            age_seconds = self.oldest_queued_age_seconds()
            if age_seconds <= STALLED_SECONDS:
                stalled = False
            elif stalled:
                self._fail(DiskFailed(f"the journal's device has kept a record waiting for {age_seconds:.0f} seconds"))
            else:
                stalled = True
        await asyncio.Event().wait()  # an essential task must not end by itself; ``close`` cancels it

    async def _seal_in_silence(self) -> None:
        """Write a seal after the last block once nothing was written for a while, as proof that the block was
        durable."""
        while True:
            await self._unsealed.wait()
            self._unsealed.clear()
            while True:
                silent_at = self._last_commit_seconds + self._seal_after_seconds
                wait_seconds = silent_at - self._clock.monotonic()
                if wait_seconds < _TIMER_SLACK_SECONDS:
                    break
                await self._clock.sleep(wait_seconds)
            self._source.want_seal()
            self._pump.kick()


def _facts_before_the_first_life(instance: bytes, settings: JournalSettings) -> Superblock:
    return Superblock(
        sequence=0,
        instance=instance,
        boot=0,
        clean=True,
        trim=JournalMark(0, 0),
        begin=JournalMark(0, 1),
        prepared=0,
        geometry=RingGeometry(settings.segment_bytes, settings.segment_count),
        previous_clean=True,
        previous_end=JournalMark(0, 0),
        previous_damage=0,
    )


async def _refuse_orphans(disk: Disk, directory: str) -> None:
    """Refuse to create a journal where there are segment files: a superblock is missing, not a journal."""
    try:
        orphans = await segment_file_names(disk, directory)
    except FileNotFoundError:
        return
    if orphans:
        raise DamagedFile(f"{directory}/{FILE_NAME} is missing, but there are segment files")
