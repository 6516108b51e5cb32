"""Runs a scenario from a seed, reproducibly.

``run_seed(7, scenario)`` runs ``await scenario(world)`` on a fresh ``SimLoop``. The same seed and code give the same
trace digest in every process. A failure has the seed, the simulated time and the last lines of the trace as notes on
the exception.
"""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from tallybook.runtime.rng import Rng, SeededRng

from .clock import SimClock
from .loop import DAY_SECONDS, Leak, SimLoop, Stuck

T = TypeVar("T")

SHOWN_TRACE_LINES: Final = 40
_CLEAN_UP_SECONDS: Final = 3600.0


@dataclass(frozen=True, slots=True)
class World:
    """Loop, clock and randomness of a scenario, from which it builds everything else."""

    seed: int | str
    loop: SimLoop
    rng: Rng
    clock: SimClock

    def note(self, *event: object) -> None:
        """Add one line to the trace."""
        self.loop.note(*event)


@dataclass(frozen=True, slots=True)
class SeedRun(Generic[T]):
    """Result of a run: value of the scenario, trace digest, and simulated seconds."""

    seed: int | str
    value: T
    digest: str
    seconds: float


Scenario = Callable[[World], Awaitable[T]]


def run_seed(
    seed: int | str, scenario: Scenario[T], *, deadline_seconds: float = DAY_SECONDS, shuffle: bool = False
) -> SeedRun[T]:
    """Run ``scenario`` once, without garbage collection until it is over.

    Args:
        seed: decides every draw of the run.
        deadline_seconds: simulated time after which the run counts as stuck.
        shuffle: also draw the order in which ready callbacks run.

    Raises:
        Stuck: no task can continue, or the deadline passed.
        Leak: the scenario used threads, or left one behind.
        Unhandled: a callback, or a task that no one awaits, raised.
    """
    collecting = gc.isenabled()
    gc.disable()
    threads = set(threading.enumerate())
    try:
        loop, value = run_untraced(seed, scenario, deadline_seconds=deadline_seconds, shuffle=shuffle)
    finally:
        if collecting:
            gc.enable()
        gc.collect()
    loop.raise_unhandled()  # a task in a reference cycle reports its error only when it is collected
    left = [thread.name for thread in threading.enumerate() if thread not in threads]
    if left:
        raise Leak(f"threads left behind: {sorted(left)}")
    return SeedRun(seed, value, loop.trace_digest(), loop.time())


def run_once(
    seed: int | str, scenario: Scenario[T], *, deadline_seconds: float = DAY_SECONDS, shuffle: bool = False
) -> SeedRun[T]:
    """``run_seed`` for callers that run thousands of seeds and manage garbage collection themselves."""
    loop, value = run_untraced(seed, scenario, deadline_seconds=deadline_seconds, shuffle=shuffle)
    return SeedRun(seed, value, loop.trace_digest(), loop.time())


def run_untraced(
    seed: int | str,
    scenario: Scenario[T],
    *,
    deadline_seconds: float = DAY_SECONDS,
    shuffle: bool = False,
    on_trace_line: Callable[[str], object] | None = None,
) -> tuple[SimLoop, T]:
    """``run_once`` without computing the digest; return the closed loop and the value."""
    rng = SeededRng(seed)
    order = rng.fork("shuffle") if shuffle else None
    loop = SimLoop(deadline_seconds=deadline_seconds, shuffle=order, on_trace_line=on_trace_line)
    world = World(seed, loop, rng.fork("world"), SimClock())
    try:
        value = loop.run_until_complete(_main(scenario, world))
        loop.forget_ended_tasks()
        loop.raise_unhandled()
    except BaseException as error:
        error.add_note(f"seed {seed}, at {loop.time():.6f} simulated seconds; the trace ends with")
        error.add_note("\n".join(loop.trace_tail(SHOWN_TRACE_LINES)))
        raise
    finally:
        _clean_up(loop)
    return loop, value


async def _main(scenario: Scenario[T], world: World) -> T:
    return await scenario(world)


def _clean_up(loop: SimLoop) -> None:
    """Cancel all tasks that the scenario left running."""
    loop.wind_down(_CLEAN_UP_SECONDS)
    living = loop.living_tasks()
    for task in living:
        task.cancel()
    try:
        loop.run_until_complete(_ended(living))
        loop.run_until_complete(loop.shutdown_asyncgens())
    except (Stuck, Leak) as error:
        # A task does not end. The outcome of the scenario counts, not this.
        loop.note("clean-up cut short", error)
    finally:
        loop.close()


async def _ended(tasks: list[asyncio.Task[Any]]) -> None:
    await asyncio.gather(*tasks, return_exceptions=True)
