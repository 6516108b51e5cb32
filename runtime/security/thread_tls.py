"""Blocking TLS connections, for libraries that use their own threads."""

from __future__ import annotations

import socket
import ssl
from pathlib import Path

from .files import AUTHORITY, CERTIFICATE, PRIVATE


def client_context(directory: str) -> ssl.SSLContext:
    """A TLS client context with the current certificates of a security directory.

    It trusts only the authorities of the directory, checks the server's name, and requires TLS 1.2 or newer.

    Raises:
        OSError: the files cannot be read.
    """
    path = Path(directory)
    context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=str(path / AUTHORITY))
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(path / CERTIFICATE, path / PRIVATE)
    return context


def connect_tls(directory: str, address: tuple[str, int], host: str, timeout_seconds: float) -> ssl.SSLSocket:
    """Open a TLS connection to ``address`` with the certificates of a security directory.

    Args:
        host: name or IP address, without brackets, that the server's certificate must have.
        timeout_seconds: timeout of each step.

    Raises:
        OSError: the connection or the handshake failed, the server has another name, or the files cannot be read.
    """
    context = client_context(directory)
    plain = socket.create_connection(address, timeout_seconds)
    try:
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return context.wrap_socket(plain, server_hostname=host)
    except BaseException:
        plain.close()
        raise
