"""Where subscriptions are kept: their records, and the last word of their cursor ledgers."""

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
from tallybook.metadata.record_update import RecordUpdater
from tallybook.metadata.store import MetadataStore
from tallybook.metadata.transactions import names
from tallybook.runtime.logging import logger

from ..gaps import is_lost
from ..head import Owner
from ..info import SubscriptionInfo
from ..names import SUBSCRIPTIONS, subscription_record
from ..sessions import Patience
from .record import Cursor, Subscription, cursor_of, decode, encode, forget_doomed, rest, retire, take

DELETIONS: Final = 10
"""How often somebody may take a subscription that is being deleted before that is given up."""

_log = logger("stream.subscriptions")


class Shelf:
    """The subscriptions of a cluster."""

    def __init__(self, store: MetadataStore, updater: RecordUpdater, client: Client) -> None:
        self._store = store
        self._updater = updater
        self._client = client

    async def read(self, stream_id: str, name: str) -> Subscription:
        """A subscription, as it is stored.

        Raises:
            NoSuchSubscription: there is none.
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
        """Names of a stream's subscriptions that come after ``after``, in order.

        Raises:
            MetadataUnavailable: there may be more than the store tells.
        """
        folder = f"{SUBSCRIPTIONS}{stream_id}/"
        async for record in names(self._store, folder, folder + after if after else ""):
            yield record.removeprefix(folder)

    async def infos(self, stream_id: str, after: str = "") -> AsyncIterator[SubscriptionInfo]:
        """A stream's subscriptions that come after ``after``, in order, each with how far it has come.

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
        """Make a subscription; if there is one of that name already, that is it.

        Raises:
            MetadataConflict, MetadataUnavailable, MetadataOutcomeUnknown, DamagedFile: the store does not settle it.
        """
        record = subscription_record(wanted.stream_id, wanted.name)
        stored = await self._updater.update(record, lambda found: encode(wanted) if found is None else found)
        return decode(record, stored.value)

    async def change(
        self, stream_id: str, name: str, transition: Callable[[Subscription], Subscription]
    ) -> Subscription:
        """Apply a transition, until it holds.

        Raises:
            NoSuchSubscription: it was deleted.
            MetadataConflict, MetadataUnavailable, MetadataOutcomeUnknown, DamagedFile: the store does not settle it.
            Whatever ``transition`` raises.
        """
        gone = NoSuchSubscription(f"subscription {name!r} was deleted")
        record = subscription_record(stream_id, name)
        return await self._updater.change(record, transition, decode=decode, encode=encode, absent=gone)

    async def delete(self, stream_id: str, name: str) -> None:
        """Remove a subscription. Its reader is fenced.

        Raises:
            NoSuchSubscription: there is none.
            MetadataConflict, MetadataUnavailable, MetadataOutcomeUnknown, DamagedFile: it may still be there. It may
                have gone back then to where its ledger began; delete it again.
        """
        record, found = subscription_record(stream_id, name), await self.change(stream_id, name, retire)
        for _ in range(DELETIONS):
            # The record goes last: it is all that tells of the ledgers.
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
        raise MetadataConflict(f"subscription {name!r} is taken again and again while it is deleted")

    async def cursor(self, found: Subscription, *, fence: bool) -> Cursor:
        """How far a subscription has come, as far as is confirmed.

        Args:
            fence: whether nobody may advance it any more in the ledger that it has.

        Raises:
            DamagedFile: that is lost, or cannot be understood.
            As ``Client.open_ledger`` and ``LedgerReader.read_entry``.
        """
        if found.ledger_id is None:
            return found.cursor
        lost = f"how far subscription {found.name} has come is lost with ledger {found.ledger_id}: reset it"
        try:
            reader = await self._client.open_ledger(found.ledger_id, recover=fence)
            last = reader.last_add_confirmed
            if last == NO_ENTRY:
                return found.cursor
            return cursor_of((await reader.read_entry(last)).payload, found.ledger_id)
        except NoSuchLedger:
            # It was given up meanwhile: the record says more by now.
            current = await self.read(found.stream_id, found.name)
            if current.ledger_id == found.ledger_id:
                raise DamagedFile(lost) from None
            return await self.cursor(current, fence=fence)
        except StorageError as error:
            if isinstance(error, DamagedFile) or not is_lost(error):
                raise
            raise DamagedFile(lost) from error

    async def take(self, found: Subscription, owner: Owner, patience: Patience) -> Subscription:
        """The subscription with that owner, and with how far it had come; nobody else advances it any more.

        Raises:
            As ``Patience.is_free``, ``change`` and ``cursor``.
        """
        found = await self._owned(found, owner, patience)
        cursor = await self.cursor(found, fence=True)
        return await self._put(found, partial(rest, owner=owner, cursor=cursor))

    async def reset(self, found: Subscription, owner: Owner, patience: Patience, cursor: Cursor) -> Subscription:
        """Say how far it has come, whatever it was before, and also where that is lost. Whoever reads it is fenced.

        Raises:
            As ``Patience.is_free`` and ``change``; as ``Client.open_ledger``, where it may be advanced still.
        """
        found = await self._owned(found, owner, patience)
        await self._fence(found)
        return await self._put(found, partial(rest, owner=owner, cursor=cursor, leave=True))

    async def _owned(self, found: Subscription, owner: Owner, patience: Patience) -> Subscription:
        stream_id, name = found.stream_id, found.name
        while found.owner != owner:
            found = await self.read(stream_id, name)
            if await patience.is_free(f"subscription {name}", found.owner):
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
            # Nobody adds to a ledger whose entries are lost: it was fenced before they were asked for.
            if not is_lost(error):
                raise

    async def _put(self, found: Subscription, transition: Callable[[Subscription], Subscription]) -> Subscription:
        changed = await self.change(found.stream_id, found.name, transition)
        await self.tidy(changed)
        return changed

    async def tidy(self, found: Subscription) -> None:
        """Delete ledgers that count no more; what cannot be deleted now is left for later."""
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
