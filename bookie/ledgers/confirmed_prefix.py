"""Confirmed prefix: entries no writer can change any more (closed ledger, or an earlier fragment).

A repair add carries no key. Instead the bookie asks the metadata, linearizably, whether a writer may still be at the
entries of the copy, and takes it only if none can: the ledger is closed and has them, or they lie before its last
fragment, where all is confirmed.

A prefix never shrinks, so an answer that allows a copy is cached; a refusal may be out of date at once, and the
metadata is asked again each time.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator
from typing import Final, NamedTuple

from tallybook.core.answers import EntryRange
from tallybook.core.errors import MetadataUnavailable, Unauthorized
from tallybook.core.quorum import Quorum
from tallybook.core.ranges import assigned_ranges
from tallybook.metadata.ledger.model import LedgerMetadata, LedgerState
from tallybook.metadata.ledger.repaired import immutable_fragments
from tallybook.metadata.store import MetadataStore
from tallybook.runtime.metrics.part_metrics import PartMetrics

LOOKUP_SECONDS: Final = 10.0
"""Longest wait for the metadata."""

MAX_REMEMBERED: Final = 1_024
"""Number of cached answers, one for each ledger."""


class AssignedEntries(NamedTuple):
    """The entries of a fragment that one bookie must hold: those of its ensemble position, ``first`` to ``last``."""

    bookie_id: str
    quorum: Quorum
    position: int
    first: int
    last: int

    def ranges(self) -> Iterator[EntryRange]:
        """These entries as ascending ranges; adjacent ones are merged."""
        return assigned_ranges(self.quorum, self.position, self.first, self.last)


class ConfirmedPrefix(NamedTuple):
    """No writer can change entries up to ``up_to`` (-1: none), or any entry if the ledger is ``closed``.

    ``shares``: the entries of each bookie up to there; empty if copies need not be kept, or if a recovery may be
    in progress. ``growing``: the bookies of an open ledger's last fragment; empty for a closed one.
    """

    up_to: int
    closed: bool
    shares: tuple[AssignedEntries, ...] = ()
    growing: tuple[str, ...] = ()

    def is_out_of(self, bookie_id: str) -> bool:
        """Whether neither a writer nor a recovery can add anything to a bookie's part of the ledger."""
        return self.closed or (bool(self.growing) and bookie_id not in self.growing)


ConfirmedPrefixLookup = Callable[[int], Awaitable[ConfirmedPrefix]]
"""A linearizable lookup. ``NoSuchLedger`` if there is none, ``MetadataUnavailable`` if the store does not respond."""


async def confirmed_prefix_of(store: MetadataStore, ledger_id: int) -> ConfirmedPrefix:
    """Look up the confirmed prefix of a ledger.

    Raises:
        NoSuchLedger: there is no such ledger.
        MetadataUnavailable: the metadata store does not respond.
    """
    metadata = (await store.read_ledger(ledger_id, linearizable=True)).value
    if metadata.closed:
        return ConfirmedPrefix(metadata.last_entry_id, True, () if metadata.copies_released else shares_of(metadata))
    up_to = metadata.last_fragment.first_entry_id - 1
    if metadata.state is LedgerState.IN_RECOVERY:
        return ConfirmedPrefix(up_to, False)
    return ConfirmedPrefix(up_to, False, shares_of(metadata), metadata.last_fragment.bookies)


def shares_of(metadata: LedgerMetadata) -> tuple[AssignedEntries, ...]:
    """The entries that each bookie must hold of the confirmed fragments."""
    return tuple(
        AssignedEntries(bookie_id, metadata.quorum, position, fragment.first_entry_id, metadata.fragment_end(fragment))
        for fragment in immutable_fragments(metadata)
        for position, bookie_id in enumerate(fragment.bookies)
    )


class ConfirmedPrefixes:
    """Decides which entries a bookie accepts without a key."""

    def __init__(self, lookup: ConfirmedPrefixLookup) -> None:
        self._lookup = lookup
        self._known: OrderedDict[int, ConfirmedPrefix] = OrderedDict()
        self.hits = 0
        """Requests answered from the cache."""
        self.lookups = 0
        """Requests for which the metadata was read."""

    def __len__(self) -> int:
        return len(self._known)

    async def check_entry(self, ledger_id: int, entry_id: int) -> None:
        """Check that no writer can change entries up to this one.

        Raises:
            Unauthorized: one may.
            NoSuchLedger, MetadataUnavailable: see ``ConfirmedPrefixLookup``.
        """
        known = self._known.get(ledger_id)
        if known is not None and entry_id <= known.up_to:
            self._known.move_to_end(ledger_id)
            self.hits += 1
            return
        found = await self._fetch(ledger_id)
        if entry_id > found.up_to:
            state = "closed" if found.closed else "open, and confirmed only"
            raise Unauthorized(
                f"ledger {ledger_id} is {state} up to entry {found.up_to}; no repair of entry {entry_id}"
            )

    async def confirmed_at(self, ledger_id: int, bookie_id: str) -> ConfirmedPrefix:
        """The confirmed prefix of a ledger that is complete at this bookie. Reads the metadata every time.

        Raises:
            Unauthorized: the ledger is open, and a writer or a recovery may still add to this bookie.
            NoSuchLedger, MetadataUnavailable: see ``ConfirmedPrefixLookup``.
        """
        found = await self._fetch(ledger_id)
        if not found.is_out_of(bookie_id):
            raise Unauthorized(f"ledger {ledger_id} is not closed: a writer or a recovery may still add to {bookie_id}")
        return found

    async def _fetch(self, ledger_id: int) -> ConfirmedPrefix:
        self.lookups += 1
        try:
            async with asyncio.timeout(LOOKUP_SECONDS):
                found = await self._lookup(ledger_id)
        except TimeoutError as error:
            late = f"ledger {ledger_id}: the metadata store did not respond within {LOOKUP_SECONDS} seconds"
            raise MetadataUnavailable(late) from error
        plain = found._replace(shares=(), growing=())
        self._known[ledger_id] = max(plain, self._known.get(ledger_id, plain))
        self._known.move_to_end(ledger_id)
        while len(self._known) > MAX_REMEMBERED:
            self._known.popitem(last=False)
        return found


METRICS: Final = (
    PartMetrics[ConfirmedPrefixes]()
    .gauge(
        "settled_ledgers",
        "tallybook_bookie_settled_ledgers",
        "Ledgers whose confirmed prefix is cached, to authorize repair adds.",
        len,
    )
    .gauge(
        "max_settled_ledgers",
        "tallybook_bookie_max_settled_ledgers",
        "Maximum number of cached confirmed prefixes.",
        lambda _: MAX_REMEMBERED,
    )
    .counter(
        "settled_hits_total",
        "tallybook_bookie_settled_hits_total",
        "Repair adds authorized from the cache.",
        lambda confirmed: confirmed.hits,
    )
    .counter(
        "settled_lookups_total",
        "tallybook_bookie_settled_lookups_total",
        "Repair adds for which the metadata was read.",
        lambda confirmed: confirmed.lookups,
    )
)
