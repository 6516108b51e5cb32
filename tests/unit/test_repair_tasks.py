"""Repair tasks: taken by one worker at a time, taken over from silent ones, and never required for correctness."""

import asyncio
import json
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from tallybook.core.errors import DamagedFile
from tallybook.metadata.memory import MemoryMetadata
from tallybook.metadata.store import Ok
from tallybook.repair.task_progress import LedgerProgress, TaskProgress, sum_progress
from tallybook.repair.tasks import LEDGERS_PER_TASK, MAX_READ, PREFIX, Task, TaskBoard, decode_task, make_tasks
from tallybook.runtime.rng import SeededRng

from ..simulated import on_stage

LEASE = 9.0


@asynccontextmanager
async def two_boards(world):
    store = MemoryMetadata(SeededRng(1)).client().store
    one, other = (TaskBoard(store, world.clock, SeededRng(n), lease_s=LEASE) for n in range(2))
    yield {"store": store, "one": one, "other": other}


with_two_boards = on_stage(two_boards)


def test_how_far_a_task_is_survives_its_record_and_is_not_needed() -> None:
    progress = TaskProgress(9, 1, 4, 20, 3_000, 9_000, 500, (LedgerProgress(1, 1, 2, 100, None),))
    task = Task((1, 2**62), frozenset({"b", "a"}), True, True, "lost bookie", "me", 3, progress=progress)
    assert decode_task("x", task.encode()) == task
    found = json.loads(task.encode())
    del found["progress"]
    older = decode_task("x", json.dumps(found).encode())
    assert older == replace(task, progress=TaskProgress())
    assert "progress" not in json.loads(older.encode())


TODAYS = TaskProgress(ledgers=2).as_json()


@pytest.mark.parametrize(
    "later",
    [
        "half", [1], {"part": 0.5}, TODAYS | {"ledgers": "many"}, TODAYS | {"ledgers": float("inf")},
        TODAYS | {"under_way": [{"part": 0.5}]},
    ],
)  # fmt: skip
def test_a_task_with_progress_of_a_later_version_is_still_done(later) -> None:
    task = Task((1, 2), why="lost bookie")
    found = json.loads(task.encode()) | {"progress": later}
    assert decode_task("x", json.dumps(found).encode()) == task


def test_additional_fields_of_a_later_version_are_skipped() -> None:
    task = Task((1, 2), why="lost bookie", progress=TaskProgress(ledgers=2))
    found = json.loads(task.encode()) | {"progress": TODAYS | {"retries": 3}}
    assert decode_task("x", json.dumps(found).encode()) == task


def test_the_rest_of_a_repair_takes_as_long_as_its_rate_says() -> None:
    assert TaskProgress(copied_bytes=400, expected_bytes=1_000, bytes_per_second=200).seconds_left == 3
    assert TaskProgress(copied_bytes=1_100, expected_bytes=1_000, bytes_per_second=200).seconds_left == 0
    assert TaskProgress(copied_bytes=400, expected_bytes=None, bytes_per_second=200).seconds_left is None
    assert TaskProgress(copied_bytes=400, expected_bytes=1_000).seconds_left is None


def test_what_is_not_known_of_one_task_is_not_known_of_all() -> None:
    known, not_known = TaskProgress(3, 1, 1, 5, 400, 1_000, 20), TaskProgress(0, 0, 2, 5, 100, None, 30)
    assert sum_progress([known, known]) == TaskProgress(6, 2, 2, 10, 800, 2_000, 40)
    assert sum_progress([known, not_known]) == TaskProgress(0, 1, 3, 10, 500, None, 50)
    assert sum_progress([]).ledgers == 0


@pytest.mark.parametrize("value", [b"", b"{}", b"[]", b'{"ledgers": ["x"]}', b"\xff"])
def test_a_record_with_something_else_in_it_is_damage(value) -> None:
    with pytest.raises(DamagedFile):
        decode_task("repair/tasks/x", value)


def test_a_task_says_how_much_is_to_be_copied_if_that_is_known_of_all_its_ledgers() -> None:
    sizes = dict.fromkeys(range(2 * LEDGERS_PER_TASK), 10) | {LEDGERS_PER_TASK: None}
    first, second = make_tasks(sizes, thorough=False, why="x", expected=sizes)
    assert first.progress == TaskProgress(LEDGERS_PER_TASK, expected_bytes=10 * LEDGERS_PER_TASK)
    assert second.progress == TaskProgress(LEDGERS_PER_TASK, expected_bytes=None)


def test_many_ledgers_make_a_few_tasks_and_none_is_left_out() -> None:
    made = list(make_tasks(range(2 * LEDGERS_PER_TASK + 1), thorough=False, why="x"))
    assert len(made) == 3
    assert [each for task in made for each in task.ledger_ids] == list(range(2 * LEDGERS_PER_TASK + 1))


class Counted:
    """A store that counts requests for records."""

    def __init__(self, store) -> None:
        self._store = store
        self.read: list[str] = []
        self.listed = 0
        self.refused = 0

    async def read_record(self, name, **how):
        self.read.append(name)
        await asyncio.sleep(0)  # so that others come between
        return await self._store.read_record(name, **how)

    async def list_records(self, *what):
        self.listed += 1
        return await self._store.list_records(*what)

    async def write_record(self, *what):
        result = await self._store.write_record(*what)
        self.refused += not isinstance(result, Ok)
        return result


