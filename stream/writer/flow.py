"""The pipeline of a stream writer: gathers records into envelopes, sends them to a segment, completes them in order.

    gather -> open group -> full groups -> (envelope) -> sent -> confirmed -> awaiters
                                 ^                        |
                                 '------- taken back -----'      the segment failed, and they are not in it

Nothing here waits for metadata. ``segments`` provides the ledger to write to; while there is none, records only gather.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from tallybook.client.budget import ByteBudget
from tallybook.client.writer.appends import SharedOutcome
from tallybook.client.writer.handle import LedgerWriter
from tallybook.core.coverage import sometimes
from tallybook.core.errors import (
    EntryTooLarge,
    InvariantViolation,
    Outcome,
    OutOfOrder,
    QuotaExceeded,
    TallybookError,
    check,
    is_defect,
)
from tallybook.core.limits import BATCH_TABLE_ROW_BYTES, KIB, MAX_ENTRY_BYTES
from tallybook.runtime.clock import Clock

from ..load import StreamLoad
from ..records.compression import Compression
from ..records.envelope import MAX_RECORDS, EnvelopeKind, StreamMarks, encode_mark
from .pending import PendingRecord, RecordGroup

ENVELOPE_BYTES: Final = 64 * KIB
"""Size at which an envelope is full. A single record, or a set, may be larger."""
MAX_SENT: Final = 64
"""Unconfirmed envelopes at most, about what a ledger has in flight; further records only gather."""
MAX_UNREPORTED: Final = 100
"""Refused records that are kept until a caller asks for their outcome."""


@dataclass(slots=True)
class SegmentTarget:
    """The segment to which records are written.

    Args:
        number: number of the segment.
        opened_at: monotonic second.
        end_mark: entry id of its end-of-segment mark, once written.
    """

    number: int
    ledger: LedgerWriter
    opened_at: float
    sent_bytes: int = 0
    end_mark: int | None = None


class FlowEvents(Protocol):
    """Receives the events of a ``RecordFlow``."""

    def failed(self, error: TallybookError) -> None:
        """The segment has failed; nothing is sent until ``start``."""

    def sent(self, target: SegmentTarget) -> None:
        """An envelope was sent."""

    def group_opened(self) -> None:
        """The records of another envelope begin to gather."""


@dataclass(slots=True, eq=False)
class _ConfirmationWaiter:
    """A caller that waits until all records below a number are confirmed."""

    next_sequence: int


class RecordFlow:
    """The record pipeline of one writer.

    Args:
        marks: the stream's marks.
        last_place: segment, entry and slot of its last record; ``None`` if it has none.
        tag: of the stream.
        budget: the client's byte budget; callers of ``gather`` have taken the bytes from it.
        max_bytes: largest entry of the segments; bookies may take less.
    """

    def __init__(
        self,
        marks: StreamMarks,
        last_place: tuple[int, int, int] | None,
        tag: str,
        compression: Compression,
        budget: ByteBudget,
        clock: Clock,
        load: StreamLoad,
        events: FlowEvents,
        *,
        max_bytes: int = MAX_ENTRY_BYTES,
    ) -> None:
        self._tag = tag
        self._max_bytes = max_bytes
        self._load = load
        self._events = events
        self._compression = compression
        self.last_entry_bytes = max_bytes
        """``max_entry_bytes`` when the last envelope was started; cached for the fast path of appends."""
        self._full_bytes = min(ENVELOPE_BYTES, max_bytes)
        self._budget = budget
        self._clock = clock
        self._target: SegmentTarget | None = None
        self._holding = False
        self._open: RecordGroup | None = None
        self._full: deque[RecordGroup] = deque()
        self._sent: deque[RecordGroup] = deque()
        self._closed_bytes = 0
        """Budget held by full and sent groups."""
        self._sent_marks = marks
        self._highest_txid = marks.highest_txid
        self._scheduled = False
        self._moved = asyncio.Event()
        self._awaited: dict[_ConfirmationWaiter, None] = {}
        self._refused: list[RecordGroup] = []
        """Refused groups whose error may not have been asked for."""
        self._ends_at_refusal = False
        """Whether a refused record ends the writer."""
        self.next_sequence = marks.next_sequence
        """Number of the next record."""
        self.marks = marks
        """The stream's marks after the last confirmed record."""
        self.last_place = last_place
        """Place of the last confirmed record."""
        self.closing: TallybookError | None = None
        """The error of new records while the writer closes, and after."""
        self.error: TallybookError | None = None
        """The error that ended the writer."""
        self.over_quota: QuotaExceeded | None = None
        """The error of new records while a quota is reached."""

    # -- gathering ---------------------------------------------------------------------------------------------------

    @property
    def max_entry_bytes(self) -> int:
        """The largest envelope; below the limit if a bookie of the segment takes less."""
        if self._target is not None:
            self.last_entry_bytes = min(self._max_bytes, self._target.ledger.max_entry_bytes)
        return self.last_entry_bytes

    @property
    def highest_txid(self) -> int:
        """The highest transaction id of the stream, with gathered records."""
        return self._highest_txid

    def check_order(self, txid: int | None, *, after: int | None = None) -> None:
        """Check that a transaction id does not decrease.

        Args:
            after: transaction id of a record that will be appended before this one.

        Raises:
            OutOfOrder: it decreases.
        """
        highest = self._highest_txid if after is None else max(after, self._highest_txid)
        if txid is not None and txid < highest:
            raise OutOfOrder(f"transaction id {txid} comes after {highest}")

    def end_at_refusal(self) -> None:
        """End the writer at a refused record, so that no later one is written without it; ignore quotas."""
        self._ends_at_refusal = True

    def refuse_new(self, error: TallybookError) -> None:
        """Refuse new records with this error: the writer closes."""
        self.closing = error

    def set_quota_error(self, error: QuotaExceeded | None) -> None:
        """Refuse new records with this error while a quota is reached; ``None``: no longer."""
        self.over_quota = error

    def check_quota(self) -> None:
        """Check that a new record may be appended.

        Raises:
            QuotaExceeded: a quota of stored bytes is reached.
        """
        if self.over_quota is not None and not self._ends_at_refusal:
            raise self.over_quota.with_outcome(Outcome.NOT_DONE)

    def gather(
        self,
        payload: bytes,
        size: int,
        time: int | None,
        key: bytes | None,
        dedup_id: bytes | None,
        txid: int | None,
        *,
        same: bool = False,
    ) -> PendingRecord:
        """Gather a record, for which the budget was taken.

        Args:
            same: whether it must be in the same envelope as the previous one, regardless of size.
        """
        group = self._open
        if group is None or (not same and (group.bytes + size > self._full_bytes or group.count == MAX_RECORDS)):
            group = self._fresh()
        if txid is not None and txid > self._highest_txid:
            self._highest_txid = txid
        self.next_sequence += 1
        pending = group.add(payload, size, time, key, dedup_id, txid)
        if same:
            group.keep_together()
        if not self._scheduled:
            self._schedule()
        return pending

    def close_group(self) -> None:
        """Close the open group: later records go into another envelope."""
        if self._open is not None:
            self._closed_bytes += self._open.held_bytes
            self._full.append(self._open)
            self._open = None

    def mark(self, kind: EnvelopeKind) -> SharedOutcome:
        """Add a mark after all gathered records; return its outcome."""
        self.close_group()
        group = RecordGroup(self._clock.wall_us() // 1000, self._tag, kind, self._clock.monotonic())
        if self.error is not None:
            # Nothing is sent any more, so complete it here.
            group.complete(self.error.with_outcome(Outcome.NOT_DONE))
            return group
        self._budget.exchange(0, group.held_bytes)
        self._closed_bytes += group.held_bytes
        self._full.append(group)
        self._schedule()
        return group

    def end_segment(self, target: SegmentTarget) -> None:
        """Write the end-of-segment mark; call it after ``drained`` and before ``start`` with another segment."""
        mark = encode_mark(EnvelopeKind.END_OF_SEGMENT, self._sent_marks, self._clock.wall_us() // 1000)
        held = len(mark) + BATCH_TABLE_ROW_BYTES
        self._budget.exchange(0, held)
        try:
            target.end_mark = target.ledger.append_held(mark, held).entry_id
        except TallybookError as error:
            if is_defect(error):
                raise
            # The segment has failed. All its records are confirmed, and its end is found without the mark.
            self._budget.give(held)

    def _fresh(self) -> RecordGroup:
        self.close_group()
        self._full_bytes = min(ENVELOPE_BYTES, self.max_entry_bytes)
        self._open = group = RecordGroup(self._clock.wall_us() // 1000, self._tag, since=self._clock.monotonic())
        self._events.group_opened()
        return group

    def _schedule(self) -> None:
        self._scheduled = True
        asyncio.get_running_loop().call_soon(self._flush)

    # -- sending -----------------------------------------------------------------------------------------------------

    def start(self, target: SegmentTarget) -> None:
        """Send to a segment from now on."""
        self._target, self._holding = target, False
        if not target.ledger.limits_known:
            target.ledger.when_limits_known(self._flush)
        self._flush()

    def hold(self) -> None:
        """Send no records until ``start``; sent ones are still confirmed."""
        self._holding = True

    def stop(self) -> None:
        """Send nothing until ``start``, and ignore failures of sent envelopes."""
        self._target = None

    def _flush(self) -> None:
        """Send groups: at once while nothing is unconfirmed; the more is, the fuller a group must be.

        The rest is sent with the next confirmation, so no timer is needed. Nothing is sent before the batch limits of
        the segment's bookies are known: a sent envelope cannot be cut any more.
        """
        self._scheduled = False
        if self._target is not None and not (self._target.ledger.limits_known or self._target.ledger.ended):
            return
        self._full_bytes = min(ENVELOPE_BYTES, self.max_entry_bytes)
        try:
            while self._target is not None and not self._holding and (group := self._due()) is not None:
                self._send(group, self._target)
        except Exception as error:
            # An error in a callback would be lost, and appends would wait for ever.
            self.die(InvariantViolation(f"stream {self._tag}: records cannot be sent: {error!r}"))
            raise

    def _due(self) -> RecordGroup | None:
        sent = len(self._sent)
        if sent >= MAX_SENT:
            return None
        if self._full:
            return self._full.popleft()
        group = self._open
        if group is None or (sent and group.bytes * MAX_SENT < sent * self._full_bytes):
            return None
        self._closed_bytes += group.held_bytes
        self._open = None
        return group

    def _send(self, group: RecordGroup, target: SegmentTarget) -> None:
        group.encode(self._sent_marks, self._compression)
        try:
            pending = target.ledger.append_held(group.payload, group.held_bytes)
        except TallybookError as error:
            if isinstance(error, EntryTooLarge) and not target.ledger.ended and group.count:
                self._does_not_fit(group, error)
                return
            self._full.appendleft(group)
            if target.ledger.ended:
                self._broken(error)
            else:
                self.die(error)
            return
        group.place(target.number, pending.entry_id)
        self._sent_marks = group.marks
        self._sent.append(group)
        target.sent_bytes += len(group.payload)
        pending.group.on_complete(lambda ledger_group: self._on_ledger_group_done(group, target, ledger_group))
        self._events.sent(target)

    def _does_not_fit(self, group: RecordGroup, error: EntryTooLarge) -> None:
        """Cut a group that is too large for the bookies into smaller envelopes, or refuse it if it cannot be cut."""
        if group.count > 1 and not group.whole:
            sometimes("stream: records are cut to what bookies take by now")
            self._full.extendleft(reversed(group.split(self.max_entry_bytes)))
        elif self._ends_at_refusal:
            self._full.appendleft(group)
            self.die(error)
        else:
            self._refuse(group)

    def _refuse(self, group: RecordGroup) -> None:
        """Fail the next record, or set; later records get lower numbers."""
        sometimes("stream: a record is refused that bookies do not take any more")
        what = "a record" if group.count == 1 else f"a set of {group.count} records"
        number, size = self._sent_marks.next_sequence, len(group.payload)
        self.next_sequence -= group.count
        for each in self._awaited:
            each.next_sequence -= max(0, min(group.count, each.next_sequence - number))
        self._closed_bytes -= group.held_bytes
        self._budget.give(group.held_bytes)
        group.release(
            EntryTooLarge(
                f"stream {self._tag}: {what} of {size} bytes exceeds the present entry limit of its bookies, "
                f"{self.max_entry_bytes} bytes",
                outcome=Outcome.NOT_DONE,
            )
        )
        self._refused = [*self._unreported(), group][:MAX_UNREPORTED]
        self._moved.set()

    def _unreported(self) -> list[RecordGroup]:
        return [group for group in self._refused if not group.reported]

    def raise_refusal(self) -> None:
        """Raise the error of a refused record whose outcome was not asked for; each once.

        Raises:
            EntryTooLarge: there is one.
        """
        unreported, self._refused = self._unreported(), []
        for group in unreported:
            group.report()
            if group.error is not None:
                raise group.error.with_traceback(None)

    # -- settling ----------------------------------------------------------------------------------------------------

    def _on_ledger_group_done(self, group: RecordGroup, target: SegmentTarget, ledger_group: SharedOutcome) -> None:
        if group.done or group.segment != target.number:
            return  # its segment has failed, and it was completed or sent again since
        if ledger_group.error is not None:
            if self._target is target:
                self._broken(ledger_group.error)
            return
        check(self._sent[0] is group, f"stream {self._tag}: an envelope was confirmed before an earlier one")
        self._confirm(self._sent.popleft())
        self._flush()

    def _confirm(self, group: RecordGroup) -> None:
        self.marks = group.marks
        if group.count:
            self.last_place = (group.segment, group.entry, group.count - 1)
        self._closed_bytes -= group.held_bytes
        self._load.confirm_seconds.observe(self._clock.monotonic() - group.since)
        group.release()
        self._moved.set()

    def _broken(self, error: TallybookError) -> None:
        self._target = None
        self._moved.set()
        self._events.failed(error)

    def recovered(self, number: int, last_entry: int) -> None:
        """A failed segment was recovered and ends at this entry: confirm what was sent to it up to there."""
        while self._sent and self._sent[0].segment == number and self._sent[0].entry <= last_entry:
            self._confirm(self._sent.popleft())

    def take_back(self) -> None:
        """Queue sent envelopes that are in no segment to be sent again, first and in the same order.

        They are cut if the next segment takes smaller entries, and renumbered after a record that is refused there.
        """
        self._sent_marks = self.marks
        while self._sent:
            group = self._sent.pop()
            group.take_back()
            if group.kind in {EnvelopeKind.RECORDS, EnvelopeKind.END_OF_STREAM}:
                self._budget.exchange(0, group.held_bytes)
                self._full.appendleft(group)
            else:
                self._closed_bytes -= group.held_bytes
                group.complete()
        # Other marks are not sent again, so wake the waiters: nothing may be left to wait for.
        self._moved.set()

    def die(self, error: TallybookError) -> None:
        """Fail all unconfirmed records; the outcome of sent ones is unknown."""
        if self.error is not None:
            return
        self._target, self.error = None, error
        self.close_group()
        for group in self._sent:
            group.complete(error.with_outcome(Outcome.UNKNOWN))
        for group in self._full:
            self._budget.give(group.held_bytes)
            group.complete(error.with_outcome(Outcome.NOT_DONE))
        self._sent.clear()
        self._full.clear()
        self._closed_bytes = 0
        self._moved.set()

    # -- waiting -----------------------------------------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        """Whether no record is pending."""
        return not (self._sent or self._full or self._open)

    @property
    def pending_bytes(self) -> int:
        """Budget held by pending records."""
        return self._closed_bytes + (self._open.held_bytes if self._open is not None else 0)

    @property
    def unsent_bytes(self) -> int:
        """Payload of records that are not sent yet, before compression. Takes time in proportion to it."""
        return sum(group.bytes for group in self._full) + (0 if self._open is None else self._open.bytes)

    def has_fair_share(self, size: int) -> bool:
        """Whether this stream, with ``size`` more bytes, holds at most as much of the budget as is left free.

        Always true if nothing is pending, so that a stream here waits only for its own appends.
        """
        pending, budget = self.pending_bytes, self._budget
        return not pending or pending + size <= budget.limit_bytes - budget.taken_bytes

    async def wait_for_fair_share(self, size: int) -> None:
        """Wait until ``has_fair_share(size)``, or the writer has ended. Bound the wait."""
        await self._until(lambda: self.has_fair_share(size), lambda: False)

    async def drained(self) -> bool:
        """Wait until all sent envelopes are confirmed; ``False`` if the segment has failed. Bound the wait."""
        return await self._until(lambda: not self._sent, lambda: self._target is None)

    async def confirmed(self, next_sequence: int) -> bool:
        """Wait until all records below a number are confirmed or refused; ``False`` if the writer ends."""
        awaited = _ConfirmationWaiter(next_sequence)
        self._awaited[awaited] = None
        try:
            return await self._until(lambda: self.marks.next_sequence >= awaited.next_sequence, lambda: False)
        finally:
            del self._awaited[awaited]

    async def wait_until_idle(self) -> None:
        """Wait until no record is pending. Bound the wait."""
        await self._until(lambda: self.idle, lambda: False)

    async def _until(self, done: Callable[[], bool], given_up: Callable[[], bool]) -> bool:
        while not done():
            if given_up() or self.error is not None:
                return False
            self._moved.clear()
            await self._moved.wait()
        return True
