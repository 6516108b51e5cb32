"""Compaction on a simulated disk: live entries stay readable, and the space of the rest is freed."""

import asyncio
import contextlib
from functools import partial
from typing import Any

import pytest

from tallybook.bookie.gc.compaction_plan import CompactionLimits, LogUsage, worth_finishing, worth_freeing
from tallybook.bookie.gc.entry_log_compaction import Compaction
from tallybook.bookie.ledgers.disposition import LedgerDisposition
from tallybook.bookie.process.http_endpoints import BookieEndpoints
from tallybook.bookie.storage.entry_log.format import log_name
from tallybook.core.access import UNRESTRICTED, Permission
from tallybook.core.add_kind import AddKind
from tallybook.core.errors import Busy, DiskFull, EntryCorrupt
from tallybook.core.ids import MAX_ID
from tallybook.core.limits import KIB, SECTOR_BYTES
from tallybook.runtime.http.endpoints import EndpointRequest
from tallybook.runtime.tasks import Tasks
from tallybook.sim.deterministic import SimClock
from tallybook.sim.deterministic.world import DAY_SECONDS
from tallybook.sim.stage.disk_bookie import ROOT, DiskBookie, batch_of

from ..simulated import on_stage
from .bookie_parts import booted

DROPPED, KEPT = 1, 2
SIZE = 1000


compacting = partial(
    on_stage,
    booted,
    deadline_seconds=10 * DAY_SECONDS,
    entry_log_bytes=16 * KIB,
    compact_below_percent=50,
    compact_all_interval_ms=3_600_000,
)


def batch(ledger_id: int, entry_id: int) -> bytes:
    return batch_of(entry_id, ledger_id=ledger_id, payload=b"x" * SIZE)


async def add(node: DiskBookie, data: bytes, *, recovery: bool = False) -> None:
    """Once the journal has space for it."""
    while (
        answer := await node.add(data, kind=AddKind.RECOVERY if recovery else AddKind.ORDINARY)
    ).code == Busy.wire_code:
        await SimClock().sleep(answer.retry_after_ms / 1000)
    assert answer.code == 0


