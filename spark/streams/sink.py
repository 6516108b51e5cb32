"""Writers of rows to a stream, exactly once.

Each task writes its records, already in envelopes, into a staged ledger, which is invisible. The commit on the driver
delivers them to the stream (``stream/deliveries``): a batch is appended once, completely and in order, however
often Spark runs it; an uncommitted batch is never visible.
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
from tallybook.stream.catalog.delivery_record import PART, staging, staging_sink
from tallybook.stream.deliveries import Deliveries

from ..catalog_tables import refuse_new_table
from ..ledgers.sink import (
    BATCH_ID,
    QUERY_ID,
    SinkCluster,
    TaskOutput,
    append_batches,
    discard_output,
    ledger_ids_of,
    local_property,
    next_number,
    outputs_of,
    run_on_cluster,
    task_ledger,
    with_cluster_id,
)
from ..options import WriteOptions
from .staging import EnvelopeStager, check_rows

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


_log = logger("spark.sink")


@dataclass
class StagedOutput(TaskOutput):
    """Commit message of a task: its staged ledger.

    Args:
        part: partition number, which orders the parts of a batch.
        txids: first and last transaction id, if any.
    """

    part: int = 0
    txids: tuple[int, int] | None = None


class RecordBatchWriter(DataSourceArrowWriter):
    """Appends a batch to a stream."""

    def __init__(self, options: WriteOptions, schema: StructType, *, overwrite: bool) -> None:
        check_rows(schema, overwrite=overwrite)
        self._options = with_cluster_id(options)
        self._target = TargetStream.of(self._options)
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

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedOutput:
        """Write the rows of one task to a staged ledger; no ledger if there are no rows."""
        refuse_new_table()
        return stage_rows(self._options, self._target, self._transaction, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Append all parts. A batch without rows is recorded only if it has an explicit transaction number."""
        staged = _staged(messages)
        if self._options.transaction is None and not ledger_ids_of(staged):
            return
        last = deliver(
            self._options, self._target, self._sink, self._transaction, staged, forget=self._options.sink is None
        )
        if last is None:
            return
        if self._options.transaction is None:
            raise Conflict(f"sink {self._sink} got a concurrent write; nothing was appended: try again")
        if last != self._number:
            raise Conflict(
                f"transaction {self._number} of sink {self._sink} is older than {last}; nothing was appended: numbers "
                "must ascend"
            )

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Delete the staged ledgers unless they are committed: then the next writer completes the delivery."""
        discard_output(self._options, self._transaction, messages)
        if self._options.sink is None:
            forget(self._options, self._target, self._sink)


class RecordStreamWriter(DataSourceStreamArrowWriter):
    """Appends micro-batches to a stream. Default sink: the id of the query, which is stored in its checkpoint."""

    def __init__(self, options: WriteOptions, schema: StructType, *, overwrite: bool) -> None:
        if options.transaction is not None:
            raise InvalidConfig("writeStream numbers its transactions itself: give no option transaction")
        check_rows(schema, overwrite=overwrite)
        self._options = with_cluster_id(options)
        self._target = TargetStream.of(self._options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedOutput:
        """Write the rows of one task to a staged ledger; no ledger if there are no rows."""
        query = local_property(QUERY_ID)
        transaction = self._transaction(self._options.sink or query, int(local_property(BATCH_ID)), query)
        return stage_rows(self._options, self._target, transaction, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Append the micro-batch. Idempotent."""
        staged = _staged(messages)
        if ledger_ids_of(staged):
            sink, owner = _sink_of(staged[0]), staged[0].owner
            deliver(self._options, self._target, sink, self._transaction(sink, batchId, owner), staged)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Delete the staged ledgers unless they are committed: then the next writer completes the delivery."""
        if staged := _staged(messages):
            discard_output(self._options, self._transaction(_sink_of(staged[0]), batchId, staged[0].owner), messages)

    def _transaction(self, sink: str, number: int, owner: str) -> Transaction:
        return staging(self._target.stream_id, sink, number, owner)


@dataclass(frozen=True, slots=True)
class TargetStream:
    """The stream to append to, with its replication, as read when the query was planned."""

    name: str
    namespace: str
    stream_id: str
    ensemble: int
    write_quorum: int
    ack_quorum: int

    @classmethod
    def of(cls, options: WriteOptions) -> TargetStream:
        """Find the stream, or create it with ``createStream``.

        Raises:
            NoSuchStream: it does not exist.
            StreamEnded: it is sealed.
            NoSuchNamespace, MetadataUnavailable, ...: as ``StreamStore.create``.
        """
        name = options.stream
        if name is None:
            raise InvalidConfig("give the stream to write to: option stream")

        async def work(cluster: SinkCluster) -> StreamInfo:
            async with StreamStore(cluster.client, namespace=options.namespace) as streams:
                if options.create_stream:
                    with suppress(StreamExists):
                        return await streams.create(name)
                return await streams.info(name)

        try:
            found = run_on_cluster(options, work)
        except NoSuchStream as error:
            raise NoSuchStream(f"{error.message} (option createStream=true creates it)") from error
        if found.sealed:
            raise StreamEnded(f"stream {name} is sealed: nothing can be appended to it")
        policy = found.policy
        return cls(
            name, options.namespace, found.stream_id, policy.ensemble, policy.write_quorum, policy.ack_quorum
        )  # fmt: skip


def stage_rows(
    options: WriteOptions, target: TargetStream, transaction: Transaction, batches: Iterator[pa.RecordBatch]
) -> StagedOutput:
    """Write the rows of a task into a staged ledger.

    Raises:
        InvalidArgument, EntryTooLarge, OutOfOrder: a row cannot become a record.
        TallybookError: the write failed.
    """
    part, clock = _partition(), RealClock()
    there = (batch for batch in batches if batch.num_rows)
    first = next(there, None)
    if first is None:
        return StagedOutput(transaction.sink, transaction.owner, (), part)
    quorum = (target.ensemble, target.write_quorum, target.ack_quorum)
    with task_ledger(options, transaction, quorum, {**transaction.marks, PART: b"%d" % part}) as ledger:
        rows = EnvelopeStager(ledger.ledger_id, ledger.max_entry_bytes, lambda: clock.wall_us() // 1000)
        ledger.extend(append_batches(envelope for batch in chain([first], there) for envelope in rows.envelopes(batch)))
    return StagedOutput(
        transaction.sink, transaction.owner, (ledger.ledger_id,), part, rows.txids, cluster_id=ledger.cluster_id
    )


def deliver(
    options: WriteOptions, target: TargetStream, sink: str, transaction: Transaction, staged: Sequence[StagedOutput], *,
    forget: bool = False,
) -> int | None:  # fmt: skip
    """Commit a batch and append it.

    Args:
        forget: whether the sink is not used again.

    Returns:
        ``None`` if this call committed the batch; else the number of the sink's last transaction.

    Raises:
        As ``Deliveries.deliver``.
    """
    parts = sorted(staged, key=lambda each: each.part)
    txids = [each.txids for each in parts if each.txids is not None]

    async def work(cluster: SinkCluster) -> int | None:
        cluster.check_cluster(staged)
        async with StreamStore(cluster.client, namespace=target.namespace, name=f"spark {sink}") as streams:
            deliveries = Deliveries(streams, cluster.client, cluster.updater, target.name, target.stream_id)
            if await deliveries.deliver(sink, transaction, ledger_ids_of(parts), txids):
                if forget:
                    await _forget(deliveries, sink)
                return None
        last = await last_committed(cluster.store, transaction.sink)
        return -1 if last is None else last.number

    return run_on_cluster(options, work)


def forget(options: WriteOptions, target: TargetStream, sink: str) -> None:
    """Delete the record of a sink that is not used again."""

    async def work(cluster: SinkCluster) -> None:
        async with StreamStore(cluster.client, namespace=target.namespace) as streams:
            await _forget(Deliveries(streams, cluster.client, cluster.updater, target.name, target.stream_id), sink)

    run_on_cluster(options, work)


async def _forget(deliveries: Deliveries, sink: str) -> None:
    """Delete the record of a sink. A failure is only logged: the batch is appended."""
    try:
        await deliveries.forget(sink)
    except PeerError as error:
        _log.warning("record of a sink not deleted", sink=sink, error=error.message)


def _staged(messages: Sequence[WriterCommitMessage | None]) -> list[StagedOutput]:
    return [each for each in outputs_of(messages) if isinstance(each, StagedOutput)]


def _sink_of(staged: StagedOutput) -> str:
    """The sink name without the prefix of its stream."""
    sink = staged.sink.split(".", 2)[-1]
    if not sink:
        raise InvalidArgument(f"{staged.sink!r} is not a sink of a stream")
    return sink


def _partition() -> int:
    context = TaskContext.get()
    return 0 if context is None else context.partitionId()
