"""The writer of one ledger as a pure state machine: events in, actions out.

It owns the rules of writing (docs/protocol.md, section 1): which acks count, when a batch is
confirmed, how far the last add confirmed (LAC) may move, what a lost bookie costs and when
the writer has to give up. It knows no socket, no clock and no event loop; ``driver`` feeds it
what happened and does what it says.

A batch lives here from its first send until nobody needs it::

    submitted --Qa acks, head of the queue--> confirmed --all live members acked--> retired

Confirmation is strictly in order: it never passes a gap. Confirmed batches are *retained* for
members that have not acked them yet, so that a short absence leaves no hole. A member is

    UP     connected: new batches are sent to it
    DOWN   connection lost a short while ago: batches are retained for it
    LOST   away too long, or too far behind: nothing is retained for it; what it misses is recorded
    GONE   another bookie answered at its place: it never comes back

A member that returns from DOWN or LOST gets every batch held here that it has not acked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

from tallybook.core.errors import (
    BookieUnavailable,
    Busy,
    Conflict,
    LedgerClosed,
    LedgerFenced,
    NoSuchLedger,
    NotEnoughBookies,
    Outcome,
    RequestTimeout,
    TallybookError,
    Unauthorized,
    check,
    error_class,
)
from tallybook.core.ids import NO_ENTRY
from tallybook.core.quorum import Quorum
from tallybook.metadata.model import MissedRange

FATAL_CODES = frozenset(error.wire_code for error in (LedgerFenced, LedgerClosed, NoSuchLedger, Unauthorized, Conflict))
"""Answers after which no bookie may be asked again: the ledger is not ours to write."""

CONNECTION_CODES = frozenset(error.wire_code for error in (BookieUnavailable, RequestTimeout))
"""Answers that say the connection failed: the bookie may be back in a moment."""

MAX_MISSED_RANGES = 64
"""Ranges recorded for one member; beyond it the last one is stretched."""


class Member(Enum):
    """How a position of the ensemble stands (see the module's text)."""

    UP = "up"
    DOWN = "down"
    LOST = "lost"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class Send:
    """Send a batch to a position now."""

    position: int
    first_entry_id: int
    batch: bytes


@dataclass(frozen=True, slots=True)
class SendLater:
    """Call ``resend`` for this batch after a pause: the bookie is busy."""

    position: int
    first_entry_id: int
    delay_ms: int


@dataclass(frozen=True, slots=True)
class Confirmed:
    """Every entry up to ``last_entry_id`` is confirmed; tell the callers."""

    last_entry_id: int


@dataclass(frozen=True, slots=True)
class Released:
    """``size`` bytes of batches are no longer held."""

    size: int


@dataclass(frozen=True, slots=True)
class Reconnect:
    """Use the connection to a position no more, and keep trying to get a new one.

    ``breaking``: the bookie does not keep up, so the old one is to be broken, with all that is queued on it. Others
    who share it have to open another, too.
    """

    position: int
    breaking: bool = False


@dataclass(frozen=True, slots=True)
class Rejoin:
    """The bookie refuses adds: send it nothing, and call ``connected`` after a pause. Its connection is in order."""

    position: int


@dataclass(frozen=True, slots=True)
class MissedChanged:
    """``missed()`` reads differently: write it to the metadata when convenient."""


@dataclass(frozen=True, slots=True)
class Died:
    """The handle is dead: every unconfirmed append fails with ``error``."""

    error: TallybookError


Action: TypeAlias = Send | SendLater | Confirmed | Released | Reconnect | Rejoin | MissedChanged | Died


@dataclass(slots=True)
class _Batch:
    """One batch on its way."""

    first: int
    last: int
    payload_bytes: int
    data: bytes
    write_set: tuple[int, ...]
    submitted_at: float
    acked: set[int] = field(default_factory=set)
    skipped: set[int] = field(default_factory=set)
    """Members it was confirmed without and will not be sent to: on record as missed."""
    sent_at: dict[int, float] = field(default_factory=dict)
    confirmed: bool = False


@dataclass(slots=True)
class _Position:
    """One position of the ensemble."""

    bookie_id: str
    state: Member = Member.DOWN
    away_since: float = 0.0
    """When it was last known to serve: connecting again proves nothing until it acks."""
    serving: bool = False
    """Whether it has acked since it connected, or owed nothing then."""
    busy_since: float | None = None
    lag_bytes: int = 0
    missed: list[tuple[int, int]] = field(default_factory=list)
    missing: bool = False
    """Whether the last range of ``missed`` is still growing."""

    @property
    def retained_for(self) -> bool:
        """Whether confirmed batches are kept for it."""
        return self.state in (Member.UP, Member.DOWN)


class WriterMachine:
    """The writing of one ledger with one ensemble.

    Args:
        ledger_id: for messages.
        quorum: replication of the ledger.
        bookies: bookie id of every position.
        add_timeout_s: how long a member may owe an ack, or stay away, before it is lost.
        lag_limit_bytes: how many confirmed bytes are retained for one member.
    """

    def __init__(
        self,
        ledger_id: int,
        quorum: Quorum,
        bookies: Sequence[str],
        *,
        add_timeout_s: float,
        lag_limit_bytes: int,
        now: float,
    ) -> None:
        check(len(bookies) == quorum.ensemble, f"ledger {ledger_id}: {len(bookies)} bookies for {quorum}")
        self.ledger_id = ledger_id
        self.quorum = quorum
        self.lac = NO_ENTRY
        self.confirmed_length = 0
        self.error: TallybookError | None = None
        self._positions = [_Position(bookie, away_since=now) for bookie in bookies]
        # In order of entry id; ``_unconfirmed`` is the tail of it that is not confirmed.
        self._batches: dict[int, _Batch] = {}
        self._unconfirmed: dict[int, _Batch] = {}
        self._add_timeout_s = add_timeout_s
        self._lag_limit_bytes = lag_limit_bytes

    # -- what the driver asks ---------------------------------------------------------

    @property
    def unconfirmed_batches(self) -> int:
        """How many batches wait for their ack quorum."""
        return len(self._unconfirmed)

    @property
    def settled(self) -> bool:
        """Whether no live member owes an ack."""
        return not self._batches

    def member(self, position: int) -> Member:
        """How a position stands."""
        return self._positions[position].state

    def missed(self) -> tuple[MissedRange, ...]:
        """What each member lacks, as recorded in the metadata. An open end is ``None``."""
        ranges = []
        for position in self._positions:
            for index, (first, last) in enumerate(position.missed):
                growing = position.missing and index == len(position.missed) - 1
                ranges.append(MissedRange(position.bookie_id, first, None if growing else last))
        return tuple(ranges)

    # -- events -----------------------------------------------------------------------

    def submit(self, first: int, last: int, payload_bytes: int, data: bytes, now: float) -> list[Action]:
        """A batch was sealed. Batches come in order and without a gap."""
        check(self.error is None, f"ledger {self.ledger_id}: batch submitted to a dead writer")
        batch = _Batch(first, last, payload_bytes, data, self.quorum.write_set(first), now)
        self._batches[first] = self._unconfirmed[first] = batch
        actions: list[Action] = []
        for position in batch.write_set:
            if self._positions[position].state is Member.UP:
                self._send(position, batch, now, actions)
        return actions

    def connected(self, position: int, now: float) -> list[Action]:
        """A connection to the same bookie is open: send it whatever it has not acked."""
        member = self._positions[position]
        if member.state is Member.GONE or self.error is not None:
            return []
        actions: list[Action] = []
        member.state, member.busy_since = Member.UP, None
        for batch in self._batches.values():
            if self._owes(position, batch):
                self._send(position, batch, now, actions)
        # Owing nothing it cannot prove itself by an ack, and is believed.
        member.serving = not any(isinstance(action, Send) for action in actions)
        return actions

    def disconnected(self, position: int, now: float) -> list[Action]:
        """The connection is lost; what was in flight on it is unknown and will be sent again."""
        member = self._positions[position]
        if member.state is not Member.UP or self.error is not None:
            return []
        if member.serving:
            member.away_since, member.serving = now, False
        member.state, member.busy_since = Member.DOWN, None
        for batch in self._batches.values():
            batch.sent_at.pop(position, None)
        return [Reconnect(position)]

    def replaced(self, position: int) -> list[Action]:
        """Another bookie, with other directories, answers at this position's address.

        Whatever the one before it held is lost, so none of its acks counts any more.
        """
        member = self._positions[position]
        if member.state is Member.GONE:
            return []
        actions = self._lose(position)
        member.state = Member.GONE
        for batch in list(self._batches.values()):
            batch.acked.discard(position)
            if batch.confirmed and self._owes(position, batch):
                batch.skipped.add(position)
                self._retire_if_done(batch, actions)
        if self.lac != NO_ENTRY:
            member.missed, member.missing = [(0, self.lac)], True
            if self.error is None:
                actions.append(MissedChanged())
        return actions

    def acked(self, position: int, first: int) -> list[Action]:
        """The bookie of ``position`` holds the batch durably."""
        member = self._positions[position]
        if member.state is Member.GONE:
            return []
        actions: list[Action] = []
        member.busy_since, member.serving = None, member.state is Member.UP
        if member.missing and member.state is Member.UP:
            # It is back: what it missed ends here.
            member.missing = False
            actions.append(MissedChanged())
        batch = self._batches.get(first)
        if batch is None or position in batch.acked or position not in batch.write_set:
            return actions
        owed = self._owes(position, batch)
        batch.acked.add(position)
        batch.sent_at.pop(position, None)
        if batch.confirmed:
            member.lag_bytes -= len(batch.data) if owed else 0
            self._retire_if_done(batch, actions)
        elif len(batch.acked) >= self.quorum.ack_quorum:
            self._confirm_head(actions)
        return actions

    def refused(self, position: int, first: int, code: int, retry_after_ms: int, now: float) -> list[Action]:
        """The bookie of ``position`` did not take the batch, for the reason ``code``."""
        if self.error is not None:
            return []
        member = self._positions[position]
        if code in FATAL_CODES:
            kind = error_class(code)
            return self.die(kind(f"ledger {self.ledger_id}: bookie {member.bookie_id} answers {kind.__name__}"))
        if code == Busy.wire_code:
            batch = self._batches.get(first)
            if batch is not None:
                batch.sent_at.pop(position, None)
            if member.busy_since is None:
                member.busy_since = now
            return [SendLater(position, first, retry_after_ms)]
        if code in CONNECTION_CODES:
            return self.disconnected(position, now)
        if member.state is not Member.UP:
            return []
        return [*self._lose(position), Rejoin(position)]

    def resend(self, position: int, first: int, now: float) -> list[Action]:
        """The pause that ``SendLater`` asked for is over."""
        batch = self._batches.get(first)
        if batch is None or position in batch.sent_at or not self._owes(position, batch):
            return []
        if self._positions[position].state is not Member.UP:
            return []
        actions: list[Action] = []
        self._send(position, batch, now, actions)
        return actions

    def tick(self, now: float) -> list[Action]:
        """Time has passed: give up on members that owe too long. Call a few times per timeout."""
        if self.error is not None:
            return []
        actions: list[Action] = []
        for index, member in enumerate(self._positions):
            if member.state is Member.DOWN and now - member.away_since >= self._add_timeout_s:
                actions += self._lose(index)
            elif member.state is Member.UP and self._overdue(index, now):
                actions += self._lose(index)
                actions.append(Reconnect(index, breaking=True))
            elif member.state is Member.UP and self._busy_for_too_long(index, member, now):
                actions += self._lose(index)
                actions.append(Rejoin(index))
        return actions + self._give_up_without_quorum(now)

    def die(self, error: TallybookError) -> list[Action]:
        """Give up: nothing is confirmed from here on, whatever acks still come."""
        if self.error is not None:
            return []
        # Copies may exist and a recovery may keep them: the caller cannot know.
        error.outcome = Outcome.UNKNOWN
        self.error = error
        held = sum(len(batch.data) for batch in self._batches.values())
        for batch in self._batches.values():
            for position in batch.write_set:
                if batch.confirmed and self._owes(position, batch):
                    self._miss(position, batch)
        self._batches.clear()
        self._unconfirmed.clear()
        return [Released(held), Died(error)]

    # -- rules ------------------------------------------------------------------------

    # Every batch is in exactly one of these relations to a member of its write set: acked,
    # skipped (confirmed without it, on record as missed) or owed.

    def _send(self, position: int, batch: _Batch, now: float, actions: list[Action]) -> None:
        batch.sent_at[position] = now
        actions.append(Send(position, batch.first, batch.data))

    def _confirm_head(self, actions: list[Action]) -> None:
        """Confirm from the head of the queue while it has its quorum; never past a gap."""
        moved: list[_Batch] = []
        for batch in self._unconfirmed.values():
            if len(batch.acked) < self.quorum.ack_quorum:
                break
            moved.append(batch)
        if not moved or self.error is not None:
            return
        self.lac = moved[-1].last
        actions.append(Confirmed(self.lac))
        for batch in moved:
            del self._unconfirmed[batch.first]
            batch.confirmed = True
            self.confirmed_length += batch.payload_bytes
            for position in batch.write_set:
                if self._positions[position].retained_for:
                    self._positions[position].lag_bytes += len(batch.data) if position not in batch.acked else 0
                elif position not in batch.acked and self._miss(position, batch):
                    actions.append(MissedChanged())
            self._retire_if_done(batch, actions)
        for index, member in enumerate(self._positions):
            if member.retained_for and member.lag_bytes > self._lag_limit_bytes:
                actions += self._lose(index)
                actions.append(Reconnect(index, breaking=True))

    def _owes(self, position: int, batch: _Batch) -> bool:
        return position in batch.write_set and position not in batch.acked and position not in batch.skipped

    def _retire_if_done(self, batch: _Batch, actions: list[Action]) -> None:
        if not any(self._owes(position, batch) for position in batch.write_set):
            del self._batches[batch.first]
            actions.append(Released(len(batch.data)))

    def _miss(self, position: int, batch: _Batch) -> bool:
        """Record that a confirmed batch will not reach a member; say whether the record needs writing."""
        batch.skipped.add(position)
        member = self._positions[position]
        if member.missing or len(member.missed) >= MAX_MISSED_RANGES:
            # Naming too much is harmless: repair looks before it copies.
            first, last = member.missed[-1]
            member.missed[-1] = (first, max(last, batch.last))
        else:
            member.missed.append((batch.first, batch.last))
        grew = not member.missing
        member.missing = not member.retained_for
        return grew

    def _lose(self, position: int) -> list[Action]:
        """Stop retaining for a member and record what it misses of the confirmed batches."""
        member = self._positions[position]
        if not member.retained_for or self.error is not None:
            return []
        member.state, member.serving, member.busy_since, member.lag_bytes = Member.LOST, False, None, 0
        actions: list[Action] = []
        for batch in list(self._batches.values()):
            batch.sent_at.pop(position, None)
            if batch.confirmed and self._owes(position, batch):
                if self._miss(position, batch):
                    actions.append(MissedChanged())
                self._retire_if_done(batch, actions)
        return actions

    def _give_up_without_quorum(self, now: float) -> list[Action]:
        """Fail once the oldest batch has waited a whole timeout and the members left form no ack quorum."""
        oldest = next(iter(self._unconfirmed.values()), None)
        live = [index for index, member in enumerate(self._positions) if self._lives(member, now)]
        if oldest is None or now - oldest.submitted_at < self._add_timeout_s or self.quorum.writable(live):
            return []
        lost = ", ".join(member.bookie_id for member in self._positions if not self._lives(member, now))
        return self.die(NotEnoughBookies(f"ledger {self.ledger_id}: no ack quorum without {lost}"))

    def _lives(self, member: _Position, now: float) -> bool:
        """Whether an ack may be hoped for. Who only connects again and again must not feed that hope for ever."""
        if member.serving or member.busy_since is not None:
            return True
        return member.retained_for and now - member.away_since < self._add_timeout_s

    def _overdue(self, position: int, now: float) -> bool:
        sent = [batch.sent_at[position] for batch in self._batches.values() if position in batch.sent_at]
        return now - min(sent, default=now) >= self._add_timeout_s

    def _busy_for_too_long(self, position: int, member: _Position, now: float) -> bool:
        """Overload of all is back-pressure; of one, while a quorum of others accepts, a failure."""
        if member.busy_since is None or now - member.busy_since < self._add_timeout_s:
            return False
        accepting = [
            index
            for index, other in enumerate(self._positions)
            if index != position and other.state is Member.UP and other.busy_since is None
        ]
        return self.quorum.writable(accepting)
