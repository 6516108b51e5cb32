"""Write modes of the workload: plain, with deferred sync, or with entry ids chosen by the client.

A ``WorkloadWriter`` appends a burst of payloads and returns an awaitable of the entry id for each; ``durable_up_to``
tells up to which entry successful appends are durable.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeAlias

from tallybook.client.writer.handle import LedgerWriter
from tallybook.core.errors import TallybookError
from tallybook.metadata.ledger.model import LedgerMetadata
from tallybook.runtime.rng import Rng

from .history import Operation

AppendOutcome: TypeAlias = Awaitable[int] | TallybookError
"""Awaitable of an entry id, or the error with which the append was refused at once."""


class WorkloadWriter:
    """Plain mode: a confirmed entry is durable."""

    makes_progress = True
    """Whether it must make progress after healing, unless the ledger was fenced or recovered."""

    def __init__(self, ledger: LedgerWriter, rng: Rng) -> None:
        self._ledger = ledger
        self._rng = rng
        self.succeeded: list[tuple[Operation, int]] = []
        """Successful appends with their entry ids that are not known to be durable yet."""

    @property
    def id(self) -> int:
        """Id of the ledger."""
        return self._ledger.id

    @property
    def ended(self) -> bool:
        """Whether nothing can be appended any more."""
        return self._ledger.ended

    def write(self, payloads: Sequence[bytes]) -> list[AppendOutcome]:
        """Append these entries, in this order."""
        return [self._append(payload) for payload in payloads]

    def _append(self, payload: bytes) -> AppendOutcome:
        try:
            return self._ledger.append_nowait(payload)
        except TallybookError as error:
            return error

    async def durable_up_to(self, last_entry_id: int) -> int:
        """Highest durable entry, after the appends up to ``last_entry_id`` have succeeded."""
        return last_entry_id

    def failed(self) -> None:
        """Called when an append has failed."""

    async def close(self) -> LedgerMetadata:
        """As the handle does."""
        return await self._ledger.close()

    def abandon(self) -> None:
        """As the handle does."""
        self._ledger.abandon()


class DeferredSyncModeWriter(WorkloadWriter):
    """Deferred sync: forces now and then; entries are not durable before."""

    makes_progress = False
    """A restart of a bookie after its ack makes the writer fail."""

    async def durable_up_to(self, last_entry_id: int) -> int:
        """See ``WorkloadWriter``."""
        if self._rng.random() < 0.5:
            return self._ledger.last_add_confirmed
        try:
            return await self._ledger.force()
        except TallybookError:
            return self._ledger.last_add_confirmed


class ChosenIdsModeWriter(WorkloadWriter):
    """Chosen entry ids: appends the entries of a burst in random order."""

    makes_progress = False
    """A refused entry leaves a gap, after which the ledger is abandoned."""

    def __init__(self, plain: LedgerWriter, rng: Rng, spawn: Callable[[Coroutine[Any, Any, None]], object]) -> None:
        super().__init__(plain, rng)
        self._chosen = plain.with_chosen_ids()
        self._spawn = spawn
        self._next = 0

    def write(self, payloads: Sequence[bytes]) -> list[AppendOutcome]:
        """See ``WorkloadWriter``."""
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
            written.exception()  # mark as retrieved: a killed process never awaits it

    def failed(self) -> None:
        """Abandon the ledger: entries above the gap would never be confirmed."""
        self._chosen.abandon()

    async def close(self) -> LedgerMetadata:
        """See ``WorkloadWriter``."""
        return await self._chosen.close()

    def abandon(self) -> None:
        """See ``WorkloadWriter``."""
        self._chosen.abandon()
