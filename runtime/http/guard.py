"""Validation, authentication and routing of HTTP requests.

    bytes -> well-formed, addressed to this process?                                 RequestFilter: every request
          -> method, path -> authenticate, authorize -> parameters, body -> handler  EndpointGuard: table of endpoints

An authorized request is in flight until its answer was taken: it counts for the limits of the process and of its
principal. Health and readiness requests do not count, and are answered under any host name: they hold no secrets, and
probes use names that this process does not know.

Any web page can make a browser send requests, with the user's certificate and to any host name. So host, origin,
method and content type are checked, with and without security (docs/operate/console.md, "Authentication"). A form or
script of another page cannot send a permitted change without a CORS preflight, which is never granted.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl, unquote_to_bytes

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tallybook.core.access import Access, Permission, Presented, Principal
from tallybook.core.errors import (
    AccessDenied,
    InvalidArgument,
    InvariantViolation,
    Outcome,
    RequestTimeout,
    TallybookError,
    Unauthorized,
)

from ..audit import audit
from ..logging import logger
from ..security.denial_log import HTTP, DenialLog
from ..security.in_flight import RequestsInFlight
from ..strict_json import loads_strict
from .endpoints import Endpoint, EndpointRequest, StaticPage, answered, failed
from .load import CHANGES, PAGES, READS, CountedRequest, HttpLoad
from .protocol import CERTIFICATE, CONNECTION, MAX_REQUESTS

MAX_BODY_BYTES: Final = 64 << 10
MAX_PATH_BYTES: Final = 2_048
MAX_QUERY_BYTES: Final = 4_096
MAX_PARAMETERS: Final = 16
BODY_SECONDS: Final = 10.0
ANSWER_SECONDS: Final = 60.0

_METHODS: Final = ("GET", "POST", "DELETE")
_ONCE: Final = frozenset({"host", "origin", "content-type", "content-length", "transfer-encoding", "sec-fetch-site"})
"""Headers that may occur once at most: of two, another program could use the other one."""
_JSON: Final = re.compile(r"application/json *(?:; *charset=utf-8)?", re.IGNORECASE)
_HOST: Final = re.compile(r"(?P<name>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::[0-9]{1,5})?")
_FAILED: Final = 400
_HELD: Final = "tallybook.held"
"""Scope key of the ``ExitStack`` of what a request holds until its answer was taken."""
_COUNTED: Final = "tallybook.counted"
"""Scope key of the ``CountedRequest``."""
_NO_ENDPOINT: Final = "HTTP, no endpoint"
"""Method in the audit log of a request for which there is no endpoint."""
_FOREIGN_NAME: Final = "HTTP, a foreign name"
"""Method in the audit log of a request with a host name that is not one of this process."""
_HEADERS: Final = (
    (
        b"content-security-policy",
        b"default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
)

_log = logger("http")


class _Refused(Exception):
    """An invalid request, answered with this status."""

    def __init__(self, status: int, error: TallybookError, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(error.message)
        self.status = status
        self.error = error
        self.headers = headers


class _Route(NamedTuple):
    endpoint: Endpoint
    path: Mapping[str, str]


class RequestFilter:
    """Passes valid requests to an ASGI application and adds security headers to its answers.

    Args:
        app: the ASGI application.
        hosts: returns the current names of this process.
        anyway: paths that are passed on under any host name.
        routes: route labels of the paths that the application answers itself.
        denials: log of requests with a foreign host name.
        load: counts requests and answers.
    """

    def __init__(
        self,
        app: ASGIApp,
        hosts: Callable[[], Iterable[str]],
        anyway: Container[str],
        routes: Mapping[str, str],
        denials: DenialLog,
        load: HttpLoad,
    ) -> None:
        self._app = app
        self._hosts = hosts
        self._anyway = anyway
        self._routes = routes
        self._denials = denials
        self._load = load

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        request = Request(scope)

        async def headed(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._load.answered(message["status"])
                headers = [*message["headers"], *_HEADERS]
                if message["status"] >= _FAILED and _has_body(request):
                    # The body was not read, so the connection cannot be reused.
                    headers.append((b"connection", b"close"))
                message = {**message, "headers": headers}
            if message["type"] == "http.response.body" and message.get("body") and not message.get("more_body"):
                # Send the end separately: that waits until the data before it was taken.
                await send({**message, "more_body": True})
                message = {**message, "body": b""}
            await send(message)

        with self._load.request() as counted, ExitStack() as held:
            answer = self._checked(request, counted)
            await answer({**scope, _HELD: held, _COUNTED: counted}, receive, headed)

    def _checked(self, request: Request, counted: CountedRequest) -> ASGIApp:
        """The application, or an error answer if the request is invalid or for another host."""
        path = request.scope["path"]
        try:
            _check_headers(request)
            if path not in self._anyway:
                self._check_host(request.headers.get("host", ""))
        except _Refused as refused:
            # One method name for all: the caller is not authenticated yet, and the number of log lines is limited.
            self._denials.note(refused.error, presented(request), peer_of(request), _FOREIGN_NAME, protocol=HTTP)
            return failed(refused.error, refused.status, refused.headers)
        counted.route = self._routes.get(path, counted.route)
        return self._app

    def _check_host(self, host: str) -> None:
        found = _HOST.fullmatch(host)
        if found is None:
            raise _Refused(400, InvalidArgument("the Host header is missing or malformed"))
        name = found["name"].lower().strip("[]")
        if _is_address(name) or name == "localhost" or name in {known.lower() for known in self._hosts()}:
            return
        remedy = "use an address, or for a console name it in 'hosts'"
        raise _Refused(403, AccessDenied(f"{name} is not a known name of this process: {remedy}"))


class EndpointGuard:
    """An ASGI application behind ``RequestFilter``: answers by a table of endpoints and with static pages.

    Args:
        access: authenticates callers.
        endpoints: the endpoints.
        pages: static pages by path.
        denials: log of denied requests.
        in_flight: limits the requests of each principal.
        own: paths that the server answers itself, known here for the audit log.
        administered: whether endpoints with the permission ADMINISTER are allowed.
    """

    def __init__(
        self,
        access: Access,
        endpoints: Sequence[Endpoint],
        pages: Mapping[str, StaticPage],
        denials: DenialLog,
        in_flight: RequestsInFlight,
        *,
        own: Collection[str],
        administered: bool,
    ) -> None:
        self._access = access
        self._denials = denials
        self._in_flight = in_flight
        self._pages = pages
        self._own = own
        self._administered = administered
        self._table: dict[tuple[str, ...], dict[str, Endpoint]] = {}
        for endpoint in endpoints:
            self._table.setdefault(tuple(endpoint.path.split("/")[1:]), {})[endpoint.method] = endpoint

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, as an ASGI application."""
        request = Request(scope, receive)
        try:
            response = await self._answer(request)
        except ClientDisconnect:
            return
        await response(scope, receive, send)

    def authorize(self, request: Request, permission: Permission) -> Principal:
        """Authenticate and authorize the caller, and count the request for it until the answer was taken.

        Raises:
            Unauthenticated, AccessDenied: the caller is unknown or not authorized.
            Busy: the principal or the process has reached its limit of requests.
        """
        principal = self._access.principal(presented(request))
        principal.check_everywhere(permission)
        if permission is Permission.ADMINISTER and not self._administered:
            raise AccessDenied("without security a process can be administered only on loopback")
        held: ExitStack = request.scope[_HELD]
        held.enter_context(self._in_flight.request(principal))
        held.enter_context(request.scope[CONNECTION].request(MAX_REQUESTS))
        return principal

    def name_of(self, request: Request) -> str:
        """The method name of a request in the audit log: one for each endpoint, and one for everything else."""
        method = _method_of(request)
        if method not in _METHODS:
            return _NO_ENDPOINT
        try:
            parts = _parts(request.scope["raw_path"])
            path = "/" + "/".join(parts)
            if path not in self._own:
                path = self._find(method, parts).endpoint.path
        except _Refused:
            return _NO_ENDPOINT
        return f"HTTP {method} {path}"

    async def _answer(self, request: Request) -> Response:
        try:
            parts = _parts(request.scope["raw_path"])
            method = _method_of(request)
            if method not in _METHODS:
                raise _Refused(405, InvalidArgument("only GET, HEAD, POST and DELETE are allowed"), _allow(_METHODS))
            counted: CountedRequest = request.scope[_COUNTED]
            page = self._pages.get("/" + "/".join(parts))
            if page is not None:
                counted.route = PAGES
                return _shown(page, method)
            found = self._find(method, parts)
            counted.route = READS if method == "GET" else CHANGES
            principal = self.authorize(request, found.endpoint.permission)
            if method != "GET":
                _check_origin(request)
            query = _query(request.scope["query_string"], found.endpoint.parameters)
            body = await _body(request, found.endpoint.fields, wanted=method != "GET")
            call = EndpointRequest(principal, peer_of(request), found.path, query, body)
            return await _handled(found, call, partial(self.note, request))
        except _Refused as refused:
            self.note(request, refused.error)
            return failed(refused.error, refused.status, refused.headers)
        except TallybookError as error:
            self.note(request, error)
            return failed(error)

    def note(self, request: Request, error: TallybookError) -> None:
        """Log and count an error if it is a denial."""
        self._denials.note(error, presented(request), peer_of(request), self.name_of(request), protocol=HTTP)

    def _find(self, method: str, parts: tuple[str, ...]) -> _Route:
        """The endpoint for a path; templates with fewer placeholders take precedence."""
        there: dict[str, Endpoint] = {}
        for template, methods in sorted(self._table.items(), key=lambda line: sum("{" in part for part in line[0])):
            path = _match(template, parts)
            if path is not None:
                if method in methods:
                    return _Route(methods[method], path)
                there |= methods
        if there:
            error = InvalidArgument(f"{method} is not allowed for this path")
            raise _Refused(405, error, _allow(there))
        raise _Refused(404, InvalidArgument("there is nothing at this path"))


