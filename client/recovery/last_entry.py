"""Finds the last entry that a bookie has of a ledger, for a lossy recovery only.

It searches the inventory of the bookie backwards, in growing steps. An ordinary recovery reads forward instead, and
``machine.py`` decides where it ends."""

from __future__ import annotations

from typing import Final, NamedTuple

from tallybook.core.errors import EntryUnknown
from tallybook.core.ids import NO_ENTRY

from ..connection.port import BookieConnection

FIRST_STEP: Final = 1024
"""Entries in the first step; each further step is four times as wide."""


class FoundLastEntry(NamedTuple):
    """The last entry found, -1 for none, and whether the bookie may have lost later ones."""

    entry_id: int
    limbo: bool


async def find_last_entry(
    bookie: BookieConnection, ledger_id: int, first: int, before: int, *, identity: bytes
) -> FoundLastEntry:
    """Find the last entry from ``first`` on and before the batch with ``before``.

    Raises:
        EntryUnknown: the bookie cannot read its index.
        As ``BookieConnection.held`` otherwise.
    """
    low, high, step = before, before, FIRST_STEP
    limbo = False
    while True:
        found = await _within(bookie, ledger_id, low, high, identity)
        limbo = limbo or found.limbo
        if high < before and found.last != NO_ENTRY:
            return FoundLastEntry(min(found.last, high), limbo)
        # The batch with ``before`` itself is excluded.
        high = (min(found.first, low) if found.last != NO_ENTRY else low) - 1
        if high < first:
            return FoundLastEntry(NO_ENTRY, limbo)
        low, step = max(first, high - step + 1), 4 * step


class _FoundRange(NamedTuple):
    """First and last entry found in a range."""

    first: int
    last: int
    limbo: bool


async def _within(bookie: BookieConnection, ledger_id: int, low: int, high: int, identity: bytes) -> _FoundRange:
    first, last, limbo = high + 1, NO_ENTRY, False
    at = low
    while True:
        answer = await bookie.held(ledger_id, at, high, identity=identity)
        limbo = limbo or answer.limbo
        if answer.ranges:
            first, last = min(first, answer.ranges[0].first), answer.ranges[-1].last
        if answer.looked_up_to >= high:
            return _FoundRange(first, last, limbo)
        if answer.looked_up_to < at:
            raise EntryUnknown(f"ledger {ledger_id}: a bookie did not return its inventory from entry {at} on")
        at = answer.looked_up_to + 1
