"""The reading handle of a ledger: ranges, single entries, and the tail.

Sequential reads are *sticky*: they stay with the bookie that served last, because its caches
are warm, until it fails or the write set changes. Whole batches travel; every byte is checked
here, against what the writer sealed, before a caller sees it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from tallybook.core.batch import BatchHeader, Buffer, Entry, entries, verify_batch
from tallybook.core.config import ClientSettings
from tallybook.core.errors import (
    Busy,
    EntryCorrupt,
    EntryUnknown,
    InvalidArgument,
    InvalidBatch,
    MetadataUnavailable,
    PeerError,
    ReadBeyondLac,
    StorageError,
    TallybookError,
    check,
)
from tallybook.core.ids import check_entry_id
from tallybook.metadata.model import LedgerMetadata
from tallybook.metadata.store import LedgerWatch
from tallybook.runtime.clock import Clock
from tallybook.runtime.tasks import Tasks

from ..bookie_port import BookieConnection
from ..ports import Connections
from .lac import highest_lac, wait_for_lac
from .machine import FailedLately, ReadAttempt, replica_order

T = TypeVar("T")

FAILURE_HELD_S: Final = 30.0
"""How long a bookie that did not answer a read is asked last."""

METADATA_AGE_S: Final = 30.0
"""Age at which a tail reads the metadata again although nothing told of a change."""


@dataclass(frozen=True, slots=True)
class ReaderContext:
    """What a handle shares with its client."""

    connections: Connections
    clock: Clock
    tasks: Tasks
    settings: ClientSettings
    read_metadata: Callable[[int], Awaitable[LedgerMetadata]]
    """Reads a ledger's metadata linearizably."""
    watch: Callable[[int], LedgerWatch]
    report: Callable[[str, int, int, TallybookError], None]
    """Told of a bad copy: bookie id, ledger id, entry id, error."""


@dataclass(slots=True)
class _Tail:
    """What one tail knows of the metadata."""

    watch: LedgerWatch
    read_at: float
    changed: bool = True
    """There may be a change that was not read yet, as at the start: the metadata are those of the opening."""
    store_away: bool = False
    """Whether the metadata store did not answer last time."""


