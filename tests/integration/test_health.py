"""``tallybook health``: of a process that serves, that does not serve yet, that is gone, or that is another one."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tallybook.core.access import Role
from tallybook.runtime.http.server import HttpServer
from tallybook.runtime.metrics.registry import Metrics
from tallybook.runtime.security.authority import Authority, Subject
from tallybook.runtime.security.process_security import open_security
from tallybook.runtime.tasks import Tasks

from .conftest import Result


@asynccontextmanager
async def process(*reasons: str, security: str = "", at_last: bool = False) -> AsyncIterator[str]:
    """Something with an HTTP port; its address. The reasons are given one after the other, the last for ever.

    Args:
        at_last: it serves, once it has given all of them.
    """
    waiting = list(reasons)

    def reason() -> str | None:
        if at_last or len(waiting) > 1:
            return waiting.pop(0) if waiting else None
        return waiting[0] if waiting else None

    tasks = Tasks("test", lambda name, error: pytest.fail(f"{name} died: {error!r}"))
    server = HttpServer(Metrics(), reason, open_security(security, serves=True))
    await server.start("127.0.0.1:0", tasks)
    try:
        yield server.address
    finally:
        await server.close()
        await tasks.close()


@pytest.fixture
def health(cli) -> Callable[..., Any]:
    """Check the health in a thread: the server runs on this event loop."""

    async def ask(address: str, *words: str, **more: str) -> Result:
        return await asyncio.to_thread(cli.run, "health", *words, TALLYBOOK_HTTP_LISTEN=address, **more)

    return ask


def issued(authority: Authority, place: Path, host: str) -> str:
    """A security directory of a server that is reached as ``host``."""
    authority.issue(place, Subject(Role.BOOKIE, place.name, (host,)), days=1)
    return str(place)


async def test_what_serves_is_healthy_and_what_does_not_yet_says_why(health):
    async with process() as address:
        found = await health(address, "--json")
        assert found.code == 0
        assert found.json == {"ready": True, "reason": "ok"}
    async with process("the journal is replayed") as address:
        found = await health(address, "--json")
        assert found.code == 1
        assert found.json == {"ready": False, "reason": "the journal is replayed"}
    found = await health(address)
    assert found.code == 1
    assert address.encode() in found.out


async def test_what_has_just_been_started_is_asked_until_it_serves_and_no_longer_than_said(health):
    async with process("it is loaded", "the journal is replayed", at_last=True) as address:
        assert (await health(address, "--wait", "60", "--json")).json == {"ready": True, "reason": "ok"}
    gone = await health(address, "--wait", "0.3")
    assert gone.code == 1
    async with process("the journal is replayed") as address:
        found = await health(address, "--wait", "0.3", "--json")
        assert found.code == 1
        assert found.json == {"ready": False, "reason": "the journal is replayed"}


async def test_a_process_that_listens_everywhere_is_asked_at_localhost(health):
    async with process() as address:
        port = address.rpartition(":")[2]
        for everywhere in (f"0.0.0.0:{port}", f"[::]:{port}", f":{port}"):
            assert (await health(everywhere)).code == 0


async def test_with_security_only_the_host_that_is_meant_is_healthy(authority, health, tmp_path):
    here, there = issued(authority, tmp_path / "here", "localhost"), issued(authority, tmp_path / "there", "bookie-1")
    stranger = issued(Authority.create(tmp_path / "strangers"), tmp_path / "stranger", "localhost")
    async with process(security=here) as address:
        port = address.rpartition(":")[2]
        assert (await health(f"0.0.0.0:{port}", TALLYBOOK_SECURITY=here)).code == 0
        assert (await health(f"0.0.0.0:{port}", TALLYBOOK_SECURITY=there)).code == 0
        # By another name, of another authority, in plain text, and without a directory.
        assert b"certificate" in (await health(address, TALLYBOOK_SECURITY=here)).out
        assert b"certificate" in (await health(f"0.0.0.0:{port}", TALLYBOOK_SECURITY=stranger)).out
        assert (await health(f"0.0.0.0:{port}")).code == 1
        assert (await health(f"0.0.0.0:{port}", TALLYBOOK_SECURITY=str(tmp_path / "nowhere"))).code == 1
    async with process(security=there) as address:
        port = address.rpartition(":")[2]
        assert (await health(f"0.0.0.0:{port}", TALLYBOOK_SECURITY=here)).code == 1


async def test_a_server_that_accepts_and_sends_nothing_is_not_healthy(health):
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    async with server:
        found = await health(f"{host}:{port}", "--timeout", "0.2", "--json")
    assert found.code == 1
    assert "timed out" in json.loads(found.out)["reason"]


async def test_a_server_of_another_protocol_is_not_healthy(health):
    async def strange(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail.example.org ESMTP\r\n")
        await reader.read()
        writer.close()

    server = await asyncio.start_server(strange, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    async with server:
        assert (await health(f"{host}:{port}")).code == 1


@pytest.mark.parametrize("address", ["", "localhost", "localhost:0", "localhost:99999", "localhost:http"])
async def test_what_is_no_address_is_a_mistake_of_the_caller(health, address):
    assert (await health(address)).code == 2
