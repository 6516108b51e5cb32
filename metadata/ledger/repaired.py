"""What a repair changes in a ledger's metadata: who holds a fragment, and who no longer lacks what. Pure.

Both are told after the copies are there and verified, never before. Neither touches the last fragment of a ledger that
is not closed: that one is its writer's, or its recovery's.
"""

from __future__ import annotations

from dataclasses import replace

from tallybook.core.errors import InvalidArgument

from .model import Fragment, LedgerMetadata, MissedRange, of_members


def settled_fragments(metadata: LedgerMetadata) -> tuple[Fragment, ...]:
    """The fragments to which nobody adds any more: all of a closed ledger, all but the last one otherwise."""
    return metadata.fragments if metadata.closed else metadata.fragments[:-1]


def replace_member(metadata: LedgerMetadata, first_entry_id: int, position: int, old: str, new: str) -> LedgerMetadata:
    """Name ``new`` in place of ``old`` at ``position`` of the settled fragment that starts at ``first_entry_id``.

    A fragment that does not name ``old`` there (any more), or is not there, stays as it is: somebody else was first. In
    another place ``new`` would have to hold other entries than those that it was given.

    Raises:
        InvalidArgument: the fragment is not settled, or has ``new`` in another place.
    """
    fragment = next((each for each in metadata.fragments if each.first_entry_id == first_entry_id), None)
    if fragment is None or fragment.bookies[position] != old:
        return metadata
    if fragment not in settled_fragments(metadata):
        raise InvalidArgument(f"ledger {metadata.ledger_id}: the fragment from {first_entry_id} is still its writer's")
    if new in fragment.bookies:
        raise InvalidArgument(f"ledger {metadata.ledger_id}: the fragment from {first_entry_id} names {new} already")
    members = tuple(new if name == old else name for name in fragment.bookies)
    fragments = tuple(Fragment(first_entry_id, members) if each is fragment else each for each in metadata.fragments)
    end = metadata.fragment_end(fragment)
    missed = without(metadata.missed, old, first_entry_id, end)
    changed = replace(metadata, fragments=fragments, missed=())
    return replace(changed, missed=of_members(changed, missed))


def copies_given_back(metadata: LedgerMetadata, bookie_id: str, first: int, last: int) -> LedgerMetadata:
    """``bookie_id`` has all entries ``first .. last`` that it is to hold: it has missed none of them."""
    return replace(metadata, missed=of_members(metadata, without(metadata.missed, bookie_id, first, last)))


def without_strays(metadata: LedgerMetadata) -> LedgerMetadata:
    """The same, less missed ranges that are nobody's to mend: no fragment names their bookie there (any more)."""
    return replace(metadata, missed=of_members(metadata, metadata.missed))


def without(missed: tuple[MissedRange, ...], bookie_id: str, first: int, last: int) -> tuple[MissedRange, ...]:
    """``missed``, less what of ``bookie_id`` lies in ``first .. last``."""
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
