"""Rows of Spark as records of a stream: each batch once, whole and in order, after any failure and retry."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as spark_types

from tallybook.client.client import Client
from tallybook.core.errors import NoSuchLedger
from tallybook.metadata.transactions import Transaction
from tallybook.spark.ledgers.sink import task_ledger
from tallybook.spark.options import write_options
from tallybook.spark.streams.sink import RecordBatchWriter
from tallybook.spark.streams.staging import EnvelopeStager
from tallybook.stream.catalog.delivery_record import PART
from tallybook.stream.writer.handle import StreamWriter

SCHEMA = spark_types.StructType([spark_types.StructField("payload", spark_types.BinaryType())])


def save(frame, metadata, stream, **options):
    given = {"metadata": metadata, "stream": stream, **options}
    frame.write.format("tallybook").options(**given).mode("append").save()


@pytest.fixture
def run(spark, written, tmp_path):
    """Append the lines of a folder's files to a stream, a file in a micro-batch, to the end of what is there."""

    def work(stream, **options):
        query = (
            spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(str(tmp_path / "in"))
            .selectExpr("value AS payload", "upper(value) AS key")
            .writeStream.format("tallybook").option("metadata", written.metadata).option("stream", stream)
            .option("checkpointLocation", str(tmp_path / "checkpoint")).options(**options)
            .trigger(availableNow=True).start()
        )  # fmt: skip
        try:
            assert query.awaitTermination(100)
        finally:
            query.stop()

    (tmp_path / "in").mkdir()
    return work


def staged(metadata):
    """Ledgers with rows that are on their way into a stream."""

    async def work():
        async with Client(metadata) as client:
            found = [await client.ledger_metadata(each) async for each in client.list_ledgers()]
            return [each.ledger_id for each in found if PART in each.custom]

    return asyncio.run(work())


def payloads(load, metadata, stream):
    return [bytes(row.payload) for row in load(metadata, stream=stream).collect()]


def test_a_task_cuts_its_rows_to_what_bookies_take_that_its_client_has_not_met(cli, tmp_path):
    with cli.up(tmp_path / "small", "--set", "journal.max_commit_bytes=16KiB") as up:
        transaction = Transaction.once("00000000-0000-0000-0000-000000000001")
        with task_ledger(write_options({"metadata": up.metadata}), transaction, (3, 3, 2), transaction.marks) as ledger:
            rows = EnvelopeStager(ledger.ledger_id, ledger.max_entry_bytes, lambda: 0)
            batch = pa.RecordBatch.from_pydict({"payload": pa.array([b"x" * 100] * 1000, pa.binary())})
            staged_entries = list(rows.envelopes(batch))
            ledger.extend([staged_entries])
        assert 8 * 1024 < max(map(len, staged_entries)) <= 16 * 1024


def test_a_query_appends_each_micro_batch_once_though_its_last_one_is_run_again(written, streams, run, load, tmp_path):
    for name, text in (("a", "one\ntwo\n"), ("b", "three\n")):
        (tmp_path / "in" / f"{name}.txt").write_text(text)
    run("counts", createStream=True)
    rows = load(written.metadata, stream="counts").collect()
    assert [(bytes(row.payload), bytes(row.key)) for row in rows] in (
        [(b"one", b"ONE"), (b"two", b"TWO"), (b"three", b"THREE")],
        [(b"three", b"THREE"), (b"one", b"ONE"), (b"two", b"TWO")],
    )
    for commit in (tmp_path / "checkpoint" / "commits").glob("*1*"):
        commit.unlink()
    (tmp_path / "in" / "c.txt").write_text("four\n")
    run("counts")
    assert payloads(load, written.metadata, "counts") == [*(bytes(row.payload) for row in rows), b"four"]
    assert staged(written.metadata) == [], "what was staged is deleted"
    assert load(written.metadata).where("length(payload) < 10").count() == 0, "nobody sees staged ledgers"
    (tmp_path / "checkpoint").rename(tmp_path / "old")
    run("counts")
    assert len(payloads(load, written.metadata, "counts")) == 8, "a new checkpoint is another query"


