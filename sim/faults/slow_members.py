"""Checks that a recovery beside one slow member takes a bounded time, however long the tail is (L8).

After healing, a writer leaves a ledger whose members all hold batches with acks that never reached it. One member then
becomes slow and another client recovers the ledger. Only runs with long enough timeouts and several batches in flight
can tell.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from ..run import Universe

ROUND_TRIP_SECONDS: Final = 0.8
MIN_TIMEOUT_MS: Final = 1_000
MIN_BATCHES: Final = 4
DEAF_SECONDS: Final = 60.0
LIMIT_SECONDS: Final = 2 * ROUND_TRIP_SECONDS + 1
"""Maximum duration of the recovery."""


async def recover_beside_a_slow_member(universe: Universe) -> None:
    """Recover a ledger whose tail all members hold while one of them is slow."""
    config, net, clock = universe.config, universe.env.net, universe.world.clock
    if (
        min(config.add_timeout_ms, config.request_timeout_ms) < MIN_TIMEOUT_MS
        or config.in_flight < MIN_BATCHES
        or len(universe.nodes) < 3
    ):
        return
    usual = (config.net_delay_ms / 10_000, config.net_delay_ms / 1000)
    async with universe.workload.extra_client("leaver") as owner, universe.workload.extra_client("rescuer") as rescuer:

        async def deafen(members: Sequence[str]) -> None:
            for name in members:
                await (await rescuer.client.world.connections.get(name)).status()
                await (await owner.client.world.connections.get(name)).status()
                net.set_delay(name, owner.name, (DEAF_SECONDS, DEAF_SECONDS))

        left = await universe.workload.abandon_unacked(owner, config.in_flight, deafen)
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
            universe.oracle.expect(took <= LIMIT_SECONDS, "L8", detail)
            universe.oracle.mark("recovery beside a slow member")
