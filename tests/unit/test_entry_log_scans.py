"""Scans of whole entry logs: listed batches, damage, the ledger map, removal."""

import uuid

import pytest

from tallybook.bookie.storage.entry_log.format import LedgerShare, log_name
from tallybook.bookie.storage.entry_log.logs import EntryLogs
from tallybook.bookie.storage.location import IndexRow, Location
from tallybook.core.batch import encode_batch
from tallybook.core.errors import DamagedFile, EntryUnknown, InvariantViolation
from tallybook.core.limits import BLOCK_BYTES, MIB, SECTOR_BYTES
from tallybook.sim.deterministic import SimDisk

from .entry_log_parts import HOME, append, batch, open_logs, operations, path_of, row_of, written


async def scanned(logs: EntryLogs, log_id: int):
    return [(row.ledger_id, row.first_entry_id, location) async for row, location in logs.scan(log_id)]


async def scanned_with_error(logs: EntryLogs, log_id: int):
    """The results of a scan before its error, and the error."""
    found = []
    try:
        async for row, location in logs.scan(log_id):
            found.append((row.ledger_id, row.first_entry_id, location))
    except DamagedFile as error:
        return found, error
    pytest.fail("the scan reported no damage")


# -- whole logs -----------------------------------------------------------------------------


async def some_stretches(disk: SimDisk, count: int = 4) -> tuple[EntryLogs, list[list[IndexRow]]]:
    """One unfinished log with a range for each of ``count`` synced appends of three batches."""
    logs = await open_logs(disk, entry_log_bytes=MIB)
    stretches = []
    for number in range(count):
        piece = [batch(7, 10 * number + i, 900) for i in (0, 2)] + [batch(8, 10 * number, 900)]
        stretches.append(await append(logs, piece))
        await logs.sync()
    return logs, stretches


def listed(stretches) -> list[tuple[int, int, Location]]:
    return [(row.ledger_id, row.first_entry_id, row.location) for rows in stretches for row in rows]


async def test_a_scan_lists_every_batch_in_order_and_reads_only_the_tables():
    disk = SimDisk()
    batches = [batch(7, i, 40_000) for i in range(0, 60, 2)]
    logs, rows = await written(disk, batches, entry_log_bytes=64 * MIB)
    disk.trace.clear()
    assert await scanned(logs, 1) == listed([rows])
    assert sum(size for _, _, size in operations(disk, "read")) < 200_000
    await logs.close()
    assert await scanned(logs, 1) == listed([rows])


async def test_a_damaged_table_costs_its_stretch_and_is_reported_at_the_end():
    disk = SimDisk()
    logs, stretches = await some_stretches(disk)
    offset = stretches[1][0].location.offset - 64 - 3 * 32
    disk.rot.flip_bit(path_of(1), offset + 70)
    found, error = await scanned_with_error(logs, 1)
    assert found == listed([stretches[0], *stretches[2:]])
    assert f"{log_name(1)}, offset {offset}:" in error.message
    with pytest.raises(DamagedFile):
        await (await open_logs(disk.image({}))).ledger_map(1)
    await logs.close()


