"""Concurrent calls of a bookie's port: all streams up to its limit, besides health and reflection calls."""

import pytest

from tallybook.core.access import OpenAccess
from tallybook.runtime.grpc.handlers import RunningHandlers
from tallybook.runtime.grpc.health_and_reflection import StandardServices
from tallybook.runtime.grpc.load import GrpcLoad
from tallybook.runtime.grpc.stream_server import calls_for


@pytest.mark.parametrize("streams", [1, 7, 8, 100, 4096, 100_000])
def test_calls_about_the_port_take_no_place_of_a_stream(streams):
    calls, load = calls_for(streams), GrpcLoad()
    StandardServices(OpenAccess(), calls, RunningHandlers(load), load, denials=None)
    # As many long-running ones as checks.
    assert calls - 2 * load.about_max_calls > streams
