"""The limit for what the writers of one client retain together for a member that does not ack."""

from tallybook.client.writer.actions import Reconnect
from tallybook.client.writer.ensemble.lag import ClientLag
from tallybook.client.writer.ensemble.members import MemberState
from tallybook.client.writer.machine import WriterMachine
from tallybook.client.writer.policy import WriterPolicy
from tallybook.core.quorum import Quorum

LIMIT_BYTES = 64_000
BATCH_BYTES = 1_000
SILENT = 2
RULES = WriterPolicy(add_timeout_s=10.0, away_timeout_s=4.0, lag_limit_bytes=LIMIT_BYTES)


class Ledger:
    """A writer with two members that ack at once, and a silent one."""

    def __init__(self, client: ClientLag) -> None:
        self.machine = WriterMachine(1, Quorum(3, 3, 2), ["a", "b", "silent"], RULES, now=0.0, client_lag=client)
        self.retained_bytes = 0
        self._next = 0
        for position in range(3):
            self.machine.connected(position, 0.0)

    @property
    def given_up(self) -> bool:
        return self.machine.member(SILENT) is MemberState.LOST

    def append(self, size: int = BATCH_BYTES) -> None:
        first, self._next = self._next, self._next + 1
        self.machine.submit(first, first, size, bytes(size), 0.0)
        self.machine.acked(0, first, "a")
        actions = self.machine.acked(1, first, "b")
        if Reconnect(SILENT, breaking=True) not in actions and not self.given_up:
            self.retained_bytes += size


def until_given_up(ledgers: list[Ledger]) -> int:
    """Append to the ledgers in turns until each has given up the silent member; return the most they retained."""
    most = 0
    for _ in range(4 * LIMIT_BYTES // BATCH_BYTES):
        for ledger in ledgers:
            ledger.append()
        most = max(most, sum(ledger.retained_bytes for ledger in ledgers if not ledger.given_up))
        if all(ledger.given_up for ledger in ledgers):
            return most
    raise AssertionError("the silent member is retained for without a limit")


def test_one_ledger_may_retain_the_whole_limit() -> None:
    assert until_given_up([Ledger(ClientLag())]) == LIMIT_BYTES


def test_several_ledgers_retain_the_limit_together_and_not_each() -> None:
    client = ClientLag()
    ledgers = [Ledger(client) for _ in range(4)]
    for _ in range(LIMIT_BYTES // BATCH_BYTES // 4 + 2):
        for ledger in ledgers:
            ledger.append()
    assert client.total_bytes <= LIMIT_BYTES + len(ledgers) * BATCH_BYTES
    assert any(ledger.given_up for ledger in ledgers)


def test_the_ledger_that_retains_most_gives_up_and_the_others_do_not() -> None:
    client = ClientLag()
    modest, busy = Ledger(client), Ledger(client)
    modest.append()
    while not busy.given_up:
        busy.append()
    modest.append()
    assert not modest.given_up


def test_many_ledgers_with_a_batch_each_give_nothing_up() -> None:
    client = ClientLag()
    small = LIMIT_BYTES // 512
    ledgers = [Ledger(client) for _ in range(1_000)]
    for ledger in ledgers:
        ledger.append(small)
    assert client.total_bytes > LIMIT_BYTES
    assert not any(ledger.given_up for ledger in ledgers)


def test_a_writer_that_has_ended_retains_nothing() -> None:
    client = ClientLag()
    first, second = Ledger(client), Ledger(client)
    for _ in range(LIMIT_BYTES // BATCH_BYTES):
        first.append()
    first.machine.stop()
    assert client.total_bytes == 0
    assert until_given_up([second]) == LIMIT_BYTES
    assert client.total_bytes == 0
