"""Copies that are not believed: those that a bookie has where a closed ledger says that it lacks them. Pure.

A recovery records what a slow member had not acked by the close. What that member has there may be other bytes under
the same ids, which nobody compared: until a repair has done so, another member's copy counts.
"""

from __future__ import annotations

from .model import LedgerMetadata, MissedRange


def in_doubt(metadata: LedgerMetadata, entry_id: int) -> frozenset[str]:
    """Bookies whose copy of an entry is not believed while another one may have a copy."""
    return frozenset(entry.bookie_id for entry in _ranges(metadata) if _end(entry) >= entry_id >= entry.first_entry_id)


def believed_to(metadata: LedgerMetadata, bookie_id: str, first: int, last: int) -> int:
    """Up to where a bookie that is asked for ``first .. last`` is asked at a time; ``first`` where that is in doubt."""
    ends = [
        max(first, entry.first_entry_id - 1)
        for entry in _ranges(metadata)
        if entry.bookie_id == bookie_id and entry.first_entry_id <= last and _end(entry) >= first
    ]
    return min([last, *ends])


def _ranges(metadata: LedgerMetadata) -> tuple[MissedRange, ...]:
    # Before the close it is the writer that records, and all copies are its own.
    return metadata.missed if metadata.closed else ()


def _end(entry: MissedRange) -> int:
    return entry.first_entry_id if entry.last_entry_id is None else entry.last_entry_id