def test_all_columns_of_a_batch_arrive_in_the_order_of_its_rows(written, spark, streams, load):
    streams.create("ordered")
    frame = spark.range(0, 5_000, 1, 4).selectExpr(
        "CAST(id AS STRING) AS payload", "IF(id % 2 = 0, CAST(CAST(id AS STRING) AS BINARY), NULL) AS key",
        "timestamp_millis(id * 1000) AS timestamp", "id DIV 2 AS txid",
    )  # fmt: skip
    save(frame, written.metadata, "ordered")
    rows = load(written.metadata, stream="ordered", includeMetadata=True).collect()
    assert [(int(row.payload), row.timestamp_ms, row.txid, row.key is None) for row in rows] == [
        (n, n * 1000, n // 2, n % 2 == 1) for n in range(5_000)
    ]
    assert [row.sequence for row in rows] == list(range(5_000))
    with pytest.raises(PySparkException, match="transaction id 0 comes after 2499"):
        save(frame, written.metadata, "ordered")
    assert len(payloads(load, written.metadata, "ordered")) == 5_000


@pytest.mark.nightly
def test_a_batch_is_appended_once_for_each_transaction(written, spark, streams, load):
    streams.create("daily")
    frame = spark.createDataFrame([(b"1",), (b"2",)], "payload BINARY")
    for transaction in (7, 7, 8, 8):
        save(frame, written.metadata, "daily", sink="job", transaction=transaction)
    assert payloads(load, written.metadata, "daily") == [b"1", b"2"] * 2
    with pytest.raises(PySparkException, match="transaction 7 of sink job is older than 8"):
        save(frame, written.metadata, "daily", sink="job", transaction=7)
    save(frame, written.metadata, "daily", sink="job")
    save(frame, written.metadata, "daily")
    assert payloads(load, written.metadata, "daily") == [b"1", b"2"] * 4


def failing_once(batches):
    """The rows; the first attempt at each task fails in the middle."""
    attempt = TaskContext.get().attemptNumber()
    for number, batch in enumerate(batches):
        if attempt == 0 and number == 3:
            raise RuntimeError("a task fails on purpose")
        yield batch


def test_tasks_that_fail_among_their_rows_leave_nothing_of_them_in_the_stream(written, spark, streams, load):
    streams.create("retried")
    before = spark.conf.get("spark.sql.execution.arrow.maxRecordsPerBatch")
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", 10)
    try:
        wide = F.expr("CAST(rpad(CAST(id AS STRING), 200000, 'x') AS BINARY) AS payload")
        failing = spark.range(0, 80, 1, 2).select(wide).mapInArrow(failing_once, "payload BINARY")
        save(failing, written.metadata, "retried", sink="retried", transaction=1)
    finally:
        spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", before)
    found = [int(each.rstrip(b"x")) for each in payloads(load, written.metadata, "retried")]
    assert found == list(range(80))
    assert staged(written.metadata) == [], "what failed attempts left behind is deleted by the commit"


@pytest.mark.nightly
def test_of_attempts_at_a_task_side_by_side_one_is_in_the_stream(written, streams, load):
    """One ends before the commit, one that has written by then ends after it, and one only begins after it."""
    streams.create("speculated")
    writer = RecordBatchWriter(
        write_options({"metadata": written.metadata, "stream": "speculated", "sink": "s"}), SCHEMA, overwrite=False
    )
    values = [(b"%d" % n).ljust(150_000, b"x") for n in range(60)]
    rows = [pa.RecordBatch.from_pydict({"payload": pa.array(values[at : at + 30], pa.binary())}) for at in (0, 30)]
    has_written, committed = threading.Event(), threading.Event()

    def slowly():
        yield rows[0]
        has_written.set()
        assert committed.wait(60)
        yield rows[1]

    with ThreadPoolExecutor(1) as other:
        slow = other.submit(writer.write, slowly())
        assert has_written.wait(60)
        first = writer.write(iter(rows))
        writer.commit([first])
        committed.set()
        with pytest.raises(NoSuchLedger):
            slow.result(60)
    writer.write(iter(rows))
    writer.commit([first])
    assert payloads(load, written.metadata, "speculated") == values


def test_a_batch_that_was_committed_when_its_driver_died_is_completed_and_not_replaced(
    written, streams, load, monkeypatch
):
    streams.create("died", dedup_records=1)
    options = write_options({"metadata": written.metadata, "stream": "died", "sink": "s", "transaction": "5"})
    values = [(b"%d" % n).ljust(150_000, b"x") for n in range(40)]

    def batch(payloads):
        return iter([pa.RecordBatch.from_pydict({"payload": pa.array(payloads, pa.binary())})])

    class DiedError(Exception):
        pass

    calls, whole = [], StreamWriter.send

    async def dying(self, records, *, as_set):
        calls.append(records)
        if len(calls) > 20:
            raise DiedError
        return await whole(self, records, as_set=as_set)

    writer = RecordBatchWriter(options, SCHEMA, overwrite=False)
    first = writer.write(batch(values))
    with monkeypatch.context() as while_it_dies:
        while_it_dies.setattr(StreamWriter, "send", dying)
        with pytest.raises(DiedError):
            writer.commit([first])
    # Spark abandons a write whose commit has failed.
    writer.abort([first])
    seen = payloads(load, written.metadata, "died")
    assert seen == values[: len(seen)], "what is in view is a beginning of the batch"
    assert len(seen) <= 20

    again = RecordBatchWriter(options, SCHEMA, overwrite=False)
    again.commit([again.write(batch([b"other rows"]))])
    assert payloads(load, written.metadata, "died") == values
    assert staged(written.metadata) == []


@pytest.mark.nightly
def test_what_cannot_be_written_is_refused_and_leaves_nothing(written, spark, streams, load):
    streams.create("strict")
    good = spark.createDataFrame([(b"1",)], "payload BINARY")
    for frame, options, said in (
        (spark.createDataFrame([(b"1",), (None,)], "payload BINARY"), {}, "null cannot be a record"),
        (spark.range(3), {}, "records need column payload"),
        (spark.createDataFrame([(b"1", 2.0)], "payload BINARY, txid DOUBLE"), {}, "records need column payload"),
        (good, {"stream": "none/such"}, "there is no stream 'none/such' .* createStream=true"),
        (good, {"namespace": "none", "createStream": True}, "there is no namespace 'none'"),
    ):
        with pytest.raises(PySparkException, match=said):
            save(frame, written.metadata, **{"stream": "strict", **options})
    output = good.write.format("tallybook").options(metadata=written.metadata, stream="strict")
    with pytest.raises(PySparkException, match="never overwritten"):
        output.mode("overwrite").save()

    async def end(store):
        async with await store.writer("strict") as writer:
            await writer.seal()

    streams.do(end)
    with pytest.raises(PySparkException, match="stream strict is sealed"):
        save(good, written.metadata, "strict")
    assert payloads(load, written.metadata, "strict") == []
    assert staged(written.metadata) == []
