"""A metadata store of a process that may only read: every change is refused before it is sent.

This holds honest programs. What holds all of them are the file's rights (SQLite) and the nodes' ACLs (ZooKeeper).
"""

from __future__ import annotations

from collections.abc import Mapping

from tallybook.core.errors import AccessDenied

from .client import MetadataClient
from .model import LedgerMetadata
from .store import (
    BookieInfo,
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


def read_only(client: MetadataClient, reason: str) -> MetadataClient:
    """``client`` without its changes. ``reason`` says who may not make them, and why."""
    refuse = _Refusal(reason)
    return MetadataClient(
        ReadOnlyStore(client.store, refuse), ReadOnlyMembership(client.membership, refuse), client.load, client.link
    )


class _Refusal:
    def __init__(self, reason: str) -> None:
        self._reason = reason

    def of(self, change: str) -> AccessDenied:
        return AccessDenied(f"{self._reason}: {change} is refused, nothing was changed")


class ReadOnlyStore:
    """Implements ``MetadataStore``; what would change it raises ``AccessDenied``."""

    def __init__(self, store: MetadataStore, refusal: _Refusal) -> None:
        self._store = store
        self._refusal = refusal

    async def cluster_id(self) -> str:
        """See the port. Drivers make one only where they may write."""
        return await self._store.cluster_id()

    async def next_ledger_id(self) -> int:
        """Refused: it takes ids from the counter."""
        raise self._refusal.of("taking a ledger id")

    async def id_counter(self) -> int:
        """See the port."""
        return await self._store.id_counter()

    async def create_ledger(self, metadata: LedgerMetadata) -> Versioned:
        """Refused."""
        raise self._refusal.of(f"creating ledger {metadata.ledger_id}")

    async def read_ledger(self, ledger_id: int, *, linearizable: bool = False) -> Versioned:
        """See the port."""
        return await self._store.read_ledger(ledger_id, linearizable=linearizable)

    async def update_ledger(self, metadata: LedgerMetadata, expected_version: int) -> WriteResult:
        """Refused."""
        raise self._refusal.of(f"changing the metadata of ledger {metadata.ledger_id}")

    async def delete_ledger(self, ledger_id: int, expected_version: int) -> WriteResult:
        """Refused."""
        raise self._refusal.of(f"deleting ledger {ledger_id}")

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
        """Refused."""
        raise self._refusal.of(f"recording the identity of bookie {bookie_id}")

    async def delete_cookie(self, bookie_id: str) -> None:
        """Refused."""
        raise self._refusal.of(f"deleting the identity of bookie {bookie_id}")

    async def read_record(self, name: str, *, linearizable: bool = False) -> Record | None:
        """See the port."""
        return await self._store.read_record(name, linearizable=linearizable)

    async def write_record(self, name: str, value: bytes, expected_version: int | None) -> WriteResult:
        """Refused."""
        raise self._refusal.of(f"writing record {name}")

    async def delete_record(self, name: str, expected_version: int) -> WriteResult:
        """Refused."""
        raise self._refusal.of(f"deleting record {name}")

    async def list_records(self, prefix: str = "", after: str = "", limit: int = 1000) -> RecordPage:
        """See the port."""
        return await self._store.list_records(prefix, after, limit)

    async def close(self) -> None:
        """See the port."""
        await self._store.close()


class ReadOnlyMembership:
    """Implements ``Membership``; registering raises ``AccessDenied``."""

    def __init__(self, membership: Membership, refusal: _Refusal) -> None:
        self._membership = membership
        self._refusal = refusal

    async def register(self, info: BookieInfo) -> Registration:
        """Refused."""
        raise self._refusal.of(f"registering bookie {info.bookie_id}")

    async def bookies(self) -> Mapping[str, BookieInfo]:
        """See the port."""
        return await self._membership.bookies()

    def watch(self) -> MembershipWatch:
        """See the port."""
        return self._membership.watch()
