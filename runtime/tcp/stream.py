"""One end of a stream: sends and receives messages on one connection.

A side that has nothing more to send says END. The server closes the connection only after the client has ended its
side, or has not done so in time: what the server has sent has then arrived. A connection that closes without END has
broken the stream. A silent peer is pinged, and given up if it stays silent.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable
from typing import Any, Final, cast

from tallybook.core.access import NOTHING, Presented
from tallybook.core.buffers import ReceivedMessage
from tallybook.core.errors import PeerUnavailable, ProtocolViolation
from tallybook.core.limits import KIB, MIB

from .framing import LARGE_BYTES, FrameReader, Signal, encode_signal, length_prefix

BEAT_SECONDS: Final = 5.0
PING_AFTER: Final = 2
BREAK_AFTER: Final = 4
"""Beats without a byte from the peer, after which it is pinged, and after which it is given up."""

CLOSE_SECONDS: Final = 1.0
"""How long the peer may take, without any progress, to receive what was sent and to end its side."""

_UNACKED_MS: Final = 20_000
"""How long sent bytes may stay unacknowledged by the peer's machine, where the system has such a limit."""

MAX_UNREAD_BYTES: Final = 8 * MIB
"""Received bytes that wait for ``receive``; beyond, nothing is read from the connection."""
_MESSAGE_COST_BYTES: Final = 128
"""Added to the bytes of each waiting message, so that the number of tiny ones is bounded, too."""
_HIGH_WATER_BYTES: Final = MIB
_LOW_WATER_BYTES: Final = 256 * KIB
"""Bytes in the write buffer: beyond the first, ``send`` waits until no more than the second are left."""

_END, _PING, _PONG = map(encode_signal, Signal)


