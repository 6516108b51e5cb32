"""Stream entries that no writer makes are refused, decoded one by one and as columns alike."""

from __future__ import annotations

import struct

import pyarrow as pa
import pytest

from tallybook.core.errors import EnvelopeDamaged
from tallybook.stream.records import columnar
from tallybook.stream.records.compression import Compression, compressed, decompressed
from tallybook.stream.records.envelope import (
    Envelope,
    EnvelopeKind,
    RecordColumns,
    StreamMarks,
    encode_mark,
    encode_records,
)


@pytest.mark.parametrize("compression", [Compression.ZSTD, Compression.LZ4])
@pytest.mark.parametrize("told", [0, 1, 199, 201, 5_000])
def test_a_body_shorter_or_longer_than_announced_is_refused(compression: Compression, told: int):
    """The missing bytes would be read from uninitialized memory."""
    _, body = compressed(b"x" * 200, compression)
    assert decompressed(memoryview(body), compression, 200) == b"x" * 200
    with pytest.raises(EnvelopeDamaged):
        decompressed(memoryview(body), compression, told)


def refused_both_ways(payload: bytes) -> None:
    with pytest.raises(EnvelopeDamaged):
        Envelope(payload, 1, 0, "5f0c9a21")
    [found] = columnar.decode(pa.array([payload], pa.binary()))
    assert not found.good.any()
    assert "entry 0 of segment 1" in str(columnar.damage(payload, 1, 0, "5f0c9a21"))


def test_a_mark_that_says_it_is_compressed_is_no_envelope():
    mark = bytearray(encode_mark(EnvelopeKind.KEEP_ALIVE, StreamMarks(7), 5))
    mark[4] = Compression.ZSTD
    refused_both_ways(bytes(mark))


def test_records_whose_numbers_would_not_fit_are_no_envelope():
    columns = RecordColumns(0)
    for _ in range(2):
        columns.add(b"x", None, None, None, None)
    payload = bytearray(encode_records(columns, StreamMarks(7)))
    struct.pack_into("<q", payload, 16, 2**63 - 2)
    refused_both_ways(bytes(payload))
