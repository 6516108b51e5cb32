"""Invalid HTTP/2 on the ports of bookies and gateways, also under TLS: other clients are still served."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import ssl
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tallybook.core.access import Role
from tallybook.core.limits import MIB
from tallybook.runtime.calls import Call
from tallybook.runtime.grpc import call_server as grpc_calls
from tallybook.runtime.grpc import options as grpc_options
from tallybook.runtime.grpc import stream_server as grpc_server
from tallybook.runtime.grpc.call_server import bound_calls
from tallybook.runtime.security.authority import Subject
from tallybook.runtime.security.process_security import open_security
from tallybook.wire.bookie_transport import bookie_transport

from .grpc_port import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    HEADERS,
    NOT_GRPC,
    PREFACE,
    SETTINGS,
    attacking,
    flood_of_pings,
    frame,
    header_block,
    message,
    one_ping_too_many,
    peak_bytes,
    rapid_reset,
    until_closed,
)

DEADLINE_SECONDS = 20
SILENCE_SECONDS = 0.2
PLACES = 16
SERVICE = "tallybook.v1.StreamService"
DOORS = ("bookie", "bookie with TLS", "gateway", "gateway with TLS")


class Door:
    """A port, and how one comes through it."""

    def __init__(self, address: str, method: str, authority: bytes, client: Path | None) -> None:
        self.address = address
        self.method = method
        self._authority = authority
        self._client = client

    async def raw(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A TCP connection on which nothing was said yet."""
        return await self._opened(None)

    async def spoken(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection after the handshake of TLS, where there is one."""
        return await self._opened(self._context())

    async def http2(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """One that has begun to speak HTTP/2."""
        reader, writer = await self.spoken()
        writer.write(PREFACE + frame(SETTINGS, 0, 0))
        return reader, writer

    async def works(self) -> None:
        """A well-behaved client comes, is answered and leaves."""
        async with asyncio.timeout(DEADLINE_SECONDS), self._channel() as channel:
            health = health_pb2_grpc.HealthStub(channel)
            assert (await health.Check(health_pb2.HealthCheckRequest())).status == 1

    async def _opened(self, context: ssl.SSLContext | None) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        host, _, port = self.address.rpartition(":")
        return await asyncio.open_connection(host, int(port), ssl=context)

    def _context(self) -> ssl.SSLContext | None:
        if not self._authority:
            return None
        context = ssl.create_default_context(cadata=self._authority.decode())
        context.set_alpn_protocols(["h2"])
        if self._client is not None:
            context.load_cert_chain(self._client / "tls.crt", self._client / "tls.key")
        return context

    def _channel(self) -> grpc.aio.Channel:
        alone = (("grpc.use_local_subchannel_pool", 1),)
        if not self._authority:
            return grpc.aio.insecure_channel(self.address, options=alone)
        own = [None, None]
        if self._client is not None:
            own = [(self._client / name).read_bytes() for name in ("tls.key", "tls.crt")]
        return grpc.aio.secure_channel(self.address, grpc.ssl_channel_credentials(self._authority, *own), options=alone)


@pytest.fixture(params=DOORS)
def door(request, authority, tmp_path) -> Callable[[], Any]:
    """``async with door() as port``: one after the other, each well before and after."""

    @asynccontextmanager
    async def opened() -> AsyncIterator[Door]:
        security, trusted, client = None, b"", None
        if request.param.endswith("with TLS"):
            authority.issue(tmp_path / "server", Subject(Role.BOOKIE, "server", ("127.0.0.1",)), days=1)
            security = open_security(str(tmp_path / "server"), serves=True)
            trusted = (tmp_path / "server/ca.crt").read_bytes()
        method = f"/{SERVICE}/Append"
        if request.param.startswith("bookie"):
            method = "/tallybook.v1.Bookie/Add"
            if security is not None:
                client = tmp_path / "app"
                authority.issue(client, Subject(Role.WRITER, "app"), days=1)
            transport = bookie_transport(max_streams=4096, max_connections=PLACES, security=security)
            listener: Any = await transport.listen("127.0.0.1:0", served)
            address = listener.address
        else:
            token_address = "127.0.0.1:0" if security else ""
            listener = bound_calls(
                "127.0.0.1:0", max_calls=512, max_connections=PLACES, max_connection_calls=64, security=security,
                token_address=token_address,
            )  # fmt: skip
            await listener.serve({SERVICE: {"Append": called}})
            address = listener.token_address or listener.address
        port = Door(address, method, trusted, client)
        try:
            await port.works()
            yield port
            await port.works()
        finally:
            await listener.close(0)

    return opened


async def served(lane: Any, stream: Any) -> None:
    """A handler that reads messages of a bookie, and answers none."""
    while await stream.receive() is not None:
        pass


async def called(call: Call) -> None:
    """A handler that reads messages of a call, and answers none."""
    while await call.receive() is not None:
        pass


def begin(port: Door, stream_id: int = 1, **extra: str) -> bytes:
    return frame(HEADERS, END_HEADERS, stream_id, header_block(port.method, **extra))


async def ended(reader: asyncio.StreamReader, silence: float = SILENCE_SECONDS) -> bytes:
    """Read until the server closes the connection, or has sent nothing for a moment."""
    said = b""
    with contextlib.suppress(TimeoutError, ConnectionError, ssl.SSLError):
        while piece := await asyncio.wait_for(reader.read(65536), silence):
            said += piece
    return said


async def test_bytes_that_are_not_grpc_harm_no_other_client(door):
    async with door() as port:
        for said in NOT_GRPC.values():
            for opened in (port.raw, port.spoken):
                reader, writer = await opened()
                writer.write(said)
                await ended(reader, 0.05)
                writer.close()
        await port.works()


def sooner(options: tuple[tuple[str, int | str], ...], soon: tuple[str, int]) -> tuple[tuple[str, int | str], ...]:
    """The options with one of them, which is there, set to another value."""
    assert 0 < dict(options)[soon[0]] <= 10_000
    return (*(option for option in options if option[0] != soon[0]), soon)


async def drip(writer: asyncio.StreamWriter, said: bytes) -> bool:
    """Say it byte by byte, for longer than there is time; whether all of it could be said."""
    try:
        for byte in said:
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(0.25)
    except (ConnectionError, ssl.SSLError):
        return False
    return True


async def test_a_client_that_completes_no_request_is_disconnected_in_time_and_frees_its_connection(door, monkeypatch):
    soon = ("grpc.server_handshake_timeout_ms", 500)
    bookie, gateway = grpc_options.SERVER_OPTIONS, grpc_options.call_server_options
    monkeypatch.setattr(grpc_server, "SERVER_OPTIONS", sooner(bookie, soon))
    monkeypatch.setattr(grpc_calls, "call_server_options", lambda **limits: sooner(gateway(**limits), soon))
    async with door() as port, asyncio.timeout(DEADLINE_SECONDS):
        slow = [await port.raw() for _ in range(PLACES // 2)]
        for _ in range(PLACES // 2 - 1):
            # A gateway may have dropped it by then: more of one address wait than there may be.
            with suppress(ConnectionError):
                slow.append(await port.spoken())
        for at, (_, writer) in enumerate(slow):
            writer.write(PREFACE[: at % 10])
        dripping = [asyncio.ensure_future(drip(writer, PREFACE[at % 10 :])) for at, (_, writer) in enumerate(slow[::2])]
        await asyncio.gather(*(until_closed(reader) for reader, _ in slow))
        assert not any(task.done() and task.result() for task in dripping), "it was cut although it went on"
        for task in dripping:
            task.cancel()
        await asyncio.gather(*dripping, return_exceptions=True)
        for _, writer in slow:
            writer.close()


async def test_a_half_closed_connection_does_not_count_against_the_limit(door):
    async with door() as port, asyncio.timeout(DEADLINE_SECONDS):
        for first in (b"", PREFACE[:10], PREFACE + frame(SETTINGS, 0, 0)):
            reader, writer = await port.raw()
            writer.write(first)
            writer.write_eof()
            await until_closed(reader)
            writer.close()


async def test_connections_beyond_the_limit_are_dropped_and_places_come_free(door):
    async with door() as port, asyncio.timeout(DEADLINE_SECONDS):
        silent = [await port.raw() for _ in range(10 * PLACES)]
        ends = [asyncio.ensure_future(until_closed(reader)) for reader, _ in silent]
        while sum(end.done() for end in ends) < 9 * PLACES:
            await asyncio.wait([end for end in ends if not end.done()], return_when=asyncio.FIRST_COMPLETED)
        for _, writer in silent:
            writer.close()
        await asyncio.gather(*ends)
        while True:
            with contextlib.suppress(grpc.aio.AioRpcError):
                return await port.works()


class ToldToComeAgain(Exception):
    """A call that was not served, and may be retried."""


async def works_or_retries(port: Door, *codes: grpc.StatusCode) -> None:
    """``Door.works``.

    Raises:
        ToldToComeAgain: the call ended with one of the codes.
    """
    try:
        await port.works()
    except grpc.aio.AioRpcError as error:
        if error.code() in codes:
            raise ToldToComeAgain from None
        raise


async def test_a_client_that_retries_is_served_while_others_reset_calls_as_fast_as_they_begin(door):
    async with door() as port, asyncio.timeout(DEADLINE_SECONDS):

        async def attack() -> None:
            await rapid_reset(*await port.http2(), partial(begin, port))

        works = partial(works_or_retries, port, grpc.StatusCode.CANCELLED, grpc.StatusCode.UNAVAILABLE)
        async with attacking(attack) as resets:
            await resets.goes_on(works, rounds=5, refusals=(ToldToComeAgain,))
        await resets.goes_on(works, rounds=0, refusals=(ToldToComeAgain,))


async def test_a_thousand_calls_on_one_connection_leave_space_for_others(door):
    async with door() as port:
        reader, writer = await port.http2()
        for stream_id in range(1, 2_001, 2):
            writer.write(begin(port, stream_id))
        await ended(reader)
        await port.works()
        writer.close()


async def test_more_pings_than_may_be_end_the_connection_with_the_reason(door):
    async with door() as port, asyncio.timeout(DEADLINE_SECONDS):
        assert b"too_many_pings" in await one_ping_too_many(*await port.http2())


async def test_a_flood_of_pings_is_cut_and_others_are_served_meanwhile(door):
    async with door() as port, asyncio.timeout(DEADLINE_SECONDS):

        async def attack() -> None:
            await flood_of_pings(*await port.http2())

        async with attacking(attack) as flood:
            # A busy machine may need longer than the server waits for a call's message.
            works = partial(works_or_retries, port, grpc.StatusCode.DEADLINE_EXCEEDED)
            await flood.goes_on(works, refusals=(ToldToComeAgain,))


async def test_headers_that_never_end_are_cut(door):
    async with door() as port:
        reader, writer = await port.http2()
        before = peak_bytes(reset=True)
        writer.write(frame(HEADERS, 0, 1, header_block(port.method)))
        piece = frame(CONTINUATION, 0, 1, b"\0\x05x-big\x7f\x00" + b"v" * 127)
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            for _ in range(1000):
                writer.write(piece * 100)
                await writer.drain()
        await ended(reader)
        assert peak_bytes() - before < 40 * MIB
        writer.close()


async def test_a_compressed_bomb_is_not_unpacked(door):
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    bomb = b"".join(packer.compress(bytes(MIB)) for _ in range(60)) + packer.flush()
    async with door() as port:
        reader, writer = await port.http2()
        before = peak_bytes(reset=True)
        writer.write(begin(port, grpc_encoding="gzip") + message(gzip.compress(b"x"), compressed=1))
        writer.write(message(bomb[:10_000], compressed=1, announced=len(bomb)))
        for start in range(10_000, len(bomb), 10_000):
            writer.write(frame(DATA, 0, 1, bomb[start : start + 10_000]))
        assert b"grpc-status\x018" in await ended(reader, 1)  # 8: RESOURCE_EXHAUSTED
        assert peak_bytes() - before < 40 * MIB
        writer.close()
