"""The index in memory: what a crash, rot and a failing disk do to the log of its changes."""

import pytest

from tallybook.bookie.storage.index_memory import FILE_NAME, MemoryIndex
from tallybook.bookie.storage.location import IndexRow, Location
from tallybook.core.errors import DamagedFile, DiskFailed, DiskFull, EntryUnknown
from tallybook.core.ids import MAX_ID
from tallybook.runtime.deterministic import Promises, SimDisk, enumerate_crashes

HOME = "/b/index"
PATH = f"{HOME}/{FILE_NAME}"


def row(number: int) -> IndexRow:
    return IndexRow(1, 10 * number, Location(number + 1, 4096, 500, 10))


async def fill(index: MemoryIndex, number: int) -> None:
    await index.apply([row(number)], {1: b"%d" % (number + 1), 2: bytes(1500)})


async def filled(index: MemoryIndex) -> int:
    """How many write batches there are, once it is certain that they are whole and the first ones."""
    count = int(await index.load_state(1) or b"0")
    assert await index.find_range(1, 0, MAX_ID, 1000) == [row(number) for number in range(count)]
    return count


def test_no_power_loss_breaks_a_write_batch_or_forgets_a_sync():
    async def workload(disk: SimDisk, promises: Promises) -> None:
        index = await MemoryIndex.open(disk, HOME, create=True)
        promises.add(0)
        for number in range(6):
            await fill(index, number)
            if number % 2:
                await index.sync()
                promises.add(number + 1)

    async def check(disk: SimDisk, promises) -> None:
        index = await MemoryIndex.open(disk, HOME, create=not promises)
        count = await filled(index)
        assert count >= max(promises, default=0)
        await fill(index, count)
        await index.sync()
        await index.close()
        again = await MemoryIndex.open(disk, HOME, create=False)
        assert await filled(again) == count + 1
        await again.close()

    report = enumerate_crashes(workload, check, double_crashes=100)
    assert report.checked > 200


async def test_rot_in_what_was_synced_is_an_error_that_names_file_and_offset_once_later_changes_vouch_for_it():
    disk = SimDisk()
    index = await MemoryIndex.open(disk, HOME, create=True)
    for number in range(3):
        await fill(index, number)
        await index.sync()
    await index.close()
    size = len(disk.peek(PATH))
    last = size // 3 * 2
    for offset in [*range(200), *range(200, size, 19)]:
        disk.rot.flip_bit(PATH, offset, offset % 8)
        if offset < last:
            with pytest.raises(DamagedFile, match=f"{PATH}.* offset {offset // (size // 3) * (size // 3)}"):
                await MemoryIndex.open(disk, HOME, create=False)
        disk.rot.flip_bit(PATH, offset, offset % 8)
    again = await MemoryIndex.open(disk, HOME, create=False)
    assert await filled(again) == 3
    await again.close()


async def test_a_full_disk_refuses_the_change_and_it_can_be_tried_again():
    disk = SimDisk()
    index = await MemoryIndex.open(disk, HOME, create=True)
    await fill(index, 0)
    disk.capacity_bytes = len(disk.peek(PATH)) + 70
    with pytest.raises(DiskFull):
        await fill(index, 1)
    assert await filled(index) == 1
    disk.capacity_bytes = 10**6
    await fill(index, 1)
    await index.sync()
    assert await filled(await MemoryIndex.open(disk.image({}), HOME, create=False)) == 2
    await index.close()


@pytest.mark.parametrize("operation", ["write", "sync"])
async def test_after_a_change_that_failed_there_is_no_other(operation):
    disk = SimDisk()
    index = await MemoryIndex.open(disk, HOME, create=True)
    await fill(index, 0)
    await index.sync()
    disk.fail(operation, HOME)
    with pytest.raises(DiskFailed, match="planned"):
        await (fill(index, 1) if operation == "write" else index.sync())
    for change in (lambda: fill(index, 1), index.sync):
        with pytest.raises(DiskFailed, match="no more changes"):
            await change()
    assert await index.find(1, 5) == row(0)
    await index.close()


async def test_a_disk_that_refuses_to_read_makes_every_answer_unknown():
    disk = SimDisk()
    index = await MemoryIndex.open(disk, HOME, create=True)
    await fill(index, 0)
    for read in (
        lambda: index.find(1, 0),
        lambda: index.find(9, 0),
        lambda: index.find_range(1, 0, 9, 9),
        lambda: index.last_entry(9),
        lambda: index.load_state(9),
        lambda: index.ledger_ids(-1, 10),
    ):
        disk.fail("read", HOME)
        with pytest.raises(EntryUnknown, match=PATH):
            await read()
        await read()
    await index.close()
