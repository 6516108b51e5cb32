"""Which entries of a ledger are meant: a small thing that much refers to."""

from __future__ import annotations

from typing import NamedTuple


class EntryRange(NamedTuple):
    """The entries ``first .. last`` of a ledger, both included."""

    ledger_id: int
    first: int
    last: int
