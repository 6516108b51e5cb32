"""``StreamWriter``, the writing handle of a stream: append records or sets, commit, end the stream, close.

A record passes ``admission``, ``flow``, ``pending`` and the ledger writer; ``segments`` provides the ledgers.
"""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable, Coroutine, Iterable, Sequence
from types import TracebackType
from typing import Any, Final, Self

from tallybook.client.budget import ByteBudget
from tallybook.core.buffers import check_buffer
from tallybook.core.errors import Outcome, PositionMismatch, RequestTimeout, StreamClosed, StreamEnded
from tallybook.runtime.concurrency.handle_lifetime import Lifetime, close_or_abandon, while_open

from ..position import TAG_CHARS, Position
from ..records.dedup import DedupWindow
from ..records.envelope import EnvelopeKind
from ..records.record import ANYTHING, MAX_ATTRIBUTE_BYTES, Anything, Outgoing, Payload
from .admission import APPEND_SECONDS, RecordAdmission
from .pending import COST_BYTES, PendingRecord, positions_of
from .segments import WriterSegments

CLOSE_SECONDS: Final = 90.0
"""How long a close, or a commit, waits for pending appends; longer than ``RECOVERY_SECONDS`` of a segment."""


class StreamWriter:
    """The only writer of a stream. Appends are confirmed in order, and each is stored at most once.

    When bookies fail, the writer recovers its segment and continues in another one, so nothing is written twice. If a
    bookie takes smaller entries than before, a record that is too large for it fails with ``EntryTooLarge``; later
    records are written. When another writer takes the stream, this one ends: unconfirmed appends fail with
    ``StreamFenced``, outcome unknown.
    """

    def __init__(
        self,
        segments: WriterSegments,
        window: DedupWindow[PendingRecord],
        budget: ByteBudget,
        *,
        release_ownership: Callable[[], None],
        parent: Lifetime | None = None,
    ) -> None:
        self._flow, self._segments = segments.flow, segments
        self._window = window
        """The deduplication window."""
        self._release_ownership = release_ownership
        self._budget = budget
        self._lifetime = Lifetime(f"the writer of stream {self.name}", parent=parent, error=StreamClosed)
        self._admission = RecordAdmission(segments, window, budget, self._lifetime)
        self._closed = self._ending = self._end_marked = False
        self._conditional_lock = asyncio.Lock()
        """Held by the one append with ``if_position`` in progress."""

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
        """Position of the last confirmed record; ``None`` if the stream has none."""
        place = self._flow.last_place
        return None if place is None else Position(*place, tag=self.stream_id[:TAG_CHARS])

    @property
    def next_sequence(self) -> int:
        """The number of the next record."""
        return self._flow.next_sequence

    @property
    def highest_txid(self) -> int:
        """The highest transaction id so far; the next one must not be below it."""
        return self._flow.highest_txid

    @property
    def ended(self) -> bool:
        """Whether the writer is closed, or has lost the stream to another writer."""
        return self._flow.closing is not None or self._flow.error is not None

    def end_at_refusal(self) -> None:
        """End the writer if bookies refuse a record, so that no later one is written without it; ignore quotas."""
        self._flow.end_at_refusal()

    def check_quota(self) -> None:
        """Raise ``QuotaExceeded`` if the stream or its namespace is full, also where ``end_at_refusal`` ignores it."""
        if self._flow.over_quota is not None:
            raise self._flow.over_quota

    def check_age(self) -> None:
        """Check the age of the segment; the store calls it periodically, for idle writers."""
        if not self.ended:
            self._segments.check_age()

    def look(self) -> None:
        """Deprecated name of ``check_age``, for one release."""
        warnings.warn("look is now called check_age", DeprecationWarning, stacklevel=2)
        self.check_age()

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
        """Send a record, and return the pending append; await it for the position.

        Args:
            timestamp_ms: event time in milliseconds since the epoch; by default, now. Need not increase.
            key: a key for the application.
            dedup_id: deduplication id: a repeated append with the same id is not stored again, and gets the position
                of the first.
            txid: a number of the application's choice that never decreases.

        Raises:
            Busy: the client's byte budget is used up, or the memory for deduplication ids.
            EntryTooLarge, OutOfOrder, QuotaExceeded, InvalidArgument: not appended; the writer stays usable.
            StreamClosed, StreamFenced, ...: the writer is closed or has ended; nothing was sent.
        """
        self._lifetime.check()
        plain = timestamp_ms is None and key is None and dedup_id is None and txid is None
        flow = self._flow
        is_open = flow.closing is None and flow.error is None
        if plain and is_open and type(payload) is bytes and flow.over_quota is None:
            # Fast path: most records are like this, at hundreds of thousands per second.
            size = len(payload)
            if size <= flow.last_entry_bytes - MAX_ATTRIBUTE_BYTES and self._budget.try_take(size + COST_BYTES):
                return flow.gather(payload, size, None, None, None, None)
        record = Outgoing.of(payload, timestamp_ms, key, dedup_id, txid)
        size = self._admission.admissible(record)
        known = self._admission.known(record.dedup_id)
        if known is not None:
            return known
        self._admission.check_new(record)
        self._admission.take_now(size + COST_BYTES)
        return self._admission.gather(record, size)

    def take_budget(self, record: Outgoing) -> int:
        """Take budget for ``record``, for a later ``append_admitted``; return the size to pass to it.

        From any thread, if the budget is thread-safe.

        Raises:
            As ``append_nowait``; ``OutOfOrder`` only for a record without a deduplication id.
        """
        size = self._admission.admissible(record)
        if record.dedup_id is None:
            self._flow.check_order(record.txid)
        self._admission.take_now(size + COST_BYTES)
        return size

    def append_admitted(self, record: Outgoing, size: int) -> PendingRecord:
        """The second half of ``append_nowait``: append a record for which ``take_budget`` has taken budget.

        Raises:
            OutOfOrder: a higher transaction id was appended meanwhile; the writer stays usable.
            StreamClosed, StreamFenced, ...: the writer is closed or has ended; nothing was sent.
        """
        try:
            if self.ended:
                raise self._admission.refusal()
            known = self._admission.known(record.dedup_id)
            if known is None:
                self._admission.check_new(record)
        except BaseException:
            self._budget.give(size + COST_BYTES)
            raise
        if known is not None:
            self._budget.give(size + COST_BYTES)
            return known
        return self._admission.gather(record, size)

    def append(
        self,
        payload: Payload,
        *,
        timestamp_ms: int | None = None,
        key: bytes | None = None,
        dedup_id: bytes | str | None = None,
        txid: int | None = None,
        if_position: Position | str | Anything | None = ANYTHING,
    ) -> Coroutine[Any, Any, Position]:
        """Append a record; return its position once it is durable on an ack quorum.

        Args:
            if_position: append only if the stream's last record has this position; ``None``: only if the stream is
                empty. Other arguments: as ``append_nowait``.

        Raises:
            PositionMismatch: the last record is another one; nothing was appended.
            RequestTimeout: the client's byte budget stayed used up, or earlier appends stayed unconfirmed; not sent.
            StreamFenced: another writer has the stream. The outcome says whether the record was not sent, or may have
                been written.
            As ``append_nowait``; ``Busy`` only for the memory of deduplication ids.
            TypeError: it is not bytes.
        """
        if type(payload) is not bytes:
            check_buffer(payload, "a record")
        return self._append_at(Outgoing.of(payload, timestamp_ms, key, dedup_id, txid), if_position)

    async def _append_at(self, record: Outgoing, if_position: Position | str | Anything | None) -> Position:
        self._lifetime.check()
        if not isinstance(if_position, Anything):
            with self._lifetime.use():
                return await self._append_if(record, if_position)
        size = self._admission.admissible(record)
        known = self._admission.known(record.dedup_id)
        return await (await self._take_and_append(record, size, Outcome.NOT_DONE) if known is None else known)

    async def append_many(self, records: Iterable[Payload | Outgoing]) -> list[Position]:
        """Append records in order; return their positions once all are durable on an ack quorum.

        Raises:
            As ``append``; some of the records may then have been written.
        """
        return await positions_of(await self.send_many(records))

    async def send_many(
        self, records: Iterable[Payload | Outgoing], outcome: Outcome = Outcome.NOT_DONE
    ) -> list[PendingRecord]:
        """The first half of ``append_many``: send the records, and return the pending appends.

        Args:
            outcome: that of the whole call if the first of these records fails for lack of budget.

        Raises:
            As ``append_many``.
        """
        self._lifetime.check()
        pending: list[PendingRecord] = []
        for each in records:
            record = each if isinstance(each, Outgoing) else Outgoing(each)
            size = self._admission.admissible(record)
            known = self._admission.known(record.dedup_id)
            if known is None:
                known = await self._take_and_append(record, size, Outcome.UNKNOWN if pending else outcome)
            pending.append(known)
        return pending

    async def append_set(self, records: Sequence[Payload | Outgoing]) -> list[Position]:
        """Append records atomically, also if the writer dies; return their positions.

        If the deduplication ids of a set are known, it is not appended again.

        Raises:
            EntryTooLarge: together they do not fit in one entry, or there are more than 8,192.
            As ``append``.
        """
        wanted = [each if isinstance(each, Outgoing) else Outgoing(each) for each in records]
        return await positions_of(await self.send(wanted, as_set=True))

    async def send(self, records: Sequence[Outgoing], *, as_set: bool = False) -> list[PendingRecord]:
        """Send all of the records or none; return a pending append for each.

        It waits only for budget, and uses only this stream's fair share of it. Once sent, each record may still fail by
        itself, unless they are a set.

        Args:
            as_set: as ``append_set``.

        Raises:
            As ``append_set``; none of the records was sent.
        """
        self._lifetime.check()
        sizes = [self._admission.admissible(record) for record in records]
        if as_set:
            self._admission.check_fits_together(sizes)
        if not sizes:
            return []
        cost = sum(sizes) + len(sizes) * COST_BYTES
        await self._admission.take_share(cost)
        try:
            known = self._admission.check_all(records, as_set=as_set)
        except BaseException:
            self._budget.give(cost)
            raise
        if known:
            self._budget.give(cost)
            return known
        if as_set:
            self._flow.close_group()
        sent = [self._append_taken(record, size, same=as_set) for record, size in zip(records, sizes, strict=True)]
        if as_set:
            self._flow.close_group()
        return sent

    def _append_taken(self, record: Outgoing, size: int, *, same: bool) -> PendingRecord:
        """Append a record whose budget was taken; give it back if the record is a duplicate."""
        known = self._admission.known(record.dedup_id)
        if known is None:
            return self._admission.gather(record, size, same=same)
        self._budget.give(size + COST_BYTES)
        return known

    async def _take_and_append(self, record: Outgoing, size: int, outcome: Outcome) -> PendingRecord:
        """Take budget and append a record; checks are repeated after a wait."""
        self._admission.check_new(record)
        if self._budget.try_take(size + COST_BYTES):
            return self._admission.gather(record, size)
        await self._admission.take(size + COST_BYTES, outcome)
        return self.append_admitted(record, size)

    async def _append_if(self, record: Outgoing, wanted: Position | str | None) -> Position:
        expected = Position.parse(wanted) if isinstance(wanted, str) else wanted
        if expected is not None:
            expected.of_stream(self.stream_id)
        size = self._admission.admissible(record)
        known = self._admission.known(record.dedup_id)
        if known is not None:
            return await known
        try:
            async with asyncio.timeout(APPEND_SECONDS), self._conditional_lock:
                await self._budget.take(size + COST_BYTES)
                try:
                    await self._all_before(expected)
                    self._admission.admissible(record)
                    known = self._admission.known(record.dedup_id)
                    if known is None:
                        self._admission.check_new(record)
                        self._check_last(expected)
                except BaseException:
                    self._budget.give(size + COST_BYTES)
                    raise
                if known is not None:
                    self._budget.give(size + COST_BYTES)
                pending = known or self._admission.gather(record, size)
        except TimeoutError:
            raise RequestTimeout(
                f"stream {self.name}: earlier appends are not confirmed in time", outcome=Outcome.NOT_DONE
            ) from None
        return await pending

    async def _all_before(self, expected: Position | None) -> None:
        """Wait until all records are confirmed, or ``expected`` cannot be the last record any more.

        The second condition is needed because other tasks may append all the time.
        """
        while self._flow.marks.next_sequence < self._flow.next_sequence:
            if not await self._flow.confirmed(self._flow.next_sequence) or self.last_position != expected:
                return

    @property
    def max_record_bytes(self) -> int:
        """The largest record that can be appended now; it depends on the bookies of the current ensemble."""
        return self._admission.max_record_bytes

    def _check_last(self, expected: Position | None) -> None:
        last = self.last_position
        if last != expected:
            raise PositionMismatch(
                f"stream {self.name} is at {last or 'its beginning'}, not at {expected or 'its beginning'}",
                position="" if last is None else str(last),
            )

    # -- the rest ----------------------------------------------------------------------------------------------------

    @while_open
    async def flush(self) -> None:
        """Wait until all appended records are durable on an ack quorum.

        Raises:
            RequestTimeout: not within ``CLOSE_SECONDS``.
            EntryTooLarge: a record was refused whose outcome was not asked for; all others are durable.
            StreamFenced, ...: the writer has ended; each append has its own outcome.
        """
        await self._wait_until_idle()
        self._flow.raise_refusal()

    @while_open
    async def commit(self) -> None:
        """Like ``flush``, and publish the records to readers at once, not only with the next record or after idle time.

        Does not wait for records that are appended meanwhile.

        Raises:
            As ``flush``, except ``EntryTooLarge``.
        """
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                if not await self._flow.confirmed(self._flow.next_sequence):
                    raise self._admission.refusal(Outcome.UNKNOWN)
                if self._flow.closing is not None:
                    raise self._admission.refusal()
                # A mark after the confirmed records carries the last add confirmed to readers.
                mark = self._flow.mark(EnvelopeKind.KEEP_ALIVE)
                if not mark.done:
                    await mark.wait()
                if mark.error is None and not await self._segments.show_full():
                    raise self._admission.refusal(Outcome.UNKNOWN)
        except TimeoutError:
            raise RequestTimeout(f"stream {self.name}: appends are still pending") from None
        if mark.error is not None:
            raise mark.error.with_traceback(None)

    @while_open
    async def seal(self) -> None:
        """Seal the stream for ever after the appended records, and close the writer; readers end there.

        Raises:
            StreamClosed: the writer was abandoned meanwhile; the stream may be sealed.
            As ``close``.
        """
        if self._flow.closing is not None and not self._ending:
            raise self._admission.refusal()
        self._ending = True
        self._flow.refuse_new(StreamEnded(f"stream {self.name} is being sealed"))
        await self._wait_until_idle()
        if not self._end_marked and not self._closed:
            self._end_marked = True
            self._flow.mark(EnvelopeKind.END_OF_STREAM)
        await self._finish()
        if not self._segments.head.ended:
            # The writer was abandoned meanwhile.
            raise self._admission.refusal(Outcome.UNKNOWN)

    def end_stream(self) -> Coroutine[Any, Any, None]:
        """Deprecated name of ``seal``, for one release."""
        warnings.warn("end_stream is now called seal", DeprecationWarning, stacklevel=2)
        return self.seal()

    async def close(self) -> None:
        """Wait for pending appends, and release the stream, so that the next writer need not fence it.

        A second close is a no-op.

        Raises:
            RequestTimeout: appends are still pending after ``CLOSE_SECONDS``; close again.
            MetadataUnavailable, ...: the stream is not released; close again, or let the next writer take it over.
            StreamFenced: another writer has taken it before.
            EntryTooLarge: as ``flush``; the stream is released.
        """
        if self._closed:
            return
        if self._ending:
            await self.seal()
            return
        with self._lifetime.use():
            self._flow.refuse_new(StreamClosed(f"the writer of stream {self.name} is closed"))
            await self._finish()

    async def _finish(self) -> None:
        if self._closed:
            return
        await self._wait_until_idle()
        await self._segments.finish()
        self._closed = True
        self._window.clear()
        self._flow.die(StreamEnded(f"stream {self.name} is sealed") if self._ending else self._admission.refusal())
        self._flow.raise_refusal()

    async def _wait_until_idle(self) -> None:
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._flow.wait_until_idle()
        except TimeoutError:
            raise RequestTimeout(f"stream {self.name}: appends are still pending") from None
        if self._flow.error is not None and not self._closed:
            raise self._flow.error.with_traceback(None)

    def abandon(self) -> None:
        """Release everything at once. The stream stays as it is; the next writer recovers it."""
        if self._closed:
            return
        self._closed, error = True, StreamClosed(f"the writer of stream {self.name} was abandoned")
        self._flow.refuse_new(error)
        self._window.clear()
        self._segments.abandon()
        self._flow.die(error)
        self._lifetime.end(f"the writer of stream {self.name} was abandoned")
        # Release the ownership, so that other processes need not wait for this session to end.
        self._release_ownership()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await close_or_abandon(self, failed=kind is not None)
