"""The guard of HTTP endpoints, over real connections: invalid requests, and unauthorized callers."""

import asyncio
import contextlib
import socket

import pytest

from tallybook.core.access import Permission
from tallybook.core.errors import (
    AccessDenied,
    Busy,
    InvariantViolation,
    LedgerFenced,
    MetadataOutcomeUnknown,
    NoSuchLedger,
    Unauthorized,
)
from tallybook.runtime.http import guard as http_guard
from tallybook.runtime.http.endpoints import Endpoint, EndpointRequest

from .http_parts import DEADLINE_SECONDS, JSON, Answer, TokenAccess, serving

# --- authorization ----------------------------------------------------------------------------------------------------


async def test_a_wrong_password_is_in_the_audit_log_and_what_is_denied_to_the_process_itself_is_not(caplog):
    errors = {"password": Unauthorized("the password does not fit"), "own": AccessDenied("bookies refuse this process")}
    async with serving(TokenAccess(), **errors) as served:
        for how in ("password", "password", "own"):
            answer = await served("POST", f"/api/v1/fails/{how}", b"{}", authorization="Bearer admin", **JSON)
            assert answer.json["error"]["type"] == type(errors[how]).__name__
    told = [record.tallybook_fields for record in caplog.records if record.getMessage() == "refused"]
    assert [(line["principal"], line["method"], line["error"]) for line in told] == [
        ("admin", "HTTP POST /api/v1/fails/{how}", "the password does not fit")
    ]


CALLS = [
    ("GET", "/api/v1/things"),
    ("GET", "/api/v1/things/a"),
    ("HEAD", "/api/v1/things/a"),
    ("GET", "/api/v1/numbers/1"),
    ("POST", "/api/v1/things/a/go"),
    ("DELETE", "/api/v1/things/a"),
]


@pytest.mark.parametrize(("method", "path"), CALLS)
async def test_without_a_good_token_nothing_is_answered_on_any_route_and_nothing_happens(method, path):
    async with serving(TokenAccess()) as served:
        none = await served(method, path, **JSON)
        assert none.status == 401
        assert "www-authenticate: bearer" in none.head
        assert (await served(method, path, authorization="Bearer stolen", **JSON)).status == 403
        assert (await served(method, path, authorization="Bearer limited", **JSON)).status == 403
        assert not served.asked


async def test_a_reader_changes_nothing():
    async with serving(TokenAccess()) as served:
        assert (await served("GET", "/api/v1/things/a", authorization="Bearer reader")).status == 200
        for method, path in CALLS[-2:]:
            assert (await served(method, path, authorization="Bearer reader", **JSON)).status == 403
        assert len(served.asked) == 1


async def test_two_tokens_are_none():
    async with serving(TokenAccess()) as served:
        head = f"GET /api/v1/things HTTP/1.1\r\nhost: {served.address}\r\nconnection: close\r\n"
        twice = head + "authorization: Bearer admin\r\nauthorization: Bearer admin\r\n\r\n"
        assert (await served.raw(twice.encode())).status == 401


async def test_a_refused_caller_is_in_the_audit_log_without_its_token(caplog):
    async with serving(TokenAccess()) as served:
        await served("DELETE", "/api/v1/things/a", authorization="Bearer reader", **JSON)
        await served("GET", "/api/v1/things/a", authorization="Bearer stolen")
        await served("GET", "/metrics")
        await served("GET", "/api/v1/things/a", host="elsewhere.example")
        await served("GET", "/nowhere", authorization="Bearer reader")
    told = [record.tallybook_fields for record in caplog.records if record.name.endswith("audit")]
    assert [(line["method"], line["principal"], line["error_type"]) for line in told] == [
        ("HTTP DELETE /api/v1/things/{thing}", "reader", "AccessDenied"),
        ("HTTP GET /api/v1/things/{thing}", "", "AccessDenied"),
        ("HTTP GET /metrics", "", "Unauthenticated"),
        ("HTTP, a foreign name", "", "AccessDenied"),
    ]
    assert all(line["peer"].startswith("127.0.0.1:") for line in told)
    assert "stolen" not in str(told)


