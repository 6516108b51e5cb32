"""Reading from the HTTP ports of other processes of the cluster, by the certificate of this one.

They are asked directly: a proxy that the environment names is for what is outside, such as an object store, and whoever
answers sends nobody elsewhere.
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

from tallybook.core.errors import BookieUnavailable, Outcome, ProtocolViolation

from .identity import Certified
from .tasks import ThreadWorkers
from .tls_contexts import client_context

MAX_ANSWER_BYTES: Final = 4 << 20
"""A process shows some hundred kilobytes; what shows more is none of ours."""
_THREADS: Final = 4
_MAX_PORT: Final = 65_535


def fetch_text(address: str, path: str, timeout_seconds: float, context: ssl.SSLContext | None = None) -> str:
    """What ``path`` is at ``address``, host and port. Waits, so not for an event loop.

    Args:
        timeout_seconds: for all of it, but for what the resolver of this machine takes to find a name.
        context: TLS, as a client speaks it; ``None``: without.

    Raises:
        BookieUnavailable: nobody answers there, or not whoever was meant; or it is no address.
        ProtocolViolation: the answer is an error, or very long.
    """
    try:
        host, port = _place(address)
        with _connected(host, port, timeout_seconds, context) as sock:
            connection = http.client.HTTPConnection(host, port)
            # It uses no more of a socket than there is, and would connect by itself only if it had none.
            connection.sock = sock
            connection.request("GET", path)
            answer = connection.getresponse()
            content = answer.read(MAX_ANSWER_BYTES + 1)
    except (OSError, http.client.HTTPException, ValueError) as error:
        # A name that cannot be one is a ValueError.
        reason = str(error) or type(error).__name__
        raise BookieUnavailable(f"{address} does not answer: {reason}", outcome=Outcome.NOT_DONE) from None
    if answer.status != http.client.OK or len(content) > MAX_ANSWER_BYTES:
        raise ProtocolViolation(f"{address}{path} answers {answer.status}, {len(content)} bytes")
    if answer.length:
        raise BookieUnavailable(f"{address} ends in the middle of its answer", outcome=Outcome.NOT_DONE)
    return content.decode(errors="replace")


def _place(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    if not host or not port.isascii() or not port.isdigit() or int(port) > _MAX_PORT:
        raise ValueError("it is no HOST:PORT")
    return host, int(port)


@contextmanager
def _connected(host: str, port: int, timeout_seconds: float, context: ssl.SSLContext | None) -> Iterator[_SocketUntil]:
    places = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    until = time.monotonic() + timeout_seconds
    with _first(places, until) as plain:
        if context is None:
            yield _SocketUntil(plain, until)
            return
        plain.settimeout(_left(until))
        with context.wrap_socket(plain, server_hostname=host) as sealed:
            yield _SocketUntil(sealed, until)


def _first(places: Sequence[tuple[Any, ...]], until: float) -> socket.socket:
    """A connection to the first place that takes one. Each has its part of the time that is left."""
    failed: OSError = TimeoutError("timed out")
    for tried, (family, kind, protocol, _, where) in enumerate(places):
        sock = socket.socket(family, kind, protocol)
        try:
            sock.settimeout(_left(until) / (len(places) - tried))
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
    """What ``http.client`` needs of a socket, up to a moment: a timeout of a socket begins anew with each call."""

    def __init__(self, sock: socket.socket, until: float) -> None:
        self._sock = sock
        self._until = until

    def sendall(self, data: bytes) -> None:
        """Send all of it."""
        self._sock.settimeout(_left(self._until))
        self._sock.sendall(data)

    def makefile(self, _: str) -> io.BufferedReader:
        """What comes."""
        return io.BufferedReader(_Incoming(self._sock, self._until))

    def close(self) -> None:
        """Nothing: whoever opened the socket closes it."""


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
    """Fetches small texts, a few at a time.

    Args:
        certified: certificates, where the cluster has security; ``None``: no TLS.
        timeout_seconds: for a fetch, as ``fetch_text`` has it.
        at_once: how many; more wait.
    """

    def __init__(self, certified: Certified | None, timeout_seconds: float, at_once: int = _THREADS) -> None:
        self._certified = certified
        self._timeout_seconds = timeout_seconds
        self._workers = ThreadWorkers(at_once, "http-client")

    async def fetch(self, address: str, path: str) -> str:
        """What ``path`` is at ``address``, host and port.

        Raises:
            BookieUnavailable: nobody answers there, or not whoever was meant; or it is no address.
            ProtocolViolation: the answer is an error, or very long.
        """
        return await self._workers.run(self._fetch, address, path)

    def _fetch(self, address: str, path: str) -> str:
        context = None if self._certified is None else client_context(self._certified.identity)
        return fetch_text(address, path, self._timeout_seconds, context)

    async def close(self) -> None:
        """Let what is under way end."""
        await self._workers.close()
