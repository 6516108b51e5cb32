"""The envelope codec: decoded as encoded, others refused; each has the position of the stream."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallybook.core.errors import EnvelopeDamaged
from tallybook.stream.position import Position
from tallybook.stream.records.compression import Compression
from tallybook.stream.records.envelope import (
    HEADER_BYTES,
    RECORD_OVERHEAD_BYTES,
    START,
    Envelope,
    EnvelopeKind,
    RecordColumns,
    StreamMarks,
    encode_mark,
    encode_records,
)
from tallybook.stream.records.record import NO_TXID

NUMBERS = st.integers(-(2**63) + 1, 2**63 - 1)
RECORDS = st.tuples(
    st.binary(max_size=50),
    st.none() | NUMBERS,
    st.none() | st.binary(max_size=8),
    st.none() | st.binary(min_size=1, max_size=8),
    st.none() | NUMBERS,
)
TAG = "5f0c9a21"


def columns_of(records, default_time=99):
    columns = RecordColumns(default_time)
    for record in records:
        columns.add(*record)
    return columns


@given(st.lists(RECORDS, min_size=1, max_size=30), st.sampled_from(Compression))
def test_records_come_back_as_they_were(records, compression):
    before = StreamMarks(1000, 50, 60, 7)
    encoded = encode_records(columns_of(records), before, compression)
    envelope = Envelope(encoded, 3, 4, TAG)
    found = envelope.records()
    assert [(each.payload, each.timestamp_ms, each.key, each.dedup_id, each.txid) for each in found] == [
        (payload, 99 if time is None else time, key, dedup, txid) for payload, time, key, dedup, txid in records
    ]
    assert [each.sequence for each in found] == list(range(1000, 1000 + len(records)))
    assert [each.position for each in found] == [Position(3, 4, slot, TAG) for slot in range(len(records))]
    assert envelope.marks == StreamMarks(
        1000 + len(records),
        max(50, *(each.timestamp_ms for each in found)),
        max(60, *(NO_TXID if each.txid is None else each.txid for each in found)),
        max([7, *(each.sequence + 1 for each in found if each.dedup_id)]),
    )
    assert envelope.records(len(records) - 1) == found[-1:]


@given(st.lists(RECORDS, min_size=1, max_size=30))
def test_an_envelope_takes_no_more_than_is_reckoned_with(records):
    parts = sum(len(payload) + len(key or b"") + len(dedup or b"") for payload, _, key, dedup, _ in records)
    most = HEADER_BYTES + parts + len(records) * RECORD_OVERHEAD_BYTES
    assert len(encode_records(columns_of(records), START)) <= most


@pytest.mark.parametrize("kind", list(EnvelopeKind)[1:])
def test_a_mark_says_where_the_stream_stands_and_has_no_records(kind):
    envelope = Envelope(encode_mark(kind, StreamMarks(5, 6, 7, 3), 8), 1, 2, TAG)
    assert (envelope.kind, envelope.count, envelope.marks) == (kind, 0, StreamMarks(5, 6, 7, 3))


@given(st.data(), st.sampled_from(Compression))
def test_a_damaged_envelope_is_found_out_or_read_and_never_anything_else(data, compression):
    encoded = bytearray(
        encode_records(columns_of([(b"x" * 60, 1, b"k", b"d", 2)] * 5), StreamMarks(1, 2, 3, 0), compression)
    )
    # Byte 2 is the version; that it is what was written is for the checksum of the entry to say.
    at = data.draw(st.integers(0, len(encoded) - 1).filter(lambda place: place != 2))
    encoded[at] ^= data.draw(st.integers(1, 255))
    cut = data.draw(st.integers(0, len(encoded)))
    for damaged in (bytes(encoded), bytes(encoded[:cut])):
        try:
            records = Envelope(damaged, 1, 0, TAG).records()
        except EnvelopeDamaged:
            continue
        assert [len(record._as_tuple()) for record in records] == [7] * len(records)


def test_a_body_that_claims_more_than_a_reader_allocates_is_refused():
    encoded = encode_records(columns_of([(b"x" * 1000, None, None, None, None)]), START, Compression.ZSTD)
    huge = encoded[:12] + struct.pack("<I", 2**31) + encoded[16:]
    with pytest.raises(EnvelopeDamaged, match="2147483648 bytes"):
        Envelope(huge, 1, 0, TAG)


def test_compression_makes_smaller_what_can_be_made_smaller_and_leaves_the_rest():
    plain = [(b"the same again " * 20, None, None, None, None)] * 20
    for compression in (Compression.ZSTD, Compression.LZ4):
        assert len(encode_records(columns_of(plain), START, compression)) < 0.2 * len(
            encode_records(columns_of(plain), START)
        )
        short = [(b"ab", None, None, None, None)]
        assert encode_records(columns_of(short), START, compression) == encode_records(columns_of(short), START)
