"""A range of entries of one ledger."""

from __future__ import annotations

from typing import NamedTuple


class LedgerEntryRange(NamedTuple):
    """Entries ``first .. last`` of a ledger, inclusive."""

    ledger_id: int
    first: int
    last: int
