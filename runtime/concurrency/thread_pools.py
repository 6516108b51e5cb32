"""How pools of threads end without holding up the event loop.

``ThreadPoolExecutor.shutdown`` either waits, on the caller's thread, or says nothing of the end.
Here a thread of its own waits, so that a call that hangs costs a deadline and not the whole process.
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
"""How long threads may take to finish what they are at."""

_JOIN_SECONDS: Final = 1.0


async def end_pools(pools: Iterable[Executor], owner: str, *, drop_queued: bool) -> None:
    """Let running calls finish, drop queued ones or finish them too, and end the threads.

    Raises:
        RequestTimeout: a call did not end within ``CLOSE_SECONDS``; its thread goes on.
    """
    loop, ended = asyncio.get_running_loop(), asyncio.Event()

    def shut_down() -> None:
        for pool in pools:
            pool.shutdown(wait=True, cancel_futures=drop_queued)
        with contextlib.suppress(RuntimeError):  # the loop was closed: nobody waits any more
            loop.call_soon_threadsafe(ended.set)

    closer = threading.Thread(target=shut_down, name=f"{owner}-close", daemon=True)
    closer.start()
    try:
        await asyncio.wait_for(ended.wait(), CLOSE_SECONDS)
    except TimeoutError as error:
        raise RequestTimeout(f"{owner}: a call did not end within {CLOSE_SECONDS} s") from error
    closer.join(_JOIN_SECONDS)  # its last act was to say so: this does not wait
