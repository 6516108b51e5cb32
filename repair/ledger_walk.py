"""Walks over the metadata of all ledgers and counts what repair they need."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from tallybook.client.placement.racks import spread, write_sets
from tallybook.core.errors import DamagedFile, NewerFormat, NoSuchLedger
from tallybook.metadata.ledger.model import LedgerMetadata
from tallybook.metadata.store import BookieInfo, MetadataStore
from tallybook.runtime.logging import logger

from .needs import BookieProblems, RepairNeed, RepairReason, find_need, may_miss_entries

_log = logger("repair")

CONCURRENT_READS: Final = 32
PAGE: Final = 1_000
MAX_NAMED: Final = 10
"""Ledgers that a finding lists by their ids; the others are only counted."""


@dataclass(slots=True)
class WalkFindings:
    """The result of a walk over all ledgers."""

    complete: bool = False
    """Whether the listing was complete, so that no ledger was missed."""
    ledgers: int = 0
    open_ledgers: int = 0
    needing: Counter[RepairReason] = field(default_factory=Counter)
    """Ledgers that need repair, by reason."""
    to_end: int = 0
    """Open ledgers that only need recovery: their last fragment names a bookie that is lost or lost data."""
    unfinished: int = 0
    """Ledgers in recovery, and open ones with missed entries in the last fragment, that need nothing else as far as is
    known."""
    by_hand: list[int] = field(default_factory=list)
    """The first ``MAX_NAMED`` ledgers that the repair cannot recover because they have a password."""
    by_hand_count: int = 0
    """The number of such ledgers."""
    in_limbo: int = 0
    """Ledgers that are in limbo at some bookie, also those that are counted elsewhere."""
    in_one_rack: int = 0
    """Ledgers with a write set in one rack, though the cluster has several."""
    unreadable: int = 0
    """Ledgers whose metadata cannot be decoded."""
    unreadable_ids: list[int] = field(default_factory=list)
    """The first ``MAX_NAMED`` of them."""
    by_bookie: Counter[str] = field(default_factory=Counter)
    """For each bookie, the ledgers that name it and rely on it."""

    def note_manual(self, ledger_id: int) -> None:
        """Add a ledger that an operator or a client with its password has to recover."""
        self.by_hand_count += 1
        if len(self.by_hand) < MAX_NAMED:
            self.by_hand.append(ledger_id)

    @property
    def under_replicated(self) -> int:
        """Ledgers with an entry that has too few copies, as far as is known."""
        return sum(self.needing.values()) - self.moving + self.to_end

    @property
    def moving(self) -> int:
        """Ledgers that name a draining bookie and lack no copy."""
        return self.needing[RepairReason.DRAINING]


async def all_ledgers(store: MetadataStore, findings: WalkFindings, after: int = -1) -> AsyncIterator[LedgerMetadata]:
    """The metadata of every ledger with an id above ``after``, in ascending order.

    Adds to ``findings`` whether the listing was complete, and the ledgers whose metadata cannot be decoded.

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


async def _read(store: MetadataStore, ledger_id: int, findings: WalkFindings) -> LedgerMetadata | None:
    try:
        return (await store.read_ledger(ledger_id)).value
    except NoSuchLedger:
        return None
    except (DamagedFile, NewerFormat) as error:
        findings.unreadable += 1
        if len(findings.unreadable_ids) < MAX_NAMED:
            findings.unreadable_ids.append(ledger_id)
        _log.error("metadata of a ledger cannot be decoded", ledger_id=ledger_id, error=error.message)
        return None


def add_ledger(
    findings: WalkFindings, metadata: LedgerMetadata, problems: BookieProblems, alive: Mapping[str, BookieInfo]
) -> RepairNeed:
    """Add a ledger to the findings; returns what repair it needs."""
    findings.ledgers += 1
    findings.open_ledgers += not metadata.closed
    if metadata.copies_released:
        return RepairNeed(None, None)
    findings.by_bookie.update(metadata.named_bookies)
    needed = find_need(metadata, problems)
    if needed.only_needs_recovery:
        findings.to_end += 1
    elif needed.waits_for_close:
        findings.unfinished += 1
    elif needed.foremost is not None:
        findings.needing[needed.foremost] += 1
    findings.in_limbo += may_miss_entries(metadata, problems.limbo)
    findings.in_one_rack += _in_one_rack(metadata, alive)
    return needed


def _in_one_rack(metadata: LedgerMetadata, alive: Mapping[str, BookieInfo]) -> bool:
    """Whether a write set of the ledger lies within one rack, though bookies of several racks are alive."""
    if len({info.rack for info in alive.values()}) < 2 or metadata.quorum.write_quorum < 2:
        return False
    sets = write_sets(metadata.quorum.ensemble, metadata.quorum.write_quorum)
    for fragment in metadata.fragments:
        racks = [alive[name].rack if name in alive else None for name in fragment.bookies]
        if None not in racks and spread(racks, sets).safe < len(sets):
            return True
    return False
