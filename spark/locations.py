"""Locations of ledgers: a cluster, or the bucket of an archive without its cluster.

The driver opens a location to plan a query, each task to read. A location provides metadata, scans of archive objects
(fast), and *verified ledgers*: reads batch by batch with all digests checked, which also report what cannot be read.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Final, Protocol, TypeVar

from tallybook.archive.catalog import BucketCatalog, catalog_of, read_catalog
from tallybook.archive.format.index_codec import IndexRoot
from tallybook.archive.manifest import MANIFEST_KEY
from tallybook.archive.objects.open import OpenedStore, open_store
from tallybook.archive.objects.port import ObjectInfo
from tallybook.archive.reader import ArchiveReader
from tallybook.archive.scan import ObjectScan
from tallybook.archive.url_record import read_location
from tallybook.client.client import Client
from tallybook.client.environment import open_world
from tallybook.client.reader.handle import LedgerReader
from tallybook.core.batch import BatchHeader
from tallybook.core.buffers import Buffer
from tallybook.core.errors import ArchiveUnavailable, InvariantViolation, NoSuchLedger
from tallybook.core.settings import ClientSettings
from tallybook.metadata.ledger.archived import Receipt
from tallybook.metadata.ledger.model import LedgerMetadata
from tallybook.metadata.store import BookieInfo, MetadataStore
from tallybook.metadata.transactions import EVERYTHING, View, read_view
from tallybook.runtime.clock import RealClock
from tallybook.runtime.rng import SystemRng
from tallybook.runtime.tasks import Tasks, ThreadWorkers, raise_defect

from .options import LocationOptions
from .query.gaps import EntryGap
from .query.partitions import EntryPartition

T = TypeVar("T")

CONCURRENT_LOOKUPS: Final = 32
_READ_BYTES: Final = 2 << 20
_THREADS: Final = 2
_NOTHING: Final = BucketCatalog({}, {}, {})


class BatchIterator(Protocol):
    """An iterator over batches. A caller that does not exhaust it must close it."""

    def __aiter__(self) -> AsyncIterator[Sequence[tuple[BatchHeader, Buffer]]]:
        """The iterator itself."""

    async def aclose(self) -> None:
        """Stop reading."""


class LedgerBatches(Protocol):
    """The verified batches of one ledger, as the writer formed them."""

    def read_sealed(self, first: int, last: int) -> BatchIterator:
        """The batches from the one with entry ``first`` to the one with entry ``last``."""

    async def read_batch(self, entry_id: int) -> tuple[BatchHeader, Buffer]:
        """The batch with an entry."""


class LedgerLocation(Protocol):
    """An open location of ledgers."""

    @property
    def cluster_id(self) -> str:
        """Id of the cluster; empty for a bucket without a manifest."""

    @property
    def damaged(self) -> Mapping[str, str]:
        """Keys of damaged archive objects, each with the reason."""

    def lost_with(self, key: str) -> Collection[int] | None:
        """The ledgers lost with a damaged object; ``None``: not known."""

    def missing(self, ledger_id: int, first: int, last: int) -> EntryGap:
        """The gap for entries of a ledger without metadata."""

    async def ledger_ids(self) -> list[int]:
        """All ledger ids, ascending."""

    async def metadata(self, ledger_id: int) -> LedgerMetadata | None:
        """Current metadata of a ledger; ``None``: it does not exist."""

    async def view(self) -> View:
        """Which transactions are committed. Read it before listing ledgers."""

    async def confirmed(self, metadata: LedgerMetadata) -> int:
        """Id of the last entry that may be read; -1: none."""

    async def verified_ledger(self, metadata: LedgerMetadata) -> LedgerBatches:
        """A ledger for verified reads."""

    async def scan(self, receipt: Receipt) -> ObjectScan:
        """A scan of an archive object."""

    async def directory(self, receipt: Receipt) -> IndexRoot:
        """The index of an archive object."""

    async def is_encrypted(self, receipt: Receipt) -> bool:
        """Whether an archive object is encrypted, so that Spark cannot read it as Parquet."""

    async def bookies(self) -> Mapping[str, BookieInfo]:
        """Registered bookies."""

    async def archive_url(self) -> str:
        """URL of the archive.

        Raises:
            ArchiveUnavailable: no URL is recorded.
        """


@asynccontextmanager
async def open_location(
    options: LocationOptions, partition: EntryPartition | None = None, *, cluster_id: str = ""
) -> AsyncIterator[LedgerLocation]:
    """Open a location.

    Args:
        options: of the location.
        partition: the partition to read; of a bucket, only the catalog entries that it needs are then read.
        cluster_id: cluster that the query was planned on, if there is no partition; empty: any.

    Raises:
        InvalidConfig: invalid URI or URL, or the partition is of another cluster.
        NoSuchCluster: there is no cluster at the metadata URI.
        MetadataUnavailable: the metadata store does not respond.
        ArchiveUnavailable, ArchiveDenied: the bucket cannot be read, or contains no archive.
    """
    async with AsyncExitStack() as stack:
        if options.metadata is None:
            archive = await stack.enter_async_context(archive_at(options.archive or "", options))
            if partition is None:
                bucket = BucketLocation(
                    options.archive or "", archive, await read_catalog(archive.store, archive.workers)
                )
                bucket.check_cluster(cluster_id)
                yield bucket
            else:
                yield TaskBucketLocation(options.archive or "", archive, partition)
            return
        settings = ClientSettings(security=options.security, archive_keys=options.archive_keys)
        world = await open_world(options.metadata, settings, credentials=options.credentials)
        client = await stack.enter_async_context(Client(world, settings))
        found = await world.store.cluster_id()
        options.check_cluster(partition.cluster_id if partition else cluster_id, found)
        yield ClusterLocation(client, world.store, found, _LazyArchive(stack, options), options)


class OpenedArchive:
    """An open object store with its reader and worker threads."""

    def __init__(self, store: OpenedStore, workers: ThreadWorkers, tasks: Tasks) -> None:
        self.store = store
        self.workers = workers
        self.reader = ArchiveReader(store, workers, tasks)
        self._tasks = tasks

    def scan(self, receipt: Receipt) -> ObjectScan:
        """A scan of an object."""
        return ObjectScan(self.store, self.workers, self._tasks, receipt)


@asynccontextmanager
async def archive_at(url: str, options: LocationOptions) -> AsyncIterator[OpenedArchive]:
    """Open the object store at ``url``.

    Args:
        options: provides the encryption keys and the credentials of the store.

    Raises:
        InvalidConfig, ArchiveDenied: it cannot be opened.
    """
    async with AsyncExitStack() as stack:
        store = await open_store(
            url, RealClock(), SystemRng(), archive_keys=options.archive_keys, credentials=options.credentials
        )
        stack.push_async_callback(store.close)
        workers = ThreadWorkers(_THREADS, "scan")
        stack.push_async_callback(workers.close)
        tasks = Tasks("spark", raise_defect("a query"))
        stack.push_async_callback(tasks.close)
        yield OpenedArchive(store, workers, tasks)


class _LazyArchive:
    """The archive of a cluster, opened at its first use.

    Args:
        stack: closes it.
        options: provides the encryption keys and the credentials of the store.
    """

    def __init__(self, stack: AsyncExitStack, options: LocationOptions) -> None:
        self._stack = stack
        self._options = options
        self._opened: OpenedArchive | None = None
        self._opening = asyncio.Lock()

    async def at(self, url: str) -> OpenedArchive:
        """The archive at ``url``."""
        async with self._opening:
            if self._opened is None:
                self._opened = await self._stack.enter_async_context(archive_at(url, self._options))
            return self._opened


class ClusterLocation:
    """The location of a cluster: metadata store, bookies and archive."""

    def __init__(
        self, client: Client, store: MetadataStore, cluster_id: str, archive: _LazyArchive, options: LocationOptions
    ) -> None:
        self._client = client
        self._store = store
        self._cluster_id = cluster_id
        self._archive = archive
        self._options = options

    @property
    def cluster_id(self) -> str:
        """Id of the cluster."""
        return self._cluster_id

    @property
    def damaged(self) -> Mapping[str, str]:
        """Always empty: ledger metadata locate every ledger, so damage is found when an object is read."""
        return {}

    def lost_with(self, key: str) -> Collection[int] | None:
        """See ``damaged``."""
        return ()

    def missing(self, ledger_id: int, first: int, last: int) -> EntryGap:
        """A ledger without metadata was deleted."""
        return EntryGap.of_deleted(ledger_id, first, last)

    @property
    def store(self) -> MetadataStore:
        """The metadata store."""
        return self._store

    @property
    def client(self) -> Client:
        """The client of the cluster."""
        return self._client

    async def ledger_ids(self) -> list[int]:
        """All ledger ids, ascending."""
        return [ledger_id async for ledger_id in self._client.list_ledgers()]

    async def metadata(self, ledger_id: int) -> LedgerMetadata | None:
        """Current metadata of a ledger."""
        try:
            return await self._client.ledger_metadata(ledger_id)
        except NoSuchLedger:
            return None

    async def view(self) -> View:
        """The current view."""
        return await read_view(self._store)

    async def confirmed(self, metadata: LedgerMetadata) -> int:
        """The last entry; of an open ledger, the last add confirmed that bookies report."""
        if metadata.closed:
            return metadata.last_entry_id
        return (await self._opened(metadata)).last_add_confirmed

    async def verified_ledger(self, metadata: LedgerMetadata) -> LedgerBatches:
        """A ledger, read from bookies or the archive, wherever there is an intact copy."""
        return await self._opened(metadata)

    async def scan(self, receipt: Receipt) -> ObjectScan:
        """A scan of an object of the cluster's archive."""
        return (await self._archive.at(await self.archive_url())).scan(receipt)

    async def directory(self, receipt: Receipt) -> IndexRoot:
        """The index of an object."""
        return await (await self._archive.at(await self.archive_url())).reader.directory(receipt)

    async def is_encrypted(self, receipt: Receipt) -> bool:
        """Whether an object of the cluster's archive is encrypted."""
        return await (await self._archive.at(await self.archive_url())).store.is_encrypted(receipt.key)

    async def archive_url(self) -> str:
        """URL of the archive.

        Raises:
            ArchiveUnavailable: no URL is recorded.
        """
        url = self._options.archive or await read_location(self._store)
        if url is None:
            raise ArchiveUnavailable(
                "the metadata of ledgers refer to an archive, but its URL is not recorded: give option archive"
            )
        return url

    async def bookies(self) -> Mapping[str, BookieInfo]:
        """Registered bookies."""
        return await self._client.bookies()

    async def _opened(self, metadata: LedgerMetadata) -> LedgerReader:
        password = self._options.password if metadata.key_verifier else b""
        return await self._client.open_ledger(metadata.ledger_id, password=password, recover=False)


