"""Every ``Index`` against a model, over histories of rows, states and drops: in memory, and RocksDB."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from hypothesis import given, settings
from hypothesis import strategies as st

from tallybook.bookie.storage.index.port import Index
from tallybook.bookie.storage.index.rocksdb import RocksIndex
from tallybook.bookie.storage.location import IndexRow, Location
from tallybook.core.ids import MAX_ID, NO_ENTRY
from tallybook.core.settings import StorageSettings
from tallybook.runtime.disk.os_disk import RealDisk
from tallybook.runtime.tasks import ThreadWorkers
from tallybook.sim.deterministic import SimDisk
from tallybook.sim.memory_bookie.index import MemoryIndex

SETTINGS = StorageSettings(index_cache_bytes=1 << 20)


@asynccontextmanager
async def closing_index(index: Index) -> AsyncIterator[Index]:
    try:
        yield index
    finally:
        await index.close()


def row(ledger_id: int, first: int, count: int) -> IndexRow:
    return IndexRow(ledger_id, first, Location(1, 4096, 500, count))


@st.composite
def histories(draw):
    """Steps over three ledgers: rows of ten entries each, states, drops, syncs."""
    ledger = st.integers(0, 2)
    rows = st.builds(
        lambda each, slot, count: row(each, 10 * slot, count), ledger, st.integers(0, 8), st.integers(1, 10)
    )
    apply = st.tuples(
        st.lists(rows, max_size=4),
        st.dictionaries(ledger, st.binary(max_size=3), max_size=2),
        st.lists(ledger, max_size=1),
        st.lists(ledger, max_size=1),
    )
    return draw(st.lists(apply, max_size=12))


class Model:
    """The expected answers of an index."""

    def __init__(self) -> None:
        self.rows: dict[tuple[int, int], IndexRow] = {}
        self.states: dict[int, bytes] = {}

    def apply(self, rows, states, drops, rows_of) -> None:
        self.rows = {key: each for key, each in self.rows.items() if key[0] not in (*drops, *rows_of)}
        self.states = {key: each for key, each in self.states.items() if key not in drops}
        self.rows |= {(each.ledger_id, each.first_entry_id): each for each in rows}
        self.states |= states

    def overlapping(self, ledger_id, first, last):
        rows = [each for _, each in sorted(self.rows.items()) if each.ledger_id == ledger_id]
        return [each for each in rows if each.first_entry_id <= last and each.last_entry_id >= first]


async def compare(index: Index, model: Model) -> None:
    for ledger_id in range(4):
        for entry_id in range(0, 95, 7):
            expected = model.overlapping(ledger_id, entry_id, entry_id)
            assert await index.find(ledger_id, entry_id) == (expected[0] if expected else None)
        assert await index.find_range(ledger_id, 15, 61, 100) == model.overlapping(ledger_id, 15, 61)
        whole = model.overlapping(ledger_id, 0, MAX_ID)
        assert await index.last_entry(ledger_id) == (whole[-1].last_entry_id if whole else NO_ENTRY)
        assert await index.load_state(ledger_id) == model.states.get(ledger_id)
    with_rows = {key[0] for key in model.rows}
    assert await index.ledger_ids(-1, 10) == sorted(with_rows.union(model.states))
    assert await index.ledgers_with_rows(-1, 10) == sorted(with_rows)


@given(histories())
def test_the_index_in_memory_agrees_with_a_model_before_and_after_a_crash(run, history):
    async def check() -> None:
        disk, model = SimDisk(), Model()
        async with closing_index(await MemoryIndex.open(disk, "/index", create=True)) as index:
            for rows, states, drops, rows_of in history:
                await index.apply(rows, states, drop_ledgers=drops, drop_rows=rows_of)
                model.apply(rows, states, drops, rows_of)
            await compare(index, model)
            await index.sync()
        async with closing_index(await MemoryIndex.open(disk.image({}), "/index", create=False)) as survivor:
            await compare(survivor, model)

    run(check())


@settings(max_examples=15)
@given(histories())
def test_rocksdb_agrees_with_a_model_before_and_after_it_was_reopened(run, tmp_path_factory, history):
    async def check() -> None:
        disk, workers, model = RealDisk(), ThreadWorkers(2, "index"), Model()
        directory = str(tmp_path_factory.mktemp("rocks") / "index")
        async with closing_index(await RocksIndex.open(disk, directory, workers, SETTINGS, create=True)) as index:
            for rows, states, drops, rows_of in history:
                await index.apply(rows, states, drop_ledgers=drops, drop_rows=rows_of)
                model.apply(rows, states, drops, rows_of)
            await compare(index, model)
            await index.sync()
        async with closing_index(await RocksIndex.open(disk, directory, workers, SETTINGS, create=False)) as again:
            await compare(again, model)
        await workers.close()
        await disk.close()

    run(check())
