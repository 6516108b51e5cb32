"""The pace of a replicator: fast if something is known to be wrong, slow otherwise."""

import asyncio

import pytest

from tallybook.core.errors import BookieUnavailable
from tallybook.metadata.memory import MemoryMetadata
from tallybook.repair.ledger_repair import RepairOrder, RepairResult
from tallybook.repair.replicator import ROUTINE_LEDGERS, Replicator
from tallybook.repair.task_progress import LedgerProgress, TaskProgress
from tallybook.repair.tasks import Task, TaskBoard, make_tasks
from tallybook.repair.work_progress import WorkProgress
from tallybook.runtime.rng import SeededRng
from tallybook.sim.deterministic import World

from ..simulated import simulated

CONCURRENT = 5


class SlowMender:
    """Takes a second for each ledger, and knows how many it had at a time."""

    def __init__(self, world: World) -> None:
        self._clock = world.clock
        self._at_once = 0
        self.most = 0

    async def repair(self, _ledger_id: int, _order: RepairOrder, done: RepairResult) -> RepairResult:
        self._at_once += 1
        self.most = max(self.most, self._at_once)
        await self._clock.sleep(1)
        self._at_once -= 1
        return done


@pytest.mark.parametrize(("why", "at_once"), [("lost bookie", CONCURRENT), ("", ROUTINE_LEDGERS)])
@simulated
async def test_a_routine_check_reads_few_ledgers_at_a_time(world: World, *, why: str, at_once: int) -> None:
    metadata = MemoryMetadata(SeededRng(1)).client()
    board = TaskBoard(metadata.store, world.clock, SeededRng(2), lease_s=10)
    await board.publish([Task(tuple(range(20)), thorough=True, why=why)])
    mender = SlowMender(world)
    replicator = Replicator(
        board, mender, metadata.store, metadata.membership, world.clock, SeededRng(3), concurrent=CONCURRENT, lease_s=10
    )
    assert await asyncio.wait_for(replicator.run_one_task(), 60)
    assert (replicator.totals.ledgers, mender.most) == (20, at_once)


class CopyingMender:
    """Copies 1,000 bytes a second for three seconds, two places of a ledger; ledger 2 it cannot mend."""

    def __init__(self, world: World) -> None:
        self._clock = world.clock

    async def repair(self, ledger_id: int, _order: RepairOrder, done: RepairResult) -> RepairResult:
        done.replicas_due, done.expected_bytes = 2, 3_000
        for _ in range(3):
            await self._clock.sleep(1)
            done.add_copied(1_000)
        done.replicas_checked = 2
        if ledger_id == 2:
            done.errors.append(BookieUnavailable("nobody takes it"))
        return done


@simulated
async def test_a_task_says_how_far_it_is_each_time_that_it_is_renewed(world: World) -> None:
    metadata = MemoryMetadata(SeededRng(1)).client()
    board = TaskBoard(metadata.store, world.clock, SeededRng(2), lease_s=6)
    sizes = dict.fromkeys((1, 2, 3), 3_000)
    await board.publish(make_tasks(sizes, thorough=False, why="lost bookie", expected=sizes))
    replicator = Replicator(
        board,
        CopyingMender(world),
        metadata.store,
        metadata.membership,
        world.clock,
        SeededRng(3),
        concurrent=1,
        lease_s=6,
    )
    work = asyncio.create_task(replicator.run_one_task())
    seen = []
    for _ in range(4):
        await world.clock.sleep(2.3 if not seen else 2.2)
        [task] = (await board.read(await board.names())).values()
        seen.append((task.ledger_ids, task.progress))
    # After 2.0 to 2.2, 4.0 to 4.4 seconds, and so on. A byte that comes in the moment of a renewal counts in this one
    # or the next.
    assert [ledgers for ledgers, _ in seen][:2] == [(1, 2, 3), (2, 3)]
    assert all(progress.ledgers == 3 and progress.expected_bytes == 9_000 for _, progress in seen)
    copied = [progress.copied_bytes for _, progress in seen]
    assert copied == sorted(copied)
    assert copied[0] in {1_000, 2_000}
    assert copied[1] in {3_000, 4_000}
    assert all(450 <= progress.bytes_per_second <= 1_500 for _, progress in seen)
    assert seen[1][1].under_way == (LedgerProgress(2, 0, 2, copied[1] - 3_000, 3_000),)
    last = seen[3][1]
    assert (last.not_mended, last.places) == (1, 4)
    assert await work
    assert (replicator.totals.copied_bytes, replicator.totals.incomplete_ledgers) == (9_000, 1)


@simulated
async def test_a_worker_that_takes_a_task_over_goes_on_counting_and_a_task_without_counts_gets_some(
    world: World,
) -> None:
    half = TaskProgress(5, 1, 3, 7, 700, 1_000, 50, (LedgerProgress(4, 0, 1, 9, None),))
    for task, ledgers, copied in ((Task((4, 5), progress=half), 5, 700), (Task((4, 5)), 2, 0)):
        progress = WorkProgress(task, world.clock)
        assert progress.snapshot() == task.progress.at_rest._replace(ledgers=ledgers)
        done = progress.begin(4)
        done.add_copied(50)
        await world.clock.sleep(1)
        told = progress.snapshot()
        assert (told.copied_bytes, told.bytes_per_second) == (copied + 50, 50)
        assert progress.ledgers_in_flight == [4]
        done.errors.append(BookieUnavailable("one place of it"))
        assert progress.snapshot().not_mended == task.progress.not_mended, (
            "whether it is mended is said once it is looked at"
        )
        progress.end(4, done)
        told = progress.snapshot()
        assert (told.under_way, told.not_mended) == ((), task.progress.not_mended + 1)
