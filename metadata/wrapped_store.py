"""Bases of metadata stores and memberships that wrap another one: calls pass through ``_read`` or ``_write``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import ParamSpec, TypeVar

from tallybook.core.ids import NO_IDENTITY

from .ledger.model import LedgerMetadata
from .store import (
    BookieInfo,
    Deletion,
    LedgerPage,
    LedgerWatch,
    Membership,
    MembershipWatch,
    MetadataRecord,
    MetadataStore,
    RecordPage,
    Registration,
    Versioned,
    WriteResult,
)

P = ParamSpec("P")
T = TypeVar("T")


class WrappedStore:
    """A ``MetadataStore`` that forwards all calls."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def _read(self, call: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        return await call(*args, **kwargs)

    async def _write(self, change: str, call: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        return await call(*args, **kwargs)

    async def _compare_and_set(
        self, change: str, call: Callable[P, Awaitable[WriteResult]], *args: P.args, **kwargs: P.kwargs
    ) -> WriteResult:
        """A write that returns its outcome instead of raising it."""
        return await self._write(change, call, *args, **kwargs)

    async def cluster_id(self) -> str:
        """See the port. Drivers create the id only if they may write."""
        return await self._read(self._store.cluster_id)

    async def next_ledger_id(self) -> int:
        """See the port."""
        return await self._write("taking a ledger id", self._store.next_ledger_id)

    async def id_counter(self) -> int:
        """See the port."""
        return await self._read(self._store.id_counter)

    async def raise_id_counter(self, at_least: int) -> None:
        """See the port."""
        await self._write("raising the counter of ledger ids", self._store.raise_id_counter, at_least)

    async def create_ledger(self, metadata: LedgerMetadata) -> Versioned:
        """See the port."""
        return await self._write(f"creating ledger {metadata.ledger_id}", self._store.create_ledger, metadata)

    async def read_ledger(self, ledger_id: int, *, linearizable: bool = False) -> Versioned:
        """See the port."""
        return await self._read(self._store.read_ledger, ledger_id, linearizable=linearizable)

    async def update_ledger(self, metadata: LedgerMetadata, expected_version: int) -> WriteResult:
        """See the port."""
        return await self._compare_and_set(
            f"changing the metadata of ledger {metadata.ledger_id}",
            self._store.update_ledger,
            metadata,
            expected_version,
        )

    async def delete_ledger(self, ledger_id: int, expected_version: int, identity: bytes = NO_IDENTITY) -> WriteResult:
        """See the port."""
        return await self._compare_and_set(
            f"deleting ledger {ledger_id}", self._store.delete_ledger, ledger_id, expected_version, identity
        )

    async def deletion(self, ledger_id: int) -> Deletion | None:
        """See the port."""
        return await self._read(self._store.deletion, ledger_id)

    async def list_ledgers(self, after: int = -1, limit: int = 1000) -> LedgerPage:
        """See the port."""
        return await self._read(self._store.list_ledgers, after, limit)

    def watch_ledger(self, ledger_id: int) -> LedgerWatch:
        """See the port."""
        return self._store.watch_ledger(ledger_id)

    async def read_cookie(self, bookie_id: str) -> bytes | None:
        """See the port."""
        return await self._read(self._store.read_cookie, bookie_id)

    async def write_cookie(self, bookie_id: str, cookie: bytes, *, replace: bool = False) -> None:
        """See the port."""
        await self._write(
            f"recording the identity of bookie {bookie_id}",
            self._store.write_cookie,
            bookie_id,
            cookie,
            replace=replace,
        )

    async def delete_cookie(self, bookie_id: str) -> None:
        """See the port."""
        await self._write(f"deleting the identity of bookie {bookie_id}", self._store.delete_cookie, bookie_id)

    async def read_record(self, name: str, *, linearizable: bool = False) -> MetadataRecord | None:
        """See the port."""
        return await self._read(self._store.read_record, name, linearizable=linearizable)

    async def write_record(self, name: str, value: bytes, expected_version: int | None) -> WriteResult:
        """See the port."""
        return await self._compare_and_set(
            f"writing record {name}", self._store.write_record, name, value, expected_version
        )

    async def delete_record(self, name: str, expected_version: int) -> WriteResult:
        """See the port."""
        return await self._compare_and_set(f"deleting record {name}", self._store.delete_record, name, expected_version)

    async def list_records(self, prefix: str = "", after: str = "", limit: int = 1000) -> RecordPage:
        """See the port."""
        return await self._read(self._store.list_records, prefix, after, limit)

    async def close(self) -> None:
        """See the port."""
        await self._store.close()


class WrappedMembership:
    """A ``Membership`` that forwards all calls."""

    def __init__(self, membership: Membership) -> None:
        self._membership = membership

    async def _read(self, call: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        return await call(*args, **kwargs)

    async def _write(self, change: str, call: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        return await call(*args, **kwargs)

    async def register(self, info: BookieInfo) -> Registration:
        """See the port."""
        return await self._write(f"registering bookie {info.bookie_id}", self._membership.register, info)

    async def bookies(self) -> Mapping[str, BookieInfo]:
        """See the port."""
        return await self._read(self._membership.bookies)

    def watch(self) -> MembershipWatch:
        """See the port."""
        return self._membership.watch()
