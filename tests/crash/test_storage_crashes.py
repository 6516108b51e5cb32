"""Entry logs and index, with a power failure at every write: stored entries are found, and no row leads to other bytes.

A ``Store`` does the steps of a checkpoint: append, sync, rows, sync. It promises what a checkpoint would let the
journal forget. ``check`` boots from the crashed disk, compares, rebuilds the rows from the logs alone, and goes on.
"""

import uuid

import pytest

from tallybook.bookie.storage.entry_log.format import log_name
from tallybook.bookie.storage.entry_log.inspect import lost_bytes
from tallybook.bookie.storage.entry_log.logs import EntryLogs
from tallybook.bookie.storage.location import IndexRow
from tallybook.core.batch import encode_batch
from tallybook.core.errors import DiskFull, EntryUnknown
from tallybook.core.ids import MAX_ID
from tallybook.core.limits import KIB
from tallybook.core.settings import StorageSettings
from tallybook.sim.deterministic import CrashOptions, Promises, SimClock, SimDisk
from tallybook.sim.memory_bookie.index import MemoryIndex

ROOT = "/b"
LOGS = f"{ROOT}/ledgers"
INDEX = f"{ROOT}/index"
UUID = str(uuid.UUID(int=9))
SETTINGS = StorageSettings(entry_log_bytes=20 * KIB, give_back_bytes=4 * KIB)
OPTIONS = CrashOptions(subsets=6, singles=6, torn_writes=3, tear_points=5)


def batch(ledger_id: int, number: int) -> bytes:
    """Batch ``number`` of a ledger: two entries, whose bytes depend on their position."""
    payloads = [bytes([ledger_id, number % 256]) * (200 + 97 * (number % 5))] * 2
    return encode_batch(ledger_id, 2 * number, payloads, lac=2 * number - 1, ledger_length=10**6, written_at_us=number)


class Store:
    """Entry logs and index, used in the order of a checkpoint."""

    def __init__(self, disk: SimDisk, promises: Promises, logs: EntryLogs, index: MemoryIndex) -> None:
        self.disk = disk
        self.promises = promises
        self.logs = logs
        self.index = index
        self.next: dict[int, int] = {}

    @staticmethod
    async def open(disk: SimDisk, promises: Promises, *, create: bool) -> "Store":
        await disk.make_directory(LOGS)
        logs = await EntryLogs.open(disk, [LOGS], UUID, SETTINGS, SimClock())
        store = Store(disk, promises, logs, await MemoryIndex.open(disk, INDEX, create=create))
        if create:
            promises.add(("index",))
        for ledger_id in await store.index.ledger_ids(-1, 100):
            store.next[ledger_id] = (await store.index.last_entry(ledger_id) + 1) // 2
        return store

    async def checkpoint(self, *counts: tuple[int, int]) -> None:
        """Store so many more batches of each ledger, and a state that says how many there are."""
        numbers = []
        for ledger_id, count in counts:
            first = self.next.get(ledger_id, 0)
            self.next[ledger_id] = first + count
            numbers += [(ledger_id, number) for number in range(first, first + count)]
        batches = [batch(*each) for each in numbers]
        locations = await self.logs.append(batches)
        await self.logs.sync()
        rows = [IndexRow(ledger_id, 2 * number, at) for (ledger_id, number), at in zip(numbers, locations, strict=True)]
        await self.index.apply(rows, {})
        await self.index.apply([], {ledger_id: b"%d" % self.next[ledger_id] for ledger_id, _ in counts})
        await self.index.sync()
        self.logs.rows_are_in()
        for each in numbers:
            self.promises.add(("stored", *each))

    async def move(self, log_id: int) -> None:
        """Copy what rows point at out of a log, and remove it: a compaction."""
        rows = [row for row in await self.rows() if row.location.log_id == log_id]
        batches = await self.logs.read_many(rows)
        locations = await self.logs.append(batches)
        await self.logs.sync()
        await self.index.apply([row._replace(location=at) for row, at in zip(rows, locations, strict=True)], {})
        await self.index.sync()
        self.logs.rows_are_in()
        await self.logs.remove(log_id)
        self.promises.add(("removed", log_id))
        await self.logs.free_removed()

    async def rows(self) -> list[IndexRow]:
        """Every row of the index."""
        ledger_ids = await self.index.ledger_ids(-1, 100)
        return [row for ledger_id in ledger_ids for row in await self.index.find_range(ledger_id, 0, MAX_ID, 1000)]

    async def close(self) -> None:
        await self.logs.close()
        await self.index.close()


