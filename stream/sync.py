"""Streams for programs without asyncio: the same calls, each of which blocks until its answer is there.

    with Client("sqlite:////var/lib/tallybook/metadata.db") as client, StreamStore(client) as streams:
        streams.create("orders/eu", retention="72h")
        with streams.writer("orders/eu") as writer:
            position = writer.append(b"...", key=b"42")
        for record in streams.reader("orders/eu", follow=False):
            print(record.position, record.payload)

They stand on one ``tallybook.client.sync.Client``, and are the asyncio streams, which run in its thread beside the
program's own: what they promise, what they raise, their deadlines and their limits are those of ``tallybook.stream``.

    threads of the program                     thread "tallybook client"
    StreamStore, StreamWriter, readers --run--> tallybook.stream: StreamStore, StreamWriter, readers

Any number of threads may share a store and its writers; a reader belongs to one thread at a time, and any other may
close it. Ctrl-C in a thread that waits cancels what it waits for, and leaves everything as good as before.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from tallybook.client.sync import Client
from tallybook.core.errors import HandleClosed, StreamClosed
from tallybook.runtime.loop_iteration import Halt, LoopIterator
from tallybook.runtime.meter import Reading

from . import streams as asyncio_streams
from .envelope import Record
from .gaps import Gap, GapReason
from .info import SegmentInfo, StreamInfo, SubscriptionInfo
from .names import DEFAULT_NAMESPACE
from .policy import StreamPolicy
from .position import Position
from .reader import handle
from .reader.reading import Gaps, Slow
from .record import Outgoing, Payload
from .start import Start
from .subscription import handle as subscription
from .subscription.record import Cursor
from .sync_reader import StreamReader, SubscriptionReader
from .sync_writer import PendingRecord, StreamWriter
from .writer import handle as writing

__all__ = [
    "Cursor",
    "Gap",
    "GapReason",
    "Outgoing",
    "Payload",
    "PendingRecord",
    "Position",
    "Record",
    "SegmentInfo",
    "Start",
    "StreamInfo",
    "StreamPolicy",
    "StreamReader",
    "StreamStore",
    "StreamWriter",
    "SubscriptionInfo",
    "SubscriptionReader",
]

T = TypeVar("T")
H = TypeVar("H", writing.StreamWriter, subscription.SubscriptionReader)

_NAMES_TOGETHER: Final = 1_000
"""Names that cross over from the loop at a time."""


class StreamStore:
    """Streams by their names, for callers that block.

    Args:
        client: open; it is closed by who opened it, after this store.
        namespace: where the names belong to. Streams of the same name in two namespaces have nothing to do with each
            other.
        name: of this process, as others see who owns a stream.

    Raises:
        InvalidArgument: the client is not open; or it cannot be the name of a namespace.
    """

    def __init__(self, client: Client, *, namespace: str = DEFAULT_NAMESPACE, name: str = "") -> None:
        of_loop, self._appends = client.standing()
        self._client = client
        self._loop = self._appends.loop
        self._closed = Halt()
        """Of all readers."""
        self._engine = self._loop.call(asyncio_streams.StreamStore, of_loop, namespace=namespace, name=name)
        self.namespace = self._engine.namespace
        client.carry(self._end)

    @property
    def session(self) -> str:
        """What tells this store from others, of whatever name, where it owns a stream."""
        return self._engine.session

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End background work. Writers that are not closed are let go of; their streams stay as they are.

        What is still pending fails with ``StreamClosed``, its outcome unknown; a thread that waits for a record gets
        the same, as does every later call. The client does it if it is closed before.

        Raises:
            InvalidArgument: called on the client's own thread.
        """
        if not self._loop.closed:
            self._appends.run(self._end)
            self._client.put_down(self._end)

    async def _end(self) -> None:
        self._closed.call(StreamClosed("the store of streams was closed meanwhile"))
        await self._engine.close()

    def _check_open(self) -> None:
        if self._closed.called:
            raise StreamClosed("the store of streams is closed")

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            self._check_open()
        except StreamClosed:
            work.close()
            raise
        return self._loop.run(work)

    def _handle(self, make: Callable[[], Coroutine[Any, Any, H]]) -> H:
        """What ``make`` makes. Where nobody gets it, since the caller was interrupted just then, it is abandoned."""
        made: list[H] = []

        async def making() -> H:
            made.append(await make())
            return made[0]

        def abandon() -> None:
            for found in made:
                found.abandon()

        try:
            return self._run(making())
        except BaseException:
            with suppress(HandleClosed):  # the close, which has abandoned it
                self._loop.call_soon(abandon)
            raise

    def _reader(self, engine: handle.StreamReader) -> StreamReader:
        return StreamReader(engine, self._loop, self._closed)

    # -- streams -------------------------------------------------------------------------------------------------------

    def create_namespace(self, **policy: Any) -> None:
        """Make this store's namespace, or change what its streams are made with.

        Args:
            policy: values of ``StreamPolicy`` for streams that are not given others.

        Raises:
            InvalidArgument: the policy cannot be.
            MetadataUnavailable, MetadataConflict, MetadataOutcomeUnknown: the metadata store does not settle it.
        """
        self._run(self._engine.create_namespace(**policy))

    def delete_namespace(self) -> None:
        """Remove this store's namespace, which has no streams any more.

        Raises:
            InvalidArgument: it has streams.
            NoSuchNamespace: it was never made.
            MetadataUnavailable, MetadataConflict, MetadataOutcomeUnknown: as ``create_namespace``.
        """
        self._run(self._engine.delete_namespace())

    def namespaces(self) -> LoopIterator[str]:
        """All namespaces that were made, and the default one, in order.

        Raises:
            MetadataUnavailable: the metadata store does not answer.
        """
        self._check_open()
        return self._loop.iterate(self._engine.namespaces(), together=_NAMES_TOGETHER)

    def create(self, name: str, policy: StreamPolicy | None = None, **changes: Any) -> StreamInfo:
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
        return self._run(self._engine.create(name, policy, **changes))

    def info(self, name: str) -> StreamInfo:
        """What is known of a stream.

        Raises:
            NoSuchStream: there is none.
            MetadataUnavailable, DamagedFile: its records cannot be read.
        """
        return self._run(self._engine.info(name))

    def last(self, name: str) -> tuple[Position, int] | None:
        """Position and number of the last record that readers see; ``None`` if none is there.

        Raises:
            NoSuchStream: there is no such stream.
            As ``info`` and ``StreamReader.batches``.
        """
        return self._run(self._engine.last(name))

    def sequence_of(self, name: str, cursor: Cursor) -> int:
        """The number of the record that comes next for who is at ``cursor``.

        Raises:
            As ``truncate``.
        """
        return self._run(self._engine.sequence_of(name, cursor))

    def stats(self) -> Mapping[str, Reading]:
        """Numbers for metrics, named as in ``load.STREAM_METRICS``: what its writers did."""
        return self._engine.stats()

    def exists(self, name: str) -> bool:
        """Whether there is a stream of that name.

        Raises:
            InvalidArgument, MetadataUnavailable, DamagedFile: as ``info``.
        """
        return self._run(self._engine.exists(name))

    def list(self, prefix: str = "", *, after: str = "") -> LoopIterator[str]:
        """Names of the streams that begin with ``prefix`` and come after ``after``, in order.

        Raises:
            MetadataUnavailable: the metadata store does not answer.
        """
        self._check_open()
        return self._loop.iterate(self._engine.list(prefix, after=after), together=_NAMES_TOGETHER)

    def set_policy(self, name: str, **changes: Any) -> StreamInfo:
        """Change how a stream is kept; segments that are there stay as they were made.

        Raises:
            As ``create`` and ``info``.
        """
        return self._run(self._engine.set_policy(name, **changes))

    def rename(self, name: str, new_name: str) -> StreamInfo:
        """Give a stream another name. Whoever writes or reads it goes on.

        Raises:
            StreamExists: there is a stream of the new name.
            As ``info``.
        """
        return self._run(self._engine.rename(name, new_name))

    def delete(self, name: str) -> None:
        """Delete a stream with all that is in it. Its writer and its readers fail with ``NoSuchStream``.

        Raises:
            NoSuchStream: there is none.
            MetadataUnavailable, BookieUnavailable, ...: not all of it is deleted; nobody can use it any more, and the
                same call, or the keeper, goes on.
        """
        self._run(self._engine.delete(name))

    def truncate(self, name: str, *, before: Position | str | Start) -> StreamInfo:
        """Give up all records before a position, or before where a reader would start; what is given up stays so.

        Raises:
            ForeignPosition: a position of another stream.
            InvalidArgument: a position behind the last record.
            As ``info`` and ``StreamReader.batches``.
        """
        return self._run(self._engine.truncate(name, before=before))

    # -- writing and reading -------------------------------------------------------------------------------------------

    def writer(self, name: str, *, wait_s: float | None = None, accept_loss: bool = False) -> StreamWriter:
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
            As ``info``.
        """
        begin = partial(self._engine.writer, name, wait_s=wait_s, accept_loss=accept_loss)
        return StreamWriter(self._handle(begin), self._appends)

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
        return self._reader(self._engine.reader(name, start=start, follow=follow, gaps=gaps, slow=slow))

    # -- subscriptions -------------------------------------------------------------------------------------------------

    def subscribe(
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
            RecoveryFailed, BookieUnavailable, MetadataUnavailable, ...: it cannot be told now how far it has come.
            As ``info``.
        """
        subscribe = partial(self._engine.subscribe, start=start, wait_s=wait_s, follow=follow, gaps=gaps)
        found = self._handle(partial(subscribe, name, subscription))
        return SubscriptionReader(found, self._reader(found.reader), self._loop)

    def segments(self, name: str, *, after: int = 0) -> LoopIterator[SegmentInfo]:
        """The segments of a stream with numbers above ``after``, in order.

        Raises:
            MetadataConflict: some were truncated meanwhile.
            As ``info``.
        """
        self._check_open()
        return self._loop.iterate(self._engine.segments(name, after=after), together=_NAMES_TOGETHER)

    def subscriptions(self, name: str, *, after: str = "") -> LoopIterator[SubscriptionInfo]:
        """The subscriptions of a stream that come after ``after``, in order, each with how far it has come.

        Raises:
            BookieUnavailable, MetadataUnavailable, ...: that cannot be told now.
            As ``info``.
        """
        self._check_open()
        return self._loop.iterate(self._engine.subscriptions(name, after=after), together=_NAMES_TOGETHER)

    def reset_subscription(self, name: str, subscription: str, start: Start) -> SubscriptionInfo:
        """Set a subscription back, or forth; who reads it is fenced.

        Raises:
            NoSuchSubscription: there is none of that name.
            As ``subscribe``.
        """
        return self._run(self._engine.reset_subscription(name, subscription, start))

    def unsubscribe(self, name: str, subscription: str) -> None:
        """Delete a subscription; who reads it is fenced.

        Raises:
            NoSuchSubscription: there is none of that name.
            As ``info``.
        """
        self._run(self._engine.unsubscribe(name, subscription))

    # -- keeping -------------------------------------------------------------------------------------------------------

    def keep(self) -> int:
        """Look after all streams of the cluster once; how many could not be looked after.

        What is too old, or was truncated, is deleted, and what was left half done is finished: deletions, changes of
        name, and batches that were committed (``deliveries``) and are not in their stream yet.

        Raises:
            MetadataUnavailable: not all streams are known.
        """
        return self._run(self._engine.keep())
