"""Encodes and decodes the messages of ``bookie.proto`` as plain values.

Only this module and ``inspection`` use the generated code. Batches inside a decoded message are views into its bytes
(``batches``).

Decoders raise ProtocolViolation for bytes that are not a message of the expected kind. They do not check ids and
sizes: the bookie does, and refuses only the request that has wrong ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from google.protobuf.message import DecodeError, Message

from tallybook.core.answers import AddAnswer, FenceAnswer, Incarnation, LacAnswer, ReadAnswer
from tallybook.core.batch import EntrySlice
from tallybook.core.buffers import Buffer, ReceivedMessage
from tallybook.core.error_codes import error_from_wire
from tallybook.core.errors import Busy, InvalidArgument, InvariantViolation, ProtocolViolation, TallybookError
from tallybook.core.ids import IDENTITY_BYTES, NO_IDENTITY
from tallybook.core.limits import MAX_BATCH_BYTES
from tallybook.proto import bookie_pb2 as pb

from .batches import MAX_ATTACHED_LEDGERS, MAX_REST_BYTES, frame_batches, split_batches
from .inspection import INSPECTION_ANSWERS, INSPECTION_ASKS, InspectionAnswer, InspectionAsk, RepairAdd, put_inspection
from .versions import SPOKEN, Versions

M = TypeVar("M", bound=Message)

MAX_MESSAGE_CHARACTERS: Final = 1000
"""Longest text of an error that is sent to a peer."""


MAX_PORT: Final = 65_535
"""The highest port of TCP."""


class Hello(NamedTuple):
    """The first message of a client on a stream.

    Attributes:
        expected: the incarnation of the bookie that the client expects; ``None`` on the first connection.
        versions: the protocol versions that the client supports.
    """

    cluster_id: str
    client_id: str
    expected: Incarnation | None
    versions: Versions = SPOKEN


class Welcome(NamedTuple):
    """The bookie's answer to a hello: its identity, the limits of this stream, and the protocol version it selected."""

    bookie_id: str
    incarnation: Incarnation
    credit_bytes: int
    max_requests: int
    max_waits: int
    protocol_version: int = SPOKEN.newest
    max_batch_bytes: int = MAX_BATCH_BYTES
    """The largest batch that the bookie accepts. An older bookie does not report it: then the largest of all."""
    max_attached: int = 0
    """Attached ledgers that the bookie remembers. 0: an older bookie, which accepts one attachment per message."""
    tcp_port: int = 0
    """Port on which the bookie takes the same streams over TCP; 0: none."""


class Attach(NamedTuple):
    """The key and the identity of a ledger, for the adds that follow.

    Attributes:
        deferred: whether these adds may be acked before they are durable.
    """

    ledger_id: int
    key: bytes
    deferred: bool = False
    identity: bytes = NO_IDENTITY


class Adds(NamedTuple):
    """A message of the Add stream. The bookie applies ``detached`` first, then ``attaches``, then ``batches``.

    ``traceparent`` is that of the first batch; empty if it is not traced.
    """

    attaches: Sequence[Attach]
    batches: Sequence[Buffer]
    traceparent: str = ""
    detached: Sequence[int] = ()


class Ack(NamedTuple):
    """The result of the ``number``-th batch of a stream."""

    number: int
    answer: AddAnswer


class ReadBatches(NamedTuple):
    """Read whole batches."""

    ledger_id: int
    first: int
    last: int
    max_bytes: int
    background: bool = False


class ReadEntry(NamedTuple):
    """Read one entry."""

    ledger_id: int
    entry_id: int


class ReadLac(NamedTuple):
    """Read the last add confirmed (LAC)."""

    ledger_id: int


class WaitLac(NamedTuple):
    """Wait until the LAC is above ``above``: a long poll. The answer may contain ``max_bytes`` of batches."""

    ledger_id: int
    above: int
    timeout_ms: int
    max_bytes: int = 0


class Fence(NamedTuple):
    """Fence the ledger."""

    ledger_id: int
    key: bytes