class BucketLocation:
    """The location of a bucket without its cluster."""

    def __init__(self, url: str, archive: OpenedArchive, catalog: BucketCatalog) -> None:
        self._url = url
        self._archive = archive
        self._catalog = catalog
        self._ledgers = _ledgers_in(catalog)

    @property
    def cluster_id(self) -> str:
        """Id of the archive's cluster from the manifest; empty: there is no manifest."""
        return self._catalog.cluster_id

    def check_cluster(self, planned: str) -> None:
        """Check that this is the archive that the query was planned on.

        Raises:
            InvalidConfig: it is the archive of another cluster.
        """
        if MANIFEST_KEY not in self._catalog.damaged:
            LocationOptions(None, self._url).check_cluster(planned, self.cluster_id)

    @property
    def damaged(self) -> Mapping[str, str]:
        """Keys of damaged objects, each with the reason."""
        return self._catalog.damaged

    def lost_with(self, key: str) -> Collection[int] | None:
        """The ledgers of a damaged object, from the manifest."""
        return self._catalog.lost_with(key)

    def missing(self, ledger_id: int, first: int, last: int) -> EntryGap:
        """Always ``lost``: a bucket cannot distinguish deleted ledgers from lost ones."""
        for key, why in self.damaged.items():
            if ledger_id in (self.lost_with(key) or ()):
                return EntryGap(ledger_id, first, last, "lost", f"it is in an object that cannot be read: {why}")
        unknown = [why for key, why in self.damaged.items() if self.lost_with(key) is None]
        others = f", and {len(unknown)} of its objects cannot be read, the first is {unknown[0]}" if unknown else ""
        return EntryGap(ledger_id, first, last, "lost", f"no object of the archive at {self._url} has it{others}")

    async def ledger_ids(self) -> list[int]:
        """All ledger ids, ascending."""
        return sorted(self._ledgers)

    async def metadata(self, ledger_id: int) -> LedgerMetadata | None:
        """Metadata of a ledger at the time it was archived."""
        return self._ledgers.get(ledger_id)

    async def view(self) -> View:
        """Everything: all ledgers in an archive are committed."""
        return EVERYTHING

    async def confirmed(self, metadata: LedgerMetadata) -> int:
        """The last entry."""
        return metadata.last_entry_id

    async def verified_ledger(self, metadata: LedgerMetadata) -> LedgerBatches:
        """A ledger, read batch by batch from its object."""
        if metadata.archived is None:
            raise InvariantViolation(f"no archive object of the bucket contains ledger {metadata.ledger_id}")
        return _ArchivedLedger(self._archive.reader, metadata.ledger_id, metadata.archived)

    async def scan(self, receipt: Receipt) -> ObjectScan:
        """A scan of an object."""
        return self._archive.scan(receipt)

    async def directory(self, receipt: Receipt) -> IndexRoot:
        """The index of an object."""
        return await self._archive.reader.directory(receipt)

    async def is_encrypted(self, receipt: Receipt) -> bool:
        """Whether an object is encrypted."""
        return await self._archive.store.is_encrypted(receipt.key)

    async def bookies(self) -> Mapping[str, BookieInfo]:
        """None."""
        return {}

    async def archive_url(self) -> str:
        """URL of the bucket."""
        return self._url


