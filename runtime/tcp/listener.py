"""A TCP port that accepts streams.

A connection has limited time for its TLS handshake and its greeting. Those that have not sent a greeting, with TLS
after a certificate, are bounded, in total and for each peer, and are dropped first; see ``ConnectionTable``. The
acceptor authenticates the others, and limits their time until then.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Final

from tallybook.core.access import Presented
from tallybook.core.errors import PeerUnavailable
from tallybook.core.limits import MAX_MESSAGE_BYTES

from ..clock import RealClock
from ..handler_tasks import HandlerTasks
from ..listening import Listening, address_of
from ..logging import logger
from ..security.connection_table import ConnectionTable, DropLog, TrackedConnection
from ..security.identity import CertificateSource
from ..security.tls_contexts import is_resumed, peer_names, server_context
from ..transport import Acceptor
from . import load as reasons
from .load import TcpLoad
from .stream import TcpStream

GREETING: Final = b"tallybook 1 "
"""First message of a client, before the kind of stream."""
ACCEPTED: Final = b"accepted"
"""First message of a server."""
MAX_GREETING_BYTES: Final = 64
GREETING_SECONDS: Final = 10.0
"""How long a connection may take until its greeting has arrived."""
MAX_WAITING: Final = 1024
"""Connections without a greeting, even of one peer: a host may have hundreds of clients that reconnect at once."""

_log = logger("tcp")


class TcpListener:
    """A served address; see the port. Made by ``TcpTransport``.

    Args:
        bound: the listening socket.
        new_stream: ``TcpStream``, with the scratch buffer that all streams of the event loop share.
    """

    def __init__(
        self,
        bound: Listening,
        acceptor: Acceptor,
        kinds: tuple[str, ...],
        new_stream: Callable[..., TcpStream],
        *,
        max_connections: int,
        security: CertificateSource | None,
        load: TcpLoad,
    ) -> None:
        self._bound = bound
        self._acceptor = acceptor
        self._kinds = {GREETING + kind.encode(): kind for kind in kinds}
        self._new_stream = new_stream
        self._tls = None if security is None else server_context(security)
        self._load = load
        self._drop_log = DropLog(RealClock(), "tcp")
        self._table = ConnectionTable(MAX_WAITING, MAX_WAITING, self._dropped, max_connections)
        load.connections, load.max_connections = self._table, max_connections
        self._streams: dict[TcpStream, None] = {}
        self._handlers = HandlerTasks()
        self._server: asyncio.Server | None = None
        self._closed = False
        self._address = address_of(bound)

    @property
    def address(self) -> str:
        """Host and port that clients connect to."""
        return self._address

    async def start(self) -> None:
        """Accept connections from now on."""
        self._server = await asyncio.get_running_loop().create_server(self._accepted, sock=self._bound)

    async def close(self, grace_seconds: float) -> None:
        """Stop the port; see the port of transports."""
        self._closed = True
        if self._server is not None:
            self._server.close()
        if grace_seconds:
            await self._handlers.wait(grace_seconds)
        for stream in list(self._streams):
            stream.abort()
        await self._handlers.close()

    def _accepted(self) -> TcpStream:
        return self._new_stream(max_message_bytes=MAX_GREETING_BYTES, on_connected=self._connected)

    def _connected(self, stream: TcpStream, transport: asyncio.Transport) -> None:
        if self._closed:
            stream.abort()
            return
        if self._tls is None:
            stream.set_transport(transport)
        else:
            # The bytes of the handshake are not for the stream.
            transport.pause_reading()
        entry = self._table.enter(stream.peer.rpartition(":")[0].strip("[]"), lambda _why: stream.abort())
        if entry.dropped:
            return  # all others are held by streams
        task = asyncio.get_running_loop().create_task(self._serve(stream, transport, entry), name="tcp stream")
        self._streams[stream] = None
        self._handlers.keep(task)

    def _dropped(self, why: str, peer: str) -> None:
        self._load.dropped(why)
        self._drop_log.dropped(why, peer)

    async def _serve(self, stream: TcpStream, transport: asyncio.Transport, entry: TrackedConnection) -> None:
        try:
            kind = await self._greeted(stream, transport)
            if kind is None:
                if not entry.dropped:
                    self._load.dropped(reasons.GREETING)
                return
            entry.hold()
            stream.allow(MAX_MESSAGE_BYTES)
            await stream.send(ACCEPTED)
            await self._acceptor(kind, stream)
            await stream.close()
        except PeerUnavailable:
            return  # the stream broke, or the acceptor gave up
        except Exception as error:  # noqa: BLE001 - a defect met with one stream must not cost the others theirs
            _log.defect("stream failed", error, peer=stream.peer)
        finally:
            stream.abort()
            del self._streams[stream]
            entry.leave()

    async def _greeted(self, stream: TcpStream, transport: asyncio.Transport) -> str | None:
        """The kind of stream that the client asks for; ``None``: it does not ask properly, or not in time."""
        try:
            async with asyncio.timeout(GREETING_SECONDS):
                if self._tls is not None and not await self._secured(stream, transport, self._tls):
                    return None
                first = await stream.receive()
        except (TimeoutError, PeerUnavailable, OSError):
            return None
        return None if first is None else self._kinds.get(bytes(first))

    async def _secured(self, stream: TcpStream, transport: asyncio.Transport, context: ssl.SSLContext) -> bool:
        """Do the TLS handshake; ``False`` if the client presents no certificate, or resumes an earlier session.

        Raises:
            OSError: the handshake failed.
        """
        loop = asyncio.get_running_loop()
        if transport.is_closing():
            return False
        secured = await loop.start_tls(transport, stream, context, server_side=True)
        if secured is None or is_resumed(secured) or not (names := peer_names(secured)):
            return False
        stream.set_transport(secured, Presented(names))
        return True
