"""Everything an offloader stands on, opened for a client and a URL: for the command line and for ``tallybook up``."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Final

from tallybook.archive.location import other_location, read_location, settle_location
from tallybook.archive.objects.open import OpenedStore, open_store
from tallybook.archive.objects.patient import AskedStore
from tallybook.archive.objects.probe import check_answers
from tallybook.archive.reader import ArchiveReader, ArchiveReaderSettings
from tallybook.archive.sealing import refused, sealed_since, settle_sealing
from tallybook.client.client import Client
from tallybook.core.config import ClientSettings, OffloadSettings
from tallybook.core.errors import ArchiveDenied, ArchiveUnavailable, InvalidConfig, InvariantViolation
from tallybook.core.limits import MIB
from tallybook.metadata.metered import MetadataLoad
from tallybook.metadata.store import MetadataStore
from tallybook.metadata.update import LedgerUpdater
from tallybook.runtime.clock import Clock, RealClock
from tallybook.runtime.rng import Rng, SystemRng
from tallybook.runtime.tasks import Tasks, ThreadWorkers, Workers

from .mover import Mover
from .offloader import Offloader
from .survey import Survey

WORKER_THREADS: Final = 2
SCANNING: Final = ClientSettings(archive_index_bytes=8 * MIB, archive_cache_bytes=4 * MIB)
"""Of the client of an offloader, which reads a ledger from its beginning to its end, once. Where it merges objects, it
takes ledgers from several in turns, and needs their directories again: one of 1,000 ledgers takes 1.4 MB."""
_LOOKED_AT_ONCE: Final = ArchiveReaderSettings(index_cache_bytes=0, page_cache_bytes=0)
"""An offloader looks at a directory once, or to see it as it is in the store now: nothing of it is worth keeping."""


@dataclass(frozen=True, slots=True)
class Archive:
    """The archive of a cluster, opened."""

    metadata: MetadataStore
    store: AskedStore
    workers: Workers
    tasks: Tasks
    clock: Clock
    rng: Rng
    metadata_load: MetadataLoad | None = None
    """What is asked of the metadata store, by the client that reads, too."""
    sealing: OpenedStore | None = None
    """The same store, as one that may seal; ``None`` in simulations."""
    url: str | None = None
    """Where the metadata said that the archive is when it was opened; ``None`` in simulations."""
    unlisted: bool = False
    """The bucket could not be listed when it was opened: what is in it may be sealed."""

    def offloader(self, client: Client, settings: OffloadSettings) -> Offloader:
        """An offloader of this cluster; ``client`` reads what it archives."""
        reader = ArchiveReader(self.store, self.workers, self.tasks, _LOOKED_AT_ONCE)
        mover, updater = self.mover(client, settings), self._updater
        return Offloader(
            mover,
            Survey(self.metadata),
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
        """Check that the archive is still what was opened: in the same place, and sealed only if there are keys.

        Raises:
            InvalidConfig: the archive was relocated.
            ArchiveKeyMissing: objects would be written plain, where other offloaders seal them by now.
            MetadataUnavailable, DamagedFile: the metadata do not say.
            ArchiveDenied, ArchiveUnavailable: the bucket, which could not be listed when it was opened, still cannot.
        """
        settled = await read_location(self.metadata)
        if self.url is not None and settled is not None and settled != self.url:
            raise other_location(settled, self.url)
        if self.sealing is None or self.sealing.seals:
            return
        if await sealed_since(self.metadata) is not None or (self.unlisted and await self.sealing.any_sealed()):
            raise refused(self.store.url)

    def mover(self, client: Client, settings: OffloadSettings) -> Mover:
        """What writes objects of this cluster; ``client`` reads what goes into them."""
        rng = self.rng.fork("mover")
        return Mover(client, self._updater, self.store, self.workers, settings, self.clock, rng, ready=self.check_ready)

    @property
    def _updater(self) -> LedgerUpdater:
        return LedgerUpdater(self.metadata, self.clock, self.rng.fork("updater"))


@asynccontextmanager
async def opened(
    client: Client, url: str | None, *, settle: bool = False, filled: bool = False, archive_keys: str = ""
) -> AsyncIterator[Archive]:
    """Open the archive of a cluster.

    Args:
        client: of the cluster. What it may not change in the metadata, is not changed here either.
        archive_keys: file with the keys of the archive; empty: none.
        url: where it is; ``None``: where the metadata say.
        settle: make ``url`` the cluster's archive, if it has none yet, and a sealed one, if there are keys.
        filled: refuse a place that has neither a manifest nor an object, before anything is recorded of it.

    Raises:
        InvalidConfig: the cluster has no archive, or another one; or a URL makes no sense.
        MetadataUnavailable: the metadata store does not answer.
        ArchiveKeyMissing: the archive is sealed, there are no keys, and ``settle`` says that it is written to.
        ArchiveDenied: there is no such directory, or no archive if it is to be ``filled``; or none such bucket, or
            keys that do not open it, if it is about to become the cluster's archive.
        ArchiveUnavailable: likewise, if it does not answer.
    """
    clock, rng, metadata, unlisted = RealClock(), SystemRng(), client.world.store, False
    async with AsyncExitStack() as stack:
        settled = await read_location(metadata)
        where = url or settled
        if where is None:
            raise InvalidConfig(
                "this cluster has no archive yet: say where it is to be, for example file:///srv/archive"
            )
        if settled is not None and settled != where:
            raise other_location(settled, where)
        store = await open_store(where, clock, rng.fork("store"), archive_keys=archive_keys)
        stack.push_async_callback(store.close)
        if filled:
            from tallybook.archive.catalog import check_there  # noqa: PLC0415 (it loads what reads Parquet)

            await check_there(store)
        if settle:
            if settled is None:
                # Nothing is recorded that may be a typing error.
                await check_answers(store)
            await settle_location(metadata, where)
            if store.seals:
                await settle_sealing(metadata, clock.wall_us() // 1000)
            else:
                sealed = await sealed_since(metadata) is not None or await _any_sealed(store, surely=filled)
                if sealed:
                    raise refused(where)
                unlisted = sealed is None
        workers = ThreadWorkers(WORKER_THREADS, "archive", background=True)
        stack.push_async_callback(workers.close)
        tasks = Tasks("archive", _died)
        stack.push_async_callback(tasks.close)
        yield Archive(metadata, store, workers, tasks, clock, rng, client.world.metadata_load, store, where, unlisted)


async def _any_sealed(store: OpenedStore, *, surely: bool) -> bool | None:
    """Whether anything in the bucket is sealed; ``None``: it cannot be listed. The first round asks again, and tells.

    Raises:
        ArchiveDenied, ArchiveUnavailable: ``surely`` is set, and it cannot be listed.
    """
    try:
        return await store.any_sealed()
    except (ArchiveDenied, ArchiveUnavailable):
        if surely:
            raise
        return None


def _died(name: str, error: BaseException) -> None:
    raise InvariantViolation(f"task {name} of an offloader died: {error!r}") from error
