"""A damaged index row is found on any access, and repaired from other bookies until all copies are good.

Bookies, wire, client and repair run production code; the disk and the index are simulated.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Final

import pytest

from tallybook.bookie.bookie import Bookie
from tallybook.bookie.ledgers.state import decode_row
from tallybook.bookie.storage.index.survey import RowKey, UnreadableRange
from tallybook.bookie.storage.location import IndexRow
from tallybook.client.client import Client
from tallybook.core.errors import EntryAbsent, EntryUnknown, StorageError
from tallybook.core.ids import MAX_ID
from tallybook.core.settings import RepairSettings
from tallybook.metadata.ledger.model import LedgerMetadata
from tallybook.repair.service import RepairService
from tallybook.repair.status.check import CopyCheck
from tallybook.runtime.rng import SeededRng
from tallybook.sim.cluster.bookie_node import BookieNode
from tallybook.sim.configuration.run_configuration import draw_configuration
from tallybook.sim.deterministic import World
from tallybook.sim.memory_bookie.index import MemoryIndex
from tallybook.sim.run import Universe

from ..simulated import Parts, on_stage
from ..support.ledger_scenario import lines, read_all
from .parts import serving_universe

ENTRIES: Final = 60
HURT: Final = "b1"
QUICK: Final = RepairSettings(lost_after_s=600, interval_s=5, lease_s=6, check_period_s=0)
CHECKING: Final = QUICK.model_copy(update={"check_period_s": 3_600})
CALM: Final = replace(
    draw_configuration(SeededRng("calm")),
    bookies=3,
    faults=(),
    batch_bytes=256,
    in_flight=4,
    write_cache_bytes=64 * 1024,
    segment_bytes=64 * 1024,
    add_timeout_ms=10_000,
    request_timeout_ms=1_000,
)
"""Three bookies, each of which has a copy of everything, where nothing goes wrong by itself."""


def index_of(bookie: Bookie) -> MemoryIndex:
    index = bookie._parts.index
    assert isinstance(index, MemoryIndex)
    return index


def bookie_of(node: BookieNode) -> Bookie:
    assert node.bookie is not None
    return node.bookie


async def written(client: Client) -> LedgerMetadata:
    """A closed ledger of many batches, with a copy on every bookie."""
    ledger = await client.create_ledger(ensemble=3, write_quorum=3, ack_quorum=2)
    for at in range(0, ENTRIES, 4):
        await ledger.append_many(lines(4, at))
    await ledger.close()
    return ledger.metadata


async def said_of_all(bookie: Bookie, metadata: LedgerMetadata) -> set[str]:
    """The bookie's answers for all entries: names of errors, and "held" for an entry that it returns."""
    said = set[str]()
    for entry_id in range(ENTRIES):
        try:
            entry = await bookie.read_entry(metadata.ledger_id, entry_id)
        except StorageError as error:
            said.add(type(error).__name__)
        else:
            assert bytes(entry.payload) == lines(ENTRIES)[entry_id]
            said.add("held")
    return said


def which(rows: list[IndexRow], what: str) -> list[RowKey]:
    keys = [RowKey(*row[:2]) for row in rows]
    return {"the first": keys[:1], "two in a row": keys[2:4], "the last": keys[-1:], "all": keys}[what]


@asynccontextmanager
async def serving_bookies(world: World) -> AsyncIterator[Parts]:
    """Serving bookies and a client in its own process."""
    async with serving_universe(world, CALM) as universe, universe.workload.extra_client("client") as extra_client:
        yield {"universe": universe, "client": extra_client.client}


on_serving_bookies = on_stage(serving_bookies, deadline_seconds=600)


@pytest.mark.parametrize("finder", ["scrub", "reader"])
@pytest.mark.parametrize("what", ["the first", "two in a row", "the last", "all"])
@on_serving_bookies
async def test_damaged_rows_are_found_and_every_copy_comes_back(
    universe: Universe, client: Client, *, finder: str, what: str
) -> None:
    metadata = await written(client)
    bookie = bookie_of(universe.nodes[HURT])
    await bookie.flush()
    index = index_of(bookie)
    keys = which(await index.find_range(metadata.ledger_id, 0, MAX_ID, 100), what)
    index.damaged.update(keys)
    said = await said_of_all(bookie, metadata) if finder == "reader" else set()
    assert EntryAbsent.__name__ not in said
    assert (EntryUnknown.__name__ in said) == (finder == "reader")
    if finder == "scrub":
        await bookie._parts.scrub.run_pass()
    assert [each[:2] for each in await bookie.damaged((-1, -1), 100)] == keys
    assert not (await CopyCheck(client.world.store, client.world.connections).check_ledger(metadata)).good

    await mended(universe, client, bookie)

    assert index.damaged == set()
    assert await said_of_all(bookie, metadata) == {"held"}
    check = CopyCheck(client.world.store, client.world.connections, read=True)
    found = await check.check_ledger(metadata)
    assert (found.places, found.lacks) == (3, [])
    assert (await client.ledger_metadata(metadata.ledger_id)).fragments == metadata.fragments
    assert await read_all(client, metadata.ledger_id) == lines(ENTRIES)


