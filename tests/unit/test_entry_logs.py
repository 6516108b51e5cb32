"""The entry logs on a simulated disk: placement of batches, reads, and states after failures."""

import asyncio

import pytest

from tallybook.bookie.storage.entry_log import logs as entry_log
from tallybook.bookie.storage.entry_log.format import LedgerShare, log_name
from tallybook.bookie.storage.entry_log.logs import EntryLogs
from tallybook.core.errors import DamagedFile, DiskFailed, DiskFull, EntryCorrupt, EntryUnknown, InvalidBatch
from tallybook.core.limits import KIB, MIB
from tallybook.core.settings import StorageSettings
from tallybook.runtime.clock import RealClock
from tallybook.runtime.rng import SeededRng
from tallybook.sim.deterministic import Effect, SimClock, SimDisk, run_seed

from .entry_log_parts import HOME, UUID, append, batch, open_logs, operations, path_of, row_of, written


async def append_and_sync(logs: EntryLogs, batches) -> None:
    await logs.append(batches)
    await logs.sync()


# -- appending and reading ------------------------------------------------------------------


@pytest.mark.parametrize(
    "batches",
    [[batch(7, i, 50_000) for i in range(0, 60, 2)], [batch(7, i, 0, 1) for i in range(2_500)]],
    ids=["a MiB of batches", "a thousand tiny batches"],
)
async def test_large_appends_are_written_in_stretches(batches):
    disk = SimDisk()
    logs, rows = await written(disk, batches, entry_log_bytes=64 * MIB)
    writes = [size for _, offset, size in operations(disk, "write") if offset]
    assert len(writes) == 3
    assert max(writes) <= MIB + 36 * KIB
    disk.trace.clear()
    assert await logs.read_many(rows) == batches
    sizes = [size for _, _, size in operations(disk, "read")]
    assert len(sizes) == -(-sum(map(len, batches)) // MIB)
    assert max(sizes) <= MIB
    assert [row.first_entry_id async for row, _ in logs.scan(1)] == [row.first_entry_id for row in rows]
    await logs.close()


async def test_a_full_log_is_finished_by_the_next_append_and_one_append_never_spans_two():
    disk = SimDisk()
    logs = await open_logs(disk)
    for number in range(4):
        locations = await logs.append([batch(7, 100 * number + i, 5000) for i in range(0, 20, 2)])
        assert {location.log_id for location in locations} == {1 + number}
        await logs.sync()
    assert logs.log_ids == [1, 2, 3, 4]
    for log_id in (1, 2, 3):
        assert disk.peek(path_of(log_id))[-8:-4] == b"TEND"
    assert disk.peek(path_of(4))[-8:-4] != b"TEND"
    await logs.close()


async def test_a_log_with_batches_of_very_many_ledgers_is_full_however_small_it_is(monkeypatch):
    monkeypatch.setattr(entry_log, "FULL_LEDGERS", 10)
    logs = await open_logs(SimDisk(), entry_log_bytes=MIB)
    for ledger_id in (*range(12), *[11] * 30):
        await append_and_sync(logs, [batch(ledger_id, 0)])
    assert [len(await logs.ledger_map(log_id)) for log_id in logs.log_ids] == [10, 2]
    await logs.close()


async def test_a_sync_covers_a_log_that_was_finished_since_the_last_one():
    disk = SimDisk()
    logs = await open_logs(disk)
    (first,) = await logs.append([batch(7, 0, 40_000)])
    (second,) = await logs.append([batch(7, 2, 40_000)])
    (third,) = await logs.append([batch(7, 4)])
    assert [each.log_id for each in (first, second, third)] == [1, 2, 3]
    await logs.sync()
    image = disk.image({})
    assert [image.peek(path_of(log_id))[-8:-4] for log_id in (1, 2)] == [b"TEND"] * 2
    survivor = await open_logs(image)
    for first_id, location in ((0, first), (2, second), (4, third)):
        assert await survivor.read(7, first_id, location)
    await logs.close()
    await survivor.close()


async def test_an_unfinished_log_is_left_alone_by_the_next_life():
    disk = SimDisk()
    await written(disk, [batch(7, 0)])
    before = disk.peek(path_of(1))
    disk.crash(SeededRng(1))
    logs = await open_logs(disk)
    assert logs.log_ids == [1]
    (location,) = await logs.append([batch(7, 2)])
    assert location.log_id == 2
    assert disk.peek(path_of(1)) == before
    await logs.close()


async def test_files_of_other_kinds_are_ignored_and_a_missing_directory_is_refused():
    disk = SimDisk()
    await disk.make_directory(HOME)
    for name in ("cookie", "entrylog-7.log", "entrylog-00000000000000ff.log"):
        await (await disk.open(f"{HOME}/{name}", create=True)).close()
    logs = await open_logs(disk)
    assert logs.log_ids == [255]
    (location,) = await logs.append([batch(7, 0)])
    assert location.log_id == 256
    await logs.close()
    with pytest.raises(DamagedFile, match="/nowhere"):
        await EntryLogs.open(disk, ["/nowhere"], UUID, StorageSettings(), RealClock())


async def test_something_that_is_no_batch_is_refused_and_nothing_of_the_append_is_kept():
    disk = SimDisk()
    logs, _ = await written(disk, [batch(7, 0)])
    before = disk.peek(path_of(1))
    tiny = [batch(7, 2 + i, 0, 1) for i in range(1_200)]
    with pytest.raises(InvalidBatch):
        await logs.append([*tiny, b"no batch"])
    assert disk.peek(path_of(1)) == before
    (location,) = await logs.append([batch(7, 2)])
    assert await logs.read(7, 2, location) == batch(7, 2)
    assert await logs.ledger_map(1) == {7: LedgerShare(2 * len(batch(7, 0)), 2)}
    await logs.close()


# -- what reads say of damage ---------------------------------------------------------------


async def test_j18_an_intact_batch_under_the_wrong_row_is_corrupt():
    disk = SimDisk()
    logs, rows = await written(disk, [batch(7, 0), batch(7, 2), batch(8, 0)])
    here = rows[0].location
    for wrong in (
        (8, 0, here),
        (7, 2, here),
        (7, 0, rows[1].location),
        (7, 0, rows[2].location),
        (7, 0, here._replace(entry_count=1)),
        (7, 0, here._replace(size=here.size - 1)),
        (7, 0, here._replace(size=here.size + 1)),
        (7, 0, here._replace(offset=here.offset + 1)),
        (7, 0, here._replace(offset=10**9)),
    ):
        with pytest.raises(EntryCorrupt):
            await logs.read(*wrong)
    # A misdirected write: two intact batches, neither of them where its row says.
    for row, other in zip(rows[:2], [batch(7, 2), batch(7, 0)], strict=True):
        disk.rot.overwrite(path_of(1), row.location.offset, other)
    for row in rows[:2]:
        with pytest.raises(EntryCorrupt):
            await logs.read(7, row.first_entry_id, row.location)
    await logs.close()


async def test_a_log_that_is_missing_or_that_the_disk_does_not_read_is_unknown_and_named():
    disk = SimDisk()
    logs, rows = await written(disk, [batch(7, 0)])
    disk.fail("read", path_of(1))
    with pytest.raises(EntryUnknown, match=path_of(1)):
        await logs.read(7, 0, rows[0].location)
    assert await logs.read(7, 0, rows[0].location) == batch(7, 0)
    with pytest.raises(EntryUnknown, match=f"{path_of(9)} is missing"):
        await logs.read(7, 0, rows[0].location._replace(log_id=9))
    await logs.close()


# -- many at once ---------------------------------------------------------------------------


async def test_batches_far_apart_in_other_logs_or_out_of_order_are_read_one_by_one():
    disk = SimDisk()
    batches = [batch(7, 0, 30_000), batch(8, 0, 30_000), batch(7, 2)]
    logs, rows = await written(disk, batches)
    (other,) = await logs.append([batch(7, 4)])
    wanted = [rows[0], rows[2], row_of(batch(7, 4), other), rows[0]]
    disk.trace.clear()
    assert await logs.read_many(wanted) == [batches[0], batches[2], batch(7, 4), batches[0]]
    assert len(operations(disk, "read")) == 4
    assert await logs.read_many([]) == []
    await logs.close()


async def test_damage_ends_a_run_before_it_and_is_raised_only_for_the_first_batch():
    disk = SimDisk()
    batches = [batch(7, i) for i in range(0, 10, 2)]
    logs, rows = await written(disk, batches)
    disk.rot.flip_bit(path_of(1), rows[2].location.offset + 70)
    assert await logs.read_many(rows) == batches[:2]
    with pytest.raises(EntryCorrupt):
        await logs.read_many(rows[2:])
    assert await logs.read_many(rows[3:]) == batches[3:]
    await logs.close()


async def test_a_sector_that_cannot_be_read_costs_its_batch_and_not_its_neighbours():
    disk = SimDisk()
    batches = [batch(7, i) for i in range(0, 10, 2)]
    logs, rows = await written(disk, batches)
    disk.fail("read", path_of(1))  # the one large read; the small ones succeed
    assert await logs.read_many(rows) == batches
    disk.fail("read", path_of(1), nth=1)
    disk.fail("read", path_of(1), nth=3)  # large, then the second small one
    assert await logs.read_many(rows) == batches[:1]
    await logs.close()


async def test_reads_go_on_while_an_append_takes_its_time():
    disk = SimDisk()
    logs, rows = await written(disk, [batch(7, 0)])
    disk.fail("write", error=None, delay_seconds=0.05)
    append = asyncio.ensure_future(logs.append([batch(7, 2)]))
    await asyncio.sleep(0)
    assert await logs.read(7, 0, rows[0].location) == batch(7, 0)
    assert not append.done()
    await append
    await logs.close()


# -- failures -------------------------------------------------------------------------------


async def test_a_full_disk_leaves_the_log_as_it_was_and_the_append_can_be_tried_again():
    disk = SimDisk()
    logs, rows = await written(disk, [batch(7, 0)], entry_log_bytes=64 * MIB)
    before = disk.peek(path_of(1))
    more = [batch(7, 2 + i, 60_000) for i in range(0, 60, 2)]
    disk.capacity_bytes = len(before) + 2 * MIB
    for _ in range(3):
        with pytest.raises(DiskFull):
            await logs.append([batch(8, 0), *more])
        assert disk.peek(path_of(1)) == before
        assert await logs.ledger_map(1) == {7: LedgerShare(len(batch(7, 0)), 1)}
    disk.capacity_bytes = 64 * MIB
    added = await append(logs, more)
    await logs.sync()
    assert await logs.read_many(added)
    assert await logs.read(7, 0, rows[0].location) == batch(7, 0)
    assert await logs.ledger_map(1) == {7: LedgerShare(sum(map(len, more)) + len(batch(7, 0)), 31)}
    await logs.close()


@pytest.mark.parametrize("operation", ["write", "sync"])
async def test_a_disk_too_full_for_a_new_log_leaves_no_file_behind(operation):
    disk = SimDisk()
    logs = await open_logs(disk)
    disk.fail(operation, log_name(1), error=DiskFull)
    with pytest.raises(DiskFull):
        await logs.append([batch(7, 0)])
    assert await disk.list(HOME) == []
    (location,) = await logs.append([batch(7, 0)])
    await logs.sync()
    assert await logs.read(7, 0, location) == batch(7, 0)
    await logs.close()


async def test_a_disk_too_full_for_a_footer_keeps_the_log_open_for_another_try():
    disk = SimDisk()
    logs, rows = await written(disk, [batch(7, 0, 40_000)])
    before = disk.peek(path_of(1))
    disk.fail("write", path_of(1), error=DiskFull, effect=Effect.PART)
    with pytest.raises(DiskFull):
        await logs.append([batch(7, 2)])
    assert disk.peek(path_of(1)) == before
    (location,) = await logs.append([batch(7, 2)])
    assert location.log_id == 2
    assert await logs.ledger_map(1) == {7: LedgerShare(rows[0].location.size, 1)}
    await logs.close()


@pytest.mark.parametrize("operation", ["write", "sync", "truncate"])
async def test_after_a_failure_whose_effect_is_unknown_nothing_more_is_written(operation):
    disk = SimDisk()
    logs, rows = await written(disk, [batch(7, 0)])
    if operation == "truncate":
        disk.fail("write", path_of(1), error=DiskFull)
    disk.fail(operation, path_of(1))
    with pytest.raises(DiskFailed):
        await append_and_sync(logs, [batch(7, 2)])
    before = disk.operations
    for attempt in (lambda: logs.append([batch(7, 2)]), logs.sync, lambda: logs.remove(1)):
        with pytest.raises(DiskFailed, match="no more changes"):
            await attempt()
    assert disk.operations == before, "a failed sync was followed by another operation"
    assert await logs.read(7, 0, rows[0].location) == batch(7, 0)
    await logs.close()


async def test_an_append_that_was_cancelled_is_not_followed_by_another():
    # The write it began may still reach the file, after that of the next append.
    disk = SimDisk()
    logs, _ = await written(disk, [batch(7, 0)])
    disk.fail("write", error=None, delay_seconds=5.0)
    append = asyncio.ensure_future(logs.append([batch(7, 2)]))
    await asyncio.sleep(0)
    append.cancel()
    with pytest.raises(asyncio.CancelledError):
        await append
    with pytest.raises(DiskFailed, match="Cancelled"):
        await logs.append([batch(7, 2)])
    await logs.close()


# -- closing --------------------------------------------------------------------------------


async def test_closing_finishes_the_current_log_durably():
    disk = SimDisk()
    logs, _ = await written(disk, [batch(7, 0)])
    await logs.append([batch(8, 0)])
    await logs.close()
    survivor = await open_logs(disk.image({}))
    assert await survivor.ledger_map(1) == {7: LedgerShare(len(batch(7, 0)), 1), 8: LedgerShare(len(batch(8, 0)), 1)}
    with pytest.raises(DiskFailed, match="closed"):
        await logs.append([batch(7, 2)])
    await survivor.close()


async def test_closing_on_a_full_disk_leaves_the_log_unfinished_and_readable():
    disk = SimDisk()
    logs, rows = await written(disk, [batch(7, 0)])
    disk.capacity_bytes = 1
    await logs.close()
    again = await open_logs(disk)
    assert await again.read(7, 0, rows[0].location) == batch(7, 0)
    assert await again.ledger_map(1) == {7: LedgerShare(len(batch(7, 0)), 1)}
    await again.close()


async def test_closing_lets_go_of_every_file_even_when_the_last_sync_fails():
    disk = SimDisk()
    logs, rows = await written(disk, [batch(7, 0)])
    await logs.read(7, 0, rows[0].location)
    disk.fail("sync")
    with pytest.raises(DiskFailed):
        await logs.close()
    assert all(file.handles == 0 for file in disk.state.files.values())


# -- pacing ---------------------------------------------------------------------------------


def test_a_paced_append_reports_each_of_its_writes_and_waits_for_the_answer():
    async def scenario(world):
        logs, written = await open_logs(SimDisk(), clock=SimClock(), entry_log_bytes=64 * MIB), []

        async def paced(size: int) -> None:
            written.append(size)
            await world.clock.sleep(1.0)

        start = world.clock.monotonic()
        await logs.append([batch(7, i, 100_000) for i in range(2, 44, 2)], paced=paced)
        seconds = world.clock.monotonic() - start
        await logs.close()
        return written, seconds

    written, seconds = run_seed(1, scenario).value
    assert len(written) > 1
    assert sum(written) >= 2_100_000
    assert seconds >= len(written)
