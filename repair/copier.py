"""Copies to one bookie what it lacks of one fragment replica, and verifies that it then lacks nothing.

The bookie reports from its index which entries it lacks, and keeps a list of damaged copies. A copy is the batch as it
was written, byte for byte, from another member of its write set. The copier verifies checksum and ids, and so does the
target. The replica is complete when a pass finds nothing missing.

Copying must not delay clients, so requests are small and the number in flight at each bookie is limited, however many
ledgers are copied (``bookie_limit.py``).

A *replacement bookie*, which the metadata do not name yet, may have old copies that were not read for long. They are
not trusted: the copier sends these entries again. A bookie that gets an entry that it has reads its own copy from disk,
compares, and takes the new one if its own is damaged.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable, Collection, Iterable, Sequence
from typing import Final, NamedTuple

from tallybook.client.connection.port import BookieConnection
from tallybook.client.ports import Connections
from tallybook.client.refusals import is_refusal
from tallybook.core.answers import DamagedBatch, EntryRange
from tallybook.core.batch import BatchHeader, verify_batch
from tallybook.core.buffers import Buffer
from tallybook.core.coverage import sometimes
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
from tallybook.core.quorum import Quorum
from tallybook.core.ranges import assigned_ranges, missing_ranges
from tallybook.metadata.ledger.model import LedgerMetadata
from tallybook.metadata.ledger.untrusted_copies import trusted_until, untrusted_bookies
from tallybook.runtime.clock import Clock
from tallybook.runtime.concurrency.backoff import Backoff
from tallybook.runtime.concurrency.rate_limit import RateLimiter
from tallybook.runtime.metrics.part_metrics import PartMetrics
from tallybook.runtime.rng import Rng
from tallybook.runtime.tasks import SideTask

from .bookie_limit import PerBookieLimit
from .needs import FragmentReplica

MAX_PASSES: Final = 3
"""Passes over one replica: one that copies, one that must find nothing missing, and one in reserve."""
READ_BYTES: Final = 256 * KIB
"""Bytes per read from a source. With 1 MiB, clients' reads waited longer, and copying took longer, too, because bookies
were idle in turns (``docs/understand/performance.md``)."""
PREFERRED_SOURCE_SECONDS: Final = 0.2
"""How long to wait for a slot at the source of the previous entries before another source is asked."""
READS_PER_BOOKIE: Final = 2
"""Reads in flight at one source."""
ADDS_PER_BOOKIE: Final = 4
"""Batches in flight to one target: they share group commits of its journal."""
BUSY_SECONDS: Final = 30.0
"""How long a target may answer BUSY before the copy fails. The wait for a slot does not count."""
MIN_PAUSE_SECONDS: Final = 0.01
DAMAGED_PAGE: Final = 100
ADDS_PER_REPLICA: Final = 16
"""Batches of one replica that are in flight or wait for a slot."""


class CopyResult(NamedTuple):
    """Amounts copied to a bookie."""

    batches: int
    size: int
    limbo: bool
    """Whether the bookie reported limbo: it may have lost entries of the ledger."""


def _ignore_size(_size: int) -> None:
    """The default for ``on_copied``."""


class Copier:
    """Copies batches between bookies.

    Args:
        pace: limits the bytes per second of all copying of this process.
        rng: jitter of pauses.
    """

    def __init__(self, connections: Connections, pace: RateLimiter, clock: Clock, rng: Rng) -> None:
        self._connections = connections
        self._pace = pace
        self._clock = clock
        self._rng = rng
        self._read_slots = PerBookieLimit(READS_PER_BOOKIE)
        self._add_slots = PerBookieLimit(ADDS_PER_BOOKIE)
        self.copied_batches = 0
        self.copied_bytes = 0

    async def copy_all(
        self,
        metadata: LedgerMetadata,
        replica: FragmentReplica,
        target: str,
        *,
        lost: Collection[str] = (),
        on_copied: Callable[[int], None] = _ignore_size,
    ) -> CopyResult:
        """Copy all of ``replica`` to a replacement bookie, including entries that it has, so that it verifies those.

        Args:
            lost: sources that are not worth waiting for if they do not answer.
            on_copied: called for each batch that was copied, with its length.

        Raises:
            As ``complete``. Copying stops at the first batch that is too large for ``target``.
        """
        connection = await self._connections.get(target)
        given = _CopiedRanges(metadata.quorum, replica, on_copied, all_or_nothing=True)
        missing = _MissingRanges(connection, metadata, replica, ())
        await self._copy(connection, metadata, replica, missing.gaps(), lost, given)
        # Verified last: if an entry is missing everywhere, each attempt fails before it reads all entries again.
        had = missing_ranges(
            assigned_ranges(metadata.quorum, replica.position, replica.first, replica.last), given.ranges
        )
        if await self._copy(connection, metadata, replica, _as_async(had), lost, given):
            sometimes("repair: a replacement has copies from before")
        return CopyResult(given.batches, given.size, missing.limbo)

    async def complete(
        self,
        metadata: LedgerMetadata,
        replica: FragmentReplica,
        target: str,
        *,
        lost: Collection[str] = (),
        damaged_too: bool = True,
        on_copied: Callable[[int], None] = _ignore_size,
    ) -> CopyResult:
        """Copy to ``target``, which the metadata name, what it lacks of ``replica``.

        Args:
            lost: sources that are not worth waiting for if they do not answer.
            on_copied: called for each batch that was copied, with its length.
            damaged_too: also replace copies that ``target`` knows to be damaged.

        Raises:
            EntryTooLarge: a missing batch is too large for ``target``. All others were copied.
            DataMissing: no source has a missing entry: all that should have it say so, or are lost.
            NoSuchLedger: the ledger was deleted meanwhile.
            OtherLedger: ``target`` holds another ledger with this id.
            PeerError, StorageError: not possible now: ``target`` or the sources do not answer, or cannot tell.
        """
        connection = await self._connections.get(target)
        given = _CopiedRanges(metadata.quorum, replica, on_copied)
        for _ in range(MAX_PASSES):
            damaged = await self._damaged(connection, metadata.ledger_id, given) if damaged_too else []
            missing = _MissingRanges(connection, metadata, replica, damaged)
            if not await self._copy(connection, metadata, replica, missing.gaps(), lost, given):
                return CopyResult(given.batches, given.size, missing.limbo)
        raise BookieUnavailable(f"{target} still lacks entries of ledger {metadata.ledger_id} that were copied to it")

    async def verify_copies(
        self,
        metadata: LedgerMetadata,
        replica: FragmentReplica,
        entries: Iterable[EntryRange],
        *,
        lost: Collection[str] = (),
        on_copied: Callable[[int], None] = _ignore_size,
    ) -> None:
        """Copy ``entries`` to the bookie of ``replica``, including those that it has, so that it compares these.

        Raises:
            Conflict: its copies differ from those of the other members.
            As ``complete`` otherwise.
        """
        connection = await self._connections.get(replica.bookie_id)
        given = _CopiedRanges(metadata.quorum, replica, on_copied)
        try:
            await self._copy(connection, metadata, replica, _as_async(entries), lost, given)
        except Conflict as error:
            what = f"ledger {metadata.ledger_id}: copies at {replica.bookie_id} differ from those of other members"
            raise Conflict(f"{what}: {error.message}") from error

    async def _copy(
        self,
        connection: BookieConnection,
        metadata: LedgerMetadata,
        replica: FragmentReplica,
        gaps: AsyncIterable[EntryRange],
        lost: Collection[str],
        given: _CopiedRanges,
    ) -> bool:
        """Copy the entries of ``gaps``; reads and adds overlap. Returns whether there were any gaps."""
        found = False
        async with SideTask() as giving:
            try:
                async for gap in gaps:
                    found = True
                    async for batches in self._batches(metadata, replica, gap, connection.bookie_id, lost):
                        await giving.start(self._add_group(connection, batches, given, metadata.identity))
            except TallybookError:
                # Batches that were read before are good, and may be the only ones: finish adding them. If an add fails,
                # that error is raised instead.
                await giving.result()
                raise
            await giving.result()
        given.check_taken()
        return found

    async def _add_group(
        self,
        connection: BookieConnection,
        batches: Sequence[tuple[BatchHeader, Buffer]],
        given: _CopiedRanges,
        identity: bytes,
    ) -> None:
        for at in range(0, len(batches), ADDS_PER_REPLICA):
            some = batches[at : at + ADDS_PER_REPLICA]
            outcomes = await asyncio.gather(
                *(self._add(connection, batch, identity) for _, batch in some), return_exceptions=True
            )
            for (header, batch), outcome in zip(some, outcomes, strict=True):
                given.note(header, len(batch), outcome)

    async def _damaged(self, connection: BookieConnection, ledger_id: int, given: _CopiedRanges) -> list[EntryRange]:
        """The damaged ranges of the bookie, without those copied since: the bookie updates its list with a delay."""
        found: list[DamagedBatch] = []
        after = (ledger_id, -1)
        while True:
            page = await connection.damaged(after, DAMAGED_PAGE)
            ours = [batch for batch in page if batch.ledger_id == ledger_id]
            found += ours
            if not ours or len(ours) < len(page):
                break
            after = (ledger_id, ours[-1].first_entry_id)
        ranges = (EntryRange(batch.first_entry_id, batch.last_entry_id) for batch in found)
        return list(missing_ranges(ranges, given.ranges))

    async def _batches(
        self, metadata: LedgerMetadata, replica: FragmentReplica, gap: EntryRange, target: str, lost: Collection[str]
    ) -> AsyncIterator[list[tuple[BatchHeader, Buffer]]]:
        """The batches that hold the entries of ``gap``, one read at a time, from any source."""
        at, source = gap.first, None
        while at <= gap.last:
            last = min(gap.last, metadata.quorum.stripe_end(at))
            found = []
            source, batches = await self._read(metadata, at, last, target, lost, source)
            for batch in batches:
                header = _checked(batch, metadata.ledger_id, at, replica)
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
        preferred: str | None,
    ) -> tuple[str, Sequence[Buffer]]:
        """Batches starting with the one that holds ``first``, and the source that they were read from.

        Args:
            preferred: the source of the previous entries.

        Raises:
            BookieUnavailable: no source has it now, but one that did not answer may have it.
            DataMissing: no source has it.
        """
        refusals: list[TallybookError] = []
        may_exist = False
        unasked = [source for source in metadata.bookies_of(first) if source != target]
        doubtful = untrusted_bookies(metadata, first)
        while unasked:
            believed = [source for source in unasked if source not in doubtful]
            if may_exist and not believed:
                break  # a source that did not answer may have the right copy: do not use a doubtful one
            # Lost sources are asked last.
            reachable = [source for source in believed if source not in lost] or believed
            # The source of the previous entries has the following ones in its read-ahead cache.
            slot = self._read_slots.acquire_any(
                reachable or unasked, preferred=preferred, preferred_seconds=PREFERRED_SOURCE_SECONDS
            )
            async with slot as source:
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
                    may_exist = may_exist or not (away or isinstance(error, EntryAbsent | EntryCorrupt | OtherLedger))
        reasons = "; ".join(error.message for error in refusals) or "there is no other copy"
        what = f"entry {first} of ledger {metadata.ledger_id} cannot be copied to {target}: {reasons}"
        if may_exist:
            raise BookieUnavailable(what)
        sometimes("repair: no copy is left")
        raise DataMissing(what)

    async def _read_from(self, source: str, metadata: LedgerMetadata, first: int, last: int) -> Sequence[Buffer]:
        connection = await self._connections.get(source)
        last = trusted_until(metadata, source, first, last)
        answer = await connection.read_batches(
            metadata.ledger_id, first, last, READ_BYTES, identity=metadata.identity, background=True
        )  # fmt: skip
        for batch in answer.batches:
            verify_batch(batch)
        if not answer.batches:
            raise ProtocolViolation(f"{source} answered a read of ledger {metadata.ledger_id} without a batch")
        return answer.batches

    async def _add(self, connection: BookieConnection, batch: Buffer, identity: bytes) -> None:
        await self._pace.spend(len(batch))
        deadline = self._clock.monotonic() + BUSY_SECONDS
        backoff = Backoff(self._clock, self._rng, first_s=MIN_PAUSE_SECONDS, deadline=deadline)
        while True:
            queued = self._clock.monotonic()
            async with self._add_slots.acquire_any([connection.bookie_id]):
                backoff.deadline += self._clock.monotonic() - queued
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
            if not await backoff.pause(max(busy.retry_after_ms / 1000, MIN_PAUSE_SECONDS)):
                # For example because its disk is full. A later repair tries again, or another bookie replaces it.
                raise busy


def _too_large(connection: BookieConnection, batch: Buffer) -> EntryTooLarge:
    return EntryTooLarge(
        f"{connection.bookie_id} does not accept a batch of {len(batch):,} bytes: raise its journal.max_commit_bytes"
    )


class _CopiedRanges:
    """The ranges of a replica that were copied. Ranges of neighbouring stripes are merged, to bound the memory.

    Args:
        all_or_nothing: a batch that is too large for the bookie makes the whole copy useless.
    """

    def __init__(
        self,
        quorum: Quorum,
        replica: FragmentReplica,
        on_copied: Callable[[int], None],
        *,
        all_or_nothing: bool = False,
    ) -> None:
        self._quorum = quorum
        self._replica = replica
        self._on_given = on_copied
        self._all_or_nothing = all_or_nothing
        self._ranges: list[EntryRange] = []
        self._refused: EntryUnknown | EntryTooLarge | None = None
        self.batches = 0
        self.size = 0

    def check_taken(self) -> None:
        """Check that the bookie took all batches.

        Raises:
            EntryUnknown, EntryTooLarge: it refused one.
        """
        if self._refused is not None:
            raise self._refused

    def note(self, header: BatchHeader, size: int, outcome: BaseException | None) -> None:
        """Add the outcome of one batch.

        Raises:
            ``outcome``, except errors after which other batches can still be copied: a lost part of the bookie's index
                (EntryUnknown), or a batch that is too large for it.
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
        """Whether the replica has entries between these two."""
        between = assigned_ranges(self._quorum, self._replica.position, after + 1, before - 1)
        return next(between, None) is not None

    @property
    def ranges(self) -> list[EntryRange]:
        """In ascending order. They include entries between stripes that do not belong to this replica."""
        return sorted(self._ranges)


