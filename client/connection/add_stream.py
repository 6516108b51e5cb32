"""The client side of an Add stream: batches out, acks in.

Both sides number the batches, from 1. The bookie grants credit: the bytes that may be unanswered. Batches above the
credit are queued here; the caller must bound them. A bookie that recently refused batches is sent less
(``add_window``), and batches that it would refuse are refused here. Small queued batches, also of different ledgers,
share a message. An ack must name the ids of its batch: otherwise it would count for the wrong entries.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from functools import partial
from typing import Final

from tallybook.core.answers import AddAnswer, AddCallback, AddNotSent
from tallybook.core.batch import peek_ids
from tallybook.core.error_codes import error_class
from tallybook.core.errors import BookieUnavailable, Busy, ProtocolViolation
from tallybook.core.ids import NO_IDENTITY
from tallybook.runtime.concurrency.loop_slices import SlicedCallbacks
from tallybook.runtime.tasks import Tasks
from tallybook.runtime.tracing.port import Span, SpanKind, current_span
from tallybook.runtime.transport import MessageStream
from tallybook.wire.batches import FORMERLY_ATTACHED_LEDGERS, MAX_ATTACHES, MAX_DETACHES, FrameCache, add_cost_bytes
from tallybook.wire.messages import Ack, Attach, decode_acks, encode_attach, encode_detached, encode_traced
from tallybook.wire.stream_sender import StreamSender

from ..load import ClientLoad
from ..spans import REQUEST
from .add_window import AddWindow

_JOINED_BYTES: Final = 64 * 1024
"""Small batches are sent together up to this size; above it, joining costs more than it saves."""

_IDLE_ATTACHES: Final = MAX_ATTACHES // 2
"""Attachments of idle ledgers in one message; leaves slots for the ledgers of the message's batches."""

_ACK_TIMES_PER_TIMEOUT: Final = 64
_MAX_ACK_TIMES: Final = 2 * _ACK_TIMES_PER_TIMEOUT
"""Resolution and length of the record of ack times; it covers more than the add timeout."""


class _Add:
    """A queued or unanswered batch, returned by ``AddStream.add``."""

    __slots__ = ("_stream", "attach", "cost_bytes", "frame", "ids", "number", "on_answer", "sent_at", "span")

    def __init__(
        self,
        ids: tuple[int, int, int],
        attach: Attach,
        frame: bytes,
        cost_bytes: int,
        on_answer: AddCallback,
        stream: AddStream,
    ) -> None:
        self.ids = ids
        self.attach = attach
        """The attachment that the bookie needs first."""
        self.frame = frame
        """Empty once it was withdrawn or refused."""
        self.cost_bytes = cost_bytes
        self.on_answer = on_answer
        self.span: Span | None = None
        """Its span, if it is traced."""
        self.sent_at: float | None = None
        self.number = 0
        """Its number on the stream, once it was sent."""
        self._stream = stream

    @property
    def owed_since(self) -> float:
        """Since when the bookie owes the answer; see the port."""
        return self._stream.owed_since(self)

    def withdraw(self) -> None:
        """Drop it if it was not sent; see the port."""
        if self.sent_at is None and self.frame:
            self.frame = b""
            self._stream.withdrawn(self.cost_bytes)
            if self.span is not None:
                self.span.end(BookieUnavailable.__name__)


