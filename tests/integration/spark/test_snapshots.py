"""A snapshot gives the same rows however its ledgers have moved since, and fails when entries are gone."""

import pytest
from pyspark.errors import PySparkException

from tallybook.spark import read_ledgers, take_snapshot

pytestmark = pytest.mark.nightly


@pytest.fixture(scope="module")
def moved(written, spark, load, rows):
    """Ledgers under one snapshot, and all that was read of it while they moved."""
    ledgers = [written.ledger([b"%d/%d" % (each, number) for number in range(400)]) for each in range(4)]
    chosen = ",".join(map(str, ledgers))
    token = take_snapshot(written.metadata, ledgers=chosen, startingEntry=3, endingEntry=390)
    read = []

    def look() -> None:
        read.append(rows(load(written.metadata, snapshot=token)))
        read.append(rows(read_ledgers(spark, written.metadata, snapshot=token)))

    look()
    # One object for each ledger, then one for all of them.
    written.offload("set_object_ledgers=1", "compact_below_bytes=0")
    look()
    before = set(written.bucket.glob("*/*.parquet"))
    written.offload("deletion_lag_s=0")
    assert set(written.bucket.glob("*/*.parquet")) - before, "nothing was compacted"
    look()
    return ledgers, token, read


def test_the_same_snapshot_gives_the_same_rows_before_and_after_offload_and_compaction(written, moved):
    ledgers, _, read = moved
    wanted = [row for row in written.rows(*ledgers) if 3 <= row[1] <= 390]
    for found in read:
        assert found == wanted


def test_a_set_object_gives_only_the_ledgers_that_are_still_there(written, moved, spark, rows):
    ledgers, _, _ = moved
    written.delete(ledgers[1])
    left = [ledgers[0], ledgers[2], ledgers[3]]
    table = read_ledgers(spark, written.metadata, tier="archive", ledgers=",".join(map(str, left)))
    assert rows(table) == written.rows(*left)
    assert "FileScan parquet" in table._jdf.queryExecution().toString()


def test_a_deleted_ledger_fails_its_snapshot_or_is_reported(written, moved, spark, load):
    ledgers, token, _ = moved
    for read in (load, lambda metadata, **options: read_ledgers(spark, metadata, **options)):
        with pytest.raises(Exception, match=f"ledger {ledgers[1]}: entries 3 .. 390 trimmed"):
            read(written.metadata, snapshot=token).collect()
        table = read(written.metadata, snapshot=token, failOnDataLoss=False)
        [gap] = table.where("gap IS NOT NULL").collect()
        assert (gap.ledger_id, gap.gap.kind, gap.gap.first, gap.gap.last) == (ledgers[1], "trimmed", 3, 390)
        assert table.where("gap IS NULL").count() == 3 * 388
    assert "1 ledger deleted" in table._jdf.queryExecution().toString()


def test_an_object_that_is_gone_for_good_is_lost_data(written, spark, load, rows):
    ledger = written.ledger([b"%d" % number for number in range(50)])
    written.offload("deletion_lag_s=0", "set_object_ledgers=1", "compact_below_bytes=0")
    key = load(written.metadata, table="receipts", ledger=ledger).first().key
    data = (written.bucket / key).read_bytes()
    try:
        for damaged in (None, data[: len(data) // 4]):
            (written.bucket / key).unlink()
            if damaged is not None:
                (written.bucket / key).write_bytes(damaged)
            with pytest.raises(PySparkException, match=f"ledger {ledger}: entry 0 lost"):
                load(written.metadata, ledger=ledger).collect()
            table = read_ledgers(spark, written.metadata, ledger=ledger, fail_on_data_loss=False)
            [gap] = table.collect()
            assert (gap.gap.kind, gap.gap.first, gap.gap.last, gap.payload) == ("lost", 0, 49, None)
            (written.bucket / key).write_bytes(data)
        # Column ledger_id comes first. The entries can do without it: batches are put together from payloads and index.
        (written.bucket / key).write_bytes(data[:40] + bytes(byte ^ 1 for byte in data[40:43]) + data[43:])
        assert rows(load(written.metadata, ledger=ledger)) == written.rows(ledger)
    finally:
        written.delete(ledger)
