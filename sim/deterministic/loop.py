"""An asyncio loop with a virtual clock that moves only when nothing is left to do.

A real loop asks its selector to wait for sockets or for the next timer. Here the selector has no sockets: it moves the
clock to the next timer and returns. A simulated hour costs microseconds, and one seed always gives the same run,
because nothing outside the loop takes part. Threads, executors and calls from other threads raise ``Leak``.

A run that can make no progress, or that exceeds its deadline in simulated time, ends with ``Stuck``, which shows where
every task waits.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import math
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from contextvars import Context
from typing import Any, Final, NoReturn, TypeVar

from tallybook.runtime.rng import Rng

from .gate import GatedQueue

T = TypeVar("T")

DAY_SECONDS: Final = 24 * 3600.0
KEPT_TRACE_LINES: Final = 200
_MAX_TURNS_AT_ONE_INSTANT: Final = 200_000
_MIN_PRUNE: Final = 64
_NOTED_BEFORE_HASHING: Final = 4096


class Stuck(RuntimeError):
    """No task can continue, or the deadline passed. The message has the stack of every task."""


class Leak(RuntimeError):
    """Something bypassed the seams: a thread, an executor, a call from another thread."""


class Unhandled(RuntimeError):
    """A callback, or a task that no one awaits, raised; the cause is chained."""


class _VirtualTime:
    """Replaces the selector: waiting moves the clock."""

    def __init__(self, loop: SimLoop, deadline_seconds: float) -> None:
        self._loop = loop
        self._deadline_seconds = deadline_seconds
        self._turns = 0
        self.now = 0.0

    def extend(self, seconds: float) -> None:
        """Move the deadline to ``seconds`` from now."""
        self._deadline_seconds = self.now + seconds
        self._turns = 0

    def select(self, timeout: float | None) -> list[object]:
        """Advance to the next timer, in ``timeout`` seconds; ``None``: there is no timer."""
        self._loop.before_turn()
        if timeout is None:
            self._loop.stuck("no task can go on and no timer is set")
        if timeout > 0:
            self.now += timeout
            self._turns = 0
            if self.now > self._deadline_seconds:
                self._loop.stuck(f"{self._deadline_seconds} simulated seconds have passed")
        # Fire exactly the timers that are due: one that fires slightly early would find nothing due yet.
        self._loop.set_resolution(math.ulp(self.now))
        self._turns += 1
        if self._turns > _MAX_TURNS_AT_ONE_INSTANT:
            self._loop.stuck("the clock stands still: some task spins without ever waiting")
        return []


class SimLoop(asyncio.BaseEventLoop):
    """The loop of one simulated run.

    Args:
        deadline_seconds: simulated time after which the run is ``Stuck``.
        shuffle: if given, draws the order of ready callbacks in a turn; otherwise first in, first out.
        on_trace_line: called with every line of the trace, perhaps delayed.
    """

    _ready: deque[asyncio.Handle]  # what the next turn will run; made by the base class

    def __init__(
        self,
        *,
        deadline_seconds: float = DAY_SECONDS,
        shuffle: Rng | None = None,
        on_trace_line: Callable[[str], object] | None = None,
    ) -> None:
        super().__init__()
        self._ready = GatedQueue()
        self._virtual = _VirtualTime(self, deadline_seconds)
        self._selector = self._virtual
        self._shuffle = shuffle
        self._hash = hashlib.sha256()
        self._leak: Leak | None = None
        self._tasks: list[asyncio.Task[Any]] = []
        self._prune_at = _MIN_PRUNE
        self._tasks_made = 0
        self._noted: list[tuple[float, tuple[object, ...]]] = []
        self._tail: deque[str] = deque(maxlen=KEPT_TRACE_LINES)
        self._on_trace_line = on_trace_line
        self.unhandled: list[Unhandled] = []
        self.set_exception_handler(SimLoop._remember_unhandled)

    def time(self) -> float:
        """Simulated seconds since the loop was made."""
        return self._virtual.now

    def note(self, *event: object) -> None:
        """Add one line to the trace: the parts of ``event``, which must not change later.

        Two runs are equal if their traces are equal.
        """
        self._noted.append((self._virtual.now, event))
        if len(self._noted) >= _NOTED_BEFORE_HASHING:
            self._hash_noted()

    def set_resolution(self, seconds: float) -> None:
        """Make timers fire that are due within less than ``seconds``."""
        self._clock_resolution = seconds

    def trace_digest(self) -> str:
        """SHA-256 of the trace so far, in hex."""
        self._hash_noted()
        return self._hash.hexdigest()

    def trace_tail(self, lines: int = KEPT_TRACE_LINES) -> list[str]:
        """The last lines of the trace, at most ``KEPT_TRACE_LINES``."""
        self._hash_noted()
        return list(self._tail)[-lines:]

    def _hash_noted(self) -> None:
        # Delayed until there are many lines or the digest is read; most short runs never read it.
        for seconds, event in self._noted:
            line = f"{seconds:.9f} {' '.join(map(str, event))}"
            self._hash.update(f"{line}\n".encode())
            self._tail.append(line)
            if self._on_trace_line is not None:
                self._on_trace_line(line)
        self._noted.clear()

    def create_task(  # type: ignore[override]
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        name: str | None = None,
        context: Context | None = None,
    ) -> asyncio.Task[T]:
        """As in the base class, but keeps tasks in order of creation, and names them by number."""
        self._tasks_made += 1
        task: asyncio.Task[T] = super().create_task(coro, name=name or f"task-{self._tasks_made}", context=context)
        self._tasks.append(task)
        if len(self._tasks) >= self._prune_at:
            self.forget_ended_tasks()
        return task

    def living_tasks(self) -> list[asyncio.Task[Any]]:
        """Tasks that have not ended, in order of creation."""
        return [task for task in self._tasks if not task.done()]

    def forget_ended_tasks(self) -> None:
        """Drop references to ended tasks, so that those with an unretrieved error report it."""
        self._tasks = self.living_tasks()
        self._prune_at = max(_MIN_PRUNE, 2 * len(self._tasks))

    def raise_unhandled(self) -> None:
        """Raise the first unhandled error."""
        if self.unhandled:
            raise self.unhandled[0]

    def wind_down(self, seconds: float) -> None:
        """Allow ``seconds`` more of simulated time after the run, for tasks to end."""
        self._leak = None
        self._virtual.extend(seconds)

    def before_turn(self) -> None:
        """Called in every turn before the ready callbacks run."""
        if self._leak is not None:
            raise self._leak
        if self._shuffle is not None and len(self._ready) > 1:
            waiting = list(self._ready)
            order = self._shuffle.shuffled([str(index) for index in range(len(waiting))])
            self._ready.clear()
            self._ready.extend(waiting[int(index)] for index in order)

    def stuck(self, reason: str) -> NoReturn:
        """End the run with ``Stuck``, with the stack of every task."""
        out = io.StringIO()
        out.write(f"stuck at {self.time():.6f} simulated seconds: {reason}\n")
        for task in self.living_tasks():
            task.print_stack(file=out)
        raise Stuck(out.getvalue())

    def run_in_executor(self, executor: object, func: Callable[..., object], *args: object) -> NoReturn:
        """Raise ``Leak``: there are no threads in a simulation."""
        raise Leak(f"run_in_executor({func!r}): threads do not exist in simulation")

    def _write_to_self(self) -> None:
        # Raising here ends only the calling thread; the stored error ends the run as well.
        self._leak = Leak("call_soon_threadsafe: another thread called into the loop")
        raise self._leak

    def _asyncgen_finalizer_hook(self, agen: AsyncGenerator[Any, Any]) -> None:
        # A real loop may get this call in any thread; here there is one thread, and gc is disabled.
        if not self.is_closed():
            self.call_soon(self.create_task, agen.aclose())

    def _process_events(self, event_list: object) -> None:
        """Do nothing: there are no file descriptors."""

    @staticmethod
    def _remember_unhandled(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if isinstance(loop, SimLoop):
            error = Unhandled(str(context.get("message")))
            error.__cause__ = context.get("exception")
            loop.unhandled.append(error)
