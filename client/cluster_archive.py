"""The archive of a cluster, opened on the first read of an archived ledger.

Most clients never need it, and its libraries take longer to load than the rest of the client.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tallybook.archive.metrics import ARCHIVE_METRICS, ArchiveNumbers
from tallybook.archive.trace_location import ArchiveLocation
from tallybook.core.batch import BatchHeader, Entry
from tallybook.core.errors import ArchiveUnavailable
from tallybook.core.settings import ClientSettings
from tallybook.metadata.ledger.archived import Receipt
from tallybook.metadata.store import MetadataStore
from tallybook.runtime.clock import Clock
from tallybook.runtime.extras import NeedsExtra
from tallybook.runtime.metrics.usage import MetricValue
from tallybook.runtime.rng import Rng
from tallybook.runtime.tasks import ThreadWorkers
from tallybook.runtime.tracing.port import part

from .background import client_tasks
from .spans import ARCHIVE

if TYPE_CHECKING:
    from tallybook.archive.objects.credentials import StoreCredentials
    from tallybook.archive.objects.open import OpenedStore
    from tallybook.archive.reader import ArchiveReader


class ClusterArchive:
    """Implements ``Archive`` over the cluster's object store.

    Args:
        url: the archive's location; ``None``: as recorded in the metadata.
        credentials: for the object store, in place of those of the environment.
    """

    def __init__(
        self,
        metadata: MetadataStore,
        clock: Clock,
        rng: Rng,
        settings: ClientSettings,
        *,
        url: str | None = None,
        credentials: StoreCredentials | None = None,
    ) -> None:
        self._metadata = metadata
        self._clock = clock
        self._rng = rng
        self._settings = settings
        self._url = url
        self._credentials = credentials
        self._tasks = client_tasks("archive")
        self._workers: ThreadWorkers | None = None
        self._store: OpenedStore | None = None
        self._reader: ArchiveReader | None = None
        self._opening = asyncio.Lock()

    async def batches(
        self, receipt: Receipt, ledger_id: int, first: int, last: int, max_bytes: int
    ) -> list[tuple[BatchHeader, bytes]]:
        """Batches from the one that contains ``first``; see the port."""
        with part(ARCHIVE, ledger_id=ledger_id, first_entry_id=first):
            return await (await self._opened()).batches(receipt, ledger_id, first, last, max_bytes)

    async def entry(self, receipt: Receipt, ledger_id: int, entry_id: int) -> Entry:
        """One entry; see the port."""
        with part(ARCHIVE, ledger_id=ledger_id, first_entry_id=entry_id):
            return await (await self._opened()).entry(receipt, ledger_id, entry_id)

    async def place(self, receipt: Receipt, ledger_id: int, entry_id: int) -> ArchiveLocation:
        """The location of an entry; see the port."""
        return await (await self._opened()).place(receipt, ledger_id, entry_id)

    def forget(self, key: str) -> None:
        """Drop the cached parts of an object; see the port."""
        if self._reader is not None:
            self._reader.forget(key)

    def readings(self) -> dict[str, MetricValue]:
        """Readings of the object store's load and of the caches; see the port."""
        if self._store is None or self._reader is None:
            return {}
        numbers = ArchiveNumbers(self._store.retries, self._store)
        return {**ARCHIVE_METRICS.readings(numbers), **self._reader.readings()}

    async def close(self) -> None:
        """Release what was opened."""
        await self._tasks.close()
        if self._store is not None:
            await self._store.close()
        if self._workers is not None:
            await self._workers.close()

    async def _opened(self) -> ArchiveReader:
        async with self._opening:
            if self._reader is None:
                self._reader = await self._open()
            return self._reader

    async def _open(self) -> ArchiveReader:
        with NeedsExtra("the archive"):
            from tallybook.archive.objects.open import open_store  # noqa: PLC0415
            from tallybook.archive.reader import ArchiveReader, ArchiveReaderSettings  # noqa: PLC0415
            from tallybook.archive.url_record import read_location  # noqa: PLC0415

        url = self._url or await read_location(self._metadata)
        if url is None:
            raise ArchiveUnavailable("the ledger is archived, but the metadata name no archive location")
        keys = self._settings.archive_keys
        self._store = await open_store(
            url, self._clock, self._rng.fork("archive"), archive_keys=keys, credentials=self._credentials
        )
        self._workers = ThreadWorkers(2, "archive")
        bounds = ArchiveReaderSettings(self._settings.archive_index_bytes, self._settings.archive_cache_bytes)
        return ArchiveReader(self._store, self._workers, self._tasks, bounds)
