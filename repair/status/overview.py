"""The cluster overview: bookies, ledgers by state, the auditor's last findings, and problems. Changes nothing.

It has two sources with different costs: the survey asks each bookie and reads a few records; the census reads the
metadata of every ledger. The number of under-replicated ledgers comes from the auditor's status, with its age.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, NamedTuple

from tallybook.archive.url_record import read_location
from tallybook.client.ports import ClientWorld
from tallybook.core.answers import BookieStatus
from tallybook.core.quantities import counted
from tallybook.core.ranges import assigned_ranges
from tallybook.metadata.ledger.model import LedgerMetadata
from tallybook.metadata.records.bookie_modes import RequestedMode, requested_modes
from tallybook.metadata.records.restored_store import REMEDY, RestoreRecord, unapproved_restore
from tallybook.metadata.store import BookieInfo, BookieMode, MetadataRecord

from ..bookie_survey import BookieSurvey
from ..ledger_walk import MAX_NAMED, WalkFindings, all_ledgers
from ..needs import RepairReason
from ..open_ledgers import OpenLedgersAtRisk
from ..pause import paused_since
from ..service import AUDITOR_RECORD, STALE_SECONDS, age_of, repair_status
from ..tasks import PREFIX
from .drain import BookieReferences, some_ids


@dataclass(slots=True)
class BookieView:
    """One bookie."""

    bookie_id: str
    info: BookieInfo | None
    """As registered; ``None`` if it is not there."""
    status: BookieStatus | None
    """Its own status; ``None`` if it does not answer."""
    wanted: RequestedMode
    ledgers: int | None = None
    """Ledgers that name it and rely on it; ``None`` while they are not counted."""
    limbo_ledgers: int | None = None
    """Of these, the ones that are in limbo there."""
    first_ids: tuple[int, ...] = ()
    """The ids of the first ledgers that name it."""
    refusal: str = ""
    """If it does not answer because it and this client refuse each other: why."""

    @property
    def draining(self) -> str:
        """The ledgers that a drain still waits for, as a sentence; empty: none is known, or no drain is ordered."""
        if self.wanted is not RequestedMode.DRAINING or not self.ledgers:
            return ""
        return f"{self.bookie_id} is drained; {_many(self.ledgers)} it: {some_ids(self.first_ids, self.ledgers)}"

    @property
    def mode(self) -> str:
        """Its state: "away", "no answer", "draining", "read-only" or "writable"."""
        if self.info is None:
            return "away"
        if self.status is None:
            return "no answer"
        if self.wanted is RequestedMode.DRAINING:
            return "draining"
        return "read-only" if self.status.read_only else "writable"

    @property
    def problems(self) -> list[str]:
        """Problems of the bookie, as sentences."""
        found = []
        if self.info is None:
            named = "" if self.ledgers is None else f", and {_many(self.ledgers)} it"
            found.append(f"{self.bookie_id} is away{named}")
        elif self.status is None:
            refused = f"this client cannot use {self.bookie_id}: {self.refusal}"
            found.append(refused if self.refusal else f"{self.bookie_id} does not answer")
        else:
            if self.status.read_only and self.wanted is RequestedMode.NORMAL:
                used = f"{self.status.disk_used_fraction:.0%}"
                found.append(f"{self.bookie_id} accepts no writes: its disk is {used} full, or failing")
            if self.status.damaged_batches:
                found.append(
                    f"{self.bookie_id} knows {counted(self.status.damaged_batches, 'damaged copy', 'damaged copies')}"
                )
            if self.limbo_ledgers:
                found.append(f"{self.bookie_id} may have lost entries of {counted(self.limbo_ledgers, 'ledger')}")
        return found


def _many(ledgers: int) -> str:
    return counted(ledgers, "ledger names", "ledgers name")


DEFAULT_ENSEMBLE: Final = 3
"""The ensemble size of a ledger that is created without one."""


@dataclass(slots=True)
class LedgerCounts:
    """Numbers of ledgers, from their metadata."""

    complete: bool = False
    total: int = 0
    states: Counter[str] = field(default_factory=Counter)
    unreadable: int = 0
    archived: int = 0
    released: int = 0
    """Only in the archive: bookies may drop their copies."""
    waiting_bytes: int = 0
    """Bytes of closed ledgers that are not in the archive."""
    open_ensemble: int = 0
    """The largest ensemble size of the open ledgers."""
    newest_id: int = -1
    newest_ensemble: int = 0
    open_lacking: OpenLedgersAtRisk = field(default_factory=OpenLedgersAtRisk)
    """Open ledgers that may lack copies at bookies that lost data."""

    def count(self, metadata: LedgerMetadata) -> None:
        """Add a ledger."""
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
    """The overview of a cluster."""

    bookies: tuple[BookieView, ...]
    ledgers: LedgerCounts | None
    """``None`` while they are not counted."""
    audit: Mapping[str, object] | None
    """The auditor's last status."""
    audit_age_s: int | None
    walk_age_s: int | None
    """Seconds since the auditor's last walk over all ledgers."""
    tasks: int
    paused_since_ms: int | None
    archive: str | None
    """The archive's URL, if there is one."""
    behind: RestoreRecord | None = None
    """Set if the metadata store was restored from an older copy, and no operator has approved that."""

    @property
    def under_replicated(self) -> int | None:
        """Under-replicated ledgers, from the auditor's last status."""
        return self._audited("under_replicated")

    @property
    def moving(self) -> int | None:
        """Ledgers that lack no copy and still name a draining bookie, from the auditor's last status."""
        return self._audited("moving")

    @property
    def why_too_few(self) -> Mapping[str, object]:
        """The number of under-replicated ledgers by reason."""
        needing = None if self.audit is None else self.audit.get("needing")
        found: dict[str, object] = dict(needing) if isinstance(needing, dict) else {}
        found.pop(RepairReason.DRAINING.value, None)
        return found

    def _audited(self, name: str) -> int | None:
        found = None if self.audit is None else self.audit.get(name)
        return found if isinstance(found, int) else None

    @property
    def problems(self) -> list[str]:
        """Problems of the cluster, as sentences. Empty: it is healthy."""
        found = [problem for bookie in self.bookies for problem in bookie.problems]
        if self.behind is not None:
            found.insert(0, f"{self.behind.description}; bookies drop nothing: {REMEDY}")
        if not any(bookie.info for bookie in self.bookies):
            found.append("no bookie is registered")
        found += self._too_few_writable()
        if self.ledgers is not None and not self.ledgers.complete:
            found.append("the listing of ledgers was incomplete: not all of them were counted")
        if self.ledgers is not None and self.ledgers.unreadable:
            found.append(f"the metadata of {counted(self.ledgers.unreadable, 'ledger')} cannot be decoded")
        if self.ledgers is not None:
            found += self.ledgers.open_lacking.problems
        found += self._to_recover_by_hand()
        found += self._too_large()
        if self.audit_age_s is None:
            found.append("no auditor has run yet: 'tallybook repair run' is not running")
        elif self.audit_age_s >= STALE_SECONDS:
            found.append(f"no auditor has run for {self.audit_age_s:,} s: is 'tallybook repair run' running?")
        if self.under_replicated:
            found.append(f"{counted(self.under_replicated, 'ledger has', 'ledgers have')} too few good copies")
        return found

    @property
    def healthy(self) -> bool | None:
        """Whether nothing is wrong; ``None``: no problem is known, but the ledgers are not counted."""
        if self.problems:
            return False
        return None if self.ledgers is None else True

    def _to_recover_by_hand(self) -> list[str]:
        """Ledgers with a password that have to be recovered, from the auditor's last status."""
        named, count = self.audit and self.audit.get("by_hand"), self._audited("by_hand_count")
        if not count or not isinstance(named, list):
            return []
        which = "ledger" if count == 1 else "ledgers"
        what = f"{which} {some_ids(named, count)} cannot be recovered by the repair without the password"
        return [f"{what}: use 'ledger recover LEDGER --password-file FILE'"]

    def _too_large(self) -> list[str]:
        """Ledgers with a batch that is too large for every candidate bookie, from the auditor's last status."""
        named = self.audit and self.audit.get("too_large")
        if not isinstance(named, dict) or not (self.under_replicated or self.moving):
            return []
        return [f"ledger {ledger_id} cannot be copied: {why}" for ledger_id, why in named.items()]

    def _too_few_writable(self) -> list[str]:
        """The problem that too few bookies take writes for a ledger with the ensemble size that clients use."""
        if self.ledgers is None or not any(bookie.info for bookie in self.bookies):
            return []
        # The ensemble sizes of open ledgers and of the newest one tell what clients create now.
        ensemble = max(self.ledgers.open_ensemble, self.ledgers.newest_ensemble) or DEFAULT_ENSEMBLE
        writable = sum(bookie.mode == "writable" for bookie in self.bookies)
        if writable >= ensemble:
            return []
        few = counted(writable, "bookie takes", "bookies take")
        if writable + sum(bookie.mode == "no answer" for bookie in self.bookies) >= ensemble:
            unknown = f"it is not known whether a ledger with an ensemble of {ensemble} can be created"
            return [f"only {few} writes for certain, so {unknown} until the others answer"]
        what = f"only {few} writes, and a ledger with an ensemble of {ensemble} cannot be created"
        return [
            f"{what}: add bookies, or end a drain or read-only mode ('bookie drain --cancel', 'bookie readonly --off')"
        ]


