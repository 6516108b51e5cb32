"""How a command runs: an event loop, and what a signal does to it.

The first SIGINT or SIGTERM cancels the command, which then says what it got done; a second
one ends the process at once.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import uvloop

from tallybook.runtime.tuning import tune_process

from .exits import Interrupted

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
