"""Records of one stream on their way into its segments: gathered, sent, settled, each in the order of appending.

    gather -> open group -> full groups -> (envelope) -> sent -> confirmed -> awaiters
                                 ^                        |
                                 '------- taken back -----'      the segment failed, and they are not in it

Nothing here waits for metadata, or knows what a segment is but a ledger that takes entries: ``segments`` says which,
and when there is none, records only gather.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tallybook.client.budget import ByteBudget
from tallybook.client.writer.handle import LedgerWriter
from tallybook.client.writer.pending import Together
from tallybook.core.errors import (
    EntryTooLarge,
    InvariantViolation,
    Outcome,
    OutOfOrder,
    TallybookError,
    check,
    is_defect,
)
from tallybook.core.limits import BATCH_TABLE_ROW_BYTES, KIB, MAX_ENTRY_BYTES
from tallybook.core.marks import sometimes
from tallybook.runtime.clock import Clock

from ..compression import Compression
from ..envelope import MAX_RECORDS, Columns, Kind, Marks, encode_mark, encode_records
from ..load import StreamLoad
from .cutting import cut, reopen
from .pending import PendingRecord, RecordGroup

ENVELOPE_BYTES: Final = 64 * KIB
"""An envelope is full from there on. A single record, or a set, may be larger."""
MAX_SENT: Final = 64
"""Envelopes that are not confirmed before records only gather: together about what a ledger has in flight."""
MOST_UNTOLD: Final = 100
"""Refused records that are remembered until a caller asks what became of them."""


@dataclass(slots=True)
class Target:
    """The segment that records go to.

    Args:
        number: of the segment.
        opened_at: monotonic second.
        end_mark: entry that tells readers that it is over, once there is one.
    """

    number: int
    ledger: LedgerWriter
    opened_at: float
    sent_bytes: int = 0
    end_mark: int | None = None


@dataclass(slots=True, eq=False)
class _Awaited:
    """What a caller waits for: that all records below a number are confirmed."""

    next_sequence: int


class Flow:
    """Gathers, sends and settles the records of one writer.

    Args:
        marks: where the stream stands.
        last_place: segment, entry and slot of its last record; ``None`` if it has none.
        tag: of the stream.
        most_bytes: that an entry of the segments may have, or less where their bookies take less.
        budget: what all appends of the client may hold together. Whoever calls ``gather`` has taken the room for it.
    """

    def __init__(
        self,
        marks: Marks,
        last_place: tuple[int, int, int] | None,
        tag: str,
        compression: Compression,
        budget: ByteBudget,
        clock: Clock,
        load: StreamLoad,
        *,
        most_bytes: int = MAX_ENTRY_BYTES,
    ) -> None:
        self._tag = tag
        self._most_bytes = most_bytes
        self._load = load
        self._compression = compression
        self.last_entry_bytes = most_bytes
        """What ``max_entry_bytes`` was when it was last looked at, which is whenever an envelope is begun."""
        self._full_bytes = min(ENVELOPE_BYTES, most_bytes)
        self._budget = budget
        self._clock = clock
        self.on_failed: Callable[[TallybookError], None] = _nobody
        """Called when the segment fails: nothing is sent until ``start``."""
        self.on_sent: Callable[[Target], None] = _nobody
        """Called after each envelope that was sent."""
        self._target: Target | None = None
        self._holding = False
        self._open: RecordGroup | None = None
        self._full: deque[RecordGroup] = deque()
        self._sent: deque[RecordGroup] = deque()
        self._closed_bytes = 0
        """Of the budget, for groups that are full or sent."""
        self._sent_marks = marks
        self._highest_txid = marks.highest_txid
        self._scheduled = False
        self._moved = asyncio.Event()
        self._awaited: dict[_Awaited, None] = {}
        self._untold: list[RecordGroup] = []
        """Refused, and perhaps nobody knows."""
        self.ends_at_refusal = False
        """Whether a record that fits no entry ends all, so that none behind it is there without it."""
        self.next_sequence = marks.next_sequence
        """Number that the next record gets."""
        self.marks = marks
        """Where the stream stands, by what is confirmed."""
        self.last_place = last_place
        """Of the last record that is confirmed."""
        self.error: TallybookError | None = None
        """Why nothing is taken any more."""

    # -- gathering ---------------------------------------------------------------------------------------------------

    @property
    def max_entry_bytes(self) -> int:
        """The largest envelope: less than was asked for where a bookie of the segment takes less."""
        if self._target is not None:
            self.last_entry_bytes = min(self._most_bytes, self._target.ledger.max_entry_bytes)
        return self.last_entry_bytes

    @property
    def highest_txid(self) -> int:
        """Of all that was gathered, and all that was there before."""
        return self._highest_txid

    def check_order(self, txid: int | None, *, after: int | None = None) -> None:
        """A transaction id never falls.

        Args:
            after: that of a record which is to be appended before this one.

        Raises:
            OutOfOrder: it does.
        """
        highest = self._highest_txid if after is None else max(after, self._highest_txid)
        if txid is not None and txid < highest:
            raise OutOfOrder(f"transaction id {txid} comes after {highest}")

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
        """Take one more record, for which there is room.

        Args:
            same: whether it has to be in the envelope of the one before, whatever its size.
        """
        group = self._open
        if group is None or (not same and (group.bytes + size > self._full_bytes or group.count == MAX_RECORDS)):
            group = self._fresh()
        if txid is not None and txid > self._highest_txid:
            self._highest_txid = txid
        self.next_sequence += 1
        pending = group.add(payload, size, time, key, dedup_id, txid)
        if same:
            group.whole = True
        if not self._scheduled:
            self._schedule()
        return pending

    def close_group(self) -> None:
        """What is gathered from here on is in another envelope."""
        if self._open is not None:
            self._closed_bytes += self._open.held_bytes
            self._full.append(self._open)
            self._open = None

    def mark(self, kind: Kind) -> Together:
        """Add a mark behind all that was gathered; what to wait for."""
        self.close_group()
        group = RecordGroup(self._clock.wall_us() // 1000, self._tag, kind, self._clock.monotonic())
        if self.error is not None:
            # Nothing is sent any more, and nobody would ever settle it.
            group.complete(self.error.told_as(Outcome.NOT_DONE))
            return group
        self._budget.exchange(0, group.held_bytes)
        self._closed_bytes += group.held_bytes
        self._full.append(group)
        self._schedule()
        return group

    def end_segment(self, target: Target) -> None:
        """Tell readers that a segment is over; to be called once it is drained, and before ``start`` with another."""
        mark = encode_mark(Kind.END_OF_SEGMENT, self._sent_marks, self._clock.wall_us() // 1000)
        held = len(mark) + BATCH_TABLE_ROW_BYTES
        self._budget.exchange(0, held)
        try:
            target.end_mark = target.ledger.append_held(mark, held).entry_id
        except TallybookError as error:
            if is_defect(error):
                raise
            # It has failed since. All that was sent to it is confirmed, and its end is found without the mark.
            self._budget.give(held)

    def _fresh(self) -> RecordGroup:
        self.close_group()
        self._full_bytes = min(ENVELOPE_BYTES, self.max_entry_bytes)
        self._open = RecordGroup(self._clock.wall_us() // 1000, self._tag, since=self._clock.monotonic())
        return self._open

    def _schedule(self) -> None:
        self._scheduled = True
        asyncio.get_running_loop().call_soon(self._flush)

    # -- sending -----------------------------------------------------------------------------------------------------

    def start(self, target: Target) -> None:
        """Send to this segment from now on."""
        self._target, self._holding = target, False
        if not target.ledger.limits_known:
            target.ledger.when_limits_known(self._flush)
        self._flush()

    def hold(self) -> None:
        """Send no records until ``start``; what was sent is settled meanwhile."""
        self._holding = True

    def stop(self) -> None:
        """Send nothing until ``start``, and hear nothing of what was sent."""
        self._target = None

    def _flush(self) -> None:
        """Send what is due: at once while nothing is unconfirmed, and then the fuller, the more is.

        Whatever stays leaves with the next confirmation, so nothing waits for a timer. To a segment whose bookies have
        not said yet what they take, nothing is sent: it could not be cut any more.
        """
        self._scheduled = False
        if self._target is not None and not (self._target.ledger.limits_known or self._target.ledger.ended):
            return
        self._full_bytes = min(ENVELOPE_BYTES, self.max_entry_bytes)
        try:
            while self._target is not None and not self._holding and (group := self._due()) is not None:
                self._send(group, self._target)
        except Exception as error:
            # Nobody else hears of a defect in a callback, and appends would wait for ever.
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

    def _send(self, group: RecordGroup, target: Target) -> None:
        before = self._sent_marks
        if group.payload and group.before != before:
            # Taken back, and one before it was refused meanwhile.
            reopen(group)
        if not group.payload:
            group.before = before
            if group.kind is Kind.RECORDS:
                group.payload = encode_records(group.columns, before, self._compression)
                group.marks = group.columns.marks_after(before)
            else:
                group.payload = encode_mark(group.kind, before, group.columns.default_time)
                group.marks = before
            # The envelope is what is held from here on.
            group.columns = Columns(group.columns.default_time)
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
        group.segment, group.entry = target.number, pending.entry_id
        self._sent_marks = group.marks
        self._sent.append(group)
        target.sent_bytes += len(group.payload)
        pending.group.on_complete(lambda ledger_group: self._settled(group, target, ledger_group))
        self.on_sent(target)

    def _does_not_fit(self, group: RecordGroup, error: EntryTooLarge) -> None:
        """Have records that bookies take no entry of sent in smaller ones, or refuse what is in one already."""
        if group.count > 1 and not group.whole:
            sometimes("stream: records are cut to what bookies take by now")
            reopen(group)
            self._full.extendleft(reversed(cut(group, self.max_entry_bytes)))
        elif self.ends_at_refusal:
            self._full.appendleft(group)
            self.die(error)
        else:
            self._refuse(group)

    def _refuse(self, group: RecordGroup) -> None:
        """Fail the record, or set, that is sent next; those behind it move up."""
        sometimes("stream: a record is refused that bookies do not take any more")
        what = "a record" if group.count == 1 else f"a set of {group.count} records"
        number, size = self._sent_marks.next_sequence, len(group.payload)
        self.next_sequence -= group.count
        for each in self._awaited:
            each.next_sequence -= max(0, min(group.count, each.next_sequence - number))
        self._closed_bytes -= group.held_bytes
        self._budget.give(group.held_bytes)
        group.payload = b""
        group.complete(
            EntryTooLarge(
                f"stream {self._tag}: {what} of {size} bytes does not fit an entry of {self.max_entry_bytes}, which is "
                "what bookies take by now",
                outcome=Outcome.NOT_DONE,
            )
        )
        self._untold = [*self._still_untold(), group][:MOST_UNTOLD]
        self._moved.set()

    def _still_untold(self) -> list[RecordGroup]:
        return [group for group in self._untold if not group.told]

    def tell_refusal(self) -> None:
        """Tell of a record that was refused where nobody has asked what became of it; of each once.

        Raises:
            EntryTooLarge: there is one.
        """
        untold, self._untold = self._still_untold(), []
        for group in untold:
            group.told = True
            if group.error is not None:
                raise group.error.with_traceback(None)

    # -- settling ----------------------------------------------------------------------------------------------------

    def _settled(self, group: RecordGroup, target: Target, ledger_group: Together) -> None:
        if group.done or group.segment != target.number:
            return  # its segment has failed, and it was settled, or sent again, by now
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
        # Who waits for it, or remembers its id, needs no more than its place.
        group.payload = b""
        self._closed_bytes -= group.held_bytes
        self._load.confirm_seconds.observe(self._clock.monotonic() - group.since)
        group.complete()
        self._moved.set()

    def _broken(self, error: TallybookError) -> None:
        self._target = None
        self._moved.set()
        self.on_failed(error)

    def recovered(self, number: int, last_entry: int) -> None:
        """A segment that failed was recovered, and ends at this entry: what was sent to it up to there is in it."""
        while self._sent and self._sent[0].segment == number and self._sent[0].entry <= last_entry:
            self._confirm(self._sent.popleft())

    def take_back(self) -> None:
        """What was sent and is in no segment is to be sent again, before all else, in the same envelopes.

        They are cut where the next segment does not take them, and numbered anew behind a record that is refused there.
        """
        self._sent_marks = self.marks
        while self._sent:
            group = self._sent.pop()
            group.segment = 0
            if group.kind in {Kind.RECORDS, Kind.END_OF_STREAM}:
                self._budget.exchange(0, group.held_bytes)
                self._full.appendleft(group)
            else:
                self._closed_bytes -= group.held_bytes
                group.complete()
        # Marks are not sent again: there may be nothing left that anybody waits for.
        self._moved.set()

    def die(self, error: TallybookError) -> None:
        """Fail whatever is not confirmed. Of what was sent it is not known whether it will be there."""
        if self.error is not None:
            return
        self._target, self.error = None, error
        self.close_group()
        for group in self._sent:
            group.complete(error.told_as(Outcome.UNKNOWN))
        for group in self._full:
            self._budget.give(group.held_bytes)
            group.complete(error.told_as(Outcome.NOT_DONE))
        self._sent.clear()
        self._full.clear()
        self._closed_bytes = 0
        self._moved.set()

    # -- waiting -----------------------------------------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        """Whether everything that was gathered is settled."""
        return not (self._sent or self._full or self._open)

    @property
    def pending_bytes(self) -> int:
        """What is gathered and not settled counts for in the client's budget."""
        return self._closed_bytes + (self._open.held_bytes if self._open is not None else 0)

    def leaves_room(self, size: int) -> bool:
        """Whether this stream, with so much more, has no more of the budget than it leaves for all others.

        One that has nothing pending is always let in, so what it waits for here is only its own appends.
        """
        pending, budget = self.pending_bytes, self._budget
        return not pending or pending + size <= budget.limit_bytes - budget.taken_bytes

    async def room_left(self, size: int) -> None:
        """Wait until this stream may have so much more, or takes nothing any more. Bound the wait."""
        await self._until(lambda: self.leaves_room(size), lambda: False)

    async def drained(self) -> bool:
        """Wait until nothing that was sent is unconfirmed; ``False`` if it has failed. Bound the wait."""
        return await self._until(lambda: not self._sent, lambda: self._target is None)

    async def confirmed(self, next_sequence: int) -> bool:
        """Wait until every record below this number is confirmed, or refused; ``False`` if all fail. Bound the wait."""
        awaited = _Awaited(next_sequence)
        self._awaited[awaited] = None
        try:
            return await self._until(lambda: self.marks.next_sequence >= awaited.next_sequence, lambda: False)
        finally:
            del self._awaited[awaited]

    async def settled(self) -> None:
        """Wait until everything is settled that was gathered, by now or meanwhile. Bound the wait."""
        await self._until(lambda: self.idle, lambda: False)

    async def _until(self, done: Callable[[], bool], given_up: Callable[[], bool]) -> bool:
        while not done():
            if given_up() or self.error is not None:
                return False
            self._moved.clear()
            await self._moved.wait()
        return True


def _nobody(_news: object) -> None:
    """Nobody is told."""
