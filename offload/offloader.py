"""One offloader: looks for work again and again, and does it.

A round is: look at all ledgers; archive what is due; let bookies drop what has been archived for long enough,
checked once more. Now and then it also tidies up, which takes a listing of the whole bucket: give up attempts,
and transactions, that nobody is at any more, merge small objects, remove what belongs to nobody. Every step is safe
to be cut off, and safe to be done by two at once: being the only one (``service``) only saves work.

A ledger that cannot be archived now is tried again later and later, and does not keep others waiting.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from tallybook.archive.index_codec import Directory
from tallybook.archive.manifest import MANIFEST_KEY, Manifest
from tallybook.archive.objects.port import ObjectInfo, ObjectStore
from tallybook.archive.objects.probe import OBJECT_ERRORS, concerns_one_object
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
from tallybook.metadata.behind import MANIFEST, REMEDY, BehindRecord, unapproved
from tallybook.metadata.left_behind import delete_left_behind
from tallybook.metadata.update import LedgerUpdater
from tallybook.runtime.clock import Clock
from tallybook.runtime.logging import logger
from tallybook.runtime.rng import Rng
from tallybook.runtime.tasks import Workers

from .dead_space import DeadSpace
from .manifest_writer import ManifestWriter
from .mover import Moved, Mover
from .orphans import OrphanWatch, Owned
from .policy import PlannedObject, compact, dead_attempts, due, pack, releasable, waiting
from .records_copier import RecordsCopier
from .survey import Survey
from .unexplained import first_unexplained, without_deletion
from .waiting_since import WaitingSince

_log = logger("offload")

LONGEST_RETRY_SECONDS: Final = 3_600.0
MOST_REMEMBERED_FAILURES: Final = 10_000
MAX_NAMED: Final = 20
"""Missing ledgers that the log names."""


@dataclass(slots=True)
class Totals:
    """What one offloader has done since it began. Sizes in bytes."""

    rounds: int = 0
    ledgers_archived: int = 0
    ledgers_moved: int = 0
    """By compaction."""
    objects_written: int = 0
    payload_bytes: int = 0
    object_bytes: int = 0
    ledgers_released: int = 0
    objects_removed: int = 0
    uploads_aborted: int = 0
    failures: int = 0
    last_error: str = ""


@dataclass(frozen=True, slots=True)
class Backlog:
    """What is there to be done, as of when the last round began, or ended, however it did. Sizes in bytes."""

    ledgers: int = 0
    archived_ledgers: int = 0
    archived_bytes: int = 0
    waiting_ledgers: int = 0
    """Closed, in no object yet, and old and large enough for one."""
    waiting_bytes: int = 0
    oldest_waiting_s: int = 0
    """How long the one has waited that has waited longest."""
    unreleased_ledgers: int = 0
    """Archived, and still to be kept by bookies."""
    orphans: int = 0


@dataclass(slots=True)
class _Failure:
    tries: int
    again_at: float


@dataclass(slots=True)
class _Failures:
    """Ledgers that could not be archived, and objects that the store refuses: when they are tried again.

    Args:
        first_pause: seconds.
    """

    first_pause: float
    known: dict[int | str, _Failure] = field(default_factory=dict)
    """By ledger id, or key of an object."""

    def add(self, name: int | str, now: float) -> None:
        tries = self.known[name].tries + 1 if name in self.known else 1
        # The exponent is bounded: an object that stays refused for years must not overflow a float.
        pause = min(self.first_pause * 2 ** min(tries - 1, 30), LONGEST_RETRY_SECONDS)
        self.known[name] = _Failure(tries, now + pause)
        if len(self.known) > MOST_REMEMBERED_FAILURES:
            del self.known[next(iter(self.known))]

    def waits(self, name: int | str, now: float) -> bool:
        failure = self.known.get(name)
        return failure is not None and now < failure.again_at


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
        self._orphans = OrphanWatch(settings)
        self._manifest = ManifestWriter(store, workers)
        self._behind = BehindRecord(survey.store, clock, rng.fork("behind"))
        self._records = RecordsCopier(survey.store, store, workers, clock)
        self._dead_space = DeadSpace(store, reader, settings)
        self._failures = _Failures(settings.retry_s)
        self._waiting_since = WaitingSince(settings)
        self._tidied_at: float | None = None
        self.totals = Totals()
        self.backlog = Backlog()

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
        if await self._is_behind():
            return
        await self._give_up_dead_attempts()
        await delete_left_behind(
            self._updater,
            self._survey.ledgers.values(),
            ttl_s=self._settings.transaction_ttl_s,
            now_ms=self._now_ms(),
            say_damaged=lambda error: self._say_failed(f"what a transaction left behind stays: {error.message}"),
        )
        objects = [found async for page in self._store.list() for found in page]
        # What was archived and released meanwhile; also, an object has its owner before it is in a listing.
        complete = await self._survey.look()
        if await self._own_bucket(objects, complete=complete):
            if complete and await self._report_behind() and await self._is_behind():
                return
            await self._compact(objects)
            if self._survey.doubtful:
                complete = await self._survey.look()
            await self._collect(objects, complete=complete)
            if self._manifest.cluster_id is not None:
                # Else the bucket may be another cluster's, and so may the copy in it.
                await self._copy_records()
        self._tidied_at = began

    async def _is_behind(self) -> bool:
        """Whether the metadata are known to be an older copy: what they do not know has owners that they forgot."""
        behind = await unapproved(self._survey.store)
        if behind is not None:
            self._say_failed(f"nothing is merged or removed in {self._store.url}: {behind.told}: {REMEDY}")
        return behind is not None

    async def _report_behind(self) -> bool:
        """Report the metadata as an older copy if the manifest counts ledgers beyond their id counter."""
        if self._manifest.cluster_id is None:
            return False  # perhaps another cluster's
        known, store = self._survey.ledgers, self._survey.store
        unknown = [ledger_id for ledger_id in self._manifest.ledgers if ledger_id not in known]
        if not unknown or max(unknown) < (id_counter := await store.id_counter()):
            return False
        for each in sorted((each for each in unknown if each >= id_counter), reverse=True):
            if await store.deletion(each) is None:
                sometimes("offload: the manifest shows that the metadata are an older copy")
                await self._behind.report(MANIFEST, id_counter, each)
                return True
        return False

    async def _own_bucket(self, objects: Sequence[ObjectInfo], *, complete: bool) -> bool:
        """Whether the bucket is of this cluster; what another process has seen of orphans is taken over from there.

        Args:
            complete: whether no ledger can be missing from the survey.
        """
        manifest = await self._manifest.load(next((each for each in objects if each.key == MANIFEST_KEY), None))
        owner = self._manifest.cluster_id
        if owner is not None and owner != await self._survey.cluster_id():
            self._say_failed(
                f"{self._store.url} is the archive of cluster {owner}: nothing is merged or removed. "
                "If its metadata were lost, run 'offload rebuild-catalog'; else give this cluster another archive"
            )
            return False
        if owner is None and complete and not await self._explained(objects):
            return False
        if manifest is not None:
            self._orphans.restore(manifest.dropped, monotonic_s=self._clock.monotonic(), wall_ms=self._now_ms())
        return True

    async def _explained(self, objects: Sequence[ObjectInfo]) -> bool:
        """Whether a manifest may be written where none tells what counts: the metadata explain all objects."""
        lacks = self._manifest.unreadable or f"{self._store.url} has no manifest"
        if self._manifest.key_missing:
            self._say_failed(f"nothing is merged or removed, and the manifest stays: {lacks}: give its key")
            return False
        why = await first_unexplained(self._store, self._survey.store, self._survey.ledgers, objects)
        if why:
            self._say_failed(
                f"nothing is merged or removed, and no manifest written: {lacks}, and {why}. If metadata were lost, "
                "run 'offload rebuild-catalog'; if it is another cluster's archive, give this cluster another one; "
                "remove the object yourself only if nobody needs it"
            )
        return not why

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

        async with asyncio.TaskGroup() as group:
            for wanted in planned:
                group.create_task(one(wanted))
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
            self._say_failed(why, ledger_id=ledger_id)

    def _failed(self, wanted: PlannedObject, error: TallybookError) -> None:
        if is_defect(error):
            raise error
        sometimes("offload: an object failed")
        now = self._clock.monotonic()
        for ledger in wanted.ledgers:
            self._failures.add(ledger.ledger_id, now)
        self._say_failed(error.message, ledger_ids=[ledger.ledger_id for ledger in wanted.ledgers])

    def _report_unreadable(self) -> None:
        """Report ledgers whose metadata cannot be decoded. They are left out; no object is removed meanwhile."""
        for ledger_id, why in self._survey.unreadable.items():
            self._report_failed(ledger_id, why)

    def _report_failed(self, ledger_id: int, why: str) -> None:
        now = self._clock.monotonic()
        if not self._failures.waits(ledger_id, now):
            self._failures.add(ledger_id, now)
            self._say_failed(why, ledger_id=ledger_id)

    def _say_failed(self, why: str, **about: object) -> None:
        self.totals.failures += 1
        self.totals.last_error = why
        _log.warning("cannot archive", error=why, **about)

    async def _release(self) -> None:
        """Let bookies drop their copies of what is in the archive, after another look at the object."""
        by_object: dict[str, Directory | None] = {}
        now = self._clock.monotonic()
        for metadata in releasable(self._survey.ledgers.values(), self._settings, self._now_ms()):
            receipt = metadata.archived
            if receipt is None or any(self._failures.waits(name, now) for name in (receipt.key, metadata.ledger_id)):
                continue
            try:
                if receipt.key not in by_object:
                    by_object[receipt.key] = await self._looked_at(receipt)
                if self._holds(by_object[receipt.key], metadata.ledger_id, receipt):
                    release = partial(release_copies, object_id=receipt.object_id)
                    self._survey.doubt([metadata.ledger_id])
                    await self._updater.update(metadata.ledger_id, release)
                    self.totals.ledgers_released += 1
            except (Conflict, NoSuchLedger):
                sometimes("offload: moved or deleted before its release")
            except (DamagedFile, NewerFormat, MetadataConflict, MetadataOutcomeUnknown) as error:
                self._report_failed(metadata.ledger_id, error.message)

    async def _looked_at(self, receipt: Receipt) -> Directory | None:
        """The object's directory, if its size and its index are what the receipt says; all ledgers in it share that."""
        try:
            self._reader.forget(receipt.key)
            size = (await self._store.info(receipt.key)).size_bytes
            directory = await self._reader.directory(receipt)
        except OBJECT_ERRORS as error:
            if not await concerns_one_object(self._store, error):
                raise
            sometimes("offload: an object is not found whole before its release")
            if isinstance(error, ArchiveDenied | ArchiveUnavailable):
                self._failures.add(receipt.key, self._clock.monotonic())
            self._say_failed(f"its ledgers stay with their bookies: {error.message}", object=receipt.key)
            return None
        if size != receipt.object_bytes:
            self._say_failed(f"its ledgers stay with their bookies: {receipt.key} has {size} bytes", object=receipt.key)
            return None
        return directory

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
        self._say_failed(why, ledger_id=ledger_id, object=receipt.key)
        return False

    async def _collect(self, objects: Sequence[ObjectInfo], *, complete: bool) -> None:
        """Write down what counts in the bucket, and remove what belongs to nobody.

        What is known of the ledgers says what to suspect. Only then are all of them read, which is after the bucket
        was listed, and what has an owner after all is spared.

        Args:
            complete: whether no ledger can be missing from the survey.
        """
        missing = await self._missing() if complete else {}
        uploads = await self._store.unfinished_uploads()
        suspects = self._orphans.look(
            objects,
            uploads,
            Owned.by(self._survey.ledgers.values(), missing.values()),
            monotonic_s=self._clock.monotonic(),
            wall_ms=self._now_ms(),
        )
        # Before anything goes: whoever reads by the manifest must not look for what is removed.
        if complete and not await self._write_manifest(missing):
            return
        if not suspects:
            return
        if self._manifest.unreadable or self._manifest.cluster_id is None:
            # Which ledgers are missing was written there, or is not known yet.
            why = self._manifest.unreadable or f"{self._store.url} has no manifest"
            self._say_failed(f"nothing is removed in this pass: {why}")
            return
        if not await self._survey.look(everything=True):
            sometimes("offload: removes nothing, for the listing of ledgers broke off")
            return
        if await self._is_behind():
            # Bookies have found it out since the pass began.
            return
        missing |= await self._missing()
        garbage = suspects.without(Owned.by(self._survey.ledgers.values(), missing.values()))
        if garbage != suspects:
            sometimes("offload: what had no owner has one after all")
        for found in garbage.objects:
            if not await self._removed(found.key, self._store.delete(found.key)):
                continue
            self._reader.forget(found.key)
            self._mover.forget(found.key)
            self._orphans.removed(found.key)
            self.totals.objects_removed += 1
            sometimes("offload: removes an object that belongs to nobody")
            _log.info("object removed: no ledger is in it", object=found.key)
        for upload in garbage.uploads:
            if not await self._removed(upload.key, self._store.abort_upload(upload)):
                continue
            self.totals.uploads_aborted += 1
            sometimes("offload: removes an upload that nobody finished")
            _log.info("unfinished upload removed", object=upload.key)

    async def _missing(self) -> dict[int, str]:
        """Ledgers that the manifest counts, whose metadata are gone without a record of a deletion; their objects."""
        known, counted = self._survey.ledgers, self._manifest.ledgers
        unknown = [ledger_id for ledger_id in counted if ledger_id not in known]
        missing = {each: counted[each] for each in await without_deletion(self._survey.store, unknown)}
        if missing:
            self._say_failed(
                f"metadata of {len(missing)} archived ledgers are missing, without a record that they were deleted: "
                "their objects stay; bring the metadata back",
                ledger_ids=sorted(missing)[:MAX_NAMED],
            )
        return missing

    async def _write_manifest(self, missing: Mapping[int, str]) -> bool:
        """Whether the manifest says what counts; ``missing`` ledgers still do."""
        ledgers = {
            metadata.ledger_id: metadata.archived.key
            for metadata in self._survey.ledgers.values()
            if metadata.archived is not None
        }
        manifest = Manifest(await self._survey.cluster_id(), {**missing, **ledgers}, self._orphans.since_ms)
        try:
            if await self._manifest.write(manifest):
                _log.info("manifest written", ledger_count=len(ledgers), dropped_count=len(manifest.dropped))
        except OBJECT_ERRORS as error:
            if not await concerns_one_object(self._store, error):
                raise
            self._say_failed(f"the manifest is not written, so nothing is removed: {error.message}")
            return False
        return True

    async def _copy_records(self) -> None:
        """Copy the records of streams into the bucket, after the ledgers that they name have been archived."""
        try:
            if await self._records.copy():
                _log.info("records of streams copied")
        except OBJECT_ERRORS as error:
            if not await concerns_one_object(self._store, error):
                raise
            self._say_failed(f"the records of streams are not copied: {error.message}")

    async def _removed(self, key: str, removal: Awaitable[None]) -> bool:
        """Whether the store did ``removal``. What it does not remove (an object lock) keeps no other from going."""
        try:
            await removal
        except OBJECT_ERRORS as error:
            if not await concerns_one_object(self._store, error):
                raise
            self._say_failed(f"it belongs to no ledger, and cannot be removed: {error.message}", object=key)
            return False
        return True

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
            orphans=self._orphans.count,
        )

    def _now_ms(self) -> int:
        return self._clock.wall_us() // 1000
