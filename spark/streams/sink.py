"""Rows become records of a stream, exactly once.

Each task writes the records it makes, in their envelopes, into a staged ledger that nobody sees. The driver's commit
brings them into the stream (``stream/deliveries``): a batch is there once, whole and in order, however often Spark runs
it, and of one that is not committed no record ever is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from tallybook.core.errors import (
    Conflict,
    InvalidArgument,
    InvalidConfig,
    NoSuchStream,
    PeerError,
    StreamEnded,
    StreamExists,
)
from tallybook.metadata.transactions import Transaction, last_committed
from tallybook.runtime.clock import RealClock
from tallybook.runtime.logging import logger
from tallybook.runtime.rng import SystemRng
from tallybook.stream import StreamInfo, StreamStore
from tallybook.stream.deliveries import Deliveries
from tallybook.stream.delivery_record import PART, staging, staging_sink

from ..catalog_tables import refuse_new_table
from ..options import WriteOptions
from ..sink import (
    BATCH_ID,
    QUERY_ID,
    Writing,
    Written,
    gathered,
    ledger_ids_of,
    local_property,
    next_number,
    on_cluster,
    planned,
    task_ledger,
    undo,
    written_of,
)
from .staging import Staging, check_rows

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


_log = logger("spark.sink")


@dataclass
class Staged(Written):
    """What a task has staged.

    Args:
        part: number of its partition, by which the parts of a batch are in order.
        txids: the first and the last transaction id, where there are any.
    """

    part: int = 0
    txids: tuple[int, int] | None = None


class RecordWriter(DataSourceArrowWriter):
    """Appends a batch to a stream."""

    def __init__(self, options: WriteOptions, schema: StructType, *, overwrite: bool) -> None:
        check_rows(schema, overwrite=overwrite)
        self._options = planned(options)
        self._target = Target.of(self._options)
        self._sink = options.sink or f"once-{SystemRng().uuid()}"
        self._number = self._chosen()

    def _chosen(self) -> int:
        if self._options.sink is None:
            return 0
        if self._options.transaction is not None:
            return self._options.transaction
        return next_number(self._options, staging_sink(self._target.stream_id, self._sink))

    @property
    def _transaction(self) -> Transaction:
        return staging(self._target.stream_id, self._sink, self._number)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """One task: a staged ledger, or none if there are no rows."""
        refuse_new_table()
        return stage_rows(self._options, self._target, self._transaction, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Append everything. Without rows, there is a record of it only where its number may come again."""
        staged = _staged(messages)
        if self._options.transaction is None and not ledger_ids_of(staged):
            return
        last = deliver(
            self._options, self._target, self._sink, self._transaction, staged, forget=self._options.sink is None
        )
        if last is None:
            return
        if self._options.transaction is None:
            raise Conflict(f"somebody else has written to sink {self._sink} meanwhile; nothing was appended")
        if last != self._number:
            raise Conflict(
                f"transaction {self._number} of sink {self._sink} comes after {last}, and nothing is appended: numbers "
                "must ascend"
            )

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Delete what was staged, unless it is committed after all: then whoever writes next completes it."""
        undo(self._options, self._transaction, messages)
        if self._options.sink is None:
            forget(self._options, self._target, self._sink)


class RecordStreamWriter(DataSourceStreamArrowWriter):
    """Appends micro-batches. The sink is the query, unless it is given: its id lives as long as its checkpoint."""

    def __init__(self, options: WriteOptions, schema: StructType, *, overwrite: bool) -> None:
        if options.transaction is not None:
            raise InvalidConfig("the transactions of a stream are its micro-batches: give no option transaction")
        check_rows(schema, overwrite=overwrite)
        self._options = planned(options)
        self._target = Target.of(self._options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """One task: a staged ledger, or none if there are no rows."""
        query = local_property(QUERY_ID)
        transaction = self._transaction(self._options.sink or query, int(local_property(BATCH_ID)), query)
        return stage_rows(self._options, self._target, transaction, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Append the micro-batch; once, however often this is called for it."""
        staged = _staged(messages)
        if ledger_ids_of(staged):
            sink, owner = _sink_of(staged[0]), staged[0].owner
            deliver(self._options, self._target, sink, self._transaction(sink, batchId, owner), staged)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Delete what was staged, unless it is committed after all: then whoever writes next completes it."""
        if staged := _staged(messages):
            undo(self._options, self._transaction(_sink_of(staged[0]), batchId, staged[0].owner), messages)

    def _transaction(self, sink: str, number: int, owner: str) -> Transaction:
        return staging(self._target.stream_id, sink, number, owner)


@dataclass(frozen=True, slots=True)
class Target:
    """The stream that is written to, as it was found when the query was planned, and how it is kept."""

    name: str
    namespace: str
    stream_id: str
    ensemble: int
    write_quorum: int
    ack_quorum: int

    @classmethod
    def of(cls, options: WriteOptions) -> Target:
        """Find the stream, or make it if that is wanted.

        Raises:
            NoSuchStream: there is none of that name.
            StreamEnded: nobody may write to it any more.
            NoSuchNamespace, MetadataUnavailable, ...: as ``StreamStore.create``.
        """
        name = options.stream
        if name is None:
            raise InvalidConfig("say which stream is written to: option stream")

        async def work(cluster: Writing) -> StreamInfo:
            async with StreamStore(cluster.client, namespace=options.namespace) as streams:
                if options.create_stream:
                    with suppress(StreamExists):
                        return await streams.create(name)
                return await streams.info(name)

        try:
            found = on_cluster(options, work)
        except NoSuchStream as error:
            raise NoSuchStream(f"{error.message} (option createStream=true makes it)") from error
        if found.ended:
            raise StreamEnded(f"stream {name} has ended: nothing can be appended to it")
        policy = found.policy
        return cls(
            name, options.namespace, found.stream_id, policy.ensemble, policy.write_quorum, policy.ack_quorum
        )  # fmt: skip


def stage_rows(
    options: WriteOptions, target: Target, transaction: Transaction, batches: Iterator[pa.RecordBatch]
) -> Staged:
    """Write the rows of a task into a staged ledger.

    Raises:
        InvalidArgument, EntryTooLarge, OutOfOrder: a row cannot be a record.
        TallybookError: the cluster does not take them.
    """
    part, clock = _partition(), RealClock()
    there = (batch for batch in batches if batch.num_rows)
    first = next(there, None)
    if first is None:
        return Staged(transaction.sink, transaction.owner, (), part)
    quorum = (target.ensemble, target.write_quorum, target.ack_quorum)
    with task_ledger(options, transaction, quorum, {**transaction.marks, PART: b"%d" % part}) as ledger:
        rows = Staging(ledger.ledger_id, ledger.max_entry_bytes, lambda: clock.wall_us() // 1000)
        ledger.extend(gathered(envelope for batch in chain([first], there) for envelope in rows.envelopes(batch)))
    return Staged(
        transaction.sink, transaction.owner, (ledger.ledger_id,), part, rows.txids, cluster_id=ledger.cluster_id
    )


def deliver(
    options: WriteOptions, target: Target, sink: str, transaction: Transaction, staged: Sequence[Staged], *,
    forget: bool = False,
) -> int | None:  # fmt: skip
    """Commit a batch and append it.

    Args:
        forget: whether nobody writes to the sink again.

    Returns:
        ``None`` if this was what did it; else the number of the sink's last transaction.

    Raises:
        As ``Deliveries.deliver``.
    """
    parts = sorted(staged, key=lambda each: each.part)
    txids = [each.txids for each in parts if each.txids is not None]

    async def work(cluster: Writing) -> int | None:
        cluster.check_cluster(staged)
        async with StreamStore(cluster.client, namespace=target.namespace, name=f"spark {sink}") as streams:
            deliveries = Deliveries(streams, cluster.client, cluster.updater, target.name, target.stream_id)
            if await deliveries.deliver(sink, transaction, ledger_ids_of(parts), txids):
                if forget:
                    await _forget(deliveries, sink)
                return None
        last = await last_committed(cluster.store, transaction.sink)
        return -1 if last is None else last.number

    return on_cluster(options, work)


def forget(options: WriteOptions, target: Target, sink: str) -> None:
    """Leave no record of a sink of which nothing is to come."""

    async def work(cluster: Writing) -> None:
        async with StreamStore(cluster.client, namespace=target.namespace) as streams:
            await _forget(Deliveries(streams, cluster.client, cluster.updater, target.name, target.stream_id), sink)

    on_cluster(options, work)


async def _forget(deliveries: Deliveries, sink: str) -> None:
    """What is appended is there, come what may of its record."""
    try:
        await deliveries.forget(sink)
    except PeerError as error:
        _log.warning("a record of a sink is left", sink=sink, error=error.message)


def _staged(messages: Sequence[WriterCommitMessage | None]) -> list[Staged]:
    return [each for each in written_of(messages) if isinstance(each, Staged)]


def _sink_of(staged: Staged) -> str:
    """The sink as it is named among those of its stream."""
    sink = staged.sink.split(".", 2)[-1]
    if not sink:
        raise InvalidArgument(f"{staged.sink!r} is no sink of a stream")
    return sink


def _partition() -> int:
    context = TaskContext.get()
    return 0 if context is None else context.partitionId()
