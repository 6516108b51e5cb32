"""RocksDB as the index: what is dropped while somebody looks for it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tallybook.bookie.storage.index import WriteBatch
from tallybook.bookie.storage.index_rocks import RocksIndex
from tallybook.bookie.storage.location import IndexRow, Location

from .rocks_home import Home, rocks_home, row


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
