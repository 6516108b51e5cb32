"""The HTTP client between processes of a cluster connects directly, without proxies of the environment."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tallybook.core.errors import PeerError, PeerUnavailable, ProtocolViolation
from tallybook.runtime.http.client import HttpClient, fetch_text
from tallybook.runtime.http.scrape import fetch_metrics
from tallybook.runtime.http.server import HttpServer
from tallybook.runtime.metrics.registry import Metrics

from .http_parts import running

SOON_SECONDS = 5.0


@asynccontextmanager
async def asking(seconds: float = SOON_SECONDS) -> AsyncIterator[HttpClient]:
    client = HttpClient(None, seconds)
    try:
        yield client
    finally:
        await client.close()


@asynccontextmanager
async def answering(answer: bytes) -> AsyncIterator[tuple[str, list[bytes]]]:
    """The address of a server that sends these bytes to each client, and the requests that it got."""
    asked: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readline())
        writer.write(answer)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}", asked


async def test_no_proxy_stands_between_processes(monkeypatch):
    refuses = answering(b"HTTP/1.1 502 Bad Gateway\r\n\r\n")
    async with (
        running(HttpServer(Metrics(), lambda: None)) as server,
        refuses as (proxy, asked),
        asking() as client,
    ):
        for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
            monkeypatch.setenv(name, f"http://{proxy}")
        for name in ("no_proxy", "NO_PROXY"):
            monkeypatch.delenv(name, raising=False)
        port = int(server.rpartition(":")[2])
        assert "process_cpu_seconds_total" in await asyncio.to_thread(fetch_metrics, port)
        assert "process_cpu_seconds_total" in await client.fetch(server, "/metrics")
        assert asked == []


async def test_no_redirect_is_followed():
    async with answering(b"HTTP/1.1 200 OK\r\n\r\nfake 1\n") as (elsewhere, asked):
        moved = f"HTTP/1.1 302 Found\r\nlocation: http://{elsewhere}/metrics\r\n\r\n".encode()
        async with answering(moved) as (address, _), asking() as client:
            with pytest.raises(ProtocolViolation, match="302"):
                await client.fetch(address, "/metrics")
            with pytest.raises(PeerError):
                await asyncio.to_thread(fetch_metrics, int(address.rpartition(":")[2]))
        assert asked == []


SHORT = b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nshort"


@pytest.mark.parametrize("answer", [b"", b"no http at all\r\n\r\n", SHORT])
async def test_processes_that_do_not_respond_are_named(answer):
    async with answering(answer) as (address, _), asking() as client:
        with pytest.raises(PeerUnavailable, match=address):
            await client.fetch(address, "/metrics")


@asynccontextmanager
async def dripping(start: bytes) -> AsyncIterator[str]:
    """The address of a server that sends these bytes, and then single bytes without end."""
    over = asyncio.Event()
    serving: set[asyncio.Task[None]] = set()

    async def serve(writer: asyncio.StreamWriter) -> None:
        writer.write(start)
        while not over.is_set() and not writer.is_closing():
            writer.write(b"a")
            await asyncio.sleep(0.1)
        writer.close()

    def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.add(asyncio.ensure_future(serve(writer)))

    async with await asyncio.start_server(begin, "127.0.0.1", 0) as server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        over.set()
        await asyncio.gather(*serving)


HEAD = b"HTTP/1.1 200 OK\r\nx-long: "
BODY = b"HTTP/1.1 200 OK\r\ncontent-length: 9999\r\n\r\n"


@pytest.mark.parametrize("start", [b"", HEAD, BODY])
async def test_a_server_that_answers_a_byte_at_a_time_is_given_up_at_the_deadline(start):
    async with dripping(start) as address:
        began = time.monotonic()
        async with asking(0.5) as client, asyncio.timeout(SOON_SECONDS):
            with pytest.raises(PeerUnavailable, match=address):
                await client.fetch(address, "/metrics")
        assert time.monotonic() - began < SOON_SECONDS


async def test_a_handshake_that_comes_a_byte_at_a_time_is_given_up_at_the_deadline():
    # The head of a record of TLS, of which the rest never comes to an end.
    async with dripping(b"\x16\x03\x03\x3f\xff") as address, asyncio.timeout(SOON_SECONDS):
        with pytest.raises(PeerUnavailable, match=address):
            await asyncio.to_thread(fetch_text, address, "/metrics", 0.5, ssl.create_default_context())


async def test_a_client_whose_fetch_was_given_up_closes_soon():
    async with dripping(HEAD) as address:
        client = HttpClient(None, 0.5)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await client.fetch(address, "/metrics")
        async with asyncio.timeout(SOON_SECONDS):
            await client.close()


ODD = ["", "host", "a b:80", "a\nb:80", "127.0.0.1:http", "127.0.0.1:99999", "127.0.0.1:-1", ":80", f"{'x' * 70}.de:80"]


@pytest.mark.parametrize("address", ODD)
async def test_an_address_that_is_none_is_a_peer_that_does_not_answer(address):
    async with asking() as client:
        with pytest.raises(PeerUnavailable):
            await client.fetch(address, "/metrics")
