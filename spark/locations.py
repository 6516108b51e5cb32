"""Where a query finds its ledgers: a cluster, or a bucket without one. Opened on the driver to plan, in tasks to read.

Both give metadata, rows of archive objects, and *sealed ledgers*: the careful way of reading, batch by batch, with
everything checked, which also knows what cannot be read.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Final, Protocol, TypeVar

from tallybook.archive.catalog import Catalog, catalog_of, read_catalog
from tallybook.archive.index_codec import Directory
from tallybook.archive.location import read_location
from tallybook.archive.manifest import MANIFEST_KEY
from tallybook.archive.objects.open import OpenedStore, open_store
from tallybook.archive.objects.port import ObjectInfo
from tallybook.archive.reader import ArchiveReader
from tallybook.archive.scan import ObjectScan
from tallybook.client.client import Client
from tallybook.client.reader.handle import LedgerReader
from tallybook.client.world import open_world
from tallybook.core.batch import BatchHeader, Buffer
from tallybook.core.config import ClientSettings
from tallybook.core.errors import ArchiveUnavailable, InvariantViolation, NoSuchLedger
from tallybook.metadata.archived import Receipt
from tallybook.metadata.model import LedgerMetadata
from tallybook.metadata.store import BookieInfo, MetadataStore
from tallybook.metadata.transactions import EVERYTHING, View, read_view
from tallybook.runtime.clock import RealClock
from tallybook.runtime.rng import SystemRng
from tallybook.runtime.tasks import Tasks, ThreadWorkers

from .gaps import Gap
from .options import Place
from .plan import EntryPartition

T = TypeVar("T")

CONCURRENT_LOOKUPS: Final = 32
_READ_BYTES: Final = 2 << 20
_THREADS: Final = 2
_NOTHING: Final = Catalog({}, {}, {})


class SealedBatches(Protocol):
    """Batches as they come. It is to be closed by who does not take them all."""

    def __aiter__(self) -> AsyncIterator[Sequence[tuple[BatchHeader, Buffer]]]:
        """The iterator, which this is."""

    async def aclose(self) -> None:
        """Stop reading."""


class SealedLedger(Protocol):
    """The batches of one ledger, verified, as their writer sealed them."""

    def read_sealed(self, first: int, last: int) -> SealedBatches:
        """Batches from the one that holds ``first`` to that of ``last``."""

    async def read_batch(self, entry_id: int) -> tuple[BatchHeader, Buffer]:
        """The batch that holds ``entry_id``."""


class LedgerPlace(Protocol):
    """Where ledgers are."""

    @property
    def cluster_id(self) -> str:
        """Of the cluster; empty for a bucket that does not say whose it is."""

    @property
    def damaged(self) -> Mapping[str, str]:
        """Objects that cannot be understood, and why."""

    def lost_with(self, key: str) -> Collection[int] | None:
        """The ledgers that cannot be read because a damaged object cannot; ``None`` if nobody knows which they are."""

    def missing(self, ledger_id: int, first: int, last: int) -> Gap:
        """What is to be said of entries of a ledger that has no metadata here."""

    async def ledger_ids(self) -> list[int]:
        """Every ledger, ascending."""

    async def metadata(self, ledger_id: int) -> LedgerMetadata | None:
        """What is known of a ledger now; ``None`` if it does not exist (any more)."""

    async def view(self) -> View:
        """Which of the ledgers that transactions have written count: to be read before the ledgers."""

    async def confirmed(self, metadata: LedgerMetadata) -> int:
        """Id of the last entry that may be read; -1 for none."""

    async def sealed(self, metadata: LedgerMetadata) -> SealedLedger:
        """A ledger to be read the careful way."""

    async def scan(self, receipt: Receipt) -> ObjectScan:
        """An archive object to be read the fast way."""

    async def directory(self, receipt: Receipt) -> Directory:
        """What an archive object has where."""

    async def is_sealed(self, receipt: Receipt) -> bool:
        """Whether an archive object is sealed, so that nobody else can read it as Parquet."""

    async def bookies(self) -> Mapping[str, BookieInfo]:
        """Who is alive."""

    async def archive_url(self) -> str:
        """Where the archive is.

        Raises:
            ArchiveUnavailable: nobody has said.
        """


@asynccontextmanager
async def opened(
    place: Place, partition: EntryPartition | None = None, *, cluster_id: str = ""
) -> AsyncIterator[LedgerPlace]:
    """Open a place.

    Args:
        place: where it is.
        partition: all that is going to be read of it; of a bucket, no more is then looked at than that takes.
        cluster_id: of the cluster that the query was planned on, where there is no partition that has it; empty: any.

    Raises:
        InvalidConfig: a URI or URL makes no sense, or the partition is of another cluster.
        NoSuchCluster: there is none at the metadata URI.
        MetadataUnavailable: the metadata store does not answer.
        ArchiveUnavailable, ArchiveDenied: the bucket cannot be looked at, or there is no archive in it.
    """
    async with AsyncExitStack() as stack:
        if place.metadata is None:
            archive = await stack.enter_async_context(archive_at(place.archive or "", place))
            if partition is None:
                bucket = Bucket(place.archive or "", archive, await read_catalog(archive.store, archive.workers))
                bucket.check_cluster(cluster_id)
                yield bucket
            else:
                yield BucketOfTask(place.archive or "", archive, partition)
            return
        settings = ClientSettings(security=place.security, archive_keys=place.archive_keys)
        world = await open_world(place.metadata, settings, credentials=place.credentials)
        client = await stack.enter_async_context(Client(world, settings))
        found = await world.store.cluster_id()
        place.check_cluster(partition.cluster_id if partition else cluster_id, found)
        yield Cluster(client, world.store, found, _LateArchive(stack, place), place)


class OpenedArchive:
    """An object store, with what reads from it."""

    def __init__(self, store: OpenedStore, workers: ThreadWorkers, tasks: Tasks) -> None:
        self.store = store
        self.workers = workers
        self.reader = ArchiveReader(store, workers, tasks)
        self._tasks = tasks

    def scan(self, receipt: Receipt) -> ObjectScan:
        """An object, to be read the fast way."""
        return ObjectScan(self.store, self.workers, self._tasks, receipt)


@asynccontextmanager
async def archive_at(url: str, place: Place) -> AsyncIterator[OpenedArchive]:
    """Open the object store at ``url``.

    Args:
        place: has the keys that its objects are sealed with, and the credentials of the store.

    Raises:
        InvalidConfig, ArchiveDenied: it cannot be.
    """
    async with AsyncExitStack() as stack:
        store = await open_store(
            url, RealClock(), SystemRng(), archive_keys=place.archive_keys, credentials=place.credentials
        )
        stack.push_async_callback(store.close)
        workers = ThreadWorkers(_THREADS, "scan")
        stack.push_async_callback(workers.close)
        tasks = Tasks("spark", _died)
        stack.push_async_callback(tasks.close)
        yield OpenedArchive(store, workers, tasks)


class _LateArchive:
    """The archive of a cluster, opened when something is first read from it.

    Args:
        stack: closes it in the end.
        place: has the keys that its objects are sealed with, and the credentials of the store.
    """

    def __init__(self, stack: AsyncExitStack, place: Place) -> None:
        self._stack = stack
        self._place = place
        self._opened: OpenedArchive | None = None
        self._opening = asyncio.Lock()

    async def at(self, url: str) -> OpenedArchive:
        """The archive, which is at ``url``."""
        async with self._opening:
            if self._opened is None:
                self._opened = await self._stack.enter_async_context(archive_at(url, self._place))
            return self._opened


class Cluster:
    """A ``LedgerPlace`` with metadata store, bookies and archive."""

    def __init__(
        self, client: Client, store: MetadataStore, cluster_id: str, archive: _LateArchive, place: Place
    ) -> None:
        self._client = client
        self._store = store
        self._cluster_id = cluster_id
        self._archive = archive
        self._place = place

    @property
    def cluster_id(self) -> str:
        """Of the cluster."""
        return self._cluster_id

    @property
    def damaged(self) -> Mapping[str, str]:
        """The metadata know where every ledger is, so an object that is damaged is found when it is read."""
        return {}

    def lost_with(self, key: str) -> Collection[int] | None:
        """See ``damaged``."""
        return ()

    def missing(self, ledger_id: int, first: int, last: int) -> Gap:
        """What has no metadata was deleted."""
        return Gap.of_deleted(ledger_id, first, last)

    @property
    def store(self) -> MetadataStore:
        """The metadata store."""
        return self._store

    @property
    def client(self) -> Client:
        """Reads and writes its ledgers."""
        return self._client

    async def ledger_ids(self) -> list[int]:
        """Every ledger, ascending."""
        return [ledger_id async for ledger_id in self._client.list_ledgers()]

    async def metadata(self, ledger_id: int) -> LedgerMetadata | None:
        """What is known of a ledger now."""
        try:
            return await self._client.ledger_metadata(ledger_id)
        except NoSuchLedger:
            return None

    async def view(self) -> View:
        """The view of this moment."""
        return await read_view(self._store)

    async def confirmed(self, metadata: LedgerMetadata) -> int:
        """The last entry; of an open ledger, what bookies say is confirmed."""
        if metadata.closed:
            return metadata.last_entry_id
        return (await self._opened(metadata)).last_add_confirmed

    async def sealed(self, metadata: LedgerMetadata) -> SealedLedger:
        """A ledger, read from bookies or from the archive, wherever it is good."""
        return await self._opened(metadata)

    async def scan(self, receipt: Receipt) -> ObjectScan:
        """An object of the cluster's archive."""
        return (await self._archive.at(await self.archive_url())).scan(receipt)

    async def directory(self, receipt: Receipt) -> Directory:
        """What an object has where."""
        return await (await self._archive.at(await self.archive_url())).reader.directory(receipt)

    async def is_sealed(self, receipt: Receipt) -> bool:
        """Whether an object of the cluster's archive is sealed."""
        return await (await self._archive.at(await self.archive_url())).store.is_sealed(receipt.key)

    async def archive_url(self) -> str:
        """Where the archive is.

        Raises:
            ArchiveUnavailable: nobody has said.
        """
        url = self._place.archive or await read_location(self._store)
        if url is None:
            raise ArchiveUnavailable(
                "ledgers are said to be archived, but the metadata do not say where the archive is"
            )
        return url

    async def bookies(self) -> Mapping[str, BookieInfo]:
        """Who is alive."""
        return await self._client.bookies()

    async def _opened(self, metadata: LedgerMetadata) -> LedgerReader:
        password = self._place.password if metadata.key_verifier else b""
        return await self._client.open_ledger(metadata.ledger_id, password=password, recover=False)