class RecoveryRead(NamedTuple):
    """Fence the ledger, and read one batch and those that follow it, up to about ``max_bytes``."""

    ledger_id: int
    entry_id: int
    key: bytes
    max_bytes: int = 0


class RecoveryAdd(NamedTuple):
    """Store a batch that recovery writes back."""

    key: bytes
    batch: Buffer
    identity: bytes = NO_IDENTITY
    """Sent in the ``identity`` field of the request."""


class WriteLac(NamedTuple):
    """Store a LAC."""

    ledger_id: int
    lac: int
    key: bytes


class LedgerLac(NamedTuple):
    """The LAC of one ledger among others."""

    ledger_id: int
    lac: int
    key: bytes
    identity: bytes = NO_IDENTITY


class WriteLacs(NamedTuple):
    """Store the LACs of several ledgers. The answer lists the refused ones: ``LacsAnswer``."""

    lacs: tuple[LedgerLac, ...]


class Force(NamedTuple):
    """Make all acked batches of a ledger durable."""

    ledger_id: int
    key: bytes


Ask: TypeAlias = (
    ReadBatches
    | ReadEntry
    | ReadLac
    | WaitLac
    | Fence
    | RecoveryRead
    | RecoveryAdd
    | WriteLac
    | WriteLacs
    | Force
    | InspectionAsk
)


class RefusedLac(NamedTuple):
    """A refused LAC: its index in the request, and the reason."""

    at: int
    code: int
    retry_after_ms: int = 0

    @classmethod
    def of(cls, at: int, error: BaseException) -> RefusedLac:
        """Make the refusal for ``error``. Raises ``error`` itself if it is a defect."""
        if not isinstance(error, TallybookError) or isinstance(error, InvariantViolation):
            raise error
        return cls(at, error.wire_code, error.retry_after_ms if isinstance(error, Busy) else 0)


class LacsAnswer(NamedTuple):
    """The other LACs of a ``WriteLacs`` are durable."""

    refused: tuple[RefusedLac, ...]


Answer: TypeAlias = ReadAnswer | EntrySlice | LacAnswer | LacsAnswer | FenceAnswer | InspectionAnswer | None
"""``None``: the request was carried out and is durable."""


class Request(NamedTuple):
    """One request; ``ask`` is ``None`` if this version does not know its kind."""

    request_id: int
    ask: Ask | None
    traceparent: str = ""
    """The trace that the request is part of; empty if none."""
    identity: bytes = NO_IDENTITY
    """Identity of the ledger; empty if not stated."""


class Reply(NamedTuple):
    """The outcome of one request, or of the whole stream if ``request_id`` is 0."""

    request_id: int
    outcome: Answer | TallybookError


def encode_hello(hello: Hello) -> bytes:
    """Encode the first message of a client, on a stream of any kind."""
    oldest, newest = hello.versions
    message = pb.Hello(protocol_version=oldest, cluster_id=hello.cluster_id, client_id=hello.client_id)
    if newest != oldest:
        message.newest_version = newest
    if hello.expected is not None:
        message.expected.CopyFrom(_incarnation(hello.expected))
    # Hello, Welcome and Failure have the same field numbers on every stream, so one encoding serves all.
    return pb.Request(hello=message).SerializeToString()


def decode_hello(message: ReceivedMessage) -> Hello:
    """Decode the first message of a client."""
    if len(message) > MAX_REST_BYTES:
        raise ProtocolViolation(f"the first message of a stream has {len(message)} bytes: too long for a hello")
    request = _parse(pb.Request, message)
    if not request.HasField("hello"):
        raise ProtocolViolation("the first message of a stream is not a hello")
    hello = request.hello
    expected = _incarnation_of(hello.expected) if hello.HasField("expected") else None
    versions = Versions(hello.protocol_version, hello.newest_version or hello.protocol_version)
    return Hello(hello.cluster_id, hello.client_id, expected, versions)


