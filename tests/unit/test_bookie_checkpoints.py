"""Checkpoints, restarts and limbo of a bookie on a simulated disk. Ids in test names are those of the lessons."""

import asyncio
import re

import pytest

from tallybook.bookie.storage.checkpoint import FLUSH_SECONDS
from tallybook.core.answers import FenceAnswer
from tallybook.core.errors import DiskFailed, EntryAbsent, EntryUnknown, LedgerFenced, NoSuchLedger, RequestTimeout
from tallybook.core.limits import KIB
from tallybook.sim.deterministic.faults import DiskOperation
from tallybook.sim.stage.disk_bookie import ROOT, DiskBookie, batch_of, tiny_settings

from ..support.damage import zero_block
from ..support.log_lines import line_of
from .bookie_parts import JOURNAL, on_a_bookie

LOGS, INDEX, MARK = "entrylog", "changes.log", "superblock"


async def read_all(node: DiskBookie, count: int, ledger_id: int = 1) -> list[bytes]:
    answer = await node.bookie.read_batches(ledger_id, 0, count - 1, 1 << 20)
    return [bytes(batch) for batch in answer.batches]


async def fill(node: DiskBookie, count: int, *, size: int = 10) -> list[bytes]:
    batches = [batch_of(number, payload=bytes(size)) for number in range(count)]
    for batch in batches:
        assert (await node.add(batch)).code == 0
    return batches


LOOKS = ("read", "space")


def writes_after(node: DiskBookie) -> list[DiskOperation]:
    """Collects what is written from now on."""
    seen: list[DiskOperation] = []
    node.disk.on_operation = lambda operation: seen.append(operation) if operation.name not in LOOKS else None
    return seen


@on_a_bookie()
async def test_j01_j04_the_mark_moves_last_when_logs_and_index_are_durable(node):
    await fill(node, 3)
    seen = writes_after(node)
    await node.bookie.flush()
    steps = [(operation.name, part) for operation in seen for part in (LOGS, INDEX, MARK) if part in operation.path]
    last_batch = len(steps) - 1 - steps[::-1].index(("write", LOGS))
    rest = steps[last_batch:]
    assert rest.index(("sync", LOGS)) < rest.index(("write", INDEX)) < rest.index(("sync", INDEX))
    assert rest.index(("sync", INDEX)) < rest.index(("write-durable", MARK))


@pytest.mark.parametrize("slow", [LOGS, INDEX])
@on_a_bookie()
async def test_j01_while_one_part_is_slow_the_mark_stays_and_killing_the_process_then_loses_nothing(
    node, world, *, slow
):
    batches = await fill(node, 3)
    node.disk.fail("sync", slow, error=None, delay_seconds=60)
    asyncio.ensure_future(node.bookie.flush()).add_done_callback(lambda done: done.cancelled() or done.exception())
    seen = writes_after(node)
    await world.clock.sleep(30)
    assert not any(MARK in operation.path for operation in seen)
    await node.lose_power()
    await node.boot()
    assert await read_all(node, 3) == batches


@on_a_bookie()
async def test_j06_a_second_boot_replays_nothing_and_reads_the_same(node, *, caplog):
    caplog.set_level("INFO", "tallybook.bookie")
    batches = await fill(node, 5)
    await node.bookie.fence(2, b"")
    await node.kill()
    await node.boot()
    replayed = "journal replayed record_count=7"  # batches, the key of their ledger, and the fence
    assert [line_of(record) for record in caplog.records] == [replayed]
    caplog.clear()
    flushed = node.bookie.stats()["flushed_batches_total"]
    assert flushed == 5
    await node.kill()
    await node.boot()
    assert not caplog.records
    assert node.bookie.stats()["flushed_batches_total"] == 0
    assert await read_all(node, 5) == batches
    assert (await node.add(batch_of(0, ledger_id=2))).code == LedgerFenced.wire_code


@pytest.mark.parametrize("crashes", [1, 2])
@on_a_bookie()
async def test_crashes_change_nothing_that_a_fence_answers(node, *, crashes):
    await fill(node, 1)
    await node.bookie.flush()
    for batch in (batch_of(4, 2, lac=0), batch_of(1, 3)):
        assert (await node.add(batch)).code == 0
    for _ in range(crashes):
        await node.kill()
        await node.boot()
    assert await node.bookie.fence(1, b"") == FenceAnswer(lac=0, last_held=5)


