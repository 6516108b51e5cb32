"""RocksDB as the index: rows dropped, and the database reopened, during lookups."""

import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tallybook.bookie.storage.index import rocksdb_database as rocks_database
from tallybook.bookie.storage.index.port import WriteBatch
from tallybook.bookie.storage.index.rocksdb import RocksIndex
from tallybook.bookie.storage.location import IndexRow, Location
from tallybook.core.errors import DiskFull, EntryUnknown

from .rocks_home import Home, fill, filled, rocks_home, row


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    with rocks_home(tmp_path) as home:
        yield home


def after_the_first_get(index: RocksIndex, change: WriteBatch, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have another thread, as it were, write ``change`` once a search has got its first row."""
    database = index._database
    fetch = database._fetch

    def fetched(*args):
        value = fetch(*args)
        monkeypatch.undo()
        database.write(change)
        return value

    monkeypatch.setattr(database, "_fetch", fetched)


async def test_of_a_ledger_that_is_dropped_meanwhile_nothing_is_found(home, monkeypatch):
    async with home.opened(create=True) as index:
        await index.apply([row(1, 0), row(1, 10)], {})
        after_the_first_get(index, WriteBatch((1,), (), (), [], {}), monkeypatch)
        assert await index.find_range(1, 0, 100, 10) == []


async def test_a_row_that_is_dropped_meanwhile_hides_none_of_those_behind_it(home, monkeypatch):
    async with home.opened(create=True) as index:
        await index.apply([row(1, 0), row(1, 10), row(1, 20)], {})
        after_the_first_get(index, WriteBatch((), (), ((1, 0),), [], {}), monkeypatch)
        assert await index.find_range(1, 0, 100, 10) == [row(1, 10), row(1, 20)]


async def test_a_row_that_is_replaced_meanwhile_by_one_that_begins_before_it_is_found_there(home, monkeypatch):
    async with home.opened(create=True) as index:
        await index.apply([row(1, 10), row(1, 20)], {})
        wider = IndexRow(1, 5, Location(1, 4096, 500, 15))
        after_the_first_get(index, WriteBatch((), (), ((1, 10),), [wider], {}), monkeypatch)
        assert await index.find_range(1, 10, 100, 10) == [wider, row(1, 20)]


async def meets_a_full_disk(index: RocksIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    """So it is opened again before the next change."""

    def full(_database: rocks_database.RocksDatabase) -> None:
        raise DiskFull("IO error: No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(rocks_database.RocksDatabase, "flush_log", full)
        with pytest.raises(DiskFull):
            await index.sync()


@pytest.mark.parametrize("lost_bytes", [0, 10, 1_000])
async def test_an_index_that_is_reopened_returns_nothing_older_meanwhile(home, monkeypatch, lost_bytes):
    """Its log may have kept all, or none of what was not synced."""
    async with home.opened(create=True) as index:
        await fill(index, 0)
        await index.sync()
        synced_bytes = home.file("*.log").stat().st_size
        for number in (1, 2, 3):
            await fill(index, number)
        await meets_a_full_disk(index, monkeypatch)
        left = home.copy()
        log = left.file("*.log")
        os.truncate(log, max(synced_bytes, log.stat().st_size - lost_bytes))
        database = index._database
        opened, begin_batch = database._open, rocks_database.rocksdict.WriteBatch
        told = []

        def open_again(*, create: bool) -> None:
            shutil.rmtree(home.database)
            shutil.copytree(left.database, home.database)
            opened(create=create)

        def looked(*, raw_mode: bool) -> object:
            with suppress(EntryUnknown):
                told.append(database.state(1))
            return begin_batch(raw_mode=raw_mode)

        with monkeypatch.context() as patched:
            patched.setattr(database, "_open", open_again)
            patched.setattr(rocks_database.rocksdict, "WriteBatch", looked)
            await index.sync()
        assert set(told) <= {b"4"}
        assert await filled(index) == 4
        crashed = home.copy()
    async with crashed.opened() as again:
        assert await filled(again) == 4


async def test_an_index_that_is_in_use_for_long_is_opened_again_later(home, monkeypatch):
    monkeypatch.setattr(rocks_database, "_REOPEN_SECONDS", 0.01)
    async with home.opened(create=True) as index:
        await fill(index, 0)
        await meets_a_full_disk(index, monkeypatch)
        with index._database._using("compacted"):
            for _ in range(2):
                with pytest.raises(DiskFull, match="in use"):
                    await index.sync()
                assert await filled(index) == 1
        await index.sync()
        await fill(index, 1)
        assert await filled(index) == 2
