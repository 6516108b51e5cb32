"""Limits of a gateway for its clients: streams and memory, per connection and in total."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallybook.core.errors import (
    Busy,
    CreditExceeded,
    DataMissing,
    InvariantViolation,
    MetadataUnavailable,
    NewerFormat,
    NoSuchLedger,
    QuotaExceeded,
    StreamFenced,
    TallybookError,
)
from tallybook.core.limits import MIB
from tallybook.core.settings import GatewaySettings
from tallybook.gateway.limits import GatewayLimits
from tallybook.gateway.metrics import cause_of

from ..support.gateway_calls import caller


def limits(**more) -> GatewayLimits:
    return GatewayLimits(GatewaySettings(metadata="memory:", **more))


def test_streams_on_one_connection_leave_room_for_those_on_others():
    taken = limits(max_connection_streams=2, max_streams=3)
    first = taken.admit(caller("a"), 1)
    taken.admit(caller("a"), 1)
    with pytest.raises(Busy, match="on this connection") as caught:
        taken.admit(caller("a"), 1)
    assert caught.value.retry_after_ms > 0
    assert caught.value.own_limit
    taken.admit(caller("b"), 1)
    with pytest.raises(Busy, match="in all") as caught:
        taken.admit(caller("c"), 1)
    assert not caught.value.own_limit
    first.end()
    first.end()
    with taken.admit(caller("c"), 1):
        assert (taken.total.streams, taken.total.reserved_bytes) == (3, 3)
    assert taken.total.streams == 2


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 5 * MIB), st.booleans())))
def test_no_limit_is_ever_exceeded_and_nothing_is_left_in_the_end(run):
    taken = limits(max_connection_streams=3, max_streams=5, max_connection_bytes=8 * MIB, max_reserved_bytes=12 * MIB)
    inside = []
    for peer, size, leave in run:
        try:
            inside.append((peer, size, taken.admit(caller(peer), size)))
        except Busy:
            mine = [(who, held) for who, held, _ in inside if who == peer]
            assert (
                len(mine) == 3
                or len(inside) == 5
                or sum(held for _, held in mine) + size > 8 * MIB
                or sum(held for _, held, _ in inside) + size > 12 * MIB
            )
        assert taken.total.streams == len(inside) <= 5
        assert taken.total.reserved_bytes == sum(held for _, held, _ in inside) <= 12 * MIB
        if leave and inside:
            inside.pop(0)[2].end()
    for _, _, admission in inside:
        admission.end()
    assert (taken.total.streams, taken.total.reserved_bytes) == (0, 0)


def test_failures_caused_by_the_caller_are_distinguished_from_those_for_an_operator():
    causes = {cause_of(error) for error in (NoSuchLedger(), StreamFenced(), NewerFormat())}
    assert causes == {"caller"}
    assert [cause_of(Busy(own_limit=True)), cause_of(CreditExceeded()), cause_of(Busy())] == ["limit", "limit", "room"]
    assert cause_of(QuotaExceeded()) == "limit"
    told = [cause_of(error) for error in (MetadataUnavailable(), DataMissing(), InvariantViolation(), TallybookError())]
    assert told == ["peer", "storage", "internal", "internal"]