@on_a_bookie()
async def test_a_clean_stop_leaves_nothing_to_replay(node):
    batches = await fill(node, 5)
    await node.stop()
    seen = writes_after(node)
    await node.boot()
    assert not any(LOGS in operation.path and operation.name == "write" for operation in seen)
    assert await read_all(node, 5) == batches


@on_a_bookie(write_cache_bytes=128 * KIB)
async def test_a_replay_larger_than_the_write_cache_spills_and_loses_nothing(node):
    node.disk.fail("sync", INDEX, error=None, delay_seconds=600)
    batches = await fill(node, 14, size=4 * KIB)
    await node.kill()
    node.settings = tiny_settings(write_cache_bytes=16 * KIB)
    seen = writes_after(node)
    await node.boot()
    spills = [operation for operation in seen if operation.name == "sync" and INDEX in operation.path]
    assert len(spills) > 7
    assert await read_all(node, 14) == batches
    assert node.bookie.stats()["write_cache_bytes"] == 0


@pytest.mark.parametrize(("operation", "part"), [("write", LOGS), ("sync", LOGS), ("create", LOGS), ("write", INDEX),
                                                 ("sync", INDEX), ("write", MARK)])  # fmt: skip
@on_a_bookie()
async def test_j12_j26_a_checkpoint_that_fails_ends_the_node_and_nothing_acked_is_lost(node, world, *, operation, part):
    batches = await fill(node, 3)
    node.disk.fail(operation, part)
    began = world.clock.monotonic()
    with pytest.raises(DiskFailed):
        await node.bookie.flush()
    assert world.clock.monotonic() - began < 1
    assert node.failures
    assert (await node.add(batch_of(3))).code == DiskFailed.wire_code
    await node.lose_power()
    node.disk.faults.clear()
    await node.boot()
    assert await read_all(node, 3) == batches


@on_a_bookie()
async def test_j25_losing_power_right_after_a_checkpoint_loses_nothing(node):
    batches = await fill(node, 5)
    await node.bookie.flush()
    for _ in range(2):
        await node.lose_power()
        await node.boot()
        assert await read_all(node, 5) == batches


@on_a_bookie()
async def test_a_checkpoint_comes_by_itself_when_the_interval_has_passed_and_not_where_there_is_nothing_new(
    node, world
):
    [batch] = await fill(node, 1)
    await world.clock.sleep(11)
    names = ("flushed_batches_total", "flushed_bytes_total", "write_cache_bytes")
    assert [node.bookie.stats()[name] for name in names] == [1, len(batch), 0]
    await world.clock.sleep(60)
    seen = writes_after(node)
    await world.clock.sleep(60)
    assert seen == []


@on_a_bookie()
async def test_a_checkpoint_begins_when_the_journal_is_half_full(node, world):
    used, lac = 0.0, 0
    while not node.bookie.stats()["checkpoints_total"]:
        await node.bookie.write_lac(1, lac, b"")
        used, lac = max(used, node.bookie.stats()["journal_used_fraction"]), lac + 1
    assert 0.4 < used < 0.6
    assert world.clock.monotonic() < 10


@on_a_bookie()
async def test_a_fence_alone_moves_the_mark_although_the_cache_is_empty(node, world):
    await node.bookie.fence(1, b"")
    await node.bookie.write_lac(2, 5, b"")
    await world.clock.sleep(11)
    await node.kill()
    await node.boot()
    assert node.bookie.stats()["ledgers_in_memory"] == 0, "something was replayed"
    assert (await node.bookie.read_lac(2)).lac == 5
    assert (await node.bookie.read_lac(1)).fenced


@on_a_bookie()
async def test_flush_covers_what_is_still_on_its_way_to_the_journal(node):
    await fill(node, 1)
    node.disk.fail("write", JOURNAL, error=None, delay_seconds=3)
    answer = node.add(batch_of(1))
    await asyncio.sleep(0)
    await node.bookie.flush()
    assert answer.done()
    assert node.bookie.stats()["write_cache_bytes"] == 0
    await node.kill()
    await node.boot()
    assert node.bookie.stats()["ledgers_in_memory"] == 0
    assert len(await read_all(node, 2)) == 2


