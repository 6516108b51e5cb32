"""Checks that starting a bookie twice gives the same state as starting it once (I19)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, TypeAlias

from tallybook.bookie.bookie import Bookie
from tallybook.core.batch import decode_header
from tallybook.core.errors import TallybookError

from ..deterministic import SimClock
from ..stage.disk_bookie import DiskBookie, KnownMetadata

if TYPE_CHECKING:
    from ..run import Universe

Picture: TypeAlias = list[tuple[object, ...]]


async def check_restart_idempotence(universe: Universe) -> None:
    """Boot one bookie once and, from a copy of the same disk, twice; compare what both hold."""
    oracle, rng = universe.oracle, universe.world.rng.fork("twice")
    nodes = [node for node in universe.nodes.values() if not node.damaged]
    if not nodes:
        return
    node = nodes[rng.randint(0, len(nodes) - 1)]
    disk = node.disk.lose_power(rng)
    node.kill(1_000.0)
    shared = universe.metadata.shared
    metadata = KnownMetadata(cookies=dict(shared.cookies), id_counter=shared.id_counter)
    once, twice = [DiskBookie(copy, SimClock(), metadata, node.settings) for copy in (disk.fork(), disk.fork())]
    for each in (once, twice):
        each.metadata.cluster = shared.cluster_id
    await twice.boot()
    await twice.kill()
    pictures = [await picture(await each.boot(), oracle.ledgers) for each in (once, twice)]
    oracle.expect(pictures[0] == pictures[1], "I19", f"{node.name} holds other data after two starts than after one")
    for each in (once, twice):
        await each.kill()


async def picture(bookie: Bookie, ledger_ids: Iterable[int]) -> Picture:
    """LAC, fence flag and batch CRCs that a bookie reports for these ledgers."""
    lines: Picture = []
    for ledger_id in ledger_ids:
        entry_id = 0
        try:
            answer = await bookie.read_lac(ledger_id)
            lines.append((ledger_id, answer.lac, answer.fenced))
            while True:
                batch = (await bookie.read_batches(ledger_id, entry_id, entry_id, 1)).batches[0]
                header = decode_header(batch)
                lines.append((ledger_id, entry_id, header.crc))
                entry_id = header.last_entry_id + 1
        except TallybookError as error:
            lines.append((ledger_id, entry_id, type(error).__name__))
    return lines
