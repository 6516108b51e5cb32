"""An asyncio loop whose clock moves only when there is nothing left to do.

A real loop asks its selector to wait for sockets or for the next timer. Here the selector has
no sockets: asked to wait, it moves the clock to the next timer and returns. A simulated hour
costs microseconds, and because nothing outside the loop takes part, one seed always gives one
and the same run. What would bring the outside in (threads, executors, calls from another
thread) raises ``Leak`` instead.

A run that can make no progress, or that exceeds its deadline in simulated time, ends with
``Stuck``, which shows where every task stands.
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
    """No task can go on, or simulated time ran out. The message holds the stack of every task."""


class Leak(RuntimeError):
    """Something went round the seams: a thread, an executor, a call from another thread."""


class Unhandled(RuntimeError):
    """A callback or a task nobody waits for raised; the cause is chained."""


class _VirtualTime:
    """Stands where the selector stands: waiting moves the clock."""

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
        """Advance to the next timer; ``timeout`` is the loop's wish in seconds, ``None`` for ever."""
        self._loop.before_turn()
        if timeout is None:
            self._loop.stuck("no task can go on and no timer is set")
        if timeout > 0:
            self.now += timeout
            self._turns = 0
            if self.now > self._deadline_seconds:
                self._loop.stuck(f"{self._deadline_seconds} simulated seconds have passed")
        # Exactly what is due: a timer that rang early, by however little, would find that nothing is due yet.
        self._loop.set_resolution(math.ulp(self.now))
        self._turns += 1
        if self._turns > _MAX_TURNS_AT_ONE_INSTANT:
            self._loop.stuck("the clock stands still: some task spins without ever waiting")
        return []


class SimLoop(asyncio.BaseEventLoop):
    """The loop of one simulated run.

    Args:
        deadline_seconds: simulated time after which the run is ``Stuck``.
        shuffle: where given, the order of what is ready in one turn is drawn from it instead
            of being first in, first out.
    """

    _ready: deque[asyncio.Handle]  # what the next turn will run; made by the base class

    def __init__(self, *, deadline_seconds: float = DAY_SECONDS, shuffle: Rng | None = None) -> None:
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
        self.on_trace_line: Callable[[str], object] | None = None
        """Told every line of the trace, sooner or later."""
        self.unhandled: list[Unhandled] = []
        self.set_exception_handler(SimLoop._remember_unhandled)

    def time(self) -> float:
        """Simulated seconds since the loop was made."""
        return self._virtual.now

    def note(self, *event: object) -> None:
        """Add one line to the trace: the parts of ``event``, none of which may change later.

        Two runs are the same if their traces are.
        """
        self._noted.append((self._virtual.now, event))
        if len(self._noted) >= _NOTED_BEFORE_HASHING:
            self._hash_noted()

    def set_resolution(self, seconds: float) -> None:
        """Timers that are due within less than ``seconds`` ring now."""
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
        # Put off until many are there, or somebody asks: most short runs are never asked.
        for seconds, event in self._noted:
            line = f"{seconds:.9f} {' '.join(map(str, event))}"
            self._hash.update(f"{line}\n".encode())
            self._tail.append(line)
            if self.on_trace_line is not None:
                self.on_trace_line(line)
        self._noted.clear()

    def create_task(  # type: ignore[override]
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        name: str | None = None,
        context: Context | None = None,
    ) -> asyncio.Task[T]:
        """Like every loop's, but remembers tasks in order of creation and names them by it."""
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
        """Drop references to tasks that have ended: those whose error nobody looked at say so then."""
        self._tasks = self.living_tasks()
        self._prune_at = max(_MIN_PRUNE, 2 * len(self._tasks))

    def raise_unhandled(self) -> None:
        """Raise the first error that reached nobody."""
        if self.unhandled:
            raise self.unhandled[0]

    def wind_down(self, seconds: float) -> None:
        """Allow ``seconds`` more of simulated time, whatever ended the run, for tasks to end in."""
        self._leak = None
        self._virtual.extend(seconds)

    def before_turn(self) -> None:
        """Called once a turn, before what is ready runs."""
        if self._leak is not None:
            raise self._leak
        if self._shuffle is not None and len(self._ready) > 1:
            waiting = list(self._ready)
            order = self._shuffle.shuffled([str(index) for index in range(len(waiting))])
            self._ready.clear()
            self._ready.extend(waiting[int(index)] for index in order)

    def stuck(self, reason: str) -> NoReturn:
        """End the run, with a picture of where every task stands."""
        out = io.StringIO()
        out.write(f"stuck at {self.time():.6f} simulated seconds: {reason}\n")
        for task in self.living_tasks():
            task.print_stack(file=out)
        raise Stuck(out.getvalue())

    def run_in_executor(self, executor: object, func: Callable[..., object], *args: object) -> NoReturn:
        """Refused: there are no threads in a simulation."""
        raise Leak(f"run_in_executor({func!r}): threads do not exist in simulation")

    def _write_to_self(self) -> None:
        # Raised here it ends only the thread that called; kept, it ends the run as well.
        self._leak = Leak("call_soon_threadsafe: another thread called into the loop")
        raise self._leak

    def _asyncgen_finalizer_hook(self, agen: AsyncGenerator[Any, Any]) -> None:
        # A real loop expects this from any thread; here there is one, and no collector that could run it at odd times.
        if not self.is_closed():
            self.call_soon(self.create_task, agen.aclose())

    def _process_events(self, event_list: object) -> None:
        """No file descriptors, no events."""

    @staticmethod
    def _remember_unhandled(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if isinstance(loop, SimLoop):
            error = Unhandled(str(context.get("message")))
            error.__cause__ = context.get("exception")
            loop.unhandled.append(error)
