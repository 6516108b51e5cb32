"""Whether a bookie holds all that it should of a ledger, without reading it: may its limbo end?

Where an entry that the metadata name this bookie for is neither in memory nor in the index, the answer after limbo
would be ABSENT, and that would be a lie.
"""

from __future__ import annotations

from collections.abc import Iterable

from tallybook.core.answers import EntryRange

from .present_rows import Page, PresentRows
from .storage.write_cache import WriteCache


async def first_missing(
    cache: WriteCache, rows: PresentRows, ledger_id: int, wanted: Iterable[EntryRange], last: int
) -> int | None:
    """The first entry of ``wanted`` that is not held, or ``None``.

    Args:
        wanted: ascending and disjoint, up to ``last``.

    Raises:
        EntryUnknown: the index is not there to be asked.
    """
    known = _Known()
    for want in wanted:
        next_id = want.first
        while next_id <= want.last:
            # In this order: a batch is in the index before it leaves the cache.
            cached = cache.find(ledger_id, next_id)
            end = known.end_of(next_id) if cached is None else cached.last
            if end is None:
                known = _Known(await rows.page(ledger_id, next_id, last))
                end = known.end_of(next_id)
            if end is None:
                return next_id
            next_id = end + 1
    return None


class _Known:
    """Goes along the rows of a page."""

    def __init__(self, page: Page | None = None) -> None:
        self._rows = [] if page is None else page.present
        self._at = 0

    def end_of(self, entry_id: int) -> int | None:
        """The last entry of the row that has this one, which lies behind all that were asked for."""
        while self._at < len(self._rows) and self._rows[self._at].last_entry_id < entry_id:
            self._at += 1
        if self._at < len(self._rows) and self._rows[self._at].first_entry_id <= entry_id:
            return self._rows[self._at].last_entry_id
        return None
