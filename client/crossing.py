"""How what other threads append gets to the loop, and its outcome back: for the writers of ledgers and of streams.

    any thread:   append_nowait -> room in the client's budget -> Crossing -> HandOver
    the loop:     HandOver -> Line.send, once for a run of appends of one writer -> Sent
    any thread:   Crossing.result -> Sent.outcome

Room is taken on the caller's thread, so that ``Busy`` is raised there and then. The loop is woken once for all
that was appended since its last turn: to wake it for each append would cost more than the append does.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from tallybook.core.errors import HandleClosed, InvalidArgument, TallybookError
from tallybook.runtime.blocking import HandOver, LoopThread

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Sent(Protocol[T_co]):
    """What is awaited on the loop for one append."""

    @property
    def done(self) -> bool:
        """Whether it is settled, either way."""

    async def settled(self) -> None:
        """Return once it is."""

    def outcome(self) -> T_co:
        """What became of it, once it is settled; or raise why it failed."""


class Line(ABC):
    """The way of one writer's appends to the loop.

    Args:
        hand_over: that of the client, which all its writers share.
    """

    def __init__(self, hand_over: Appends) -> None:
        self.hand_over = hand_over
        self.loop = hand_over.loop

    def wait(self, work: Callable[[], Coroutine[Any, Any, T]], timeout: float | None = None) -> T:
        """Run ``work`` on the loop, behind everything that was appended before, and wait for its end."""
        return self.hand_over.run(work, timeout)

    @abstractmethod
    def send(self, appends: Sequence[Crossing[Any]]) -> None:
        """Have the writer take appends over, on the loop, and give each its ``state``. It must not raise."""


class Crossing(Generic[T]):
    """One append on its way from a thread to the loop. It takes place whether or not anybody asks for its result."""

    __slots__ = ("item", "line", "room", "state")

    def __init__(self, line: Line, item: Any, room: int) -> None:
        self.line = line
        self.item = item
        """What is appended; ``None`` once the loop has it."""
        self.room = room
        """What was taken of the budget for it, as its writer counts."""
        self.state: Sent[T] | TallybookError | None = None
        """Once the loop has it: what is awaited there, or why nothing was sent."""

    def done(self) -> bool:
        """Whether the append is settled, either way."""
        state = self.state
        return state is not None and (isinstance(state, TallybookError) or state.done)

    def result(self, timeout: float | None = None) -> T:
        """What the append gives, once it is confirmed; any number of times, from any thread.

        Giving up, by Ctrl-C too, does not take it back.

        Args:
            timeout: seconds to wait; ``None``: until the writer's own deadlines have settled it.

        Raises:
            TimeoutError: it is not settled yet.
            Whatever the append fails with.
        """
        if not self.done():
            try:
                self.line.wait(self._settled, timeout)
            except HandleClosed:
                if self.line.loop.closed:
                    # The close settles everything, and may be under way still.
                    self.line.loop.close()
                if not self.done():
                    raise
        state = self.state
        if state is None or isinstance(state, TallybookError):
            raise (state or InvalidArgument(f"{self.line.loop.name} has not taken the append")).with_traceback(None)
        return state.outcome()

    async def _settled(self) -> None:
        if self.state is not None and not isinstance(self.state, TallybookError):
            await self.state.settled()


Appends: TypeAlias = HandOver[Crossing[Any]]
"""The appends of all writers of one client, on their way."""


def crossing(loop: LoopThread) -> Appends:
    """What takes the appends of all writers of one client to its loop."""
    return HandOver(loop, _send)


def _send(appends: Sequence[Crossing[Any]]) -> None:
    for line, run in groupby(appends, attrgetter("line")):
        line.send([*run])
