"""Exactly-once delivery of batches into a stream: every step may be interrupted or repeated.

    tasks    write staged ledgers, each entry an envelope     not visible to readers
    driver   become the stream's writer                       fences the previous writer
             announce: batch 17, from record 1000 on          so that recovery finds it
             commit the staged ledgers                        one compare-and-set: the batch will be delivered
             append entry by entry, each as one set           in order; if interrupted, the next writer continues
             record that all is appended; delete the ledgers

A committed batch is in the stream, or will be; of an uncommitted one, no record ever is. Repeating a committed batch
changes nothing, even with other rows. ``metadata/transactions`` commits; docs/adr/0012 says why in this order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final, Protocol

from tallybook.client.client import Client
from tallybook.core.coverage import sometimes
from tallybook.core.errors import (
    Conflict,
    DamagedFile,
    DataMissing,
    InvalidArgument,
    MetadataConflict,
    MetadataUnavailable,
    NoSuchLedger,
    NoSuchStream,
    OutOfOrder,
    StorageError,
    StreamOwned,
    TallybookError,
    is_defect,
)
from tallybook.metadata.ledger.model import LedgerMetadata
from tallybook.metadata.ledger_update import LedgerUpdater
from tallybook.metadata.records.listing import record_names
from tallybook.metadata.records.update import RecordUpdater
from tallybook.metadata.store import MetadataRecord, MetadataStore, Ok
from tallybook.metadata.transactions import SINKS, Transaction, commit, last_committed, read_sink, renew
from tallybook.runtime.concurrency.opening import Opening
from tallybook.runtime.logging import logger

from .catalog.catalog import StreamCatalog
from .catalog.delivery_record import (
    DELIVERIES,
    Delivery,
    DeliveryStage,
    delivered,
    deliveries_of,
    part_of,
    staging_sink,
    staging_sinks,
)
from .gaps import Gap
from .info import StreamInfo
from .reader.handle import StreamReader
from .reader.reading import Gaps
from .records.envelope import Envelope
from .records.record import Outgoing
from .sessions import LEASE_SECONDS
from .start import Start
from .writer.handle import StreamWriter
from .writer.pending import PendingRecord

_log = logger("stream.deliveries")

WAIT_SECONDS: Final = 60.0
"""How long to wait for another live writer of the stream."""
DEAD_SECONDS: Final = LEASE_SECONDS + 2
"""How long to wait for a writer that may be dead."""
_IN_FLIGHT: Final = frozenset({DeliveryStage.ANNOUNCED, DeliveryStage.WITHDRAWN})
MAX_IN_FLIGHT: Final = 64
"""Appended sets that are not yet confirmed."""


class DeliveryStreams(Protocol):
    """The part of a ``StreamStore`` that deliveries need."""

    @property
    def metadata_store(self) -> MetadataStore:
        """The metadata store with the records of streams."""

    def info(self, name: str) -> Coroutine[Any, Any, StreamInfo]:
        """A stream's properties and state."""

    def writer(self, name: str, *, wait_s: float | None = None) -> Opening[StreamWriter]:
        """Become the writer of a stream."""

    def reader(
        self, name: str, *, start: Start | None = None, follow: bool = True, gaps: Gaps = "raise"
    ) -> StreamReader:
        """Read a stream."""


