"""The writer of one ledger as a pure state machine: events in, actions out. It does no I/O.

It has the rules of writing and of the ensemble change (docs/understand/protocol.md, sections 1 and 2). A batch is kept
from its first send until every live member has it::

    submitted --Qa acks, head of the queue--> confirmed --all live members acked--> retired

Confirmed batches are *retained* for members that have not acked them yet, so that a short absence leaves no gap on a
member (``members`` has the states of a member). The new fragment of an ensemble change starts right after the LAC, so
it contains every unconfirmed batch and no confirmed one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tallybook.core.answers import AddAnswer, AddNotSent, Incarnation
from tallybook.core.coverage import sometimes
from tallybook.core.error_codes import error_class
from tallybook.core.errors import EntryTooLarge, InvalidBatch, NotEnoughBookies, Outcome, TallybookError, check
from tallybook.core.ids import NO_ENTRY
from tallybook.core.quorum import Quorum
from tallybook.metadata.ledger.model import Fragment, MissedRange

from ..refusals import refusal_of_all
from .ack_codes import CONNECTION_CODES, RETRIED_CODES, ends_writer, refusal
from .actions import (
    BatchLimitsKnown,
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
    WriterAction,
)
from .batch_limits import BatchLimits
from .ensemble.failure_detector import FailureDetector
from .ensemble.lag import ClientLag, WriterLag
from .ensemble.members import EnsembleChange, EnsemblePosition, MemberState, MissedEntries
from .outbox import WriterBatch
from .policy import BUSY_PAUSE_MS, WriterPolicy


class WriterMachine:
    """The state of one ledger's writer.

    Args:
        ledger_id: for messages.
        quorum: replication of the ledger.
        bookies: bookie id of every position of the first fragment.
        rules: timeouts and limits.
        limits: the largest batch of each known bookie; ``None``: all take any batch.
        client_lag: what all writers of the client retain for slow members; ``None``: this is the only writer.

    Attributes:
        confirmed: highest confirmed entry id, -1 for none.
        lac: the last add confirmed: equals ``confirmed``, or with deferred sync the last forced entry.
        confirmed_length, lac_length: payload bytes up to each of them.
        fragment: the last fragment, as the metadata store confirmed it.
        changes: number of ensemble changes.
        sizes: limits of batch sizes.
    """

    def __init__(
        self,
        ledger_id: int,
        quorum: Quorum,
        bookies: Sequence[str],
        rules: WriterPolicy,
        *,
        now: float,
        limits: Mapping[str, int] | None = None,
        client_lag: ClientLag | None = None,
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
        self._positions = [EnsemblePosition(bookie, away_since=now, unserved_since=now) for bookie in bookies]
        self._lag = WriterLag(client_lag or ClientLag(), rules.lag_limit_bytes)
        self._detector = FailureDetector(self._positions, quorum, rules, self._lag)
        self._now = now
        self._departed: dict[str, MissedEntries] = {}
        """Entries that replaced bookies missed before their replacement."""
        self._change: EnsembleChange | None = None
        self._no_replacement_at = float("-inf")
        """Time of the last search that found no replacement; a search before the loss of the quorum is ignored."""
        # In order of entry id; ``_unconfirmed`` holds the unconfirmed tail.
        self._batches: dict[int, WriterBatch] = {}
        self._unconfirmed: dict[int, WriterBatch] = {}
        self.sizes = BatchLimits(limits)
        self._learn_sizes([])

    # -- queries of the driver --------------------------------------------------------

    @property
    def unconfirmed_batches(self) -> int:
        """Number of batches that wait for their ack quorum."""
        return len(self._unconfirmed)

    @property
    def all_acked(self) -> bool:
        """Whether no live member owes an ack."""
        return not self._batches

    @property
    def at_rest(self) -> bool:
        """Whether no timer is needed: no member owes an ack, and none is disconnected but not yet given up.

        For a member that was given up, the replacement was requested at that time.
        """
        resting = self.all_acked and self._change is None and self.sizes.known
        return resting and all(member.at_rest for member in self._positions)

    def member(self, position: int) -> MemberState:
        """The state of the member at a position."""
        return self._positions[position].state

    def bookie_of(self, position: int) -> str:
        """The bookie at a position."""
        return self._positions[position].bookie_id

    def missed(self) -> tuple[MissedRange, ...]:
        """Under-replicated ranges of each bookie, as recorded in the metadata. An open end is ``None``."""
        ranges = [entry for bookie_id, missed in self._departed.items() for entry in missed.of(bookie_id)]
        return (*ranges, *(entry for member in self._positions for entry in member.missed.of(member.bookie_id)))

    @property
    def quorum_lost(self) -> bool:
        """Whether some write set has no ack quorum of serving members, or of connected ones that are not doubted."""
        return self._detector.quorum_lost

    def wanted(self, now: float) -> tuple[int, ...]:
        """Positions whose bookies have failed and should be replaced. None while a change is in progress."""
        return self._detector.failed(now) if self._may_change else ()

    @property
    def largest_unconfirmed_bytes(self) -> int:
        """The largest batch that a bookie joining the ensemble now would have to take; 0 for none."""
        return max((len(batch.data) for batch in self._unconfirmed.values()), default=0)

    def blames(self, position: int) -> bool:
        """Whether the bookie at a position has failed, rather than having a batch limit below what is in flight."""
        return self._positions[position].refused_with is not EntryTooLarge

    # -- events -----------------------------------------------------------------------

    def submit(self, first: int, last: int, payload_bytes: int, data: bytes, now: float) -> list[WriterAction]:
        """A batch was sealed. Batches come in order and without gaps."""
        check(self.error is None, f"ledger {self.ledger_id}: batch submitted to a writer that has ended")
        self._now = now
        batch = WriterBatch(first, last, payload_bytes, data, self.quorum.write_set(first), now)
        self._batches[first] = self._unconfirmed[first] = batch
        actions: list[WriterAction] = []
        for position in batch.write_set:
            member = self._positions[position]
            if member.state is MemberState.UP:
                member.outbox.put(first)
                self._send_due(position, actions)
        return actions

    def connected(self, position: int, now: float) -> list[WriterAction]:
        """A connection to the bookie was opened: send every batch that it has not acked."""
        member = self._positions[position]
        if member.state is MemberState.GONE or self.error is not None:
            return []
        self._now = now
        actions: list[WriterAction] = []
        member.state, member.busy_since, member.unreached = MemberState.UP, None, None
        member.outbox.restart()
        self._learn_sizes(actions)
        limit = self.sizes.limit(member.bookie_id)
        if any(batch.owed_to(position) and len(batch.data) > limit for batch in self._batches.values()):
            # A sent batch keeps its boundaries, so another bookie has to take it. This bookie can take later batches.
            sometimes("writer: a member cannot take a batch that is in flight")
            member.refused_with = EntryTooLarge
            return [*actions, *self._lose(position), Rejoin(position)]
        for batch in self._batches.values():
            if batch.owed_to(position):
                member.outbox.put(batch.first)
        self._send_due(position, actions)
        # A member that owes nothing cannot prove itself by an ack; it counts as serving unless it failed before.
        member.serving = not member.outbox.unanswered and not member.doubted
        return actions

    def identified(self, position: int, life: Incarnation) -> list[WriterAction]:
        """A connection to the bookie was opened, and shows its incarnation. Unless there are actions, use it."""
        member = self._positions[position]
        before, member.incarnation = member.incarnation or life, life
        if before.directory_uuid != life.directory_uuid:
            return self.gone(position)
        if before != life and self.rules.deferred:
            lost = f"{member.bookie_id} has restarted: entries that it acked before they were durable may be lost"
            return self.die(NotEnoughBookies(f"ledger {self.ledger_id}: {lost}"))
        return []

    def unreached(self, position: int, error: TallybookError) -> list[WriterAction]:
        """A connection attempt failed. If all bookies refuse this client, waiting is useless and the writer ends."""
        self._positions[position].unreached = error
        actions: list[WriterAction] = []
        self._learn_sizes(actions)
        refusal = refusal_of_all([member.unreached for member in self._positions], f"ledger {self.ledger_id}")
        return actions if refusal is None or self._change is not None else self.die(refusal)

    def disconnected(self, position: int, now: float) -> list[WriterAction]:
        """The connection was lost. The outcome of batches in flight is unknown; they are sent again."""
        member = self._positions[position]
        if member.state is not MemberState.UP or self.error is not None:
            return []
        self._now = now
        member.state, member.busy_since = MemberState.DOWN, None
        member.outbox.clear()
        if member.serving:
            member.away_since = member.unserved_since = now
            member.serving = False
        elif now - member.away_since >= self._detector.away_limit_s:
            member.doubted = True
        return [Reconnect(position)]

    def gone(self, position: int) -> list[WriterAction]:
        """The bookie at this position now has another directory id: its disk was replaced.

        Everything that it held is lost, so none of its acks counts any more.
        """
        member = self._positions[position]
        if member.state is MemberState.GONE:
            return []
        sometimes("writer: another bookie answers at the address")
        actions = self._lose(position)
        member.state = MemberState.GONE
        for batch in list(self._batches.values()):
            batch.acked.discard(position)
            if batch.confirmed and batch.owed_to(position):
                batch.skipped.add(position)
                self._retire_if_done(batch, actions)
        if self.confirmed != NO_ENTRY:
            member.missed = MissedEntries([(0, self.confirmed)], growing=True)
            if self.error is None:
                actions.append(MissedChanged())
        self._want_another(actions)
        return actions

    def acked(self, position: int, first: int, bookie_id: str) -> list[WriterAction]:
        """A bookie acked a batch. The ack counts only if the bookie is still the member at ``position``."""
        member = self._positions[position]
        if member.state is MemberState.GONE or member.bookie_id != bookie_id:
            sometimes("writer: an ack from a bookie that no longer has the position")
            return []
        actions: list[WriterAction] = []
        member.busy_since, member.refused_with, member.serving = None, None, member.state is MemberState.UP
        member.doubted = member.doubted and not member.serving
        if member.missed.growing and member.state is MemberState.UP:
            # The member is back: its missed range ends here.
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

    def forced(self, through: int, length: int) -> list[WriterAction]:
        """Every bookie made its acked entries durable: the LAC is ``through``, with ``length`` payload bytes."""
        if self.error is None and through > self.lac:
            self.lac, self.lac_length = through, length
        return []

    def refused(self, position: int, answer: AddAnswer, now: float) -> list[WriterAction]:
        """The bookie at ``position`` refused a batch with ``answer.code``."""
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
        if member.state is not MemberState.UP:
            return []
        if code in RETRIED_CODES:
            if member.serving or not isinstance(answer, AddNotSent):
                # A member that has not served yet must itself say Busy: the client's own refusals do not count for it.
                member.busy_at = now
                if member.busy_since is None:
                    member.busy_since = now
            pause = member.outbox.busy(answer.first_entry_id)
            return [] if pause is None else [SendLater(position, pause, answer.retry_after_ms or BUSY_PAUSE_MS)]
        member.refused_with = error_class(code)
        return [*self._lose(position), Rejoin(position)]

    def resume(self, position: int, pause: int, now: float) -> list[WriterAction]:
        """The pause of a ``SendLater`` action is over."""
        member = self._positions[position]
        if self.error is not None or member.state is not MemberState.UP or not member.outbox.resume(pause):
            return []
        self._now = now
        actions: list[WriterAction] = []
        self._send_due(position, actions)
        if not member.outbox.unanswered:
            # The refused batches were acked or given up meanwhile, so the member no longer counts as busy.
            member.busy_since = None
        return actions

    def suspects(self, now: float) -> list[tuple[int, int]]:
        """Positions that may have owed an ack for too long, each with the first entry of its oldest batch."""
        late = [at for at in range(len(self._positions)) if self._detector.overdue(at, now)]
        return [(at, next(iter(self._positions[at].outbox.unanswered))) for at in late]

    def owed_since(self, position: int, first: int, since: float) -> None:
        """Correct since when the bookie at a position owes the ack of a batch: not from when the batch was queued."""
        self._positions[position].outbox.sent(first, since)

    def tick(self, now: float) -> list[WriterAction]:
        """Time has passed: give up members that owe an ack for too long. Call a few times per timeout."""
        if self.error is not None:
            return []
        self._now = now
        actions: list[WriterAction] = []
        for index, member in enumerate(self._positions):
            if member.state is MemberState.DOWN and now - member.away_since >= self.rules.add_timeout_s:
                actions += self._lose(index)
            elif member.state is MemberState.UP and self._detector.overdue(index, now):
                sometimes("writer: a member owes an ack for too long")
                actions += self._lose(index)
                actions.append(Reconnect(index, breaking=True))
            elif member.state is MemberState.UP and self._detector.busy_for_too_long(index, now):
                sometimes("writer: a member alone is busy for too long")
                actions += self._lose(index)
                actions.append(Rejoin(index))
        self._lose_laggards(actions)
        if not self.sizes.known:
            self._learn_sizes(actions, quorum=self._detector.has_quorum)
        if self.wanted(now):
            actions.append(ReplacementWanted())
        return actions + self._give_up_without_quorum(now)

    # -- ensemble change --------------------------------------------------------------

    @property
    def _may_change(self) -> bool:
        return self.rules.max_changes > 0 and not self.rules.deferred and self._change is None and self.error is None

    def _want_another(self, actions: list[WriterAction]) -> None:
        if self._may_change and ReplacementWanted() not in actions:
            actions.append(ReplacementWanted())

    def begin_change(self, replacements: Mapping[int, str], now: float) -> list[WriterAction]:
        """Replacements were found: start the change for those positions that still need one.

        From here on nothing is confirmed. The new fragment starts after the LAC, at a batch boundary.
        """
        self._no_replacement_at = float("-inf") if replacements else now
        wanted = self.wanted(now)
        taken = {at: bookie for at, bookie in sorted(replacements.items()) if at in wanted}
        if not taken:
            return []
        if self.changes >= self.rules.max_changes:
            sometimes("writer: too many ensemble changes")
            message = f"ledger {self.ledger_id}: its ensemble has changed {self.changes} times (max_ensemble_changes)"
            return self.die(NotEnoughBookies(message))
        largest = self.largest_unconfirmed_bytes
        taken = {at: bookie for at, bookie in taken.items() if self.sizes.limit(bookie) >= largest}
        if not taken:
            return []
        bookies = tuple(taken.get(at, bookie) for at, bookie in enumerate(self.fragment.bookies))
        self._change = EnsembleChange(Fragment(self.lac + 1, bookies), tuple(taken))
        # Batches sealed meanwhile go to the new members, too.
        self._learn_sizes([])
        return [ChangeEnsemble(self.fragment, self._change.wanted)]

    def changed(self, now: float) -> list[WriterAction]:
        """The metadata store has confirmed the change.

        Acks of replaced bookies no longer count, so a batch that had its ack quorum may lose it.
        """
        change = self._change
        if change is None or self.error is not None:
            return []
        self._now = now
        actions: list[WriterAction] = []
        silent = tuple(at for at in change.positions if self._positions[at].outbox.unanswered)
        for at in change.positions:
            before = self._positions[at]
            actions += self._lose(at)
            if self._depart(before):
                actions.append(MissedChanged())
            bookie_id = change.wanted.bookies[at]
            self._positions[at] = EnsemblePosition(bookie_id, away_since=now, unserved_since=before.unserved_since)
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

    def unchanged(self) -> list[WriterAction]:
        """The change did not and never will take effect: continue with the present members."""
        sometimes("writer: a change was not made")
        self._change = None
        actions: list[WriterAction] = []
        self._learn_sizes(actions)
        self._confirm_head(actions)
        return actions

    def _depart(self, member: EnsemblePosition) -> bool:
        """Keep the missed ranges of a replaced bookie on record; return whether one of them was still growing."""
        if member.missed.ranges:
            kept = self._departed.setdefault(member.bookie_id, MissedEntries())
            for first, last in member.missed.ranges:
                kept.add(first, last)
        return member.missed.growing

    # -- the end ----------------------------------------------------------------------

    def die(self, error: TallybookError) -> list[WriterAction]:
        """End the writer: nothing is confirmed from here on, even if acks arrive."""
        if self.error is not None:
            return []
        # Copies may exist and a recovery may keep them, so the outcome is unknown.
        error.outcome = Outcome.UNKNOWN
        self.error = error
        held = sum(len(batch.data) for batch in self._batches.values())
        for batch in self._batches.values():
            for position in batch.write_set:
                if batch.confirmed and batch.owed_to(position):
                    self._miss(position, batch)
        self._batches.clear()
        self._unconfirmed.clear()
        self.stop()
        return [Released(held), Died(error)]

    def stop(self) -> None:
        """The writer is not used any more: what it retains no longer counts for the client."""
        self._lag.leave()

    def _learn_sizes(self, actions: list[WriterAction], *, quorum: bool = False) -> None:
        joining = self._change.wanted.bookies if self._change is not None else ()
        if self.sizes.learn(self._positions, joining, quorum=quorum):
            actions.append(BatchLimitsKnown())

    # -- rules ------------------------------------------------------------------------

    def _send_due(self, position: int, actions: list[WriterAction]) -> None:
        outbox = self._positions[position].outbox
        for first in outbox.due():
            batch = self._batches.get(first)
            if batch is not None and batch.owed_to(position):
                outbox.sent(first, self._now)
                actions.append(Send(position, first, batch.data))

    def _confirm_head(self, actions: list[WriterAction]) -> None:
        """Confirm batches with an ack quorum from the head of the queue; never past a gap or during a change."""
        if self._change is not None or self.error is not None:
            if self._change is not None:
                sometimes("writer: complete during a change")
            return
        moved: list[WriterBatch] = []
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
            self._lag.change(len(batch.data))
            self._retire_if_done(batch, actions)
        self._lose_laggards(actions)

    def _lose_laggards(self, actions: list[WriterAction]) -> None:
        """Give up slow members for which too many bytes are retained."""
        for index in range(len(self._positions)):
            if self._detector.too_far_behind(index, self._now):
                sometimes("writer: a member has fallen too far behind")
                actions += self._lose(index)
                actions.append(Reconnect(index, breaking=True))
            elif self._positions[index].behind_since is not None:
                sometimes("writer: a member that is behind is waited for, others are overloaded, too")

    def _retire_if_done(self, batch: WriterBatch, actions: list[WriterAction]) -> None:
        """Release a confirmed batch, unless a member still owes its ack."""
        if not any(batch.owed_to(position) for position in batch.write_set):
            del self._batches[batch.first]
            self._lag.change(-len(batch.data))
            actions.append(Released(len(batch.data)))

    def _miss(self, position: int, batch: WriterBatch) -> bool:
        """Record that a confirmed batch will not reach a member; return whether the metadata must be updated."""
        batch.skipped.add(position)
        member = self._positions[position]
        grew = not member.missed.growing
        member.missed.add(batch.first, batch.last)
        member.missed.growing = not member.retained_for
        return grew

    def _lose(self, position: int) -> list[WriterAction]:
        """Stop retaining batches for a member and record which confirmed batches it misses."""
        member = self._positions[position]
        if not member.retained_for or self.error is not None:
            return []
        if member.serving or member.busy_since is not None:
            member.unserved_since = self._now
        member.state, member.serving, member.doubted = MemberState.LOST, False, True
        member.busy_since, member.behind_since, member.lag_bytes = None, None, 0
        member.outbox.clear()
        actions: list[WriterAction] = []
        for batch in list(self._batches.values()):
            if batch.confirmed and batch.owed_to(position):
                if self._miss(position, batch):
                    actions.append(MissedChanged())
                self._retire_if_done(batch, actions)
        self._want_another(actions)
        return actions

    def _give_up_without_quorum(self, now: float) -> list[WriterAction]:
        """Fail once a batch has waited too long without an ack quorum."""
        oldest = next(iter(self._unconfirmed.values()), None)
        joining = self._change.positions if self._change is not None else ()
        if oldest is None or not self._detector.hopeless(
            oldest.submitted_at, now, joining=joining, no_replacement_at=self._no_replacement_at
        ):
            return []
        sometimes("writer: no quorum is left")
        return self.die(self._detector.loss_of_quorum(self.ledger_id))
