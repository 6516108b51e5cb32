"""Streams as tables of Spark: each record once, from bookies or archive, and missing ones are reported."""

import pytest
from pyspark.errors import PySparkException

from tallybook.spark import read_ledgers, take_snapshot
from tallybook.stream.records.record import Outgoing

SMALL = {"roll_bytes": 1024, "offload_after": 0}
"""A policy with which a segment is full after a few records."""


def numbered(count, first=0, size=100):
    return [b"%d" % n + b"." * size for n in range(first, first + count)]


def payloads_of(frame):
    """The payloads of a table of records, in the order that Spark gives."""
    return [bytes(row.payload) for row in frame.select("payload").collect()]


@pytest.fixture(scope="module")
def mixed(written, streams):
    """A stream of many segments: some archived, some at bookies, the last one open."""
    streams.create("orders/eu", **SMALL)
    streams.append("orders/eu", numbered(120))
    written.offload()
    streams.append("orders/eu", numbered(60, 120))
    streams.append("orders/eu", numbered(20, 180), rest=False)
    return "orders/eu"


def test_records_are_read_in_order_wherever_they_are(written, load, streams, mixed):
    frame = load(written.metadata, stream=mixed, includeMetadata=True)
    rows = frame.collect()
    assert [bytes(row.payload) for row in rows] == streams.payloads(mixed)
    assert [row.position for row in rows] == streams.positions(mixed)
    assert [row.sequence for row in rows] == list(range(200))
    assert {row.stream for row in rows} == {mixed}
    assert {row.tier for row in rows} == {"archive", "bookies"}
    assert len({row.segment for row in rows}) > 2
    split = load(written.metadata, stream=mixed, minPartitions=4, maxBytesPerPartition="2k")
    assert split.rdd.getNumPartitions() > 4
    assert payloads_of(split) == streams.payloads(mixed)


def test_what_a_record_carries_is_in_columns(written, load, streams):
    streams.create("rich")
    streams.append(
        "rich",
        [
            Outgoing(b'{"n": 1}', 1_793_491_200_000, b"k", b"id", 7),
            Outgoing(b'{"n": "x"}', 1_793_491_200_001, None, None, None),
            Outgoing(b"", -(2**62), b"", None, 8),
        ],
    )
    rows = load(written.metadata, stream="rich", includeMetadata=True).collect()
    assert [(row.key, row.txid, row.dedup_id, row.timestamp_ms, row.slot) for row in rows] == [
        (b"k", 7, b"id", 1_793_491_200_000, 0), (None, None, None, 1_793_491_200_001, 1), (b"", 8, None, -(2**62), 2)
    ]  # fmt: skip
    assert rows[2].timestamp is None, "Spark has no such time"
    parsed = load(written.metadata, stream="rich", payloadFormat="json", payloadSchema="n INT")
    assert [row.value.n if row.value else row.bad_payload for row in parsed.collect()] == [1, b'{"n": "x"}', b""]


