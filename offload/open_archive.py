"""Opens everything that an offloader needs, for a client and a URL: for the command line and ``tallybook up``."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Final

from tallybook.archive.encryption_record import encrypted_since, keys_missing, record_encryption
from tallybook.archive.objects.open import OpenedStore, open_store
from tallybook.archive.objects.probe import check_answers
from tallybook.archive.objects.retries import StoreWithRetries
from tallybook.archive.reader import ArchiveReader, ArchiveReaderSettings
from tallybook.archive.url_record import ensure_location, other_location, read_location
from tallybook.client.client import Client
from tallybook.core.errors import ArchiveDenied, ArchiveUnavailable, InvalidConfig
from tallybook.core.limits import MIB
from tallybook.core.settings import ClientSettings, OffloadSettings
from tallybook.metadata.ledger_update import LedgerUpdater
from tallybook.metadata.metered_store import MetadataLoad
from tallybook.metadata.store import MetadataStore
from tallybook.runtime.clock import Clock, RealClock
from tallybook.runtime.rng import Rng, SystemRng
from tallybook.runtime.tasks import Tasks, ThreadWorkers, Workers, raise_defect

from .ledger_listing import LedgerListing
from .mover import Mover
from .offloader import Offloader

WORKER_THREADS: Final = 2
CLIENT_SETTINGS: Final = ClientSettings(archive_index_bytes=8 * MIB, archive_cache_bytes=4 * MIB)
"""Settings of the offloader's client, which reads each ledger once from beginning to end. Compaction reads ledgers from
several objects in turn, and needs their directories again: one of 1,000 ledgers takes 1.4 MB."""
_UNCACHED: Final = ArchiveReaderSettings(index_cache_bytes=0, page_cache_bytes=0)
"""No caches: an offloader reads a directory once, or needs its current state in the store."""


@dataclass(frozen=True, slots=True)
class Archive:
    """The opened archive of a cluster."""

    metadata: MetadataStore
    store: StoreWithRetries
    workers: Workers
    tasks: Tasks
    clock: Clock
    rng: Rng
    metadata_load: MetadataLoad | None = None
    """Counters of the metadata store, including the calls of the client."""
    encrypted_store: OpenedStore | None = None
    """The same store with its encryption interface; ``None`` in simulations."""
    url: str | None = None
    """URL of the archive in the metadata when it was opened; ``None`` in simulations."""
    unlisted: bool = False
    """The bucket could not be listed when it was opened: its objects may be encrypted."""

    def offloader(self, client: Client, settings: OffloadSettings) -> Offloader:
        """An offloader of this cluster; ``client`` reads the ledgers."""
        reader = ArchiveReader(self.store, self.workers, self.tasks, _UNCACHED)
        mover, updater = self.mover(client, settings), self._updater
        return Offloader(
            mover,
            LedgerListing(self.metadata),
            updater,
            self.store,
            reader,
            self.workers,
            settings,
            self.clock,
            self.rng,
            self.check_ready,
        )

    async def check_ready(self) -> None:
        """Check that the archive is unchanged since it was opened: same URL, and not encrypted if there are no keys.

        Raises:
            InvalidConfig: the archive was relocated.
            ArchiveKeyMissing: objects would be written plain, while other offloaders encrypt them by now.
            MetadataUnavailable, DamagedFile: the records are unreadable.
            ArchiveDenied, ArchiveUnavailable: the bucket, which could not be listed when it was opened, still cannot.
        """
        current_url = await read_location(self.metadata)
        if self.url is not None and current_url is not None and current_url != self.url:
            raise other_location(current_url, self.url)
        if self.encrypted_store is None or self.encrypted_store.encrypts:
            return
        if await encrypted_since(self.metadata) is not None or (
            self.unlisted and await self.encrypted_store.any_encrypted()
        ):
            raise keys_missing(self.store.url)

    def mover(self, client: Client, settings: OffloadSettings) -> Mover:
        """A writer of objects of this cluster; ``client`` reads the ledgers."""
        rng = self.rng.fork("mover")
        return Mover(client, self._updater, self.store, self.workers, settings, self.clock, rng, ready=self.check_ready)

    @property
    def _updater(self) -> LedgerUpdater:
        return LedgerUpdater(self.metadata, self.clock, self.rng.fork("updater"))


@asynccontextmanager
async def open_archive(
    client: Client, url: str | None, *, record: bool = False, filled: bool = False, archive_keys: str = ""
) -> AsyncIterator[Archive]:
    """Open the archive of a cluster.

    Args:
        client: of the cluster. What it may not change in the metadata is not changed here either.
        archive_keys: file with the keys of the archive; empty: none.
        url: of the archive; ``None``: the one in the metadata.
        record: record ``url`` as the cluster's archive, if it has none yet, and as encrypted, if there are keys.
        filled: refuse a bucket without manifest and objects, before anything is recorded.

    Raises:
        InvalidConfig: the cluster has no archive, or another one; or the URL is invalid.
        MetadataUnavailable: the metadata store does not answer.
        ArchiveKeyMissing: the archive is encrypted, there are no keys, and with ``record`` it would be written.
        ArchiveDenied: the directory does not exist, or with ``filled`` there is no archive; or with ``record`` the
            bucket does not exist or refuses the credentials.
        ArchiveUnavailable: with ``filled`` or ``record``, the store does not answer.
    """
    clock, rng, metadata, unlisted = RealClock(), SystemRng(), client.world.store, False
    async with AsyncExitStack() as stack:
        current_url = await read_location(metadata)
        where = url or current_url
        if where is None:
            raise InvalidConfig("this cluster has no archive yet: give its URL, for example file:///srv/archive")
        if current_url is not None and current_url != where:
            raise other_location(current_url, where)
        store = await open_store(where, clock, rng.fork("store"), archive_keys=archive_keys)
        stack.push_async_callback(store.close)
        if filled:
            from tallybook.archive.catalog import require_archive  # noqa: PLC0415 (it imports the Parquet library)

            await require_archive(store)
        if record:
            if current_url is None:
                # A mistyped URL must not be recorded.
                await check_answers(store)
            await ensure_location(metadata, where)
            if store.encrypts:
                await record_encryption(metadata, clock.wall_us() // 1000)
            else:
                encrypted = await encrypted_since(metadata) is not None or await _any_encrypted(store, surely=filled)
                if encrypted:
                    raise keys_missing(where)
                unlisted = encrypted is None
        workers = ThreadWorkers(WORKER_THREADS, "archive", background=True)
        stack.push_async_callback(workers.close)
        tasks = Tasks("archive", raise_defect("an offloader"))
        stack.push_async_callback(tasks.close)
        yield Archive(metadata, store, workers, tasks, clock, rng, client.world.metadata_load, store, where, unlisted)


async def _any_encrypted(store: OpenedStore, *, surely: bool) -> bool | None:
    """Whether any object is encrypted; ``None``: the bucket cannot be listed. The first pass checks again.

    Raises:
        ArchiveDenied, ArchiveUnavailable: ``surely`` is set, and the bucket cannot be listed.
    """
    try:
        return await store.any_encrypted()
    except (ArchiveDenied, ArchiveUnavailable):
        if surely:
            raise
        return None
