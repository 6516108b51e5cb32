"""What a ledger needs, as its metadata and the state of the bookies say. Pure.

A *place* is one bookie's part in one fragment: what it is to hold there. Places of settled fragments are mended by
copying; nobody touches the last fragment of a ledger that is not closed, so where that one names a bookie that is lost,
or to be emptied, or that lost data, the ledger has to be ended first.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from tallybook.core.limits import BATCH_TABLE_ROW_BYTES
from tallybook.core.quorum import Quorum
from tallybook.core.ranges import ranges_of
from tallybook.metadata.model import LedgerMetadata, LedgerState
from tallybook.metadata.repaired import settled_fragments


class Place(NamedTuple):
    """One bookie's part in a settled fragment. A fragment has no entries if its ``last`` lies before its ``first``."""

    first: int
    """First entry of the fragment, which names it."""
    last: int
    position: int
    bookie_id: str

    def is_empty(self, quorum: Quorum) -> bool:
        """Whether there is nothing to be held there: the fragment has no entries, or too few for this stripe."""
        return next(ranges_of(quorum, self.position, self.first, self.last), None) is None


class Why(Enum):
    """Why a ledger is looked at."""

    LOST = "lost bookie"
    MISSED = "entries that a bookie has missed"
    DAMAGED = "damaged copies"
    LIMBO = "a bookie that lost data"
    DRAINING = "bookie to be emptied"
    UNFINISHED = "a recovery that was not finished"
    """Nobody writes the ledger any more, and what its last fragment lacks is copied only once it is closed."""

    @property
    def moves(self) -> bool:
        """Whether others take the places of bookies, which the metadata alone tell: no copy has to be looked at."""
        return self in (Why.LOST, Why.DRAINING)

    @property
    def ends_if_abandoned(self) -> bool:
        """Whether an open ledger is ended only if it has no writer: no bookie is lost, leaves or lost data."""
        return self in (Why.MISSED, Why.DAMAGED)


class Need(NamedTuple):
    """What is to be done about a ledger."""

    settled: Why | None
    """Why its settled fragments have to be looked at."""
    growing: Why | None
    """Why the fragment that grows has to be ended: it names a bookie that is lost, lost data, or is to be emptied; or a
    recovery has begun to end it; or a bookie missed entries of it or has a damaged copy, and its writer is gone."""
    by_hand: bool = False
    """Whether it has a password, and an operator, or a client that knows it, has to recover it."""

    @property
    def foremost(self) -> Why | None:
        """The graver of both. Of a ledger that is only moved no copy is missing."""
        if self.settled in (None, Why.DRAINING):
            return self.growing or self.settled
        return self.settled

    @property
    def only_an_end(self) -> bool:
        """Whether the ledger has too few copies, and nothing but its end lets a repair at them."""
        return self.growing in (Why.LOST, Why.LIMBO) and self.settled in (None, Why.DRAINING)

    @property
    def waits_for_an_end(self) -> bool:
        """Whether copies may lack where it grows, which is mended once it is closed, and nothing else is wrong."""
        return self.settled is None and self.growing in (Why.UNFINISHED, Why.MISSED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """What is wrong with bookies.

    Args:
        lost: away for too long.
        draining: to be emptied, whether they are there or not.
        limbo: those that lost data, with the ledgers that they have got back already; and below which id theirs lie.
        damaged: ledgers of which some bookie knows a damaged copy, each with the last entry of one.
    """

    lost: frozenset[str] = frozenset()
    draining: frozenset[str] = frozenset()
    limbo: Mapping[str, LimboOf] = field(default_factory=dict)
    damaged: Mapping[int, int] = field(default_factory=dict)
    alive: frozenset[str] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.leaving or self.limbo or self.damaged)

    @property
    def leaving(self) -> frozenset[str]:
        """Those whose places others are to take."""
        return self.lost | self.draining


class Loss(NamedTuple):
    """What a bookie says that it lost; of the same events it may say a higher ``below`` later."""

    directory: str
    """The uuid of its directory."""
    events: int
    """How often it lost something."""
    below: int
    """Ledgers with lower ids may lack something there."""


class LimboOf(NamedTuple):
    """A bookie that lost data: of ledgers below ``below``, all but ``mended`` may lack something there."""

    below: int
    mended: Collection[int]

    def covers(self, ledger_id: int) -> bool:
        """Whether the ledger may lack something there."""
        return ledger_id < self.below and ledger_id not in self.mended


def places_of(metadata: LedgerMetadata) -> Iterator[Place]:
    """Every place of the ledger's settled fragments."""
    for fragment in settled_fragments(metadata):
        last = metadata.fragment_end(fragment)
        for position, bookie_id in enumerate(fragment.bookies):
            yield Place(fragment.first_entry_id, last, position, bookie_id)


