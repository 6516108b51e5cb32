"""Processes of a cluster ask each other over HTTP directly, whatever the environment says of the way to others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tallybook.core.errors import BookieUnavailable, PeerError, ProtocolViolation
from tallybook.runtime.http import HttpServer
from tallybook.runtime.http_client import HttpClient
from tallybook.runtime.metrics import Metrics
from tallybook.runtime.metrics_text import fetch_metrics
from tallybook.runtime.tasks import Tasks

SOON_SECONDS = 5.0


@asynccontextmanager
async def asking() -> AsyncIterator[HttpClient]:
    client = HttpClient(None, SOON_SECONDS)
    try:
        yield client
    finally:
        await client.close()


@asynccontextmanager
async def answering(answer: bytes) -> AsyncIterator[tuple[str, list[bytes]]]:
    """The address of somebody who says this to everybody, and what he was asked."""
    asked: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readline())
        writer.write(answer)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}", asked


async def test_no_proxy_stands_between_processes(monkeypatch):
    tasks = Tasks("test", lambda name, error: pytest.fail(f"{name}: {error!r}"))
    server = HttpServer(Metrics(), lambda: None)
    await server.start("127.0.0.1:0", tasks)
    async with answering(b"HTTP/1.1 502 Bad Gateway\r\n\r\n") as (proxy, asked), asking() as client:
        for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
            monkeypatch.setenv(name, f"http://{proxy}")
        for name in ("no_proxy", "NO_PROXY"):
            monkeypatch.delenv(name, raising=False)
        port = int(server.address.rpartition(":")[2])
        assert "process_cpu_seconds_total" in await asyncio.to_thread(fetch_metrics, port)
        assert "process_cpu_seconds_total" in await client.fetch(server.address, "/metrics")
        assert asked == []
    await server.close()
    await tasks.close()


async def test_nobody_is_sent_elsewhere():
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
async def test_who_does_not_answer_is_named(answer):
    async with answering(answer) as (address, _), asking() as client:
        with pytest.raises(BookieUnavailable, match=address):
            await client.fetch(address, "/metrics")
