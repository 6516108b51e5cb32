"""A real TCP port: TLS, peers that do not speak its protocol, and peers that are silent."""

import asyncio
import gc
import socket
import ssl
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import uvloop

from tallybook.core.access import Role
from tallybook.core.certificate_names import CertificateName, NameKind
from tallybook.core.errors import PeerUnavailable, Unauthenticated
from tallybook.core.limits import MAX_MESSAGE_BYTES, MIB
from tallybook.runtime.security.authority import Authority, Subject
from tallybook.runtime.security.process_security import Security, open_security
from tallybook.runtime.tcp import listener as listener_module
from tallybook.runtime.tcp import stream as stream_module
from tallybook.runtime.tcp.framing import Signal, encode_signal
from tallybook.runtime.tcp.listener import ACCEPTED, GREETING
from tallybook.runtime.tcp.load import TcpLoad
from tallybook.runtime.tcp.stream import TcpStream
from tallybook.runtime.tcp.transport import TcpTransport
from tallybook.runtime.transport import MessageStream

from ..support.waiting import until
from .grpc_port import NOT_GRPC

LOOPS = {"asyncio": asyncio.DefaultEventLoopPolicy, "uvloop": uvloop.EventLoopPolicy}
KIND = "echo"
DEADLINE_SECONDS = 30


class Port:
    """A port that echoes messages."""

    def __init__(self) -> None:
        self.load = TcpLoad()
        self.streams: list[MessageStream] = []
        self.address = ""

    async def accept(self, _kind: str, stream: MessageStream) -> None:
        self.streams.append(stream)
        while (message := await stream.receive()) is not None:
            await stream.send(bytes(message))

    async def raw(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection on which nothing was said yet."""
        host, _, port = self.address.rpartition(":")
        return await asyncio.open_connection(host, int(port))

    async def greeted(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection whose greeting was accepted, served by hand from here."""
        reader, writer = await self.raw()
        writer.write(frame(GREETING + KIND.encode()))
        assert await reader.readexactly(4 + len(ACCEPTED)) == frame(ACCEPTED)
        return reader, writer

    async def works(self, security: Security | None = None) -> None:
        """A well-behaved client comes, sends, receives and leaves."""
        stream = await TcpTransport((), security=security).connect(self.address, KIND, timeout_seconds=10)
        for message in (b"x", bytes(MIB)):
            await stream.send(message)
            assert await stream.receive() == message
        await stream.close()


@asynccontextmanager
async def served(security: Security | None = None, max_connections: int = 4096) -> AsyncIterator[Port]:
    port = Port()
    transport = TcpTransport((KIND,), max_connections=max_connections, security=security, load=port.load)
    async with asyncio.timeout(DEADLINE_SECONDS):
        listener = await transport.listen("127.0.0.1:0", port.accept)
        port.address = listener.address
        try:
            yield port
            await port.works(security)
        finally:
            await listener.close(0)
            await until(lambda: not len(port.load.connections), "the table of connections is empty")


def frame(message: bytes) -> bytes:
    return len(message).to_bytes(4, "little") + message


async def closed(reader: asyncio.StreamReader) -> bytes:
    """Read a connection until it is closed, in any way; returns the bytes."""
    try:
        return await reader.read()
    except ConnectionError:
        return b""


@pytest.fixture(params=LOOPS.values(), ids=LOOPS)
def event_loop_policy(request: pytest.FixtureRequest) -> asyncio.AbstractEventLoopPolicy:
    """Every test runs on both event loops."""
    return request.param()


def live_streams() -> int:
    gc.collect()
    return sum(isinstance(each, TcpStream) for each in gc.get_objects())


@pytest.fixture
def security(authority, tmp_path):
    """Certificates of one process, for both ends of a connection."""
    return certified(authority, tmp_path / "both")


def certified(authority: Authority, place: Path) -> Security:
    authority.issue(place, Subject(Role.BOOKIE, "b1", ("127.0.0.1",)), days=1)
    return open_security(str(place), serves=True)


# -- TLS --------------------------------------------------------------------------------------


async def test_the_server_knows_the_names_in_the_clients_certificate(security):
    async with served(security) as port:
        await port.works(security)
        assert CertificateName(NameKind.ADDRESS, "127.0.0.1") in port.streams[0].presented.certificate


async def test_a_client_without_tls_is_refused_by_a_port_with_tls(security):
    async with served(security) as port:
        with pytest.raises(PeerUnavailable):
            await TcpTransport(()).connect(port.address, KIND, timeout_seconds=10)
        await until(lambda: port.load.drops["greeting"] == 1)


async def test_a_client_with_tls_is_refused_by_a_port_without_tls(security):
    async with served() as port:
        with pytest.raises((PeerUnavailable, Unauthenticated)):
            await TcpTransport((), security=security).connect(port.address, KIND, timeout_seconds=10)


async def test_a_server_of_another_authority_is_not_trusted(security, tmp_path):
    other = Authority.create(tmp_path / "other")
    async with served(security) as port:
        with pytest.raises(Unauthenticated):
            await TcpTransport((), security=certified(other, tmp_path / "stranger")).connect(
                port.address, KIND, timeout_seconds=10
            )


async def test_a_client_without_a_certificate_is_dropped(security):
    context = ssl.create_default_context(cadata=security.identity.authorities.decode())
    async with served(security) as port:
        host, _, number = port.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(number), ssl=context)
        writer.write(frame(GREETING + KIND.encode()))
        assert await closed(reader) == b""
        assert port.load.drops["greeting"] == 1
        writer.close()


