"""Growth of the journal: a start takes it into account, and it leaves the space that checkpoints need."""

import asyncio

import pytest

from tallybook.core.errors import DiskFull
from tallybook.core.limits import KIB
from tallybook.core.settings import BookieSettings
from tallybook.sim.deterministic import SimDisk, World
from tallybook.sim.stage.disk_bookie import ROOT, DiskBookie, batch_of, tiny_settings

from ..simulated import simulated
from ..support.log_lines import line_of

RING_BYTES = 4 * 64 * KIB
FREE_BYTES = 256 * KIB
ROOM_FOR_FILES_BYTES = 64 * KIB


def settings() -> BookieSettings:
    tiny = tiny_settings()
    return tiny.model_copy(update={"storage": tiny.storage.model_copy(update={"min_free_bytes": FREE_BYTES})})


def segment_bytes(disk: SimDisk) -> list[int]:
    return [len(disk.peek(f"{ROOT}/journal/segment-{slot:04d}")) for slot in range(4)]


@simulated
async def test_a_bookie_does_not_start_where_its_journal_would_take_the_space_that_checkpoints_need(world):
    small = SimDisk(world.rng, capacity_bytes=FREE_BYTES + RING_BYTES - 1)
    node = DiskBookie(small, world.clock, settings=settings())
    with pytest.raises(DiskFull, match=f"{FREE_BYTES + RING_BYTES} are needed"):
        await node.boot()


@simulated
async def test_a_start_needs_no_space_for_existing_segments(world: World) -> None:
    disk = SimDisk(world.rng, capacity_bytes=FREE_BYTES + RING_BYTES + ROOM_FOR_FILES_BYTES)
    node = DiskBookie(disk, world.clock, settings=settings())
    await node.boot()
    await world.clock.sleep(1)
    await node.stop()
    await node.boot()
    await node.stop()
    assert node.failures == []


@simulated
async def test_a_journal_without_space_stays_small_logs_it_once_and_grows_when_there_is_space(world, *, caplog):
    disk = SimDisk(world.rng, capacity_bytes=FREE_BYTES + RING_BYTES + ROOM_FOR_FILES_BYTES)
    node = DiskBookie(disk, world.clock, settings=settings())
    await node.boot()
    await disk.replace_file("/data/filler", bytes(90 * KIB))
    await world.clock.sleep(10)
    assert disk.free_bytes() >= FREE_BYTES
    assert 0 < sum(segment_bytes(disk)) < RING_BYTES
    warnings = [line_of(record) for record in caplog.records if "stays smaller" in record.getMessage()]
    assert len(warnings) == 1
    assert f"min_free_bytes={FREE_BYTES}" in warnings[0]
    assert (await node.add(batch_of(0))).code == 0
    await disk.unlink("/data/filler")
    await disk.sync_directory("/data")
    await world.clock.sleep(5)
    assert sum(segment_bytes(disk)) == RING_BYTES
    await node.stop()
    assert node.failures == []


@simulated
async def test_a_journal_that_does_not_grow_goes_on_when_its_ready_segments_are_used(world: World) -> None:
    disk = SimDisk(world.rng, capacity_bytes=FREE_BYTES + RING_BYTES + ROOM_FOR_FILES_BYTES)
    node = DiskBookie(disk, world.clock, settings=settings())
    await node.boot()
    await disk.replace_file("/data/filler", bytes(90 * KIB))
    await world.clock.sleep(10)
    assert sum(segment_bytes(disk)) < RING_BYTES
    for entry_id in range(20):
        answer = await asyncio.wait_for(node.add(batch_of(entry_id, payload=bytes(5 * KIB))), 30)
        assert answer.code == 0, entry_id
        await node.bookie.flush()
        await world.clock.sleep(0.5)
    assert sum(segment_bytes(disk)) == RING_BYTES
    await node.stop()
    assert node.failures == []


@simulated
async def test_a_restart_is_not_refused_because_the_journal_cannot_grow_to_its_full_size(world: World) -> None:
    disk = SimDisk(world.rng, capacity_bytes=FREE_BYTES + RING_BYTES + 4 * 64 * KIB)
    node = DiskBookie(disk, world.clock, settings=settings())
    await node.boot()
    await world.clock.sleep(10)
    await node.stop()
    journal = node.settings.journal.model_copy(update={"segment_count": 40})
    node.settings = node.settings.model_copy(update={"journal": journal})
    assert disk.free_bytes() < FREE_BYTES + 36 * 64 * KIB
    await node.boot()
    await world.clock.sleep(10)
    assert (await node.add(batch_of(0))).code == 0
    await node.stop()
    assert node.failures == []
    await disk.replace_file("/data/filler", bytes(64 * KIB))
    with pytest.raises(DiskFull, match=r"for the journal \(2 segments"):
        await node.boot()