async def test_a_denial_is_logged_once_per_endpoint_for_any_object(caplog):
    known = {"authorization": "Bearer reader"}
    async with serving(TokenAccess()) as served:
        for thing in range(5):
            await served("DELETE", f"/api/v1/things/{thing}", **known, **JSON)
            await served("POST", f"/api/v1/things/{thing}/go", **known, **JSON)
            await served("POST", f"/api/v1/fails/{thing}", **known, **JSON)
    told = [record.tallybook_fields["method"] for record in caplog.records if record.name.endswith("audit")]
    assert told == [
        "HTTP DELETE /api/v1/things/{thing}",
        "HTTP POST /api/v1/things/{thing}/go",
        "HTTP POST /api/v1/fails/{how}",
    ]


async def test_health_and_the_page_are_for_all_and_metrics_are_not():
    async with serving(TokenAccess()) as served:
        assert (await served("GET", "/healthz")).status == 200
        assert (await served("GET", "/readyz")).status == 200
        assert (await served("GET", "/")).status == 200
        assert (await served("GET", "/metrics")).status == 401
        assert (await served("GET", "/metrics", authorization="Bearer reader")).status == 200
        assert (await served("GET", "/metrics", authorization="Bearer limited")).status == 403, "it shows all there is"


# --- methods ----------------------------------------------------------------------------------------------------------


async def test_head_is_get_without_the_body():
    async with serving() as served:
        answer = await served("HEAD", "/api/v1/things")
        assert (answer.status, answer.body) == (200, b"")


@pytest.mark.parametrize("method", ["OPTIONS", "TRACE", "PUT", "PATCH", "CONNECT", "PROPFIND", "get"])
@pytest.mark.parametrize("path", ["/", "/api/v1/things", "/api/v1/nothing"])
async def test_other_methods_are_refused_everywhere(method, path):
    async with serving() as served:
        answer = await served(method, path, origin="http://evil.example")
        assert answer.status in {400, 405}
        assert "access-control" not in answer.head
        assert not served.asked


async def test_a_method_is_not_overridden_by_a_header_or_a_parameter():
    async with serving() as served:
        for header in ("x_http_method_override", "x_method_override", "x_http_method"):
            assert (await served("GET", "/api/v1/things/a", **{header: "DELETE"})).status == 200
            assert (await served("POST", "/api/v1/things/a", **JSON, **{header: "DELETE"})).status == 405
        assert (await served("GET", "/api/v1/things/a?_method=DELETE")).status == 400
        assert len(served.asked) == 3


async def test_the_error_for_a_wrong_method_names_the_right_ones():
    async with serving() as served:
        answer = await served("POST", "/api/v1/things/a", **JSON)
        assert answer.status == 405
        assert "allow: delete, get, head" in answer.head
        assert answer.json["error"]["type"] == "InvalidArgument"


# --- paths, parameters, bodies ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        "/../etc/passwd", "/static/../../etc/passwd", "/%2e%2e/etc/passwd", "/api/v1/things/%2e%2e", "/api/v1/things/.",
        "/api/v1/things/a%00b", "/api/v1//things", "//api/v1/things", "/api/v1/things/",
        "/api/v1/things/%0d%0aset-cookie:x", "/api/v1/things/%ff", "/api/v1/things/%E2%80%AE",
        "/api/v1/things/" + "x" * 3000,
    ],
)  # fmt: skip
async def test_a_path_that_tries_to_be_another_one_is_refused(path):
    async with serving() as served:
        answer = await served("GET", path)
        assert answer.status in {400, 414}
        assert answer.json["error"]["fault"] == "caller"
        assert not served.asked


async def test_a_name_may_have_a_slash_and_is_decoded_once():
    async with serving() as served:
        answer = await served("GET", "/api/v1/things/orders%2Feu%252F%C3%A9")
        assert answer.json["path"] == {"thing": "orders/eu%2Fé"}


@pytest.mark.parametrize("text", ["-1", "abc", "1e3", "9223372036854775808", "9" * 100, "%D9%A1", "0x10", "+1", "1_0"])
async def test_what_is_no_id_is_refused(text):
    async with serving() as served:
        assert (await served("GET", f"/api/v1/numbers/{text}")).status == 400
        assert (await served("GET", f"/api/v1/numbers/1?limit={text.replace('+', '%2B')}")).status == 400


async def test_the_largest_id_is_one():
    async with serving() as served:
        answer = await served("GET", f"/api/v1/numbers/{2**63 - 1}?limit=100")
        assert answer.json == {"id": str(2**63 - 1), "limit": 100}, "as a number, JavaScript would round it"


