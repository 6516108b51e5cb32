"""Concurrent calls of a bookie's port: all streams up to its limit, besides health and reflection calls."""

import pytest

from tallybook.runtime.grpc.health_and_reflection import max_standard_calls
from tallybook.runtime.grpc.stream_server import calls_for


@pytest.mark.parametrize("streams", [1, 7, 8, 100, 4096, 100_000])
def test_calls_about_the_port_take_no_place_of_a_stream(streams):
    calls = calls_for(streams)
    assert calls - max_standard_calls(calls) > streams
