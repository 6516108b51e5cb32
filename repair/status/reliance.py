"""Ledgers that still rely on a bookie, since another one lacks good copies of them or may lack some, or none has any.

Checked before what a bookie holds is given up (``bookie init --replace``): two losses at once are what a ledger with
two acknowledged copies does not survive.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tallybook.client.ports import ClientWorld
from tallybook.core.errors import InvalidArgument
from tallybook.core.ids import MAX_ID
from tallybook.metadata.model import Fragment, LedgerMetadata

from .bookie_survey import BookieSurvey, DamageAt
from .drain import some_ids
from .needs import LimboOf, Place, in_limbo_at
from .replacements import replacements
from .service import repair_status
from .walk import MAX_NAMED, Findings, all_ledgers

_WAIT_FOR_REPAIR: Final = (
    "wait until the repair has given them back, which open ledgers may get once they are closed: 'ledger recover'"
)
_DRAIN_FIRST: Final = "put its old disk back, and let others get them first: 'bookie drain'"
_START_OTHERS: Final = "so it is not known what they lack: start them, and try again"


@dataclass(slots=True)
class Relying:
    """Ledgers that rely on a bookie for the same reason."""

    count: int = 0
    ledger_ids: list[int] = field(default_factory=list)
    """The first ``MAX_NAMED`` of them."""
    bookies: set[str] = field(default_factory=set)
    """The other bookies that they rely on it for."""

    def note(self, ledger_id: int, bookies: Collection[str]) -> None:
        """Count a ledger, if it relies on the bookie because of these others."""
        if bookies:
            self.count += 1
            self.bookies.update(bookies)
            if len(self.ledger_ids) < MAX_NAMED:
                self.ledger_ids.append(ledger_id)

    @property
    def which(self) -> str:
        """The ledgers, in words."""
        return f"{'ledger' if self.count == 1 else 'ledgers'} {some_ids(self.ledger_ids, self.count)}"


class Objection(NamedTuple):
    """Why a bookie must not be given up, in words."""

    what: str
    remedy: str


@dataclass(slots=True)
class Reliance:
    """What relies on one bookie."""

    bookie_id: str
    replaced: frozenset[str] = frozenset()
    """Bookies that were replaced and have not got everything back, as far as is known."""
    lacking: Relying = field(default_factory=Relying)
    """Ledgers that lack good copies at others."""
    only: Relying = field(default_factory=Relying)
    """Ledgers with entries of which no other bookie is to have a copy, nor the archive."""
    silent: Relying = field(default_factory=Relying)
    """Ledgers with other members that do not say what they lack, and are not known to lack anything."""
    unreadable: Relying = field(default_factory=Relying)
    """Ledgers whose metadata cannot be understood."""
    complete: bool = False
    """Whether the metadata store told of all ledgers."""

    @property
    def objections(self) -> list[Objection]:
        """What keeps the bookie from being given up."""
        found: list[Objection] = []
        if self.lacking.count:
            lack = "lacks" if self.lacking.count == 1 else "lack"
            where = self._where(self.lacking)
            what = f"{self.lacking.which} {lack} copies at {where} and may have the last ones here"
            found.append(Objection(what, _WAIT_FOR_REPAIR))
        if self.only.count:
            have = "has" if self.only.count == 1 else "have"
            found.append(Objection(f"{self.only.which} {have} entries with no copies but those here", _DRAIN_FIRST))
        if self.silent.count:
            have = "has" if self.silent.count == 1 else "have"
            answer = "does" if len(self.silent.bookies) == 1 else "do"
            where = self._where(self.silent)
            what = f"{self.silent.which} {have} copies here and at {where}, which {answer} not answer"
            found.append(Objection(what, _START_OTHERS))
        if self.unreadable.count:
            what = f"the metadata of {self.unreadable.which} cannot be understood"
            found.append(Objection(what, "'tallybook fsck' tells what to do about them"))
        if not self.complete:
            found.append(Objection("the metadata store did not tell of all ledgers", "try again"))
        return found

    def check_none(self) -> None:
        """Refuse to give up what the bookie holds while ledgers rely on it, or may do so.

        Raises:
            InvalidArgument: they do.
        """
        objections = self.objections
        if objections:
            told = "; ".join(f"{objection.what} ({objection.remedy})" for objection in objections)
            raise InvalidArgument(
                f"{self.bookie_id} cannot be replaced now: {told}. --force gives up what it held all the same"
            )

    def _where(self, relying: Relying) -> str:
        return ", ".join(
            f"{name} (replaced, and without all of its copies since)" if name in self.replaced else name
            for name in sorted(relying.bookies)
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
    # One that lost data and does not say which ledgers it has got back says nothing.
    told = survey.statuses.keys() - (survey.losses.keys() - limbo.keys())
    replaced = await replacements(world.store)
    # The process of before may still answer, for a directory that is given up.
    told -= {name for name in told & replaced.keys() if replaced[name] not in ("", survey.directory(name))}
    damaged = await survey.damaged_at()
    told &= damaged.keys()
    lost = frozenset(await _told_by_the_auditor(world, "lost")) - alive.keys() - {bookie_id}
    for name in (*await _told_by_the_auditor(world, "lost_data"), *replaced):
        if name != bookie_id and name not in told:
            limbo[name] = LimboOf(MAX_ID, ())
    found, findings = Reliance(bookie_id, frozenset(replaced)), Findings()
    async for metadata in all_ledgers(world.store, findings):
        if metadata.copies_released:
            continue
        peers = _peers(metadata, bookie_id)
        without = in_limbo_at(metadata.ledger_id, limbo).union(lost)
        lacking = {
            name
            for name in peers
            if name in without
            or _missed_some(metadata, peers[name], name)
            or (name in damaged and _damaged_some(metadata, peers[name], damaged[name]))
        }
        found.lacking.note(metadata.ledger_id, lacking)
        found.only.note(metadata.ledger_id, {bookie_id} if _has_the_only_copies(metadata, bookie_id) else ())
        found.silent.note(metadata.ledger_id, peers.keys() - lacking - told)
    found.complete = findings.complete
    found.unreadable = Relying(findings.unreadable, findings.unreadable_ids)
    return found


def _peers(metadata: LedgerMetadata, bookie_id: str) -> Mapping[str, list[Fragment]]:
    """Other members that are to hold entries and share write sets with a bookie, each with the fragments where."""
    found: dict[str, list[Fragment]] = {}
    for fragment in metadata.fragments:
        if bookie_id in fragment.bookies:
            ours = fragment.bookies.index(bookie_id)
            for position, name in enumerate(fragment.bookies):
                if (
                    name != bookie_id
                    and _holds_something(metadata, fragment, position, name)
                    and _share(metadata, ours, position)
                ):
                    found.setdefault(name, []).append(fragment)
    return found


def _missed_some(metadata: LedgerMetadata, fragments: Collection[Fragment], name: str) -> bool:
    """Whether the metadata say that a bookie was not there for entries of these fragments."""
    return any(
        entry.bookie_id == name
        and entry.first_entry_id <= metadata.fragment_end(fragment)
        and (entry.last_entry_id is None or entry.last_entry_id >= fragment.first_entry_id)
        for entry in metadata.missed
        for fragment in fragments
    )


def _damaged_some(metadata: LedgerMetadata, fragments: Collection[Fragment], damage: DamageAt) -> bool:
    """Whether a bookie may know a damaged copy of entries of these fragments."""
    return any(
        damage.may_touch(metadata.ledger_id, fragment.first_entry_id, metadata.fragment_end(fragment))
        for fragment in fragments
    )


def _has_the_only_copies(metadata: LedgerMetadata, bookie_id: str) -> bool:
    """Whether a bookie is to hold entries that nobody else has, since no other one shares its write sets."""
    if metadata.quorum.write_quorum > 1 or metadata.archived is not None:
        return False
    return any(
        _holds_something(metadata, fragment, fragment.bookies.index(bookie_id), bookie_id)
        for fragment in metadata.fragments
        if bookie_id in fragment.bookies
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