def reason(metadata: LedgerMetadata, trouble: Trouble) -> Why | None:
    """Why the ledger's settled fragments have to be looked at: the reason that asks for the closest look first; one for
    which nothing lacks last.

    Whatever the reason, others take the places of whoever leaves; but where nobody can, that must not keep a bookie
    that is there from getting back what it lacks.
    """
    if metadata.copies_released:
        return None  # it is in the archive, and nobody relies on what bookies still have
    members = {name for fragment in settled_fragments(metadata) for name in fragment.bookies}
    if metadata.ledger_id in trouble.damaged:
        return Why.DAMAGED
    if _lacks_in_settled(metadata, in_limbo_at(metadata.ledger_id, trouble.limbo)):
        return Why.LIMBO
    if members & trouble.lost:
        return Why.LOST
    if any(_can_be_given_back(metadata, entry.bookie_id, entry.first_entry_id, trouble) for entry in metadata.missed):
        return Why.MISSED
    return Why.DRAINING if members & trouble.draining else None


def need(metadata: LedgerMetadata, trouble: Trouble) -> Need:
    """What is to be done about the ledger."""
    growing = _lacks_where_it_grows(metadata, trouble)
    if metadata.state is LedgerState.IN_RECOVERY:
        growing = Why.UNFINISHED
    if must_end(metadata, trouble.draining):
        growing = Why.DRAINING
    if not metadata.closed and must_end_for_limbo(metadata, in_limbo_at(metadata.ledger_id, trouble.limbo)):
        growing = Why.LIMBO
    if must_end(metadata, trouble.lost):
        growing = Why.LOST
    by_hand = bool(metadata.key_verifier) and growing in (Why.LOST, Why.UNFINISHED)
    return Need(reason(metadata, trouble), growing, by_hand)


def in_limbo_at(ledger_id: int, limbo: Mapping[str, LimboOf]) -> frozenset[str]:
    """Bookies that may have lost something of the ledger."""
    return frozenset(name for name, each in limbo.items() if each.covers(ledger_id))


def may_lack(metadata: LedgerMetadata, limbo: Mapping[str, LimboOf]) -> bool:
    """Whether a bookie that may have lost its copies is to have some, or will be when the ledger is closed.

    One without any never says that it has them: bookies tell of ledgers of which they hold something.
    """
    covering = in_limbo_at(metadata.ledger_id, limbo)
    return must_end(metadata, covering) or _lacks_in_settled(metadata, covering)


def _lacks_in_settled(metadata: LedgerMetadata, covering: Collection[str]) -> bool:
    """Whether one of these bookies is to hold entries of settled fragments."""
    return bool(covering) and any(
        place.bookie_id in covering and not place.is_empty(metadata.quorum) for place in places_of(metadata)
    )


def must_end_for_limbo(metadata: LedgerMetadata, covering: Collection[str]) -> bool:
    """Whether bookies that may lack something get it back, and leave limbo, only once the ledger is closed.

    A recovery that was begun and not finished keeps a ledger in limbo wherever it grows.
    """
    unfinished = metadata.state is LedgerState.IN_RECOVERY
    return must_end(metadata, covering) or (unfinished and _lacks_in_settled(metadata, covering))


def bytes_to_copy(metadata: LedgerMetadata, leaving: Collection[str]) -> int | None:
    """Bytes that whoever takes the places of ``leaving`` is given, about: all entries count as equally long.

    With the rows of the tables of batches, which for short entries are much of it; how many batches there are, and so
    their headers, is not known.

    ``None``: the ledger is open, so how long it is is not known.
    """
    if not metadata.closed:
        return None
    quorum, entries = metadata.quorum, metadata.last_entry_id + 1
    lacking = sum(max(0, place.last - place.first + 1) for place in places_of(metadata) if place.bookie_id in leaving)
    size = metadata.length + entries * BATCH_TABLE_ROW_BYTES
    return size * lacking * quorum.write_quorum // (quorum.ensemble * entries) if entries else 0


def must_end(metadata: LedgerMetadata, bookies: Collection[str]) -> bool:
    """Whether the fragment that still grows names one of these bookies: only its end lets a repair at it."""
    return not metadata.closed and any(name in bookies for name in metadata.last_fragment.bookies)


def _lacks_where_it_grows(metadata: LedgerMetadata, trouble: Trouble) -> Why | None:
    """Why the last fragment of an open ledger lacks copies at a bookie that stays: one missed entries, or has rot."""
    if metadata.closed or metadata.key_verifier:
        return None  # one with a password is for its users to recover
    fragment = metadata.last_fragment
    if trouble.damaged.get(metadata.ledger_id, -1) >= fragment.first_entry_id:
        return Why.DAMAGED
    missed = any(
        entry.bookie_id in fragment.bookies
        and entry.bookie_id in trouble.alive
        and (entry.last_entry_id is None or entry.last_entry_id >= fragment.first_entry_id)
        for entry in metadata.missed
    )
    return Why.MISSED if missed else None


def _can_be_given_back(metadata: LedgerMetadata, bookie_id: str, first: int, trouble: Trouble) -> bool:
    """Whether a missed range begins in a settled fragment, and its bookie is there to take it."""
    return bookie_id in trouble.alive and (metadata.closed or first < metadata.last_fragment.first_entry_id)
