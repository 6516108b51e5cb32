"""Reads and changes subscriptions: their metadata records, and the cursors in their cursor ledgers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Final

from tallybook.client.client import Client
from tallybook.core.errors import (
    DamagedFile,
    MetadataConflict,
    NoSuchLedger,
    NoSuchSubscription,
    StorageError,
    TallybookError,
    is_defect,
)
from tallybook.core.ids import NO_ENTRY
from tallybook.metadata.records.listing import record_names
from tallybook.metadata.records.update import RecordUpdater
from tallybook.metadata.store import MetadataStore
from tallybook.runtime.logging import logger

from ..catalog.head import Owner
from ..catalog.subscription_record import (
    Cursor,
    Subscription,
    cursor_of,
    decode,
    encode,
    forget_doomed,
    rest,
    retire,
    take,
)
from ..gaps import is_lost
from ..info import SubscriptionInfo
from ..names import SUBSCRIPTIONS, subscription_record
from ..sessions import OwnershipWait

DELETIONS: Final = 10
"""How often a deletion is retried when new readers keep taking the subscription."""

_log = logger("stream.subscriptions")


class SubscriptionRecords:
    """The subscriptions of a cluster."""

    def __init__(self, store: MetadataStore, updater: RecordUpdater, client: Client) -> None:
        self._store = store
        self._updater = updater
        self._client = client

    async def read(self, stream_id: str, name: str) -> Subscription:
        """Read a subscription.

        Raises:
            NoSuchSubscription: it does not exist.
            MetadataUnavailable, DamagedFile: it cannot be read.
        """
        found = await self._peek(stream_id, name)
        if found is None:
            raise NoSuchSubscription(f"there is no subscription {name!r}")
        return found

    async def _peek(self, stream_id: str, name: str) -> Subscription | None:
        record = subscription_record(stream_id, name)
        found = await self._store.read_record(record, linearizable=True)
        return None if found is None else decode(record, found.value)

    async def names(self, stream_id: str, after: str = "") -> AsyncIterator[str]:
        """Names of a stream's subscriptions after ``after``, in order.

        Raises:
            MetadataUnavailable: the store does not answer; the listing is incomplete.
        """
        folder = f"{SUBSCRIPTIONS}{stream_id}/"
        async for record in record_names(self._store, folder, folder + after if after else ""):
            yield record.removeprefix(folder)

    async def infos(self, stream_id: str, after: str = "") -> AsyncIterator[SubscriptionInfo]:
        """A stream's subscriptions after ``after``, in order, with their cursors.

        Raises:
            As ``names`` and ``cursor``.
        """
        async for name in self.names(stream_id, after):
            try:
                found = await self.read(stream_id, name)
                cursor = await self._known_cursor(found)
            except NoSuchSubscription:
                continue
            reader = None if found.owner is None else found.owner.name
            yield SubscriptionInfo(name, cursor, found.created_at_ms, reader)

    async def _known_cursor(self, found: Subscription) -> Cursor | None:
        try:
            return await self.cursor(found, fence=False)
        except DamagedFile as error:
            _log.warning("subscription lost", subscription=found.name, error=error.message)
            return None

    async def create(self, wanted: Subscription) -> Subscription:
        """Create a subscription, or return the existing one.

        Raises:
            MetadataConflict, MetadataUnavailable, MetadataOutcomeUnknown, DamagedFile: the change failed, or its
                outcome is unknown.
        """
        record = subscription_record(wanted.stream_id, wanted.name)
        stored = await self._updater.update(record, lambda found: encode(wanted) if found is None else found)
        return decode(record, stored.value)

    async def change(
        self, stream_id: str, name: str, transition: Callable[[Subscription], Subscription]
    ) -> Subscription:
        """Apply a transition by compare-and-set, retrying on conflict.

        Raises:
            NoSuchSubscription: it does not exist.
            MetadataConflict, MetadataUnavailable, MetadataOutcomeUnknown, DamagedFile: the change failed, or its
                outcome is unknown.
            Errors of ``transition``.
        """
        gone = NoSuchSubscription(f"there is no subscription {name!r}")
        record = subscription_record(stream_id, name)
        return await self._updater.change(record, transition, decode=decode, encode=encode, absent=gone)

    async def delete(self, stream_id: str, name: str) -> None:
        """Delete a subscription. Its reader is fenced.

        Raises:
            NoSuchSubscription: it does not exist.
            MetadataConflict, MetadataUnavailable, MetadataOutcomeUnknown, DamagedFile: it may still exist, perhaps with
                an older cursor; delete it again.
        """
        record, found = subscription_record(stream_id, name), await self.change(stream_id, name, retire)
        for _ in range(DELETIONS):
            # The record goes last: only it lists the ledgers.
            for ledger_id in found.doomed:
                await self._delete_ledger(ledger_id)
            retired, taken = found, False

            def unchanged(value: bytes, retired: Subscription = retired) -> bool:
                nonlocal taken
                taken = decode(record, value) != retired
                return not taken

            await self._updater.delete(record, unchanged)
            if not taken:
                return
            found = await self.change(stream_id, name, retire)
        raise MetadataConflict(f"subscription {name!r} was taken by new readers during each attempt to delete it")

    async def cursor(self, found: Subscription, *, fence: bool) -> Cursor:
        """The confirmed cursor of a subscription.

        Args:
            fence: fence the cursor ledger, so that the present reader cannot advance it any more.

        Raises:
            DamagedFile: the cursor is lost, or cannot be decoded.
            As ``Client.open_ledger`` and ``LedgerReader.read_entry``.
        """
        if found.ledger_id is None:
            return found.cursor
        lost = f"the cursor of subscription {found.name} is lost with ledger {found.ledger_id}: reset it"
        try:
            reader = await self._client.open_ledger(found.ledger_id, recover=fence)
            last = reader.last_add_confirmed
            if last == NO_ENTRY:
                return found.cursor
            return cursor_of((await reader.read_entry(last)).payload, found.ledger_id)
        except NoSuchLedger:
            # The ledger was given up meanwhile: the current record has a newer cursor.
            current = await self.read(found.stream_id, found.name)
            if current.ledger_id == found.ledger_id:
                raise DamagedFile(lost) from None
            return await self.cursor(current, fence=fence)
        except StorageError as error:
            if isinstance(error, DamagedFile) or not is_lost(error):
                raise
            raise DamagedFile(lost) from error

    async def take(self, found: Subscription, owner: Owner, wait: OwnershipWait) -> Subscription:
        """Take the subscription over for ``owner``, and fence the previous reader.

        Raises:
            As ``OwnershipWait.is_free``, ``change`` and ``cursor``.
        """
        found = await self._owned(found, owner, wait)
        cursor = await self.cursor(found, fence=True)
        return await self._put(found, partial(rest, owner=owner, cursor=cursor))

    async def reset(self, found: Subscription, owner: Owner, wait: OwnershipWait, cursor: Cursor) -> Subscription:
        """Set the cursor, also if it is lost. The present reader is fenced.

        Raises:
            As ``OwnershipWait.is_free`` and ``change``; as ``Client.open_ledger``, if the cursor ledger is not fenced.
        """
        found = await self._owned(found, owner, wait)
        await self._fence(found)
        return await self._put(found, partial(rest, owner=owner, cursor=cursor, leave=True))

    async def _owned(self, found: Subscription, owner: Owner, wait: OwnershipWait) -> Subscription:
        stream_id, name = found.stream_id, found.name
        while found.owner != owner:
            found = await self.read(stream_id, name)
            if await wait.is_free(f"subscription {name}", found.owner):
                found = await self.change(stream_id, name, partial(take, owner=owner, in_place_of=found.owner))
        return found

    async def _fence(self, found: Subscription) -> None:
        if found.ledger_id is None:
            return
        try:
            await self._client.open_ledger(found.ledger_id)
        except NoSuchLedger:
            return
        except StorageError as error:
            # The ledger's entries are lost, but it was fenced before they were read.
            if not is_lost(error):
                raise

    async def _put(self, found: Subscription, transition: Callable[[Subscription], Subscription]) -> Subscription:
        changed = await self.change(found.stream_id, found.name, transition)
        await self.tidy(changed)
        return changed

    async def tidy(self, found: Subscription) -> None:
        """Delete doomed ledgers; those that cannot be deleted now are left for later."""
        try:
            for ledger_id in found.doomed:
                await self._delete_ledger(ledger_id)
            if found.doomed:
                await self.change(found.stream_id, found.name, lambda now: forget_doomed(now, found.doomed))
        except TallybookError as error:
            if is_defect(error):
                raise
            _log.info("cursor ledgers are deleted later", subscription=found.name, error=error.message)

    async def _delete_ledger(self, ledger_id: int) -> None:
        try:
            await self._client.delete_ledger(ledger_id, force=True)
        except NoSuchLedger:
            return