class Bucket:
    """A ``LedgerPlace`` that is nothing but an object store."""

    def __init__(self, url: str, archive: OpenedArchive, catalog: Catalog) -> None:
        self._url = url
        self._archive = archive
        self._catalog = catalog
        self._ledgers = _catalogued(catalog)

    @property
    def cluster_id(self) -> str:
        """Of the cluster whose archive it is, as its manifest says; empty if it has none."""
        return self._catalog.cluster_id

    def check_cluster(self, planned: str) -> None:
        """Make sure that it is the archive that a query was planned on.

        Raises:
            InvalidConfig: it is that of another cluster.
        """
        if MANIFEST_KEY not in self._catalog.damaged:
            Place(None, self._url).check_cluster(planned, self.cluster_id)

    @property
    def damaged(self) -> Mapping[str, str]:
        """Objects that cannot be understood, and why."""
        return self._catalog.damaged

    def lost_with(self, key: str) -> Collection[int] | None:
        """As the manifest says."""
        return self._catalog.lost_with(key)

    def missing(self, ledger_id: int, first: int, last: int) -> Gap:
        """A bucket does not tell what was deleted from what is lost."""
        for key, why in self.damaged.items():
            if ledger_id in (self.lost_with(key) or ()):
                return Gap(ledger_id, first, last, "lost", f"it is in an object that cannot be read: {why}")
        unknown = [why for key, why in self.damaged.items() if self.lost_with(key) is None]
        others = f", and {len(unknown)} of its objects cannot be read, the first is {unknown[0]}" if unknown else ""
        return Gap(ledger_id, first, last, "lost", f"no object of the archive at {self._url} has it{others}")

    async def ledger_ids(self) -> list[int]:
        """Every ledger, ascending."""
        return sorted(self._ledgers)

    async def metadata(self, ledger_id: int) -> LedgerMetadata | None:
        """As of the archiving of the ledger."""
        return self._ledgers.get(ledger_id)

    async def view(self) -> View:
        """Whatever a bucket holds was committed."""
        return EVERYTHING

    async def confirmed(self, metadata: LedgerMetadata) -> int:
        """The last entry."""
        return metadata.last_entry_id

    async def sealed(self, metadata: LedgerMetadata) -> SealedLedger:
        """A ledger, read batch by batch out of its object."""
        if metadata.archived is None:
            raise InvariantViolation(f"ledger {metadata.ledger_id} of a bucket is in no object")
        return _ArchivedLedger(self._archive.reader, metadata.ledger_id, metadata.archived)

    async def scan(self, receipt: Receipt) -> ObjectScan:
        """One of its objects."""
        return self._archive.scan(receipt)

    async def directory(self, receipt: Receipt) -> Directory:
        """What an object has where."""
        return await self._archive.reader.directory(receipt)

    async def is_sealed(self, receipt: Receipt) -> bool:
        """Whether one of its objects is sealed."""
        return await self._archive.store.is_sealed(receipt.key)

    async def bookies(self) -> Mapping[str, BookieInfo]:
        """Nobody."""
        return {}

    async def archive_url(self) -> str:
        """Where the bucket is."""
        return self._url


