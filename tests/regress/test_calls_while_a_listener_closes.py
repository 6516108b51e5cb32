"""A call that comes as a listener closes reaches no acceptor: nobody would be left to end it."""

import grpc
import pytest

from tallybook.runtime.grpc_handlers import Handlers
from tallybook.runtime.grpc_load import GrpcLoad
from tallybook.runtime.grpc_server import _handler
from tallybook.runtime.transport import Lane


class Aborted(Exception):
    pass


class Call:
    async def abort(self, code, details):
        raise Aborted(code)


async def test_a_call_that_begins_after_the_close_is_turned_away():
    async def acceptor(_lane, _stream):
        pytest.fail("the acceptor was called")

    handlers = Handlers(GrpcLoad())
    await handlers.close()
    with pytest.raises(Aborted) as refusal:
        await _handler(Lane.ADD, acceptor, handlers)(None, Call())
    assert refusal.value.args == (grpc.StatusCode.UNAVAILABLE,)