async def fill(node: DiskBookie, entries: range, *, one_in: int = 4) -> list[int]:
    """Entries of both ledgers, side by side, of which one in so many is kept; the ids of those."""
    for entry_id in entries:
        await add(node, batch(DROPPED, entry_id))
        if entry_id % one_in == 0:
            await add(node, batch(KEPT, entry_id // one_in))
        await node.bookie.flush()
    return [entry_id // one_in for entry_id in entries if entry_id % one_in == 0]


async def drop(node: DiskBookie) -> None:
    node.metadata.dispositions[DROPPED] = LedgerDisposition.RELEASED
    await node.bookie.collect()


async def holds(node: DiskBookie, entries: list[int]) -> None:
    for entry_id in entries:
        answer = await node.bookie.read_batches(KEPT, entry_id, entry_id, 1)
        assert answer.batches == (batch(KEPT, entry_id),)


async def rows(node: DiskBookie) -> dict[int, int]:
    """The log of each entry of the kept ledger."""
    found = await node.parts.index.find_range(KEPT, 0, MAX_ID, 1000)
    return {row.first_entry_id: row.location.log_id for row in found}


def copied(node: DiskBookie) -> int:
    return node.bookie.stats()["compacted_bytes_total"]


@compacting()
async def test_live_entries_move_out_of_mostly_dead_logs_and_their_space_is_freed(node, world):
    kept = await fill(node, range(40))
    before = set((await rows(node)).values())
    size = node.bookie.stats()["entry_log_bytes"]
    await drop(node)
    after = await rows(node)
    assert not before & set(after.values())
    assert copied(node) == sum(len(batch(KEPT, each)) for each in kept)
    assert node.bookie.stats()["entry_log_bytes"] < size / 2
    for _ in range(2):
        await holds(node, kept)
        await node.lose_power()
        await node.boot()
    assert await rows(node) == after


@compacting()
async def test_what_counts_moves_out_of_logs_whose_footers_are_damaged(node, world):
    kept = await fill(node, range(40))
    before = set((await rows(node)).values())
    await node.stop()
    for log_id in before:
        path = f"{ROOT}/ledgers/{log_name(log_id)}"
        node.disk.rot.zero_sector(path, len(node.disk.peek(path)) // SECTOR_BYTES - 1)  # the end mark
    await node.boot()
    await drop(node)
    assert not before & set((await rows(node)).values())
    assert not before & set(node.parts.logs.log_ids)
    for _ in range(2):
        await holds(node, kept)
        await node.lose_power()
        await node.boot()


@compacting()
async def test_what_lasts_is_written_apart_from_what_is_new(node, world):
    kept = await fill(node, range(16))
    await drop(node)
    old = set((await rows(node)).values())
    await add(node, batch(KEPT, 1_000))
    await node.bookie.flush()
    assert (await rows(node))[1_000] not in old
    await holds(node, kept)


@compacting(compact_below_percent=5)
async def test_logs_of_which_much_counts_are_copied_only_when_all_are_looked_at(node, world):
    kept = await fill(node, range(20), one_in=2)
    await drop(node)
    before = await rows(node)
    assert copied(node) == 0
    await world.clock.sleep(3600)
    await node.bookie.collect()
    assert copied(node) > 0
    assert not set(before.values()) <= set((await rows(node)).values())
    await holds(node, kept)


@compacting(compact_below_percent=5, compact_above_garbage_percent=25)
async def test_logs_of_which_much_counts_are_copied_at_once_where_much_of_the_whole_is_garbage(node, world):
    kept = await fill(node, range(20), one_in=2)
    await drop(node)
    assert copied(node) > 0
    await holds(node, kept)
    # A log that was being written is considered once it is finished.
    await node.bookie.collect()
    moved = copied(node)
    await node.bookie.collect()
    assert copied(node) == moved, "what is left is within the bound"


@compacting(compact_below_percent=0, compact_above_garbage_percent=25)
async def test_a_bookie_that_is_to_copy_nothing_copies_nothing_however_much_is_garbage(node, world):
    kept = await fill(node, range(20), one_in=2)
    await drop(node)
    assert copied(node) == 0
    await holds(node, kept)


@compacting(compact_below_percent=5, collect_interval_ms=86400000)
async def test_a_bookie_whose_checkpoints_find_no_space_copies_out_of_logs_of_which_much_counts_at_once(node, world):
    kept = await fill(node, range(20), one_in=2)
    await drop(node)
    assert copied(node) == 0
    node.disk.fail("write", f"{ROOT}/ledgers/", error=DiskFull)
    await add(node, batch(KEPT, len(kept)))
    await node.bookie.flush()
    assert copied(node) > 0
    await holds(node, [*kept, len(kept)])


@compacting()
async def test_e03_damage_stays_where_it_is_the_rest_moves_and_a_repair_lets_the_log_go(node, world):
    kept = await fill(node, range(40))
    row = (await node.parts.index.find_range(KEPT, kept[0], kept[0], 1))[0]
    path = f"{ROOT}/ledgers/entrylog-{row.location.log_id:016d}.log"
    node.disk.rot.zero_sector(path, (row.location.offset + row.location.size // 2) // SECTOR_BYTES)
    await drop(node)
    assert [entry for entry, log_id in (await rows(node)).items() if log_id == row.location.log_id] == [kept[0]]
    await holds(node, kept[1:])
    with pytest.raises(EntryCorrupt):
        await node.bookie.read_batches(KEPT, kept[0], kept[0], 1)
    assert node.bookie.stats()["damaged_batches"] == 1
    copied_before = copied(node)
    await world.clock.sleep(3600)
    await node.bookie.collect()
    assert copied(node) == copied_before
    assert row.location.log_id in node.parts.logs.log_ids
    await add(node, batch(KEPT, kept[0]), recovery=True)
    await node.bookie.flush()
    await world.clock.sleep(3600)
    await node.bookie.collect()
    assert row.location.log_id not in node.parts.logs.log_ids
    await holds(node, kept)


@compacting()
async def test_e08_what_has_moved_is_not_copied_again_by_the_next_life(node, world):
    kept = await fill(node, range(16))
    node.metadata.dispositions[DROPPED] = LedgerDisposition.RELEASED
    logs, moved = node.parts.logs, asyncio.Event()
    remove = logs.remove

    async def hangs(log_id: int) -> int:
        if copied(node):
            moved.set()
            await world.clock.sleep(3600)
        return await remove(log_id)

    logs.remove = hangs  # type: ignore[method-assign]
    collecting = asyncio.ensure_future(node.bookie.collect())
    await moved.wait()
    first_life = copied(node)
    await node.lose_power()
    await asyncio.gather(collecting, return_exceptions=True)
    await node.boot()
    await node.bookie.collect()
    assert first_life > 0
    assert first_life + copied(node) == sum(len(batch(KEPT, each)) for each in kept)
    await holds(node, kept)


@compacting()
async def test_copies_that_the_index_does_not_know_are_not_taken_for_what_counts(node, world):
    kept = await fill(node, range(16))
    node.disk.fail("write", "changes.log", error=None, delay_seconds=60, nth=2)
    node.metadata.dispositions[DROPPED] = LedgerDisposition.RELEASED
    collecting = asyncio.ensure_future(node.bookie.collect())
    await world.clock.sleep(30)
    before = await rows(node)
    await node.lose_power()
    await asyncio.gather(collecting, return_exceptions=True)
    node.disk.faults.clear()
    await node.boot()
    for _ in range(2):
        await node.bookie.collect()
    used = set((await rows(node)).values())
    assert not set(before.values()) & used
    *settled, _ = node.parts.logs.log_ids
    assert used.issuperset(settled), "no log has only copies without a row"
    await holds(node, kept)


@compacting()
async def test_a_log_that_is_written_and_mostly_dead_is_finished_and_compacted(node, world):
    kept = await fill(node, range(2))
    [only] = node.parts.logs.log_ids
    await drop(node)
    assert only not in node.parts.logs.log_ids
    await holds(node, kept)
    await add(node, batch(KEPT, 1_000))
    await node.bookie.flush()
    await holds(node, [*kept, 1_000])


@compacting()
async def test_a_log_stays_while_rows_that_will_point_into_it_are_not_in_the_index_yet(node, world):
    for entry_id in range(4):
        await add(node, batch(DROPPED, entry_id))
    await node.bookie.flush()
    index, tasks = node.parts.index, Tasks("test", lambda name, error: None)
    apply, exhausted = index.apply, True

    async def without_room(*changes: Any, frees_space: bool = False, **more: Any) -> None:
        if exhausted and not frees_space:
            raise DiskFull("no room for rows")
        await apply(*changes, frees_space=frees_space, **more)

    index.apply = without_room  # type: ignore[method-assign]
    await add(node, batch(KEPT, 0))
    flush = tasks.spawn(node.bookie.flush(), name="flush")
    await world.clock.sleep(1)
    await drop(node)
    await node.bookie.collect()
    exhausted = False
    await flush
    await holds(node, [0])
    await node.bookie.collect()
    assert DROPPED not in await index.ledgers_with_rows(-1, 10)
    await node.lose_power()
    await node.boot()
    await holds(node, [0])


@compacting()
async def test_copies_spend_from_the_budget_of_background_work(node, world):
    await fill(node, range(40))
    await drop(node)
    assert copied(node) > 5_000
    assert node.bookie.stats()["background_bytes_compaction"] == copied(node)


@compacting(compact_below_percent=5)
async def test_while_compaction_is_suspended_only_what_is_dead_goes_and_afterwards_the_rest(node, world):
    kept = await fill(node, range(40))
    for entry_id in range(40, 60):
        await add(node, batch(DROPPED, entry_id))
        await node.bookie.flush()
    node.bookie.suspend_compaction(True)
    assert node.bookie.compaction_suspended
    assert node.bookie.stats()["compaction_suspended"] == 1
    await drop(node)
    await world.clock.sleep(2 * 3600)
    await node.bookie.collect()
    assert copied(node) == 0, "not even by the look that comes once in a while"
    assert node.bookie.stats()["entry_logs_removed_total"] > 0, "what is dead"
    before = node.bookie.stats()["entry_logs_removed_total"]
    node.bookie.suspend_compaction(False)
    await node.bookie.collect()
    assert copied(node) > 0, "which is made up for"
    assert node.bookie.stats()["entry_logs_removed_total"] > before
    await holds(node, kept)


@compacting()
async def test_a_log_that_is_still_written_is_finished_early_once_compaction_is_resumed(node, world):
    logs = node.parts.logs
    for entry_id in range(58):
        await add(node, batch(DROPPED, entry_id))
    await add(node, batch(KEPT, 0))
    await node.bookie.flush()
    growing = set(logs.growing_log_ids)
    node.bookie.suspend_compaction(True)
    await drop(node)
    await node.bookie.collect()
    await node.bookie.collect()
    assert set(logs.growing_log_ids) == growing
    node.bookie.suspend_compaction(False)
    await node.bookie.collect()
    assert not growing & set(logs.growing_log_ids)
    assert copied(node) > 0
    await holds(node, [0])


@compacting()
async def test_a_running_pass_ends_after_its_current_log_when_compaction_is_suspended(node, world, *, monkeypatch):
    kept = await fill(node, range(60))
    compact, compacted = Compaction.compact, list[int]()

    async def suspended_meanwhile(compaction: Compaction, log_id: int) -> int:
        node.bookie.suspend_compaction(True)
        compacted.append(log_id)
        return await compact(compaction, log_id)

    monkeypatch.setattr(Compaction, "compact", suspended_meanwhile)
    await drop(node)
    assert len(compacted) == 1
    await holds(node, kept)
    node.bookie.suspend_compaction(False)
    await node.bookie.collect()
    assert len(compacted) == 2


@compacting()
async def test_the_endpoints_suspend_compaction_and_say_so(node, world):
    endpoints = BookieEndpoints(node.settings, lambda: None, lambda: node.bookie)
    table = {(each.method, each.path): each for each in endpoints.table()}
    nothing = EndpointRequest(UNRESTRICTED, "", {}, {}, {})

    async def state() -> object:
        return (await table["GET", "/api/v1/bookie/gc"].handler(nothing))["compaction_suspended"]

    assert await state() is False
    for name, suspended in (("suspend", True), ("resume", False)):
        change = table["POST", f"/api/v1/bookie/gc/{name}_compaction"]
        assert (change.permission, change.action) == (Permission.ADMINISTER, f"{name} compaction")
        assert (await change.handler(nothing))["compaction_suspended"] is suspended
        assert await state() is suspended
        assert node.bookie.compaction_suspended is suspended


@compacting()
async def test_a_full_disk_stops_copying_and_loses_nothing(node, world):
    kept = await fill(node, range(40))
    node.metadata.dispositions[DROPPED] = LedgerDisposition.RELEASED
    used = node.disk.capacity_bytes - (await node.disk.space(ROOT)).free_bytes
    node.disk.capacity_bytes = used + 4 * KIB
    with pytest.raises(DiskFull):
        await node.bookie.collect()
    await holds(node, kept)
    for _ in range(2):
        with contextlib.suppress(DiskFull):  # dead entries are gone by now, which may have freed space
            await node.bookie.collect()
        await holds(node, kept)
    node.disk.capacity_bytes = 10**9
    await node.bookie.collect()
    await holds(node, kept)
    assert copied(node) > 0


def test_those_go_first_of_which_least_has_to_be_copied() -> None:
    logs = [LogUsage(1, 1000, 190), LogUsage(2, 1000, 500), LogUsage(3, 1000, 0), LogUsage(4, 1000, 10)]
    assert [facts.log_id for facts in worth_freeing(logs, CompactionLimits(0.2))] == [3, 4, 1]
    assert [facts.log_id for facts in worth_freeing(logs, CompactionLimits(0.0))] == [3]


def test_where_much_is_garbage_as_a_whole_logs_go_until_it_is_little() -> None:
    logs = [LogUsage(number, 1000, live) for number, live in enumerate([100, 300, 400, 700, 900])]
    assert [facts.log_id for facts in worth_freeing(logs, CompactionLimits(0.2))] == [0]
    # Of 5,000 bytes 2,600 are garbage, then 1,700 of 4,100, then 1,000 of 3,400, and 400 of 2,800.
    for garbage, wanted in ((0.6, [0]), (0.4, [0, 1]), (0.29, [0, 1, 2]), (0.1, [0, 1, 2, 3]), (0.0, [0, 1, 2, 3])):
        assert [facts.log_id for facts in worth_freeing(logs, CompactionLimits(0.2, garbage, 0.8))] == wanted, garbage
    assert [facts.log_id for facts in worth_freeing(logs, CompactionLimits(0.2, 1.0, 0.8))] == [0]


def test_a_log_that_is_written_is_finished_early_where_it_would_be_copied() -> None:
    half = LogUsage(9, 1000, 500)
    assert not worth_finishing(half, [], CompactionLimits(0.2))
    assert worth_finishing(half, [], CompactionLimits(0.2, 0.25, 0.8))
    assert not worth_finishing(half, [LogUsage(1, 9000, 9000)], CompactionLimits(0.2, 0.25, 0.8))
    assert worth_finishing(LogUsage(9, 1000, 0), [], CompactionLimits(0.0))


@compacting()
async def test_no_space_to_finish_a_log_keeps_no_dead_log_from_going(node, world):
    logs = node.parts.logs
    for entry_id in range(60):
        await add(node, batch(DROPPED, entry_id))
    await node.bookie.flush()
    await add(node, batch(KEPT, 0))
    for entry_id in range(60, 64):
        await add(node, batch(DROPPED, entry_id))
    await node.bookie.flush()
    settled = set(logs.settled_log_ids)
    assert settled, "logs of which nothing will count"

    async def without_room(log_id: int) -> None:
        raise DiskFull("no room for a footer")

    logs.finish = without_room  # type: ignore[method-assign]
    node.metadata.dispositions[DROPPED] = LedgerDisposition.RELEASED
    with pytest.raises(DiskFull):
        await node.bookie.collect()
    assert not settled & set(logs.settled_log_ids)
    await holds(node, [0])