@pytest.mark.parametrize(
    "query",
    ["after=1&after=2", "unknown=1", "after", "after=%FF", "&&", "after=1;after=2;x", "a=1&" * 100,
     "after=" + "x" * 5000],
)  # fmt: skip
async def test_parameters_that_are_unknown_repeated_or_too_many_are_refused(query):
    async with serving() as served:
        answer = await served("GET", f"/api/v1/things?{query}")
        if query == "after=1;after=2;x":
            assert answer.json["query"] == {"after": "1;after=2;x"}, "a semicolon separates nothing"
        else:
            assert answer.status in {400, 414}
            assert not served.asked


async def test_a_query_of_a_megabyte_is_refused():
    """The answer arrives before the request has ended, and a client that reads gets it."""
    async with serving() as served, asyncio.timeout(DEADLINE_SECONDS):
        loop, (host, _, port) = asyncio.get_running_loop(), served.address.rpartition(":")
        with socket.create_connection((host, int(port))) as connection:
            connection.setblocking(False)
            answering = asyncio.ensure_future(loop.sock_recv(connection, 1 << 16))
            with contextlib.suppress(ConnectionError):
                await loop.sock_sendall(connection, b"GET /api/v1/things?after=" + b"x" * (1 << 20))
            answer = Answer(await answering)
        assert (answer.status, answer.json["error"]["type"]) == (400, "InvalidArgument")
        assert "too large" in answer.json["error"]["message"]
        assert not served.asked


@pytest.mark.parametrize("body", [b"[1]", b"{", b"\xff\xfe", b'{"slow": 1}', b"[" * 60_000, b"NaN",
                                  b'{"fast": false, "fast": true}'])  # fmt: skip
async def test_a_body_that_is_not_an_object_of_known_fields_is_refused(body):
    async with serving() as served:
        assert (await served("POST", "/api/v1/things/a/go", body, **JSON)).status == 400
        assert not served.asked


async def test_a_body_of_known_fields_arrives():
    async with serving() as served:
        assert (await served("POST", "/api/v1/things/a/go", b'{"fast": true}', **JSON)).status == 200
        assert served.asked[0].body == {"fast": True}


async def test_a_body_of_a_gigabyte_is_refused_before_it_is_there():
    async with serving() as served:
        head = f"POST /api/v1/things/a/go HTTP/1.1\r\nhost: {served.address}\r\ncontent-type: application/json\r\n"
        answer = await served.raw(head.encode() + b"content-length: 1073741824\r\n\r\n" + b" " * 70_000)
        assert answer.status == 413
        assert "connection: close" in answer.head


async def test_a_chunked_body_without_end_is_cut_off_at_the_same_size():
    async with serving() as served:
        head = f"POST /api/v1/things/a/go HTTP/1.1\r\nhost: {served.address}\r\ncontent-type: application/json\r\n"
        chunks = b"1000\r\n" + b" " * 4096 + b"\r\n"
        answer = await served.raw(head.encode() + b"transfer-encoding: chunked\r\n\r\n" + chunks * 17)
        assert answer.status == 413


async def test_a_get_has_no_body():
    async with serving() as served:
        assert (await served("GET", "/api/v1/things", b"{}")).status == 413
        assert not served.asked


async def test_a_body_that_does_not_come_is_not_waited_for_forever(monkeypatch):
    monkeypatch.setattr(http_guard, "BODY_SECONDS", 0.05)
    async with serving() as served:
        head = f"POST /api/v1/things/a/go HTTP/1.1\r\nhost: {served.address}\r\ncontent-type: application/json\r\n"
        answer = await served.raw(head.encode() + b"content-length: 10\r\n\r\n{")
        assert answer.status == 408
        assert answer.json["error"]["outcome"] == "not done"
        assert not served.asked


# --- more than one request in one -------------------------------------------------------------------------------------


SMUGGLED = b"GET /api/v1/things HTTP/1.1\r\nhost: x\r\n\r\n"


@pytest.mark.parametrize(
    "lines",
    [
        "content-length: 4\r\ntransfer-encoding: chunked\r\n",
        "transfer-encoding: chunked\r\ncontent-length: 4\r\n",
        "content-length: 4\r\ncontent-length: 40\r\n",
        "content-length: 4, 40\r\n",
        "content-length: +4\r\n",
        "content-length: -1\r\n",
        "transfer-encoding: chunked, identity\r\n",
        "transfer-encoding: xchunked\r\n",
        "transfer-encoding : chunked\r\n",
        "transfer-encoding: chunked\r\ntransfer-encoding: identity\r\n",
    ],
)
async def test_a_request_whose_length_can_be_read_in_two_ways_is_refused_and_what_follows_is_not_read(lines):
    async with serving() as served:
        head = f"POST /api/v1/things/a/go HTTP/1.1\r\nhost: {served.address}\r\ncontent-type: application/json\r\n"
        answer = await served.raw(head.encode() + lines.encode() + b"\r\n0\r\n\r\n" + SMUGGLED)
        assert answer.status in {400, 501}
        assert answer.count == 1
        assert not served.asked


