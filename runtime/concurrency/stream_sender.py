"""The one writer of a stream.

A stream takes one message at a time. Whoever has something to say kicks the outbox; when the
stream is free, the outbox asks its owner for the next message. So the owner composes as late
as possible, and whatever gathered while a message was on its way goes into the next one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeAlias

from tallybook.core.errors import BookieUnavailable

from .logging import logger
from .tasks import Tasks
from .transport import MessageStream

Compose: TypeAlias = Callable[[], bytes | None]
"""Gives the next message, or ``None`` if there is nothing to send now."""

_log = logger("runtime.outbox")


class Outbox:
    """Sends what ``compose`` gives, while it gives something. Nobody else may send on the stream until ``stop``.

    A broken stream ends the outbox silently: whoever reads from the stream hears of it, too. A defect, of ``compose``
    or of the transport, drops the stream, so that it is heard of in the same way.

    Args:
        send_seconds: drop the stream of a peer that takes longer than this to take one message. Without it, what is
            composed must be bounded, and must tie up nothing that others need.
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
        """Say that ``compose`` may have something. Cheap; many kicks in one turn of the loop count as one."""
        self._wake.set()

    async def stop(self, grace_seconds: float) -> None:
        """Compose nothing more, and give the message under way ``grace_seconds`` to leave."""
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
        except BookieUnavailable:
            return
        except Exception as error:  # noqa: BLE001 - nobody looks at this task, and what is queued would never leave
            _log.defect("nothing more can be sent", error, peer=self._stream.peer)
            self._stream.abort()

    async def _send_in_time(self, message: bytes) -> None:
        try:
            async with asyncio.timeout(self._send_seconds):
                await self._stream.send(message)
        except TimeoutError:
            _log.warning("peer takes nothing", peer=self._stream.peer, seconds=self._send_seconds)
            self._stream.abort()
            raise BookieUnavailable(f"{self._stream.peer} took nothing for {self._send_seconds} s") from None

    def _next(self) -> bytes | None:
        return None if self._stopping else self._compose()
