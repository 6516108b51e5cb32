"""Entry logs in several directories: placement of new ones, discovery, and a disk that fills up."""

import asyncio

import pytest

from tallybook.bookie.directories.disk_monitor import POLL_SECONDS
from tallybook.bookie.journal.format import JournalMark
from tallybook.bookie.journal.superblock_file import read_superblock
from tallybook.bookie.ledgers.disposition import LedgerDisposition
from tallybook.bookie.storage.entry_log.format import log_name
from tallybook.bookie.storage.entry_log.lengths import read_lengths
from tallybook.bookie.storage.entry_log.logs import EntryLogs
from tallybook.bookie.storage.location import IndexRow
from tallybook.core.errors import BookieReadOnly, DamagedFile, DiskFull
from tallybook.core.limits import KIB, MIB
from tallybook.core.settings import StorageSettings
from tallybook.runtime.clock import RealClock
from tallybook.runtime.disk.port import Space
from tallybook.sim.deterministic import SimDisk, World
from tallybook.sim.stage.disk_bookie import ROOT, DiskBookie, KnownMetadata, batch_of, tiny_settings

from ..simulated import simulated

ONE = "/disk1/logs"
TWO = "/disk2/logs"
UUID = "00112233-4455-6677-8899-aabbccddeeff"
OWN = f"{ROOT}/ledgers"
TOTAL = 1000


class Disks(SimDisk):
    """Several disks with separate space: as many MiB free as ``free`` says, out of 1000."""

    def __init__(self, **disk: object) -> None:
        super().__init__(**disk)  # type: ignore[arg-type]
        self.free: dict[str, int] = {}

    async def space(self, path: str) -> Space:
        await super().space(path)
        return Space(self.free.get(path, TOTAL) * MIB, TOTAL * MIB)


async def open_logs(disk: SimDisk, *directories: str, entry_log_bytes: int = 16 * KIB) -> EntryLogs:
    for directory in directories:
        await disk.make_directory(directory)
    return await EntryLogs.open(disk, directories, UUID, StorageSettings(entry_log_bytes=entry_log_bytes), RealClock())


async def fill(logs: EntryLogs, count: int, first: int = 0) -> list[IndexRow]:
    """Write ``count`` logs with one batch each."""
    rows = []
    for entry_id in range(first, first + count):
        (location,) = await logs.append([batch_of(entry_id, payload=bytes(20 * KIB))])
        await logs.sync()
        rows.append(IndexRow(1, entry_id, location))
    return rows


def homes(disk: SimDisk, *directories: str) -> list[list[str]]:
    return [[name for name in disk.state.names(path) if name.endswith(".log")] for path in directories]


async def trim_mark(disk: SimDisk, journal: str) -> JournalMark:
    read = await read_superblock(disk, journal)
    assert read is not None
    return read.facts.trim


async def one_log_in_each(disk: Disks) -> tuple[EntryLogs, list[IndexRow]]:
    """New logs are made where there is most space."""
    disk.free = {ONE: 500, TWO: 400}
    logs = await open_logs(disk, ONE, TWO)
    rows = await fill(logs, 1)
    disk.free[ONE] = 300
    return logs, rows + await fill(logs, 1, first=1)


async def noted(disk: SimDisk) -> list[list[int]]:
    """The logs of which each directory notes the length."""
    uuid = bytes.fromhex(UUID.replace("-", ""))
    return [list(await read_lengths(disk, path, uuid)) for path in (ONE, TWO)]


async def test_new_logs_go_where_there_is_most_space_and_all_are_found_in_the_next_life_too() -> None:
    disk = Disks()
    logs, rows = await one_log_in_each(disk)
    assert homes(disk, ONE, TWO) == [[log_name(1)], [log_name(2)]]
    for again in (False, True):
        for row in rows:
            batch = batch_of(row.first_entry_id, payload=bytes(20 * KIB))
            assert await logs.read(1, row.first_entry_id, row.location) == batch
            assert [found async for _, found in logs.scan(row.location.log_id)] == [row.location]
        assert await logs.damaged() == []
        await logs.close()
        if not again:
            logs = await open_logs(disk, TWO, ONE)
            assert logs.log_ids == [1, 2]
    await fill(logs := await open_logs(disk, ONE, TWO), 1, first=2)
    assert logs.log_ids == [1, 2, 3], "of one counter"
    await logs.close()


