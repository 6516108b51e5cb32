"""The room of removed logs: given back a piece at a time, under nobody who reads, and lost to nobody in a crash."""

import asyncio

import pytest

from tallybook.bookie.storage import entry_log, remains
from tallybook.bookie.storage.entry_log_format import log_name
from tallybook.core.limits import KIB
from tallybook.runtime.clock import RealClock
from tallybook.runtime.deterministic import SimDisk

from .test_entry_logs import HOME, batch, open_logs, operations, path_of

PIECE = 16 * KIB


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    for module in (remains, entry_log):
        monkeypatch.setattr(module, "PIECE_BYTES", PIECE)
    monkeypatch.setattr(remains, "PAUSE_SECONDS", 0.0)


def cuts(disk):
    """Lengths that the file of log 1 was cut to."""
    return [max(offset, size) for path, offset, size in operations(disk, "truncate") if path == path_of(1)]


async def large_log(disk):
    """Log 1, of five pieces, which may be removed, and where its last batch lies."""
    logs = await open_logs(disk, clock=RealClock())
    (location,) = await logs.append([batch(7, 0, 40_000)])
    await logs.append([batch(7, 2)])
    await logs.sync()
    logs.rows_are_in()
    assert logs.settled_log_ids == [1]
    return logs, location


async def test_the_room_of_a_large_log_comes_back_piece_by_piece_after_its_name_is_gone():
    disk = SimDisk()
    logs, _ = await large_log(disk)
    used, size = disk.state.used_bytes(), await logs.remove(1)
    assert log_name(1) not in await disk.image({}).list(HOME)
    assert cuts(disk) == []
    await logs.give_back()
    lengths = cuts(disk)
    assert len(lengths) == -(-size // PIECE) - 1
    assert all(before - after == PIECE for before, after in zip([size, *lengths], lengths, strict=False))
    assert len([path for path, _, _ in operations(disk, "sync") if path == path_of(1)]) >= len(lengths)
    assert used - disk.state.used_bytes() >= size
    await logs.close()


async def test_who_reads_a_removed_log_reads_on_and_it_is_cut_after_that():
    disk = SimDisk()
    logs, location = await large_log(disk)
    async with logs._reader._files.use(path_of(1)) as file:
        await logs.remove(1)
        giving = asyncio.ensure_future(logs.give_back())
        for _ in range(100):
            await asyncio.sleep(0)
        assert cuts(disk) == []
        assert await file.read(location.offset, location.size) == batch(7, 0, 40_000)
    await giving
    assert cuts(disk)
    await logs.close()


async def test_the_room_comes_back_at_once_where_nobody_waits_for_the_pieces():
    disk = SimDisk()
    logs, _ = await large_log(disk)
    used, size = disk.state.used_bytes(), await logs.remove(1)
    giving = asyncio.ensure_future(logs.give_back())
    await asyncio.sleep(0)
    giving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await giving
    assert used - disk.state.used_bytes() >= size
    await logs.close()


async def test_logs_that_are_closed_before_let_go_of_what_is_left():
    disk = SimDisk()
    logs, _ = await large_log(disk)
    used, size = disk.state.used_bytes(), await logs.remove(1)
    await logs.close()
    assert used - disk.state.used_bytes() >= size - PIECE, "but for what the end of the last log takes"
    assert cuts(disk) == []