class BucketOfTask(Bucket):
    """A bucket of which one partition is read, by one task of many: nobody else's objects are looked at.

    A scan needs no more than the receipt that the partition has. Metadata are asked for where a scan will not do, and
    are in the very object; and where an object is not what it was. Only then another one is looked for, and it is
    checked that this is the archive that the query was planned on.
    """

    def __init__(self, url: str, archive: OpenedArchive, partition: EntryPartition) -> None:
        super().__init__(url, archive, _NOTHING)
        careful = {each.ledger_id: each.receipt for each in partition.stretches if each.receipt and not each.scannable}
        self._careful = careful.keys()
        self._unread = {each.key: ObjectInfo(each.key, each.object_bytes, 0) for each in careful.values()}
        self._planned = partition.cluster_id
        self._has_all = False
        self._reading = asyncio.Lock()

    async def metadata(self, ledger_id: int) -> LedgerMetadata | None:
        """As of the archiving of the ledger."""
        async with self._reading:
            if self._unread:
                found = _catalogued(await catalog_of(self._archive.store, self._unread.values()))
                # Of the others, which are here after a scan has failed, a younger object may be wanted.
                self._ledgers = {each: found[each] for each in self._careful if each in found}
                self._unread.clear()
            if ledger_id not in self._ledgers and not self._has_all:
                self._catalog = await read_catalog(self._archive.store, self._archive.workers)
                # What has the objects that a partition names is the right one, and need not be asked.
                self.check_cluster(self._planned)
                self._ledgers, self._has_all = _catalogued(self._catalog), True
        return self._ledgers.get(ledger_id)


