"""How many requests a principal has under way at a process, whichever of its ports they came by."""

import pytest

from tallybook.bookie.shares import Share, Shares
from tallybook.core.access import Limits as Bounds
from tallybook.core.access import Permission, Principal
from tallybook.core.config import GatewaySettings
from tallybook.core.errors import Busy
from tallybook.gateway.limits import Limits
from tallybook.runtime.transport import Lane
from tallybook.runtime.under_way import UnderWay


def principal(most: int | None, name: str = "p") -> Principal:
    return Principal(name, frozenset(Permission), limits=Bounds(max_requests=most))


def test_beyond_the_bound_is_busy_for_this_principal_alone_until_one_has_ended():
    under_way = UnderWay()
    mine, other = principal(2), principal(2, "other")
    with under_way.request(mine), under_way.request(other):
        with under_way.request(mine):
            with pytest.raises(Busy, match="2 requests of p are under way") as caught, under_way.request(mine):
                pytest.fail("it was let in")
            assert caught.value.own_limit
            assert caught.value.retry_after_ms > 0
            with under_way.request(other):
                pass
        with under_way.request(mine):
            pass
    assert (under_way.of(mine), under_way.of(other)) == (0, 0)


def test_one_that_fails_has_ended():
    under_way, mine = UnderWay(), principal(1)
    for _ in range(3):
        with pytest.raises(ZeroDivisionError), under_way.request(mine):
            raise ZeroDivisionError
    assert under_way.of(mine) == 0


def test_whoever_has_no_bound_is_not_counted():
    under_way, mine = UnderWay(), principal(None)
    with under_way.request(mine), under_way.request(mine):
        assert under_way.of(mine) == 0


def test_calls_of_a_gateway_are_among_those_that_came_elsewhere():
    under_way, mine = UnderWay(), principal(1)
    limits = Limits(GatewaySettings(metadata="memory:"), under_way)
    with under_way.request(mine), pytest.raises(Busy), limits.request(mine):
        pytest.fail("it was let in")
    with limits.request(mine), pytest.raises(Busy), under_way.request(mine):
        pytest.fail("it was let in")


def test_streams_of_a_bookie_share_what_requests_elsewhere_leave():
    under_way, mine = UnderWay(), principal(16)
    shares = Shares(Share(1 << 20, 1 << 20, 100, 100), under_way)
    with shares.share(mine, Lane.READ) as share:
        assert share.requests + share.waits == under_way.of(mine) == 4
        with under_way.request(mine):
            pass
    with under_way.request(mine), pytest.raises(Busy, match="1 of these are taken"), shares.share(mine, Lane.READ):
        pytest.fail("it was let in")
    assert under_way.of(mine) == 0
