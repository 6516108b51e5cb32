"""Batches of records into a stream, each exactly once, though any step may be cut off or done twice.

    tasks    staged ledgers, each entry an envelope           nobody sees them
    driver   become the stream's writer                       whoever was it appends nothing any more
             announce: batch 17, from record 1000 on          so that it is found again
             commit the staged ledgers                        one compare-and-set: from here on the batch will be there
             append entry by entry, each as one set           in order; cut off, the next writer goes on
             note that all is appended; delete the ledgers

The last record of each entry carries an id that names the staged ledger and the entry. Whoever goes on with a batch
reads the stream from where it was announced, and appends what is not there: however long ago that was, and however
many records that are. Nobody else can append meanwhile, for a stream has one writer, and what the one before had sent
is settled before a new one begins.

The record of a sink's deliveries has room for one batch. Before another one takes its place, that one is withdrawn: so
its driver, which may only be slow, is refused when it goes on to commit it.

A batch is in the stream or will be once it is committed; of one that is not, no record ever is. A second attempt at a
batch that is committed changes nothing, whatever rows it has. ``metadata/commits`` has the commit itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from tallybook.client.client import Client
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
from tallybook.core.marks import sometimes
from tallybook.metadata.commits import commit, renew
from tallybook.metadata.model import LedgerMetadata
from tallybook.metadata.record_update import RecordUpdater
from tallybook.metadata.sink_record import SINKS
from tallybook.metadata.store import MetadataStore, Ok, Record
from tallybook.metadata.transactions import Transaction, last_committed, names, read_sink
from tallybook.metadata.update import LedgerUpdater
from tallybook.runtime.logging import logger

from .catalog import Catalog
from .delivery_record import DELIVERIES, Delivery, Stage, delivered, deliveries_of, part_of, staging_sink, staging_sinks
from .envelope import Envelope
from .gaps import Gap
from .record import Outgoing
from .sessions import LEASE_SECONDS
from .start import Start
from .writer.handle import StreamWriter
from .writer.pending import PendingRecord

if TYPE_CHECKING:
    from .streams import StreamStore

_log = logger("stream.deliveries")

WAIT_SECONDS: Final = 60.0
"""How long another writer of the stream is waited for, who is still there."""
DEAD_SECONDS: Final = LEASE_SECONDS + 2
"""How long a writer is looked at who may be dead."""
_UNDER_WAY: Final = frozenset({Stage.ANNOUNCED, Stage.WITHDRAWN})
MOST_UNDER_WAY: Final = 64
"""Sets that are appended and not confirmed."""


class Deliveries:
    """Brings batches into one stream.

    Args:
        name: of the stream, as of now.
        stream_id: its id, which staged ledgers name.
        updater: changes ledgers.
    """

    def __init__(self, streams: StreamStore, client: Client, updater: LedgerUpdater, name: str, stream_id: str) -> None:
        self._streams = streams
        self._client = client
        self._store: MetadataStore = streams.metadata_store
        self._updater = updater
        self._name = name
        self._stream_id = stream_id

    async def deliver(
        self, sink: str, transaction: Transaction, ledger_ids: Iterable[int], txids: Sequence[tuple[int, int]] = ()
    ) -> bool:
        """Commit a batch and append it; ``False`` if the sink had committed it, or a younger one, before.

        Whatever was committed before and is not in the stream yet comes first.

        Args:
            sink: who writes.
            transaction: of the staged ledgers; see ``delivery_record.staging``.
            ledger_ids: the staged ledgers; closed.
            txids: the first and the last transaction id of each of them that has any, in the order of parts.

        Raises:
            OutOfOrder: transaction ids would fall. Nothing is committed, unless the message says that it was: where
                somebody has appended a higher one since.
            Conflict: the sink belongs to another owner, ledgers were given up as nobody committed them for long, or
                a batch of another number was announced for the sink meanwhile. Nothing is committed.
            StreamOwned: somebody else writes the stream, and goes on doing so.
            StreamEnded, NoSuchStream: nobody may write it any more.
            DataMissing: how much of a batch is in the stream cannot be told, or its ledgers are gone.
            StreamFenced: another writer took the stream meanwhile. It, or the next one, completes what is committed.
            MetadataConflict, MetadataUnavailable, MetadataOutcomeUnknown, ...: it may be committed; the same call
                settles it.
        """
        async with await self._streams.writer(self._name, wait_s=WAIT_SECONDS) as writer:
            writer.end_at_refusal()
            if writer.stream_id != self._stream_id:
                raise NoSuchStream(f"stream {self._name} was deleted, and there is another one of its name")
            await self._complete_all(writer, sink)
            last = await last_committed(self._store, transaction.sink)
            # A batch of another owner is refused below: where its own is announced, that may be committed yet.
            if last is None or (last.number < transaction.number and last.owner == transaction.owner):
                _check_order(writer, txids)
                await self._announce(writer, sink, transaction.number)
            announced = partial(self._check_announced, sink, transaction.number)
            done = await commit(self._store, self._updater, transaction, ledger_ids, announced)
            await self._complete(writer, sink)
            return done

    async def complete(self) -> None:
        """Append what is left of batches that are committed and were cut off.

        Raises:
            StreamOwned: somebody writes the stream: whoever is bringing a batch just now, or another one.
            As ``deliver``.
        """
        async with await self._streams.writer(self._name, wait_s=DEAD_SECONDS) as writer:
            writer.end_at_refusal()
            if writer.stream_id == self._stream_id:
                await self._complete_all(writer, "")

    async def give_up(self) -> None:
        """Let nobody look any more for batches that were cut off in a stream that was ended since.

        Raises:
            MetadataConflict, MetadataUnavailable, DamagedFile: some may be left; call it again.
        """
        for name in [name async for name in names(self._store, deliveries_of(self._stream_id))]:
            sink = name.rpartition("/")[2]
            record = await self._store.read_record(name, linearizable=True)
            last = (await read_sink(self._store, staging_sink(self._stream_id, sink))).record.last
            if record is None or (found := Delivery.decode(name, record.value)).number != last.number:
                continue
            if found.stage is Stage.APPENDED:
                await self._discard(name, found, record, last.ledger_ids)
            elif found.stage in _UNDER_WAY:
                _log.warning("a stream was ended before a batch was complete", stream=self._name, sink=sink)
                await self._give_up(sink)

    async def forget(self, sink: str) -> None:
        """Leave no record of a sink that nobody writes to again, unless a batch of it is still to be completed.

        Raises:
            MetadataUnavailable: records may be left, and harm nobody.
        """
        name, staged = deliveries_of(self._stream_id) + sink, SINKS + staging_sink(self._stream_id, sink)
        record, known = (
            await self._store.read_record(name, linearizable=True),
            await read_sink(self._store, staging_sink(self._stream_id, sink)),
        )
        if record is not None:
            found = Delivery.decode(name, record.value)
            if found.stage is not Stage.DONE and known.record.last.number == found.number:
                return
            await self._store.delete_record(name, record.version)
        if known.version is not None:
            await self._store.delete_record(staged, known.version)

    async def _announce(self, writer: StreamWriter, sink: str, number: int) -> None:
        """Let whoever comes after know that a batch may be committed, and where its records begin.

        Raises:
            MetadataConflict: another writer is about to do so, or has committed the one that was announced before.
        """
        name = deliveries_of(self._stream_id) + sink
        record = await self._store.read_record(name, linearizable=True)
        found = None if record is None else Delivery.decode(name, record.value)
        # A batch that was announced before is as it was announced first: no record of it can be before that.
        wanted = Delivery(number, writer.next_sequence if found is None or found.number != number else found.since)
        if found == wanted:
            return
        if record is not None and found is not None and found.number != number and found.stage is not Stage.DONE:
            record = await self._withdraw(sink, name, found, record)
        await self._write(name, wanted, record)

    async def _withdraw(self, sink: str, name: str, found: Delivery, record: Record) -> Record:
        """See to it that a batch that is announced and not committed never is: it could not be found again.

        Raises:
            MetadataConflict: it is committed.
        """
        if found.stage is Stage.ANNOUNCED:
            record = await self._write(name, replace(found, stage=Stage.WITHDRAWN), record)
        # Whoever looked before it was withdrawn cannot commit it from now on; who looks later is refused.
        last = (await renew(self._store, staging_sink(self._stream_id, sink), found.number)).last
        if last.number == found.number:
            raise MetadataConflict(f"stream {self._name}: batch {found.number} of sink {sink} was committed meanwhile")
        return record

    async def _check_announced(self, sink: str, number: int) -> None:
        """See to it that a batch can be found again once it is committed.

        Raises:
            Conflict: another one was announced in its place.
        """
        name = deliveries_of(self._stream_id) + sink
        record = await self._store.read_record(name, linearizable=True)
        found = None if record is None else Delivery.decode(name, record.value)
        if found is not None and (found.number, found.stage) == (number, Stage.ANNOUNCED):
            return
        # A write of the commit may still be under way: from here on it has landed, or comes to nothing. Where a later
        # batch is there, so may this one be, and the commit finds out.
        if (await renew(self._store, staging_sink(self._stream_id, sink), number)).last.number < number:
            raise Conflict(
                f"stream {self._name}: another batch of sink {sink} was announced before batch {number} was committed, "
                "and nothing of it will be there: a sink is for one job at a time"
            )

    async def _write(self, name: str, delivery: Delivery, known: Record | None) -> Record:
        """Replace what is known, and nothing else: whoever stood still may find the batch of somebody else there."""
        value = delivery.encode()
        result = await self._store.write_record(name, value, None if known is None else known.version)
        if not isinstance(result, Ok):
            raise MetadataConflict(f"the record {name} was changed by somebody else meanwhile")
        return Record(value, result.version)

    async def _complete_all(self, writer: StreamWriter, mine: str) -> None:
        for name in [name async for name in names(self._store, deliveries_of(self._stream_id))]:
            await self._complete_of(writer, name.rpartition("/")[2], mine)

    async def _complete_of(self, writer: StreamWriter, sink: str, mine: str) -> None:
        """Complete what a sink has left; of others, what can be: one that never can keeps nobody from the stream."""
        try:
            await self._complete(writer, sink, again=sink == mine)
        except (StorageError, InvalidArgument) as error:
            if sink == mine or error.retriable:
                raise
            _log.warning("a batch of another sink cannot be completed", sink=sink, error=error.message)
            if error.settled:
                await self._give_up(sink)

    async def _give_up(self, sink: str) -> None:
        """Let nobody try again to complete a batch but its own sink, which is told why it cannot be."""
        name = deliveries_of(self._stream_id) + sink
        record = await self._store.read_record(name, linearizable=True)
        with suppress(DamagedFile):
            if record is not None and (found := Delivery.decode(name, record.value)).stage in _UNDER_WAY:
                await self._write(name, replace(found, stage=Stage.GIVEN_UP), record)

    async def _complete(self, writer: StreamWriter, sink: str, *, again: bool = True) -> None:
        """See to it that the batch that a sink has committed last is in the stream, all of it.

        Args:
            again: whether to try that, too, where it was given up.
        """
        name = deliveries_of(self._stream_id) + sink
        record = await self._store.read_record(name, linearizable=True)
        if record is None:
            return
        found = Delivery.decode(name, record.value)
        last = (await read_sink(self._store, staging_sink(self._stream_id, sink))).record.last
        if found.stage is Stage.DONE or last.number != found.number:
            return  # what was announced and not committed is nothing
        if found.stage is Stage.GIVEN_UP and not again:
            return
        if found.stage is not Stage.APPENDED:
            try:
                await self._append(writer, found, last.ledger_ids)
            except OutOfOrder as error:
                raise OutOfOrder(
                    f"stream {self._name}: batch {found.number} of sink {sink} is committed, and was cut off, and what "
                    f"is left of it cannot be appended any more: {error.message}; under another name of the sink it is "
                    "written anew"
                ) from error
            record = await self._write(name, replace(found, stage=Stage.APPENDED), record)
        await self._discard(name, found, record, last.ledger_ids)

    async def _discard(self, name: str, found: Delivery, record: Record, ledger_ids: Iterable[int]) -> None:
        """Delete what was staged for a batch, all of which is in the stream."""
        for ledger_id in ledger_ids:
            with suppress(NoSuchLedger):
                await self._client.delete_ledger(ledger_id, force=True)
        await self._write(name, replace(found, stage=Stage.DONE), record)

    async def _append(self, writer: StreamWriter, delivery: Delivery, ledger_ids: Iterable[int]) -> None:
        """Append what of a batch is not in the stream."""
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
                f"stream {self._name}: a batch is committed, and ledger {ledger_id} with records of it is gone"
            ) from error

    async def _reached(self, writer: StreamWriter, delivery: Delivery, ledger_ids: set[int]) -> tuple[int, int] | None:
        """The last staged entry that is in the stream, by ledger and entry: those before it are, too.

        Raises:
            DataMissing: it may be among records that are gone.
            NoSuchStream: the stream has another name by now.
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
                f"stream {self._name}: how much of batch {delivery.number} is there cannot be told, for {doubt}; under "
                "another name of the sink it is written anew"
            )
        return reached


