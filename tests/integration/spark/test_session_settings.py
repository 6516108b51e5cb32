"""Every table gives the same rows with the same timestamps under any settings of the Spark session."""

import io
import json
from datetime import UTC, datetime
from decimal import Decimal

import fastavro
import pyarrow as pa
import pytest
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import TimestampType

from tallybook.spark import read_ledgers
from tallybook.spark.ledgers.tables import TABLES

pytestmark = pytest.mark.nightly

SETTINGS = {
    "other readings of time": {
        "spark.sql.timestampType": "TIMESTAMP_NTZ",
        "spark.sql.session.timeZone": "America/New_York",
        "spark.sql.legacy.timeParserPolicy": "LEGACY",
        "spark.sql.parquet.datetimeRebaseModeInRead": "LEGACY",
        "spark.sql.parquet.inferTimestampNTZ.enabled": "false",
    },
    "other readings of names and numbers, other batches": {
        "spark.sql.caseSensitive": "true",
        "spark.sql.ansi.enabled": "false",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "3",
        "spark.sql.execution.arrow.useLargeVarTypes": "true",
        "spark.sql.parquet.enableVectorizedReader": "false",
        "spark.sql.parquet.binaryAsString": "true",
    },
}


DDL = (
    "s STRING, timestamp TIMESTAMP, local TIMESTAMP_NTZ, day DATE, many ARRAY<TIMESTAMP>, exact DECIMAL(9, 2), b BINARY"
)
TEXT = {"s": "x", "timestamp": "2026-11-01T01:02:03.000004Z", "local": "2026-11-01T01:02:03.000004",
        "day": "2026-11-01", "many": ["2026-11-01T01:02:03Z"], "exact": 1.25, "b": "eA=="}  # fmt: skip
MOMENT = datetime(2026, 11, 1, 1, 2, 3, 4, UTC)
AVRO = {"type": "record", "name": "R", "fields": [
    {"name": "timestamp", "type": ["null", {"type": "long", "logicalType": "timestamp-micros"}]},
    {"name": "local", "type": {"type": "long", "logicalType": "local-timestamp-micros"}},
    {"name": "either", "type": ["int", "long", "string"]},
    {"name": "day", "type": {"type": "int", "logicalType": "date"}},
]}  # fmt: skip


def avro():
    out = io.BytesIO()
    value = {"timestamp": MOMENT, "local": MOMENT.replace(tzinfo=None), "either": 7, "day": MOMENT.date()}
    fastavro.schemaless_writer(out, fastavro.parse_schema(AVRO), value)
    return out.getvalue()


def arrow():
    moment = pa.timestamp("us", "UTC")
    columns = {
        "s": pa.array(["x"]), "timestamp": pa.array([MOMENT], moment), "local": pa.array([MOMENT.replace(tzinfo=None)]),
        "day": pa.array([MOMENT.date()]), "many": pa.array([[MOMENT]], pa.list_(moment)),
        "exact": pa.array([Decimal("1.25")], pa.decimal128(9, 2)), "b": pa.array([b"x"]),
    }  # fmt: skip
    table, out = pa.table(columns), io.BytesIO()
    with pa.ipc.new_stream(out, table.schema) as stream:
        stream.write_table(table)
    return out.getvalue()


@pytest.fixture(scope="module")
def moments(written, streams):
    """Two moments, with ledgers and records before, between and behind them, in the archive and at bookies."""
    streams.create("orders", roll_bytes=1024, offload_after=0)
    streams.append("orders", [b"%d" % number + b"." * 100 for number in range(40)])
    written.ledger([b"archived %d" % number for number in range(20)])
    first = datetime.now(UTC).isoformat()
    written.ledger([b"later"] * 20)
    written.offload("deletion_lag_s=0")
    second = datetime.now(UTC).isoformat()
    written.ledger([b"at bookies"] * 20, close=False)
    streams.append("orders", [b"%d" % number for number in range(40, 60)], rest=False)
    return {"startingTime": first, "endingTime": second}


@pytest.fixture(scope="module")
def parsed(written):
    """Options of queries that parse payloads, by their format; the last payload of each ledger does not fit."""
    schemas = {"json": DDL, "arrow": DDL, "avro": json.dumps(AVRO)}
    good = {"json": json.dumps(TEXT).encode(), "arrow": arrow(), "avro": avro()}
    return {
        kind: {"ledger": written.ledger([good[kind], b"bad"]), "payloadFormat": kind, "payloadSchema": schema}
        for kind, schema in schemas.items()
    }


def found(frame):
    """The rows of a table as values that no setting changes, with the number of microseconds of each moment."""
    times = [field.name for field in frame.schema if isinstance(field.dataType, TimestampType)]
    plain = frame.withColumns({name: F.unix_micros(name) for name in times})
    return frame.schema, sorted(map(repr, plain.collect()))


def every_table(spark, load, metadata, moments, parsed):
    yield "entries", load(metadata, includeMetadata=True)
    yield "entries between", load(metadata, **moments)
    yield "ledgers scanned", read_ledgers(spark, metadata)
    yield "ledgers scanned between", read_ledgers(spark, metadata, **moments)
    yield "records", load(metadata, stream="orders", includeMetadata=True)
    yield "records scanned", read_ledgers(spark, metadata, stream="orders")
    yield "records from", load(metadata, stream="orders", startingPosition=moments["startingTime"])
    for kind, options in parsed.items():
        yield kind, load(metadata, **options)
    for table in TABLES:
        yield table, load(metadata, table=table)


@pytest.fixture(scope="module")
def as_always(written, moments, parsed, spark, load):
    return {name: found(table) for name, table in every_table(spark, load, written.metadata, moments, parsed)}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_no_setting_of_the_session_changes_a_row(written, moments, parsed, spark, load, as_always, settings):
    before = {name: spark.conf.get(name) for name in settings}
    try:
        for name, value in settings.items():
            spark.conf.set(name, value)
        for name, table in every_table(spark, load, written.metadata, moments, parsed):
            assert found(table) == as_always[name], name
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)


def test_the_rows_that_are_compared_are_there(as_always):
    assert all(rows for _, rows in as_always.values())
    for kind in ("json", "arrow", "avro"):
        bad, good = sorted(as_always[kind][1], key=lambda row: "bad_reason=None" in row)
        assert "value=None" in bad
        assert "value=Row(" in good
    assert len(as_always["ledgers scanned between"][1]) < len(as_always["ledgers scanned"][1])
