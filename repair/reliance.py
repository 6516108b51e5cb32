"""Ledgers that still rely on a bookie because another one lost its copies, or missed some, and has not got them back.

Asked before what a bookie holds is given up (``bookie init --replace``): two losses at once are what a ledger with two
acknowledged copies does not survive.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from tallybook.client.ports import ClientWorld
from tallybook.core.errors import InvalidArgument
from tallybook.core.ids import MAX_ID
from tallybook.metadata.model import Fragment, LedgerMetadata
from tallybook.metadata.replaced import replaced_bookies

from .bookie_survey import BookieSurvey
from .needs import LimboOf, Place, in_limbo_at
from .service import repair_status
from .walk import Findings, all_ledgers

MOST_NAMED: Final = 10
"""Ledgers that are named; the others are counted."""


@dataclass(slots=True)
class Reliance:
    """What relies on one bookie while the loss of others is being mended."""

    bookie_id: str
    replaced: frozenset[str] = frozenset()
    """Bookies that were replaced and have not started since."""
    count: int = 0
    """Ledgers that lack copies elsewhere and have some at this bookie."""
    ledger_ids: list[int] = field(default_factory=list)
    """The first of them."""
    lacking: set[str] = field(default_factory=set)
    """Bookies at which they lack copies."""
    untold: list[str] = field(default_factory=list)
    """Other members of its ledgers that do not answer, and are not known to have lost anything."""
    unreadable: int = 0
    complete: bool = False

    def check_none(self) -> None:
        """Refuse to give up what the bookie holds while ledgers rely on it.

        Raises:
            InvalidArgument: ledgers do.
        """
        if not self.count:
            return
        ids = ", ".join(map(str, self.ledger_ids))
        more = f" and {self.count - len(self.ledger_ids):,} more" if self.count > len(self.ledger_ids) else ""
        which = f"ledger {ids} lacks" if self.count == 1 else f"ledgers {ids}{more} lack"
        where = ", ".join(
            f"{name} (replaced, and not started since)" if name in self.replaced else name
            for name in sorted(self.lacking)
        )
        raise InvalidArgument(
            f"{self.bookie_id} cannot be replaced now: {which} copies at {where} and may have "
            "the last ones here. Wait until the repair has given them back, which open ledgers may get once they are "
            "closed ('ledger recover'), or give them up with --force"
        )


async def relying_on(world: ClientWorld, bookie_id: str) -> Reliance:
    """Look over all ledgers that name a bookie.

    Raises:
        MetadataUnavailable: the store does not answer.
        DamagedFile, NewerFormat: what the auditor wrote down cannot be read.
    """
    alive = await world.membership.bookies()
    survey = BookieSurvey(world.connections)
    await survey.look(name for name in alive if name != bookie_id)
    limbo = dict(await survey.limbo())
    lost = frozenset(await _told_by_the_auditor(world, "lost")) - alive.keys() - {bookie_id}
    replaced = await replaced_bookies(world.store)
    for name in (*await _told_by_the_auditor(world, "lost_data"), *replaced):
        if name != bookie_id and name not in survey.statuses:
            limbo[name] = LimboOf(MAX_ID, ())
    found, findings = Reliance(bookie_id, frozenset(replaced)), Findings()
    silent: set[str] = set()
    async for metadata in all_ledgers(world.store, findings):
        if metadata.copies_released:
            continue
        lacking = _lacking_beside(metadata, bookie_id, limbo, lost)
        silent |= _beside(metadata, bookie_id) - survey.statuses.keys() - limbo.keys() - lost
        if lacking:
            found.count += 1
            found.lacking |= lacking
            if len(found.ledger_ids) < MOST_NAMED:
                found.ledger_ids.append(metadata.ledger_id)
    found.untold = sorted(silent)
    found.complete, found.unreadable = findings.complete, findings.unreadable
    return found


def _beside(metadata: LedgerMetadata, bookie_id: str) -> set[str]:
    """The other members of the fragments that name a bookie."""
    return {name for fragment in metadata.fragments if bookie_id in fragment.bookies for name in fragment.bookies} - {
        bookie_id
    }


def _lacking_beside(
    metadata: LedgerMetadata, bookie_id: str, limbo: Mapping[str, LimboOf], lost: Collection[str]
) -> set[str]:
    """Members that share a write set with a bookie and lack something of what they are to hold of it."""
    without = in_limbo_at(metadata.ledger_id, limbo).union(lost)
    missed = {entry.bookie_id for entry in metadata.missed}
    if without.union(missed).isdisjoint(_beside(metadata, bookie_id)):
        return set()
    return {
        name
        for fragment in metadata.fragments
        if bookie_id in fragment.bookies
        for position, name in enumerate(fragment.bookies)
        if name != bookie_id and (name in without or _missed_some(metadata, fragment, name))
        if _holds_something(metadata, fragment, position, name)
        if _share(metadata, fragment.bookies.index(bookie_id), position)
    }


def _missed_some(metadata: LedgerMetadata, fragment: Fragment, name: str) -> bool:
    """Whether the metadata say that a bookie was not there for entries of a fragment."""
    return any(
        entry.bookie_id == name
        and entry.first_entry_id <= metadata.fragment_end(fragment)
        and (entry.last_entry_id is None or entry.last_entry_id >= fragment.first_entry_id)
        for entry in metadata.missed
    )


def _holds_something(metadata: LedgerMetadata, fragment: Fragment, position: int, name: str) -> bool:
    place = Place(fragment.first_entry_id, metadata.fragment_end(fragment), position, name)
    return not place.is_empty(metadata.quorum)


def _share(metadata: LedgerMetadata, one: int, other: int) -> bool:
    return any(one in members and other in members for members in metadata.quorum.write_sets())


async def _told_by_the_auditor(world: ClientWorld, what: str) -> list[str]:
    status = await repair_status(world.store)
    told = None if status is None else status.get(what)
    return [str(name) for name in told] if isinstance(told, list) else []