class TcpStream(asyncio.BufferedProtocol):
    """A ``MessageStream``, and the protocol of its connection.

    Args:
        scratch: see ``FrameReader``.
        server: address of the server, at the client's end; empty at the server's end.
        max_message_bytes: limit of a received message; see ``allow``.
        on_connected: called when the connection was made, instead of ``set_transport``, which it must call later.
    """

    def __init__(
        self,
        scratch: memoryview,
        *,
        server: str = "",
        max_message_bytes: int,
        on_connected: Callable[[TcpStream, asyncio.Transport], None] | None = None,
    ) -> None:
        self._on_connected = on_connected
        self._reader = FrameReader(scratch, max_message_bytes)
        self._is_client = bool(server)
        self._peer = server
        self._loop = asyncio.get_running_loop()
        self._connection: asyncio.BaseTransport | None = None
        """The TCP connection, or at the client TLS on it."""
        self._transport: asyncio.Transport | None = None
        """What the stream sends over: at the server ``None`` until the TLS handshake is over."""
        self._joins_writes = False
        """Whether the transport writes several buffers in one system call."""
        self._presented = NOTHING
        self._messages: deque[ReceivedMessage] = deque()
        self._unread_bytes = 0
        self._reading = True
        self._arrived = asyncio.Event()
        self._may_send = asyncio.Event()
        self._may_send.set()
        self._closed = asyncio.Event()
        self._peer_ended = False
        self._ended = False
        """Whether this side has ended or dropped the stream."""
        self._broken: PeerUnavailable | None = None
        self._heard = False
        self._silent_beats = 0
        self._beat_at = 0.0
        self._beat_timer: asyncio.TimerHandle | None = None

    # -- the port -----------------------------------------------------------------------------

    @property
    def peer(self) -> str:
        """The peer's address."""
        return self._peer

    @property
    def presented(self) -> Presented:
        """At the server's end: the names in the client's certificate."""
        return self._presented

    async def send(self, message: bytes) -> None:
        """Send one message; see the port."""
        while not self._may_send.is_set():
            await self._may_send.wait()
        transport = self._transport
        if self._broken is not None:
            raise self._broken.with_traceback(None)
        if transport is None or transport.is_closing() or self._ended or (self._is_client and self._peer_ended):
            raise PeerUnavailable(f"the stream to {self._peer} has ended")
        if len(message) > LARGE_BYTES:
            self._write_large(transport, message)
        else:
            transport.write(length_prefix(message) + message)

    def _write_large(self, transport: asyncio.Transport, message: bytes) -> None:
        """Write the length and the message, without a copy of it."""
        if self._joins_writes:
            # uvloop writes at once: the length alone would be a system call, and wake the peer for four bytes.
            transport.writelines((length_prefix(message), message))
        else:
            # asyncio's own writelines copies in Python 3.11, and does not pause the writer in 3.12.
            transport.write(length_prefix(message))
            transport.write(message)

    async def receive(self) -> ReceivedMessage | None:
        """The next message; see the port."""
        while not self._messages:
            if self._peer_ended and not self._ended:
                return None
            if self._broken is not None:
                raise self._broken.with_traceback(None)
            self._arrived.clear()
            await self._arrived.wait()
        message = self._messages.popleft()
        self._unread_bytes -= len(message) + _MESSAGE_COST_BYTES
        if not self._reading and self._unread_bytes <= MAX_UNREAD_BYTES // 2:
            self._set_reading(True)
        return message

    async def close(self) -> None:
        """End the stream; see the port."""
        transport = self._transport
        try:
            if transport is not None and self._broken is None:
                if not self._ended:
                    self._ended = True
                    self._discard()
                    transport.write(_END)
                    if self._is_client and self._peer_ended:
                        transport.close()
                await self._until_closed(transport)
        finally:
            self.abort()

    async def _until_closed(self, transport: asyncio.Transport) -> None:
        """Wait until the peer has ended its side, or receives nothing for ``CLOSE_SECONDS``."""
        unsent = transport.get_write_buffer_size()
        while not self._closed.is_set():
            try:
                async with asyncio.timeout(CLOSE_SECONDS):
                    await self._closed.wait()
            except TimeoutError:
                before, unsent = unsent, transport.get_write_buffer_size()
                if unsent >= before:
                    return

    def abort(self) -> None:
        """Drop the stream at once; see the port."""
        self._ended = True
        self._break("was dropped")

    # -- the connection -----------------------------------------------------------------------

    def set_transport(self, transport: Any, presented: Presented = NOTHING) -> None:
        """Set what the stream sends over from now on: the connection, or TLS on it."""
        if self._broken is not None:
            return
        self._transport, self._presented = transport, presented
        self._joins_writes = type(transport).__module__.startswith("uvloop")
        transport.set_write_buffer_limits(high=_HIGH_WATER_BYTES, low=_LOW_WATER_BYTES)
        connection = transport.get_extra_info("socket")
        if connection is not None and hasattr(socket, "TCP_USER_TIMEOUT"):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNACKED_MS)
        self._beat_at = self._loop.time() + BEAT_SECONDS
        self._beat_timer = self._loop.call_at(self._beat_at, self._beat)

    def allow(self, max_message_bytes: int) -> None:
        """Set the limit of the messages that follow."""
        self._reader.allow(max_message_bytes)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection was made; at the client, the TLS handshake is over."""
        self._connection = transport
        if not self._is_client:
            name = transport.get_extra_info("peername")
            if name is None:
                self._break("broke: the peer has closed the connection")
                return
            host, port = name[:2]
            self._peer = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        if self._on_connected is None:
            self.set_transport(transport)
        else:
            self._on_connected(self, cast(asyncio.Transport, transport))

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the event loop puts the bytes that arrive next."""
        return self._reader.space()

    def buffer_updated(self, nbytes: int) -> None:
        """The event loop has put ``nbytes`` there."""
        self._heard = True
        try:
            frames = self._reader.filled(nbytes)
        except ProtocolViolation as error:
            self._break(f"broke: {error.message}")
            return
        pinged = False
        for frame in frames:
            if frame is Signal.PING:
                pinged = True
            elif frame is not Signal.PONG and not self._take(frame):
                return
        if pinged and self._transport is not None and self._may_send.is_set():
            # One answer for all of them, and none while the peer does not read: they must not fill the memory.
            self._transport.write(_PONG)
        if self._messages:
            self._arrived.set()
            if self._reading and self._unread_bytes > MAX_UNREAD_BYTES:
                self._set_reading(False)

    def _take(self, frame: ReceivedMessage | Signal) -> bool:
        """Take a message or the peer's END; ``False``: the stream is broken."""
        if self._peer_ended:
            self._break("broke: the peer has sent something after its end")
            return False
        if isinstance(frame, Signal):
            self._take_end()
        elif not self._ended:
            self._messages.append(frame)
            self._unread_bytes += len(frame) + _MESSAGE_COST_BYTES
        return self._broken is None

    def _take_end(self) -> None:
        self._peer_ended = True
        self._arrived.set()
        transport = self._transport
        if transport is None:
            self._break("broke: the peer has ended it before it was established")
            return
        if self._is_client and not self._ended:
            transport.write(_END)
        if self._is_client or self._ended:
            transport.close()

    def pause_writing(self) -> None:
        """The write buffer is above its high-water mark."""
        self._may_send.clear()

    def resume_writing(self) -> None:
        """The write buffer is below its low-water mark."""
        self._may_send.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is closed."""
        self._break(f"broke: {exc or 'the connection was closed'}")
        self._closed.set()

    def _break(self, how: str) -> None:
        """Close the connection at once. Calls that wait, and later ones, get an error."""
        if self._broken is None:
            self._broken = PeerUnavailable(f"the stream to {self._peer} {how}")
        if self._beat_timer is not None:
            self._beat_timer.cancel()
            self._beat_timer = None
        if self._ended:
            self._discard()
        for transport in (self._transport, self._connection):
            if transport is not None:
                transport.abort()  # type: ignore[attr-defined]
        self._arrived.set()
        self._may_send.set()

    def _discard(self) -> None:
        """Drop what has arrived, and read on: the peer's end comes after it."""
        self._messages.clear()
        self._unread_bytes = 0
        if not self._reading:
            self._set_reading(True)

    def _set_reading(self, reading: bool) -> None:
        self._reading = reading
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if reading:
            transport.resume_reading()
        else:
            transport.pause_reading()

    def _beat(self) -> None:
        """Ping a silent peer; give it up if it stays silent."""
        now = self._loop.time()
        # What the peer has sent may not have been read yet if reading is paused, or if this process was late itself.
        attentive = self._reading and now - self._beat_at < BEAT_SECONDS / 2
        self._silent_beats = self._silent_beats + 1 if attentive and not self._heard else 0
        self._heard = False
        self._beat_at = now + BEAT_SECONDS
        self._beat_timer = self._loop.call_at(self._beat_at, self._beat)
        if self._silent_beats >= BREAK_AFTER:
            self._break(f"broke: the peer was silent for {BREAK_AFTER * BEAT_SECONDS:.0f} s")
        elif self._silent_beats >= PING_AFTER and self._transport is not None:
            self._transport.write(_PING)
