"""Adds that wait for a segment of the journal, while the write cache holds nothing that a checkpoint could move."""

from __future__ import annotations

from tallybook.core.errors import OK_CODE
from tallybook.core.limits import KIB
from tallybook.runtime.deterministic import SimDisk, World, run_seed
from tallybook.runtime.rng import SeededRng
from tallybook.sim.stage.disk_bookie import DiskBookie, KnownMetadata, batch_of, tiny_settings

LEDGERS = 24


def test_they_do_not_ask_for_one_empty_checkpoint_after_the_other() -> None:
    """They did, as fast as the loop turns, until the segment was ready: the first found by the simulation, seed 124."""

    async def scenario(world: World) -> None:
        disk = SimDisk(SeededRng("segments that take long to be made"))
        settings = tiny_settings(segment_bytes=32 * KIB, flush_interval_ms=60_000)
        node = DiskBookie(disk, world.clock, KnownMetadata(), settings)
        bookie = await node.boot()
        disk.fail("*", "segment-0002", times=1_000, error=None, delay_seconds=0.15)
        # Each is the first of its ledger: what is known of the ledger has to be looked up, and meanwhile room goes.
        adds = [node.add(batch_of(0, ledger_id=ledger_id, payload=bytes(3000))) for ledger_id in range(LEDGERS)]
        assert [(await add).code for add in adds] == [OK_CODE] * LEDGERS
        assert bookie.stats()["checkpoints_total"] < LEDGERS
        await node.kill()

    run_seed(1, scenario, deadline_seconds=60)