class Deliveries:
    """Delivers batches into one stream.

    The last record of each entry has a deduplication id that names the staged ledger and the entry. A process that
    continues a batch reads the stream from where the batch was announced, and appends the missing entries. No other
    process can append meanwhile: a stream has one writer, and the appends of the previous one are settled before.

    Args:
        name: current name of the stream.
        stream_id: its id, as in the staged ledgers.
        updater: changes ledger metadata.
    """

    def __init__(
        self, streams: DeliveryStreams, client: Client, updater: LedgerUpdater, name: str, stream_id: str
    ) -> None:
        self._streams = streams
        self._client = client
        self._store: MetadataStore = streams.metadata_store
        self._updater = updater
        self._name = name
        self._stream_id = stream_id

    async def deliver(
        self, sink: str, transaction: Transaction, ledger_ids: Iterable[int], txids: Sequence[tuple[int, int]] = ()
    ) -> bool:
        """Commit a batch and append it; ``False`` if the sink had committed it, or a later one, before.

        Batches that were committed before and are not yet in the stream are appended first.

        Args:
            sink: the sink that writes the batch.
            transaction: the transaction of the staged ledgers; see ``record.staging``.
            ledger_ids: the staged ledgers, closed.
            txids: the first and last transaction id of each staged ledger that has any, in the order of parts.

        Raises:
            OutOfOrder: transaction ids would decrease. Nothing is committed, unless the message says so (a higher id
                was appended since).
            QuotaExceeded: the stream or its namespace is full. Nothing is committed; committed batches are completed.
            Conflict: the sink belongs to another owner, the staged ledgers were deleted because they were not committed
                for long, or another batch was announced for the sink meanwhile. Nothing is committed.
            StreamOwned: another process keeps writing the stream.
            StreamEnded, NoSuchStream: the stream cannot be written any more.
            DataMissing: it is unknown how much of a batch is in the stream, or its ledgers are gone.
            StreamFenced: another writer took the stream meanwhile. It, or the next one, completes committed batches.
            MetadataConflict, MetadataUnavailable, MetadataOutcomeUnknown, ...: the batch may be committed; repeat the
                call.
        """
        async with self._streams.writer(self._name, wait_s=WAIT_SECONDS) as writer:
            writer.end_at_refusal()
            if writer.stream_id != self._stream_id:
                raise NoSuchStream(f"stream {self._name} was deleted, and there is another one of its name")
            await self._complete_all(writer, sink)
            last = await last_committed(self._store, transaction.sink)
            # A batch of another owner is refused below; do not replace the announced batch of the right owner.
            if last is None or (last.number < transaction.number and last.owner == transaction.owner):
                _check_order(writer, txids)
                writer.check_quota()
                await self._announce(writer, sink, transaction.number)
            announced = partial(self._check_announced, sink, transaction.number)
            done = await commit(self._updater, transaction, ledger_ids, announced)
            await self._complete(writer, sink)
            return done

    async def complete(self) -> None:
        """Complete interrupted batches that are committed.

        Raises:
            StreamOwned: another process writes the stream, perhaps the driver of the batch.
            As ``deliver``.
        """
        async with self._streams.writer(self._name, wait_s=DEAD_SECONDS) as writer:
            writer.end_at_refusal()
            if writer.stream_id == self._stream_id:
                await self._complete_all(writer, "")

    async def give_up(self) -> None:
        """Give up interrupted batches of a stream that was sealed since.

        Raises:
            MetadataConflict, MetadataUnavailable, DamagedFile: some may be left; call it again.
        """
        for name in [name async for name in record_names(self._store, deliveries_of(self._stream_id))]:
            sink = name.rpartition("/")[2]
            record = await self._store.read_record(name, linearizable=True)
            last = (await read_sink(self._store, staging_sink(self._stream_id, sink))).record.last
            if record is None or (found := Delivery.decode(name, record.value)).number != last.number:
                continue
            if found.stage is DeliveryStage.APPENDED:
                await self._discard(name, found, record, last.ledger_ids)
            elif found.stage in _IN_FLIGHT:
                _log.warning("a stream was ended before a batch was complete", stream=self._name, sink=sink)
                await self._give_up(sink)

    async def forget(self, sink: str) -> None:
        """Delete the records of a sink that is not used any more, unless a batch of it is to be completed.

        Raises:
            MetadataUnavailable: records may be left, which is harmless.
        """
        name, staged = deliveries_of(self._stream_id) + sink, SINKS + staging_sink(self._stream_id, sink)
        record, known = (
            await self._store.read_record(name, linearizable=True),
            await read_sink(self._store, staging_sink(self._stream_id, sink)),
        )
        if record is not None:
            found = Delivery.decode(name, record.value)
            if found.stage is not DeliveryStage.DONE and known.record.last.number == found.number:
                return
            await self._store.delete_record(name, record.version)
        if known.version is not None:
            await self._store.delete_record(staged, known.version)

    async def _announce(self, writer: StreamWriter, sink: str, number: int) -> None:
        """Record that a batch may be committed, and where its records begin.

        Raises:
            MetadataConflict: another writer announces a batch, or has committed the previously announced one.
        """
        name = deliveries_of(self._stream_id) + sink
        record = await self._store.read_record(name, linearizable=True)
        found = None if record is None else Delivery.decode(name, record.value)
        # A batch that is announced again keeps its first start: no record of it can be before that.
        wanted = Delivery(number, writer.next_sequence if found is None or found.number != number else found.since)
        if found == wanted:
            return
        if (
            record is not None
            and found is not None
            and found.number != number
            and found.stage is not DeliveryStage.DONE
        ):
            record = await self._withdraw(sink, name, found, record)
        await self._write(name, wanted, record)

    async def _withdraw(self, sink: str, name: str, found: Delivery, record: MetadataRecord) -> MetadataRecord:
        """Make sure that an announced, uncommitted batch is never committed: its record is about to be replaced.

        The delivery record of a sink has space for one batch, and the driver of this one may only be slow.

        Raises:
            MetadataConflict: it is committed.
        """
        if found.stage is DeliveryStage.ANNOUNCED:
            record = await self._write(name, replace(found, stage=DeliveryStage.WITHDRAWN), record)
        # ``renew`` makes commits fail that were checked before the withdrawal; later checks see the withdrawal.
        last = (await renew(self._updater, staging_sink(self._stream_id, sink), found.number)).last
        if last.number == found.number:
            raise MetadataConflict(f"stream {self._name}: batch {found.number} of sink {sink} was committed meanwhile")
        return record

    async def _check_announced(self, sink: str, number: int) -> None:
        """Check that a batch is still announced, so that it can be found once it is committed.

        Raises:
            Conflict: another batch was announced in its place.
        """
        name = deliveries_of(self._stream_id) + sink
        record = await self._store.read_record(name, linearizable=True)
        found = None if record is None else Delivery.decode(name, record.value)
        if found is not None and (found.number, found.stage) == (number, DeliveryStage.ANNOUNCED):
            return
        # A write of the commit may be in flight: after ``renew`` it has taken effect, or never will. If a later batch
        # is committed, this one may be, too, and the commit finds out.
        if (await renew(self._updater, staging_sink(self._stream_id, sink), number)).last.number < number:
            raise Conflict(
                f"stream {self._name}: another batch of sink {sink} was announced before batch {number} was committed; "
                "nothing of it was written: use a sink for one job at a time"
            )

    async def _write(self, name: str, delivery: Delivery, known: MetadataRecord | None) -> MetadataRecord:
        """Write a delivery record by compare-and-set: a process that was suspended must not replace a newer batch."""
        value = delivery.encode()
        result = await self._store.write_record(name, value, None if known is None else known.version)
        if not isinstance(result, Ok):
            raise MetadataConflict(f"the record {name} was changed by another process meanwhile")
        return MetadataRecord(value, result.version)

    async def _complete_all(self, writer: StreamWriter, mine: str) -> None:
        for name in [name async for name in record_names(self._store, deliveries_of(self._stream_id))]:
            await self._complete_of(writer, name.rpartition("/")[2], mine)

    async def _complete_of(self, writer: StreamWriter, sink: str, mine: str) -> None:
        """Complete the batch of a sink. Failures of other sinks than ``mine`` do not block the stream."""
        try:
            await self._complete(writer, sink, again=sink == mine)
        except (StorageError, InvalidArgument) as error:
            if sink == mine or error.retriable:
                raise
            _log.warning("a batch of another sink cannot be completed", sink=sink, error=error.message)
            if error.settled:
                await self._give_up(sink)

    async def _give_up(self, sink: str) -> None:
        """Mark a batch as given up: only its own sink tries again, and gets the error."""
        name = deliveries_of(self._stream_id) + sink
        record = await self._store.read_record(name, linearizable=True)
        with suppress(DamagedFile):
            if record is not None and (found := Delivery.decode(name, record.value)).stage in _IN_FLIGHT:
                await self._write(name, replace(found, stage=DeliveryStage.GIVEN_UP), record)

    async def _complete(self, writer: StreamWriter, sink: str, *, again: bool = True) -> None:
        """Append the missing entries of the last committed batch of a sink.

        Args:
            again: try also if the batch was given up.
        """
        name = deliveries_of(self._stream_id) + sink
        record = await self._store.read_record(name, linearizable=True)
        if record is None:
            return
        found = Delivery.decode(name, record.value)
        last = (await read_sink(self._store, staging_sink(self._stream_id, sink))).record.last
        if found.stage is DeliveryStage.DONE or last.number != found.number:
            return  # announced, but not committed
        if found.stage is DeliveryStage.GIVEN_UP and not again:
            return
        if found.stage is not DeliveryStage.APPENDED:
            try:
                await self._append(writer, found, last.ledger_ids)
            except OutOfOrder as error:
                raise OutOfOrder(
                    f"stream {self._name}: batch {found.number} of sink {sink} is committed and incomplete, and its "
                    f"other records cannot be appended any more: {error.message}; to write it again, use another sink "
                    "name"
                ) from error
            record = await self._write(name, replace(found, stage=DeliveryStage.APPENDED), record)
        await self._discard(name, found, record, last.ledger_ids)

    async def _discard(self, name: str, found: Delivery, record: MetadataRecord, ledger_ids: Iterable[int]) -> None:
        """Delete the staged ledgers of a batch that is completely in the stream."""
        for ledger_id in ledger_ids:
            with suppress(NoSuchLedger):
                await self._client.delete_ledger(ledger_id, force=True)
        await self._write(name, replace(found, stage=DeliveryStage.DONE), record)

    async def _append(self, writer: StreamWriter, delivery: Delivery, ledger_ids: Iterable[int]) -> None:
        """Append the entries of a batch that are not in the stream."""
        ledgers = sorted([await self._staged(ledger_id) for ledger_id in ledger_ids], key=part_of)
        reached = await self._reached(writer, delivery, {each.ledger_id for each in ledgers})
        pending: deque[PendingRecord] = deque()
        for metadata in _from_on(ledgers, reached):
            first = reached[1] + 1 if reached is not None and reached[0] == metadata.ledger_id else 0
            if first > metadata.last_entry_id:
                continue
            reader = await self._client.open_ledger(metadata.ledger_id)
            async with aclosing(reader.read_batches(first, metadata.last_entry_id)) as batches:
                async for batch in batches:
                    for entry in batch:
                        envelope = Envelope(entry.payload, 0, entry.entry_id, "staged")
                        await _append_set(writer, envelope, pending)
        for each in pending:
            await each
        await writer.commit()

    async def _staged(self, ledger_id: int) -> LedgerMetadata:
        try:
            return await self._client.ledger_metadata(ledger_id)
        except NoSuchLedger as error:
            raise DataMissing(
                f"stream {self._name}: ledger {ledger_id} with records of a committed batch is gone"
            ) from error

    async def _reached(self, writer: StreamWriter, delivery: Delivery, ledger_ids: set[int]) -> tuple[int, int] | None:
        """Ledger and entry of the last staged entry that is in the stream; all before it are, too.

        Raises:
            DataMissing: it may be among records that are gone.
            NoSuchStream: the stream was renamed.
        """
        if delivery.since == writer.next_sequence:
            return None
        reached: tuple[int, int] | None = None
        known = await self._streams.info(self._name)
        if known.stream_id != self._stream_id:
            raise NoSuchStream(f"stream {self._name} was renamed, and there is another one of its name")
        begins = known.first_sequence
        doubt = f"records before {begins} were truncated" if begins > delivery.since else ""
        reader = self._streams.reader(self._name, start=Start.sequence(delivery.since), follow=False, gaps="yield")
        async with aclosing(reader.batches()) as batches:
            async for batch in batches:
                if isinstance(batch, Gap):
                    doubt = str(batch)
                    continue
                for record in batch:
                    found = delivered(record.dedup_id)
                    if found is not None and found[0] in ledger_ids:
                        reached, doubt = found, ""
        if doubt:
            raise DataMissing(
                f"stream {self._name}: it is unknown how much of batch {delivery.number} is there, because {doubt}; to "
                "write it again, use another sink name"
            )
        return reached


