"""Batches inside messages, without the cost of protobuf.

``bookie.proto`` describes every message, so any protobuf implementation can use the protocol. But protobuf copies a
large bytes field twice, which halves the throughput. So all batches of a message are in field 15: this module writes
the tag and length of that field itself, and finds the batches of a received message as views into it. The rest of the
message is small and goes through protobuf (``messages``). Two serialised messages, one after the other, are one message
with the repeated fields of both; the Add stream uses this to send small batches together.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from tallybook.core.batch import peek_ids
from tallybook.core.buffers import Buffer, ReceivedMessage
from tallybook.core.errors import ProtocolViolation
from tallybook.core.limits import BATCH_HEADER_BYTES, KIB, MAX_BATCH_BYTES, MIB

MAX_ATTACHED_LEDGERS: Final = 65_536
"""Maximum attached ledgers of an Add stream; beyond it, client and bookie both forget the oldest.

The bookie remembers the ledgers that the client has open, about 300 bytes for each, since the client detaches ledgers
that it has finished with.
"""

WRITER_RETURN_SECONDS: Final = 60.0
"""How long a client may take to attach its ledgers again after it lost a connection: several pauses and timeouts.

During this time, the bookie does not report that they have no writer.
"""

FORMERLY_ATTACHED_LEDGERS: Final = 1024
"""Maximum attached ledgers of an older bookie, which does not report its limit."""

MAX_ATTACHES: Final = 40
"""Maximum attachments in one message. With their keys they stay well below ``MAX_REST_BYTES``."""

MAX_DETACHES: Final = 100
"""Maximum ledgers that one message detaches."""

MAX_LACS: Final = 32
"""Maximum LACs in one request. With their keys they stay well below ``MAX_REST_BYTES``."""

ADD_OVERHEAD_BYTES: Final = 512
"""Credit that a batch costs in addition to its length, so that the number of tiny batches is bounded, too."""

MAX_ADD_COST_BYTES: Final = MAX_BATCH_BYTES + ADD_OVERHEAD_BYTES
"""Minimum credit that a bookie may grant: the largest batch must fit."""

MAX_FRAMES: Final = 8_192
"""Maximum batches in one message."""

MAX_REST_BYTES: Final = 4 * KIB
"""Maximum bytes of a request besides its batches."""

_MAX_REST_FIELDS: Final = 64

_BATCH_TAG: Final = 15 << 3 | 2
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_MAX_VARINT_BYTES: Final = 10


def add_cost_bytes(batch_bytes: int) -> int:
    """Credit that a batch of this length takes until it is acked."""
    return batch_bytes + ADD_OVERHEAD_BYTES


def frame_batch(batch: Buffer) -> bytes:
    """Frame ``batch``: the result is a message, or the last part of one."""
    return b"".join((_head(len(batch)), batch))


def frame_batches(front: bytes, batches: tuple[Buffer, ...]) -> bytes:
    """Append ``batches`` to the serialised message ``front``."""
    parts: list[Buffer] = [front]
    for batch in batches:
        parts += (_head(len(batch)), batch)
    return b"".join(parts)


def split_batches(
    message: ReceivedMessage, *, max_frames: int = MAX_FRAMES, max_rest_bytes: int = MAX_REST_BYTES
) -> tuple[bytes, list[memoryview]]:
    """Split a message into the fields for protobuf and its batches, which are views into ``message``.

    The number of fields is bounded, since each is read on its own: the first field too many is an error.

    Raises:
        ProtocolViolation: a field reaches beyond the end of the message, or its wire type does not exist; a batch is
            shorter than its header; there are too many batches or other fields.
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
                raise ProtocolViolation(
                    f"batch {len(batches) + 1} of a message (maximum {max_frames}) has {size} bytes "
                    f"(minimum {BATCH_HEADER_BYTES})"
                )
            start, at = at, at + size
            batches.append(view[start:at])
        else:
            at = _skip_value(message, at, tag & 7)
            rest_bytes += at - start
            if rest_bytes > max_rest_bytes or len(others) == _MAX_REST_FIELDS:
                raise ProtocolViolation(
                    f"{len(others) + 1} fields with {rest_bytes} bytes besides batches in a message: maximum "
                    f"{_MAX_REST_FIELDS} fields and {max_rest_bytes} bytes"
                )
            others.append(view[start:at])
        if at > end:
            raise ProtocolViolation(f"a field reaches {at - end} bytes beyond the end of its message")
    return b"".join(others), batches


class FrameCache:
    """Cache of the last frames, so that a batch for Qw bookies is framed once and shared.

    A writer sends a batch to all its bookies in one turn of the event loop, so a few frames suffice.
    """

    MAX_BYTES: Final = 2 * MIB

    def __init__(self) -> None:
        self._frames: OrderedDict[tuple[int, int, int], tuple[bytes, bytes]] = OrderedDict()
        self._size_bytes = 0

    @property
    def held_bytes(self) -> int:
        """Bytes of the cached frames."""
        return self._size_bytes

    def frame(self, batch: bytes) -> bytes:
        """The frame of ``batch``. While it is cached, the same batch object gives the same frame object."""
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


def _read_varint(message: ReceivedMessage, at: int) -> tuple[int, int]:
    """Read a varint: its value, and the offset after it."""
    value = 0
    for index, byte in enumerate(message[at : at + _MAX_VARINT_BYTES]):
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value, at + index + 1
    raise ProtocolViolation(f"the varint at offset {at} does not end within {_MAX_VARINT_BYTES} bytes")


def _skip_value(message: ReceivedMessage, at: int, wire_type: int) -> int:
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
    raise ProtocolViolation(f"unknown wire type {wire_type} in the field before offset {at}")
