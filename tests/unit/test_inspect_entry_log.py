"""``entrylog dump`` and ``verify`` of intact and damaged logs."""

import uuid

import pytest

from tallybook.bookie.storage.entry_log.format import Footer, LedgerShare, LogFile, encode_footer, log_name
from tallybook.bookie.storage.entry_log.inspect import (
    FoundBatch,
    FoundLog,
    FoundStretch,
    inspect_entry_log,
    verify_entry_log,
)
from tallybook.bookie.storage.entry_log.logs import EntryLogs
from tallybook.bookie.storage.location import Location
from tallybook.core.batch import encode_batch, verify_batch
from tallybook.core.limits import BLOCK_BYTES
from tallybook.core.settings import StorageSettings
from tallybook.runtime.clock import RealClock
from tallybook.sim.deterministic import SimDisk

HOME = "/b/ledgers"
PATH = f"{HOME}/{log_name(1)}"
UUID = uuid.UUID(int=3)


def batch(ledger_id: int, first: int) -> bytes:
    return encode_batch(ledger_id, first, [b"some payload"] * 3, lac=-1, ledger_length=10**4, written_at_us=5)


async def a_log(disk: SimDisk, *, finished: bool = True) -> list[list[Location]]:
    """Three synced ranges: two batches of ledger 7, one of 8, two of 7."""
    await disk.make_directory(HOME)
    logs = await EntryLogs.open(disk, [HOME], str(UUID), StorageSettings(), RealClock())
    stretches = []
    for batches in ([batch(7, 0), batch(7, 3)], [batch(8, 0)], [batch(7, 6), batch(7, 9)]):
        stretches.append(await logs.append(batches))
        await logs.sync()
    if finished:
        await logs.close()
    return stretches


async def everything(disk: SimDisk, path: str = PATH) -> list:
    return [found async for found in inspect_entry_log(disk, path)]


async def test_a_dump_shows_every_part_in_order():
    disk = SimDisk()
    stretches = await a_log(disk)
    found = await everything(disk)
    assert found[0] == FoundLog(str(UUID), 1, len(disk.peek(PATH)))
    kinds = [FoundLog, FoundStretch, FoundBatch, FoundBatch, FoundStretch, FoundBatch, FoundStretch]
    assert [type(each) for each in found] == [*kinds, FoundBatch, FoundBatch, Footer]
    batches = [each for each in found if isinstance(each, FoundBatch)]
    assert [each.location for each in batches] == [at for stretch in stretches for at in stretch]
    assert batches[2].header == verify_batch(batch(8, 0))
    assert [each.vouched for each in found if isinstance(each, FoundStretch)] == [4096, 8192, 12288]


async def test_damage_below_what_is_vouched_for_is_damage_and_above_it_may_be_torn():
    disk = SimDisk()
    stretches = await a_log(disk, finished=False)
    disk.rot.flip_bit(PATH, stretches[1][0].offset + 70)
    disk.rot.flip_bit(PATH, stretches[2][1].offset + 70)
    report = await verify_entry_log(disk, PATH)
    assert [each.offset for each in report.damage] == [stretches[1][0].offset]
    assert [each.offset for each in report.torn] == [stretches[2][1].offset]
    assert f"{PATH}, offset {stretches[1][0].offset}: the batch of ledger 8 from entry 0 on" in report.damage[0].what
    assert report.batches == 3
    assert not report.finished


async def test_a_damaged_header_does_not_hide_which_log_it_is():
    disk = SimDisk()
    await a_log(disk)
    disk.rot.overwrite(PATH, 0, bytes(BLOCK_BYTES))
    report = await verify_entry_log(disk, PATH)
    assert (report.directory_uuid, report.log_id, report.batches) == (str(UUID), 1, 5)
    assert [each.offset for each in report.damage] == [0]


async def test_padding_that_is_not_zero_is_reported_as_harmless():
    disk = SimDisk()
    stretches = await a_log(disk)
    end = stretches[1][0].offset + stretches[1][0].size
    disk.rot.flip_bit(PATH, end + 5)
    report = await verify_entry_log(disk, PATH)
    assert [(each.offset, "harmless" in each.what) for each in report.damage] == [(end, True)]
    assert report.batches == 5


async def test_an_intact_footer_that_contradicts_the_tables_is_reported():
    disk = SimDisk()
    await a_log(disk)
    offset = len(disk.peek(PATH)) - BLOCK_BYTES
    disk.rot.overwrite(PATH, offset, encode_footer(LogFile(PATH, UUID.bytes, 1), offset, {7: LedgerShare(5, 1)}))
    report = await verify_entry_log(disk, PATH)
    assert "differs from the tables" in report.damage[0].what


async def test_an_intact_batch_in_the_place_of_another_is_reported():
    disk = SimDisk()
    stretches = await a_log(disk)
    disk.rot.overwrite(PATH, stretches[0][0].offset, batch(7, 3))
    report = await verify_entry_log(disk, PATH)
    assert "it is of ledger 7 from entry 3 on" in report.damage[0].what


async def test_a_disk_that_refuses_is_reported_and_not_raised():
    disk = SimDisk()
    await a_log(disk)
    for nth in range(1, 8):
        disk.fail("read", PATH, nth=nth)
        report = await verify_entry_log(disk, PATH)
        assert "cannot be read further" in report.damage[-1].what
        disk.faults.clear()


@pytest.mark.parametrize("data", [b"", b"x", bytes(4096), b"\xff" * 20_000, b"TSTR" * 5000, b"TFTR" + bytes(5000)])
async def test_a_file_that_is_no_entry_log_gives_a_report_and_no_error(data):
    disk = SimDisk()
    await disk.make_directory(HOME)
    await disk.replace_file(PATH, data)
    report = await verify_entry_log(disk, PATH)
    assert (report.batches, report.finished) == (0, False)
    assert report.damage
    assert all(PATH in each.what for each in report.damage + report.torn)


async def test_a_missing_file_is_an_error_and_every_file_is_closed_again():
    disk = SimDisk()
    await a_log(disk)
    await everything(disk)
    with pytest.raises(FileNotFoundError):
        await verify_entry_log(disk, f"{HOME}/nothing")
    assert all(file.handles == 0 for file in disk.state.files.values())
