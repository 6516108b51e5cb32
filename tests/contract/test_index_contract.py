"""Contract of ``Index``: in memory on a simulated disk, and RocksDB on a real one."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tallybook.bookie.storage.index.port import MAX_FIND_ROWS, WRITE_BATCH_ROWS, Index
from tallybook.bookie.storage.index.rocksdb import RocksIndex
from tallybook.bookie.storage.location import IndexRow, Location
from tallybook.core.errors import DamagedFile, DiskFailed, EntryUnknown
from tallybook.core.ids import MAX_ID, NO_ENTRY
from tallybook.core.limits import MAX_BATCH_BYTES, MAX_BATCH_ENTRIES
from tallybook.core.settings import StorageSettings
from tallybook.runtime.disk.os_disk import RealDisk
from tallybook.runtime.tasks import ThreadWorkers, Workers
from tallybook.sim.deterministic import SimDisk
from tallybook.sim.memory_bookie.index import MemoryIndex

NAME = "index"
COPY_ATTEMPTS = 20
SETTINGS = StorageSettings(index_cache_bytes=1 << 20)


@dataclass
class MemoryHome:
    """A directory on a simulated disk."""

    disk: SimDisk = field(default_factory=SimDisk)

    async def open(self, *, create: bool = False) -> Index:
        return await MemoryIndex.open(self.disk, f"/{NAME}", create=create)

    def survivor(self) -> "MemoryHome":
        """The disk after a power failure, if nothing unsynced survives."""
        return MemoryHome(self.disk.image({}))

    def lose(self) -> None:
        self.disk = SimDisk()


@dataclass
class RocksHome:
    """A directory on a real disk."""

    root: Path
    disk: RealDisk
    workers: Workers
    copies: int = 0

    async def open(self, *, create: bool = False) -> Index:
        return await RocksIndex.open(self.disk, str(self.root / NAME), self.workers, SETTINGS, create=create)

    def survivor(self) -> "RocksHome":
        """The disk after a kill: the files as they are."""
        self.copies += 1
        copy = self.root / f"copy-{self.copies}"
        for attempt in range(COPY_ATTEMPTS):
            try:
                shutil.copytree(self.root / NAME, copy / NAME)
            except shutil.Error:
                # The database removed a file between the listing and the copy: a moment that no kill leaves behind.
                shutil.rmtree(copy)
                if attempt == COPY_ATTEMPTS - 1:
                    raise
            else:
                break
        return RocksHome(copy, self.disk, self.workers)

    def lose(self) -> None:
        shutil.rmtree(self.root / NAME)


Home = MemoryHome | RocksHome


@pytest.fixture(params=["memory", "rocks"])
def home(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Home]:
    if request.param == "memory":
        yield MemoryHome()
        return
    disk, workers = RealDisk(), ThreadWorkers(2, "index")
    yield RocksHome(tmp_path, disk, workers)
    asyncio.run(workers.close())
    asyncio.run(disk.close())


@asynccontextmanager
async def opened(home: Home, *, create: bool = True) -> AsyncIterator[Index]:
    index = await home.open(create=create)
    try:
        yield index
    finally:
        await index.close()


def row(ledger_id: int, first: int, count: int = 10, log_id: int = 1, offset: int = 4096) -> IndexRow:
    return IndexRow(ledger_id, first, Location(log_id, offset, 500, count))


# -- finding --------------------------------------------------------------------------------


async def test_an_empty_index_knows_nothing(home):
    async with opened(home) as index:
        assert await index.find(7, 0) is None
        assert await index.find_range(0, 0, MAX_ID, 100) == []
        assert await index.last_entry(7) == NO_ENTRY
        assert await index.load_state(7) is None
        assert await index.ledger_ids(-1, 100) == []


async def test_every_entry_of_a_batch_leads_to_its_row_and_its_neighbours_do_not(home):
    async with opened(home) as index:
        await index.apply([row(7, 10, 5)], {})
        assert [await index.find(7, each) for each in range(9, 16)] == [None, *[row(7, 10, 5)] * 5, None]


async def test_the_row_found_is_that_of_the_right_batch_among_many(home):
    rows = [row(7, 10 * i, offset=4096 + i) for i in range(300)]
    async with opened(home) as index:
        await index.apply(rows, {})
        for entry_id in (0, 9, 10, 1234, 2990, 2999):
            assert await index.find(7, entry_id) == rows[entry_id // 10]
        assert await index.find(7, 3000) is None


async def test_a_gap_between_batches_is_a_gap(home):
    async with opened(home) as index:
        await index.apply([row(7, 0), row(7, 1024)], {})
        assert await index.find(7, 10) is None
        assert await index.find(7, 1023) is None
        assert await index.find_range(7, 10, 1023, 10) == []


async def test_ledgers_do_not_mix(home):
    async with opened(home) as index:
        await index.apply([row(6, 0, 100), row(8, 50, 100)], {})
        for entry_id in (0, 50, 99, MAX_ID):
            assert await index.find(7, entry_id) is None
        assert await index.find_range(7, 0, MAX_ID, 10) == []
        assert await index.last_entry(7) == NO_ENTRY
        assert await index.find(8, 10) is None
        assert await index.find(6, 100) is None


async def test_of_many_rows_those_are_known_that_it_has_exactly_so(home):
    async with opened(home) as index:
        await index.apply([row(6, 0), row(7, 0), row(7, 10), row(8, 0)], {8: b"s"})
        await index.apply([IndexRow(7, 10, Location(2, 4096, 500, 10))], {}, drop_ledgers=[6])
        others = [row(6, 0), row(7, 10), row(7, 5), row(7, 0, 9), row(9, 0)]
        known = [row(8, 0), IndexRow(7, 10, Location(2, 4096, 500, 10)), row(7, 0)]
        assert await index.known_among([*others, *known, *others]) == known
        assert await index.known_among([]) == []
        many = [row(5, 10 * i) for i in range(WRITE_BATCH_ROWS)]
        await index.apply(many[::2], {})
        assert await index.known_among(many) == many[::2]


@pytest.mark.parametrize("ledger_id", [0, 1, 255, 256, 2**32, MAX_ID])
async def test_ids_at_every_border_sort_as_numbers(home, ledger_id):
    rows = [row(ledger_id, first, 1) for first in (0, 1, 127, 128, 255, 256, 65535, 65536, 2**32, 2**62, MAX_ID)]
    async with opened(home) as index:
        await index.apply(list(reversed(rows)), {ledger_id: b"s"})
        assert await index.find_range(ledger_id, 0, MAX_ID, 100) == rows
        for each in rows:
            assert await index.find(ledger_id, each.first_entry_id) == each
        assert await index.last_entry(ledger_id) == MAX_ID
        assert await index.ledger_ids(-1, 10) == [ledger_id]


async def test_every_field_of_a_location_comes_back(home):
    location = Location(MAX_ID, MAX_ID - MAX_BATCH_BYTES, MAX_BATCH_BYTES, MAX_BATCH_ENTRIES)
    async with opened(home) as index:
        await index.apply([IndexRow(7, 0, location)], {})
        assert (await index.find(7, 5)).location == location


@pytest.mark.parametrize(
    ("first", "last", "expected"),
    [
        (0, MAX_ID, [0, 10, 30]),
        (0, 0, [0]),
        (9, 10, [0, 10]),
        (15, 15, [10]),
        (19, 30, [10, 30]),
        (20, 29, []),
        (20, 30, [30]),
        (39, 39, [30]),
        (40, 100, []),
    ],
)
async def test_a_range_gives_the_batches_that_overlap_it_in_order(home, first, last, expected):
    async with opened(home) as index:
        await index.apply([row(7, 30), row(7, 0), row(7, 10), row(6, 0), row(8, 0)], {})
        assert [each.first_entry_id for each in await index.find_range(7, first, last, 10)] == expected


async def test_a_range_is_limited_from_its_beginning(home):
    async with opened(home) as index:
        await index.apply([row(7, 10 * i) for i in range(20)], {})
        assert [each.first_entry_id for each in await index.find_range(7, 55, MAX_ID, 3)] == [50, 60, 70]
        assert await index.find_range(7, 55, MAX_ID, 0) == []


async def test_no_range_gives_more_rows_than_the_limit_of_all_limits(home):
    async with opened(home) as index:
        await index.apply([row(7, 10 * i) for i in range(MAX_FIND_ROWS + 5)], {})
        assert len(await index.find_range(7, 0, MAX_ID, 10**9)) == MAX_FIND_ROWS


async def test_the_last_entry_is_that_of_the_batch_with_the_highest_ids(home):
    async with opened(home) as index:
        await index.apply([row(7, 100, 7), row(7, 0), row(8, 10**6)], {})
        assert await index.last_entry(7) == 106


async def test_rows_of_all_ledgers_are_listed_in_order_each_once_page_by_page(home):
    rows = [row(ledger_id, first) for ledger_id in (0, 1, 7, MAX_ID) for first in (0, 10, MAX_ID - 9)]
    rows += [row(5, MAX_ID, 1)]
    async with opened(home) as index:
        await index.apply(rows[::-1], {9: b"a state is no row"})
        for limit in (1, 2, 100):
            seen: list[object] = []
            after = (-1, -1)
            while page := await index.rows_after(*after, limit):
                assert len(page) <= limit
                seen += page
                after = (page[-1].ledger_id, page[-1].first_entry_id)
            assert seen == sorted(rows)


# -- changing -------------------------------------------------------------------------------


async def test_a_row_replaces_the_one_under_the_same_ids(home):
    async with opened(home) as index:
        await index.apply([row(7, 0, log_id=1)], {})
        await index.apply([row(7, 0, log_id=2)], {})
        assert await index.find_range(7, 0, MAX_ID, 10) == [row(7, 0, log_id=2)]


async def test_within_one_apply_the_later_row_wins(home):
    async with opened(home) as index:
        await index.apply([row(7, 0, log_id=1), row(7, 0, log_id=2)], {})
        assert (await index.find(7, 0)).location.log_id == 2


@pytest.mark.parametrize("state", [b"", b"\0", b"fenced", bytes(100_000)])
async def test_a_state_is_kept_as_it_is_and_replaced_as_a_whole(home, state):
    async with opened(home) as index:
        await index.apply([], {7: b"before"})
        await index.apply([], {7: state})
        assert await index.load_state(7) == state
        assert await index.load_state(8) is None


async def test_dropping_a_ledger_forgets_its_rows_and_its_state_and_nothing_else(home):
    async with opened(home) as index:
        rows = [row(each, first, 1) for each in (6, 7, 8) for first in (0, 5, MAX_ID)]
        await index.apply(rows, {6: b"6", 7: b"7", 8: b"8"})
        await index.apply([], {}, drop_ledgers=[7])
        assert await index.find_range(7, 0, MAX_ID, 10) == []
        assert await index.find(7, MAX_ID) is None
        assert await index.load_state(7) is None
        assert await index.ledger_ids(-1, 10) == [6, 8]
        assert len(await index.find_range(6, 0, MAX_ID, 10)) == len(await index.find_range(8, 0, MAX_ID, 10)) == 3


async def test_dropping_rows_forgets_no_state_and_no_other_rows(home):
    async with opened(home) as index:
        rows = [row(each, first, 1) for each in (6, 7, 8) for first in (0, 5, MAX_ID)]
        await index.apply(rows, {6: b"6", 7: b"7"})
        await index.apply([], {}, drop_rows=[7, 8, 9])
        assert await index.find_range(7, 0, MAX_ID, 10) == []
        assert await index.find(7, MAX_ID) is None
        assert await index.last_entry(7) == NO_ENTRY
        assert await index.load_state(7) == b"7"
        assert await index.ledgers_with_rows(-1, 10) == [6]
        assert await index.ledger_ids(-1, 10) == [6, 7]
        assert len(await index.find_range(6, 0, MAX_ID, 10)) == 3
        await index.sync()
    async with opened(home, create=False) as again:
        assert await again.ledgers_with_rows(-1, 10) == [6]
        assert await again.load_state(7) == b"7"


async def test_rows_that_are_put_with_a_drop_of_rows_stay(home):
    async with opened(home) as index:
        await index.apply([row(7, 0), row(7, 10)], {7: b"fenced"})
        await index.apply([row(7, 20)], {}, drop_rows=[7])
        assert await index.find_range(7, 0, MAX_ID, 10) == [row(7, 20)]


async def test_a_drop_of_the_rows_of_many_ledgers_arrives_whole(home):
    count = WRITE_BATCH_ROWS + 7
    async with opened(home) as index:
        await index.apply([row(each, 0) for each in range(count)], {})
        await index.apply([], {1: b"x"}, drop_rows=list(range(count)))
        assert await index.ledger_ids(-1, 10) == [1]


async def test_a_drop_comes_before_what_is_put_with_it(home):
    # A tombstone: the rows go, and the new state stays.
    async with opened(home) as index:
        await index.apply([row(7, 0), row(7, 10)], {7: b"open"})
        await index.apply([row(7, 20)], {7: b"deleted"}, drop_ledgers=[7])
        assert await index.load_state(7) == b"deleted"
        assert await index.find_range(7, 0, MAX_ID, 10) == [row(7, 20)]


async def test_dropping_what_is_not_there_is_no_error(home):
    async with opened(home) as index:
        await index.apply([], {}, drop_ledgers=[7, 7, MAX_ID])
        assert await index.ledger_ids(-1, 10) == []


async def test_an_apply_of_more_than_one_write_batch_arrives_whole(home):
    count = 2 * WRITE_BATCH_ROWS + 7
    async with opened(home) as index:
        await index.apply([row(1, 10 * i) for i in range(count)], dict.fromkeys(range(count), b"x"))
        assert await index.last_entry(1) == 10 * count - 1
        assert await index.ledger_ids(count - 3, 10) == [count - 2, count - 1]
        await index.apply([row(1, 0)], {}, drop_ledgers=list(range(count)))
        assert await index.ledger_ids(-1, 10) == [1]


async def test_an_empty_apply_is_no_error(home):
    async with opened(home) as index:
        await index.apply([], {})
        await index.sync()


async def test_applies_at_the_same_time_all_arrive(home):
    async with opened(home) as index:
        await asyncio.gather(*(index.apply([row(each, 0)], {each: b"%d" % each}) for each in range(20)))
        assert await index.ledger_ids(-1, 100) == list(range(20))
        assert await index.load_state(13) == b"13"
        await index.sync()
        async with opened(home.survivor(), create=False) as survivor:
            assert await survivor.ledger_ids(-1, 100) == list(range(20))


# -- listing --------------------------------------------------------------------------------


async def test_ledgers_are_listed_once_whether_they_have_rows_a_state_or_both(home):
    async with opened(home) as index:
        await index.apply([row(3, 0), row(3, 10), row(5, 7), row(MAX_ID, 0)], {0: b"", 3: b"s", 4: b"t"})
        assert await index.ledger_ids(-1, 100) == [0, 3, 4, 5, MAX_ID]


async def test_a_listing_goes_on_after_the_last_id_it_gave(home):
    async with opened(home) as index:
        await index.apply([row(2 * i, 0) for i in range(50)], {2 * i + 1: b"" for i in range(50)})
        found, after = [], -1
        while page := await index.ledger_ids(after, 7):
            found += page
            after = page[-1]
        assert found == list(range(100))
        assert await index.ledger_ids(MAX_ID, 10) == []
        assert await index.ledger_ids(-1, 0) == []


async def test_only_ledgers_with_rows_are_listed_where_those_are_asked_for(home):
    async with opened(home) as index:
        await index.apply([row(3, 0), row(3, 10), row(5, 7), row(MAX_ID, 0)], {0: b"", 3: b"s", 4: b"t"})
        assert await index.ledgers_with_rows(-1, 100) == [3, 5, MAX_ID]
        assert await index.ledgers_with_rows(3, 1) == [5]
        assert await index.ledgers_with_rows(MAX_ID, 10) == []
        await index.apply([], {3: b"deleted"}, drop_ledgers=[3, 5])
        assert await index.ledgers_with_rows(-1, 100) == [MAX_ID]
        assert await index.ledger_ids(-1, 100) == [0, 3, 4, MAX_ID]
        assert await index.ledgers_with_rows(-1, 0) == []


# -- durability -----------------------------------------------------------------------------


async def test_what_was_synced_is_there_after_a_crash(home):
    async with opened(home) as index:
        await index.apply([row(7, 0), row(7, 10)], {7: b"fenced"})
        await index.apply([], {9: b"x"}, drop_ledgers=[])
        await index.sync()
        async with opened(home.survivor(), create=False) as survivor:
            assert await survivor.find_range(7, 0, MAX_ID, 10) == [row(7, 0), row(7, 10)]
            assert await survivor.load_state(7) == b"fenced"
            assert await survivor.load_state(9) == b"x"


async def test_a_drop_that_was_synced_stays_a_drop_after_a_crash(home):
    async with opened(home) as index:
        await index.apply([row(7, 0)], {7: b"open"})
        await index.sync()
        await index.apply([], {7: b"deleted"}, drop_ledgers=[7])
        await index.sync()
        async with opened(home.survivor(), create=False) as survivor:
            assert await survivor.find(7, 0) is None
            assert await survivor.load_state(7) == b"deleted"


async def test_an_index_is_the_same_after_it_was_closed_and_opened(home):
    async with opened(home) as index:
        await index.apply([row(7, 10 * i) for i in range(1_500)], {7: b"s"})
        await index.sync()
    for _ in range(3):
        async with opened(home, create=False) as again:
            assert await again.last_entry(7) == 14_999
            assert await again.load_state(7) == b"s"
            await again.apply([row(8, 0)], {})
            await again.sync()


async def test_changes_after_a_crash_build_on_what_survived(home):
    async with opened(home) as index:
        await index.apply([row(7, 0)], {})
        await index.sync()
        await index.apply([row(7, 10)], {})
        second = home.survivor()
    async with opened(second, create=False) as index:
        await index.apply([row(7, 20)], {})
        await index.sync()
        third = second.survivor()
    async with opened(third, create=False) as index:
        assert await index.find(7, 0) == row(7, 0)
        assert await index.find(7, 20) == row(7, 20)


async def test_syncing_again_with_nothing_new_is_no_error(home):
    async with opened(home) as index:
        await index.apply([row(7, 0)], {})
        await index.sync()
        await index.sync()


# -- compacting -----------------------------------------------------------------------------

MANY = 6_000
KEPT_ONE_IN = 50


def tables_bytes(home: Home) -> int:
    """Bytes of the sorted tables of RocksDB; the index in memory has none."""
    if isinstance(home, MemoryHome):
        return 0
    return sum(path.stat().st_size for path in (home.root / NAME / "rocksdb").glob("*.sst"))


async def mostly_dropped(index: Index) -> None:
    """Ledgers with ten rows and a state each, moved to where they stay; then most of them are dropped."""
    rows = [row(each, 10 * n) for each in range(MANY) for n in range(10)]
    await index.apply(rows, {each: b"state of %d" % each for each in range(MANY)})
    await index.compact(0, MANY)
    gone = [each for each in range(MANY) if each % KEPT_ONE_IN]
    await index.apply((), dict.fromkeys(gone, b"gone"), drop_ledgers=gone)
    await index.sync()


async def check_mostly_dropped(index: Index) -> None:
    assert await index.ledgers_with_rows(-1, MANY) == list(range(0, MANY, KEPT_ONE_IN))
    for each in (0, 3 * KEPT_ONE_IN, MANY - KEPT_ONE_IN):
        assert await index.find_range(each, 0, MAX_ID, 100) == [row(each, 10 * n) for n in range(10)]
        assert await index.load_state(each) == b"state of %d" % each
    for each in (1, MANY - 1):
        assert (await index.last_entry(each), await index.load_state(each)) == (NO_ENTRY, b"gone")


async def test_compacting_frees_the_space_of_what_was_dropped_and_changes_no_answer(home):
    async with opened(home) as index:
        await index.compact(0, MAX_ID)
        await mostly_dropped(index)
        before = tables_bytes(home)
        await index.compact(0, MANY)
        assert tables_bytes(home) <= before / 4
        await check_mostly_dropped(index)
        killed = home.survivor()
    async with opened(killed, create=False) as index:
        await check_mostly_dropped(index)


async def test_changes_and_answers_go_on_while_it_is_compacted(home):
    async with opened(home) as index:
        await mostly_dropped(index)
        compacting = asyncio.ensure_future(index.compact(0, MANY))
        while not compacting.done():
            await index.apply([row(MANY + 1, 0)], {}, drop_ledgers=[MANY + 1])
            assert await index.find(KEPT_ONE_IN, 5) == row(KEPT_ONE_IN, 0)
        await compacting


async def test_an_index_that_is_closed_while_it_is_compacted_has_all_that_was_synced(home):
    async with opened(home) as index:
        await mostly_dropped(index)
        compacting = asyncio.ensure_future(index.compact(0, MANY))
        await asyncio.sleep(0)
    outcome = (await asyncio.gather(compacting, return_exceptions=True))[0]
    assert outcome is None or isinstance(outcome, DiskFailed | EntryUnknown)
    async with opened(home, create=False) as index:
        await check_mostly_dropped(index)


# -- opening and closing --------------------------------------------------------------------


async def test_an_index_that_is_not_there_is_an_error_unless_it_may_be_made(home):
    with pytest.raises(DamagedFile, match=NAME):
        await home.open(create=False)
    async with opened(home, create=True):
        pass
    async with opened(home, create=False):
        pass


async def test_j19_a_lost_index_is_not_replaced_by_an_empty_one(home):
    async with opened(home) as index:
        await index.apply([row(7, 0)], {})
        await index.sync()
    home.lose()
    with pytest.raises(DamagedFile, match=NAME):
        await home.open(create=False)


async def test_permission_to_make_an_index_does_not_empty_the_one_that_is_there(home):
    async with opened(home) as index:
        await index.apply([row(7, 0)], {7: b"s"})
        await index.sync()
    async with opened(home, create=True) as index:
        assert await index.find(7, 0) == row(7, 0)


async def test_a_closed_index_takes_no_changes_and_cannot_be_closed_wrongly(home):
    index = await home.open(create=True)
    await index.close()
    await index.close()
    for change in (lambda: index.apply([row(7, 0)], {}), index.sync, lambda: index.compact(0, 9)):
        with pytest.raises(DiskFailed, match=NAME):
            await change()


async def test_a_closed_index_does_not_answer_that_an_entry_is_absent(home):
    index = await home.open(create=True)
    await index.apply([row(7, 0)], {7: b"s"})
    await index.close()
    reads: list[Callable] = [
        lambda: index.find(7, 100),
        lambda: index.find_range(7, 100, 200, 10),
        lambda: index.last_entry(8),
        lambda: index.load_state(8),
        lambda: index.ledger_ids(100, 10),
        lambda: index.ledgers_with_rows(100, 10),
    ]
    for read in reads:
        with pytest.raises(EntryUnknown):
            await read()
