"""The ways in which a writer of the workload writes a ledger: plainly, with deferred sync, or under chosen ids.

A *pen* takes a burst of payloads and gives, for each, what to await for its id; ``reliable`` then
says up to where callers may rely on what they were told.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeAlias

from tallybook.client.writer.handle import LedgerWriter
from tallybook.core.errors import TallybookError
from tallybook.metadata.model import LedgerMetadata
from tallybook.runtime.rng import Rng

from .history import Operation

Written: TypeAlias = Awaitable[int] | TallybookError
"""What to await for the id of an entry, or why it was refused at once."""


class Pen:
    """Writes plainly: what is confirmed may be relied on."""

    steadfast = True
    """Whether it gets on once all bookies are well, unless somebody takes the ledger away."""

    def __init__(self, ledger: LedgerWriter, rng: Rng) -> None:
        self._ledger = ledger
        self._rng = rng
        self.told: list[tuple[Operation, int]] = []
        """Appends that have succeeded, with their ids, and may not be relied on yet."""

    @property
    def id(self) -> int:
        """Of the ledger."""
        return self._ledger.id

    @property
    def ended(self) -> bool:
        """Whether nothing can be appended any more."""
        return self._ledger.ended

    def write(self, payloads: Sequence[bytes]) -> list[Written]:
        """Append these entries, in this order."""
        return [self._append(payload) for payload in payloads]

    def _append(self, payload: bytes) -> Written:
        try:
            return self._ledger.append_nowait(payload)
        except TallybookError as error:
            return error

    async def reliable(self, last_entry_id: int) -> int:
        """Up to which entry all may be relied on, after the appends up to ``last_entry_id`` have succeeded."""
        return last_entry_id

    def failed(self) -> None:
        """An append has failed."""

    async def close(self) -> LedgerMetadata:
        """As the handle does."""
        return await self._ledger.close()

    def abandon(self) -> None:
        """As the handle does."""
        self._ledger.abandon()


class DeferredPen(Pen):
    """Forces now and then; nothing may be relied on before."""

    steadfast = False
    """A bookie that was started again since it acked ends it."""

    async def reliable(self, last_entry_id: int) -> int:
        """See ``Pen``."""
        if self._rng.random() < 0.5:
            return self._ledger.last_add_confirmed
        try:
            return await self._ledger.force()
        except TallybookError:
            return self._ledger.last_add_confirmed


class ChosenPen(Pen):
    """Gives the ids itself, and the entries of a burst in any order."""

    steadfast = False
    """An entry for which there is no room ends it."""

    def __init__(self, plain: LedgerWriter, rng: Rng, spawn: Callable[[Coroutine[Any, Any, None]], object]) -> None:
        super().__init__(plain, rng)
        self._chosen = plain.with_chosen_ids()
        self._spawn = spawn
        self._next = 0

    def write(self, payloads: Sequence[bytes]) -> list[Written]:
        """See ``Pen``."""
        first, self._next = self._next, self._next + len(payloads)
        loop = asyncio.get_running_loop()
        written: list[asyncio.Future[int]] = [loop.create_future() for _ in payloads]
        for index in map(int, self._rng.shuffled([str(index) for index in range(len(payloads))])):
            self._spawn(self._give(first + index, payloads[index], written[index]))
        return list(written)

    async def _give(self, entry_id: int, payload: bytes, written: asyncio.Future[int]) -> None:
        try:
            written.set_result(await self._chosen.append(entry_id, payload))
        except TallybookError as error:
            written.set_exception(error)
            written.exception()  # whoever awaits it hears it; a process that was killed awaits nothing

    def failed(self) -> None:
        """A gap stays, which holds up what is above it for ever."""
        self._chosen.abandon()

    async def close(self) -> LedgerMetadata:
        """See ``Pen``."""
        return await self._chosen.close()

    def abandon(self) -> None:
        """See ``Pen``."""
        self._chosen.abandon()