@on_serving_bookies
async def test_a_check_calls_what_a_damaged_row_may_cover_unknown_and_not_absent(
    universe: Universe, client: Client
) -> None:
    metadata = await written(client)
    bookie = bookie_of(universe.nodes[HURT])
    await bookie.flush()
    index = index_of(bookie)
    row = (await index.find_range(metadata.ledger_id, 0, MAX_ID, 100))[2]
    index.damaged.add(RowKey(*row[:2]))
    found = await CopyCheck(client.world.store, client.world.connections).check_ledger(metadata)
    assert [lack[:4] for lack in found.lacks] == [(HURT, row.first_entry_id, row.last_entry_id, "unknown")]
    index.damaged.clear()


@on_serving_bookies
async def test_a_lost_part_of_an_index_keeps_nothing_else_from_repair_and_comes_back_with_the_next_start(
    universe: Universe, client: Client
) -> None:
    metadata = await written(client)
    node = universe.nodes[HURT]
    bookie = bookie_of(node)
    await bookie.flush()
    index = index_of(bookie)
    keys = [RowKey(*row[:2]) for row in await index.find_range(metadata.ledger_id, 0, MAX_ID, 100)]
    index.unreadable = UnreadableRange(keys[1], keys[4], is_row=False)
    index.damaged.update(keys[6:8])
    assert await said_of_all(bookie, metadata) == {"held", EntryUnknown.__name__}
    await mended(universe, client, bookie)
    assert index.damaged == set()
    found = await CopyCheck(client.world.store, client.world.connections).check_ledger(metadata)
    lost = (HURT, keys[1].first_entry_id, keys[4].first_entry_id - 1, "unknown")
    assert [lack[:4] for lack in found.lacks] == [lost]

    await bookie._parts.scrub.run_pass()
    node.kill(down_seconds=1.0)
    while not node.ready:
        await universe.world.clock.sleep(0.1)
    bookie = bookie_of(node)
    assert (await bookie.held(metadata.ledger_id, 0, MAX_ID)).limbo
    await mended(universe, client, bookie, limbo_of=metadata.ledger_id)
    check = CopyCheck(client.world.store, client.world.connections, read=True)
    assert (await check.check_ledger(metadata)).lacks == []
    assert (await client.ledger_metadata(metadata.ledger_id)).fragments == metadata.fragments


@on_serving_bookies
async def test_a_damaged_state_of_a_ledger_is_whole_again_once_all_copies_were_checked(
    universe: Universe, client: Client
) -> None:
    metadata = await written(client)
    bookie = bookie_of(universe.nodes[HURT])
    await bookie.flush()
    index, table = index_of(bookie), bookie._parts.table
    # It is in memory, and will be looked for in the index once others have pushed it out.
    del table._all[metadata.ledger_id], table._idle[metadata.ledger_id]
    index._states[metadata.ledger_id] = b"damaged"
    assert (await bookie.held(metadata.ledger_id, 0, MAX_ID)).limbo
    await mended(universe, client, bookie, limbo_of=metadata.ledger_id, settings=CHECKING)
    state = decode_row(metadata.ledger_id, await index.load_state(metadata.ledger_id) or b"")
    assert (state.limbo, state.last_held) == (False, ENTRIES - 1)


async def mended(
    universe: Universe,
    client: Client,
    bookie: Bookie,
    *,
    limbo_of: int | None = None,
    settings: RepairSettings = QUICK,
) -> None:
    """Run a repair until the bookie reports neither damage nor limbo and the new copies are in its index."""
    service = asyncio.ensure_future(RepairService(client, settings).run())
    try:
        async with asyncio.timeout(120):
            while await bookie.damaged((-1, -1), 1) or (
                limbo_of is not None and (await bookie.held(limbo_of, 0, MAX_ID)).limbo
            ):
                await universe.world.clock.sleep(1)
                await bookie.flush()
    finally:
        service.cancel()
        await asyncio.gather(service, return_exceptions=True)