def encode_welcome(welcome: Welcome) -> bytes:
    """Encode the first message of a bookie."""
    message = pb.Welcome(
        protocol_version=welcome.protocol_version,
        bookie_id=welcome.bookie_id,
        incarnation=_incarnation(welcome.incarnation),
        credit_bytes=welcome.credit_bytes,
        max_requests=welcome.max_requests,
        max_waits=welcome.max_waits,
        max_batch_bytes=welcome.max_batch_bytes,
        max_attached=welcome.max_attached,
        tcp_port=welcome.tcp_port,
    )
    return pb.Reply(welcome=message).SerializeToString()


def decode_welcome(message: ReceivedMessage) -> Welcome:
    """Decode the first message of a bookie.

    Raises:
        TallybookError: the error with which the bookie refused the stream.
    """
    reply = _parse(pb.Reply, message)
    if reply.HasField("failure"):
        raise _error_of(reply.failure)
    if not reply.HasField("welcome"):
        raise ProtocolViolation("the first message of a bookie is not a welcome")
    welcome = reply.welcome
    return Welcome(
        welcome.bookie_id,
        _incarnation_of(welcome.incarnation),
        welcome.credit_bytes,
        welcome.max_requests,
        welcome.max_waits,
        welcome.protocol_version,
        min(welcome.max_batch_bytes or MAX_BATCH_BYTES, MAX_BATCH_BYTES),
        min(welcome.max_attached, MAX_ATTACHED_LEDGERS),
        welcome.tcp_port if welcome.tcp_port <= MAX_PORT else 0,
    )


def encode_refusal(error: TallybookError) -> bytes:
    """Encode the error that ends a stream of any kind."""
    return encode_reply(0, error)


def encode_attach(attach: Attach, *, joined: bool = False) -> bytes:
    """Encode an attachment; frames of batches may follow in the same message.

    Args:
        joined: whether the message may have several attachments; older bookies accept only one.
    """
    message = pb.Attach(**attach._asdict())
    request = pb.AddRequest(attaches=(message,)) if joined else pb.AddRequest(attach=message)
    return request.SerializeToString()


def encode_detached(ledger_ids: Sequence[int]) -> bytes:
    """Encode detached ledgers; attachments and frames of batches may follow in the same message."""
    return pb.AddRequest(detached=ledger_ids).SerializeToString()


def encode_traced(traceparent: str) -> bytes:
    """Encode the trace of a batch; its frame must be the first of the message."""
    return pb.AddRequest(traceparent=traceparent).SerializeToString()


def decode_adds(message: ReceivedMessage) -> Adds:
    """Decode a message of the Add stream after the hello."""
    rest, batches = split_batches(message)
    if not rest:
        return Adds((), batches)
    request = _parse(pb.AddRequest, rest)
    if request.HasField("hello"):
        raise ProtocolViolation("a second hello")
    attaches = (*((request.attach,) if request.HasField("attach") else ()), *request.attaches)
    found = tuple(Attach(each.ledger_id, each.key, each.deferred, each.identity) for each in attaches)
    return Adds(found, batches, request.traceparent, tuple(request.detached))


def encode_acks(acks: Iterable[Ack]) -> bytes:
    """Encode several acks as one message."""
    reply = pb.AddReply()
    append = reply.acks.add
    for number, (ledger_id, first_entry_id, entry_count, code, retry_after_ms) in acks:
        append(
            number=number,
            ledger_id=ledger_id,
            first_entry_id=first_entry_id,
            entry_count=entry_count,
            code=code,
            retry_after_ms=retry_after_ms,
        )
    return reply.SerializeToString()


def decode_acks(message: ReceivedMessage) -> list[Ack]:
    """Decode the acks of an Add stream.

    Raises:
        TallybookError: the error with which the bookie ends the stream.
    """
    reply = _parse(pb.AddReply, message)
    if reply.HasField("failure"):
        raise _error_of(reply.failure)
    return [
        Ack(
            ack.number,
            AddAnswer(ack.ledger_id, ack.first_entry_id, ack.entry_count, ack.code, ack.retry_after_ms),
        )
        for ack in reply.acks
    ]


