"""Surveys of a damaged index: every good row, and the ranges that may be missing. The same for both drivers."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tallybook.bookie.storage.index.format import encode_row, row_key
from tallybook.bookie.storage.index.port import Index
from tallybook.bookie.storage.index.rocksdb import RocksIndex
from tallybook.bookie.storage.index.survey import END, RangeSurvey, RowKey, UnreadableRange
from tallybook.bookie.storage.location import IndexRow, Location
from tallybook.core.answers import EntryRange
from tallybook.core.errors import EntryUnknown
from tallybook.core.ids import MAX_ID
from tallybook.core.settings import StorageSettings
from tallybook.runtime.disk.os_disk import RealDisk
from tallybook.runtime.tasks import ThreadWorkers
from tallybook.sim.deterministic import SimDisk
from tallybook.sim.memory_bookie.index import MemoryIndex

from ..support.rocks import rows_of

SETTINGS = StorageSettings(index_cache_bytes=1 << 20)
LEDGERS, ROWS = 20, 100


def row(ledger_id: int, first: int) -> IndexRow:
    return IndexRow(ledger_id, first, Location(1, 4096 + first, 500, 10))


ALL = [row(ledger_id, 10 * number) for ledger_id in range(1, LEDGERS + 1) for number in range(ROWS)]


@dataclass
class Rig:
    """An index, and how to damage it."""

    index: Index
    damage: Callable[[int, int], None]
    rot: Callable[[], Awaitable[None]]
    """Make a part in the middle unreadable, of more than one ledger."""


def put_changed_value(index: RocksIndex, ledger_id: int, first: int) -> None:
    value = bytearray(encode_row(row(ledger_id, first))[1])
    value[9] ^= 4
    rows_of(index).put(row_key(ledger_id, first), bytes(value))


def spoil_the_middle(path: Path) -> None:
    """Change a byte in each of some blocks in a row, of the one table that has the rows."""
    (table,) = [file for file in path.rglob("*.sst") if file.stat().st_size > 10_000]
    data = bytearray(table.read_bytes())
    for at in range(len(data) // 2 - 5_000, len(data) // 2 + 5_000, 1_000):
        data[at] ^= 0x10
    table.write_bytes(data)


@asynccontextmanager
async def memory_rig() -> AsyncIterator[Rig]:
    index = await MemoryIndex.open(SimDisk(), "/index", create=True)
    await index.apply(ALL, {})

    async def rot() -> None:
        index.unreadable = UnreadableRange(RowKey(9, 500), RowKey(11, 300), is_row=False)

    yield Rig(index, lambda *key: index.damaged.add(RowKey(*key)), rot)
    await index.close()


@asynccontextmanager
async def rocks_rig(path: Path, disk: RealDisk, workers: ThreadWorkers) -> AsyncIterator[Rig]:
    async def opened(*, create: bool = False) -> RocksIndex:
        return await RocksIndex.open(
            disk, str(path), workers, StorageSettings(index_cache_bytes=1 << 20), create=create
        )

    index = await opened(create=True)
    await index.apply(ALL, {})
    await index.sync()

    async def rot() -> None:
        database = rows_of(rig.index)
        database.flush()
        database.compact_range(None, None)
        await rig.index.close()
        await asyncio.to_thread(spoil_the_middle, path)
        rig.index = await opened()

    rig = Rig(index, lambda *key: put_changed_value(rig.index, *key), rot)
    yield rig
    await rig.index.close()


@pytest.fixture(params=["memory", "rocks"])
def with_rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., None]]:
    """Runs a scenario with a rig."""
    disk, workers = RealDisk(), ThreadWorkers(2, "index")

    async def run(scenario: Callable[[Rig], Awaitable[None]]) -> None:
        made = memory_rig() if request.param == "memory" else rocks_rig(tmp_path / "index", disk, workers)
        async with made as rig:
            await scenario(rig)

    yield lambda scenario: asyncio.run(run(scenario))
    asyncio.run(workers.close())
    asyncio.run(disk.close())


async def pages(rig: Rig, limit: int) -> RangeSurvey:
    """The whole survey, in pages."""
    rows, unreadable = list[IndexRow](), list[UnreadableRange]()
    at: RowKey | None = RowKey(0, 0)
    while at is not None:
        page = await rig.index.survey_from(at, limit)
        assert len(page.rows) + len(page.unreadable) <= limit
        rows, unreadable, at = rows + page.rows, unreadable + page.unreadable, page.behind
    return RangeSurvey(rows, unreadable, None)


def test_a_survey_of_an_intact_index_lists_all_rows(with_rig):
    async def scenario(rig: Rig) -> None:
        index = rig.index
        assert await index.survey(3, 15, 39, 100) == RangeSurvey([row(3, 10), row(3, 20), row(3, 30)], [], None)
        assert await index.survey(3, 15, 39, 2) == RangeSurvey([row(3, 10), row(3, 20)], [], RowKey(3, 30))
        assert await index.survey(3, 15, 29, 2) == RangeSurvey([row(3, 10), row(3, 20)], [], None)
        assert await index.survey(LEDGERS + 1, 0, MAX_ID, 100) == RangeSurvey([], [], None)
        assert await pages(rig, 333) == RangeSurvey(ALL, [], None)
        found = await index.survey_ledgers(4, 3)
        assert found == ([5, 6, 7], [], 7)
        assert (await index.survey_ledgers(LEDGERS - 1, 3)) == ([LEDGERS], [], None)

    with_rig(scenario)


def test_a_damaged_row_is_passed_over_and_reported_with_all_that_its_batch_may_have_had(with_rig):
    async def scenario(rig: Rig) -> None:
        index = rig.index
        for key in ((3, 20), (3, 990), (LEDGERS, 990)):
            rig.damage(*key)
        inner = UnreadableRange(RowKey(3, 20), RowKey(3, 30), is_row=True)
        for first, last in ((0, 45), (20, 30), (25, 35), (29, 30)):
            found = await index.survey(3, first, last, 100)
            assert [each.entries(3) for each in found.unreadable] == [EntryRange(20, 29)]
            assert [each.is_row for each in found.unreadable] == [True]
            assert found.rows == [each for each in ALL if each in found.rows and each.ledger_id == 3]
            assert row(3, 20) not in found.rows
        assert (await index.survey(3, 0, 45, 100)).rows == [row(3, 0), row(3, 10), row(3, 30), row(3, 40)]
        assert (await index.survey(3, 0, 45, 3)) == RangeSurvey([row(3, 0), row(3, 10)], [inner], RowKey(3, 30))
        assert (await index.survey(3, 10, 19, 3)) == RangeSurvey([row(3, 10)], [], None)
        (last_row,) = (await index.survey(3, 990, MAX_ID, 10)).unreadable
        assert last_row.entries(3) == EntryRange(990, MAX_ID)
        assert last_row.entries(4) is None
        whole = await pages(rig, 7)
        assert whole.rows == [each for each in ALL if each[:2] not in {(3, 20), (3, 990), (LEDGERS, 990)}]
        assert whole.unreadable == [
            inner,
            UnreadableRange(RowKey(3, 990), RowKey(4, 0), is_row=True),
            UnreadableRange(RowKey(LEDGERS, 990), END, is_row=True),
        ]
        assert (await index.survey_ledgers(-1, 100)) == (list(range(1, LEDGERS + 1)), [], None)

    with_rig(scenario)


def test_a_row_that_is_put_over_a_damaged_one_takes_its_place_and_one_that_is_dropped_is_gone(with_rig):
    async def scenario(rig: Rig) -> None:
        index = rig.index
        rig.damage(3, 20)
        rig.damage(3, 40)
        with pytest.raises(EntryUnknown):
            await index.find(3, 25)
        await index.apply([row(3, 20)], {}, drop_keys=[RowKey(3, 40)])
        assert await index.find(3, 25) == row(3, 20)
        assert await index.find(3, 45) is None
        found = await index.survey(3, 0, 55, 10)
        assert found == RangeSurvey([row(3, first) for first in (0, 10, 20, 30, 50)], [], None)

    with_rig(scenario)


def test_a_part_that_cannot_be_read_is_passed_over_and_nothing_beside_it_is_lost(with_rig):
    async def scenario(rig: Rig) -> None:
        await rig.rot()
        index = rig.index
        with pytest.raises(EntryUnknown):
            await index.rows_after(-1, -1, len(ALL))
        whole = await pages(rig, 150)
        (lost,) = whole.unreadable
        assert not lost.is_row
        assert whole.rows == [each for each in ALL if not lost.begin <= RowKey(*each[:2]) < lost.end]
        assert 0 < len(ALL) - len(whole.rows) < len(ALL) / 2
        assert lost.begin.ledger_id < lost.end.ledger_id
        for ledger_id in range(1, LEDGERS + 1):
            found = await index.survey(ledger_id, 0, MAX_ID, 1000)
            assert found.rows == [each for each in whole.rows if each.ledger_id == ledger_id]
            assert bool(found.unreadable) == (lost.entries(ledger_id) is not None)
        ledgers = await index.survey_ledgers(-1, 100)
        touched = range(lost.ledgers().first, lost.ledgers().last + 1)
        assert {*ledgers.ledger_ids, *touched} == set(range(1, LEDGERS + 1))
        told_of = {each for span in ledgers.unreadable for each in range(span.first, span.last + 1)}
        assert set(range(1, LEDGERS + 1)) - set(ledgers.ledger_ids) <= told_of <= set(touched)

    with_rig(scenario)


def test_entries_just_after_an_unreadable_range_are_reported_too_if_its_last_batch_may_have_had_them(with_rig):
    async def scenario(rig: Rig) -> None:
        await rig.rot()
        (lost,) = (await pages(rig, 150)).unreadable
        ledger_id, behind = lost.end
        for entry_id in range(max(0, behind - 9), behind):
            found = await rig.index.survey(ledger_id, entry_id, entry_id, 10)
            assert found.rows == []
            assert any(each.entries(ledger_id) for each in found.unreadable)
        for entry_id in (behind, behind + 10, behind + 15):
            found = await rig.index.survey(ledger_id, entry_id, entry_id, 10)
            assert found == RangeSurvey([row(ledger_id, entry_id // 10 * 10)], [], None)

    with_rig(scenario)
