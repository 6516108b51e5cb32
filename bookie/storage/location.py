"""Location of a batch in the entry logs, as the index stores it."""

from __future__ import annotations

from typing import Final, NamedTuple

NOWHERE_LOG_ID: Final = 0
"""No entry log has this id. A row that points there is *dangling*: its entries are UNKNOWN."""


class Location(NamedTuple):
    """The place of one batch: ``size`` bytes from ``offset`` in entry log ``log_id``."""

    log_id: int
    offset: int
    size: int
    entry_count: int


class IndexRow(NamedTuple):
    """One batch as the index knows it."""

    ledger_id: int
    first_entry_id: int
    location: Location

    @property
    def last_entry_id(self) -> int:
        """Id of the last entry in the batch."""
        return self.first_entry_id + self.location.entry_count - 1
