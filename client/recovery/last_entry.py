"""What a bookie holds last of a ledger, looked for backwards in ever larger steps by its index; no data is read."""

from __future__ import annotations

from typing import Final, NamedTuple

from tallybook.core.errors import EntryUnknown
from tallybook.core.ids import NO_ENTRY

from ..bookie_port import BookieConnection

FIRST_STEP: Final = 1024
"""Entries that are looked at first; each further step is four times as wide."""


class LastHeld(NamedTuple):
    """The last entry that is held, -1 for none, and whether the bookie may have lost others behind it."""

    entry_id: int
    limbo: bool


async def last_held(bookie: BookieConnection, ledger_id: int, first: int, before: int, *, identity: bytes) -> LastHeld:
    """The last entry that is held from ``first`` on and before the batch with ``before``.

    Raises:
        EntryUnknown: it cannot be told.
        As ``BookieConnection.held`` otherwise.
    """
    low, high, step = before, before, FIRST_STEP
    limbo = False
    while True:
        found = await _within(bookie, ledger_id, low, high, identity)
        limbo = limbo or found.limbo
        if high < before and found.last != NO_ENTRY:
            return LastHeld(min(found.last, high), limbo)
        # Of the batch with ``before``, no entry is wanted.
        high = (min(found.first, low) if found.last != NO_ENTRY else low) - 1
        if high < first:
            return LastHeld(NO_ENTRY, limbo)
        low, step = max(first, high - step + 1), 4 * step


class _Found(NamedTuple):
    """First and last entry that are held in a range."""

    first: int
    last: int
    limbo: bool


async def _within(bookie: BookieConnection, ledger_id: int, low: int, high: int, identity: bytes) -> _Found:
    first, last, limbo = high + 1, NO_ENTRY, False
    at = low
    while True:
        answer = await bookie.held(ledger_id, at, high, identity=identity)
        limbo = limbo or answer.limbo
        if answer.ranges:
            first, last = min(first, answer.ranges[0].first), answer.ranges[-1].last
        if answer.looked_up_to >= high:
            return _Found(first, last, limbo)
        if answer.looked_up_to < at:
            raise EntryUnknown(f"ledger {ledger_id}: a bookie does not say what it holds from entry {at} on")
        at = answer.looked_up_to + 1
