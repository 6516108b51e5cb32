"""The writing handle of a stream: append, one record, many, or a set; commit; end; close.

The path of a record is this file, ``flow``, ``pending`` and the ledger's own; ``segments`` gives the ledgers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Final, Self

from tallybook.client.budget import ByteBudget
from tallybook.core.errors import (
    Busy,
    EntryTooLarge,
    InvalidArgument,
    Outcome,
    PositionMismatch,
    RequestTimeout,
    StreamClosed,
    StreamEnded,
    TallybookError,
)
from tallybook.runtime.lifetime import Lifetime, close_or_abandon, while_open

from ..dedup import DedupWindow
from ..envelope import HEADER_BYTES, MAX_RECORDS, RECORD_OVERHEAD_BYTES, Kind
from ..position import TAG_CHARS, Position
from ..record import ANYTHING, MAX_RECORD_BYTES, MOST_BESIDE_BYTES, Anything, Outgoing, Payload, size_of
from .flow import Flow
from .pending import ROOM_BYTES, PendingRecord, positions_of
from .segments import Segments

APPEND_SECONDS: Final = 30.0
"""How long an append waits for room, or a conditional one for those before it."""
CLOSE_SECONDS: Final = 90.0
"""How long a close, or a commit, waits for what was appended: longer than a writer tries to mend a segment."""


class StreamWriter:
    """The one writer of a stream. Appends are confirmed in order, and each at most once.

    When bookies fail, the writer goes on in another segment by itself: what became of each append is settled by then,
    so nothing is written twice. Where a bookie of the ensemble takes less than before, a record that it does not take
    fails with ``EntryTooLarge``; those behind it are written. When another writer takes the stream, this one is over:
    whatever it had not confirmed fails with ``StreamFenced``, its outcome unknown.
    """

    def __init__(
        self,
        flow: Flow,
        segments: Segments,
        window: DedupWindow[PendingRecord],
        budget: ByteBudget,
        *,
        let_go: Callable[[], None],
        parent: Lifetime | None = None,
    ) -> None:
        self._flow = flow
        self._segments = segments
        self._window = window
        """That a record may have."""
        self._let_go = let_go
        self._budget = budget
        self._lifetime = Lifetime(f"the writer of stream {self.name}", parent=parent, error=StreamClosed)
        self._closing = self._closed = False
        self._ending = self._end_marked = False
        self._one_condition, self._one_share = asyncio.Lock(), asyncio.Lock()

    @property
    def name(self) -> str:
        """The stream's name, as of the last change this writer saw."""
        return self._segments.head.name

    @property
    def stream_id(self) -> str:
        """The id of the stream."""
        return self._segments.head.stream_id

    @property
    def last_position(self) -> Position | None:
        """Of the last record that is confirmed; ``None`` if the stream has none."""
        place = self._flow.last_place
        return None if place is None else Position(*place, tag=self.stream_id[:TAG_CHARS])

    @property
    def next_sequence(self) -> int:
        """The number that the next record gets."""
        return self._flow.next_sequence

    @property
    def highest_txid(self) -> int:
        """The highest transaction id that was appended: the next one may not be below it."""
        return self._flow.highest_txid

    @property
    def ended(self) -> bool:
        """Whether nothing can be appended any more: closed, or taken by another writer."""
        return self._closing or self._flow.error is not None

    def end_at_refusal(self) -> None:
        """Have a record that bookies do not take any more end the writer: for who may leave none out, and go on."""
        self._flow.ends_at_refusal = True

    def look(self) -> None:
        """See whether the segment has grown old; the store calls it now and then, for writers that append nothing."""
        if not self.ended:
            self._segments.look()

    # -- append ------------------------------------------------------------------------------------------------------

    def append_nowait(
        self,
        payload: Payload,
        *,
        timestamp_ms: int | None = None,
        key: bytes | None = None,
        dedup_id: bytes | str | None = None,
        txid: int | None = None,
    ) -> PendingRecord:
        """Send a record off, and return what to await for its position.

        Args:
            timestamp_ms: when it happened, in milliseconds since the epoch; by default, now. It need not grow.
            key: what it is about.
            dedup_id: appended again soon after with the same id, it is there once, and keeps its position.
            txid: a number of the application's, which never falls.

        Raises:
            Busy: the client's byte budget is used up; or there is no room for ids, where the store has a limit.
            EntryTooLarge, OutOfOrder, InvalidArgument: the record cannot be appended; the writer stays good.
            StreamClosed, StreamFenced, ...: the writer is closed or over; nothing was sent.
        """
        self._lifetime.check()
        plain = timestamp_ms is None and key is None and dedup_id is None and txid is None
        if plain and type(payload) is bytes and not self._closing and self._flow.error is None:
            # In few steps, since most records are like this, and come by the hundred thousand a second.
            size = len(payload)
            if size <= self._flow.last_entry_bytes - MOST_BESIDE_BYTES and self._budget.try_take(size + ROOM_BYTES):
                return self._flow.gather(payload, size, None, None, None, None)
        record = Outgoing.of(payload, timestamp_ms, key, dedup_id, txid)
        size = self._admissible(record)
        known = self._known(record.dedup_id)
        if known is not None:
            return known
        self._check_new(record)
        self._take_room_now(size)
        return self._gather(record, size)

    def take_room(self, record: Outgoing) -> int:
        """Take room in the client's budget for ``record``, for ``append_admitted`` to fill; the size to tell it.

        From any thread, if the budget is for that.

        Raises:
            As ``append_nowait``; ``OutOfOrder`` only for a record without an id, which cannot be known already.
        """
        size = self._admissible(record)
        if record.dedup_id is None:
            self._flow.check_order(record.txid)
        self._take_room_now(size)
        return size

    def append_admitted(self, record: Outgoing, size: int) -> PendingRecord:
        """The second half of ``append_nowait``, for what ``take_room`` has taken room for: it is used, or given back.

        Raises:
            OutOfOrder: a transaction id that is above this one has come meanwhile; the writer stays good.
            StreamClosed, StreamFenced, ...: the writer is closed or over; nothing was sent.
        """
        try:
            if self.ended:
                raise self._refusal()
            known = self._known(record.dedup_id)
            if known is None:
                self._check_new(record)
        except BaseException:
            self._budget.give(size + ROOM_BYTES)
            raise
        if known is not None:
            self._budget.give(size + ROOM_BYTES)
            return known
        return self._gather(record, size)

    async def append(
        self,
        payload: Payload,
        *,
        timestamp_ms: int | None = None,
        key: bytes | None = None,
        dedup_id: bytes | str | None = None,
        txid: int | None = None,
        if_position: Position | str | Anything | None = ANYTHING,
    ) -> Position:
        """Append a record; return its position once it is durable on an ack quorum.

        Args:
            if_position: the record is appended only if the last one of the stream has this position; ``None``: only if
                the stream has none. Other arguments: as ``append_nowait``.

        Raises:
            PositionMismatch: the last record is another one; nothing was appended.
            RequestTimeout: no room in the client's budget, or earlier appends stay unconfirmed; not sent.
            StreamFenced: another writer has the stream. The outcome tells whether the record was not sent, or may be
                there.
            As ``append_nowait``; ``Busy`` only for want of room for ids.
        """
        self._lifetime.check()
        record = Outgoing.of(payload, timestamp_ms, key, dedup_id, txid)
        if isinstance(if_position, Anything):
            return await self._append(record)
        with self._lifetime.use():
            return await self._append_if(record, if_position)

    async def append_many(self, records: Iterable[Payload | Outgoing]) -> list[Position]:
        """Append records in order; return their positions once all are durable on an ack quorum.

        Raises:
            As ``append``; some of the records may then be there.
        """
        return await positions_of(await self.send_many(records))

    async def send_many(
        self, records: Iterable[Payload | Outgoing], outcome: Outcome = Outcome.NOT_DONE
    ) -> list[PendingRecord]:
        """The first half of ``append_many``: what to await for the positions.

        Args:
            outcome: of the whole, if there is no room for the first of these.

        Raises:
            As ``append_many``.
        """
        self._lifetime.check()
        pending: list[PendingRecord] = []
        for each in records:
            record = each if isinstance(each, Outgoing) else Outgoing(each)
            size = self._admissible(record)
            known = self._known(record.dedup_id)
            if known is None:
                known = await self._taken(record, size, Outcome.UNKNOWN if pending else outcome)
            pending.append(known)
        return pending

    async def append_set(self, records: Sequence[Payload | Outgoing]) -> list[Position]:
        """Append records all together or not at all, also where the writer dies half-way; return their positions.

        A set in which an id is there already is not appended a second time: it is taken for the same one.

        Raises:
            EntryTooLarge: together they are larger than a record may be, or there are more than 8,192.
            As ``append``.
        """
        wanted = [each if isinstance(each, Outgoing) else Outgoing(each) for each in records]
        return await positions_of(await self.send(wanted, as_set=True))

    async def send(self, records: Sequence[Outgoing], *, as_set: bool = False) -> list[PendingRecord]:
        """Send records off, all of them or none; return what to await for their positions, one for each.

        It waits for room and for nothing else; it takes none that is for other streams. Once they are sent off, each is
        there or not, unless they are a set.

        Args:
            as_set: as ``append_set``.

        Raises:
            As ``append_set``; none of them was sent.
        """
        self._lifetime.check()
        sizes = [self._admissible(record) for record in records]
        if as_set:
            total = sum(sizes) + len(sizes) * RECORD_OVERHEAD_BYTES
            if total > self._flow.max_entry_bytes - HEADER_BYTES or len(sizes) > MAX_RECORDS:
                raise EntryTooLarge(f"a set of {len(sizes)} records and {total} bytes does not fit one entry")
        if not sizes:
            return []
        room = sum(sizes) + len(sizes) * ROOM_BYTES
        await self._take_share(room)
        try:
            known = self._known_set(records) if as_set else []
            self._check_orders(records)
            ids = [record.dedup_id for record in records if record.dedup_id is not None]
            self._window.check_room(ids, self._flow.next_sequence)
        except BaseException:
            self._budget.give(room)
            raise
        if known:
            self._budget.give(room)
            return known
        if as_set:
            self._flow.close_group()
        sent = [self._sent(record, size, same=as_set) for record, size in zip(records, sizes, strict=True)]
        if as_set:
            self._flow.close_group()
        return sent

    def _sent(self, record: Outgoing, size: int, *, same: bool) -> PendingRecord:
        """A record for which there is room, and which needs none where it was appended before."""
        known = self._known(record.dedup_id)
        if known is None:
            return self._gather(record, size, same=same)
        self._budget.give(size + ROOM_BYTES)
        return known

    def _known_set(self, records: Sequence[Outgoing]) -> list[PendingRecord]:
        """What became of a set that was appended lately; nothing, if it was not.

        Raises:
            InvalidArgument: some of its records were, or one of its ids is in it twice.
        """
        ids = [record.dedup_id for record in records if record.dedup_id is not None]
        if len(ids) != len(set(ids)):
            raise InvalidArgument("an id is in the set twice")
        known = [found for record in records if (found := self._known(record.dedup_id)) is not None]
        if known and len(known) < len(records):
            raise InvalidArgument("some records of the set were appended before, or have no id, and some were")
        return known

    async def _append(self, record: Outgoing) -> Position:
        size = self._admissible(record)
        known = self._known(record.dedup_id)
        if known is None:
            known = await self._taken(record, size, Outcome.NOT_DONE)
        return await known

    async def _taken(self, record: Outgoing, size: int, outcome: Outcome) -> PendingRecord:
        """Gather a record once there is room for it; what is true of the stream may be another thing by then."""
        self._check_new(record)
        if self._budget.try_take(size + ROOM_BYTES):
            return self._gather(record, size)
        await self._take_room(size + ROOM_BYTES, outcome)
        return self.append_admitted(record, size)

    async def _append_if(self, record: Outgoing, wanted: Position | str | None) -> Position:
        expected = Position.parse(wanted) if isinstance(wanted, str) else wanted
        if expected is not None:
            expected.of_stream(self.stream_id)
        size = self._admissible(record)
        known = self._known(record.dedup_id)
        if known is not None:
            return await known
        try:
            async with asyncio.timeout(APPEND_SECONDS), self._one_condition:
                await self._budget.take(size + ROOM_BYTES)
                try:
                    await self._all_before(expected)
                    self._admissible(record)
                    known = self._known(record.dedup_id)
                    if known is None:
                        self._check_new(record)
                        self._check_last(expected)
                except BaseException:
                    self._budget.give(size + ROOM_BYTES)
                    raise
                if known is not None:
                    self._budget.give(size + ROOM_BYTES)
                pending = known or self._gather(record, size)
        except TimeoutError:
            raise RequestTimeout(
                f"stream {self.name}: earlier appends are not confirmed in time", outcome=Outcome.NOT_DONE
            ) from None
        return await pending

    async def _all_before(self, expected: Position | None) -> None:
        """Wait until everything is confirmed, or so much that ``expected`` cannot be the last record any more.

        Where others append all the time there is always something that is not confirmed.
        """
        while self._flow.marks.next_sequence < self._flow.next_sequence:
            if not await self._flow.confirmed(self._flow.next_sequence) or self.last_position != expected:
                return

    @property
    def max_record_bytes(self) -> int:
        """The largest record that is taken now: an ensemble change may bring bookies with other limits."""
        return min(self._flow.max_entry_bytes - HEADER_BYTES - RECORD_OVERHEAD_BYTES, MAX_RECORD_BYTES)

    # -- steps of an append ------------------------------------------------------------------------------------------

    def _admissible(self, record: Outgoing) -> int:
        """What a record takes, if it can be appended now, but for its transaction id.

        That is looked at only where the record is not there already: one that is sent again may have an older one.

        Raises:
            As ``append_nowait``.
        """
        if self._closing or self._flow.error is not None:
            raise self._refusal()
        size = size_of(record)
        if size > self.max_record_bytes:
            raise EntryTooLarge(f"a record of {size} bytes does not fit an entry of {self._flow.max_entry_bytes}")
        return size

    def _check_new(self, record: Outgoing) -> None:
        """See whether a record may be appended that is not there already.

        Raises:
            OutOfOrder: its transaction id is below one that was appended.
            Busy: there is no room for its id.
        """
        self._flow.check_order(record.txid)
        if record.dedup_id is not None:
            self._window.check_room((record.dedup_id,), self._flow.next_sequence)

    def _check_last(self, expected: Position | None) -> None:
        last = self.last_position
        if last != expected:
            raise PositionMismatch(
                f"stream {self.name} is at {last or 'its beginning'}, not at {expected or 'its beginning'}",
                position="" if last is None else str(last),
            )

    def _refusal(self, outcome: Outcome = Outcome.NOT_DONE) -> TallybookError:
        closed = StreamEnded(f"stream {self.name} is being ended") if self._ending else None
        ended = self._flow.error or closed or StreamClosed(f"the writer of stream {self.name} is closed")
        return ended.told_as(outcome)

    def _check_orders(self, records: Sequence[Outgoing]) -> None:
        if all(record.txid is None for record in records):
            return
        highest: int | None = None
        sequence = self._flow.next_sequence
        for record in records:
            # Those before it may push its id out of the window, and then it is appended after all.
            if self._known(record.dedup_id, sequence) is not None:
                continue
            sequence += 1
            if record.txid is not None:
                self._flow.check_order(record.txid, after=highest)
                highest = record.txid

    def _known(self, dedup_id: bytes | None, sequence: int | None = None) -> PendingRecord | None:
        """What became of the record of that id, if it was appended lately.

        Args:
            sequence: number that the record would get now; by default, the next one.
        """
        if dedup_id is None:
            return None
        found = self._window.find(dedup_id, self._flow.next_sequence if sequence is None else sequence)
        return None if found is None or found.refused else found

    def _take_room_now(self, size: int) -> None:
        if not self._budget.try_take(size + ROOM_BYTES):
            raise Busy(f"stream {self.name}: {self._budget.limit_bytes} bytes are pending", retry_after_ms=1)

    async def _take_share(self, size: int) -> None:
        """Take room that is not for others: a stream that is slow would have all of it after a while."""
        if not self._one_share.locked() and self._flow.leaves_room(size) and self._budget.try_take(size):
            return
        try:
            # Who came first goes first, or a large message would be waiting for as long as small ones come.
            async with asyncio.timeout(APPEND_SECONDS):
                with self._lifetime.use(Outcome.NOT_DONE):
                    async with self._one_share:
                        await self._flow.room_left(size)
                        await self._take_room(size, Outcome.NOT_DONE)
        except TimeoutError:
            raise RequestTimeout(f"stream {self.name}: too much is pending there", outcome=Outcome.NOT_DONE) from None

    async def _take_room(self, size: int, outcome: Outcome) -> None:
        try:
            async with asyncio.timeout(APPEND_SECONDS):
                with self._lifetime.use(outcome):
                    await self._budget.take(size)
        except TimeoutError:
            raise RequestTimeout(f"stream {self.name}: no room for another append", outcome=outcome) from None
        if self.ended:
            self._budget.give(size)
            raise self._refusal(outcome)

    def _gather(self, record: Outgoing, size: int, *, same: bool = False) -> PendingRecord:
        payload, time_ms, key, dedup_id, txid = record
        payload = payload if isinstance(payload, bytes) else bytes(payload)
        sequence = self._flow.next_sequence
        pending = self._flow.gather(payload, size, time_ms, key, dedup_id, txid, same=same)
        if record.dedup_id is not None:
            self._window.add(record.dedup_id, sequence, pending)
        return pending

    # -- the rest ----------------------------------------------------------------------------------------------------

    @while_open
    async def flush(self) -> None:
        """Return once everything that was appended is durable on an ack quorum.

        Raises:
            RequestTimeout: it takes too long.
            EntryTooLarge: a record was refused, nobody has asked what became of it, and all others are durable.
            StreamFenced, ...: the writer is over; appends tell each what became of them.
        """
        await self._settled()
        self._flow.tell_refusal()

    @while_open
    async def commit(self) -> None:
        """Like ``flush``, and readers see it at once, not only with the next record or after a silence.

        What others append meanwhile is not waited for.

        Raises:
            As ``flush``, but for ``EntryTooLarge``.
        """
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                if not await self._flow.confirmed(self._flow.next_sequence):
                    raise self._refusal(Outcome.UNKNOWN)
                if self._closing:
                    raise self._refusal()
                # Behind what is confirmed: the mark tells readers of it.
                mark = self._flow.mark(Kind.KEEP_ALIVE)
                if not mark.done:
                    await mark.wait()
                if mark.error is None and not await self._segments.show_full():
                    raise self._refusal(Outcome.UNKNOWN)
        except TimeoutError:
            raise RequestTimeout(f"stream {self.name}: appends are still pending") from None
        if mark.error is not None:
            raise mark.error.with_traceback(None)

    @while_open
    async def end_stream(self) -> None:
        """End the stream for ever, behind what was appended; readers come to an end there. The writer is closed then.

        Raises:
            StreamClosed: the writer was abandoned meanwhile; the stream may be ended, or not.
            As ``close``.
        """
        if self._closing and not self._ending:
            raise self._refusal()
        self._closing = self._ending = True
        await self._settled()
        if not self._end_marked and not self._closed:
            self._end_marked = True
            self._flow.mark(Kind.END_OF_STREAM)
        await self._finish()
        if not self._segments.head.ended:
            # Somebody has let go of the writer meanwhile.
            raise self._refusal(Outcome.UNKNOWN)

    async def close(self) -> None:
        """Wait for what was appended, and let go of the stream; another writer need not fence it then.

        Closing twice does no more.

        Raises:
            RequestTimeout: appends are still pending after ``CLOSE_SECONDS``; close again.
            MetadataUnavailable, ...: the stream is not let go of; close again, or let the next writer take it.
            StreamFenced: another writer has taken it before.
            EntryTooLarge: as ``flush``; the stream is let go of.
        """
        if self._closed:
            return
        if self._ending:
            await self.end_stream()
            return
        with self._lifetime.use():
            self._closing = True
            await self._finish()

    async def _finish(self) -> None:
        if self._closed:
            return
        await self._settled()
        await self._segments.finish()
        self._closed = True
        self._window.clear()
        self._flow.die(StreamEnded(f"stream {self.name} has ended") if self._ending else self._refusal())
        self._flow.tell_refusal()

    async def _settled(self) -> None:
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._flow.settled()
        except TimeoutError:
            raise RequestTimeout(f"stream {self.name}: appends are still pending") from None
        if self._flow.error is not None and not self._closed:
            raise self._flow.error.with_traceback(None)

    def abandon(self) -> None:
        """Let go of everything at once. The stream stays as it is, for the next writer to settle."""
        if self._closed:
            return
        self._closing = self._closed = True
        self._window.clear()
        self._segments.abandon()
        self._flow.die(StreamClosed(f"the writer of stream {self.name} was abandoned"))
        self._lifetime.end(f"the writer of stream {self.name} was abandoned")
        # Whoever waits for the stream need not wait for this process to end.
        self._let_go()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await close_or_abandon(self, failed=kind is not None)
