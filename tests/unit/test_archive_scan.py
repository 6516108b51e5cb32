"""Scans of archive objects: the rows as written, few requests, little memory, and no damaged row."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tallybook.archive import scan as scan_module
from tallybook.archive.encoder import EncoderOptions
from tallybook.archive.format.schema import SCHEMA
from tallybook.archive.scan import ID_COLUMNS, ObjectScan
from tallybook.core.errors import ArchiveUnavailable, ObjectDamaged, ObjectMissing
from tallybook.core.ranges import LedgerEntryRange
from tallybook.metadata.ledger.archived import Receipt
from tallybook.runtime.tasks import InlineWorkers, ThreadWorkers

from .archive_parts import KEY, WRITTEN_AT_US, CountingStore, batches, new_tasks, put_object

Row = tuple[int, int, int, bytes]
"""Ledger, entry, microseconds, payload."""


class Written:
    """An object, its receipts, and the rows that went into it."""

    def __init__(self) -> None:
        self.store = CountingStore()
        self.receipts: dict[int, Receipt] = {}
        self.rows: list[Row] = []

    async def put(
        self, ledgers: dict[int, Sequence[Sequence[bytes]]], options: EncoderOptions | None = None, name: str = "x"
    ) -> "Written":
        """Put ledgers, given as batches of payloads, into one object."""
        self.receipts = await put_object(self.store, ledgers, options, name)
        for ledger_id, of_ledger in ledgers.items():
            first = 0
            for payloads in of_ledger:
                at_us = WRITTEN_AT_US + first
                self.rows += [(ledger_id, first + at, at_us, each) for at, each in enumerate(payloads)]
                first += len(payloads)
        return self

    @property
    def receipt(self) -> Receipt:
        return next(iter(self.receipts.values()))

    def expected(self, *wanted: LedgerEntryRange) -> list[Row]:
        return [row for row in self.rows if any(row[0] == w[0] and w[1] <= row[1] <= w[2] for w in wanted)]

    async def scan(self, *wanted: LedgerEntryRange, receipt: Receipt | None = None) -> list[Row]:
        tasks = new_tasks()
        found: list[Row] = []
        try:
            async for table in ObjectScan(self.store, InlineWorkers(), tasks, receipt or self.receipt).rows(wanted):
                found += rows_of(table)
        finally:
            await tasks.close()
        return found


def rows_of(table: pa.Table) -> list[Row]:
    """The rows of one table, which are neighbours in one ledger."""
    assert table.schema == SCHEMA
    found = list(
        zip(
            table["ledger_id"].to_pylist(),
            table["entry_id"].to_pylist(),
            table["written_at"].cast(pa.int64()).to_pylist(),
            table["payload"].to_pylist(),
            strict=True,
        )
    )
    assert {row[0] for row in found} == {found[0][0]}
    assert [row[1] for row in found] == list(range(found[0][1], found[0][1] + len(found)))
    return found


SMALL_GROUPS = EncoderOptions(row_group_bytes=1_000, page_bytes=300)


# --- what comes back --------------------------------------------------------------------------------------------------


@given(st.data())
@settings(max_examples=25)
def test_any_ledgers_and_any_ranges_come_back_exactly(run, data: st.DataObject) -> None:  # type: ignore[no-untyped-def]
    sizes = st.sampled_from([0, 0, 1, 30, 400])
    ledger = st.lists(st.lists(sizes.map(bytes), min_size=1, max_size=8), max_size=8)
    ledgers = data.draw(st.dictionaries(st.integers(0, 2**63 - 1), ledger, min_size=1, max_size=5), label="ledgers")
    counts = {ledger_id: sum(map(len, found)) for ledger_id, found in ledgers.items()}
    wanted = []
    for ledger_id, count in counts.items():
        cuts = sorted(data.draw(st.lists(st.integers(0, count - 1), max_size=4, unique=True)) if count else [])
        wanted += [LedgerEntryRange(ledger_id, first, last) for first, last in zip(cuts[::2], cuts[1::2], strict=False)]

    async def play() -> None:
        options = EncoderOptions(row_group_bytes=data.draw(st.sampled_from([1, 300, 10_000])), page_bytes=200)
        written = await Written().put(dict(sorted(ledgers.items())), options)
        found = await written.scan(*data.draw(st.permutations(wanted)))
        assert found == written.expected(*wanted)

    run(play())


async def test_stretches_of_one_ledger_come_apart_although_they_touch() -> None:
    """The caller distinguishes them by their start."""
    written = await Written().put({7: batches(20, 10, 20)})
    tasks = new_tasks()
    wanted = [LedgerEntryRange(7, 10, 19), LedgerEntryRange(7, 0, 4), LedgerEntryRange(7, 5, 9)]
    tables = ObjectScan(written.store, InlineWorkers(), tasks, written.receipt).rows(wanted)
    found = [(table["entry_id"][0].as_py(), table.num_rows) async for table in tables]
    assert found == [(0, 5), (5, 5), (10, 10)]
    await tasks.close()


@pytest.mark.parametrize(
    "wanted",
    [LedgerEntryRange(7, 0, 20), LedgerEntryRange(7, 20, 20), LedgerEntryRange(7, -1, 3), LedgerEntryRange(7, 5, 4),
     LedgerEntryRange(8, 0, 0), LedgerEntryRange(9, 0, 0)],
)  # fmt: skip
async def test_entries_that_the_object_does_not_hold_are_not_made_up(wanted: LedgerEntryRange) -> None:
    written = await Written().put({7: batches(20, 10, 20), 9: []})
    with pytest.raises(ObjectDamaged, match=f"{KEY}.*ledger {wanted.ledger_id}"):
        await written.scan(LedgerEntryRange(7, 0, 3), wanted)


# --- requests and memory ----------------------------------------------------------------------------------------------


async def test_a_scan_costs_one_request_for_the_index_and_one_for_each_row_group() -> None:
    written = await Written().put({7: batches(1_000, 100, 10), 8: batches(10, 100, 10)}, EncoderOptions(20_000))
    await written.scan(LedgerEntryRange(7, 0, 999))
    whole = len(written.store.reads)
    assert 5 <= whole <= 8
    assert sum(size for _, size in written.store.reads) < 1.1 * written.receipt.object_bytes
    written.store.reads.clear()
    await written.scan(LedgerEntryRange(7, 500, 501))
    assert len(written.store.reads) == 2
    assert written.store.reads[0][0] == written.receipt.index.offset


async def test_only_the_bytes_of_the_columns_asked_for_are_read() -> None:
    written = await Written().put({7: batches(1_000, 100, 10)}, EncoderOptions(20_000))
    footer = pq.read_metadata(pa.BufferReader(await written.store.read(KEY, 0, written.receipt.object_bytes)))
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    for columns in ([], ["crc32c"], ["written_at"], ["payload"], ["written_at", "payload"], SCHEMA.names):
        written.store.reads.clear()
        tasks = new_tasks()
        scan = ObjectScan(written.store, InlineWorkers(), tasks, written.receipt)
        tables = [table async for table in scan.rows([LedgerEntryRange(7, 0, 999)], columns)]
        await tasks.close()
        wanted = [name for name in SCHEMA.names if name in ID_COLUMNS or name in columns]
        assert [table.column_names for table in tables] == [wanted] * len(groups)
        fetched = {byte for at, size in written.store.reads[1:] for byte in range(at, at + size)}
        assert fetched == {byte for group in groups for name in wanted for byte in bytes_of(group, name)}
        rows = pa.concat_tables(tables)
        assert rows["entry_id"].to_pylist() == list(range(1_000))
        if "payload" in columns:
            assert rows["payload"].to_pylist() == [row[3] for row in written.rows]


def bytes_of(group: pq.RowGroupMetaData, name: str) -> range:
    """The positions of a column in the object."""
    column = group.column(SCHEMA.get_field_index(name))
    begin = min(column.data_page_offset, column.dictionary_page_offset or column.data_page_offset)
    return range(begin, begin + column.total_compressed_size)


async def test_large_row_groups_are_read_in_bounded_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan_module, "READ_BYTES", 1_000)
    written = await Written().put({7: batches(50, 100, 10)})
    assert await written.scan(LedgerEntryRange(7, 0, 49)) == written.rows
    assert max(size for _, size in written.store.reads[1:]) == 1_000
    assert len(written.store.reads) > 5


async def test_one_row_group_is_read_ahead_of_the_consumer_and_no_more() -> None:
    written = await Written().put({7: batches(500, 20, 50)}, SMALL_GROUPS)
    tasks = new_tasks()
    tables = ObjectScan(written.store, InlineWorkers(), tasks, written.receipt).rows([LedgerEntryRange(7, 0, 499)])
    for taken in range(1, 8):
        await anext(tables)
        for _ in range(50):
            await asyncio.sleep(0)
        assert len(written.store.reads) == 1 + taken + 1, "the index, what was taken, and the next one"
    await tables.aclose()
    await tasks.close()


async def test_a_consumer_that_stops_takes_the_read_that_is_in_flight_with_it() -> None:
    written = await Written().put({7: batches(500, 20, 50)}, SMALL_GROUPS)
    tasks, workers = new_tasks(), ThreadWorkers(1, "scan")
    tables = ObjectScan(written.store, workers, tasks, written.receipt).rows([LedgerEntryRange(7, 0, 499)])
    assert rows_of(await anext(tables)) == written.rows[:50]
    await tables.aclose()
    for _ in range(10):
        await asyncio.sleep(0)
    assert not tasks._running
    await tasks.close()
    await workers.close()


# --- damage -----------------------------------------------------------------------------------------------------------


async def harmless_or_told(written: Written, wanted: LedgerEntryRange) -> bool:
    """Whether damage is reported; if not, the scan returned the rows that were written."""
    try:
        found = await written.scan(wanted)
    except ObjectDamaged:
        return True
    assert found == written.expected(wanted)
    return False


async def test_no_flipped_bit_of_any_byte_that_is_read_gives_another_row() -> None:
    """Pages have checksums, and the index; the headers of pages and the footer have none."""
    written = await Written().put(
        {7: batches(30, 20, 7), 9: [[b"a"], [b"", b"bc"]]}, EncoderOptions(400, page_bytes=200)
    )
    good = await written.store.read(KEY, 0, written.receipt.object_bytes)
    told = 0
    index = written.receipt.index.offset
    # For the pages themselves, which Parquet checksums, a sample of bytes is enough.
    for at in (*range(0, index, 7), *range(index, len(good), 3)):
        await written.store.put(KEY, good[:at] + bytes([good[at] ^ 1 << at % 8]) + good[at + 1 :])
        told += await harmless_or_told(written, LedgerEntryRange(7, 0, 29))
    assert told > len(good) / 10


async def test_an_object_that_ends_early_or_was_replaced_is_reported() -> None:
    written = await Written().put({7: batches(200, 20, 7)}, SMALL_GROUPS)
    good = await written.store.read(KEY, 0, written.receipt.object_bytes)
    other = await Written().put({7: batches(200, 20, 7, seed=2)}, SMALL_GROUPS, name="y")
    same_size = (await other.store.read(KEY, 0, other.receipt.object_bytes))[: len(good)].ljust(len(good), b"\0")
    shifted = b"\0" + good[:-1]
    for bad in (good[:-1], good[:100], b"", same_size, shifted, bytes(len(good)), good[::-1], good + b"more"):
        await written.store.put(KEY, bad)
        if bad.startswith(good):
            assert await written.scan(LedgerEntryRange(7, 0, 199)) == written.rows
        else:
            with pytest.raises(ObjectDamaged, match=KEY):
                await written.scan(LedgerEntryRange(7, 0, 199))


async def test_another_object_of_the_same_size_with_the_same_ledger_is_reported() -> None:
    written = await Written().put({7: batches(200, 20, 7)}, SMALL_GROUPS)
    other = await Written().put({7: batches(200, 20, 7)}, SMALL_GROUPS, name="y")
    data = await other.store.read(KEY, 0, other.receipt.object_bytes)
    await written.store.put(KEY, data)
    receipt = replace(other.receipt, object_id="x")
    with pytest.raises(ObjectDamaged, match="contains object y, not x"):
        await written.scan(LedgerEntryRange(7, 0, 199), receipt=receipt)


@pytest.mark.parametrize("error", [ObjectMissing("gone"), ArchiveUnavailable("away"), ObjectDamaged("short")])
async def test_what_fails_in_the_middle_is_raised_there_behind_the_rows_before_it(error: Exception) -> None:
    written = await Written().put({7: batches(500, 20, 50)}, SMALL_GROUPS)
    written.store.fails = {4: error}
    tasks, found = new_tasks(), []
    tables = ObjectScan(written.store, InlineWorkers(), tasks, written.receipt).rows([LedgerEntryRange(7, 0, 499)])

    async def drain() -> None:
        async for table in tables:
            found.extend(rows_of(table))

    with pytest.raises(type(error), match=str(error)):
        await drain()
    assert found == written.rows[:150]
    await tasks.close()


async def test_a_failure_that_was_read_ahead_and_is_not_wanted_any_more_is_nobodys() -> None:
    written = await Written().put({7: batches(500, 20, 50)}, SMALL_GROUPS)
    written.store.fails = {2: ObjectMissing("gone")}
    tasks = new_tasks()
    tables = ObjectScan(written.store, InlineWorkers(), tasks, written.receipt).rows([LedgerEntryRange(7, 0, 499)])
    await anext(tables)
    for _ in range(20):
        await asyncio.sleep(0)
    await tables.aclose()
    await tasks.close()