@pytest.mark.parametrize(
    "chunks", [b"zz\r\nab\r\n0\r\n\r\n", b"-1\r\n\r\n", b"2\r\nabcdef\r\n0\r\n\r\n", b"f" * 40 + b"\r\n"]
)
async def test_chunks_that_lie_are_refused(chunks):
    async with serving() as served:
        head = f"POST /api/v1/things/a/go HTTP/1.1\r\nhost: {served.address}\r\ncontent-type: application/json\r\n"
        answer = await served.raw(head.encode() + b"transfer-encoding: chunked\r\n\r\n" + chunks)
        assert answer.raw == b"" or answer.status in {400, 413}
        assert not served.asked


@pytest.mark.parametrize("header", ["host", "origin", "content-type", "sec-fetch-site"])
async def test_a_header_that_decides_something_is_there_once(header):
    async with serving() as served:
        head = f"GET /api/v1/things HTTP/1.1\r\nhost: {served.address}\r\nconnection: close\r\n"
        answer = await served.raw(head.encode() + f"{header}: a\r\n{header}: b\r\n\r\n".encode())
        assert answer.status == 400
        assert not served.asked


async def test_a_line_break_in_a_header_or_a_name_makes_no_header_of_the_answer():
    async with serving() as served:
        for target in ("/api/v1/things/a%0d%0aset-cookie:%20x=1", "/api/v1/things?after=%0d%0aset-cookie:x"):
            assert "set-cookie" not in (await served("GET", target)).head
        head = f"GET /api/v1/things HTTP/1.1\r\nhost: {served.address}\r\nx: a\rset-cookie: b\r\n\r\n"
        assert "set-cookie" not in (await served.raw(head.encode())).head


# --- browsers ---------------------------------------------------------------------------------------------------------


async def test_a_foreign_name_that_leads_here_is_not_this_process():
    async with serving() as served:
        port = served.address.rpartition(":")[2]
        for good in ("127.0.0.1", f"127.0.0.1:{port}", f"[::1]:{port}", "localhost", f"LOCALHOST:{port}",
                     socket.gethostname(), f"console.example:{port}"):  # fmt: skip
            assert (await served("GET", "/api/v1/things", host=good)).status == 200, good
        served.asked.clear()
        for bad in ("evil.example", f"evil.example:{port}", "localhost.evil.example", "127.0.0.1.evil.example", "",
                    "evil.example@localhost", "localhost:x", "[::1", "a b"):  # fmt: skip
            assert (await served("GET", "/api/v1/things", host=bad)).status in {400, 403}, bad
            assert (await served("GET", "/", host=bad)).status in {400, 403}, bad
            assert (await served("GET", "/metrics", host=bad)).status in {400, 403}, bad
        assert not served.asked
        for probed in ("/healthz", "/readyz"):
            assert (await served("GET", probed, host="bookies.example")).status == 200


async def test_a_foreign_name_is_in_the_audit_log_and_a_host_that_cannot_be_is_not(caplog):
    async with serving(TokenAccess()) as served:
        await served("GET", "/metrics", host="a b", authorization="Bearer reader")
        for method, path in (("GET", "/metrics"), ("DELETE", "/"), ("POST", "/api/v1/things/a/go")):
            await served(method, path, host="evil.example", authorization="Bearer reader", **JSON)
    told = [record.tallybook_fields for record in caplog.records if record.name.endswith("audit")]
    assert [(line["method"], line["principal"], line["error_type"]) for line in told] == [
        ("HTTP, a foreign name", "reader", "AccessDenied")
    ]  # one line for all three: there are fifty a minute, and more pages and endpoints than that
    assert "evil.example" in told[0]["error"]


async def test_the_name_that_it_listens_on_is_its_own():
    async with serving(listen="127.1:0") as served:
        assert (await served("GET", "/metrics", host="127.1")).status == 200, "which is no address as others write it"