class _MissingRanges:
    """The ranges of a replica that a bookie lacks, or of which it knows its copy to be damaged."""

    def __init__(
        self,
        connection: BookieConnection,
        metadata: LedgerMetadata,
        replica: FragmentReplica,
        damaged: Sequence[EntryRange],
    ) -> None:
        self._connection = connection
        self._metadata = metadata
        self._replica = replica
        self._damaged = damaged
        self.limbo = False

    async def gaps(self) -> AsyncIterator[EntryRange]:
        """The missing ranges. Asks the bookie for its inventory page by page."""
        ledger_id, replica = self._metadata.ledger_id, self._replica
        at = replica.first
        while at <= replica.last:
            answer = await self._connection.held(ledger_id, at, replica.last, identity=self._metadata.identity)
            self.limbo = self.limbo or answer.limbo
            if answer.looked_up_to < at:
                raise ProtocolViolation(f"{self._connection.bookie_id} sent an empty inventory of ledger {ledger_id}")
            end = min(answer.looked_up_to, replica.last)
            wanted = assigned_ranges(self._metadata.quorum, replica.position, at, end)
            for gap in missing_ranges(wanted, missing_ranges(answer.ranges, self._damaged)):
                yield gap
            at = end + 1


async def _as_async(gaps: Iterable[EntryRange]) -> AsyncIterator[EntryRange]:
    """Known gaps as an async iterator."""
    for gap in gaps:
        yield gap


def _checked(batch: Buffer, ledger_id: int, entry_id: int, replica: FragmentReplica) -> BatchHeader:
    """The header of a batch that a source sent for ``entry_id``.

    Raises:
        ProtocolViolation: it does not hold that entry, or crosses an end of the fragment, which no writer may do.
    """
    header = verify_batch(batch)
    fits = header.ledger_id == ledger_id and header.first_entry_id <= entry_id <= header.last_entry_id
    if not fits or header.last_entry_id > replica.last or header.first_entry_id < replica.first:
        raise ProtocolViolation(
            f"for entry {entry_id} of ledger {ledger_id} (fragment {replica.first} .. {replica.last}) a bookie sent "
            f"entries {header.first_entry_id} .. {header.last_entry_id} of ledger {header.ledger_id}"
        )
    return header


METRICS: Final = (
    PartMetrics[Copier]()
    .counter(
        "copied_batches",
        "tallybook_repair_copied_batches_total",
        "Batches copied to bookies.",
        lambda copier: copier.copied_batches,
    )
    .counter("copied_bytes", "tallybook_repair_copied_bytes_total", "Their bytes.", lambda copier: copier.copied_bytes)
)
