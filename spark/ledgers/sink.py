"""Rows become entries: each task writes a ledger of its own, and all ledgers of a batch come into view together.

The rows of a batch that was written twice are there once: a micro-batch is a transaction of its sink, numbered by
Spark, and a transaction is committed once (``metadata/commits.py``). Within a ledger entries are in the order of
the rows that the task was given. What a task leaves behind that failed, or that ran beside its own copy, is never seen
and is deleted by the next commit, or in the end by the offloader.
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
from tallybook.client.world import open_world
from tallybook.core.config import ClientSettings
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
from tallybook.metadata.commits import abandon, commit, discard, forget, note_attempt, was_committed
from tallybook.metadata.store import MetadataStore
from tallybook.metadata.transactions import Transaction, last_committed
from tallybook.metadata.update import LedgerUpdater
from tallybook.runtime.blocking import LoopThread
from tallybook.runtime.clock import RealClock
from tallybook.runtime.logging import logger
from tallybook.runtime.rng import SystemRng

from .catalog_tables import refuse_new_table
from .options import WriteOptions

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from tallybook.client.writer.handle import LedgerWriter as Appends

T = TypeVar("T")

_log = logger("spark.sink")

APPEND_BYTES: Final = 4 * MIB
"""Payload that is appended at a time."""
APPEND_ROWS: Final = 16_384
"""Rows that are appended at a time: where payloads are small or empty, it is the rows that take room."""
LIMITS_SECONDS: Final = 30.0
"""How long a task waits until the bookies of its ledger have said what they take: as long as for an add of it."""

QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"
"""What Spark tells the tasks of a micro-batch: local properties (``StreamExecution``, ``MicroBatchExecution``)."""


@dataclass
class Written(WriterCommitMessage):
    """What a task has written, and for whom."""

    sink: str
    owner: str
    ledger_ids: tuple[int, ...]
    cluster_id: str = field(default="", kw_only=True)
    """Of the cluster that they are in."""


def payload_column(schema: StructType, *, overwrite: bool) -> str:
    """The column whose values become entries.

    Raises:
        InvalidConfig: there is none, or there are others, which would be lost; or rows are to replace what is there.
    """
    if overwrite:
        raise InvalidConfig("ledgers are never overwritten: use mode('append'), or outputMode('append') for a stream")
    fitting = [field.name for field in schema.fields if field.dataType.simpleString() in {"binary", "string"}]
    if len(fitting) == len(schema.fields) == 1:
        return fitting[0]
    raise InvalidConfig(
        f"one column of type BINARY or STRING is wanted, and these are {schema.simpleString()}; select the one that "
        "becomes the entries, or make one of many with to_json(struct(*)) AS payload"
    )


class LedgerWriter(DataSourceArrowWriter):
    """Writes a batch."""

    def __init__(self, options: WriteOptions, schema: StructType, *, overwrite: bool) -> None:
        self._column = payload_column(schema, overwrite=overwrite)
        self._options = planned(options)
        self._transaction = self._chosen()

    def _chosen(self) -> Transaction:
        if self._options.sink is None:
            return Transaction.once(SystemRng().uuid())
        if self._options.transaction is not None:
            return Transaction(self._options.sink, self._options.transaction)
        return Transaction(self._options.sink, next_number(self._options, self._options.sink))

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """One task: a ledger, or none if there are no rows."""
        refuse_new_table()
        return write_rows(self._options, self._transaction, iterator, self._column)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Bring everything into view. Without rows, there is a record of it only where its number may come again."""
        written = written_of(messages)
        if self._options.transaction is None and not ledger_ids_of(written):
            return
        if _commit(self._options, self._transaction, written):
            return
        if self._options.transaction is None:
            raise Conflict(f"somebody else has written to sink {self._transaction.sink} meanwhile; nothing was written")
        if not _was_committed(self._options, self._transaction):
            raise Conflict(
                f"transaction {self._transaction.number} of sink {self._transaction.sink} comes after a younger one, "
                "and nothing of it is there: numbers must ascend"
            )

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Delete what was written, unless it is committed after all: Spark also calls this where ``commit`` failed."""
        undo(self._options, self._transaction, messages)


class LedgerStreamWriter(DataSourceStreamArrowWriter):
    """Writes micro-batches. The sink is the query, unless it is given: its id lives as long as its checkpoint."""

    def __init__(self, options: WriteOptions, schema: StructType, *, overwrite: bool) -> None:
        if options.transaction is not None:
            raise InvalidConfig("the transactions of a stream are its micro-batches: give no option transaction")
        self._column = payload_column(schema, overwrite=overwrite)
        self._options = planned(options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """One task: a ledger, or none if there are no rows."""
        query = local_property(QUERY_ID)
        transaction = Transaction(self._options.sink or query, int(local_property(BATCH_ID)), query)
        return write_rows(self._options, transaction, iterator, self._column)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Bring the micro-batch into view; once, however often this is called for it.

        One without rows leaves nothing, and needs no record: if it is run again, it has none again, or is the first
        that has.
        """
        written = written_of(messages)
        if ledger_ids_of(written):
            _commit(self._options, Transaction(written[0].sink, batchId, written[0].owner), written)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Delete what was written, unless it is committed after all."""
        if written := written_of(messages):
            undo(self._options, Transaction(written[0].sink, batchId, written[0].owner), messages)


def write_rows(
    options: WriteOptions, transaction: Transaction, batches: Iterator[pa.RecordBatch], column: str
) -> Written:
    """Write the rows of a task into a new ledger, not yet in view.

    Raises:
        InvalidArgument: a row has no payload.
        EntryTooLarge: a payload is larger than an entry may be.
        TallybookError: the cluster does not take them.
    """
    payloads = payload_batches(batches, column)
    first = next(payloads, None)
    if first is None:
        return Written(transaction.sink, transaction.owner, ())
    quorum = (options.ensemble, options.write_quorum, options.ack_quorum)
    with task_ledger(options, transaction, quorum, transaction.marks) as ledger:
        ledger.extend(chain([first], payloads))
    return Written(transaction.sink, transaction.owner, (ledger.ledger_id,), cluster_id=ledger.cluster_id)


class TaskLedger:
    """The ledger that a task writes."""

    def __init__(self, loop: LoopThread, ledger: Appends, cluster: Writing) -> None:
        self._loop = loop
        self._ledger = ledger
        self.ledger_id = ledger.id
        self.cluster_id = cluster.cluster_id
        self.max_entry_bytes = min(ledger.max_entry_bytes, cluster.client.max_entry_bytes)
        """What its bookies take, and those of other ledgers that the client has met."""

    def extend(self, payloads: Iterable[list[bytes]]) -> None:
        """Append entries, some at a time."""
        for some in payloads:
            self._loop.run(self._ledger.append_many(some))


@contextmanager
def task_ledger(
    options: WriteOptions, transaction: Transaction, quorum: tuple[int, int, int], custom: Mapping[str, bytes]
) -> Iterator[TaskLedger]:
    """A new ledger, not yet in view: closed in the end, or deleted where something fails.

    Args:
        quorum: ensemble, write quorum and ack quorum.
        custom: metadata, with the marks of the transaction.

    Raises:
        TallybookError: the cluster does not take it.
    """
    ensemble, write_quorum, ack_quorum = quorum
    with LoopThread("tallybook") as loop:
        cluster = loop.run(Writing.open(options))
        try:
            ledger = loop.run(
                cluster.client.create_ledger(
                    ensemble=ensemble,
                    write_quorum=write_quorum,
                    ack_quorum=ack_quorum,
                    password=options.place.password,
                    custom=custom,
                )
            )
            loop.run(note_attempt(cluster.store, transaction, ledger.id))
            try:
                loop.run(_limits_known(ledger))
                yield TaskLedger(loop, ledger, cluster)
                loop.run(ledger.close())
            except BaseException:
                loop.run(_discard_if_possible(cluster, ledger.id))
                raise
        finally:
            loop.run(cluster.close())


async def _limits_known(ledger: Appends) -> None:
    """Wait until the bookies of a ledger have said how large an entry may be: rows are cut to that.

    Raises:
        RequestTimeout: they do not in time.
    """
    if not await ledger.wait_for_limits(LIMITS_SECONDS):
        raise RequestTimeout(
            f"ledger {ledger.id}: its bookies have not said in {LIMITS_SECONDS:.0f} s what they take",
            outcome=Outcome.NOT_DONE,
        )


async def _discard_if_possible(cluster: Writing, ledger_id: int) -> None:
    """Delete a ledger; if that cannot be, others do. What has failed before is what counts."""
    try:
        await discard(cluster.updater, [ledger_id])
    except PeerError as error:
        _log.warning(
            "a ledger is left for a commit, or the offloader, to delete", ledger_id=ledger_id, error=error.message
        )


class Writing:
    """A cluster, opened to write to."""

    def __init__(self, client: Client, store: MetadataStore, cluster_id: str) -> None:
        self.client = client
        self.store = store
        self.cluster_id = cluster_id
        self.updater = LedgerUpdater(store, RealClock(), SystemRng())

    @classmethod
    async def open(cls, options: WriteOptions) -> Writing:
        """Reach the cluster.

        Raises:
            InvalidConfig, MetadataUnavailable: it cannot be reached, or is not the one that the write was planned on.
        """
        settings = ClientSettings(security=options.place.security, archive_keys=options.place.archive_keys)
        world = await open_world(options.place.metadata or "", settings, credentials=options.place.credentials)
        cluster = cls(Client(world, settings), world.store, await world.store.cluster_id())
        try:
            options.place.check_cluster(options.cluster_id, cluster.cluster_id)
        except InvalidConfig:
            await cluster.close()
            raise
        return cluster

    def check_cluster(self, written: Sequence[Written]) -> None:
        """Make sure that tasks have written to this cluster.

        Raises:
            InvalidConfig: some have written to another one: its ledgers cannot be committed here.
        """
        for each in written:
            if each.cluster_id not in ("", self.cluster_id):
                ids = ", ".join(map(str, each.ledger_ids))
                raise InvalidConfig(
                    f"a task has written ledgers {ids} to cluster {each.cluster_id}, and the driver commits "
                    f"to cluster {self.cluster_id}: give a URI that names the same store on the driver and on every "
                    "executor"
                )

    async def close(self) -> None:
        """Leave it."""
        await self.client.close()


def on_cluster(options: WriteOptions, work: Callable[[Writing], Awaitable[T]]) -> T:
    """What ``work`` makes of the cluster, which is opened for it.

    Raises:
        As ``Writing.open``, and whatever ``work`` raises.
    """

    async def done() -> T:
        cluster = await Writing.open(options)
        try:
            return await work(cluster)
        finally:
            await cluster.close()

    with LoopThread("tallybook") as loop:
        return loop.run(done())


def payload_batches(batches: Iterator[pa.RecordBatch], column: str) -> Iterator[list[bytes]]:
    """The payloads of all rows, up to some MiB, or some thousands, at a time.

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

    return gathered(rows())


