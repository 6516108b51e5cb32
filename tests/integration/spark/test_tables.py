"""Ledgers as tables of Spark: the same rows from bookies, the archive, and both."""

import json
from datetime import UTC

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812

from tallybook.core.errors import InvalidConfig
from tallybook.spark import read_ledgers, take_snapshot

LINES = [b"line %d" % number for number in range(3_000)]


@pytest.fixture(scope="module")
def tiers(written):
    """An archived and released ledger, an archived one, one at its bookies, one still written; and an empty one."""
    released = written.ledger(LINES)
    written.offload("deletion_lag_s=0")
    archived = written.ledger([b"", b"x" * 70_000, b"\xff\x00" * 500])
    written.offload()
    bookies = written.ledger([b"%d" % number for number in range(100)])
    open_ = written.ledger([b"a", b"b", b"c", b"d"], close=False)
    empty = written.ledger([b"gone"])
    written.delete(empty)
    return {"released": released, "archived": archived, "bookies": bookies, "open": open_}


def test_every_ledger_is_in_one_table(written, tiers, load, rows):
    assert rows(load(written.metadata)) == written.rows()


def test_read_ledgers_gives_the_same_rows(written, tiers, spark, rows):
    assert rows(read_ledgers(spark, written.metadata)) == written.rows()


def test_read_ledgers_leaves_objects_to_sparks_own_parquet_reader(written, tiers, spark):
    only_archived = read_ledgers(spark, written.metadata, tier="archive")
    plan = only_archived.where("entry_id < 10")._jdf.queryExecution().toString()
    assert "FileScan parquet" in plan
    assert "LessThan(entry_id,10)" in plan
    assert "tallybook" not in plan
    everything = read_ledgers(spark, written.metadata)._jdf.queryExecution().toString()
    assert "FileScan parquet" in everything
    assert "tallybook" in everything


def test_metadata_columns_tell_where_an_entry_came_from(written, tiers, load, spark):
    for table in (
        load(written.metadata, includeMetadata=True),
        read_ledgers(spark, written.metadata, include_metadata=True),
    ):
        found = {row.ledger_id: (row.tier, row.object) for row in table.dropDuplicates(["ledger_id"]).collect()}
        assert found[tiers["bookies"]] == found[tiers["open"]] == ("bookies", None)
        for name in ("released", "archived"):
            tier, key = found[tiers[name]]
            assert tier == "archive"
            assert (written.bucket / key).is_file()


def test_tiers_choose_ledgers(written, tiers, load, rows):
    assert rows(load(written.metadata, tier="archive")) == written.rows(tiers["released"], tiers["archived"])
    wanted = written.rows(tiers["archived"], tiers["bookies"], tiers["open"])
    assert rows(load(written.metadata, tier="bookies")) == wanted
    closed = written.rows(tiers["released"], tiers["archived"], tiers["bookies"])
    assert rows(load(written.metadata, openLedgers=False)) == closed


def test_bounds_by_entry(written, tiers, load, spark, rows):
    wanted = [row for row in written.rows(tiers["released"], tiers["bookies"]) if 50 <= row[1] <= 2_000]
    bounds = {"ledgers": f"{tiers['released']},{tiers['bookies']}", "startingEntry": 50, "endingEntry": 2_000}
    assert rows(load(written.metadata, **bounds)) == wanted
    assert rows(read_ledgers(spark, written.metadata, **bounds)) == wanted


