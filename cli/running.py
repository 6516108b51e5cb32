"""How a command runs: an event loop, and what a signal does to it.

The first SIGINT or SIGTERM cancels the command, which then says what it got done, or tells a server to stop; a second
one ends the process at once.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import uvloop

from tallybook.runtime.process import Process, end_on_broken_invariants
from tallybook.runtime.tuning import tune_process

from .exits import Interrupted
from .parent import die_with_parent

T = TypeVar("T")

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run ``work`` to its end.

    Raises:
        Interrupted: a signal ended it.
    """
    tune_process()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_cancelled_by_signals(work))


def on_signals(first: Callable[[int], None]) -> None:
    """Call ``first`` with the first stop signal that comes; the second one ends the process at once."""
    caught: list[int] = []

    def received(number: int) -> None:
        if caught:
            os._exit(128 + number)
        caught.append(number)
        first(number)

    loop = asyncio.get_running_loop()
    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, received, number)


def told_to_stop(process: Process, parent_pipe: int | None) -> asyncio.Event:
    """What the first stop signal sets, for a server, which ends cleanly then. Call on the event loop.

    Args:
        process: ended where an invariant is broken.
        parent_pipe: with what this process ends; ``None``: with nobody.
    """
    stop = asyncio.Event()
    end_on_broken_invariants(asyncio.get_running_loop(), process)
    on_signals(lambda _: stop.set())
    if parent_pipe is not None:
        die_with_parent(parent_pipe)
    return stop


async def _cancelled_by_signals(work: Coroutine[Any, Any, T]) -> T:
    main = asyncio.current_task()
    caught: list[int] = []

    def cancel(number: int) -> None:
        caught.append(number)
        if main is not None:
            main.cancel()

    on_signals(cancel)
    try:
        return await work
    except asyncio.CancelledError:
        if caught:
            raise Interrupted(caught[0]) from None
        raise
