"""The credit of an Append stream: a window in bytes, and acks that give it back in order."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallybook.core.errors import CreditExceeded
from tallybook.gateway.credit import PAYLOAD_OVERHEAD_BYTES, Ack, Credit


def test_what_is_sent_comes_back_with_the_ack_of_its_whole_message():
    credit = Credit(10_000)
    cost = credit.take(2, 1_000)
    assert cost == 1_000 + 2 * PAYLOAD_OVERHEAD_BYTES == credit.taken_bytes
    credit.sent(0, 2, cost)
    assert credit.settled(0) is None, "half of a message"
    assert credit.settled(1) == Ack(0, 2, cost)
    assert credit.taken_bytes == 0
    assert credit.settled(1) is None, "twice"


def test_messages_that_are_durable_at_once_are_acknowledged_at_once():
    credit = Credit(10_000)
    for first in (0, 3, 6):
        credit.sent(first, 3, credit.take(3, 30))
    assert credit.settled(7) == Ack(0, 6, 2 * (30 + 3 * PAYLOAD_OVERHEAD_BYTES))
    assert credit.settled(8) == Ack(6, 3, 30 + 3 * PAYLOAD_OVERHEAD_BYTES)


def test_the_last_byte_of_the_window_may_be_used_and_one_more_may_not():
    credit = Credit(10_000)
    credit.take(1, credit.max_payload_bytes)
    with pytest.raises(CreditExceeded, match="0 of 10000 bytes") as caught:
        credit.take(1, 0)
    assert caught.value.retry_after_ms > 0
    assert credit.taken_bytes == 10_000, "what was refused is not counted"


def test_payloads_of_nothing_count_too():
    with pytest.raises(CreditExceeded):
        Credit(100 * PAYLOAD_OVERHEAD_BYTES).take(101, 0)


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 900), st.integers(0, 8))))
def test_acks_follow_each_other_without_a_gap_and_every_byte_comes_back(run):
    credit, sent, acked, back, taken = Credit(5_000), 0, 0, 0, 0
    for count, size, settled in run:
        try:
            cost = credit.take(count, size)
        except CreditExceeded:
            assert taken - back + size + count * PAYLOAD_OVERHEAD_BYTES > 5_000
        else:
            credit.sent(sent, count, cost)
            sent, taken = sent + count, taken + cost
        ack = credit.settled(min(sent, acked + settled) - 1)
        if ack is not None:
            assert ack.first_entry_id == acked
            acked, back = acked + ack.entry_count, back + ack.credit_bytes
        assert credit.taken_bytes == taken - back <= 5_000
    ack = credit.settled(sent - 1)
    assert acked + (ack.entry_count if ack else 0) == sent
    assert credit.taken_bytes == 0
