"""A query reads one cluster: that of the driver, which every task must reach as well."""

import asyncio
import os
import pickle
from types import SimpleNamespace

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

from tallybook.core.errors import InvalidConfig, NoSuchCluster
from tallybook.core.quorum import Quorum
from tallybook.metadata.ledger.model import Fragment, LedgerMetadata
from tallybook.metadata.transactions import Transaction
from tallybook.metadata.uri import open_metadata
from tallybook.runtime.clock import RealClock
from tallybook.runtime.rng import SystemRng
from tallybook.spark.columns import columns_for
from tallybook.spark.ledgers import sink
from tallybook.spark.ledgers.batch import EntryReader, TableReader
from tallybook.spark.ledgers.sink import LedgerBatchWriter, LedgerStreamWriter, TaskOutput
from tallybook.spark.options import batch_options, options_of, write_options
from tallybook.spark.streams import sink as record_sink
from tallybook.spark.streams.batch import RecordReader
from tallybook.spark.streams.sink import RecordBatchWriter, RecordStreamWriter, StagedOutput

WRITTEN = StructType([StructField("payload", BinaryType())])


class Schema:
    """The part of Spark's interface that a reader uses before it reads."""

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


def ledgers_of(uri, *marks):
    """The ledgers of a cluster, after one was created for each of ``marks``."""

    async def done():
        metadata = await open_metadata(uri, clock=RealClock(), rng=SystemRng())
        try:
            store = metadata.store
            for custom in marks:
                ledger_id = await store.next_ledger_id()
                fragments = (Fragment(0, ("b1",)),)
                await store.create_ledger(
                    LedgerMetadata(ledger_id, Quorum(1, 1, 1), fragments, "creator", 0, custom=custom)
                )
            return list((await store.list_ledgers()).ledger_ids)
        finally:
            await metadata.close()

    return asyncio.run(done())


@pytest.mark.parametrize("kind", [TaskOutput, StagedOutput])
def test_what_a_task_wrote_to_another_cluster_is_not_committed_and_no_ledger_of_this_one_is_deleted(kind, new_cluster):
    uri = new_cluster("here")
    [ledger_id] = there = ledgers_of(uri, Transaction("of-another-job", 0).marks)
    writer = LedgerBatchWriter(write_options({"metadata": uri, "sink": "sink"}), WRITTEN, overwrite=False)
    written = [kind("sink", "", (ledger_id,), cluster_id="other")]
    with pytest.raises(InvalidConfig, match=f"a task wrote ledgers {ledger_id} to cluster other"):
        writer.commit(written)
    writer.abort(written)  # as Spark does where a commit fails
    assert ledgers_of(uri) == there


def writers(uri, name):
    options = write_options({"metadata": uri} | ({"stream": "s", "createStream": "true"} if "Record" in name else {}))
    return {
        "LedgerWriter": LedgerBatchWriter, "LedgerStreamWriter": LedgerStreamWriter,
        "RecordWriter": RecordBatchWriter, "RecordStreamWriter": RecordStreamWriter,
    }[name](options, WRITTEN, overwrite=False)  # fmt: skip


@pytest.mark.parametrize("name", ["LedgerWriter", "LedgerStreamWriter", "RecordWriter", "RecordStreamWriter"])
def test_a_task_that_finds_another_cluster_writes_nothing_there(name, new_cluster, tmp_path, monkeypatch):
    properties = {"sql.streaming.queryId": "query", "streaming.sql.batchId": "0"}
    context = SimpleNamespace(getLocalProperty=properties.get, partitionId=lambda: 0)
    for module in (sink, record_sink):
        monkeypatch.setattr(module, "TaskContext", SimpleNamespace(get=lambda: context))
    uri = new_cluster("planned")
    writer = pickle.loads(pickle.dumps(writers(uri, name)))
    new_cluster("other")
    os.replace(tmp_path / "other.db", tmp_path / "planned.db")  # what another machine has at that path
    with pytest.raises(InvalidConfig, match=r"planned on cluster planned, and .* finds cluster other"):
        writer.write(iter([pa.RecordBatch.from_pydict({"payload": pa.array([b"x"], pa.binary())})]))
    assert ledgers_of(uri) == []


@pytest.mark.parametrize(
    "uri",
    [
        "sqlite:///./metadata.db",
        "sqlite:///../metadata.db",
        "sqlite:///%2E/c/metadata.db",
        "sqlite:///.%2Fc/metadata.db",
    ],
)
def test_a_path_relative_to_a_working_directory_is_refused(uri):
    for parse in (lambda: batch_options(options_of(uri, {})), lambda: write_options({"metadata": uri})):
        with pytest.raises(InvalidConfig, match="which differs on executors: give an absolute path"):
            parse()
