"""Index rows whose entry log exists. A dangling row, or one into a lost log, counts as missing.

Whether the bytes are intact is not checked: damaged batches are CORRUPT, and on the damage list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from ..location import IndexRow
from .port import MAX_FIND_ROWS, Index


class RowPage(NamedTuple):
    """The result of one index lookup."""

    present: list[IndexRow]
    seen: int
    """Rows examined."""
    looked_up_to: int
    complete: bool
    """Whether it has reached the end of the requested range."""
    unreadable: bool
    """Part of the index is damaged there: batches that are not in ``present`` may be held, and may have been lost."""


class PresentRows:
    """Looks up rows.

    Args:
        log_ids: the existing entry logs.
    """

    def __init__(self, index: Index, log_ids: Callable[[], Iterable[int]]) -> None:
        self._index = index
        self._log_ids = log_ids

    async def page(self, ledger_id: int, first: int, last: int) -> RowPage:
        """The first rows with entries in ``first .. last``.

        Raises:
            EntryUnknown: the index cannot be read.
        """
        # During the lookup a log may be created, or removed after its batches were moved: logs before or after it
        # count.
        present = set(self._log_ids())
        survey = await self._index.survey(ledger_id, first, last, MAX_FIND_ROWS)
        present.update(self._log_ids())
        return RowPage(
            [row for row in survey.rows if row.location.log_id in present],
            len(survey.rows) + len(survey.unreadable),
            last if survey.behind is None else survey.behind.first_entry_id - 1,
            survey.behind is None,
            bool(survey.unreadable),
        )
