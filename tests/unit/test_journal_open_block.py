"""The open block of the journal: its header covers exactly the records copied in, also after a cut."""

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallybook.bookie.journal.format import (
    BLOCK_HEADER_BYTES,
    BatchRecord,
    JournalMark,
    aligned,
    body_is_intact,
    decode_block_header,
    decode_records,
    encode_record,
    put_block_header,
)
from tallybook.bookie.journal.group_commit import OpenBlock, Queued
from tallybook.core.limits import BLOCK_BYTES

BUFFER_BYTES = 4 * BLOCK_BYTES
SIZES = st.lists(st.integers(1, 6000), min_size=1, max_size=12)


def record(number: int, size: int) -> tuple[BatchRecord, Queued]:
    one = BatchRecord(bytes([number]) * size, recovery=False)
    header, body = encode_record(one)
    return one, (header, body, 100 + number, lambda: None, float(number))


def filled(sizes: list[int]) -> tuple[OpenBlock, list[BatchRecord], list[Queued]]:
    """A block on memory that held something else before, and the records that fitted."""
    block, records, queued = OpenBlock(memoryview(bytearray(b"\xff" * BUFFER_BYTES))), [], []
    for number, size in enumerate(sizes):
        one, waiting = record(number, size)
        if not block.fits(waiting):
            break
        block.add(waiting)
        records.append(one)
        queued.append(waiting)
    return block, records, queued


def read_back(block: OpenBlock) -> list[BatchRecord]:
    put_block_header(
        block.buffer,
        instance=bytes(16),
        mark=JournalMark(1, 1),
        offset=BLOCK_BYTES,
        record_count=len(block),
        body_bytes=block.body_bytes,
        body_crc=block.body_crc,
        previous_crc=7,
    )
    header = decode_block_header(block.buffer)
    assert header is not None
    body = block.buffer[BLOCK_HEADER_BYTES : block.end]
    assert body_is_intact(header, body)
    assert not any(block.buffer[block.end : aligned(block.end)]), "nothing of old buffers leaks"
    return list(decode_records(body, header.record_count))


def told(block: OpenBlock, queued: list[Queued]) -> None:
    """The header of the block describes these records, and their size is counted."""
    assert block.on_durable == [one[3] for one in queued]
    assert block.charge_bytes == sum(one[2] for one in queued)
    if queued:
        assert (block.first_charge_bytes, block.since_seconds) == (queued[0][2], queued[0][4])


@given(SIZES)
def test_what_was_copied_in_is_what_is_read_back(sizes: list[int]) -> None:
    block, records, queued = filled(sizes)
    assert read_back(block) == records
    told(block, queued)
    block.clear()
    assert len(block) == block.body_bytes == block.body_crc == 0
    block.add(record(99, 5)[1])
    assert read_back(block) == [record(99, 5)[0]]


@given(SIZES)
def test_a_record_that_cannot_be_copied_leaves_the_block_as_it_was(sizes: list[int]) -> None:
    block, records, queued = filled(sizes)
    header, _, *rest = record(97, 2)[1]
    with pytest.raises(ValueError, match="structures"):
        block.add((header, memoryview(array("I", [1])), *rest))
    told(block, queued)
    assert read_back(block) == records


@given(SIZES, st.integers(2, 4))
def test_a_block_that_does_not_fit_its_segment_is_cut_between_two_records(sizes: list[int], blocks: int) -> None:
    block, records, queued = filled(sizes)
    limit = max(blocks * BLOCK_BYTES, BLOCK_HEADER_BYTES + 8 + sizes[0])
    rest = OpenBlock(memoryview(bytearray(b"\xee" * BUFFER_BYTES)))
    block.move_rest(limit, rest)
    assert block.end <= limit
    kept = len(block)
    assert kept == len(records) or block.end + 8 + len(queued[kept][1]) > limit, "no more was moved than had to be"
    assert read_back(block) == records[:kept]
    assert read_back(rest) == records[kept:]
    told(block, queued[:kept])
    told(rest, queued[kept:])
    last = record(98, 1)
    rest.add(last[1])
    assert read_back(rest) == [*records[kept:], last[0]]
