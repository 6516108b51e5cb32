"""TLS for HTTP, and who is at the other end of a connection.

A client may show a certificate, or send a token, or neither: health is for everybody. What it has shown is passed to
the application in the scope of each request. A handshake takes the certificates that are in force at that moment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from starlette.requests import Request
from uvicorn.protocols.http.h11_impl import H11Protocol

from tallybook.core.access import Presented
from tallybook.core.certificate_names import CertificateName, NameKind

_SHOWN: Final = "tallybook.certificate"
_KINDS: Final = {"DNS": NameKind.HOST, "URI": NameKind.URI, "IP Address": NameKind.ADDRESS}
"""What Python calls them."""


class CertifiedProtocol(H11Protocol):
    """HTTP/1.1 that tells the application which certificate a client has shown."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A connection, after its handshake."""
        super().connection_made(transport)
        connection = transport.get_extra_info("ssl_object")
        if connection is not None:
            self.app = _telling(self.app, _names(connection.getpeercert()))


def _names(certificate: dict[str, Any] | None) -> tuple[CertificateName, ...]:
    found = (certificate or {}).get("subjectAltName", ())
    return tuple(CertificateName.named(_KINDS[kind], name) for kind, name in found if kind in _KINDS)


def _telling(app: Callable[..., Awaitable[None]], names: tuple[CertificateName, ...]) -> Any:
    async def told(scope: dict[str, Any], receive: Any, send: Any) -> None:
        await app({**scope, _SHOWN: names}, receive, send)

    return told


def presented(request: Request) -> Presented:
    """What came with a request."""
    return Presented(request.scope.get(_SHOWN, ()), tuple(request.headers.getlist("authorization")))
