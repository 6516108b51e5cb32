"""Slow, silent or numerous HTTP connections with TLS, on the test loop and on that of processes."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import uvloop

from tallybook.core.access import Role
from tallybook.runtime.http import protocol as http_protocol
from tallybook.runtime.http import tls as http_tls
from tallybook.runtime.http.protocol import MAX_WAITING_PER_PEER
from tallybook.runtime.http.server import HttpServer
from tallybook.runtime.metrics.registry import Metrics
from tallybook.runtime.security.authority import Subject
from tallybook.runtime.security.process_security import open_security

from .http_parts import running

DEADLINE_SECONDS = 30
SOON_SECONDS = 1.5
"""The time limits of the port in these tests: long enough for a few hundred concurrent connections."""
BEYOND = 40

LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest.fixture(autouse=True)
def short(monkeypatch):
    """Times that a test can wait for."""
    monkeypatch.setattr(http_tls, "HANDSHAKE_SECONDS", SOON_SECONDS)
    monkeypatch.setattr(http_protocol, "HEAD_SECONDS", SOON_SECONDS)


class Port:
    """A server with TLS."""

    def __init__(self, address: str, trusted: Path) -> None:
        self.host, _, port = address.rpartition(":")
        self.port = int(port)
        self.context = ssl.create_default_context(cafile=trusted)

    async def opened(self, *, secured: bool) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(self.host, self.port, ssl=self.context if secured else None)

    async def serves(self) -> None:
        """A client with a complete handshake is answered."""
        reader, writer = await self.opened(secured=True)
        writer.write(f"GET /healthz HTTP/1.1\r\nhost: {self.host}\r\nconnection: close\r\n\r\n".encode())
        answer = await reader.read()
        writer.close()
        assert answer.startswith(b"HTTP/1.1 200 ")


@pytest.fixture(params=LOOPS)
def run_on(request, authority, tmp_path) -> Callable[[Callable[[Port], Awaitable[None]]], None]:
    """Try something with a port, which has to be well before and afterwards."""
    authority.issue(tmp_path / "server", Subject(Role.BOOKIE, "server", ("127.0.0.1",)), days=1)

    @asynccontextmanager
    async def serving() -> AsyncIterator[Port]:
        server = HttpServer(Metrics(), lambda: None, open_security(str(tmp_path / "server"), serves=True))
        async with running(server) as address:
            port = Port(address, tmp_path / "authority/ca.crt")
            await port.serves()
            yield port
            await port.serves()

    def run(tried: Callable[[Port], Awaitable[None]]) -> None:
        unhandled: list[str] = []

        async def work() -> None:
            async with asyncio.timeout(DEADLINE_SECONDS), serving() as port:
                await tried(port)

        with asyncio.Runner(loop_factory=LOOPS[request.param]) as runner:
            runner.get_loop().set_exception_handler(lambda _loop, context: unhandled.append(str(context)))
            runner.run(work())
        assert not unhandled

    return run


async def ended(reader: asyncio.StreamReader) -> None:
    with contextlib.suppress(ConnectionError):
        assert await reader.read() == b""


async def gone_at_once(readers: list[asyncio.StreamReader]) -> int:
    """The number of these connections that the server has dropped long before their time limit."""
    ends = [asyncio.ensure_future(ended(reader)) for reader in readers]
    done, waiting = await asyncio.wait(ends, timeout=SOON_SECONDS / 5)
    for end in waiting:
        end.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    return len(done)


def test_connections_that_begin_no_handshake_are_bounded_and_give_way_to_probes(run_on):
    async def silent(port: Port) -> None:
        held = [await port.opened(secured=False) for _ in range(MAX_WAITING_PER_PEER + BEYOND)]
        readers = [reader for reader, _ in held]
        await port.serves()
        assert await gone_at_once(readers) >= BEYOND
        await asyncio.gather(*map(ended, readers))
        for _, writer in held:
            writer.close()

    run_on(silent)


def test_a_handshake_that_comes_byte_by_byte_has_its_time(run_on):
    async def slow(port: Port) -> None:
        reader, writer = await port.opened(secured=False)
        end = asyncio.ensure_future(ended(reader))
        for byte in b"\x16\x03\x01\x02\x00" + b"\x01" * 500:
            if end.done():
                break
            writer.write(bytes([byte]))
            await asyncio.sleep(SOON_SECONDS / 50)
        assert end.done()
        await end
        writer.close()

    run_on(slow)


def test_connections_that_say_nothing_after_it_give_way_to_probes(run_on):
    async def silent(port: Port) -> None:
        first = await port.opened(secured=True)
        held = [await port.opened(secured=False) for _ in range(MAX_WAITING_PER_PEER)]
        assert await gone_at_once([first[0]]) == 1
        await port.serves()
        for _, each in [*held, first]:
            each.close()

    run_on(silent)


def test_what_is_no_tls_is_dropped(run_on):
    async def plain(port: Port) -> None:
        reader, writer = await port.opened(secured=False)
        writer.write(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            assert b"200" not in await reader.read()
        writer.close()

    run_on(plain)
