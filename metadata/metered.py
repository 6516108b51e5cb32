"""A metadata store that tells how long it takes and what goes wrong: what ``uri.open_metadata`` gives.

``MeteredStore`` and ``MeteredMembership`` stand before those of a driver and pass everything on. Waiting for a change
is not counted, since it takes as long as nothing changes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final, TypeVar

from tallybook.core.errors import MetadataConflict, MetadataOutcomeUnknown, TallybookError
from tallybook.core.ids import NO_IDENTITY
from tallybook.runtime.clock import Clock
from tallybook.runtime.meter import Meter, Reading
from tallybook.runtime.metric_catalogue import ErrorCounts, Kind, MetricInfo, error_metrics, meter_metrics

from .link import Link
from .model import LedgerMetadata
from .store import (
    BadVersion,
    BookieInfo,
    Deletion,
    LedgerPage,
    LedgerWatch,
    Membership,
    MembershipWatch,
    MetadataStore,
    Ok,
    Record,
    RecordPage,
    Registration,
    Versioned,
    WriteResult,
)

T = TypeVar("T")

METADATA_METRICS: Final = (
    *meter_metrics("metadata_read", "tallybook_metadata_read", "Reads of the metadata store, listings included"),
    *meter_metrics("metadata_write", "tallybook_metadata_write", "Writes to the metadata store"),
    *error_metrics(
        "metadata_errors",
        "tallybook_metadata_errors_total",
        "Operations that failed; MetadataConflict: somebody else was first, which is tried again as a rule.",
    ),
    MetricInfo(
        "metadata_connected",
        "tallybook_metadata_connected",
        Kind.GAUGE,
        "1 while the store can be asked, else 0: ZooKeeper's connection is lost. Always 1 with SQLite.",
    ),
    MetricInfo(
        "metadata_expiries",
        "tallybook_metadata_session_expiries_total",
        Kind.COUNTER,
        "Sessions that ZooKeeper has ended, with the registrations made in them.",
    ),
)


class MetadataLoad:
    """What one process asks of its metadata store."""

    def __init__(self, clock: Clock, link: Link | None = None) -> None:
        self._link = link or Link()
        self.reads = Meter(clock)
        self.writes = Meter(clock)
        self.errors = ErrorCounts()

    def readings(self) -> dict[str, Reading]:
        """All of it, for ``METADATA_METRICS``."""
        return {
            **self.reads.readings("metadata_read"),
            **self.writes.readings("metadata_write"),
            **self.errors.readings("metadata_errors"),
            "metadata_connected": self._link.connected,
            "metadata_expiries": self._link.expiries,
        }

    async def read(self, answer: Awaitable[T]) -> T:
        """Time an operation that changes nothing."""
        with self.reads.timing(), self._counting():
            return await answer

    async def write(self, answer: Awaitable[T]) -> T:
        """Time one that does."""
        with self.writes.timing(), self._counting():
            return await answer

    async def compare_and_set(self, answer: Awaitable[WriteResult]) -> WriteResult:
        """Time a write that tells how it went, instead of raising."""
        result = await self.write(answer)
        if not isinstance(result, Ok):
            failed = MetadataConflict if isinstance(result, BadVersion) else MetadataOutcomeUnknown
            self.errors.count(failed.wire_code)
        return result

    @contextmanager
    def _counting(self) -> Iterator[None]:
        try:
            yield
        except TallybookError as error:
            self.errors.count(error.wire_code)
            raise


class MeteredStore:
    """A ``MetadataStore``."""

    def __init__(self, store: MetadataStore, load: MetadataLoad) -> None:
        self._store = store
        self._load = load

    async def cluster_id(self) -> str:
        """See the port."""
        return await self._load.read(self._store.cluster_id())

    async def next_ledger_id(self) -> int:
        """See the port."""
        return await self._load.write(self._store.next_ledger_id())

    async def id_counter(self) -> int:
        """See the port."""
        return await self._load.read(self._store.id_counter())

    async def raise_id_counter(self, at_least: int) -> None:
        """See the port."""
        await self._load.write(self._store.raise_id_counter(at_least))

    async def create_ledger(self, metadata: LedgerMetadata) -> Versioned:
        """See the port."""
        return await self._load.write(self._store.create_ledger(metadata))

    async def read_ledger(self, ledger_id: int, *, linearizable: bool = False) -> Versioned:
        """See the port."""
        return await self._load.read(self._store.read_ledger(ledger_id, linearizable=linearizable))

    async def update_ledger(self, metadata: LedgerMetadata, expected_version: int) -> WriteResult:
        """See the port."""
        return await self._load.compare_and_set(self._store.update_ledger(metadata, expected_version))

    async def delete_ledger(self, ledger_id: int, expected_version: int, identity: bytes = NO_IDENTITY) -> WriteResult:
        """See the port."""
        return await self._load.compare_and_set(self._store.delete_ledger(ledger_id, expected_version, identity))

    async def deletion(self, ledger_id: int) -> Deletion | None:
        """See the port."""
        return await self._load.read(self._store.deletion(ledger_id))

    async def list_ledgers(self, after: int = -1, limit: int = 1000) -> LedgerPage:
        """See the port."""
        return await self._load.read(self._store.list_ledgers(after, limit))

    def watch_ledger(self, ledger_id: int) -> LedgerWatch:
        """See the port."""
        return self._store.watch_ledger(ledger_id)

    async def read_cookie(self, bookie_id: str) -> bytes | None:
        """See the port."""
        return await self._load.read(self._store.read_cookie(bookie_id))

    async def write_cookie(self, bookie_id: str, cookie: bytes, *, replace: bool = False) -> None:
        """See the port."""
        await self._load.write(self._store.write_cookie(bookie_id, cookie, replace=replace))

    async def delete_cookie(self, bookie_id: str) -> None:
        """See the port."""
        await self._load.write(self._store.delete_cookie(bookie_id))

    async def read_record(self, name: str, *, linearizable: bool = False) -> Record | None:
        """See the port."""
        return await self._load.read(self._store.read_record(name, linearizable=linearizable))

    async def write_record(self, name: str, value: bytes, expected_version: int | None) -> WriteResult:
        """See the port."""
        return await self._load.compare_and_set(self._store.write_record(name, value, expected_version))

    async def delete_record(self, name: str, expected_version: int) -> WriteResult:
        """See the port."""
        return await self._load.compare_and_set(self._store.delete_record(name, expected_version))

    async def list_records(self, prefix: str = "", after: str = "", limit: int = 1000) -> RecordPage:
        """See the port."""
        return await self._load.read(self._store.list_records(prefix, after, limit))

    async def close(self) -> None:
        """See the port."""
        await self._store.close()


class MeteredMembership:
    """A ``Membership``."""

    def __init__(self, membership: Membership, load: MetadataLoad) -> None:
        self._membership = membership
        self._load = load

    async def register(self, info: BookieInfo) -> Registration:
        """See the port."""
        return await self._load.write(self._membership.register(info))

    async def bookies(self) -> Mapping[str, BookieInfo]:
        """See the port."""
        return await self._load.read(self._membership.bookies())

    def watch(self) -> MembershipWatch:
        """See the port."""
        return self._membership.watch()
