"""Ledgers as a stream of Spark, and streams of Spark as ledgers: each entry and each row exactly once."""

import itertools
import json
import threading
from dataclasses import dataclass

import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException


@pytest.fixture
def stream(spark, written):
    """``stream(option=value)``: closed ledgers as a stream."""
    return lambda **options: (
        spark.readStream.format("tallybook").option("metadata", written.metadata).options(**options).load()
    )


@dataclass
class Run:
    """The rows of a query: their number by micro-batch, all in order, and the lag after each batch."""

    sizes: dict[int, int]
    rows: list[tuple[int, int, bytes]]
    lags: list[dict[str, int]]


@pytest.fixture
def run_stream(tmp_path):
    """Run a stream to the end of what is there, from where the last run has ended."""
    outputs = itertools.count()

    def work(frame):
        output = tmp_path / f"out-{next(outputs)}"
        query = (
            frame.select("ledger_id", "entry_id", "payload").writeStream.format("parquet")
            .option("path", str(output)).option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True).start()
        )  # fmt: skip
        try:
            assert query.awaitTermination(60)
            sizes = {progress.batchId: progress.numInputRows for progress in query.recentProgress}
            latest = [json.loads(progress.sources[0].latestOffset) for progress in query.recentProgress]
            # A batch that is run again after a restart was planned before: nothing is reported of it.
            lags = [offset["behind"] for offset in latest if offset is not None]
        finally:
            query.stop()
        # Read without Spark, which wants the log of an output to begin with the first batch of its checkpoint.
        rows = [row for file in output.glob("*.parquet") for row in pq.read_table(file, partitioning=None).to_pylist()]
        return Run(
            {number: size for number, size in sizes.items() if size}, sorted(tuple(row.values()) for row in rows), lags
        )

    return work


def test_a_stream_reads_ledgers_once_they_are_closed_in_batches_of_bounded_size(written, stream, run_stream):
    first, second = written.ledger([b"%d" % n for n in range(250)]), written.ledger([b"x", b"", b"z"])
    chosen = f"{first},{second},{second + 1}-{second + 50}"
    found = run_stream(stream(ledgers=chosen, maxEntriesPerTrigger=100))
    assert list(found.sizes.values()) == [100, 100, 53]
    assert found.rows == written.rows(first, second)
    assert run_stream(stream(ledgers=chosen)).rows == [], "the checkpoint knows what was read"

    open_ = written.ledger([b"not", b"yet"], close=False)
    third = written.ledger([b"new"])
    assert run_stream(stream(ledgers=chosen)).rows == written.rows(third)
    written.up("ledger", "recover", open_)
    assert run_stream(stream(ledgers=chosen)).rows == written.rows(open_)


def test_a_batch_that_is_run_again_has_the_same_rows_though_more_has_closed(written, stream, run_stream, tmp_path):
    ledger = written.ledger([b"%d" % n for n in range(10)])
    chosen = f"{ledger}-{ledger + 50}"
    before = run_stream(stream(ledgers=chosen))
    assert (before.sizes, before.rows) == ({0: 10}, written.rows(ledger))
    (tmp_path / "checkpoint" / "commits" / "0").unlink()
    (tmp_path / "checkpoint" / "commits" / ".0.crc").unlink()
    later = written.ledger([b"later"])
    written.offload()
    again = run_stream(stream(ledgers=chosen))
    assert (again.sizes, again.rows) == ({0: 10, 1: 1}, written.rows(ledger, later))


def test_a_stream_may_begin_behind_what_is_there(written, stream, run_stream):
    ledger = written.ledger([b"old"])
    chosen = f"{ledger}-{ledger + 50}"
    assert run_stream(stream(ledgers=chosen, startingPosition="latest")).rows == []
    fresh = written.ledger([b"fresh"])
    assert run_stream(stream(ledgers=chosen, startingPosition="latest")).rows == written.rows(fresh)


@pytest.mark.nightly
def test_bytes_bound_a_batch(written, stream, run_stream):
    ledger = written.ledger([bytes(1000)] * 100)
    found = run_stream(stream(ledger=ledger, maxBytesPerTrigger="30k"))
    assert list(found.sizes.values()) == [30, 30, 30, 10]


def test_the_progress_of_a_query_says_what_it_has_yet_to_read(written, stream, run_stream):
    first, second = written.ledger([b"1234567890"] * 25), written.ledger([b"1234567890"] * 5)
    found = run_stream(stream(ledgers=f"{first},{second}", maxEntriesPerTrigger=10))
    assert [lag for lag in found.lags if lag["entries"]] == [
        {"ledgers": 2, "entries": 20, "bytes": 200}, {"ledgers": 2, "entries": 10, "bytes": 100}
    ]  # fmt: skip
    assert found.lags[-1] == {"ledgers": 0, "entries": 0, "bytes": 0}


@pytest.mark.nightly
def test_bounds_that_make_no_sense_for_a_stream_are_refused(stream, run_stream):
    for options in ({"startingEntry": 5}, {"tier": "bookies"}):
        with pytest.raises(PySparkException, match="readStream reads"):
            run_stream(stream(**options))


