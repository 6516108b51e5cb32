"""Connections to a gateway's port without an authenticated call: they do not lock other clients out."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import grpc.aio
import pytest

from tallybook.runtime.calls import Call
from tallybook.runtime.clock import RealClock
from tallybook.runtime.grpc import connection_watch as grpc_connections
from tallybook.runtime.grpc.call_server import CallListener, bound_calls
from tallybook.runtime.grpc.connection_watch import Peer, peer_of
from tallybook.runtime.grpc.load import GRPC_METRICS, GrpcLoad

DEADLINE_SECONDS = 30
SERVICE = "tallybook.test.Service"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"
MAX_CONNECTIONS = 16
MAX_WAITING_PER_PEER = MAX_CONNECTIONS // 4
TOKEN = (("authorization", "Bearer good"),)


class Port:
    """A port that is watched."""

    def __init__(self, listener: CallListener, load: GrpcLoad) -> None:
        self.listener = listener
        self.load = load
        self.writers: list[asyncio.StreamWriter] = []

    async def held(self) -> asyncio.StreamReader:
        """A connection that says nothing but that it speaks HTTP/2."""
        reader, writer = await asyncio.open_connection(*self.listener.address.rsplit(":", 1))
        self.writers.append(writer)
        writer.write(PREFACE)
        return reader

    async def asked(self, channel: grpc.aio.Channel) -> bytes:
        return await channel.unary_unary(f"/{SERVICE}/Ask")(b"", metadata=TOKEN, timeout=DEADLINE_SECONDS)

    async def until(self, name: str, wanted: int) -> None:
        while GRPC_METRICS.readings(self.load)[name] != wanted:  # noqa: ASYNC110 (no notification)
            await asyncio.sleep(0.01)


@asynccontextmanager
async def watched(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Port]:
    """A port whose only method is for those with a token."""
    monkeypatch.setattr(grpc_connections, "SWEEP_SECONDS", 0.05)
    load = GrpcLoad()
    listener = bound_calls(
        "127.0.0.1:0", max_calls=100, max_connections=MAX_CONNECTIONS, max_connection_calls=100,
        reserve_connections=MAX_CONNECTIONS, load=load,
    )  # fmt: skip

    async def ask(call: Call) -> None:
        if call.presented.authorization:
            listener.connections.authenticated(call.peer)
        await call.send(b"answer")

    await listener.serve({SERVICE: {"Ask": ask}})
    port = Port(listener, load)
    watch = asyncio.ensure_future(listener.connections.run())
    try:
        async with asyncio.timeout(DEADLINE_SECONDS):
            yield port
    finally:
        for writer in port.writers:
            writer.close()
        watch.cancel()
        await asyncio.wait([watch])
        await listener.close(0)


async def until_gone(reader: asyncio.StreamReader) -> None:
    with contextlib.suppress(ConnectionError):
        while await reader.read(1000):
            pass


async def test_connections_without_a_call_are_dropped_oldest_first_and_counted(monkeypatch):
    async with watched(monkeypatch) as port:
        held = [await port.held() for _ in range(MAX_WAITING_PER_PEER)]
        await port.until("waiting", MAX_WAITING_PER_PEER)
        for _ in range(3):
            await port.held()
        await asyncio.gather(*map(until_gone, await gone_of(held, 3)))
        await port.until("waiting", MAX_WAITING_PER_PEER)
        assert GRPC_METRICS.readings(port.load)["drops_peer"] == 3


async def gone_of(readers: list[asyncio.StreamReader], count: int) -> list[asyncio.StreamReader]:
    """The connections that have ended, as soon as there are so many."""
    ends = {asyncio.ensure_future(until_gone(reader)): reader for reader in readers}
    gone: list[asyncio.StreamReader] = []
    while len(gone) < count:
        done, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        gone += [ends.pop(end) for end in done]
    for end in ends:
        end.cancel()
    await asyncio.gather(*ends, return_exceptions=True)
    return gone


async def test_a_client_is_served_beside_as_many_held_connections_as_there_may_be_and_keeps_its_own(monkeypatch):
    async with watched(monkeypatch) as port:
        held = [await port.held() for _ in range(MAX_CONNECTIONS)]
        async with grpc.aio.insecure_channel(port.listener.address) as channel:
            assert await port.asked(channel) == b"answer"
            more = [await port.held() for _ in range(MAX_CONNECTIONS // 2)]
            await port.until("drops_peer", len(held) + len(more) - MAX_WAITING_PER_PEER)
            assert channel.get_state() is grpc.ChannelConnectivity.READY, "idle, and authenticated"
            assert await port.asked(channel) == b"answer"


def test_a_call_that_is_authenticated_while_the_descriptors_are_looked_at_is_not_forgotten():
    load = GrpcLoad()
    watch = grpc_connections.ConnectionWatch([7450], MAX_CONNECTIONS, load, RealClock())
    watch.authenticated("ipv4:10.0.0.1:5000")
    watch._reconcile({})
    watch._reconcile({grpc_connections._Socket(5, 1): Peer("10.0.0.1", 5000)})
    assert GRPC_METRICS.readings(load)["waiting"] == 0


async def test_the_watch_goes_on_when_descriptors_cannot_be_looked_at_for_a_while(monkeypatch):
    look, failures = grpc_connections._sweep, [OSError(24, "Too many open files")]

    def failing_once(*arguments):
        if failures:
            raise failures.pop()
        return look(*arguments)

    monkeypatch.setattr(grpc_connections, "_sweep", failing_once)
    async with watched(monkeypatch) as port:
        await port.held()
        await port.until("waiting", 1)
    assert not failures


@pytest.mark.parametrize(
    ("said", "peer"),
    [("ipv4:10.0.0.1:5000", Peer("10.0.0.1", 5000)), ("ipv6:%5B::1%5D:5000", Peer("::1", 5000)),
     ("ipv6:[::ffff:10.0.0.1]:5000", Peer("10.0.0.1", 5000)), ("unix:socket", None), ("", None)],
)  # fmt: skip
def test_a_peer_is_known_by_its_address_and_port(said, peer):
    assert peer_of(said) == peer


async def accepted_of(address: str, count: int) -> int:
    """The number of accepted connections among so many; the others are dropped at once."""
    streams = [await asyncio.open_connection(*address.rsplit(":", 1)) for _ in range(count)]
    try:
        for _, writer in streams:
            writer.write(PREFACE)
        greetings = await asyncio.gather(*(reader.read(1) for reader, _ in streams), return_exceptions=True)
        return sum(greeting not in {b""} and isinstance(greeting, bytes) for greeting in greetings)
    finally:
        for _, writer in streams:
            writer.close()


async def test_two_ports_together_accept_no_more_connections_than_there_may_be():
    listener = bound_calls(
        "127.0.0.1:0", max_calls=100, max_connections=MAX_CONNECTIONS, max_connection_calls=100,
        token_address="127.0.0.1:0",
    )  # fmt: skip
    await listener.serve({})
    try:
        async with asyncio.timeout(DEADLINE_SECONDS):
            ports = [listener.address, listener.token_address]
            counts = await asyncio.gather(*(accepted_of(each, MAX_CONNECTIONS) for each in ports))
        assert counts == [MAX_CONNECTIONS // 2] * 2
    finally:
        await listener.close(0)
