"""The streams of a cluster: created, found, listed, written, read, truncated, deleted.

async with Client("sqlite:////var/lib/tallybook/metadata.db") as client, StreamStore(client) as streams:
    await streams.create("orders/eu", retention="72h")
    async with await streams.writer("orders/eu") as writer:
        position = await writer.append(b"...", key=b"42")
    async for record in streams.reader("orders/eu"):
        print(record.position, record.payload)
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any, Final, Self, TypeVar
from weakref import WeakValueDictionary

from tallybook.client.background import client_tasks
from tallybook.client.client import Client
from tallybook.core.errors import InvalidArgument, NoSuchSubscription, StreamClosed, StreamExists
from tallybook.metadata.record_update import RecordUpdater
from tallybook.metadata.store import MetadataStore
from tallybook.runtime.lifetime import Lifetime, while_open
from tallybook.runtime.logging import logger
from tallybook.runtime.meter import Reading
from tallybook.runtime.steps import Listing

from .catalog import Catalog
from .dedup import IdRoom
from .deliveries import complete_left
from .head import Head, Owner, begin_rename, release, set_policy, truncate
from .info import SegmentInfo, StreamInfo, SubscriptionInfo, info_of, segment_info_of
from .keeping import Keeper
from .last_ids import check_ids_fit, read_window
from .listing import listing
from .load import StreamLoad
from .names import (
    DEFAULT_NAMESPACE,
    check_namespace,
    check_prefix,
    check_process_name,
    check_stream_name,
    check_subscription,
)
from .namespaces import Namespaces
from .policy import StreamPolicy
from .position import TAG_CHARS, Position
from .reader.handle import StreamReader
from .reader.reading import Gaps, ReaderContext, Slow
from .reader.seek import Seeker
from .reader.tails import Tails
from .releasing import release_soon
from .sessions import Patience, Session
from .start import Start
from .subscription.handle import SubscriptionReader, subscription_lifetime
from .subscription.record import Cursor, Subscription, leave
from .subscription.shelf import Shelf
from .writer.handle import StreamWriter
from .writer.opening import flow_of, take_over
from .writer.segments import Segments

WRITERS_LOOK_SECONDS: Final = 5.0
"""Pause between looks at the age of segments of writers that may append nothing."""

_log = logger("streams")

T = TypeVar("T")
K = TypeVar("K", str, int)


class StreamStore:
    """Streams by their names.

    Args:
        client: open; it is closed by who opened it, after this store.
        namespace: where the names belong to. Streams of the same name in two namespaces have nothing to do with each
            other.
        name: of this process, as others see who owns a stream.

    Raises:
        InvalidArgument: the namespace, or the name, cannot be.
    """

    def __init__(self, client: Client, *, namespace: str = DEFAULT_NAMESPACE, name: str = "") -> None:
        self.namespace = check_namespace(namespace)
        name = check_process_name(name)
        self._client = client
        world = client.world
        self._clock, self._rng, self._store = world.clock, world.rng, world.store
        updater = RecordUpdater(world.store, world.clock, world.rng)
        self._tasks = client_tasks("streams")
        self._catalog = Catalog(world.store, updater)
        self._namespaces = Namespaces(world.store, updater)
        self._shelf = Shelf(world.store, updater, client)
        self._keeper = Keeper(world.store, self._catalog, self._shelf, client, self._clock)
        self._seeker = Seeker(self._catalog, client)
        tails = Tails(client, self._tasks, lambda: self._load)
        self._lifetime = Lifetime(
            "the store of streams", parent=client.lifetime, error=StreamClosed, on_end=self._abandon_all
        )
        self._readers = ReaderContext(
            self._catalog, client, self._seeker, tails, self._clock, self._tasks, self._lifetime
        )
        self._session = Session(self._rng.uuid(), updater, self._clock, self._tasks)
        self._name = name or self._session.name[:8]
        self._ids: IdRoom | None = None
        self._writers: Sequence[StreamWriter] = ()
        self._subscribed: WeakValueDictionary[str, SubscriptionReader] = WeakValueDictionary()
        """By the uuid under which each owns its subscription."""
        self._looking: asyncio.Task[None] | None = None
        self._load = self._session.load

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def session(self) -> str:
        """What tells this store from others, of whatever name, where it owns a stream."""
        return self._session.name

    def bound_ids(self, ids: IdRoom) -> None:
        """Let writers that are opened from here on remember ids only in this room, which other stores may share."""
        self._ids = ids

    def count_in(self, load: StreamLoad) -> None:
        """Count what writers and readers do that are opened from here on in ``load``, which other stores may share."""
        self._load = self._session.load = load

    def stats(self) -> Mapping[str, Reading]:
        """Numbers for metrics, named as in ``load.STREAM_METRICS``: what its writers and readers do."""
        return self._load.readings()

    async def close(self) -> None:
        """End background work. Writers that are not closed are let go of; their streams stay as they are.

        Every call that waits, of the store and of what it has given, and every later one raises ``StreamClosed``.
        """
        self._lifetime.end()
        await self._session.end()
        await self._tasks.close()

    def _abandon_all(self) -> None:
        for writer in self._writers:
            writer.abandon()
        self._writers = ()
        for _, subscribed in sorted(self._subscribed.items()):
            subscribed.abandon()
        self._tasks.stop()

    # -- streams -----------------------------------------------------------------------------------------------------

    @while_open
    async def create_namespace(self, **policy: Any) -> None:
        """Make this store's namespace, or change what its streams are made with.

        Args:
            policy: values of ``StreamPolicy`` for streams that are not given others.

        Raises:
            InvalidArgument: the policy cannot be.
            MetadataUnavailable, MetadataConflict, MetadataOutcomeUnknown: the metadata store does not settle it.
        """
        await self._namespaces.set(self.namespace, StreamPolicy.of(None, **policy))

    @while_open
    async def delete_namespace(self) -> None:
        """Remove this store's namespace, which has no streams any more.

        Raises:
            InvalidArgument: it has streams.
            NoSuchNamespace: it was never made.
            MetadataUnavailable, MetadataConflict, MetadataOutcomeUnknown: as ``create_namespace``.
        """
        await self._namespaces.policy(self.namespace)
        async for name in self.list():
            raise InvalidArgument(f"namespace {self.namespace!r} has streams, such as {name!r}")
        await self._namespaces.delete(self.namespace)

    def namespaces(self) -> Listing[str]:
        """All namespaces that were made, and the default one, in order.

        Raises:
            MetadataUnavailable: the metadata store does not answer.
        """
        return self._listed(self._namespaces.list, str, "")

    def _listed(self, found: Callable[[K], AsyncIterator[T]], key_of: Callable[[T], K], after: K) -> Listing[T]:
        return listing(found, key_of, after, partial(self._tasks.spawn, name="list"), self._lifetime)

    @while_open
    async def create(self, name: str, policy: StreamPolicy | None = None, **changes: Any) -> StreamInfo:
        """Make a stream.

        Args:
            policy: how it is kept; by default, that of the namespace.
            changes: values of the policy that are to be others, such as ``retention="72h"``.

        Raises:
            InvalidArgument: the name, or the policy, cannot be.
            StreamExists: there is one of that name.
            NoSuchNamespace: this store's namespace was never made.
            MetadataUnavailable, MetadataConflict, MetadataOutcomeUnknown: the metadata store does not settle it.
        """
        check_stream_name(name)
        wanted = StreamPolicy.of(policy or await self._namespaces.policy(self.namespace), **changes)
        now_ms = self._clock.wall_us() // 1000
        head = Head(self._rng.uuid().replace("-", ""), self.namespace, name, now_ms, wanted)
        return info_of(await self._catalog.create(head))

    @while_open
    async def info(self, name: str) -> StreamInfo:
        """What is known of a stream.

        Raises:
            NoSuchStream: there is none.
            MetadataUnavailable, DamagedFile: its records cannot be read.
        """
        return info_of(await self._find(name))

    @while_open
    async def info_by_id(self, stream_id: str) -> StreamInfo:
        """What is known of a stream, whatever it is called by now.

        Raises:
            As ``info``.
        """
        return info_of(await self._catalog.read(stream_id))

    @while_open
    async def last(self, name: str) -> tuple[Position, int] | None:
        """Position and number of the last record that readers see; ``None`` if none is there.

        Raises:
            NoSuchStream: there is no such stream.
            As ``info`` and ``StreamReader.batches``.
        """
        head = await self._find(name)
        found = await self._seeker.last(head)
        return None if found is None else (Position(*found[0], tag=head.stream_id[:TAG_CHARS]), found[1])

    def segments(self, name: str, *, after: int = 0) -> Listing[SegmentInfo]:
        """The segments of a stream with numbers above ``after``, in order.

        Raises:
            As ``info``; MetadataConflict, too: some were truncated meanwhile.
        """

        async def found(after: int) -> AsyncIterator[SegmentInfo]:
            async for segment in self._catalog.segments_from(await self._find(name), after + 1):
                yield segment_info_of(segment)

        return self._listed(found, lambda segment: segment.number, after)

    @while_open
    async def exists(self, name: str) -> bool:
        """Whether there is a stream of that name.

        Raises:
            InvalidArgument, MetadataUnavailable, DamagedFile: as ``info``.
        """
        return await self._catalog.id_of(self.namespace, check_stream_name(name)) is not None

    def list(self, prefix: str = "", *, after: str = "") -> Listing[str]:
        """Names of the streams that begin with ``prefix`` and come after ``after``, in order.

        Raises:
            MetadataUnavailable: the metadata store does not answer.
        """
        return self._listed(partial(self._catalog.list, self.namespace, check_prefix(prefix)), str, after)

    @while_open
    async def set_policy(self, name: str, **changes: Any) -> StreamInfo:
        """Change how a stream is kept; segments that are there stay as they were made.

        Raises:
            As ``create`` and ``info``.
        """
        head = await self._find(name)
        StreamPolicy.of(head.policy, **changes)
        changed = await self._catalog.change(
            head.stream_id, lambda found: set_policy(found, StreamPolicy.of(found.policy, **changes))
        )
        return info_of(changed)

    @while_open
    async def rename(self, name: str, new_name: str) -> StreamInfo:
        """Give a stream another name. Whoever writes or reads it goes on.

        Raises:
            StreamExists: there is a stream of the new name.
            MetadataConflict: somebody else renames it just now.
            MetadataUnavailable, MetadataOutcomeUnknown: it may have the new name or the old one; the same call, or the
                keeper, goes on.
            As ``info``.
        """
        head, wanted = await self._find(name), check_stream_name(new_name)
        if wanted == name:
            return info_of(head)
        with suppress(StreamExists):
            # What was begun before, and cut off.
            await self._catalog.finish_renaming(head)
        head = await self._catalog.change(head.stream_id, partial(begin_rename, name=wanted))
        return info_of(await self._catalog.finish_renaming(head))

    @while_open
    async def delete(self, name: str) -> None:
        """Delete a stream with all that is in it. Its writer and its readers fail with ``NoSuchStream``.

        Raises:
            NoSuchStream: there is none.
            MetadataUnavailable, BookieUnavailable, ...: not all of it is deleted; nobody can use it any more, and the
                same call, or the keeper, goes on.
        """
        check_stream_name(name)
        await self._keeper.delete(self.namespace, name)

    @while_open
    async def truncate(self, name: str, *, before: Position | str | Start) -> StreamInfo:
        """Give up all records before a position, or before where a reader would start; what is given up stays so.

        Raises:
            ForeignPosition: a position of another stream.
            InvalidArgument: a position behind the last record.
            As ``info`` and ``StreamReader.batches``.
        """
        head = await self._find(name)
        start = before if isinstance(before, Start) else Start.at(before)
        wanted = await self._seeker.begin_at(head, start)
        head = await self._catalog.change(head.stream_id, lambda found: truncate(found, wanted))
        return info_of(await self._keeper.tidy(head))

    # -- writing and reading -----------------------------------------------------------------------------------------

    @while_open
    async def writer(self, name: str, *, wait_s: float | None = None, accept_loss: bool = False) -> StreamWriter:
        """Become the writer of a stream.

        Args:
            wait_s: by default, the present writer is fenced. With a number of seconds, it is waited for: until it
                closes, or its process is gone.
            accept_loss: whether to go on although the end of the stream is lost. Readers are told of it; the numbers of
                records go on further on, and ids in what is lost are forgotten.

        Raises:
            NoSuchLedger, DataMissing, EntryCorrupt, EnvelopeDamaged, ...: the end of the stream is lost.
            StreamOwned: somebody else writes it still; only with ``wait_s``.
            StreamEnded: nobody may write it any more.
            StreamFenced: a newer writer has taken it meanwhile.
            NotEnoughBookies: no segment can be made.
            RecoveryFailed, BookieUnavailable, MetadataUnavailable, ...: what the writer before left cannot be settled
                now; try again.
            Busy: there is no room for the ids of its last records, where the store has a limit.
            InvalidArgument: there never is, because they are too many.
            As ``info``.
        """
        head = await self._find(name)
        return await self._writer_of(head.stream_id, wait_s, accept_loss=accept_loss)

    @while_open
    async def writer_by_id(self, stream_id: str, *, wait_s: float | None = None) -> StreamWriter:
        """Become the writer of a stream, whatever it is called by now: its name may have become that of another one.

        Raises:
            As ``writer``.
        """
        return await self._writer_of(stream_id, wait_s, accept_loss=False)

    async def _writer_of(self, stream_id: str, wait_s: float | None, *, accept_loss: bool) -> StreamWriter:
        await self._session.begin()
        owner = Owner(self._rng.uuid(), self._session.name, self._name)
        patience = Patience(self._store, self._clock, wait_s)
        if self._ids is not None:
            head = await self._catalog.read(stream_id)
            await check_ids_fit(head, self._ids, partial(self._from, head))
        try:
            head = await take_over(
                self._catalog,
                self._client,
                self._clock,
                stream_id,
                owner,
                free=patience.is_free,
                accept_loss=accept_loss,
            )
            return await self._writer(head, owner)
        except BaseException:
            self._let_go(stream_id, owner)
            raise

    def _let_go(self, stream_id: str, owner: Owner) -> None:
        change = partial(self._catalog.change, stream_id, partial(release, owner=owner))
        self._let_go_of(f"stream {stream_id}", change)

    def _let_go_of(self, what: str, change: Callable[[], Awaitable[object]]) -> None:
        if not (self._lifetime.ended or self._tasks.closing):
            self._tasks.spawn(release_soon(what, change, self._clock, self._rng.fork("let go")), name="let go")

    async def _writer(self, head: Head, owner: Owner) -> StreamWriter:
        window = await read_window(head, self._ids, partial(self._from, head))
        flow = flow_of(head, self._client, self._clock, self._load)
        segments = Segments(self._catalog, self._client, head, owner, flow, self._clock, self._tasks, self._load)
        try:
            await segments.begin()
        except BaseException:
            window.clear()
            raise
        writer = StreamWriter(
            flow,
            segments,
            window,
            self._client.budget,
            let_go=partial(self._let_go, head.stream_id, owner),
            parent=self._lifetime,
        )
        self._writers = [*(other for other in self._writers if not other.ended), writer]
        self._load.taken += 1
        if self._looking is None:
            self._looking = self._tasks.spawn(self._look_at_writers(), name="look at writers")
        return writer

    async def _look_at_writers(self) -> None:
        """One timer for all writers, however many: a segment grows old though nothing is appended to it."""
        while True:
            await self._clock.sleep(WRITERS_LOOK_SECONDS)
            for writer in self._writers:
                writer.look()

    def _from(self, head: Head, sequence: int) -> StreamReader:
        return self._reader_of(head, Start.sequence(sequence), follow=False, gaps="yield")

    def reader(
        self,
        name: str,
        *,
        start: Start | None = None,
        follow: bool = True,
        gaps: Gaps = "raise",
        slow: Slow = "catch_up",
    ) -> StreamReader:
        """Read a stream. See ``StreamReader``; the stream is looked for when reading begins.

        Args:
            start: where to begin; by default with the first record that is there.
        """
        check_stream_name(name)
        return StreamReader(
            lambda: self._find(name), start or Start.earliest(), self._readers, follow=follow, gaps=gaps, slow=slow
        )

    def _reader_of(
        self, head: Head, start: Start, *, follow: bool, gaps: Gaps, parent: Lifetime | None = None
    ) -> StreamReader:
        async def find() -> Head:
            return await self._catalog.read(head.stream_id, head.name)

        return StreamReader(find, start, self._readers, follow=follow, gaps=gaps, parent=parent)

    # -- subscriptions -----------------------------------------------------------------------------------------------

    @while_open
    async def subscribe(
        self,
        name: str,
        subscription: str,
        *,
        start: Start | None = None,
        wait_s: float | None = None,
        follow: bool = True,
        gaps: Gaps = "raise",
    ) -> SubscriptionReader:
        """Become the reader of a subscription, which is made if there is none of that name.

        Args:
            start: where one that is made begins; by default with the first record that is there.
            wait_s: as for ``writer``.
            follow, gaps: as for ``reader``.

        Raises:
            StreamOwned: somebody else reads it still; only with ``wait_s``.
            InvalidArgument: it cannot have that name, or ``start`` lies beyond the end of the stream.
            DamagedFile: it is lost how far it has come; ``reset_subscription`` says it anew.
            RecoveryFailed, BookieUnavailable, MetadataUnavailable, ...: it cannot be told now how far it has come.
            As ``info``.
        """
        check_subscription(subscription)
        head = await self._find(name)
        found = await self._made(head, subscription, start or Start.earliest())
        await self._session.begin()
        owner = Owner(self._rng.uuid(), self._session.name, self._name)
        change = partial(self._shelf.change, head.stream_id, subscription, partial(leave, owner=owner))
        let_go = partial(self._let_go_of, f"subscription {subscription}", change)
        try:
            found = await self._shelf.take(found, owner, Patience(self._store, self._clock, wait_s))
        except BaseException:
            let_go()
            raise
        lifetime = subscription_lifetime(subscription, self._lifetime)
        reader = self._reader_of(head, found.cursor.start, follow=follow, gaps=gaps, parent=lifetime)
        subscribed = SubscriptionReader(
            self._shelf, self._client, found, owner, head.policy, reader, self._clock, self._tasks, let_go, lifetime
        )
        self._subscribed[owner.token] = subscribed
        return subscribed

    async def _made(self, head: Head, name: str, start: Start) -> Subscription:
        """The subscription of that name, which begins at ``start`` if it is made now."""
        try:
            return await self._shelf.read(head.stream_id, name)
        except NoSuchSubscription:
            begins = await self._seeker.begin_at(head, start)
            first = Cursor(Position(*begins.place, tag=head.stream_id[:TAG_CHARS]), after=False)
            now_ms = self._clock.wall_us() // 1000
            return await self._shelf.create(Subscription(head.stream_id, name, first, now_ms))

    def subscriptions(self, name: str, *, after: str = "") -> Listing[SubscriptionInfo]:
        """The subscriptions of a stream that come after ``after``, in order, each with how far it has come.

        Raises:
            BookieUnavailable, MetadataUnavailable, ...: that cannot be told now.
            As ``info``.
        """

        async def found(after: str) -> AsyncIterator[SubscriptionInfo]:
            async for info in self._shelf.infos((await self._find(name)).stream_id, after):
                yield info

        return self._listed(found, lambda info: info.name, after)

    @while_open
    async def sequence_of(self, name: str, cursor: Cursor) -> int:
        """The number of the record that comes next for who is at ``cursor``.

        Raises:
            As ``truncate``.
        """
        return (await self._seeker.begin_at(await self._find(name), cursor.start)).sequence

    @while_open
    async def reset_subscription(self, name: str, subscription: str, start: Start) -> SubscriptionInfo:
        """Set a subscription back, or forth, also where it is lost how far it had come; who reads it is fenced.

        Raises:
            NoSuchSubscription: there is none of that name.
            As ``subscribe``, but for DamagedFile.
        """
        check_subscription(subscription)
        head = await self._find(name)
        found = await self._shelf.read(head.stream_id, subscription)
        begins = await self._seeker.begin_at(head, start)
        cursor = Cursor(Position(*begins.place, tag=head.stream_id[:TAG_CHARS]), after=False)
        owner = Owner(self._rng.uuid(), self._session.name, self._name)
        found = await self._shelf.reset(found, owner, Patience(self._store, self._clock, None), cursor)
        return SubscriptionInfo(subscription, found.cursor, found.created_at_ms, None)

    @while_open
    async def unsubscribe(self, name: str, subscription: str) -> None:
        """Delete a subscription; who reads it is fenced.

        Raises:
            NoSuchSubscription: there is none of that name.
            As ``info``.
        """
        head = await self._find(name)
        await self._shelf.delete(head.stream_id, check_subscription(subscription))

    # -- keeping -----------------------------------------------------------------------------------------------------

    @property
    def metadata_store(self) -> MetadataStore:
        """Where the records of streams are."""
        return self._store

    @while_open
    async def keep(self) -> int:
        """Look after all streams of the cluster once; how many could not be looked after.

        What is too old, or was truncated, is deleted, and what was left half done is finished: deletions, changes of
        name, and batches that were committed (``deliveries``) and are not in their stream yet.

        Raises:
            MetadataUnavailable: the store does not answer; streams are left for the next round.
        """
        failed = await self._keeper.keep_all()
        return failed + await complete_left(self._client, self._of_namespace)

    def _of_namespace(self, namespace: str) -> StreamStore:
        return StreamStore(self._client, namespace=namespace, name=self._name)

    async def _find(self, name: str) -> Head:
        return await self._catalog.find(self.namespace, check_stream_name(name))