def test_reading_begins_and_ends_at_the_given_positions(written, load, streams, mixed):
    whole, positions = streams.payloads(mixed), streams.positions(mixed)
    for start, end, first, last in (
        ("earliest", "latest", 0, 200), (positions[57], "latest", 57, 200), ("earliest", positions[57], 0, 57),
        ("sequence:30", "sequence:190", 30, 190), ("sequence:500", "latest", 200, 200), ("latest", "latest", 200, 200),
        (positions[3], positions[3], 3, 3), ("1970-01-01", "2100-01-01", 0, 200), ("2100-01-01", "latest", 200, 200),
    ):  # fmt: skip
        frame = load(written.metadata, stream=mixed, startingPosition=start, endingPosition=end)
        assert payloads_of(frame) == whole[first:last], (start, end)
    streams.create("ids")
    streams.append("ids", [Outgoing(b"%d" % n, 1_000_000 * n, None, None, n // 2) for n in range(20)])
    frame = load(written.metadata, stream="ids", startingPosition="txid:3", endingPosition="1970-01-01T04:30:00Z")
    assert payloads_of(frame) == [b"%d" % n for n in range(6, 17)]


@pytest.mark.nightly
def test_a_place_that_cannot_be_is_refused_by_name(written, load, streams, mixed):
    streams.create("other")
    streams.append("other", [b"x"])
    [foreign] = streams.positions("other")
    tag = foreign.partition("@")[2]
    for options, said in (
        ({"stream": mixed, "startingPosition": foreign}, "position of another stream"),
        ({"stream": "other", "startingPosition": f"9-0-0@{tag}"}, "end of stream other"),
        ({"stream": "other", "startingPosition": f"1-900-0@{tag}"}, "end of"),
        ({"stream": "no/such"}, "there is no stream 'no/such'"),
        ({"stream": mixed, "startingPosition": "latest", "endingPosition": "sequence:3"}, "is before startingPos"),
    ):
        with pytest.raises(PySparkException, match=said):
            load(written.metadata, **options).collect()


def test_what_is_archived_is_scanned_as_parquet_and_each_record_is_there_once(written, spark, load, streams, mixed):
    positions = streams.positions(mixed)
    for options in (
        {},
        {"startingPosition": positions[7], "endingPosition": positions[33]},
        {"startingPosition": "sequence:50", "endingPosition": "sequence:185", "includeMetadata": True},
        {"failOnDataLoss": False},
    ):
        table = read_ledgers(spark, written.metadata, stream=mixed, **options)
        assert "FileScan parquet" in table._jdf.queryExecution().toString()
        expected = load(written.metadata, stream=mixed, **options)
        assert table.schema == expected.schema
        assert sorted(table.collect(), key=lambda row: row.sequence) == expected.collect()


def test_a_pattern_reads_several_streams(written, load, streams, mixed):
    streams.create("orders/us", **SMALL)
    streams.create("orders/us/empty")
    streams.append("orders/us", numbered(30, 1000))
    frame = load(written.metadata, streamPattern="orders/*")
    found = {name: [] for name in (mixed, "orders/us")}
    for row in frame.collect():
        found[row.stream].append(bytes(row.payload))
    assert found == {name: streams.payloads(name) for name in found}
    assert load(written.metadata, streamPattern="orders/**").count() == 230
    assert load(written.metadata, streamPattern="none/*").count() == 0


@pytest.mark.nightly
def test_truncated_records_fail_the_query_or_are_reported(written, load, streams):
    streams.create("short", **SMALL)
    streams.append("short", numbered(100))
    positions = streams.positions("short")
    token = take_snapshot(written.metadata, stream="short")
    streams.do(lambda store: store.truncate("short", before=positions[40]))
    assert payloads_of(load(written.metadata, stream="short")) == streams.payloads("short")[40:]
    for options in (
        {"stream": "short", "startingPosition": positions[7]},
        {"stream": "short", "startingPosition": "sequence:7"},
        {"snapshot": token},
    ):
        with pytest.raises(PySparkException, match="truncated: the stream begins at record 40"):
            load(written.metadata, **options).collect()
        table = load(written.metadata, failOnDataLoss=False, **options)
        [gap] = table.where("gap IS NOT NULL").collect()
        assert (gap.gap.kind, gap.gap.last) == ("truncated", 39)
        assert payloads_of(table.where("gap IS NULL")) == streams.payloads("short")[40:]


def test_a_snapshot_gives_the_same_records_after_rolls_and_offload(written, spark, load, streams):
    streams.create("kept", **SMALL)
    streams.append("kept", numbered(50))
    streams.append("kept", numbered(5, 50), rest=False)
    token = take_snapshot(written.metadata, stream="kept")
    before = load(written.metadata, snapshot=token).collect()
    assert [bytes(row.payload) for row in before] == streams.payloads("kept")
    streams.append("kept", numbered(50, 55))
    written.offload()
    assert load(written.metadata, snapshot=token).collect() == before
    again = read_ledgers(spark, written.metadata, snapshot=token).collect()
    assert sorted(again, key=lambda row: row.sequence) == before
    assert load(written.metadata, stream="kept").count() == 105


@pytest.mark.nightly
def test_a_segment_that_is_gone_is_lost_data(written, load, streams):
    streams.create("torn", **SMALL)
    streams.append("torn", numbered(60))
    rows = load(written.metadata, stream="torn", includeMetadata=True).collect()
    ledger = rows[25].ledger_id
    gone = [row.sequence for row in rows if row.ledger_id == ledger]
    written.entries[ledger] = []
    written.delete(ledger)
    with pytest.raises(PySparkException, match=f"record {gone[0]} to record {gone[-1]}, from .* lost"):
        load(written.metadata, stream="torn").collect()
    table = load(written.metadata, stream="torn", failOnDataLoss=False)
    [gap] = table.where("gap IS NOT NULL").collect()
    assert (gap.gap.kind, gap.gap.first, gap.gap.last) == ("lost", gone[0], gone[-1])
    assert table.where("gap IS NULL").count() == 60 - len(gone)
