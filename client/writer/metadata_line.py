"""The line of a client's writers before its metadata store.

Only so many work on the metadata at a time, so that thousands of them do not stall the event loop and the store.
Writers without an ack quorum, which confirm nothing meanwhile, come first, and some places are kept for them. Notes of
what members missed, which may be thousands when a bookie dies, can wait.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from types import TracebackType
from typing import Final

MAX_AT_METADATA: Final = 64
"""Writers that read or change the metadata in the background at a time; the others wait for their turn."""

KEPT_FOR_URGENT: Final = 16
"""Of these, for writers without an ack quorum."""


class MetadataLine:
    """Hands out turns; shared by the writers of one client.

    Args:
        most: turns at a time.
        kept: how many of them only urgent ones get.
    """

    def __init__(self, most: int = MAX_AT_METADATA, kept: int = KEPT_FOR_URGENT) -> None:
        self._most = most
        self._kept = kept
        self._held = 0
        self._urgent: OrderedDict[Turn, None] = OrderedDict()
        self._others: OrderedDict[Turn, None] = OrderedDict()
        """The turns that are waited for, in order."""

    def turn(self, *, urgent: bool = False) -> Turn:
        """A turn, to be had by ``async with``."""
        return Turn(self, urgent=urgent)

    def wait(self, turn: Turn, *, urgent: bool) -> None:
        """Put it at the end of its line."""
        (self._urgent if urgent else self._others)[turn] = None
        self._next()

    def hurry(self, turn: Turn) -> None:
        """Put it at the end of the line of those that are urgent, if it waits in the other one."""
        if turn in self._others:
            del self._others[turn]
            self.wait(turn, urgent=True)

    def leave(self, turn: Turn) -> None:
        """It does not wait any more."""
        self._urgent.pop(turn, None)
        self._others.pop(turn, None)

    def release(self) -> None:
        """A turn is over."""
        self._held -= 1
        self._next()

    def _next(self) -> None:
        while self._urgent and self._held < self._most:
            self._give(self._urgent)
        while self._others and self._held < self._most - self._kept:
            self._give(self._others)

    def _give(self, line: OrderedDict[Turn, None]) -> None:
        turn, _ = line.popitem(last=False)
        self._held += 1
        turn.given.set()


class Turn:
    """A writer's turn: waited for on entry of the block, and over with its end."""

    def __init__(self, line: MetadataLine, *, urgent: bool) -> None:
        self._line = line
        self._urgent = urgent
        self.given = asyncio.Event()

    def hurry(self) -> None:
        """Its writer has lost its ack quorum: if it waits, it waits only for others that are urgent."""
        self._line.hurry(self)

    async def __aenter__(self) -> None:
        self._line.wait(self, urgent=self._urgent)
        try:
            await self.given.wait()
        except asyncio.CancelledError:
            self._line.leave(self)
            if self.given.is_set():
                self._line.release()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._line.release()