class AddStream:
    """Sends adds and reports their answers.

    Args:
        credit_bytes: bytes that the bookie allows to be unanswered.
        frames: shared by the connections of one client.
        load: request counters of the client.
        add_timeout_s: how long the bookie may owe an answer.
        max_attached: ledgers that the bookie keeps attached; 0: an older bookie that takes one attachment per message.
    """

    def __init__(
        self,
        stream: MessageStream,
        credit_bytes: int,
        tasks: Tasks,
        frames: FrameCache,
        load: ClientLoad,
        *,
        add_timeout_s: float,
        max_attached: int = 0,
    ) -> None:
        self._stream = stream
        self._window = AddWindow(credit_bytes)
        self._frames = frames
        self._load = load
        self._slices = SlicedCallbacks(load.clock)
        self._queue: deque[_Add] = deque()
        self._unanswered: dict[int, _Add] = {}
        self._unanswered_bytes = 0
        self._waiting_bytes = 0
        """Cost of the queued batches."""
        self._retry_after_ms = 0
        """Retry time of the bookie's last Busy answer."""
        self._sent = 0
        self._attached: OrderedDict[int, Attach] = OrderedDict()
        """In the order of attaching; the same as at the bookie."""
        self._joined = max_attached > 0
        self._max_attached = max_attached or FORMERLY_ATTACHED_LEDGERS
        self._detached: OrderedDict[int, None] = OrderedDict()
        """Ledgers to detach."""
        self._to_attach: OrderedDict[int, Attach] = OrderedDict()
        """Ledgers open for writing that may not be attached yet."""
        self._progress_at = 0.0
        self._ack_time_step_s = add_timeout_s / _ACK_TIMES_PER_TIMEOUT
        self._ack_times: deque[tuple[float, int]] = deque(maxlen=_MAX_ACK_TIMES)
        """Times of acks, each with the highest number acked until about then."""
        self._ended = False
        self._sender = StreamSender(stream, self._compose, tasks, f"adds to {stream.peer}")

    @property
    def progress_at(self) -> float:
        """Time of the last ack, or of the first add after all were answered; now, if none is unanswered."""
        return self._progress_at if self._unanswered else self._load.clock.monotonic()

    def add(
        self, batch: bytes, key: bytes, on_answer: AddCallback, *, deferred: bool = False, identity: bytes = NO_IDENTITY
    ) -> _Add:
        """Queue one batch. ``on_answer`` is called once, later, unless the batch is withdrawn."""
        ids = peek_ids(batch)
        cost_bytes = add_cost_bytes(len(batch))
        add = _Add(ids, Attach(ids[0], key, deferred, identity), b"", cost_bytes, on_answer, self)
        if self._ended:
            self._answer(add, _lost(ids))
            return add
        if self._queue and not self._window.may_wait(self._unanswered_bytes + self._waiting_bytes, cost_bytes):
            self._answer(add, self._refusal(ids))
            return add
        add.frame = self._frames.frame(batch)
        above = current_span()
        if above is not None:
            add.span = self._span(above, ids, len(batch))
        self._queue.append(add)
        self._waiting_bytes += cost_bytes
        self._sender.kick()
        return add

    def attach(self, attach: Attach) -> None:
        """Attach a ledger without adding to it; ignored by bookies of older versions."""
        if self._joined and not self._ended:
            self._detached.pop(attach.ledger_id, None)
            self._to_attach[attach.ledger_id] = attach
            self._sender.kick()

    def forget(self, ledger_id: int) -> None:
        """Detach a ledger: nothing more will be added to it."""
        self._to_attach.pop(ledger_id, None)
        if self._joined and ledger_id in self._attached and not self._ended:
            self._detached[ledger_id] = None
            self._sender.kick()

    async def receive(self) -> None:
        """Receive acks until the bookie ends the stream.

        Raises:
            TallybookError: the stream broke, the bookie ended it with an error, or violated the protocol.
        """
        while (message := await self._stream.receive()) is not None:
            now = self._progress_at = self._load.clock.monotonic()
            highest = 0
            for ack in decode_acks(message):
                highest = max(highest, ack.number)
                self._acked(ack, now)
            self._note_acked(now, highest)
            if self._queue:
                self._sender.kick()

    def _note_acked(self, now: float, number: int) -> None:
        at, before = self._ack_times[-1] if self._ack_times else (-self._ack_time_step_s, 0)
        if now - at < self._ack_time_step_s:
            self._ack_times[-1] = (at, max(before, number))
        else:
            self._ack_times.append((now, max(before, number)))

    def end(self) -> None:
        """Abort the stream, and answer every batch with the code of ``BookieUnavailable``, in the order of sending."""
        self._ended = True
        self._stream.abort()
        lost = [*self._unanswered.values(), *(add for add in self._queue if add.frame)]
        self._unanswered.clear()
        self._queue.clear()
        self._waiting_bytes = 0
        for add in lost:
            add.frame = b""
            if add.span is not None:
                add.span.end(BookieUnavailable.__name__)
            self._answer(add, _lost(add.ids))

    async def close(self) -> None:
        """Release the stream, after ``end``."""
        await self._sender.stop(0.0)
        await self._stream.close()

    def _acked(self, ack: Ack, now: float) -> None:
        add = self._unanswered.get(ack.number)
        if add is None or add.ids != ack.answer[:3]:
            raise ProtocolViolation(f"{self._stream.peer} acked add {ack.number} as {ack.answer}, which was not sent")
        del self._unanswered[ack.number]
        self._unanswered_bytes -= add.cost_bytes
        self._load.add_seconds.observe(now - (add.sent_at or now))
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
        """After a Busy: refuse queued batches that would wait too long, the last ones first."""
        while len(self._queue) > 1:
            before_bytes = self._unanswered_bytes + self._waiting_bytes - self._queue[-1].cost_bytes
            if self._window.may_wait(before_bytes, self._queue[-1].cost_bytes):
                break
            add = self._queue.pop()
            if not add.frame:
                continue
            add.frame = b""
            self._waiting_bytes -= add.cost_bytes
            if add.span is not None:
                add.span.end(Busy.__name__)
            self._answer(add, self._refusal(add.ids))

    def _answer(self, add: _Add, answer: AddAnswer) -> None:
        """Answer a batch locally. Sliced over loop iterations: thousands may be answered at once."""
        self._slices.soon(partial(add.on_answer, answer))

    def _refusal(self, ids: tuple[int, int, int]) -> AddNotSent:
        return AddNotSent(*ids, Busy.wire_code, self._retry_after_ms)

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
        """The next message: ledgers to detach and attach, and as many batches as fit.

        ``StreamSender`` calls this after a ``kick``, as soon as the stream is free.
        """
        front = [self._detach()] if self._detached else []
        frames: list[bytes] = []
        size, attaches = 0, self._attach_idle(front)
        ledgers: set[int] = set()
        """Ledgers of this message's batches."""
        now = self._load.clock.monotonic()
        while self._queue:
            add = self._queue[0]
            if not add.frame:
                self._queue.popleft()
                continue
            size += len(add.frame)
            if not self._window.fits(self._unanswered_bytes, add.cost_bytes) or (frames and size > _JOINED_BYTES):
                break
            if frames and add.span is not None:
                # A message carries the trace of its first batch only.
                break
            if self._attached.get(add.ids[0]) != add.attach:
                if frames and not self._may_join(add.ids[0], attaches, ledgers):
                    break
                front.append(self._attach(add.attach))
                attaches += 1
            if add.span is not None:
                front.append(encode_traced(add.span.traceparent))
                add.span.event("sent")
            frames.append(add.frame)
            ledgers.add(add.ids[0])
            self._took(self._queue.popleft(), now)
        parts = front + frames
        if len(parts) <= 1:
            return parts[0] if parts else None
        return b"".join(parts)

    def _took(self, add: _Add, now: float) -> None:
        """Account for a batch that is in the next message."""
        if not self._unanswered:
            self._progress_at = now
        self._sent += 1
        add.sent_at, add.number = now, self._sent
        self._unanswered[self._sent] = add
        self._waiting_bytes -= add.cost_bytes
        self._unanswered_bytes += add.cost_bytes

    def _may_join(self, ledger_id: int, attaches: int, ledgers: set[int]) -> bool:
        """Whether a message with batches may have another attachment: it takes effect before all of them."""
        if not self._joined or attaches >= MAX_ATTACHES or ledger_id in ledgers:
            return False
        return len(self._attached) < self._max_attached or next(iter(self._attached)) not in ledgers

    def _attach_idle(self, front: list[bytes]) -> int:
        """Attach idle ledgers, a limited number in each message; return how many."""
        attaches = 0
        while self._to_attach and attaches < _IDLE_ATTACHES:
            _, attach = self._to_attach.popitem(last=False)
            if self._attached.get(attach.ledger_id) != attach:
                front.append(self._attach(attach))
                attaches += 1
        return attaches

    def _attach(self, attach: Attach) -> bytes:
        # The bookie evicts by the same rule, so this side knows what is attached there.
        self._attached.pop(attach.ledger_id, None)
        self._attached[attach.ledger_id] = attach
        if len(self._attached) > self._max_attached:
            self._attached.popitem(last=False)
        return encode_attach(attach, joined=self._joined)

    def _detach(self) -> bytes:
        """Detach ledgers. A ledger that has queued batches is attached again before them."""
        gone = [self._detached.popitem(last=False)[0] for _ in range(min(len(self._detached), MAX_DETACHES))]
        for ledger_id in gone:
            self._attached.pop(ledger_id, None)
        return encode_detached(gone)

    def withdrawn(self, cost_bytes: int) -> None:
        """A queued batch was withdrawn."""
        self._waiting_bytes -= cost_bytes

    def owed_since(self, add: _Add) -> float:
        """Since when the bookie owes the answer to a batch; see the port."""
        if add.sent_at is None:
            return self.progress_at
        passed_at = next((at for at, number in self._ack_times if number > add.number), self._progress_at)
        return max(add.sent_at, passed_at)


def _lost(ids: tuple[int, int, int]) -> AddAnswer:
    return AddAnswer(*ids, BookieUnavailable.wire_code)
