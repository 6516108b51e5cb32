"""Ranges of entries: those of a ledger, those assigned to an ensemble position, and those that a bookie lacks.

With E > Qw a position stores stripes, and a long ledger has very many of them: so ranges are generated, never listed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from .answers import EntryRange
from .quorum import Quorum


class LedgerEntryRange(NamedTuple):
    """Entries ``first .. last`` of a ledger, inclusive."""

    ledger_id: int
    first: int
    last: int


def assigned_ranges(quorum: Quorum, position: int, first: int, last: int) -> Iterator[EntryRange]:
    """Ranges of ``first .. last`` that the bookie at ``position`` must store, ascending; adjacent ones are merged."""
    if first > last:
        return
    if not quorum.striped:
        yield EntryRange(first, last)
        return
    begun: EntryRange | None = None
    at = first
    while at <= last:
        end = min(last, quorum.stripe_end(at))
        if position in quorum.write_set(at):
            begun = EntryRange(at if begun is None else begun.first, end)
        elif begun is not None:
            yield begun
            begun = None
        at = end + 1
    if begun is not None:
        yield begun


def missing_ranges(wanted: Iterable[EntryRange], held: Iterable[EntryRange]) -> Iterator[EntryRange]:
    """Ranges of ``wanted`` that are not in ``held``. Both inputs are ascending and disjoint, and so is the result."""
    rest = iter(held)
    have = next(rest, None)
    for want in wanted:
        at = want.first
        while at <= want.last:
            while have is not None and have.last < at:
                have = next(rest, None)
            if have is None or have.first > want.last:
                yield EntryRange(at, want.last)
                break
            if have.first > at:
                yield EntryRange(at, have.first - 1)
            at = have.last + 1
