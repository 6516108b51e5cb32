"""The cache of open files: opened once, bounded, closed when unused."""

import asyncio

import pytest

from tallybook.bookie.storage.open_files import OpenFiles
from tallybook.core.errors import DiskFailed
from tallybook.sim.deterministic import SimDisk


async def disk_with(count: int) -> SimDisk:
    disk = SimDisk()
    await disk.make_directory("/d")
    for number in range(count):
        await disk.replace_file(f"/d/{number}", b"%d" % number)
    return disk


def handles(disk: SimDisk) -> int:
    return sum(file.handles for file in disk.state.files.values())


def opens(disk: SimDisk) -> int:
    return sum(operation.name == "open" for operation in disk.trace)


async def read(files: OpenFiles, number: int) -> bytes:
    async with files.use(f"/d/{number}") as file:
        return await file.read(0, 10)


async def test_a_file_is_opened_once_for_many_reads_and_many_readers():
    disk = await disk_with(1)
    files, before = OpenFiles(disk, 4), opens(disk)
    assert await asyncio.gather(*(read(files, 0) for _ in range(20))) == [b"0"] * 20
    await read(files, 0)
    assert opens(disk) == before + 1
    await files.close()
    assert handles(disk) == 0


async def test_no_more_files_stay_open_than_allowed_and_the_least_recently_used_goes_first():
    disk = await disk_with(10)
    files = OpenFiles(disk, 3)
    for number in (0, 1, 2, 0, 3):
        await read(files, number)
    assert (len(files), handles(disk)) == (3, 3)
    before = opens(disk)
    await read(files, 0)
    assert opens(disk) == before
    await read(files, 1)
    assert opens(disk) == before + 1
    await files.close()
    assert handles(disk) == 0


async def test_files_in_use_stay_open_even_beyond_the_limit():
    disk = await disk_with(5)
    files = OpenFiles(disk, 1)

    together = asyncio.Barrier(5)

    async def hold(number: int) -> int:
        async with files.use(f"/d/{number}"):
            await together.wait()
            seen = handles(disk)
            await together.wait()
            return seen

    assert await asyncio.gather(*map(hold, range(5))) == [5] * 5
    assert (len(files), handles(disk)) == (1, 1)
    await files.close()


async def test_a_forgotten_file_is_closed_by_its_last_user_and_opened_anew_by_the_next():
    disk = await disk_with(1)
    files = OpenFiles(disk, 4)
    async with files.use("/d/0") as old:
        await files.forget("/d/0")
        assert await old.read(0, 10) == b"0"
        async with files.use("/d/0") as new:
            assert new is not old
    with pytest.raises(DiskFailed, match="closed"):
        await old.read(0, 10)
    assert handles(disk) == 1
    await files.forget("/d/nothing")
    await files.close()
    assert handles(disk) == 0


async def test_a_file_that_cannot_be_opened_fails_all_waiters_leaves_no_trace_and_may_be_tried_again():
    disk = await disk_with(1)
    files = OpenFiles(disk, 4)
    results = await asyncio.gather(*(read(files, 7) for _ in range(5)), return_exceptions=True)
    assert {type(result) for result in results} == {FileNotFoundError}
    disk.fail("open", "/d/0")
    with pytest.raises(DiskFailed):
        await read(files, 0)
    assert len(files) == 0
    assert await read(files, 0) == b"0"
    await files.close()


async def test_a_cancelled_user_does_not_keep_the_file_open():
    disk = await disk_with(2)
    files = OpenFiles(disk, 1)

    entered = asyncio.Event()

    async def hold() -> None:
        async with files.use("/d/0"):
            entered.set()
            await asyncio.Event().wait()

    holding = asyncio.ensure_future(hold())
    await entered.wait()
    holding.cancel()
    with pytest.raises(asyncio.CancelledError):
        await holding
    await read(files, 1)
    assert handles(disk) == 1
    await files.close()
    assert handles(disk) == 0


async def test_a_forgotten_file_counts_as_unread_also_if_its_last_reader_does_not_wait_for_the_end(
    monkeypatch: pytest.MonkeyPatch,
):
    files, closing, go_on = OpenFiles(await disk_with(1), 4), asyncio.Event(), asyncio.Event()
    inside, reading = asyncio.Event(), asyncio.Event()

    async def slow() -> None:
        closing.set()
        await go_on.wait()

    async def reader() -> None:
        async with files.use("/d/0") as file:
            monkeypatch.setattr(file, "close", slow)
            inside.set()
            await reading.wait()

    last = asyncio.ensure_future(reader())
    await inside.wait()
    unread = await files.forget("/d/0")
    assert not unread.is_set()
    reading.set()
    await closing.wait()
    last.cancel()
    with pytest.raises(asyncio.CancelledError):
        await last
    assert unread.is_set()
