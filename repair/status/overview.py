"""A cluster at one glance: its bookies, its ledgers by state, what the auditor found last, and what is wrong.

Bookies are asked now; ledgers are counted from their metadata; which of them have too few copies is the auditor's word,
with its age. Nothing is changed.

There are two looks, since they take different times: a survey asks each bookie and reads a few records, a census reads
the metadata of every ledger.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tallybook.archive.location import read_location
from tallybook.client.ports import ClientWorld
from tallybook.core.answers import BookieStatus
from tallybook.core.counted import counted
from tallybook.core.ranges import ranges_of
from tallybook.metadata.behind import REMEDY, Behind, unapproved
from tallybook.metadata.bookie_modes import WantedMode, wanted_modes
from tallybook.metadata.model import LedgerMetadata
from tallybook.metadata.store import BookieInfo, BookieMode, Record

from .bookie_survey import BookieSurvey
from .drain import Naming, some_ids
from .needs import Why
from .open_lacking import OpenLackings
from .pause import paused_since
from .service import AUDITOR_RECORD, STALE_SECONDS, age_of, repair_status
from .tasks import PREFIX
from .walk import MAX_NAMED, Findings, all_ledgers


@dataclass(slots=True)
class BookieView:
    """One bookie."""

    bookie_id: str
    info: BookieInfo | None
    """As registered; ``None`` if it is not there."""
    status: BookieStatus | None
    """What it says; ``None`` if it does not answer."""
    wanted: WantedMode
    ledgers: int | None = None
    """Ledgers that name it and rely on it; ``None`` while they are not counted."""
    limbo_ledgers: int | None = None
    """Of those, the ones of which it may have lost something and has not got it back."""
    first_ids: tuple[int, ...] = ()
    """The ids of the first of those that name it, while it is drained."""

    @property
    def draining(self) -> str:
        """What a drain still waits for, in a sentence; empty: nothing is known, or none is ordered."""
        if self.wanted is not WantedMode.DRAINING or not self.ledgers:
            return ""
        return f"{self.bookie_id} is drained; {_many(self.ledgers)} it: {some_ids(self.first_ids, self.ledgers)}"

    @property
    def mode(self) -> str:
        """Whether it is there, and what it takes."""
        if self.info is None:
            return "away"
        if self.status is None:
            return "no answer"
        if self.wanted is WantedMode.DRAINING:
            return "draining"
        return "read-only" if self.status.read_only else "writable"

    @property
    def problems(self) -> list[str]:
        """What is wrong with it."""
        found = []
        if self.info is None:
            named = "" if self.ledgers is None else f", and {_many(self.ledgers)} it"
            found.append(f"{self.bookie_id} is away{named}")
        elif self.status is None:
            found.append(f"{self.bookie_id} does not answer")
        else:
            if self.status.read_only and self.wanted is WantedMode.NORMAL:
                used = f"{self.status.disk_used_fraction:.0%}"
                found.append(f"{self.bookie_id} takes no writes by itself: its disk is {used} full, or failing")
            if self.status.damaged_batches:
                found.append(
                    f"{self.bookie_id} knows {counted(self.status.damaged_batches, 'damaged copy', 'damaged copies')}"
                )
            if self.limbo_ledgers:
                found.append(f"{self.bookie_id} may have lost something of {counted(self.limbo_ledgers, 'ledger')}")
        return found


def _many(ledgers: int) -> str:
    return counted(ledgers, "ledger names", "ledgers name")


DEFAULT_ENSEMBLE: Final = 3
"""The ensemble of a ledger whose creator names none."""


@dataclass(slots=True)
class Ledgers:
    """How many there are, as their metadata say."""

    complete: bool = False
    total: int = 0
    states: Counter[str] = field(default_factory=Counter)
    unreadable: int = 0
    archived: int = 0
    released: int = 0
    """In the archive alone: bookies may drop their copies."""
    waiting_bytes: int = 0
    """Of closed ledgers that are not in the archive."""
    open_ensemble: int = 0
    """The largest ensemble of those that are open."""
    newest_id: int = -1
    newest_ensemble: int = 0
    open_lacking: OpenLackings = field(default_factory=OpenLackings)
    """Open ones that may lack copies at bookies that lost data."""

    def count(self, metadata: LedgerMetadata) -> None:
        """One more."""
        self.total += 1
        self.states[metadata.state.value] += 1
        self.archived += metadata.archived is not None
        self.released += metadata.copies_released
        if not metadata.closed:
            self.open_ensemble = max(self.open_ensemble, metadata.quorum.ensemble)
        if metadata.ledger_id > self.newest_id:
            self.newest_id, self.newest_ensemble = metadata.ledger_id, metadata.quorum.ensemble
        self.waiting_bytes += metadata.length if metadata.closed and metadata.archived is None else 0


@dataclass(frozen=True, slots=True)
class Overview:
    """All of it."""

    bookies: tuple[BookieView, ...]
    ledgers: Ledgers | None
    """``None`` while they are not counted."""
    audit: Mapping[str, object] | None
    """What the auditor wrote down last."""
    audit_age_s: int | None
    walk_age_s: int | None
    """Since it has gone over all ledgers."""
    tasks: int
    paused_since_ms: int | None
    archive: str | None
    """Where the archive is, if there is one."""
    behind: Behind | None = None
    """That the metadata were restored from an older copy, and nobody has approved it."""

    @property
    def under_replicated(self) -> int | None:
        """Ledgers with too few good copies, by the auditor's last word."""
        return self._audited("under_replicated")

    @property
    def moving(self) -> int | None:
        """Ledgers of which nothing is missing, and that are to leave a bookie that is to be emptied, by the same."""
        return self._audited("moving")

    @property
    def why_too_few(self) -> Mapping[str, object]:
        """Of those with too few good copies, how many for which reason."""
        needing = None if self.audit is None else self.audit.get("needing")
        found: dict[str, object] = dict(needing) if isinstance(needing, dict) else {}
        found.pop(Why.DRAINING.value, None)
        return found

    def _audited(self, name: str) -> int | None:
        found = None if self.audit is None else self.audit.get(name)
        return found if isinstance(found, int) else None

    @property
    def problems(self) -> list[str]:
        """What is wrong, in sentences. Nothing: the cluster is healthy."""
        found = [problem for bookie in self.bookies for problem in bookie.problems]
        if self.behind is not None:
            found.insert(0, f"{self.behind.told}; bookies drop nothing: {REMEDY}")
        if not any(bookie.info for bookie in self.bookies):
            found.append("no bookie is there")
        found += self._too_few_writable()
        if self.ledgers is not None and not self.ledgers.complete:
            found.append("the listing of ledgers was cut off: not all of them were looked at")
        if self.ledgers is not None and self.ledgers.unreadable:
            found.append(f"the metadata of {counted(self.ledgers.unreadable, 'ledger')} cannot be understood")
        if self.ledgers is not None:
            found += self.ledgers.open_lacking.problems
        found += self._to_recover_by_hand()
        found += self._too_large()
        if self.audit_age_s is None:
            found.append("no auditor has ever looked: 'tallybook repair run' is not running")
        elif self.audit_age_s >= STALE_SECONDS:
            found.append(f"no auditor has looked for {self.audit_age_s:,} s: is 'tallybook repair run' running?")
        if self.under_replicated:
            found.append(f"{counted(self.under_replicated, 'ledger has', 'ledgers have')} too few good copies")
        return found

    @property
    def healthy(self) -> bool | None:
        """Whether nothing is wrong; ``None``: nothing that is known, and the ledgers are not counted."""
        if self.problems:
            return False
        return None if self.ledgers is None else True

    def _to_recover_by_hand(self) -> list[str]:
        """Ledgers with a password that have to be recovered, by the auditor's last word."""
        named, count = self.audit and self.audit.get("by_hand"), self._audited("by_hand_count")
        if not count or not isinstance(named, list):
            return []
        which = "ledger" if count == 1 else "ledgers"
        what = f"{which} {some_ids(named, count)} cannot be recovered by the repair, for want of the password"
        return [f"{what}: use 'ledger recover LEDGER --password-file FILE'"]

    def _too_large(self) -> list[str]:
        """Ledgers with batches that no bookie takes which could hold them, as the auditor's process met them last."""
        named = self.audit and self.audit.get("too_large")
        if not isinstance(named, dict) or not (self.under_replicated or self.moving):
            return []
        return [f"ledger {ledger_id} cannot be copied: {why}" for ledger_id, why in named.items()]

    def _too_few_writable(self) -> list[str]:
        """The problem that ledgers like the existing ones cannot be created; unknown while they are not counted."""
        if self.ledgers is None or not any(bookie.info for bookie in self.bookies):
            return []
        # What was closed long ago says nothing of what clients create now, but for the newest.
        ensemble = max(self.ledgers.open_ensemble, self.ledgers.newest_ensemble) or DEFAULT_ENSEMBLE
        writable = sum(bookie.mode == "writable" for bookie in self.bookies)
        if writable >= ensemble:
            return []
        few = counted(writable, "bookie takes", "bookies take")
        if writable + sum(bookie.mode == "no answer" for bookie in self.bookies) >= ensemble:
            unknown = f"whether a ledger with an ensemble of {ensemble} can be created is not known"
            return [f"only {few} writes for certain, so that {unknown} until the others answer"]
        what = f"only {few} writes, and a ledger with an ensemble of {ensemble} cannot be created"
        return [f"{what}: add bookies, or end what was ordered ('bookie drain --cancel', 'bookie readonly --off')"]


