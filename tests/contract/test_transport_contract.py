"""Contract of ``Transport``. To test another one, add a function that makes its place to PLACES."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

from tallybook.core.errors import InvalidConfig, PeerUnavailable, TallybookError
from tallybook.core.limits import MAX_MESSAGE_BYTES, MIB
from tallybook.runtime.rng import SeededRng
from tallybook.runtime.tcp.transport import TcpTransport
from tallybook.runtime.transport import Acceptor, Listener, MessageStream, Transport
from tallybook.sim.deterministic import SimNet
from tallybook.wire.bookie_transport import bookie_transport
from tallybook.wire.lanes import Lane

from ..support.waiting import settled

DEADLINE_SECONDS = 30


@dataclass
class Place:
    """Two ends of a network."""

    server: Transport
    client: Transport
    any_address: str
    """An address with any free port, for a server."""
    empty_address: str
    """An address without a listener."""

    async def connect(self, listener: Listener, lane: Lane = Lane.ADD) -> MessageStream:
        return await self.client.connect(listener.address, lane, timeout_seconds=5)

    @asynccontextmanager
    async def serving(self, acceptor: Acceptor) -> AsyncIterator[Listener]:
        async with asyncio.timeout(DEADLINE_SECONDS):
            listener = await self.server.listen(self.any_address, acceptor)
            try:
                yield listener
            finally:
                await listener.close(0)


def sim_place() -> Place:
    net = SimNet(SeededRng(1))
    return Place(net.transport("server"), net.transport("client"), "server:0", "server:1")


def real_place(server: Transport, client: Transport) -> Place:
    with socket.socket() as unserved:
        unserved.bind(("127.0.0.1", 0))
        port = unserved.getsockname()[1]
    return Place(server, client, "127.0.0.1:0", f"127.0.0.1:{port}")


def grpc_place() -> Place:
    return real_place(bookie_transport(), bookie_transport())


def tcp_place() -> Place:
    return real_place(TcpTransport(tuple(Lane)), TcpTransport(tuple(Lane)))


PLACES: dict[str, Callable[[], Place]] = {"sim": sim_place, "grpc": grpc_place, "tcp": tcp_place}


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest) -> Place:
    return PLACES[request.param]()


async def echo(_lane: Lane, stream: MessageStream) -> None:
    while (message := await stream.receive()) is not None:
        await stream.send(message)


class Kept:
    """An acceptor that hands its streams to the test, and holds each until it is released."""

    def __init__(self) -> None:
        self.streams: asyncio.Queue[tuple[Lane, MessageStream]] = asyncio.Queue()
        self.released = asyncio.Event()

    async def __call__(self, lane: Lane, stream: MessageStream) -> None:
        self.streams.put_nowait((lane, stream))
        await self.released.wait()


async def send_until_broken(stream: MessageStream) -> None:
    """Send until it raises PeerUnavailable: news of an end takes its time to arrive."""
    while True:
        await stream.send(b"anybody?")
        await asyncio.sleep(0.001)


async def drained(stream: MessageStream) -> None:
    """Receive until the end, whichever way it comes."""
    try:
        while await stream.receive() is not None:
            pass
    except PeerUnavailable:
        pass


# -- messages -------------------------------------------------------------------------------


async def test_messages_arrive_in_order_and_come_back(place: Place) -> None:
    async with place.serving(echo) as listener:
        stream = await place.connect(listener)
        for index in range(200):
            await stream.send(index.to_bytes(2, "big"))
        assert [await stream.receive() for _ in range(200)] == [index.to_bytes(2, "big") for index in range(200)]
        await stream.close()


@pytest.mark.parametrize("size", [1, 100, 64 * 1024, MIB, MAX_MESSAGE_BYTES - 64])
async def test_a_message_of_any_size_arrives_unchanged(place: Place, size: int) -> None:
    message = bytes(index % 251 for index in range(1000)) * (size // 1000 + 1)
    async with place.serving(echo) as listener:
        stream = await place.connect(listener)
        await stream.send(message[:size])
        assert await stream.receive() == message[:size]
        await stream.close()


async def test_an_empty_message_is_not_the_end(place: Place) -> None:
    async with place.serving(echo) as listener:
        stream = await place.connect(listener)
        await stream.send(b"")
        await stream.send(b"x")
        assert await stream.receive() == b""
        assert await stream.receive() == b"x"
        await stream.close()


@pytest.mark.parametrize("lane", list(Lane))
async def test_the_acceptor_gets_the_lane(place: Place, lane: Lane) -> None:
    kept = Kept()
    async with place.serving(kept) as listener:
        stream = await place.connect(listener, lane)
        found, _ = await kept.streams.get()
        assert found is lane
        kept.released.set()
        await stream.close()


async def test_both_sides_send_without_waiting_for_each_other(place: Place) -> None:
    async def chatter(_lane: Lane, stream: MessageStream) -> None:
        for index in range(50):
            await stream.send(b"server %d" % index)
        received.extend([await stream.receive() for _ in range(50)])

    received: list[bytes | None] = []
    async with place.serving(chatter) as listener:
        stream = await place.connect(listener)
        for index in range(50):
            await stream.send(b"client %d" % index)
        assert [await stream.receive() for _ in range(50)] == [b"server %d" % index for index in range(50)]
        assert await stream.receive() is None
        assert received == [b"client %d" % index for index in range(50)]
        await stream.close()


async def test_streams_side_by_side_do_not_mix(place: Place) -> None:
    async with place.serving(echo) as listener:
        streams = [await place.connect(listener, lane) for lane in Lane for _ in range(4)]

        async def talk(number: int, stream: MessageStream) -> None:
            for index in range(20):
                await stream.send(b"%d %d" % (number, index))
                assert await stream.receive() == b"%d %d" % (number, index)
            await stream.close()

        await asyncio.gather(*(talk(number, stream) for number, stream in enumerate(streams)))


async def test_a_stream_that_is_not_served_delays_no_other(place: Place) -> None:
    async def first_is_deaf(lane: Lane, stream: MessageStream) -> None:
        if lane is Lane.CONTROL:
            await release.wait()
        else:
            await echo(lane, stream)

    release = asyncio.Event()
    async with place.serving(first_is_deaf) as listener:
        deaf = await place.connect(listener, Lane.CONTROL)
        await deaf.send(b"anybody?")
        other = await place.connect(listener, Lane.READ)
        await other.send(b"hello")
        assert await other.receive() == b"hello"
        release.set()
        await other.close()
        await deaf.close()


async def test_a_stream_has_the_address_of_its_peer(place: Place) -> None:
    kept = Kept()
    async with place.serving(kept) as listener:
        stream = await place.connect(listener)
        _, accepted = await kept.streams.get()
        assert stream.peer == listener.address
        assert accepted.peer
        kept.released.set()
        await stream.close()


# -- back-pressure --------------------------------------------------------------------------


async def test_a_deaf_peer_makes_the_sender_wait_and_then_gets_everything(place: Place) -> None:
    kept = Kept()
    async with place.serving(kept) as listener:
        stream = await place.connect(listener)
        _, accepted = await kept.streams.get()
        sent = 0

        async def flood() -> None:
            nonlocal sent
            for index in range(64):
                await stream.send(bytes([index]) * MIB)
                sent += 1

        flooding = asyncio.ensure_future(flood())
        before = -1
        while before != sent:  # until it stands still
            before = sent
            await asyncio.sleep(0.2)
        assert sent < 64, "nothing bounds what is under way"
        for index in range(64):
            assert await accepted.receive() == bytes([index]) * MIB
        await flooding
        kept.released.set()
        await stream.close()


async def test_a_sender_that_waits_learns_that_the_peer_is_gone(place: Place) -> None:
    kept = Kept()
    async with place.serving(kept) as listener:
        stream = await place.connect(listener)
        _, accepted = await kept.streams.get()

        sent = 0

        async def flood() -> None:
            nonlocal sent
            while True:
                await stream.send(bytes(MIB))
                sent += 1

        flooding = asyncio.ensure_future(flood())
        await settled(lambda: sent)
        accepted.abort()
        with pytest.raises(PeerUnavailable):
            await flooding
        kept.released.set()
        stream.abort()


# -- ends -----------------------------------------------------------------------------------


async def test_after_the_clients_close_the_server_gets_what_was_sent_and_then_the_end(place: Place) -> None:
    async def listen_to_the_end(_lane: Lane, stream: MessageStream) -> None:
        while (message := await stream.receive()) is not None:
            received.append(message)
        over.set()

    received: list[bytes] = []
    over = asyncio.Event()
    async with place.serving(listen_to_the_end) as listener:
        stream = await place.connect(listener)
        for index in range(50):
            await stream.send(b"%d" % index)
        await stream.close()
        await over.wait()
        assert received == [b"%d" % index for index in range(50)]


async def test_when_the_acceptor_returns_the_client_gets_what_was_sent_and_then_the_end(place: Place) -> None:
    async def say_and_go(_lane: Lane, stream: MessageStream) -> None:
        for index in range(50):
            await stream.send(b"%d" % index)

    async with place.serving(say_and_go) as listener:
        stream = await place.connect(listener)
        assert [await stream.receive() for _ in range(50)] == [b"%d" % index for index in range(50)]
        assert await stream.receive() is None
        assert await stream.receive() is None
        await stream.close()


async def test_a_stream_the_server_has_ended_takes_nothing_more(place: Place) -> None:
    async def go(_lane: Lane, stream: MessageStream) -> None:
        await stream.receive()

    async with place.serving(go) as listener:
        stream = await place.connect(listener)
        await stream.send(b"first")
        assert await stream.receive() is None
        with pytest.raises(PeerUnavailable):
            await stream.send(b"second")
        await stream.close()


async def test_a_closed_stream_takes_and_gives_nothing(place: Place) -> None:
    async with place.serving(echo) as listener:
        stream = await place.connect(listener)
        await stream.close()
        with pytest.raises(PeerUnavailable):
            await stream.send(b"x")


async def test_an_aborted_stream_takes_and_gives_nothing(place: Place) -> None:
    async with place.serving(echo) as listener:
        stream = await place.connect(listener)
        await stream.send(b"x")
        stream.abort()
        with pytest.raises(PeerUnavailable):
            await stream.send(b"y")
        with pytest.raises(PeerUnavailable):
            await stream.receive()


async def test_ends_may_be_repeated_in_any_order(place: Place) -> None:
    async with place.serving(echo) as listener:
        one = await place.connect(listener)
        await one.close()
        await one.close()
        one.abort()
        other = await place.connect(listener)
        other.abort()
        other.abort()
        await other.close()


async def test_when_the_client_aborts_the_servers_wait_ends(place: Place) -> None:
    async def listen_to_the_end(_lane: Lane, stream: MessageStream) -> None:
        await drained(stream)
        over.set()

    over = asyncio.Event()
    async with place.serving(listen_to_the_end) as listener:
        stream = await place.connect(listener)
        await stream.send(b"x")
        stream.abort()
        await over.wait()


async def test_when_the_server_aborts_the_clients_wait_ends_with_an_error(place: Place) -> None:
    kept = Kept()
    async with place.serving(kept) as listener:
        stream = await place.connect(listener)
        _, accepted = await kept.streams.get()
        waiting = asyncio.ensure_future(stream.receive())
        await asyncio.sleep(0.01)
        accepted.abort()
        with pytest.raises(PeerUnavailable):
            await waiting
        with pytest.raises(PeerUnavailable):
            await send_until_broken(stream)
        kept.released.set()
        stream.abort()


async def test_an_own_abort_ends_an_own_wait(place: Place) -> None:
    kept = Kept()
    async with place.serving(kept) as listener:
        stream = await place.connect(listener)
        waiting = asyncio.ensure_future(stream.receive())
        await asyncio.sleep(0.01)
        stream.abort()
        with pytest.raises(PeerUnavailable):
            await waiting
        kept.released.set()


async def test_an_acceptor_that_fails_breaks_its_stream_and_no_other(place: Place) -> None:
    async def picky(lane: Lane, stream: MessageStream) -> None:
        if lane is Lane.CONTROL:
            raise TallybookError("not today")
        await echo(lane, stream)

    async def connect_and_receive(listener: Listener) -> None:
        """It may have failed before the connecting side knows that it is connected."""
        bad = await place.connect(listener, Lane.CONTROL)
        try:
            await bad.receive()
        finally:
            bad.abort()

    async with place.serving(picky) as listener:
        with pytest.raises(PeerUnavailable):
            await connect_and_receive(listener)
        good = await place.connect(listener, Lane.ADD)
        await good.send(b"x")
        assert await good.receive() == b"x"
        await good.close()


# -- connecting and listening ---------------------------------------------------------------


async def test_an_address_without_a_listener_is_unavailable(place: Place) -> None:
    with pytest.raises(PeerUnavailable, match=place.empty_address):
        await place.client.connect(place.empty_address, Lane.ADD, timeout_seconds=5)


async def test_an_address_is_served_by_one_listener(place: Place) -> None:
    async with place.serving(echo) as listener:
        with pytest.raises(InvalidConfig, match=listener.address):
            await place.server.listen(listener.address, echo)


async def test_an_address_can_be_served_again_after_a_close(place: Place) -> None:
    async with place.serving(echo) as listener:
        address = listener.address
    again = await place.server.listen(address, echo)
    assert again.address == address
    stream = await place.connect(again)
    await stream.send(b"x")
    assert await stream.receive() == b"x"
    await stream.close()
    await again.close(0)


@pytest.mark.parametrize("address", ["", ":", "server:port", ":17"])
async def test_what_is_no_address_is_refused(place: Place, address: str) -> None:
    with pytest.raises(InvalidConfig):
        await place.server.listen(address, echo)


async def test_any_free_port_is_another_one_each_time(place: Place) -> None:
    async with place.serving(echo) as one, place.serving(echo) as other:
        assert one.address != other.address
        assert not one.address.endswith(":0")


async def test_a_closed_listener_takes_no_new_stream(place: Place) -> None:
    async with place.serving(echo) as listener:
        await listener.close(0)
        with pytest.raises(PeerUnavailable):
            await place.connect(listener)


async def test_closing_a_listener_lets_a_stream_finish_within_the_grace(place: Place) -> None:
    async with place.serving(echo) as listener:
        stream = await place.connect(listener)
        await stream.send(b"before")
        assert await stream.receive() == b"before"
        closing = asyncio.ensure_future(listener.close(20))
        await asyncio.sleep(0.01)
        await stream.send(b"during")
        assert await stream.receive() == b"during"
        await stream.close()
        await closing


async def test_closing_a_listener_drops_what_outlives_the_grace(place: Place) -> None:
    kept = Kept()
    async with place.serving(kept) as listener:
        stream = await place.connect(listener)
        await kept.streams.get()
        await listener.close(0.05)
        with pytest.raises(PeerUnavailable):
            await stream.receive()
        stream.abort()
