"""HTTP requests in flight per principal, and where a process can be administered at all."""

import asyncio
import contextlib
import ssl
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tallybook.core.access import Permission, Role
from tallybook.runtime.http.endpoints import Endpoint, EndpointRequest, HttpApi
from tallybook.runtime.http.server import HttpServer
from tallybook.runtime.listening import is_loopback
from tallybook.runtime.metrics.registry import Metrics
from tallybook.runtime.security.authority import Subject
from tallybook.runtime.security.process_security import open_security

from .http_parts import DEADLINE_SECONDS, JSON, Answer, Served, TokenAccess, running, serving

LARGE_BYTES = 32 << 20
"""More than the buffers of any connection take."""
ONE = {"authorization": "Bearer one"}
READER = {"authorization": "Bearer reader"}


@asynccontextmanager
async def answering_late(began: asyncio.Event, go: asyncio.Event) -> AsyncIterator[Served]:
    """A server of which one endpoint waits, and one has much to say."""

    async def wait(asked: EndpointRequest) -> object:
        began.set()
        await go.wait()
        return {}

    async def much(asked: EndpointRequest) -> object:
        began.set()
        return {"much": "x" * LARGE_BYTES}

    more = [
        Endpoint("GET", "/api/v1/wait", Permission.READ, wait),
        Endpoint("GET", "/api/v1/much", Permission.READ, much),
    ]
    async with serving(TokenAccess(), more=more) as served:
        yield served


@asynccontextmanager
async def asking_for_much(served: Served, began: asyncio.Event) -> AsyncIterator[asyncio.StreamReader]:
    """A client that has sent a request and does not read the answer yet."""
    reader, writer = await asyncio.open_connection(*served.address.rsplit(":", 1), limit=1 << 12)
    writer.write(f"GET /api/v1/much HTTP/1.1\r\nhost: {served.address}\r\nauthorization: Bearer one\r\n\r\n".encode())
    try:
        await began.wait()
        yield reader
    finally:
        writer.transport.abort()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def served_again(served: Served) -> None:
    async with asyncio.timeout(DEADLINE_SECONDS):
        while (await served("GET", "/api/v1/things", **ONE)).status == 429:
            pass  # each look is a connection, and so a wait


def is_told_to_come_back(answer: Answer) -> bool:
    return answer.status == 429 and "retry-after: 1" in answer.head


async def test_a_principal_with_a_limit_has_so_many_requests_in_flight_and_others_are_served():
    began, go = asyncio.Event(), asyncio.Event()
    async with answering_late(began, go) as served, asyncio.timeout(DEADLINE_SECONDS):
        first = asyncio.create_task(served("GET", "/api/v1/wait", **ONE))
        await began.wait()
        refused = await served("GET", "/api/v1/things", **ONE)
        assert is_told_to_come_back(refused)
        assert (refused.json["error"]["type"], refused.json["error"]["retriable"]) == ("Busy", True)
        assert "one has 1 requests in flight" in refused.json["error"]["message"]
        assert is_told_to_come_back(await served("GET", "/metrics", **ONE))
        assert is_told_to_come_back(await served("POST", "/api/v1/things/a/go", **ONE, **JSON))
        assert not served.asked
        assert (await served("GET", "/api/v1/things", **READER)).status == 200
        assert (await served("GET", "/metrics", **READER)).status == 200
        assert (await served("GET", "/readyz")).status == 200
        go.set()
        assert (await first).status == 200
        await served_again(served)


async def test_a_request_is_in_flight_until_its_answer_was_taken():
    began, go = asyncio.Event(), asyncio.Event()
    async with answering_late(began, go) as served, asking_for_much(served, began) as reader:
        for _ in range(3):
            assert is_told_to_come_back(await served("GET", "/api/v1/things", **ONE))
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 ")
        body = await reader.readexactly(LARGE_BYTES + len('{"much":""}'))
        assert (body[:9], body.count(b"x"), body[-2:]) == (b'{"much":"', LARGE_BYTES, b'"}')
        await served_again(served)


async def test_a_client_that_disconnects_during_an_answer_has_nothing_in_flight():
    began, go = asyncio.Event(), asyncio.Event()
    async with answering_late(began, go) as served:
        async with asking_for_much(served, began):
            assert is_told_to_come_back(await served("GET", "/api/v1/things", **ONE))
        await served_again(served)


async def test_a_refused_request_is_not_in_flight():
    async with serving(TokenAccess()) as served:
        for _ in range(3):
            assert (await served("GET", "/api/v1/things?unknown=1", **ONE)).status == 400
            assert (await served("POST", "/api/v1/things/a/go", b"{", **ONE, **JSON)).status == 400
            assert (await served("GET", "/api/v1/things", **ONE)).status == 200


# --- where a process is administered ----------------------------------------------------------------------------------


async def test_without_security_a_process_off_loopback_is_not_administered_but_still_serves_reads(caplog):
    async with serving(listen="0.0.0.0:0") as served:
        for method, path in (("POST", "/api/v1/things/a/go"), ("DELETE", "/api/v1/things/a")):
            answer = await served(method, path, **JSON)
            assert answer.status == 403
            assert "without security a process can be administered only on loopback" in answer.json["error"]["message"]
        assert not served.asked
        assert (await served("GET", "/api/v1/things")).status == 200
        assert (await served("GET", "/metrics")).status == 200
        assert (await served("GET", "/healthz")).status == 200
    told = [record.tallybook_fields["method"] for record in caplog.records if record.name.endswith("audit")]
    assert told == ["HTTP POST /api/v1/things/{thing}/go", "HTTP DELETE /api/v1/things/{thing}"]


@pytest.mark.parametrize(
    "listen",
    [
        "127.0.0.1:0",
        "localhost:0",
        pytest.param("127.0.0.2:0", marks=pytest.mark.skipif(sys.platform == "darwin", reason="has no such address")),
    ],
)
async def test_on_loopback_every_caller_administers(listen):
    async with serving(listen=listen) as served:
        assert (await served("DELETE", "/api/v1/things/a", **JSON)).status == 200


async def test_with_security_an_authorized_caller_administers_a_process_from_any_address(authority, tmp_path):
    authority.issue(tmp_path / "server", Subject(Role.BOOKIE, "server", ("127.0.0.1",)), days=1)
    authority.issue(tmp_path / "admin", Subject(Role.ADMIN, "root"), days=1)

    async def done(asked: EndpointRequest) -> object:
        return {"by": asked.principal.name}

    offer = HttpApi([Endpoint("POST", "/go", Permission.ADMINISTER, done)])
    server = HttpServer(Metrics(), lambda: None, open_security(str(tmp_path / "server"), serves=True), offer)
    context = ssl.create_default_context(cafile=tmp_path / "admin/ca.crt")
    context.load_cert_chain(tmp_path / "admin/tls.crt", tmp_path / "admin/tls.key")
    head = "POST /go HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\nconnection: close\r\n\r\n"
    async with running(server, "0.0.0.0:0") as address, asyncio.timeout(DEADLINE_SECONDS):
        reader, writer = await asyncio.open_connection("127.0.0.1", address.rpartition(":")[2], ssl=context)
        writer.write(head.encode())
        assert (await reader.read()).startswith(b"HTTP/1.1 200 ")
        writer.close()


@pytest.mark.parametrize(
    ("host", "only_here"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("::", False),
     ("10.0.0.1", False), ("localhost.example", False), ("", False)],
)  # fmt: skip
def test_what_only_this_machine_reaches_is_reported_by_its_address(host, only_here):
    assert is_loopback(host) == only_here
