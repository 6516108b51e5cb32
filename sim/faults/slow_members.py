"""A recovery beside a slow member: how long it takes, whatever the tail (L8).

After healing, an owner leaves a ledger whose members all hold batches that it never heard acks of. One of them then
answers slowly, and another client recovers the ledger. Only runs in which such an answer is no failure, and in which
the tail has several batches, are long enough to tell.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from .run import Universe

ROUND_TRIP_SECONDS: Final = 0.8
LEAST_TIMEOUT_MS: Final = 1_000
LEAST_BATCHES: Final = 4
DEAF_SECONDS: Final = 60.0
LIMIT_SECONDS: Final = 2 * ROUND_TRIP_SECONDS + 1
"""What one slow member may add to a recovery."""


async def recover_beside_a_slow_member(universe: Universe) -> None:
    """Recover a ledger whose tail all members hold, while one of them is slow."""
    swarm, net, clock = universe.swarm, universe.around.net, universe.world.clock
    if (
        min(swarm.add_timeout_ms, swarm.request_timeout_ms) < LEAST_TIMEOUT_MS
        or swarm.in_flight < LEAST_BATCHES
        or len(universe.nodes) < 3
    ):
        return
    usual = (swarm.net_delay_ms / 10_000, swarm.net_delay_ms / 1000)
    async with universe.workload.guest("leaver") as owner, universe.workload.guest("rescuer") as rescuer:

        async def deafen(members: Sequence[str]) -> None:
            for name in members:
                await (await rescuer.client.world.connections.get(name)).status()
                await (await owner.client.world.connections.get(name)).status()
                net.set_delay(name, owner.name, (DEAF_SECONDS, DEAF_SECONDS))

        left = await universe.workload.leave(owner, swarm.in_flight, deafen)
        if left is None:
            return
        made, (*_, slow) = left
        between = ((slow, rescuer.name), (rescuer.name, slow))
        for source, target in between:
            net.set_delay(source, target, (ROUND_TRIP_SECONDS / 2, ROUND_TRIP_SECONDS / 2))
        began = clock.monotonic()
        recovered = await universe.workload.recover(rescuer, made)
        took = clock.monotonic() - began
        for source, target in between:
            net.set_delay(source, target, usual)
        if recovered:
            detail = f"the recovery of ledger {made.ledger_id} took {took:.1f} s beside one slow member"
            universe.god.expect(took <= LIMIT_SECONDS, "L8", detail)
            universe.god.mark("recovery beside a slow member")
