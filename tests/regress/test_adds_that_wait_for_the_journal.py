"""Adds that wait for journal space, while the write cache has nothing that a checkpoint could flush."""

from __future__ import annotations

from tallybook.core.errors import OK_CODE
from tallybook.core.limits import KIB
from tallybook.runtime.rng import SeededRng
from tallybook.sim.deterministic import SimDisk, World
from tallybook.sim.stage.disk_bookie import DiskBookie, KnownMetadata, batch_of, tiny_settings

from ..simulated import simulated

LEDGERS = 24


@simulated
async def test_they_do_not_ask_for_one_empty_checkpoint_after_the_other(world: World) -> None:
    """They did, as fast as the loop turns, until the segment was ready: the first found by the simulation, seed 124."""
    disk = SimDisk(SeededRng("segments that take long to be made"))
    settings = tiny_settings(segment_bytes=32 * KIB, flush_interval_ms=60_000)
    node = DiskBookie(disk, world.clock, KnownMetadata(), settings)
    bookie = await node.boot()
    disk.fail("*", "segment-0002", times=1_000, error=None, delay_seconds=0.15)
    # Each is the first of its ledger: the ledger state has to be looked up, and meanwhile the space is used.
    adds = [node.add(batch_of(0, ledger_id=ledger_id, payload=bytes(3000))) for ledger_id in range(LEDGERS)]
    assert [(await add).code for add in adds] == [OK_CODE] * LEDGERS
    assert bookie.stats()["checkpoints_total"] < LEDGERS
    await node.kill()