async def complete_left(client: Client, store_of: Callable[[str], StreamStore]) -> int:
    """Complete batches, of all streams, that are committed and were cut off; how many streams they could not come into.

    A stream that somebody writes is left to later.

    Args:
        store_of: the streams of a namespace; closed here.

    Raises:
        MetadataUnavailable: the store does not answer; streams are left for the next round.
    """
    world, failed = client.world, 0
    updater = LedgerUpdater(world.store, world.clock, world.rng)
    catalog = Catalog(world.store, RecordUpdater(world.store, world.clock, world.rng))
    for stream_id in {name.split("/")[1]: None async for name in names(world.store, DELIVERIES)}:
        try:
            if not await _has_left(world.store, stream_id):
                continue
            head = await catalog.peek(stream_id)
            if head is None:
                # It was deleted while somebody was bringing a batch who did not know it yet.
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
            sometimes("stream: a batch that was cut off is completed by the keeper")
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


async def forget_all(client: Client, catalog: Catalog, stream_id: str) -> None:
    """Delete what was on its way into a stream that is no more, and all word of it.

    Raises:
        MetadataUnavailable, MetadataConflict, MetadataOutcomeUnknown, DamagedFile: some may be left; call it again.
    """
    store = client.world.store
    async for name in names(store, staging_sinks(stream_id)):
        for ledger_id in (await read_sink(store, name.removeprefix(SINKS))).record.last.ledger_ids:
            with suppress(NoSuchLedger):
                await client.delete_ledger(ledger_id, force=True)
    await catalog.forget_deliveries(stream_id)


async def _has_left(store: MetadataStore, stream_id: str) -> bool:
    """Whether some batch of a stream is committed, and not known to be there."""
    async for name in names(store, deliveries_of(stream_id)):
        record = await store.read_record(name, linearizable=True)
        found = None if record is None else Delivery.decode(name, record.value)
        if found is not None and found.stage not in {Stage.DONE, Stage.GIVEN_UP}:
            known = await read_sink(store, staging_sink(stream_id, name.rpartition("/")[2]))
            if known.record.last.number == found.number:
                return True
    return False


def _from_on(ledgers: Sequence[LedgerMetadata], reached: tuple[int, int] | None) -> Sequence[LedgerMetadata]:
    """The ledgers from the one on that was reached."""
    if reached is None:
        return ledgers
    return ledgers[[each.ledger_id for each in ledgers].index(reached[0]) :]


async def _append_set(writer: StreamWriter, envelope: Envelope, pending: deque[PendingRecord]) -> None:
    """Append a staged entry behind those that are under way; a refusal ends the writer, so none is left out."""
    records = [
        Outgoing(each.payload, each.timestamp_ms, each.key, each.dedup_id, each.txid) for each in envelope.records()
    ]
    while len(pending) >= MOST_UNDER_WAY:
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
