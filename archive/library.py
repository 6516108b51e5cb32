"""``ArchiveLibrary``: reads the ledgers of a bucket, without bookies and metadata store. It changes nothing.

    async with ArchiveLibrary("s3://bucket/ledgers") as library:
        for ledger_id, found in library.ledgers.items(): ...
        async for entry in library.read(ledger_id): ...

For ledgers that have outlived their cluster, and for users with access to the bucket only. Any Parquet reader can read
the objects; this one also verifies every entry against its writer's checksum.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from functools import partial
from types import TracebackType
from typing import Self

from tallybook.core.batch import Entry, entries
from tallybook.core.errors import (
    ArchiveKeyMissing,
    HandleClosed,
    InvalidArgument,
    NoSuchLedger,
    ObjectDamaged,
    ObjectMissing,
    Outcome,
)
from tallybook.core.limits import MIB
from tallybook.runtime.clock import RealClock
from tallybook.runtime.concurrency.async_iterators import PagedListing, ResumableIterator
from tallybook.runtime.concurrency.handle_lifetime import Lifetime
from tallybook.runtime.rng import SystemRng
from tallybook.runtime.tasks import Tasks, ThreadWorkers, Workers, raise_defect

from .catalog import BucketCatalog, CatalogEntry, read_catalog
from .objects.open import open_store
from .objects.port import ObjectStore
from .reader import ArchiveReader

READ_BYTES = 2 * MIB
"""Payload bytes per read."""


class ArchiveLibrary:
    """The ledgers of one bucket at the time of opening.

    Args:
        source: URL of the bucket, or a store that the caller opens and closes.
        workers: run the assembly of batches; default: own threads.
        archive_keys: file with the keys of encrypted objects, if ``source`` is a URL.
    """

    def __init__(self, source: str | ObjectStore, workers: Workers | None = None, *, archive_keys: str = "") -> None:
        self._source = source
        self._archive_keys = archive_keys
        self._given_workers = workers
        self._workers: Workers | None = workers
        self._store: ObjectStore | None = None
        self._lifetime = Lifetime("the library")
        self._tasks = Tasks("library", raise_defect("a library"), closed=HandleClosed)
        self._catalog: BucketCatalog | None = None
        self._reader: ArchiveReader | None = None

    async def __aenter__(self) -> Self:
        self._lifetime.check()
        if isinstance(self._source, str):
            keys = self._archive_keys
            self._store = await open_store(self._source, RealClock(), SystemRng(), archive_keys=keys)
        else:
            self._store = self._source
        self._workers = self._given_workers or ThreadWorkers(2, "library")
        self._reader = ArchiveReader(self._store, self._workers, self._tasks)
        try:
            self._catalog = await read_catalog(self._store, self._workers)
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Release resources. Readers get ``HandleClosed``, as does every later call."""
        self._lifetime.end()
        await self._tasks.close()
        if isinstance(self._source, str) and self._store is not None:
            await self._store.close()
        if self._given_workers is None and self._workers is not None:
            await self._workers.close()

    @property
    def ledgers(self) -> Mapping[int, CatalogEntry]:
        """Metadata and receipt of each ledger, ascending by id."""
        return self._opened.ledgers

    @property
    def damaged(self) -> Mapping[str, str]:
        """Unreadable objects, damaged or with a missing key, with the reason, by key."""
        return self._opened.damaged

    def read(self, ledger_id: int, first: int = 0, last: int | None = None) -> PagedListing[Entry]:
        """The entries ``first .. last`` of a ledger, inclusive; without ``last``, to its end.

        If the youngest object of the ledger is damaged or missing, the read continues in the next older one.

        Raises:
            NoSuchLedger: no object has it, or the manifest says that it was deleted.
            InvalidArgument: the range is empty, or goes past the end.
            ObjectMissing, ObjectDamaged: every object of the ledger is missing or damaged.
            ArchiveKeyMissing: the oldest is encrypted with a missing key.
            ArchiveUnavailable, ArchiveDenied: the store does not return the object; or when the library was opened it
                did not return one that has, or may have, the ledger, or was not asked after several time-outs.
            HandleClosed: the library is closed.
        """
        position = first

        async def groups() -> AsyncGenerator[list[Entry], None]:
            nonlocal position
            async for group in self._groups(ledger_id, position, last, empty=position > first):
                position = group[-1].entry_id + 1
                yield group

        return PagedListing(
            ResumableIterator(groups, partial(self._tasks.spawn, name="read"), self._lifetime, linger_s=0)
        )

    async def _groups(
        self, ledger_id: int, first: int, last: int | None, *, empty: bool
    ) -> AsyncGenerator[list[Entry], None]:
        """Groups of entries that are stored together.

        Args:
            empty: whether the range may be empty, after it was read to its end.
        """
        found = self._opened.ledgers.get(ledger_id)
        if found is None or self._reader is None:
            if key := self._opened.unreadable_object_of(ledger_id):
                counts = self._opened.lost_with(key)
                what = "is" if counts is not None and ledger_id in counts else "may be"
                kind = self._opened.not_given.get(key, ObjectDamaged)
                raise kind(f"ledger {ledger_id} {what} in an object that cannot be read: {self.damaged[key]}")
            raise NoSuchLedger(f"no object in the bucket contains ledger {ledger_id}")
        end = found.receipt.entries - 1 if last is None else last
        if empty and end < first:
            return
        if (
            not 0 <= first <= found.receipt.entries
            or end >= found.receipt.entries
            or (last is not None and end < first)
        ):
            raise InvalidArgument(
                f"ledger {ledger_id} has entries 0 .. {found.receipt.entries - 1}, not {first} .. {end}"
            )
        older = list(self._opened.older.get(ledger_id, ()))
        position = first
        while position <= end:
            try:
                batches = await self._reader.batches(found.receipt, ledger_id, position, end, READ_BYTES)
            except (ObjectMissing, ObjectDamaged, ArchiveKeyMissing):
                if not older:
                    raise
                found = older.pop(0)
                continue
            for header, batch in batches:
                yield entries(batch, header, position, end)
                position = header.last_entry_id + 1

    @property
    def _opened(self) -> BucketCatalog:
        if self._lifetime.ended:
            raise self._lifetime.closed(Outcome.NOT_DONE)
        if self._catalog is None:
            raise InvalidArgument("the library is not open: use it in an 'async with' block")
        return self._catalog
