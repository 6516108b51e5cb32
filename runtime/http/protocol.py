"""HTTP/1.1 connections with time limits, a bounded number of connections, and errors in JSON.

The protocol of uvicorn, extended in its inner parts: its minor version is pinned in setup.cfg.

A client that sends nothing, sends byte by byte, or does not read its answer must not hold a connection. So each request
has a deadline for its head, which single bytes do not extend, and one for its answer to be taken. If there are too many
connections, those without an authenticated request are dropped first (``connection_table``). Only authorized requests
are limited by ``MAX_REQUESTS``, so health is always answered.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any, Final

from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from tallybook.core.errors import InvalidArgument, Outcome, RequestTimeout

from ..security.connection_table import ConnectionTable, TrackedConnection
from ..security.tls_contexts import is_resumed, peer_names
from .endpoints import failed
from .load import RESUMED, TIME, HttpLoad

HEAD_SECONDS: Final = 10.0
"""Limit from the connection, or the answer before, until the head of a request has arrived."""
WHOLE_SECONDS: Final = 90.0
"""Limit from the head until the answer was taken; more than the limits of body and handler together."""
CLOSING_SECONDS: Final = 2.0
"""Limit for the last answer of a connection to be taken."""
MAX_REQUESTS: Final = 64
"""Concurrent authorized requests; more are answered with 503. Health and readiness do not count."""
MAX_WAITING: Final = 192
"""Connections without an authorized request; each needs a file descriptor."""
MAX_WAITING_PER_PEER: Final = 96
"""Connections without an authorized request of one peer."""
MAX_CONNECTIONS: Final = MAX_REQUESTS + MAX_WAITING
CONNECTION: Final = "tallybook.connection"
"""Scope key of the ``TrackedConnection`` of a request."""
CERTIFICATE: Final = "tallybook.certificate"
"""Scope key of the names in the client's certificate; a client may present none, since health needs none."""


class BoundedProtocol(H11Protocol):
    """One connection.

    Args:
        load: counts answers and drops of this layer.
        table: the connections of the port.
    """

    _deadline: asyncio.TimerHandle | None = None
    _began: object = None
    """The request whose deadline is set."""

    def __init__(self, load: HttpLoad, table: ConnectionTable, **given: Any) -> None:
        super().__init__(**given)
        self._load = load
        self._table = table
        self.entry: TrackedConnection | None = None
        """Its entry in the table; with TLS it is set before the handshake."""
        self.made = False
        """Whether the connection is established, after the TLS handshake."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """The connection is established, after the TLS handshake."""
        super().connection_made(transport)
        self.made = True
        if self.entry is None:
            self.entry = enter(self._table, transport)
        if is_resumed(transport):
            self._drop(RESUMED)
            return
        self.app = _with_scope(self.app, {CONNECTION: self.entry, CERTIFICATE: peer_names(transport)})
        self._due_in(HEAD_SECONDS)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection has ended."""
        if self._deadline is not None:
            self._deadline.cancel()
        if self.entry is not None:
            self.entry.leave()
        super().connection_lost(exc)

    def handle_events(self) -> None:
        """Data has arrived."""
        super().handle_events()
        if self.cycle is not self._began and not self.transport.is_closing():
            self._began = self.cycle
            if not self.cycle.response_complete:
                self._due_in(WHOLE_SECONDS)

    def on_response_complete(self) -> None:
        """An answer is complete; the next request may have arrived already."""
        taken = self.transport.get_write_buffer_size() == 0
        self._due_in(HEAD_SECONDS if taken else WHOLE_SECONDS)
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """The data is not HTTP."""
        self._end_with(failed(InvalidArgument("not a valid request of HTTP/1.1, or its head is too large"), 400))

    def _due_in(self, seconds: float) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = self.loop.call_later(seconds, self._late)

    def _late(self) -> None:
        if self._answering or not self.conn.trailing_data[0]:
            self._drop(TIME)
            return
        error = RequestTimeout("the head of the request did not arrive in time", outcome=Outcome.NOT_DONE)
        self._end_with(failed(error, 408))

    def _drop(self, why: str) -> None:
        self._load.dropped(why)
        # Not ``close``: it would wait until written data is taken.
        self.transport.abort()

    @property
    def _answering(self) -> bool:
        return not getattr(self.cycle, "response_complete", True)

    def _end_with(self, answer: Response) -> None:
        """Answer without a handler and close the connection."""
        if not (self._answering and self.cycle.response_started):
            # A request in progress is already counted by ``RequestFilter``.
            count = self._load.answered if self._answering else self._load.turned_away
            count(answer.status_code)
            phrase = HTTPStatus(answer.status_code).phrase
            headers = [*answer.raw_headers, (b"connection", b"close")]
            lines = [f"HTTP/1.1 {answer.status_code} {phrase}".encode(), *(b": ".join(header) for header in headers)]
            self.transport.write(b"\r\n".join([*lines, b"", bytes(answer.body)]))
        if self._answering:
            # Stop the handler of the request.
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self._deadline is not None:
            self._deadline.cancel()
        self.transport.close()
        self._deadline = self.loop.call_later(CLOSING_SECONDS, self.transport.abort)


def enter(table: ConnectionTable, transport: asyncio.Transport) -> TrackedConnection:
    """Add a new connection to the table."""
    peer = transport.get_extra_info("peername")
    # Not ``close``: it would wait until written data is taken.
    return table.enter(str(peer[0]) if peer else "", lambda _why: transport.abort())


def _with_scope(app: Any, more: dict[str, object]) -> Any:
    async def extended(scope: Scope, receive: Receive, send: Send) -> None:
        await app({**scope, **more}, receive, send)

    return extended
