"""Shutdown of thread pools without blocking the event loop.

``ThreadPoolExecutor.shutdown`` either blocks the calling thread or does not report the end.
Here a separate thread waits, so that a call that hangs leads to a timeout and does not block the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterable
from concurrent.futures import Executor
from typing import Final

from tallybook.core.errors import RequestTimeout

CLOSE_SECONDS: Final = 60.0
"""How long running calls may take to finish."""

_JOIN_SECONDS: Final = 1.0


async def shut_down_pools(pools: Iterable[Executor], owner: str, *, drop_queued: bool) -> None:
    """Let running calls finish, drop or finish the queued ones, and end the threads.

    Raises:
        RequestTimeout: a call did not end within ``CLOSE_SECONDS``; its thread keeps running.
    """
    loop, ended = asyncio.get_running_loop(), asyncio.Event()

    def shut_down() -> None:
        for pool in pools:
            pool.shutdown(wait=True, cancel_futures=drop_queued)
        with contextlib.suppress(RuntimeError):  # the loop was closed: no task waits any more
            loop.call_soon_threadsafe(ended.set)

    closer = threading.Thread(target=shut_down, name=f"{owner}-close", daemon=True)
    closer.start()
    try:
        await asyncio.wait_for(ended.wait(), CLOSE_SECONDS)
    except TimeoutError as error:
        raise RequestTimeout(f"{owner}: a call did not end within {CLOSE_SECONDS} s") from error
    closer.join(_JOIN_SECONDS)  # the thread has just set the event and ends: this does not block