async def complete_left(client: Client, store_of: Callable[[str], AbstractAsyncContextManager[DeliveryStreams]]) -> int:
    """Complete interrupted committed batches of all streams; return for how many streams that failed.

    Streams that another process writes are skipped.

    Args:
        store_of: makes the stream store of a namespace; closed here.

    Raises:
        MetadataUnavailable: the store does not answer; the remaining streams wait for the next pass.
    """
    world, failed = client.world, 0
    updater = LedgerUpdater(world.store, world.clock, world.rng)
    catalog = StreamCatalog(world.store, RecordUpdater(world.store, world.clock, world.rng))
    for stream_id in {name.split("/")[1]: None async for name in record_names(world.store, DELIVERIES)}:
        try:
            if not await _has_left(world.store, stream_id):
                continue
            head = await catalog.peek(stream_id)
            if head is None:
                # The stream was deleted while a batch was being delivered.
                await forget_all(client, catalog, stream_id)
                continue
            if head.deleting:
                continue
            async with store_of(head.namespace) as streams:
                found = Deliveries(streams, client, updater, head.name, stream_id)
                if head.ended:
                    await found.give_up()
                    continue
                await found.complete()
            sometimes("stream: a batch that was cut off is completed by the janitor")
        except StreamOwned as error:
            _log.info("batches are completed later", stream_id=stream_id, error=error.message)
        except TallybookError as error:
            if is_defect(error):
                raise
            if isinstance(error, MetadataUnavailable):
                await catalog.check_store(stream_id)
            failed += 1
            _log.warning("batches are completed later", stream_id=stream_id, error=error.message)
    return failed


