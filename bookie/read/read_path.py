"""The read path: write cache, then storage, and the right error for an entry that is not found.

A batch moves from the active buffer to the flushing one to the index, and is in the next place before it leaves the
previous one. Searching in that order never misses it, and no read delays an add.

A deleted ledger is not read any more, even if part of it is left, so that clients never see a partial removal.

The error for an entry that is not found depends on what is known. ABSENT promises that it was never acked here, or was
over-replicated and dropped (``over_replicated.py``), and cannot have been lost. In limbo, and where the index cannot be
read, it is UNKNOWN; where its bytes fail their checks, CORRUPT.
"""

from __future__ import annotations

from typing import Final, NoReturn

from tallybook.core.answers import ReadAnswer
from tallybook.core.batch import EntrySlice, cut_entry, decode_header
from tallybook.core.buffers import Buffer
from tallybook.core.coverage import sometimes
from tallybook.core.errors import EntryAbsent, EntryUnknown, InvalidArgument, NoSuchLedger, StorageError
from tallybook.core.ids import MAX_ID, check_entry_id
from tallybook.runtime.clock import Clock
from tallybook.runtime.metrics.part_metrics import PartMetrics
from tallybook.runtime.metrics.usage import Meter
from tallybook.runtime.tracing.port import current_span

from ..background.budget import BackgroundBudget, BackgroundWork
from ..ledgers.state import Ledger
from ..ledgers.table import LedgerTable
from ..storage.flushed_batches import FlushedBatches
from ..storage.write_cache import WriteCache
from ..write.fencing import LedgerFencing


class ReadPath:
    """Serves reads of entries."""

    def __init__(
        self,
        table: LedgerTable,
        cache: WriteCache,
        stored: FlushedBatches,
        fences: LedgerFencing,
        budget: BackgroundBudget,
        clock: Clock,
    ) -> None:
        self._budget = budget
        self._table = table
        self._cache = cache
        self._stored = stored
        self._fences = fences
        self._cached_reads = 0
        self.cached_batches = 0
        """Batches answered from the write cache."""
        self.stored_batches = 0
        """Batches answered from storage."""
        self.meter = Meter(clock)
        """Latency of reads, wherever the batches were."""

    @property
    def foreground_reads(self) -> int:
        """Runs of batches read, except background reads and those of readers that continue in order."""
        return self._cached_reads + self._stored.foreground_reads

    async def read(
        self, ledger_id: int, first: int, last: int, max_bytes: int, *, background: bool = False
    ) -> ReadAnswer:
        """See ``LedgerStore.read_batches``.

        Raises:
            InvalidArgument: not 0 <= ``first`` <= ``last``.
            NoSuchLedger: the ledger was deleted.
        """
        if not 0 <= first <= last <= MAX_ID:
            raise InvalidArgument(f"entries {first} .. {last} are not a range")
        async with self._table.using(ledger_id) as ledger:
            _check_there(ledger)
            with self.meter.timing():
                batches = await self._run(ledger, first, last, max_bytes, background=background)
            answer = ReadAnswer(tuple(batches), ledger.lac)
        if background:
            await self._budget.spend(BackgroundWork.READS, sum(map(len, batches)))
        return answer

    async def recovery_read(self, ledger_id: int, entry_id: int, key: bytes, max_bytes: int = 0) -> ReadAnswer:
        """See ``LedgerStore.recovery_read``; answers only after the fence is durable."""
        async with self._table.using(ledger_id) as ledger:
            await self._fences.fence_durably(ledger, key)
            return await self.read(ledger_id, entry_id, MAX_ID if max_bytes else entry_id, max(max_bytes, 1))

    async def read_entry(self, ledger_id: int, entry_id: int) -> EntrySlice:
        """See ``LedgerStore.read_entry``."""
        check_entry_id(entry_id)
        async with self._table.using(ledger_id) as ledger:
            _check_there(ledger)
            with self.meter.timing():
                cached = self._cache.find(ledger_id, entry_id)
                if cached is not None:
                    self._count(1, 0)
                    return cut_entry(cached.batch, decode_header(cached.batch), entry_id)
                may_be_stored = ledger.may_be_flushed(entry_id)
                found = await self._stored.read_entry(ledger_id, entry_id) if may_be_stored else None
                if found is None:
                    self._not_found(ledger, entry_id)
                self._count(0, 1)
                return found

    def _count(self, cached: int, stored: int) -> None:
        """Count batches that were found, or single entries of them."""
        self.cached_batches += cached
        self.stored_batches += stored
        span = current_span()
        if span is not None:
            span.set(cached_batches=cached, stored_batches=stored)

    async def _run(
        self, ledger: Ledger, first: int, last: int, max_bytes: int, *, background: bool = False
    ) -> list[Buffer]:
        found: list[Buffer] = []
        next_id, left, stored = first, max_bytes, 0
        while next_id <= last and (left > 0 or not found):
            try:
                piece = self._cached_run(ledger, next_id, last, left)
                self._cached_reads += bool(piece) and not background
                if not piece and ledger.may_be_flushed(next_id):
                    piece = await self._stored.read_run(ledger.ledger_id, next_id, last, left, background=background)
                    stored += len(piece)
            except StorageError:
                sometimes("read: a copy is damaged, or cannot be read")
                if found:
                    break  # the request for that entry gets the error
                raise
            if not piece or (found and len(piece[0]) > left):
                break
            found += piece
            left -= sum(map(len, piece))
            next_id = decode_header(piece[-1]).last_entry_id + 1
        self._count(len(found) - stored, stored)
        if not found:
            self._not_found(ledger, first)
        return found

    def _cached_run(self, ledger: Ledger, first: int, last: int, max_bytes: int) -> list[Buffer]:
        """Batches of the write cache from the one that holds ``first``, without a gap."""
        found: list[Buffer] = []
        next_id, left = first, max_bytes
        while next_id <= last and (cached := self._cache.find(ledger.ledger_id, next_id)) is not None:
            left -= len(cached.batch)
            if left < 0 and found:
                break
            found.append(cached.batch)
            next_id = cached.last + 1
        return found

    def _not_found(self, ledger: Ledger, entry_id: int) -> NoReturn:
        """The error for an entry that was not found."""
        _check_there(ledger)
        if ledger.limbo:
            sometimes("read: UNKNOWN in limbo")
            raise EntryUnknown(f"ledger {ledger.ledger_id}: entry {entry_id} may have been lost")
        raise EntryAbsent(f"ledger {ledger.ledger_id}: this bookie does not have entry {entry_id}")


def _check_there(ledger: Ledger) -> None:
    if ledger.deleted:
        raise NoSuchLedger(f"ledger {ledger.ledger_id} was deleted")


METRICS: Final = (
    PartMetrics[ReadPath]()
    .counter(
        "reads_cached_batches_total",
        "tallybook_bookie_read_batches_total",
        "Batches read, or single entries of them, by where they were found.",
        lambda reads: reads.cached_batches,
        ("source", "cache"),
    )
    .counter(
        "reads_stored_batches_total",
        "tallybook_bookie_read_batches_total",
        "Batches read, or single entries of them, by where they were found.",
        lambda reads: reads.stored_batches,
        ("source", "entry_log"),
    )
    .meter("reads", "tallybook_bookie_read", "Reads from memory and disk", lambda reads: reads.meter)
)