class ClusterSurvey(NamedTuple):
    """The status of the bookies, and the contents of a few records."""

    alive: Mapping[str, BookieInfo]
    statuses: Mapping[str, BookieStatus]
    modes: Mapping[str, RequestedMode]
    audit: Mapping[str, object] | None
    audit_age_s: int | None
    walk_age_s: int | None
    tasks: int
    paused_since_ms: int | None
    archive: str | None
    auditor: MetadataRecord | None
    """The auditor's leader record."""
    behind: RestoreRecord | None = None
    """See ``Overview``."""
    refusals: Mapping[str, str] = MappingProxyType({})
    """Why there is no connection to a bookie: it refuses this client, or the client refuses it."""


@dataclass(slots=True)
class LedgerCensus:
    """Counts from the metadata of all ledgers."""

    known: Mapping[str, bool]
    """Bookies that were registered when the census began, and whether clients could choose them for new ledgers."""
    ledgers: LedgerCounts = field(default_factory=LedgerCounts)
    named: Counter[str] = field(default_factory=Counter)
    growing: Counter[str] = field(default_factory=Counter)
    in_limbo: Counter[str] = field(default_factory=Counter)
    first_ids: dict[str, list[int]] = field(default_factory=dict)
    """For each bookie, the first ledgers that name it."""

    def naming(self, bookie_id: str) -> BookieReferences:
        """The ledgers that name a bookie."""
        whole = self.ledgers.complete and not self.ledgers.unreadable
        chosen = self.known.get(bookie_id, False)
        named, growing = self.named[bookie_id], self.growing[bookie_id]
        return BookieReferences(bookie_id, named, growing, whole, chosen, self.first(bookie_id))

    def first(self, bookie_id: str) -> tuple[int, ...]:
        """The ids of the first ledgers that name a bookie."""
        return tuple(self.first_ids.get(bookie_id, ()))

    def note_names(self, metadata: LedgerMetadata) -> None:
        """Add the bookies that a ledger names."""
        for name in metadata.named_bookies:
            self.named[name] += 1
            if self.named[name] <= MAX_NAMED:
                self.first_ids.setdefault(name, []).append(metadata.ledger_id)