@pytest.fixture
def sink(spark, written, tmp_path):
    """Run the rows of a folder of text files into ledgers, to the end of what is there."""

    def work(**options):
        query = (
            spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(str(tmp_path / "in"))
            .selectExpr("value AS payload")
            .writeStream.format("tallybook").option("metadata", written.metadata)
            .option("checkpointLocation", str(tmp_path / "checkpoint")).options(**options)
            .trigger(availableNow=True).start()
        )  # fmt: skip
        try:
            assert query.awaitTermination(60)
        finally:
            query.stop()

    (tmp_path / "in").mkdir()
    return work


def in_view(load, written, name):
    """The payloads of a sink."""
    marked = load(written.metadata, table="ledgers").selectExpr(
        "ledger_id", "CAST(custom['tallybook.sink'] AS STRING) s"
    )
    chosen = [row.ledger_id for row in marked.where(f"s LIKE '{name}/%'").collect()]
    if not chosen:
        return []
    table = load(written.metadata).where(f"ledger_id IN ({','.join(map(str, chosen))})")
    return sorted(bytes(row.payload) for row in table.collect())


def test_a_stream_becomes_ledgers_exactly_once_even_if_its_last_batch_is_run_again(written, sink, load, tmp_path):
    (tmp_path / "in" / "a.txt").write_text("one\ntwo\n")
    (tmp_path / "in" / "b.txt").write_text("three\n")
    sink(sink="once")
    assert in_view(load, written, "once") == [b"one", b"three", b"two"]
    for commit in (tmp_path / "checkpoint" / "commits").glob("*1*"):
        commit.unlink()
    sink(sink="once")
    assert in_view(load, written, "once") == [b"one", b"three", b"two"]
    ledgers = load(written.metadata, table="ledgers")
    assert ledgers.where("map_contains_key(custom, 'tallybook.pending')").count() == 0, "an attempt was left behind"


@pytest.mark.nightly
def test_a_sink_belongs_to_one_checkpoint(written, sink, load, tmp_path):
    (tmp_path / "in" / "a.txt").write_text("one\n")
    sink(sink="mine")
    (tmp_path / "checkpoint").rename(tmp_path / "old")
    with pytest.raises(PySparkException, match="sink mine belongs to another writer"):
        sink(sink="mine")
    assert in_view(load, written, "mine") == [b"one"]


@pytest.mark.nightly
def test_a_batch_is_written_once_for_each_transaction(written, spark, load):
    frame = spark.createDataFrame([(b"1",), (b"2",)], "payload BINARY")

    def save(**options):
        frame.write.format("tallybook").option("metadata", written.metadata).options(**options).mode("append").save()

    for transaction in (7, 7, 8, 7):
        save(sink="daily", transaction=transaction)
    assert in_view(load, written, "daily") == [b"1", b"1", b"2", b"2"]
    save(sink="daily")
    assert len(in_view(load, written, "daily")) == 6
    before = load(written.metadata).count()
    save()
    assert load(written.metadata).count() == before + 2
    with pytest.raises(PySparkException, match=r"use mode\('append'\)"):
        frame.write.format("tallybook").option("metadata", written.metadata).mode("overwrite").save()


def test_a_write_that_fails_leaves_nothing_in_view(written, spark, load):
    before = load(written.metadata).count()
    frame = spark.createDataFrame([(b"1",), (None,)], "payload BINARY")
    with pytest.raises(PySparkException, match="null cannot be an entry"):
        frame.write.format("tallybook").option("metadata", written.metadata).mode("append").save()
    assert load(written.metadata).count() == before
    with pytest.raises(PySparkException, match="exactly one column of type BINARY or STRING"):
        spark.range(3).write.format("tallybook").option("metadata", written.metadata).mode("append").save()


@pytest.mark.nightly
@pytest.mark.parametrize("stream", [None, "as-table"])
def test_an_unreadable_table_of_the_catalog_is_refused_before_anything_is_written(
    written, spark, streams, load, stream
):
    before = load(written.metadata, table="ledgers").count()
    frame = spark.createDataFrame([(b"1",), (b"2",)], "payload BINARY")
    chosen = {"metadata": written.metadata}
    if stream:
        streams.create(stream)
        chosen["stream"] = stream
    with pytest.raises(PySparkException, match="Spark's catalog does not store the options"):
        frame.write.format("tallybook").options(**chosen).mode("append").saveAsTable("unreadable")
    assert not spark.catalog.tableExists("unreadable")
    with pytest.raises(PySparkException, match="Spark's catalog does not store the options"):
        spark.sql(f"CREATE TABLE unreadable USING tallybook OPTIONS (metadata '{written.metadata}')")
    assert load(written.metadata, table="ledgers").count() == before


def test_no_thread_is_left_in_the_driver(load, written):
    load(written.metadata).count()
    assert not [thread.name for thread in threading.enumerate() if thread.name == "tallybook"]
