"""How long a writer waits for a member that is far behind while the others are overloaded, too."""

from __future__ import annotations

import pytest

from tallybook.client.writer.ensemble.failure_detector import CATCH_UP_TIMEOUTS, FailureDetector
from tallybook.client.writer.ensemble.lag import ClientLag, WriterLag
from tallybook.client.writer.ensemble.members import EnsemblePosition, MemberState
from tallybook.client.writer.machine import WriterMachine
from tallybook.client.writer.policy import WriterPolicy
from tallybook.core.answers import AddNotSent
from tallybook.core.errors import Busy
from tallybook.core.quorum import Quorum

TIMEOUT_S = 10.0
PATIENCE_S = CATCH_UP_TIMEOUTS * TIMEOUT_S
LIMIT = 1_000
RULES = WriterPolicy(TIMEOUT_S, TIMEOUT_S / 3, LIMIT)
QUORUM = Quorum(3, 3, 2)
CALM = {"busy_at": float("-inf")}


def alone() -> WriterLag:
    """The lag of the only writer of a client."""
    return WriterLag(ClientLag(), RULES.lag_limit_bytes)


class Ensemble:
    """Three members that serve; ``behind`` lags, and the others say all the time that they are busy."""

    def __init__(self) -> None:
        self.members = [EnsemblePosition(f"b{at}", MemberState.UP, serving=True) for at in range(3)]
        self.behind = self.members[2]

    def gives_up(self, now: float, *, lag: int = LIMIT + 200, caught_up: int = 0, overloaded: bool = True) -> bool:
        self.behind.lag_bytes = lag
        self.behind.caught_up_bytes += caught_up
        if overloaded:
            self.members[0].busy_at = self.members[1].busy_at = now
        return FailureDetector(self.members, QUORUM, RULES, alone()).too_far_behind(2, now)


def test_one_that_takes_nothing_is_waited_for_through_three_timeouts_and_no_longer() -> None:
    ensemble = Ensemble()
    assert not ensemble.gives_up(100)
    assert not ensemble.gives_up(100 + PATIENCE_S - 0.1)
    assert ensemble.gives_up(100 + PATIENCE_S)


def test_one_that_takes_more_than_the_limit_in_time_has_as_long_again() -> None:
    ensemble, now = Ensemble(), 100.0
    assert not ensemble.gives_up(now)
    for _ in range(5):
        now += PATIENCE_S - 5
        assert not ensemble.gives_up(now, caught_up=LIMIT + 100)
    assert ensemble.gives_up(now + PATIENCE_S)


def test_one_that_takes_too_little_is_not_waited_for_longer() -> None:
    ensemble = Ensemble()
    assert not ensemble.gives_up(100)
    assert not ensemble.gives_up(120, caught_up=LIMIT - 100)
    assert ensemble.gives_up(100 + PATIENCE_S)


def test_one_that_has_caught_up_has_all_the_time_when_it_falls_behind_again() -> None:
    ensemble = Ensemble()
    assert not ensemble.gives_up(100)
    assert not ensemble.gives_up(120, lag=LIMIT)
    assert not ensemble.gives_up(100 + PATIENCE_S)
    assert ensemble.gives_up(100 + 2 * PATIENCE_S)


def test_one_that_is_behind_alone_is_given_up_at_once() -> None:
    assert Ensemble().gives_up(100, overloaded=False)


@pytest.mark.parametrize("state", [MemberState.UP, MemberState.DOWN])
def test_a_member_that_does_not_respond_is_given_up_at_once_with_any_others_overloaded(state: MemberState) -> None:
    ensemble = Ensemble()
    ensemble.behind.state, ensemble.behind.serving = state, False
    assert ensemble.gives_up(100)


def overloaded_four() -> list[EnsemblePosition]:
    """Members of which the last is behind, and the first two are busy."""
    members = [EnsemblePosition(f"b{at}", MemberState.UP, serving=True) for at in range(4)]
    members[0].busy_at = members[1].busy_at = 100
    members[3].lag_bytes = LIMIT + 1
    return members


@pytest.mark.parametrize(
    ("first", "is_calm"),
    [({}, False), (CALM, True), (CALM | {"state": MemberState.LOST}, False), (CALM | {"serving": False}, False)],
    ids=["busy", "calm", "lost", "unproven"],
)
def test_others_are_overloaded_if_the_rest_makes_no_quorum_and_only_those_that_serve_are_calm(first, is_calm):
    members = overloaded_four()
    for name, value in first.items():
        setattr(members[0], name, value)
    assert FailureDetector(members, Quorum(4, 4, 2), RULES, alone()).too_far_behind(3, 100) is is_calm


@pytest.mark.parametrize("proven", [False, True])
def test_adds_withheld_by_a_client_make_only_proven_bookies_busy(proven: bool) -> None:
    machine = WriterMachine(1, Quorum(1, 1, 1), ["b0"], RULES, now=0.0)
    machine.connected(0, 0.0)
    machine.submit(0, 0, 1, bytes(1), 0.0)
    machine.submit(1, 1, 1, bytes(1), 0.0)
    machine.disconnected(0, 1.0)
    machine.connected(0, 1.0)
    if proven:
        machine.acked(0, 0, "b0")
    machine.refused(0, AddNotSent(1, 1, 1, Busy.wire_code), 2.0)
    [member] = machine._positions
    assert (member.serves, member.busy_since, member.busy_at > 0) == (proven, 2.0 if proven else None, proven)


def test_a_single_member_is_never_overloaded() -> None:
    members = overloaded_four()
    for member in members[:3]:
        member.busy_at, member.state = float("-inf"), MemberState.DOWN
    assert FailureDetector(members, Quorum(4, 4, 2), RULES, alone()).too_far_behind(3, 100)


def test_a_writer_keeps_one_that_stays_as_far_behind_as_it_is_and_takes_batch_after_batch() -> None:
    machine, backlog = WriterMachine(1, QUORUM, ["b0", "b1", "b2"], RULES, now=0.0), 6
    for at in range(3):
        machine.connected(at, 0.0)
    for number in range(10 * int(PATIENCE_S)):
        now = float(number)
        for other in machine._positions[:2]:
            other.busy_at = now
        machine.submit(number, number, 300, bytes(300), now)
        for at in (0, 1):
            machine.acked(at, number, f"b{at}")
        if number >= backlog:
            machine.acked(2, number - backlog, "b2")
        machine.tick(now)
        assert machine.member(2) is MemberState.UP, f"at {now} s"
    assert machine._positions[2].lag_bytes > LIMIT