async def overview(world: ClientWorld) -> Overview:
    """Make the overview of a cluster, with all ledgers counted.

    Raises:
        MetadataUnavailable: the metadata store does not answer.
        DamagedFile, NewerFormat: a record cannot be decoded.
    """
    bookies = BookieSurvey(world.connections)
    surveyed = await survey(world, bookies)
    return make_overview(surveyed, await census(world, bookies))


def make_overview(found: ClusterSurvey, ledger_census: LedgerCensus | None) -> Overview:
    """Combine a survey and, if the ledgers were counted, a census."""
    named = ledger_census.named if ledger_census is not None else {}
    limbo = ledger_census.in_limbo if ledger_census is not None else {}
    bookies = tuple(
        BookieView(
            name,
            found.alive.get(name),
            found.statuses.get(name),
            found.modes.get(name, RequestedMode.NORMAL),
            None if ledger_census is None else named.get(name, 0),
            None if ledger_census is None else limbo.get(name, 0),
            () if ledger_census is None else ledger_census.first(name),
            found.refusals.get(name, ""),
        )
        for name in sorted({*found.alive, *named})
    )
    return Overview(
        bookies,
        None if ledger_census is None else ledger_census.ledgers,
        found.audit,
        found.audit_age_s,
        found.walk_age_s,
        found.tasks,
        found.paused_since_ms,
        found.archive,
        found.behind,
    )


async def survey(world: ClientWorld, bookies: BookieSurvey) -> ClusterSurvey:
    """Ask every registered bookie, and read the records of the auditor and of operators.

    Raises:
        As ``overview``.
    """
    store = world.store
    alive = await world.membership.bookies()
    await bookies.poll(alive)
    audit = await repair_status(store)
    return ClusterSurvey(
        alive,
        dict(bookies.statuses),
        await requested_modes(store),
        audit,
        age_of(audit, world.clock),
        age_of(audit, world.clock, "walked_at_ms"),
        await _tasks(world),
        await paused_since(store),
        await read_location(store),
        await store.read_record(AUDITOR_RECORD),
        await unapproved_restore(store),
        dict(bookies.refusals),
    )


async def census(
    world: ClientWorld, bookies: BookieSurvey, note: Callable[[LedgerMetadata], object] | None = None
) -> LedgerCensus:
    """Read the metadata of every ledger.

    Args:
        bookies: has polled the registered bookies.
        note: called with each ledger, in ascending order of ids.

    Raises:
        As ``overview``.
    """
    # Read before the walk: clients cannot choose a bookie during the walk that is read-only now.
    alive = await world.membership.bookies()
    found = LedgerCensus({name: info.mode is BookieMode.WRITABLE for name, info in alive.items()})
    limbo, findings = await bookies.limbo(), WalkFindings()
    async for metadata in all_ledgers(world.store, findings):
        found.ledgers.count(metadata)
        if note is not None:
            note(metadata)
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
    """Whether the bookie is to hold an entry of a ledger."""
    for fragment in metadata.fragments:
        if bookie_id in fragment.bookies:
            position, last = fragment.bookies.index(bookie_id), metadata.fragment_end(fragment)
            if next(assigned_ranges(metadata.quorum, position, fragment.first_entry_id, last), None) is not None:
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
