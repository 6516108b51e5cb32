"""``StreamStore``: creates, finds, lists, writes, reads, truncates and deletes streams.

For example:

    async with Client("sqlite:////var/lib/tallybook/metadata.db") as client, StreamStore(client) as streams:
        await streams.create("orders/eu", retention="72h")
        async with streams.writer("orders/eu") as writer:
            position = await writer.append(b"...", key=b"42")
        async for record in streams.reader("orders/eu"):
            print(record.position, record.payload)
"""

from __future__ import annotations

import warnings
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

from tallybook.client.background import client_tasks
from tallybook.client.client import Client
from tallybook.core.errors import InvalidArgument, StreamClosed
from tallybook.metadata.records.update import RecordUpdater
from tallybook.metadata.store import MetadataStore
from tallybook.runtime.concurrency.async_iterators import PagedListing
from tallybook.runtime.concurrency.handle_lifetime import Lifetime, while_open
from tallybook.runtime.concurrency.opening import opens
from tallybook.runtime.metrics.usage import MetricValue

from .catalog.catalog import StreamCatalog
from .catalog.head import Head, set_policy, truncate
from .catalog.stored_bytes import StoredBytes
from .catalog.subscription_record import Cursor
from .deliveries import complete_left
from .info import (
    LagSweep,
    NamespaceInfo,
    SegmentInfo,
    StreamInfo,
    SubscriptionInfo,
    SubscriptionLag,
    info_of,
    segment_info_of,
)
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
from .reader.reading import Gaps, Slow, StreamContext
from .reader.seek import Seeker
from .reader.tails import SharedTails
from .records.dedup import DedupMemory
from .releasing import OwnershipReleases
from .retention.janitor import StreamJanitor
from .sessions import StreamSession
from .start import Start
from .subscription.handle import SubscriptionReader
from .subscription.lag import LagMeter
from .subscription.opening import SubscriptionReaders
from .subscription.store import SubscriptionRecords
from .writer.handle import StreamWriter
from .writer.opening import StreamWriters

T = TypeVar("T")
K = TypeVar("K", str, int)


