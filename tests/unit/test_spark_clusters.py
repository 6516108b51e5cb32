"""A query is about one cluster: that of the driver, which every task must find as well."""

import os

import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

from tallybook.core.errors import InvalidConfig, NoSuchCluster
from tallybook.spark.batch import EntryReader, TableReader
from tallybook.spark.columns import columns_for
from tallybook.spark.options import batch_options, options_of, write_options
from tallybook.spark.records.batch import RecordReader
from tallybook.spark.records.sink import Staged
from tallybook.spark.sink import LedgerWriter, Written

WRITTEN = StructType([StructField("payload", BinaryType())])


class Schema:
    """As much of Spark's as a reader looks at before it reads."""

    def __init__(self, options):
        self.fields = [type("Field", (), {"name": name}) for name, _ in columns_for(options).names]


def entries(uri):
    options = batch_options(options_of(uri, {}))
    return EntryReader(options, Schema(options))


def records(uri):
    options = batch_options(options_of(uri, {"stream_pattern": "**"}))
    return RecordReader(options, Schema(options))


def table(uri):
    return TableReader(batch_options(options_of(uri, {"table": "ledgers"})))


@pytest.mark.parametrize("query", [entries, table])
def test_a_task_that_finds_another_cluster_refuses(query, new_cluster, tmp_path):
    uri = new_cluster("planned")
    reader = query(uri)
    [partition] = reader.partitions()
    new_cluster("other")
    os.replace(tmp_path / "other.db", tmp_path / "planned.db")  # what another machine has at that path
    with pytest.raises(InvalidConfig, match=r"planned on cluster planned, and .* finds cluster other"):
        list(reader.read(partition))


@pytest.mark.parametrize("query", [entries, table])
def test_a_task_that_finds_no_cluster_says_so_and_makes_none(query, new_cluster, tmp_path):
    reader = query(new_cluster("planned"))
    [partition] = reader.partitions()
    os.remove(tmp_path / "planned.db")
    with pytest.raises(NoSuchCluster):
        list(reader.read(partition))
    assert not (tmp_path / "planned.db").exists()


@pytest.mark.parametrize("query", [entries, records, table])
def test_a_partition_names_the_cluster_that_it_was_planned_on(query, new_cluster):
    assert [each.cluster_id for each in query(new_cluster("planned")).partitions()] == ["planned"]


@pytest.mark.parametrize(
    "written", [Written("sink", "", (7,), cluster_id="other"), Staged("s", "", (7,), cluster_id="o")]
)
def test_what_a_task_wrote_to_another_cluster_is_not_committed(written, new_cluster):
    writer = LedgerWriter(write_options({"metadata": new_cluster(), "sink": "sink"}), WRITTEN, overwrite=False)
    with pytest.raises(InvalidConfig, match="a task has written ledgers 7 to cluster o"):
        writer.commit([written])


@pytest.mark.parametrize("uri", ["sqlite:///./metadata.db", "sqlite:///../metadata.db"])
def test_a_path_relative_to_a_working_directory_is_refused(uri):
    for parse in (lambda: batch_options(options_of(uri, {})), lambda: write_options({"metadata": uri})):
        with pytest.raises(InvalidConfig, match="executors have others: give the absolute path"):
            parse()
