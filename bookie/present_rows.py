"""Rows of the index that lead to a log which is there. One that leads nowhere, or into a lost log, is as good as none.

Whether the bytes are intact is not asked: what is damaged answers CORRUPT, and stands on the list of damage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from .storage.index import MAX_FIND_ROWS, Index
from .storage.location import IndexRow


class Page(NamedTuple):
    """What one look into the index has shown."""

    present: list[IndexRow]
    seen: int
    """Rows looked at."""
    looked_up_to: int
    complete: bool
    """It has come to the end of what was asked."""
    untold: bool
    """Something in the index is damaged there: what is not in ``present`` may be held, and may have been lost."""


class PresentRows:
    """Looks rows up.

    Args:
        log_ids: the entry logs that there are now.
    """

    def __init__(self, index: Index, log_ids: Callable[[], Iterable[int]]) -> None:
        self._index = index
        self._log_ids = log_ids

    async def page(self, ledger_id: int, first: int, last: int) -> Page:
        """The first rows with entries in ``first .. last``.

        Raises:
            EntryUnknown: the index is not there to be asked.
        """
        # A log may come, or be removed after its batches were moved, while the index is read: so both times count.
        present = set(self._log_ids())
        told = await self._index.survey(ledger_id, first, last, MAX_FIND_ROWS)
        present.update(self._log_ids())
        return Page(
            [row for row in told.rows if row.location.log_id in present],
            len(told.rows) + len(told.untold),
            last if told.behind is None else told.behind.first_entry_id - 1,
            told.behind is None,
            bool(told.untold),
        )
