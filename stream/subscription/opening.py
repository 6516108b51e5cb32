"""Opens the subscription readers of a ``StreamStore``, and resets subscriptions."""

from __future__ import annotations

from functools import partial
from weakref import WeakValueDictionary

from tallybook.core.errors import NoSuchSubscription

from ..catalog.head import Head
from ..catalog.subscription_record import Cursor, Subscription, leave
from ..position import TAG_CHARS, Position
from ..reader.handle import reader_of
from ..reader.reading import Gaps, StreamContext
from ..releasing import OwnershipReleases
from ..sessions import OwnershipWait, StreamSession
from ..start import Start
from .handle import SubscriptionReader, subscription_lifetime
from .store import SubscriptionRecords


class SubscriptionReaders:
    """The subscription readers of one store.

    Args:
        context, session, releases: of the store.
    """

    def __init__(
        self,
        records: SubscriptionRecords,
        context: StreamContext,
        session: StreamSession,
        releases: OwnershipReleases,
    ) -> None:
        self._records = records
        self._context = context
        self._world = context.client.world
        self._session = session
        self._releases = releases
        self._open: WeakValueDictionary[str, SubscriptionReader] = WeakValueDictionary()
        """Open readers, by their owner token."""

    async def open(
        self, head: Head, name: str, start: Start, wait_s: float | None, *, follow: bool, gaps: Gaps
    ) -> SubscriptionReader:
        """Become the reader of a subscription; it is created at ``start`` if it does not exist.

        Raises:
            As ``StreamStore.subscribe``.
        """
        found = await self._made(head, name, start)
        owner = await self._session.begun()
        change = partial(self._records.change, head.stream_id, name, partial(leave, owner=owner))
        release_ownership = partial(self._releases.later, f"subscription {name}", change)
        try:
            found = await self._records.take(found, owner, OwnershipWait(self._world, wait_s))
        except BaseException:
            release_ownership()
            raise
        lifetime = subscription_lifetime(name, self._context.lifetime)
        reader = reader_of(self._context, head, found.cursor.start, follow=follow, gaps=gaps, parent=lifetime)
        self._open[owner.token] = opened = SubscriptionReader(
            self._records,
            self._context.client,
            found,
            owner,
            head.policy,
            reader,
            self._context.clock,
            self._context.tasks,
            release_ownership,
            lifetime,
        )
        return opened

    async def _made(self, head: Head, name: str, start: Start) -> Subscription:
        """Read the subscription, or create it at ``start``."""
        try:
            return await self._records.read(head.stream_id, name)
        except NoSuchSubscription:
            cursor = await self._cursor_at(head, start)
            return await self._records.create(
                Subscription(head.stream_id, name, cursor, self._context.clock.wall_us() // 1000)
            )

    async def reset(self, head: Head, name: str, start: Start) -> Subscription:
        """Set the cursor of a subscription, also if it is lost; its reader is fenced.

        Raises:
            As ``StreamStore.reset_subscription``.
        """
        found = await self._records.read(head.stream_id, name)
        cursor = await self._cursor_at(head, start)
        return await self._records.reset(found, self._session.owner(), OwnershipWait(self._world, None), cursor)

    async def _cursor_at(self, head: Head, start: Start) -> Cursor:
        begins = await self._context.seeker.begin_at(head, start)
        return Cursor(Position(*begins.place, tag=head.stream_id[:TAG_CHARS]), after=False)

    def abandon(self) -> None:
        """Abandon all open readers."""
        for _, opened in sorted(self._open.items()):
            opened.abandon()
