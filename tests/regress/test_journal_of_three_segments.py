"""The smallest journal, half full: large adds have no space, so a checkpoint must be started."""

import asyncio

from tallybook.core.limits import BLOCK_BYTES, MIB
from tallybook.core.settings import AdmissionSettings, BookieSettings, JournalSettings, StorageSettings
from tallybook.sim.deterministic import SimDisk, World
from tallybook.sim.stage.disk_bookie import ROOT, DiskBookie, batch_of

from ..simulated import simulated

COMMIT_BYTES = 16 * BLOCK_BYTES
SETTINGS = BookieSettings(
    bookie_id="b1",
    data_directory=ROOT,
    metadata="memory:",
    journal=JournalSettings(segment_bytes=34 * BLOCK_BYTES, segment_count=3, max_commit_bytes=COMMIT_BYTES),
    storage=StorageSettings(
        write_cache_bytes=65 * BLOCK_BYTES, entry_log_bytes=MIB, min_free_bytes=0, flush_interval_ms=3_600_000
    ),
    admission=AdmissionSettings(max_inflight_bytes=4 * COMMIT_BYTES),
)


@simulated
async def test_adds_that_fill_a_commit_go_on_in_a_ring_of_three_segments(world: World) -> None:
    """At exactly half full no checkpoint was requested, and all adds got BUSY until the flush interval had passed."""
    node = DiskBookie(SimDisk(world.rng), world.clock, None, SETTINGS)
    await node.boot()

    async def add(number: int) -> None:
        while (await node.add(batch_of(number, payload=bytes(COMMIT_BYTES * 9 // 10)))).code:
            await world.clock.sleep(0.1)

    async with asyncio.timeout(60):
        for number in range(10):
            await add(number)
    await node.stop()