def encode_request(request_id: int, ask: Ask, traceparent: str = "", identity: bytes = NO_IDENTITY) -> bytes:
    """Encode a request of the Read or Control stream.

    Raises:
        InvalidArgument: a value is out of the range of its field.
    """
    name, kind, fields = _ASKS[type(ask)]
    if isinstance(ask, RecoveryAdd | RepairAdd):
        identity = ask.identity
    try:
        part = kind(**{field: _field(getattr(ask, field)) for field in fields})
    except (ValueError, TypeError) as error:
        raise InvalidArgument(f"{name}: {error}") from None
    front = pb.Request(
        request_id=request_id, traceparent=traceparent, identity=identity, **{name: part}
    ).SerializeToString()  # fmt: skip
    return frame_batches(front, (ask.batch,)) if isinstance(ask, RecoveryAdd | RepairAdd) else front


def _field(value: Any) -> Any:
    return [pb.LedgerLac(**lac._asdict()) for lac in value] if isinstance(value, tuple) else value


def decode_request(message: ReceivedMessage) -> Request:
    """Decode a request of the Read or Control stream."""
    rest, batches = split_batches(message, max_frames=1)
    request = _parse(pb.Request, rest)
    if not request.request_id:
        raise ProtocolViolation("a request without an id")
    name = request.WhichOneof("ask")
    if len(batches) != (name in {"recovery_add", "repair_add"}):
        raise ProtocolViolation(f"{len(batches)} batches in a request of kind {name}")
    identity = _identity(request.identity)
    return Request(request.request_id, _ask_of(request, name, batches), request.traceparent, identity)


def _identity(identity: bytes) -> bytes:
    if len(identity) not in (0, IDENTITY_BYTES):
        raise ProtocolViolation(f"the identity of a ledger has {IDENTITY_BYTES} bytes, not {len(identity)}")
    return identity


def _ask_of(request: pb.Request, name: str | None, batches: list[memoryview]) -> Ask | None:
    if name is None:
        return None
    part = getattr(request, name)
    if name == "recovery_add":
        return RecoveryAdd(part.key, batches[0], request.identity)
    if name == "repair_add":
        return RepairAdd(batches[0], request.identity)
    if name == "write_lacs":
        return WriteLacs(
            tuple(LedgerLac(lac.ledger_id, lac.lac, lac.key, _identity(lac.identity)) for lac in part.lacs)
        )
    make, fields = _ASKS_BY_NAME[name]
    ask: Ask = make(*[getattr(part, field) for field in fields])
    return ask


def encode_reply(request_id: int, outcome: Answer | TallybookError) -> bytes:
    """Encode the outcome of a request."""
    reply = pb.Reply(request_id=request_id)
    batches: tuple[Buffer, ...] = ()
    if isinstance(outcome, TallybookError):
        reply.failure.CopyFrom(_failure(outcome))
    elif isinstance(outcome, ReadAnswer):
        reply.batches_answer.lac = outcome.lac
        batches = outcome.batches
    elif isinstance(outcome, EntrySlice):
        reply.entry_answer.CopyFrom(pb.EntryAnswer(**{name: getattr(outcome, name) for name in _ENTRY_FIELDS}))
    elif isinstance(outcome, LacAnswer):
        reply.lac_answer.CopyFrom(pb.LacAnswer(lac=outcome.lac, fenced=outcome.fenced))
        batches = outcome.batches
    elif isinstance(outcome, LacsAnswer):
        reply.done_answer.CopyFrom(pb.DoneAnswer(refused=[pb.RefusedLac(**each._asdict()) for each in outcome.refused]))
    elif isinstance(outcome, FenceAnswer):
        reply.fence_answer.CopyFrom(pb.FenceAnswer(lac=outcome.lac, last_held=outcome.last_held))
    elif outcome is not None:
        put_inspection(reply, outcome)
    else:
        reply.done_answer.SetInParent()
    front = reply.SerializeToString()
    return frame_batches(front, batches) if batches else front


def decode_reply(message: ReceivedMessage) -> Reply:
    """Decode the outcome of a request."""
    # A single entry is an ordinary field, not a frame.
    rest, batches = split_batches(message, max_rest_bytes=MAX_BATCH_BYTES + MAX_REST_BYTES)
    reply = _parse(pb.Reply, rest)
    name = reply.WhichOneof("answer")
    decode = _ANSWERS.get(name or "")
    if decode is None:
        raise ProtocolViolation("a reply without an answer")
    if batches and name not in {"batches_answer", "lac_answer"}:
        raise ProtocolViolation(f"batches in a reply of kind {name}")
    return Reply(reply.request_id, decode(reply, batches))