@pytest.mark.parametrize(("owner", "reads"), [("", 1), ("a third", MAX_READ)])
@with_two_boards
async def test_a_worker_reads_few_of_many_tasks_whether_one_is_free_or_none(
    world, store, one, other, *, owner, reads
) -> None:
    await one.publish([Task((each,), why="lost bookie", owner=owner) for each in range(3 * MAX_READ)])
    counted = Counted(store)
    held = await TaskBoard(counted, world.clock, SeededRng(7), lease_s=LEASE).claim()
    assert (held is None) == bool(owner)
    assert len(counted.read) == reads
    assert counted.listed == 1 or owner


@with_two_boards
async def test_workers_that_come_at_once_begin_at_different_tasks(world, store, one, other) -> None:
    await one.publish([Task((each,), why="lost bookie") for each in range(500)])
    counted = Counted(store)
    boards = [TaskBoard(counted, world.clock, SeededRng(each), lease_s=LEASE) for each in range(5)]
    held = await asyncio.gather(*(board.claim() for board in boards))
    assert len({each.name for each in held if each}) == 5
    assert counted.refused == 0


@with_two_boards
async def test_every_task_is_taken_in_the_end_those_that_are_urgent_first(world, store, one, other) -> None:
    await one.publish([Task((each,), why="lost bookie" if each % 2 else "") for each in range(MAX_READ)])
    taken = []
    while (held := await one.claim()) is not None:
        taken += held.task.ledger_ids
    assert sorted(taken) == list(range(MAX_READ))
    assert [each % 2 for each in taken] == [1] * (MAX_READ // 2) + [0] * (MAX_READ // 2)


@with_two_boards
async def test_urgent_tasks_that_may_come_later_are_taken_behind_the_others_by_every_worker(
    world, store, one, other
) -> None:
    for number in range(50):
        await one.publish([Task((0,), why="lost bookie")])
        await one.publish([Task((each,), why="bookie to be emptied") for each in range(1, 6)], later=True)
        await one.publish([Task((6,))])
        worker, taken = TaskBoard(store, world.clock, SeededRng(number), lease_s=LEASE), []
        while (held := await worker.claim()) is not None:
            taken += held.task.ledger_ids
            await worker.finish(held)
        assert (taken[0], sorted(taken[1:6]), taken[6:]) == (0, [1, 2, 3, 4, 5], [6])


@with_two_boards
async def test_of_more_tasks_than_are_read_at_a_time_all_those_of_silent_holders_are_found(
    world, store, one, other
) -> None:
    await one.publish([Task((each,), why="lost bookie", owner="a third") for each in range(2 * MAX_READ)])
    found = set()
    for _ in range(30):
        while (held := await other.claim()) is not None:
            found.update(held.task.ledger_ids)
            await other.finish(held)
        await world.clock.sleep(LEASE)
    assert len(found) == 2 * MAX_READ


@with_two_boards
async def test_a_holder_that_renews_keeps_its_task(world, store, one, other) -> None:
    await one.publish([Task((1, 2), why="lost bookie")])
    held = await one.claim()
    for _ in range(5):
        await world.clock.sleep(LEASE / 2)
        held = held and await one.renew(held, [2], TaskProgress())
        assert held is not None
        assert await other.claim() is None


@with_two_boards
async def test_a_silent_holder_loses_its_task_after_a_whole_lease_and_notices_it(world, store, one, other) -> None:
    await one.publish([Task((1, 2), why="lost bookie")])
    held = await one.claim()
    assert held is not None
    held = await one.renew(held, [2], TaskProgress())
    assert held is not None
    assert await other.claim() is None, "the lease is counted from when the other one first looked"
    await world.clock.sleep(LEASE)
    taken = await other.claim()
    assert taken is not None
    assert taken.task.ledger_ids == (2,)
    assert await one.renew(held, [], TaskProgress()) is None


@with_two_boards
async def test_a_finished_task_is_gone_also_after_a_renewal_whose_answer_was_lost(world, store, one, other) -> None:
    await one.publish([Task((1,), why="lost bookie")])
    held = await one.claim()
    assert held is not None
    assert await one.renew(held, [], TaskProgress()) is not None
    await one.finish(held)
    assert (await store.list_records(PREFIX)).names == ()


@with_two_boards
async def test_a_worker_that_lost_a_task_does_not_take_it_from_the_next_one_by_finishing_it(
    world, store, one, other
) -> None:
    await one.publish([Task((1,), why="lost bookie")])
    held = await one.claim()
    assert held is not None
    await other.claim()
    await world.clock.sleep(LEASE)
    assert await other.claim() is not None
    await one.finish(held)
    assert len((await store.list_records(PREFIX)).names) == 1


@with_two_boards
async def test_an_unreadable_task_does_not_block_the_others(world, store, one, other) -> None:
    await store.write_record(f"{PREFIX}0-0000", b"of a later version", None)
    await one.publish([Task((1,), why="lost bookie")])
    held = await one.claim()
    assert held is not None
    assert held.task.ledger_ids == (1,)


@with_two_boards
async def test_an_unclaimed_task_reports_its_progress_but_no_rate(world, store, one, other) -> None:
    at_work = TaskProgress(2, 0, 1, 5, 400, 1_000, 20, (LedgerProgress(1, 0, 1, 100, None),))
    at_rest = TaskProgress(2, 0, 1, 5, 400, 1_000)
    await one.publish([Task((1, 2), why="lost bookie", progress=at_work)])
    held = await one.claim()
    assert held is not None
    assert held.task.progress == at_rest, "whoever was at it before is gone"
    held = await one.renew(held, [2], at_work)
    assert held is not None
    assert held.task.progress == at_work
    await one.release(held, [2], at_work)
    [left] = (await one.read(await one.names())).values()
    assert (left.owner, left.ledger_ids, left.progress) == ("", (2,), at_rest)
