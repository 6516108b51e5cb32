"""Runs a command on an event loop and handles signals.

The first SIGINT, SIGTERM or SIGHUP cancels the command, which then prints what it got done, or stops a server cleanly.
A second one ends the process at once.
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
from .local.parent import die_with_parent

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
    """Call ``first`` with the first stop signal. The second one ends the process at once."""
    caught: list[int] = []

    def received(number: int) -> None:
        if caught:
            os._exit(128 + number)
        caught.append(number)
        first(number)

    loop = asyncio.get_running_loop()
    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, received, number)


def stop_event(process: Process, parent_pipe: int | None) -> asyncio.Event:
    """An event for a server, set by the first stop signal. Call on the event loop.

    Args:
        process: ended if an invariant is broken.
        parent_pipe: pipe of the parent process; this process ends when it closes. ``None``: no parent.
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
