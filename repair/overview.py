"""A cluster at one glance: its bookies, its ledgers by state, what the auditor found last, and what is wrong.

Bookies are asked now; ledgers are counted from their metadata; which of them have too few copies is the auditor's word,
with its age. Nothing is changed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from tallybook.archive.location import read_location
from tallybook.client.ports import ClientWorld
from tallybook.core.answers import BookieStatus
from tallybook.core.ranges import ranges_of
from tallybook.metadata.bookie_modes import WantedMode, wanted_modes
from tallybook.metadata.model import LedgerMetadata
from tallybook.metadata.store import BookieInfo

from .bookie_survey import BookieSurvey
from .needs import LimboOf
from .pause import paused_since
from .service import STALE_SECONDS, age_of, repair_status
from .tasks import PREFIX
from .walk import Findings, all_ledgers


@dataclass(slots=True)
class BookieView:
    """One bookie."""

    bookie_id: str
    info: BookieInfo | None
    """As registered; ``None`` if it is not there."""
    status: BookieStatus | None
    """What it says; ``None`` if it does not answer."""
    wanted: WantedMode
    ledgers: int = 0
    """Ledgers that name it and rely on it."""
    limbo_ledgers: int = 0
    """Of those, the ones of which it may have lost something and has not got it back."""

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
            found.append(f"{self.bookie_id} is away, and {self.ledgers:,} ledgers name it")
        elif self.status is None:
            found.append(f"{self.bookie_id} does not answer")
        else:
            if self.status.read_only and self.wanted is WantedMode.NORMAL:
                used = f"{self.status.disk_used_fraction:.0%}"
                found.append(f"{self.bookie_id} takes no writes by itself: its disk is {used} full, or failing")
            if self.status.damaged_batches:
                found.append(f"{self.bookie_id} knows {self.status.damaged_batches:,} damaged copies")
            if self.limbo_ledgers:
                found.append(f"{self.bookie_id} may have lost something of {self.limbo_ledgers:,} ledgers")
        return found


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

    def count(self, metadata: LedgerMetadata) -> None:
        """One more."""
        self.total += 1
        self.states[metadata.state.value] += 1
        self.archived += metadata.archived is not None
        self.released += metadata.copies_released
        self.waiting_bytes += metadata.length if metadata.closed and metadata.archived is None else 0


@dataclass(frozen=True, slots=True)
class Overview:
    """All of it."""

    bookies: tuple[BookieView, ...]
    ledgers: Ledgers
    audit: Mapping[str, object] | None
    """What the auditor wrote down last."""
    audit_age_s: int | None
    walk_age_s: int | None
    """Since it has gone over all ledgers."""
    tasks: int
    paused_since_ms: int | None
    archive: str | None
    """Where the archive is, if there is one."""

    @property
    def under_replicated(self) -> int | None:
        """Ledgers with too few good copies, by the auditor's last word."""
        found = None if self.audit is None else self.audit.get("under_replicated")
        return found if isinstance(found, int) else None

    @property
    def problems(self) -> list[str]:
        """What is wrong, in sentences. Nothing: the cluster is healthy."""
        found = [problem for bookie in self.bookies for problem in bookie.problems]
        if not any(bookie.info for bookie in self.bookies):
            found.append("no bookie is there")
        if not self.ledgers.complete:
            found.append("the listing of ledgers was cut off: not all of them were looked at")
        if self.ledgers.unreadable:
            found.append(f"the metadata of {self.ledgers.unreadable:,} ledgers cannot be understood")
        if self.audit_age_s is None:
            found.append("no auditor has ever looked: 'tallybook repair run' is not running")
        elif self.audit_age_s >= STALE_SECONDS:
            found.append(f"no auditor has looked for {self.audit_age_s:,} s: is 'tallybook repair run' running?")
        if self.under_replicated:
            found.append(f"{self.under_replicated:,} ledgers have too few good copies")
        return found


async def overview(world: ClientWorld) -> Overview:
    """Look at a cluster.

    Raises:
        MetadataUnavailable: the metadata store does not answer.
        DamagedFile, NewerFormat: a record that it needs holds something else.
    """
    store = world.store
    alive = await world.membership.bookies()
    survey = BookieSurvey(world.connections)
    await survey.look(alive)
    named, in_limbo, ledgers = await _count(world, await survey.limbo())
    modes = await wanted_modes(store)
    bookies = tuple(
        BookieView(
            name,
            alive.get(name),
            survey.statuses.get(name),
            modes.get(name, WantedMode.NORMAL),
            named[name],
            in_limbo[name],
        )
        for name in sorted({*alive, *named})
    )
    audit = await repair_status(store)
    age_s = age_of(audit, world.clock)
    return Overview(
        bookies,
        ledgers,
        audit,
        age_s,
        age_of(audit, world.clock, "walked_at_ms"),
        await _tasks(world),
        await paused_since(store),
        await read_location(store),
    )


async def _count(world: ClientWorld, limbo: Mapping[str, LimboOf]) -> tuple[Counter[str], Counter[str], Ledgers]:
    named, in_limbo, ledgers, findings = Counter[str](), Counter[str](), Ledgers(), Findings()
    async for metadata in all_ledgers(world.store, findings):
        ledgers.count(metadata)
        if metadata.copies_released:
            continue
        named.update({name for fragment in metadata.fragments for name in fragment.bookies})
        in_limbo.update(name for name in limbo if limbo[name].covers(metadata.ledger_id) and _holds(metadata, name))
    ledgers.complete, ledgers.unreadable = findings.complete, findings.unreadable
    return named, in_limbo, ledgers


def _holds(metadata: LedgerMetadata, bookie_id: str) -> bool:
    """Whether the bookie is to hold some entry of a ledger."""
    for fragment in metadata.fragments:
        if bookie_id in fragment.bookies:
            position, last = fragment.bookies.index(bookie_id), metadata.fragment_end(fragment)
            if next(ranges_of(metadata.quorum, position, fragment.first_entry_id, last), None) is not None:
                return True
    return False


async def _tasks(world: ClientWorld) -> int:
    count, after = 0, ""
    while True:
        page = await world.store.list_records(PREFIX, after)
        count += len(page.names)
        if page.complete or not page.names:
            return count
        after = page.names[-1]
