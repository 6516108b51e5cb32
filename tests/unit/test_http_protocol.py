"""Slow, silent or numerous HTTP connections, and bytes that are not HTTP, over real connections."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tallybook.core.access import Permission
from tallybook.runtime.http import protocol as http_protocol
from tallybook.runtime.http.endpoints import Endpoint, EndpointRequest, HttpApi
from tallybook.runtime.http.protocol import MAX_REQUESTS
from tallybook.runtime.http.server import HttpServer
from tallybook.runtime.metrics.registry import Metrics

from .http_parts import running

DEADLINE_SECONDS = 20
SOON_SECONDS = 0.2
"""The time limits of the protocol in these tests."""


@pytest.fixture(autouse=True)
def short(monkeypatch):
    """Times that a test can wait for."""
    monkeypatch.setattr(http_protocol, "HEAD_SECONDS", SOON_SECONDS)
    monkeypatch.setattr(http_protocol, "WHOLE_SECONDS", 2 * SOON_SECONDS)
    monkeypatch.setattr(http_protocol, "CLOSING_SECONDS", SOON_SECONDS)


@asynccontextmanager
async def serving(*more: Endpoint) -> AsyncIterator[str]:
    """The address of a server that has one large answer; it must be well in the end."""

    async def large(asked: EndpointRequest) -> object:
        return "x" * (16 << 20)

    async def slow(asked: EndpointRequest) -> object:
        await asyncio.sleep(1.2 * SOON_SECONDS)
        return "late, and in time"

    endpoints = [Endpoint("GET", f"/{call.__name__}", Permission.READ, call) for call in (large, slow)]
    endpoints += [Endpoint("POST", "/slow", Permission.READ, slow), *more]
    async with running(HttpServer(Metrics(), lambda: None, None, HttpApi(endpoints))) as address:
        yield address
        answer = await said(address, request(address, "/healthz"))
        assert answer.startswith(b"HTTP/1.1 200 "), answer


def request(address: str, path: str, method: str = "GET", more: str = "connection: close\r\n") -> bytes:
    return f"{method} {path} HTTP/1.1\r\nhost: {address}\r\n{more}\r\n".encode()


async def opened(address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection(*address.rsplit(":", 1))


async def rest(reader: asyncio.StreamReader) -> bytes:
    """Read until the server closes."""
    raw = b""
    async with asyncio.timeout(DEADLINE_SECONDS):
        with contextlib.suppress(ConnectionResetError):
            while piece := await reader.read(1 << 16):
                raw += piece
    return raw


async def said(address: str, sent: bytes) -> bytes:
    """Send these bytes, and read until the server closes."""
    reader, writer = await opened(address)
    writer.write(sent)
    try:
        return await rest(reader)
    finally:
        writer.close()


async def trickle(writer: asyncio.StreamWriter, piece: bytes) -> None:
    """Send a little again and again, so that the connection never is silent, until it ends."""
    with contextlib.suppress(ConnectionError):
        while not writer.is_closing():
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(SOON_SECONDS / 10)


async def rest_while_sending(address: str, first: bytes, then: bytes) -> bytes:
    reader, writer = await opened(address)
    writer.write(first)
    sending = asyncio.ensure_future(trickle(writer, then))
    try:
        return await rest(reader)
    finally:
        sending.cancel()
        writer.close()


def error_of(answer: bytes) -> dict[str, object]:
    assert b"\r\ncontent-type: application/json" in answer.lower()
    return json.loads(answer.rpartition(b"\r\n\r\n")[2])["error"]


async def test_a_head_that_comes_byte_by_byte_is_cut_off_however_busy_it_is():
    async with serving() as address:
        answer = await rest_while_sending(address, b"GET /healthz HTTP/1.1\r\nx-slow: ", b"z")
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert error_of(answer) | {"type": "RequestTimeout", "outcome": "not done"} == error_of(answer)


async def test_the_second_head_of_a_connection_has_no_more_time_than_the_first():
    async with serving() as address:
        answer = await rest_while_sending(address, request(address, "/healthz", more="") + b"GET /", b"z")
        assert answer.count(b"HTTP/1.1 ") == 2
        assert b"HTTP/1.1 408 " in answer


async def test_a_connection_that_says_nothing_is_closed_without_a_word():
    async with serving() as address:
        assert await said(address, b"") == b""


async def test_a_body_sent_byte_by_byte_is_cut_off_even_if_no_handler_reads_it():
    async with serving() as address:
        head = request(address, "/healthz", "POST", "content-length: 1000000000\r\n")
        assert (await rest_while_sending(address, head, b"z")).startswith(b"HTTP/1.1 405 ")


async def test_a_client_that_does_not_read_its_answer_is_cut_off():
    async with serving() as address:
        host, _, port = address.rpartition(":")
        with socket.socket() as silent:
            silent.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            silent.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(silent, (host, int(port)))
            await loop.sock_sendall(silent, request(address, "/large"))
            async with asyncio.timeout(DEADLINE_SECONDS):
                with contextlib.suppress(ConnectionError):
                    # Nothing is read: that it was cut off shows where something is sent.
                    while True:
                        silent.send(b"x")
                        await asyncio.sleep(SOON_SECONDS / 4)


async def test_an_answer_may_take_longer_than_a_head():
    async with serving() as address:
        assert b"late, and in time" in await said(address, request(address, "/slow"))


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x00\xf8\x01\x00\x00\xf4\x03\x03" + b"\x5a" * 200,
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"no http at all\r\n\r\n",
        b"GET / HTTP/1.1\r\nbad header\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: a\r\nx: a\rset-cookie: b\r\n\r\n",
        b"GET /" + b"a" * (1 << 20) + b" HTTP/1.1\r\nhost: a\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
    ],
    ids=["tls", "http2", "words", "header", "line_break", "large", "length", "lengths"],
)
async def test_what_is_no_http_is_refused_as_any_other_error_is(sent):
    async with serving() as address:
        answer = await said(address, sent)
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert set(error_of(answer)) == {"type", "message", "fault", "retriable", "outcome"}
        assert b"set-cookie" not in answer


async def test_a_chunk_that_lies_while_its_request_is_handled_gets_one_answer_at_most():
    async with serving() as address:
        more = "content-type: application/json\r\ntransfer-encoding: chunked\r\n"
        answer = await said(address, request(address, "/slow", "POST", more) + b"2\r\n{}\r\nnonsense\r\n")
        assert answer.count(b"HTTP/1.1 ") == 1
        assert answer.startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize("sent", [b"", b"GET /healthz HTTP/1.1\r\nx-half: "], ids=["idle", "half_sent"])
async def test_health_is_answered_however_many_connections_without_a_request_there_are(monkeypatch, sent):
    monkeypatch.setattr(http_protocol, "HEAD_SECONDS", DEADLINE_SECONDS)
    async with serving() as address:
        held = []
        for _ in range(http_protocol.MAX_CONNECTIONS + 50):
            held.append(await opened(address))
            held[-1][1].write(sent)
        for path in ("/healthz", "/readyz", "/slow"):
            assert (await said(address, request(address, path))).startswith(b"HTTP/1.1 200 ")
        oldest = held[: len(held) - http_protocol.MAX_WAITING_PER_PEER]
        assert await asyncio.gather(*(rest(reader) for reader, _ in oldest)) == [b""] * len(oldest)
        for _, writer in held:
            writer.close()


async def test_a_request_beyond_the_limit_is_refused_as_retriable_and_health_is_answered(monkeypatch):
    monkeypatch.setattr(http_protocol, "WHOLE_SECONDS", DEADLINE_SECONDS)
    begun, go = asyncio.Semaphore(0), asyncio.Event()

    async def wait(asked: EndpointRequest) -> object:
        begun.release()
        await go.wait()
        return "done"

    async with serving(Endpoint("GET", "/wait", Permission.READ, wait)) as address:
        waiting = [asyncio.ensure_future(said(address, request(address, "/wait"))) for _ in range(MAX_REQUESTS)]
        async with asyncio.timeout(DEADLINE_SECONDS):
            for _ in waiting:
                await begun.acquire()
        for path in ("/slow", "/metrics"):
            answer = await said(address, request(address, path))
            assert answer.startswith(b"HTTP/1.1 503 ")
            assert b"\r\nretry-after: 1\r\n" in answer.lower()
        for path in ("/healthz", "/readyz"):
            assert (await said(address, request(address, path))).startswith(b"HTTP/1.1 200 ")
        go.set()
        assert all(answer.startswith(b"HTTP/1.1 200 ") for answer in await asyncio.gather(*waiting))


async def test_idle_connections_do_not_end_a_request_that_was_let_in(monkeypatch):
    monkeypatch.setattr(http_protocol, "WHOLE_SECONDS", DEADLINE_SECONDS)
    begun, go = asyncio.Event(), asyncio.Event()

    async def wait(asked: EndpointRequest) -> object:
        begun.set()
        await go.wait()
        return "done"

    async with serving(Endpoint("GET", "/wait", Permission.READ, wait)) as address:
        waiting = asyncio.ensure_future(said(address, request(address, "/wait")))
        await begun.wait()
        held = [await opened(address) for _ in range(http_protocol.MAX_CONNECTIONS)]
        assert (await said(address, request(address, "/healthz"))).startswith(b"HTTP/1.1 200 ")
        go.set()
        assert (await waiting).startswith(b"HTTP/1.1 200 ")
        for _, writer in held:
            writer.close()
