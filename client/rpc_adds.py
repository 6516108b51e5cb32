"""The Add stream of a connection, at the client: batches out, acks in.

Batches are numbered by both sides as they pass, from 1. The bookie grants a number of bytes that may be unanswered.
What exceeds it waits here, where whoever adds must bound it. A bookie that has refused batches lately is sent less
(``add_window``), and what it would have to refuse, too, is refused here. Small batches that wait together leave
together in one message. An ack must name the ids of the batch it is for: an ack of anything else would count for the
wrong entries.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from typing import Final, NamedTuple

from tallybook.core.answers import AddAnswer, Withheld
from tallybook.core.batch import peek_ids
from tallybook.core.errors import BookieUnavailable, Busy, ProtocolViolation, error_class
from tallybook.core.ids import NO_IDENTITY
from tallybook.runtime.grpc_messages import Ack, Attach, decode_acks, encode_attach, encode_traced
from tallybook.runtime.outbox import Outbox
from tallybook.runtime.span_catalogue import REQUEST
from tallybook.runtime.tasks import Tasks
from tallybook.runtime.tracing import Span, SpanKind, current_span
from tallybook.runtime.transport import MessageStream
from tallybook.runtime.wire import MAX_ATTACHED_LEDGERS, FrameCache, add_cost_bytes

from .add_window import AddWindow
from .bookie_port import AddCallback
from .load import ClientLoad

_JOINED_BYTES: Final = 64 * 1024
"""Small batches are sent together up to this size; above it, joining costs more than it saves."""


class _Add(NamedTuple):
    """A batch on its way."""

    ids: tuple[int, int, int]
    attach: Attach
    """What the bookie must know of the ledger first."""
    frame: bytes
    cost_bytes: int
    on_answer: AddCallback
    span: Span | None = None
    """Where it is traced."""


class AddStream:
    """Sends adds and tells their fate.

    Args:
        credit_bytes: what the bookie grants.
        frames: shared by the connections of one client.
        load: likewise; counts how long answers take.
    """

    def __init__(
        self, stream: MessageStream, credit_bytes: int, tasks: Tasks, frames: FrameCache, load: ClientLoad
    ) -> None:
        self._stream = stream
        self._window = AddWindow(credit_bytes)
        self._frames = frames
        self._load = load
        self._queue: deque[_Add] = deque()
        self._unanswered: dict[int, tuple[_Add, float]] = {}
        """Each with the moment when it was sent."""
        self._unanswered_bytes = 0
        self._waiting_bytes = 0
        """Of what is queued."""
        self._retry_after_ms = 0
        """When to try again, as the bookie said when it refused something last."""
        self._sent = 0
        self._attached: OrderedDict[int, Attach] = OrderedDict()
        self._ended = False
        self._outbox = Outbox(stream, self._compose, tasks, f"adds to {stream.peer}")

    def add(
        self, batch: bytes, key: bytes, on_answer: AddCallback, *, deferred: bool = False, identity: bytes = NO_IDENTITY
    ) -> None:
        """Queue one batch; ``on_answer`` is called once, never from within this call."""
        ids = peek_ids(batch)
        if self._ended:
            asyncio.get_running_loop().call_soon(on_answer, _lost(ids))
            return
        cost_bytes = add_cost_bytes(len(batch))
        if self._queue and not self._window.may_wait(self._unanswered_bytes + self._waiting_bytes, cost_bytes):
            asyncio.get_running_loop().call_soon(on_answer, self._refusal(ids))
            return
        frame = self._frames.frame(batch)
        attach = Attach(ids[0], key, deferred, identity)
        above = current_span()
        span = None if above is None else self._span(above, ids, len(batch))
        self._queue.append(_Add(ids, attach, frame, cost_bytes, on_answer, span))
        self._waiting_bytes += cost_bytes
        self._outbox.kick()

    async def receive(self) -> None:
        """Take acks until the bookie ends the stream.

        Raises:
            TallybookError: the stream broke, the bookie ended it for a reason, or it sent what it must not.
        """
        while (message := await self._stream.receive()) is not None:
            now = self._load.clock.monotonic()
            for ack in decode_acks(message):
                self._acked(ack, now)
            if self._queue:
                self._outbox.kick()

    def end(self) -> None:
        """Drop the stream, and give every unanswered batch the code of BookieUnavailable, in the order of sending."""
        self._ended = True
        self._stream.abort()
        lost = [*(add for add, _ in self._unanswered.values()), *self._queue]
        self._unanswered.clear()
        self._queue.clear()
        self._waiting_bytes = 0
        loop = asyncio.get_running_loop()
        for add in lost:
            if add.span is not None:
                add.span.end(BookieUnavailable.__name__)
            loop.call_soon(add.on_answer, _lost(add.ids))

    async def close(self) -> None:
        """Release the stream, after ``end``."""
        await self._outbox.stop(0.0)
        await self._stream.close()

    def _acked(self, ack: Ack, now: float) -> None:
        add, since = self._unanswered.get(ack.number, (None, 0.0))
        if add is None or add.ids != ack.answer[:3]:
            raise ProtocolViolation(f"{self._stream.peer} acked add {ack.number} as {ack.answer}, which was not sent")
        del self._unanswered[ack.number]
        self._unanswered_bytes -= add.cost_bytes
        self._load.add_seconds.observe(now - since)
        if not ack.answer.code:
            self._window.taken(add.cost_bytes)
        else:
            self._load.errors.count(ack.answer.code)
            if ack.answer.code == Busy.wire_code:
                self._retry_after_ms = ack.answer.retry_after_ms
                self._window.refused(ack.number, self._sent)
                self._refuse_the_rest()
        if add.span is not None:
            add.span.set(code=ack.answer.code)
            add.span.end(error_class(ack.answer.code).__name__ if ack.answer.code else None)
        add.on_answer(ack.answer)

    def _refuse_the_rest(self) -> None:
        """What would have to wait too long hears at once what the bookie would say: the last ones first."""
        loop = asyncio.get_running_loop()
        while len(self._queue) > 1:
            before_bytes = self._unanswered_bytes + self._waiting_bytes - self._queue[-1].cost_bytes
            if self._window.may_wait(before_bytes, self._queue[-1].cost_bytes):
                break
            add = self._queue.pop()
            self._waiting_bytes -= add.cost_bytes
            if add.span is not None:
                add.span.end(Busy.__name__)
            loop.call_soon(add.on_answer, self._refusal(add.ids))

    def _refusal(self, ids: tuple[int, int, int]) -> Withheld:
        return Withheld(*ids, Busy.wire_code, self._retry_after_ms)

    def _span(self, above: Span, ids: tuple[int, int, int], batch_bytes: int) -> Span:
        return above.child(
            REQUEST,
            SpanKind.CLIENT,
            request="Add",
            peer=self._stream.peer,
            ledger_id=ids[0],
            first_entry_id=ids[1],
            entries=ids[2],
            batch_bytes=batch_bytes,
        )

    def _compose(self) -> bytes | None:
        """The next message: an attachment if the first batch needs one, and as many batches as fit."""
        parts: list[bytes] = []
        size = 0
        now = self._load.clock.monotonic()
        while self._queue:
            add = self._queue[0]
            size += len(add.frame)
            if not self._window.fits(self._unanswered_bytes, add.cost_bytes) or (parts and size > _JOINED_BYTES):
                break
            if parts and add.span is not None:
                # What a message says of a trace is of its first batch.
                break
            if self._attached.get(add.ids[0]) != add.attach:
                if parts:
                    # An attachment takes effect before all batches of its message.
                    break
                parts.append(self._attach(add.attach))
            if add.span is not None:
                parts.append(encode_traced(add.span.traceparent))
                add.span.event("sent")
            parts.append(add.frame)
            self._sent += 1
            self._unanswered[self._sent] = (self._queue.popleft(), now)
            self._waiting_bytes -= add.cost_bytes
            self._unanswered_bytes += add.cost_bytes
        if len(parts) <= 1:
            return parts[0] if parts else None
        return b"".join(parts)

    def _attach(self, attach: Attach) -> bytes:
        # The bookie forgets by the same rule, so this side knows what it still remembers.
        self._attached.pop(attach.ledger_id, None)
        self._attached[attach.ledger_id] = attach
        if len(self._attached) > MAX_ATTACHED_LEDGERS:
            self._attached.popitem(last=False)
        return encode_attach(attach)


def _lost(ids: tuple[int, int, int]) -> AddAnswer:
    return AddAnswer(*ids, BookieUnavailable.wire_code)