async def check(disk: SimDisk, promises: tuple[object, ...]) -> None:
    """Check the state after a crash, and that the store can be used."""
    store = await Store.open(disk, Promises(lambda: None), create=("index",) not in promises)
    assert not {promise[1] for promise in promises if promise[0] == "removed"}.intersection(store.logs.log_ids)
    await compare(store, promises)
    await store.checkpoint((1, 3), (7, 1))
    await compare(store, (*promises, ("stored", 7, store.next[7] - 1)))
    await store.close()
    again = await Store.open(disk, Promises(lambda: None), create=False)
    await compare(again, promises)
    await again.close()


async def compare(store: Store, promises: tuple[object, ...]) -> None:
    stored = [promise[1:] for promise in promises if promise[0] == "stored" and ("dropped", promise[1]) not in promises]
    for ledger_id, number in stored:
        assert await store.index.find(ledger_id, 2 * number + 1), f"batch {number} of ledger {ledger_id} is gone"
    for row in await store.rows():
        found = await store.logs.read(row.ledger_id, row.first_entry_id, row.location)
        assert found == batch(row.ledger_id, row.first_entry_id // 2), "wrong bytes"
    for ledger_id, number in stored:
        state = await store.index.load_state(ledger_id)
        assert int(state) > number, "the state is older than what was promised after it"
    rebuilt = await rebuild(store.logs)
    for ledger_id, number in stored:
        assert (ledger_id, 2 * number) in rebuilt, "a rebuild from the logs alone would miss a batch"


async def rebuild(logs: EntryLogs) -> set[tuple[int, int]]:
    """The ids in all logs, which must not report damage: a crash leaves none."""
    found = set()
    for log_id in logs.log_ids:
        async for row, _ in logs.scan(log_id):
            found.add((row.ledger_id, row.first_entry_id))
        await logs.ledger_map(log_id)
    return found


# -- workloads ------------------------------------------------------------------------------


async def first_checkpoints(disk: SimDisk, promises: Promises) -> None:
    store = await Store.open(disk, promises, create=True)
    await store.checkpoint((1, 3), (2, 1))
    await store.checkpoint((2, 2))


async def rolling_logs(disk: SimDisk, promises: Promises) -> None:
    store = await Store.open(disk, promises, create=True)
    for _ in range(4):
        await store.checkpoint((1, 5), (2, 2))
    assert len(store.logs.log_ids) >= 2


async def appends_that_are_never_synced(disk: SimDisk, promises: Promises) -> None:
    store = await Store.open(disk, promises, create=True)
    await store.checkpoint((1, 2))
    for number in range(3):
        await store.logs.append([batch(3, number)])
    assert store.logs.log_ids == [1], "they are to lie in one log, each before the sync of the one before"
    await store.checkpoint((1, 1))


async def clean_stops(disk: SimDisk, promises: Promises) -> None:
    for life in range(3):
        store = await Store.open(disk, promises, create=not life)
        await store.checkpoint((1, 2), (2, 1))
        await store.close()


async def full_disk(disk: SimDisk, promises: Promises) -> None:
    store = await Store.open(disk, promises, create=True)
    await store.checkpoint((1, 2))
    disk.fail("write", LOGS, nth=1, error=DiskFull)
    with pytest.raises(DiskFull):
        await store.logs.append([batch(9, i) for i in range(6)])
    await store.checkpoint((1, 4), (2, 2))
    disk.fail("write", INDEX, nth=1, error=DiskFull)
    with pytest.raises(DiskFull):
        await store.index.apply([], {9: b"0"})
    await store.checkpoint((1, 1))


async def compaction(disk: SimDisk, promises: Promises) -> None:
    store = await Store.open(disk, promises, create=True)
    for _ in range(3):
        await store.checkpoint((1, 5), (2, 2))
    for log_id in store.logs.log_ids[:-1]:
        await store.move(log_id)
    assert sum(operation.name == "truncate" and "/entrylog-" in operation.path for operation in disk.trace) >= 4


async def dropped_ledgers(disk: SimDisk, promises: Promises) -> None:
    store = await Store.open(disk, promises, create=True)
    await store.checkpoint((1, 2), (2, 2))
    promises.add(("dropped", 1))
    await store.index.apply([], {1: b"0"}, drop_ledgers=[1])
    await store.index.sync()
    await store.checkpoint((2, 1))


WORKLOADS = [
    first_checkpoints,
    rolling_logs,
    appends_that_are_never_synced,
    clean_stops,
    full_disk,
    compaction,
    dropped_ledgers,
]


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.__name__)
def test_no_power_loss_loses_what_was_stored_or_leads_a_row_astray(workload, crashes):
    report = crashes(workload, check, options=OPTIONS, doubles=40)
    assert report.distinct > 150
    assert report.doubles


