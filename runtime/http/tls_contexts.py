"""TLS as Python does it, for HTTP, with the certificates that are in force at the moment of a handshake."""

from __future__ import annotations

import asyncio
import os
import ssl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

from .identity import Certified, Identity


def server_context(certified: Certified) -> ssl.SSLContext:
    """TLS for a server: 1.2 or newer, with the certificates that are in force when somebody connects."""
    # Of its own: it must not be one that is remembered for an identity, and is given to others.
    first = server_material.__wrapped__(certified.identity)

    def in_force(connection: ssl.SSLObject, _name: str | None, _first: ssl.SSLContext) -> None:
        identity = certified.identity
        connection.context = server_material(identity)

    first.sni_callback = in_force
    return first


@lru_cache(maxsize=4)
def server_material(identity: Identity) -> ssl.SSLContext:
    """TLS for a server with these certificates.

    Nobody may resume a session: whoever does shows no certificate again, though its authority may be gone by now. TLS
    1.2 has sessions without tickets as well, which Python cannot turn off: see ``is_resumed``.

    Raises:
        ssl.SSLError: TLS is not possible with them.
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


@lru_cache(maxsize=4)
def client_context(identity: Identity) -> ssl.SSLContext:
    """TLS for a client: it shows its certificate, and checks the name of whoever answers."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_verify_locations(cadata=identity.authorities.decode("ascii"))
    with _as_file(identity.secret + b"\n" + identity.chain) as path:
        context.load_cert_chain(path)
    return context


def is_resumed(transport: asyncio.BaseTransport) -> bool:
    """Whether a connection goes on with the session of an earlier one, whose certificates nobody has checked again."""
    connection = transport.get_extra_info("ssl_object")
    return connection is not None and bool(connection.session_reused)


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
