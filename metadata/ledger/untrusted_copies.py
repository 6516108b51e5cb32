"""Untrusted copies: entries that a bookie may have although a closed ledger lists them as missed by it.

A recovery lists what a slow member had not acked by the close. That member's copy may have other bytes under the same
ids, which were never compared. Until a repair has compared them, readers prefer another member's copy.
"""

from __future__ import annotations

from .model import LedgerMetadata, MissedRange


def untrusted_bookies(metadata: LedgerMetadata, entry_id: int) -> frozenset[str]:
    """Bookies whose copy of the entry is untrusted while another bookie may have a copy."""
    return frozenset(entry.bookie_id for entry in _ranges(metadata) if _end(entry) >= entry_id >= entry.first_entry_id)


def trusted_until(metadata: LedgerMetadata, bookie_id: str, first: int, last: int) -> int:
    """Last entry to request in one read of ``first .. last`` from a bookie; ``first`` if that entry is untrusted."""
    ends = [
        max(first, entry.first_entry_id - 1)
        for entry in _ranges(metadata)
        if entry.bookie_id == bookie_id and entry.first_entry_id <= last and _end(entry) >= first
    ]
    return min([last, *ends])


def _ranges(metadata: LedgerMetadata) -> tuple[MissedRange, ...]:
    # Before the close the writer lists missed ranges, and all copies are its own.
    return metadata.missed if metadata.closed else ()


def _end(entry: MissedRange) -> int:
    return entry.first_entry_id if entry.last_entry_id is None else entry.last_entry_id
