"""Batches inside messages, without paying protobuf for them.

``bookie.proto`` describes every message, and any protobuf implementation can speak it. But a
large bytes field that goes through protobuf is copied twice and halves the rate of the whole
path. So each message that carries batches has them in field 15, and this module writes that
field's tag and length by hand and finds the batches of a received message as views into it.
What is left of the message is small, and goes through protobuf as usual
(``messages``). Two serialised messages one after the other are one message with the
repeated fields of both; the Add stream uses that to send small batches together.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from tallybook.core.batch import Buffer, peek_ids
from tallybook.core.errors import ProtocolViolation
from tallybook.core.limits import BATCH_HEADER_BYTES, KIB, MAX_BATCH_BYTES, MIB

MAX_ATTACHED_LEDGERS: Final = 65_536
"""How many ledgers' keys a bookie remembers for an Add stream; both sides forget the oldest beyond it.

What it remembers is what the client has open, as the client tells which ledgers it is through with: some 300 bytes for
each of them.
"""

WRITER_RETURN_SECONDS: Final = 60.0
"""How long a client that lost a connection may take to attach its ledgers again: several pauses and connect timeouts.

For as long, a bookie does not say that they have no writer.
"""

FORMERLY_ATTACHED_LEDGERS: Final = 1024
"""The same of a bookie that does not say."""

MAX_ATTACHES: Final = 40
"""Most attachments in one message: with their keys they are well below what may be in it besides batches."""

MAX_DETACHES: Final = 100
"""Most ledgers that one message detaches."""

MAX_LACS: Final = 32
"""Most LACs of ledgers in one request: with their keys they are well below what may be in it besides batches."""

ADD_OVERHEAD_BYTES: Final = 512
"""What a batch costs of a stream's credit besides its length, so that tiny batches are bounded in number, too."""

MAX_ADD_COST_BYTES: Final = MAX_BATCH_BYTES + ADD_OVERHEAD_BYTES
"""Least credit a bookie may grant: any one batch must fit."""

MAX_FRAMES: Final = 8_192
"""Most batches in one message."""

MAX_REST_BYTES: Final = 4 * KIB
"""Most bytes that a request may have besides its batches."""

_MAX_REST_FIELDS: Final = 64

_BATCH_TAG: Final = 15 << 3 | 2
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_MAX_VARINT_BYTES: Final = 10


def add_cost_bytes(batch_bytes: int) -> int:
    """What a batch of this length costs of a stream's credit until it is answered."""
    return batch_bytes + ADD_OVERHEAD_BYTES


def frame_batch(batch: Buffer) -> bytes:
    """A whole message, or the last part of one, that carries ``batch``."""
    return b"".join((_head(len(batch)), batch))


def frame_batches(front: bytes, batches: tuple[Buffer, ...]) -> bytes:
    """The message ``front`` (already serialised) with ``batches`` added."""
    parts: list[Buffer] = [front]
    for batch in batches:
        parts += (_head(len(batch)), batch)
    return b"".join(parts)


def split_batches(
    message: bytes, *, max_frames: int = MAX_FRAMES, max_rest_bytes: int = MAX_REST_BYTES
) -> tuple[bytes, list[memoryview]]:
    """Part a message into the fields for protobuf and its batches, which are views into ``message``.

    A message is looked at field by field, so the number of its fields bounds what one costs;
    it is refused at the first field too many.

    Raises:
        ProtocolViolation: a field reaches beyond the end, or its wire type does not exist; a
            batch is shorter than its header; more batches or other fields than a message may have.
    """
    view = memoryview(message)
    end = len(message)
    batches: list[memoryview] = []
    others: list[memoryview] = []
    rest_bytes = 0
    at = 0
    while at < end:
        start = at
        tag, at = _read_varint(message, at)
        if tag == _BATCH_TAG:
            size, at = _read_varint(message, at)
            if size < BATCH_HEADER_BYTES or len(batches) == max_frames:
                which = f"batch {len(batches) + 1} of at most {max_frames}"
                raise ProtocolViolation(f"{which} in a message has {size} bytes")
            start, at = at, at + size
            batches.append(view[start:at])
        else:
            at = _skip_value(message, at, tag & 7)
            rest_bytes += at - start
            if rest_bytes > max_rest_bytes or len(others) == _MAX_REST_FIELDS:
                raise ProtocolViolation(f"{len(others) + 1} fields of {rest_bytes} bytes besides batches in a message")
            others.append(view[start:at])
        if at > end:
            raise ProtocolViolation(f"a field reaches {at - end} bytes beyond the end of its message")
    return b"".join(others), batches


class FrameCache:
    """Frames of the batches sent last, so that a batch for Qw bookies is framed once and shared.

    A writer hands one batch to all its bookies in one turn, so a few suffice.
    """

    MAX_BYTES: Final = 2 * MIB

    def __init__(self) -> None:
        self._frames: OrderedDict[tuple[int, int, int], tuple[bytes, bytes]] = OrderedDict()
        self._size_bytes = 0

    @property
    def held_bytes(self) -> int:
        """Bytes of the frames remembered."""
        return self._size_bytes

    def frame(self, batch: bytes) -> bytes:
        """The frame of ``batch``: the very same object for the very same batch, while it is remembered."""
        ids = peek_ids(batch)
        held = self._frames.get(ids)
        if held is not None and held[0] is batch:
            return held[1]
        framed = frame_batch(batch)
        if held is not None:
            self._size_bytes -= len(held[1])
        self._frames[ids] = (batch, framed)
        self._size_bytes += len(framed)
        while self._size_bytes > self.MAX_BYTES:
            _, (_, dropped) = self._frames.popitem(last=False)
            self._size_bytes -= len(dropped)
        return framed


def _head(size: int) -> bytes:
    head = bytearray((_BATCH_TAG,))
    while size > 0x7F:
        head.append(size & 0x7F | 0x80)
        size >>= 7
    head.append(size)
    return bytes(head)


def _read_varint(message: bytes, at: int) -> tuple[int, int]:
    """A number, and the offset after it."""
    value = 0
    for index, byte in enumerate(message[at : at + _MAX_VARINT_BYTES]):
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value, at + index + 1
    raise ProtocolViolation(f"no number ends within {_MAX_VARINT_BYTES} bytes of offset {at}")


def _skip_value(message: bytes, at: int, wire_type: int) -> int:
    """The offset after the value of a field that is not a batch."""
    if wire_type == _VARINT:
        return _read_varint(message, at)[1]
    if wire_type == _FIXED64:
        return at + 8
    if wire_type == _FIXED32:
        return at + 4
    if wire_type == _LENGTH:
        size, at = _read_varint(message, at)
        return at + size
    raise ProtocolViolation(f"wire type {wire_type} before offset {at} does not exist")
