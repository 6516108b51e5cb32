"""The sink without Spark: batching of rows, and the results of tasks with and without rows."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as spark

from tallybook.core.errors import InvalidConfig
from tallybook.core.quorum import Quorum
from tallybook.metadata.ledger.model import Fragment, LedgerMetadata, LedgerState
from tallybook.metadata.ledger_update import LedgerUpdater
from tallybook.metadata.transactions import Transaction, read_view, record_attempt
from tallybook.metadata.uri import open_metadata
from tallybook.runtime.clock import RealClock
from tallybook.runtime.rng import SystemRng
from tallybook.spark import catalog_tables
from tallybook.spark.ledgers.sink import (
    APPEND_BYTES,
    APPEND_ROWS,
    LedgerBatchWriter,
    LedgerStreamWriter,
    TaskOutput,
    payload_batches,
    payload_column,
    write_rows,
)
from tallybook.spark.options import write_options
from tallybook.spark.streams.sink import TargetStream
from tallybook.stream import StreamInfo, StreamStore

SCHEMA = spark.StructType([spark.StructField("payload", spark.BinaryType())])


def batches(*payloads: list[bytes]) -> Iterator[pa.RecordBatch]:
    for each in payloads:
        yield pa.RecordBatch.from_pydict({"payload": pa.array(each, pa.binary())})


def test_rows_with_empty_payloads_are_gathered_up_to_a_number_and_others_up_to_their_bytes() -> None:
    empty = payload_batches(batches(*[[b""] * 10_000] * 5), "payload")
    assert [len(each) for each in empty] == [APPEND_ROWS] * 3 + [50_000 - 3 * APPEND_ROWS]
    large = payload_batches(batches([bytes(APPEND_BYTES // 2)] * 5), "payload")
    assert [len(each) for each in large] == [2, 2, 1]


@pytest.mark.parametrize(
    ("properties", "refused"),
    [
        ({"spark.sql.execution.id": "7", "spark.sql.execution.root.id": "6"}, True),
        ({"spark.sql.execution.id": "7", "spark.sql.execution.root.id": "7"}, False),
        (
            {
                "spark.sql.execution.id": "7",
                "spark.sql.execution.root.id": "6",
                "sql.streaming.queryId": "of-foreachBatch",
            },
            False,
        ),
        ({}, False),
    ],
    ids=["save-as-table", "save", "for-each-batch", "another-spark"],
)
def test_only_the_write_of_a_table_that_is_being_created_is_refused(
    properties: dict[str, str], refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = SimpleNamespace(getLocalProperty=properties.get)
    monkeypatch.setattr(catalog_tables, "TaskContext", SimpleNamespace(get=lambda: context))
    with pytest.raises(InvalidConfig, match="does not store the options") if refused else nullcontext():
        catalog_tables.refuse_new_table()


class Sink:
    """A metadata store in a file, as the driver and the tasks of Spark open it, each for itself."""

    def __init__(self, uri: str) -> None:
        self.uri = uri

    def options(self, **given: object) -> Any:
        return write_options({"metadata": self.uri, **{name: str(value) for name, value in given.items()}})

    def ask(self, work: Callable[[Any], Any]) -> Any:
        async def asked() -> Any:
            metadata = await open_metadata(self.uri, clock=RealClock(), rng=SystemRng())
            try:
                return await work(metadata.store)
            finally:
                await metadata.close()

        return asyncio.run(asked())

    def records(self) -> list[str]:
        async def work(store: Any) -> list[str]:
            return sorted((await store.list_records()).names)

        return list(self.ask(work))

    def written(self, transaction: Transaction) -> TaskOutput:
        """The ledgers that a task leaves."""

        async def work(store: Any) -> TaskOutput:
            ledger_id = await store.next_ledger_id()
            await store.create_ledger(
                LedgerMetadata(
                    ledger_id, Quorum(1, 1, 1), (Fragment(0, ("b1",)),), "creator", 0, custom=transaction.marks,
                    state=LedgerState.CLOSED, last_entry_id=9, length=90,
                )
            )  # fmt: skip
            await record_attempt(LedgerUpdater(store, RealClock(), SystemRng()), transaction, ledger_id)
            return TaskOutput(transaction.sink, transaction.owner, (ledger_id,))

        found: TaskOutput = self.ask(work)
        return found

    def visible(self) -> list[int]:
        async def work(store: Any) -> list[int]:
            view = await read_view(store)
            ledger_ids = (await store.list_ledgers()).ledger_ids
            return [each for each in ledger_ids if view.sees((await store.read_ledger(each)).value)]

        return list(self.ask(work))


@pytest.fixture
def sink(new_cluster):
    return Sink(new_cluster())


@pytest.mark.parametrize(
    "more", [spark.StructField("id", spark.IntegerType()), spark.StructField("x", spark.StringType())]
)
def test_columns_that_would_be_lost_are_refused(sink, more):
    with pytest.raises(
        InvalidConfig, match="exactly one column of type BINARY or STRING, and these are struct<payload"
    ):
        LedgerBatchWriter(sink.options(), spark.StructType([*SCHEMA.fields, more]), overwrite=False)


def test_the_one_column_may_have_any_name(sink):
    schema = spark.StructType([spark.StructField("Line", spark.StringType())])
    assert payload_column(schema, overwrite=False) == "Line"


def test_a_task_without_rows_makes_no_ledger_and_opens_nothing(sink):
    nothing = write_rows(sink.options(), Transaction("sales", 0), batches([], []), "payload")
    assert nothing == TaskOutput("sales", "", ())


def test_a_batch_without_rows_leaves_nothing_unless_its_number_may_come_again(sink):
    empty = [TaskOutput("x", "", ()), None]
    LedgerBatchWriter(sink.options(), SCHEMA, overwrite=False).commit(empty)
    LedgerBatchWriter(sink.options(sink="daily"), SCHEMA, overwrite=False).commit(empty)
    stream = LedgerStreamWriter(sink.options(), SCHEMA, overwrite=False)
    stream.commit([TaskOutput("query", "query", ())], 0)
    assert sink.records() == []
    LedgerBatchWriter(sink.options(sink="daily", transaction=3), SCHEMA, overwrite=False).commit(empty)
    assert sink.records() == ["sinks/daily"]
    late = sink.written(Transaction("daily", 3))
    LedgerBatchWriter(sink.options(sink="daily", transaction=3), SCHEMA, overwrite=False).commit([late])
    assert sink.visible() == [], "of two writes with one number, the second changes nothing"


def test_a_micro_batch_that_is_run_again_is_known_after_others_without_rows(sink):
    stream = LedgerStreamWriter(sink.options(), SCHEMA, overwrite=False)
    first = sink.written(Transaction("query", 0, "query"))
    stream.commit([first], 0)
    stream.commit([TaskOutput("query", "query", ())], 1)
    again = sink.written(Transaction("query", 0, "query"))
    stream.commit([again], 0)
    assert sink.visible() == list(first.ledger_ids)
    third = sink.written(Transaction("query", 2, "query"))
    stream.commit([third], 2)
    assert sink.visible() == [*first.ledger_ids, *third.ledger_ids]


def test_a_batch_without_a_sink_comes_into_view_and_leaves_no_record_of_its_own(sink):
    for _ in range(2):
        writer = LedgerBatchWriter(sink.options(), SCHEMA, overwrite=False)
        written = [sink.written(writer._transaction) for _ in range(2)]
        writer.commit(written)
        # Spark abandons a write without a known commit.
        writer.abort(written)
    assert len(sink.visible()) == 4
    assert sink.records() == ["sink-clock"]


def test_of_two_queries_that_make_the_same_stream_both_write_to_it(sink, monkeypatch):
    made = StreamStore.create

    async def made_by_both(streams: StreamStore, name: str) -> StreamInfo:
        await made(streams, name)  # by the other one, since this one has looked
        return await made(streams, name)

    monkeypatch.setattr(StreamStore, "create", made_by_both)
    options = sink.options(stream="s", createStream="true")
    found = TargetStream.of(options)
    assert found == TargetStream.of(options)
    monkeypatch.undo()
    assert found == TargetStream.of(sink.options(stream="s"))
