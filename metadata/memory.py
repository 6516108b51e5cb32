"""In-memory metadata driver: for tests, and for simulations of a whole cluster.

``MemoryMetadata`` is the shared store; its ``client`` method opens it. It has no timers and no threads: each call takes
effect immediately, and a bookie stays alive until it leaves or until ``expire`` ends its session. Values are stored as
bytes, so values that another driver could not store are refused here too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tallybook.core.errors import LedgerExists, MetadataConflict, MetadataUnavailable, NoSuchLedger
from tallybook.core.ids import NO_IDENTITY, check_ledger_id
from tallybook.core.limits import LEDGER_ID_BLOCK
from tallybook.runtime.rng import Rng

from .client import MetadataClient
from .codec import StoredRegistration, decode_bookie, decode_ledger, encode_bookie, encode_ledger
from .ledger.model import LedgerMetadata
from .rules import (
    check_bookie_id,
    check_cookie,
    check_record_name,
    check_record_prefix,
    check_record_value,
    check_same_bookie,
    page_limit,
    takes_over,
)
from .store import BadVersion, BookieInfo, Deletion, LedgerPage, MetadataRecord, Ok, RecordPage, Versioned, WriteResult
from .watch import Wakeup

PLACE = "memory metadata"


@dataclass(slots=True)
class _Stored:
    value: bytes
    version: int


class MemoryMetadata:
    """The shared state. It is not persistent."""

    def __init__(self, rng: Rng) -> None:
        self.rng = rng
        self.cluster_id = rng.uuid()
        self.id_counter = 0
        self.ledgers: dict[int, _Stored] = {}
        self.deletions: dict[int, Deletion] = {}
        self.cookies: dict[str, bytes] = {}
        self.records: dict[str, _Stored] = {}
        self.bookies: dict[str, MemoryRegistration] = {}
        self.ledger_watches: dict[int, list[Wakeup]] = {}
        self.membership_watches: list[Wakeup] = []

    def client(self) -> MetadataClient:
        """Open another client of this store."""
        client = _Client(self)
        return MetadataClient(MemoryMetadataStore(client), MemoryMembership(client))

    def expire(self, bookie_id: str) -> None:
        """End the session of a bookie, as after missing heartbeats. No error if it is not registered."""
        registration = self.bookies.get(bookie_id)
        if registration is not None:
            self.drop(registration)

    def drop(self, registration: MemoryRegistration) -> None:
        """Remove a registration, if it is still the current one of its bookie id, and notify watches."""
        bookie_id = registration.bookie_id
        if self.bookies.get(bookie_id) is registration:
            del self.bookies[bookie_id]
            registration.ended.set()
            self.membership_changed()

    def ledger_changed(self, ledger_id: int) -> None:
        """Notify watches of the ledger."""
        for watch in list(self.ledger_watches.get(ledger_id, ())):
            watch.notify()

    def membership_changed(self) -> None:
        """Notify watches of the live bookies."""
        for watch in list(self.membership_watches):
            watch.notify()


class _Client:
    """State shared by the store and the membership of one client: they are closed together."""

    def __init__(self, shared: MemoryMetadata) -> None:
        self._shared = shared
        self._closed = False
        self.watches: list[Wakeup] = []
        self.registrations: dict[str, MemoryRegistration] = {}

    @property
    def shared(self) -> MemoryMetadata:
        """The shared state, while this client is open."""
        if self._closed:
            raise MetadataUnavailable("this client of the memory metadata is closed")
        return self._shared

    def watch(self, what: str, forget: Callable[[Wakeup], None]) -> Wakeup:
        """A watch that ends when this client closes."""

        def forget_everywhere(watch: Wakeup) -> None:
            forget(watch)
            self.watches.remove(watch)

        watch = Wakeup(what, forget_everywhere)
        self.watches.append(watch)
        return watch

    def close(self) -> None:
        """End registrations and watches."""
        for registration in list(self.registrations.values()):
            self._shared.drop(registration)
        for watch in list(self.watches):
            watch.end()
        self._closed = True


class MemoryMetadataStore:
    """One client's ``MetadataStore``."""

    def __init__(self, client: _Client) -> None:
        self._client = client
        self._next_id = 0
        self._end_of_block = 0

    async def cluster_id(self) -> str:
        """The identity of this cluster."""
        return self._client.shared.cluster_id

    async def next_ledger_id(self) -> int:
        """Allocate a unique ledger id from this client's block."""
        shared = self._client.shared
        if self._next_id == self._end_of_block:
            self._next_id = shared.id_counter
            shared.id_counter = self._end_of_block = self._next_id + LEDGER_ID_BLOCK
        self._next_id += 1
        return self._next_id - 1

    async def id_counter(self) -> int:
        """All allocated ids are below this."""
        return self._client.shared.id_counter

    async def raise_id_counter(self, at_least: int) -> None:
        """Allocate no id below ``at_least`` any more."""
        self._client.shared.id_counter = max(self._client.shared.id_counter, check_ledger_id(at_least))

    async def create_ledger(self, metadata: LedgerMetadata) -> Versioned:
        """Store a new ledger.

        Raises:
            LedgerExists: the id is, or was, used by another client.
        """
        shared = self._client.shared
        ledger_id = metadata.ledger_id
        if ledger_id in shared.deletions:
            raise LedgerExists(f"ledger {ledger_id} existed and was deleted; ids are never used again")
        if ledger_id in shared.ledgers:
            existing = await self.read_ledger(ledger_id)
            if existing.value.creator_token != metadata.creator_token:
                raise LedgerExists(f"ledger {ledger_id} exists")
            return existing
        shared.ledgers[ledger_id] = _Stored(encode_ledger(metadata), 1)
        shared.ledger_changed(ledger_id)
        return Versioned(metadata, 1)

    async def read_ledger(self, ledger_id: int, *, linearizable: bool = False) -> Versioned:
        """The current value; every read here is linearizable.

        Raises:
            NoSuchLedger: it was never created, or it was deleted.
        """
        found = self._client.shared.ledgers.get(check_ledger_id(ledger_id))
        if found is None:
            raise NoSuchLedger(f"there is no ledger {ledger_id}")
        return Versioned(decode_ledger(found.value, ledger_id, PLACE), found.version)

    async def update_ledger(self, metadata: LedgerMetadata, expected_version: int) -> WriteResult:
        """Replace the value if it still has ``expected_version``."""
        shared = self._client.shared
        value = encode_ledger(metadata)
        found = shared.ledgers.get(metadata.ledger_id)
        if found is None or found.version != expected_version:
            return BadVersion()
        found.value, found.version = value, expected_version + 1
        shared.ledger_changed(metadata.ledger_id)
        return Ok(found.version)

    async def delete_ledger(self, ledger_id: int, expected_version: int, identity: bytes = NO_IDENTITY) -> WriteResult:
        """Remove the ledger if it still has ``expected_version``."""
        shared = self._client.shared
        found = shared.ledgers.get(check_ledger_id(ledger_id))
        if found is None or found.version != expected_version:
            return BadVersion()
        del shared.ledgers[ledger_id]
        shared.deletions[ledger_id] = Deletion.of(identity)
        shared.ledger_changed(ledger_id)
        return Ok(expected_version + 1)

    async def deletion(self, ledger_id: int) -> Deletion | None:
        """The record of the deletion of a ledger, if it was deleted."""
        return self._client.shared.deletions.get(check_ledger_id(ledger_id))

    async def list_ledgers(self, after: int = -1, limit: int = 1000) -> LedgerPage:
        """Up to ``limit`` ledger ids above ``after``."""
        size = page_limit(limit)
        above = sorted(ledger_id for ledger_id in self._client.shared.ledgers if ledger_id > after)
        return LedgerPage(tuple(above[:size]), complete=len(above) <= size)

    def watch_ledger(self, ledger_id: int) -> Wakeup:
        """Start watching one ledger."""
        by_ledger = self._client.shared.ledger_watches
        watches = by_ledger.setdefault(check_ledger_id(ledger_id), [])

        def forget(watch: Wakeup) -> None:
            watches.remove(watch)
            if not watches:
                del by_ledger[ledger_id]

        watch = self._client.watch(f"ledger {ledger_id}", forget)
        watches.append(watch)
        return watch

    async def read_cookie(self, bookie_id: str) -> bytes | None:
        """The identity recorded for a bookie, or ``None`` if there is none."""
        return self._client.shared.cookies.get(check_bookie_id(bookie_id))

    async def write_cookie(self, bookie_id: str, cookie: bytes, *, replace: bool = False) -> None:
        """Record the identity of a bookie.

        Raises:
            MetadataConflict: there is another one and ``replace`` is false.
        """
        cookies = self._client.shared.cookies
        check_cookie(cookie)
        if not replace and cookies.get(check_bookie_id(bookie_id), cookie) != cookie:
            raise MetadataConflict(f"bookie {bookie_id} has another cookie")
        cookies[bookie_id] = bytes(cookie)

    async def delete_cookie(self, bookie_id: str) -> None:
        """Delete a bookie's identity; no error if there is none."""
        self._client.shared.cookies.pop(check_bookie_id(bookie_id), None)

    async def read_record(self, name: str, *, linearizable: bool = False) -> MetadataRecord | None:
        """The record under ``name``, or ``None``; every read here is linearizable."""
        found = self._client.shared.records.get(check_record_name(name))
        return None if found is None else MetadataRecord(found.value, found.version)

    async def write_record(self, name: str, value: bytes, expected_version: int | None) -> WriteResult:
        """Replace the record if it still has ``expected_version``, or make it if that is ``None``."""
        records = self._client.shared.records
        found = records.get(check_record_name(name))
        check_record_value(name, value)
        if (None if found is None else found.version) != expected_version:
            return BadVersion()
        version = 1 if expected_version is None else expected_version + 1
        records[name] = _Stored(bytes(value), version)
        return Ok(version)

    async def delete_record(self, name: str, expected_version: int) -> WriteResult:
        """Remove the record if it still has ``expected_version``."""
        records = self._client.shared.records
        found = records.get(check_record_name(name))
        if found is None or found.version != expected_version:
            return BadVersion()
        del records[name]
        return Ok(expected_version + 1)

    async def list_records(self, prefix: str = "", after: str = "", limit: int = 1000) -> RecordPage:
        """Up to ``limit`` names that begin with ``prefix`` and come after ``after``."""
        size = page_limit(limit)
        records = self._client.shared.records
        check_record_prefix(prefix)
        check_record_prefix(after)
        found = sorted(name for name in records if name.startswith(prefix) and name > after)
        return RecordPage(tuple(found[:size]), complete=len(found) <= size)

    async def close(self) -> None:
        """Close this client, its membership and registrations included."""
        self._client.close()


