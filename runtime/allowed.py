"""Calls and streams that last: whether their caller is still authorized is checked again and again.

    let in -> served --- LOOK_SECONDS, or the credentials expire ---> authorized still? -> served
                                                                        `-> no: the work ends, with the reason

A look costs what letting in costs, once in a while for each call or stream; besides, each has a task of its own that
waits for it. What passes on it costs nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from tallybook.core.access import ANYBODY, Principal

from .clock import Clock
from .tasks import Beside

LOOK_SECONDS: Final = 60.0
"""Rights that are taken away count so soon, for what is under way."""
_LEAST_SECONDS: Final = 0.1
"""Between two looks, should clocks not agree whether something has expired."""


async def while_allowed(
    work: Awaitable[None], principal: Principal, look: Callable[[], Awaitable[Principal]], clock: Clock
) -> None:
    """Do ``work`` on behalf of a principal, as long as it is authorized.

    Args:
        principal: as was found just now. Where access is open to all, nothing is checked again.
        look: finds out who it is by now, and raises what it is refused with if it may not go on.

    Raises:
        What ``look`` has raised: the work was cancelled, and has ended.
        What the work has raised.
    """
    if principal is ANYBODY:
        await work
        return
    refusal: Exception | None = None

    async def go_on_looking() -> None:
        nonlocal refusal
        found = principal
        try:
            while True:
                await clock.sleep(_pause_seconds(found, clock))
                found = await look()
        except Exception as error:  # noqa: BLE001 - any failure: it is not known any more that it may, and it is told
            refusal = error
            end.reschedule(asyncio.get_running_loop().time())

    try:
        async with asyncio.timeout(None) as end, Beside() as beside:
            await beside.start(go_on_looking())
            await work
    except TimeoutError:
        if refusal is None:
            raise
        raise refusal from None


def _pause_seconds(principal: Principal, clock: Clock) -> float:
    """Until the next look."""
    if principal.until_us is None:
        return LOOK_SECONDS
    left_us = min(principal.until_us - clock.wall_us(), int(LOOK_SECONDS * 1e6))
    return max(left_us / 1e6, _LEAST_SECONDS)
