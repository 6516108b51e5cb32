"""Fuzz target: entries of streams, decoded one by one and as columns, which accept and refuse the same ones."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pyarrow as pa

from tallybook.core.errors import EnvelopeDamaged
from tallybook.stream.records import columnar
from tallybook.stream.records.compression import Compression, decompressed
from tallybook.stream.records.envelope import (
    HEADER_BYTES,
    START,
    Envelope,
    EnvelopeKind,
    Record,
    RecordColumns,
    StreamMarks,
    encode_mark,
    encode_records,
)

from ..harness import REFUSED, Target, attempt, same

TARGET = Target("envelopes", words=(b"TS\x01\x00", b"TS\x01\x02", b"\xff" * 4, b"\xff" * 8, b"\x28\xb5\x2f\xfd"))

TAG = "5f0c9a21"
RAW_BYTES_AT = 12


def _columns(*records: tuple[bytes, int | None, bytes | None, bytes | None, int | None]) -> RecordColumns:
    columns = RecordColumns(1_700_000_000_000)
    for record in records:
        columns.add(*record)
    return columns


def some_envelopes() -> Iterator[bytes]:
    """Plain, full and compressed envelopes, and marks."""
    marks = StreamMarks(7, 5, 3, 2)
    yield encode_records(_columns((b"hello", None, None, None, None)), START)
    yield encode_records(
        _columns((b"a", 5, b"k", b"id", 9), (b"", None, None, None, None), (b"c", 7, b"", b"x", -1)), marks
    )
    yield encode_records(_columns((b"a", None, b"key", None, None), (b"b", None, None, b"id", None)), marks)
    for compression in (Compression.ZSTD, Compression.LZ4):
        yield encode_records(_columns(*[(b"x" * 50, at, b"k", None, at) for at in range(5)]), marks, compression)
    for kind in (EnvelopeKind.KEEP_ALIVE, EnvelopeKind.END_OF_SEGMENT, EnvelopeKind.END_OF_STREAM):
        yield encode_mark(kind, marks, 5)


def _fitting(data: bytes) -> bytes:
    """``data`` with its own size in the size field of an uncompressed envelope."""
    if len(data) < HEADER_BYTES:
        return data
    return data[:RAW_BYTES_AT] + struct.pack("<I", len(data) - HEADER_BYTES) + data[RAW_BYTES_AT + 4 :]


@TARGET.decoder(
    "stream/records/envelope.py:Envelope.__init__",
    "stream/records/envelope.py:Envelope.columns",
    "stream/records/envelope.py:Envelope.records",
    "stream/records/envelope.py:_columns",
    "stream/records/envelope.py:_columns.numbers",
    "stream/records/columnar.py:decode",
    "stream/records/columnar.py:damage",
    "stream/records/columnar.py:_bytes_of",
    "stream/records/columnar.py:_headers",
    "stream/records/columnar.py:_bodies",
    "stream/records/columnar.py:_Bodies.__init__",
    "stream/records/columnar.py:_Bodies._numbers",
    seeds=some_envelopes,
)
def envelope(data: bytes) -> None:
    """An envelope alone, and among valid ones."""
    for given in {data, _fitting(data)}:
        records = attempt(EnvelopeDamaged, _read, given)
        # Small pieces have one envelope each.
        _hold_against_columns(records, [SOUND, given, SOUND], 1, 1 if len(given) % 2 else 1 << 20)
        if isinstance(records, list) and records:
            _comes_back(given, records)


def _read(payload: bytes) -> list[Record]:
    found = Envelope(payload, 3, 5, TAG)
    return found.records() if found.count else []


SOUND = encode_records(_columns((b"sound", 1, b"k", b"id", 2)), START)


def _hold_against_columns(records: object, batch: list[bytes], at: int, piece_bytes: int) -> None:
    """Columns have the records that are read one by one, and ``damage`` has words for what they do not take."""
    goods: list[bool] = []
    told: list[tuple[object, ...]] = []
    for piece in columnar.decode(pa.array(batch, pa.binary()), piece_bytes):
        goods += piece.good.tolist()
        columns = (piece.payload, piece.key, piece.dedup_id, piece.txid)
        for column in columns:
            column.validate(full=True)
        numbers = (piece.row, piece.timestamp_ms, piece.record_sequence)
        rows = zip(*(each.tolist() for each in (*numbers, *columns)), strict=True)
        told += [row[1:] for row in rows if row[0] == at]
    same(goods, [True, records is not REFUSED, True], "whether it is an envelope")
    if isinstance(records, list):
        wanted = [
            (each.timestamp_ms, each.sequence, each.payload, each.key, each.dedup_id, each.txid) for each in records
        ]
        same(told, wanted, "the records")
    else:
        columnar.damage(batch[at], 3, 5, TAG)


def _comes_back(data: bytes, records: list[Record]) -> None:
    default = Envelope(data, 3, 5, TAG).default_time
    columns = RecordColumns(default)
    for each in records:
        columns.add(each.payload, each.timestamp_ms, each.key, each.dedup_id, each.txid)
    again = _read(encode_records(columns, StreamMarks(records[0].sequence)))
    same(
        [each._as_tuple()[1:] for each in again],
        [each._as_tuple()[1:] for each in records],
        "the records of an envelope",
    )


def some_bodies() -> Iterator[bytes]:
    """Compression kind, declared size, and body."""
    for number, codec in ((1, "zstd"), (2, "lz4_raw")):
        for told in (199, 200, 201, 5000):
            yield bytes([number - 1]) + struct.pack("<H", told) + pa.compress(b"x" * 200, codec=codec, asbytes=True)


@TARGET.decoder("stream/records/compression.py:decompressed", "stream/records/compression.py:_fits", seeds=some_bodies)
def body(data: bytes) -> None:
    """A body that does not decompress to the declared size is refused; others give the same bytes each time."""
    compression = Compression(1 + (data[0] if data else 0) % 2)
    raw_bytes, packed = int.from_bytes(data[1:3], "little"), memoryview(data[3:])
    found = attempt(EnvelopeDamaged, decompressed, packed, compression, raw_bytes)
    if found is not REFUSED:
        same(len(found), raw_bytes, "bytes of a body")
        for other in (raw_bytes + 1, raw_bytes + 100, raw_bytes - 1):
            if other >= 0:
                same(
                    attempt(EnvelopeDamaged, decompressed, packed, compression, other),
                    REFUSED,
                    f"taken for {other} bytes",
                )