class MemoryRegistration:
    """A bookie's registration. It stays until closed, taken over, or expired."""

    def __init__(self, shared: MemoryMetadata, info: BookieInfo) -> None:
        self._shared = shared
        self._session = shared.rng.uuid()
        self.bookie_id = info.bookie_id
        self.value = encode_bookie(StoredRegistration(info, self._session))
        self.ended = asyncio.Event()

    @property
    def info(self) -> BookieInfo:
        """The registered information."""
        return decode_bookie(self.value, PLACE).info

    async def lost(self) -> None:
        """Return once the store no longer lists this registration."""
        await self.ended.wait()

    async def update(self, info: BookieInfo) -> None:
        """Change the registered information.

        Raises:
            InvalidArgument: ``info`` is of another bookie.
            MetadataConflict: this registration is no longer listed.
        """
        check_same_bookie(self.bookie_id, info)
        if self._shared.bookies.get(self.bookie_id) is not self:
            raise MetadataConflict(f"bookie {self.bookie_id} is no longer registered by this process")
        self.value = encode_bookie(StoredRegistration(info, self._session))
        self._shared.membership_changed()

    async def close(self) -> None:
        """End the registration at once."""
        self._shared.drop(self)


class MemoryMembership:
    """One client's view of the bookies that are alive."""

    def __init__(self, client: _Client) -> None:
        self._client = client

    async def register(self, info: BookieInfo) -> MemoryRegistration:
        """Register a live bookie.

        Raises:
            MetadataConflict: another live process is registered under this bookie id.
        """
        shared = self._client.shared
        current = shared.bookies.get(check_bookie_id(info.bookie_id))
        if current is not None:
            if not takes_over(info, current.info):
                raise MetadataConflict(f"another live process is registered as bookie {info.bookie_id}")
            shared.drop(current)
        registration = MemoryRegistration(shared, info)
        shared.bookies[info.bookie_id] = registration
        self._client.registrations[info.bookie_id] = registration
        shared.membership_changed()
        return registration

    async def bookies(self) -> Mapping[str, BookieInfo]:
        """Live bookies by id, in order of id."""
        return {bookie_id: found.info for bookie_id, found in sorted(self._client.shared.bookies.items())}

    def watch(self) -> Wakeup:
        """Start watching the set of live bookies."""
        watches = self._client.shared.membership_watches
        watch = self._client.watch("the live bookies", watches.remove)
        watches.append(watch)
        return watch
