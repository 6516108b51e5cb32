"""``StreamReader``, the reading handle of a stream.

``reading`` reads in steps that run in the background. The handle returns the records of each step, and its position is
that of the last returned record. So neither a timeout nor a cancelled wait loses a record or ends the reading.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from types import TracebackType
from typing import Self

from tallybook.core.errors import StreamClosed
from tallybook.runtime.concurrency.async_iterators import ItemReader, ResumableIterator
from tallybook.runtime.concurrency.handle_lifetime import Lifetime

from ..catalog.head import Head
from ..gaps import Gap
from ..position import Position
from ..records.envelope import Record
from ..start import Start
from .reading import Bookmark, Gaps, ReadStep, Slow, StreamContext, StreamScan


class RecordBatches:
    """An async iterator over batches of records and gaps; see ``StreamReader.batches``."""

    def __init__(self, take: Callable[[], Awaitable[list[Record] | Gap]], stop: Callable[[], Awaitable[None]]) -> None:
        self._take = take
        self._stop = stop
        self._over = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> list[Record] | Gap:
        if self._over:
            raise StopAsyncIteration
        try:
            return await self._take()
        except StopAsyncIteration:
            self._over = True
            raise

    async def aclose(self) -> None:
        """Stop reading; the reader keeps its position."""
        self._over = True
        await self._stop()


class StreamReader(ItemReader[Record]):
    """Reads one stream, for one task at a time.

    ``async for`` yields records, ``next`` returns one, ``read_batch`` several, ``batches`` yields batches and gaps.
    Each continues where the last call stopped, and raises as ``batches`` does. A cancelled wait, or one that timed out,
    loses nothing.

    Args:
        find: returns the stream's head.
        start: where to start.
        follow: wait for more records at the end; otherwise the reader ends after the last confirmed record.
        gaps: ``raise``: a gap is an error, after which the reader continues behind the gap; ``yield``: gaps appear as
            ``Gap`` among the batches.
        slow: what a following reader does that falls behind the kept tail: read the missed records (``catch_up``), or
            raise ``ReaderTooSlow`` (``raise``).
        parent: the lifetime that also ends the reader; by default, that of its store.
    """

    def __init__(
        self,
        find: Callable[[], Awaitable[Head]],
        start: Start,
        context: StreamContext,
        *,
        follow: bool = True,
        gaps: Gaps = "raise",
        slow: Slow = "catch_up",
        parent: Lifetime | None = None,
    ) -> None:
        super().__init__()
        self._reading = StreamScan(find, start, context, follow=follow, gaps=gaps, slow=slow)
        self._spawn = partial(context.tasks.spawn, name="read")
        self._steps: ResumableIterator[Sequence[ReadStep]] | None = None
        self._taken: deque[ReadStep] = deque()
        """Steps that were read and not yet returned."""
        self._at = self._reading.bookmark()
        """The bookmark after the current batch."""
        self._last: Record | None = None
        """The last returned record of the current batch, if more are left."""
        self._lifetime = Lifetime("the reader of the stream", parent=parent or context.lifetime, error=StreamClosed)

    @property
    def position(self) -> Position | None:
        """The position after the last returned record; ``None`` before the first read."""
        return self.bookmark().position

    async def begin(self) -> Bookmark:
        """Find the start, if it is not known yet; return the reader's bookmark.

        Raises:
            As ``batches``.
        """
        while self._at.place is None:
            await self._fill(None)
        return self.bookmark()

    def bookmark(self) -> Bookmark:
        """The reader's place, for a caller that reads ahead and may have to go back."""
        if not self._left:
            return self._at
        return self._at.before(self._left[0]) if self._last is None else self._at.behind(self._last)

    def go_back(self, bookmark: Bookmark) -> None:
        """Go back to a bookmark."""
        # A step in flight ends by itself; its state is dropped.
        self._steps, self._at, self._last = None, bookmark, None
        self._taken.clear()
        self._left.clear()
        self._reading = self._reading.moved(bookmark)

    def batches(self) -> RecordBatches:
        """Batches of records as they arrive, which is cheaper for many records. Close it if it is not read to its end.

        Raises:
            StreamGap: records are missing; only with ``gaps="raise"``.
            ReaderTooSlow: only with ``slow="raise"``.
            NoSuchStream: the stream was deleted.
            ForeignPosition, InvalidArgument: the start is not valid for this stream.
            StreamClosed, HandleClosed: the reader, its store or its client is closed.
            BookieUnavailable, MetadataUnavailable, ...: nothing can be read now; the reader remains usable.
        """
        return RecordBatches(self._next_batch, self.aclose)

    async def _next_batch(self) -> list[Record] | Gap:
        if not self._left:
            while True:
                await self._ready(None)
                if found := self._next_step().found:
                    return found
        left, self._last = [*self._left], None
        self._left.clear()
        return left

    # -- items -------------------------------------------------------------------------------------------------------

    async def _fill(self, within_s: float | None) -> bool:
        if not await self._ready(within_s):
            return False
        found = self._next_step().found
        if not isinstance(found, Gap):
            self._left.extend(found)
        return True

    async def _fill_without_waiting(self) -> bool:
        return (bool(self._taken) or await self._current().is_ready()) and await self._fill(0)

    async def _ready(self, within_s: float | None) -> bool:
        """Wait for the next step; ``False`` if there is none within ``within_s`` seconds."""
        if self._taken:
            self._lifetime.check()
            return True
        steps = self._current()
        if not await steps.ready(within_s):
            return False
        try:
            self._taken.extend(steps.take())
        except BaseException as error:
            self._at = self._reading.bookmark()
            if isinstance(error, StopAsyncIteration):
                # There may be more by the next call.
                self._steps = None
            raise
        return True

    def _next_step(self) -> ReadStep:
        step = self._taken.popleft()
        self._at, self._last = step.at, None
        return step

    def _current(self) -> ResumableIterator[Sequence[ReadStep]]:
        if self._steps is None:
            self._steps = ResumableIterator(self._reading.steps, self._spawn, self._lifetime)
        return self._steps

    def _pop(self) -> Record:
        record = self._left.popleft()
        self._last = record if self._left else None
        return record

    # -- the end -----------------------------------------------------------------------------------------------------

    async def aclose(self) -> None:
        """Cancel the read in flight; the reader keeps its position, and the next call reads on."""
        steps = self._steps
        self.go_back(self.bookmark())
        if steps is not None:
            await steps.aclose()

    async def close(self) -> None:
        """Close the reader: waiting and later calls get ``StreamClosed``."""
        self._lifetime.end()
        await self.aclose()

    def abandon(self) -> None:
        """Close the reader at once, without waiting for a read in flight."""
        self._lifetime.end()
        self.go_back(self.bookmark())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def reader_of(
    context: StreamContext,
    head: Head,
    start: Start,
    *,
    follow: bool,
    gaps: Gaps = "yield",
    parent: Lifetime | None = None,
) -> StreamReader:
    """A reader of the stream of ``head``, also if it is renamed."""
    find = partial(context.catalog.read, head.stream_id, head.name)
    return StreamReader(find, start, context, follow=follow, gaps=gaps, parent=parent)
