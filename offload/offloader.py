"""One offloader: looks for work again and again, and does it.

A round is: look at all ledgers; archive what is due; let bookies drop what has been archived for long enough,
checked once more. Now and then it also tidies up, which takes a listing of the whole bucket: give up attempts,
and transactions, that nobody is at any more, merge small objects, remove what belongs to nobody. Every step is safe
to be cut off, and safe to be done by two at once: being the only one (``service``) only saves work.

A ledger that cannot be archived now is tried again later and later, and does not keep others waiting.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from tallybook.archive.index_codec import Directory
from tallybook.archive.objects.port import ObjectInfo, ObjectStore
from tallybook.archive.objects.probe import OBJECT_ERRORS, ObjectPass, concerns_one_object, spread
from tallybook.archive.reader import ArchiveReader
from tallybook.core.config import OffloadSettings
from tallybook.core.errors import (
    ArchiveDenied,
    ArchiveUnavailable,
    Conflict,
    DamagedFile,
    MetadataConflict,
    MetadataOutcomeUnknown,
    NewerFormat,
    NoSuchLedger,
    TallybookError,
    is_defect,
)
from tallybook.core.marks import sometimes
from tallybook.metadata.archived import Receipt, abandon_archiving, release_copies
from tallybook.metadata.left_behind import delete_left_behind
from tallybook.metadata.update import LedgerUpdater
from tallybook.runtime.clock import Clock
from tallybook.runtime.logging import logger
from tallybook.runtime.rng import Rng
from tallybook.runtime.tasks import Workers, run_together

from .bucket_keeper import BucketKeeper
from .dead_space import DeadSpace
from .mover import Moved, Mover
from .policy import PlannedObject, compact, dead_attempts, due, pack, releasable, waiting
from .records_copier import RecordsCopier
from .survey import Survey
from .totals import Backlog, Failures, Totals
from .waiting_since import WaitingSince

_log = logger("offload")


class Offloader:
    """Does the work.

    Args:
        reader: reads receipts' objects back before copies are released, and what sets held.
        workers: where the manifest is encoded.
        ready: raises before a round changes anything, if it must not.
    """

    def __init__(
        self,
        mover: Mover,
        survey: Survey,
        updater: LedgerUpdater,
        store: ObjectStore,
        reader: ArchiveReader,
        workers: Workers,
        settings: OffloadSettings,
        clock: Clock,
        rng: Rng,
        ready: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._mover = mover
        self._ready = ready
        self._survey = survey
        self._updater = updater
        self._store = store
        self._reader = reader
        self._settings = settings
        self._clock = clock
        self._records = RecordsCopier(survey.store, store, workers, clock)
        self._dead_space = DeadSpace(store, reader, settings)
        self._failures = Failures(settings.retry_s)
        self._waiting_since = WaitingSince(settings)
        self._tidied_at: float | None = None
        self.totals = Totals()
        self.backlog = Backlog()
        self.passed_over = 0
        """Ledgers and objects that no round has come to so far: in the last one several in a row had timed out."""
        self._keeper = BucketKeeper(survey, store, workers, settings, clock, rng, self.totals, self._forget)

    @property
    def streamed_bytes(self) -> int:
        """Payload that was read to be written into objects: how far the objects under way are, too."""
        return self._mover.streamed_bytes

    def begin_term(self) -> None:
        """Before the first round after others may have led: what it last saw waiting is old."""
        self._waiting_since.forget()

    async def round(self, *, tidy: bool = False) -> None:
        """Look once, and do what there is to do; tidy up as well if it is time to, or if ``tidy`` says so.

        Raises:
            MetadataUnavailable: the ledgers cannot be looked at.
            ArchiveUnavailable, ArchiveDenied: the bucket cannot be looked at; an object that it refuses is left out.
            Whatever ``ready`` raises.
        """
        self.passed_over = 0
        await self._survey.look()
        # With a slow bucket a round takes long, and that is when somebody is to see what waits, and how long.
        self.backlog = self._backlog()
        try:
            if self._ready is not None:
                await self._ready()
            self._report_unreadable()
            await self._archive()
            await self._release()
            if tidy or self._untidy():
                await self._tidy()
            self.totals.rounds += 1
        finally:
            # With the bucket away all rounds end early; likewise.
            self.backlog = self._backlog()

    def _untidy(self) -> bool:
        """Whether it is time for the whole bucket: at the start, and then at intervals, until one came to its end."""
        since = self._tidied_at
        return since is None or self._clock.monotonic() - since >= self._settings.tidy_interval_s

    async def _tidy(self) -> None:
        began = self._clock.monotonic()
        if await self._keeper.is_behind():
            return
        await self._give_up_dead_attempts()
        await delete_left_behind(
            self._updater,
            self._survey.ledgers.values(),
            ttl_s=self._settings.transaction_ttl_s,
            now_ms=self._now_ms(),
            say_damaged=lambda error: self.totals.failed(f"what a transaction left behind stays: {error.message}"),
        )
        objects = [found async for page in self._store.list() for found in page]
        # What was archived and released meanwhile; also, an object has its owner before it is in a listing.
        complete = await self._survey.look()
        if await self._keeper.own(objects, complete=complete):
            if complete and await self._keeper.report_behind() and await self._keeper.is_behind():
                return
            await self._compact(objects)
            if self._survey.doubtful:
                complete = await self._survey.look()
            self.passed_over += await self._keeper.collect(objects, complete=complete)
            if self._keeper.is_ours:
                # Else the bucket may be another cluster's, and so may the copy in it.
                await self._copy_records()
        self._tidied_at = began

    async def _archive(self) -> None:
        now = self._clock.monotonic()
        ledgers = [
            ledger
            for ledger in due(self._survey.ledgers.values(), self._settings, self._now_ms())
            if not self._failures.waits(ledger.ledger_id, now)
        ]
        for moved in await self._move(pack(ledgers, self._settings, self._now_ms())):
            self.totals.ledgers_archived += len(moved.archived)

    async def _give_up_dead_attempts(self) -> None:
        """Else what they have written would have an owner for ever, and their ledgers would not be moved again."""
        for metadata in dead_attempts(self._survey.ledgers.values(), self._settings, self._now_ms()):
            if metadata.archiving is None:
                continue
            sometimes("offload: a dead attempt is given up")
            give_up = partial(abandon_archiving, object_id=metadata.archiving.object_id)
            try:
                await self._updater.update(metadata.ledger_id, give_up)
            except NoSuchLedger:
                continue
            except (DamagedFile, NewerFormat, MetadataConflict, MetadataOutcomeUnknown) as error:
                self._report_failed(metadata.ledger_id, error.message)

    async def _compact(self, objects: Sequence[ObjectInfo]) -> None:
        now, keys = self._clock.monotonic(), {found.key for found in objects}
        every = self._survey.ledgers.values()
        dead = await self._dead_space.mostly_dead(every, keys)
        ledgers = [metadata for metadata in every if not self._failures.waits(metadata.ledger_id, now)]
        for moved in await self._move(compact(ledgers, keys, self._settings, dead)):
            self.totals.ledgers_moved += len(moved.archived)

    async def _move(self, planned: Sequence[PlannedObject]) -> list[Moved]:
        """Write objects, a few at a time; an object that fails does not keep the next one from its turn."""
        turns = asyncio.Semaphore(self._settings.concurrent_objects)
        done: list[Moved] = []

        async def one(wanted: PlannedObject) -> None:
            async with turns:
                try:
                    moved = await self._mover.move(wanted)
                except TallybookError as error:
                    self._failed(wanted, error)
                    return
            done.append(moved)
            self._moved(moved)

        await run_together(*map(one, planned))
        # Committed, or refused because somebody else was first: either way they are not what the survey took them for.
        self._survey.doubt(ledger.ledger_id for wanted in planned for ledger in wanted.ledgers)
        return done

    def _moved(self, moved: Moved) -> None:
        self.totals.objects_written += bool(moved.object_bytes)
        self.totals.payload_bytes += moved.payload_bytes
        self.totals.object_bytes += moved.object_bytes
        now = self._clock.monotonic()
        for ledger_id, why in moved.failed:
            self._failures.add(ledger_id, now)
            self.totals.failed(why, ledger_id=ledger_id)

    def _failed(self, wanted: PlannedObject, error: TallybookError) -> None:
        if is_defect(error):
            raise error
        sometimes("offload: an object failed")
        now = self._clock.monotonic()
        for ledger in wanted.ledgers:
            self._failures.add(ledger.ledger_id, now)
        self.totals.failed(error.message, ledger_ids=[ledger.ledger_id for ledger in wanted.ledgers])

    def _report_unreadable(self) -> None:
        """Report ledgers whose metadata cannot be decoded. They are left out; no object is removed meanwhile."""
        for ledger_id, why in self._survey.unreadable.items():
            self._report_failed(ledger_id, why)

    def _report_failed(self, ledger_id: int, why: str) -> None:
        now = self._clock.monotonic()
        if not self._failures.waits(ledger_id, now):
            self._failures.add(ledger_id, now)
            self.totals.failed(why, ledger_id=ledger_id)

    async def _release(self) -> None:
        """Let bookies drop their copies of what is in the archive, after another look at the object."""
        by_object: dict[str, Directory | None] = {}
        now, asked = self._clock.monotonic(), ObjectPass(self._store)
        for metadata in spread(releasable(self._survey.ledgers.values(), self._settings, self._now_ms())):
            receipt = metadata.archived
            if receipt is None or any(self._failures.waits(name, now) for name in (receipt.key, metadata.ledger_id)):
                continue
            try:
                if receipt.key not in by_object:
                    if asked.ended:
                        self.passed_over += receipt.key not in self._failures.known
                        continue  # those that hang are asked for later and later: the next rounds go on
                    by_object[receipt.key] = await self._looked_at(receipt, asked)
                if self._holds(by_object[receipt.key], metadata.ledger_id, receipt):
                    release = partial(release_copies, object_id=receipt.object_id)
                    self._survey.doubt([metadata.ledger_id])
                    await self._updater.update(metadata.ledger_id, release)
                    self.totals.ledgers_released += 1
            except (Conflict, NoSuchLedger):
                sometimes("offload: moved or deleted before its release")
            except (DamagedFile, NewerFormat, MetadataConflict, MetadataOutcomeUnknown) as error:
                self._report_failed(metadata.ledger_id, error.message)

    async def _looked_at(self, receipt: Receipt, asked: ObjectPass) -> Directory | None:
        """The object's directory, if its size and its index are what the receipt says; all ledgers in it share that."""
        try:
            size, directory = await asked.ask(partial(self._sized, receipt))
        except OBJECT_ERRORS as error:
            if not await asked.concerns_one_object(error):
                raise
            sometimes("offload: an object is not found whole before its release")
            if isinstance(error, ArchiveDenied | ArchiveUnavailable):
                self._failures.add(receipt.key, self._clock.monotonic())
            self.totals.failed(f"its ledgers stay with their bookies: {error.message}", object=receipt.key)
            return None
        if size != receipt.object_bytes:
            self.totals.failed(
                f"its ledgers stay with their bookies: {receipt.key} has {size} bytes", object=receipt.key
            )
            return None
        return directory

    async def _sized(self, receipt: Receipt) -> tuple[int, Directory]:
        self._reader.forget(receipt.key)
        return (await self._store.info(receipt.key)).size_bytes, await self._reader.directory(receipt)

    def _holds(self, directory: Directory | None, ledger_id: int, receipt: Receipt) -> bool:
        if directory is None:
            return False
        held = next((held for held in directory.ledgers if held.ledger_id == ledger_id), None)
        if held is not None and (held.entries, held.payload_bytes, held.rolling_crc) == (
            receipt.entries,
            receipt.payload_bytes,
            receipt.rolling_crc,
        ):
            return True
        why = f"ledger {ledger_id} stays with its bookies: {receipt.key} is not what was archived"
        self.totals.failed(why, ledger_id=ledger_id, object=receipt.key)
        return False

    async def _copy_records(self) -> None:
        """Copy the records of streams into the bucket, after the ledgers that they name have been archived."""
        try:
            if await self._records.copy():
                _log.info("records of streams copied")
        except OBJECT_ERRORS as error:
            if not await concerns_one_object(self._store, error):
                raise
            self.totals.failed(f"the records of streams are not copied: {error.message}")

    def _forget(self, key: str) -> None:
        """An object is gone: keep nothing of it."""
        self._reader.forget(key)
        self._mover.forget(key)

    def _backlog(self) -> Backlog:
        ledgers, now_ms = self._survey.ledgers.values(), self._now_ms()
        archived = [metadata for metadata in ledgers if metadata.archived is not None]
        wait = waiting(ledgers, self._settings, now_ms)
        return Backlog(
            ledgers=len(ledgers),
            archived_ledgers=len(archived),
            archived_bytes=sum(metadata.length for metadata in archived),
            waiting_ledgers=len(wait),
            waiting_bytes=sum(metadata.length for metadata in wait),
            oldest_waiting_s=self._waiting_since.look(wait, now_ms),
            unreleased_ledgers=sum(not metadata.copies_released for metadata in archived),
            orphans=self._keeper.orphans,
        )

    def _now_ms(self) -> int:
        return self._clock.wall_us() // 1000
