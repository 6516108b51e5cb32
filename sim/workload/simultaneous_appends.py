"""Many ledgers of one client that append at the same moment, over a way that takes few batches at a time (L10).

After healing, a client writes many ledgers at once. Its connections are slow, and let only a few batches be unanswered,
so that most of them wait at the client for longer than the add timeout, while acks come all the time. No bookie may be
taken to be silent for that.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from tallybook.client.add_window import AddWindow
from tallybook.core.limits import KIB

if TYPE_CHECKING:
    from .run import Universe

LEDGERS: Final = 60
CREDIT_BYTES: Final = 4 * KIB
"""A few small batches."""
ROUND_TRIPS: Final = 4
"""In one add timeout."""
DISK_STALLS: Final = 6
"""Longest operations of a disk in one add timeout, at least: a bookie whose disk stands still for longer is silent."""
LEAST_PENDING_BYTES: Final = 16 * KIB
MOST_ENTRY_BYTES: Final = 100
SILENT: Final = "writer: a member owes an ack for too long"


async def write_many_at_once(universe: Universe) -> None:
    """Write and close many ledgers at the same moment; no bookie is to be lost for what was not sent to it."""
    swarm, net, workload = universe.swarm, universe.around.net, universe.workload
    plain = swarm.archive is None and swarm.streams is None and swarm.repair is None and not swarm.unequal
    small = swarm.entry_bytes <= MOST_ENTRY_BYTES and swarm.pending_bytes >= LEAST_PENDING_BYTES
    if not (plain and small) or swarm.add_timeout_ms > swarm.request_timeout_ms or workload.asleep():
        return
    if DISK_STALLS * swarm.latency().longest_seconds * 1000 > swarm.add_timeout_ms:
        return
    usual = (swarm.net_delay_ms / 10_000, swarm.net_delay_ms / 1000)
    delay_s = swarm.add_timeout_ms / 1000 / ROUND_TRIPS / 2
    async with workload.guest("crowd") as client:
        between = [pair for name in universe.nodes for pair in ((name, client.name), (client.name, name))]
        for name in universe.nodes:
            connection = await client.client.world.connections.get(name)
            connection._adds._window = AddWindow(CREDIT_BYTES)  # type: ignore[attr-defined]  # noqa: SLF001
        for source, target in between:
            net.set_delay(source, target, (delay_s, delay_s))
        before = universe.marks.met[SILENT]
        written = await asyncio.gather(*(workload.write_on_all(client, len(universe.nodes)) for _ in range(LEDGERS)))
        lost = universe.marks.met[SILENT] - before
        for source, target in between:
            net.set_delay(source, target, usual)
    detail = f"{lost} members were taken to be silent while {LEDGERS} ledgers shared their connections"
    universe.god.expect(lost == 0, "L10", detail)
    if all(written):
        universe.god.mark("many ledgers at once")
