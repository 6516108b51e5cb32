"""The connection table of a port: which connection is dropped when there are too many."""

from __future__ import annotations

import pytest

from tallybook.core.errors import Busy
from tallybook.runtime.security.connection_table import BOUND, PEER, ConnectionTable, TrackedConnection, peer_group


class Port:
    """A table, and what was dropped of it."""

    def __init__(self, max_waiting: int, max_waiting_per_peer: int, max_connections: int | None = None) -> None:
        self.told: list[tuple[str, str]] = []
        self.dropped: list[str] = []
        self.table = ConnectionTable(
            max_waiting, max_waiting_per_peer, lambda why, peer: self.told.append((why, peer)), max_connections
        )

    def enter(self, name: str, host: str) -> TrackedConnection:
        return self.table.enter(host, lambda _why: self.dropped.append(name))


def test_the_oldest_waiting_connection_of_a_peer_beyond_its_bound_is_dropped():
    port = Port(10, 2)
    for name in ("a1", "a2", "a3"):
        port.enter(name, "10.0.0.1")
    port.enter("b1", "10.0.0.2")
    assert port.dropped == ["a1"]
    assert port.told == [(PEER, "10.0.0.1")]
    assert len(port.table) == 3


def test_when_all_waiting_connections_are_too_many_the_peer_with_most_loses_its_oldest():
    port = Port(4, 3)
    port.enter("b1", "10.0.0.2")
    for name in ("a1", "a2", "a3"):
        port.enter(name, "10.0.0.1")
    port.enter("c1", "10.0.0.3")
    assert port.dropped == ["a1"]
    assert port.told == [(BOUND, "10.0.0.1")]


def test_a_connection_with_a_request_is_never_dropped_and_waits_again_afterwards():
    port = Port(10, 2)
    first = port.enter("a1", "10.0.0.1")
    with first.request(1):
        for name in ("a2", "a3", "a4"):
            port.enter(name, "10.0.0.1")
        assert port.dropped == ["a2"]
        with pytest.raises(Busy), port.enter("b1", "10.0.0.2").request(1):
            pass
    assert port.dropped == ["a2", "a3"], "it is the newest of those that wait now"
    assert len(port.table) == 3


def test_connections_that_are_gone_leave_nothing_behind():
    port = Port(10, 2)
    waiting, held = port.enter("a1", "10.0.0.1"), port.enter("a2", "10.0.0.1")
    with held.request(1):
        held.leave()
        waiting.leave()
        waiting.leave()
        assert (len(port.table), port.table.held) == (0, 0)
    assert (len(port.table), port.table.held) == (0, 0)


@pytest.mark.parametrize(
    ("host", "group"),
    [("10.0.0.1", "10.0.0.1"), ("::ffff:10.0.0.1", "10.0.0.1"), ("2001:db8::1", "2001:db8::/64"),
     ("2001:db8::ffff", "2001:db8::/64"), ("fe80::1%eth0", "fe80::/64"), ("", ""), ("unix", "unix")],
)  # fmt: skip
def test_addresses_of_one_network_of_ipv6_are_one_peer(host, group):
    assert peer_group(host) == group


def test_where_held_connections_leave_no_space_those_that_wait_are_dropped():
    port = Port(4, 4, max_connections=3)
    for name in ("h1", "h2"):
        port.enter(name, "10.0.0.1").hold()
    last = port.enter("w1", "10.0.0.2")
    port.enter("w2", "10.0.0.2").hold()
    assert port.dropped == ["w1"]
    assert last.dropped
    port.enter("w3", "10.0.0.3")
    assert port.dropped == ["w1", "w3"]
    assert port.table.held == len(port.table) == 3
