"""Limits how many writers of a client use the metadata store concurrently.

Otherwise thousands of writers would stall the event loop and the store. Writers without an ack quorum, which confirm
nothing meanwhile, come first, and some turns are reserved for them. Updates of missed ranges, of which there may be
thousands when a bookie dies, can wait.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from types import TracebackType
from typing import Final

MAX_AT_METADATA: Final = 64
"""Writers that use the metadata store in the background concurrently; the others wait for a turn."""

RESERVED_FOR_URGENT: Final = 16
"""Turns reserved for writers without an ack quorum."""


class MetadataQueue:
    """Hands out turns; shared by the writers of one client.

    Args:
        limit: concurrent turns at most.
        reserved: turns of these reserved for urgent writers.
    """

    def __init__(self, limit: int = MAX_AT_METADATA, reserved: int = RESERVED_FOR_URGENT) -> None:
        self._limit = limit
        self._reserved = reserved
        self._taken = 0
        self._urgent: OrderedDict[MetadataTurn, None] = OrderedDict()
        self._others: OrderedDict[MetadataTurn, None] = OrderedDict()
        """Waiting turns, in order."""

    def turn(self, *, urgent: bool = False) -> MetadataTurn:
        """A turn, to be used in ``async with``."""
        return MetadataTurn(self, urgent=urgent)

    def wait(self, turn: MetadataTurn, *, urgent: bool) -> None:
        """Queue a turn."""
        (self._urgent if urgent else self._others)[turn] = None
        self._next()

    def hurry(self, turn: MetadataTurn) -> None:
        """Move a waiting turn to the urgent queue."""
        if turn in self._others:
            del self._others[turn]
            self.wait(turn, urgent=True)

    def leave(self, turn: MetadataTurn) -> None:
        """Remove a waiting turn."""
        self._urgent.pop(turn, None)
        self._others.pop(turn, None)

    def release(self) -> None:
        """A turn is over."""
        self._taken -= 1
        self._next()

    def _next(self) -> None:
        while self._urgent and self._taken < self._limit:
            self._give(self._urgent)
        while self._others and self._taken < self._limit - self._reserved:
            self._give(self._others)

    def _give(self, turns: OrderedDict[MetadataTurn, None]) -> None:
        turn, _ = turns.popitem(last=False)
        self._taken += 1
        turn.given.set()


class MetadataTurn:
    """A writer's turn, as an async context manager: entering waits for the turn, leaving releases it."""

    def __init__(self, queue: MetadataQueue, *, urgent: bool) -> None:
        self._queue = queue
        self._urgent = urgent
        self.given = asyncio.Event()

    def hurry(self) -> None:
        """The writer has lost its ack quorum: if the turn waits, make it urgent."""
        self._queue.hurry(self)

    async def __aenter__(self) -> None:
        self._queue.wait(self, urgent=self._urgent)
        try:
            await self.given.wait()
        except asyncio.CancelledError:
            self._queue.leave(self)
            if self.given.is_set():
                self._queue.release()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._queue.release()
