"""Drops the ledgers and over-replicated copies that a garbage collection pass has selected.

1. The ledger is refused permanently: the deletion is durable in the journal before anything is removed. From then on
   every answer about it is NoSuchLedger, and replay skips its batches.
2. The caches drop it. If a checkpoint is writing some of it, its rows would be put into the index after they were
   dropped, so such a ledger waits for the next pass; not so if that checkpoint waits for disk space.
3. One write batch of the index removes its rows and leaves a *tombstone*, which refuses the ledger after the journal
   has trimmed the deletion.

A crash before step 1 is durable leaves the ledger unchanged; after it, a later pass finds its rows and completes the
work. Over-replicated copies are dropped differently: the ledger stays known (``drop_over_replicated``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from tallybook.core.coverage import sometimes
from tallybook.core.errors import Busy, EntryUnknown, MetadataUnavailable, NoSuchLedger
from tallybook.runtime.logging import logger

from ..ledgers.over_replicated import OverReplicationPolicy
from ..ledgers.state import TOMBSTONE, encode_row
from ..ledgers.table import LedgerTable
from ..scrub.damage_list import DamageList
from ..storage.entry_log.logs import EntryLogs
from ..storage.flushed_batches import FlushedBatches
from ..storage.index.compaction import IndexMaintenance
from ..storage.index.port import Index
from ..storage.write_cache import WriteCache
from ..write.fencing import LedgerFencing
from .plan import GarbagePolicy
from .reclaimer import EntryLogReclaimer

_log = logger("bookie.collector")

MAX_CONCURRENT_ENDS: Final = 50
"""Ledgers refused together, to share journal commits. Each starts with work in the same turn of the event loop: 450 of
them delayed adds by 36 ms (measured)."""


@dataclass(frozen=True, slots=True)
class LedgerStorage:
    """The parts of a bookie that hold its data.

    Attributes:
        fences: refuses or fences a ledger durably; ``Busy`` if the journal has no space for that now.
    """

    index: Index
    logs: EntryLogs
    cache: WriteCache
    stored: FlushedBatches
    table: LedgerTable
    fences: LedgerFencing


class LedgerDropper:
    """Drops ledgers from the storage; counts what it has dropped.

    Attributes:
        dropped_copies: ledgers of which over-replicated copies were dropped.
    """

    def __init__(
        self,
        storage: LedgerStorage,
        policy: GarbagePolicy,
        over_replication: OverReplicationPolicy,
        reclaimer: EntryLogReclaimer,
        maintenance: IndexMaintenance,
        damage: DamageList,
    ) -> None:
        self._storage = storage
        self._policy = policy
        self._over_replication = over_replication
        self._reclaimer = reclaimer
        self._maintenance = maintenance
        self._damage = damage
        self.dropped_ledgers = 0
        self.dropped_copies = 0

    async def drop(self, ledger_ids: Sequence[int]) -> None:
        """Steps 1 to 3."""
        storage = self._storage
        refused = await _ended(storage.fences.delete, ledger_ids)
        gone: list[int] = []
        # In one turn: what no buffer holds now, none will hold again.
        for ledger_id, is_refused in zip(ledger_ids, refused, strict=True):
            if is_refused:
                storage.cache.forget(ledger_id)
                storage.stored.forget(ledger_id)
                if storage.cache.flushes(ledger_id):
                    sometimes("collector: a checkpoint is writing rows that are to be dropped")
                else:
                    gone.append(ledger_id)
        if gone:
            sometimes("collector: drops ledgers")
            had = await self._reclaimer.data_of(gone)
            tombstones = {ledger_id: encode_row(ledger_id, TOMBSTONE) for ledger_id in gone}
            await storage.index.apply((), tombstones, drop_ledgers=gone, frees_space=True)
            self._reclaimer.dropped(had.by_log)
            self._maintenance.dropped(gone, had.row_count)
            self._damage.forget_ledgers(gone)
            for ledger_id in gone:
                self._policy.dropped(ledger_id)
            self.dropped_ledgers += len(gone)
            _log_dropped("ledgers dropped", gone)

    async def drop_over_replicated(self, ledger_ids: Sequence[int]) -> None:
        """Fence the ledgers durably, then drop their rows and nothing else.

        A closed ledger with over-replicated copies (``over_replicated.py``) stays known. It is fenced instead of
        refused, so that no old writer gets an ack here, and a repair may bring copies back.
        """
        storage = self._storage
        fenced = await _ended(storage.fences.fence_closed, ledger_ids)
        known = [ledger_id for ledger_id, is_fenced in zip(ledger_ids, fenced, strict=True) if is_fenced]
        had = {ledger_id: await self._reclaimer.data_of([ledger_id]) for ledger_id in known}
        # In one turn, including the call of the index: batches that enter a buffer later get rows after this change.
        gone = [ledger_id for ledger_id in known if self._is_idle(ledger_id)]
        if gone:
            sometimes("collector: drops over-replicated copies")
            with self._over_replication.visits.shut(gone):
                await storage.index.apply((), {}, drop_rows=gone, frees_space=True)
            for ledger_id in gone:
                storage.stored.forget(ledger_id)
                self._reclaimer.dropped(had[ledger_id].by_log)
                self._maintenance.dropped([ledger_id], had[ledger_id].row_count)
            self._damage.forget_ledgers(gone)
            self.dropped_copies += len(gone)
            _log_dropped("over-replicated copies dropped", gone)

    def _is_idle(self, ledger_id: int) -> bool:
        """Whether no request uses the ledger in this turn, and no repair has for a while."""
        ledger = self._storage.table.get(ledger_id)
        if (ledger is not None and ledger.users) or self._storage.cache.holds(ledger_id):
            sometimes("collector: a repair works on over-replicated copies")
            return False
        return self._over_replication.is_unvisited(ledger_id)


async def _ended(end: Callable[[int], Awaitable[None]], ledger_ids: Sequence[int]) -> list[bool]:
    """For each ledger, whether it is ended now: nothing more is taken of it."""
    found: list[bool] = []
    for at in range(0, len(ledger_ids), MAX_CONCURRENT_ENDS):
        found += await asyncio.gather(*(_is_ended(end(each)) for each in ledger_ids[at : at + MAX_CONCURRENT_ENDS]))
    return found


async def _is_ended(ending: Awaitable[None]) -> bool:
    """Whether a ledger is ended now; a failure is left to a later pass."""
    try:
        await ending
    except (Busy, EntryUnknown, MetadataUnavailable, NoSuchLedger):
        return False
    return True


def _log_dropped(event: str, gone: Sequence[int]) -> None:
    _log.info(event, ledger_count=len(gone), first_ledger_id=gone[0], last_ledger_id=gone[-1])
