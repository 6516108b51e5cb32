"""TLS as Python does it, for HTTP and TCP streams, with the certificates in force at the moment of a handshake."""

from __future__ import annotations

import asyncio
import os
import ssl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Final

from tallybook.core.certificate_names import CertificateName, NameKind

from .identity import CertificateSource, Identity

_KINDS: Final = {"DNS": NameKind.HOST, "URI": NameKind.URI, "IP Address": NameKind.ADDRESS}
"""Kinds of alternative names, as the ``ssl`` module calls them."""


def server_context(certified: CertificateSource) -> ssl.SSLContext:
    """A TLS context for a server: TLS 1.2 or newer, with the certificates in force at each handshake."""
    # Uncached: a callback is set on this context, so it must not be shared.
    first = server_material.__wrapped__(certified.identity)

    def in_force(connection: ssl.SSLObject, _name: str | None, _first: ssl.SSLContext) -> None:
        identity = certified.identity
        connection.context = server_material(identity)

    first.sni_callback = in_force
    return first


@lru_cache(maxsize=4)
def server_material(identity: Identity) -> ssl.SSLContext:
    """A TLS context for a server with these certificates.

    Session resumption is off: a resumed session skips the client certificate, whose authority may have been removed.
    TLS 1.2 can also resume without tickets, which Python cannot turn off: see ``is_resumed``.

    Raises:
        ssl.SSLError: the certificates cannot be used.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_TICKET
    context.num_tickets = 0
    context.verify_mode = ssl.CERT_OPTIONAL
    context.load_verify_locations(cadata=identity.authorities.decode("ascii"))
    with _as_file(identity.secret + b"\n" + identity.chain) as path:
        context.load_cert_chain(path)
    return context


def new_client_context(identity: Identity) -> ssl.SSLContext:
    """A TLS context for a client: it sends its certificate and checks the server's name."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_verify_locations(cadata=identity.authorities.decode("ascii"))
    with _as_file(identity.secret + b"\n" + identity.chain) as path:
        context.load_cert_chain(path)
    return context


client_context = lru_cache(maxsize=4)(new_client_context)
"""The same, one for all connections with these certificates."""


def is_resumed(transport: asyncio.BaseTransport) -> bool:
    """Whether a connection resumed an earlier TLS session, so that its certificate was not checked again."""
    connection = transport.get_extra_info("ssl_object")
    return connection is not None and bool(connection.session_reused)


def peer_names(transport: asyncio.BaseTransport) -> tuple[CertificateName, ...]:
    """The names in the peer's certificate; none if it has presented no certificate, or without TLS."""
    connection = transport.get_extra_info("ssl_object")
    certificate = None if connection is None else connection.getpeercert()
    found = (certificate or {}).get("subjectAltName", ())
    return tuple(CertificateName.of_kind(_KINDS[kind], name) for kind, name in found if kind in _KINDS)


@contextmanager
def _as_file(content: bytes) -> Iterator[str]:
    """The path of a temporary file with ``content``, in memory if possible: Python loads keys only from files."""
    if hasattr(os, "memfd_create"):
        with os.fdopen(os.memfd_create("tallybook"), "wb", buffering=0) as file:
            file.write(content)
            yield f"/proc/self/fd/{file.fileno()}"
        return
    with tempfile.NamedTemporaryFile(prefix="tallybook-", buffering=0) as named:
        named.write(content)
        yield named.name
