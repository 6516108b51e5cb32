"""What a process offers over HTTP beside health and numbers: endpoints in one table, their answers, and their errors.

    Endpoint("GET", "/api/v1/ledgers/{ledger}", Permission.READ, handler)

A handler is given an ``Asked`` and returns what the answer is to hold, as values that JSON knows; what goes wrong it
raises, as an error of ``core/errors``. Who may call it, and whether the request is one at all, is seen to before
(``http_guard``).
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
    AccessDenied,
    Busy,
    CallerError,
    InvalidArgument,
    NoSuchBookie,
    NoSuchLedger,
    NoSuchNamespace,
    NoSuchStream,
    NoSuchSubscription,
    PeerError,
    ReadBeyondLac,
    RequestTimeout,
    TallybookError,
    Unauthenticated,
)
from tallybook.core.ids import MAX_ID

_NOT_THERE: Final = (NoSuchBookie, NoSuchLedger, NoSuchNamespace, NoSuchStream, NoSuchSubscription, ReadBeyondLac)
_ID: Final = re.compile(r"[0-9]{1,19}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Asked:
    """One request that was let in."""

    principal: Principal
    peer: str
    """The connection."""
    path: Mapping[str, str]
    """What stood in the places of the path."""
    query: Mapping[str, str]
    """Parameters, each given once."""
    body: Mapping[str, Any]
    """The JSON object that was sent; empty if there was none."""

    def id(self, name: str) -> int:
        """An id in the path.

        Raises:
            InvalidArgument: it is none.
        """
        return _number(name, self.path[name], MAX_ID)

    def count(self, name: str, default: int, most: int) -> int:
        """A number from the query, between 0 and ``most``.

        Raises:
            InvalidArgument: it is none.
        """
        given = self.query.get(name)
        return default if given is None else _number(name, given, most)


def _number(name: str, text: str, most: int) -> int:
    if _ID.fullmatch(text) is None or int(text) > most:
        raise InvalidArgument(f"{name} must be a whole number in 0 .. {most}")
    return int(text)


Handler: TypeAlias = Callable[[Asked], Awaitable[object]]


class Endpoint(NamedTuple):
    """One line of the table."""

    method: str
    """GET (and so HEAD), POST or DELETE."""
    path: str
    """Its parts, of which those in braces stand for anything."""
    permission: Permission
    handler: Handler
    parameters: tuple[str, ...] = ()
    """What the query may have; anything else is refused."""
    fields: tuple[str, ...] = ()
    """The same for the body."""
    action: str = ""
    """How the audit log calls it; for whatever changes something."""


class Page(NamedTuple):
    """A file that is the same for everybody, and is shown to everybody: it tells nothing of a cluster."""

    media_type: str
    content: bytes


class Offer(NamedTuple):
    """All that a process offers."""

    endpoints: Sequence[Endpoint]
    pages: Mapping[str, Page] = {}
    hosts: Sequence[str] = ()
    """Names by which it is reached, besides those that it knows by itself."""


def status_of(error: TallybookError) -> int:
    """The HTTP status that an error is told with."""
    if isinstance(error, Unauthenticated):
        return 401
    if isinstance(error, AccessDenied):
        return 403
    if isinstance(error, _NOT_THERE):
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
    """The headers that say what to do about an error."""
    if isinstance(error, Unauthenticated):
        return {"www-authenticate": "Bearer"}
    if isinstance(error, Busy):
        return {"retry-after": str(max(1, -(-error.retry_after_ms // 1000)))}
    return {}


def failed(error: TallybookError, status: int | None = None, headers: Mapping[str, str] | None = None) -> Response:
    """The answer that tells of an error.

    Args:
        status: where HTTP has one of its own for it.
    """
    told = {
        "type": type(error).__name__,
        "message": error.message,
        "fault": error.fault.value,
        "retriable": error.retriable,
        "outcome": error.outcome.value,
    }
    return _json({"error": told}, status or status_of(error), {**(headers or {}), **headers_of(error)})


def answered(value: object) -> Response:
    """The answer that holds ``value``."""
    return _json(value, 200, {})


def _json(value: object, status: int, headers: Mapping[str, str]) -> Response:
    # No bare "<": what is shown as HTML by mistake is still nothing but text.
    text = json.dumps(value, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    return Response(
        text.encode(), status, {"cache-control": "no-store", **headers}, media_type="application/json; charset=utf-8"
    )