async def forget_all(client: Client, catalog: StreamCatalog, stream_id: str) -> None:
    """Delete the staged ledgers and delivery records of a deleted stream.

    Raises:
        MetadataUnavailable, MetadataConflict, MetadataOutcomeUnknown, DamagedFile: some may be left; call it again.
    """
    store = client.world.store
    async for name in record_names(store, staging_sinks(stream_id)):
        for ledger_id in (await read_sink(store, name.removeprefix(SINKS))).record.last.ledger_ids:
            with suppress(NoSuchLedger):
                await client.delete_ledger(ledger_id, force=True)
    await catalog.forget_deliveries(stream_id)


async def _has_left(store: MetadataStore, stream_id: str) -> bool:
    """Whether a batch of a stream is committed, but not known to be complete."""
    async for name in record_names(store, deliveries_of(stream_id)):
        record = await store.read_record(name, linearizable=True)
        found = None if record is None else Delivery.decode(name, record.value)
        if found is not None and found.stage not in {DeliveryStage.DONE, DeliveryStage.GIVEN_UP}:
            known = await read_sink(store, staging_sink(stream_id, name.rpartition("/")[2]))
            if known.record.last.number == found.number:
                return True
    return False


def _from_on(ledgers: Sequence[LedgerMetadata], reached: tuple[int, int] | None) -> Sequence[LedgerMetadata]:
    """The ledgers from the one with the last appended entry on."""
    if reached is None:
        return ledgers
    return ledgers[[each.ledger_id for each in ledgers].index(reached[0]) :]


async def _append_set(writer: StreamWriter, envelope: Envelope, pending: deque[PendingRecord]) -> None:
    """Append a staged entry after those in flight; a refused append ends the writer, so that none is skipped."""
    records = [
        Outgoing(each.payload, each.timestamp_ms, each.key, each.dedup_id, each.txid) for each in envelope.records()
    ]
    while len(pending) >= MAX_IN_FLIGHT:
        await pending.popleft()
    pending.append((await writer.send(records, as_set=True))[-1])


def _check_order(writer: StreamWriter, txids: Sequence[tuple[int, int]]) -> None:
    highest = writer.highest_txid
    for first, last in txids:
        if first < highest:
            raise OutOfOrder(
                f"stream {writer.name}: transaction id {first} comes after {highest}; sort rows by txid, or leave it "
                "out"
            )
        highest = last
