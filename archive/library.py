"""A bucket as a library of ledgers, to read and nothing else: no bookies, no metadata store.

    async with ArchiveLibrary("s3://bucket/ledgers") as library:
        for ledger_id, found in library.ledgers.items(): ...
        async for entry in library.read(ledger_id): ...

For history that has outlived its cluster, and for whoever may see the bucket only. Anything that reads Parquet
reads the objects as well; here every entry is checked against what its writer sealed.
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
    InvariantViolation,
    NoSuchLedger,
    ObjectDamaged,
    ObjectMissing,
    Outcome,
)
from tallybook.core.limits import MIB
from tallybook.runtime.clock import RealClock
from tallybook.runtime.lifetime import Lifetime
from tallybook.runtime.rng import SystemRng
from tallybook.runtime.steps import Listing, Steps
from tallybook.runtime.tasks import Tasks, ThreadWorkers, Workers

from .catalog import Catalog, Found, read_catalog
from .objects.open import open_store
from .objects.port import ObjectStore
from .reader import ArchiveReader

READ_BYTES = 2 * MIB
"""Payload that is asked for at a time."""


class ArchiveLibrary:
    """The ledgers of one bucket, as of the moment it was opened.

    Args:
        source: URL of the bucket, or a store that somebody else opens and closes.
        workers: where batches are put together; threads of its own unless given.
        archive_keys: file with the keys that objects are sealed with, where ``source`` is a URL.
    """

    def __init__(self, source: str | ObjectStore, workers: Workers | None = None, *, archive_keys: str = "") -> None:
        self._source = source
        self._archive_keys = archive_keys
        self._given_workers = workers
        self._workers: Workers | None = workers
        self._store: ObjectStore | None = None
        self._lifetime = Lifetime("the library")
        self._tasks = Tasks("library", _died, closed=HandleClosed)
        self._catalog: Catalog | None = None
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
        """Release what was opened here. Who reads gets ``HandleClosed``, as does every later call."""
        self._lifetime.end()
        await self._tasks.close()
        if isinstance(self._source, str) and self._store is not None:
            await self._store.close()
        if self._given_workers is None and self._workers is not None:
            await self._workers.close()

    @property
    def ledgers(self) -> Mapping[int, Found]:
        """Metadata and receipt of each ledger, by id ascending."""
        return self._opened.ledgers

    @property
    def damaged(self) -> Mapping[str, str]:
        """Objects that could not be understood, or opened for want of their key, and why, by key."""
        return self._opened.damaged

    def read(self, ledger_id: int, first: int = 0, last: int | None = None) -> Listing[Entry]:
        """The entries ``first .. last`` of a ledger, both included; without ``last``, to its end.

        Where the youngest object that has it is damaged or gone, the next older one goes on.

        Raises:
            NoSuchLedger: no object has it, or the manifest says that it was deleted.
            InvalidArgument: the range is empty, or goes past the end.
            ObjectMissing, ObjectDamaged: every object that has it is gone, or not what it was.
            ArchiveKeyMissing: the oldest is sealed with a key that is not here.
            ArchiveUnavailable, ArchiveDenied: the store does not give it, or did not give an object that has or may
                have it when the library was opened, or was not asked for that one since several in a row had hung.
            HandleClosed: the library is closed.
        """
        position = first

        async def groups() -> AsyncGenerator[list[Entry], None]:
            nonlocal position
            async for group in self._groups(ledger_id, position, last, empty=position > first):
                position = group[-1].entry_id + 1
                yield group

        return Listing(Steps(groups, partial(self._tasks.spawn, name="read"), self._lifetime, linger_s=0))

    async def _groups(
        self, ledger_id: int, first: int, last: int | None, *, empty: bool
    ) -> AsyncGenerator[list[Entry], None]:
        """Entries as they are stored together.

        Args:
            empty: the range may be, since it was read to its end.
        """
        found = self._opened.ledgers.get(ledger_id)
        if found is None or self._reader is None:
            if key := self._opened.unread_with(ledger_id):
                counts = self._opened.lost_with(key)
                what = "is" if counts is not None and ledger_id in counts else "may be"
                kind = self._opened.not_given.get(key, ObjectDamaged)
                raise kind(f"ledger {ledger_id} {what} in an object that cannot be read: {self.damaged[key]}")
            raise NoSuchLedger(f"no object in the bucket holds ledger {ledger_id}")
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
    def _opened(self) -> Catalog:
        if self._lifetime.ended:
            raise self._lifetime.closed(Outcome.NOT_DONE)
        if self._catalog is None:
            raise InvalidArgument("the library is not open: use it in an 'async with' block")
        return self._catalog


def _died(name: str, error: BaseException) -> None:
    raise InvariantViolation(f"task {name} of a library died: {error!r}") from error
