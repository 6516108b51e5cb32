"""Checks that every copy exists that the metadata name. Changes nothing.

Each bookie of each confirmed fragment is asked for its inventory, which costs it an index lookup; with ``read``, every
copy is read, and its checksum verified here. In the last fragment of an open ledger copies may be missing because its
writer is still at work; so the check reports only bookies there that lost data, know damage or do not answer. A ledger
whose copies the bookies may drop is not checked.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple

from tallybook.client.connection.port import BookieConnection
from tallybook.client.ports import Connections
from tallybook.core.answers import EntryRange
from tallybook.core.batch import verify_batch
from tallybook.core.errors import (
    EntryAbsent,
    EntryCorrupt,
    InvalidBatch,
    NoSuchLedger,
    OtherLedger,
    PeerError,
    ProtocolViolation,
    StorageError,
)
from tallybook.core.ranges import assigned_ranges, missing_ranges
from tallybook.metadata.ledger.model import LedgerMetadata
from tallybook.metadata.store import MetadataStore

from ..needs import FragmentReplica, replicas_of

MAX_CONCURRENCY: Final = 8
MAX_LACKS: Final = 100
"""Ranges that are listed for one ledger; the others are only counted."""
READ_BYTES: Final = 1 << 20
DAMAGED_PAGE: Final = 1_000

KNOWN_DAMAGE: Final = "the bookie knows it"
LOST_OPEN_FRAGMENT: Final = "the bookie lost its data, and the ledger is open"

ABSENT: Final = "absent"
DAMAGED: Final = "damaged"
UNKNOWN: Final = "unknown"
SILENT: Final = "no answer"
OTHER: Final = "another ledger"


class CopyProblem(NamedTuple):
    """A range of entries of which a bookie has no good copy, or is not known to have one."""

    bookie_id: str
    first: int
    last: int
    verdict: str
    """"absent", "damaged", "unknown" (it may have lost it), "no answer", or "another ledger" with that id."""
    why: str = ""

    @property
    def is_lost_open_fragment(self) -> bool:
        """Whether the bookie lost its copies of an open ledger's last fragment, or has another ledger with its id."""
        return self.verdict == OTHER or self.why == LOST_OPEN_FRAGMENT


@dataclass(slots=True)
class LedgerCheck:
    """The result for one ledger."""

    ledger_id: int
    places: int = 0
    """Fragment replicas that were checked."""
    lacks: list[CopyProblem] = field(default_factory=list)
    more: int = 0
    """Problems besides those in ``lacks``."""

    @property
    def good(self) -> bool:
        """Whether no copy has a problem."""
        return not self.lacks

    def note(self, lack: CopyProblem) -> None:
        """Add a problem. Merges it with an adjacent one of the same kind."""
        last = self.lacks[-1] if self.lacks else None
        if last is not None and _adjoins(last, lack):
            self.lacks[-1] = last._replace(last=lack.last)
        elif len(self.lacks) < MAX_LACKS:
            self.lacks.append(lack)
        else:
            self.more += 1


def no_good_copy_left(found: LedgerCheck, metadata: LedgerMetadata, entry_id: int) -> bool:
    """Whether every bookie of the entry's write set answered that it has no good copy."""
    without = {
        lack.bookie_id
        for lack in found.lacks
        if lack.first <= entry_id <= lack.last and lack.verdict in {ABSENT, DAMAGED}
    }
    return without >= set(metadata.bookies_of(entry_id))


@dataclass(slots=True)
class CheckTotals:
    """The progress of a check."""

    ledgers: int = 0
    places: int = 0
    read_bytes: int = 0
    lacking_ledgers: int = 0


