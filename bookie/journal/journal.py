"""The write-ahead journal of a bookie: what is in it survives a crash.

The life of a journal::

    recovered = await Journal.recover(disk, directory, settings, rng)     # reads only
    async for record in recovered.records(): ...                          # what was never checkpointed
    ... the caller checkpoints all of it ...
    journal = await recovered.start(clock, tasks, on_failure)             # forgets it, begins to write
    journal.append(record, on_durable)
    mark = journal.durable_mark()
    ... the caller checkpoints everything up to the mark ...
    await journal.trim(mark)
    await journal.close(clean=True)

Until ``start`` nothing is written, so recovering twice is the same as once, and a crash
during recovery changes nothing. A failed write ends the journal: ``on_failure`` is called
once, nothing is acked any more, and nothing is tried again. docs/formats/journal.md has the
format, docs/storage-assumptions.md what is asked of the device.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from functools import partial
from typing import Final

from tallybook.core.config import JournalSettings
from tallybook.core.errors import DamagedFile, DiskFailed, InvalidArgument, StorageError, check
from tallybook.runtime.clock import Clock
from tallybook.runtime.disk import Disk
from tallybook.runtime.histogram import Histogram
from tallybook.runtime.rng import Rng
from tallybook.runtime.tasks import Tasks

from .chain import Damage, DamageKind, Findings
from .format import INSTANCE_BYTES, Geometry, Mark
from .group_commit import Commit, GroupCommit
from .keeper import Keeper
from .open_block import OnDurable
from .records import Record, encode_record
from .replay import read_records, survey
from .room import Ring, charge_bytes
from .segments import SegmentFiles, segment_file_names
from .superblock import Superblock
from .superblock_file import FILE_NAME, SuperblockFile, read_superblock

PREPARED_AT_START: Final = 2
"""Segments made ready before ``start`` returns, so that the writer never waits for the first roll."""

STALLED_SECONDS: Final = 60.0
"""A device that keeps a record waiting for so long has failed, whatever becomes of its write later."""

WATCH_SECONDS: Final = 5.0
"""Between two looks at the device."""

_TIMER_SLACK_SECONDS: Final = 0.001


class Recovered:
    """What a journal holds, before anything is written to it.

    Attributes:
        boot: the boot counter that the next life will have; 1 in the first.
        fresh: there was no journal here.
        clean: the last life ended with everything checkpointed; there is nothing to replay.
        damage: what cannot be read though it was durable. The caller decides what that means
            for its ledgers; records behind it are replayed nevertheless.
    """

    def __init__(
        self,
        disk: Disk,
        directory: str,
        settings: JournalSettings,
        facts: Superblock,
        findings: Findings,
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
        self.damage: tuple[Damage, ...] = findings.damage

    @property
    def refused(self) -> bool:
        """The device refused to read a part of it: another attempt may find more."""
        return any(damage.kind is DamageKind.UNREADABLE for damage in self.damage)

    async def records(self) -> AsyncIterator[Record]:
        """Every record behind the trim mark, in the order of its append. May be read more than once.

        Raises:
            DamagedFile: a file changed since ``Journal.recover`` read it.
        """
        async for record in read_records(self._disk, self._facts, self._findings.runs):
            yield record

    async def start(
        self,
        clock: Clock,
        tasks: Tasks,
        on_failure: Callable[[Exception], None],
        *,
        min_free_bytes: int = 0,
        boot: int = 0,
    ) -> Journal:
        """Forget what was replayed, which the caller has checkpointed, and begin to write.

        The new boot counter is durable before anything else happens. Writing begins in a new
        segment, with block numbers above anything that may be on the disk, so whatever a
        crash left behind is never next to a live block. Geometry that changed in the
        settings changes now, when nothing on the disk is needed.

        Args:
            on_failure: called once, on the loop, when the journal has failed.
            min_free_bytes: room on the disk that the journal takes only for a segment without which it could not go on.
            boot: the boot counter of the bookie, where that is higher than this journal's.

        Raises:
            DiskFull, DiskFailed: it cannot start; everything is as it was, or as after a crash.
            InvariantViolation: it was called before; a second life begins with ``recover``.
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

            least_ready = Ring(superblock.facts.geometry, self._settings.max_commit_bytes).least_ready
            keeper = partial(Keeper, superblock, files, clock, tasks, free_bytes, min_free_bytes, least_ready)
            journal = Journal(self._disk, self._settings, superblock.facts, keeper, clock, tasks, on_failure)
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
            trim=Mark(begin.segment, begin.block - 1),
            begin=begin,
            prepared=begin.segment - 1,
            geometry=Geometry(self._settings.segment_bytes, self._settings.segment_count),
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
        make_keeper: Callable[[Callable[[], None], Callable[[Exception], None]], Keeper],
        clock: Clock,
        tasks: Tasks,
        on_failure: Callable[[Exception], None],
    ) -> None:
        self._clock = clock
        self._tasks = tasks
        self._on_failure = on_failure
        self._ring = Ring(facts.geometry, settings.max_commit_bytes)
        self._max_body_bytes = self._ring.max_body_bytes
        self._seal_after_seconds = settings.seal_after_ms / 1000
        self.on_room: Callable[[], None] = _nobody_waits
        """Called on the loop when ``room_bytes`` may have grown."""
        self._keeper = make_keeper(self._segment_ready, self._fail)
        self._source = GroupCommit(
            instance=facts.instance,
            begin=facts.begin,
            segment_bytes=facts.geometry.segment_bytes,
            buffers=(disk.buffer(settings.max_commit_bytes), disk.buffer(settings.max_commit_bytes)),
            ready=self._keeper.ready,
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
        """Of each group commit, the time from its oldest record's append until it was durable."""
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
    async def recover(disk: Disk, directory: str, settings: JournalSettings, rng: Rng) -> Recovered:
        """Read the journal in ``directory``; write nothing. Where there is none, one begins with ``start``.

        Raises:
            DamagedFile: the superblock is unreadable, or missing beside segment files. The
                message names it.
            DiskFailed: the device refuses to open a file.
        """
        read = await read_superblock(disk, directory)
        if read is not None:
            findings = await survey(disk, directory, read.facts)
            return Recovered(disk, directory, settings, read.facts, findings, fresh=False)
        await _refuse_orphans(disk, directory)
        facts = _facts_before_the_first_life(rng.token(INSTANCE_BYTES), settings)
        return Recovered(disk, directory, settings, facts, Findings((), (), facts.trim), fresh=True)

    @staticmethod
    async def create(disk: Disk, directory: str, settings: JournalSettings, rng: Rng, *, boot: int) -> None:
        """Have an empty journal in ``directory``, which is there, before its first life.

        Args:
            boot: the boot counter of the bookie so far.

        Raises:
            DamagedFile: there are segment files.
            DiskFull, DiskFailed: it could not be made; it may be there or not.
        """
        await _refuse_orphans(disk, directory)
        facts = _facts_before_the_first_life(rng.token(INSTANCE_BYTES), settings)
        await (await SuperblockFile.create(disk, directory, replace(facts, boot=boot))).close()

    async def begin(self) -> None:
        """Make the first segments ready and start the background work. ``Recovered.start`` does it."""
        for _ in range(PREPARED_AT_START):
            await self._keeper.prepare_next()
        self._keeper.run_in_background()
        self._background = [
            self._tasks.spawn(self._seal_in_silence(), name="journal-sealer", essential=True),
            self._tasks.spawn(self._watch_device(), name="journal-watch", essential=True),
        ]

    # -- writing --------------------------------------------------------------------------

    def append(self, record: Record, on_durable: OnDurable) -> None:
        """Queue ``record``; ``on_durable`` is called on the loop once it is durable. Never waits.

        Records become durable in the order of their appends. What ``room_bytes`` does not
        cover stays queued until a trim makes room.

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
            # A defect. Whether the record will be written is not known, so nothing more may be promised. The caller
            # hears of it first.
            self._source.stop()
            asyncio.get_running_loop().call_soon(self._fail, error)
            raise
        self._queued_count += 1
        self._queued_bytes += charge
        self._pump.kick()

    def room_bytes(self, *, urgent: bool = False) -> int:
        """How much can be appended now and will be written without waiting for a trim.

        A batch of at most this size fits, whatever is queued; a larger one has to be refused.
        A part of the ring is kept back for ``urgent`` records: fences and LACs.
        """
        # As ``max_queued_bytes`` has it, which says why in this order; without its call, as each batch comes here.
        remaining = self._ring.geometry.segment_bytes - self._source.position.offset
        free = self._ring.writable_bytes(remaining, len(self._keeper.ready)) - self._queued_bytes
        reserve = 0 if urgent else self._ring.reserve_bytes
        return self._ring.largest_body(free - reserve)

    @property
    def queued_bytes(self) -> int:
        """Bytes appended and not yet durable, as room in the ring: each record in blocks of its own."""
        return self._queued_bytes

    @property
    def max_queued_bytes(self) -> int:
        """What may be queued now, so that all of it will be written without waiting for a trim."""
        # In this order: the pump takes a ready segment first and moves its position second,
        # so a segment may be missed for a moment, but is never counted twice.
        remaining = self._ring.geometry.segment_bytes - self._source.position.offset
        return self._ring.writable_bytes(remaining, len(self._keeper.ready))

    def oldest_queued_age_seconds(self) -> float:
        """How long the oldest record that is not durable has been waiting; 0 where there is none."""
        since = self._source.oldest_since()
        return 0.0 if since is None else max(0.0, self._clock.monotonic() - since)

    @property
    def write_seconds(self) -> Histogram:
        """How long the device took for each of the journal's writes."""
        return self._pump.write_seconds

    @property
    def used_fraction(self) -> float:
        """How much of the ring lies between trim mark and writer, 0 to 1, in whole segments at the mark's end."""
        geometry = self._ring.geometry
        position = self._source.position
        segments = position.segment - self._keeper.facts.trim.segment
        used = segments * geometry.segment_bytes + position.offset
        return min(1.0, max(0.0, used / (geometry.segment_bytes * geometry.segment_count)))

    def durable_mark(self) -> Mark:
        """Every record up to here is durable, and its ``on_durable`` was called."""
        return self._mark

    # -- trimming and stopping ------------------------------------------------------------

    async def trim(self, mark: Mark) -> None:
        """Forget everything up to ``mark``, a former ``durable_mark``, which is checkpointed.

        Returns when the mark is durable. Marks never go back: a lower one changes nothing.
        Segments that lie wholly below are recycled; the one that holds the mark is not.

        Raises:
            DiskFull, DiskFailed: the journal has failed.
        """
        check(not self._closed, "trim of a closed journal")
        check(mark <= self._mark, f"trim to {mark}, but only {self._mark} is durable")
        await self._keeper.trim(mark)

    async def drained(self, timeout_seconds: float) -> bool:
        """Wait until everything appended is durable. ``False``: it was not, within ``timeout_seconds``.

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
        """Stop. What is queued and not on its way to the device is dropped, without a call.

        Args:
            clean: everything appended is durable, checkpointed and trimmed; the next boot
                then replays nothing.

        Raises:
            InvariantViolation: ``clean`` is not true. The journal is closed all the same, as
                after a crash.
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
            self._source.stop()  # the write that does not end must not be told of later
            raise
        all_trimmed = self._failure is None and not self._queued_count and self._last_records <= self._keeper.facts.trim
        self._source.stop()
        await self._keeper.close(final=self._clean_facts if clean and all_trimmed else None)
        check(all_trimmed or not clean, "a clean stop with records that are not trimmed")

    def _clean_facts(self, facts: Superblock) -> Superblock:
        # A last seal may lie behind the caller's mark.
        return replace(facts, clean=True, trim=max(facts.trim, self._mark))

    # -- events ---------------------------------------------------------------------------

    def _segment_ready(self) -> None:
        self._pump.kick()
        self.on_room()

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
                # The rest of this block was never told: going on would leave it waiting for ever.
                self._fail(error)
                return
        self._mark = commit.mark
        self.on_room()
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
        """A write that never returns raises nothing: end the journal once a record has waited too long.

        Two looks in a row must say so. After a pause of the whole process the first one means nothing: the device
        was not slow, nobody looked.
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
        await asyncio.Event().wait()  # essential, so it may not end by itself; ``close`` ends it

    async def _seal_in_silence(self) -> None:
        """Once nothing was written for a while, have the last block vouched for."""
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


def _nobody_waits() -> None:
    """Nobody waits for room."""


def _facts_before_the_first_life(instance: bytes, settings: JournalSettings) -> Superblock:
    return Superblock(
        sequence=0,
        instance=instance,
        boot=0,
        clean=True,
        trim=Mark(0, 0),
        begin=Mark(0, 1),
        prepared=0,
        geometry=Geometry(settings.segment_bytes, settings.segment_count),
        previous_clean=True,
        previous_end=Mark(0, 0),
        previous_damage=0,
    )


async def _refuse_orphans(disk: Disk, directory: str) -> None:
    """Segment files without a superblock are somebody's data, not a fresh directory."""
    try:
        orphans = await segment_file_names(disk, directory)
    except FileNotFoundError:
        return
    if orphans:
        raise DamagedFile(f"{directory}/{FILE_NAME} is missing, but segment files are there")
