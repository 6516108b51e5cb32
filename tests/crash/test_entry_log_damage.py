"""Damage anywhere in an entry log: it is found and named, or harmless; wrong bytes are never served.

The log under test is small and complete: header, two ranges of three batches, footer. Every meaningful byte of it is
damaged in turn, and every kind of lost or swapped sector is tested.
"""

import uuid

import pytest

from tallybook.bookie.storage.entry_log.format import log_name
from tallybook.bookie.storage.entry_log.inspect import verify_entry_log
from tallybook.bookie.storage.entry_log.logs import EntryLogs
from tallybook.bookie.storage.location import IndexRow
from tallybook.core.batch import encode_batch
from tallybook.core.errors import DamagedFile, EntryCorrupt
from tallybook.core.limits import BLOCK_BYTES, SECTOR_BYTES
from tallybook.core.settings import StorageSettings
from tallybook.runtime.clock import RealClock
from tallybook.sim.deterministic import SimDisk

HOME = "/b/ledgers"
PATH = f"{HOME}/{log_name(1)}"
SECOND = f"{HOME}/{log_name(2)}"
UUID = str(uuid.UUID(int=3))


def batch(ledger_id: int, first: int) -> bytes:
    payload = bytes([ledger_id, first]) * 20
    return encode_batch(ledger_id, first, [payload], lac=first - 1, ledger_length=10**4, written_at_us=5)


BATCHES = [[batch(7, 0), batch(7, 1), batch(8, 0)], [batch(7, 2), batch(8, 1), batch(9, 0)]]


async def open_logs(disk: SimDisk) -> EntryLogs:
    return await EntryLogs.open(disk, [HOME], UUID, StorageSettings(entry_log_bytes=BLOCK_BYTES * 3), RealClock())


async def a_log(disk: SimDisk, *, finished: bool = True) -> list[list[IndexRow]]:
    """Write the log under test, and a second one of the same shape; return the rows of the first."""
    await disk.make_directory(HOME)
    logs, rows = await open_logs(disk), []
    for log_id in (1, 2) if finished else (1,):
        for batches in BATCHES:
            locations = await logs.append(batches)
            assert {each.log_id for each in locations} == {log_id}
            ids = [(int.from_bytes(each[16:24], "little"), int.from_bytes(each[24:32], "little")) for each in batches]
            rows.append([IndexRow(*each, at) for each, at in zip(ids, locations, strict=True)])
            await logs.sync()
    if finished:
        await logs.close()
    return rows[:2]


def used_ranges(disk: SimDisk, rows) -> dict[str, list[tuple[int, int]]]:
    """Start and end of everything in the log that is not padding, by record type."""
    heads = [(stretch[0].location.offset - 64 - 32 * len(stretch), stretch[0].location.offset) for stretch in rows]
    places = [row.location for stretch in rows for row in stretch]
    size = len(disk.peek(PATH))
    return {
        "header": [(0, 40), (BLOCK_BYTES - 4, BLOCK_BYTES)],
        "head": heads,
        "batch": [(at.offset, at.offset + at.size) for at in places],
        "footer": [(size - BLOCK_BYTES, size - BLOCK_BYTES + 64 + 3 * 24), (size - 16, size)],
    }


async def look(disk: SimDisk, rows) -> tuple[set[tuple[int, int]], bool]:
    """Read everything every way there is: which batches cannot be had, and whether a scan reports damage.

    Fails on wrong bytes, on a wrong row, and on a row that a scan without complaint leaves out.
    """
    logs = await open_logs(disk)
    expected = {(row.ledger_id, row.first_entry_id): row for stretch in rows for row in stretch}
    lost = set()
    for (ledger_id, first), row in expected.items():
        try:
            assert await logs.read(ledger_id, first, row.location) == batch(ledger_id, first), "wrong bytes"
        except EntryCorrupt as error:
            lost.add((ledger_id, first))
            assert f"{PATH}, offset {row.location.offset}:" in error.message  # noqa: PT017
    found, damaged = {}, False
    try:
        async for each, at in logs.scan(1):
            found[each.ledger_id, each.first_entry_id] = at
    except DamagedFile as error:
        damaged = True
        assert PATH in error.message  # noqa: PT017
    assert found.items() <= {key: row.location for key, row in expected.items()}.items(), "a wrong row"
    assert damaged or found.keys() == expected.keys(), "a scan left out a batch and did not say so"
    await logs.close()
    return lost, damaged


