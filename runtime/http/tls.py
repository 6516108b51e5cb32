"""TLS for HTTP connections, with a handshake deadline, counted from the accepted connection on.

With the TLS support of the event loop, a protocol is told of a connection only after the handshake, so clients that do
not finish it would not be counted or limited. Here the loop accepts plain connections, and their protocol does TLS.
"""

from __future__ import annotations

import asyncio
import ssl
from asyncio.sslproto import SSLProtocol
from typing import Any, Final

from ..security.connection_table import ConnectionTable
from .load import HANDSHAKE, HttpLoad
from .protocol import BoundedProtocol, enter

HANDSHAKE_SECONDS: Final = 10
"""Limit of the TLS handshake."""


class TlsPort:
    """Makes the protocol of each connection to one port.

    Args:
        context: TLS context of the server.
        load: counts dropped connections.
        table: connections of the port, including those in a handshake.
    """

    def __init__(self, context: ssl.SSLContext, load: HttpLoad, table: ConnectionTable) -> None:
        self.context = context
        self.load = load
        self.table = table

    def __call__(self, **given: Any) -> asyncio.BaseProtocol:
        """Make the protocol of one connection; HTTP starts after the handshake."""
        return _Tls(self, BoundedProtocol(self.load, self.table, **given))


class _Tls(SSLProtocol):
    """One connection."""

    def __init__(self, port: TlsPort, inner: BoundedProtocol) -> None:
        super().__init__(
            asyncio.get_running_loop(),
            inner,
            port.context,
            None,  # type: ignore[arg-type]  # no future waits for the handshake
            server_side=True,
            ssl_handshake_timeout=HANDSHAKE_SECONDS,
        )
        self._port = port
        self._inner = inner

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A connection was accepted; the handshake starts."""
        self._inner.entry = enter(self._port.table, transport)
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        """It is over."""
        entry = self._inner.entry
        if entry is not None and not self._inner.made:
            if not entry.dropped:
                self._port.load.dropped(HANDSHAKE)
            entry.leave()
        super().connection_lost(exc)