class TaskBucketLocation(BucketLocation):
    """The location of a bucket in a task that reads one partition: it does not read the whole catalog.

    A scan needs only the receipt in the partition. Metadata are read from the object itself if a scan is not possible.
    Only if an object has changed, the whole catalog is read, and the cluster id is compared with that of the plan.
    """

    def __init__(self, url: str, archive: OpenedArchive, partition: EntryPartition) -> None:
        super().__init__(url, archive, _NOTHING)
        careful = {
            each.ledger_id: each.receipt for each in partition.planned_ranges if each.receipt and not each.scannable
        }
        self._careful = careful.keys()
        self._unread = {each.key: ObjectInfo(each.key, each.object_bytes, 0) for each in careful.values()}
        self._planned = partition.cluster_id
        self._has_all = False
        self._reading = asyncio.Lock()

    async def metadata(self, ledger_id: int) -> LedgerMetadata | None:
        """Metadata of a ledger at the time it was archived."""
        async with self._reading:
            if self._unread:
                found = _ledgers_in(await catalog_of(self._archive.store, self._unread.values()))
                # Other ledgers get here after a failed scan; they may be in a newer object, so they are not cached.
                self._ledgers = {each: found[each] for each in self._careful if each in found}
                self._unread.clear()
            if ledger_id not in self._ledgers and not self._has_all:
                self._catalog = await read_catalog(self._archive.store, self._archive.workers)
                # Not needed before: a bucket with the objects named in the partition is the right one.
                self.check_cluster(self._planned)
                self._ledgers, self._has_all = _ledgers_in(self._catalog), True
        return self._ledgers.get(ledger_id)


