"""The credit of an Append stream: how large its window is, and that acks return its bytes in order."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallybook.core.errors import CreditExceeded
from tallybook.core.limits import MIB
from tallybook.core.settings import GatewaySettings
from tallybook.gateway.credit import MIN_WINDOW_BYTES, PAYLOAD_OVERHEAD_BYTES, Credit, CreditAck, window_bytes
from tallybook.gateway.limits import GatewayLimits

from ..support.gateway_calls import caller


def test_credit_is_returned_with_the_ack_of_its_whole_message():
    credit = Credit(10_000)
    cost = credit.take(2, 1_000)
    assert cost == 1_000 + 2 * PAYLOAD_OVERHEAD_BYTES == credit.taken_bytes
    credit.sent(0, 2, cost)
    assert credit.confirmed(0) is None, "half of a message"
    assert credit.confirmed(1) == CreditAck(0, 2, cost)
    assert credit.taken_bytes == 0
    assert credit.confirmed(1) is None, "twice"


def test_the_last_byte_of_the_window_may_be_used_and_one_more_may_not():
    credit = Credit(10_000)
    credit.take(1, credit.max_payload_bytes)
    with pytest.raises(CreditExceeded, match="0 of 10000 are left") as caught:
        credit.take(1, 0)
    assert caught.value.retry_after_ms > 0
    assert credit.taken_bytes == 10_000, "what was refused is not counted"


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 900), st.integers(0, 8))))
def test_acks_follow_each_other_without_a_gap_and_every_byte_comes_back(run):
    credit, sent, acked, back, taken = Credit(5_000), 0, 0, 0, 0
    for count, size, confirmed in run:
        try:
            cost = credit.take(count, size)
        except CreditExceeded:
            assert taken - back + size + count * PAYLOAD_OVERHEAD_BYTES > 5_000
        else:
            credit.sent(sent, count, cost)
            sent, taken = sent + count, taken + cost
        ack = credit.confirmed(min(sent, acked + confirmed) - 1)
        if ack is not None:
            assert ack.first_entry_id == acked
            acked, back = acked + ack.entry_count, back + ack.credit_bytes
        assert credit.taken_bytes == taken - back <= 5_000
    ack = credit.confirmed(sent - 1)
    assert acked + (ack.entry_count if ack else 0) == sent
    assert credit.taken_bytes == 0


SETTINGS = GatewaySettings(metadata="sqlite:////nowhere")


def window(limits: GatewayLimits, wanted: int = 0) -> int:
    size = window_bytes(wanted, SETTINGS, limits.free_bytes(caller("client")))
    limits.admit(caller("client"), size)
    return size


def test_one_stream_gets_all_that_is_given_at_the_most_and_a_modest_one_what_it_wants():
    assert window(GatewayLimits(SETTINGS)) == SETTINGS.credit_bytes
    assert window(GatewayLimits(SETTINGS), 10_000) == 10_000
    assert window(GatewayLimits(SETTINGS), 1 << 30) == SETTINGS.credit_bytes


def test_as_many_streams_as_a_connection_may_have_all_get_in():
    limits = GatewayLimits(SETTINGS)
    windows = [window(limits) for _ in range(int(SETTINGS.max_connection_streams))]
    assert windows == sorted(windows, reverse=True)
    assert min(windows) >= MIN_WINDOW_BYTES
    assert windows[15] > MIB // 2
    assert sum(windows) <= SETTINGS.max_connection_bytes


def test_if_others_have_taken_all_memory_a_stream_requests_only_the_minimum():
    assert window_bytes(0, SETTINGS, 0) == MIN_WINDOW_BYTES