class _ArchivedLedger:
    """A ``SealedLedger`` of which there is nothing but its object."""

    def __init__(self, reader: ArchiveReader, ledger_id: int, receipt: Receipt) -> None:
        self._reader = reader
        self._ledger_id = ledger_id
        self._receipt = receipt

    async def read_sealed(self, first: int, last: int) -> AsyncGenerator[Sequence[tuple[BatchHeader, Buffer]], None]:
        """Batches from the one that holds ``first`` to that of ``last``."""
        while first <= last:
            found = await self._reader.batches(self._receipt, self._ledger_id, first, last, _READ_BYTES)
            yield found
            first = found[-1][0].last_entry_id + 1

    async def read_batch(self, entry_id: int) -> tuple[BatchHeader, Buffer]:
        """The batch that holds ``entry_id``."""
        return (await self._reader.batches(self._receipt, self._ledger_id, entry_id, entry_id, 1))[0]


async def lookups(place: LedgerPlace, ledger_ids: Iterable[int]) -> dict[int, LedgerMetadata | None]:
    """The metadata of many ledgers, a few at a time."""
    found: dict[int, LedgerMetadata | None] = {}
    wanted = list(ledger_ids)
    for at in range(0, len(wanted), CONCURRENT_LOOKUPS):
        chunk = wanted[at : at + CONCURRENT_LOOKUPS]
        found.update(zip(chunk, await asyncio.gather(*map(place.metadata, chunk)), strict=True))
    return found


def _catalogued(catalog: Catalog) -> dict[int, LedgerMetadata]:
    """The ledgers of a bucket, as if the metadata store had said so."""
    return {
        ledger_id: replace(found.metadata, archived=found.receipt, archiving=None, copies_released=True)
        for ledger_id, found in catalog.ledgers.items()
    }


def _died(name: str, error: BaseException) -> None:
    raise InvariantViolation(f"task {name} of a query died: {error!r}") from error
