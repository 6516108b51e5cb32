"""Looks whether every copy that should be there is: asks, changes nothing.

Each bookie of each settled fragment is asked what it holds, which costs it a look into its index; with ``read``, every
copy is really read, and its checksum looked at here. What grows at the end of an open ledger is its writer's: of that
only bookies that lost data, know damage, or do not answer, are told. A ledger whose copies the bookies may drop relies
on none.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple

from tallybook.client.bookie_port import BookieConnection
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
from tallybook.core.ranges import lacking, ranges_of
from tallybook.metadata.model import LedgerMetadata
from tallybook.metadata.store import MetadataStore

from .needs import Place, places_of

LEDGERS_AT_ONCE: Final = 8
MOST_LACKS: Final = 100
"""Ranges that are told of one ledger; the others are only counted."""
READ_BYTES: Final = 1 << 20
DAMAGED_PAGE: Final = 1_000

KNOWN_DAMAGE: Final = "the bookie knows it"
LOST_WHERE_IT_GROWS: Final = "the bookie lost its data, and the ledger is open"

ABSENT: Final = "absent"
DAMAGED: Final = "damaged"
UNKNOWN: Final = "unknown"
SILENT: Final = "no answer"
OTHER: Final = "another ledger"


class Lack(NamedTuple):
    """Entries of which a bookie has no good copy, or does not say that it has."""

    bookie_id: str
    first: int
    last: int
    verdict: str
    """"absent", "damaged", "unknown" (it may have been lost there), "no answer", or "another ledger" of that id."""
    why: str = ""

    @property
    def is_lost_where_it_grows(self) -> bool:
        """Whether the bookie does not know what it held of the fragment that grows: its data are lost, or another's."""
        return self.verdict == OTHER or self.why == LOST_WHERE_IT_GROWS


@dataclass(slots=True)
class LedgerCheck:
    """What was found out about one ledger."""

    ledger_id: int
    places: int = 0
    lacks: list[Lack] = field(default_factory=list)
    more: int = 0
    """Lacks besides those in ``lacks``."""

    @property
    def good(self) -> bool:
        """Whether nothing lacks."""
        return not self.lacks

    def note(self, lack: Lack) -> None:
        """One more lack; neighbours of one kind are one."""
        last = self.lacks[-1] if self.lacks else None
        if last is not None and _adjoins(last, lack):
            self.lacks[-1] = last._replace(last=lack.last)
        elif len(self.lacks) < MOST_LACKS:
            self.lacks.append(lack)
        else:
            self.more += 1


def nowhere(found: LedgerCheck, metadata: LedgerMetadata, entry_id: int) -> bool:
    """Whether every bookie of the entry's write set says that it has no good copy."""
    without = {
        lack.bookie_id
        for lack in found.lacks
        if lack.first <= entry_id <= lack.last and lack.verdict in {ABSENT, DAMAGED}
    }
    return without >= set(metadata.bookies_of(entry_id))


@dataclass(slots=True)
class CheckTotals:
    """How far a check has come."""

    ledgers: int = 0
    places: int = 0
    read_bytes: int = 0
    lacking_ledgers: int = 0


