"""Fuzz target: messages between clients and bookies, in both directions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from tallybook.core.answers import (
    AddAnswer,
    BookieStatus,
    CopyPlace,
    CopyTrace,
    DamagedBatch,
    DirectorySpace,
    EntryRange,
    FenceAnswer,
    HeldAnswer,
    HeldLedger,
    HeldLedgers,
    Incarnation,
    LacAnswer,
    ReadAnswer,
)
from tallybook.core.batch import EntrySlice, encode_batch
from tallybook.core.error_codes import error_class
from tallybook.core.errors import Busy, InvariantViolation, ProtocolViolation, StreamOwned, TallybookError
from tallybook.runtime.tcp.framing import SCRATCH_BYTES, FrameReader, Signal, TcpFrame, encode_signal, length_prefix
from tallybook.wire import messages
from tallybook.wire.batches import frame_batch, frame_batches, split_batches
from tallybook.wire.inspection import (
    AskDamaged,
    AskHeld,
    AskHeldLedgers,
    AskStatus,
    AskTrace,
    DamagedAnswer,
    EndLimbo,
    RepairAdd,
)
from tallybook.wire.messages import (
    Ack,
    Attach,
    Fence,
    Force,
    Hello,
    LacsAnswer,
    LedgerLac,
    ReadBatches,
    ReadEntry,
    ReadLac,
    RecoveryAdd,
    RecoveryRead,
    RefusedLac,
    WaitLac,
    Welcome,
    WriteLac,
    WriteLacs,
)

from ..harness import REFUSED, Finding, Target, attempt, same

TARGET = Target("wire", words=(b"\x7a", b"\x7a\x40", b"\x12\x00", b"\xff" * 9 + b"\x01", b"\x0a\x00"))

BATCH = encode_batch(7, 0, [b"hello"], lac=-1, ledger_length=5, written_at_us=1)
KEY = bytes(32)
TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def _plain(value: Any) -> Any:
    """``value`` with bytes in place of views, and text in place of errors, so that it can be compared and printed."""
    if isinstance(value, memoryview):
        return bytes(value)
    if isinstance(value, TallybookError):
        return type(value), str(value)
    if isinstance(value, list | tuple):
        return type(value).__name__, [_plain(each) for each in value]
    return repr(value)


def _comes_back(data: bytes, decode: Callable[[bytes], Any], encode: Callable[[Any], bytes]) -> None:
    found = attempt(ProtocolViolation, decode, data)
    if found is not REFUSED:
        same(_plain(found), _plain(decode(encode(found))), "a message")


def _refused_stream(decode: Callable[[bytes], Any], data: bytes) -> Any:
    """As ``attempt``, for messages that may also carry the reason why the peer ends the stream."""
    try:
        return decode(data)
    except InvariantViolation as error:
        raise Finding(f"what a peer says passes for a defect of this side: {error}") from error
    except TallybookError:
        return REFUSED


def some_hellos() -> Iterator[bytes]:
    """The first hello of a client, and a later one."""
    yield messages.encode_hello(Hello("cluster", "client", None))
    yield messages.encode_hello(Hello("cluster", "client", Incarnation("uuid", 3)))


@TARGET.decoder(
    "wire/messages.py:decode_hello",
    "wire/messages.py:_parse",
    "wire/messages.py:_incarnation_of",
    seeds=some_hellos,
)
def hello(data: bytes) -> None:
    """The first message of a client."""
    _comes_back(data, messages.decode_hello, messages.encode_hello)


def some_welcomes() -> Iterator[bytes]:
    """A welcome, and a refusal."""
    yield messages.encode_welcome(Welcome("bookie-1", Incarnation("uuid", 3), 1 << 20, 100, 10))
    yield messages.encode_refusal(Busy("later", retry_after_ms=50))
    yield messages.encode_refusal(StreamOwned("somebody"))


@TARGET.decoder(
    "wire/messages.py:decode_welcome",
    "core/error_codes.py:error_from_wire",
    "wire/messages.py:_error_of",
    seeds=some_welcomes,
)
def welcome(data: bytes) -> None:
    """The first message of a bookie."""
    found = _refused_stream(messages.decode_welcome, data)
    if found is not REFUSED:
        same(found, messages.decode_welcome(messages.encode_welcome(found)), "a welcome")


def some_adds() -> Iterator[bytes]:
    """Adds with a key, and without."""
    attached = messages.encode_attach(Attach(7, KEY, True))
    yield attached
    yield frame_batch(BATCH)
    yield frame_batches(attached, (BATCH, BATCH))
    yield frame_batches(attached + messages.encode_traced(TRACEPARENT), (BATCH, BATCH))
    yield frame_batches(
        messages.encode_detached([5, 6]) + messages.encode_attach(Attach(7, KEY), joined=True), (BATCH,)
    )


@TARGET.decoder("wire/messages.py:decode_adds", "wire/batches.py:split_batches", seeds=some_adds)
def adds(data: bytes) -> None:
    """Batches, and keys of ledgers."""
    rest = attempt(ProtocolViolation, split_batches, data)
    if rest is not REFUSED:
        again = split_batches(frame_batches(rest[0], tuple(rest[1])))
        same(_plain(rest), _plain(again), "what a message is parted into")

    def encode(found: messages.Adds) -> bytes:
        attached = b"".join(messages.encode_attach(each, joined=True) for each in found.attaches)
        front = messages.encode_detached(found.detached) + attached
        return frame_batches(front + messages.encode_traced(found.traceparent), tuple(found.batches))

    _comes_back(data, messages.decode_adds, encode)


def some_acks() -> Iterator[bytes]:
    """Acks, and the end of a stream."""
    yield messages.encode_acks([Ack(0, AddAnswer(7, 0, 1)), Ack(1, AddAnswer(7, 1, 9, 201, 50))])
    yield messages.encode_refusal(Busy("later", retry_after_ms=50))


@TARGET.decoder("wire/messages.py:decode_acks", seeds=some_acks)
def acks(data: bytes) -> None:
    """Acks of batches."""
    found = _refused_stream(messages.decode_acks, data)
    if found is not REFUSED:
        same(found, messages.decode_acks(messages.encode_acks(found)), "acks")


def some_requests() -> Iterator[bytes]:
    """One request of each type."""
    asks = (
        ReadBatches(7, 0, 9, 4096), ReadEntry(7, 3), ReadLac(7), WaitLac(7, -1, 1000, 5), Fence(7, KEY),
        RecoveryRead(7, 3, KEY), RecoveryAdd(KEY, BATCH), WriteLac(7, 3, KEY), Force(7, KEY), RepairAdd(BATCH),
        WriteLacs((LedgerLac(7, 3, KEY), LedgerLac(8, 3, KEY, bytes(16)))),
        AskHeld(7, 0, 9), AskDamaged(-1, -1, 10), AskHeldLedgers(-1, 10), EndLimbo(7), AskStatus(), AskTrace(7, 3),
    )  # fmt: skip
    for number, ask in enumerate(asks, 1):
        yield messages.encode_request(number, ask)
    yield messages.encode_request(1, ReadEntry(7, 3), TRACEPARENT)
    yield messages.encode_hello(Hello("cluster", "client", None))


@TARGET.decoder("wire/messages.py:decode_request", seeds=some_requests)
def request(data: bytes) -> None:
    """A request to a bookie."""
    found = attempt(ProtocolViolation, messages.decode_request, data)
    if found is not REFUSED and found.ask is not None:
        same(_plain(found), _plain(messages.decode_request(messages.encode_request(*found))), "a request")


def some_replies() -> Iterator[bytes]:
    """One answer of each type."""
    answers = (
        ReadAnswer((BATCH, BATCH), 9), EntrySlice(7, 3, b"hello", 1, 2, 2), LacAnswer(9, True),
        LacAnswer(9, False, (BATCH,)), FenceAnswer(9, 10), None,
        LacsAnswer((RefusedLac(1, Busy.wire_code, 50),)), HeldAnswer((EntryRange(0, 9),), 9, True),
        DamagedAnswer((DamagedBatch(7, 0, 9),)), HeldLedgers((HeldLedger(7, True, False),), True),
        BookieStatus(True, 0.5, 1, 2, 3, 0.25, 4, 5, 6, 7, 8, 9.5),
        BookieStatus(True, 0.5, 1, 2, 3, 0.25, 4, 5, 6, 7, 8, 9.5, (DirectorySpace("/d", "index", 1, 2, 3, "room"),)),
        CopyTrace("intact", "", 0, 9, 1, 2, 3, True, False, (CopyPlace("entry log", "here", 5),)),
        Busy("later", retry_after_ms=50),
    )  # fmt: skip
    for number, answer in enumerate(answers, 1):
        yield messages.encode_reply(number, answer)


@TARGET.decoder(
    "wire/messages.py:decode_reply",
    "wire/inspection.py:_held",
    "wire/inspection.py:_damaged",
    "wire/inspection.py:_held_ledgers",
    "wire/inspection.py:_status",
    "wire/inspection.py:_trace",
    "core/error_codes.py:error_class",
    seeds=some_replies,
)
def reply(data: bytes) -> None:
    """An answer of a bookie."""
    found = attempt(ProtocolViolation, messages.decode_reply, data)
    if found is REFUSED:
        return
    if isinstance(found.outcome, InvariantViolation):
        raise Finding(f"what a peer says passes for a defect of this side: {found.outcome}")
    if not isinstance(found.outcome, TallybookError) or type(found.outcome) is error_class(found.outcome.wire_code):
        again = messages.decode_reply(messages.encode_reply(*found))
        if not isinstance(found.outcome, TallybookError):
            same(_plain(found), _plain(again), "a reply")
        else:
            same(type(found.outcome).__name__, type(again.outcome).__name__, "an error")


def some_frames() -> Iterator[bytes]:
    """Messages, signals, and the beginning of a message."""
    yield length_prefix(BATCH) + BATCH + encode_signal(Signal.PING) + length_prefix(b"") + encode_signal(Signal.END)
    yield length_prefix(bytes(20_000)) + bytes(100)


@TARGET.decoder("runtime/tcp/framing.py:FrameReader._cut", seeds=some_frames)
def tcp_frames(data: bytes) -> None:
    """Frames on a TCP connection, in one piece and in small ones."""
    whole = attempt(ProtocolViolation, _frames, data, len(data))
    pieces = attempt(ProtocolViolation, _frames, data, 5)
    same(whole is REFUSED, pieces is REFUSED, "whether frames are refused")
    if not (whole is REFUSED or pieces is REFUSED):
        same(whole, pieces, "frames")


def _frames(data: bytes, piece_bytes: int) -> list[TcpFrame]:
    reader, found, at = FrameReader(memoryview(bytearray(SCRATCH_BYTES)), 1 << 20), list[TcpFrame](), 0
    while at < len(data):
        space = reader.space()
        size = min(len(space), piece_bytes, len(data) - at)
        space[:size] = data[at : at + size]
        found += reader.filled(size)
        at += size
    return found
