"""Counters of an HTTP port: by route and status, never by the text of a path."""

from __future__ import annotations

import asyncio
import ssl

from tallybook.core.access import Permission, Role
from tallybook.core.errors import NoSuchLedger
from tallybook.runtime.http import protocol as http_protocol
from tallybook.runtime.http import server as http
from tallybook.runtime.http.endpoints import Endpoint, EndpointRequest
from tallybook.runtime.http.load import HTTP_METRICS, READS, HttpLoad
from tallybook.runtime.http.scrape import parse_series
from tallybook.runtime.http.server import HttpServer
from tallybook.runtime.metrics.registry import Metrics
from tallybook.runtime.security.authority import Subject
from tallybook.runtime.security.process_security import open_security
from tallybook.sim.deterministic import SimClock

from .http_parts import DEADLINE_SECONDS, JSON, Served, TokenAccess, running, serving

REQUESTS = "tallybook_http_requests_total"
ANSWERS = "tallybook_http_answers_total"
DROPPED = "tallybook_http_connections_dropped_total"


async def counted(served: Served, name: str, wanted: float, **label: str) -> None:
    """Wait until a number is what it should be: a client has its answer before the server knows that it has."""
    async with asyncio.timeout(DEADLINE_SECONDS):
        while served.number(name, **label) != wanted:  # noqa: ASYNC110 (the server sets no event)
            await asyncio.sleep(0)


async def test_requests_are_counted_by_what_they_are_for_and_answers_by_their_status():
    async with serving(gone=NoSuchLedger("ledger 5")) as served:
        for method, path, headers, route, status in (
            ("GET", "/healthz", {}, "health", "2xx"),
            ("HEAD", "/metrics", {}, "metrics", "2xx"),
            ("GET", "/", {}, "pages", "2xx"),
            ("POST", "/", {}, "pages", "4xx"),
            ("GET", "/api/v1/things/a", {}, "reads", "2xx"),
            ("GET", "/api/v1/fails/gone", {}, "reads", "4xx"),
            ("DELETE", "/api/v1/things/a", JSON, "changes", "2xx"),
            ("DELETE", "/api/v1/things/a", {}, "changes", "4xx"),
            ("GET", "/api/v1/nothing", {}, "none", "4xx"),
            ("PUT", "/api/v1/things/a", {}, "none", "4xx"),
            ("GET", "/api/v1/things/a", {"host": "evil.example"}, "none", "4xx"),
        ):
            requests, answers = served.number(REQUESTS, route=route), served.number(ANSWERS, status=status)
            await served(method, path, **headers)
            await counted(served, REQUESTS, requests + 1, route=route)
            assert served.number(ANSWERS, status=status) == answers + 1
            assert served.number("tallybook_http_requests_under_way") == 0
        timed = sum(served.number("tallybook_http_request_seconds_count", route=route) for route in ("reads", "none"))
        assert timed == 5


async def test_a_scanner_makes_no_series():
    async with serving() as served:
        before = len(list(parse_series(served.metrics.text().decode())))
        for at in range(50):
            await served("GET", f"/{at}/.env")
            await served("GET", f"/api/v1/things/{at}")
            await served(f"M{at}", "/healthz")
        for route in ("reads", "health", "none"):
            await counted(served, REQUESTS, 50, route=route)
        assert len(list(parse_series(served.metrics.text().decode()))) == before


async def test_what_never_became_a_request_is_counted_with_its_answer(monkeypatch):
    monkeypatch.setattr(http_protocol, "HEAD_SECONDS", 0.1)
    async with serving() as served:
        assert (await served.raw(b"no http at all\r\n\r\n")).status == 400
        assert (await served.raw(b"GET /healthz HTTP/1.1\r\n")).status == 408
        assert (await served.raw(b"")).raw == b""
        assert served.number(REQUESTS, route="none") == served.number(ANSWERS, status="4xx") == 2
        assert served.number(DROPPED, why="time") == 1


async def test_a_request_that_turns_out_to_be_damaged_is_counted_once():
    async with serving() as served:
        head = b"POST /api/v1/things/a/go HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        assert (await served.raw(head + b"transfer-encoding: chunked\r\n\r\nno length\r\n")).status == 400
        await counted(served, REQUESTS, 1, route="changes")
        assert served.number(REQUESTS, route="none") == 0
        assert served.number(ANSWERS, status="4xx") == 1