class Survey(NamedTuple):
    """What the bookies say, and a few records."""

    alive: Mapping[str, BookieInfo]
    statuses: Mapping[str, BookieStatus]
    modes: Mapping[str, WantedMode]
    audit: Mapping[str, object] | None
    audit_age_s: int | None
    walk_age_s: int | None
    tasks: int
    paused_since_ms: int | None
    archive: str | None
    auditor: Record | None
    """The record of who audits."""
    behind: Behind | None = None
    """See ``Overview``."""


@dataclass(slots=True)
class Census:
    """What the metadata of all ledgers say, from the moment on at which it was begun."""

    known: Mapping[str, bool]
    """Bookies that were there then, and whether they could be chosen for new ledgers."""
    ledgers: Ledgers = field(default_factory=Ledgers)
    named: Counter[str] = field(default_factory=Counter)
    growing: Counter[str] = field(default_factory=Counter)
    in_limbo: Counter[str] = field(default_factory=Counter)
    first_ids: dict[str, list[int]] = field(default_factory=dict)
    """For each bookie, the first of the ledgers that name it."""

    def naming(self, bookie_id: str) -> Naming:
        """Which ledgers name a bookie."""
        whole = self.ledgers.complete and not self.ledgers.unreadable
        chosen = self.known.get(bookie_id, False)
        named, growing = self.named[bookie_id], self.growing[bookie_id]
        return Naming(bookie_id, named, growing, whole, chosen, self.first(bookie_id))

    def first(self, bookie_id: str) -> tuple[int, ...]:
        """The ids of the first ledgers that name a bookie."""
        return tuple(self.first_ids.get(bookie_id, ()))

    def note_names(self, metadata: LedgerMetadata) -> None:
        """Count the bookies that one more ledger names."""
        for name in {name for fragment in metadata.fragments for name in fragment.bookies}:
            self.named[name] += 1
            if self.named[name] <= MAX_NAMED:
                self.first_ids.setdefault(name, []).append(metadata.ledger_id)


