"""Serves one Add stream of a client: receives batches, sends acks.

The client may have ``credit_bytes`` of batches unanswered; more is a violation that ends the stream. A batch uses
credit until its ack is handed to the transport, so the acks that wait for a peer that does not read are bounded, too.
Acks that accumulate while a message is being sent leave together in the next one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from tallybook.core.access import Permission, Principal
from tallybook.core.add_kind import AddKind
from tallybook.core.answers import AddAnswer, AddCallback
from tallybook.core.batch import peek_ids
from tallybook.core.buffers import Buffer
from tallybook.core.error_codes import error_class
from tallybook.core.errors import AccessDenied, InvariantViolation, ProtocolViolation, TallybookError, Unauthorized
from tallybook.core.ids import IDENTITY_BYTES
from tallybook.core.limits import KEY_BYTES
from tallybook.runtime.clock import Clock
from tallybook.runtime.logging import logger
from tallybook.runtime.security.denial_log import DenialLog
from tallybook.runtime.tasks import Tasks
from tallybook.runtime.tracing.port import NO_TRACER, Span, Tracer, under
from tallybook.runtime.transport import MessageStream
from tallybook.wire.batches import add_cost_bytes
from tallybook.wire.messages import Ack, Attach, decode_adds, encode_acks
from tallybook.wire.stream_sender import StreamSender

from ..port import LedgerStore
from ..spans import SERVE
from .load import ServiceLoad

_MAX_ACKS_IN_MESSAGE: Final = 4096
_ADDS_IN_TURN: Final = 128
"""Batches of one message that are taken before the event loop gets a turn."""
_STOP_GRACE_SECONDS: Final = 1.0

_log = logger("bookie.add_lane")


class AddStreamServer:
    """Serves one Add stream after its hello.

    Args:
        fail_safe: ends the process; called with the reason.
        principal: the authenticated caller. Readers have such a stream, too, and must not send on it.
        load: counts refusals over all streams.
        tracer: continues traces of clients.
        denials: audit log of adds without permission or with a wrong key.
    """

    def __init__(
        self,
        store: LedgerStore,
        stream: MessageStream,
        clock: Clock,
        tasks: Tasks,
        fail_safe: Callable[[str], None],
        credit_bytes: int,
        principal: Principal,
        load: ServiceLoad,
        tracer: Tracer = NO_TRACER,
        denials: DenialLog | None = None,
    ) -> None:
        self._denials = denials
        self._store = store
        self._tracer = tracer
        self._stream = stream
        self._clock = clock
        self._fail_safe = fail_safe
        self._credit_bytes = credit_bytes
        self._load = load
        self._attached = load.attached.begin(may_write=principal.is_authorized(Permission.WRITE))
        self._received = 0
        self._unanswered_bytes = 0
        self._in_flight = 0
        """Batches in flight in the store; acks may wait longer."""
        self._acks: list[Ack] = []
        self._acked_bytes: list[int] = []
        self._ended = False
        self._sender = StreamSender(stream, self._compose, tasks, f"acks to {stream.peer}")

    async def serve(self) -> None:
        """Take batches until the client ends the stream.

        Raises:
            ProtocolViolation: the client broke the protocol; the stream must end.
            PeerUnavailable: the stream broke.
        """
        try:
            while (message := await self._stream.receive()) is not None:
                attaches, batches, traceparent, detached = decode_adds(message)
                for ledger_id in detached:
                    self._attached.detach(ledger_id)
                for attach in attaches:
                    self._attach(attach)
                span = self._follow(traceparent) if traceparent else None
                for count, batch in enumerate(batches, start=1):
                    if span is None:
                        self._add(batch, len(message), None)
                    else:
                        with under(span):
                            self._add(batch, len(message), span)
                        span = None  # it belongs to the first batch
                    if count % _ADDS_IN_TURN == 0:
                        await self._clock.sleep(0)
        finally:
            self._ended = True
            self._load.attached.end(self._attached)
            await self._sender.stop(_STOP_GRACE_SECONDS)

    def act_for(self, principal: Principal) -> None:
        """Apply the current permissions of the caller from now on."""
        self._attached.set_may_write(principal.is_authorized(Permission.WRITE))

    def _attach(self, attach: Attach) -> None:
        if len(attach.identity) not in (0, IDENTITY_BYTES):
            raise ProtocolViolation(
                f"ledger {attach.ledger_id} attached with an identity of {len(attach.identity)} bytes"
            )
        if attach.ledger_id < 0 or len(attach.key) > KEY_BYTES:
            raise ProtocolViolation(f"ledger {attach.ledger_id} attached with a key of {len(attach.key)} bytes")
        self._attached.attach(attach)

    def _follow(self, traceparent: str) -> Span | None:
        who = {"bookie_id": self._store.bookie_id, "peer": self._stream.peer}
        return self._tracer.follow(traceparent, SERVE, request="Add", **who)

    def _add(self, batch: Buffer, message_bytes: int, span: Span | None) -> None:
        cost = add_cost_bytes(len(batch))
        self._received += 1
        self._unanswered_bytes += cost
        if self._unanswered_bytes > self._credit_bytes:
            raise ProtocolViolation(f"{self._unanswered_bytes} bytes unanswered with a credit of {self._credit_bytes}")
        ids = peek_ids(batch)
        attached = self._attached.get(ids[0])
        if attached is None:
            raise ProtocolViolation(f"ledger {ids[0]}: a batch, but the ledger is not attached")
        if 2 * cost < message_bytes:
            # A slice keeps its whole message in memory, though most of that may be refused.
            batch = bytes(batch)
        answered: AddCallback = partial(self._answered, self._received, ids, cost)
        if span is not None:
            span.set(ledger_id=ids[0], first_entry_id=ids[1], entries=ids[2], batch_bytes=len(batch))
            answered = partial(_end_and_answer, span, answered)
        others = self._in_flight > 0
        self._in_flight += 1
        if not self._attached.may_write:
            answered(AddAnswer(*ids, AccessDenied.wire_code))
            self._note(AccessDenied("no permission to write"))
            return
        try:
            # The store passes it to ``AddPath.take`` (bookie/write/add_path.py).
            self._store.add(
                batch,
                attached.key,
                answered,
                kind=AddKind.DEFERRED if attached.deferred else AddKind.ORDINARY,
                others_in_flight=others,
                identity=attached.identity,
            )
        except Exception as error:  # noqa: BLE001 - a defect met with one batch must not cost the others their answers
            _log.defect("add failed", error, ledger_id=ids[0], first_entry_id=ids[1])
            if isinstance(error, InvariantViolation):
                self._fail_safe(f"an add to ledger {ids[0]} failed: {error!r}")
            answered(AddAnswer(*ids, TallybookError.wire_code))

    def _note(self, error: TallybookError) -> None:
        """Write a refusal to the audit log."""
        if self._denials is not None:
            self._denials.note(error, self._stream.presented, self._stream.peer, "bookie add")

    def _answered(self, number: int, ids: tuple[int, int, int], cost: int, answer: AddAnswer) -> None:
        self._in_flight -= 1
        if answer.code:
            self._load.errors.count(answer.code)
            if answer.code == Unauthorized.wire_code:
                self._note(Unauthorized(f"ledger {ids[0]}: wrong password"))
        if not self._ended:
            # The ids as received: for bytes that are no batch, the store has none.
            self._acks.append(Ack(number, AddAnswer(*ids, answer.code, answer.retry_after_ms)))
            self._acked_bytes.append(cost)
            self._sender.kick()

    def _compose(self) -> bytes | None:
        acks = self._acks[:_MAX_ACKS_IN_MESSAGE]
        if not acks:
            return None
        self._unanswered_bytes -= sum(self._acked_bytes[:_MAX_ACKS_IN_MESSAGE])
        del self._acks[:_MAX_ACKS_IN_MESSAGE], self._acked_bytes[:_MAX_ACKS_IN_MESSAGE]
        return encode_acks(acks)


def _end_and_answer(span: Span, answered: AddCallback, answer: AddAnswer) -> None:
    """Answer a traced batch and end its span."""
    answered(answer)
    span.set(code=answer.code)
    span.end(error_class(answer.code).__name__ if answer.code else None)
