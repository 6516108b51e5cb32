"""Scans of archive objects: the rows that were written, few requests, little memory, and no damaged row gets out."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tallybook.archive import scan as scan_module
from tallybook.archive.entry_range import EntryRange
from tallybook.archive.object_check import Found
from tallybook.archive.object_encoder import EncoderOptions, ObjectEncoder
from tallybook.archive.objects.memory import MemoryStore
from tallybook.archive.packing import receipts
from tallybook.archive.scan import ObjectScan
from tallybook.archive.schema import SCHEMA
from tallybook.core.batch import decode_header, encode_batch, verify_batch
from tallybook.core.errors import ArchiveUnavailable, ObjectDamaged, ObjectMissing
from tallybook.metadata.archived import Receipt
from tallybook.runtime.clock import RealClock
from tallybook.runtime.rng import SeededRng
from tallybook.runtime.tasks import InlineWorkers, Tasks, ThreadWorkers

KEY = "ledgers/x.parquet"
Row = tuple[int, int, int, bytes]
"""Ledger, entry, microseconds, payload."""


class Counting(MemoryStore):
    """Remembers every ranged read, and may fail one."""

    def __init__(self) -> None:
        super().__init__(RealClock())
        self.reads: list[tuple[int, int]] = []
        self.fails: dict[int, Exception] = {}

    async def read(self, key: str, offset: int, size: int) -> bytes:
        self.reads.append((offset, size))
        await asyncio.sleep(0)
        if (error := self.fails.get(len(self.reads) - 1)) is not None:
            raise error
        return await super().read(key, offset, size)


def new_tasks() -> Tasks:
    def died(name: str, error: BaseException) -> None:
        raise AssertionError(name) from error

    return Tasks("scan", died)


class Written:
    """An object, its receipts, and the rows that went into it."""

    def __init__(self) -> None:
        self.store = Counting()
        self.receipts: dict[int, Receipt] = {}
        self.rows: list[Row] = []
        self.checksums: dict[tuple[int, int], int] = {}

    async def put(
        self, ledgers: dict[int, Sequence[Sequence[bytes]]], options: EncoderOptions | None = None, name: str = "x"
    ) -> "Written":
        """Put ledgers, given as batches of payloads, into one object."""
        encoder, found = ObjectEncoder(name, 17, options), {}
        for ledger_id, batches in ledgers.items():
            encoder.begin(ledger_id, b"")
            first = length = 0
            for payloads in batches:
                length += sum(map(len, payloads))
                batch = encode_batch(
                    ledger_id, first, payloads, lac=-1, ledger_length=length, written_at_us=1_000 + first
                )
                header = verify_batch(batch)
                assert header == decode_header(batch)
                encoder.add(batch, header)
                self.rows += [(ledger_id, first + at, 1_000 + first, each) for at, each in enumerate(payloads)]
                first += len(payloads)
            ledger = encoder.end()
            found[ledger_id] = Found(ledger.entries, ledger.payload_bytes, ledger.rolling_crc)
        encoded = encoder.finish()
        await self.store.put(KEY, b"".join(encoder.take()))
        self.receipts = receipts(encoded, found, KEY, 17)
        return self

    @property
    def receipt(self) -> Receipt:
        return next(iter(self.receipts.values()))

    def expected(self, *wanted: EntryRange) -> list[Row]:
        return [row for row in self.rows if any(row[0] == w[0] and w[1] <= row[1] <= w[2] for w in wanted)]

    async def scan(self, *wanted: EntryRange, receipt: Receipt | None = None) -> list[Row]:
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


def batches(count: int, size: int, per_batch: int, seed: int = 1) -> list[list[bytes]]:
    rng = SeededRng(seed)
    payloads = [rng.token(size) for _ in range(count)]
    return [payloads[at : at + per_batch] for at in range(0, count, per_batch)]


SMALL_GROUPS = EncoderOptions(row_group_bytes=1_000, page_bytes=300)


# --- what comes back --------------------------------------------------------------------------------------------------


async def test_a_whole_ledger_comes_back_as_it_was_written() -> None:
    written = await Written().put({7: batches(500, 20, 9)}, SMALL_GROUPS)
    whole = EntryRange(7, 0, 499)
    assert await written.scan(whole) == written.rows == written.expected(whole)


@pytest.mark.parametrize(
    ("first", "last"), [(0, 0), (49, 49), (0, 53), (54, 107), (53, 54), (60, 61), (1, 498), (499, 499), (100, 400)]
)
async def test_ranges_within_row_groups_and_across_them_come_back_exactly(first: int, last: int) -> None:
    written = await Written().put({7: batches(500, 20, 9)}, SMALL_GROUPS)
    wanted = EntryRange(7, first, last)
    assert await written.scan(wanted) == written.expected(wanted)
    assert len(written.expected(wanted)) == last - first + 1


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
        wanted += [EntryRange(ledger_id, first, last) for first, last in zip(cuts[::2], cuts[1::2], strict=False)]

    async def play() -> None:
        options = EncoderOptions(row_group_bytes=data.draw(st.sampled_from([1, 300, 10_000])), page_bytes=200)
        written = await Written().put(dict(sorted(ledgers.items())), options)
        found = await written.scan(*data.draw(st.permutations(wanted)))
        assert found == written.expected(*wanted)

    run(play())


async def test_a_set_of_ledgers_is_scanned_in_the_order_of_the_object_and_each_alone() -> None:
    ledgers = {each: batches(each, 10, 4, seed=each) for each in (1, 5, 40, 41)}
    written = await Written().put({**ledgers, 50: []}, SMALL_GROUPS)
    every = [EntryRange(each, 0, each - 1) for each in ledgers]
    assert await written.scan(*reversed(every)) == written.rows
    for each in ledgers:
        assert await written.scan(EntryRange(each, 0, each - 1), receipt=written.receipts[each]) == written.expected(
            EntryRange(each, 0, each - 1)
        )
    both = EntryRange(5, 2, 3), EntryRange(41, 7, 30)
    assert await written.scan(*both) == written.expected(*both)
    assert await written.scan() == []


async def test_stretches_of_one_ledger_come_apart_although_they_touch() -> None:
    """Whoever asked for them tells them apart by where they begin."""
    written = await Written().put({7: batches(20, 10, 20)})
    tasks = new_tasks()
    wanted = [EntryRange(7, 10, 19), EntryRange(7, 0, 4), EntryRange(7, 5, 9)]
    tables = ObjectScan(written.store, InlineWorkers(), tasks, written.receipt).rows(wanted)
    found = [(table["entry_id"][0].as_py(), table.num_rows) async for table in tables]
    assert found == [(0, 5), (5, 5), (10, 10)]
    await tasks.close()


async def test_empty_and_large_payloads_and_ledgers_of_nothing_but_empty_ones() -> None:
    large = SeededRng(3).token(1_000_000)
    written = await Written().put({1: [[b"", large, b""], [b"x"]], 2: [[b""] * 300]}, EncoderOptions())
    every = EntryRange(1, 0, 3), EntryRange(2, 0, 299)
    assert await written.scan(*every) == written.rows
    assert [row[3] for row in await written.scan(EntryRange(1, 1, 2))] == [large, b""]


@pytest.mark.parametrize(
    "wanted",
    [EntryRange(7, 0, 20), EntryRange(7, 20, 20), EntryRange(7, -1, 3), EntryRange(7, 5, 4), EntryRange(8, 0, 0),
     EntryRange(9, 0, 0)],
)  # fmt: skip
async def test_entries_that_the_object_does_not_hold_are_not_made_up(wanted: EntryRange) -> None:
    written = await Written().put({7: batches(20, 10, 20), 9: []})
    with pytest.raises(ObjectDamaged, match=f"{KEY}.*ledger {wanted.ledger_id}"):
        await written.scan(EntryRange(7, 0, 3), wanted)


# --- requests and memory ----------------------------------------------------------------------------------------------


async def test_a_scan_costs_one_request_for_the_index_and_one_for_each_row_group() -> None:
    written = await Written().put({7: batches(1_000, 100, 10), 8: batches(10, 100, 10)}, EncoderOptions(20_000))
    await written.scan(EntryRange(7, 0, 999))
    whole = len(written.store.reads)
    assert 5 <= whole <= 8
    assert sum(size for _, size in written.store.reads) < 1.1 * written.receipt.object_bytes
    written.store.reads.clear()
    await written.scan(EntryRange(7, 500, 501))
    assert len(written.store.reads) == 2
    assert written.store.reads[0][0] == written.receipt.index.offset


async def test_large_row_groups_are_read_in_bounded_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan_module, "READ_BYTES", 1_000)
    written = await Written().put({7: batches(50, 100, 10)})
    assert await written.scan(EntryRange(7, 0, 49)) == written.rows
    assert max(size for _, size in written.store.reads[1:]) == 1_000
    assert len(written.store.reads) > 5


async def test_one_row_group_is_read_ahead_of_the_consumer_and_no_more() -> None:
    written = await Written().put({7: batches(500, 20, 50)}, SMALL_GROUPS)
    tasks = new_tasks()
    tables = ObjectScan(written.store, InlineWorkers(), tasks, written.receipt).rows([EntryRange(7, 0, 499)])
    for taken in range(1, 8):
        await anext(tables)
        for _ in range(50):
            await asyncio.sleep(0)
        assert len(written.store.reads) == 1 + taken + 1, "the index, what was taken, and the next one"
    await tables.aclose()
    await tasks.close()


async def test_a_consumer_that_stops_takes_the_read_that_is_under_way_with_it() -> None:
    written = await Written().put({7: batches(500, 20, 50)}, SMALL_GROUPS)
    tasks, workers = new_tasks(), ThreadWorkers(1, "scan")
    tables = ObjectScan(written.store, workers, tasks, written.receipt).rows([EntryRange(7, 0, 499)])
    assert rows_of(await anext(tables)) == written.rows[:50]
    await tables.aclose()
    for _ in range(10):
        await asyncio.sleep(0)
    assert not tasks._running
    await tasks.close()
    await workers.close()


# --- damage -----------------------------------------------------------------------------------------------------------


async def harmless_or_told(written: Written, wanted: EntryRange) -> bool:
    """Whether damage is told; whoever does not notice it gets the rows that were written."""
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
    # Of the pages themselves, whose checksums are Parquet's business, some bytes stand for the others.
    for at in (*range(0, index, 7), *range(index, len(good), 3)):
        await written.store.put(KEY, good[:at] + bytes([good[at] ^ 1 << at % 8]) + good[at + 1 :])
        told += await harmless_or_told(written, EntryRange(7, 0, 29))
    assert told > len(good) / 10


async def test_an_object_that_ends_early_or_was_replaced_is_told() -> None:
    written = await Written().put({7: batches(200, 20, 7)}, SMALL_GROUPS)
    good = await written.store.read(KEY, 0, written.receipt.object_bytes)
    other = await Written().put({7: batches(200, 20, 7, seed=2)}, SMALL_GROUPS, name="y")
    same_size = (await other.store.read(KEY, 0, other.receipt.object_bytes))[: len(good)].ljust(len(good), b"\0")
    shifted = b"\0" + good[:-1]
    for bad in (good[:-1], good[:100], b"", same_size, shifted, bytes(len(good)), good[::-1], good + b"more"):
        await written.store.put(KEY, bad)
        if bad.startswith(good):
            assert await written.scan(EntryRange(7, 0, 199)) == written.rows
        else:
            with pytest.raises(ObjectDamaged, match=KEY):
                await written.scan(EntryRange(7, 0, 199))


async def test_another_object_of_the_same_size_with_the_same_ledger_is_told() -> None:
    written = await Written().put({7: batches(200, 20, 7)}, SMALL_GROUPS)
    other = await Written().put({7: batches(200, 20, 7)}, SMALL_GROUPS, name="y")
    data = await other.store.read(KEY, 0, other.receipt.object_bytes)
    await written.store.put(KEY, data)
    receipt = replace(other.receipt, object_id="x")
    with pytest.raises(ObjectDamaged, match="this is object y, not x"):
        await written.scan(EntryRange(7, 0, 199), receipt=receipt)
    await written.store.put(KEY, data[: written.receipt.object_bytes].ljust(written.receipt.object_bytes))
    with pytest.raises(ObjectDamaged, match=KEY):
        await written.scan(EntryRange(7, 0, 199))


@pytest.mark.parametrize("error", [ObjectMissing("gone"), ArchiveUnavailable("away"), ObjectDamaged("short")])
async def test_what_fails_in_the_middle_is_raised_there_behind_the_rows_before_it(error: Exception) -> None:
    written = await Written().put({7: batches(500, 20, 50)}, SMALL_GROUPS)
    written.store.fails = {4: error}
    tasks, found = new_tasks(), []
    tables = ObjectScan(written.store, InlineWorkers(), tasks, written.receipt).rows([EntryRange(7, 0, 499)])

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
    tables = ObjectScan(written.store, InlineWorkers(), tasks, written.receipt).rows([EntryRange(7, 0, 499)])
    await anext(tables)
    for _ in range(20):
        await asyncio.sleep(0)
    await tables.aclose()
    await tasks.close()
