"""Reading from the HTTP ports of other processes of the cluster, by the certificate of this one."""

from __future__ import annotations

import http.client
import ssl
from typing import Final

from tallybook.core.errors import BookieUnavailable, Outcome, ProtocolViolation

from .identity import Certified
from .tasks import ThreadWorkers
from .tls_contexts import client_context

MAX_ANSWER_BYTES: Final = 4 << 20
_THREADS: Final = 4


class HttpClient:
    """Fetches small texts, a few at a time.

    Args:
        certified: certificates, where the cluster has security; ``None``: no TLS.
        timeout_seconds: for each step of a fetch: to connect, and to read on.
    """

    def __init__(self, certified: Certified | None, timeout_seconds: float) -> None:
        self._certified = certified
        self._timeout_seconds = timeout_seconds
        self._workers = ThreadWorkers(_THREADS, "http-client")

    async def fetch(self, address: str, path: str) -> str:
        """What ``path`` is at ``address``, host and port.

        Raises:
            BookieUnavailable: nobody answers there, or not whoever was meant.
            ProtocolViolation: the answer is an error, or no text, or very long.
        """
        return await self._workers.run(self._fetch, address, path)

    def _fetch(self, address: str, path: str) -> str:
        connection = self._connection(address)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            content = answer.read(MAX_ANSWER_BYTES + 1)
        except (OSError, http.client.HTTPException) as error:
            raise BookieUnavailable(f"{address} does not answer: {error!r}", outcome=Outcome.NOT_DONE) from None
        finally:
            connection.close()
        if answer.status != http.client.OK or len(content) > MAX_ANSWER_BYTES:
            raise ProtocolViolation(f"{address}{path} answers {answer.status}, {len(content)} bytes")
        return content.decode(errors="replace")

    def _connection(self, address: str) -> http.client.HTTPConnection:
        host, _, port = address.rpartition(":")
        host = host.strip("[]")
        if self._certified is None:
            return http.client.HTTPConnection(host, int(port), timeout=self._timeout_seconds)
        context: ssl.SSLContext = client_context(self._certified.identity)
        return http.client.HTTPSConnection(host, int(port), timeout=self._timeout_seconds, context=context)

    async def close(self) -> None:
        """Let what is under way end."""
        await self._workers.close()
