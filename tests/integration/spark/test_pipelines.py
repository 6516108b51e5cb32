"""Spark jobs over a whole archive: verification, compaction, export; each resumes where it was stopped."""

from datetime import timedelta

import pyarrow.parquet as pq
import pytest

from tallybook.core.errors import InvalidConfig
from tallybook.spark.pipelines import compact, export, verify

pytestmark = pytest.mark.nightly


@pytest.fixture(scope="module")
def archived(written):
    """Five ledgers, each in an object of its own."""
    ledgers = [written.ledger([b"%d/%d" % (each, number) for number in range(200)]) for each in range(5)]
    written.offload("set_object_ledgers=1", "compact_below_bytes=0", "keep_copies=true")
    return ledgers


@pytest.fixture
def dataframes_only(spark):
    """The session, without what Spark Connect does not have."""

    class Session:
        def __getattr__(self, name):
            assert name not in {"sparkContext", "_jsparkSession", "_jvm"}, "Spark Connect has none"
            return getattr(spark, name)

    return Session()


def test_verify_finds_what_is_damaged_and_leaves_out_what_was_good_lately(written, archived, dataframes_only, tmp_path):
    spark = dataframes_only
    results = str(tmp_path / "results")
    found = verify(spark, written.metadata, results=results).collect()
    assert [(row.ledgers, row.entries, row.problem) for row in found] == 5 * [(1, 200, None)]

    victim = written.bucket / found[0].key
    good = victim.read_bytes()
    try:
        victim.write_bytes(good[:100] + bytes([good[100] ^ 1]) + good[101:])
        assert verify(spark, written.metadata, results=results).where("problem IS NULL").count() == 5
        aged = verify(spark, written.metadata, results=results, good_for=timedelta(0)).collect()
        assert (len(aged), [row.key for row in aged if row.problem]) == (5, [found[0].key])
        [bad] = verify(spark, written.metadata, results=results).where("problem IS NOT NULL").collect()
        assert bad.key == found[0].key, "what was found bad last is read again"
        [bad] = verify(spark, written.metadata).where("problem IS NOT NULL").collect()
        assert (bad.key, victim.name in bad.problem) == (found[0].key, True)
        [bad] = verify(spark, archive=written.archive).where("problem IS NOT NULL").collect()
        assert bad.key == found[0].key
    finally:
        victim.write_bytes(good)
    assert verify(spark, archive=written.archive).where("problem IS NULL").count() == 5


def test_compact_merges_objects_and_every_entry_stays(written, archived, spark, load, rows):
    planned_before = verify(spark, written.metadata)
    [merged] = compact(spark, written.metadata, object_bytes="1MiB", below="1MiB").collect()
    for replaced in written.bucket.glob("ledgers/*"):
        replaced.unlink()  # as an offloader does after a while
    [verified] = planned_before.collect()
    assert (verified.key.partition("/")[0], verified.problem) == ("sets", None), "both tasks have come to one object"
    assert (merged.ledgers, merged.moved, merged.problem) == (5, 5, None)
    receipts = load(written.metadata, table="receipts").collect()
    assert {row.key.partition("/")[0] for row in receipts} == {"sets"}
    assert len({row.key for row in receipts}) == 1
    assert rows(load(written.metadata, tier="archive")) == written.rows(*archived)
    assert compact(spark, written.metadata, object_bytes="1MiB", below="1MiB").collect() == [], "there is no more to do"
    with pytest.raises(InvalidConfig, match="invalid object_bytes"):
        compact(spark, written.metadata, object_bytes="1MiB", below="2MiB")


def test_export_writes_each_entry_once_however_often_it_is_run(written, archived, spark, tmp_path):
    target = str(tmp_path / "out")
    chosen = f"{archived[0]}-{archived[0] + 60}"

    def exported():
        table = pq.read_table(target, columns=["ledger_id", "entry_id", "payload", "day"])
        assert len(table["day"].unique()) >= 1
        return sorted((row["ledger_id"], row["entry_id"], row["payload"]) for row in table.to_pylist())

    export(spark, written.metadata, target, ledgers=chosen, max_entries_per_trigger=300)
    assert exported() == written.rows()
    export(spark, written.metadata, target, ledgers=chosen)
    assert exported() == written.rows()
    written.ledger([b"later"])
    export(spark, written.metadata, target, ledgers=chosen)
    assert exported() == written.rows()
    with pytest.raises(InvalidConfig, match="either a path or a table"):
        export(spark, written.metadata)
    with pytest.raises(InvalidConfig, match="must name written_at"):
        export(spark, written.metadata, target, ledgers=chosen, columns="entry_id,payload")


def test_export_into_a_table_takes_what_a_query_makes_of_entries(written, archived, spark, tmp_path):
    with pytest.raises(InvalidConfig, match="needs a checkpoint"):
        export(spark, written.metadata, table="flat")
    export(
        spark,
        written.metadata,
        table="flat",
        checkpoint=str(tmp_path / "checkpoint"),
        partition_by=(),
        transform=lambda entries: entries.selectExpr("CAST(payload AS STRING) AS line"),
    )
    assert sorted(row.line for row in spark.table("flat").collect()) == sorted(
        payload.decode() for _, _, payload in written.rows()
    )
