"""Tasks that Spark tries again after they have given, or taken, a part of their rows: no row is lost or there twice."""

from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql import functions as F  # noqa: N812

BATCH_ROWS = 10
ROWS_OF_A_BATCH = "spark.sql.execution.arrow.maxRecordsPerBatch"


@pytest.fixture(autouse=True)
def small_batches(spark):
    """The session is everybody's: what it had before is put back."""
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
