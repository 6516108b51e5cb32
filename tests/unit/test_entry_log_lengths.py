"""Recorded minimum lengths of entry logs: a log shorter than its record is reported."""

import uuid

import pytest

from tallybook.bookie.storage.entry_log.format import log_name, removed_name
from tallybook.bookie.storage.entry_log.inspect import lost_bytes
from tallybook.bookie.storage.entry_log.lengths import FILE_NAME, read_lengths, write_lengths
from tallybook.bookie.storage.entry_log.logs import EntryLogs
from tallybook.core.batch import encode_batch
from tallybook.core.errors import DamagedFile, DiskFull
from tallybook.core.limits import BLOCK_BYTES, KIB
from tallybook.core.settings import StorageSettings
from tallybook.runtime.clock import RealClock
from tallybook.sim.deterministic import SimDisk

HOME = "/b/ledgers"
UUID = uuid.UUID(int=77)
NOTE = f"{HOME}/{FILE_NAME}"


async def open_logs(disk: SimDisk) -> EntryLogs:
    await disk.make_directory(HOME)
    return await EntryLogs.open(disk, [HOME], str(UUID), StorageSettings(entry_log_bytes=16 * KIB), RealClock())


def batch(first: int) -> bytes:
    return encode_batch(7, first, [bytes(10_000)] * 2, lac=first - 1, ledger_length=20_000, written_at_us=1)


async def three_logs(disk: SimDisk) -> None:
    """Two finished logs and one that a crash left unfinished."""
    logs = await open_logs(disk)
    for first in (0, 2, 4):
        await logs.append([batch(first)])
        await logs.sync()


async def said(disk: SimDisk) -> list[str]:
    """The damage reported by the next start."""
    return [error.message for error in await (await open_logs(disk)).damaged()]


async def test_lengths_are_read_as_they_were_written():
    disk = SimDisk()
    await disk.make_directory(HOME)
    assert await read_lengths(disk, HOME, UUID.bytes) == {}
    for lengths in ({}, {1: 4096}, {2**40: 2**50, 3: 0}):
        await write_lengths(disk, HOME, UUID.bytes, lengths)
        assert await read_lengths(disk, HOME, UUID.bytes) == lengths


async def test_every_flipped_bit_and_every_cut_of_the_note_is_found():
    whole = SimDisk()
    await whole.make_directory(HOME)
    await write_lengths(whole, HOME, UUID.bytes, {1: 4096, 2: 8192})
    size = len(whole.peek(NOTE))
    for offset in range(size):
        for damage in (lambda disk, at=offset: disk.rot.flip_bit(NOTE, at, at % 8),
                       lambda disk, at=offset: disk.rot.truncate(NOTE, at)):  # fmt: skip
            disk = whole.fork()
            damage(disk)
            with pytest.raises(DamagedFile, match=NOTE):
                await read_lengths(disk, HOME, UUID.bytes)


async def test_the_note_of_another_bookie_is_not_taken_for_ours():
    disk = SimDisk()
    await disk.make_directory(HOME)
    await write_lengths(disk, HOME, uuid.UUID(int=78).bytes, {1: 4096})
    with pytest.raises(DamagedFile, match="another bookie directory"):
        await read_lengths(disk, HOME, UUID.bytes)


@pytest.mark.parametrize("log_id", [1, 3])
async def test_a_log_that_is_missing_is_named_and_its_id_is_not_used_again(log_id):
    disk = SimDisk()
    await three_logs(disk)
    disk.rot.remove(f"{HOME}/{log_name(log_id)}")
    for _ in range(2):  # at every start
        [message] = await said(disk)
        assert f"{log_name(log_id)} is missing" in message
    [lost] = await lost_bytes(disk, HOME)
    assert f"{log_name(log_id)} is missing" in lost.what
    logs = await open_logs(disk)
    assert (await logs.append([batch(6)]))[0].log_id == 4


@pytest.mark.parametrize("log_id", [1, 3])
async def test_a_log_that_was_cut_where_a_block_ends_is_named_with_the_place(log_id):
    disk = SimDisk()
    await three_logs(disk)
    path = f"{HOME}/{log_name(log_id)}"
    disk.rot.truncate(path, BLOCK_BYTES)
    [message] = await said(disk)
    assert message.startswith(f"{path}, offset {BLOCK_BYTES}: the file ends here")
    [lost] = await lost_bytes(disk, HOME)
    assert lost.offset == BLOCK_BYTES


async def test_a_damaged_note_is_named_and_replaced_by_the_next_sync():
    disk = SimDisk()
    await three_logs(disk)
    assert await said(disk) == await lost_bytes(disk, HOME) == []
    disk.rot.flip_bit(NOTE, 30, 1)
    [message] = await said(disk)
    assert NOTE in message
    logs = await open_logs(disk)
    await logs.append([batch(6)])
    await logs.sync()
    assert await said(disk) == []


async def test_on_a_disk_without_a_free_byte_a_log_gives_its_space_back_and_is_not_missed():
    disk = SimDisk()
    await three_logs(disk)
    logs = await open_logs(disk)
    disk.capacity_bytes = disk.state.used_bytes()
    size = len(disk.peek(f"{HOME}/{log_name(1)}"))
    assert disk.free_bytes() == 0
    assert await logs.remove(1) == size
    assert disk.free_bytes() >= size
    assert logs.log_ids == [2, 3]
    assert await said(disk) == []
    assert await lost_bytes(disk, HOME) == []
    assert disk.state.names(HOME) == [log_name(2), log_name(3), FILE_NAME]


async def test_a_log_that_went_without_a_note_is_noted_by_the_next_sync():
    disk = SimDisk()
    await three_logs(disk)
    logs = await open_logs(disk)
    await logs.append([batch(6)])
    disk.fail("write", NOTE, times=2, error=DiskFull)
    await logs.remove(1)
    assert disk.peek(f"{HOME}/{removed_name(1)}") == b""
    assert 1 in await read_lengths(disk, HOME, UUID.bytes)
    assert await said(disk) == []
    assert await lost_bytes(disk, HOME) == []
    await logs.sync()
    assert 1 not in await read_lengths(disk, HOME, UUID.bytes)
    assert removed_name(1) not in disk.state.names(HOME)


async def test_a_log_of_which_not_even_the_name_can_be_changed_stays_and_is_removed_later():
    disk = SimDisk()
    await three_logs(disk)
    logs = await open_logs(disk)
    disk.fail("write", NOTE, error=DiskFull)
    disk.fail("rename", log_name(1), error=DiskFull)
    with pytest.raises(DiskFull):
        await logs.remove(1)
    assert logs.log_ids == [1, 2, 3]
    assert await said(disk) == []
    await logs.remove(1)
    assert await said(disk) == []


async def test_without_space_for_the_note_a_sync_may_be_tried_again():
    disk = SimDisk()
    logs = await open_logs(disk)
    await logs.append([batch(0)])
    disk.fail("write", NOTE, error=DiskFull)
    with pytest.raises(DiskFull):
        await logs.sync()
    await logs.sync()
    assert (await read_lengths(disk, HOME, UUID.bytes))[1] == len(disk.peek(f"{HOME}/{log_name(1)}"))
