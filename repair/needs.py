"""Decides what repair a ledger needs, from its metadata and the state of the bookies. Pure.

A *fragment replica* is what one ensemble position of one fragment is to hold. Replicas of confirmed fragments (all
fragments of a closed ledger; all but the last one of an open ledger) are repaired by copying. The last fragment of an
open ledger still grows, so the repair does not copy into it: if it names a bookie that is lost, that is being drained
or that lost data, the ledger has to be recovered and closed first.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from tallybook.core.limits import BATCH_TABLE_ROW_BYTES
from tallybook.core.quorum import Quorum
from tallybook.core.ranges import assigned_ranges
from tallybook.metadata.ledger.model import LedgerMetadata, LedgerState
from tallybook.metadata.ledger.repaired import immutable_fragments


class FragmentReplica(NamedTuple):
    """The part of a confirmed fragment that one bookie is to hold. It is empty if ``last`` is less than ``first``."""

    first: int
    """First entry of the fragment, which identifies it."""
    last: int
    position: int
    bookie_id: str

    def is_empty(self, quorum: Quorum) -> bool:
        """Whether the replica has no entries: the fragment is empty, or too short for this stripe position."""
        return next(assigned_ranges(quorum, self.position, self.first, self.last), None) is None


class RepairReason(Enum):
    """Why a ledger is repaired. The values are stored in tasks and in the status record."""

    LOST = "lost bookie"
    MISSED = "entries that a bookie has missed"
    DAMAGED = "damaged copies"
    LIMBO = "a bookie that lost data"
    DRAINING = "bookie to be emptied"
    UNFINISHED = "a recovery that was not finished"
    """The ledger has no writer any more. What its last fragment lacks is copied only once the ledger is closed."""

    @property
    def moves(self) -> bool:
        """Whether the repair only replaces bookies. The metadata name them, so no bookie is asked what it holds."""
        return self in (RepairReason.LOST, RepairReason.DRAINING)

    @property
    def only_if_abandoned(self) -> bool:
        """Whether an open ledger is recovered only if it has no writer."""
        return self in (RepairReason.MISSED, RepairReason.DAMAGED)


class RepairNeed(NamedTuple):
    """The repair that a ledger needs."""

    confirmed: RepairReason | None
    """Why its confirmed fragments need repair."""
    growing: RepairReason | None
    """Why the ledger has to be recovered and closed: its last fragment names a bookie that is lost, that lost data or
    that is being drained; or a recovery has begun; or the writer is gone and a member missed entries or has a damaged
    copy."""
    by_hand: bool = False
    """Whether an operator or a client with the ledger's password has to recover it."""

    @property
    def foremost(self) -> RepairReason | None:
        """The more urgent of the two reasons. Draining is the least urgent: no copy is missing."""
        if self.confirmed in (None, RepairReason.DRAINING):
            return self.growing or self.confirmed
        return self.confirmed

    @property
    def only_needs_recovery(self) -> bool:
        """Whether the ledger has too few copies, and a repair has to recover it first and has nothing else to do."""
        return self.growing in (RepairReason.LOST, RepairReason.LIMBO) and self.confirmed in (
            None,
            RepairReason.DRAINING,
        )

    @property
    def waits_for_close(self) -> bool:
        """Whether only the last fragment may lack copies, which the repair copies once the ledger is closed."""
        return self.confirmed is None and self.growing in (RepairReason.UNFINISHED, RepairReason.MISSED)


@dataclass(frozen=True, slots=True, kw_only=True)
class BookieProblems:
    """Problems of the cluster's bookies.

    Args:
        lost: bookies that have been away for longer than ``lost_after_s``.
        draining: bookies to be emptied, whether alive or not.
        limbo: bookies that lost data.
        damaged: ledgers with a damaged copy at some bookie, each with the last damaged entry.
        alive: registered bookies.
    """

    lost: frozenset[str] = frozenset()
    draining: frozenset[str] = frozenset()
    limbo: Mapping[str, BookieLimbo] = field(default_factory=dict)
    damaged: Mapping[int, int] = field(default_factory=dict)
    alive: frozenset[str] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.leaving or self.limbo or self.damaged)

    @property
    def leaving(self) -> frozenset[str]:
        """Bookies to be replaced."""
        return self.lost | self.draining


class DataLoss(NamedTuple):
    """A bookie's own report of what it lost. For the same events, ``below`` may be higher in a later report."""

    directory: str
    """The uuid of its directory."""
    events: int
    """How often it lost data."""
    below: int
    """Ledgers with lower ids may lack entries there."""


class BookieLimbo(NamedTuple):
    """Ledgers in limbo at a bookie that lost data: those with an id below ``below`` that are not in ``restored``."""

    below: int
    restored: Collection[int]

    def covers(self, ledger_id: int) -> bool:
        """Whether the bookie may lack entries of the ledger."""
        return ledger_id < self.below and ledger_id not in self.restored


def replicas_of(metadata: LedgerMetadata) -> Iterator[FragmentReplica]:
    """Every replica of the ledger's confirmed fragments."""
    for fragment in immutable_fragments(metadata):
        last = metadata.fragment_end(fragment)
        for position, bookie_id in enumerate(fragment.bookies):
            yield FragmentReplica(fragment.first_entry_id, last, position, bookie_id)


