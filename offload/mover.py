"""Moves ledgers into one archive object, in steps that may be interrupted without loss.

    1. announce   each ledger's metadata names the object, before it exists     (begin_archiving)
    2. write      batches from the bookies, or from older objects, are streamed into it
    3. read back  all of it is read and compared
    4. commit     each ledger's metadata gets its receipt                       (commit_archived)

An interruption before step 4 leaves the ledgers unchanged, and perhaps an orphaned object, which is collected later.
Each ledger is committed separately; an object with only some ledgers committed is valid for those. A ledger whose
attempt was replaced by another mover is not committed here.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Final

from tallybook.archive.encoder import EncoderOptions
from tallybook.archive.format.schema import object_key
from tallybook.archive.object_writer import Batches, LedgerSource, read_back, receipts, write_object
from tallybook.archive.objects.port import ObjectStore
from tallybook.archive.objects.retries import ByteRate
from tallybook.client.client import Client
from tallybook.core.coverage import sometimes
from tallybook.core.errors import (
    Conflict,
    DataMissing,
    InvalidArgument,
    NoSuchLedger,
    ObjectDamaged,
    ObjectMissing,
    TallybookError,
    is_defect,
)
from tallybook.core.settings import OffloadSettings
from tallybook.metadata.codec import encode_ledger
from tallybook.metadata.ledger.archived import (
    ArchiveAttempt,
    Receipt,
    abandon_archiving,
    begin_archiving,
    commit_archived,
)
from tallybook.metadata.ledger.model import LedgerMetadata
from tallybook.metadata.ledger_update import LedgerUpdater
from tallybook.runtime.clock import Clock
from tallybook.runtime.logging import logger
from tallybook.runtime.rng import Rng
from tallybook.runtime.tasks import Workers

from .policy import Due, PlannedObject

_log = logger("offload")


MAX_WRITE_ATTEMPTS: Final = 3
"""Attempts per object while ledgers turn out to be unreadable: each announces all of them again."""


class SourceFailed(Exception):
    """A ledger cannot be read completely now. Handled within this file."""

    def __init__(self, ledger_id: int, cause: TallybookError) -> None:
        self.message = f"ledger {ledger_id} cannot be archived: {cause.message}"
        super().__init__(self.message)
        self.ledger_id = ledger_id


@dataclass(frozen=True, slots=True)
class Moved:
    """Result of an attempt."""

    archived: tuple[int, ...] = ()
    """Ledgers archived in the new object."""
    payload_bytes: int = 0
    object_bytes: int = 0
    failed: tuple[tuple[int, str], ...] = ()
    """Unreadable ledgers, with the reason."""


class Mover:
    """Writes archive objects.

    Args:
        client: reads the ledgers from bookies or from the archive.
        store: destination of the objects.
        workers: encode and verify.
        ready: raises before ledgers are committed, if they must not be.
    """

    def __init__(
        self,
        client: Client,
        updater: LedgerUpdater,
        store: ObjectStore,
        workers: Workers,
        settings: OffloadSettings,
        clock: Clock,
        rng: Rng,
        ready: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._ready = ready
        self._client = client
        self._updater = updater
        self._store = store
        self._workers = workers
        self._settings = settings
        self._clock = clock
        self._rng = rng
        self._rate = ByteRate(clock, int(settings.bytes_per_second))
        self.streamed_bytes = 0
        """Payload bytes read for objects, committed or not."""

    async def move(self, planned: PlannedObject) -> Moved:
        """Write one object and commit its ledgers. Skips unreadable ledgers.

        Raises:
            ArchiveUnavailable, ArchiveDenied: error of the object store.
            ObjectMissing, ObjectDamaged: the object read back differs from what was written.
            MetadataUnavailable, MetadataOutcomeUnknown: error of the metadata store.
            Any error of ``ready``.
        """
        wanted, failed = list(planned.ledgers), dict[int, str]()
        for _ in range(MAX_WRITE_ATTEMPTS):
            if not wanted:
                break
            try:
                moved = await self._attempt(wanted)
            except SourceFailed as failure:
                sometimes("offload: a ledger cannot be read")
                failed[failure.ledger_id] = failure.message
                # Those before it were just read successfully.
                failed |= await self._unreadable([due for due in wanted if due.ledger_id > failure.ledger_id])
                wanted = [due for due in wanted if due.ledger_id not in failed]
                continue
            return Moved(moved.archived, moved.payload_bytes, moved.object_bytes, tuple(sorted(failed.items())))
        failed |= {due.ledger_id: f"ledger {due.ledger_id} waits: its neighbours keep failing" for due in wanted}
        return Moved(failed=tuple(sorted(failed.items())))

    def forget(self, key: str) -> None:
        """Drop the cached parts of a removed object."""
        archive = self._client.world.archive
        if archive is not None:
            archive.forget(key)

    async def _unreadable(self, ledgers: Sequence[Due]) -> dict[int, str]:
        """Unreadable ledgers with the reason: found by reading all, so that one more attempt is enough."""
        found: dict[int, str] = {}
        for ledger in ledgers:
            try:
                async for _ in self._batches(await self._client.ledger_metadata(ledger.ledger_id)):
                    pass
            except SourceFailed as failure:
                found[failure.ledger_id] = failure.message
            except NoSuchLedger:
                continue
        return found

    async def _attempt(self, wanted: Sequence[Due]) -> Moved:
        object_id = self._rng.uuid()
        members: list[LedgerMetadata] = []
        try:
            for ledger in wanted:
                announced = await self._announce(ledger, object_id)
                if announced is not None:
                    members.append(announced)
            return await self._write(members, object_id) if members else Moved()
        except BaseException:
            await self._abandon(wanted, object_id)
            raise

    async def _announce(self, ledger: Due, object_id: str) -> LedgerMetadata | None:
        """Name the object in the ledger's metadata; ``None`` if another attempt is first, or the ledger is deleted."""
        attempt = ArchiveAttempt(object_id, self._clock.wall_us() // 1000)
        begin = partial(
            begin_archiving, attempt=attempt, from_object=ledger.in_object, ttl_ms=self._settings.attempt_ttl_s * 1000
        )
        try:
            return (await self._updater.update(ledger.ledger_id, begin)).value
        except (Conflict, NoSuchLedger):
            sometimes("offload: another offloader was first")
            return None

    async def _write(self, members: Sequence[LedgerMetadata], object_id: str) -> Moved:
        key = object_key(object_id, [metadata.ledger_id for metadata in members])
        options = EncoderOptions(row_group_bytes=int(self._settings.row_group_bytes))
        encoded = await write_object(
            self._store,
            self._workers,
            [self._source(metadata) for metadata in members],
            object_id=object_id,
            key=key,
            created_at_ms=self._clock.wall_us() // 1000,
            options=options,
        )
        try:
            found = await read_back(self._store, self._workers, key, encoded)
        except (ObjectMissing, ObjectDamaged):
            sometimes("offload: an object reads back different bytes")
            raise
        if self._ready is not None:
            # The archive may have been relocated meanwhile.
            await self._ready()
        archived = []
        for ledger_id, receipt in receipts(encoded, found, key, self._clock.wall_us() // 1000).items():
            if await self._commit(ledger_id, receipt):
                archived.append(ledger_id)
        payload_bytes = sum(ledger.payload_bytes for ledger in found.values())
        _log.info("object written", object=key, ledger_count=len(archived), payload_bytes=payload_bytes)
        return Moved(tuple(archived), payload_bytes, encoded.object_bytes)

    async def _commit(self, ledger_id: int, receipt: Receipt) -> bool:
        try:
            await self._updater.update(ledger_id, partial(commit_archived, receipt=receipt))
        except (Conflict, NoSuchLedger):
            # Taken over by another attempt, or deleted. The object is an orphan once none of its ledgers counts in it.
            sometimes("offload: another offloader has taken over")
            return False
        return True

    def _source(self, metadata: LedgerMetadata) -> LedgerSource:
        return LedgerSource(metadata.ledger_id, encode_ledger(metadata), partial(self._batches, metadata))

    async def _batches(self, metadata: LedgerMetadata) -> AsyncGenerator[Batches, None]:
        """Read the whole ledger, from bookies or from the archive."""
        entries = payload_bytes = 0
        if metadata.last_entry_id >= 0:
            reader = self._client.copying_reader(metadata, archive_first=True)
            try:
                async with aclosing(reader.read_sealed(0, metadata.last_entry_id)) as sealed:
                    async for batches in sealed:
                        size = sum(header.payload_bytes for header, _ in batches)
                        await self._rate.take(size)
                        entries += sum(header.entry_count for header, _ in batches)
                        payload_bytes += size
                        self.streamed_bytes += size
                        yield batches
            except TallybookError as error:
                if is_defect(error):
                    raise
                raise SourceFailed(metadata.ledger_id, error) from error
        if (entries, payload_bytes) != (metadata.last_entry_id + 1, metadata.length):
            found = DataMissing(f"{entries} entries with {payload_bytes} bytes were read, not {metadata.length} bytes")
            raise SourceFailed(metadata.ledger_id, found)

    async def _abandon(self, wanted: Sequence[Due], object_id: str) -> None:
        """End the attempt in the metadata, so that the next one need not wait for its expiry."""
        for ledger in wanted:
            try:
                await self._updater.update(ledger.ledger_id, partial(abandon_archiving, object_id=object_id))
            except NoSuchLedger:
                continue
            except (TallybookError, InvalidArgument) as error:
                if is_defect(error):
                    raise
                # It will expire. The caller needs the earlier error.
                _log.warning("attempt left behind", ledger_id=ledger.ledger_id, error=error.message)
                return
