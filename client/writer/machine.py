"""The writer of one ledger as a pure state machine: events in, actions out.

It owns the rules of writing (docs/protocol.md, section 1): which acks count, when a batch is confirmed, how far the
last add confirmed (LAC) may move, what a lost bookie costs and when the writer gives up. It does no I/O.

A batch lives here from its first send until nobody needs it::

    submitted --Qa acks, head of the queue--> confirmed --all live members acked--> retired

Confirmation is strictly in order: it never passes a gap. Confirmed batches are *retained* for members that have not
acked them yet, so that a short absence leaves no hole (``members`` says how a member may stand).

A member that failed is replaced where another bookie is to be had: the *ensemble change*::

    wanted --begin_change--> being written to the metadata --changed--> acks of those replaced dropped,
                             (nothing is confirmed meanwhile)            unconfirmed batches sent to the new ones

The new fragment starts right after the LAC, so every unconfirmed batch belongs to it and none of the confirmed ones
does. There is one change at a time; who fails meanwhile is in the next one. Without a replacement the writer goes on
while an ack quorum of every write set is left.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tallybook.core.answers import AddAnswer, Withheld
from tallybook.core.errors import (
    EntryTooLarge,
    InvalidBatch,
    NotEnoughBookies,
    Outcome,
    TallybookError,
    check,
    error_class,
)
from tallybook.core.ids import NO_ENTRY
from tallybook.core.marks import sometimes
from tallybook.core.quorum import Quorum
from tallybook.metadata.model import Fragment, MissedRange

from ..refusals import refusal_of_all
from .actions import (
    Action,
    ChangeEnsemble,
    Confirmed,
    Died,
    MissedChanged,
    Reconnect,
    Rejoin,
    Released,
    Replaced,
    ReplacementWanted,
    Send,
    SendLater,
    SizesKnown,
)
from .batches import Batch, Change
from .codes import CONNECTION_CODES, PATIENCE_CODES, ends_writer, refusal
from .members import Member, Missed, Position
from .patience import busy_for_too_long, lives, loss_of_quorum, overdue, quorum_lost_at, too_far_behind
from .rules import WriterRules
from .sizes import BatchSizes

_PAUSE_MS = 100
"""For an answer that asks for patience and does not say how much."""

_URGENT_SHARE = 4
"""A member without whom nothing can be confirmed is replaced so many times sooner."""


class WriterMachine:
    """The writing of one ledger.

    Args:
        ledger_id: for messages.
        quorum: replication of the ledger.
        bookies: bookie id of every position of the first fragment.
        rules: timeouts and limits.
        limits: the largest batch of each bookie, as far as the client knows; ``None``: all take any batch.

    Attributes:
        confirmed: highest entry id that callers were told of, -1 for none.
        lac: the last add confirmed: the same, or what was forced where bookies ack before entries are durable.
        confirmed_length, lac_length: payload bytes up to each of them.
        fragment: the last fragment, as the metadata store confirmed it.
        changes: how often the ensemble has changed.
        sizes: how large batches may be.
    """

    def __init__(
        self,
        ledger_id: int,
        quorum: Quorum,
        bookies: Sequence[str],
        rules: WriterRules,
        *,
        now: float,
        limits: Mapping[str, int] | None = None,
    ) -> None:
        check(len(bookies) == quorum.ensemble, f"ledger {ledger_id}: {len(bookies)} bookies for {quorum}")
        self.ledger_id = ledger_id
        self.quorum = quorum
        self.confirmed = self.lac = NO_ENTRY
        self.confirmed_length = self.lac_length = 0
        self.fragment = Fragment(0, tuple(bookies))
        self.changes = 0
        self.error: TallybookError | None = None
        self.rules = rules
        self._positions = [Position(bookie, away_since=now, unserved_since=now) for bookie in bookies]
        self._now = now
        self._departed: dict[str, Missed] = {}
        """What bookies missed in fragments that they are, or were, replaced after."""
        self._change: Change | None = None
        self._in_vain_at = float("-inf")
        """When nobody was found who could take a place. What was before the loss of a quorum does not count."""
        # In order of entry id; ``_unconfirmed`` is the tail of it that is not confirmed.
        self._batches: dict[int, Batch] = {}
        self._unconfirmed: dict[int, Batch] = {}
        self.sizes = BatchSizes(limits)
        self._learn_sizes([])

    # -- what the driver asks ---------------------------------------------------------

    @property
    def unconfirmed_batches(self) -> int:
        """How many batches wait for their ack quorum."""
        return len(self._unconfirmed)

    @property
    def settled(self) -> bool:
        """Whether no live member owes an ack."""
        return not self._batches

    @property
    def at_rest(self) -> bool:
        """Whether time alone changes nothing: no member owes anything, or is merely away.

        What a member that was given up asks for, a replacement, it asked for then.
        """
        resting = self.settled and self._change is None and self.sizes.known
        return resting and all(member.at_rest for member in self._positions)

    def member(self, position: int) -> Member:
        """How a position stands."""
        return self._positions[position].state

    def bookie_of(self, position: int) -> str:
        """Who holds a position."""
        return self._positions[position].bookie_id

    def missed(self) -> tuple[MissedRange, ...]:
        """What each bookie lacks, as recorded in the metadata. An open end is ``None``."""
        ranges = [entry for bookie_id, missed in self._departed.items() for entry in missed.of(bookie_id)]
        return (*ranges, *(entry for member in self._positions for entry in member.missed.of(member.bookie_id)))

    @property
    def has_quorum(self) -> bool:
        """Whether those who are connected and not doubted can form every ack quorum."""
        present = [at for at, member in enumerate(self._positions) if member.state is Member.UP and not member.doubted]
        return self.quorum.writable(present)

    @property
    def quorum_lost(self) -> bool:
        """Whether no ack quorum of some write set serves, or none is connected and not doubted."""
        return not self.has_quorum or quorum_lost_at(self._positions, self.quorum) is not None

    @property
    def _patience_s(self) -> float:
        """How long a member may be away before another one is looked for."""
        return self.rules.away_timeout_s / (1 if self.has_quorum else _URGENT_SHARE)

    @property
    def changing(self) -> bool:
        """Whether an ensemble change is being written to the metadata."""
        return self._change is not None

    def wanted(self, now: float) -> tuple[int, ...]:
        """Positions whose bookies have failed, for others to take. None while a change is under way."""
        rules = self.rules
        if not self._may_change:
            return ()
        patience_s = self._patience_s
        failed = (at for at, member in enumerate(self._positions) if member.failed(now, patience_s))
        if self.has_quorum and rules.delay_changes:
            # Absence may end by itself, a refusal does not.
            return tuple(at for at in failed if self._positions[at].refuses)
        return tuple(failed)

    @property
    def largest_unconfirmed_bytes(self) -> int:
        """The largest batch that a bookie which joins the ensemble now has to take; 0 for none."""
        return max((len(batch.data) for batch in self._unconfirmed.values()), default=0)

    def blames(self, position: int) -> bool:
        """Whether the bookie of a position is in trouble, rather than too small for what was sent before it joined."""
        return self._positions[position].refused_with is not EntryTooLarge

    # -- events -----------------------------------------------------------------------

    def submit(self, first: int, last: int, payload_bytes: int, data: bytes, now: float) -> list[Action]:
        """A batch was sealed. Batches come in order and without a gap."""
        check(self.error is None, f"ledger {self.ledger_id}: batch submitted to a dead writer")
        self._now = now
        batch = Batch(first, last, payload_bytes, data, self.quorum.write_set(first), now)
        self._batches[first] = self._unconfirmed[first] = batch
        actions: list[Action] = []
        for position in batch.write_set:
            member = self._positions[position]
            if member.state is Member.UP:
                member.outbox.put(first)
                self._send_due(position, actions)
        return actions

    def connected(self, position: int, now: float) -> list[Action]:
        """A connection to the same bookie is open: send it whatever it has not acked."""
        member = self._positions[position]
        if member.state is Member.GONE or self.error is not None:
            return []
        self._now = now
        actions: list[Action] = []
        member.state, member.busy_since, member.unreached = Member.UP, None, None
        member.outbox.restart()
        self._learn_sizes(actions)
        limit = self.sizes.limit(member.bookie_id)
        if any(batch.owed_to(position) and len(batch.data) > limit for batch in self._batches.values()):
            # What has been sent keeps its boundaries, so another bookie has to take it. This one serves later batches.
            sometimes("writer: a member cannot take a batch that is under way")
            member.refused_with = EntryTooLarge
            return [*actions, *self._lose(position), Rejoin(position)]
        for batch in self._batches.values():
            if batch.owed_to(position):
                member.outbox.put(batch.first)
        self._send_due(position, actions)
        # Owing nothing it cannot prove itself by an ack, and is believed, unless it has failed before.
        member.serving = not member.outbox.unanswered and not member.doubted
        return actions

    def unreached(self, position: int, error: TallybookError) -> list[Action]:
        """No connection to the bookie of a position could be had. Where all refuse, waiting is of no use."""
        self._positions[position].unreached = error
        actions: list[Action] = []
        self._learn_sizes(actions)
        refusal = refusal_of_all([member.unreached for member in self._positions], f"ledger {self.ledger_id}")
        return actions if refusal is None or self._change is not None else self.die(refusal)

    def disconnected(self, position: int, now: float) -> list[Action]:
        """The connection is lost; what was in flight on it is unknown and will be sent again."""
        member = self._positions[position]
        if member.state is not Member.UP or self.error is not None:
            return []
        self._now = now
        member.state, member.busy_since = Member.DOWN, None
        member.outbox.clear()
        if member.serving:
            member.away_since = member.unserved_since = now
            member.serving = False
        elif now - member.away_since >= self._patience_s:
            member.doubted = True
        return [Reconnect(position)]

    def gone(self, position: int) -> list[Action]:
        """Another bookie, with other directories, answers at this position's address.

        Whatever the one before it held is lost, so none of its acks counts any more.
        """
        member = self._positions[position]
        if member.state is Member.GONE:
            return []
        sometimes("writer: another bookie answers at the address")
        actions = self._lose(position)
        member.state = Member.GONE
        for batch in list(self._batches.values()):
            batch.acked.discard(position)
            if batch.confirmed and batch.owed_to(position):
                batch.skipped.add(position)
                self._retire_if_done(batch, actions)
        if self.confirmed != NO_ENTRY:
            member.missed = Missed([(0, self.confirmed)], growing=True)
            if self.error is None:
                actions.append(MissedChanged())
        self._want_another(actions)
        return actions

    def acked(self, position: int, first: int, bookie_id: str) -> list[Action]:
        """A bookie holds the batch durably. That counts for ``position`` only while it holds that position."""
        member = self._positions[position]
        if member.state is Member.GONE or member.bookie_id != bookie_id:
            sometimes("writer: an ack of who does not hold the position")
            return []
        actions: list[Action] = []
        member.busy_since, member.refused_with, member.serving = None, None, member.state is Member.UP
        member.doubted = member.doubted and not member.serving
        if member.missed.growing and member.state is Member.UP:
            # It is back: what it missed ends here.
            sometimes("writer: a lost member is back")
            member.missed.growing = False
            actions.append(MissedChanged())
        member.outbox.acked(first)
        if member.outbox.backlog:
            self._send_due(position, actions)
        batch = self._batches.get(first)
        if batch is None or position in batch.acked or position not in batch.write_set:
            return actions
        owed = batch.owed_to(position)
        batch.acked.add(position)
        if batch.confirmed:
            caught_up = len(batch.data) if owed else 0
            member.lag_bytes -= caught_up
            member.caught_up_bytes += caught_up
            self._retire_if_done(batch, actions)
        elif len(batch.acked) >= self.quorum.ack_quorum:
            self._confirm_head(actions)
        return actions

    def forced(self, through: int, length: int) -> list[Action]:
        """Every bookie made durable what it had acked: the LAC is ``through``, with so many payload bytes before."""
        if self.error is None and through > self.lac:
            self.lac, self.lac_length = through, length
        return []

    def refused(self, position: int, answer: AddAnswer, now: float) -> list[Action]:
        """The bookie of ``position`` did not take a batch, for the reason ``answer.code``."""
        if self.error is not None:
            return []
        self._now = now
        member, code = self._positions[position], answer.code
        batch = self._batches.get(answer.first_entry_id)
        if ends_writer(code) or (code == InvalidBatch.wire_code and batch is not None and batch.malformed):
            size = 0 if batch is None else len(batch.data)
            return self.die(refusal(f"ledger {self.ledger_id}: bookie {member.bookie_id}", code, size))
        if code in CONNECTION_CODES:
            return self.disconnected(position, now)
        if member.state is not Member.UP:
            return []
        if code in PATIENCE_CODES:
            if member.serving or not isinstance(answer, Withheld):
                # Who has yet to prove that it serves must say so itself: the client refuses for those who say nothing.
                member.busy_at = now
                if member.busy_since is None:
                    member.busy_since = now
            pause = member.outbox.busy(answer.first_entry_id)
            return [] if pause is None else [SendLater(position, pause, answer.retry_after_ms or _PAUSE_MS)]
        member.refused_with = error_class(code)
        return [*self._lose(position), Rejoin(position)]

    def resume(self, position: int, pause: int, now: float) -> list[Action]:
        """The pause that ``SendLater`` asked for is over."""
        member = self._positions[position]
        if self.error is not None or member.state is not Member.UP or not member.outbox.resume(pause):
            return []
        self._now = now
        actions: list[Action] = []
        self._send_due(position, actions)
        if not member.outbox.unanswered:
            # What it was too busy for was acked or given up meanwhile: nothing tells that it still is.
            member.busy_since = None
        return actions

    def suspects(self, now: float) -> list[tuple[int, int]]:
        """Positions that seem to owe an ack for too long, each with the first entry of its oldest batch."""
        late = [at for at, member in enumerate(self._positions) if overdue(member, self.rules, now)]
        return [(at, next(iter(self._positions[at].outbox.unanswered))) for at in late]

    def owed_since(self, position: int, first: int, since: float) -> None:
        """The bookie of a position owes the ack of a batch from then on, and not from when it was handed over."""
        self._positions[position].outbox.sent(first, since)

    def tick(self, now: float) -> list[Action]:
        """Time has passed: give up on members that owe too long. Call a few times per timeout."""
        if self.error is not None:
            return []
        self._now = now
        actions: list[Action] = []
        for index, member in enumerate(self._positions):
            if member.state is Member.DOWN and now - member.away_since >= self.rules.add_timeout_s:
                actions += self._lose(index)
            elif member.state is Member.UP and overdue(member, self.rules, now):
                sometimes("writer: a member owes an ack for too long")
                actions += self._lose(index)
                actions.append(Reconnect(index, breaking=True))
            elif member.state is Member.UP and busy_for_too_long(index, self._positions, self.quorum, self.rules, now):
                sometimes("writer: a member alone is busy for too long")
                actions += self._lose(index)
                actions.append(Rejoin(index))
        self._lose_laggards(actions)
        if not self.sizes.known:
            self._learn_sizes(actions, quorum=self.has_quorum)
        if self.wanted(now):
            actions.append(ReplacementWanted())
        return actions + self._give_up_without_quorum(now)

    # -- ensemble change --------------------------------------------------------------

    @property
    def _may_change(self) -> bool:
        return self.rules.max_changes > 0 and not self.rules.deferred and self._change is None and self.error is None

    def _want_another(self, actions: list[Action]) -> None:
        if self._may_change and ReplacementWanted() not in actions:
            actions.append(ReplacementWanted())

    def begin_change(self, replacements: Mapping[int, str], now: float) -> list[Action]:
        """Bookies were found for positions; those that are still wanted are put to the metadata store.

        From here on nothing is confirmed. The new fragment starts after the LAC, at a batch boundary.
        """
        self._in_vain_at = float("-inf") if replacements else now
        wanted = self.wanted(now)
        taken = {at: bookie for at, bookie in sorted(replacements.items()) if at in wanted}
        if not taken:
            return []
        if self.changes >= self.rules.max_changes:
            sometimes("writer: too many ensemble changes")
            message = f"ledger {self.ledger_id}: its ensemble has changed {self.changes} times, as often as it may"
            return self.die(NotEnoughBookies(message))
        largest = self.largest_unconfirmed_bytes
        taken = {at: bookie for at, bookie in taken.items() if self.sizes.limit(bookie) >= largest}
        if not taken:
            return []
        bookies = tuple(taken.get(at, bookie) for at, bookie in enumerate(self.fragment.bookies))
        self._change = Change(Fragment(self.lac + 1, bookies), tuple(taken))
        # Batches that are sealed meanwhile go to the new members, too.
        self._learn_sizes([])
        return [ChangeEnsemble(self.fragment, self._change.wanted)]

    def changed(self, now: float) -> list[Action]:
        """The metadata store has confirmed the change.

        Acks of the bookies that were replaced count no more, which may undo what was complete.
        """
        change = self._change
        if change is None or self.error is not None:
            return []
        self._now = now
        actions: list[Action] = []
        silent = tuple(at for at in change.positions if self._positions[at].outbox.unanswered)
        for at in change.positions:
            before = self._positions[at]
            actions += self._lose(at)
            if self._depart(before):
                actions.append(MissedChanged())
            bookie_id = change.wanted.bookies[at]
            self._positions[at] = Position(bookie_id, away_since=now, unserved_since=before.unserved_since)
            for batch in self._unconfirmed.values():
                if len(batch.acked) == self.quorum.ack_quorum and at in batch.acked:
                    sometimes("writer: a change undoes what was complete")
                batch.acked.discard(at)
        self._change, self.fragment = None, change.wanted
        self.changes += 1
        self._learn_sizes(actions)
        actions.append(Replaced(change.positions, silent))
        self._confirm_head(actions)
        return actions

    def unchanged(self) -> list[Action]:
        """The change did not, and never will, take effect: go on with the members there are."""
        sometimes("writer: a change was not made")
        self._change = None
        actions: list[Action] = []
        self._learn_sizes(actions)
        self._confirm_head(actions)
        return actions

    def _depart(self, member: Position) -> bool:
        """What a bookie missed before it was replaced stays on record; say whether that ends a range of it."""
        if member.missed.ranges:
            kept = self._departed.setdefault(member.bookie_id, Missed())
            for first, last in member.missed.ranges:
                kept.add(first, last)
        return member.missed.growing

    # -- the end ----------------------------------------------------------------------

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
                if batch.confirmed and batch.owed_to(position):
                    self._miss(position, batch)
        self._batches.clear()
        self._unconfirmed.clear()
        return [Released(held), Died(error)]

    def _learn_sizes(self, actions: list[Action], *, quorum: bool = False) -> None:
        joining = self._change.wanted.bookies if self._change is not None else ()
        if self.sizes.learn(self._positions, joining, quorum=quorum):
            actions.append(SizesKnown())

    # -- rules ------------------------------------------------------------------------

    def _send_due(self, position: int, actions: list[Action]) -> None:
        outbox = self._positions[position].outbox
        for first in outbox.due():
            batch = self._batches.get(first)
            if batch is not None and batch.owed_to(position):
                outbox.sent(first, self._now)
                actions.append(Send(position, first, batch.data))

    def _confirm_head(self, actions: list[Action]) -> None:
        """Confirm from the head of the queue while it has its quorum; never past a gap, never during a change."""
        if self._change is not None or self.error is not None:
            if self._change is not None:
                sometimes("writer: complete during a change")
            return
        moved: list[Batch] = []
        for batch in self._unconfirmed.values():
            if len(batch.acked) < self.quorum.ack_quorum:
                break
            moved.append(batch)
        if not moved:
            return
        self.confirmed = moved[-1].last
        self.confirmed_length += sum(batch.payload_bytes for batch in moved)
        if not self.rules.deferred:
            self.lac, self.lac_length = self.confirmed, self.confirmed_length
        actions.append(Confirmed(self.confirmed))
        for batch in moved:
            del self._unconfirmed[batch.first]
            batch.confirmed = True
            for position in batch.write_set:
                if self._positions[position].retained_for:
                    self._positions[position].lag_bytes += len(batch.data) if position not in batch.acked else 0
                elif position not in batch.acked and self._miss(position, batch):
                    actions.append(MissedChanged())
            self._retire_if_done(batch, actions)
        self._lose_laggards(actions)

    def _lose_laggards(self, actions: list[Action]) -> None:
        """What is retained for one that is slow is bounded."""
        for index in range(len(self._positions)):
            if too_far_behind(index, self._positions, self.quorum, self.rules, self._now):
                sometimes("writer: a member has fallen too far behind")
                actions += self._lose(index)
                actions.append(Reconnect(index, breaking=True))
            elif self._positions[index].behind_since is not None:
                sometimes("writer: a member that is behind is waited for, others are overloaded, too")

    def _retire_if_done(self, batch: Batch, actions: list[Action]) -> None:
        if not any(batch.owed_to(position) for position in batch.write_set):
            del self._batches[batch.first]
            actions.append(Released(len(batch.data)))

    def _miss(self, position: int, batch: Batch) -> bool:
        """Record that a confirmed batch will not reach a member; say whether the record needs writing."""
        batch.skipped.add(position)
        member = self._positions[position]
        grew = not member.missed.growing
        member.missed.add(batch.first, batch.last)
        member.missed.growing = not member.retained_for
        return grew

    def _lose(self, position: int) -> list[Action]:
        """Stop retaining for a member and record what it misses of the confirmed batches."""
        member = self._positions[position]
        if not member.retained_for or self.error is not None:
            return []
        if member.serving or member.busy_since is not None:
            member.unserved_since = self._now
        member.state, member.serving, member.doubted = Member.LOST, False, True
        member.busy_since, member.behind_since, member.lag_bytes = None, None, 0
        member.outbox.clear()
        actions: list[Action] = []
        for batch in list(self._batches.values()):
            if batch.confirmed and batch.owed_to(position):
                if self._miss(position, batch):
                    actions.append(MissedChanged())
                self._retire_if_done(batch, actions)
        self._want_another(actions)
        return actions

    def _give_up_without_quorum(self, now: float) -> list[Action]:
        """Fail once a batch has waited for a whole timeout since no ack quorum was left, and nobody gives hope.

        Bookies that have just come give hope, but not for ever: whoever takes a place begins with the debt of the
        one before.
        """
        oldest = next(iter(self._unconfirmed.values()), None)
        lost_at = quorum_lost_at(self._positions, self.quorum)
        if oldest is None or lost_at is None:
            return []
        coming = self._change.positions if self._change is not None else ()
        hopeful = [at for at, member in enumerate(self._positions) if at in coming or lives(member, self.rules, now)]
        hope, since = self.quorum.writable(hopeful), oldest.submitted_at
        patience_s = self.rules.add_timeout_s
        if self.rules.max_changes and not self.rules.deferred:
            since = max(since, lost_at)
            patience_s = self.rules.hopeful_s if hope or self._in_vain_at < lost_at else patience_s
        elif hope:
            return []
        if now - since < patience_s:
            return []
        sometimes("writer: no quorum is left")
        return self.die(loss_of_quorum(self.ledger_id, self._positions))
