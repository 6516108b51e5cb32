"""Writers of rows to ledgers: each task writes its own ledger, and all ledgers of a batch are published atomically.

Exactly once: a micro-batch is a transaction of its sink, numbered by Spark, and a transaction is committed only once
(``metadata/transactions``). Entries of a ledger are in the order of the task's rows. Ledgers of failed or
speculative tasks stay invisible and are deleted by the next commit, or later by the offloader.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, Final, TypeVar

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from tallybook.client.client import Client
from tallybook.client.environment import open_world
from tallybook.core.errors import (
    Conflict,
    InvalidArgument,
    InvalidConfig,
    Outcome,
    PeerError,
    RequestTimeout,
    StorageError,
)
from tallybook.core.limits import MIB
from tallybook.core.settings import ClientSettings
from tallybook.metadata.ledger_update import LedgerUpdater
from tallybook.metadata.store import MetadataStore
from tallybook.metadata.transactions import (
    Transaction,
    abandon,
    commit,
    discard,
    forget,
    last_committed,
    record_attempt,
    was_committed,
)
from tallybook.runtime.blocking.loop_thread import LoopThread
from tallybook.runtime.clock import RealClock
from tallybook.runtime.logging import logger
from tallybook.runtime.rng import SystemRng

from ..catalog_tables import refuse_new_table
from ..options import WriteOptions

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from tallybook.client.writer.handle import LedgerWriter

T = TypeVar("T")

_log = logger("spark.sink")

APPEND_BYTES: Final = 4 * MIB
"""Payload bytes appended at a time."""
APPEND_ROWS: Final = 16_384
"""Maximum rows appended at a time, since small or empty payloads need memory, too."""
LIMITS_SECONDS: Final = 30.0
"""How long a task waits for the bookies of its ledger to report their entry size limits; as long as an add may take."""

QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"
"""Local properties that Spark sets for tasks of a micro-batch (``StreamExecution``, ``MicroBatchExecution``)."""


@dataclass
class TaskOutput(WriterCommitMessage):
    """Commit message of a task: the ledgers that it has written."""

    sink: str
    owner: str
    ledger_ids: tuple[int, ...]
    cluster_id: str = field(default="", kw_only=True)
    """Cluster of these ledgers."""


def payload_column(schema: StructType, *, overwrite: bool) -> str:
    """The column whose values become entries.

    Raises:
        InvalidConfig: there is not exactly one suitable column; or the write mode is overwrite.
    """
    if overwrite:
        raise InvalidConfig("ledgers are never overwritten: use mode('append'), or outputMode('append') for a stream")
    fitting = [field.name for field in schema.fields if field.dataType.simpleString() in {"binary", "string"}]
    if len(fitting) == len(schema.fields) == 1:
        return fitting[0]
    raise InvalidConfig(
        f"ledgers need exactly one column of type BINARY or STRING, and these are {schema.simpleString()}; select one, "
        "or combine columns with to_json(struct(*)) AS payload"
    )


class LedgerBatchWriter(DataSourceArrowWriter):
    """Writes a batch to ledgers."""

    def __init__(self, options: WriteOptions, schema: StructType, *, overwrite: bool) -> None:
        self._column = payload_column(schema, overwrite=overwrite)
        self._options = with_cluster_id(options)
        self._transaction = self._chosen()

    def _chosen(self) -> Transaction:
        if self._options.sink is None:
            return Transaction.once(SystemRng().uuid())
        if self._options.transaction is not None:
            return Transaction(self._options.sink, self._options.transaction)
        return Transaction(self._options.sink, next_number(self._options, self._options.sink))

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskOutput:
        """Write the rows of one task to a ledger; no ledger if there are no rows."""
        refuse_new_table()
        return write_rows(self._options, self._transaction, iterator, self._column)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Publish all ledgers. A batch without rows is recorded only if it has an explicit transaction number."""
        written = outputs_of(messages)
        if self._options.transaction is None and not ledger_ids_of(written):
            return
        if _commit(self._options, self._transaction, written):
            return
        if self._options.transaction is None:
            raise Conflict(f"sink {self._transaction.sink} got a concurrent write; nothing was written: try again")
        if not _was_committed(self._options, self._transaction):
            raise Conflict(
                f"transaction {self._transaction.number} of sink {self._transaction.sink} is older than the last one, "
                "and was not committed: numbers must ascend"
            )

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Delete the written ledgers unless they are committed: Spark also calls this after a failed ``commit``."""
        discard_output(self._options, self._transaction, messages)


class LedgerStreamWriter(DataSourceStreamArrowWriter):
    """Writes micro-batches to ledgers. Default sink: the id of the query, which is stored in its checkpoint."""

    def __init__(self, options: WriteOptions, schema: StructType, *, overwrite: bool) -> None:
        if options.transaction is not None:
            raise InvalidConfig("writeStream numbers its transactions itself: give no option transaction")
        self._column = payload_column(schema, overwrite=overwrite)
        self._options = with_cluster_id(options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskOutput:
        """Write the rows of one task to a ledger; no ledger if there are no rows."""
        query = local_property(QUERY_ID)
        transaction = Transaction(self._options.sink or query, int(local_property(BATCH_ID)), query)
        return write_rows(self._options, transaction, iterator, self._column)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Publish the ledgers of a micro-batch. Idempotent.

        A micro-batch without rows needs no record: if it is repeated, it can be committed normally.
        """
        written = outputs_of(messages)
        if ledger_ids_of(written):
            _commit(self._options, Transaction(written[0].sink, batchId, written[0].owner), written)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Delete the written ledgers unless they are committed."""
        if written := outputs_of(messages):
            discard_output(self._options, Transaction(written[0].sink, batchId, written[0].owner), messages)


def write_rows(
    options: WriteOptions, transaction: Transaction, batches: Iterator[pa.RecordBatch], column: str
) -> TaskOutput:
    """Write the rows of a task into a new ledger, not yet published.

    Raises:
        InvalidArgument: a row has no payload.
        EntryTooLarge: a payload exceeds the entry size limit.
        TallybookError: the write failed.
    """
    payloads = payload_batches(batches, column)
    first = next(payloads, None)
    if first is None:
        return TaskOutput(transaction.sink, transaction.owner, ())
    quorum = (options.ensemble, options.write_quorum, options.ack_quorum)
    with task_ledger(options, transaction, quorum, transaction.marks) as ledger:
        ledger.extend(chain([first], payloads))
    return TaskOutput(transaction.sink, transaction.owner, (ledger.ledger_id,), cluster_id=ledger.cluster_id)


class TaskLedger:
    """The open ledger of a task."""

    def __init__(self, loop: LoopThread, ledger: LedgerWriter, cluster: SinkCluster) -> None:
        self._loop = loop
        self._ledger = ledger
        self.ledger_id = ledger.id
        self.cluster_id = cluster.cluster_id
        self.max_entry_bytes = min(ledger.max_entry_bytes, cluster.client.max_entry_bytes)
        """Entry size limit of its bookies, and of other bookies that the client knows."""

    def extend(self, payloads: Iterable[list[bytes]]) -> None:
        """Append groups of entries."""
        for some in payloads:
            self._loop.run(self._ledger.append_many(some))


@contextmanager
def task_ledger(
    options: WriteOptions, transaction: Transaction, quorum: tuple[int, int, int], custom: Mapping[str, bytes]
) -> Iterator[TaskLedger]:
    """A new unpublished ledger; closed at the end of the block, or deleted if the block fails.

    Args:
        quorum: ensemble size, write quorum and ack quorum.
        custom: custom metadata, including the marks of the transaction.

    Raises:
        TallybookError: the ledger cannot be created, noted or closed.
    """
    ensemble, write_quorum, ack_quorum = quorum
    with LoopThread("tallybook") as loop:
        cluster = loop.run(SinkCluster.open(options))
        try:
            ledger = loop.run(
                cluster.client.create_ledger(
                    ensemble=ensemble,
                    write_quorum=write_quorum,
                    ack_quorum=ack_quorum,
                    password=options.location.password,
                    custom=custom,
                )
            )
            loop.run(record_attempt(cluster.updater, transaction, ledger.id))
            try:
                loop.run(_limits_known(ledger))
                yield TaskLedger(loop, ledger, cluster)
                loop.run(ledger.close())
            except BaseException:
                loop.run(_discard_if_possible(cluster, ledger.id))
                raise
        finally:
            loop.run(cluster.close())


async def _limits_known(ledger: LedgerWriter) -> None:
    """Wait until the bookies of a ledger have reported their entry size limits, which bound envelopes.

    Raises:
        RequestTimeout: they did not in time.
    """
    if not await ledger.wait_for_limits(LIMITS_SECONDS):
        raise RequestTimeout(
            f"ledger {ledger.id}: its bookies did not report their entry size limits within {LIMITS_SECONDS:.0f} s",
            outcome=Outcome.NOT_DONE,
        )


async def _discard_if_possible(cluster: SinkCluster, ledger_id: int) -> None:
    """Try to delete a ledger. A failure is only logged: the caller raises the original error."""
    try:
        await discard(cluster.updater, [ledger_id])
    except PeerError as error:
        _log.warning(
            "ledger not deleted: a later commit or the offloader deletes it", ledger_id=ledger_id, error=error.message
        )


class SinkCluster:
    """A cluster opened for writing."""

    def __init__(self, client: Client, store: MetadataStore, cluster_id: str) -> None:
        self.client = client
        self.store = store
        self.cluster_id = cluster_id
        self.updater = LedgerUpdater(store, RealClock(), SystemRng())

    @classmethod
    async def open(cls, options: WriteOptions) -> SinkCluster:
        """Connect to the cluster.

        Raises:
            InvalidConfig: the options are invalid, or it is not the cluster that the write was planned on.
            MetadataUnavailable: the metadata store does not respond.
        """
        settings = ClientSettings(security=options.location.security, archive_keys=options.location.archive_keys)
        world = await open_world(options.location.metadata or "", settings, credentials=options.location.credentials)
        cluster = cls(Client(world, settings), world.store, await world.store.cluster_id())
        try:
            options.location.check_cluster(options.cluster_id, cluster.cluster_id)
        except InvalidConfig:
            await cluster.close()
            raise
        return cluster

    def check_cluster(self, written: Sequence[TaskOutput]) -> None:
        """Check that all tasks have written to this cluster.

        Raises:
            InvalidConfig: a task wrote to another cluster, whose ledgers cannot be committed here.
        """
        for each in written:
            if each.cluster_id not in ("", self.cluster_id):
                ids = ", ".join(map(str, each.ledger_ids))
                raise InvalidConfig(
                    f"a task wrote ledgers {ids} to cluster {each.cluster_id}, and the driver commits "
                    f"to cluster {self.cluster_id}: give a URI that names the same store on the driver and on every "
                    "executor"
                )

    async def close(self) -> None:
        """Disconnect."""
        await self.client.close()


def run_on_cluster(options: WriteOptions, work: Callable[[SinkCluster], Awaitable[T]]) -> T:
    """Connect to the cluster, run ``work`` and return its result.

    Raises:
        As ``SinkCluster.open`` and ``work``.
    """

    async def done() -> T:
        cluster = await SinkCluster.open(options)
        try:
            return await work(cluster)
        finally:
            await cluster.close()

    with LoopThread("tallybook") as loop:
        return loop.run(done())


def payload_batches(batches: Iterator[pa.RecordBatch], column: str) -> Iterator[list[bytes]]:
    """The payloads of all rows, in groups for ``append_many``.

    Raises:
        InvalidArgument: a row has no payload.
    """

    def rows() -> Iterator[bytes]:
        number = 0
        for batch in batches:
            for payload in batch.column(batch.schema.get_field_index(column)).cast(pa.binary()).to_pylist():
                if payload is None:
                    raise InvalidArgument(f"row {number} of a task has no {column}: null cannot be an entry")
                yield payload
                number += 1

    return append_batches(rows())


def append_batches(payloads: Iterator[bytes]) -> Iterator[list[bytes]]:
    """Group payloads for ``append_many``: up to ``APPEND_BYTES`` or ``APPEND_ROWS``."""
    found: list[bytes] = []
    size = 0
    for payload in payloads:
        found.append(payload)
        size += len(payload)
        if size >= APPEND_BYTES or len(found) == APPEND_ROWS:
            yield found
            found, size = [], 0
    if found:
        yield found


def outputs_of(messages: Sequence[WriterCommitMessage | None]) -> list[TaskOutput]:
    """The outputs among commit messages."""
    return [message for message in messages if isinstance(message, TaskOutput)]


def ledger_ids_of(written: Sequence[TaskOutput]) -> list[int]:
    """The ledger ids of a batch."""
    return [ledger_id for message in written for ledger_id in message.ledger_ids]


def _commit(options: WriteOptions, transaction: Transaction, written: Sequence[TaskOutput]) -> bool:
    """Commit a transaction; returns whether it is committed with exactly these ledgers."""

    async def work(cluster: SinkCluster) -> bool:
        cluster.check_cluster(written)
        done = await commit(cluster.updater, transaction, ledger_ids_of(written))
        if transaction.is_once:
            await _forget(cluster, transaction.sink)
        return done

    return run_on_cluster(options, work)


async def _forget(cluster: SinkCluster, sink: str) -> None:
    """Delete the record of a sink that is not used again. A failure is only logged: the ledgers are published."""
    try:
        await forget(cluster.updater, sink)
    except (PeerError, StorageError) as error:
        _log.warning("record of a sink not deleted: the offloader deletes it", sink=sink, error=error.message)


def _was_committed(options: WriteOptions, transaction: Transaction) -> bool:
    async def work(cluster: SinkCluster) -> bool:
        last = await last_committed(cluster.store, transaction.sink)
        same = last is not None and last.number == transaction.number
        return same or await was_committed(cluster.store, transaction)

    return run_on_cluster(options, work)


def discard_output(
    options: WriteOptions, transaction: Transaction, messages: Sequence[WriterCommitMessage | None]
) -> None:
    """Delete the ledgers written to this cluster, unless they are committed.

    Ledgers of another cluster are left to its offloader: in this cluster, their ids belong to other ledgers.
    """

    async def work(cluster: SinkCluster) -> None:
        here = [each for each in outputs_of(messages) if each.cluster_id in ("", cluster.cluster_id)]
        await abandon(cluster.updater, transaction, ledger_ids_of(here))

    run_on_cluster(options, work)


def with_cluster_id(options: WriteOptions) -> WriteOptions:
    """The options with the cluster id that every step of the write checks.

    Raises:
        InvalidConfig, MetadataUnavailable: the cluster cannot be reached.
    """

    async def work(cluster: SinkCluster) -> WriteOptions:
        return replace(options, cluster_id=cluster.cluster_id)

    return run_on_cluster(options, work)


def next_number(options: WriteOptions, sink: str) -> int:
    """The next transaction number of a sink."""
    last = run_on_cluster(options, lambda cluster: last_committed(cluster.store, sink))
    return 0 if last is None else last.number + 1


def local_property(name: str) -> str:
    """A local property of the running task.

    Raises:
        InvalidConfig: it is not set.
    """
    context = TaskContext.get()
    found = context.getLocalProperty(name) if context is not None else None
    if not found:
        raise InvalidConfig(f"this Spark does not set {name} in tasks, which is needed to recognize a repeated batch")
    return found