@on_a_bookie(clean=False, flush_interval_ms=600_000)
async def test_journal_and_checkpoint_together_have_the_time_of_one_flush(node, world):
    await fill(node, 1)
    for operation, part in (("write", JOURNAL), ("sync", LOGS), ("sync", INDEX)):
        node.disk.fail(operation, part, error=None, delay_seconds=0.4 * FLUSH_SECONDS)
    answer = node.add(batch_of(1))
    await asyncio.sleep(0)
    began = world.clock.monotonic()
    with pytest.raises(RequestTimeout, match="after 120 seconds, the checkpoint has not ended"):
        await node.bookie.flush()
    assert answer.done()
    assert world.clock.monotonic() - began == pytest.approx(FLUSH_SECONDS, abs=1)


# -- J24: several ledgers, stale and out of order, deleted -------------------------------------


@on_a_bookie()
async def test_j24_an_add_after_a_delete_stays_refused_and_replay_brings_nothing_of_it_back(node):
    await fill(node, 3)
    await node.bookie.delete_ledger(1)
    for _ in range(2):
        assert (await node.add(batch_of(3))).code == NoSuchLedger.wire_code
        await node.kill()
        await node.boot()
        assert node.bookie.stats()["flushed_batches_total"] == 0


@on_a_bookie()
async def test_j24_a_stale_journal_brings_no_batch_back_of_a_ledger_whose_deletion_was_checkpointed(node, world):
    await fill(node, 3)
    await node.bookie.delete_ledger(1)
    node.disk.fail("write", MARK, error=None, delay_seconds=600)
    asyncio.ensure_future(node.bookie.flush()).add_done_callback(lambda done: done.cancelled() or done.exception())
    await world.clock.sleep(5)
    await node.kill()
    node.disk.faults.clear()
    await node.boot()
    assert node.bookie.stats()["flushed_batches_total"] == 0


# -- limbo: the journal lost records ------------------------------------------------------------


async def is_held(node: DiskBookie, ledger_id: int, entry_id: int) -> bool:
    try:
        await node.bookie.read_batches(ledger_id, entry_id, entry_id, 1)
    except EntryUnknown:
        return False
    return True


@on_a_bookie()
async def test_j16_damage_in_the_journal_puts_older_ledgers_into_limbo_and_boot_goes_on(node, world, *, caplog):
    assert (await node.add(batch_of(0, ledger_id=1))).code == 0
    assert (await node.add(batch_of(0, ledger_id=2))).code == 0
    await node.bookie.flush()
    for number in range(1, 8):
        assert (await node.add(batch_of(number, ledger_id=1))).code == 0
        await world.clock.sleep(0.1)
    await node.kill()
    await zero_block(node.disk)
    await node.boot()
    said = [line_of(record) for record in caplog.records]
    assert any(re.search(rf"{ROOT}/journal/segment-\d+ at \d+", message) for message in said)
    assert any("below_ledger_id=1000" in message for message in said)
    found = [number for number in range(8) if await is_held(node, 1, number)]
    assert 0 in found
    assert 7 in found, "what lies behind the damage is replayed"
    lost = [number for number in range(8) if number not in found]
    assert lost
    for number in (*lost, 8):
        with pytest.raises(EntryUnknown):
            await node.bookie.read_batches(1, number, number, 1)
        with pytest.raises(EntryUnknown):
            await node.bookie.recovery_read(1, number, b"")
    for ledger_id in (2, 3, 999):
        with pytest.raises(EntryUnknown):
            await node.bookie.read_batches(ledger_id, 5, 5, 1)
        with pytest.raises(EntryUnknown):
            await node.bookie.read_lac(ledger_id)
        with pytest.raises(EntryUnknown):
            await node.bookie.fence(ledger_id, b"")
        assert (await node.add(batch_of(9, ledger_id=ledger_id))).code == LedgerFenced.wire_code
    with pytest.raises(EntryAbsent):
        await node.bookie.read_batches(1_000, 0, 0, 1)
    assert (await node.add(batch_of(0, ledger_id=1_000))).code == 0
