"""Ledgers, the id counter and cookies in ZooKeeper; records are in ``records``.

A ledger's creation checks its group's record of deletions in the same ZooKeeper transaction, and its deletion changes
it (``layout`` explains why). The versions of a ledger are those of its node.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError

from tallybook.core.errors import (
    DamagedFile,
    LedgerExists,
    MetadataConflict,
    MetadataOutcomeUnknown,
    MetadataUnavailable,
    NoSuchLedger,
)
from tallybook.core.ids import NO_IDENTITY, check_ledger_id

from ..codec import decode_ledger, encode_ledger
from ..id_block import IdBlock
from ..ledger.model import LedgerMetadata
from ..rules import check_bookie_id, check_cookie, page_limit
from ..store import (
    BadVersion,
    Deletion,
    LedgerPage,
    LedgerWatch,
    MetadataRecord,
    Ok,
    RecordPage,
    Unknown,
    Versioned,
    WriteResult,
)
from .compare_and_set import compare_and_set
from .layout import Layout, deletion, number_of, with_deleted
from .records import ZooKeeperRecords
from .requests import create, create_checked, delete, delete_recorded, get, write
from .session import Session
from .tree import LedgerTree, create_once
from .watches import WatchHub, WatchKind


class ZooKeeperStore:
    """Implements ``MetadataStore``. Made by ``client.open_zookeeper``."""

    def __init__(
        self,
        session: Session,
        layout: Layout,
        hub: WatchHub,
        close_client: Callable[[], Awaitable[None]],
        *,
        reads_only: bool = False,
    ) -> None:
        self._session = session
        self._layout = layout
        self._hub = hub
        self._close_client = close_client
        self._reads_only = reads_only
        self._tree = LedgerTree(session, layout)
        self._records = ZooKeeperRecords(session, layout)
        self._ids = IdBlock(self._take_block)

    async def cluster_id(self) -> str:
        """Identity of this cluster, created on first use."""
        path = self._layout.cluster
        try:
            [(data, _)] = await self._session.ask(get(path))
        except NoNodeError:
            if self._reads_only:
                raise MetadataUnavailable(f"{self._session.name}: no bookie has ever started in this cluster") from None
            await create_once(self._session, path, self._session.rng.uuid().encode())
            [(data, _)] = await self._session.ask(get(path))
        return str(data, "ascii")

    async def next_ledger_id(self) -> int:
        """Allocate a unique ledger id from this client's block.

        Raises:
            MetadataUnavailable: no new block can be allocated now.
        """
        return await self._ids.next_id()

    async def _take_block(self, size: int) -> int:
        deadline = self._session.deadline()
        while True:
            first, version = await self._read_counter()
            after = str(first + size).encode()
            try:
                await self._session.send_once(write(self._layout.ids, after, version))
            except (BadVersionError, MetadataOutcomeUnknown) as error:
                # If the outcome is unknown, the block may be ours. It is skipped: there are plenty of ids.
                await self._session.pause_before(deadline, error)
                continue
            return first

    async def id_counter(self) -> int:
        """All allocated ids are below this. A linearizable read."""
        return (await self._read_counter())[0]

    async def raise_id_counter(self, at_least: int) -> None:
        """Allocate no id below ``at_least`` any more.

        Raises:
            MetadataUnavailable: it was not raised.
        """
        wanted = str(check_ledger_id(at_least)).encode()
        deadline = self._session.deadline()
        while True:
            counter, version = await self._read_counter()
            if counter >= at_least:
                return
            try:
                await self._session.send_once(write(self._layout.ids, wanted, version))
            except (BadVersionError, MetadataOutcomeUnknown) as error:
                await self._session.pause_before(deadline, error)

    async def _read_counter(self) -> tuple[int, int]:
        """The counter and its node's version."""
        path = self._layout.ids
        [(data, stat)] = await self._session.ask(get(path), linearizable=True)
        counter = number_of(data)
        if counter is None:
            raise DamagedFile(f"{self._session.name}: node {path} holds {data[:100]!r} instead of a number")
        return counter, stat.version

    async def create_ledger(self, metadata: LedgerMetadata) -> Versioned:
        """Store a new ledger.

        Raises:
            LedgerExists: another client uses, or used, the id.
            MetadataOutcomeUnknown: it may have been created; repeat the call.
        """
        ledger_id, value = metadata.ledger_id, encode_ledger(metadata)
        deadline = self._session.deadline()
        group = await self._tree.group(ledger_id)
        while deletion(group.data, ledger_id) is None:
            request = create_checked(self._layout.ledger(ledger_id), value, group.path, group.version)
            checked, created = await self._session.send_once(request)
            if not isinstance(created, Exception):
                return Versioned(metadata, 0)
            if isinstance(created, NodeExistsError):
                return await self._created_before(metadata)
            await self._session.pause_before(deadline, checked)
            group = await self._tree.group(ledger_id, fresh=True)
        raise LedgerExists(f"ledger {ledger_id} existed and was deleted; ids are never used again")

    async def _created_before(self, metadata: LedgerMetadata) -> Versioned:
        """The stored ledger, if the same creator stored it."""
        exists = LedgerExists(f"ledger {metadata.ledger_id} exists")
        try:
            existing = await self.read_ledger(metadata.ledger_id, linearizable=True)
        except NoSuchLedger as error:
            raise exists from error
        if existing.value.creator_token != metadata.creator_token:
            raise exists
        return existing

    async def read_ledger(self, ledger_id: int, *, linearizable: bool = False) -> Versioned:
        """The current value; without ``linearizable`` perhaps slightly older, but never older than the last one read.

        Raises:
            NoSuchLedger: it was never created, or it was deleted.
        """
        path = self._layout.ledger(check_ledger_id(ledger_id))
        try:
            [(data, stat)] = await self._session.ask(get(path), linearizable=linearizable)
        except NoNodeError as error:
            raise NoSuchLedger(f"there is no ledger {ledger_id}") from error
        return Versioned(decode_ledger(data, ledger_id, f"{self._session.name}: node {path}"), stat.version)

    async def update_ledger(self, metadata: LedgerMetadata, expected_version: int) -> WriteResult:
        """Replace the value if it still has ``expected_version``."""
        path, value = self._layout.ledger(metadata.ledger_id), encode_ledger(metadata)
        return await compare_and_set(self._session, path, value, expected_version)

    async def delete_ledger(self, ledger_id: int, expected_version: int, identity: bytes = NO_IDENTITY) -> WriteResult:
        """Remove the ledger if it still has ``expected_version``."""
        path = self._layout.ledger(check_ledger_id(ledger_id))
        if expected_version < 0:
            return BadVersion()
        deadline = self._session.deadline()
        while True:
            group = await self._tree.group(ledger_id, fresh=True)
            record = with_deleted(group.data, ledger_id, Deletion.of(identity))
            try:
                deleted, recorded = await self._session.send_once(
                    delete_recorded(path, expected_version, group.path, record, group.version)
                )
            except MetadataOutcomeUnknown as error:
                return Unknown(error.message)
            if isinstance(deleted, (BadVersionError, NoNodeError)):
                return BadVersion()
            if not isinstance(recorded, Exception):
                return Ok(expected_version + 1)
            # Another ledger of the group was deleted meanwhile.
            await self._session.pause_before(deadline, recorded)

    async def deletion(self, ledger_id: int) -> Deletion | None:
        """The record of the deletion of a ledger, if it was deleted."""
        path = self._layout.group(check_ledger_id(ledger_id))
        try:
            [(data, _)] = await self._session.ask(get(path), linearizable=True)
        except NoNodeError:
            return None
        return deletion(data, ledger_id)

    async def list_ledgers(self, after: int = -1, limit: int = 1000) -> LedgerPage:
        """Up to ``limit`` ledger ids above ``after``, at most ``rules.MAX_PAGE_LEDGERS``."""
        size = page_limit(limit)
        found = await self._tree.list_above(after, size + 1)
        return LedgerPage(tuple(found[:size]), complete=len(found) <= size)

    def watch_ledger(self, ledger_id: int) -> LedgerWatch:
        """Start watching one ledger."""
        return self._hub.watch(f"ledger {ledger_id}", (WatchKind.NODE, self._layout.ledger(check_ledger_id(ledger_id))))

    async def read_cookie(self, bookie_id: str) -> bytes | None:
        """The identity recorded for a bookie, or ``None`` if there is none. A linearizable read."""
        path = self._layout.cookie(check_bookie_id(bookie_id))
        try:
            [(data, _)] = await self._session.ask(get(path), linearizable=True)
        except NoNodeError:
            return None
        return bytes(data)

    async def write_cookie(self, bookie_id: str, cookie: bytes, *, replace: bool = False) -> None:
        """Record the identity of a bookie.

        Raises:
            MetadataConflict: there is another one and ``replace`` is false.
            MetadataOutcomeUnknown: it may have been recorded; repeat the call.
        """
        path = self._layout.cookie(check_bookie_id(bookie_id))
        check_cookie(cookie)
        try:
            await self._session.send_once(create(path, cookie))
        except NodeExistsError as error:
            if replace:
                await self._replace_cookie(bookie_id, path, cookie)
            elif await self.read_cookie(bookie_id) != cookie:
                raise MetadataConflict(f"bookie {bookie_id} has another cookie") from error

    async def _replace_cookie(self, bookie_id: str, path: str, cookie: bytes) -> None:
        try:
            await self._session.send_once(write(path, cookie))
        except NoNodeError as error:
            raise MetadataConflict(f"the cookie of bookie {bookie_id} was deleted meanwhile") from error

    async def delete_cookie(self, bookie_id: str) -> None:
        """Delete a bookie's identity; no error if there is none.

        Raises:
            MetadataOutcomeUnknown: it may have been deleted; repeat the call.
        """
        path = self._layout.cookie(check_bookie_id(bookie_id))
        try:
            await self._session.send_once(delete(path))
        except NoNodeError:
            return

    async def read_record(self, name: str, *, linearizable: bool = False) -> MetadataRecord | None:
        """The record under ``name``, or ``None``; without ``linearizable`` perhaps slightly older."""
        return await self._records.read(name, linearizable=linearizable)

    async def write_record(self, name: str, value: bytes, expected_version: int | None) -> WriteResult:
        """Replace the record if it still has ``expected_version``, or create it if that is ``None``."""
        return await self._records.write(name, value, expected_version)

    async def delete_record(self, name: str, expected_version: int) -> WriteResult:
        """Remove the record if it still has ``expected_version``."""
        return await self._records.delete(name, expected_version)

    async def list_records(self, prefix: str = "", after: str = "", limit: int = 1000) -> RecordPage:
        """Up to ``limit`` names that begin with ``prefix`` and come after ``after``."""
        size = page_limit(limit)
        found = await self._records.names(prefix, after, size + 1)
        return RecordPage(tuple(found[:size]), complete=len(found) <= size)

    async def close(self) -> None:
        """Close this client, its membership and registrations included."""
        await self._close_client()
