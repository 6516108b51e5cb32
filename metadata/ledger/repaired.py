"""Transitions of a repair: replace ensemble members of a fragment, and remove repaired missed ranges.

Repair applies both only after the copies are stored and verified. Neither changes the last fragment of an unclosed
ledger, which belongs to its writer or its recovery.
"""

from __future__ import annotations

from dataclasses import replace

from tallybook.core.errors import InvalidArgument

from .model import Fragment, LedgerMetadata, MissedRange, of_members


def immutable_fragments(metadata: LedgerMetadata) -> tuple[Fragment, ...]:
    """Fragments that no longer grow: all of a closed ledger, otherwise all but the last."""
    return metadata.fragments if metadata.closed else metadata.fragments[:-1]


def replace_member(metadata: LedgerMetadata, first_entry_id: int, position: int, old: str, new: str) -> LedgerMetadata:
    """Replace ``old`` by ``new`` at ``position`` of the immutable fragment that starts at ``first_entry_id``.

    No change if the fragment does not exist or does not name ``old`` there: another repair was first. At another
    position ``new`` would have to store other entries than those it received.

    Raises:
        InvalidArgument: the fragment still grows, or names ``new`` at another position.
    """
    fragment = next((each for each in metadata.fragments if each.first_entry_id == first_entry_id), None)
    if fragment is None or fragment.bookies[position] != old:
        return metadata
    if fragment not in immutable_fragments(metadata):
        raise InvalidArgument(
            f"ledger {metadata.ledger_id}: the fragment from entry {first_entry_id} still belongs to the writer "
            "and cannot be changed"
        )
    if new in fragment.bookies:
        raise InvalidArgument(
            f"ledger {metadata.ledger_id}: the fragment from entry {first_entry_id} already has {new} as a member"
        )
    members = tuple(new if name == old else name for name in fragment.bookies)
    fragments = tuple(Fragment(first_entry_id, members) if each is fragment else each for each in metadata.fragments)
    end = metadata.fragment_end(fragment)
    missed = without(metadata.missed, old, first_entry_id, end)
    changed = replace(metadata, fragments=fragments, missed=())
    return replace(changed, missed=of_members(changed, missed))


def remove_missed(metadata: LedgerMetadata, bookie_id: str, first: int, last: int) -> LedgerMetadata:
    """``bookie_id`` now stores all its entries of ``first .. last``: remove them from its missed ranges."""
    return replace(metadata, missed=of_members(metadata, without(metadata.missed, bookie_id, first, last)))


def drop_stray_missed(metadata: LedgerMetadata) -> LedgerMetadata:
    """Remove missed ranges in fragments that do not name their bookie any more."""
    return replace(metadata, missed=of_members(metadata, metadata.missed))


def without(missed: tuple[MissedRange, ...], bookie_id: str, first: int, last: int) -> tuple[MissedRange, ...]:
    """``missed`` without the entries ``first .. last`` of ``bookie_id``."""
    left: list[MissedRange] = []
    for entry in missed:
        end = entry.last_entry_id
        if entry.bookie_id != bookie_id or entry.first_entry_id > last or (end is not None and end < first):
            left.append(entry)
            continue
        if entry.first_entry_id < first:
            left.append(replace(entry, last_entry_id=first - 1))
        if end is None or end > last:
            left.append(replace(entry, first_entry_id=last + 1))
    return tuple(left)
