"""The transport over TCP: opens streams, and listens on a port of its own.

The first message of a client names the kind of stream, and the server's first message accepts it. Both are short, so
that a peer with another protocol is recognised by its first bytes.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from functools import partial

from tallybook.core.errors import PeerUnavailable, Unauthenticated
from tallybook.core.limits import MAX_MESSAGE_BYTES

from ..listening import Listening, bind
from ..security.identity import CertificateSource
from ..security.tls_contexts import client_context
from ..transport import Acceptor, MessageStream
from .framing import SCRATCH_BYTES
from .listener import ACCEPTED, GREETING, TcpListener
from .load import TcpLoad
from .stream import TcpStream


class TcpTransport:
    """Streams over TCP, on one event loop.

    Args:
        kinds: the kinds of stream that it accepts.
        max_connections: how many connections a listener takes.
        security: certificates for both ends; ``None``: without TLS.
        load: counters of the listener; ``None``: nothing is counted.
    """

    def __init__(
        self,
        kinds: tuple[str, ...],
        *,
        max_connections: int = 8192,
        security: CertificateSource | None = None,
        load: TcpLoad | None = None,
    ) -> None:
        self._kinds = kinds
        self._max_connections = max_connections
        self._security = security
        self._load = load
        self._new_stream: Callable[..., TcpStream] = partial(TcpStream, memoryview(bytearray(SCRATCH_BYTES)))

    async def connect(self, address: str, kind: str, *, timeout_seconds: float) -> MessageStream:
        """Open a stream; see the port.

        Raises:
            Unauthenticated: client and server do not agree on TLS, or on a certificate.
        """
        stream = self._new_stream(server=address, max_message_bytes=MAX_MESSAGE_BYTES)
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._open(stream, address)
                await stream.send(GREETING + kind.encode())
                answer = await stream.receive()
        except TimeoutError:
            stream.abort()
            raise PeerUnavailable(f"{address} did not answer within {timeout_seconds} s") from None
        except BaseException:
            stream.abort()
            raise
        if answer != ACCEPTED:
            stream.abort()
            raise PeerUnavailable(f"{address} does not accept the stream")
        return stream

    async def _open(self, stream: TcpStream, address: str) -> None:
        host, _, port = address.rpartition(":")
        host = host.strip("[]")
        context = None if self._security is None else client_context(self._security.identity)
        try:
            await asyncio.get_running_loop().create_connection(
                lambda: stream, host, int(port), ssl=context, server_hostname=host if context is not None else None
            )
        except ssl.SSLError as error:
            raise Unauthenticated(f"no connection to {address}: {error}") from None
        except (OSError, ValueError, OverflowError) as error:
            raise PeerUnavailable(f"{address} refuses connections: {error}") from None

    async def listen(self, address: str, acceptor: Acceptor) -> TcpListener:
        """Serve an address; see the port."""
        bound = bind(address)
        try:
            return await self.serve(bound, acceptor)
        except BaseException:
            bound.close()
            raise

    async def serve(self, bound: Listening, acceptor: Acceptor) -> TcpListener:
        """Serve a listening socket, which belongs to the listener from now on."""
        listener = TcpListener(
            bound,
            acceptor,
            self._kinds,
            self._new_stream,
            max_connections=self._max_connections,
            security=self._security,
            load=self._load or TcpLoad(),
        )
        await listener.start()
        return listener
