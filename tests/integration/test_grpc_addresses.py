"""gRPC addresses that cannot be bound, and addresses without a server."""

import asyncio

import pytest

from tallybook.core.errors import InvalidConfig, PeerUnavailable
from tallybook.wire.bookie_transport import bookie_transport
from tallybook.wire.lanes import Lane


@pytest.mark.parametrize("address", ["", "nowhere", "127.0.0.1", "127.0.0.1:", "127.0.0.1:http", "192.0.2.1:80"])
async def test_an_address_that_cannot_be_listened_on_is_refused_by_name(address):
    async def accept(lane, stream):
        raise AssertionError

    with pytest.raises(InvalidConfig) as refused:
        await bookie_transport().listen(address, accept)
    assert address in refused.value.message


async def test_an_address_without_a_server_is_unavailable_soon():
    async with asyncio.timeout(30):
        with pytest.raises(PeerUnavailable):
            await bookie_transport().connect("127.0.0.1:1", Lane.ADD, timeout_seconds=60)


async def test_a_port_that_takes_connections_and_says_nothing_is_unavailable_in_time():
    open_connections = []
    server = await asyncio.start_server(lambda _, writer: open_connections.append(writer), "127.0.0.1", 0)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with asyncio.timeout(30):
        with pytest.raises(PeerUnavailable):
            await bookie_transport().connect(address, Lane.ADD, timeout_seconds=0.2)
    for writer in open_connections:
        writer.close()
    server.close()
    await server.wait_closed()
