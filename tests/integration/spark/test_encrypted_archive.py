"""Ledgers in an encrypted archive, read by Spark: with their keys as usual, and not at all without."""

import pytest

from tallybook.runtime.security.archive_keys import add_key
from tallybook.spark import read_ledgers
from tallybook.spark.pipelines import verify

pytestmark = pytest.mark.nightly

LINES = [b"%d" % number for number in range(200)]
SOON = ("deletion_lag_s=0", "compact_below_bytes=0")
"""And nothing that is plain comes into an encrypted object by being merged."""


def test_encrypted_ledgers_are_one_table_with_plain_ones_and_need_their_keys(written, spark, rows, tmp_path):
    plain = written.ledger(LINES)
    assert written.offload(*SOON)["ledgers_released"] == 1
    file = tmp_path / "keys.json"
    add_key(file)
    written.variables["TALLYBOOK_ARCHIVE_KEYS"] = str(file)
    sealed = written.ledger([b"sealed " + line for line in LINES])
    assert written.offload(*SOON)["ledgers_released"] == 1

    found = read_ledgers(spark, written.metadata, archive_keys=str(file))
    plans = found._jdf.queryExecution().toString()
    assert "FileScan parquet" in plans, "what is plain is scanned by Spark itself"
    assert rows(found) == written.rows(plain, sealed)
    bucket = spark.read.format("tallybook").option("archive", written.archive).option("archiveKeys", str(file))
    assert rows(bucket.load()) == written.rows(plain, sealed)
    assert [row.problem for row in verify(spark, written.metadata, archive_keys=str(file)).collect()] == [None, None]

    without = spark.read.format("tallybook").option("metadata", written.metadata)
    assert rows(without.option("ledger", plain).load()) == written.rows(plain)
    with pytest.raises(Exception, match="archive_keys is not set here"):
        without.option("ledger", sealed).load().collect()
    with pytest.raises(Exception, match="archive_keys is not set here"):
        spark.read.format("tallybook").option("archive", written.archive).load().collect()