class _ArchivedLedger:
    """A ``LedgerBatches`` in an archive object."""

    def __init__(self, reader: ArchiveReader, ledger_id: int, receipt: Receipt) -> None:
        self._reader = reader
        self._ledger_id = ledger_id
        self._receipt = receipt

    async def read_sealed(self, first: int, last: int) -> AsyncGenerator[Sequence[tuple[BatchHeader, Buffer]], None]:
        """The batches from the one with entry ``first`` to the one with entry ``last``."""
        while first <= last:
            found = await self._reader.batches(self._receipt, self._ledger_id, first, last, _READ_BYTES)
            yield found
            first = found[-1][0].last_entry_id + 1

    async def read_batch(self, entry_id: int) -> tuple[BatchHeader, Buffer]:
        """The batch with an entry."""
        return (await self._reader.batches(self._receipt, self._ledger_id, entry_id, entry_id, 1))[0]


async def read_metadata(location: LedgerLocation, ledger_ids: Iterable[int]) -> dict[int, LedgerMetadata | None]:
    """Read the metadata of many ledgers, ``CONCURRENT_LOOKUPS`` at a time."""
    found: dict[int, LedgerMetadata | None] = {}
    wanted = list(ledger_ids)
    for at in range(0, len(wanted), CONCURRENT_LOOKUPS):
        chunk = wanted[at : at + CONCURRENT_LOOKUPS]
        found.update(zip(chunk, await asyncio.gather(*map(location.metadata, chunk)), strict=True))
    return found


def _ledgers_in(catalog: BucketCatalog) -> dict[int, LedgerMetadata]:
    """The ledgers of a bucket in the form of the metadata store."""
    return {
        ledger_id: replace(found.metadata, archived=found.receipt, archiving=None, copies_released=True)
        for ledger_id, found in catalog.ledgers.items()
    }