class LedgerReader:
    """Reads one ledger up to its last add confirmed (LAC), which never falls."""

    def __init__(
        self, metadata: LedgerMetadata, context: ReaderContext, *, lac: int, digest_key: bytes | None = None
    ) -> None:
        self._metadata = metadata
        self._context = context
        self._digest_key = digest_key
        self._lac = metadata.last_entry_id if metadata.closed else lac
        self._preferred: str | None = None
        self._failed = FailedLately(FAILURE_HELD_S)

    @property
    def id(self) -> int:
        """The ledger's id."""
        return self._metadata.ledger_id

    @property
    def metadata(self) -> LedgerMetadata:
        """The ledger's metadata as last read."""
        return self._metadata

    @property
    def last_add_confirmed(self) -> int:
        """Highest entry id that may be read, -1 for none."""
        return self._lac

    @property
    def closed(self) -> bool:
        """Whether the end of the ledger is settled, as far as this handle knows."""
        return self._metadata.closed

    # -- ranges -----------------------------------------------------------------------

    async def read(self, first: int, last: int) -> AsyncIterator[Entry]:
        """The entries ``first .. last``, both included, in order.

        Raises:
            InvalidArgument: negative ids, or last < first.
            ReadBeyondLac: ``last`` lies past the last add confirmed.
            EntryCorrupt, EntryUnknown, DataMissing, BookieUnavailable: no replica has a good copy.
            Busy: all replicas stayed BUSY for as long as a request may take; read again later.
        """
        async for group in self.read_batches(first, last):
            for entry in group:
                yield entry

    async def read_batches(self, first: int, last: int) -> AsyncIterator[list[Entry]]:
        """Like ``read``, but hands out the entries of a batch at a time: cheaper for bulk."""
        self._check_range(first, last)
        ahead = self._spawn(self._fetch(first, last))
        try:
            while True:
                fetched = await ahead
                following = fetched[-1][0].last_entry_id + 1
                if following <= last:
                    # The next request travels while the caller works on this answer.
                    ahead = self._spawn(self._fetch(following, last))
                for header, batch in fetched:
                    yield entries(batch, header, first, last)
                if following > last:
                    return
        finally:
            ahead.cancel()
            await asyncio.gather(ahead, return_exceptions=True)

    def _spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        return self._context.tasks.spawn(work, name=f"reader-{self.id}")

    async def read_entry(self, entry_id: int) -> Entry:
        """One entry.

        Raises:
            As ``read``.
        """
        self._check_range(entry_id, entry_id)
        if self._digest_key is not None:
            # Only the whole batch carries the digest that a bookie cannot forge.
            header, batch = (await self._fetch(entry_id, entry_id))[0]
            return entries(batch, header, entry_id, entry_id)[0]

        async def ask(connection: BookieConnection) -> Entry:
            found = await connection.read_entry(self.id, entry_id)
            if (found.ledger_id, found.entry_id) != (self.id, entry_id):
                raise InvalidBatch(f"asked for entry {entry_id} of ledger {self.id}, got {found.entry_id}")
            return found.verify()

        return await self._from_any_replica(entry_id, ask)

    async def read_batch(self, entry_id: int) -> tuple[BatchHeader, Buffer]:
        """The verified batch that holds ``entry_id``, as the writer sealed it.

        Raises:
            As ``read``.
        """
        self._check_range(entry_id, entry_id)
        return (await self._fetch(entry_id, entry_id))[0]

    def _check_range(self, first: int, last: int) -> None:
        check_entry_id(first)
        check_entry_id(last)
        if last < first:
            raise InvalidArgument(f"the range {first} .. {last} is empty")
        if last > self._lac:
            raise ReadBeyondLac(f"ledger {self.id}: entry {last} lies past the last add confirmed, {self._lac}")

    async def _fetch(self, first: int, last: int) -> list[tuple[BatchHeader, Buffer]]:
        """Verified batches from the one that holds ``first``, as many as one request brings."""
        fragment_end = self._metadata.fragment_end(self._metadata.fragment_of(first))
        end = min(last, fragment_end, self._metadata.quorum.stripe_end(first))

        async def ask(connection: BookieConnection) -> list[tuple[BatchHeader, Buffer]]:
            answer = await connection.read_batches(self.id, first, end, self._context.settings.read_bytes)
            return self._verified(first, answer.batches)

        return await self._from_any_replica(first, ask)

    def _verified(self, first: int, batches: tuple[Buffer, ...]) -> list[tuple[BatchHeader, Buffer]]:
        """Check what a bookie sent; good batches before a bad one are kept.

        Raises:
            InvalidBatch: the first one is not a good copy of what was asked for.
        """
        found: list[tuple[BatchHeader, Buffer]] = []
        expected = first
        for batch in batches:
            try:
                header = verify_batch(batch, self._digest_key)
                # Later batches must follow without a gap; the first one must hold ``first``.
                starts = header.first_entry_id == expected if found else header.first_entry_id <= first
                if header.ledger_id != self.id or not starts or header.last_entry_id < expected:
                    raise InvalidBatch(
                        f"ledger {self.id}: batch from {header.first_entry_id} is not the one at {expected}"
                    )
            except InvalidBatch:
                if not found:
                    raise
                break
            found.append((header, batch))
            expected = header.last_entry_id + 1
        if not found:
            raise InvalidBatch(f"ledger {self.id}: an empty answer for entry {first}")
        return found

    async def _from_any_replica(self, entry_id: int, ask: Callable[[BookieConnection], Awaitable[T]]) -> T:
        attempt = self._attempt(entry_id)
        refreshed = False
        deadline = self._context.clock.monotonic() + self._context.settings.request_timeout_ms / 1000
        while True:
            bookie_id = attempt.next()
            if bookie_id is None:
                if await self._paused_for_busy(attempt, deadline):
                    attempt = self._attempt(entry_id)
                    continue
                # The metadata may be older than a repair: look once more before giving up.
                if refreshed or not await self._refreshed():
                    raise attempt.verdict()
                attempt, refreshed = self._attempt(entry_id), True
                continue
            try:
                result = await self._ask(bookie_id, ask)
            except (PeerError, StorageError) as error:
                attempt.failed(bookie_id, error)
                if isinstance(error, EntryCorrupt | EntryUnknown):
                    self._context.report(bookie_id, self.id, entry_id, error)
                elif isinstance(error, PeerError) and not isinstance(error, Busy):
                    self._failed.note(bookie_id, self._context.clock.monotonic())
                continue
            self._preferred = bookie_id
            self._failed.forgive(bookie_id)
            return result

    def _attempt(self, entry_id: int) -> ReadAttempt:
        failed = self._failed.now(self._context.clock.monotonic())
        order = replica_order(self._metadata.bookies_of(entry_id), self._preferred, failed)
        return ReadAttempt(self.id, entry_id, order)

    async def _paused_for_busy(self, attempt: ReadAttempt, deadline: float) -> bool:
        """If all replicas are BUSY, wait as long as they ask for; ``False`` if they are not, or time runs out."""
        if attempt.busy_pause_ms is None:
            return False
        clock = self._context.clock
        pause_s = max(attempt.busy_pause_ms, 1) / 1000
        if clock.monotonic() + pause_s >= deadline:
            return False
        await clock.sleep(pause_s)
        return True

    async def _refreshed(self) -> bool:
        try:
            return await self.refresh()
        except PeerError:
            # What the replicas said is the better message.
            return False

    async def _ask(self, bookie_id: str, ask: Callable[[BookieConnection], Awaitable[T]]) -> T:
        connection = await self._context.connections.get(bookie_id)
        try:
            return await ask(connection)
        except InvalidBatch as error:
            raise EntryCorrupt(f"bookie {bookie_id}: {error.message}") from error

    # -- last add confirmed and tail --------------------------------------------------

    async def refresh(self) -> bool:
        """Read the metadata again; say whether anything changed.

        Raises:
            NoSuchLedger: the ledger was deleted.
            MetadataUnavailable: the store does not answer.
        """
        before = self._metadata
        self._metadata = await self._context.read_metadata(self.id)
        if self._metadata.closed:
            self._lac = max(self._lac, self._metadata.last_entry_id)
        return self._metadata != before

    async def read_last_add_confirmed(self) -> int:
        """Ask the bookies for the last add confirmed; it never falls.

        Raises:
            BookieUnavailable: too few bookies answered to be sure.
        """
        if not self._metadata.closed:
            await self.refresh()
        if not self._metadata.closed:
            self._seen(await highest_lac(self._metadata, self._context.connections))
        return self._lac

    def _seen(self, lac: int) -> None:
        if not self._metadata.closed:
            self._lac = max(self._lac, lac)

    async def tail(self, first: int = 0) -> AsyncIterator[Entry]:
        """Entries from ``first`` on, as they are confirmed; ends when the ledger is closed and read.

        Raises:
            As ``read``; NoSuchLedger when the ledger is deleted meanwhile.
        """
        position = check_entry_id(first)
        tail = _Tail(self._context.watch(self.id), self._context.clock.monotonic())
        try:
            while True:
                if position <= self._lac:
                    async for group in self.read_batches(position, self._lac):
                        for entry in group:
                            yield entry
                        position = group[-1].entry_id + 1
                elif self._metadata.closed:
                    return
                else:
                    await self._wait_for_more(tail)
        finally:
            await tail.watch.close()

    async def _wait_for_more(self, tail: _Tail) -> None:
        """Return when the LAC moved, the metadata may have changed, or the poll ended."""
        check(not self._metadata.closed, f"ledger {self.id}: waiting for more of a closed ledger")
        clock = self._context.clock
        news = await wait_for_lac(
            self._metadata,
            self._context.connections,
            above=self._lac,
            # What may have changed is read at once; while the store is away the bookies are what there is to wait for.
            timeout_ms=0 if tail.changed and not tail.store_away else self._context.settings.tail_wait_ms,
            changed=tail.watch,
            clock=clock,
            tasks=self._context.tasks,
            retry_s=self._context.settings.reconnect_ms / 1000,
        )
        tail.changed = tail.changed or news.metadata_changed
        before = self._lac
        if news.answer is not None:
            self._seen(news.answer.lac)
        if self._lac > before:
            return
        fenced = news.answer is not None and news.answer.fenced
        if not (tail.changed or fenced or clock.monotonic() - tail.read_at >= METADATA_AGE_S):
            return
        try:
            await self.refresh()
        except MetadataUnavailable:
            # Nothing is known to have changed. The bookies still tell of new entries.
            tail.store_away = True
            await clock.sleep(self._context.settings.reconnect_ms / 1000)
            return
        tail.changed, tail.store_away, tail.read_at = False, False, clock.monotonic()
        if fenced and not self._metadata.closed:
            await self._wait_for_recovery(tail)

    async def _wait_for_recovery(self, tail: _Tail) -> None:
        """A recovery is under way. Fenced bookies answer every poll at once, so wait for the metadata instead."""
        try:
            async with asyncio.timeout(self._context.settings.tail_wait_ms / 1000):
                await tail.watch.changed()
        except TimeoutError:
            return
        tail.changed = True
