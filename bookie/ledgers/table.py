"""The ledgers in memory: loaded on first use, and forgotten when idle.

At any time there is at most one ``Ledger`` object for a ledger (with two, an add could miss a fence), so an object
leaves the table only when no task uses it across a wait, and its row in the index is up to date.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Final

from tallybook.core.errors import check
from tallybook.core.ids import NO_LEDGER
from tallybook.runtime.metrics.part_metrics import PartMetrics

from ..directories.limbo import Limbo
from .state import Ledger, LedgerRow, encode_row

LoadRow = Callable[[int], Awaitable[LedgerRow | None]]
"""Reads the durable state of a ledger; ``None`` if there is no row."""


class LedgerTable:
    """Every ledger that is in memory.

    Args:
        load_row: reads a ledger that is not in memory.
        limbo: which ledgers may have lost entries.
        max_idle: number of ledgers kept that are neither dirty nor in use.
    """

    def __init__(self, load_row: LoadRow, limbo: Limbo, *, max_idle: int) -> None:
        self._load_row = load_row
        self._limbo = limbo
        self._max_idle = max_idle
        self._doubted: set[int] = set()
        self.reused_up_to = NO_LEDGER
        """Ids up to this one may have been assigned twice; changed by ``doubt_up_to``."""
        self._all: dict[int, Ledger] = {}
        self._idle: OrderedDict[int, Ledger] = OrderedDict()
        self._dirty: dict[int, Ledger] = {}
        self._flushing: list[Ledger] = []
        self._loading: dict[int, asyncio.Future[None]] = {}
        self.get: Callable[[int], Ledger | None] = self._all.get
        """The ledger if it is in memory. Must not be used across a wait: see ``using``."""

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Ledger]:
        return iter(self._all.values())

    @property
    def dirty_count(self) -> int:
        """Ledgers that cannot be forgotten before a checkpoint."""
        return len(self._dirty) + len(self._flushing)

    @property
    def limbo(self) -> Limbo:
        """Which ledgers may have lost entries."""
        return self._limbo

    def end_doubt(self, limbo: Limbo) -> None:
        """Replace the limbo marker by a narrower one; ledgers that it does not cover leave limbo."""
        self._limbo = limbo
        doubted, self._doubted = self._doubted, set()
        for ledger_id in doubted:
            ledger = self._all.get(ledger_id)
            if ledger is not None and not limbo.covers(ledger_id, ledger.repaired_limbo):
                ledger.unset_limbo()
                self.mark_dirty(ledger)

    def widen_limbo(self, limbo: Limbo) -> None:
        """Replace the limbo marker by a wider one; ledgers in memory that it covers enter limbo in this turn."""
        self._limbo = limbo
        for ledger in self._all.values():
            if not ledger.limbo and limbo.covers(ledger.ledger_id, ledger.repaired_limbo):
                ledger.set_limbo()
                ledger.doubt(self.reused_up_to)

    def doubt_up_to(self, reused_up_to: int) -> None:
        """Mark ids up to this one as possibly assigned twice."""
        if reused_up_to != self.reused_up_to:
            self.reused_up_to = reused_up_to
            for ledger in self._all.values():
                ledger.doubt(reused_up_to)

    @asynccontextmanager
    async def using(self, ledger_id: int) -> AsyncIterator[Ledger]:
        """Use a ledger across waits, loading it first if needed.

        Raises:
            DiskFailed: its state cannot be read.
        """
        while (ledger := self._all.get(ledger_id)) is None:
            await self._load(ledger_id)
        ledger.users += 1
        self._idle.pop(ledger_id, None)
        try:
            yield ledger
        finally:
            ledger.users -= 1
            self._rest(ledger)

    async def peek(self, ledger_id: int) -> LedgerRow:
        """The current state of a ledger, without bringing it into memory.

        Raises:
            DiskFailed: its state cannot be read.
        """
        ledger = self._all.get(ledger_id)
        if ledger is None:
            row = await self._load_row(ledger_id) or LedgerRow()
            ledger = self._all.get(ledger_id)
            if ledger is None:
                return replace(row, limbo=row.limbo or self._limbo.covers(ledger_id, row.repaired_limbo))
        return ledger.row()

    def mark_dirty(self, ledger: Ledger) -> None:
        """Note that ``ledger`` differs from its row."""
        if not ledger.dirty:
            ledger.dirty = True
            self._dirty[ledger.ledger_id] = ledger
            self._idle.pop(ledger.ledger_id, None)

    def begin_flush(self) -> int:
        """Start a flush: take the ledgers whose rows must be written; returns their number. One flush at a time.

        In one turn, because the cut must match the journal's mark: 10 ms for the maximum number of dirty ledgers.
        """
        check(not self._flushing, "a checkpoint of ledger states began while another one ran")
        self._flushing = list(self._dirty.values())
        self._dirty = {}
        for ledger in self._flushing:
            ledger.dirty = False
            ledger.flushing = True
            ledger.last_flushed = max(ledger.last_flushed, ledger.last_held)
        return len(self._flushing)

    def flushing_rows(self, start: int, count: int) -> dict[int, bytes]:
        """Rows of some of the taken ledgers, in their current state, which may be newer than the cut."""
        return {
            ledger.ledger_id: encode_row(ledger.ledger_id, ledger.row_to_write())
            for ledger in self._flushing[start : start + count]
        }

    def end_flush(self, count: int | None = None) -> int:
        """Finish the flush for ``count`` ledgers, or for all, whose rows are durable. Returns how many are left.

        Other tasks may run between calls; ledgers still marked flushing just stay in memory.
        """
        flushed = self._flushing[:count]
        self._flushing = self._flushing[len(flushed) :]
        for ledger in flushed:
            ledger.flushing = False
            self._rest(ledger)
        return len(self._flushing)

    def _rest(self, ledger: Ledger) -> None:
        """Keep ``ledger`` as idle if no task uses it and its row is written, so that it may be forgotten."""
        if ledger.users or ledger.dirty or ledger.flushing:
            return
        self._idle[ledger.ledger_id] = ledger
        self._idle.move_to_end(ledger.ledger_id)
        while len(self._idle) > self._max_idle:
            forgotten, _ = self._idle.popitem(last=False)
            del self._all[forgotten]

    async def _load(self, ledger_id: int) -> None:
        """Load a ledger into the table. Concurrent callers share one read, and continue in their order."""
        running = self._loading.get(ledger_id)
        if running is not None:
            await asyncio.shield(running)
            return
        done = self._loading[ledger_id] = asyncio.get_running_loop().create_future()
        try:
            row = await self._load_row(ledger_id) or LedgerRow()
            ledger = Ledger(ledger_id, row)
            if self._limbo.covers(ledger_id, row.repaired_limbo):
                if self._limbo.awaits_registration and not row.limbo:
                    self._doubted.add(ledger_id)
                ledger.set_limbo()
            ledger.doubt(self.reused_up_to)
            self._all[ledger_id] = ledger
            self._rest(ledger)
        except Exception as error:
            done.set_exception(error)
            done.exception()  # retrieved here, since no other caller may wait for it
            raise
        finally:
            del self._loading[ledger_id]
            if not done.done():
                done.set_result(None)


METRICS: Final = (
    PartMetrics[LedgerTable]()
    .gauge("ledgers_in_memory", "tallybook_bookie_ledgers_in_memory", "Ledgers whose state is in memory.", len)
    .gauge(
        "ledgers_dirty",
        "tallybook_bookie_ledgers_dirty",
        "Ledgers in memory whose state is newer than the index.",
        lambda table: table.dirty_count,
    )
    .counter(
        "limbo_events_total",
        "tallybook_bookie_limbo_events_total",
        "Losses in all incarnations of the bookie: each puts the existing ledgers into limbo until they are repaired.",
        lambda table: table.limbo.events,
    )
)
