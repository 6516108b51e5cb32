"""Passes appends from threads to the event loop, and their outcomes back. Used by ledger and stream writers.

    any thread:   append_nowait -> bytes of the client's budget -> ThreadAppend -> ThreadHandOff
    the loop:     ThreadHandOff -> AppendRoute.send, once for a run of appends of one writer -> AwaitedAppend
    any thread:   ThreadAppend.result -> AwaitedAppend.outcome

Budget is taken on the caller's thread, so ``Busy`` is raised at once. The loop is woken once for all appends since its
last iteration: waking it for each append would cost more than the append itself.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import Any, Generic, ParamSpec, Protocol, TypeAlias, TypeVar

from tallybook.core.errors import HandleClosed, InvalidArgument, TallybookError
from tallybook.runtime.blocking.handle import BlockingHandle
from tallybook.runtime.blocking.loop_thread import LoopThread, ThreadHandOff

P = ParamSpec("P")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class AwaitedAppend(Protocol[T_co]):
    """The loop's side of one append."""

    @property
    def done(self) -> bool:
        """Whether the append has completed or failed."""

    async def settled(self) -> None:
        """Wait until the append has completed or failed."""

    def outcome(self) -> T_co:
        """The result of a completed append, or raise its error."""


class Writer(Protocol):
    """An asyncio writer."""

    def abandon(self) -> None:
        """Release everything at once."""


class AppendRoute(ABC):
    """Passes the appends of one writer to the loop.

    Args:
        engine: the asyncio writer.
        hand_over: the client's hand-off, which all its writers share.
    """

    def __init__(self, engine: Writer, hand_over: AppendHandOff) -> None:
        self._writer = engine
        self.hand_over = hand_over
        self.loop = hand_over.loop

    def wait(self, work: Callable[[], Coroutine[Any, Any, T]], timeout: float | None = None) -> T:
        """Run ``work`` on the loop, after all earlier appends, and wait for its result."""
        return self.hand_over.run(work, timeout)

    @abstractmethod
    def send(self, appends: Sequence[ThreadAppend[Any]]) -> None:
        """Give appends to the writer, on the loop, and set the ``state`` of each. Must not raise."""

    def abandon(self) -> None:
        """Abandon the writer after all earlier appends."""
        if not self.loop.closed:  # a closed client has abandoned it already
            self.loop.call(self._abandon)

    def _abandon(self) -> None:
        self.hand_over.flush()
        self._writer.abandon()


class AppendingHandle(BlockingHandle):
    """The base of blocking writers: every call runs after the earlier appends of all threads."""

    def __init__(self, route: AppendRoute) -> None:
        super().__init__(route.loop)
        self._route = route

    def _run(self, work: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs) -> T:
        return self._route.wait(partial(work, *args, **kwargs))

    def _abandon(self) -> None:
        self._route.abandon()


class ThreadAppend(Generic[T]):
    """One append that a thread hands to the loop. It takes place even if the result is never asked for."""

    __slots__ = ("cost_bytes", "item", "route", "state")

    def __init__(self, route: AppendRoute, item: Any, cost_bytes: int) -> None:
        self.route = route
        self.item = item
        """The entry or record; ``None`` once the loop has taken it."""
        self.cost_bytes = cost_bytes
        """Bytes taken from the budget, as the writer counts them."""
        self.state: AwaitedAppend[T] | TallybookError | None = None
        """Set by the loop: its side of the append, or the error if nothing was sent."""

    def done(self) -> bool:
        """Whether the append has completed or failed."""
        state = self.state
        return state is not None and (isinstance(state, TallybookError) or state.done)

    def result(self, timeout: float | None = None) -> T:
        """The append's result, once it is confirmed. May be called repeatedly, from any thread.

        A timeout or Ctrl-C does not cancel the append.

        Args:
            timeout: seconds to wait; ``None``: until the writer's own deadlines end the append.

        Raises:
            TimeoutError: the append has neither completed nor failed yet.
            The error of the append, if it failed.
        """
        if not self.done():
            try:
                self.route.wait(self._settled, timeout)
            except HandleClosed:
                if self.route.loop.closed:
                    # The close ends every append, and may still be running.
                    self.route.loop.close()
                if not self.done():
                    raise
        state = self.state
        if state is None or isinstance(state, TallybookError):
            raise (state or InvalidArgument(f"{self.route.loop.name} has not taken the append")).with_traceback(None)
        return state.outcome()

    async def _settled(self) -> None:
        if self.state is not None and not isinstance(self.state, TallybookError):
            await self.state.settled()


AppendHandOff: TypeAlias = ThreadHandOff[ThreadAppend[Any]]
"""The hand-off of the appends of all writers of one client."""


def append_handoff(loop: LoopThread) -> AppendHandOff:
    """Create the hand-off of appends to a client's loop."""
    return ThreadHandOff(loop, _send)


def _send(appends: Sequence[ThreadAppend[Any]]) -> None:
    for route, run in groupby(appends, attrgetter("route")):
        route.send([*run])
