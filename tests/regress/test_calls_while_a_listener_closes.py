"""A call that arrives while a listener closes reaches no handler: it would never end."""

import grpc
import pytest

from tallybook.runtime.grpc.handlers import RunningHandlers
from tallybook.runtime.grpc.load import GrpcLoad
from tallybook.runtime.grpc.stream_server import _handler
from tallybook.wire.lanes import Lane


class Aborted(Exception):
    pass


class Call:
    async def abort(self, code, details):
        raise Aborted(code)


async def test_a_call_that_begins_after_the_close_is_turned_away():
    async def acceptor(_lane, _stream):
        pytest.fail("the acceptor was called")

    handlers = RunningHandlers(GrpcLoad())
    await handlers.close()
    with pytest.raises(Aborted) as refusal:
        await _handler(Lane.ADD, acceptor, handlers)(None, Call())
    assert refusal.value.args == (grpc.StatusCode.UNAVAILABLE,)
