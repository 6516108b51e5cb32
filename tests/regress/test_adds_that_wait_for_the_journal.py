"""Adds that find no room in the journal, once they are no longer at its door, wait for it, and do not turn in circles."""

import asyncio

from tallybook.core.errors import Busy
from tallybook.core.limits import KIB
from tallybook.runtime.deterministic import SimDisk, World, run_seed
from tallybook.sim.disk_bookie import DiskBookie, batch_of, tiny_settings

SLOW_SECONDS = 5.0
CHECKPOINTS_A_SECOND = 100


def test_adds_that_wait_for_room_in_a_slow_journal_do_not_ask_for_checkpoints_without_a_pause() -> None:
    async def scenario(world: World) -> None:
        node = DiskBookie(SimDisk(world.rng), world.clock, None, tiny_settings(segment_bytes=32 * KIB))
        await node.boot()
        await world.clock.sleep(1)
        node.disk.fail("write", "journal/segment", error=None, delay_seconds=SLOW_SECONDS)
        began = node.bookie.stats()["checkpoints_total"]
        # All of them pass the door while the journal is empty: their ledger is not known yet, so each waits behind it.
        answers = [node.add(batch_of(number, payload=bytes(3 * KIB))) for number in range(60)]
        await world.clock.sleep(2)
        assert node.bookie.stats()["checkpoints_total"] - began < 2 * CHECKPOINTS_A_SECOND
        refused = [number for number, answer in enumerate(answers) if answer.done()]
        assert refused, "none had to wait for the journal: the test shows nothing"
        assert {answers[number].result().code for number in refused} == {Busy.wire_code}
        await asyncio.gather(*answers)
        assert [number for number, answer in enumerate(answers) if answer.result().code] == refused
        for number in refused:
            while (await node.add(batch_of(number, payload=bytes(3 * KIB)), recovery=True)).code:
                await world.clock.sleep(0.1)
        await node.stop()
        assert node.failures == []

    run_seed(1, scenario, deadline_seconds=60)
