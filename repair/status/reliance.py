"""Finds ledgers that rely on the copies of one bookie, because other bookies lack theirs or may lack them.

Checked before a bookie's copies are given up (``bookie init --replace``): a ledger with two acknowledged copies does
not survive the loss of both.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tallybook.client.ports import ClientWorld
from tallybook.core.errors import InvalidArgument
from tallybook.core.ids import MAX_ID
from tallybook.metadata.ledger.model import Fragment, LedgerMetadata

from ..bookie_survey import BookieDamage, BookieSurvey
from ..ledger_walk import MAX_NAMED, WalkFindings, all_ledgers
from ..needs import BookieLimbo, FragmentReplica, bookies_in_limbo
from ..replaced_bookies import replacements
from ..service import repair_status
from .drain import some_ids

_WAIT_FOR_REPAIR: Final = "wait until the repair has restored them; open ledgers must be closed first: 'ledger recover'"
_DRAIN_FIRST: Final = "put its old disk back, and move them to other bookies first: 'bookie drain'"
_START_OTHERS: Final = "so it is not known what they lack: start them, and try again"


@dataclass(slots=True)
class RelyingLedgers:
    """The ledgers that rely on a bookie for the same reason."""

    count: int = 0
    ledger_ids: list[int] = field(default_factory=list)
    """The first ``MAX_NAMED`` of them."""
    bookies: set[str] = field(default_factory=set)
    """The other bookies that lack copies, or may lack them."""

    def note(self, ledger_id: int, bookies: Collection[str]) -> None:
        """Add a ledger if ``bookies``, the others that lack copies of it, is not empty."""
        if bookies:
            self.count += 1
            self.bookies.update(bookies)
            if len(self.ledger_ids) < MAX_NAMED:
                self.ledger_ids.append(ledger_id)

    @property
    def which(self) -> str:
        """The ledgers, as text."""
        return f"{'ledger' if self.count == 1 else 'ledgers'} {some_ids(self.ledger_ids, self.count)}"


class Objection(NamedTuple):
    """Why a bookie must not be replaced now, and what to do about it."""

    what: str
    remedy: str


@dataclass(slots=True)
class Reliance:
    """The ledgers that rely on one bookie."""

    bookie_id: str
    replaced: frozenset[str] = frozenset()
    """Bookies that were replaced and have not got all their copies back, as far as is known."""
    lacking: RelyingLedgers = field(default_factory=RelyingLedgers)
    """Ledgers that lack good copies at other bookies."""
    only: RelyingLedgers = field(default_factory=RelyingLedgers)
    """Ledgers with entries of which neither another bookie nor the archive has a copy."""
    silent: RelyingLedgers = field(default_factory=RelyingLedgers)
    """Ledgers with other members that do not report what they lack, and are not known to lack anything."""
    unreadable: RelyingLedgers = field(default_factory=RelyingLedgers)
    """Ledgers whose metadata cannot be decoded."""
    complete: bool = False
    """Whether the metadata store listed all ledgers."""

    @property
    def objections(self) -> list[Objection]:
        """Why the bookie must not be replaced now; empty if it may be."""
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
            what = f"the metadata of {self.unreadable.which} cannot be decoded"
            found.append(Objection(what, "'tallybook fsck' says what to do about them"))
        if not self.complete:
            found.append(Objection("the metadata store did not list all ledgers", "try again"))
        return found

    def require_no_objections(self) -> None:
        """Refuse to replace the bookie while ledgers rely on it or may do so.

        Raises:
            InvalidArgument: there are objections.
        """
        objections = self.objections
        if objections:
            reasons = "; ".join(f"{objection.what} ({objection.remedy})" for objection in objections)
            raise InvalidArgument(
                f"{self.bookie_id} cannot be replaced now: {reasons}. --force gives up its copies anyway"
            )

    def _where(self, relying: RelyingLedgers) -> str:
        return ", ".join(
            f"{name} (replaced, and without all of its copies since)" if name in self.replaced else name
            for name in sorted(relying.bookies)
        )


async def find_reliance(world: ClientWorld, bookie_id: str) -> Reliance:
    """Walk over all ledgers and find those that rely on a bookie.

    Raises:
        MetadataUnavailable: the store does not answer.
        DamagedFile, NewerFormat: the auditor's status record cannot be decoded.
    """
    alive = await world.membership.bookies()
    survey = BookieSurvey(world.connections)
    await survey.poll(name for name in alive if name != bookie_id)
    limbo = dict(await survey.limbo())
    # A bookie that lost data counts as silent if it does not report which ledgers it has got back.
    answered = survey.statuses.keys() - (survey.losses.keys() - limbo.keys())
    replaced = await replacements(world.store)
    # The process of a replaced bookie may still answer for the old directory.
    answered -= {name for name in answered & replaced.keys() if replaced[name] not in ("", survey.directory(name))}
    damaged = await survey.bookie_damage()
    answered &= damaged.keys()
    lost = frozenset(await _from_auditor(world, "lost")) - alive.keys() - {bookie_id}
    for name in (*await _from_auditor(world, "lost_data"), *replaced):
        if name != bookie_id and name not in answered:
            limbo[name] = BookieLimbo(MAX_ID, ())
    found, findings = Reliance(bookie_id, frozenset(replaced)), WalkFindings()
    async for metadata in all_ledgers(world.store, findings):
        if metadata.copies_released:
            continue
        peers = _peers(metadata, bookie_id)
        without = bookies_in_limbo(metadata.ledger_id, limbo).union(lost)
        lacking = {
            name
            for name in peers
            if name in without
            or _missed_some(metadata, peers[name], name)
            or (name in damaged and _damaged_some(metadata, peers[name], damaged[name]))
        }
        found.lacking.note(metadata.ledger_id, lacking)
        found.only.note(metadata.ledger_id, {bookie_id} if _has_the_only_copies(metadata, bookie_id) else ())
        found.silent.note(metadata.ledger_id, peers.keys() - lacking - answered)
    found.complete = findings.complete
    found.unreadable = RelyingLedgers(findings.unreadable, findings.unreadable_ids)
    return found


def _peers(metadata: LedgerMetadata, bookie_id: str) -> Mapping[str, list[Fragment]]:
    """Other members that share write sets with the bookie and are to hold entries, each with these fragments."""
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
    """Whether a bookie missed entries of these fragments, according to the metadata."""
    return any(
        entry.bookie_id == name
        and entry.first_entry_id <= metadata.fragment_end(fragment)
        and (entry.last_entry_id is None or entry.last_entry_id >= fragment.first_entry_id)
        for entry in metadata.missed
        for fragment in fragments
    )


def _damaged_some(metadata: LedgerMetadata, fragments: Collection[Fragment], damage: BookieDamage) -> bool:
    """Whether a bookie knows, or may know, a damaged copy of an entry in these fragments."""
    return any(
        damage.may_touch(metadata.ledger_id, fragment.first_entry_id, metadata.fragment_end(fragment))
        for fragment in fragments
    )


def _has_the_only_copies(metadata: LedgerMetadata, bookie_id: str) -> bool:
    """Whether the bookie holds entries of which there is no other copy: write quorum 1 and not archived."""
    if metadata.quorum.write_quorum > 1 or metadata.archived is not None:
        return False
    return any(
        _holds_something(metadata, fragment, fragment.bookies.index(bookie_id), bookie_id)
        for fragment in metadata.fragments
        if bookie_id in fragment.bookies
    )


def _holds_something(metadata: LedgerMetadata, fragment: Fragment, position: int, name: str) -> bool:
    replica = FragmentReplica(fragment.first_entry_id, metadata.fragment_end(fragment), position, name)
    return not replica.is_empty(metadata.quorum)


def _share(metadata: LedgerMetadata, one: int, other: int) -> bool:
    return any(one in members and other in members for members in metadata.quorum.write_sets())


async def _from_auditor(world: ClientWorld, key: str) -> list[str]:
    """A list of bookies in the auditor's status."""
    status = await repair_status(world.store)
    found = None if status is None else status.get(key)
    return [str(name) for name in found] if isinstance(found, list) else []
