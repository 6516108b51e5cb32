"""Streams followed by Spark: each record in one micro-batch, over rolls, restarts, offload and new streams."""

import itertools
import json

import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException

SMALL = {"roll_bytes": 1024, "offload_after": 0}
"""A policy with which a segment is full after a few records."""


@pytest.fixture
def follow(spark, written, tmp_path):
    """Read streams to what is there by now, from where the last run has ended: sizes of batches, and the records."""
    outputs = itertools.count()

    def work(**options):
        output = tmp_path / f"out-{next(outputs)}"
        frame = spark.readStream.format("tallybook").option("metadata", written.metadata).options(**options).load()
        query = (
            frame.select("stream", "sequence", "payload").writeStream.format("parquet")
            .option("path", str(output)).option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True).start()
        )  # fmt: skip
        try:
            assert query.awaitTermination(100)
            sizes = {progress.batchId: progress.numInputRows for progress in query.recentProgress}
        finally:
            query.stop()
        rows = [row for file in output.glob("*.parquet") for row in pq.read_table(file, partitioning=None).to_pylist()]
        records = sorted(tuple(row.values()) for row in rows if row["payload"] is not None)
        return [size for _, size in sorted(sizes.items()) if size], records

    return work


def numbered(count, first=0):
    return [b"%d" % n + b"." * 100 for n in range(first, first + count)]


def test_records_of_the_open_segment_come_and_none_comes_twice_over_restarts_rolls_and_offload(
    written, streams, follow, tmp_path
):
    streams.create("followed", **SMALL)
    streams.append("followed", numbered(30), rest=False)
    sizes, rows = follow(stream="followed", maxEntriesPerTrigger=12)
    assert sizes == [12, 12, 6]
    streams.append("followed", numbered(25, 30))
    written.offload()
    streams.append("followed", numbered(5, 55), rest=False)
    sizes, more = follow(stream="followed", maxBytesPerTrigger="1m")
    assert sizes == [30]
    assert [(sequence, payload) for _, sequence, payload in rows + more] == list(
        enumerate(streams.payloads("followed"))
    )
    assert follow(stream="followed") == ([], []), "the checkpoint knows what was read"

    # The last batch is run again, though there is more by now: it has the same records.
    for commit in (tmp_path / "checkpoint" / "commits").glob("*3*"):
        commit.unlink()
    streams.append("followed", numbered(4, 60))
    sizes, again = follow(stream="followed")
    assert sizes == [30, 4]
    assert again[:30] == more

    offset = json.loads((tmp_path / "checkpoint" / "offsets" / "3").read_text().splitlines()[-1])
    [reached] = offset["streams"].values()
    assert (reached["name"], reached["sequence"]) == ("followed", 60)


def test_the_progress_of_a_query_says_how_many_records_it_has_yet_to_read(written, spark, streams, tmp_path):
    for name, count in (("lag/a", 30), ("lag/b", 4)):
        streams.create(name, **SMALL)
        streams.append(name, numbered(count))
    frame = spark.readStream.format("tallybook").options(
        metadata=written.metadata, streamPattern="lag/*", maxEntriesPerTrigger=20
    )  # fmt: skip
    query = (
        frame.load().writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True).start()
    )  # fmt: skip
    try:
        assert query.awaitTermination(100)
        reports = [json.loads(progress.sources[0].latestOffset) for progress in query.recentProgress]
    finally:
        query.stop()
    assert [report["behind"]["records"] for report in reports[:2]] == [14, 0]
    by_name = {each["name"]: (each["sequence"], each["behind"]) for each in reports[0]["streams"].values()}
    assert by_name == {"lag/a": (30, 14), "lag/b": (4, 0)}


@pytest.mark.nightly
def test_bytes_bound_a_batch(streams, follow):
    streams.create("bounded", **SMALL)
    streams.append("bounded", numbered(40))
    sizes, rows = follow(stream="bounded", maxBytesPerTrigger="1k")
    assert len(rows) == 40
    assert len(sizes) > 3
    assert max(sizes) < 15


def test_a_query_may_begin_behind_what_is_there(streams, follow):
    streams.create("late", **SMALL)
    streams.append("late", numbered(3), rest=False)
    assert follow(stream="late", startingPosition="latest") == ([], [])
    streams.append("late", numbered(2, 3))
    _, rows = follow(stream="late", startingPosition="latest")
    assert [sequence for _, sequence, _ in rows] == [3, 4]


def test_streams_that_come_to_fit_a_pattern_are_read_from_their_beginning(streams, follow):
    streams.create("all/a", **SMALL)
    streams.append("all/a", numbered(20))
    sizes, rows = follow(streamPattern="all/*", startingPosition="sequence:15")
    assert [sequence for _, sequence, _ in rows] == [15, 16, 17, 18, 19]
    streams.create("all/b", **SMALL)
    streams.append("all/b", numbered(9))
    streams.append("all/a", numbered(11, 20))
    sizes, rows = follow(streamPattern="all/*", maxEntriesPerTrigger=10)
    assert sizes == [10, 10]
    assert [(name, sequence) for name, sequence, _ in rows] == [
        *(("all/a", n) for n in range(20, 31)), *(("all/b", n) for n in range(9))
    ]  # fmt: skip


@pytest.mark.nightly
def test_records_truncated_or_deleted_under_a_query_fail_it_or_are_reported(streams, follow):
    streams.create("cut/a", **SMALL)
    streams.append("cut/a", numbered(20))
    follow(streamPattern="cut/*")
    streams.append("cut/a", numbered(40, 20))
    positions = streams.positions("cut/a")
    streams.do(lambda store: store.truncate("cut/a", before=positions[50]))
    with pytest.raises(PySparkException, match="truncated: the stream begins at record 50"):
        follow(streamPattern="cut/*")
    _, rows = follow(streamPattern="cut/*", failOnDataLoss=False)
    assert [sequence for _, sequence, _ in rows] == [*range(50, 60)]
    streams.do(lambda store: store.delete("cut/a"))
    with pytest.raises(PySparkException, match=r"stream cut/a with id .* was deleted while it was read"):
        follow(streamPattern="cut/*")
    assert follow(streamPattern="cut/*", failOnDataLoss=False)[1] == []


@pytest.mark.nightly
def test_what_is_no_stream_to_follow_is_refused(streams, follow):
    for options, said in (
        ({"stream": "nowhere"}, "there is no stream 'nowhere'"),
        ({"streamPattern": "x", "endingPosition": "sequence:4"}, "in batches only"),
    ):
        with pytest.raises(PySparkException, match=said):
            follow(**options)