def _done(done: pb.DoneAnswer) -> LacsAnswer | None:
    refused = tuple(RefusedLac(each.at, each.code, each.retry_after_ms) for each in done.refused)
    return LacsAnswer(refused) if refused else None


def _without_batches(read: Callable[[pb.Reply], Answer], reply: pb.Reply, _batches: list[memoryview]) -> Answer:
    return read(reply)


_ENTRY_FIELDS = ("ledger_id", "entry_id", "payload", "payload_crc", "written_at_us", "lac")

_ASKS: dict[type, tuple[str, Callable[..., Any], tuple[str, ...]]] = {
    ReadBatches: ("read_batches", pb.ReadBatches, ReadBatches._fields),
    ReadEntry: ("read_entry", pb.ReadEntry, ReadEntry._fields),
    ReadLac: ("read_lac", pb.ReadLac, ReadLac._fields),
    WaitLac: ("wait_lac", pb.WaitLac, WaitLac._fields),
    Fence: ("fence", pb.Fence, Fence._fields),
    RecoveryRead: ("recovery_read", pb.RecoveryRead, RecoveryRead._fields),
    RecoveryAdd: ("recovery_add", pb.RecoveryAdd, ("key",)),
    WriteLac: ("write_lac", pb.WriteLac, WriteLac._fields),
    WriteLacs: ("write_lacs", pb.WriteLacs, WriteLacs._fields),
    Force: ("force", pb.Force, Force._fields),
    **INSPECTION_ASKS,
}
_ASKS_BY_NAME: dict[str, tuple[Callable[..., Any], tuple[str, ...]]] = {
    name: (make, fields) for make, (name, _, fields) in _ASKS.items()
}

_ANSWERS: dict[str, Callable[[pb.Reply, list[memoryview]], Answer | TallybookError]] = {
    "failure": lambda reply, _: _error_of(reply.failure),
    "batches_answer": lambda reply, batches: ReadAnswer(tuple(batches), reply.batches_answer.lac),
    "entry_answer": lambda reply, _: EntrySlice(*[getattr(reply.entry_answer, name) for name in _ENTRY_FIELDS]),
    "lac_answer": lambda reply, batches: LacAnswer(reply.lac_answer.lac, reply.lac_answer.fenced, tuple(batches)),
    "fence_answer": lambda reply, _: FenceAnswer(reply.fence_answer.lac, reply.fence_answer.last_held),
    "done_answer": lambda reply, _: _done(reply.done_answer),
    **{name: partial(_without_batches, read) for name, read in INSPECTION_ANSWERS.items()},
}


def _parse(kind: type[M], message: ReceivedMessage) -> M:
    try:
        return kind.FromString(bytes(message))
    except DecodeError as error:
        raise ProtocolViolation(f"the message is not a valid {kind.__name__}: {error}") from None


def _incarnation(value: Incarnation) -> pb.Incarnation:
    return pb.Incarnation(directory_uuid=value.directory_uuid, boot=value.boot)


def _incarnation_of(message: pb.Incarnation) -> Incarnation:
    return Incarnation(message.directory_uuid, message.boot)


def _failure(error: TallybookError) -> pb.Failure:
    """Encode an error. A defect here must not look like a defect of the peer."""
    internal = isinstance(error, InvariantViolation)
    return pb.Failure(
        code=TallybookError.wire_code if internal else error.wire_code,
        message=error.message[:MAX_MESSAGE_CHARACTERS],
        retry_after_ms=error.retry_after_ms if isinstance(error, Busy) else 0,
    )


def _error_of(failure: pb.Failure) -> TallybookError:
    # A defect of the peer must not look like a defect here.
    internal = failure.code == InvariantViolation.wire_code
    return error_from_wire(
        TallybookError.wire_code if internal else failure.code, failure.message, failure.retry_after_ms
    )
