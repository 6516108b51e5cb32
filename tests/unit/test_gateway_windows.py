"""What credit an Append stream is given: much where there is room, and never so much that others get none."""

from tallybook.core.config import GatewaySettings
from tallybook.core.limits import MIB
from tallybook.gateway.credit import SMALLEST_WINDOW_BYTES, window_bytes
from tallybook.gateway.limits import Limits
from tallybook.sim.stage.calls import caller

SETTINGS = GatewaySettings(metadata="sqlite:////nowhere")


def given(limits: Limits, wanted: int = 0) -> int:
    window = window_bytes(wanted, SETTINGS, limits.room_bytes(caller("client")))
    limits.admit(caller("client"), window)
    return window


def test_one_stream_gets_all_that_is_given_at_the_most_and_a_modest_one_what_it_wants():
    assert given(Limits(SETTINGS)) == SETTINGS.credit_bytes
    assert given(Limits(SETTINGS), 10_000) == 10_000
    assert given(Limits(SETTINGS), 1 << 30) == SETTINGS.credit_bytes


def test_as_many_streams_as_a_connection_may_have_all_get_in():
    limits = Limits(SETTINGS)
    windows = [given(limits) for _ in range(int(SETTINGS.max_connection_streams))]
    assert windows == sorted(windows, reverse=True)
    assert min(windows) >= SMALLEST_WINDOW_BYTES
    assert windows[15] > MIB // 2
    assert sum(windows) <= SETTINGS.max_connection_bytes


def test_where_others_have_taken_all_room_a_stream_asks_for_no_more_than_the_least():
    assert window_bytes(0, SETTINGS, 0) == SMALLEST_WINDOW_BYTES
