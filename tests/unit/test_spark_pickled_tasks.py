"""Pickled Spark tasks: what a task needs, and nothing that only other tasks need."""

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql import types as spark

from tallybook.archive.catalog import BucketCatalog
from tallybook.archive.manifest import MANIFEST_KEY, Manifest, encode_manifest
from tallybook.core.errors import InvariantViolation
from tallybook.spark import TallybookDataSource
from tallybook.spark import locations as places
from tallybook.spark.columns import columns_for
from tallybook.spark.options import read_options
from tallybook.spark.query.partitions import EntryPartition

MANY = [{"ledger": each, "first": 0, "last": 9} for each in range(10_000)]
STREAMS = [
    {"stream": tag, "id": tag * 4, "from": f"1-0-0@{tag}", "to": f"9-0-0@{tag}"}
    for tag in (f"{number:08x}" for number in range(5_000))
]
BOUNDS = {
    "snapshot": json.dumps({"tallybook_snapshot": 1, "cluster": "c", "ledgers": MANY}),
    "ledgers": ",".join(str(each) for each in range(0, 20_000, 2)),
    "snapshot of streams": json.dumps({"tallybook_snapshot": 1, "cluster": "c", "streams": STREAMS}),
}


def schema(options: dict[str, str]) -> spark.StructType:
    """The columns by their names, which is all that a reader uses before it is pickled."""
    return spark.StructType(
        [spark.StructField(name, spark.LongType()) for name, _ in columns_for(read_options(options)).names]
    )


@pytest.mark.parametrize("bound", list(BOUNDS))
def test_a_task_is_not_sent_what_all_of_them_read(bound: str) -> None:
    given = {"metadata": "sqlite:///x", "failondataloss": "false", bound.partition(" ")[0]: BOUNDS[bound]}
    source = TallybookDataSource(given)
    arrived: Any = pickle.loads(cloudpickle.dumps(source))
    assert arrived.options == given, "who plans needs all of it"
    reader = arrived.reader(schema(given))
    sent = cloudpickle.dumps((reader, arrived))
    assert len(sent) < 3_000
    in_task, _ = pickle.loads(sent)
    assert not in_task._options.fail_on_data_loss, "how things are read is what a task has to know"
    with pytest.raises(InvariantViolation, match="cannot plan"):
        in_task.partitions()


def test_a_task_of_a_bucket_does_not_look_through_all_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(*_where: object) -> BucketCatalog:
        raise AssertionError("the whole bucket is looked through")

    monkeypatch.setattr(places, "read_catalog", refuse)
    given = {"archive": f"file://{tmp_path}"}
    reader = TallybookDataSource(given).reader(schema(given))
    assert list(reader.read(EntryPartition(()))) == []
    with pytest.raises(AssertionError, match="looked through"):
        reader.partitions()


def test_a_query_of_nothing_has_a_partition_of_ours(tmp_path: Path) -> None:
    """Without any partition, Spark creates one that our reader does not know."""
    data = encode_manifest(Manifest("a-cluster", {}, {}))
    (tmp_path / MANIFEST_KEY).write_bytes(data)
    given = {"archive": f"file://{tmp_path}"}
    reader = TallybookDataSource(given).reader(schema(given))
    assert reader.partitions() == [EntryPartition((), cluster_id="a-cluster")]