def gathered(payloads: Iterator[bytes]) -> Iterator[list[bytes]]:
    """What is appended at a time: up to some MiB, or some thousands."""
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


def written_of(messages: Sequence[WriterCommitMessage | None]) -> list[Written]:
    """What tasks have written."""
    return [message for message in messages if isinstance(message, Written)]


def ledger_ids_of(written: Sequence[Written]) -> list[int]:
    """All ledgers of a batch."""
    return [ledger_id for message in written for ledger_id in message.ledger_ids]


def _commit(options: WriteOptions, transaction: Transaction, written: Sequence[Written]) -> bool:
    """Commit; says whether it was this commit that did it, or one with the same ledgers."""

    async def work(cluster: Writing) -> bool:
        cluster.check_cluster(written)
        done = await commit(cluster.store, cluster.updater, transaction, ledger_ids_of(written))
        if transaction.is_once:
            await _forget(cluster, transaction.sink)
        return done

    return on_cluster(options, work)


async def _forget(cluster: Writing, sink: str) -> None:
    """Leave no record of a sink that nobody writes to again. What is written is in view, come what may."""
    try:
        await forget(cluster.store, cluster.updater, sink)
    except (PeerError, StorageError) as error:
        _log.warning("a record is left for the offloader to delete", sink=sink, error=error.message)


