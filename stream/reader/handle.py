"""The reading handle of a stream: what users call.

``reading`` reads, in steps that run in the background; the handle hands out what a step brings, and knows where it is
by what it has handed out. So neither a time-out nor a cancelled wait loses a record or ends the reading.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from types import TracebackType
from typing import Self

from tallybook.core.errors import StreamClosed
from tallybook.runtime.lifetime import Lifetime
from tallybook.runtime.steps import ItemReader, Steps

from ..envelope import Record
from ..gaps import Gap
from ..head import Head
from ..position import Position
from ..start import Start
from .reading import Bookmark, Gaps, ReaderContext, Reading, Slow, Step


class RecordBatches:
    """Records of a stream as they come, several at a time; see ``StreamReader.batches``."""

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
        """Stop reading; the reader stays where it is."""
        self._over = True
        await self._stop()


class StreamReader(ItemReader[Record]):
    """Reads one stream, for one task at a time.

    ``async for`` gives its records, ``next`` one of them, ``read_batch`` several, ``batches`` several with the gaps;
    all of them go on where the one before has stopped, and raise as ``batches`` does. A wait that is cancelled, or
    ends with a time-out, loses nothing: the next call goes on.

    Args:
        find: its head.
        start: where to begin.
        follow: whether to wait at the end for more; else the reader ends with what is confirmed when it gets there.
        gaps: whether a gap is an error (``raise``; the reader may be used again, and goes on behind it), or comes as a
            ``Gap`` among the batches.
        slow: what happens to a reader that follows and falls behind by more than is kept of the tail: it reads what it
            has missed (``catch_up``), or gets an error that says where it was.
        parent: whose end is that of the reader, too; by default, its store.
    """

    def __init__(
        self,
        find: Callable[[], Awaitable[Head]],
        start: Start,
        context: ReaderContext,
        *,
        follow: bool = True,
        gaps: Gaps = "raise",
        slow: Slow = "catch_up",
        parent: Lifetime | None = None,
    ) -> None:
        super().__init__()
        self._reading = Reading(find, start, context, follow=follow, gaps=gaps, slow=slow)
        self._spawn = partial(context.tasks.spawn, name="read")
        self._steps: Steps[Sequence[Step]] | None = None
        self._taken: deque[Step] = deque()
        """What the last of these has brought."""
        self._at = self._reading.bookmark()
        """Behind the batch that is handed out."""
        self._last: Record | None = None
        """The last record of it that was handed out, if more are left."""
        self._lifetime = Lifetime("the reader of the stream", parent=parent or context.lifetime, error=StreamClosed)

    @property
    def position(self) -> Position | None:
        """Where the reader is: behind the last record it has handed out. ``None`` before the first step."""
        return self.bookmark().position

    async def begin(self) -> Bookmark:
        """Find where to begin, if that is not known yet; where the reader is.

        Raises:
            As ``batches``.
        """
        while self._at.place is None:
            await self._fill(None)
        return self.bookmark()

    def bookmark(self) -> Bookmark:
        """Where the reader is; for who reads ahead, and may have to come back."""
        if not self._left:
            return self._at
        return self._at.before(self._left[0]) if self._last is None else self._at.behind(self._last)

    def go_back(self, bookmark: Bookmark) -> None:
        """Be there again."""
        # What is under way ends by itself. It has a state of its own, which nobody looks at any more.
        self._steps, self._at, self._last = None, bookmark, None
        self._taken.clear()
        self._left.clear()
        self._reading = self._reading.moved(bookmark)

    def batches(self) -> RecordBatches:
        """Records as they come, several at a time: cheaper for many.

        It is to be closed by who does not read it to its end.

        Raises:
            StreamGap: records are missing; only with ``gaps="raise"``.
            ReaderTooSlow: only with ``slow="raise"``.
            NoSuchStream: it was deleted.
            ForeignPosition, InvalidArgument: the start is none of this stream.
            StreamClosed, HandleClosed: the reader, its store or its client is closed.
            BookieUnavailable, MetadataUnavailable, ...: nothing can be read now; the same reader may be used again.
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

    async def _fill_at_once(self) -> bool:
        return (bool(self._taken) or await self._current().at_once()) and await self._fill(0)

    async def _ready(self, within_s: float | None) -> bool:
        """Wait for the next step; ``False``: it has brought nothing within so many seconds."""
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

    def _next_step(self) -> Step:
        step = self._taken.popleft()
        self._at, self._last = step.at, None
        return step

    def _current(self) -> Steps[Sequence[Step]]:
        if self._steps is None:
            self._steps = Steps(self._reading.steps, self._spawn, self._lifetime)
        return self._steps

    def _pop(self) -> Record:
        record = self._left.popleft()
        self._last = record if self._left else None
        return record

    # -- the end -----------------------------------------------------------------------------------------------------

    async def aclose(self) -> None:
        """Stop reading, until the next call: what is under way is given up, and the reader stays where it is."""
        steps = self._steps
        self.go_back(self.bookmark())
        if steps is not None:
            await steps.aclose()

    async def close(self) -> None:
        """Close the reader: who waits for a record of it, or asks for one, gets ``StreamClosed``."""
        self._lifetime.end()
        await self.aclose()

    def abandon(self) -> None:
        """Close the reader at once; what is under way ends by itself."""
        self._lifetime.end()
        self.go_back(self.bookmark())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
