"""The journal format: values are decoded as encoded, and no other bytes are accepted."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallybook.bookie.journal.format import (
    BLOCK_HEADER_BYTES,
    BatchRecord,
    DeleteRecord,
    ExplicitLacRecord,
    FenceRecord,
    JournalMark,
    JournalRecord,
    LedgerIdentityRecord,
    LedgerKeyRecord,
    MalformedRecord,
    RingGeometry,
    SegmentHeader,
    add_to_crc,
    aligned,
    body_is_intact,
    decode_block_header,
    decode_records,
    decode_segment_header,
    encode_record,
    encode_segment_header,
    put_block_header,
    record_spans,
)
from tallybook.bookie.journal.superblock import (
    SLOT_BYTES,
    Superblock,
    decode_slot,
    encode_slot,
    newest,
    next_versions,
    slot_offset,
)
from tallybook.core.errors import InvalidArgument, NewerFormat
from tallybook.core.ids import MAX_ID
from tallybook.core.limits import BLOCK_BYTES, KIB, MIB

from ..support.damage import flipped

U64 = st.integers(0, 2**64 - 1)
INSTANCE = st.binary(min_size=16, max_size=16)
LEDGER = st.integers(0, MAX_ID)
KEY = st.binary(min_size=32, max_size=32)

RECORDS = st.one_of(
    st.builds(BatchRecord, st.binary(max_size=300), st.booleans()),
    st.builds(FenceRecord, LEDGER, KEY),
    st.builds(LedgerKeyRecord, LEDGER, KEY),
    st.builds(LedgerIdentityRecord, LEDGER, KEY, st.binary(min_size=16, max_size=16)),
    st.builds(ExplicitLacRecord, LEDGER, st.integers(-1, MAX_ID)),
    st.builds(DeleteRecord, LEDGER),
)
MARKS = st.builds(JournalMark, U64, U64)
SUPERBLOCKS = st.builds(
    lambda trim, ahead, **more: Superblock(trim=trim, prepared=min(trim.segment + ahead, 2**64 - 1), **more),
    sequence=U64,
    instance=INSTANCE,
    boot=U64,
    clean=st.booleans(),
    trim=MARKS,
    begin=MARKS,
    ahead=st.integers(0, 3),
    geometry=st.builds(
        RingGeometry, st.integers(2, 2**40).map(lambda blocks: blocks * BLOCK_BYTES), st.integers(3, 2**32 - 1)
    ),
    previous_clean=st.booleans(),
    previous_end=MARKS,
    previous_damage=st.integers(0, 2**32 - 1),
)


def block_of(
    records: list[JournalRecord], mark: JournalMark, offset: int, previous_crc: int, instance: bytes
) -> memoryview:
    body = b"".join(bytes(piece) for record in records for piece in encode_record(record))
    buffer = memoryview(bytearray(b"\xff" * aligned(BLOCK_HEADER_BYTES + len(body))))
    buffer[BLOCK_HEADER_BYTES : BLOCK_HEADER_BYTES + len(body)] = body
    put_block_header(
        buffer,
        instance=instance,
        mark=mark,
        offset=offset,
        record_count=len(records),
        body_bytes=len(body),
        body_crc=add_to_crc(0, memoryview(body)),
        previous_crc=previous_crc,
    )
    return buffer


@given(st.lists(RECORDS, max_size=8), MARKS, st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1), INSTANCE)
def test_a_block_comes_back_as_it_was_written(
    records: list[JournalRecord], mark: JournalMark, position: int, previous_crc: int, instance: bytes
) -> None:
    block = block_of(records, mark, position * BLOCK_BYTES, previous_crc, instance)
    header = decode_block_header(block)
    assert header is not None
    assert (header.instance, header.mark, header.offset) == (instance, mark, position * BLOCK_BYTES)
    assert (header.record_count, header.previous_crc, header.is_seal) == (len(records), previous_crc, not records)
    body = block[BLOCK_HEADER_BYTES : BLOCK_HEADER_BYTES + header.body_bytes]
    assert body_is_intact(header, body)
    assert list(decode_records(body, header.record_count)) == records
    assert header.total_bytes == len(block)
    assert not any(block[BLOCK_HEADER_BYTES + header.body_bytes :]), "the padding is zero: nothing of old buffers leaks"


@given(st.lists(RECORDS, min_size=1, max_size=3), st.data())
def test_no_single_flipped_bit_of_a_block_passes(records: list[JournalRecord], data: st.DataObject) -> None:
    block = block_of(records, JournalMark(3, 9), 8192, 77, bytes(16))
    header = decode_block_header(block)
    assert header is not None
    at = data.draw(st.integers(0, BLOCK_HEADER_BYTES + header.body_bytes - 1))
    block[at] ^= 1 << data.draw(st.integers(0, 7))
    found = decode_block_header(block)
    if at < BLOCK_HEADER_BYTES:
        assert found is None
    else:
        assert found == header
        assert not body_is_intact(found, block[BLOCK_HEADER_BYTES : BLOCK_HEADER_BYTES + header.body_bytes])


@pytest.mark.parametrize(
    ("body", "count"),
    [
        (b"", 1),
        (bytes(7), 1),
        (struct.pack("<IBBH", 2**32 - 1, 1, 0, 0), 1),
        (struct.pack("<IBBH", 1, 1, 0, 0), 1),
        (struct.pack("<IBBH", 0, 0, 0, 0), 1),
        (struct.pack("<IBBH", 9, 0, 0, 1), 1),
        (struct.pack("<IBBH", 0, 5, 0, 0), 1),
        (struct.pack("<IBBH", 9, 5, 0, 0) + bytes(9), 1),
        (struct.pack("<IBBH", 0, 1, 0, 1), 1),
        (struct.pack("<IBBHq", 8, 5, 0, 0, -1), 1),
        (struct.pack("<IBBHqq", 16, 4, 0, 0, 1, -2), 1),
        (struct.pack("<IBBH", 0, 1, 0, 0) * 2, 1),
        (struct.pack("<IBBH", 0, 1, 0, 0), 2),
    ],
)
def test_a_malformed_record_is_refused(body: bytes, count: int) -> None:
    with pytest.raises(MalformedRecord):
        list(decode_records(body, count))


@pytest.mark.parametrize(
    ("record", "found"),
    [
        (struct.pack("<IBBH", 0, 7, 0, 0), "kind 7"),
        (struct.pack("<IBBH", 3, 255, 0, 0) + bytes(3), "kind 255"),
        (struct.pack("<IBBH", 0, 1, 2, 0), "kind 1 with flags 2"),
        (struct.pack("<IBBH", 8, 5, 1, 0) + bytes(8), "kind 5 with flags 1"),
    ],
)
def test_a_record_of_a_kind_or_with_a_flag_that_is_to_come_is_no_malformed_one(record: bytes, found: str) -> None:
    known = struct.pack("<IBBHq", 8, 5, 0, 0, 1)
    for body, count in ((record, 1), (known + record, 2)):
        with pytest.raises(NewerFormat, match=f"is of format {found}, "):
            list(decode_records(body, count))


@pytest.mark.parametrize(
    "record",
    [
        FenceRecord(-1, bytes(32)),
        FenceRecord(MAX_ID + 1, bytes(32)),
        FenceRecord(1, bytes(31)),
        LedgerKeyRecord(1, bytes(33)),
        LedgerIdentityRecord(1, bytes(32), bytes(15)),
        LedgerIdentityRecord(1, bytes(31), bytes(16)),
        ExplicitLacRecord(1, -2),
        ExplicitLacRecord(1, MAX_ID + 1),
        DeleteRecord(-1),
    ],
)
def test_what_could_not_be_read_back_is_not_written(record: JournalRecord) -> None:
    with pytest.raises(InvalidArgument):
        encode_record(record)


def test_a_batch_is_not_copied_before_it_goes_into_the_block() -> None:
    batch = memoryview(b"the batch as sent")
    assert encode_record(BatchRecord(batch))[1] is batch


def test_records_of_one_shape_and_other_meaning_differ() -> None:
    assert FenceRecord(1, bytes(32)) != LedgerKeyRecord(1, bytes(32))
    assert [span.kind for span in record_spans(b"".join(encode_record(DeleteRecord(7))), 1)] == [5]


@given(INSTANCE, U64, U64, U64, st.integers(0, 56 * 8 - 1))
def test_a_segment_header_comes_back_and_survives_no_flipped_bit(
    instance: bytes, segment: int, boot: int, size: int, bit: int
) -> None:
    header = SegmentHeader(instance, segment, boot, size)
    data = encode_segment_header(header)
    assert len(data) == BLOCK_BYTES
    assert decode_segment_header(data) == header
    assert decode_segment_header(flipped(data, bit)) is None


@given(SUPERBLOCKS)
def test_a_superblock_comes_back_as_it_was_written(facts: Superblock) -> None:
    data = encode_slot(facts)
    assert len(data) == SLOT_BYTES
    assert decode_slot(data) == facts


@given(SUPERBLOCKS, st.integers(0, 116 * 8 - 1))
def test_no_single_flipped_bit_of_a_superblock_passes(facts: Superblock, bit: int) -> None:
    assert decode_slot(flipped(encode_slot(facts), bit)) is None


@given(SUPERBLOCKS.filter(lambda facts: facts.sequence < 2**63))
def test_every_change_goes_to_both_slots_the_older_one_first(facts: Superblock) -> None:
    versions = next_versions(facts)
    assert sorted(slot_offset(version.sequence) for version in versions) == [0, SLOT_BYTES]
    assert slot_offset(versions[-1].sequence) == slot_offset(facts.sequence)
    assert newest([facts, *versions]) == versions[-1]
    assert newest([None, facts]) == facts
    assert newest([None, None]) is None


def bytes_of(dump: str) -> bytes:
    return bytes.fromhex(dump.replace("\n", " "))


def test_the_example_of_the_documentation_is_what_the_code_writes() -> None:
    # docs/reference/formats/journal.md. It must be read for ever, so it is written out here.
    instance = bytes(range(0xA0, 0xB0))
    facts = Superblock(
        sequence=5,
        instance=instance,
        boot=3,
        clean=False,
        trim=JournalMark(8, 1061),
        begin=JournalMark(6, 1057),
        prepared=8,
        geometry=RingGeometry(64 * MIB, 8),
        previous_clean=True,
        previous_end=JournalMark(5, 1056),
        previous_damage=0,
    )
    assert encode_slot(facts)[:116] == bytes_of("""
        54 4a 53 42 01 02 00 00 05 00 00 00 00 00 00 00 a0 a1 a2 a3 a4 a5 a6 a7 a8 a9 aa ab ac ad ae af
        03 00 00 00 00 00 00 00 08 00 00 00 00 00 00 00 25 04 00 00 00 00 00 00 06 00 00 00 00 00 00 00
        21 04 00 00 00 00 00 00 08 00 00 00 00 00 00 00 00 00 00 04 00 00 00 00 08 00 00 00 00 00 00 00
        05 00 00 00 00 00 00 00 20 04 00 00 00 00 00 00 c0 42 56 c2""")
    assert encode_segment_header(SegmentHeader(instance, 8, 3, 64 * MIB))[:56] == bytes_of("""
        54 4a 53 47 01 00 00 00 a0 a1 a2 a3 a4 a5 a6 a7 a8 a9 aa ab ac ad ae af 08 00 00 00 00 00 00 00
        03 00 00 00 00 00 00 00 00 00 00 04 00 00 00 00 00 00 00 00 5f fc 8b 2f""")
    block = block_of([ExplicitLacRecord(7, 41), DeleteRecord(9)], JournalMark(8, 1062), 4096, 0x1F2E3D4C, instance)
    assert bytes(block[:60]) == bytes_of("""
        54 4a 42 4b 01 00 00 00 a0 a1 a2 a3 a4 a5 a6 a7 a8 a9 aa ab ac ad ae af 08 00 00 00 00 00 00 00
        26 04 00 00 00 00 00 00 01 00 00 00 02 00 00 00 28 00 00 00 4c 3d 2e 1f b7 f4 a0 c5""")
    assert bytes(block[60:168]) == bytes(64) + bytes_of("""da fb 4d be
        10 00 00 00 04 00 00 00 07 00 00 00 00 00 00 00 29 00 00 00 00 00 00 00 08 00 00 00 05 00 00 00
        09 00 00 00 00 00 00 00""")


def test_a_segment_lives_in_the_file_of_its_number_modulo_the_ring() -> None:
    geometry = RingGeometry(64 * KIB, 8)
    assert [geometry.file_name(segment) for segment in (0, 3, 8, 1000)] == [
        "segment-0000", "segment-0003", "segment-0000", "segment-0000",
    ]  # fmt: skip
    assert geometry.blocks_per_segment == 15