async def test_each_directory_notes_the_lengths_of_its_own_logs_and_misses_them() -> None:
    disk = Disks()
    logs, _ = await one_log_in_each(disk)
    await logs.close()
    assert await noted(disk) == [[1], [2]]
    await disk.unlink(f"{TWO}/{log_name(2)}")
    logs = await open_logs(disk, ONE, TWO)
    (missing,) = await logs.damaged()
    assert f"{TWO}/{log_name(2)} is missing" in missing.message
    await fill(logs, 1, first=2)
    assert logs.log_ids == [1, 3], "an id that rows may still name was used again"
    await logs.close()


async def test_a_log_is_removed_from_its_directory_and_from_its_note() -> None:
    disk = Disks()
    logs, _ = await one_log_in_each(disk)
    await fill(logs, 1, first=2)
    logs.rows_are_in()
    await logs.remove(1)
    await logs.remove(2)
    assert homes(disk, ONE, TWO) == [[], [log_name(3)]]
    await logs.close()
    assert await noted(disk) == [[], [3]]


async def test_one_log_in_two_directories_is_refused_as_ambiguous() -> None:
    disk = Disks()
    logs = await open_logs(disk, ONE, TWO)
    await fill(logs, 1)
    await logs.close()
    await disk.replace_file(f"{TWO}/{log_name(1)}", disk.peek(f"{ONE}/{log_name(1)}"))
    with pytest.raises(DamagedFile, match=f"{ONE} and {TWO} both hold {log_name(1)}"):
        await open_logs(disk, ONE, TWO)


async def test_a_log_on_a_disk_that_got_short_of_space_is_finished_and_the_next_one_is_elsewhere() -> None:
    disk = Disks()
    disk.free = {ONE: 500, TWO: 400}
    logs = await open_logs(disk, ONE, TWO, entry_log_bytes=1024 * KIB)
    await fill(logs, 1)
    logs.avoid(frozenset({ONE}))
    await fill(logs, 2, first=1)
    assert homes(disk, ONE, TWO) == [[log_name(1)], [log_name(2)]]
    assert await logs.is_finished(1)
    logs.avoid(frozenset({ONE, TWO}))
    await fill(logs, 1, first=3)
    assert homes(disk, ONE, TWO) == [[log_name(1)], [log_name(2)]], "there is nothing better than the log it has"
    await logs.close()


@pytest.mark.parametrize("there", [0, 1])
async def test_an_append_that_finds_its_disk_full_succeeds_elsewhere_when_it_is_tried_again(there: int) -> None:
    """There is no space for its batch in the log that is there, nor for a footer; or none for a first log."""
    disk = Disks()
    disk.free = {ONE: 500, TWO: 400}
    logs = await open_logs(disk, ONE, TWO, entry_log_bytes=1024 * KIB)
    rows = await fill(logs, there)
    disk.fail("write", ONE, times=100, error=DiskFull)
    with pytest.raises(DiskFull):
        await fill(logs, 1, first=1)
    rows += await fill(logs, 1, first=1)
    assert homes(disk, ONE, TWO) == [[log_name(1)][:there], [log_name(2)]]
    disk.faults.clear()
    await logs.close()
    logs = await open_logs(disk, ONE, TWO)
    assert await logs.damaged() == []
    for row in rows:
        assert [found async for _, found in logs.durable_batches(row.location.log_id)] == [row.location]
    await logs.close()


@simulated
async def test_j01_while_one_of_two_directories_is_slow_no_mark_moves(world: World) -> None:
    settings = tiny_settings(
        ledger_directories=[ONE, TWO],
        journal_directories=["/disk1/journal", "/disk2/journal"],
        entry_log_bytes=4096,
    )
    node = DiskBookie(SimDisk(world.rng), world.clock, KnownMetadata(), settings)
    await node.boot()
    for turn in range(3):
        for ledger_id in (1, 2):
            assert (await node.add(batch_of(turn, ledger_id=ledger_id))).code == 0
        if turn < 2:
            await node.bookie.flush()
    assert homes(node.disk, ONE, TWO) == [[log_name(1)], [log_name(2)]]
    # The next checkpoint finishes the log in the second directory and goes on in the first one.
    slow = node.disk.fail("sync", TWO, error=None, delay_seconds=60)
    asyncio.ensure_future(node.bookie.flush()).add_done_callback(lambda done: done.cancelled() or done.exception())
    before = [await trim_mark(node.disk, path) for path in settings.journal_directories]
    await world.clock.sleep(30)
    assert slow.seen
    assert [await trim_mark(node.disk, path) for path in settings.journal_directories] == before
    await node.lose_power()
    await node.boot()
    for turn in range(3):
        for ledger_id in (1, 2):
            answer = await node.bookie.read_batches(ledger_id, turn, turn, 1)
            assert answer.batches == (batch_of(turn, ledger_id=ledger_id),)
    await node.stop()


