"""Envelopes decoded by column: the same records and the same errors as one by one."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallybook.core.errors import EnvelopeDamaged, InvariantViolation, NewerFormat
from tallybook.stream.records.columnar import damage, decode
from tallybook.stream.records.compression import Compression
from tallybook.stream.records.envelope import (
    HEADER_BYTES,
    START,
    VERSION,
    Envelope,
    EnvelopeKind,
    RecordColumns,
    StreamMarks,
    encode_mark,
    encode_records,
)

from .test_stream_envelope import NUMBERS, RECORDS, TAG


@st.composite
def envelopes(draw, most=6, compressions=tuple(Compression)):
    """Some envelopes of one stream, marks among them."""
    marks, found = START, []
    for _ in range(draw(st.integers(0, most))):
        if draw(st.booleans()) and draw(st.booleans()):
            found.append(encode_mark(draw(st.sampled_from(list(EnvelopeKind)[1:])), marks, 5))
            continue
        columns = RecordColumns(draw(NUMBERS))
        for record in draw(st.lists(RECORDS, min_size=1, max_size=12)):
            columns.add(*record)
        found.append(encode_records(columns, marks, draw(st.sampled_from(compressions))))
        marks = columns.marks_after(marks)
    return found


def one_by_one(payloads):
    """The envelopes decoded by ``Envelope``, and the refused ones."""
    found, bad = [], []
    for row, payload in enumerate(payloads):
        try:
            envelope = Envelope(payload, 1, row, TAG)
            records = envelope.records() if envelope.count else []
        except (EnvelopeDamaged, NewerFormat):
            bad.append(row)
            continue
        found += [
            (row, slot, each.sequence, each.timestamp_ms, each.payload, each.key, each.dedup_id, each.txid)
            for slot, each in enumerate(records)
        ]
    return found, bad


def by_column(array, **options):
    found, bad, rows = [], [], 0
    for piece in decode(array, **options):
        assert piece.first_row == rows
        rows += len(piece.good)
        bad += [piece.first_row + at for at, good in enumerate(piece.good.tolist()) if not good]
        assert len(piece.sequence) == len(piece.count) == int(piece.good.sum())
        columns = (piece.row, piece.slot, piece.record_sequence, piece.timestamp_ms)
        others = (piece.payload, piece.key, piece.dedup_id, piece.txid)
        for each in others:
            each.validate(full=True)
        found += zip(*(each.tolist() for each in columns), *(each.to_pylist() for each in others), strict=True)
    assert rows == len(array)
    return found, bad


@given(envelopes(), st.integers(1, 500))
def test_by_column_the_records_are_those_that_come_one_by_one_however_they_are_cut(payloads, piece_bytes):
    array = pa.array([b"before", *payloads, b"behind"], pa.binary()).slice(1, len(payloads))
    assert by_column(array, piece_bytes=piece_bytes) == one_by_one(payloads)
    assert by_column(array.cast(pa.large_binary())) == one_by_one(payloads)


# What LZ4 makes of damaged bytes depends on what was in memory before; checksums of entries keep them from it.
CHECKED = (Compression.NONE, Compression.ZSTD)


@given(envelopes(4, CHECKED).filter(len), st.data())
def test_what_is_damaged_is_refused_by_both_and_the_rest_is_not(payloads, data):
    at = data.draw(st.integers(0, len(payloads) - 1))
    broken = bytearray(payloads[at])
    kind = data.draw(st.sampled_from(["byte", "cut", "longer"]))
    if kind == "byte":
        where = data.draw(st.integers(0, len(broken) - 1))
        broken[where] = data.draw(st.integers(0, 255))
    elif kind == "cut":
        del broken[data.draw(st.integers(0, len(broken) - 1)) :]
    else:
        broken += b"x"
    payloads[at] = bytes(broken)
    expected = one_by_one(payloads)
    assert by_column(pa.array(payloads, pa.binary())) == expected
    for row in expected[1]:
        try:
            assert isinstance(damage(payloads[row], 1, row, TAG), EnvelopeDamaged)
        except NewerFormat:
            assert payloads[row][2] > VERSION


def test_a_body_that_its_columns_overrun_or_do_not_fill_is_refused():
    columns = RecordColumns(1)
    columns.add(b"abc", 5, b"k", b"i", 7)
    good = encode_records(columns, StreamMarks(3))
    overrun, longer = bytearray(good), bytearray(good + b"x")
    overrun[8:12] = (4_000).to_bytes(4, "little")
    longer[12:16] = (len(good) - HEADER_BYTES + 1).to_bytes(4, "little")
    for body in map(bytes, (overrun, longer)):
        assert by_column(pa.array([body])) == one_by_one([body]) == ([], [0])
    with pytest.raises(InvariantViolation, match="is an envelope after all"):
        damage(good, 1, 1, TAG)


def test_nothing_at_all_is_nothing():
    assert list(decode(pa.array([], pa.binary()))) == []
    assert by_column(pa.array([b"", b"x" * HEADER_BYTES])) == ([], [0, 1])
