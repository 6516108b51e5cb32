"""Reading from the HTTP ports of other processes of the cluster, by the certificate of this one.

They are asked directly: a proxy that the environment names is for what is outside, such as an object store, and whoever
answers sends nobody elsewhere.
"""

from __future__ import annotations

import http.client
import ssl
from typing import Final

from tallybook.core.errors import BookieUnavailable, Outcome, ProtocolViolation

from .identity import Certified
from .tasks import ThreadWorkers
from .tls_contexts import client_context

MAX_ANSWER_BYTES: Final = 4 << 20
"""A process shows some hundred kilobytes; what shows more is none of ours."""
_THREADS: Final = 4


def fetch_text(address: str, path: str, timeout_seconds: float, context: ssl.SSLContext | None = None) -> str:
    """What ``path`` is at ``address``, host and port. Waits, so not for an event loop.

    Args:
        timeout_seconds: for each step: to connect, and to read on.
        context: TLS, as a client speaks it; ``None``: without.

    Raises:
        BookieUnavailable: nobody answers there, or not whoever was meant.
        ProtocolViolation: the answer is an error, or very long.
    """
    connection = _connection(address, timeout_seconds, context)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        content = answer.read(MAX_ANSWER_BYTES + 1)
    except (OSError, http.client.HTTPException) as error:
        reason = str(error) or type(error).__name__
        raise BookieUnavailable(f"{address} does not answer: {reason}", outcome=Outcome.NOT_DONE) from None
    finally:
        connection.close()
    if answer.status != http.client.OK or len(content) > MAX_ANSWER_BYTES:
        raise ProtocolViolation(f"{address}{path} answers {answer.status}, {len(content)} bytes")
    if answer.length:
        raise BookieUnavailable(f"{address} ends in the middle of its answer", outcome=Outcome.NOT_DONE)
    return content.decode(errors="replace")


def _connection(address: str, timeout_seconds: float, context: ssl.SSLContext | None) -> http.client.HTTPConnection:
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    if context is None:
        return http.client.HTTPConnection(host, int(port), timeout=timeout_seconds)
    return http.client.HTTPSConnection(host, int(port), timeout=timeout_seconds, context=context)


class HttpClient:
    """Fetches small texts, a few at a time.

    Args:
        certified: certificates, where the cluster has security; ``None``: no TLS.
        timeout_seconds: for each step of a fetch: to connect, and to read on.
        at_once: how many; more wait.
    """

    def __init__(self, certified: Certified | None, timeout_seconds: float, at_once: int = _THREADS) -> None:
        self._certified = certified
        self._timeout_seconds = timeout_seconds
        self._workers = ThreadWorkers(at_once, "http-client")

    async def fetch(self, address: str, path: str) -> str:
        """What ``path`` is at ``address``, host and port.

        Raises:
            BookieUnavailable: nobody answers there, or not whoever was meant.
            ProtocolViolation: the answer is an error, or very long.
        """
        return await self._workers.run(self._fetch, address, path)

    def _fetch(self, address: str, path: str) -> str:
        context = None if self._certified is None else client_context(self._certified.identity)
        return fetch_text(address, path, self._timeout_seconds, context)

    async def close(self) -> None:
        """Let what is under way end."""
        await self._workers.close()
