"""Limits the memory of the answers that are being read or wait to be sent, per stream and over all streams."""

from __future__ import annotations

import asyncio
from typing import Final

from tallybook.core.errors import Busy, PeerUnavailable
from tallybook.runtime.concurrency.weighted_semaphore import WeightedSemaphore

MAX_MEMORY_WAIT_SECONDS: Final = 0.5
"""How long a read waits for space among the answers of all streams before it is BUSY."""
_RETRY_MS: Final = 100


class AnswerBudget:
    """Memory for the answers of one stream: a part of its own, and part of what all streams share."""

    def __init__(self, own_bytes: int, shared: WeightedSemaphore) -> None:
        self._shared = shared
        self._own = WeightedSemaphore(own_bytes)
        self._held_bytes = 0
        self._ended = False

    async def take(self, size: int) -> None:
        """Wait for space: first for the stream's own, until its peer has taken earlier answers.

        Raises:
            Busy: the other streams leave none.
        """
        await self._own.take(size)
        if not self._shared.try_take(size):
            try:
                async with asyncio.timeout(MAX_MEMORY_WAIT_SECONDS):
                    await self._shared.take(size)
            except TimeoutError:
                self._own.give(size)
                raise Busy("the answers of other reads use all their memory", retry_after_ms=_RETRY_MS) from None
            except BaseException:
                self._own.give(size)
                raise
        if self._ended:
            self._shared.give(size)
            raise PeerUnavailable("the stream ended")
        self._held_bytes += size

    def try_take(self, size: int) -> bool:
        """Take space if that needs no waiting; returns whether it did."""
        if self._ended or not self._own.try_take(size):
            return False
        if not self._shared.try_take(size):
            self._own.give(size)
            return False
        self._held_bytes += size
        return True

    def give(self, size: int) -> None:
        """Give space back."""
        if not self._ended:
            self._held_bytes -= size
            self._own.give(size)
            self._shared.give(size)

    def end(self) -> None:
        """Give everything back: the stream has ended."""
        if not self._ended:
            self._ended = True
            self._shared.give(self._held_bytes)
