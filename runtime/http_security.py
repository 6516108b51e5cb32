"""TLS for HTTP, and who is at the other end of a connection.

A client may show a certificate, or send a token, or neither: health is for everybody. What it has shown is passed to
the application in the scope of each request. A handshake takes the certificates that are in force at that moment.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Final

from starlette.requests import Request
from uvicorn.protocols.http.h11_impl import H11Protocol

from tallybook.core.access import Presented

from .identity import Certified, Identity

_SHOWN: Final = "tallybook.certificate"
_KINDS: Final = ("DNS", "URI", "IP Address")


def server_context(certified: Certified) -> ssl.SSLContext:
    """TLS for a server: 1.2 or newer, with the certificates that are in force when somebody connects."""
    first = _context(certified.identity)

    def in_force(connection: ssl.SSLObject, _name: str | None, _first: ssl.SSLContext) -> None:
        identity = certified.identity
        connection.context = _context(identity)

    first.sni_callback = in_force
    return first


@lru_cache(maxsize=4)
def _context(identity: Identity) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_mode = ssl.CERT_OPTIONAL
    context.load_verify_locations(cadata=identity.authorities.decode("ascii"))
    with _as_file(identity.secret + b"\n" + identity.chain) as path:
        context.load_cert_chain(path)
    return context


@lru_cache(maxsize=4)
def client_context(identity: Identity) -> ssl.SSLContext:
    """TLS for a client: it shows its certificate, and checks the name of whoever answers."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_verify_locations(cadata=identity.authorities.decode("ascii"))
    with _as_file(identity.secret + b"\n" + identity.chain) as path:
        context.load_cert_chain(path)
    return context


@contextmanager
def _as_file(content: bytes) -> Iterator[str]:
    """The path of a file with a secret in it: Python reads keys from files only. In memory where that is possible."""
    if hasattr(os, "memfd_create"):
        with os.fdopen(os.memfd_create("tallybook"), "wb", buffering=0) as file:
            file.write(content)
            yield f"/proc/self/fd/{file.fileno()}"
        return
    with tempfile.NamedTemporaryFile(prefix="tallybook-", buffering=0) as named:
        named.write(content)
        yield named.name


class CertifiedProtocol(H11Protocol):
    """HTTP/1.1 that tells the application which certificate a client has shown."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A connection, after its handshake."""
        super().connection_made(transport)
        connection = transport.get_extra_info("ssl_object")
        if connection is not None:
            self.app = _telling(self.app, _names(connection.getpeercert()))


def _names(certificate: dict[str, Any] | None) -> tuple[str, ...]:
    found = (certificate or {}).get("subjectAltName", ())
    return tuple(name for kind, name in found if kind in _KINDS)


def _telling(app: Callable[..., Awaitable[None]], names: tuple[str, ...]) -> Any:
    async def told(scope: dict[str, Any], receive: Any, send: Any) -> None:
        await app({**scope, _SHOWN: names}, receive, send)

    return told


def presented(request: Request) -> Presented:
    """What came with a request."""
    return Presented(request.scope.get(_SHOWN, ()), tuple(request.headers.getlist("authorization")))
