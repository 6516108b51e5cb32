"""Ranges of entries: which of them a place in an ensemble is to hold, and which of those a bookie lacks. Pure.

With E > Qw a place holds stripes, not everything, and a long ledger has very many of them: so ranges come one after the
other, and are nowhere listed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tallybook.core.answers import EntryRange
from tallybook.core.quorum import Quorum


def ranges_of(quorum: Quorum, position: int, first: int, last: int) -> Iterator[EntryRange]:
    """What the bookie at ``position`` is to hold of the entries ``first .. last``, ascending; neighbours are one."""
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


def clipped(ranges: Iterable[EntryRange], first: int, last: int) -> Iterator[EntryRange]:
    """What of ascending ``ranges`` lies within ``first .. last``."""
    for each in ranges:
        if each.first > last:
            return
        if each.last >= first:
            yield EntryRange(max(first, each.first), min(last, each.last))


def lacking(wanted: Iterable[EntryRange], held: Iterable[EntryRange]) -> Iterator[EntryRange]:
    """What of ``wanted`` is not in ``held``. Both are ascending and disjoint, and so is what comes out."""
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
