"""Fuzz target: path, query and headers of requests, as the HTTP guard parses them."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_address
from urllib.parse import quote, urlencode, urlsplit

from starlette.requests import Request

from tallybook.core.access import UNRESTRICTED, OpenAccess
from tallybook.core.errors import InvalidArgument
from tallybook.core.ids import MAX_ID
from tallybook.runtime.clock import RealClock
from tallybook.runtime.http import guard as http_guard
from tallybook.runtime.http.endpoints import EndpointRequest
from tallybook.runtime.http.load import HttpLoad
from tallybook.runtime.security.denial_log import DenialLog

from ..harness import REFUSED, Finding, Refused, Target, attempt, same

TARGET = Target("http_requests", words=(b"%2e%2e", b"%2F", b"%00", b"//", b"&after=", b"[::1]", b"127.0.0.1:80", b"; "))

KNOWN = ("after", "limit")
OWN = "console.example"
MOST = 100


async def _no_app(*_: object) -> None:
    """Answers nothing."""


CLOCK = RealClock()
FRONT = http_guard.RequestFilter(_no_app, lambda: [OWN], (), {}, DenialLog(CLOCK, OpenAccess()), HttpLoad(CLOCK, MOST))


def some_paths() -> Iterator[bytes]:
    """Valid paths, and ones that try to escape."""
    yield from (b"/", b"/api/v1/ledgers/7", b"/api/v1/streams/default/orders%2Feu", "/a/%C3%A4/ä".encode())
    yield from (
        b"",
        b"a",
        b"//",
        b"/a/",
        b"/a/../b",
        b"/%2e%2E/b",
        b"/a%00",
        b"/%ff",
        b"/%",
        b"/%2",
        b"/a%0d%0ab",
        b"/./",
    )
    yield b"/" + b"x" * http_guard.MAX_PATH_BYTES


@TARGET.decoder("runtime/http/guard.py:_parts", "runtime/http/guard.py:_match", seeds=some_paths)
def path(data: bytes) -> None:
    """A path in the request line."""
    parts = attempt(http_guard._Refused, http_guard._parts, data)
    if isinstance(parts, Refused):
        return
    if any(part in ("", ".", "..") or not part.isprintable() for part in parts):
        raise Finding(f"a path has the parts {parts!r}")
    told = "/" + "/".join(quote(part, safe="") for part in parts)
    if len(told) <= http_guard.MAX_PATH_BYTES:
        same(http_guard._parts(told.encode()), parts, "a path")
    found = http_guard._match(("api", "v1", "{thing}"), parts)
    if (found is not None) != (len(parts) == 3 and parts[:2] == ("api", "v1")):
        raise Finding(f"the parts {parts!r} are taken for {found!r}")


def some_queries() -> Iterator[bytes]:
    """Valid queries, and ones that try to escape."""
    yield from (b"", b"after=7", b"after=7&limit=5", b"after=%C3%A4+b", b"limit=", b"after=a%3Bb")
    yield from (b"after", b"after=1&after=2", b"other=1", b"&", b"after=%ff", "after=ä".encode(), b"a=1&" * 20)
    yield from (b"limit=-1", b"limit=101", b"limit=%D9%A3", b"after=9223372036854775808", b"after=" + b"9" * 30)
    yield b"after=" + b"x" * http_guard.MAX_QUERY_BYTES


@TARGET.decoder(
    "runtime/http/guard.py:_query", "runtime/http/endpoints.py:EndpointRequest.path_number",
    "runtime/http/endpoints.py:EndpointRequest.count",
    seeds=some_queries,
)  # fmt: skip
def query(data: bytes) -> None:
    """The query after the question mark, and the numbers in it."""
    found = attempt((http_guard._Refused, InvalidArgument), http_guard._query, data, KNOWN)
    if isinstance(found, Refused):
        return
    if not found.keys() <= set(KNOWN):
        raise Finding(f"a query has {found!r}")
    told = urlencode(found).encode()
    if len(told) <= http_guard.MAX_QUERY_BYTES:
        same(http_guard._query(told, KNOWN), found, "a query")
    asked = EndpointRequest(UNRESTRICTED, "", {"id": found.get("after", "")}, found, {})
    for number, most in (
        (attempt(InvalidArgument, asked.path_number, "id", MAX_ID), MAX_ID),
        (attempt(InvalidArgument, asked.count, "limit", 7, MOST), MOST),
    ):
        if not isinstance(number, Refused) and not 0 <= number <= most:
            raise Finding(f"{found!r} has the number {number!r}")


def some_hosts() -> Iterator[bytes]:
    """Names of this process, and others."""
    yield from (b"localhost", b"LOCALHOST:80", b"127.0.0.1:7401", b"[::1]", b"[::1]:80", b"Console.Example:443")
    yield from (b"", b"evil.example", b"localhost.evil.example", b"localhost@evil.example", b"localhost:80:80", b"::1")
    yield from (
        b"[localhost]",
        b"127.1",
        b"0x7f000001",
        b"localhost/..",
        b"localhost:",
        b"[::1%25lo]",
        b"[",
        b"[]",
        b"\xff",
    )


@TARGET.decoder(
    "runtime/http/guard.py:RequestFilter._check_host", "runtime/http/guard.py:_is_address", seeds=some_hosts
)
def host(data: bytes) -> None:
    """The host that a request names: no other reader of the header may find a foreign host in it."""
    text = data.decode("latin-1")
    if attempt(http_guard._Refused, FRONT._check_host, text) is REFUSED:
        return
    name = urlsplit(f"//{text}").hostname or ""
    if name in ("localhost", OWN):
        return
    try:
        ip_address(name)
    except ValueError:
        raise Finding(f"{text!r} passes, and leads to {name!r}") from None


def some_headers() -> Iterator[bytes]:
    """Headers, one per line."""
    yield b"host: localhost\ncontent-type: application/json\norigin: http://localhost"
    yield b"host: localhost\ncontent-type: application/json\norigin: app://localhost"
    yield b"Host: localhost\nhost: localhost"
    yield b"host: a\nTransfer-Encoding: chunked\ncontent-length: 5"
    yield b"host: a\norigin: null\ncontent-type: text/plain\nsec-fetch-site: cross-site"
    yield b"host: A:80\norigin: https://a:80\nsec-fetch-site: none\ncontent-type: Application/JSON ; charset=UTF-8"


@TARGET.decoder("runtime/http/guard.py:_check_headers", "runtime/http/guard.py:_check_origin", seeds=some_headers)
def headers(data: bytes) -> None:
    """Headers with length, content type and origin of a request; their names are in lower case."""
    lines = [line.partition(b":") for line in data.split(b"\n")]
    raw = [(name.strip().lower(), value.strip()) for name, _, value in lines]
    request = Request({"type": "http", "method": "POST", "headers": raw})
    if attempt(http_guard._Refused, http_guard._check_headers, request) is REFUSED:
        return
    names = [name for name, _ in raw]
    if names.count(b"host") > 1 or {b"content-length", b"transfer-encoding"} <= set(names):
        raise Finding(f"these headers pass: {raw!r}")
    said = {name: value.decode("latin-1").lower() for name, value in raw}
    if attempt(http_guard._Refused, FRONT._check_host, said.get(b"host", "")) is REFUSED:
        return
    origin = said.get(b"origin")
    if attempt(http_guard._Refused, http_guard._check_origin, request) is REFUSED or origin is None:
        return
    page = urlsplit(origin)
    if page.scheme not in ("http", "https") or page.netloc != said[b"host"]:
        raise Finding(f"a page of {origin!r} may change something here: {raw!r}")