async def test_a_page_of_another_origin_changes_nothing():
    async with serving() as served:
        here = f"http://{served.address}"
        of_an_app = f"app://{served.address}"
        for bad in ("http://evil.example", "null", f"{here}.evil.example", "http://127.0.0.1:1", of_an_app):
            assert (await served("POST", "/api/v1/things/a/go", origin=bad, **JSON)).status == 403, bad
            assert (await served("DELETE", "/api/v1/things/a", origin=bad, **JSON)).status == 403, bad
        assert (await served("POST", "/api/v1/things/a/go", sec_fetch_site="cross-site", **JSON)).status == 403
        assert not served.asked
        assert (
            await served("POST", "/api/v1/things/a/go", origin=here, sec_fetch_site="same-origin", **JSON)
        ).status == 200


@pytest.mark.parametrize(
    "kind",
    ["", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x",
     "text/plain; application/json", "application/json-patch"],
)  # fmt: skip
async def test_what_a_form_can_send_changes_nothing(kind):
    async with serving() as served:
        more = {"content-type": kind} if kind else {}
        assert (await served("POST", "/api/v1/things/a/go", b'{"fast":1}', **more)).status == 415
        assert not served.asked


async def test_no_answer_is_open_to_other_origins_or_taken_for_html_or_kept():
    async with serving() as served:
        for answer in (
            await served("GET", "/api/v1/things", origin="http://evil.example"),
            await served("GET", "/api/v1/nothing", origin="http://evil.example"),
            await served("GET", "/", origin="http://evil.example"),
            await served("GET", "/metrics", origin="http://evil.example"),
            await served("GET", "/metrics", host="evil.example"),
            await served("GET", "/healthz", origin="http://evil.example"),
            await served("GET", "/readyz", origin="http://evil.example"),
            await served("POST", "/healthz", origin="http://evil.example"),
        ):
            assert "access-control" not in answer.head
            assert "x-content-type-options: nosniff" in answer.head
            assert "content-security-policy: default-src 'self'" in answer.head
            assert "referrer-policy: no-referrer" in answer.head
        answer = await served("GET", "/api/v1/things")
        assert "cache-control: no-store" in answer.head
        assert "content-type: application/json" in answer.head
        assert b"<script>" not in answer.body, "not even if it is taken for HTML"
        assert answer.json["text"] == "<script>alert(1)</script>"


# --- errors -----------------------------------------------------------------------------------------------------------


async def test_each_kind_of_error_is_reported_with_its_status_and_outcome():
    errors = {
        "absent": NoSuchLedger("there is no ledger 7"),
        "fenced": LedgerFenced("fenced"),
        "busy": Busy("later", retry_after_ms=1500),
        "unknown": MetadataOutcomeUnknown("lost"),
        "defect": InvariantViolation("broken"),
    }
    wanted = {"absent": 404, "fenced": 409, "busy": 503, "unknown": 503, "defect": 500}
    async with serving(**errors) as served:
        for how, status in wanted.items():
            answer = await served("POST", f"/api/v1/fails/{how}", **JSON)
            assert answer.status == status
            assert set(answer.json["error"]) == {"type", "message", "fault", "retriable", "outcome"}
        assert "retry-after: 2" in (await served("POST", "/api/v1/fails/busy", **JSON)).head
        assert (await served("POST", "/api/v1/fails/unknown", **JSON)).json["error"]["outcome"] == "unknown"
        assert (await served("GET", "/api/v1/fails/unknown")).json["error"]["outcome"] == "not done"


async def test_a_defect_is_not_shown_to_the_caller_and_the_server_goes_on():
    async with serving(how=ZeroDivisionError("the secret")) as served:
        answer = await served("GET", "/api/v1/fails/how")
        assert (answer.status, answer.json["error"]["type"]) == (500, "InvariantViolation")
        assert b"secret" not in answer.body
        assert (await served("GET", "/api/v1/things")).status == 200


async def test_an_answer_that_does_not_come_has_a_deadline(monkeypatch):
    monkeypatch.setattr(http_guard, "ANSWER_SECONDS", 0.05)

    async def never(asked: EndpointRequest) -> object:
        return await asyncio.Event().wait()

    endpoints = [Endpoint(method, "/api/v1/x", Permission.READ, never) for method in ("GET", "DELETE")]
    async with serving(more=endpoints) as served:
        read, changed = await served("GET", "/api/v1/x"), await served("DELETE", "/api/v1/x", **JSON)
        assert (read.status, read.json["error"]["outcome"]) == (504, "not done")
        assert (changed.status, changed.json["error"]["outcome"]) == (504, "unknown")
