"""What a bookie's port serves at once: all streams that it may have, whatever else is asked of it."""

import pytest

from tallybook.runtime.grpc_about import most_calls
from tallybook.runtime.grpc_server import calls_for


@pytest.mark.parametrize("streams", [1, 7, 8, 100, 4096, 100_000])
def test_calls_about_the_port_take_no_place_of_a_stream(streams):
    calls = calls_for(streams)
    assert calls - most_calls(calls) > streams
