"""Up to where a ledger is settled: the entries at which no writer can be any more, by its metadata.

A repair shows no key. Instead a bookie asks the metadata itself, linearizably, whether there can be
a writer at the entries of a copy that it is given, and takes it only where there is none: the ledger
is closed and has them, or they lie before its last fragment, where all was confirmed.

What is settled stays settled, so an answer that allows something is remembered; one that does not
may be out of date in the next moment, and is asked for anew.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from tallybook.core.errors import MetadataUnavailable, Unauthorized
from tallybook.metadata.store import MetadataStore

LOOKUP_SECONDS: Final = 10.0
"""Longest wait for the metadata."""

MAX_REMEMBERED: Final = 1_024
"""Ledgers of which an answer is remembered."""


class Settled(NamedTuple):
    """No writer can be at entries up to ``up_to``, -1 for none; at no entry at all where the ledger is ``closed``."""

    up_to: int
    closed: bool


SettledLookup = Callable[[int], Awaitable[Settled]]
"""A linearizable look. ``NoSuchLedger`` where there is none, ``MetadataUnavailable`` where they do not answer."""


async def closed_up_to(store: MetadataStore, ledger_id: int) -> Settled:
    """Look a ledger up.

    Raises:
        NoSuchLedger: there is none.
        MetadataUnavailable: the metadata do not answer.
    """
    metadata = (await store.read_ledger(ledger_id, linearizable=True)).value
    if metadata.closed:
        return Settled(metadata.last_entry_id, True)
    return Settled(metadata.last_fragment.first_entry_id - 1, False)


class SettledLedgers:
    """Says what a bookie may be given back without a key."""

    def __init__(self, lookup: SettledLookup) -> None:
        self._lookup = lookup
        self._known: OrderedDict[int, Settled] = OrderedDict()

    async def check_entry(self, ledger_id: int, entry_id: int) -> None:
        """Make sure that no writer can be at entries up to this one.

        Raises:
            Unauthorized: the metadata do not say so.
            NoSuchLedger, MetadataUnavailable: see ``SettledLookup``.
        """
        known = self._known.get(ledger_id)
        if known is not None and entry_id <= known.up_to:
            self._known.move_to_end(ledger_id)
            return
        found = await self._look(ledger_id)
        if entry_id > found.up_to:
            state = "closed" if found.closed else "not closed, and settled"
            raise Unauthorized(f"ledger {ledger_id} is {state} at entry {found.up_to}, before entry {entry_id}")

    async def check_closed(self, ledger_id: int) -> None:
        """Make sure that no writer can be anywhere in the ledger.

        Raises:
            Unauthorized: it is not closed.
            NoSuchLedger, MetadataUnavailable: see ``SettledLookup``.
        """
        known = self._known.get(ledger_id)
        if known is not None and known.closed:
            return
        if not (await self._look(ledger_id)).closed:
            raise Unauthorized(f"ledger {ledger_id} is not closed: a writer or a recovery may be at work")

    async def _look(self, ledger_id: int) -> Settled:
        try:
            async with asyncio.timeout(LOOKUP_SECONDS):
                found = await self._lookup(ledger_id)
        except TimeoutError as error:
            late = f"no answer about ledger {ledger_id} within {LOOKUP_SECONDS} seconds"
            raise MetadataUnavailable(late) from error
        self._known[ledger_id] = max(found, self._known.get(ledger_id, found))
        self._known.move_to_end(ledger_id)
        while len(self._known) > MAX_REMEMBERED:
            self._known.popitem(last=False)
        return found
