"""Every table gives the same rows, of the same moments, whatever the settings of the session are."""

from datetime import UTC, datetime

import pytest
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import TimestampType

from tallybook.spark import read_ledgers
from tallybook.spark.tables import TABLES

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


def found(frame):
    """The rows of a table as values that no setting changes, with the number of microseconds of each moment."""
    times = [field.name for field in frame.schema if isinstance(field.dataType, TimestampType)]
    plain = frame.withColumns({name: F.unix_micros(name) for name in times})
    return frame.schema, sorted(map(repr, plain.collect()))


def every_table(spark, load, metadata, moments):
    yield "entries", load(metadata, includeMetadata=True)
    yield "entries between", load(metadata, **moments)
    yield "ledgers scanned", read_ledgers(spark, metadata)
    yield "ledgers scanned between", read_ledgers(spark, metadata, **moments)
    yield "records", load(metadata, stream="orders", includeMetadata=True)
    yield "records scanned", read_ledgers(spark, metadata, stream="orders")
    yield "records from", load(metadata, stream="orders", startingPosition=moments["startingTime"])
    for table in TABLES:
        yield table, load(metadata, table=table)


@pytest.fixture(scope="module")
def as_always(written, moments, spark, load):
    return {name: found(table) for name, table in every_table(spark, load, written.metadata, moments)}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_no_setting_of_the_session_changes_a_row(written, moments, spark, load, as_always, settings):
    before = {name: spark.conf.get(name) for name in settings}
    try:
        for name, value in settings.items():
            spark.conf.set(name, value)
        for name, table in every_table(spark, load, written.metadata, moments):
            assert found(table) == as_always[name], name
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)


def test_the_rows_that_are_compared_are_there(as_always):
    assert all(rows for _, rows in as_always.values())
    assert len(as_always["ledgers scanned between"][1]) < len(as_always["ledgers scanned"][1])