def find_reason(metadata: LedgerMetadata, problems: BookieProblems) -> RepairReason | None:
    """Why the ledger's confirmed fragments need repair; of several reasons the one that needs the most thorough repair.

    A repair replaces lost and draining bookies for every reason. Reasons to restore copies come first, so that a
    bookie that is alive gets them back even if no replacement bookie is available for another one.
    """
    if metadata.copies_released:
        return None  # the ledger is archived, and bookies may drop their copies
    members = {name for fragment in immutable_fragments(metadata) for name in fragment.bookies}
    if metadata.ledger_id in problems.damaged:
        return RepairReason.DAMAGED
    if _any_holds_confirmed(metadata, bookies_in_limbo(metadata.ledger_id, problems.limbo)):
        return RepairReason.LIMBO
    if members & problems.lost:
        return RepairReason.LOST
    if any(_can_be_restored(metadata, entry.bookie_id, entry.first_entry_id, problems) for entry in metadata.missed):
        return RepairReason.MISSED
    return RepairReason.DRAINING if members & problems.draining else None


def find_need(metadata: LedgerMetadata, problems: BookieProblems) -> RepairNeed:
    """The repair that the ledger needs."""
    growing = _last_fragment_lacks_copies(metadata, problems)
    if metadata.state is LedgerState.IN_RECOVERY:
        growing = RepairReason.UNFINISHED
    if must_close(metadata, problems.draining):
        growing = RepairReason.DRAINING
    if not metadata.closed and must_close_for_limbo(metadata, bookies_in_limbo(metadata.ledger_id, problems.limbo)):
        growing = RepairReason.LIMBO
    if must_close(metadata, problems.lost):
        growing = RepairReason.LOST
    by_hand = bool(metadata.key_verifier) and growing in (RepairReason.LOST, RepairReason.UNFINISHED)
    return RepairNeed(find_reason(metadata, problems), growing, by_hand)


def bookies_in_limbo(ledger_id: int, limbo: Mapping[str, BookieLimbo]) -> frozenset[str]:
    """Bookies that may have lost entries of the ledger."""
    return frozenset(name for name, each in limbo.items() if each.covers(ledger_id))


def may_miss_entries(metadata: LedgerMetadata, limbo: Mapping[str, BookieLimbo]) -> bool:
    """Whether a bookie that may have lost its copies of the ledger is to hold some, now or once it is closed.

    Bookies report only ledgers of which they hold entries, so a bookie that is to hold none never reports the ledger
    as restored.
    """
    covering = bookies_in_limbo(metadata.ledger_id, limbo)
    return must_close(metadata, covering) or _any_holds_confirmed(metadata, covering)


def _any_holds_confirmed(metadata: LedgerMetadata, covering: Collection[str]) -> bool:
    """Whether one of these bookies is to hold entries of confirmed fragments."""
    return bool(covering) and any(
        replica.bookie_id in covering and not replica.is_empty(metadata.quorum) for replica in replicas_of(metadata)
    )


def must_close_for_limbo(metadata: LedgerMetadata, covering: Collection[str]) -> bool:
    """Whether the ledger has to be closed before bookies that may lack entries get them back and leave limbo.

    An unfinished recovery keeps the ledger in limbo at all of its bookies.
    """
    unfinished = metadata.state is LedgerState.IN_RECOVERY
    return must_close(metadata, covering) or (unfinished and _any_holds_confirmed(metadata, covering))


def bytes_to_copy(metadata: LedgerMetadata, leaving: Collection[str]) -> int | None:
    """About how many bytes have to be copied to replace the bookies in ``leaving``. All entries count as equally long.

    Includes the rows of batch tables, a large part if entries are short, but not batch headers: the number of batches
    is not known. ``None``: the ledger is open, so its length is not known.
    """
    if not metadata.closed:
        return None
    quorum, entries = metadata.quorum, metadata.last_entry_id + 1
    lacking = sum(
        max(0, replica.last - replica.first + 1) for replica in replicas_of(metadata) if replica.bookie_id in leaving
    )
    size = metadata.length + entries * BATCH_TABLE_ROW_BYTES
    return size * lacking * quorum.write_quorum // (quorum.ensemble * entries) if entries else 0


def must_close(metadata: LedgerMetadata, bookies: Collection[str]) -> bool:
    """Whether the last fragment of an open ledger names one of these bookies, so that it has to be closed first."""
    return not metadata.closed and any(name in bookies for name in metadata.last_fragment.bookies)


def _last_fragment_lacks_copies(metadata: LedgerMetadata, problems: BookieProblems) -> RepairReason | None:
    """Why the last fragment of an open ledger lacks good copies at a member that stays."""
    if metadata.closed or metadata.key_verifier:
        return None  # a ledger with a password is recovered by its users
    fragment = metadata.last_fragment
    if problems.damaged.get(metadata.ledger_id, -1) >= fragment.first_entry_id:
        return RepairReason.DAMAGED
    missed = any(
        entry.bookie_id in fragment.bookies
        and entry.bookie_id in problems.alive
        and (entry.last_entry_id is None or entry.last_entry_id >= fragment.first_entry_id)
        for entry in metadata.missed
    )
    return RepairReason.MISSED if missed else None


def _can_be_restored(metadata: LedgerMetadata, bookie_id: str, first: int, problems: BookieProblems) -> bool:
    """Whether an under-replicated range begins in a confirmed fragment, and its bookie is alive to take it."""
    return bookie_id in problems.alive and (metadata.closed or first < metadata.last_fragment.first_entry_id)
