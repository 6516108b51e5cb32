"""HTTP/1.1 within bounds: how long a request may take to come, how many connections there may be, and errors in JSON.

A client that sends nothing, or a head or a body byte by byte, or does not read its answer, must not keep a connection.
So each request has a time by which its head is to be there, which no single byte puts off, and one by which it is to be
answered and the answer taken. Connections without an authenticated request are dropped first when there are too many
(``connection_table``); only requests that were let in are bounded by ``MAX_REQUESTS``, so health is always answered.
What is no HTTP at all is told so as any other error is.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any, Final

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tallybook.core.errors import InvalidArgument, Outcome, RequestTimeout

from .connection_table import Connection, ConnectionTable
from .http_api import failed
from .http_load import RESUMED, TIME, HttpLoad
from .http_security import CertifiedProtocol
from .tls_contexts import is_resumed

HEAD_SECONDS: Final = 10.0
"""From the connection, or from the answer before, until the head of a request is there."""
WHOLE_SECONDS: Final = 90.0
"""From there until the answer was taken: more than a handler may take for a body, and for an answer."""
CLOSING_SECONDS: Final = 2.0
"""For the last answer of a connection to be taken."""
MAX_REQUESTS: Final = 64
"""Requests that were let in, at once; more are answered with 503. Health and readiness do not count."""
MAX_WAITING: Final = 192
"""Connections without such a request; each takes a file of the process."""
MAX_WAITING_PER_PEER: Final = 96
"""The same of one address."""
MAX_CONNECTIONS: Final = MAX_REQUESTS + MAX_WAITING
CONNECTION: Final = "tallybook.connection"
"""The connection of a request, in its scope."""


class BoundedProtocol(CertifiedProtocol):
    """One connection.

    Args:
        load: counts what is answered or dropped here, before anybody else hears of it.
        table: the connections of the port.
    """

    _deadline: asyncio.TimerHandle | None = None
    _began: object = None
    """The request that has its time already."""

    def __init__(self, load: HttpLoad, table: ConnectionTable, **given: Any) -> None:
        super().__init__(**given)
        self._load = load
        self._table = table
        self.entry: Connection | None = None
        """Its entry in the table; with TLS there is one before the handshake."""
        self.made = False
        """Whether the connection is there, and its handshake over."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A connection, after its handshake."""
        super().connection_made(transport)
        self.made = True
        if self.entry is None:
            self.entry = enter(self._table, transport)
        if is_resumed(transport):
            self._drop(RESUMED)
            return
        self.app = _with_connection(self.app, self.entry)
        self._due_in(HEAD_SECONDS)

    def connection_lost(self, exc: Exception | None) -> None:
        """It is over."""
        if self._deadline is not None:
            self._deadline.cancel()
        if self.entry is not None:
            self.entry.leave()
        super().connection_lost(exc)

    def handle_events(self) -> None:
        """Something has come."""
        super().handle_events()
        if self.cycle is not self._began and not self.transport.is_closing():
            self._began = self.cycle
            if not self.cycle.response_complete:
                self._due_in(WHOLE_SECONDS)

    def on_response_complete(self) -> None:
        """An answer has been given; maybe the next request is here already."""
        taken = self.transport.get_write_buffer_size() == 0
        self._due_in(HEAD_SECONDS if taken else WHOLE_SECONDS)
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """What came is no HTTP."""
        self._end_with(failed(InvalidArgument("this is no request of HTTP/1.1, or its head is too large"), 400))

    def _due_in(self, seconds: float) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = self.loop.call_later(seconds, self._late)

    def _late(self) -> None:
        if self._answering or not self.conn.trailing_data[0]:
            self._drop(TIME)
            return
        error = RequestTimeout("the head of the request did not come in time", outcome=Outcome.NOT_DONE)
        self._end_with(failed(error, 408))

    def _drop(self, why: str) -> None:
        self._load.dropped(why)
        # Not ``close``: it would wait until what was written is taken.
        self.transport.abort()

    @property
    def _answering(self) -> bool:
        return not getattr(self.cycle, "response_complete", True)

    def _end_with(self, answer: Response) -> None:
        """Answer what will not be handled, and close."""
        if not (self._answering and self.cycle.response_started):
            # One that is under way is counted as a request already, by whoever handles it.
            count = self._load.answered if self._answering else self._load.turned_away
            count(answer.status_code)
            phrase = HTTPStatus(answer.status_code).phrase
            headers = [*answer.raw_headers, (b"connection", b"close")]
            lines = [f"HTTP/1.1 {answer.status_code} {phrase}".encode(), *(b": ".join(header) for header in headers)]
            self.transport.write(b"\r\n".join([*lines, b"", bytes(answer.body)]))
        if self._answering:
            # Whoever handles the request is to answer no more.
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self._deadline is not None:
            self._deadline.cancel()
        self.transport.close()
        self._deadline = self.loop.call_later(CLOSING_SECONDS, self.transport.abort)


def enter(table: ConnectionTable, transport: asyncio.Transport) -> Connection:
    """Put a connection that has just been accepted into a table."""
    peer = transport.get_extra_info("peername")
    # Not ``close``: it would wait until what was written is taken.
    return table.enter(str(peer[0]) if peer else "", lambda _why: transport.abort())


def _with_connection(app: Any, connection: Connection) -> Any:
    async def connected(scope: Scope, receive: Receive, send: Send) -> None:
        await app({**scope, CONNECTION: connection}, receive, send)

    return connected
