"""The blocking reading handles of streams: drive the asyncio handles from other threads.

    the loop:     StreamReader.batches -> reads a few batches ahead, each with a bookmark
    any thread:   for record in reader -> on leaving, the reader goes back to the bookmark of the last returned record

So read-ahead is invisible: a reader whose loop was left or interrupted continues after the last returned record, as the
asyncio reader does.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterator
from contextlib import aclosing, closing, contextmanager
from typing import Any, Final, Generic, ParamSpec, Protocol, TypeVar

from tallybook.core.errors import InvalidArgument, StreamClosed, TallybookError
from tallybook.runtime.blocking.handle import BlockingHandle
from tallybook.runtime.blocking.iteration import Halt
from tallybook.runtime.blocking.loop_thread import LoopThread

from ..gaps import Gap
from ..position import Position
from ..reader import handle
from ..reader.reading import Bookmark
from ..records.envelope import Record
from ..subscription import handle as subscription

P = ParamSpec("P")
T = TypeVar("T")

_CLOSED: Final = "the reader of the stream is closed"

_READ_AHEAD_BATCHES: Final = 16
"""Batches read ahead. Each is an envelope of up to 64 KiB, or a single larger record."""


class StreamReaderBase(BlockingHandle):
    """Reads one stream, for one thread at a time. ``for`` yields records, and raises as ``batches`` does.

    Leaving a ``for`` loop early ends the read-ahead. Wrap an iterator that you keep in ``contextlib.closing``: while it
    exists, the reader allows no other. ``next`` and ``read_batch`` continue where an iterator stopped.
    """

    def __init__(self, engine: handle.StreamReader, loop: LoopThread, store_closed: Halt) -> None:
        super().__init__(loop)
        self._engine = engine
        self._closed = Halt()
        self._store_closed = store_closed
        self._alone = threading.Lock()
        """Held by the current iterator."""
        self._at: Bookmark | None = None
        """The bookmark after the current batch."""
        self._last: Record | None = None
        """The last returned record of the current batch, if more are left."""

    @property
    def _position(self) -> Position | None:
        at, last = self._at, self._last
        if at is None or last is None:
            return None if at is None else at.position
        return at.behind(last).position

    def __iter__(self) -> Iterator[Record]:
        return self._records()

    def _records(self) -> Generator[Record, None, None]:
        with closing(self._batches()) as batches:
            for batch in batches:
                if isinstance(batch, Gap):
                    continue
                try:
                    for record in batch:
                        self._last = record
                        yield record
                except BaseException:
                    # The loop was left within a batch: continue here.
                    at, last = self._at, self._last
                    if at is not None:
                        self._at = at.before(batch[0]) if last is None else at.behind(last)
                    raise
                finally:
                    self._last = None

    def _batches(self) -> Generator[list[Record] | Gap, None, None]:
        with self._one():
            if self._at is None:
                self._at = self._loop.run(self._engine.begin())
            yield from self._read_on(self._at)

    @contextmanager
    def _one(self) -> Iterator[None]:
        """Exclusive use of the reader, by one iterator or call at a time."""
        if not self._alone.acquire(blocking=False):
            raise InvalidArgument("a reader has one iterator at a time: close the one before")
        try:
            if self._closed.called:
                raise StreamClosed(_CLOSED)
            yield
        finally:
            self._alone.release()

    def _run(self, work: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs) -> T:
        with self._one():
            try:
                found = super()._run(work, *args, **kwargs)
            except TimeoutError:
                raise
            except TallybookError:
                # After a gap the reader continues behind it.
                self._at = self._engine.bookmark()
                raise
            except BaseException:
                # Interrupted: go back, since records may have been taken that are not returned.
                if self._at is not None and not self._loop.closed:
                    self._loop.call(self._engine.go_back, self._at)
                raise
            self._at = self._engine.bookmark()
            return found

    def _read_on(self, at: Bookmark) -> Generator[list[Record] | Gap, None, None]:
        self._at = at
        source = self._loop.iterate(
            self._marked(), together=_READ_AHEAD_BATCHES, halts=(self._store_closed, self._closed)
        )
        try:
            for found, self._at in source:
                if isinstance(found, TallybookError):
                    raise found
                if found is not None:
                    yield found
        finally:
            source.close()
            # The engine is idle now, so it may be used from this thread.
            self._engine.go_back(self._at)

    async def _marked(self) -> AsyncGenerator[tuple[list[Record] | Gap | TallybookError | None, Bookmark], None]:
        """Batches, then the end or an error, each with the bookmark after it."""
        end: TallybookError | None = None
        try:
            async with aclosing(self._engine.batches()) as batches:
                async for batch in batches:
                    yield batch, self._engine.bookmark()
        except TallybookError as error:
            end = error
        yield end, self._engine.bookmark()

    def _close(self) -> None:
        """Close the reader, from any thread; a thread that waits for a record gets ``StreamClosed``.

        Raises:
            InvalidArgument: called on the client's own thread.
        """
        if not self._loop.closed:
            self._loop.run(self._end())

    async def _end(self) -> None:
        self._closed.call(StreamClosed(_CLOSED))
        await self._engine.close()


class ClosableReader(Protocol):
    """A blocking reader of a stream."""

    def __iter__(self) -> Iterator[Record]: ...

    def close(self) -> None:
        """Close the reader."""


R = TypeVar("R", bound=ClosableReader)


class SubscriptionReaderBase(BlockingHandle, Generic[R]):
    """The only reader of a subscription. One thread at a time iterates, as with a ``StreamReader``; any may advance it.

    Concurrent advances cost one append: only the last one is stored. If the process dies, advances that were not waited
    for may be lost; the next reader then gets those records again. Ctrl-C does not cancel an advance.
    """

    def __init__(self, engine: subscription.SubscriptionReader, reader: R, loop: LoopThread) -> None:
        super().__init__(loop)
        self._engine = engine
        self._reader = reader

    def __iter__(self) -> Iterator[Record]:
        return iter(self._reader)

    def _advance_nowait(self, position: Position | str) -> None:
        self._loop.call(self._engine.advance_nowait, position)

    def _close(self) -> None:
        """Store the cursor, and release the subscription. A second close is a no-op.

        A thread that waits for the next record gets ``StreamClosed``.

        Raises:
            StreamFenced: another reader has the subscription; this one is closed.
            MetadataUnavailable, RequestTimeout, ...: the cursor may not be stored, or the subscription not released;
                close again.
            HandleClosed: the client is closed; the next reader takes the subscription over.
        """
        self._reader.close()
        self._run(self._engine.close)

    def _abandon(self) -> None:
        self._reader.close()
        if not self._loop.closed:
            self._loop.call(self._engine.abandon)
