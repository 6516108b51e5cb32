"""Ledgers in an S3 archive, read by Spark: through their cluster, and from the bucket alone."""

import pytest

from tallybook.core.errors import InvalidConfig
from tallybook.spark import read_ledgers
from tallybook.spark.pipelines import verify

pytestmark = pytest.mark.nightly

SMALL = [b"%d" % number for number in range(50)]


@pytest.fixture(scope="module")
def tiers(written_to_s3):
    """Small ledgers in one object, a larger one in its own, both released; one more at bookies."""
    written = written_to_s3
    small = [written.ledger([b"%d/" % each + line for line in SMALL]) for each in range(3)]
    large = written.ledger([bytes([number]) * 100_000 for number in range(40)])
    told = written.offload("deletion_lag_s=0", "own_object_bytes=1MiB", "row_group_bytes=1MiB")
    assert told["ledgers_released"] == 4
    return {"archived": [*small, large], "bookies": written.ledger(SMALL)}


def test_ledgers_in_s3_are_one_table_with_those_at_bookies(written_to_s3, tiers, load, rows):
    table = load(written_to_s3.metadata, includeMetadata=True, minPartitions=3).cache()
    assert rows(table) == written_to_s3.rows()
    assert table.rdd.getNumPartitions() >= 3
    from_s3 = table.where("tier = 'archive' AND object LIKE '%.parquet'").select("ledger_id").distinct().collect()
    assert sorted(row.ledger_id for row in from_s3) == tiers["archived"]


def test_a_bucket_of_s3_is_read_without_its_cluster(written_to_s3, tiers, spark, rows):
    table = spark.read.format("tallybook").option("archive", written_to_s3.archive)
    assert rows(table.option("maxBytesPerPartition", "1m").load()) == written_to_s3.rows(*tiers["archived"])


def test_a_query_has_credentials_of_its_own_which_its_plan_does_not_show(written_to_s3, tiers, spark, s3, rows):
    own = {"s3AccessKey": "AKIAOFTHEQUERY", "s3SecretKey": "hidden-in-plans", "s3Endpoint": s3["AWS_ENDPOINT_URL"]}
    chosen = {**own, "s3Region": "us-east-1", "archive": written_to_s3.archive}
    table = spark.read.format("tallybook").options(metadata=written_to_s3.metadata, **chosen).load()
    assert rows(table) == written_to_s3.rows()
    plans = table._jdf.queryExecution().toString()
    assert not [secret for secret in ("AKIAOFTHEQUERY", "hidden-in-plans") if secret in plans]
    # Spark's own file system has other credentials: nothing is left to it.
    assert rows(read_ledgers(spark, written_to_s3.metadata, **chosen)) == written_to_s3.rows()


def test_a_bucket_is_verified_with_the_credentials_of_a_query(written_to_s3, tiers, spark, s3):
    own = {"s3_access_key": "AKIAOFTHEQUERY", "s3_secret_key": "hidden", "s3_endpoint": s3["AWS_ENDPOINT_URL"]}
    found = verify(spark, archive=written_to_s3.archive, **own).collect()
    assert {row.problem for row in found} == {None}
    assert sum(row.ledgers for row in found) == len(tiers["archived"])
    with pytest.raises(InvalidConfig, match="takes no option ledger"):
        verify(spark, archive=written_to_s3.archive, ledger=7)


def test_without_s3a_the_error_names_what_read_ledgers_needs(written_to_s3, tiers, spark, s3, monkeypatch):
    for name, value in s3.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InvalidConfig, match=r"no file system for s3a.*s3a://bucket/.*hadoop-aws"):
        read_ledgers(spark, written_to_s3.metadata)
    with pytest.raises(InvalidConfig, match="hadoop-aws"):
        read_ledgers(spark, archive=written_to_s3.archive)
    elsewhere = read_ledgers(spark, written_to_s3.metadata, ledger=tiers["bookies"])
    assert elsewhere.count() == len(SMALL)
