"""The writer machine with any order of events: what it confirms, holds and records is always true."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tallybook.client.writer.actions import (
    BatchLimitsKnown,
    ChangeEnsemble,
    Confirmed,
    Died,
    Reconnect,
    Rejoin,
    Released,
    Replaced,
    Send,
    SendLater,
    WriterAction,
)
from tallybook.client.writer.ensemble.lag import ClientLag
from tallybook.client.writer.ensemble.members import MemberState
from tallybook.client.writer.machine import WriterMachine
from tallybook.client.writer.policy import WriterPolicy
from tallybook.core.answers import AddAnswer, AddNotSent
from tallybook.core.errors import BookieUnavailable, Busy, DiskFailed, LedgerFenced
from tallybook.core.quorum import Quorum

QUORUMS = (Quorum(1, 1, 1), Quorum(3, 3, 2), Quorum(3, 2, 1, 2), Quorum(5, 3, 2, 3))
BATCH_BYTES = 100
TIMEOUT_S = 10.0
REFUSALS = (Busy, BookieUnavailable, DiskFailed)


def rules(timeout_s: float = TIMEOUT_S, lag_limit_bytes: int = 1000, **more: bool | int) -> WriterPolicy:
    return WriterPolicy(timeout_s, timeout_s / 3, lag_limit_bytes, **more)


class AnyOrderOfEvents(RuleBasedStateMachine):
    """Bookies here keep what they were sent, and ack it in any order, late, twice or never."""

    @initialize(
        quorum=st.sampled_from(QUORUMS),
        lag_batches=st.integers(1, 5),
        connected=st.booleans(),
        max_changes=st.sampled_from((0, 3, 1000)),
        delay=st.booleans(),
    )
    def start(self, quorum: Quorum, lag_batches: int, connected: bool, max_changes: int, delay: bool) -> None:
        self.now = 0.0
        self.quorum = quorum
        self.lag_limit = lag_batches * BATCH_BYTES
        bookies = [f"b{position}" for position in range(quorum.ensemble)]
        ruled = rules(lag_limit_bytes=self.lag_limit, max_changes=max_changes, delay_changes=delay)
        self.client = ClientLag()
        self.machine = WriterMachine(1, quorum, bookies, ruled, now=0.0, client_lag=self.client)
        self.next = 0
        self.newcomers = 0
        self.fragments = [(0, tuple(bookies))]
        self.change: ChangeEnsemble | None = None
        self.batches: list[tuple[int, int]] = []
        self.sent: list[tuple[int, int, str]] = []
        self.acked: dict[int, set[str]] = {}
        self.confirmed = -1
        self.held = 0
        self.dead = False
        self.submitted_at: dict[int, float] = {}
        self.hope_at = 0.0
        self.ever_busy = False
        for position in range(quorum.ensemble if connected else 0):
            self.take(self.machine.connected(position, 0.0))

    def take(self, actions: list[WriterAction]) -> None:
        for action in actions:
            match action:
                case Send():
                    assert self.machine.member(action.position) is MemberState.UP
                    assert action.position in self.quorum.write_set(action.first_entry_id)
                    holder = self.machine.bookie_of(action.position)
                    assert holder in self.ensemble_of(action.first_entry_id), "a batch goes to a bookie of its fragment"
                    self.sent.append((action.position, action.first_entry_id, holder))
                case Confirmed():
                    assert not self.dead, "a dead writer confirmed something"
                    assert self.change is None, "something was confirmed during an ensemble change"
                    assert action.last_entry_id > self.confirmed, "the LAC fell or stood still"
                    for first, last in self.batches:
                        if self.confirmed < last <= action.last_entry_id:
                            holders = self.ensemble_of(first)
                            good = [at for at, bookie in enumerate(holders) if bookie in self.acked[first]]
                            assert self.quorum.acked(good, first), "the bookies that the metadata name hold it"
                    self.confirmed = action.last_entry_id
                case Released():
                    self.held -= action.size
                case Died():
                    self.dead = True
                case ChangeEnsemble():
                    assert self.change is None, "two changes at a time"
                    assert action.wanted.first_entry_id == self.confirmed + 1
                    self.change = action
                case Reconnect() | Rejoin() | SendLater() | Replaced():
                    pass

    def ensemble_of(self, entry_id: int) -> tuple[str, ...]:
        return next(bookies for first, bookies in reversed(self.fragments) if first <= entry_id)

    @rule(size=st.integers(1, 4))
    @precondition(lambda self: not self.dead)
    def append(self, size: int) -> None:
        first, last = self.next, min(self.next + size - 1, self.quorum.stripe_end(self.next))
        self.next = last + 1
        self.batches.append((first, last))
        self.acked[first] = set()
        self.submitted_at[first] = self.now
        self.held += BATCH_BYTES
        self.take(self.machine.submit(first, last, 1, bytes(BATCH_BYTES), self.now))

    @rule(data=st.data())
    def connect(self, data: st.DataObject) -> None:
        self.take(self.machine.connected(self.position(data), self.now))

    @rule(data=st.data())
    def disconnect(self, data: st.DataObject) -> None:
        self.take(self.machine.disconnected(self.position(data), self.now))

    @rule(data=st.data())
    @precondition(lambda self: bool(self.sent))
    def ack(self, data: st.DataObject) -> None:
        position, first, bookie = data.draw(st.sampled_from(self.sent))
        self.hope_at = self.now
        if self.machine.member(position) is not MemberState.GONE or self.machine.bookie_of(position) != bookie:
            self.acked[first].add(bookie)
        self.take(self.machine.acked(position, first, bookie))

    @rule(data=st.data(), kind=st.sampled_from(REFUSALS), withheld=st.booleans())
    @precondition(lambda self: bool(self.sent))
    def refuse(self, data: st.DataObject, kind: type[Busy | BookieUnavailable | DiskFailed], withheld: bool) -> None:
        position, first, _ = data.draw(st.sampled_from(self.sent))
        self.ever_busy = self.ever_busy or kind is Busy
        answer = (AddNotSent if withheld and kind is Busy else AddAnswer)(1, first, 1, kind.wire_code, 1)
        self.take(self.machine.refused(position, answer, self.now))

    @rule(data=st.data())
    def resume(self, data: st.DataObject) -> None:
        position = self.position(data)
        self.take(self.machine.resume(position, self.machine._positions[position].outbox._pauses, self.now))

    @rule(seconds=st.sampled_from((0.1, 3.0, 11.0)))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.take(self.machine.tick(self.now))
        if self.dead or self.ever_busy or self.change is not None:
            return  # overload of all may hold appends for as long as it lasts
        oldest = min((at for first, at in self.submitted_at.items() if first > self.confirmed), default=self.now)
        # One timeout to find out, three for others to come, and the longest wait of this rule.
        assert self.now - max(oldest, self.hope_at) < 5 * TIMEOUT_S, "an append waits although nobody acks"

    @rule(data=st.data())
    def another_answers_at_the_address(self, data: st.DataObject) -> None:
        position = self.position(data)
        for acks in self.acked.values():
            acks.discard(self.machine.bookie_of(position))
        self.take(self.machine.gone(position))

    @rule(data=st.data())
    @precondition(lambda self: bool(self.machine.wanted(self.now)))
    def find_others(self, data: st.DataObject) -> None:
        wanted = self.machine.wanted(self.now)
        found = {}
        for position in data.draw(st.lists(st.sampled_from(wanted), unique=True)):
            former = sorted({b for _, bookies in self.fragments for b in bookies} - set(self.holders()))
            self.newcomers += 1
            fresh = f"new{self.newcomers}"
            bookie = data.draw(st.sampled_from([fresh, *(b for b in former if b not in found.values())]))
            found[position] = bookie
        self.take(self.machine.begin_change(found, self.now))

    @rule(landed=st.booleans())
    @precondition(lambda self: self.change is not None)
    def settle_change(self, landed: bool) -> None:
        change, self.change = self.change, None
        if change is None or not landed:
            self.take(self.machine.unchanged())
            return
        first = change.wanted.first_entry_id
        if self.fragments[-1][0] == first:
            del self.fragments[-1]
        self.fragments.append((first, change.wanted.bookies))
        for batch, acks in self.acked.items():
            if batch >= first:
                acks &= set(change.wanted.bookies) & set(change.known.bookies)
        self.take(self.machine.changed(self.now))

    def holders(self) -> tuple[str, ...]:
        return tuple(self.machine.bookie_of(position) for position in range(self.quorum.ensemble))

    @rule()
    @precondition(lambda self: len(self.batches) > 8)
    def fence(self) -> None:
        self.take(self.machine.refused(0, AddAnswer(1, 0, 1, LedgerFenced.wire_code), self.now))

    def position(self, data: st.DataObject) -> int:
        return data.draw(st.integers(0, self.quorum.ensemble - 1))

    @invariant()
    def the_last_add_confirmed_is_what_callers_were_told_and_ends_a_batch(self) -> None:
        if not hasattr(self, "machine"):
            return
        assert self.machine.lac == self.confirmed
        assert self.confirmed in {-1, *(last for _, last in self.batches)}

    @invariant()
    def who_lacks_a_confirmed_batch_is_on_record_or_still_owes_it(self) -> None:
        if not hasattr(self, "machine"):
            return
        held = self.machine._batches
        missed = {(m.bookie_id, m.first_entry_id, m.last_entry_id) for m in self.machine.missed()}
        for first, last in self.batches:
            if last > self.confirmed:
                continue
            for position in self.quorum.write_set(first):
                holder = self.ensemble_of(first)[position]
                on_record = any(
                    bookie == holder and start <= first and (end is None or last <= end)
                    for bookie, start, end in missed
                )
                owed = first in held and held[first].owed_to(position)
                assert holder in self.acked[first] or on_record or owed

    @invariant()
    def everything_a_connected_member_owes_was_sent_or_will_be(self) -> None:
        if not hasattr(self, "machine"):
            return
        for position, member in enumerate(self.machine._positions):
            if member.state is MemberState.UP:
                outbox = member.outbox
                known = {*outbox._sent, *outbox._later}
                owed = {first for first, batch in self.machine._batches.items() if batch.owed_to(position)}
                assert owed <= known
                assert outbox.unanswered or outbox._pausing or not outbox.backlog, "nothing would ever send the rest"

    @invariant()
    def memory_held_for_confirmed_batches_is_bounded(self) -> None:
        if not hasattr(self, "machine"):
            return
        unconfirmed = sum(last > self.confirmed for _, last in self.batches) * BATCH_BYTES
        retained = self.held - unconfirmed if not self.dead else self.held
        if not self.ever_busy:  # in an overload of all, what is retained holds the writer back instead
            assert retained <= self.quorum.ensemble * (self.lag_limit + BATCH_BYTES)
        assert self.client.total_bytes == (0 if self.dead else retained)
        assert self.held >= 0
        if self.dead:
            assert self.held == 0


TestAnyOrderOfEvents = AnyOrderOfEvents.TestCase
TestAnyOrderOfEvents.settings = settings(max_examples=200, stateful_step_count=50)


@given(st.lists(st.tuples(st.sampled_from((1, 2)), st.booleans(), st.integers(1, 4)), min_size=40, max_size=60))
def test_no_coming_and_going_without_acks_holds_an_append_for_ever(events: list[tuple[int, bool, int]]) -> None:
    machine = WriterMachine(1, Quorum(3, 3, 2), ["a", "b", "c"], rules(), now=0.0)
    for position in range(3):
        machine.connected(position, 0.0)
    machine.submit(0, 0, 1, b"x", 0.0)
    machine.acked(0, 0, "a")
    now = 0.0
    for position, leaves_first, seconds in events:
        if leaves_first:
            machine.disconnected(position, now)
        machine.connected(position, now)
        now += seconds
        machine.tick(now)
        assert machine.error is not None or now < 3 * TIMEOUT_S


def test_nothing_is_sent_or_confirmed_after_death() -> None:
    machine = WriterMachine(1, Quorum(3, 3, 2), ["a", "b", "c"], rules(1.0), now=0.0)
    for position in range(3):
        machine.connected(position, 0.0)
    machine.submit(0, 0, 1, b"x", 0.0)
    machine.die(LedgerFenced("gone"))
    assert machine.acked(0, 0, "a") == machine.acked(1, 0, "b") == []
    assert machine.connected(0, 1.0) == machine.tick(100.0) == machine.disconnected(1, 2.0) == []
    assert machine.lac == -1


def test_only_a_bookie_that_takes_what_is_in_flight_replaces_another() -> None:
    limits = {"a": 1000, "b": 1000, "small": BATCH_BYTES - 1, "fits": BATCH_BYTES}
    machine = WriterMachine(1, Quorum(3, 3, 2), ["a", "b", "c"], rules(max_changes=1), now=0.0, limits=limits)
    assert [machine.connected(0, 0.0), machine.tick(0.1), machine.connected(1, 0.1)] == [[], [], []]
    assert machine.tick(0.2) == [BatchLimitsKnown()], "a quorum does not wait for the limit of the third"
    machine.submit(0, 0, 1, bytes(BATCH_BYTES), 0.2)
    machine.gone(2)
    assert machine.begin_change({2: "small"}, 0.2) == []
    [change] = machine.begin_change({2: "fits"}, 0.2)
    assert isinstance(change, ChangeEnsemble)
    assert change.wanted.bookies == ("a", "b", "fits")
