"""The limit for what the writers of one client retain together for members that do not ack."""

import pytest

from tallybook.client.writer.ensemble.lag import ClientLag
from tallybook.client.writer.ensemble.members import MemberState
from tallybook.client.writer.machine import WriterMachine
from tallybook.client.writer.policy import WriterPolicy
from tallybook.core.quorum import Quorum

LIMIT_BYTES = 64_000
BATCH_BYTES = 1_000
TIMEOUT_S = 10.0
SLOW_S = 1.0
RULES = WriterPolicy(add_timeout_s=TIMEOUT_S, away_timeout_s=4.0, lag_limit_bytes=LIMIT_BYTES)


class Ledger:
    """A writer whose first members ack at once, and the others never."""

    def __init__(self, client: ClientLag, quorum: Quorum = Quorum(3, 3, 2)) -> None:  # noqa: B008 - immutable
        bookies = [f"b{at}" for at in range(quorum.ensemble)]
        self.quorum = quorum
        self.machine = WriterMachine(1, quorum, bookies, RULES, now=0.0, client_lag=client)
        self.silent = range(quorum.ack_quorum, quorum.ensemble)
        self._next = 0
        for position in range(quorum.ensemble):
            self.machine.connected(position, 0.0)

    @property
    def given_up(self) -> int:
        """The number of members given up."""
        return sum(self.machine.member(at) is MemberState.LOST for at in self.silent)

    def append(self, now: float, size: int = BATCH_BYTES) -> None:
        first, self._next = self._next, self._next + 1
        self.machine.submit(first, first, size, bytes(size), now)
        for position in range(self.quorum.ack_quorum):
            self.machine.acked(position, first, f"b{position}")


def append_in_turns(client: ClientLag, ledgers: list[Ledger], rounds: int) -> int:
    """Append to slow members; return the most bytes that the client retained."""
    most = 0
    for _ in range(rounds):
        for ledger in ledgers:
            ledger.append(SLOW_S)
            most = max(most, client.total_bytes)
    return most


@pytest.mark.parametrize("quorum", [Quorum(3, 3, 2), Quorum(5, 5, 3), Quorum(3, 3, 1)])
@pytest.mark.parametrize("count", [1, 2, 4, 20])
def test_ledgers_retain_the_limit_together_and_not_each(count: int, quorum: Quorum) -> None:
    client = ClientLag()
    ledgers = [Ledger(client, quorum) for _ in range(count)]
    for ledger in ledgers:
        ledger.append(0.0)
    most = append_in_turns(client, ledgers, 2 * LIMIT_BYTES // BATCH_BYTES)
    assert most == LIMIT_BYTES


def test_more_ledgers_than_the_limit_has_batches_retain_no_more() -> None:
    client = ClientLag()
    ledgers = [Ledger(client) for _ in range(2 * LIMIT_BYTES // BATCH_BYTES)]
    for ledger in ledgers:
        ledger.append(0.0)
    for ledger in ledgers:
        ledger.machine.tick(SLOW_S)
    assert client.total_bytes <= LIMIT_BYTES


@pytest.mark.parametrize("idle", [0, 600])
def test_only_the_ledger_that_retains_most_gives_up_its_member(idle: int) -> None:
    client = ClientLag()
    modest, busy, *_ = (Ledger(client) for _ in range(2 + idle))
    modest.append(0.0)
    busy.append(0.0)
    while not busy.given_up:
        busy.append(SLOW_S)
        modest.machine.tick(SLOW_S)
    assert not modest.given_up


def test_a_member_that_has_owed_an_ack_for_a_moment_only_is_not_given_up() -> None:
    client = ClientLag()
    ledgers = [Ledger(client) for _ in range(4)]
    for _ in range(LIMIT_BYTES // BATCH_BYTES // 2):
        for ledger in ledgers:
            ledger.append(0.0)
    assert client.total_bytes > LIMIT_BYTES
    assert not any(ledger.given_up for ledger in ledgers)


def test_a_writer_that_has_ended_retains_nothing() -> None:
    client = ClientLag()
    ledger = Ledger(client)
    for _ in range(LIMIT_BYTES // BATCH_BYTES):
        ledger.append(0.0)
    assert client.total_bytes == LIMIT_BYTES
    ledger.machine.stop()
    ledger.machine.acked(2, 0, "b2")
    assert client.total_bytes == client.writers == 0
