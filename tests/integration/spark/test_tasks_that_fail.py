"""Spark tasks retried after they have read or written some of their rows: no row is lost or duplicated."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as spark_types

from tallybook.core.errors import NoSuchLedger
from tallybook.metadata.transactions import delete_abandoned
from tallybook.spark.ledgers.sink import LedgerBatchWriter, SinkCluster
from tallybook.spark.options import write_options

pytestmark = pytest.mark.nightly

BATCH_ROWS = 10
ROWS_OF_A_BATCH = "spark.sql.execution.arrow.maxRecordsPerBatch"


@pytest.fixture(autouse=True)
def small_batches(spark):
    """All tests share the session: its former settings are put back."""
    before = spark.conf.get(ROWS_OF_A_BATCH)
    spark.conf.set(ROWS_OF_A_BATCH, BATCH_ROWS)
    yield
    spark.conf.set(ROWS_OF_A_BATCH, before)


def failing_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows, with the number of the attempt; the first one of each task fails in the middle."""
    attempt = TaskContext.get().attemptNumber()
    for number, batch in enumerate(batches):
        if attempt == 0 and number == 3:
            raise RuntimeError("a task fails on purpose")
        yield batch.append_column("attempt", pa.array([attempt] * len(batch), pa.int32()))


def test_a_task_that_failed_among_its_rows_is_read_again_from_the_start(written, spark, load, rows):
    at_bookies, archived = (written.ledger([b"%d/%d" % (each, n) for n in range(200)]) for each in range(2))
    written.offload()
    later = written.ledger([b"later %d" % n for n in range(200)])
    table = load(written.metadata, minPartitions=3)
    again = table.mapInArrow(failing_once, f"{table._jdf.schema().toDDL()}, attempt INT").cache()
    assert rows(again) == written.rows(at_bookies, archived, later)
    attempts = {row.attempt for row in again.select("attempt").distinct().collect()}
    assert attempts == {1}, "every task was tried twice"


def test_a_task_that_failed_among_its_rows_is_written_once(written, spark, load):
    # More than is appended at a time, so that the ledger of the first attempt has some of them.
    wide = F.expr("CAST(rpad(CAST(id AS STRING), 200000, 'x') AS BINARY) AS payload")
    failing = spark.range(0, 80, 1, 2).select(wide).mapInArrow(failing_once, "payload BINARY, attempt INT")

    def write(frame, transaction):
        output = frame.select("payload").write.format("tallybook").option("metadata", written.metadata)
        output.options(sink="retried", transaction=transaction).mode("append").save()

    before = load(written.metadata).count()
    write(failing, 1)
    payloads = [bytes(row.payload) for row in load(written.metadata).where("length(payload) = 200000").collect()]
    assert sorted(int(each.rstrip(b"x")) for each in payloads) == list(range(80))
    write(spark.createDataFrame([(b"next",)], "payload BINARY"), 2)
    assert load(written.metadata).count() == before + 81
    pending = load(written.metadata, table="ledgers").where("map_contains_key(custom, 'tallybook.pending')")
    assert pending.count() == 0, "what failed attempts left behind is deleted by the next commit"


async def tidy_up(options):
    """As the offloader does, long after; ledgers of sinks that are left, and records of attempts at them."""
    cluster = await SinkCluster.open(options)

    async def ledgers():
        found = [
            (await cluster.store.read_ledger(each)).value for each in (await cluster.store.list_ledgers()).ledger_ids
        ]
        return [metadata for metadata in found if "tallybook.sink" in metadata.custom]

    try:
        long_after_ms = max(metadata.created_at_ms for metadata in await ledgers()) + 1_000_000
        deleted = await delete_abandoned(
            cluster.updater,
            await ledgers(),
            ttl_s=1_000,
            now_ms=long_after_ms,
            on_damaged=lambda error: pytest.fail(str(error)),
        )
        words = (await cluster.store.list_records()).names
        left = {metadata.ledger_id for metadata in await ledgers()}
        return deleted, left, [name for name in words if "attempts" in name or "once" in name]
    finally:
        await cluster.close()


@pytest.mark.parametrize(("given", "size"), [({"sink": "speculated"}, 150_001), ({}, 150_002)], ids=["named", "once"])
def test_of_attempts_at_a_task_side_by_side_one_is_seen_whenever_the_others_end(written, load, given, size):
    """One ends before the commit, one that has written by then ends after it, and one only begins after it."""
    options = write_options({"metadata": written.metadata, **given})
    schema = spark_types.StructType([spark_types.StructField("payload", spark_types.BinaryType())])
    writer = LedgerBatchWriter(options, schema, overwrite=False)
    payloads = [(b"%d" % n).ljust(size, b"x") for n in range(60)]
    rows = [pa.RecordBatch.from_pydict({"payload": pa.array(payloads[at : at + 30], pa.binary())}) for at in (0, 30)]
    has_written, committed = threading.Event(), threading.Event()

    def slowly():
        yield rows[0]
        # The first half is larger than a batch, so it is appended before this row is requested.
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
    late = writer.write(iter(rows))
    seen = load(written.metadata).where(f"length(payload) = {size}").collect()
    assert sorted(int(bytes(row.payload).rstrip(b"x")) for row in seen) == list(range(60))
    assert {row.ledger_id for row in seen} == set(first.ledger_ids)
    deleted, left, words = asyncio.run(tidy_up(options))
    assert (deleted, words) == (1, [])
    assert set(first.ledger_ids) <= left
    assert not set(late.ledger_ids) & left
