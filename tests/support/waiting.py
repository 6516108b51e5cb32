"""Waits for what sets no event: another process, a thread, a library's own state."""

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

SECONDS = 60.0
"""For what takes milliseconds unless it is broken."""


async def until(condition: Callable[[], Any], what: str = "the condition", seconds: float = SECONDS) -> None:
    """Wait until a condition holds, which may be a coroutine function."""
    clock = asyncio.get_running_loop()
    deadline = clock.time() + seconds
    while True:
        found = condition()
        if await found if inspect.isawaitable(found) else found:
            return
        assert clock.time() < deadline, f"{what} never came true"
        await asyncio.sleep(0.002)


async def settled(value: Callable[[], Any], times: int = 20) -> Any:
    """A value that moves, once it was the same so often in a row."""
    last, same = value(), 0
    while same < times:
        await asyncio.sleep(0.005)
        now = value()
        last, same = now, same + 1 if now == last else 0
    return last