async def removal_from_a_full_disk(disk: SimDisk, promises: Promises) -> None:
    """Two logs are removed from a disk without space even for the record of their removal."""
    store = await Store.open(disk, promises, create=True)
    for _ in range(8):
        await store.checkpoint((1, 5))
    await store.index.apply([], {1: b"0"}, drop_ledgers=[1])
    await store.index.sync()
    promises.add(("dropped", 1))
    disk.capacity_bytes = disk.state.used_bytes()
    removed = store.logs.settled_log_ids[:2]
    for log_id in removed:
        disk.fail("write", f"{LOGS}/lengths", error=DiskFull)
        await store.logs.remove(log_id)
        promises.add(("removed", log_id))
    assert len(removed) == 2
    assert disk.free_bytes() > 2 * SETTINGS.entry_log_bytes * 9 // 10


async def misses_no_log(disk: SimDisk, promises: tuple[object, ...]) -> None:
    """Dropped data are gone for good, with their space, and do not count as lost."""
    removed = {promise[1] for promise in promises if promise[0] == "removed"}
    for _ in range(2):
        await disk.make_directory(LOGS)
        logs = await EntryLogs.open(disk, [LOGS], UUID, SETTINGS, SimClock())
        # A torn footer is reported, and does no harm; a missing or truncated log would be wrong.
        assert not any("durable" in damage.message for damage in await logs.damaged())
        assert await lost_bytes(disk, LOGS) == []
        assert logs.strays == []
        assert not removed & set(logs.log_ids)
        await logs.finish_removals()
        kept = {f"{LOGS}/{log_name(log_id)}" for log_id in logs.log_ids}
        for name in disk.state.names(LOGS):
            assert f"{LOGS}/{name}" in kept or len(disk.peek(f"{LOGS}/{name}")) < KIB, name
        disk.capacity_bytes += 64 * KIB  # there is none if it crashed before
        (location,) = await logs.append([batch(9, 0)])
        assert location.log_id not in removed
        await logs.sync()
        await logs.close()


def test_no_power_loss_leaves_a_log_that_went_from_a_full_disk_half_there(crashes):
    report = crashes(removal_from_a_full_disk, misses_no_log, options=OPTIONS, doubles=40)
    assert report.distinct > 150


async def test_the_check_itself_notices_a_lost_batch():
    disk = SimDisk()
    promises = Promises(lambda: None)
    await first_checkpoints(disk, promises)
    await disk.unlink(f"{LOGS}/entrylog-0000000000000001.log")
    with pytest.raises(EntryUnknown, match="is missing"):
        await check(disk, promises.snapshot())