class CopyCheck:
    """Checks copies.

    Args:
        read: read every copy, instead of asking whether it is there.
    """

    def __init__(self, store: MetadataStore, connections: Connections, *, read: bool = False) -> None:
        self._store = store
        self._connections = connections
        self._read = read
        self.totals = CheckTotals()

    async def all(self, ledgers: AsyncIterator[LedgerMetadata]) -> AsyncIterator[LedgerCheck]:
        """Check ledgers, several at a time, in their order.

        Raises:
            As ``one``.
        """
        gathered: list[LedgerMetadata] = []
        async for metadata in ledgers:
            gathered.append(metadata)
            if len(gathered) == LEDGERS_AT_ONCE:
                for found in await asyncio.gather(*map(self.one, gathered)):
                    yield found
                gathered.clear()
        for found in await asyncio.gather(*map(self.one, gathered)):
            yield found

    async def one(self, metadata: LedgerMetadata) -> LedgerCheck:
        """Check one ledger. A bookie that does not answer is told, and is no failure.

        Raises:
            MetadataUnavailable, DamagedFile: what lacks may be for a reason, and the metadata do not say.
        """
        found = await self._of(metadata)
        if not found.good:
            # It may have been mended, dropped or deleted under our eyes.
            current = await self._current(metadata.ledger_id)
            if current is None:
                found = LedgerCheck(metadata.ledger_id)
            elif current != metadata:
                found = await self._of(current)
        self.totals.ledgers += 1
        self.totals.places += found.places
        self.totals.lacking_ledgers += not found.good
        return found

    async def _current(self, ledger_id: int) -> LedgerMetadata | None:
        try:
            return (await self._store.read_ledger(ledger_id, linearizable=True)).value
        except NoSuchLedger:
            return None

    async def _of(self, metadata: LedgerMetadata) -> LedgerCheck:
        found = LedgerCheck(metadata.ledger_id)
        for place in () if metadata.copies_released else places_of(metadata):
            if place.first > place.last:
                continue
            found.places += 1
            try:
                await self._look(metadata, place, found)
            except NoSuchLedger as error:
                # The bookie believes that it was deleted.
                found.note(Lack(place.bookie_id, place.first, place.last, ABSENT, error.message))
            except OtherLedger as error:
                found.note(Lack(place.bookie_id, place.first, place.last, OTHER, error.message))
            except PeerError as error:
                found.note(Lack(place.bookie_id, place.first, place.last, SILENT, error.message))
            except StorageError as error:
                found.note(Lack(place.bookie_id, place.first, place.last, UNKNOWN, error.message))
        if not metadata.closed:
            await self._look_where_it_grows(metadata, found)
        return found

    async def _look_where_it_grows(self, metadata: LedgerMetadata, found: LedgerCheck) -> None:
        """Tell the members of the last fragment that may have lost what they held of it, or know it to be damaged."""
        ledger_id, fragment = metadata.ledger_id, metadata.last_fragment
        first = last = fragment.first_entry_id
        without: list[tuple[int, str, str]] = []
        for position, name in enumerate(fragment.bookies):
            try:
                connection = await self._connections.get(name)
                if (await connection.held(ledger_id, first, first, identity=metadata.identity)).limbo:
                    without.append((position, UNKNOWN, LOST_WHERE_IT_GROWS))
                else:
                    for bad in await damaged_of(connection, ledger_id):
                        if bad.last >= first:
                            found.note(Lack(name, max(first, bad.first), bad.last, DAMAGED, KNOWN_DAMAGE))
                    last = max(last, (await connection.read_lac(ledger_id, identity=metadata.identity)).lac)
            except EntryAbsent:
                continue  # nothing is held there, and nothing need be
            except NoSuchLedger as error:
                without.append((position, ABSENT, error.message))
            except OtherLedger as error:
                without.append((position, OTHER, error.message))
            except PeerError as error:
                without.append((position, SILENT, error.message))
            except StorageError as error:
                without.append((position, UNKNOWN, error.message))
        for position, verdict, why in without:
            for gap in ranges_of(metadata.quorum, position, first, last):
                found.note(Lack(fragment.bookies[position], gap.first, gap.last, verdict, why))

    async def _look(self, metadata: LedgerMetadata, place: Place, found: LedgerCheck) -> None:
        connection = await self._connections.get(place.bookie_id)
        damaged = await damaged_of(connection, metadata.ledger_id)
        at = place.first
        while at <= place.last:
            answer = await connection.held(metadata.ledger_id, at, place.last, identity=metadata.identity)
            if answer.looked_up_to < at:
                raise ProtocolViolation(f"{place.bookie_id} looked at nothing of ledger {metadata.ledger_id}")
            end = min(answer.looked_up_to, place.last)
            wanted = partial(ranges_of, metadata.quorum, place.position, at, end)
            for gap in lacking(wanted(), answer.ranges):
                found.note(Lack(place.bookie_id, gap.first, gap.last, UNKNOWN if answer.limbo else ABSENT))
            for there in lacking(wanted(), lacking(wanted(), answer.ranges)):
                await self._look_at_copies(connection, metadata, there, damaged, found)
            at = end + 1

    async def _look_at_copies(
        self,
        connection: BookieConnection,
        metadata: LedgerMetadata,
        held: EntryRange,
        damaged: list[EntryRange],
        found: LedgerCheck,
    ) -> None:
        """Of entries that the bookie holds, those that it knows to be damaged; and if wanted, read the others."""
        good = list(lacking([held], damaged))
        for bad in lacking([held], good):
            found.note(Lack(connection.bookie_id, bad.first, bad.last, DAMAGED, KNOWN_DAMAGE))
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
                # Where the next batch begins is for the index to say.
                traced = await connection.trace(metadata.ledger_id, at, identity=metadata.identity)
                last = max(at, min(held.last, traced.last_entry_id))
                found.note(Lack(connection.bookie_id, at, last, DAMAGED, error.message))
                at = last + 1
            except StorageError as error:
                verdict = ABSENT if isinstance(error, EntryAbsent) else UNKNOWN
                found.note(Lack(connection.bookie_id, at, held.last, verdict, error.message))
                return

    async def _read_once(self, connection: BookieConnection, metadata: LedgerMetadata, at: int, last: int) -> int:
        """Read batches from the one that holds ``at``, and look at each; the entry behind the good ones.

        Raises:
            EntryCorrupt: the first one is not good.
        """
        begin, ledger_id = at, metadata.ledger_id
        answer = await connection.read_batches(ledger_id, at, last, READ_BYTES, identity=metadata.identity)
        for batch in answer.batches:
            try:
                header = verify_batch(batch)
            except InvalidBatch as error:
                if at > begin:
                    break
                raise EntryCorrupt(f"what {connection.bookie_id} sent is damaged: {error.message}") from error
            if header.ledger_id != ledger_id or not header.first_entry_id <= at <= header.last_entry_id:
                raise ProtocolViolation(
                    f"asked for entry {at} of ledger {ledger_id}, {connection.bookie_id} sent "
                    f"{header.first_entry_id} .. {header.last_entry_id} of ledger {header.ledger_id}"
                )
            self.totals.read_bytes += len(batch)
            at = header.last_entry_id + 1
        return at


async def damaged_of(connection: BookieConnection, ledger_id: int) -> list[EntryRange]:
    """What a bookie knows to be damaged of a ledger."""
    found: list[EntryRange] = []
    after = (ledger_id, -1)
    while True:
        page = await connection.damaged(after, DAMAGED_PAGE)
        found += [EntryRange(each.first_entry_id, each.last_entry_id) for each in page if each.ledger_id == ledger_id]
        if not page or page[-1].ledger_id != ledger_id:
            return found
        after = ledger_id, page[-1].first_entry_id


def _adjoins(before: Lack, after: Lack) -> bool:
    same = (before.bookie_id, before.verdict) == (after.bookie_id, after.verdict)
    grows = before.is_lost_where_it_grows != after.is_lost_where_it_grows
    return same and not grows and after.first == before.last + 1