def presented(request: Request) -> Presented:
    """The credentials of a request: a certificate, a token or neither."""
    return Presented(request.scope.get(CERTIFICATE, ()), tuple(request.headers.getlist("authorization")))


def peer_of(request: Request) -> str:
    """Address of the client's end of the connection."""
    return "" if request.client is None else f"{request.client.host}:{request.client.port}"


def _method_of(request: Request) -> str:
    return "GET" if request.method == "HEAD" else request.method


def _has_body(request: Request) -> bool:
    return "transfer-encoding" in request.headers or request.headers.get("content-length", "0") != "0"


def _allow(methods: Iterable[str]) -> dict[str, str]:
    return {"allow": ", ".join(sorted({*methods, *(["HEAD"] if "GET" in methods else [])}))}


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _check_headers(request: Request) -> None:
    names = [name.decode("latin-1").lower() for name, _ in request.headers.raw]
    twice = sorted({name for name in names if name in _ONCE and names.count(name) > 1})
    if twice:
        raise _Refused(400, InvalidArgument(f"duplicate header {twice[0]}"))
    if "transfer-encoding" in names and "content-length" in names:
        # Request smuggling: two programs on the way could see different requests in it.
        raise _Refused(400, InvalidArgument("a request may have Content-Length or Transfer-Encoding, not both"))