async def overview(world: ClientWorld) -> Overview:
    """Look at a cluster.

    Raises:
        MetadataUnavailable: the metadata store does not answer.
        DamagedFile, NewerFormat: a record that it needs holds something else.
    """
    bookies = BookieSurvey(world.connections)
    surveyed = await survey(world, bookies)
    return seen(surveyed, await census(world, bookies))


def seen(found: Survey, counted: Census | None) -> Overview:
    """What both looks have found."""
    named = counted.named if counted is not None else {}
    limbo = counted.in_limbo if counted is not None else {}
    bookies = tuple(
        BookieView(
            name,
            found.alive.get(name),
            found.statuses.get(name),
            found.modes.get(name, WantedMode.NORMAL),
            None if counted is None else named.get(name, 0),
            None if counted is None else limbo.get(name, 0),
            () if counted is None else counted.first(name),
        )
        for name in sorted({*found.alive, *named})
    )
    return Overview(
        bookies,
        None if counted is None else counted.ledgers,
        found.audit,
        found.audit_age_s,
        found.walk_age_s,
        found.tasks,
        found.paused_since_ms,
        found.archive,
        found.behind,
    )


async def survey(world: ClientWorld, bookies: BookieSurvey) -> Survey:
    """Ask every bookie that is there, and read what the auditor and operators wrote down.

    Raises:
        As ``overview``.
    """
    store = world.store
    alive = await world.membership.bookies()
    await bookies.look(alive)
    audit = await repair_status(store)
    return Survey(
        alive,
        dict(bookies.statuses),
        await wanted_modes(store),
        audit,
        age_of(audit, world.clock),
        age_of(audit, world.clock, "walked_at_ms"),
        await _tasks(world),
        await paused_since(store),
        await read_location(store),
        await store.read_record(AUDITOR_RECORD),
        await unapproved(store),
    )


async def census(world: ClientWorld, bookies: BookieSurvey) -> Census:
    """Go over the metadata of every ledger.

    Args:
        bookies: has looked at those that are there.

    Raises:
        As ``overview``.
    """
    # Before the look: whoever chooses among the bookies from now on finds those read-only that are so.
    alive = await world.membership.bookies()
    found = Census({name: info.mode is BookieMode.WRITABLE for name, info in alive.items()})
    limbo, findings = await bookies.limbo(), Findings()
    async for metadata in all_ledgers(world.store, findings):
        found.ledgers.count(metadata)
        if metadata.copies_released:
            continue
        found.note_names(metadata)
        found.growing.update(() if metadata.closed else set(metadata.last_fragment.bookies))
        found.ledgers.open_lacking.note(metadata, limbo)
        in_limbo = (name for name in limbo if limbo[name].covers(metadata.ledger_id) and _holds(metadata, name))
        found.in_limbo.update(in_limbo)
    found.ledgers.complete, found.ledgers.unreadable = findings.complete, findings.unreadable
    return found


def _holds(metadata: LedgerMetadata, bookie_id: str) -> bool:
    """Whether the bookie is to hold some entry of a ledger."""
    for fragment in metadata.fragments:
        if bookie_id in fragment.bookies:
            position, last = fragment.bookies.index(bookie_id), metadata.fragment_end(fragment)
            if next(ranges_of(metadata.quorum, position, fragment.first_entry_id, last), None) is not None:
                return True
    return False


async def _tasks(world: ClientWorld) -> int:
    count = 0
    after: str | None = ""
    while after is not None:
        page = await world.store.list_records(PREFIX, after)
        count += len(page.names)
        after = page.next_after()
    return count
