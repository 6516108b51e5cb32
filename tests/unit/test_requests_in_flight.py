"""The limit of requests in flight of a principal, over all ports of a process."""

import pytest

from tallybook.bookie.rpc.principal_quota import PrincipalQuotas, StreamQuota
from tallybook.core.access import Limits as Bounds
from tallybook.core.access import Permission, Principal
from tallybook.core.errors import Busy
from tallybook.core.settings import GatewaySettings
from tallybook.gateway.limits import GatewayLimits
from tallybook.runtime.security.in_flight import RequestsInFlight
from tallybook.wire.lanes import Lane


def principal(most: int | None, name: str = "p") -> Principal:
    return Principal(name, frozenset(Permission), limits=Bounds(max_requests=most))


def test_beyond_the_bound_is_busy_for_this_principal_alone_until_one_has_ended():
    in_flight = RequestsInFlight()
    mine, other = principal(2), principal(2, "other")
    with in_flight.request(mine), in_flight.request(other):
        with in_flight.request(mine):
            with pytest.raises(Busy, match="p has 2 requests in flight") as caught, in_flight.request(mine):
                pytest.fail("it was let in")
            assert caught.value.own_limit
            assert caught.value.retry_after_ms > 0
            with in_flight.request(other):
                pass
        with in_flight.request(mine):
            pass
    assert (in_flight.of(mine), in_flight.of(other)) == (0, 0)


def test_one_that_fails_has_ended():
    in_flight, mine = RequestsInFlight(), principal(1)
    for _ in range(3):
        with pytest.raises(ZeroDivisionError), in_flight.request(mine):
            raise ZeroDivisionError
    assert in_flight.of(mine) == 0


def test_a_principal_without_a_limit_is_not_counted():
    in_flight, mine = RequestsInFlight(), principal(None)
    with in_flight.request(mine), in_flight.request(mine):
        assert in_flight.of(mine) == 0


def test_calls_of_a_gateway_are_among_those_that_came_elsewhere():
    in_flight, mine = RequestsInFlight(), principal(1)
    limits = GatewayLimits(GatewaySettings(metadata="memory:"), in_flight)
    with in_flight.request(mine), pytest.raises(Busy), limits.request(mine):
        pytest.fail("it was let in")
    with limits.request(mine), pytest.raises(Busy), in_flight.request(mine):
        pytest.fail("it was let in")


def test_streams_of_a_bookie_share_what_requests_elsewhere_leave():
    in_flight, mine = RequestsInFlight(), principal(16)
    shares = PrincipalQuotas(StreamQuota(1 << 20, 1 << 20, 100, 100), in_flight)
    with shares.share(mine, Lane.READ) as share:
        assert share.requests + share.waits == in_flight.of(mine) == 4
        with in_flight.request(mine):
            pass
    with in_flight.request(mine), pytest.raises(Busy, match="1 of these are taken"), shares.share(mine, Lane.READ):
        pytest.fail("it was let in")
    assert in_flight.of(mine) == 0
