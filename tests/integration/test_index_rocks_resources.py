"""RocksDB as the index: its memory, its stalls, and its metrics."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tallybook.bookie.storage.index.rocksdb_stats import TableFigures, figures_of
from tallybook.core.ids import NO_ENTRY
from tallybook.core.settings import StorageSettings

from ..support.rocks import rows_of
from .rocks_home import Home, fill, rocks_home, row, to_tables


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    with rocks_home(tmp_path) as home:
        yield home


# -- memory ---------------------------------------------------------------------------------


async def test_what_is_known_by_its_key_is_not_searched_for_among_rows_that_were_dropped(home, monkeypatch):
    """A search walks over every one of them."""
    async with home.opened(create=True) as index:
        await index.apply([row(1, 10 * number) for number in range(500)], {})
        await index.apply([row(2, 0), row(2, 10)], {}, drop_ledgers=[1])

        def searched(database: object, key: bytes) -> None:
            pytest.fail(f"{key.hex()} is searched for")

        monkeypatch.setattr("tallybook.bookie.storage.index.rocksdb_database.RocksDatabase._seek_for_prev", searched)
        assert await index.find(2, 0) == row(2, 0)
        assert await index.find_range(2, 0, 20, 10) == [row(2, 0), row(2, 10)]
        assert await index.known_among([row(1, 0), row(2, 10)]) == [row(2, 10)]
        assert await index.last_entry(3) == NO_ENTRY
        with pytest.raises(pytest.fail.Exception, match="is searched for"):
            await index.find(2, 5)


async def test_what_is_cached_is_answered_without_a_thread_and_what_is_not_is_fetched_first(home, monkeypatch):
    async with home.opened(create=True) as index:
        for number in range(50):
            await fill(index, number)
        await to_tables(index)
        await index.sync()
    async with home.opened() as index:
        threads = []
        run = home.workers.run

        async def counted(function, *args, **kwargs):
            threads.append(function.__name__)
            return await run(function, *args, **kwargs)

        monkeypatch.setattr(home.workers, "run", counted)
        assert await index.find(1, 2345) == row(1, 2340)
        assert threads == ["rows"], "the first search needs the disk"
        for entry_id in (2345, 2340, 2349, 2346):
            assert await index.find(1, entry_id) == row(1, 2340)
        assert threads == ["rows"], "the following ones do not"


async def test_what_is_not_in_tables_yet_stays_within_buffers_of_a_small_index(home):
    async with home.opened(create=True, settings=StorageSettings(index_cache_bytes=1 << 20)) as index:
        most = 0
        for number in range(100):
            await index.apply([row(number, 10 * i) for i in range(2000)], {})
            most = max(most, rows_of(index).property_int_value("rocksdb.cur-size-all-mem-tables"))
        assert 1 << 20 < most < 4 << 20


async def test_blocks_of_all_kinds_stay_within_the_cache(home):
    async with home.opened(create=True) as index:
        for number in range(100):
            await index.apply([row(number, 10 * i) for i in range(1000)], {})
        await to_tables(index)
    small = StorageSettings(index_cache_bytes=128 << 10)
    async with home.opened(settings=small) as index:
        for number in range(100):
            assert await index.find(number, 5000)
        usage = rows_of(index).property_int_value("rocksdb.block-cache-usage")
        assert usage <= 1.25 * small.index_cache_bytes
        tables = len(rows_of(index).live_files())
        outside = rows_of(index).property_int_value("rocksdb.estimate-table-readers-mem")
        assert outside < tables * (3 << 10), "of each table, its name, its bounds and its properties"


# -- metrics --------------------------------------------------------------------------------


async def test_table_statistics_are_those_of_the_last_sync(home):
    async with home.opened(create=True) as index:
        empty = index.figures
        assert (empty.table_bytes, empty.writes_stopped, empty.background_errors) == (0, 0, 0)
        assert empty.write_buffer_bytes > 0
        await fill(index, 0)
        await to_tables(index)
        assert index.figures == empty
        await index.sync()
        written = index.figures.table_bytes
        assert written > 0
    async with home.opened() as index:
        assert index.figures.table_bytes >= written


async def test_rocksdb_knows_every_figure_by_the_name_that_it_is_asked_for(home):
    async with home.opened(create=True) as index:
        asked: list[str] = []

        def ask(name: str) -> int:
            asked.append(name)
            found = rows_of(index).property_int_value(name)
            assert found is not None, name
            return found

        figures_of([ask])
        assert len(asked) == len(TableFigures._fields)


class Stopped:
    """RocksDB while it takes no writes: one begins, and comes back when that is over."""

    def __init__(self, rows, index) -> None:
        self._rows = rows
        self._index = index
        self.told: list[TableFigures] = []

    def __getattr__(self, name: str):
        return getattr(self._rows, name)

    def property_int_value(self, name: str) -> int:
        answers = {"rocksdb.is-write-stopped": 1, "rocksdb.actual-delayed-write-rate": 512}
        return self._rows.property_int_value(name) if self.told else answers.get(name, 0)

    def write(self, changes) -> None:
        self.told.append(self._index.figures)
        self._rows.write(changes)


async def test_that_writes_are_stopped_is_reported_while_they_are(home):
    async with home.opened(create=True) as index:
        rows = rows_of(index)
        index._database._rows = stopped = Stopped(rows, index)
        await fill(index, 0)
        await index.sync()
        index._database._rows = rows
        assert (stopped.told[0].writes_stopped, stopped.told[0].write_rate_limit) == (1, 512)
        assert (index.figures.writes_stopped, index.figures.write_rate_limit) == (0, 0)
