"""The guard of what a process offers over HTTP: which requests are requests, and who may make them.

    bytes -> is it one request, to us?                                                   Front: all that is asked
          -> method, path -> who is it, is it allowed? -> parameters, body -> handler    Guard: the table of endpoints

What has no line in the table is not there. A caller that is let in has a request under way until its answer was taken:
it counts for the bound of the process, and for the principal's own. Health and readiness count nowhere.

A browser sends what any page tells it to, with the certificate of whoever sits before it, and without asking where a
name leads. So, with and without security:

- the ``Host`` of a request is an address, or a name that is known to be this process's: a foreign name that was
  made to lead here (DNS rebinding) is not;
- what changes something is a POST or DELETE of JSON that comes from no other origin: a form, or a script of
  another page, cannot send it without asking, and nobody answers that question (there is no CORS);
- answers are never taken for HTML or scripts, nor kept.

Health and readiness are told under any name: they are one word or one sentence, and probes come by names that nobody
has told the process.
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

from tallybook.core.access import Access, Permission, Principal
from tallybook.core.errors import (
    AccessDenied,
    InvalidArgument,
    InvariantViolation,
    Outcome,
    RequestTimeout,
    TallybookError,
    Unauthorized,
)

from .audit import audit
from .http_api import Asked, Endpoint, Page, answered, failed
from .http_load import CHANGES, PAGES, READS, Counted, HttpLoad
from .http_protocol import CONNECTION, MAX_REQUESTS
from .http_security import presented
from .json_once import loads_once
from .logging import logger
from .refusals import HTTP, Refusals
from .under_way import UnderWay

MAX_BODY_BYTES: Final = 64 << 10
MAX_PATH_BYTES: Final = 2_048
MAX_QUERY_BYTES: Final = 4_096
MAX_PARAMETERS: Final = 16
BODY_SECONDS: Final = 10.0
ANSWER_SECONDS: Final = 60.0

_METHODS: Final = ("GET", "POST", "DELETE")
_ONCE: Final = frozenset({"host", "origin", "content-type", "content-length", "transfer-encoding", "sec-fetch-site"})
"""Headers of which there is one, or none: of two, each of two programs might believe another one."""
_JSON: Final = re.compile(r"application/json *(?:; *charset=utf-8)?", re.IGNORECASE)
_HOST: Final = re.compile(r"(?P<name>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::[0-9]{1,5})?")
_FAILED: Final = 400
_HELD: Final = "tallybook.held"
"""What a request holds until its answer was taken, in its scope."""
_COUNTED: Final = "tallybook.counted"
"""How it is counted, there as well."""
_NO_ENDPOINT: Final = "HTTP, no endpoint"
"""For the audit log: whatever has no line in the table."""
_FOREIGN_NAME: Final = "HTTP, a foreign name"
"""The same: whatever comes by a name that is not this process's."""
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
    """A request that is none, or not to be answered: with this status."""

    def __init__(self, status: int, error: TallybookError, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(error.message)
        self.status = status
        self.error = error
        self.headers = headers


class _Found(NamedTuple):
    endpoint: Endpoint
    path: Mapping[str, str]


class Front:
    """Passes on what is one request to this process, and sees that browsers make nothing else of the answer.

    Args:
        app: what answers; an application as ASGI has it.
        hosts: names that this process is known by, as they are now.
        anyway: paths that are passed on under any name.
        routes: what paths that the application answers by itself are counted as.
        refusals: those who came by a name that is not this process's.
        load: counts what is asked and answered.
    """

    def __init__(
        self,
        app: ASGIApp,
        hosts: Callable[[], Iterable[str]],
        anyway: Container[str],
        routes: Mapping[str, str],
        refusals: Refusals,
        load: HttpLoad,
    ) -> None:
        self._app = app
        self._hosts = hosts
        self._anyway = anyway
        self._routes = routes
        self._refusals = refusals
        self._load = load

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        request = Request(scope)

        async def headed(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._load.answered(message["status"])
                headers = [*message["headers"], *_HEADERS]
                if message["status"] >= _FAILED and _has_body(request):
                    # Nobody has read it, and nobody will.
                    headers.append((b"connection", b"close"))
                message = {**message, "headers": headers}
            if message["type"] == "http.response.body" and message.get("body") and not message.get("more_body"):
                # The end by itself: it waits until what was written before it is taken.
                await send({**message, "more_body": True})
                message = {**message, "body": b""}
            await send(message)

        with self._load.request() as counted, ExitStack() as held:
            answer = self._checked(request, counted)
            await answer({**scope, _HELD: held, _COUNTED: counted}, receive, headed)

    def _checked(self, request: Request, counted: Counted) -> ASGIApp:
        """What answers a request: the application, if it is one to this process."""
        path = request.scope["path"]
        try:
            _check_headers(request)
            if path not in self._anyway:
                self._check_host(request.headers.get("host", ""))
        except _Refused as refused:
            # One name for all of it: nobody is known yet, and of lines about anybody there are few.
            self._refusals.note(refused.error, presented(request), peer_of(request), _FOREIGN_NAME, face=HTTP)
            return failed(refused.error, refused.status, refused.headers)
        counted.route = self._routes.get(path, counted.route)
        return self._app

    def _check_host(self, host: str) -> None:
        found = _HOST.fullmatch(host)
        if found is None:
            raise _Refused(400, InvalidArgument("the request has no Host, or none that can be"))
        name = found["name"].lower().strip("[]")
        if _is_address(name) or name == "localhost" or name in {known.lower() for known in self._hosts()}:
            return
        known = "use an address, or for a console name it in 'hosts'"
        raise _Refused(403, AccessDenied(f"this process is not known as {name}: {known}"))


class Guard:
    """Answers requests by a table of endpoints, and with pages. ``Front`` stands before it.

    Args:
        access: tells who somebody is.
        endpoints: all that there is.
        pages: files by their paths.
        refusals: those who were not let in, may not do what they wanted, or have said a wrong password.
        under_way: the requests of each principal.
        own: paths that others answer. It only has names for them.
        administered: whether endpoints that administer are offered at all.
    """

    def __init__(
        self,
        access: Access,
        endpoints: Sequence[Endpoint],
        pages: Mapping[str, Page],
        refusals: Refusals,
        under_way: UnderWay,
        *,
        own: Collection[str],
        administered: bool,
    ) -> None:
        self._access = access
        self._refusals = refusals
        self._under_way = under_way
        self._pages = pages
        self._own = own
        self._administered = administered
        self._table: dict[tuple[str, ...], dict[str, Endpoint]] = {}
        for endpoint in endpoints:
            self._table.setdefault(tuple(endpoint.path.split("/")[1:]), {})[endpoint.method] = endpoint

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; an application as ASGI has it."""
        request = Request(scope, receive)
        try:
            response = await self._answer(request)
        except ClientDisconnect:
            return
        await response(scope, receive, send)

    def let_in(self, request: Request, permission: Permission) -> Principal:
        """Who makes a request, which counts as theirs until its answer was taken.

        Raises:
            Unauthenticated, AccessDenied: nobody who may.
            Busy: as many are in progress as there may be, of the principal or of all.
        """
        principal = self._access.principal(presented(request))
        principal.check_everywhere(permission)
        if permission is Permission.ADMINISTER and not self._administered:
            raise AccessDenied(
                "anybody could administer this process here: without security that is done on loopback only"
            )
        held: ExitStack = request.scope[_HELD]
        held.enter_context(self._under_way.request(principal))
        held.enter_context(request.scope[CONNECTION].request(MAX_REQUESTS))
        return principal

    def name_of(self, request: Request) -> str:
        """What a request wants, for the audit log: a name for each endpoint, and one for all that is none."""
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
                raise _Refused(405, InvalidArgument("only GET, HEAD, POST and DELETE are known"), _allow(_METHODS))
            counted: Counted = request.scope[_COUNTED]
            page = self._pages.get("/" + "/".join(parts))
            if page is not None:
                counted.route = PAGES
                return _shown(page, method)
            found = self._find(method, parts)
            counted.route = READS if method == "GET" else CHANGES
            principal = self.let_in(request, found.endpoint.permission)
            if method != "GET":
                _check_origin(request)
            query = _query(request.scope["query_string"], found.endpoint.parameters)
            body = await _body(request, found.endpoint.fields, wanted=method != "GET")
            asked = Asked(principal, peer_of(request), found.path, query, body)
            return await _handled(found, asked, partial(self.note, request))
        except _Refused as refused:
            self.note(request, refused.error)
            return failed(refused.error, refused.status, refused.headers)
        except TallybookError as error:
            self.note(request, error)
            return failed(error)

    def note(self, request: Request, error: TallybookError) -> None:
        """Have the audit log tell of a refusal, if it is one."""
        self._refusals.note(error, presented(request), peer_of(request), self.name_of(request), face=HTTP)

    def _find(self, method: str, parts: tuple[str, ...]) -> _Found:
        """The endpoint of a path; those without places go first."""
        there: dict[str, Endpoint] = {}
        for template, methods in sorted(self._table.items(), key=lambda line: sum("{" in part for part in line[0])):
            path = _match(template, parts)
            if path is not None:
                if method in methods:
                    return _Found(methods[method], path)
                there |= methods
        if there:
            error = InvalidArgument(f"{method} is not for this path")
            raise _Refused(405, error, _allow(there))
        raise _Refused(404, InvalidArgument("there is nothing at this path"))


def peer_of(request: Request) -> str:
    """The other end of the connection."""
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
        raise _Refused(400, InvalidArgument(f"the header {twice[0]} is there more than once"))
    if "transfer-encoding" in names and "content-length" in names:
        # Two programs on the way could tell different requests apart in it.
        raise _Refused(400, InvalidArgument("a request has a length or a transfer encoding, not both"))


def _parts(raw: bytes) -> tuple[str, ...]:
    """The parts of a path, each decoded once, by itself: a slash in a name is not one of the path."""
    if len(raw) > MAX_PATH_BYTES:
        raise _Refused(414, InvalidArgument(f"a path has at most {MAX_PATH_BYTES} bytes"))
    try:
        parts = tuple(unquote_to_bytes(part).decode() for part in raw.split(b"/"))
    except UnicodeDecodeError:
        raise _Refused(400, InvalidArgument("the path is not UTF-8")) from None
    inner = parts[1:] if parts != ("", "") else ()
    if parts[0] or any(not part or part in {".", ".."} or not part.isprintable() for part in inner):
        raise _Refused(400, InvalidArgument("the path has a part that is empty, . or .., or cannot be printed"))
    return inner


def _match(template: tuple[str, ...], parts: tuple[str, ...]) -> dict[str, str] | None:
    if len(template) != len(parts):
        return None
    places: dict[str, str] = {}
    for wanted, part in zip(template, parts, strict=True):
        if wanted.startswith("{"):
            places[wanted[1:-1]] = part
        elif wanted != part:
            return None
    return places


def _shown(page: Page, method: str) -> Response:
    if method != "GET":
        raise _Refused(405, InvalidArgument("this is a page"), _allow(["GET"]))
    return Response(page.content, headers={"cache-control": "no-cache"}, media_type=page.media_type)


def _check_origin(request: Request) -> None:
    origin, here = request.headers.get("origin"), request.headers["host"].lower()
    # Both, for a proxy may have taken TLS off; what else there is are pages of apps, and of extensions of browsers.
    if origin is not None and origin.lower() not in {f"http://{here}", f"https://{here}"}:
        raise _Refused(403, AccessDenied("a page of another origin may change nothing here"))
    if request.headers.get("sec-fetch-site", "same-origin") not in {"same-origin", "none"}:
        raise _Refused(403, AccessDenied("a page of another site may change nothing here"))
    if _JSON.fullmatch(request.headers.get("content-type", "")) is None:
        raise _Refused(415, InvalidArgument("content-type: application/json is wanted"))


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
        raise InvalidArgument("the query cannot be understood: NAME=VALUE&... in UTF-8 is wanted") from None
    found = dict(pairs)
    if len(found) < len(pairs):
        raise InvalidArgument("a parameter is there more than once")
    unknown = sorted(set(found) - set(known))
    if unknown:
        raise InvalidArgument(f"no such parameter; known are {', '.join(known) or 'none'}")
    return found


async def _body(request: Request, known: tuple[str, ...], *, wanted: bool) -> Mapping[str, Any]:
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for piece in request.stream():
                body += piece
                if len(body) > MAX_BODY_BYTES or (body and not wanted):
                    raise _Refused(413, InvalidArgument(f"a body has at most {MAX_BODY_BYTES} bytes, of GET 0"))
    except TimeoutError:
        error = RequestTimeout("the body did not come in time", outcome=Outcome.NOT_DONE)
        raise _Refused(408, error) from None
    return fields_of(bytes(body), known) if body else {}


def fields_of(body: bytes, known: tuple[str, ...]) -> Mapping[str, Any]:
    """What a body says.

    Raises:
        InvalidArgument: it is no JSON object, or has a field twice, or one that is not known.
    """
    try:
        found = loads_once(body)
    except (ValueError, RecursionError):
        raise InvalidArgument("the body is not JSON, or has a field twice") from None
    if not isinstance(found, dict):
        raise InvalidArgument("the body is not a JSON object")
    if set(found) - set(known):
        raise InvalidArgument(f"the body has an unknown field; known are {', '.join(known) or 'none'}")
    return found


async def _handled(found: _Found, asked: Asked, note: Callable[[TallybookError], None]) -> Response:
    endpoint = found.endpoint
    if endpoint.action:
        audit(endpoint.action, asked.principal, asked.peer, **asked.path)
    changes = endpoint.method != "GET"
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            return answered(await endpoint.handler(asked))
    except TimeoutError:
        outcome = Outcome.UNKNOWN if changes else Outcome.NOT_DONE
        return failed(RequestTimeout(f"no answer within {ANSWER_SECONDS:.0f} s", outcome=outcome))
    except TallybookError as error:
        if isinstance(error, Unauthorized):
            # That of a ledger, which whoever asks has said. What is denied here is denied to this process.
            note(error)
        return failed(error if changes else error.told_as(Outcome.NOT_DONE))
    except Exception as error:  # noqa: BLE001 - see below
        # A defect in one answer is not the end of the process; what it was is for the log, not for who asks.
        _log.defect("a request failed", error, method=endpoint.method, path=endpoint.path)
        return failed(InvariantViolation("this is a defect; the log of the process says more"))