def _parts(raw: bytes) -> tuple[str, ...]:
    """The parts of a path. Each is decoded separately, so that an encoded slash does not separate parts."""
    if len(raw) > MAX_PATH_BYTES:
        raise _Refused(414, InvalidArgument(f"a path has at most {MAX_PATH_BYTES} bytes"))
    try:
        parts = tuple(unquote_to_bytes(part).decode() for part in raw.split(b"/"))
    except UnicodeDecodeError:
        raise _Refused(400, InvalidArgument("the path is not UTF-8")) from None
    inner = parts[1:] if parts != ("", "") else ()
    if parts[0] or any(not part or part in {".", ".."} or not part.isprintable() for part in inner):
        raise _Refused(400, InvalidArgument("the path has a part that is empty, . or .., or not printable"))
    return inner


def _match(template: tuple[str, ...], parts: tuple[str, ...]) -> dict[str, str] | None:
    if len(template) != len(parts):
        return None
    values: dict[str, str] = {}
    for expected, part in zip(template, parts, strict=True):
        if expected.startswith("{"):
            values[expected[1:-1]] = part
        elif expected != part:
            return None
    return values


def _shown(page: StaticPage, method: str) -> Response:
    if method != "GET":
        raise _Refused(405, InvalidArgument(f"{method} is not allowed for a page"), _allow(["GET"]))
    return Response(page.content, headers={"cache-control": "no-cache"}, media_type=page.media_type)


