"""Traces one entry: every copy that should exist, where it is stored, and whether all copies are the same.

Each bookie reads its copy from disk and reports what it found; the archive's copy is read and verified here. Copies are
the same if their batches have the same entries and the same checksum, which covers every byte.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from tallybook.archive.trace_location import ArchiveLocation
from tallybook.client.ports import ClientWorld
from tallybook.client.refusals import is_refusal
from tallybook.core.answers import CopyTrace
from tallybook.core.errors import (
    ArchiveDenied,
    ArchiveUnavailable,
    EntryAbsent,
    NewerFormat,
    ObjectDamaged,
    ObjectMissing,
    OtherLedger,
    PeerError,
    ReadBeyondLac,
    StorageError,
    TallybookError,
)
from tallybook.metadata.ledger.archived import Receipt
from tallybook.metadata.ledger.model import LedgerMetadata

INTACT: Final = "intact"
ABSENT: Final = "absent"
DAMAGED: Final = "damaged"
SILENT: Final = "no answer"


@dataclass(frozen=True, slots=True)
class BookieCopy:
    """The copy of one bookie."""

    bookie_id: str
    alive: bool
    """Whether it is registered."""
    trace: CopyTrace | None
    """The bookie's answer; ``None`` if it does not answer."""
    why: str
    """Why it does not answer, or why the copy is not intact."""

    @property
    def verdict(self) -> str:
        """The state of the copy, or "no answer"."""
        return SILENT if self.trace is None else self.trace.verdict


@dataclass(frozen=True, slots=True)
class ArchiveCopy:
    """The copy in the archive."""

    object_key: str
    verdict: str
    """"intact", "damaged", "absent" or "no answer"."""
    why: str
    place: ArchiveLocation | None
    batch_bytes: int = 0


@dataclass(frozen=True, slots=True)
class EntryTrace:
    """All copies of one entry."""

    metadata: LedgerMetadata
    entry_id: int
    copies: tuple[BookieCopy, ...]
    """Of the bookies in the entry's write set, in its order."""
    archive: ArchiveCopy | None

    @property
    def growing(self) -> bool:
        """Whether the entry is in the last fragment of an open ledger, where an ack quorum of copies is enough."""
        metadata = self.metadata
        return not metadata.closed and self.entry_id >= metadata.last_fragment.first_entry_id

    @property
    def wanted(self) -> int:
        """How many bookies should have a copy."""
        if self.metadata.copies_released:
            return 0
        quorum = self.metadata.quorum
        return quorum.ack_quorum if self.growing else quorum.write_quorum

    @property
    def intact(self) -> int:
        """How many bookies have an intact copy."""
        return sum(copy.verdict == INTACT for copy in self.copies)

    @property
    def same(self) -> bool:
        """Whether all intact copies are the same batch."""
        found = {
            (copy.trace.first_entry_id, copy.trace.last_entry_id, copy.trace.batch_crc)
            for copy in self.copies
            if copy.trace is not None and copy.verdict == INTACT
        }
        if self.archive is not None and self.archive.place is not None and self.archive.verdict == INTACT:
            place = self.archive.place
            found.add((place.first_entry_id, place.last_entry_id, place.batch_crc))
        return len(found) < 2

    @property
    def problems(self) -> list[str]:
        """Problems of the copies, as sentences."""
        found = []
        if self.intact < self.wanted:
            found.append(f"{self.intact} bookies have an intact copy, and {self.wanted} should")
        elif self.wanted:
            # There are enough copies. In the last fragment of an open ledger one may be missing, but none be damaged.
            found += [f"the copy of {copy.bookie_id} is damaged" for copy in self.copies if copy.verdict == DAMAGED]
        if self.archive is not None and self.archive.verdict != INTACT:
            found.append(f"the archive's copy is not intact: {self.archive.why or self.archive.verdict}")
        if not self.same:
            found.append("intact copies differ: they are not of the same batch")
        return found


async def trace_entry(world: ClientWorld, ledger_id: int, entry_id: int) -> EntryTrace:
    """Find all copies of an entry.

    Raises:
        NoSuchLedger: there is no such ledger.
        ReadBeyondLac: there is no such entry: the ledger ends before it, or no bookie of an open ledger has it.
        MetadataUnavailable, DamagedFile: the metadata store does not answer, or the metadata cannot be decoded.
    """
    metadata = (await world.store.read_ledger(ledger_id, linearizable=True)).value
    if metadata.closed and entry_id > metadata.last_entry_id:
        raise ReadBeyondLac(f"ledger {ledger_id} ends at entry {metadata.last_entry_id}, before {entry_id}")
    alive = await world.membership.bookies()

    async def ask(name: str) -> BookieCopy:
        try:
            connection = await world.connections.get(name)
            traced = await connection.trace(ledger_id, entry_id, identity=metadata.identity)
        except TallybookError as error:
            if not (isinstance(error, PeerError | StorageError | OtherLedger) or is_refusal(error)):
                raise
            return BookieCopy(name, name in alive, None, error.message)
        return BookieCopy(name, name in alive, traced, traced.why)

    copies = await asyncio.gather(*map(ask, metadata.bookies_of(entry_id)))
    archive = None if metadata.archived is None else await _archived(world, metadata.archived, ledger_id, entry_id)
    found = EntryTrace(metadata, entry_id, tuple(copies), archive)
    if found.growing and all(copy.verdict == ABSENT for copy in copies):
        raise ReadBeyondLac(f"no bookie has entry {entry_id} of ledger {ledger_id}, which is still open")
    return found


async def _archived(world: ClientWorld, receipt: Receipt, ledger_id: int, entry_id: int) -> ArchiveCopy:
    place: ArchiveLocation | None = None
    if world.archive is None:
        return ArchiveCopy(receipt.key, SILENT, "this client has no archive", None)
    try:
        place = await world.archive.place(receipt, ledger_id, entry_id)
        [(_, batch)] = await world.archive.batches(receipt, ledger_id, entry_id, entry_id, 1)
    except ObjectMissing as error:
        return ArchiveCopy(receipt.key, ABSENT, error.message, place)
    except (ObjectDamaged, EntryAbsent) as error:
        return ArchiveCopy(receipt.key, DAMAGED, error.message, place)
    except (ArchiveUnavailable, ArchiveDenied, NewerFormat) as error:
        return ArchiveCopy(receipt.key, SILENT, error.message, place)
    return ArchiveCopy(receipt.key, INTACT, "", place, len(batch))
