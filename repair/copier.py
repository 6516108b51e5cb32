"""Gives one bookie what it lacks of one place: looks, copies verbatim, and looks again.

Whether something lacks is for the bookie to say, by its index; what is there and damaged, it keeps a list of. A copy is
the batch as it was written, byte for byte, taken from any other member of its write set; its checksum and its ids are
looked at on the way, and again by the bookie that takes it. The place is complete when a look finds nothing lacking.

A bookie has users, too, who wait for its answers: requests are small, and few of them are at one bookie at a time,
however many ledgers are copied (``bookie_limit.py``).

A *newcomer*, whom the metadata do not name yet, may have copies from long ago, which nobody has read since. They count
for nothing before they are proven: it is given them once more, and a bookie that is given what it has reads that from
its disk and compares, and takes the new copy where its own is damaged.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable, Collection, Iterable, Sequence
from typing import Final, NamedTuple

from tallybook.client.bookie_port import BookieConnection
from tallybook.client.ports import Connections
from tallybook.client.refusals import is_refusal
from tallybook.core.answers import DamagedBatch, EntryRange
from tallybook.core.batch import BatchHeader, Buffer, verify_batch
from tallybook.core.errors import (
    BookieUnavailable,
    Busy,
    Conflict,
    DataMissing,
    EntryAbsent,
    EntryCorrupt,
    EntryTooLarge,
    EntryUnknown,
    InvalidBatch,
    OtherLedger,
    PeerError,
    ProtocolViolation,
    StorageError,
    TallybookError,
)
from tallybook.core.limits import KIB
from tallybook.core.marks import sometimes
from tallybook.core.quorum import Quorum
from tallybook.core.ranges import lacking, ranges_of
from tallybook.metadata.doubt import believed_to, in_doubt
from tallybook.metadata.model import LedgerMetadata
from tallybook.runtime.clock import Clock
from tallybook.runtime.pace import Pace
from tallybook.runtime.tasks import Beside

from .bookie_limit import BookieLimit
from .needs import Place

LOOKS: Final = 3
"""Looks at one place: the one before copying, the one that must find nothing, and one more."""
READ_BYTES: Final = 256 * KIB
"""Asked of a source at a time. With 1 MiB, users' reads waited longer, and copying took longer, too: bookies were left
with nothing to do in turns (``docs/performance.md``)."""
STAY_SECONDS: Final = 0.2
"""How long to wait for the source that gave what is before, rather than ask another one."""
READS_AT_ONE: Final = 2
"""Reads at one source at a time."""
GIVES_AT_ONE: Final = 4
"""Batches on their way to one bookie at a time: they share commits of its journal."""
BUSY_SECONDS: Final = 30.0
"""How long a bookie may be too busy for a copy before it is left for later; its wait for a place does not count."""
SHORTEST_PAUSE_SECONDS: Final = 0.01
DAMAGED_AT_ONCE: Final = 100
GIVEN_AT_ONCE: Final = 16
"""Batches of one place that are given, or wait for their turn, at a time."""


class Copied(NamedTuple):
    """What was given to a bookie."""

    batches: int
    size: int
    limbo: bool
    """Whether the bookie had said that something of the ledger may be lost there."""


def _nobody_asks(_size: int) -> None:
    """How much was given so far is of no interest."""


class Copier:
    """Copies batches between bookies.

    Args:
        pace: of all copying of this process, in bytes.
    """

    def __init__(self, connections: Connections, pace: Pace, clock: Clock) -> None:
        self._connections = connections
        self._pace = pace
        self._clock = clock
        self._reads = BookieLimit(READS_AT_ONE)
        self._gives = BookieLimit(GIVES_AT_ONE)
        self.copied_batches = 0
        self.copied_bytes = 0

    async def give_all(
        self,
        metadata: LedgerMetadata,
        place: Place,
        target: str,
        *,
        lost: Collection[str] = (),
        on_given: Callable[[int], None] = _nobody_asks,
    ) -> Copied:
        """Give a newcomer all of ``place``, and prove what it had before.

        Args:
            lost: bookies that are not waited for: their silence leaves no hope.
            on_given: called for each batch that was given, with its length.

        Raises:
            As ``complete``; it is given nothing more after a batch that is too large for it.
        """
        connection = await self._connections.get(target)
        given = _Given(metadata.quorum, place, on_given, all_or_nothing=True)
        look = _Look(connection, metadata, place, ())
        await self._copy(connection, metadata, place, look.gaps(), lost, given)
        # Last, so that where something lacks for good, not all is read again at each attempt.
        had = lacking(ranges_of(metadata.quorum, place.position, place.first, place.last), given.ranges)
        if await self._copy(connection, metadata, place, _told(had), lost, given):
            sometimes("repair: a newcomer has copies from before")
        return Copied(given.batches, given.size, look.limbo)

    async def complete(
        self,
        metadata: LedgerMetadata,
        place: Place,
        target: str,
        *,
        lost: Collection[str] = (),
        damaged_too: bool = True,
        on_given: Callable[[int], None] = _nobody_asks,
    ) -> Copied:
        """Make sure that ``target``, which the metadata name, holds all that belongs to ``place``.

        Args:
            lost: bookies that are not waited for: their silence leaves no hope.
            on_given: called for each batch that was given, with its length.
            damaged_too: replace what it knows to be damaged; what it was just given need not be asked for.

        Raises:
            EntryTooLarge: ``target`` takes no batches as large as one that lacks; it was given all others.
            DataMissing: no other bookie has an entry that lacks: all that should have it say so, or are lost.
            NoSuchLedger: the ledger was deleted meanwhile.
            OtherLedger: ``target`` holds another ledger of this id.
            PeerError, StorageError: it cannot be done now: ``target`` or the sources do not answer, or cannot tell.
        """
        connection = await self._connections.get(target)
        given = _Given(metadata.quorum, place, on_given)
        for _ in range(LOOKS):
            damaged = await self._damaged(connection, metadata.ledger_id, given) if damaged_too else []
            look = _Look(connection, metadata, place, damaged)
            if not await self._copy(connection, metadata, place, look.gaps(), lost, given):
                return Copied(given.batches, given.size, look.limbo)
        raise BookieUnavailable(f"{target} still lacks entries of ledger {metadata.ledger_id} that it was given")

    async def prove(
        self,
        metadata: LedgerMetadata,
        place: Place,
        entries: Iterable[EntryRange],
        *,
        lost: Collection[str] = (),
        on_given: Callable[[int], None] = _nobody_asks,
    ) -> None:
        """Give the bookie of ``place`` some of its entries, also what it has of them: that it compares.

        Raises:
            Conflict: it has other bytes than the other members.
            As ``complete`` otherwise.
        """
        connection = await self._connections.get(place.bookie_id)
        given = _Given(metadata.quorum, place, on_given)
        try:
            await self._copy(connection, metadata, place, _told(entries), lost, given)
        except Conflict as error:
            what = f"{place.bookie_id} holds other bytes of ledger {metadata.ledger_id} than its other members"
            raise Conflict(f"{what}: {error.message}") from error

    async def _copy(
        self,
        connection: BookieConnection,
        metadata: LedgerMetadata,
        place: Place,
        gaps: AsyncIterable[EntryRange],
        lost: Collection[str],
        given: _Given,
    ) -> bool:
        """Give it what lacks, as far as it can take it; what comes next is read meanwhile. Whether anything lacked."""
        found = False
        async with Beside() as giving:
            try:
                async for gap in gaps:
                    found = True
                    async for batches in self._batches(metadata, place, gap, connection.bookie_id, lost):
                        await giving.start(self._give_some(connection, batches, given, metadata.identity))
            except TallybookError:
                # What was read before is good, and may be all that is left: it is given. If that fails, that is told.
                await giving.result()
                raise
            await giving.result()
        given.check_taken()
        return found

    async def _give_some(
        self,
        connection: BookieConnection,
        batches: Sequence[tuple[BatchHeader, Buffer]],
        given: _Given,
        identity: bytes,
    ) -> None:
        for at in range(0, len(batches), GIVEN_AT_ONCE):
            some = batches[at : at + GIVEN_AT_ONCE]
            outcomes = await asyncio.gather(
                *(self._give(connection, batch, identity) for _, batch in some), return_exceptions=True
            )
            for (header, batch), outcome in zip(some, outcomes, strict=True):
                given.note(header, len(batch), outcome)

    async def _damaged(self, connection: BookieConnection, ledger_id: int, given: _Given) -> list[EntryRange]:
        """What the bookie holds damaged, apart from what it was given since: its list follows later."""
        found: list[DamagedBatch] = []
        after = (ledger_id, -1)
        while True:
            page = await connection.damaged(after, DAMAGED_AT_ONCE)
            ours = [batch for batch in page if batch.ledger_id == ledger_id]
            found += ours
            if not ours or len(ours) < len(page):
                break
            after = (ledger_id, ours[-1].first_entry_id)
        ranges = (EntryRange(batch.first_entry_id, batch.last_entry_id) for batch in found)
        return list(lacking(ranges, given.ranges))

    async def _batches(
        self, metadata: LedgerMetadata, place: Place, gap: EntryRange, target: str, lost: Collection[str]
    ) -> AsyncIterator[list[tuple[BatchHeader, Buffer]]]:
        """The batches that hold the entries of ``gap``, from whoever has them, as many as are read at a time."""
        at, source = gap.first, None
        while at <= gap.last:
            last = min(gap.last, metadata.quorum.stripe_end(at))
            found = []
            source, batches = await self._read(metadata, at, last, target, lost, source)
            for batch in batches:
                header = _checked(batch, metadata.ledger_id, at, place)
                found.append((header, batch))
                at = header.last_entry_id + 1
                if at > last:
                    break
            yield found

    async def _read(
        self,
        metadata: LedgerMetadata,
        first: int,
        last: int,
        target: str,
        lost: Collection[str],
        rather: str | None,
    ) -> tuple[str, Sequence[Buffer]]:
        """Batches from the one that holds ``first``, from the first source that gives it, and which one that is."""
        refusals: list[TallybookError] = []
        hope = False
        unasked = [source for source in metadata.bookies_of(first) if source != target]
        doubtful = in_doubt(metadata, first)
        while unasked:
            believed = [source for source in unasked if source not in doubtful]
            if hope and not believed:
                break  # a copy that may be the right one is not to be had now
            # Who is lost is asked last: others answer sooner.
            there = [source for source in believed if source not in lost] or believed
            # Who gave what is before has what follows in memory by now.
            places = self._reads.one_of(there or unasked, rather=rather, patience_seconds=STAY_SECONDS)
            async with places as source:
                unasked.remove(source)
                try:
                    return source, await self._read_from(source, metadata, first, last)
                except InvalidBatch as error:
                    refusals.append(EntryCorrupt(f"{source} sent a damaged batch: {error.message}"))
                except TallybookError as error:
                    if not (isinstance(error, PeerError | StorageError | OtherLedger) or is_refusal(error)):
                        raise
                    refusals.append(error)
                    away = isinstance(error, PeerError) and source in lost
                    hope = hope or not (away or isinstance(error, EntryAbsent | EntryCorrupt | OtherLedger))
        told = "; ".join(error.message for error in refusals) or "there is no other copy"
        what = f"entry {first} of ledger {metadata.ledger_id} cannot be copied to {target}: {told}"
        if hope:
            raise BookieUnavailable(what)
        sometimes("repair: no copy is left")
        raise DataMissing(what)

    async def _read_from(self, source: str, metadata: LedgerMetadata, first: int, last: int) -> Sequence[Buffer]:
        connection = await self._connections.get(source)
        last = believed_to(metadata, source, first, last)
        answer = await connection.read_batches(
            metadata.ledger_id, first, last, READ_BYTES, identity=metadata.identity
        )  # fmt: skip
        for batch in answer.batches:
            verify_batch(batch)
        if not answer.batches:
            raise ProtocolViolation(f"{source} answered a read of ledger {metadata.ledger_id} with nothing")
        return answer.batches

    async def _give(self, connection: BookieConnection, batch: Buffer, identity: bytes) -> None:
        await self._pace.spend(len(batch))
        waited = 0.0
        while True:
            async with self._gives.one_of([connection.bookie_id]):
                asked = self._clock.monotonic()
                try:
                    await connection.repair_add(bytes(batch), identity=identity)
                except Busy as error:
                    busy = error
                except EntryTooLarge as error:
                    raise _too_large(connection, batch) from error
                else:
                    self.copied_batches += 1
                    self.copied_bytes += len(batch)
                    return
            pause = max(busy.retry_after_ms / 1000, SHORTEST_PAUSE_SECONDS)
            waited += self._clock.monotonic() - asked + pause
            if waited > BUSY_SECONDS:
                # For long, as where its disk is full: another bookie takes the place, or it is tried another time.
                raise busy
            await self._clock.sleep(pause)


def _too_large(connection: BookieConnection, batch: Buffer) -> EntryTooLarge:
    return EntryTooLarge(
        f"{connection.bookie_id} takes no batch of {len(batch):,} bytes: raise its journal.max_commit_bytes"
    )


class _Given:
    """What a bookie was given of a place. A place of many stripes takes no more room than one of a few.

    Args:
        all_or_nothing: what it is given serves nothing if it cannot take a batch because of its size.
    """

    def __init__(
        self, quorum: Quorum, place: Place, on_given: Callable[[int], None], *, all_or_nothing: bool = False
    ) -> None:
        self._quorum = quorum
        self._place = place
        self._on_given = on_given
        self._all_or_nothing = all_or_nothing
        self._ranges: list[EntryRange] = []
        self._refused: EntryUnknown | EntryTooLarge | None = None
        self.batches = 0
        self.size = 0

    def check_taken(self) -> None:
        """See whether all was taken.

        Raises:
            EntryUnknown, EntryTooLarge: why some was not.
        """
        if self._refused is not None:
            raise self._refused

    def note(self, header: BatchHeader, size: int, outcome: BaseException | None) -> None:
        """One more batch, and how the bookie took it.

        Raises:
            ``outcome``, unless it says that a part of the bookie's index is lost, or that the batch is too large for
                it: others can be given back there.
        """
        if isinstance(outcome, EntryUnknown) or (isinstance(outcome, EntryTooLarge) and not self._all_or_nothing):
            self._refused = outcome
            return
        if outcome is not None:
            raise outcome
        self.batches += 1
        self.size += size
        self._on_given(size)
        new = EntryRange(header.first_entry_id, header.last_entry_id)
        if self._ranges and self._ranges[-1].last < new.first and not self._wants(self._ranges[-1].last, new.first):
            self._ranges[-1] = EntryRange(self._ranges[-1].first, new.last)
        else:
            self._ranges.append(new)

    def _wants(self, after: int, before: int) -> bool:
        """Whether the place has entries between these two."""
        between = ranges_of(self._quorum, self._place.position, after + 1, before - 1)
        return next(between, None) is not None

    @property
    def ranges(self) -> list[EntryRange]:
        """Ascending; with entries between stripes, which are not for this place."""
        return sorted(self._ranges)


class _Look:
    """One look at what a bookie lacks of a place."""

    def __init__(
        self, connection: BookieConnection, metadata: LedgerMetadata, place: Place, damaged: Sequence[EntryRange]
    ) -> None:
        self._connection = connection
        self._metadata = metadata
        self._place = place
        self._damaged = damaged
        self.limbo = False

    async def gaps(self) -> AsyncIterator[EntryRange]:
        """What lacks, a page of the bookie's answer at a time."""
        ledger_id, place = self._metadata.ledger_id, self._place
        at = place.first
        while at <= place.last:
            answer = await self._connection.held(ledger_id, at, place.last, identity=self._metadata.identity)
            self.limbo = self.limbo or answer.limbo
            if answer.looked_up_to < at:
                raise ProtocolViolation(f"{self._connection.bookie_id} looked at nothing of ledger {ledger_id}")
            end = min(answer.looked_up_to, place.last)
            wanted = ranges_of(self._metadata.quorum, place.position, at, end)
            for gap in lacking(wanted, lacking(answer.ranges, self._damaged)):
                yield gap
            at = end + 1


async def _told(gaps: Iterable[EntryRange]) -> AsyncIterator[EntryRange]:
    """Gaps that are known without a question."""
    for gap in gaps:
        yield gap


def _checked(batch: Buffer, ledger_id: int, entry_id: int, place: Place) -> BatchHeader:
    """The header of a batch that was asked for.

    Raises:
        ProtocolViolation: it is another batch, or crosses an end of the fragment: nobody may have written such a one.
    """
    header = verify_batch(batch)
    fits = header.ledger_id == ledger_id and header.first_entry_id <= entry_id <= header.last_entry_id
    if not fits or header.last_entry_id > place.last or header.first_entry_id < place.first:
        raise ProtocolViolation(
            f"asked for entry {entry_id} of ledger {ledger_id}, in {place.first} .. {place.last}, "
            f"a bookie sent {header.first_entry_id} .. {header.last_entry_id} of ledger {header.ledger_id}"
        )
    return header
