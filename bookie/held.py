"""Whether a bookie holds entries, without reading them: what may be told of a ledger when its limbo ends.

Where an entry that the metadata name this bookie for is neither in memory nor in the index, the answer after limbo
would be ABSENT, and that would be a lie. A row that leads nowhere, or into a log that is lost, is as good as none.
Whether the bytes are intact is not asked: what is damaged answers CORRUPT, in limbo and after it.
"""

from __future__ import annotations

from collections.abc import Container

from .storage.index import MAX_FIND_ROWS, Index
from .storage.location import IndexRow
from .storage.write_cache import WriteCache


async def first_missing(
    cache: WriteCache, index: Index, log_ids: Container[int], ledger_id: int, first: int, last: int
) -> int | None:
    """The first entry from ``first`` to ``last`` that is not held, or ``None``.

    Raises:
        EntryUnknown: the index cannot be read.
    """
    next_id = first
    while next_id <= last:
        # In this order: a batch is in the index before it leaves the cache.
        cached = cache.find(ledger_id, next_id)
        if cached is not None:
            next_id = cached.last + 1
            continue
        rows = await index.find_range(ledger_id, next_id, last, MAX_FIND_ROWS)
        reached = _reached(rows, next_id, log_ids)
        if reached == next_id:
            return next_id
        next_id = reached
    return None


def _reached(rows: list[IndexRow], next_id: int, log_ids: Container[int]) -> int:
    """The first entry at or behind ``next_id`` that none of these rows has, up to the first gap."""
    for row in rows:
        if not row.first_entry_id <= next_id <= row.last_entry_id or row.location.log_id not in log_ids:
            break
        next_id = row.last_entry_id + 1
    return next_id
