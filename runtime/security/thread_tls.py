"""TLS connections for libraries that work in threads of their own."""

from __future__ import annotations

import socket
import ssl
from pathlib import Path

from .files import AUTHORITY, CERTIFICATE, PRIVATE


def client_context(directory: str) -> ssl.SSLContext:
    """TLS with the certificates of a security directory, as they are now.

    Only its own authorities are trusted, the name of the other end is checked, and TLS is 1.2 or newer.

    Raises:
        OSError: the files cannot be read just now.
    """
    place = Path(directory)
    context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=str(place / AUTHORITY))
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(place / CERTIFICATE, place / PRIVATE)
    return context


def dial(directory: str, address: tuple[str, int], host: str, timeout_seconds: float) -> ssl.SSLSocket:
    """A connection to ``address``, whose certificate is for ``host``, with the certificates of a security directory.

    Args:
        host: a name or an IP address, without brackets.
        timeout_seconds: for each step.

    Raises:
        OSError: nobody is there, or somebody else is, or the files cannot be read just now.
    """
    context = client_context(directory)
    plain = socket.create_connection(address, timeout_seconds)
    try:
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return context.wrap_socket(plain, server_hostname=host)
    except BaseException:
        plain.close()
        raise
