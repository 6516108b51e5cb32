"""Serves one Read or Control stream of a client: receives requests, sends replies in any order.

Each request runs in a task of its own. Limits keep a client that does not read, or asks for too much, from growing the
bookie's memory: unanswered requests (and, separately, long polls), bytes of recovery and repair adds, and bytes of
answers that are being read or wait to be sent. Exceeding the first two is a violation; at the third, reads wait.

The answers of all streams together are limited, too. A read that finds no space there in time is BUSY, and a peer that
does not take its replies is disconnected, so that it does not hold that space.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple

from tallybook.core.access import Permission, Principal
from tallybook.core.add_kind import AddKind
from tallybook.core.answers import AddAnswer, LacAnswer, ReadAnswer
from tallybook.core.buffers import Buffer
from tallybook.core.error_codes import error_from_wire
from tallybook.core.errors import (
    OK_CODE,
    AccessDenied,
    Busy,
    InvalidArgument,
    InvariantViolation,
    ProtocolViolation,
    TallybookError,
    Unauthorized,
)
from tallybook.core.ids import NO_ENTRY, check_entry_id, check_lac, check_ledger_id
from tallybook.core.limits import KEY_BYTES, MAX_BATCH_BYTES, MAX_MESSAGE_BYTES, MIB
from tallybook.runtime.audit import audit
from tallybook.runtime.concurrency.weighted_semaphore import WeightedSemaphore
from tallybook.runtime.logging import logger
from tallybook.runtime.security.denial_log import DenialLog
from tallybook.runtime.tasks import Tasks
from tallybook.runtime.tracing.port import NO_TRACER, Span, Tracer, under
from tallybook.runtime.transport import MessageStream
from tallybook.wire import inspection
from tallybook.wire import messages as wire
from tallybook.wire.batches import MAX_FRAMES, MAX_LACS, add_cost_bytes
from tallybook.wire.lanes import Lane
from tallybook.wire.stream_sender import StreamSender

from ..port import LedgerStore
from ..spans import SERVE
from .answer_budget import AnswerBudget
from .load import ServiceLoad
from .long_poll import with_batches
from .principal_quota import StreamQuota

MAX_REQUESTS: Final = 1024
MAX_WAITS: Final = 4096
MAX_WAIT_MS: Final = 60_000
"""A long poll with a longer timeout is answered after this long."""

MAX_BATCHES_WAIT_SECONDS: Final = 0.05
"""How long the answer of a long poll waits for batches to add; they are usually in memory."""
MAX_SEND_SECONDS: Final = 30.0
"""A peer that takes longer to receive one reply is disconnected."""

ANSWER_BYTES: Final = 8 * MIB
"""Bytes of answers being read or waiting to be sent, per stream."""
_MAX_READ_BYTES: Final = MAX_MESSAGE_BYTES - MAX_BATCH_BYTES - MIB // 2
"""Maximum of a read: one more batch, and the framing of many small ones, still fit a message."""
_STOP_GRACE_SECONDS: Final = 1.0

_ON_LANE: Final[dict[Lane, tuple[type, ...]]] = {
    Lane.READ: (wire.ReadBatches, wire.ReadEntry, wire.ReadLac, wire.WaitLac),
    Lane.CONTROL: (
        wire.Fence, wire.RecoveryRead, wire.RecoveryAdd, wire.ReadLac, wire.WriteLac, wire.WriteLacs,
        wire.Force, *inspection.INSPECTION_ASKS,
    ),
}  # fmt: skip

_PERMISSIONS: Final[dict[type, Permission]] = {
    wire.ReadBatches: Permission.READ,
    wire.ReadEntry: Permission.READ,
    wire.ReadLac: Permission.READ,
    wire.WaitLac: Permission.READ,
    wire.Fence: Permission.WRITE,
    wire.RecoveryRead: Permission.WRITE,
    wire.RecoveryAdd: Permission.WRITE,
    wire.WriteLac: Permission.WRITE,
    wire.WriteLacs: Permission.WRITE,
    wire.Force: Permission.WRITE,
    inspection.RepairAdd: Permission.KEEP,
    inspection.AskHeld: Permission.KEEP,
    inspection.AskDamaged: Permission.KEEP,
    inspection.AskHeldLedgers: Permission.KEEP,
    inspection.EndLimbo: Permission.KEEP,
    inspection.AskStatus: Permission.READ,
    inspection.AskTrace: Permission.READ,
    inspection.Authorize: Permission.READ,
}
"""The permission that each kind of request needs; other kinds are refused."""

_ASKED_FOR: Final = {each.value: each for each in (Permission.WRITE, Permission.KEEP, Permission.ADMINISTER)}
"""Permissions that ``Authorize`` may ask about. Reading needs none of a bookie, and is not audited."""
_MAX_COMMAND, _MAX_ARGUMENTS = 100, 1_000

_MAX_AUDITED: Final = 1_024
"""Ledgers for which a stream remembers that their fence was audited."""

_WITH_BATCH: Final = (wire.RecoveryAdd, inspection.RepairAdd)

_LEARNS: Final = (wire.Fence, wire.RecoveryRead, wire.WriteLac, wire.Force)
"""Requests for which a bookie that does not know the ledger reads the metadata."""

_WITHOUT_KEY: Final = (inspection.RepairAdd, inspection.EndLimbo)

_log = logger("bookie.request_lane")


class _Reply(NamedTuple):
    """A reply that waits for the stream."""

    request_id: int
    ask: wire.Ask | None
    message: bytes
    reserved_bytes: int


class RequestStreamServer:
    """Serves one Read or Control stream after its hello.

    Args:
        load: counts requests over all streams.
        fail_safe: ends the process; called with the reason.
        principal: the authenticated caller.
        share: what this stream may have in flight.
        answer_bytes: limit of the answers of this stream and others of its kind together.
        tracer: continues traces of clients.
        denials: audit log of requests without permission or with a wrong key.
    """

    def __init__(
        self,
        lane: Lane,
        store: LedgerStore,
        stream: MessageStream,
        tasks: Tasks,
        fail_safe: Callable[[str], None],
        principal: Principal,
        share: StreamQuota,
        answer_bytes: WeightedSemaphore,
        load: ServiceLoad,
        tracer: Tracer = NO_TRACER,
        denials: DenialLog | None = None,
    ) -> None:
        self._denials = denials
        self._lane = lane
        self._tracer = tracer
        self._store = store
        self._stream = stream
        self._tasks = tasks
        self._fail_safe = fail_safe
        self._principal = principal
        self._share = share
        self._max_read_bytes = min(_MAX_READ_BYTES, share.answer_bytes - MAX_BATCH_BYTES)
        self._answer_budget = AnswerBudget(share.answer_bytes, answer_bytes)
        self._audited: OrderedDict[int, None] = OrderedDict()
        self._load = load
        self._running: dict[int, asyncio.Task[None]] = {}
        self._requests = 0
        self._waits = 0
        self._recovery_bytes = 0
        self._replies: deque[_Reply] = deque()
        self._being_sent_bytes = 0
        self._sender = StreamSender(
            stream, self._compose, tasks, f"replies to {stream.peer}", send_seconds=MAX_SEND_SECONDS
        )
        self._serve_kind: dict[type, Callable[[Any], Awaitable[wire.Answer]]] = {
            wire.ReadBatches: self._read_batches,
            wire.ReadEntry: self._read_entry,
            wire.ReadLac: self._read_lac,
            wire.WaitLac: self._wait_lac,
            wire.Fence: self._fence,
            wire.RecoveryRead: self._recovery_read,
            wire.RecoveryAdd: self._recovery_add,
            wire.WriteLac: self._write_lac,
            wire.WriteLacs: self._write_lacs,
            wire.Force: self._force,
            inspection.RepairAdd: self._repair_add,
            inspection.AskHeld: self._held,
            inspection.AskDamaged: self._damaged,
            inspection.AskHeldLedgers: self._held_ledgers,
            inspection.EndLimbo: self._end_limbo,
            inspection.AskStatus: self._status,
            inspection.AskTrace: self._trace,
            inspection.Authorize: self._authorize,
        }

    async def serve(self) -> None:
        """Serve requests until the client ends the stream.

        Raises:
            ProtocolViolation: the client broke the protocol; the stream must end.
            PeerUnavailable: the stream broke.
        """
        try:
            while (message := await self._stream.receive()) is not None:
                self._take(wire.decode_request(message), len(message))
        finally:
            try:
                await self._stop()
            finally:
                self._answer_budget.end()

    def act_for(self, principal: Principal) -> None:
        """Apply the current permissions of the caller from now on."""
        self._principal = principal

    async def _stop(self) -> None:
        running = list(self._running.values())
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await self._sender.stop(_STOP_GRACE_SECONDS)

    def _take(self, request: wire.Request, message_bytes: int) -> None:
        request_id, ask, traceparent, identity = request
        if isinstance(ask, _WITH_BATCH) and 2 * add_cost_bytes(len(ask.batch)) < message_bytes:
            # A slice keeps its whole message in memory.
            ask = ask._replace(batch=bytes(ask.batch))
        if request_id in self._running:
            raise ProtocolViolation(f"request {request_id} is already in flight")
        self._count(ask, 1)
        if self._requests > self._share.requests or self._waits > self._share.waits:
            raise ProtocolViolation(f"{self._requests} requests and {self._waits} long polls are unanswered")
        if self._recovery_bytes > self._share.credit_bytes:
            raise ProtocolViolation(
                f"{self._recovery_bytes} bytes of recovery adds unanswered with a credit of {self._share.credit_bytes}"
            )
        self._running[request_id] = self._tasks.spawn(
            self._serve(request_id, ask, traceparent, identity),
            name=f"{type(ask).__name__} {request_id} of {self._stream.peer}",
        )

    def _count(self, ask: wire.Ask | None, change: int) -> None:
        if isinstance(ask, wire.WaitLac):
            self._waits += change
        else:
            self._requests += change
        if isinstance(ask, _WITH_BATCH):
            self._recovery_bytes += change * add_cost_bytes(len(ask.batch))

    async def _serve(self, request_id: int, ask: wire.Ask | None, traceparent: str, identity: bytes) -> None:
        began = self._load.clock.monotonic()
        span = self._follow(ask, traceparent) if traceparent else None
        try:
            if span is None:
                await self._do(request_id, ask, identity)
            else:
                await self._do_traced(request_id, ask, identity, span)
        finally:
            self._load.served(type(ask).__name__, began)

    def _follow(self, ask: wire.Ask | None, traceparent: str) -> Span | None:
        who = {"bookie_id": self._store.bookie_id, "peer": self._stream.peer}
        return self._tracer.follow(traceparent, SERVE, request=type(ask).__name__, **who)

    async def _do_traced(self, request_id: int, ask: wire.Ask | None, identity: bytes, span: Span) -> None:
        span.set(**_about(ask))
        error: BaseException | None = None
        try:
            with under(span):
                error = await self._do(request_id, ask, identity)
        except BaseException as raised:
            error = raised
            raise
        finally:
            span.end(error)

    async def _do(self, request_id: int, ask: wire.Ask | None, identity: bytes) -> TallybookError | None:
        """Execute a request and queue the reply. Returns the error that it was answered with, if any."""
        reserved = _answer_bytes(ask, self._max_read_bytes) if isinstance(ask, _ON_LANE[self._lane]) else 0
        try:
            await self._answer_budget.take(reserved)
        except Busy as busy:
            self._reply(request_id, ask, self._encoded(request_id, ask, busy), 0)
            return busy
        outcome: wire.Answer | TallybookError
        try:
            outcome = await self._outcome(ask, identity)
            if isinstance(ask, wire.WaitLac) and isinstance(outcome, LacAnswer):
                outcome, reserved = await self._with_batches(ask, outcome)
        except InvariantViolation as error:
            outcome = self._defect(ask, request_id, error)
            self._fail_safe(f"a request of kind {type(ask).__name__} failed: {error!r}")
        except TallybookError as error:
            outcome = error
        except Exception as error:  # noqa: BLE001 - a defect met with one request must not cost the others their answers
            outcome = self._defect(ask, request_id, error)
        reply = self._encoded(request_id, ask, outcome)
        size = min(len(reply), reserved)
        self._answer_budget.give(reserved - size)
        self._reply(request_id, ask, reply, size)
        return outcome if isinstance(outcome, TallybookError) else None

    async def _with_batches(self, ask: wire.WaitLac, answer: LacAnswer) -> tuple[LacAnswer, int]:
        """Batches to add to the answer of a long poll, and the space taken for them, if there is some right now."""
        if not ask.max_bytes or answer.lac <= ask.above:
            return answer, 0
        max_bytes = min(ask.max_bytes, self._max_read_bytes)
        reserved = max_bytes + MAX_BATCH_BYTES
        if not self._answer_budget.try_take(reserved):
            return answer, 0
        try:
            async with asyncio.timeout(MAX_BATCHES_WAIT_SECONDS):
                return await with_batches(self._store, ask.ledger_id, ask.above, answer, max_bytes), reserved
        except TimeoutError:
            self._answer_budget.give(reserved)
            return answer, 0
        except BaseException:
            self._answer_budget.give(reserved)
            raise

    def _reply(self, request_id: int, ask: wire.Ask | None, message: bytes, reserved_bytes: int) -> None:
        self._replies.append(_Reply(request_id, ask, message, reserved_bytes))
        self._sender.kick()

    def _encoded(self, request_id: int, ask: wire.Ask | None, outcome: wire.Answer | TallybookError) -> bytes:
        if isinstance(outcome, TallybookError):
            self._load.errors.count(outcome.wire_code)
        try:
            return wire.encode_reply(request_id, outcome)
        except Exception as error:  # noqa: BLE001 - as above: every request gets an answer
            defect = self._defect(ask, request_id, error)
            self._load.errors.count(defect.wire_code)
            return wire.encode_reply(request_id, defect)

    def _defect(self, ask: wire.Ask | None, request_id: int, error: Exception) -> TallybookError:
        """Log a defect and return the error for the peer."""
        kind, peer = type(ask).__name__, self._stream.peer
        _log.defect("request failed", error, kind=kind, request_id=request_id, peer=peer, **_about(ask))
        return TallybookError(f"internal error of {self._store.bookie_id}")

    async def _outcome(self, ask: wire.Ask | None, identity: bytes) -> wire.Answer:
        if ask is None:
            raise InvalidArgument("this version does not know this kind of request")
        if not isinstance(ask, _ON_LANE[self._lane]):
            raise InvalidArgument(f"the {self._lane.value} stream does not serve {type(ask).__name__}")
        try:
            self._principal.check(_PERMISSIONS[type(ask)])
        except AccessDenied as error:
            self._note(ask, error)
            raise
        _check(ask)
        self._audit(ask)
        try:
            # AccessDenied from the store means that the bookie was denied, for example by the metadata store.
            ledger_id = getattr(ask, "ledger_id", None)
            if not identity or ledger_id is None:
                return await self._serve_kind[type(ask)](ask)
            writes, repairs = isinstance(ask, _LEARNS), isinstance(ask, inspection.AskHeld | inspection.EndLimbo)
            async with self._store.identified(ledger_id, identity, for_write=writes, for_repair=repairs):
                return await self._serve_kind[type(ask)](ask)
        except Unauthorized as error:
            # A repair carries no key: it gets an error while a writer or a recovery may still write the ledger.
            if not isinstance(ask, _WITHOUT_KEY):
                self._note(ask, error)
            raise

    def _note(self, ask: wire.Ask, error: AccessDenied | Unauthorized) -> None:
        """Write a refusal to the audit log."""
        if self._denials is not None:
            self._denials.note(error, self._stream.presented, self._stream.peer, f"bookie {type(ask).__name__}")

    def _audit(self, ask: wire.Ask) -> None:
        """Audit fences and ends of limbo; once for each ledger."""
        if not isinstance(ask, wire.Fence | wire.RecoveryRead | inspection.EndLimbo) or ask.ledger_id in self._audited:
            return
        action = "end limbo" if isinstance(ask, inspection.EndLimbo) else "fence"
        audit(action, self._principal, self._stream.peer, ledger_id=ask.ledger_id)
        self._audited[ask.ledger_id] = None
        if len(self._audited) > _MAX_AUDITED:
            self._audited.popitem(last=False)

    def _compose(self) -> bytes | None:
        # The next message is requested once the previous one has left.
        self._answer_budget.give(self._being_sent_bytes)
        self._being_sent_bytes = 0
        if not self._replies:
            return None
        reply = self._replies.popleft()
        # These count as unanswered until now, so that replies that a peer does not read are limited like requests.
        del self._running[reply.request_id]
        self._count(reply.ask, -1)
        self._being_sent_bytes = reply.reserved_bytes
        return reply.message

    async def _read_batches(self, ask: wire.ReadBatches) -> wire.Answer:
        max_bytes = min(ask.max_bytes, self._max_read_bytes)
        batches, lac = await self._store.read_batches(
            ask.ledger_id, ask.first, ask.last, max_bytes, background=ask.background
        )
        return ReadAnswer(batches[:MAX_FRAMES], lac)

    async def _read_entry(self, ask: wire.ReadEntry) -> wire.Answer:
        return await self._store.read_entry(ask.ledger_id, ask.entry_id)

    async def _read_lac(self, ask: wire.ReadLac) -> wire.Answer:
        return await self._store.read_lac(ask.ledger_id)

    async def _wait_lac(self, ask: wire.WaitLac) -> wire.Answer:
        return await self._store.wait_lac(ask.ledger_id, ask.above, min(ask.timeout_ms, MAX_WAIT_MS))

    async def _fence(self, ask: wire.Fence) -> wire.Answer:
        return await self._store.fence(ask.ledger_id, ask.key)

    async def _recovery_read(self, ask: wire.RecoveryRead) -> wire.Answer:
        # At most the bytes of one batch: the reserve for recovery must serve many such reads.
        max_bytes = min(ask.max_bytes, MAX_BATCH_BYTES)
        batches, lac = await self._store.recovery_read(ask.ledger_id, ask.entry_id, ask.key, max_bytes)
        return ReadAnswer(batches[:MAX_FRAMES], lac)

    async def _recovery_add(self, ask: wire.RecoveryAdd) -> wire.Answer:
        await self._urgent_add(ask.batch, ask.key, AddKind.RECOVERY, ask.identity)
        return None

    async def _repair_add(self, ask: inspection.RepairAdd) -> wire.Answer:
        await self._urgent_add(ask.batch, b"", AddKind.REPAIR, ask.identity)
        return None

    async def _urgent_add(self, batch: Buffer, key: bytes, kind: AddKind, identity: bytes) -> None:
        answered: asyncio.Future[AddAnswer] = asyncio.get_running_loop().create_future()

        def on_answer(answer: AddAnswer) -> None:
            if not answered.done():
                answered.set_result(answer)

        self._store.add(batch, key, on_answer, kind=kind, identity=identity)
        answer = await answered
        if answer.code != OK_CODE:
            refused = f"{self._store.bookie_id} refused a {kind.value} add"
            raise error_from_wire(answer.code, refused, answer.retry_after_ms)

    async def _held(self, ask: inspection.AskHeld) -> wire.Answer:
        answer = await self._store.held(ask.ledger_id, ask.first, ask.last)
        return answer._replace(writer=await self._load.attached.writer_of(self._store, ask.ledger_id))

    async def _damaged(self, ask: inspection.AskDamaged) -> wire.Answer:
        after = ask.after_ledger_id, ask.after_first_entry_id
        return inspection.DamagedAnswer(await self._store.damaged(after, ask.limit))

    async def _held_ledgers(self, ask: inspection.AskHeldLedgers) -> wire.Answer:
        return await self._store.held_ledgers(ask.after, ask.limit)

    async def _end_limbo(self, ask: inspection.EndLimbo) -> wire.Answer:
        await self._store.end_limbo(ask.ledger_id)
        return None

    async def _status(self, _: inspection.AskStatus) -> wire.Answer:
        return await self._store.status()

    async def _trace(self, ask: inspection.AskTrace) -> wire.Answer:
        return await self._store.trace(ask.ledger_id, ask.entry_id)

    async def _authorize(self, ask: inspection.Authorize) -> wire.Answer:
        try:
            self._principal.check(_ASKED_FOR[ask.permission])
        except AccessDenied as error:
            self._note(ask, error)
            raise
        if ask.command:
            audit("command", self._principal, self._stream.peer, command=ask.command, arguments=ask.arguments)
        return None

    async def _write_lac(self, ask: wire.WriteLac) -> wire.Answer:
        await self._store.write_lac(ask.ledger_id, ask.lac, ask.key)
        return None

    async def _write_lacs(self, ask: wire.WriteLacs) -> wire.Answer:
        """Write several LACs. One that fails is named in the answer, and does not fail the others."""
        each = (self._outcome(wire.WriteLac(*lac[:3]), lac.identity) for lac in ask.lacs)
        outcomes = enumerate(await asyncio.gather(*each, return_exceptions=True))
        refused = [wire.RefusedLac.of(at, error) for at, error in outcomes if isinstance(error, BaseException)]
        return wire.LacsAnswer(tuple(refused)) if refused else None

    async def _force(self, ask: wire.Force) -> wire.Answer:
        await self._store.force(ask.ledger_id, ask.key)
        return None


def _answer_bytes(ask: wire.Ask | None, max_read_bytes: int) -> int:
    """The maximum bytes of memory that the answer may need, apart from small overhead."""
    if isinstance(ask, wire.ReadBatches):
        return min(ask.max_bytes, max_read_bytes) + MAX_BATCH_BYTES
    if isinstance(ask, wire.ReadEntry | wire.RecoveryRead | inspection.AskDamaged | inspection.AskTrace):
        return MAX_BATCH_BYTES
    if isinstance(ask, inspection.AskHeld | inspection.AskHeldLedgers):
        return MAX_BATCH_BYTES  # reads thousands of rows and ranges, which need about as much
    return 0


def _about(ask: wire.Ask | None) -> dict[str, int]:
    """Ledger and first entry of a request, if it names them, for logs."""
    ledger_id, first = getattr(ask, "ledger_id", None), getattr(ask, "first", getattr(ask, "entry_id", None))
    named = {"ledger_id": ledger_id, "first_entry_id": first}
    return {name: value for name, value in named.items() if value is not None}


def _check(ask: Any) -> None:
    """Raise InvalidArgument for values that are invalid in any request."""
    if hasattr(ask, "ledger_id"):
        check_ledger_id(ask.ledger_id)
    if hasattr(ask, "entry_id"):
        check_entry_id(ask.entry_id)
    if isinstance(ask, wire.ReadBatches | inspection.AskHeld):
        check_entry_id(ask.first)
        if ask.last < ask.first:
            raise InvalidArgument(f"a read from entry {ask.first} cannot end at entry {ask.last}")
    if isinstance(ask, wire.WriteLac | wire.WaitLac):
        check_lac(ask.lac if isinstance(ask, wire.WriteLac) else ask.above)
    if isinstance(ask, wire.WriteLacs) and len(ask.lacs) > MAX_LACS:
        raise InvalidArgument(f"at most {MAX_LACS} LACs in one request, not {len(ask.lacs)}")
    if isinstance(ask, inspection.AskDamaged | inspection.AskHeldLedgers):
        _check_page(ask)
    if isinstance(ask, inspection.Authorize):
        _check_authorize(ask)
    if len(getattr(ask, "key", b"")) > KEY_BYTES:
        raise InvalidArgument(f"a key has at most {KEY_BYTES} bytes")


def _check_authorize(ask: inspection.Authorize) -> None:
    if ask.permission not in _ASKED_FOR:
        raise InvalidArgument(f"there is no permission {ask.permission[:_MAX_COMMAND]!r}")
    if len(ask.command) > _MAX_COMMAND or len(ask.arguments) > _MAX_ARGUMENTS:
        raise InvalidArgument(f"a command has at most {_MAX_COMMAND} characters, its arguments {_MAX_ARGUMENTS}")


def _check_page(ask: inspection.AskDamaged | inspection.AskHeldLedgers) -> None:
    if ask.limit < 1:
        raise InvalidArgument("a page has at least one line")
    after = ask[:-1]
    if min(after) < NO_ENTRY:
        raise InvalidArgument(f"a page cannot begin after {after}")
