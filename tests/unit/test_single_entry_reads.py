"""Reads of single entries from entry logs: without the rest of the batch, once its header and table are known."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tallybook.bookie.ledgers.disposition import LedgerDisposition
from tallybook.bookie.storage.entry_tables import READ_COST_BYTES, TABLE_OVERHEAD_BYTES, EntryTables
from tallybook.bookie.storage.location import IndexRow, Location
from tallybook.core.batch import encode_batch
from tallybook.core.errors import EntryAbsent, EntryCorrupt, EntryUnknown, NoSuchLedger
from tallybook.core.limits import BATCH_TABLE_ROW_BYTES, BLOCK_BYTES, KIB
from tallybook.sim.stage.disk_bookie import DiskBookie, batch_of

from .bookie_parts import on_a_bookie
from .test_bookie_reads import LOG

COUNT = 10
PAYLOAD = bytes(1_000)
LEDGER_BATCHES = range(0, 7 * COUNT, COUNT)
"""Of more bytes than the read cache has, with entry tables that fit."""

on_a_small_cache = on_a_bookie(
    read_cache_bytes=64 * KIB, write_cache_bytes=256 * KIB, segment_bytes=256 * KIB, entry_log_bytes=1024 * KIB
)


def batch(first: int) -> bytes:
    return batch_of(first, COUNT, payload=PAYLOAD)


async def entry(node: DiskBookie, entry_id: int) -> bytes:
    found = (await node.bookie.read_entry(1, entry_id)).verify()
    assert (found.ledger_id, found.entry_id, found.written_at_us) == (1, entry_id, 17)
    return found.payload


async def fill(node: DiskBookie) -> None:
    """Write the ledger, and read an entry of every batch: the first batches have left the read cache then."""
    for first in LEDGER_BATCHES:
        assert (await node.add(batch(first))).code == 0
    await node.bookie.flush()
    for first in LEDGER_BATCHES:
        await entry(node, first + COUNT - 1)


def alone(node: DiskBookie) -> float:
    """Entries that were read without their batches."""
    return node.bookie.stats()["lone_entries_total"]


def block_of(node: DiskBookie, entry_id: int) -> int:
    return node.disk.peek(LOG).index(PAYLOAD + b" %d" % entry_id) // BLOCK_BYTES


IN_MEMORY = (6, 4, 7, 5)
"""Entries of the first batch in a block with an even number, which the simulated system has in memory."""
ON_THE_DEVICE = 1


@on_a_small_cache
async def test_a_later_read_of_a_batch_reads_the_requested_entry_alone(node):
    await fill(node)
    assert alone(node) == 0
    at = node.disk.peek(LOG).index(batch(0))
    node.disk.rot.flip_bit(LOG, at + len(batch(0)) - 1)
    assert all(block_of(node, each) % 2 == 0 for each in IN_MEMORY)
    for entry_id in IN_MEMORY:
        assert await entry(node, entry_id) == PAYLOAD + b" %d" % entry_id
    assert alone(node) == 4


@on_a_small_cache
async def test_a_damaged_entry_is_corrupt_and_its_batch_is_listed(node):
    await fill(node)
    node.disk.rot.flip_bit(LOG, node.disk.peek(LOG).index(batch(0)) + len(batch(0)) - 1)
    assert await entry(node, 6) == PAYLOAD + b" 6"
    assert not await node.bookie.damaged((-1, -1), 10)
    with pytest.raises(EntryCorrupt, match="entrylog"):
        await entry(node, COUNT - 1)
    [damaged] = await node.bookie.damaged((-1, -1), 10)
    assert (damaged.ledger_id, damaged.first_entry_id) == (1, 0)


@on_a_small_cache
async def test_a_reader_that_goes_on_in_order_reads_the_batch_once(node):
    await fill(node)
    assert await entry(node, 4) == PAYLOAD + b" 4"
    assert alone(node) == 1
    for entry_id in range(5, COUNT):
        assert await entry(node, entry_id) == PAYLOAD + b" %d" % entry_id
    assert alone(node) == 1


@on_a_small_cache
async def test_a_reader_in_order_gets_the_next_batches_read_ahead_although_their_tables_are_known(node, world):
    await fill(node)
    for entry_id in range(LEDGER_BATCHES.stop):
        assert await entry(node, entry_id) == PAYLOAD + b" %d" % entry_id
        await world.clock.sleep(0.1)
    assert node.bookie.stats()["read_ahead_used_batches_total"] >= 3


@on_a_small_cache
async def test_a_batch_that_is_read_again_and_again_from_the_device_is_cached(node):
    await fill(node)
    assert block_of(node, ON_THE_DEVICE) % 2
    before = node.bookie.stats()["read_cache_hits_total"]
    for _ in range(len(batch(0)) // READ_COST_BYTES + 3):
        await entry(node, ON_THE_DEVICE)
    assert node.bookie.stats()["read_cache_hits_total"] > before


@on_a_small_cache
async def test_single_reads_count_as_reads_of_batches_and_as_misses_of_the_cache(node):
    await fill(node)
    names = ("reads_stored_batches_total", "read_cache_misses_total")
    before = [node.bookie.stats()[name] for name in names]
    await entry(node, 6)
    await entry(node, 4)
    assert alone(node) == 2
    assert [node.bookie.stats()[name] for name in names] == [count + 2 for count in before]


@on_a_small_cache
async def test_a_disk_that_refuses_to_read_an_entry_is_unknown(node):
    await fill(node)
    node.disk.fail("read", "entrylog", times=100)
    with pytest.raises(EntryUnknown):
        await entry(node, ON_THE_DEVICE)
    node.disk.faults.clear()
    assert await entry(node, ON_THE_DEVICE) == PAYLOAD + b" 1"


@on_a_small_cache
async def test_an_entry_is_found_at_the_new_place_of_its_batch(node):
    await fill(node)
    rows = await node.parts.index.find_range(1, 0, 0, 1)
    [location] = await node.parts.logs.append([batch(0)])
    await node.parts.logs.sync()
    await node.parts.index.apply([rows[0]._replace(location=location)], {})
    await node.parts.index.sync()
    node.disk.rot.overwrite(LOG, node.disk.peek(LOG).index(batch(0)), bytes(len(batch(0))))
    assert await entry(node, 6) == PAYLOAD + b" 6"
    assert alone(node) == 0


@on_a_small_cache
async def test_a_deleted_ledger_and_an_entry_after_the_last_are_not_served(node):
    await fill(node)
    with pytest.raises(EntryAbsent):
        await entry(node, LEDGER_BATCHES.stop)
    assert node.bookie.stats()["entry_tables_bytes"] > 0
    await node.bookie.delete_ledger(1)
    with pytest.raises(NoSuchLedger):
        await entry(node, 2)
    node.metadata.dispositions[1] = LedgerDisposition.RELEASED
    await node.bookie.collect()
    await node.bookie.collect()
    assert node.bookie.stats()["entry_tables_bytes"] == 0


class TablesMachine(RuleBasedStateMachine):
    """The model has every batch that was put and not forgotten. The tables may be fewer, and nothing else."""

    COST = TABLE_OVERHEAD_BYTES + 64 + COUNT * BATCH_TABLE_ROW_BYTES
    SIZE = 400

    def __init__(self) -> None:
        super().__init__()
        self.tables = EntryTables(4 * self.COST)
        self.model: dict[tuple[int, int], IndexRow] = {}

    @rule(ledger_id=st.integers(0, 3), number=st.integers(0, 12), offset=st.integers(0, 1000))
    def put(self, ledger_id: int, number: int, offset: int) -> None:
        payloads = [bytes([each]) * self.SIZE for each in range(COUNT)]
        data = encode_batch(ledger_id, COUNT * number, payloads, lac=-1, ledger_length=10**9, written_at_us=1)
        row = IndexRow(ledger_id, COUNT * number, Location(1, offset, len(data), COUNT))
        self.model[ledger_id, COUNT * number] = row
        self.tables.put(row, data, row.first_entry_id)
        assert self.tables.find(ledger_id, row.last_entry_id).row == row

    @rule(ledger_id=st.integers(0, 3), entry_id=st.integers(0, 13 * COUNT))
    def find(self, ledger_id: int, entry_id: int) -> None:
        table = self.tables.find(ledger_id, entry_id)
        if table is None:
            return
        first = entry_id - entry_id % COUNT
        assert table.row == self.model[ledger_id, first]
        place = table.place(entry_id)
        payload = bytes([entry_id - first]) * self.SIZE
        found = table.entry(entry_id, place, payload)
        assert found.verify().payload == payload
        assert table.entry(entry_id, place, bytes([77]) * self.SIZE) is None
        assert table.entry(entry_id, place, payload[:-1]) is None
        start = place.offset + table.row.location.offset
        assert table.location(place) == Location(1, start, self.SIZE, 1)

    @rule(ledger_id=st.integers(0, 3))
    def forget(self, ledger_id: int) -> None:
        self.tables.forget(ledger_id)
        self.model = {key: row for key, row in self.model.items() if key[0] != ledger_id}
        assert self.tables.find(ledger_id, 0) is None

    @invariant()
    def the_budget_holds(self) -> None:
        assert 0 <= self.tables.held_bytes <= 4 * self.COST
        assert self.tables.held_bytes % self.COST == 0


TestTables = TablesMachine.TestCase
