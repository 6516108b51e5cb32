"""Incremental truncation of removed logs: piece by piece, never during a read, and complete after a crash."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from tallybook.bookie.storage.entry_log import truncation as remains
from tallybook.bookie.storage.entry_log.format import log_name
from tallybook.core.errors import DiskFailed, DiskFull
from tallybook.core.limits import KIB
from tallybook.runtime.clock import RealClock
from tallybook.sim.deterministic import SimDisk

from .entry_log_parts import HOME, batch, open_logs, operations, path_of
from .test_open_files import handles

PIECE = 16 * KIB


@pytest.fixture(autouse=True)
def hurried_readers(monkeypatch):
    monkeypatch.setattr(remains, "READ_SECONDS", 0.05)


def cuts(disk):
    """Lengths that the file of log 1 was cut to."""
    return [max(offset, size) for path, offset, size in operations(disk, "truncate") if path == path_of(1)]


class Pauses(RealClock):
    """A clock that notes each pause, and makes none."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.made.append(seconds)
        await asyncio.sleep(0)


async def large_log(disk, clock=None):
    """Log 1, of five pieces, which may be removed, and where its last batch lies."""
    logs = await open_logs(disk, clock=clock or Pauses(), give_back_bytes=PIECE)
    (location,) = await logs.append([batch(7, 0, 40_000)])
    await logs.append([batch(7, 2)])
    await logs.sync()
    logs.rows_are_in()
    assert logs.settled_log_ids == [1]
    return logs, location


async def reads_on(file, location):
    """A reader of log 1 finds its last batch, also a while after the log began to go."""
    for _ in range(100):
        await asyncio.sleep(0)
    assert await file.read(location.offset, location.size) == batch(7, 0, 40_000)


@asynccontextmanager
async def removed(disk):
    """Logs of which number 1 is removed, and whose space is freed after the block."""
    logs, _ = await large_log(disk)
    before = handles(disk)
    await logs.remove(1)
    assert handles(disk) == before + 1
    yield logs
    assert handles(disk) == before
    await logs.close()


async def test_the_space_of_a_large_log_is_freed_piece_by_piece_after_its_removal():
    disk, clock = SimDisk(), Pauses()
    logs, _ = await large_log(disk, clock)
    before = handles(disk)
    size = await logs.remove(1)
    assert log_name(1) not in await disk.image({}).list(HOME)
    assert cuts(disk) == []
    assert handles(disk) == before + 1
    clock.made.clear()
    await logs.free_removed()
    lengths = cuts(disk)
    assert len(lengths) == -(-size // PIECE) - 1
    assert all(before - after == PIECE for before, after in zip([size, *lengths], lengths, strict=False))
    assert len([path for path, _, _ in operations(disk, "sync") if path == path_of(1)]) >= len(lengths)
    assert clock.made == [remains.PAUSE_SECONDS] * len(lengths)
    assert handles(disk) == before
    await logs.close()


async def test_a_log_of_very_many_pieces_comes_back_in_larger_ones(monkeypatch):
    monkeypatch.setattr(remains, "MAX_PIECES", 3)
    disk = SimDisk()
    async with removed(disk) as logs:
        await logs.free_removed()
    assert len(cuts(disk)) == 2, "the third piece goes as the file is closed"


async def test_reads_of_a_removed_log_go_on_and_it_is_truncated_after_them():
    disk = SimDisk()
    logs, location = await large_log(disk)
    async with logs._reader.files.use(path_of(1)) as file:
        await logs.remove(1)
        giving = asyncio.ensure_future(logs.free_removed())
        await reads_on(file, location)
        assert cuts(disk) == []
    await giving
    assert cuts(disk)
    await logs.close()


async def test_a_very_long_read_of_a_removed_log_is_neither_awaited_nor_cut_off():
    disk = SimDisk()
    logs, location = await large_log(disk)
    async with logs._reader.files.use(path_of(1)) as file:
        before = handles(disk)
        await logs.remove(1)
        await logs.free_removed()
        await reads_on(file, location)
        assert handles(disk) == before
    assert cuts(disk) == []
    assert handles(disk) == before - 1
    await logs.close()


async def test_the_space_is_freed_at_once_if_no_caller_waits_for_the_pieces():
    async with removed(SimDisk()) as logs:
        giving = asyncio.ensure_future(logs.free_removed())
        await asyncio.sleep(0)
        giving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await giving


async def test_the_space_is_freed_at_once_where_a_cut_needs_some():
    disk = SimDisk()
    async with removed(disk) as logs:
        disk.fail("truncate", log_name(1), error=DiskFull)
        await logs.free_removed()
        assert len(cuts(disk)) <= 1, "nor is any other cut tried"


async def test_logs_that_are_closed_before_let_go_of_what_is_left():
    disk = SimDisk()
    logs, _ = await large_log(disk)
    await logs.remove(1)
    await logs.close()
    assert handles(disk) == 0
    assert cuts(disk) == []


async def test_a_log_that_cannot_be_removed_is_not_kept_open():
    disk = SimDisk()
    logs, _ = await large_log(disk)
    before = handles(disk)
    disk.fail("unlink", log_name(1), error=DiskFailed)
    with pytest.raises(DiskFailed):
        await logs.remove(1)
    assert handles(disk) == before


async def test_on_a_full_disk_reads_of_a_removed_log_go_on():
    disk = SimDisk()
    logs, location = await large_log(disk)
    async with logs._reader.files.use(path_of(1)) as file:
        disk.fail("write", "lengths.tmp", error=DiskFull)
        removing = asyncio.ensure_future(logs.remove(1))
        await reads_on(file, location)
    await removing
    assert logs.log_ids == [2]
    await logs.close()