async def test_connections_that_do_not_finish_a_handshake_leave_nothing(security, monkeypatch):
    monkeypatch.setattr(listener_module, "GREETING_SECONDS", 0.05)
    async with served(security) as port:
        silent = [await port.raw() for _ in range(20)]
        for reader, writer in silent:
            assert await closed(reader) == b""
            writer.close()
        await until(lambda: live_streams() == 0, "their streams are gone")


# -- what is not the protocol -----------------------------------------------------------------


OTHER_PROTOCOLS = {
    **NOT_GRPC,
    "http2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "kind": frame(b"tallybook 1 other"),
    "long": frame(b"x" * 65),
}


@pytest.mark.parametrize("said", OTHER_PROTOCOLS.values(), ids=OTHER_PROTOCOLS)
async def test_a_peer_of_another_protocol_is_dropped_at_once(said):
    async with served() as port:
        reader, writer = await port.raw()
        writer.write(said)
        assert await closed(reader) == b""
        assert port.load.drops["greeting"] == 1
        writer.close()


async def test_a_connection_that_says_nothing_is_dropped_in_time(monkeypatch):
    monkeypatch.setattr(listener_module, "GREETING_SECONDS", 0.05)
    async with served() as port:
        reader, writer = await port.raw()
        assert await closed(reader) == b""
        assert port.load.drops["greeting"] == 1
        writer.close()


async def test_connections_without_a_greeting_make_way_and_streams_do_not():
    async with served(max_connections=8) as port:
        kept = await port.greeted()
        silent = [await port.raw() for _ in range(12)]
        await until(lambda: port.load.drops["bound"] == 5)
        await port.works()
        kept[1].write(frame(b"still there"))
        assert await kept[0].readexactly(4 + 11) == frame(b"still there")
        for _, writer in (kept, *silent):
            writer.close()


async def test_a_message_above_the_limit_breaks_the_stream():
    async with served() as port:
        reader, writer = await port.greeted()
        writer.write((MAX_MESSAGE_BYTES + 1).to_bytes(4, "little"))
        assert await closed(reader) == b""
        writer.close()


async def test_a_connection_that_closes_in_the_middle_of_a_message_breaks_the_stream():
    async with served() as port:
        _, writer = await port.greeted()
        writer.write(frame(b"x" * 100)[:50])
        writer.close()
        await until(lambda: port.streams)
        with pytest.raises(PeerUnavailable):
            await port.streams[0].send(await port.streams[0].receive() or b"")


async def test_a_stream_that_goes_on_after_its_end_is_broken():
    async with served() as port:
        reader, writer = await port.greeted()
        writer.write(encode_signal(Signal.END) + frame(b"more"))
        await closed(reader)
        with pytest.raises(PeerUnavailable):
            await port.streams[0].send(b"")
        writer.close()


async def test_a_flood_of_pings_is_answered_once_in_a_while():
    async with served() as port:
        reader, writer = await port.greeted()
        for _ in range(50):
            writer.write(encode_signal(Signal.PING) * 50_000)
            await writer.drain()
        writer.write(encode_signal(Signal.END))
        assert len(await closed(reader)) < 100_000
        writer.close()


async def test_connections_that_are_reset_at_once_are_no_errors():
    errors = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: errors.append(context))
    async with served() as port:
        host, _, number = port.address.rpartition(":")
        for _ in range(20):
            with socket.create_connection((host, int(number))) as connection:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await port.works()
    assert errors == []


# -- silence ----------------------------------------------------------------------------------


async def test_a_peer_that_answers_no_ping_is_given_up(monkeypatch):
    monkeypatch.setattr(stream_module, "BEAT_SECONDS", 0.02)
    async with served() as port:
        reader, writer = await port.greeted()
        pings = stream_module.BREAK_AFTER - stream_module.PING_AFTER
        assert await closed(reader) == encode_signal(Signal.PING) * pings
        writer.close()


async def test_an_idle_peer_that_answers_pings_keeps_its_stream(monkeypatch):
    monkeypatch.setattr(stream_module, "BEAT_SECONDS", 0.02)
    async with served() as port:
        reader, writer = await port.greeted()
        for _ in range(2 * stream_module.BREAK_AFTER):
            assert await reader.readexactly(4) == encode_signal(Signal.PING)
            writer.write(encode_signal(Signal.PONG))
        writer.write(frame(b"still there"))
        assert (await reader.readexactly(4 + 11)).endswith(b"still there")
        writer.close()
