"""HTTP client for the ports of other processes of the cluster, with the certificate of this process.

It connects directly, without the proxies of the environment, which are for hosts outside the cluster such as object
stores, and it follows no redirects.
"""

from __future__ import annotations

import http.client
import io
import socket
import ssl
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from tallybook.core.errors import Outcome, PeerUnavailable, ProtocolViolation

from ..security.identity import CertificateSource
from ..security.tls_contexts import client_context
from ..tasks import ThreadWorkers

MAX_ANSWER_BYTES: Final = 4 << 20
"""Maximum size of an answer; those of our processes have some 100 kB."""
_THREADS: Final = 4
_MAX_PORT: Final = 65_535


def fetch_text(address: str, path: str, timeout_seconds: float, context: ssl.SSLContext | None = None) -> str:
    """GET ``path`` from ``address`` (host and port). Blocks: do not call it on an event loop.

    Args:
        timeout_seconds: for the whole request, except the name lookup.
        context: TLS context of a client; ``None``: no TLS.

    Raises:
        PeerUnavailable: there is no answer, the server has the wrong certificate, or the address is invalid.
        ProtocolViolation: the answer is an error or too long.
    """
    try:
        host, port = _host_and_port(address)
        with _connected(host, port, timeout_seconds, context) as sock:
            connection = http.client.HTTPConnection(host, port)
            # It needs only the methods of ``_SocketUntil``, and connects itself only without a socket.
            connection.sock = sock
            connection.request("GET", path)
            answer = connection.getresponse()
            content = answer.read(MAX_ANSWER_BYTES + 1)
    except (OSError, http.client.HTTPException, ValueError) as error:
        # An invalid host name is a ValueError.
        reason = str(error) or type(error).__name__
        raise PeerUnavailable(f"{address} does not answer: {reason}", outcome=Outcome.NOT_DONE) from None
    if answer.status != http.client.OK or len(content) > MAX_ANSWER_BYTES:
        raise ProtocolViolation(f"{address}{path} answers {answer.status}, {len(content)} bytes")
    if answer.length:
        raise PeerUnavailable(f"{address} closed the connection within its answer", outcome=Outcome.NOT_DONE)
    return content.decode(errors="replace")


def _host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    if not host or not port.isascii() or not port.isdigit() or int(port) > _MAX_PORT:
        raise ValueError("not of the form HOST:PORT")
    return host, int(port)


@contextmanager
def _connected(host: str, port: int, timeout_seconds: float, context: ssl.SSLContext | None) -> Iterator[_SocketUntil]:
    addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    until = time.monotonic() + timeout_seconds
    with _connect_first(addresses, until) as plain:
        if context is None:
            yield _SocketUntil(plain, until)
            return
        plain.settimeout(_left(until))
        with context.wrap_socket(plain, server_hostname=host) as encrypted:
            yield _SocketUntil(encrypted, until)


def _connect_first(addresses: Sequence[tuple[Any, ...]], until: float) -> socket.socket:
    """A connection to the first address that accepts one. Each gets an equal share of the remaining time."""
    failed: OSError = TimeoutError("timed out")
    for tried, (family, kind, protocol, _, where) in enumerate(addresses):
        sock = socket.socket(family, kind, protocol)
        try:
            sock.settimeout(_left(until) / (len(addresses) - tried))
            sock.connect(where)
        except OSError as error:
            sock.close()
            failed = error
        else:
            return sock
    raise failed


def _left(until: float) -> float:
    left = until - time.monotonic()
    if left <= 0:
        raise TimeoutError("timed out")
    return left


class _SocketUntil:
    """The part of a socket that ``http.client`` uses, with one deadline: a socket's own timeout is for each call."""

    def __init__(self, sock: socket.socket, until: float) -> None:
        self._sock = sock
        self._until = until

    def sendall(self, data: bytes) -> None:
        """Send all of ``data``."""
        self._sock.settimeout(_left(self._until))
        self._sock.sendall(data)

    def makefile(self, _: str) -> io.BufferedReader:
        """A reader of the received data."""
        return io.BufferedReader(_Incoming(self._sock, self._until))

    def close(self) -> None:
        """No effect: ``_connected`` closes the socket."""


class _Incoming(io.RawIOBase):
    def __init__(self, sock: socket.socket, until: float) -> None:
        self._sock = sock
        self._until = until

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._sock.settimeout(_left(self._until))
        return self._sock.recv_into(buffer)


class HttpClient:
    """Fetches small texts with bounded concurrency.

    Args:
        certified: certificates, if the cluster has security; ``None``: no TLS.
        timeout_seconds: for one fetch, as in ``fetch_text``.
        max_concurrency: fetches that run concurrently; more wait.
    """

    def __init__(
        self, certified: CertificateSource | None, timeout_seconds: float, max_concurrency: int = _THREADS
    ) -> None:
        self._certified = certified
        self._timeout_seconds = timeout_seconds
        self._workers = ThreadWorkers(max_concurrency, "http-client")

    async def fetch(self, address: str, path: str) -> str:
        """GET ``path`` from ``address`` (host and port).

        Raises:
            PeerUnavailable, ProtocolViolation: as ``fetch_text``.
        """
        return await self._workers.run(self._fetch, address, path)

    def _fetch(self, address: str, path: str) -> str:
        context = None if self._certified is None else client_context(self._certified.identity)
        return fetch_text(address, path, self._timeout_seconds, context)

    async def close(self) -> None:
        """Wait for running fetches, then end the threads."""
        await self._workers.close()
