"""The read path: write cache, then what is stored; and what may be said where there is nothing.

A batch moves one way only, from the active buffer to the flushing one to the index, and is in
the later place before it leaves the earlier. So looking in that order never misses it, and no
read holds up an add.

A ledger that was deleted is read no more, whatever is left of it: so nobody sees how far its
removal has come.

Where an entry is not found, the answer depends on what is known: ABSENT is a promise that it
was never acked here, or is others' by now (``leftovers.py``), and cannot have been lost. In limbo,
and where the index cannot be read, it is UNKNOWN; where its bytes fail their checks, CORRUPT.
"""

from __future__ import annotations

from typing import Protocol

from tallybook.core.answers import ReadAnswer
from tallybook.core.batch import Buffer, EntrySlice, cut_entry, decode_header
from tallybook.core.errors import EntryAbsent, EntryUnknown, InvalidArgument, NoSuchLedger, StorageError
from tallybook.core.ids import MAX_ID
from tallybook.core.marks import sometimes
from tallybook.runtime.clock import Clock
from tallybook.runtime.meter import Meter
from tallybook.runtime.tracing import current_span

from .fences import Fences
from .ledger_state import Ledger
from .ledger_table import LedgerTable
from .storage.write_cache import WriteCache


class Stored(Protocol):
    """What was flushed: ``storage/stored.py``."""

    async def read_run(self, ledger_id: int, first: int, last: int, max_bytes: int) -> list[Buffer]:
        """Stored batches from the one that holds ``first``, without a gap; none if it is not stored.

        Raises:
            EntryCorrupt, EntryUnknown: what is known of entry ``first``.
        """


class Reads:
    """Answers reads of entries."""

    def __init__(self, table: LedgerTable, cache: WriteCache, stored: Stored, fences: Fences, clock: Clock) -> None:
        self._table = table
        self._cache = cache
        self._stored = stored
        self._fences = fences
        self.cached_batches = 0
        """Batches answered from the write cache."""
        self.stored_batches = 0
        """Batches answered from storage."""
        self.meter = Meter(clock)
        """Of reads: from the question to the bytes, wherever they were."""

    async def read(self, ledger_id: int, first: int, last: int, max_bytes: int) -> ReadAnswer:
        """See ``LedgerStore.read_batches``.

        Raises:
            InvalidArgument: not 0 <= ``first`` <= ``last``.
            NoSuchLedger: the ledger was deleted.
        """
        if not 0 <= first <= last <= MAX_ID:
            raise InvalidArgument(f"cannot read entries {first} .. {last}")
        async with self._table.using(ledger_id) as ledger:
            _check_there(ledger)
            with self.meter.timing():
                batches = await self._run(ledger, first, last, max_bytes)
            return ReadAnswer(tuple(batches), ledger.lac)

    async def recovery_read(self, ledger_id: int, entry_id: int, key: bytes, max_bytes: int = 0) -> ReadAnswer:
        """See ``LedgerStore.recovery_read``: nothing is answered before the fence is durable."""
        async with self._table.using(ledger_id) as ledger:
            await self._fences.fence_durably(ledger, key)
            return await self.read(ledger_id, entry_id, MAX_ID if max_bytes else entry_id, max(max_bytes, 1))

    async def read_entry(self, ledger_id: int, entry_id: int) -> EntrySlice:
        """See ``LedgerStore.read_entry``."""
        batch = (await self.read(ledger_id, entry_id, entry_id, 1)).batches[0]
        return cut_entry(batch, decode_header(batch), entry_id)

    async def _run(self, ledger: Ledger, first: int, last: int, max_bytes: int) -> list[Buffer]:
        found: list[Buffer] = []
        next_id, left, stored = first, max_bytes, 0
        while next_id <= last and (left > 0 or not found):
            try:
                piece = self._cached_run(ledger, next_id, last, left)
                if not piece and ledger.may_be_flushed(next_id):
                    piece = await self._stored.read_run(ledger.ledger_id, next_id, last, left)
                    stored += len(piece)
            except StorageError:
                sometimes("read: a copy is damaged, or cannot be read")
                if found:
                    break  # it is told to whoever asks for that entry
                raise
            if not piece or (found and len(piece[0]) > left):
                break
            found += piece
            left -= sum(map(len, piece))
            next_id = decode_header(piece[-1]).last_entry_id + 1
        self.stored_batches += stored
        span = current_span()
        if span is not None:
            span.set(cached_batches=len(found) - stored, stored_batches=stored)
        return found or self._nothing(ledger, first)

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
        self.cached_batches += len(found)
        return found

    def _nothing(self, ledger: Ledger, entry_id: int) -> list[Buffer]:
        """Say what is true of an entry that was not found."""
        _check_there(ledger)
        if ledger.limbo:
            sometimes("read: UNKNOWN in limbo")
            raise EntryUnknown(f"entry {entry_id} of ledger {ledger.ledger_id} may have been lost")
        raise EntryAbsent(f"entry {entry_id} of ledger {ledger.ledger_id} is not here")


def _check_there(ledger: Ledger) -> None:
    if ledger.deleted:
        raise NoSuchLedger(f"ledger {ledger.ledger_id} was deleted")