@simulated
async def test_a_bookie_with_one_disk_short_of_space_takes_adds_and_with_all_of_them_short_it_does_not(
    world: World,
) -> None:
    settings = tiny_settings(ledger_directories=[OWN, TWO])
    disk = Disks(rng=world.rng)
    node = DiskBookie(disk, world.clock, KnownMetadata(), settings)
    await node.boot()
    for entry_id, (own, two, code) in enumerate(
        [
            (900, 800, 0),
            (40, 800, 0),
            (40, 30, BookieReadOnly.wire_code),
            (40, 70, BookieReadOnly.wire_code),
            (40, 90, 0),
            (900, 20, 0),
        ]
    ):
        disk.free = {OWN: own, TWO: two}
        await world.clock.sleep(2 * POLL_SECONDS)
        assert (await node.add(batch_of(entry_id))).code == code, (own, two)
        assert node.bookie.read_only is bool(code)
        await node.bookie.flush()
    assert homes(disk, OWN, TWO) == [[log_name(1), log_name(3)], [log_name(2)]]
    await node.stop()
    assert node.failures == []


@simulated
async def test_a_bookie_whose_index_has_no_space_takes_no_adds_however_much_there_is_for_entry_logs(
    world: World,
) -> None:
    disk = Disks(rng=world.rng)
    node = DiskBookie(disk, world.clock, KnownMetadata(), tiny_settings(ledger_directories=[TWO]))
    disk.free = {f"{ROOT}/index": 10}
    await node.boot()
    assert (await node.add(batch_of(0))).code == BookieReadOnly.wire_code
    await node.stop()


@simulated
async def test_a_bookie_drops_compacts_and_scrubs_logs_wherever_they_are(world: World) -> None:
    settings = tiny_settings(
        ledger_directories=[ONE, TWO], entry_log_bytes=16 * KIB, compact_below_percent=60, scrub_period_s=60
    )
    disk, metadata = Disks(rng=world.rng), KnownMetadata()
    node = DiskBookie(disk, world.clock, metadata, settings)
    await node.boot()
    for turn in range(6):
        disk.free = {ONE: 900 - turn % 2, TWO: 900 - (turn + 1) % 2}
        for ledger_id in (1, 2):
            batch = batch_of(turn, ledger_id=ledger_id, payload=bytes(5000 * ledger_id))
            assert (await node.add(batch)).code == 0
        await node.bookie.flush()
        await world.clock.sleep(1.0)  # for the journal's next segment
    assert all(len(names) >= 2 for names in homes(disk, ONE, TWO))
    metadata.dispositions[2] = LedgerDisposition.RELEASED
    await node.bookie.collect()
    await node.bookie.collect()
    left = [name for names in homes(disk, ONE, TWO) for name in names]
    assert node.bookie.stats()["entry_logs_removed_total"] >= 4
    assert len(left) < 6
    for turn in range(6):
        answer = await node.bookie.read_batches(1, turn, turn, 1 << 20)
        assert answer.batches == (batch_of(turn, payload=bytes(5000)),)
    await node.stop()
    await node.boot()
    disk.free[ONE] = 950
    assert (await node.add(batch_of(6))).code == 0
    await node.bookie.flush()
    answer = await node.bookie.read_batches(1, 0, 5, 1 << 20)
    assert len(answer.batches) == 6
    # All that is left lies in both directories, and one round goes through it.
    assert all(homes(disk, ONE, TWO))
    await world.clock.sleep(150.0)
    assert node.bookie.stats()["scrubbed_bytes_total"] >= 6 * 5000
    await node.stop()
    assert node.failures == []
