"""Frames on a connection: each message after its length, and signals without a message.

    [ length: u32, little endian | message ]

The three highest lengths are signals. docs/reference/formats/tcp.md has the protocol.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final, TypeAlias

from tallybook.core.buffers import ReceivedMessage
from tallybook.core.errors import ProtocolViolation
from tallybook.core.limits import KIB

SCRATCH_BYTES: Final = 256 * KIB
"""Size of the buffer into which small messages are received."""

LARGE_BYTES: Final = 16 * KIB
"""A larger message is received into a buffer of its own, so that it is not copied."""

FIRST_BYTES: Final = 256 * KIB
"""Memory for the beginning of a large message; the rest is allocated when so much has arrived, not on announcement."""

_LENGTH: Final = struct.Struct("<I")


class Signal(IntEnum):
    """A frame without a message; the value is its length field."""

    END = 0xFFFF_FFFF
    """The sender sends nothing more."""
    PING = 0xFFFF_FFFE
    """The receiver answers with PONG."""
    PONG = 0xFFFF_FFFD


TcpFrame: TypeAlias = ReceivedMessage | Signal


def length_prefix(message: bytes) -> bytes:
    """The bytes before ``message``."""
    return _LENGTH.pack(len(message))


def encode_signal(signal: Signal) -> bytes:
    """The bytes of a signal."""
    return _LENGTH.pack(signal)


class FrameReader:
    """Cuts the bytes of one connection into frames.

    The owner fills ``space`` from its beginning, then calls ``filled``.

    Args:
        scratch: of ``SCRATCH_BYTES``; shared by readers whose ``space`` and ``filled`` are called in pairs.
        max_message_bytes: limit of a message; see ``allow``.
    """

    __slots__ = ("_large", "_large_bytes", "_max_message_bytes", "_received_bytes", "_rest", "_scratch")

    def __init__(self, scratch: memoryview, max_message_bytes: int) -> None:
        self._scratch = scratch
        self._max_message_bytes = max_message_bytes
        self._rest = b""
        """The beginning of a small frame: other readers may use the scratch buffer before the rest arrives."""
        self._large: bytearray | None = None
        """The beginning of the large message that is being received, or all of it."""
        self._large_bytes = 0
        """Length of it."""
        self._received_bytes = 0
        """Received bytes of it."""

    def allow(self, max_message_bytes: int) -> None:
        """Set the limit of the messages that follow."""
        self._max_message_bytes = max_message_bytes

    def space(self) -> memoryview:
        """Where to put the bytes that arrive next."""
        large = self._large
        if large is not None:
            if self._received_bytes == len(large):
                # Not enlarged in place: the event loop may still have the view of before.
                self._large = whole = bytearray(self._large_bytes)
                whole[: len(large)] = large
                large = whole
            return memoryview(large)[self._received_bytes :]
        size = len(self._rest)
        if size:
            self._scratch[:size] = self._rest
        return self._scratch[size:]

    def filled(self, size: int) -> list[TcpFrame]:
        """The frames that are complete now that ``size`` more bytes have arrived.

        Raises:
            ProtocolViolation: a message exceeds the limit.
        """
        large = self._large
        if large is None:
            return self._cut(len(self._rest) + size)
        self._received_bytes += size
        if self._received_bytes < self._large_bytes:
            return []
        self._large = None
        return [large]

    def _cut(self, end: int) -> list[TcpFrame]:
        """Cut the first ``end`` bytes of the scratch buffer into frames, and keep the rest."""
        scratch, frames, at = self._scratch, list[TcpFrame](), 0
        self._rest = b""
        while end - at >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(scratch, at)
            start = at + _LENGTH.size
            if length >= Signal.PONG:
                frames.append(Signal(length))
                at = start
                continue
            if length > self._max_message_bytes:
                raise ProtocolViolation(f"a message of {length} bytes exceeds the limit of {self._max_message_bytes}")
            if start + length <= end:
                at = start + length
                frames.append(bytes(scratch[start:at]))
                continue
            if length > LARGE_BYTES:
                self._large = bytearray(min(length, FIRST_BYTES))
                self._large_bytes, self._received_bytes = length, end - start
                self._large[: end - start] = scratch[start:end]
                return frames
            break
        self._rest = bytes(scratch[at:end])
        return frames
