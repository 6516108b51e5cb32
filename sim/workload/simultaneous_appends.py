"""Checks that a bookie is not taken to be silent for adds that wait in the client (L10).

After healing, a client writes many ledgers at the same moment over slow connections that allow only a few unanswered
batches. Most adds wait in the client for longer than the add timeout, while acks arrive all the time.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from tallybook.client.connection.add_window import AddWindow
from tallybook.core.limits import KIB

if TYPE_CHECKING:
    from ..run import Universe

LEDGERS: Final = 60
CREDIT_BYTES: Final = 4 * KIB
"""Add window of each connection: a few small batches."""
ROUND_TRIPS: Final = 4
"""Round trips of a connection in one add timeout."""
DISK_STALLS: Final = 6
"""The add timeout must allow so many of the slowest disk operations; otherwise a bookie with a slow disk is silent."""
MIN_PENDING_BYTES: Final = 16 * KIB
MAX_ENTRY_BYTES: Final = 100
SILENT: Final = "writer: a member owes an ack for too long"


async def write_simultaneously(universe: Universe) -> None:
    """Write and close many ledgers at the same moment; no bookie may be replaced for adds that were not sent to it."""
    config, net, workload = universe.config, universe.env.net, universe.workload
    plain = config.archive is None and config.streams is None and config.repair is None and not config.unequal
    small = config.entry_bytes <= MAX_ENTRY_BYTES and config.pending_bytes >= MIN_PENDING_BYTES
    if not (plain and small) or config.add_timeout_ms > config.request_timeout_ms or workload.asleep():
        return
    if DISK_STALLS * config.latency().longest_seconds * 1000 > config.add_timeout_ms:
        return
    usual = (config.net_delay_ms / 10_000, config.net_delay_ms / 1000)
    delay_s = config.add_timeout_ms / 1000 / ROUND_TRIPS / 2
    async with workload.extra_client("crowd") as client:
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
    universe.oracle.expect(lost == 0, "L10", detail)
    if all(written):
        universe.oracle.mark("many ledgers at once")
