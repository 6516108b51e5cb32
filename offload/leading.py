"""Leading once, in place of the offloaders of a cluster: for work that must not be done beside theirs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from tallybook.core.errors import Conflict
from tallybook.metadata.leader import Leadership

LEADER_RECORD: Final = "archive/leader"
"""Names the offloader of a cluster that leads."""


async def lead_once(leadership: Leadership, lease_s: float, work: Callable[[], Awaitable[object]]) -> None:
    """Lead, do ``work``, and lead no more. When the lead is lost meanwhile, the work begins anew once it is won again.

    Raises:
        Conflict: another process leads, and went on doing so for two leases.
        Whatever ``work`` raises.
    """
    waiting = asyncio.timeout(2 * lease_s)

    async def working() -> None:
        waiting.reschedule(None)
        await work()

    try:
        async with waiting:
            await leadership.lead(working)
    except TimeoutError:
        if not waiting.expired():
            raise
        raise Conflict("an offloader of this cluster is at work: stop it, and run this again") from None
