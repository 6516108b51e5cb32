"""The single sender of a message stream.

A stream takes one message at a time. The owner kicks the sender when it has something to send; as soon
as the stream is free, the sender asks the owner to compose the next message. Messages are thus composed as
late as possible, and contain everything that gathered while the message before was being sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeAlias

from tallybook.core.errors import PeerUnavailable
from tallybook.runtime.logging import logger
from tallybook.runtime.tasks import Tasks
from tallybook.runtime.transport import MessageStream

Compose: TypeAlias = Callable[[], bytes | None]
"""Returns the next message, or ``None`` if there is nothing to send now."""

_log = logger("wire.stream_sender")


class StreamSender:
    """Sends the messages of ``compose``. Until ``stop``, no other code may send on the stream.

    A broken stream ends the sender silently: the reader of the stream gets the error, too. An unexpected error of
    ``compose`` or of the transport is logged and aborts the stream, so that the reader notices it.

    Args:
        send_seconds: abort the stream if the peer takes longer than this to accept one message. Without it, composed
            messages must be bounded and must hold no resource that others need.
    """

    def __init__(
        self, stream: MessageStream, compose: Compose, tasks: Tasks, name: str, *, send_seconds: float | None = None
    ) -> None:
        self._stream = stream
        self._send = stream.send if send_seconds is None else self._send_in_time
        self._send_seconds = send_seconds
        self._compose = compose
        self._wake = asyncio.Event()
        self._stopping = False
        self._task = tasks.spawn(self._run(), name=name)

    def kick(self) -> None:
        """Signal that ``compose`` may have a message. Cheap; many kicks in one turn of the loop count as one."""
        self._wake.set()

    async def stop(self, grace_seconds: float) -> None:
        """Stop composing, and give the message in flight ``grace_seconds`` to be sent."""
        self._stopping = True
        self._wake.set()
        await asyncio.wait((self._task,), timeout=grace_seconds)
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        try:
            while not self._stopping:
                await self._wake.wait()
                self._wake.clear()
                while (message := self._next()) is not None:
                    await self._send(message)
        except PeerUnavailable:
            return
        except Exception as error:  # noqa: BLE001 - no task awaits this one, and queued messages would never be sent
            _log.defect("nothing more can be sent", error, peer=self._stream.peer)
            self._stream.abort()

    async def _send_in_time(self, message: bytes) -> None:
        try:
            async with asyncio.timeout(self._send_seconds):
                await self._stream.send(message)
        except TimeoutError:
            _log.warning("peer takes nothing", peer=self._stream.peer, seconds=self._send_seconds)
            self._stream.abort()
            raise PeerUnavailable(f"{self._stream.peer} accepted no data for {self._send_seconds} s") from None

    def _next(self) -> bytes | None:
        return None if self._stopping else self._compose()
