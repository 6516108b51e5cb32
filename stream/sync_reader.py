"""The reading handles of the blocking streams: the asyncio ones, driven from the threads that read.

    the loop:     StreamReader.batches -> a few batches ahead, each with a bookmark
    any thread:   for record in reader -> leaving sets the reader back to the bookmark of what was handed out last

So reading ahead is never seen: a reader that is left, or interrupted, goes on behind the last record that it has
handed out, as the asyncio one does.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterator
from contextlib import aclosing, closing, contextmanager
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from tallybook.core.errors import InvalidArgument, StreamClosed, TallybookError
from tallybook.runtime.blocking import LoopThread
from tallybook.runtime.lifetime import end_block
from tallybook.runtime.loop_iteration import Halt
from tallybook.runtime.steps import DEFAULT_BATCH

from .envelope import Record
from .gaps import Gap
from .position import Position
from .reader import handle
from .reader.reading import Bookmark
from .subscription import handle as subscription
from .subscription.record import Cursor

T = TypeVar("T")

_CLOSED: Final = "the reader of the stream is closed"

_BATCHES_AHEAD: Final = 16
"""Batches that are there before they are asked for. Each is an envelope: 64 KiB, or a single record that is larger."""


class StreamReader:
    """Reads one stream, for one thread at a time. ``for`` gives its records, one at a time, and raises as ``batches``.

    Leaving a ``for`` loop early ends the reading in the background. Keep an iterator only under
    ``contextlib.closing``: as long as it is there, the reader has no other one. ``next`` and ``read_batch`` go on where
    an iterator has stopped.
    """

    def __init__(self, engine: handle.StreamReader, loop: LoopThread, store_closed: Halt) -> None:
        self._engine = engine
        self._loop = loop
        self._closed = Halt()
        self._store_closed = store_closed
        self._alone = threading.Lock()
        """Held by the iterator there is."""
        self._at: Bookmark | None = None
        """Behind the last batch that was handed out."""
        self._last: Record | None = None
        """The last record that was handed out, where more of its batch are to come."""

    @property
    def position(self) -> Position | None:
        """Where the reader is: behind the last record it has handed out. ``None`` before the first step."""
        at, last = self._at, self._last
        if at is None or last is None:
            return None if at is None else at.position
        return at.behind(last).position

    def __iter__(self) -> Iterator[Record]:
        return self._records()

    def _records(self) -> Generator[Record, None, None]:
        with closing(self.batches()) as batches:
            for batch in batches:
                if isinstance(batch, Gap):
                    continue
                try:
                    for record in batch:
                        self._last = record
                        yield record
                except BaseException:
                    # Whoever leaves in the middle goes on here.
                    at, last = self._at, self._last
                    if at is not None:
                        self._at = at.before(batch[0]) if last is None else at.behind(last)
                    raise
                finally:
                    self._last = None

    def batches(self) -> Generator[list[Record] | Gap, None, None]:
        """Records as they come, several at a time: cheaper for many.

        Raises:
            StreamGap: records are missing; only with ``gaps="raise"``.
            ReaderTooSlow: only with ``slow="raise"``.
            NoSuchStream: it was deleted.
            ForeignPosition, InvalidArgument: the start is none of this stream.
            BookieUnavailable, MetadataUnavailable, ...: nothing can be read now; the same reader may be used again.
            StreamClosed, HandleClosed: the reader, its store or its client is closed.
            InvalidArgument: another iterator of this reader is there still.
        """
        with self._one():
            if self._at is None:
                self._at = self._loop.run(self._engine.begin())
            yield from self._batches(self._at)

    @contextmanager
    def _one(self) -> Iterator[None]:
        """While it reads. Only one iterator, or one call, does so at a time."""
        if not self._alone.acquire(blocking=False):
            raise InvalidArgument("a reader has one iterator at a time: close the one before")
        try:
            if self._closed.called:
                raise StreamClosed(_CLOSED)
            yield
        finally:
            self._alone.release()

    def next(self, timeout: float | None = None) -> Record | None:
        """The next record; ``None`` at the end.

        Args:
            timeout: seconds to wait for it; 0: only what is there already; ``None``: no limit.

        Raises:
            TimeoutError: it did not come in time. It is not lost: the next call waits on.
            As ``batches``.
        """
        return self._called(lambda: self._engine.next(timeout))

    def read_batch(self, max_records: int = DEFAULT_BATCH, timeout: float | None = None) -> list[Record] | None:
        """Records that are there, at most ``max_records``; it waits for the first one only. ``None`` at the end.

        Args:
            max_records: how many at the most; at least 1.
            timeout: seconds to wait for the first one; ``None``: no limit. If none comes, the list is empty.

        Raises:
            As ``batches``.
        """
        return self._called(lambda: self._engine.read_batch(max_records, timeout))

    def _called(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        with self._one():
            try:
                found = self._loop.run(call())
            except TimeoutError:
                raise
            except TallybookError:
                # Behind a gap it goes on.
                self._at = self._engine.bookmark()
                raise
            except BaseException:
                # Interrupted, it may have taken what nobody gets now.
                if self._at is not None and not self._loop.closed:
                    self._loop.call(self._engine.go_back, self._at)
                raise
            self._at = self._engine.bookmark()
            return found

    def _batches(self, at: Bookmark) -> Generator[list[Record] | Gap, None, None]:
        self._at = at
        source = self._loop.iterate(self._marked(), together=_BATCHES_AHEAD, halts=(self._store_closed, self._closed))
        try:
            for found, self._at in source:
                if isinstance(found, TallybookError):
                    raise found
                if found is not None:
                    yield found
        finally:
            source.close()
            # The engine rests now, and may be touched from here.
            self._engine.go_back(self._at)

    async def _marked(self) -> AsyncGenerator[tuple[list[Record] | Gap | TallybookError | None, Bookmark], None]:
        """Batches, then the end or an error, which comes in its turn: each with where the reader is then."""
        end: TallybookError | None = None
        try:
            async with aclosing(self._engine.batches()) as batches:
                async for batch in batches:
                    yield batch, self._engine.bookmark()
        except TallybookError as error:
            end = error
        yield end, self._engine.bookmark()

    def close(self) -> None:
        """Close the reader, from any thread: one that waits for the next record gets ``StreamClosed``.

        Raises:
            InvalidArgument: called on the client's own thread.
        """
        if not self._loop.closed:
            self._loop.run(self._close())

    async def _close(self) -> None:
        self._closed.call(StreamClosed(_CLOSED))
        await self._engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class SubscriptionReader:
    """The one reader of a subscription. One thread at a time iterates, as over a ``StreamReader``; any may advance it.

    Several advances at a time cost one append: only the last of them is stored. It may happen that one is not stored,
    where the process dies; so what was done after the last one that was waited for may be seen again.
    """

    def __init__(self, engine: subscription.SubscriptionReader, reader: StreamReader, loop: LoopThread) -> None:
        self._engine = engine
        self._reader = reader
        self._loop = loop

    @property
    def name(self) -> str:
        """Of the subscription."""
        return self._engine.name

    @property
    def cursor(self) -> Cursor:
        """How far it has come, by what is stored."""
        return self._engine.cursor

    def __iter__(self) -> Iterator[Record]:
        return iter(self._reader)

    def batches(self) -> Generator[list[Record] | Gap, None, None]:
        """Records from where the subscription stands; see ``StreamReader.batches``."""
        return self._reader.batches()

    def next(self, timeout: float | None = None) -> Record | None:
        """The next record; ``None`` at the end. See ``StreamReader.next``."""
        return self._reader.next(timeout)

    def read_batch(self, max_records: int = DEFAULT_BATCH, timeout: float | None = None) -> list[Record] | None:
        """Records that are there, at most ``max_records``; ``None`` at the end. See ``StreamReader.read_batch``."""
        return self._reader.read_batch(max_records, timeout)

    # -- advancing ---------------------------------------------------------------------------------------------------

    def advance_nowait(self, position: Position | str) -> None:
        """The record at a position, and all before it, are done with; it is stored soon.

        Raises:
            InvalidArgument: the subscription has come further already; ``StreamStore.reset_subscription`` sets it back.
            ForeignPosition: a position of another stream.
            StreamFenced: another reader has the subscription.
            StreamClosed, HandleClosed: the handle, or the client, is closed.
        """
        self._loop.call(self._engine.advance_nowait, position)

    def advance(self, position: Position | str) -> None:
        """Like ``advance_nowait``, but returns once it is stored on an ack quorum.

        Giving up, by Ctrl-C too, does not take it back.

        Raises:
            RequestTimeout: it cannot be stored in time; it is tried on.
            As ``advance_nowait``, and whatever else keeps it from being stored.
        """
        self._loop.run(self._engine.advance(position))

    # -- the end -----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Store how far it has come, and let another reader have the subscription. Closing twice does no more.

        A thread that waits for the next record gets ``StreamClosed``.

        Raises:
            StreamFenced: another reader has it; this one is closed.
            MetadataUnavailable, RequestTimeout, ...: it may not be stored, or not let go of; close again.
            HandleClosed: the client is closed, and the subscription left to the next reader.
        """
        self._reader.close()
        self._loop.run(self._engine.close())

    def abandon(self) -> None:
        """Let go of everything at once; whoever comes next takes it over."""
        self._reader.close()
        if not self._loop.closed:
            self._loop.call(self._engine.abandon)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        end_block(self, failed=kind is not None)
