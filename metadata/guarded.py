"""A metadata store that asks a guard before each change: for processes that may only read, or perhaps may not write.

This holds honest programs. What holds all of them are the file's rights (SQLite) and the nodes' ACLs (ZooKeeper).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TypeAlias

from tallybook.core.errors import AccessDenied
from tallybook.core.ids import NO_IDENTITY

from .client import MetadataClient
from .model import LedgerMetadata
from .store import (
    BookieInfo,
    Deletion,
    LedgerPage,
    LedgerWatch,
    Membership,
    MembershipWatch,
    MetadataStore,
    Record,
    RecordPage,
    Registration,
    Versioned,
    WriteResult,
)

Guard: TypeAlias = Callable[[str], Awaitable[None]]
"""Raises ``AccessDenied`` unless the change, which is told in words, may be made."""


def guarded(client: MetadataClient, guard: Guard) -> MetadataClient:
    """``client``, with ``guard`` before each change."""
    return MetadataClient(
        GuardedStore(client.store, guard), GuardedMembership(client.membership, guard), client.load, client.link
    )


def read_only(client: MetadataClient, reason: str) -> MetadataClient:
    """``client`` without its changes. ``reason`` says who may not make them, and why."""

    async def refuse(change: str) -> None:
        raise AccessDenied(f"{reason}: {change} is refused, nothing was changed")

    return guarded(client, refuse)


class GuardedStore:
    """Implements ``MetadataStore``."""

    def __init__(self, store: MetadataStore, guard: Guard) -> None:
        self._store = store
        self._guard = guard

    async def cluster_id(self) -> str:
        """See the port. Drivers make one only where they may write."""
        return await self._store.cluster_id()

    async def next_ledger_id(self) -> int:
        """See the port."""
        await self._guard("taking a ledger id")
        return await self._store.next_ledger_id()

    async def id_counter(self) -> int:
        """See the port."""
        return await self._store.id_counter()

    async def raise_id_counter(self, at_least: int) -> None:
        """See the port."""
        await self._guard("raising the counter of ledger ids")
        await self._store.raise_id_counter(at_least)

    async def create_ledger(self, metadata: LedgerMetadata) -> Versioned:
        """See the port."""
        await self._guard(f"creating ledger {metadata.ledger_id}")
        return await self._store.create_ledger(metadata)

    async def read_ledger(self, ledger_id: int, *, linearizable: bool = False) -> Versioned:
        """See the port."""
        return await self._store.read_ledger(ledger_id, linearizable=linearizable)

    async def update_ledger(self, metadata: LedgerMetadata, expected_version: int) -> WriteResult:
        """See the port."""
        await self._guard(f"changing the metadata of ledger {metadata.ledger_id}")
        return await self._store.update_ledger(metadata, expected_version)

    async def delete_ledger(self, ledger_id: int, expected_version: int, identity: bytes = NO_IDENTITY) -> WriteResult:
        """See the port."""
        await self._guard(f"deleting ledger {ledger_id}")
        return await self._store.delete_ledger(ledger_id, expected_version, identity)

    async def deletion(self, ledger_id: int) -> Deletion | None:
        """See the port."""
        return await self._store.deletion(ledger_id)

    async def list_ledgers(self, after: int = -1, limit: int = 1000) -> LedgerPage:
        """See the port."""
        return await self._store.list_ledgers(after, limit)

    def watch_ledger(self, ledger_id: int) -> LedgerWatch:
        """See the port."""
        return self._store.watch_ledger(ledger_id)

    async def read_cookie(self, bookie_id: str) -> bytes | None:
        """See the port."""
        return await self._store.read_cookie(bookie_id)

    async def write_cookie(self, bookie_id: str, cookie: bytes, *, replace: bool = False) -> None:
        """See the port."""
        await self._guard(f"recording the identity of bookie {bookie_id}")
        await self._store.write_cookie(bookie_id, cookie, replace=replace)

    async def delete_cookie(self, bookie_id: str) -> None:
        """See the port."""
        await self._guard(f"deleting the identity of bookie {bookie_id}")
        await self._store.delete_cookie(bookie_id)

    async def read_record(self, name: str, *, linearizable: bool = False) -> Record | None:
        """See the port."""
        return await self._store.read_record(name, linearizable=linearizable)

    async def write_record(self, name: str, value: bytes, expected_version: int | None) -> WriteResult:
        """See the port."""
        await self._guard(f"writing record {name}")
        return await self._store.write_record(name, value, expected_version)

    async def delete_record(self, name: str, expected_version: int) -> WriteResult:
        """See the port."""
        await self._guard(f"deleting record {name}")
        return await self._store.delete_record(name, expected_version)

    async def list_records(self, prefix: str = "", after: str = "", limit: int = 1000) -> RecordPage:
        """See the port."""
        return await self._store.list_records(prefix, after, limit)

    async def close(self) -> None:
        """See the port."""
        await self._store.close()


class GuardedMembership:
    """Implements ``Membership``."""

    def __init__(self, membership: Membership, guard: Guard) -> None:
        self._membership = membership
        self._guard = guard

    async def register(self, info: BookieInfo) -> Registration:
        """See the port."""
        await self._guard(f"registering bookie {info.bookie_id}")
        return await self._membership.register(info)

    async def bookies(self) -> Mapping[str, BookieInfo]:
        """See the port."""
        return await self._membership.bookies()

    def watch(self) -> MembershipWatch:
        """See the port."""
        return self._membership.watch()