def test_bounds_by_time(written, tiers, load, spark, rows):
    times = sorted({row.written_at for row in load(written.metadata).select("written_at").collect()})
    middle = times[len(times) // 2]
    as_text = middle.astimezone(UTC).isoformat() if middle.tzinfo else middle.replace(tzinfo=UTC).isoformat()
    for read in (load, lambda metadata, **options: read_ledgers(spark, metadata, **options)):
        before, after = read(written.metadata, endingTime=as_text), read(written.metadata, startingTime=as_text)
        assert 0 < before.count() < len(written.rows())
        assert sorted(rows(before) + rows(after)) == written.rows()
        assert after.agg(F.min("written_at")).first()[0] == middle


def test_a_filtered_query_does_not_change_the_next_one_on_the_same_table(written, tiers, load):
    table = load(written.metadata, ledger=tiers["released"])
    assert table.where("entry_id >= 2990").count() == 10
    assert table.count() == 3_000
    assert table.where("entry_id < 5").union(table.where("entry_id >= 2998")).count() == 7


@pytest.mark.nightly
def test_large_ledgers_are_read_by_many_tasks(written, tiers, load, rows):
    table = load(written.metadata, ledger=tiers["released"], minPartitions=7)
    assert table.rdd.getNumPartitions() >= 7
    assert rows(table) == written.rows(tiers["released"])


def test_a_bucket_is_read_without_its_cluster(written, tiers, spark, rows):
    archive = written.archive
    wanted = written.rows(tiers["released"], tiers["archived"])
    assert rows(spark.read.format("tallybook").option("archive", archive).load()) == wanted
    assert rows(read_ledgers(spark, archive=archive)) == wanted


def test_json_payloads_become_columns_and_bad_ones_are_kept(written, load):
    payloads = [b'{"carrier": "AA", "delay": 3.5}', b"no json", b'{"carrier": "\xff"}', b'{"delay": "late"}', b"{}"]
    ledger = written.ledger(payloads)
    table = load(written.metadata, ledger=ledger, payloadFormat="json", payloadSchema="carrier STRING, delay DOUBLE")
    found = table.orderBy("entry_id").select("value.carrier", "value.delay", "bad_payload", "bad_reason").collect()
    assert [(row.carrier, row.delay) for row in found] == [
        ("AA", 3.5),
        (None,) * 2,
        (None,) * 2,
        (None,) * 2,
        (None,) * 2,
    ]
    assert [row.bad_payload and bytes(row.bad_payload) for row in found] == [None, *payloads[1:4], None]
    assert ["UTF-8" in (row.bad_reason or "") for row in found] == [False, False, True, False, False]
    strict = load(
        written.metadata, ledger=ledger, payloadFormat="json", payloadSchema="carrier STRING", badRecords="fail"
    )
    with pytest.raises(PySparkException, match=f"entry 1 of ledger {ledger}"):
        strict.collect()


def test_what_is_known_of_ledgers_is_in_tables(written, tiers, load):
    known = {row.ledger_id: row for row in load(written.metadata, table="ledgers").collect()}
    assert set(tiers.values()) <= set(known)
    assert known[tiers["released"]].copies_released
    assert (known[tiers["released"]].entries, known[tiers["open"]].entries) == (3_000, None)
    assert load(written.metadata, table="fragments", ledgers=tiers["open"]).first().last is None
    receipts = load(written.metadata, table="receipts").collect()
    assert {row.ledger_id for row in receipts} >= {tiers["released"], tiers["archived"]}
    objects = load(written.metadata, table="objects").collect()
    assert {row.key for row in objects} == {row.key for row in receipts}
    assert {row.sha256 for row in objects} == {row.object_sha256 for row in receipts}
    assert load(written.metadata, table="bookies").count() == 3


@pytest.mark.nightly
def test_mistakes_are_told_before_anything_is_read(written, load, spark):
    for options, message in (
        ({"startingEntri": 7}, "did you mean startingEntry"),
        ({"ledger": 123_456}, "ledger 123456 does not exist"),
        ({"tier": "attic"}, "'attic' is not one of auto, archive, bookies"),
        ({"snapshot": "{}"}, "option snapshot"),
    ):
        with pytest.raises(PySparkException, match=message):
            load(written.metadata, **options).collect()
    with pytest.raises(PySparkException, match="give the location of the ledgers"):
        spark.read.format("tallybook").load()
    with pytest.raises(InvalidConfig, match="parse column payload"):
        read_ledgers(spark, written.metadata, payload_format="json", payload_schema="a INT")


@pytest.mark.nightly
def test_a_ledger_with_a_password_is_read_only_with_it(written, load, rows):
    ledger = written.ledger([b"secret"], password=b"sesame")
    try:
        assert rows(load(written.metadata, ledger=ledger, password="sesame")) == [(ledger, 0, b"secret")]
        for options in ({}, {"password": "wrong"}):
            with pytest.raises(PySparkException, match=f"ledger {ledger}: option password is wrong"):
                load(written.metadata, ledger=ledger, **options).collect()
    finally:
        written.delete(ledger, b"sesame")


def test_a_snapshot_says_what_it_has_in_plain_words(written, tiers):
    token = json.loads(take_snapshot(written.metadata, ledger=tiers["open"]))
    assert token["ledgers"] == [{"ledger": tiers["open"], "first": 0, "last": 3}]
