"""A ledger is deleted by mistake and its metadata come back, on real bookies with default delays."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tallybook.client.client import Client
from tallybook.core.errors import NoSuchLedger
from tallybook.core.ids import NO_ENTRY
from tallybook.core.settings import CollectionSettings
from tallybook.repair.status.check import CopyCheck
from tallybook.sim.deterministic import World
from tallybook.sim.run import Universe

from ..simulated import on_stage, world_alone
from ..support.ledger_scenario import lines, read_all
from .parts import checked_universe
from .test_restored_metadata import CALM

HOUR_SECONDS = 3600
ENTRIES = lines(30)


@on_stage(world_alone, deadline_seconds=10 * HOUR_SECONDS)
async def test_a_deleted_ledger_whose_metadata_come_back_within_an_hour_is_kept_whole_for_good(world: World) -> None:
    async with checked_universe(world, replace(CALM, session_seconds=60.0)) as universe:
        for node in universe.nodes.values():
            node.settings = node.settings.model_copy(update={"collection": CollectionSettings()})
            node.start()
        await serving(universe)
        async with universe.workload.extra_client("client") as extra_client:
            await undo_one_of_two(universe, extra_client.client)


async def undo_one_of_two(universe: Universe, client: Client) -> None:
    """Delete two ledgers and restore the row of one of them."""
    clock, shared, nodes = universe.world.clock, universe.metadata.shared, universe.nodes.values()
    undone, gone = [await written(client) for _ in range(2)]
    row = shared.ledgers[undone]
    for ledger_id in (undone, gone):
        await client.delete_ledger(ledger_id)
    with pytest.raises(NoSuchLedger):
        await client.open_ledger(undone)
    await clock.sleep(0.9 * HOUR_SECONDS)
    assert [node.bookie and node.bookie.stats()["ledgers_deleted"] for node in nodes] == [2, 2, 2], "all of them know"
    shared.ledgers[undone] = row
    shared.ledger_changed(undone)
    await clock.sleep(0.2 * HOUR_SECONDS)
    assert await held(universe) == [[undone]] * 3
    for node in nodes:
        node.kill()
    await serving(universe)
    check = CopyCheck(client.world.store, client.world.connections, read=True)
    assert (await check.check_ledger(await client.ledger_metadata(undone))).lacks == [], "each bookie has all of it"
    assert await read_all(client, undone) == ENTRIES


async def written(client: Client) -> int:
    """A closed ledger with copies on every bookie."""
    async with await client.create_ledger(ensemble=3, write_quorum=3, ack_quorum=3) as writer:
        await writer.append_many(ENTRIES)
    return writer.id


async def serving(universe: Universe) -> None:
    await universe.until(universe.all_serve, 60.0, "boot", "not every bookie serves")


async def held(universe: Universe) -> list[list[int]]:
    """The ledgers that each bookie has."""
    pages = [
        await node.bookie.held_ledgers(NO_ENTRY, 10) for node in universe.nodes.values() if node.bookie is not None
    ]
    return [[each.ledger_id for each in page.ledgers] for page in pages]
