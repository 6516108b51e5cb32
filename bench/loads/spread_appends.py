"""Appends at a steady rate that are spread at random over many ledgers or streams."""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, Protocol

from tallybook.cli.measure.pacing import Pacer
from tallybook.client.background import client_tasks
from tallybook.core.limits import KIB
from tallybook.runtime.rng import SeededRng

_PAYLOAD: Final = b"x" * KIB
_NS_PER_S: Final = 1_000_000_000


class AppendTarget(Protocol):
    """Common interface of ledger and stream writers."""

    def append(self, payload: bytes, /) -> Coroutine[Any, Any, Any]:
        """Append, and wait for the confirmation."""


async def spread_appends(appenders: Sequence[AppendTarget], rate: float, seconds: float) -> array[int]:
    """Append 1 KiB to one of ``appenders``, drawn at random, at a steady rate; each append is a task.

    Returns:
        Nanoseconds from the due time of each append to its confirmation.

    Raises:
        TallybookError: an append failed.
    """
    rng, found = SeededRng(1), array("q")

    async def one(appender: AppendTarget, due_ns: int) -> None:
        await appender.append(_PAYLOAD)
        found.append(time.monotonic_ns() - due_ns)

    tasks = client_tasks("load")
    appends: list[asyncio.Task[None]] = []

    def begin(due_ns: int) -> None:
        appender = appenders[rng.randint(0, len(appenders) - 1)]
        appends.append(tasks.spawn(one(appender, due_ns), name="append"))

    await steadily(round(seconds * rate), rate, begin)
    try:
        await asyncio.gather(*appends)
    finally:
        await tasks.close()
    return found


async def steadily(count: int, rate: float, begin: Callable[[int], object]) -> None:
    """Start something ``count`` times at ``rate`` per second, without waiting for it.

    Args:
        begin: called with the due time in nanoseconds.
    """
    with Pacer() as pacer:
        start_ns = time.monotonic_ns()
        for number in range(count):
            due_ns = start_ns + round(number / rate * _NS_PER_S)
            await pacer.until(due_ns)
            begin(due_ns)
