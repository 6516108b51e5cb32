"""HTTP/1.1 within bounds: how long a request may take to come, how many connections there may be, and errors in JSON.

Whoever connects and says nothing, or sends a head or a body byte by byte, or does not read what he asked for, would
have a connection for as long as he likes; of these there are few, and a probe of health is to find one free. So each
request has a time by which its head is to be there, which no single byte puts off, and one by which it is to be
answered and the answer taken. What is no HTTP at all is told so as any other error is.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any, Final

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tallybook.core.errors import Busy, InvalidArgument, Outcome, RequestTimeout

from .http_api import failed
from .http_load import BOUND, RESUMED, TIME, HttpLoad
from .http_security import CertifiedProtocol
from .tls_contexts import is_resumed

HEAD_SECONDS: Final = 10.0
"""From the connection, or from the answer before, until the head of a request is there."""
WHOLE_SECONDS: Final = 90.0
"""From there until the answer was taken: more than a handler may take for a body, and for an answer."""
CLOSING_SECONDS: Final = 2.0
"""For the last answer of a connection to be taken."""
MAX_CONNECTIONS: Final = 64
"""Beyond it requests are answered with 503."""
MOST_CONNECTIONS: Final = 4 * MAX_CONNECTIONS
"""Beyond it connections are dropped: each takes a file of the process."""


class BoundedProtocol(CertifiedProtocol):
    """One connection.

    Args:
        load: counts what is answered or dropped here, before anybody else hears of it.
    """

    _deadline: asyncio.TimerHandle | None = None
    _began: object = None
    """The request that has its time already."""

    def __init__(self, load: HttpLoad, **given: Any) -> None:
        super().__init__(**given)
        self._load = load
        self.made = False
        """Whether the connection is there, and its handshake over."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A connection, after its handshake."""
        super().connection_made(transport)
        self.made = True
        if len(self.connections) > MOST_CONNECTIONS:
            self._drop(BOUND)
            return
        if is_resumed(transport):
            self._drop(RESUMED)
            return
        self.app = self._limited(self.app)
        self._due_in(HEAD_SECONDS)

    def connection_lost(self, exc: Exception | None) -> None:
        """It is over."""
        if self._deadline is not None:
            self._deadline.cancel()
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

    def _limited(self, app: Any) -> Any:
        async def limited(scope: Scope, receive: Receive, send: Send) -> None:
            if len(self.connections) >= MAX_CONNECTIONS:
                answer = failed(Busy("there are too many connections", retry_after_ms=1000))
                answer.headers["connection"] = "close"
                self._load.turned_away(answer.status_code)
                await answer(scope, receive, send)
                return
            await app(scope, receive, send)

        return limited
