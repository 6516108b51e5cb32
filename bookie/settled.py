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
from collections.abc import Awaitable, Callable, Iterator
from typing import Final, NamedTuple

from tallybook.core.answers import EntryRange
from tallybook.core.errors import MetadataUnavailable, Unauthorized
from tallybook.core.quorum import Quorum
from tallybook.core.ranges import ranges_of
from tallybook.metadata.model import LedgerMetadata, LedgerState
from tallybook.metadata.repaired import settled_fragments
from tallybook.metadata.store import MetadataStore

LOOKUP_SECONDS: Final = 10.0
"""Longest wait for the metadata."""

MAX_REMEMBERED: Final = 1_024
"""Ledgers of which an answer is remembered."""


class Share(NamedTuple):
    """What one bookie is to hold of a fragment: the entries of its position, from ``first`` to ``last``."""

    bookie_id: str
    quorum: Quorum
    position: int
    first: int
    last: int

    def ranges(self) -> Iterator[EntryRange]:
        """These entries, ascending; neighbours are one range."""
        return ranges_of(self.quorum, self.position, self.first, self.last)


class Settled(NamedTuple):
    """No writer can be at entries up to ``up_to``, -1 for none; at no entry at all where the ledger is ``closed``.

    ``shares``: what each bookie is to hold of these entries. None where copies need not be kept, or a recovery may be
    at work. ``growing``: of an open ledger, the bookies of its last fragment; of any other, none.
    """

    up_to: int
    closed: bool
    shares: tuple[Share, ...] = ()
    growing: tuple[str, ...] = ()

    def is_out_of(self, bookie_id: str) -> bool:
        """Whether writer and recoveries have left a bookie: nothing is added to what it is to hold of the ledger."""
        return self.closed or (bool(self.growing) and bookie_id not in self.growing)


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
        return Settled(metadata.last_entry_id, True, () if metadata.copies_released else shares_of(metadata))
    up_to = metadata.last_fragment.first_entry_id - 1
    if metadata.state is LedgerState.IN_RECOVERY:
        return Settled(up_to, False)
    return Settled(up_to, False, shares_of(metadata), metadata.last_fragment.bookies)


def shares_of(metadata: LedgerMetadata) -> tuple[Share, ...]:
    """What each bookie is to hold of the settled fragments."""
    return tuple(
        Share(bookie_id, metadata.quorum, position, fragment.first_entry_id, metadata.fragment_end(fragment))
        for fragment in settled_fragments(metadata)
        for position, bookie_id in enumerate(fragment.bookies)
    )


class SettledLedgers:
    """Says what a bookie may be given back without a key."""

    def __init__(self, lookup: SettledLookup) -> None:
        self._lookup = lookup
        self._known: OrderedDict[int, Settled] = OrderedDict()
        self.hits = 0
        """Questions that were answered from memory."""
        self.lookups = 0
        """Those for which the metadata were asked."""

    def __len__(self) -> int:
        return len(self._known)

    async def check_entry(self, ledger_id: int, entry_id: int) -> None:
        """Make sure that no writer can be at entries up to this one.

        Raises:
            Unauthorized: the metadata do not say so.
            NoSuchLedger, MetadataUnavailable: see ``SettledLookup``.
        """
        known = self._known.get(ledger_id)
        if known is not None and entry_id <= known.up_to:
            self._known.move_to_end(ledger_id)
            self.hits += 1
            return
        found = await self._look(ledger_id)
        if entry_id > found.up_to:
            state = "closed" if found.closed else "not closed, and settled"
            raise Unauthorized(f"ledger {ledger_id} is {state} at entry {found.up_to}, before entry {entry_id}")

    async def settled_at(self, ledger_id: int, bookie_id: str) -> Settled:
        """What is settled of a ledger to which nothing is added at a bookie any more. Asked for anew every time.

        Raises:
            Unauthorized: it is not closed, and a writer or a recovery may be at work at this bookie.
            NoSuchLedger, MetadataUnavailable: see ``SettledLookup``.
        """
        found = await self._look(ledger_id)
        if not found.is_out_of(bookie_id):
            raise Unauthorized(
                f"ledger {ledger_id} is not closed: a writer or a recovery may be at work at {bookie_id}"
            )
        return found

    async def _look(self, ledger_id: int) -> Settled:
        self.lookups += 1
        try:
            async with asyncio.timeout(LOOKUP_SECONDS):
                found = await self._lookup(ledger_id)
        except TimeoutError as error:
            late = f"no answer about ledger {ledger_id} within {LOOKUP_SECONDS} seconds"
            raise MetadataUnavailable(late) from error
        plain = found._replace(shares=(), growing=())
        self._known[ledger_id] = max(plain, self._known.get(ledger_id, plain))
        self._known.move_to_end(ledger_id)
        while len(self._known) > MAX_REMEMBERED:
            self._known.popitem(last=False)
        return found
