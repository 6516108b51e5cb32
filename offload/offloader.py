"""One offloader: repeated passes of archiving.

A pass: read all ledgers; archive those that are due; release the copies of ledgers archived long enough ago, after
another check. At intervals it also cleans up, which lists the whole bucket: ends abandoned attempts and transactions,
merges small objects, removes orphans. Every step may be interrupted, and run concurrently: being the only one
(``service``) only saves work.

A ledger that cannot be archived now is retried with growing pauses, and does not delay others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from tallybook.archive.format.index_codec import IndexRoot
from tallybook.archive.objects.port import ObjectInfo, ObjectStore
from tallybook.archive.objects.probe import OBJECT_ERRORS, ObjectPass, concerns_one_object, spread
from tallybook.archive.reader import ArchiveReader
from tallybook.core.coverage import sometimes
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
from tallybook.core.settings import OffloadSettings
from tallybook.metadata.ledger.archived import Receipt, abandon_archiving, release_copies
from tallybook.metadata.ledger_update import LedgerUpdater
from tallybook.metadata.transactions import delete_abandoned
from tallybook.runtime.clock import Clock
from tallybook.runtime.logging import logger
from tallybook.runtime.rng import Rng
from tallybook.runtime.tasks import Workers, run_together

from .bucket.dead_space import DeadSpace
from .bucket.janitor import BucketJanitor
from .bucket.records_copier import RecordsCopier
from .ledger_listing import LedgerListing
from .mover import Moved, Mover
from .policy import PlannedObject, WaitingSince, compact, dead_attempts, due, pack, releasable, waiting
from .totals import Backlog, Failures, Totals

_log = logger("offload")


class Offloader:
    """Runs passes.

    Args:
        reader: reads directories before copies are released, and for compaction.
        workers: encode the manifest.
        ready: raises before a pass changes anything, if it must not.
    """

    def __init__(
        self,
        mover: Mover,
        listing: LedgerListing,
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
        self._listing = listing
        self._updater = updater
        self._store = store
        self._reader = reader
        self._settings = settings
        self._clock = clock
        self._records = RecordsCopier(listing.store, store, workers, clock)
        self._dead_space = DeadSpace(store, reader, settings)
        self._failures = Failures(clock, rng.fork("failures"), settings.retry_s)
        self._waiting_since = WaitingSince(settings)
        self._tidied_at: float | None = None
        self.totals = Totals()
        self.backlog = Backlog()
        self.passed_over = 0
        """Ledgers and objects not reached yet, because several consecutive ones had timed out in the last pass."""
        self._janitor = BucketJanitor(listing, store, workers, settings, clock, rng, self.totals, self._forget)

    @property
    def streamed_bytes(self) -> int:
        """Payload bytes read for objects, including objects in progress."""
        return self._mover.streamed_bytes

    def begin_term(self) -> None:
        """Reset the state of a former term: another offloader may have led since."""
        self._waiting_since.forget()

    async def run_pass(self, *, tidy: bool = False) -> None:
        """Run one pass; with clean-up if it is due, or if ``tidy``.

        Raises:
            MetadataUnavailable: the ledgers cannot be read.
            ArchiveUnavailable, ArchiveDenied: the bucket cannot be read; a single refused object is skipped.
            Any error of ``ready``.
        """
        self.passed_over = 0
        await self._listing.refresh()
        # Before the pass: with a slow bucket it takes long, and then the backlog is of interest.
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
            # Also if the pass fails early because the bucket is unavailable.
            self.backlog = self._backlog()

    def _untidy(self) -> bool:
        """Whether a clean-up is due: at the start, and at intervals after a completed one."""
        since = self._tidied_at
        return since is None or self._clock.monotonic() - since >= self._settings.tidy_interval_s

    async def _tidy(self) -> None:
        began = self._clock.monotonic()
        if await self._janitor.is_behind():
            return
        await self._give_up_dead_attempts()
        await delete_abandoned(
            self._updater,
            self._listing.ledgers.values(),
            ttl_s=self._settings.transaction_ttl_s,
            now_ms=self._now_ms(),
            on_damaged=lambda error: self.totals.failed(
                f"ledgers that a transaction left behind are kept: {error.message}"
            ),
        )
        objects = [found async for page in self._store.list() for found in page]
        # Ledgers archived and released meanwhile; also, an object has its owner before it is listed.
        complete = await self._listing.refresh()
        if await self._janitor.own(objects, complete=complete):
            if complete and await self._janitor.report_behind() and await self._janitor.is_behind():
                return
            await self._compact(objects)
            if self._listing.doubtful:
                complete = await self._listing.refresh()
            self.passed_over += await self._janitor.collect(objects, complete=complete)
            if self._janitor.is_ours:
                # Otherwise the bucket, and the copy in it, may be another cluster's.
                await self._copy_records()
        self._tidied_at = began

    async def _archive(self) -> None:
        ledgers = [
            ledger
            for ledger in due(self._listing.ledgers.values(), self._settings, self._now_ms())
            if not self._failures.waits(ledger.ledger_id)
        ]
        for moved in await self._move(pack(ledgers, self._settings, self._now_ms())):
            self.totals.ledgers_archived += len(moved.archived)

    async def _give_up_dead_attempts(self) -> None:
        """End abandoned attempts: otherwise their objects would keep an owner, and their ledgers would not be moved."""
        for metadata in dead_attempts(self._listing.ledgers.values(), self._settings, self._now_ms()):
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
        keys = {found.key for found in objects}
        every = self._listing.ledgers.values()
        dead = await self._dead_space.mostly_dead(every, keys)
        ledgers = [metadata for metadata in every if not self._failures.waits(metadata.ledger_id)]
        for moved in await self._move(compact(ledgers, keys, self._settings, dead)):
            self.totals.ledgers_moved += len(moved.archived)

    async def _move(self, planned: Sequence[PlannedObject]) -> list[Moved]:
        """Write objects, several concurrently; a failed object does not stop the others."""
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
        # Committed, or refused because another process was first: the listing's metadata of them is out of date.
        self._listing.doubt(ledger.ledger_id for wanted in planned for ledger in wanted.ledgers)
        return done

    def _moved(self, moved: Moved) -> None:
        self.totals.objects_written += bool(moved.object_bytes)
        self.totals.payload_bytes += moved.payload_bytes
        self.totals.object_bytes += moved.object_bytes
        for ledger_id, why in moved.failed:
            self._failures.add(ledger_id)
            self.totals.failed(why, ledger_id=ledger_id)

    def _failed(self, wanted: PlannedObject, error: TallybookError) -> None:
        if is_defect(error):
            raise error
        sometimes("offload: an object failed")
        for ledger in wanted.ledgers:
            self._failures.add(ledger.ledger_id)
        self.totals.failed(error.message, ledger_ids=[ledger.ledger_id for ledger in wanted.ledgers])

    def _report_unreadable(self) -> None:
        """Report ledgers with unreadable metadata. They are skipped; no object is removed meanwhile."""
        for ledger_id, why in self._listing.unreadable.items():
            self._report_failed(ledger_id, why)

    def _report_failed(self, ledger_id: int, why: str) -> None:
        if not self._failures.waits(ledger_id):
            self._failures.add(ledger_id)
            self.totals.failed(why, ledger_id=ledger_id)

    async def _release(self) -> None:
        """Release the copies of archived ledgers, after another check of their objects."""
        by_object: dict[str, IndexRoot | None] = {}
        asked = ObjectPass(self._store)
        for metadata in spread(releasable(self._listing.ledgers.values(), self._settings, self._now_ms())):
            receipt = metadata.archived
            if receipt is None or any(self._failures.waits(name) for name in (receipt.key, metadata.ledger_id)):
                continue
            try:
                if receipt.key not in by_object:
                    if asked.ended:
                        self.passed_over += receipt.key not in self._failures
                        continue  # objects that time out are retried with growing pauses: later passes continue
                    by_object[receipt.key] = await self._read_directory(receipt, asked)
                if self._holds(by_object[receipt.key], metadata.ledger_id, receipt):
                    release = partial(release_copies, object_id=receipt.object_id)
                    self._listing.doubt([metadata.ledger_id])
                    await self._updater.update(metadata.ledger_id, release)
                    self.totals.ledgers_released += 1
            except (Conflict, NoSuchLedger):
                sometimes("offload: moved or deleted before its release")
            except (DamagedFile, NewerFormat, MetadataConflict, MetadataOutcomeUnknown) as error:
                self._report_failed(metadata.ledger_id, error.message)

    async def _read_directory(self, receipt: Receipt, asked: ObjectPass) -> IndexRoot | None:
        """The object's directory, if size and index match the receipt; shared by all ledgers in it."""
        try:
            size, directory = await asked.ask(partial(self._sized, receipt))
        except OBJECT_ERRORS as error:
            if not await asked.concerns_one_object(error):
                raise
            sometimes("offload: an object is not found whole before its release")
            if isinstance(error, ArchiveDenied | ArchiveUnavailable):
                self._failures.add(receipt.key)
            self.totals.failed(f"its ledgers stay with their bookies: {error.message}", object=receipt.key)
            return None
        if size != receipt.object_bytes:
            self.totals.failed(
                f"its ledgers stay with their bookies: {receipt.key} has {size} bytes", object=receipt.key
            )
            return None
        return directory

    async def _sized(self, receipt: Receipt) -> tuple[int, IndexRoot]:
        self._reader.forget(receipt.key)
        return (await self._store.info(receipt.key)).size_bytes, await self._reader.directory(receipt)

    def _holds(self, directory: IndexRoot | None, ledger_id: int, receipt: Receipt) -> bool:
        if directory is None:
            return False
        held = next((held for held in directory.ledgers if held.ledger_id == ledger_id), None)
        if held is not None and (held.entries, held.payload_bytes, held.rolling_crc) == (
            receipt.entries,
            receipt.payload_bytes,
            receipt.rolling_crc,
        ):
            return True
        why = f"ledger {ledger_id} stays with its bookies: {receipt.key} differs from what was archived"
        self.totals.failed(why, ledger_id=ledger_id, object=receipt.key)
        return False

    async def _copy_records(self) -> None:
        """Copy the stream records into the bucket, after the ledgers that they name have been archived."""
        try:
            if await self._records.copy():
                _log.info("records of streams copied")
        except OBJECT_ERRORS as error:
            if not await concerns_one_object(self._store, error):
                raise
            self.totals.failed(f"the records of streams are not copied: {error.message}")

    def _forget(self, key: str) -> None:
        """Drop the cached parts of a removed object."""
        self._reader.forget(key)
        self._mover.forget(key)

    def _backlog(self) -> Backlog:
        ledgers, now_ms = self._listing.ledgers.values(), self._now_ms()
        archived = [metadata for metadata in ledgers if metadata.archived is not None]
        wait = waiting(ledgers, self._settings, now_ms)
        return Backlog(
            ledgers=len(ledgers),
            archived_ledgers=len(archived),
            archived_bytes=sum(metadata.length for metadata in archived),
            waiting_ledgers=len(wait),
            waiting_bytes=sum(metadata.length for metadata in wait),
            oldest_waiting_s=self._waiting_since.update(wait, now_ms),
            unreleased_ledgers=sum(not metadata.copies_released for metadata in archived),
            orphans=self._janitor.orphans,
        )

    def _now_ms(self) -> int:
        return self._clock.wall_us() // 1000