class StreamStore:
    """Streams by their names.

    Args:
        client: an open client; the caller closes it, after this store.
        namespace: the namespace of the names. Streams with the same name in two namespaces are independent.
        name: name of this process, shown to others as the owner of its streams.
        ids: bounds the memory for deduplication ids of its writers; stores may share it.
        load: counts the work of its writers and readers; stores may share it.

    Raises:
        InvalidArgument: invalid namespace or name.
    """

    def __init__(
        self,
        client: Client,
        *,
        namespace: str = DEFAULT_NAMESPACE,
        name: str = "",
        ids: DedupMemory | None = None,
        load: StreamLoad | None = None,
    ) -> None:
        self.namespace = check_namespace(namespace)
        name = check_process_name(name)
        self._client = client
        self._load = StreamLoad() if load is None else load
        world = client.world
        self._clock, self._rng, self._store = world.clock, world.rng, world.store
        updater = RecordUpdater(world.store, world.clock, world.rng)
        self._tasks = client_tasks("streams")
        self._catalog = StreamCatalog(world.store, updater)
        self._namespaces = Namespaces(world.store, updater)
        self._subscriptions = SubscriptionRecords(world.store, updater, client)
        self._janitor = StreamJanitor(
            world.store, self._catalog, self._namespaces, self._subscriptions, client, self._clock
        )
        self._seeker = Seeker(self._catalog, client)
        self._lags = LagMeter(world.store, self._catalog, self._subscriptions, self._seeker, client, self._clock)
        tails = SharedTails(client, self._tasks, self._load)
        self._lifetime = Lifetime(
            "the store of streams", parent=client.lifetime, error=StreamClosed, on_end=self._abandon_all
        )
        self._context = context = StreamContext(
            self._catalog, client, self._seeker, tails, self._clock, self._tasks, self._lifetime
        )
        self._session = StreamSession(name, updater, self._clock, self._rng, self._tasks, self._load)
        releases = OwnershipReleases(self._clock, self._rng, self._tasks, self._lifetime)
        self._writers = StreamWriters(self._namespaces, context, self._session, releases, self._load, ids)
        self._subscribed = SubscriptionReaders(self._subscriptions, context, self._session, releases)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def session(self) -> str:
        """The unique id of this store's session, as in ``StreamInfo.session``."""
        return self._session.name

    def bound_ids(self, ids: DedupMemory) -> None:
        """Deprecated, for one release: the argument ``ids`` of the constructor."""
        warnings.warn("bound_ids is now the argument ids of StreamStore", DeprecationWarning, stacklevel=2)
        self._writers.bound_ids(ids)

    def count_in(self, load: StreamLoad) -> None:
        """Deprecated, for one release: the argument ``load`` of the constructor."""
        warnings.warn("count_in is now the argument load of StreamStore", DeprecationWarning, stacklevel=2)
        self._load = load
        for part in (self._context.tails, self._session, self._writers):
            part.count_in(load)

    def stats(self) -> Mapping[str, MetricValue]:
        """Metric readings of its writers and readers, named as in ``load.STREAM_METRICS``."""
        return self._load.readings()

    async def close(self) -> None:
        """End background work, and abandon open writers; their streams stay as they are.

        Every waiting call, and every later call, of the store and its handles raises ``StreamClosed``.
        """
        self._lifetime.end()
        await self._session.end()
        await self._tasks.close()

    def _abandon_all(self) -> None:
        self._writers.abandon()
        self._subscribed.abandon()
        self._tasks.stop()

    # -- streams -----------------------------------------------------------------------------------------------------

    @while_open
    async def create_namespace(self, *, total_bytes: int | str | None = None, **policy: Any) -> None:
        """Create this store's namespace, or change its quota and the default policy of its streams.

        Args:
            total_bytes: quota of stored bytes for all of its streams together; ``None``: no quota.
            policy: values of ``StreamPolicy``: defaults for new streams.

        Raises:
            InvalidArgument: invalid policy or quota.
            MetadataUnavailable, MetadataConflict, MetadataOutcomeUnknown: the change failed, or its outcome is unknown.
        """
        await self._namespaces.set(self.namespace, StreamPolicy.of(None, **policy), total_bytes)

    @while_open
    async def namespace_info(self) -> NamespaceInfo:
        """This store's namespace: the default policy of its streams, and its quota.

        Raises:
            As ``create``; DamagedFile: its metadata cannot be read.
        """
        return await self._namespaces.info(self.namespace)

    @while_open
    async def delete_namespace(self) -> None:
        """Delete this store's namespace, which must have no streams.

        Raises:
            InvalidArgument: it has streams.
            NoSuchNamespace: it was never created.
            MetadataUnavailable, MetadataConflict, MetadataOutcomeUnknown: as ``create_namespace``.
        """
        await self._namespaces.policy(self.namespace)
        async for name in self.list():
            raise InvalidArgument(f"namespace {self.namespace!r} has streams, such as {name!r}")
        await self._namespaces.delete(self.namespace)

    def namespaces(self) -> PagedListing[str]:
        """All namespaces, with the default one, in order.

        Raises:
            MetadataUnavailable: the metadata store does not answer.
        """
        return self._listed(self._namespaces.list, str, "")

    def _listed(self, found: Callable[[K], AsyncIterator[T]], key_of: Callable[[T], K], after: K) -> PagedListing[T]:
        return listing(found, key_of, after, partial(self._tasks.spawn, name="list"), self._lifetime)

    @while_open
    async def create(self, name: str, policy: StreamPolicy | None = None, **changes: Any) -> StreamInfo:
        """Create a stream.

        Args:
            policy: its policy; by default, that of the namespace.
            changes: changed values of the policy, such as ``retention="72h"``.

        Raises:
            InvalidArgument: invalid name or policy.
            StreamExists: there is a stream with this name.
            NoSuchNamespace: this store's namespace was never created.
            MetadataUnavailable, MetadataConflict, MetadataOutcomeUnknown: the change failed, or its outcome is unknown.
        """
        check_stream_name(name)
        wanted = StreamPolicy.of(policy or await self._namespaces.policy(self.namespace), **changes)
        now_ms = self._clock.wall_us() // 1000
        head = Head(self._rng.uuid().replace("-", ""), self.namespace, name, now_ms, wanted)
        return info_of(await self._catalog.create(head))

    @while_open
    async def info(self, name: str) -> StreamInfo:
        """A stream's properties and state.

        Raises:
            NoSuchStream: there is no stream with this name.
            MetadataUnavailable, DamagedFile: its metadata cannot be read.
        """
        return info_of(await self._find(name))

    @while_open
    async def stored_bytes(self, name: str) -> int:
        """The payload of the sealed segments of a stream.

        Raises:
            As ``info``; also MetadataConflict: segments were truncated meanwhile.
        """
        return await StoredBytes(self._catalog).of(await self._find(name))

    @while_open
    async def info_by_id(self, stream_id: str) -> StreamInfo:
        """Like ``info``, by id: independent of renames.

        Raises:
            As ``info``.
        """
        return info_of(await self._catalog.read(stream_id))

    @while_open
    async def last(self, name: str) -> tuple[Position, int] | None:
        """Position and number of the last record that readers see; ``None`` if there is none.

        Raises:
            NoSuchStream: there is no such stream.
            As ``info`` and ``StreamReader.batches``.
        """
        head = await self._find(name)
        found = await self._seeker.last(head)
        return None if found is None else (Position(*found[0], tag=head.stream_id[:TAG_CHARS]), found[1])

    def segments(self, name: str, *, after: int = 0) -> PagedListing[SegmentInfo]:
        """The segments of a stream with numbers above ``after``, in order.

        Raises:
            As ``info``; also MetadataConflict: segments were truncated meanwhile.
        """

        async def found(after: int) -> AsyncIterator[SegmentInfo]:
            async for segment in self._catalog.segments_from(await self._find(name), after + 1):
                yield segment_info_of(segment)

        return self._listed(found, lambda segment: segment.number, after)

    @while_open
    async def exists(self, name: str) -> bool:
        """Whether there is a stream with this name.

        Raises:
            InvalidArgument, MetadataUnavailable, DamagedFile: as ``info``.
        """
        return await self._catalog.id_of(self.namespace, check_stream_name(name)) is not None

    def list(self, prefix: str = "", *, after: str = "") -> PagedListing[str]:
        """Names of the streams that begin with ``prefix`` and come after ``after``, in order.

        Raises:
            MetadataUnavailable: the metadata store does not answer.
        """
        return self._listed(partial(self._catalog.list, self.namespace, check_prefix(prefix)), str, after)

    @while_open
    async def set_policy(self, name: str, **changes: Any) -> StreamInfo:
        """Change a stream's policy; existing segments are not changed.

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
        """Rename a stream. Its writer and readers are not affected.

        Raises:
            StreamExists: there is a stream with the new name.
            MetadataConflict: another rename is in progress.
            MetadataUnavailable, MetadataOutcomeUnknown: it may have the new name or the old one; repeat the call, or
                wait for the janitor.
            As ``info``.
        """
        head, wanted = await self._find(name), check_stream_name(new_name)
        return info_of(head if wanted == name else await self._catalog.rename(head, wanted))

    @while_open
    async def delete(self, name: str) -> None:
        """Delete a stream and its records. Its writer and its readers fail with ``NoSuchStream``.

        Raises:
            NoSuchStream: there is no stream with this name.
            MetadataUnavailable, BookieUnavailable, ...: the deletion is incomplete, and the stream unusable; repeat the
                call, or wait for the janitor.
        """
        await self._janitor.delete(self.namespace, check_stream_name(name))

    @while_open
    async def truncate(self, name: str, *, before: Position | str | Start) -> StreamInfo:
        """Delete all records before a position, or before a start. Cannot be undone.

        Raises:
            ForeignPosition: a position of another stream.
            InvalidArgument: a position after the last record.
            As ``info`` and ``StreamReader.batches``.
        """
        head = await self._find(name)
        start = before if isinstance(before, Start) else Start.at(before)
        wanted = await self._seeker.begin_at(head, start)
        head = await self._catalog.change(head.stream_id, lambda found: truncate(found, wanted))
        return info_of(await self._janitor.tidy(head))

    # -- writing and reading -----------------------------------------------------------------------------------------

    @opens
    async def writer(self, name: str, *, wait_s: float | None = None, accept_loss: bool = False) -> StreamWriter:
        """Become the writer of a stream.

        Args:
            wait_s: seconds to wait until the present writer closes, or its process is gone; ``None``: fence it now.
            accept_loss: continue although the end of the stream is lost. Readers get a gap, record numbers continue
                after it, and deduplication ids of the lost records are forgotten.

        Raises:
            NoSuchLedger, DataMissing, EntryCorrupt, EnvelopeDamaged, ...: the end of the stream is lost.
            StreamOwned: another process still writes it; only with ``wait_s``.
            StreamEnded: the stream is sealed.
            StreamFenced: a newer writer has taken it meanwhile.
            NotEnoughBookies: no segment can be created.
            RecoveryFailed, BookieUnavailable, ...: the previous writer's segments cannot be recovered now; try again.
            Busy: no memory now for the ids of its last records (see ``ids`` of the store).
            InvalidArgument: these ids exceed the whole memory limit.
            As ``info``.
        """
        return await self._writers.open((await self._find(name)).stream_id, wait_s, accept_loss=accept_loss)

    @opens
    async def writer_by_id(self, stream_id: str, *, wait_s: float | None = None) -> StreamWriter:
        """Like ``writer``, by id: independent of renames.

        Raises:
            As ``writer``.
        """
        return await self._writers.open(stream_id, wait_s)

    def reader(
        self,
        name: str,
        *,
        start: Start | None = None,
        follow: bool = True,
        gaps: Gaps = "raise",
        slow: Slow = "catch_up",
    ) -> StreamReader:
        """Read a stream; see ``StreamReader``. The stream is looked up on the first read.

        Args:
            start: where to start; by default with the first existing record.
        """
        check_stream_name(name)
        return StreamReader(
            lambda: self._find(name), start or Start.earliest(), self._context, follow=follow, gaps=gaps, slow=slow
        )

    # -- subscriptions -----------------------------------------------------------------------------------------------

    @opens
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
        """Become the reader of a subscription; it is created if it does not exist.

        Args:
            start: where a new subscription starts; by default with the first existing record.
            wait_s: as for ``writer``.
            follow, gaps: as for ``reader``.

        Raises:
            StreamOwned: another process still reads it; only with ``wait_s``.
            InvalidArgument: invalid name, or ``start`` lies beyond the end of the stream.
            DamagedFile: its cursor is lost; set it with ``reset_subscription``.
            RecoveryFailed, BookieUnavailable, MetadataUnavailable, ...: its cursor cannot be read now.
            As ``info``.
        """
        check_subscription(subscription)
        head = await self._find(name)
        return await self._subscribed.open(
            head, subscription, start or Start.earliest(), wait_s, follow=follow, gaps=gaps
        )

    def subscriptions(self, name: str, *, after: str = "") -> PagedListing[SubscriptionInfo]:
        """The subscriptions of a stream after ``after``, in order, with their cursors.

        Raises:
            BookieUnavailable, MetadataUnavailable, ...: a cursor cannot be read now.
            As ``info``.
        """

        async def found(after: str) -> AsyncIterator[SubscriptionInfo]:
            async for info in self._subscriptions.infos((await self._find(name)).stream_id, after):
                yield info

        return self._listed(found, lambda info: info.name, after)

    @while_open
    async def sequence_of(self, name: str, cursor: Cursor) -> int:
        """The number of the next record after a cursor.

        Raises:
            As ``truncate``.
        """
        return (await self._seeker.begin_at(await self._find(name), cursor.start)).sequence

    @while_open
    async def lag(self, name: str, cursor: Cursor) -> SubscriptionLag:
        """How far a cursor is behind the end of the stream: in records, bytes and time.

        Raises:
            As ``truncate``.
        """
        return await self._lags.measure(await self._find(name), cursor)

    @while_open
    async def sweep_lags(self) -> LagSweep:
        """Measure the lag of the subscriptions of all streams, at most 500; raises as ``namespaces``."""
        return await self._lags.sweep()

    @while_open
    async def reset_subscription(self, name: str, subscription: str, start: Start) -> SubscriptionInfo:
        """Set the cursor of a subscription, also if it is lost; its reader is fenced.

        Raises:
            NoSuchSubscription: there is no subscription with this name.
            As ``subscribe``, except DamagedFile.
        """
        check_subscription(subscription)
        head = await self._find(name)
        found = await self._subscribed.reset(head, subscription, start)
        return SubscriptionInfo(subscription, found.cursor, found.created_at_ms, None)

    @while_open
    async def unsubscribe(self, name: str, subscription: str) -> None:
        """Delete a subscription; its reader is fenced.

        Raises:
            NoSuchSubscription: there is no subscription with this name.
            As ``info``.
        """
        head = await self._find(name)
        await self._subscriptions.delete(head.stream_id, check_subscription(subscription))

    # -- keeping -----------------------------------------------------------------------------------------------------

    @property
    def metadata_store(self) -> MetadataStore:
        """The metadata store with the records of streams."""
        return self._store

    @while_open
    async def keep(self) -> int:
        """Run one pass of the stream janitor over all streams of the cluster; return for how many it failed.

        It deletes expired and truncated segments, and finishes interrupted deletions, renames, and committed batches
        (``deliveries``).

        Raises:
            MetadataUnavailable: the store does not answer; the remaining streams wait for the next pass.
        """
        failed = await self._janitor.run_pass()
        stores = partial(StreamStore, self._client, name=self._session.process)
        return failed + await complete_left(self._client, lambda namespace: stores(namespace=namespace))

    async def _find(self, name: str) -> Head:
        return await self._catalog.find(self.namespace, check_stream_name(name))