async def test_an_unverified_tail_ends_the_scan_without_an_error():
    # What a power loss leaves of an append that was never synced: no row points there.
    disk = SimDisk()
    logs, stretches = await some_stretches(disk)
    disk.rot.zero_sector(path_of(1), (stretches[3][0].location.offset - 160) // 512)
    assert await scanned(logs, 1) == listed(stretches[:3])
    disk.rot.truncate(path_of(1), stretches[3][0].location.offset)
    assert await scanned(logs, 1) == listed(stretches[:3])
    await logs.close()


async def test_a_damaged_header_hides_no_batch_and_is_reported():
    # E01: a garbage header must not make a log look empty.
    disk = SimDisk()
    logs, stretches = await some_stretches(disk)
    disk.rot.overwrite(path_of(1), 0, b"garbage!")
    found, error = await scanned_with_error(logs, 1)
    assert found == listed(stretches)
    assert f"{log_name(1)}, offset 0:" in error.message
    await logs.close()


async def test_a_log_of_another_bookie_or_another_id_under_our_name_is_reported():
    disk = SimDisk()
    foreign, _ = await written(disk, [batch(7, 0)], directory_uuid=str(uuid.UUID(int=5)))
    await foreign.close()
    disk.rot.duplicate(path_of(1), path_of(2))
    logs = await open_logs(disk)
    for log_id in (1, 2):
        with pytest.raises(DamagedFile, match="offset 0: the file is entry log 1"):
            await scanned(logs, log_id)
    await logs.close()


async def test_what_a_crash_during_the_creation_of_a_log_leaves_counts_as_empty():
    disk = SimDisk()
    for name, data in ((log_name(1), b""), (log_name(2), bytes(512)), (log_name(3), b"x" * 4096)):
        await disk.make_directory(HOME)
        await disk.replace_file(f"{HOME}/{name}", data)
    logs = await open_logs(disk)
    for log_id in (1, 2, 3):
        assert await scanned(logs, log_id) == []
        assert await logs.ledger_map(log_id) == {}
        assert await logs.complete_map(log_id) == {}
    await logs.close()


async def test_scanning_a_missing_log_is_an_error_and_not_an_empty_log():
    disk = SimDisk()
    logs = await open_logs(disk)
    with pytest.raises(DamagedFile, match=path_of(3)):
        await scanned(logs, 3)
    with pytest.raises(DamagedFile, match=path_of(3)):
        await logs.ledger_map(3)
    await logs.close()


async def test_bytes_of_a_client_that_look_like_a_range_are_not_taken_for_one():
    disk = SimDisk()
    logs, stretches = await some_stretches(disk, 1)
    true_head = disk.peek(path_of(1))[BLOCK_BYTES : 2 * BLOCK_BYTES]
    # A payload that begins 168 bytes into its range, filled so that the copies lie on boundaries.
    payload = bytes(BLOCK_BYTES - 64 - 32 - 64 - 8) + true_head * 8
    evil = encode_batch(9, 0, [payload], lac=-1, ledger_length=len(payload), written_at_us=0)
    (location,) = await logs.append([evil])
    await logs.sync()
    after = [row_of(batch(7, 50), (await logs.append([batch(7, 50)]))[0])]
    assert disk.peek(path_of(1))[location.offset + BLOCK_BYTES - 96 :][:4] == b"TSTR"
    disk.rot.flip_bit(path_of(1), location.offset - 96 + 61)
    found, error = await scanned_with_error(logs, 1)
    assert found == listed([stretches[0], after])
    assert f"offset {location.offset - 96}:" in error.message
    await logs.close()


async def test_the_ledger_map_of_a_finished_log_comes_from_its_footer_and_else_from_its_tables():
    disk = SimDisk()
    logs, stretches = await some_stretches(disk)
    size = stretches[0][0].location.size
    expected = {7: LedgerShare(8 * size, 8), 8: LedgerShare(4 * size, 4)}
    assert await logs.ledger_map(1) == expected
    crashed = await open_logs(disk.image({}))
    assert await crashed.ledger_map(1) == expected
    await logs.close()
    again = await open_logs(disk)
    disk.trace.clear()
    assert await again.ledger_map(1) == expected
    assert sum(each for _, _, each in operations(disk, "read")) < 2 * BLOCK_BYTES
    disk.rot.flip_bit(path_of(1), len(disk.peek(path_of(1))) - 3)
    assert await again.ledger_map(1) == expected
    await crashed.close()
    await again.close()


# -- removing -------------------------------------------------------------------------------


async def test_a_log_that_is_removed_while_it_is_looked_at_is_a_missing_log(monkeypatch):
    disk = SimDisk()
    logs, _ = await written(disk, [batch(7, 0)])
    reader = logs._reader

    async def footer(log_id):
        await disk.unlink(path_of(log_id))
        await reader.forget(log_id)

    monkeypatch.setattr(reader, "footer", footer)
    with pytest.raises(DamagedFile, match="is missing"):
        _ = [found async for found in logs.durable_batches(1)]
    await logs.close()


async def test_a_removed_log_is_gone_durably_and_its_id_is_not_used_again():
    disk = SimDisk()
    logs = await open_logs(disk)
    for number in range(3):
        (location,) = await logs.append([batch(7, 2 * number, 40_000)])
        await logs.read(7, 2 * number, location)
    await logs.sync()
    assert logs.settled_log_ids == []
    logs.rows_are_in()
    assert logs.settled_log_ids == [1, 2]
    await logs.remove(2)
    assert logs.log_ids == [1, 3]
    assert await disk.image({}).list(HOME) == [log_name(1), log_name(3), "lengths"]
    with pytest.raises(EntryUnknown, match=path_of(2)):
        await logs.read(7, 2, location._replace(log_id=2))
    (location,) = await logs.append([batch(7, 6)])
    assert location.log_id == 4
    await logs.close()


async def test_the_log_being_written_cannot_be_removed():
    logs, _ = await written(SimDisk(), [batch(7, 0)])
    with pytest.raises(InvariantViolation):
        await logs.remove(1)
    await logs.close()


async def test_a_map_is_complete_only_where_all_that_was_durable_is_intact():
    disk = SimDisk()
    logs, stretches = await some_stretches(disk)
    expected = await logs.ledger_map(1)
    left = disk.image({})
    crashed = await open_logs(left)
    assert await crashed.complete_map(1) == expected
    last = stretches[-1][0].location.offset // SECTOR_BYTES
    left.rot.zero_sector(path_of(1), last)
    with pytest.raises(DamagedFile, match=path_of(1)):
        await crashed.complete_map(1)
    assert await crashed.ledger_map(1) != expected
    await logs.close()
    finished = await open_logs(disk)
    disk.rot.zero_sector(path_of(1), last)
    assert await finished.complete_map(1) == expected, "the footer tells of what is damaged, too"
    disk.rot.flip_bit(path_of(1), len(disk.peek(path_of(1))) - 3)
    with pytest.raises(DamagedFile, match=path_of(1)):
        await finished.complete_map(1)
    await crashed.close()
    await finished.close()


@pytest.mark.parametrize("cut", [True, False])
async def test_a_log_of_which_it_is_not_known_how_long_it_was_or_that_was_cut_has_no_complete_map(cut: bool):
    disk = SimDisk()
    logs, stretches = await some_stretches(disk)
    left = disk.image({})
    if cut:
        file = await left.open(path_of(1))
        await file.truncate(stretches[-1][0].location.offset // BLOCK_BYTES * BLOCK_BYTES)
        await file.close()
    else:
        await left.unlink(f"{HOME}/lengths")
    crashed = await open_logs(left)
    with pytest.raises(DamagedFile, match=path_of(1)):
        await crashed.complete_map(1)
    await logs.close()
    await crashed.close()
