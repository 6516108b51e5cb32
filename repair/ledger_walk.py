"""All ledgers of a cluster, one after the other, and what each of them needs."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from tallybook.client.racks import spread, write_sets
from tallybook.core.errors import DamagedFile, NewerFormat, NoSuchLedger
from tallybook.metadata.model import LedgerMetadata
from tallybook.metadata.store import BookieInfo, MetadataStore
from tallybook.runtime.logging import logger

from .needs import Need, Trouble, Why, may_lack, need

_log = logger("repair")

CONCURRENT_READS: Final = 32
PAGE: Final = 1_000
MAX_NAMED: Final = 10
"""Ledgers that are told by their ids."""


@dataclass(slots=True)
class Findings:
    """What a walk over all ledgers found."""

    complete: bool = False
    """Whether no ledger can have been left out."""
    ledgers: int = 0
    open_ledgers: int = 0
    needing: Counter[Why] = field(default_factory=Counter)
    """Ledgers that have to be looked at, by the reason."""
    to_end: int = 0
    """Open ledgers that name a bookie that is lost, or lost data, where they grow, and lack nothing else."""
    unfinished: int = 0
    """Ledgers in recovery, and open ones that missed entries where they grow, that lack nothing else, as far as is
    known."""
    by_hand: list[int] = field(default_factory=list)
    """The first ``MAX_NAMED`` ledgers with a password that have to be recovered, which the repair cannot do."""
    by_hand_count: int = 0
    """All of them."""
    in_limbo: int = 0
    """Ledgers of which a bookie may lack something, also where more is wrong with them."""
    in_one_rack: int = 0
    """Ledgers with a write set in one rack, though there are more racks."""
    unreadable: int = 0
    """Ledgers whose metadata cannot be understood."""
    unreadable_ids: list[int] = field(default_factory=list)
    """The first ``MAX_NAMED`` of them."""
    by_bookie: Counter[str] = field(default_factory=Counter)
    """Ledgers that name each bookie and rely on it."""

    def note_by_hand(self, ledger_id: int) -> None:
        """Name a ledger that an operator, or a client with its password, has to recover."""
        self.by_hand_count += 1
        if len(self.by_hand) < MAX_NAMED:
            self.by_hand.append(ledger_id)

    @property
    def under_replicated(self) -> int:
        """Ledgers of which some entry has fewer copies than it should, as far as is known."""
        return sum(self.needing.values()) - self.moving + self.to_end

    @property
    def moving(self) -> int:
        """Ledgers of which no copy is missing, and that name a bookie which is to be emptied."""
        return self.needing[Why.DRAINING]


async def all_ledgers(store: MetadataStore, findings: Findings, after: int = -1) -> AsyncIterator[LedgerMetadata]:
    """The metadata of every ledger above ``after``, ascending; tells ``findings`` whether the listing was complete.

    Raises:
        MetadataUnavailable: the store does not answer.
    """
    while True:
        page = await store.list_ledgers(after, PAGE)
        for at in range(0, len(page.ledger_ids), CONCURRENT_READS):
            chunk = page.ledger_ids[at : at + CONCURRENT_READS]
            for metadata in await asyncio.gather(*(_read(store, ledger_id, findings) for ledger_id in chunk)):
                if metadata is not None:
                    yield metadata
        if page.complete or not page.ledger_ids:
            findings.complete = page.complete
            return
        after = page.ledger_ids[-1]


async def _read(store: MetadataStore, ledger_id: int, findings: Findings) -> LedgerMetadata | None:
    try:
        return (await store.read_ledger(ledger_id)).value
    except NoSuchLedger:
        return None
    except (DamagedFile, NewerFormat) as error:
        findings.unreadable += 1
        if len(findings.unreadable_ids) < MAX_NAMED:
            findings.unreadable_ids.append(ledger_id)
        _log.error("metadata of a ledger cannot be understood", ledger_id=ledger_id, error=error.message)
        return None


def note(findings: Findings, metadata: LedgerMetadata, trouble: Trouble, alive: Mapping[str, BookieInfo]) -> Need:
    """Add one ledger to what was found; what is to be done about it."""
    findings.ledgers += 1
    findings.open_ledgers += not metadata.closed
    if metadata.copies_released:
        return Need(None, None)
    findings.by_bookie.update({name for fragment in metadata.fragments for name in fragment.bookies})
    needed = need(metadata, trouble)
    if needed.only_an_end:
        findings.to_end += 1
    elif needed.waits_for_an_end:
        findings.unfinished += 1
    elif needed.foremost is not None:
        findings.needing[needed.foremost] += 1
    findings.in_limbo += may_lack(metadata, trouble.limbo)
    findings.in_one_rack += _in_one_rack(metadata, alive)
    return needed


def _in_one_rack(metadata: LedgerMetadata, alive: Mapping[str, BookieInfo]) -> bool:
    """Whether a write set of the ledger lies within one rack, though bookies of several are there."""
    if len({info.rack for info in alive.values()}) < 2 or metadata.quorum.write_quorum < 2:
        return False
    sets = write_sets(metadata.quorum.ensemble, metadata.quorum.write_quorum)
    for fragment in metadata.fragments:
        racks = [alive[name].rack if name in alive else None for name in fragment.bookies]
        if None not in racks and spread(racks, sets).safe < len(sets):
            return True
    return False
