"""Re-authorizes long-running calls and streams, and ends those whose caller is not authorized any more.

    authorized -> served --- after RECHECK_SECONDS, or when the credentials expire ---> authorized? -> served
                                                                                          `-> no: the call ends

A check costs as much as the first authorization. Each call has a task that waits for the next check; messages of the
call cost nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from tallybook.core.access import UNRESTRICTED, Principal

from ..clock import Clock
from ..tasks import SideTask

RECHECK_SECONDS: Final = 60.0
"""Interval of the checks: after this time a call ends whose rights were revoked."""
_MIN_SECONDS: Final = 0.1
"""Minimum between two checks, in case clocks disagree whether credentials have expired."""


async def run_while_authorized(
    work: Awaitable[None], principal: Principal, authorize: Callable[[], Awaitable[Principal]], clock: Clock
) -> None:
    """Run ``work`` on behalf of a principal as long as it is authorized.

    Args:
        principal: the result of the first authorization. ``UNRESTRICTED`` (open access) is not checked again.
        authorize: authorizes the caller again; raises if it is not authorized any more.

    Raises:
        The error of ``authorize``: the work was cancelled and has ended.
        The error of the work.
    """
    if principal is UNRESTRICTED:
        await work
        return
    refusal: Exception | None = None

    async def recheck() -> None:
        nonlocal refusal
        found = principal
        try:
            while True:
                await clock.sleep(_pause_seconds(found, clock))
                found = await authorize()
        except Exception as error:  # noqa: BLE001 - after any failure the authorization is unknown; raised below
            refusal = error
            end.reschedule(asyncio.get_running_loop().time())

    try:
        async with asyncio.timeout(None) as end, SideTask() as checks:
            await checks.start(recheck())
            await work
    except TimeoutError:
        if refusal is None:
            raise
        raise refusal from None


def _pause_seconds(principal: Principal, clock: Clock) -> float:
    """Seconds until the next check."""
    if principal.until_us is None:
        return RECHECK_SECONDS
    left_us = min(principal.until_us - clock.wall_us(), int(RECHECK_SECONDS * 1e6))
    return max(left_us / 1e6, _MIN_SECONDS)