async def test_what_is_under_way_is_told_while_it_is():
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def wait(asked: EndpointRequest) -> object:
        begun.set()
        await go_on.wait()
        return {}

    async with serving(more=[Endpoint("GET", "/wait", Permission.READ, wait)]) as served:
        asking = asyncio.ensure_future(served("GET", "/wait"))
        await begun.wait()
        assert served.number("tallybook_http_requests_under_way") == 1
        assert served.number("tallybook_http_connections") == 1
        go_on.set()
        await asking
        await counted(served, "tallybook_http_requests_under_way", 0)
        await counted(served, "tallybook_http_connections", 0)


async def test_a_connection_that_goes_on_with_an_earlier_session_is_reported_as_dropped(monkeypatch):
    # OpenSSL keeps no session of ours that a client could go on with, so it is only said that this one is.
    monkeypatch.setattr(http_protocol, "is_resumed", lambda transport: True)
    async with serving() as served:
        assert (await served("GET", "/healthz")).raw == b""
        assert served.number(DROPPED, why="resumed") == 1


async def test_connections_are_counted_and_those_that_are_too_many_are_also_logged(caplog):
    async with serving() as served:
        most = http_protocol.MAX_WAITING_PER_PEER
        held = [await asyncio.open_connection(*served.address.rsplit(":", 1)) for _ in range(most + 3)]
        await counted(served, DROPPED, 3, why="peer")
        await counted(served, "tallybook_http_connections", most)
        assert served.number("tallybook_http_max_connections") == http_protocol.MAX_CONNECTIONS
        told = [record.tallybook_fields for record in caplog.records if record.name.endswith("connections")]
        assert told == [{"what": "http", "peer": "127.0.0.1"}], "a line a minute"
        for _, writer in held:
            writer.close()


async def test_the_library_logs_no_lines_of_its_own_about_start_and_end(caplog):
    caplog.set_level("INFO")
    async with serving() as served:
        assert (await served("GET", "/healthz")).raw
    assert not [record.getMessage() for record in caplog.records if record.name.startswith("uvicorn")]


async def test_with_tls_connections_count_from_the_first_and_handshakes_that_fail_are_reported(
    authority, tmp_path, monkeypatch
):
    monkeypatch.setattr(http, "MAX_WAITING_PER_PEER", 2)
    authority.issue(tmp_path / "server", Subject(Role.BOOKIE, "server", ("127.0.0.1",)), days=1)
    metrics = Metrics()
    server = HttpServer(metrics, lambda: None, open_security(str(tmp_path / "server"), serves=True))
    async with running(server) as address:
        served = Served(address, metrics=metrics)
        host, port = address.rsplit(":", 1)
        assert (await served.raw(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")).raw[:8] != b"HTTP/1.1"
        await counted(served, DROPPED, 1, why="handshake")
        held = [await asyncio.open_connection(host, port) for _ in range(3)]
        await counted(served, DROPPED, 1, why="peer")
        await counted(served, "tallybook_http_connections", 2)
        for _, writer in held:
            writer.close()
        await counted(served, "tallybook_http_connections", 0)
        assert served.number(DROPPED, why="handshake") == 3, "two gave up in the middle of it"
        context = ssl.create_default_context(cafile=tmp_path / "authority/ca.crt")
        _, writer = await asyncio.open_connection(host, port, ssl=context)
        writer.close()
        await counted(served, "tallybook_http_connections", 0)
        assert served.number(DROPPED, why="handshake") == 3


async def test_guesses_of_tokens_are_counted_by_what_they_are_refused_with():
    async with serving(TokenAccess()) as served:
        for at in range(60):
            assert (await served("GET", "/api/v1/things", authorization=f"Bearer {at}")).status == 403
        assert (await served("GET", "/metrics")).status == 401
        assert (await served("GET", "/api/v1/things", authorization="Bearer reader")).status == 200
        assert served.number("tallybook_http_refusals_total", error="AccessDenied") == 60
        assert served.number("tallybook_http_refusals_total", error="Unauthenticated") == 1
        assert served.number("tallybook_grpc_refusals_total", error="AccessDenied") == 0


def test_a_request_is_timed_until_it_is_over_and_a_strange_status_makes_no_series():
    class Time(SimClock):
        now = 0.0

        def monotonic(self) -> float:
            return self.now

    clock = Time()
    load = HttpLoad(clock, 5)
    with load.request() as request:
        request.route = READS
        clock.now = 3.0
        load.answered(999)
    readings = HTTP_METRICS.readings(load)
    assert readings["seconds_reads"].sum == 3.0  # type: ignore[union-attr]
    assert set(readings) == {info.stat for info in HTTP_METRICS.catalog}
