"""Fuzz target: options of queries, offsets, snapshots, schemas, and payloads decoded as JSON, Avro or Arrow."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from functools import cache

import fastavro
import pyarrow as pa
from pyspark.sql import types as spark

from tallybook.archive.format.schema import SCHEMA
from tallybook.core.errors import InvalidArgument, InvalidConfig
from tallybook.spark.ledgers.offset import StreamOffset
from tallybook.spark.options import PayloadOptions, batch_options, read_options, write_options
from tallybook.spark.payloads.avro_types import ddl_of
from tallybook.spark.payloads.payloads import Parser, parser_of, value_ddl
from tallybook.spark.query.id_ranges import IdRanges
from tallybook.spark.query.snapshot import parse_snapshot
from tallybook.spark.streams.offsets import RecordOffset

from ..harness import REFUSED, Target, attempt, same
from ..mutations import JSON_WORDS, spoiled

TARGET = Target(
    "spark_inputs",
    words=(
        *JSON_WORDS,
        b'"type"',
        b'"record"',
        b'"fields"',
        b'"null"',
        b'"logicalType"',
        b"=64m\n",
        b"\xff\xff\xff\xff",
    ),
)

STREAM = "5f0c9a21" * 4


def some_options() -> Iterator[bytes]:
    """Names and values, one per line."""
    yield b"metadata=sqlite:///m.db\nledgers=1,5-9\nstartingEntry=3\nendingTime=2026-11-01\ntier=archive"
    yield b"metadata=memory:\nstream=orders/eu\nstartingPosition=txid:42\nendingPosition=3-1842-7@5f0c9a21"
    yield b"archive=s3://b\nmaxBytesPerPartition=64m\npayloadFormat=json\npayloadSchema=a INT\nbadRecords=fail"
    yield b"metadata=memory:\nsink=sales\ntransaction=17\nensemble=3\nwriteQuorum=2\nackQuorum=2"
    yield b"metadata=memory:\nstream=orders/eu\ncreateStream=true\nnamespace=eu\npath=x"
    yield b'metadata=memory:\nsnapshot={"tallybook_snapshot":1,"ledgers":[]}'
    yield b"metadata=memory:\npayloadFormat=avro\npayloadSchema=" + b"[" * 5_000
    yield b"metadata=memory:\npassword=\xff\xfe"
    yield b"metadata=memory:\nmaxBytesPerTrigger=" + b"9" * 400 + b"k"
    yield b"metadata=memory:\nmaxBytesPerTrigger=" + b"9" * 5_000
    yield b"metadata=memory:\nledger=" + "²".encode()


@TARGET.decoder(
    "spark/options.py:read_options",
    "spark/options.py:batch_options",
    "spark/options.py:write_options",
    "spark/options.py:_Options.parsed",
    "spark/options.py:_Options.number",
    "spark/options.py:_Options.size",
    "spark/options.py:_Options.time",
    "spark/options.py:_Options.payload",
    seeds=some_options,
)
def options(data: bytes) -> None:
    """Options of a query, of a stream, and of a sink."""
    lines = data.decode(errors="surrogateescape").split("\n")
    given = {name: value for name, _, value in (line.partition("=") for line in lines)}
    for understand in (read_options, batch_options, write_options):
        attempt(InvalidConfig, understand, given)


def some_texts() -> Iterator[bytes]:
    """Ranges of ids."""
    yield b"1,5-9"
    yield b" 7 - 9 , 8"
    yield b"0-9223372036854775807"


@TARGET.decoder("spark/query/id_ranges.py:IdRanges.parse", seeds=some_texts)
def id_ranges(data: bytes) -> None:
    """Sets of ids as ranges."""
    text = data.decode(errors="replace")
    found = attempt(InvalidArgument, IdRanges.parse, text)
    if found is not REFUSED:
        same(IdRanges.parse(str(found)), found, "a set of ids")


def some_offsets() -> Iterator[bytes]:
    """Offsets of ledgers, and of streams."""
    reached = {"name": "a", "from": "1-0-0@5f0c9a21", "at": "3-17-0@5f0c9a21", "sequence": 9}
    ledgers = {"v": 1, "cluster": "5f0c", "seen": "0-41,43", "within": [44, 5, 9], "ledgers": [[43, 0, 9]]}
    streams = {"v": 1, "cluster": "5f0c", "streams": {STREAM: reached}}
    yield from spoiled(json.dumps(ledgers).encode(), json.dumps(streams).encode())


@TARGET.decoder(
    "spark/ledgers/offset.py:StreamOffset.parse", "spark/streams/offsets.py:RecordOffset.parse",
    "spark/streams/offsets.py:_reached", seeds=some_offsets,
)  # fmt: skip
def offsets(data: bytes) -> None:
    """Offsets in a checkpoint. Spark passes them as decoded objects, so invalid JSON never gets here."""
    found = attempt((ValueError, RecursionError), json.loads, data)
    if not isinstance(found, dict):
        return
    for kind in (StreamOffset, RecordOffset):
        offset = attempt(InvalidArgument, kind.parse, found)
        if offset is not REFUSED:
            text = json.dumps(offset.json())
            same(kind.parse(json.loads(text)), offset, "an offset")
            text.encode()


def some_snapshots() -> Iterator[bytes]:
    """Snapshots of ledgers, and of streams."""
    range_ = {"stream": "a", "id": STREAM, "from": "1-0-0@5f0c9a21", "to": "3-17-0@5f0c9a21", "sequence": 0}
    entries, common = {"ledger": 7, "first": 0, "last": 9}, {"tallybook_snapshot": 1, "cluster": "5f0c"}
    ledgers = {**common, "ledgers": [entries], "written": {"first_us": 5}}
    yield from spoiled(json.dumps(ledgers).encode(), json.dumps({**common, "streams": [range_]}).encode())


@TARGET.decoder(
    "spark/query/snapshot.py:parse_snapshot",
    "spark/query/snapshot.py:Snapshot.of_json",
    "spark/query/snapshot.py:_range_of",
    "spark/query/snapshot.py:_time_of",
    "spark/query/record_snapshot.py:RecordSnapshot.of_json",
    "spark/query/record_snapshot.py:_range_of",
    seeds=some_snapshots,
)
def snapshots(data: bytes) -> None:
    """A snapshot of a table, stored by a user."""
    found = attempt(InvalidArgument, parse_snapshot, data.decode(errors="replace"))
    if found is not REFUSED:
        same(parse_snapshot(str(found)), found, "a snapshot")


FULL = {
    "type": "record", "name": "row",
    "fields": [
        {"name": "a", "type": "long"}, {"name": "b", "type": ["null", "string"]}, {"name": "c", "type": "bytes"},
        {"name": "d", "type": {"type": "array", "items": "double"}},
        {"name": "e", "type": {"type": "map", "values": "int"}},
        {"name": "f", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "g", "type": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}},
        {"name": "h", "type": {"type": "int", "logicalType": "date"}},
        {"name": "i", "type": {"type": "enum", "name": "e", "symbols": ["X", "Y"]}},
        {"name": "j", "type": {"type": "record", "name": "inner", "fields": [{"name": "k", "type": "boolean"}]}},
        {"name": "l", "type": "float"}, {"name": "m", "type": {"type": "fixed", "name": "x", "size": 4}},
    ],
}  # fmt: skip
ROW = {
    "a": 5, "b": None, "c": b"c", "d": [1.5, 2.5], "e": {"x": 1}, "f": 1_700_000_000_000_000, "g": b"\x01", "h": 17,
    "i": "X", "j": {"k": True}, "l": 0.5, "m": b"1234",
}  # fmt: skip


def some_schemas() -> Iterator[bytes]:
    """A schema with all types."""
    yield from spoiled(json.dumps(FULL).encode())
    nested = '{"type":"record","name":"r","fields":[{"name":"a","type":'
    yield (nested * 900 + '"int"' + "}]}" * 900).encode()
    yield (nested * 300 + '"int"' + "}]}" * 300).encode()


@TARGET.decoder(
    "spark/payloads/avro_types.py:ddl_of", "spark/payloads/avro_types.py:_ddl",
    "spark/payloads/avro_types.py:_of_mapping", "spark/payloads/avro_types.py:_decimal",
    "spark/payloads/payloads.py:value_ddl", "spark/payloads/payloads.py:_avro",
    "spark/payloads/avro_types.py:known_to_spark", "spark/payloads/avro_types.py:expanded",
    "spark/payloads/avro_types.py:schema_of", "spark/payloads/payloads.py:parser_of", seeds=some_schemas,
)  # fmt: skip
def schemas(data: bytes) -> None:
    """An Avro schema of an option, already parsed as JSON."""
    text = data.decode(errors="replace")
    found = attempt((ValueError, RecursionError), json.loads, text)
    if found is REFUSED:
        return
    attempt(InvalidConfig, ddl_of, found)
    avro = PayloadOptions("avro", text)
    if attempt(InvalidConfig, value_ddl, avro) is not REFUSED:
        attempt(InvalidConfig, parser_of, avro, _struct(value=spark.StructType([])))


def _struct(**fields: spark.DataType) -> spark.StructType:
    return spark.StructType([spark.StructField(name, kind) for name, kind in fields.items()])


@cache
def _parsers() -> dict[str, Parser]:
    inner = _struct(k=spark.BooleanType())
    plain = _struct(
        a=spark.LongType(), b=spark.StringType(), c=spark.BinaryType(), d=spark.ArrayType(spark.DoubleType()),
        e=spark.MapType(spark.StringType(), spark.IntegerType()), f=spark.TimestampType(), g=spark.DecimalType(10, 2),
        h=spark.DateType(), i=spark.StringType(), j=inner, l=spark.FloatType(), m=spark.BinaryType(),
    )  # fmt: skip
    text = _struct(
        a=spark.LongType(), b=spark.StringType(), d=spark.ArrayType(spark.DoubleType()), f=spark.TimestampType(),
        e=spark.MapType(spark.StringType(), spark.IntegerType()), g=spark.DecimalType(10, 2), h=spark.DateType(),
        j=inner, c=spark.BinaryType(), n=spark.MapType(spark.DateType(), spark.LongType()),
    )  # fmt: skip
    found = {
        "json": parser_of(PayloadOptions("json", "x"), _struct(value=text)),
        "avro": parser_of(PayloadOptions("avro", json.dumps(FULL)), _struct(value=plain)),
        "arrow": parser_of(PayloadOptions("arrow", "x"), _struct(value=text)),
        "json, or fail": parser_of(PayloadOptions("json", "x", "fail"), _struct(value=text)),
    }
    return {kind: parser for kind, parser in found.items() if parser is not None}


def _table(payloads: list[bytes]) -> pa.Table:
    count = len(payloads)
    columns = (
        pa.array([7] * count, pa.int64()),
        pa.array(range(count), pa.int64()),
        pa.array([5] * count, pa.timestamp("us", "UTC")),
        pa.array([1] * count, pa.uint32()),
        pa.array(payloads, pa.binary()),
    )
    return pa.Table.from_arrays(list(columns), schema=SCHEMA)


def _parsed(kind: str, data: bytes) -> None:
    """Any payload gives a row, and an undecodable one is kept beside it."""
    rows, columns = _parsers()[kind].parse(_table([data, b"{}"]))
    for column in columns.values():
        same(len(column), len(rows), "rows")
        column.validate(full=True)
    for reason, bad in zip(columns["bad_reason"].to_pylist(), columns["bad_payload"].to_pylist(), strict=True):
        same(reason is None, bad is None, "whether a payload is kept")


def some_json() -> Iterator[bytes]:
    """JSON objects."""
    yield from spoiled(
        b'{"a": 5, "b": "x", "d": [1.5], "f": "2026-11-01T00:00:00Z", "g": "1.50", "h": "2026-11-01"}',
        b'{"f": "2026-11-01 00:00:00.100000000-04:56:02", "g": 1.5, "d": ["NaN", 7], "c": "AP8=", "n": {"20758": 1}}',
        b'{"e": {"x": 1}, "j": {"k": true}}',
    )


@TARGET.decoder(
    "spark/payloads/payloads.py:RowParser.parse",
    "spark/payloads/payloads.py:RowParser._array",
    "spark/payloads/payloads.py:_json",
    "spark/payloads/json_values.py:_bytes",
    "spark/payloads/json_values.py:_day",
    "spark/payloads/json_values.py:_moment",
    seeds=some_json,
)
def json_payload(data: bytes) -> None:
    """A payload decoded as JSON."""
    _parsed("json", data)
    attempt(InvalidArgument, _parsed, "json, or fail", data)


def some_avro() -> Iterator[bytes]:
    """An Avro datum."""
    out = io.BytesIO()
    plain = json.loads(json.dumps(FULL).replace('"logicalType"', '"was"'))
    fastavro.schemaless_writer(out, fastavro.parse_schema(plain), ROW)
    yield out.getvalue()
    yield out.getvalue() + b"x"


@TARGET.decoder("spark/payloads/payloads.py:_avro.decode", seeds=some_avro)
def avro_payload(data: bytes) -> None:
    """A payload decoded as Avro."""
    _parsed("avro", data)


def some_arrow() -> Iterator[bytes]:
    """Arrow streams of a table: plain, compressed, with other column types, with a dictionary."""
    plain = pa.table({"a": [1, 2], "b": ["x", None], "d": [[1.5], []]})
    other = pa.table(
        {"a": pa.array(["7"]), "b": pa.array(["x"]).dictionary_encode(), "f": pa.array([5], pa.timestamp("ms"))}
    )
    for table, codec in ((plain, None), (plain, "zstd"), (plain, "lz4"), (other, None)):
        out = io.BytesIO()
        with pa.ipc.new_stream(out, table.schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as writer:
            writer.write_table(table)
        yield out.getvalue()


@TARGET.decoder(
    "spark/payloads/payloads.py:ArrowParser.parse", "spark/payloads/payloads.py:ArrowParser._rows", seeds=some_arrow
)
def arrow_payload(data: bytes) -> None:
    """A payload decoded as an Arrow stream."""
    _parsed("arrow", data)
