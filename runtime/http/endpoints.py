"""Table of the HTTP endpoints of a process, their answers and their errors.

    Endpoint("GET", "/api/v1/items/{item}", Permission.READ, handler)

A handler gets an ``EndpointRequest`` and returns the content of the answer as JSON values, or raises an error of
``core/errors``. ``http/guard.py`` validates, authenticates and authorizes the request before.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

from starlette.responses import Response

from tallybook.core.access import Permission, Principal
from tallybook.core.errors import (
    NOT_FOUND,
    AccessDenied,
    Busy,
    CallerError,
    InvalidArgument,
    PeerError,
    RequestTimeout,
    TallybookError,
    Unauthenticated,
)

_NUMBER: Final = re.compile(r"[0-9]{1,19}", re.ASCII)
MAX_JSON_NUMBER: Final = 2**53 - 1
"""The largest whole number that JavaScript represents exactly. Larger ones, such as ids, are strings in answers."""
_LONG_NUMBER: Final = re.compile(r"[0-9]{16}", re.ASCII)


@dataclass(frozen=True, slots=True)
class EndpointRequest:
    """One authorized request."""

    principal: Principal
    peer: str
    """Address of the client's end of the connection."""
    path: Mapping[str, str]
    """Values of the placeholders in the path."""
    query: Mapping[str, str]
    """Query parameters."""
    body: Mapping[str, Any]
    """The JSON object in the body; empty if there was none."""

    def path_number(self, name: str, maximum: int) -> int:
        """A number in the path, in 0 .. ``maximum``.

        Raises:
            InvalidArgument: it is not.
        """
        return _number(name, self.path[name], maximum)

    def count(self, name: str, default: int, maximum: int) -> int:
        """A query parameter that is a number in 0 .. ``maximum``.

        Raises:
            InvalidArgument: it is not.
        """
        given = self.query.get(name)
        return default if given is None else _number(name, given, maximum)


def _number(name: str, text: str, maximum: int) -> int:
    if _NUMBER.fullmatch(text) is None or int(text) > maximum:
        raise InvalidArgument(f"{name} must be a whole number in 0 .. {maximum}")
    return int(text)


Handler: TypeAlias = Callable[[EndpointRequest], Awaitable[object]]


class Endpoint(NamedTuple):
    """One line of the table."""

    method: str
    """GET (which includes HEAD), POST or DELETE."""
    path: str
    """A template; parts in braces are placeholders."""
    permission: Permission
    handler: Handler
    parameters: tuple[str, ...] = ()
    """Allowed query parameters; others are refused."""
    fields: tuple[str, ...] = ()
    """Allowed fields of the body; others are refused."""
    action: str = ""
    """The action in the audit log; for endpoints that change something."""


class StaticPage(NamedTuple):
    """A static file, served without authentication: it holds nothing about the cluster."""

    media_type: str
    content: bytes


class HttpApi(NamedTuple):
    """Endpoints and pages of a process, besides health and metrics."""

    endpoints: Sequence[Endpoint]
    pages: Mapping[str, StaticPage] = {}
    hosts: Sequence[str] = ()
    """Host names of the process, besides those that it finds itself."""


def status_of(error: TallybookError) -> int:
    """The HTTP status of an error."""
    if isinstance(error, Unauthenticated):
        return 401
    if isinstance(error, AccessDenied):
        return 403
    if isinstance(error, NOT_FOUND):
        return 404
    if isinstance(error, InvalidArgument):
        return 400
    if isinstance(error, CallerError):
        return 409
    if isinstance(error, RequestTimeout):
        return 504
    if isinstance(error, Busy) and error.own_limit:
        return 429
    return 503 if isinstance(error, PeerError) else 500


def headers_of(error: TallybookError) -> dict[str, str]:
    """Headers of an error answer: how to authenticate, when to retry."""
    if isinstance(error, Unauthenticated):
        return {"www-authenticate": "Bearer"}
    if isinstance(error, Busy):
        return {"retry-after": str(max(1, -(-error.retry_after_ms // 1000)))}
    return {}


def failed(error: TallybookError, status: int | None = None, headers: Mapping[str, str] | None = None) -> Response:
    """The answer for an error.

    Args:
        status: replaces the status of ``status_of``.
    """
    content = {
        "type": type(error).__name__,
        "message": error.message,
        "fault": error.fault.value,
        "retriable": error.retriable,
        "outcome": error.outcome.value,
    }
    return _json({"error": content}, status or status_of(error), {**(headers or {}), **headers_of(error)})


def answered(value: object) -> Response:
    """The answer that holds ``value``."""
    return _json(value, 200, {})


def _json(value: object, status: int, headers: Mapping[str, str]) -> Response:
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    if _LONG_NUMBER.search(text):
        text = json.dumps(_exact(value), allow_nan=False, separators=(",", ":"))
    # No bare "<": an answer that is shown as HTML by mistake is still plain text.
    text = text.replace("<", "\\u003c")
    return Response(
        text.encode(), status, {"cache-control": "no-store", **headers}, media_type="application/json; charset=utf-8"
    )


def _exact(value: object) -> object:
    """The value with whole numbers beyond ``MAX_JSON_NUMBER`` as strings, also those in tuples and mappings."""
    if isinstance(value, Mapping):
        return {name: _exact(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_exact(each) for each in value]
    return str(value) if isinstance(value, int) and abs(value) > MAX_JSON_NUMBER else value
