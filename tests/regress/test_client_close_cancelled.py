"""A client whose close is cancelled leaves nothing open."""

import asyncio
from types import SimpleNamespace

import pytest

from tallybook.client.client import Client


class Part:
    def __init__(self):
        self.closing = asyncio.Event()
        self.may_close = asyncio.Event()
        self.closed = False

    async def close(self):
        self.closing.set()
        await self.may_close.wait()
        self.closed = True


async def test_a_close_that_is_cancelled_closes_everything_all_the_same():
    connections, store = Part(), Part()
    store.may_close.set()
    client = Client("memory:")
    client._opened = SimpleNamespace(connections=connections, store=store)
    closing = asyncio.ensure_future(client.close())
    await connections.closing.wait()
    closing.cancel()
    asyncio.get_running_loop().call_soon(connections.may_close.set)
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert connections.closed
    assert store.closed
