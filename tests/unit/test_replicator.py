"""A replicator goes as fast as it may where something is wrong, and gently where nothing is known to be."""

import asyncio

import pytest

from tallybook.metadata.memory import MemoryMetadata
from tallybook.repair.mender import Mended, Order
from tallybook.repair.replicator import ROUTINE_LEDGERS, Replicator
from tallybook.repair.tasks import Task, TaskBoard
from tallybook.runtime.deterministic import World, run_seed
from tallybook.runtime.rng import SeededRng

CONCURRENT = 5


class SlowMender:
    """Takes a second for each ledger, and knows how many it had at a time."""

    def __init__(self, world: World) -> None:
        self._clock = world.clock
        self._at_once = 0
        self.most = 0

    async def mend(self, _ledger_id: int, _order: Order) -> Mended:
        self._at_once += 1
        self.most = max(self.most, self._at_once)
        await self._clock.sleep(1)
        self._at_once -= 1
        return Mended()


@pytest.mark.parametrize(("why", "at_once"), [("lost bookie", CONCURRENT), ("", ROUTINE_LEDGERS)])
def test_a_check_of_what_is_not_known_to_be_wrong_looks_at_few_ledgers_at_a_time(why: str, at_once: int) -> None:
    async def run(world: World) -> None:
        metadata = MemoryMetadata(SeededRng(1)).client()
        board = TaskBoard(metadata.store, world.clock, SeededRng(2), lease_s=10)
        await board.publish([Task(tuple(range(20)), thorough=True, why=why)])
        mender = SlowMender(world)
        replicator = Replicator(
            board, mender, metadata.store, metadata.membership, world.clock, concurrent=CONCURRENT, lease_s=10
        )
        assert await asyncio.wait_for(replicator.work_once(), 60)
        assert (replicator.totals.ledgers, mender.most) == (20, at_once)

    run_seed(1, run)
