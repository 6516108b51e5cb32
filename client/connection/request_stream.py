"""The client side of a Read or Control stream: requests out, replies in, in any order.

Replies carry the request's id. The bookie grants how many requests, and how many bytes of recovery and repair adds, may
be unanswered; further calls are queued, within their deadlines.

Deadlines extend with progress, for slow links. Those of recovery and repair adds count from the last answer to such an
add. While copies for recoveries arrive, requests of recoveries may take up to ``MAX_DEADLINES`` times as long.

A cancelled call occupies its slot until the bookie has answered it, because the bookie still counts it.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from functools import partial
from typing import Final, NamedTuple

from tallybook.core.errors import Busy, ProtocolViolation, RequestTimeout, TallybookError
from tallybook.core.ids import NO_IDENTITY
from tallybook.runtime.concurrency.progress_deadline import ProgressTracker, timeout_at
from tallybook.runtime.concurrency.weighted_semaphore import WeightedSemaphore
from tallybook.runtime.tasks import Tasks
from tallybook.runtime.tracing.port import Span, SpanKind, current_span
from tallybook.runtime.transport import MessageStream
from tallybook.wire.batches import add_cost_bytes
from tallybook.wire.inspection import RepairAdd
from tallybook.wire.messages import (
    Answer,
    Ask,
    Fence,
    RecoveryAdd,
    RecoveryRead,
    WaitLac,
    Welcome,
    decode_reply,
    encode_request,
)
from tallybook.wire.stream_sender import StreamSender

from ..load import ClientLoad
from ..spans import REQUEST

MAX_DEADLINES: Final = 12
"""How many times its deadline a recovery request may take while copies for other recoveries arrive."""


class _Call(NamedTuple):
    """An unanswered request, and the slots and bytes that it occupies."""

    answered: asyncio.Future[Answer]
    places: WeightedSemaphore
    recovery_bytes: int
    brings_copies: bool


class RequestStream:
    """Sends requests over one stream and matches replies to them."""

    def __init__(self, stream: MessageStream, welcome: Welcome, tasks: Tasks, load: ClientLoad) -> None:
        self._stream = stream
        self._load = load
        self._requests = WeightedSemaphore(welcome.max_requests)
        self._waits = WeightedSemaphore(welcome.max_waits)
        self._recovery = WeightedSemaphore(welcome.credit_bytes)
        self._calls: dict[int, _Call] = {}
        self._last_id = 0
        self._answered_at = -math.inf
        self._adding = ProgressTracker(load.clock)
        self._reading = ProgressTracker(load.clock)
        """Progress of the copies that recoveries read."""
        self._queue: deque[bytes] = deque()
        self._sender = StreamSender(stream, self._compose, tasks, f"requests to {stream.peer}")

    async def call(self, ask: Ask, timeout_seconds: float, identity: bytes = NO_IDENTITY) -> Answer:
        """Send a request and wait for the answer. ``identity``: that of the request's ledger.

        Raises:
            RequestTimeout: no answer in time (module docstring: deadlines extend with progress).
            Busy: other requests were answered, but this one was still queued at its deadline.
            BookieUnavailable: the connection was lost first.
            TallybookError: the bookie answered with this error.
        """
        span = current_span()
        if span is None:
            return await self._call(ask, timeout_seconds, identity, None)
        span = span.child(REQUEST, SpanKind.CLIENT, request=type(ask).__name__, peer=self._stream.peer)
        try:
            answer = await self._call(ask, timeout_seconds, identity, span)
        except BaseException as error:
            span.end(error)
            raise
        span.end()
        return answer

    async def _call(self, ask: Ask, timeout_seconds: float, identity: bytes, span: Span | None) -> Answer:
        began = self._load.clock.monotonic()
        call: _Call | None = None
        try:
            extends = isinstance(ask, RecoveryAdd | RepairAdd | RecoveryRead | Fence)
            due = partial(self._due, ask, began, timeout_seconds)
            async with timeout_at(due, self._load.clock) if extends else asyncio.timeout(timeout_seconds):
                call = await self._send(ask, identity, span)
                return await call.answered
        except TimeoutError:
            what, after = type(ask).__name__, f"within {timeout_seconds} s"
            error: TallybookError = RequestTimeout(f"{self._stream.peer} did not answer {what} {after}")
            if call is None and self._load.clock.monotonic() - self._answered_at < timeout_seconds:
                # The peer answers other requests, and was not sent this one: overloaded, not silent.
                error = Busy(f"{what} to {self._stream.peer} was still queued behind other requests {after}")
            self._load.errors.count(error.wire_code)
            raise error from None
        except TallybookError as error:
            self._load.errors.count(error.wire_code)
            raise
        finally:
            if not isinstance(ask, WaitLac):
                self._load.request_seconds.observe(self._load.clock.monotonic() - began)

    def _due(self, ask: Ask, began: float, timeout_seconds: float) -> float:
        """The deadline of a recovery or repair request, given the progress so far."""
        adds = isinstance(ask, RecoveryAdd | RepairAdd)
        since = max(began, self._adding.at) if adds else began
        moved = min(self._reading.at, since + (MAX_DEADLINES - 1) * timeout_seconds)
        return max(since, moved) + timeout_seconds

    async def receive(self) -> None:
        """Receive replies until the bookie ends the stream.

        Raises:
            TallybookError: the stream broke, the bookie ended it with an error, or violated the protocol.
        """
        while (message := await self._stream.receive()) is not None:
            self._answered_at = self._load.clock.monotonic()
            request_id, outcome = decode_reply(message)
            call = self._calls.pop(request_id, None)
            if call is None:
                if request_id == 0 and isinstance(outcome, TallybookError):
                    raise outcome
                raise ProtocolViolation(f"{self._stream.peer} answered request {request_id}, which was not sent")
            call.places.give(1)
            if call.brings_copies:
                self._reading.made()
            if call.recovery_bytes:
                self._adding.made()
                self._recovery.give(call.recovery_bytes)
            if call.answered.done():
                continue  # given up by its caller
            if isinstance(outcome, TallybookError):
                call.answered.set_exception(outcome)
            else:
                call.answered.set_result(outcome)

    def end(self, error: TallybookError) -> None:
        """Abort the stream, and fail every call that waits for an answer or a slot with ``error``."""
        self._stream.abort()
        for places in (self._requests, self._waits, self._recovery):
            places.fail(error)
        calls, self._calls = self._calls, {}
        self._queue.clear()
        for call in calls.values():
            if not call.answered.done():
                call.answered.set_exception(error)

    async def close(self) -> None:
        """Release the stream, after ``end``."""
        await self._sender.stop(0.0)
        await self._stream.close()

    async def _send(self, ask: Ask, identity: bytes, span: Span | None) -> _Call:
        places = self._waits if isinstance(ask, WaitLac) else self._requests
        recovery_bytes = add_cost_bytes(len(ask.batch)) if isinstance(ask, RecoveryAdd | RepairAdd) else 0
        request_id = self._last_id = self._last_id + 1
        message = encode_request(request_id, ask, "" if span is None else span.traceparent, identity)
        await self._recovery.take(recovery_bytes)
        try:
            await places.take(1)
        except BaseException:
            self._recovery.give(recovery_bytes)
            raise
        call = _Call(asyncio.get_running_loop().create_future(), places, recovery_bytes, isinstance(ask, RecoveryRead))
        self._calls[request_id] = call
        self._queue.append(message)
        self._sender.kick()
        if span is not None:
            span.event("sent")
        return call

    def _compose(self) -> bytes | None:
        return self._queue.popleft() if self._queue else None
