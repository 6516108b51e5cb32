"""Batches that were flushed: kept from an earlier read, or found through the index and read from the entry logs.

What is read was checked against its ids and its checksum, whatever the index said. Between a
look into the index and the read, a compaction may move a batch and remove the old log; so
before a failed read is believed, the index is asked whether the batch still lies there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from tallybook.core.batch import Buffer
from tallybook.core.errors import DiskFailed, EntryCorrupt, EntryUnknown
from tallybook.core.marks import sometimes

from .index import MAX_FIND_ROWS, Index
from .location import IndexRow
from .read_cache import ReadCache

_ATTEMPTS: Final = 3
"""Looks into the index for one read; a batch that moves more often is reported as it was found last."""


class BatchReader(Protocol):
    """The part of the entry logs that gives batches back."""

    async def read_many(self, rows: Sequence[IndexRow]) -> list[bytes]:
        """The batches of ``rows``, up to the first that cannot be had.

        Raises:
            EntryCorrupt, EntryUnknown: what is wrong with the first of them.
        """


class StoredBatches:
    """Reads what was flushed.

    Args:
        on_damage: told of each batch that fails its checks, or was in a log that is lost.
    """

    def __init__(
        self, index: Index, logs: BatchReader, cache: ReadCache, on_damage: Callable[[IndexRow], None]
    ) -> None:
        self._index = index
        self._on_damage = on_damage
        self._logs = logs
        self._cache = cache

    async def read_run(self, ledger_id: int, first: int, last: int, max_bytes: int) -> list[Buffer]:
        """Batches from the one that holds ``first``, without a gap, up to ``last`` or about ``max_bytes``.

        None if no batch holds ``first``; at least one otherwise.

        Raises:
            EntryCorrupt, EntryUnknown: what is known of entry ``first``.
        """
        kept = self._kept_run(ledger_id, first, last, max_bytes)
        if kept:
            return kept
        rows = await self._rows(ledger_id, first, last, max_bytes)
        for _ in range(_ATTEMPTS):
            if not rows:
                return []
            try:
                batches = await self._logs.read_many(rows)
            except (EntryCorrupt, EntryUnknown) as error:
                before, rows = rows, await self._rows(ledger_id, first, last, max_bytes)
                if rows[:1] == before[:1]:
                    if is_damage(error):
                        self._on_damage(before[0])
                    raise
                sometimes("stored: a batch moved while it was read")
            else:
                for row, batch in zip(rows, batches, strict=False):  # it may have ended early, before a damaged one
                    self._cache.put(ledger_id, row.first_entry_id, row.last_entry_id, batch)
                return list(batches)
        raise EntryUnknown(f"entry {first} of ledger {ledger_id} moves faster than it can be read")

    async def overlapping(self, ledger_id: int, first: int, last: int, *, mending: bool = False) -> list[Buffer | None]:
        """Every stored batch with an entry in ``first .. last``; ``None`` in place of one that is damaged.

        Args:
            mending: so it is with one that is lost, and with one that the device refuses twice: a good copy is at hand.

        Raises:
            EntryUnknown: it cannot be told.
        """
        rows = await self._index.find_range(ledger_id, first, last, MAX_FIND_ROWS)
        found: list[Buffer | None] = []
        for row in rows:
            try:
                found += await self.read_run(ledger_id, row.first_entry_id, row.first_entry_id, 1)
            except (EntryCorrupt, EntryUnknown) as error:
                if isinstance(error, EntryUnknown) and not (mending and await self._is_given_up(row)):
                    raise
                found.append(None)
        return found

    async def _is_given_up(self, row: IndexRow) -> bool:
        """Whether this batch is lost, or refused again; an index that cannot be read says nothing of it."""
        try:
            await self._logs.read_many([row])
        except (EntryCorrupt, EntryUnknown) as error:
            return is_damage(error) or isinstance(error.__cause__, DiskFailed)
        return False

    def _kept_run(self, ledger_id: int, first: int, last: int, max_bytes: int) -> list[Buffer]:
        """Batches of the read cache from the one that holds ``first``, without a gap."""
        found: list[Buffer] = []
        next_id, left = first, max_bytes
        while next_id <= last and (kept := self._cache.find(ledger_id, next_id)) is not None:
            left -= len(kept.batch)
            if left < 0 and found:
                break
            found.append(kept.batch)
            next_id = kept.last + 1
        return found

    async def _rows(self, ledger_id: int, first: int, last: int, max_bytes: int) -> list[IndexRow]:
        """Rows from the one that holds ``first``, without a gap, for about ``max_bytes``."""
        start = await self._index.find(ledger_id, first)
        if start is None:
            return []
        limit = min(MAX_FIND_ROWS, max_bytes // start.location.size + 1)
        if start.last_entry_id >= last or limit < 2:
            return [start]
        try:
            rows = await self._index.find_range(ledger_id, first, last, limit)
        except EntryUnknown:
            return [start]  # a row further on: told to whoever asks for its entries
        return _contiguous(rows, first, max_bytes)


def is_damage(error: EntryCorrupt | EntryUnknown) -> bool:
    """Whether a batch that could not be read is gone for good: its bytes are wrong, or its log is lost.

    A device that refuses to read may have had a bad moment.
    """
    return isinstance(error, EntryCorrupt) or isinstance(error.__cause__, FileNotFoundError)


def _contiguous(rows: Sequence[IndexRow], first: int, max_bytes: int) -> list[IndexRow]:
    """The rows from the one that holds ``first`` up to the first gap, or to ``max_bytes``."""
    chosen: list[IndexRow] = []
    next_id, left = first, max_bytes
    for row in rows:
        left -= row.location.size
        if not row.first_entry_id <= next_id <= row.last_entry_id or (chosen and left < 0):
            break
        chosen.append(row)
        next_id = row.last_entry_id + 1
    return chosen