def _was_committed(options: WriteOptions, transaction: Transaction) -> bool:
    async def work(cluster: Writing) -> bool:
        last = await last_committed(cluster.store, transaction.sink)
        same = last is not None and last.number == transaction.number
        return same or await was_committed(cluster.store, transaction)

    return on_cluster(options, work)


def undo(options: WriteOptions, transaction: Transaction, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Delete what was written to this cluster, unless it is committed after all.

    Ledgers of another cluster are left for its offloader: here their ids are those of other ledgers.
    """

    async def work(cluster: Writing) -> None:
        here = [each for each in written_of(messages) if each.cluster_id in ("", cluster.cluster_id)]
        await abandon(cluster.store, cluster.updater, transaction, ledger_ids_of(here))

    on_cluster(options, work)


def planned(options: WriteOptions) -> WriteOptions:
    """The options, with the cluster that every step of the write has to find.

    Raises:
        InvalidConfig, MetadataUnavailable: there is none to be reached.
    """

    async def work(cluster: Writing) -> WriteOptions:
        return replace(options, cluster_id=cluster.cluster_id)

    return on_cluster(options, work)


def next_number(options: WriteOptions, sink: str) -> int:
    """The number of a sink's next transaction."""
    last = on_cluster(options, lambda cluster: last_committed(cluster.store, sink))
    return 0 if last is None else last.number + 1


def local_property(name: str) -> str:
    """What Spark tells a task.

    Raises:
        InvalidConfig: it does not.
    """
    context = TaskContext.get()
    found = context.getLocalProperty(name) if context is not None else None
    if not found:
        raise InvalidConfig(f"this Spark does not tell its tasks {name}, without which a batch cannot be known again")
    return found
