"""A force of a writer with deferred sync, and what a restarted bookie means to it: decisions of the pure machine."""

from __future__ import annotations

import pytest

from tallybook.client.writer.actions import Confirmed, Died
from tallybook.client.writer.ensemble.members import MemberState
from tallybook.client.writer.force import ForceRound, requested_pause_s
from tallybook.client.writer.machine import WriterMachine
from tallybook.client.writer.policy import WriterPolicy
from tallybook.core.answers import Incarnation
from tallybook.core.errors import BookieUnavailable, Busy, DiskFailed, LedgerFenced, NotEnoughBookies
from tallybook.core.quorum import Quorum

TIMEOUT_S = 10.0


def writer(*, deferred: bool = True) -> WriterMachine:
    """A writer of three connected bookies with one confirmed entry."""
    rules = WriterPolicy(TIMEOUT_S, TIMEOUT_S, 1_000, max_changes=0 if deferred else 9, deferred=deferred)
    machine = WriterMachine(7, Quorum(3, 3, 2), ["b1", "b2", "b3"], rules, now=0.0)
    for at in range(3):
        assert machine.identified(at, Incarnation(f"directory {at}", 1)) == []
        machine.connected(at, 0.0)
    machine.submit(0, 0, 5, b"batch", 0.0)
    machine.acked(0, 0, "b1")
    assert Confirmed(0) in machine.acked(1, 0, "b2")
    return machine


def test_the_lac_moves_once_every_member_is_done_to_what_was_confirmed_before() -> None:
    machine = writer()
    forcing = ForceRound(machine)
    machine.submit(1, 1, 5, b"batch", 0.0)
    for at in (0, 1):
        machine.acked(at, 1, f"b{at + 1}")
    for at in range(3):
        assert (machine.confirmed, machine.lac) == (1, -1)
        assert forcing.awaits(at)
        forcing.done(at)
        assert not forcing.awaits(at)
    assert (machine.lac, machine.lac_length) == (0, 5)


def test_a_member_that_is_busy_is_awaited_until_the_time_is_over() -> None:
    machine, error = writer(), Busy("no space", retry_after_ms=70)
    forcing = ForceRound(machine)
    assert requested_pause_s(error) == 0.07
    assert forcing.failed(1, error, connected=True, now=1.0) == []
    assert forcing.awaits(1)
    [_, died] = forcing.timed_out(1, error)
    assert isinstance(died, Died)
    assert type(died.error) is NotEnoughBookies
    assert "b2 could not make durable what it had acked: no space" in died.error.message


@pytest.mark.parametrize(("connected", "state"), [(True, MemberState.DOWN), (False, MemberState.UP)])
def test_only_a_failure_of_the_present_connection_disconnects_the_member(connected: bool, state: MemberState) -> None:
    machine = writer()
    forcing = ForceRound(machine)
    forcing.failed(1, BookieUnavailable("lost"), connected=connected, now=1.0)
    assert machine.member(1) is state
    assert forcing.awaits(1)


@pytest.mark.parametrize(
    ("error", "ends_with"),
    [(DiskFailed("it failed"), NotEnoughBookies), (LedgerFenced("by another client"), LedgerFenced)],
)
def test_a_member_that_cannot_make_its_entries_durable_ends_the_writer(error, ends_with):
    machine = writer()
    forcing = ForceRound(machine)
    [_, died] = forcing.failed(1, error, connected=True, now=1.0)
    assert isinstance(died, Died)
    assert type(died.error) is ends_with
    assert error.message in died.error.message
    assert not any(map(forcing.awaits, range(3)))
    for at in range(3):
        forcing.done(at)
    assert machine.lac == -1


def test_a_bookie_that_restarted_ends_only_a_writer_whose_acked_entries_it_may_have_lost() -> None:
    assert writer(deferred=False).identified(0, Incarnation("directory 0", 2)) == []
    [_, died] = writer().identified(0, Incarnation("directory 0", 2))
    assert isinstance(died, Died)
    assert "b1 has restarted" in died.error.message


@pytest.mark.parametrize("deferred", [True, False])
def test_another_directory_at_the_address_is_never_the_same_member(deferred: bool) -> None:
    machine = writer(deferred=deferred)
    assert machine.identified(0, Incarnation("another directory", 1))
    assert machine.member(0) is MemberState.GONE