async def reported(disk: SimDisk) -> list[tuple[int, int]]:
    """Start and end of what ``verify`` complains about."""
    report = await verify_entry_log(disk, PATH)
    return [(each.offset, each.offset + max(each.size, BLOCK_BYTES)) for each in report.damage + report.torn]


async def test_the_undamaged_log_is_fine():
    disk = SimDisk()
    rows = await a_log(disk)
    assert await look(disk, rows) == (set(), False)
    report = await verify_entry_log(disk, PATH)
    assert (report.damage, report.torn) == ([], [])
    assert (report.finished, report.stretches, report.batches) == (True, 2, 6)


@pytest.mark.parametrize("kind", ["header", "head", "batch", "footer"])
async def test_a_flipped_bit_anywhere_is_found_and_named_and_serves_no_wrong_byte(kind):
    disk = SimDisk()
    rows = await a_log(disk)
    for start, end in used_ranges(disk, rows)[kind]:
        for offset in range(start, end):
            disk.rot.flip_bit(PATH, offset, offset % 8)
            lost, damaged = await look(disk, rows)
            assert len(lost) == (kind == "batch")
            assert damaged == (kind in {"header", "head"})
            assert any(low <= offset < high for low, high in await reported(disk)), f"byte {offset} goes unreported"
            disk.rot.flip_bit(PATH, offset, offset % 8)
    assert await look(disk, rows) == (set(), False)


async def test_a_flipped_bit_in_padding_changes_nothing_that_is_read():
    disk = SimDisk()
    rows = await a_log(disk)
    used = [each for ranges in used_ranges(disk, rows).values() for each in ranges]
    for offset in range(BLOCK_BYTES, len(disk.peek(PATH)), 131):
        if not any(start <= offset < end for start, end in used):
            disk.rot.flip_bit(PATH, offset)
            assert await look(disk, rows) == (set(), False)
            disk.rot.flip_bit(PATH, offset)


@pytest.mark.parametrize("finished", [True, False])
async def test_a_log_cut_at_any_length_serves_what_is_left_and_nothing_else(finished):
    disk = SimDisk()
    rows = await a_log(disk, finished=finished)
    whole = len(disk.peek(PATH))
    ends = sorted(row.location.offset + row.location.size for stretch in rows for row in stretch)
    for length in sorted({*range(0, whole, 512), *ends, *(end - 1 for end in ends)}):
        cut = disk.fork()
        cut.rot.truncate(PATH, length)
        logs = await open_logs(cut)
        for row in (row for stretch in rows for row in stretch):
            if row.location.offset + row.location.size <= length:
                assert await logs.read(row.ledger_id, row.first_entry_id, row.location)
            else:
                with pytest.raises(EntryCorrupt, match=PATH):
                    await logs.read(row.ledger_id, row.first_entry_id, row.location)
        await logs.close()


async def test_a_finished_log_that_was_cut_is_never_taken_for_a_whole_one():
    disk = SimDisk()
    rows = await a_log(disk)
    for length in range(rows[1][-1].location.offset, len(disk.peek(PATH)), 512):
        cut = disk.fork()
        cut.rot.truncate(PATH, length)
        assert not (await verify_entry_log(cut, PATH)).finished


@pytest.mark.parametrize("kind", ["zero", "other log", "exchanged", "moved within"])
async def test_a_sector_that_was_lost_or_went_astray_serves_no_wrong_byte(kind):
    disk = SimDisk()
    rows = await a_log(disk)
    sectors = len(disk.peek(PATH)) // SECTOR_BYTES
    harmed = 0
    for sector in range(sectors):
        damaged = disk.fork()
        if kind == "zero":
            damaged.rot.zero_sector(PATH, sector)
        elif kind == "other log":
            damaged.rot.copy_sector(PATH, sector, SECOND, sector)
        elif kind == "exchanged":
            damaged.rot.swap_sectors(PATH, sector, SECOND, (sector + 8) % sectors)
        else:
            damaged.rot.copy_sector(PATH, sector, PATH, (sector + 8) % sectors)
        lost, _ = await look(damaged, rows)
        harmed += bool(lost)
    # The second log has the same batches at the same offsets: its batch sectors are as good as ours.
    assert harmed > 0 or kind == "other log"


async def test_another_log_of_the_same_shape_in_place_of_this_one_is_reported():
    disk = SimDisk()
    rows = await a_log(disk)
    disk.rot.overwrite(PATH, 0, disk.peek(SECOND))
    lost, damaged = await look(disk, rows)
    assert not lost, "the batches are the same in both"
    assert damaged
    report = await verify_entry_log(disk, PATH)
    assert report.damage
    assert report.damage[0].offset == 0
