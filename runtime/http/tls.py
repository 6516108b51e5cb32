"""TLS before HTTP, within bounds: a connection counts from when it is there, and its handshake has a time.

A loop that speaks TLS itself tells of a connection when its handshake is over, so whoever begins one and goes no
further would be counted nowhere, and for as long as the loop likes. Here the loop knows plain connections only, and TLS
is the protocol that they have.
"""

from __future__ import annotations

import asyncio
import ssl
from asyncio.sslproto import SSLProtocol
from typing import Any, Final

from .connection_table import ConnectionTable
from .http_load import HANDSHAKE, HttpLoad
from .http_protocol import BoundedProtocol, enter

HANDSHAKE_SECONDS: Final = 10
"""From the connection until it is known who is there."""


class TlsPort:
    """Makes the protocol of each connection to one port.

    Args:
        context: TLS, as a server speaks it.
        load: counts what is dropped here.
        table: connections of the port, those in a handshake included.
    """

    def __init__(self, context: ssl.SSLContext, load: HttpLoad, table: ConnectionTable) -> None:
        self.context = context
        self.load = load
        self.table = table

    def __call__(self, **given: Any) -> asyncio.BaseProtocol:
        """The protocol of one connection, which HTTP is told of when its handshake is over."""
        return _Tls(self, BoundedProtocol(self.load, self.table, **given))


class _Tls(SSLProtocol):
    """One connection."""

    def __init__(self, port: TlsPort, inner: BoundedProtocol) -> None:
        super().__init__(
            asyncio.get_running_loop(),
            inner,
            port.context,
            None,  # type: ignore[arg-type]  # nobody waits for the handshake
            server_side=True,
            ssl_handshake_timeout=HANDSHAKE_SECONDS,
        )
        self._port = port
        self._inner = inner

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A connection; nothing was said yet."""
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