def _check_origin(request: Request) -> None:
    origin, here = request.headers.get("origin"), request.headers["host"].lower()
    # Both schemes, because a proxy may terminate TLS. Other schemes are those of apps and browser extensions.
    if origin is not None and origin.lower() not in {f"http://{here}", f"https://{here}"}:
        raise _Refused(403, AccessDenied("a page of another origin may not change anything"))
    if request.headers.get("sec-fetch-site", "same-origin") not in {"same-origin", "none"}:
        raise _Refused(403, AccessDenied("a page of another site may not change anything"))
    if _JSON.fullmatch(request.headers.get("content-type", "")) is None:
        raise _Refused(415, InvalidArgument("the Content-Type must be application/json"))


def _query(raw: bytes, known: tuple[str, ...]) -> dict[str, str]:
    if len(raw) > MAX_QUERY_BYTES:
        raise _Refused(414, InvalidArgument(f"a query has at most {MAX_QUERY_BYTES} bytes"))
    try:
        pairs = parse_qsl(
            raw.decode("ascii"),
            keep_blank_values=True,
            strict_parsing=bool(raw),
            errors="strict",
            max_num_fields=MAX_PARAMETERS,
        )
    except ValueError:
        raise InvalidArgument("the query is malformed: it must be NAME=VALUE&... in UTF-8") from None
    found = dict(pairs)
    if len(found) < len(pairs):
        raise InvalidArgument("duplicate parameter")
    unknown = sorted(set(found) - set(known))
    if unknown:
        raise InvalidArgument(f"unknown parameter; known are {', '.join(known) or 'none'}")
    return found


async def _body(request: Request, known: tuple[str, ...], *, wanted: bool) -> Mapping[str, Any]:
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for piece in request.stream():
                body += piece
                if len(body) > MAX_BODY_BYTES or (body and not wanted):
                    raise _Refused(413, InvalidArgument(f"a body may have {MAX_BODY_BYTES} bytes, that of a GET 0"))
    except TimeoutError:
        error = RequestTimeout("the body did not arrive in time", outcome=Outcome.NOT_DONE)
        raise _Refused(408, error) from None
    return fields_of(bytes(body), known) if body else {}


def fields_of(body: bytes, known: tuple[str, ...]) -> Mapping[str, Any]:
    """Parse a body.

    Raises:
        InvalidArgument: it is not a JSON object, or has a duplicate or unknown field.
    """
    try:
        found = loads_strict(body)
    except (ValueError, RecursionError):
        raise InvalidArgument("the body is not JSON, or has a duplicate field") from None
    if not isinstance(found, dict):
        raise InvalidArgument("the body is not a JSON object")
    if set(found) - set(known):
        raise InvalidArgument(f"the body has an unknown field; known are {', '.join(known) or 'none'}")
    return found


async def _handled(found: _Route, call: EndpointRequest, note: Callable[[TallybookError], None]) -> Response:
    endpoint = found.endpoint
    if endpoint.action:
        audit(endpoint.action, call.principal, call.peer, **call.path)
    changes = endpoint.method != "GET"
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            return answered(await endpoint.handler(call))
    except TimeoutError:
        outcome = Outcome.UNKNOWN if changes else Outcome.NOT_DONE
        return failed(RequestTimeout(f"no answer within {ANSWER_SECONDS:.0f} s", outcome=outcome))
    except TallybookError as error:
        if isinstance(error, Unauthorized):
            # A wrong ledger password, which came from the caller. Other denials are of this process, not its caller.
            note(error)
        return failed(error if changes else error.with_outcome(Outcome.NOT_DONE))
    except Exception as error:  # noqa: BLE001 - see below
        # A defect in a handler does not end the process; its details go to the log, not to the caller.
        _log.defect("a request failed", error, method=endpoint.method, path=endpoint.path)
        return failed(InvariantViolation("internal error: see the log of the process"))