class CopyCheck:
    """Checks the copies of ledgers.

    Args:
        read: read every copy, instead of asking whether it exists.
    """

    def __init__(self, store: MetadataStore, connections: Connections, *, read: bool = False) -> None:
        self._store = store
        self._connections = connections
        self._read = read
        self.totals = CheckTotals()

    async def check_all(self, ledgers: AsyncIterator[LedgerMetadata]) -> AsyncIterator[LedgerCheck]:
        """Check ledgers, several at a time. Yields the results in the order of the ledgers.

        Raises:
            As ``check_ledger``.
        """
        gathered: list[LedgerMetadata] = []
        async for metadata in ledgers:
            gathered.append(metadata)
            if len(gathered) == MAX_CONCURRENCY:
                for found in await asyncio.gather(*map(self.check_ledger, gathered)):
                    yield found
                gathered.clear()
        for found in await asyncio.gather(*map(self.check_ledger, gathered)):
            yield found

    async def check_ledger(self, metadata: LedgerMetadata) -> LedgerCheck:
        """Check one ledger. A bookie that does not answer is one of the problems in the result.

        Raises:
            MetadataUnavailable, DamagedFile: a problem was found, and the metadata could not be read again.
        """
        found = await self._check(metadata)
        if not found.good:
            # The ledger may have been repaired, released or deleted during the check.
            current = await self._current(metadata.ledger_id)
            if current is None:
                found = LedgerCheck(metadata.ledger_id)
            elif current != metadata:
                found = await self._check(current)
        self.totals.ledgers += 1
        self.totals.places += found.places
        self.totals.lacking_ledgers += not found.good
        return found

    async def _current(self, ledger_id: int) -> LedgerMetadata | None:
        try:
            return (await self._store.read_ledger(ledger_id, linearizable=True)).value
        except NoSuchLedger:
            return None

    async def _check(self, metadata: LedgerMetadata) -> LedgerCheck:
        found = LedgerCheck(metadata.ledger_id)
        for replica in () if metadata.copies_released else replicas_of(metadata):
            if replica.first > replica.last:
                continue
            found.places += 1
            try:
                await self._check_replica(metadata, replica, found)
            except NoSuchLedger as error:
                # The bookie has a record of the ledger's deletion.
                found.note(CopyProblem(replica.bookie_id, replica.first, replica.last, ABSENT, error.message))
            except OtherLedger as error:
                found.note(CopyProblem(replica.bookie_id, replica.first, replica.last, OTHER, error.message))
            except PeerError as error:
                found.note(CopyProblem(replica.bookie_id, replica.first, replica.last, SILENT, error.message))
            except StorageError as error:
                found.note(CopyProblem(replica.bookie_id, replica.first, replica.last, UNKNOWN, error.message))
        if not metadata.closed:
            await self._check_open_fragment(metadata, found)
        return found

    async def _check_open_fragment(self, metadata: LedgerMetadata, found: LedgerCheck) -> None:
        """Add members of the last fragment that may have lost their copies, know damage or do not answer."""
        ledger_id, fragment = metadata.ledger_id, metadata.last_fragment
        first = last = fragment.first_entry_id
        without: list[tuple[int, str, str]] = []
        for position, name in enumerate(fragment.bookies):
            try:
                connection = await self._connections.get(name)
                if (await connection.held(ledger_id, first, first, identity=metadata.identity)).limbo:
                    without.append((position, UNKNOWN, LOST_OPEN_FRAGMENT))
                else:
                    for bad in await damaged_of(connection, ledger_id):
                        if bad.last >= first:
                            found.note(CopyProblem(name, max(first, bad.first), bad.last, DAMAGED, KNOWN_DAMAGE))
                    last = max(last, (await connection.read_lac(ledger_id, identity=metadata.identity)).lac)
            except EntryAbsent:
                continue  # it has no entries of the ledger, and need not have any yet
            except NoSuchLedger as error:
                without.append((position, ABSENT, error.message))
            except OtherLedger as error:
                without.append((position, OTHER, error.message))
            except PeerError as error:
                without.append((position, SILENT, error.message))
            except StorageError as error:
                without.append((position, UNKNOWN, error.message))
        for position, verdict, why in without:
            for gap in assigned_ranges(metadata.quorum, position, first, last):
                found.note(CopyProblem(fragment.bookies[position], gap.first, gap.last, verdict, why))

    async def _check_replica(self, metadata: LedgerMetadata, replica: FragmentReplica, found: LedgerCheck) -> None:
        connection = await self._connections.get(replica.bookie_id)
        damaged = await damaged_of(connection, metadata.ledger_id)
        at = replica.first
        while at <= replica.last:
            answer = await connection.held(metadata.ledger_id, at, replica.last, identity=metadata.identity)
            if answer.looked_up_to < at:
                raise ProtocolViolation(f"{replica.bookie_id} sent an empty inventory of ledger {metadata.ledger_id}")
            end = min(answer.looked_up_to, replica.last)
            wanted = partial(assigned_ranges, metadata.quorum, replica.position, at, end)
            for gap in missing_ranges(wanted(), answer.ranges):
                found.note(CopyProblem(replica.bookie_id, gap.first, gap.last, UNKNOWN if answer.limbo else ABSENT))
            for there in missing_ranges(wanted(), missing_ranges(wanted(), answer.ranges)):
                await self._check_held(connection, metadata, there, damaged, found)
            at = end + 1

    async def _check_held(
        self,
        connection: BookieConnection,
        metadata: LedgerMetadata,
        held: EntryRange,
        damaged: list[EntryRange],
        found: LedgerCheck,
    ) -> None:
        """Check held entries: add those that the bookie knows to be damaged; with ``read``, read the rest."""
        good = list(missing_ranges([held], damaged))
        for bad in missing_ranges([held], good):
            found.note(CopyProblem(connection.bookie_id, bad.first, bad.last, DAMAGED, KNOWN_DAMAGE))
        for each in good if self._read else ():
            await self._read_copies(connection, metadata, each, found)

    async def _read_copies(
        self, connection: BookieConnection, metadata: LedgerMetadata, held: EntryRange, found: LedgerCheck
    ) -> None:
        at = held.first
        while at <= held.last:
            try:
                last = min(held.last, metadata.quorum.stripe_end(at))
                at = await self._read_once(connection, metadata, at, last)
            except EntryCorrupt as error:
                # The bookie's index tells where the next batch begins.
                traced = await connection.trace(metadata.ledger_id, at, identity=metadata.identity)
                last = max(at, min(held.last, traced.last_entry_id))
                found.note(CopyProblem(connection.bookie_id, at, last, DAMAGED, error.message))
                at = last + 1
            except StorageError as error:
                verdict = ABSENT if isinstance(error, EntryAbsent) else UNKNOWN
                found.note(CopyProblem(connection.bookie_id, at, held.last, verdict, error.message))
                return

    async def _read_once(self, connection: BookieConnection, metadata: LedgerMetadata, at: int, last: int) -> int:
        """Read and verify batches from the one that holds ``at`` on; returns the entry after the good ones.

        Raises:
            EntryCorrupt: the first batch is damaged.
        """
        begin, ledger_id = at, metadata.ledger_id
        answer = await connection.read_batches(ledger_id, at, last, READ_BYTES, identity=metadata.identity)
        for batch in answer.batches:
            try:
                header = verify_batch(batch)
            except InvalidBatch as error:
                if at > begin:
                    break
                raise EntryCorrupt(f"{connection.bookie_id} sent a damaged batch: {error.message}") from error
            if header.ledger_id != ledger_id or not header.first_entry_id <= at <= header.last_entry_id:
                raise ProtocolViolation(
                    f"for entry {at} of ledger {ledger_id}, {connection.bookie_id} sent entries "
                    f"{header.first_entry_id} .. {header.last_entry_id} of ledger {header.ledger_id}"
                )
            self.totals.read_bytes += len(batch)
            at = header.last_entry_id + 1
        return at


async def damaged_of(connection: BookieConnection, ledger_id: int) -> list[EntryRange]:
    """The damaged ranges of a ledger that a bookie knows."""
    found: list[EntryRange] = []
    after = (ledger_id, -1)
    while True:
        page = await connection.damaged(after, DAMAGED_PAGE)
        found += [EntryRange(each.first_entry_id, each.last_entry_id) for each in page if each.ledger_id == ledger_id]
        if not page or page[-1].ledger_id != ledger_id:
            return found
        after = ledger_id, page[-1].first_entry_id


def _adjoins(before: CopyProblem, after: CopyProblem) -> bool:
    same = (before.bookie_id, before.verdict) == (after.bookie_id, after.verdict)
    grows = before.is_lost_open_fragment != after.is_lost_open_fragment
    return same and not grows and after.first == before.last + 1
