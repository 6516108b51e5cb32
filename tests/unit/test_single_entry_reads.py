"""Reads of single entries from entry logs: without the rest of the batch, once its header and table are known."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tallybook.bookie.storage.batch_fronts import FRONT_OVERHEAD_BYTES, MIN_BATCH_BYTES, BatchFronts
from tallybook.bookie.storage.location import IndexRow, Location
from tallybook.core.batch import encode_batch
from tallybook.core.errors import EntryAbsent, EntryCorrupt, EntryUnknown, NoSuchLedger
from tallybook.core.limits import BATCH_TABLE_ROW_BYTES, KIB
from tallybook.sim.stage.disk_bookie import DiskBookie, batch_of

from .bookie_parts import on_a_bookie
from .test_bookie_reads import LOG

COUNT = 5
PAYLOAD = bytes(2_000)
LEDGER_BATCHES = range(0, 7 * COUNT, COUNT)
"""Of more bytes than the read cache has, with fronts that fit."""

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
        await entry(node, first + 3)


def alone(node: DiskBookie) -> float:
    """Entries that were read without their batches."""
    return node.bookie.stats()["batch_front_hits_total"]


@on_a_small_cache
async def test_a_later_read_of_a_batch_reads_the_requested_entry_alone(node):
    await fill(node)
    assert alone(node) == 0
    at = node.disk.peek(LOG).index(batch(0))
    node.disk.rot.flip_bit(LOG, at + len(batch(0)) - 1)
    for entry_id in (2, 0, 3, 1):
        assert await entry(node, entry_id) == PAYLOAD + b" %d" % entry_id
    assert alone(node) == 4


@on_a_small_cache
async def test_a_damaged_entry_is_corrupt_and_its_batch_is_listed(node):
    await fill(node)
    node.disk.rot.flip_bit(LOG, node.disk.peek(LOG).index(batch(0)) + len(batch(0)) - 1)
    assert await entry(node, 2) == PAYLOAD + b" 2"
    assert not await node.bookie.damaged((-1, -1), 10)
    with pytest.raises(EntryCorrupt, match="entrylog"):
        await entry(node, 4)
    [damaged] = await node.bookie.damaged((-1, -1), 10)
    assert (damaged.ledger_id, damaged.first_entry_id) == (1, 0)


@on_a_small_cache
async def test_a_reader_that_goes_on_in_order_reads_the_batch_once(node):
    await fill(node)
    assert await entry(node, 0) == PAYLOAD + b" 0"
    assert alone(node) == 1
    for entry_id in range(1, COUNT):
        assert await entry(node, entry_id) == PAYLOAD + b" %d" % entry_id
    assert alone(node) == 1


@on_a_small_cache
async def test_a_disk_that_refuses_to_read_an_entry_is_unknown(node):
    await fill(node)
    node.disk.fail("read", "entrylog", times=100)
    with pytest.raises(EntryUnknown):
        # Not in the memory of the system: the block has an odd number.
        await entry(node, next(each for each in range(COUNT) if block_of(node, each) % 2))
    node.disk.faults.clear()
    assert await entry(node, 2) == PAYLOAD + b" 2"


def block_of(node: DiskBookie, entry_id: int) -> int:
    return node.disk.peek(LOG).index(PAYLOAD + b" %d" % entry_id) // 4096


@on_a_small_cache
async def test_an_entry_is_found_at_the_new_place_of_its_batch(node):
    await fill(node)
    rows = await node.parts.index.find_range(1, 0, 0, 1)
    [location] = await node.parts.logs.append([batch(0)])
    await node.parts.logs.sync()
    await node.parts.index.apply([rows[0]._replace(location=location)], {})
    await node.parts.index.sync()
    node.disk.rot.overwrite(LOG, node.disk.peek(LOG).index(batch(0)), bytes(len(batch(0))))
    assert await entry(node, 2) == PAYLOAD + b" 2"


@on_a_small_cache
async def test_a_deleted_ledger_and_an_entry_after_the_last_are_not_served(node):
    await fill(node)
    with pytest.raises(EntryAbsent):
        await entry(node, LEDGER_BATCHES.stop)
    await node.bookie.delete_ledger(1)
    with pytest.raises(NoSuchLedger):
        await entry(node, 2)


class FrontsMachine(RuleBasedStateMachine):
    """The model has every batch that was put and not forgotten. The fronts may be fewer, and nothing else."""

    COST = FRONT_OVERHEAD_BYTES + 64 + COUNT * BATCH_TABLE_ROW_BYTES
    SIZE = MIN_BATCH_BYTES // COUNT + 1

    def __init__(self) -> None:
        super().__init__()
        self.fronts = BatchFronts(4 * self.COST)
        self.model: dict[tuple[int, int], IndexRow] = {}

    @rule(ledger_id=st.integers(0, 3), number=st.integers(0, 12), offset=st.integers(0, 1000))
    def put(self, ledger_id: int, number: int, offset: int) -> None:
        payloads = [bytes([each]) * self.SIZE for each in range(COUNT)]
        data = encode_batch(ledger_id, COUNT * number, payloads, lac=-1, ledger_length=10**9, written_at_us=1)
        row = IndexRow(ledger_id, COUNT * number, Location(1, offset, len(data), COUNT))
        self.model[ledger_id, COUNT * number] = row
        self.fronts.put(row, data, row.first_entry_id)
        assert self.fronts.find(ledger_id, row.last_entry_id).row == row

    @rule(ledger_id=st.integers(0, 3), entry_id=st.integers(0, 13 * COUNT))
    def find(self, ledger_id: int, entry_id: int) -> None:
        front = self.fronts.find(ledger_id, entry_id)
        if front is None:
            return
        first = entry_id - entry_id % COUNT
        assert front.row == self.model[ledger_id, first]
        place = front.place(entry_id)
        payload = bytes([entry_id - first]) * self.SIZE
        found = front.entry(entry_id, place, payload)
        assert found.verify().payload == payload
        assert front.entry(entry_id, place, bytes([77]) * self.SIZE) is None
        assert front.entry(entry_id, place, payload[:-1]) is None
        start = place.offset + front.row.location.offset
        assert front.location(place) == Location(1, start, self.SIZE, 1)

    @rule(ledger_id=st.integers(0, 3))
    def forget(self, ledger_id: int) -> None:
        self.fronts.forget(ledger_id)
        self.model = {key: row for key, row in self.model.items() if key[0] != ledger_id}
        assert self.fronts.find(ledger_id, 0) is None

    @invariant()
    def the_budget_holds(self) -> None:
        assert 0 <= self.fronts.held_bytes <= 4 * self.COST
        assert self.fronts.held_bytes % self.COST == 0


TestFronts = FrontsMachine.TestCase
