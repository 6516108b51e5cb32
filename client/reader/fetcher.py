"""Fetches entries: from the replicas of the ledger, or from its archive object.

Bookies send whole batches, and each is verified against the digest of the writer. Sequential reads are *sticky*: they
stay with the bookie that served last, because its caches are warm, until it fails or the write set changes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar, cast

from tallybook.core.batch import BatchHeader, Entry, entries, verify_batch
from tallybook.core.buffers import Buffer
from tallybook.core.coverage import sometimes
from tallybook.core.errors import (
    ArchiveKeyMissing,
    ArchiveUnavailable,
    CallerError,
    EntryAbsent,
    EntryCorrupt,
    InvalidBatch,
    NewerFormat,
    ObjectDamaged,
    ObjectMissing,
    PeerError,
    StorageError,
    TallybookError,
    check,
    is_defect,
)
from tallybook.core.ids import MAX_ID
from tallybook.metadata.ledger.archived import Receipt
from tallybook.metadata.ledger.untrusted_copies import trusted_until
from tallybook.runtime.tracing.port import begin

from ..connection.port import BookieConnection
from ..ports import LedgerArchive
from ..spans import READ
from .context import ReaderContext
from .machine import ReadAttempt, SpeculationPolicy
from .replicas import Replicas
from .view import LedgerView

T = TypeVar("T")

VerifiedBatches: TypeAlias = list[tuple[BatchHeader, Buffer]]
"""Consecutive verified batches with their headers."""

MAX_METADATA_RETRIES: Final = 3
"""Archive objects that are tried for one read. Archive compaction moves a ledger once in hours."""


class FetchedBatches(NamedTuple):
    """Batches of one answer, and the range of entries to yield from them."""

    batches: VerifiedBatches
    first: int
    last: int

    @property
    def behind(self) -> int:
        """The next entry after these."""
        return min(self.batches[-1][0].last_entry_id, self.last) + 1


class EntryFetcher:
    """Fetches verified batches and entries of one ledger.

    Args:
        digest_key: verifies batches if the ledger's digest is an HMAC.
        archive_first: ask bookies only for entries that the archive cannot give.
    """

    def __init__(
        self, view: LedgerView, context: ReaderContext, *, digest_key: bytes | None, archive_first: bool
    ) -> None:
        self._view = view
        self._ledger_id = view.metadata.ledger_id
        self._identity = view.metadata.identity
        self._context = context
        self._digest_key = digest_key
        self._archive_first = archive_first
        pace = SpeculationPolicy(context.settings.speculative_read_ms / 1000)
        self._replicas = Replicas(context.connections, context.clock, pace, context.report, context.counters)

    def read_ahead(self, first: int, last: int | None) -> LedgerReadAhead:
        """Fetch a range, one request ahead of the caller; see ``LedgerReadAhead``."""
        return LedgerReadAhead(first, last, self.batches, self._context.spawner(self._ledger_id))

    async def batches(self, first: int, last: int) -> VerifiedBatches:
        """Verified batches from the one that contains ``first``, as many as one request returns."""

        async def ask(connection: BookieConnection) -> VerifiedBatches:
            # Computed for each request: the metadata may have been read again meanwhile.
            fragment_end = self._view.metadata.fragment_end(self._view.metadata.fragment_of(first))
            end = min(last, fragment_end, self._view.metadata.quorum.stripe_end(first))
            end = trusted_until(self._view.metadata, connection.bookie_id, first, end)
            answer = await connection.read_batches(
                self._ledger_id,
                first,
                end,
                self._context.settings.read_bytes,
                identity=self._identity,
                background=self._context.background,
            )
            return self.verified(first, answer.batches)

        async def unpack(archive: LedgerArchive, receipt: Receipt) -> VerifiedBatches:
            found = await archive.batches(receipt, self._ledger_id, first, last, self._context.settings.read_bytes)
            return self.verified(first, tuple(batch for _, batch in found))

        return await self._traced(first, self._from_either(first, ask, unpack))

    async def entry(self, entry_id: int) -> Entry:
        """One verified entry."""
        if self._digest_key is not None:
            # The HMAC, which a bookie cannot forge, covers the whole batch.
            header, batch = (await self.batches(entry_id, entry_id))[0]
            return entries(batch, header, entry_id, entry_id)[0]

        async def ask(connection: BookieConnection) -> Entry:
            found = await connection.read_entry(self._ledger_id, entry_id, identity=self._identity)
            if (found.ledger_id, found.entry_id) != (self._ledger_id, entry_id):
                raise InvalidBatch(f"asked for entry {entry_id} of ledger {self._ledger_id}, got {found.entry_id}")
            return found.verify()

        async def unpack(archive: LedgerArchive, receipt: Receipt) -> Entry:
            return await archive.entry(receipt, self._ledger_id, entry_id)

        return await self._traced(entry_id, self._from_either(entry_id, ask, unpack))

    def verified(self, first: int, batches: tuple[Buffer, ...]) -> VerifiedBatches:
        """Verify the batches of an answer; see ``verified``."""
        return verified(self._ledger_id, first, batches, self._digest_key)

    async def _traced(self, entry_id: int, reading: Awaitable[T]) -> T:
        with begin(self._context.tracer, READ, ledger_id=self._ledger_id, first_entry_id=entry_id):
            return await reading

    async def _from_either(
        self,
        entry_id: int,
        ask: Callable[[BookieConnection], Awaitable[T]],
        unpack: Callable[[LedgerArchive, Receipt], Awaitable[T]],
    ) -> T:
        """Read from bookies, or from the archive if bookies may have dropped the ledger or cannot return the entry."""
        archive, failure = self._context.archive, None
        if (
            archive is not None
            and self._archive_first
            and self._view.metadata.archived
            and not self._view.metadata.copies_released
        ):
            try:
                return await self._from_archive(archive, unpack)
            except (PeerError, StorageError, ArchiveKeyMissing):
                return await self._from_any_replica(entry_id, ask)
        if archive is None or not self._view.metadata.copies_released:
            try:
                return await self._from_any_replica(entry_id, ask)
            except TallybookError as error:
                beyond = self._view.metadata.closed and entry_id > self._view.metadata.last_entry_id
                if archive is None or self._view.metadata.archived is None or beyond or is_defect(error):
                    raise
                sometimes("read: the archive stands in for bookies")
                failure = error
        try:
            return await self._from_archive(archive, unpack)
        except (PeerError, StorageError, CallerError) as error:
            if failure is not None:
                # The bookies should still have the entry, so their failure is the one to report.
                failure.settled = failure.settled and not isinstance(error, PeerError)
                raise failure from error
            raise

    async def _from_archive(
        self, archive: LedgerArchive, unpack: Callable[[LedgerArchive, Receipt], Awaitable[T]]
    ) -> T:
        """Read from the ledger's archive object; from its new object if the ledger has moved meanwhile."""
        for _ in range(MAX_METADATA_RETRIES):
            receipt = self._view.metadata.archived
            check(receipt is not None, f"ledger {self._ledger_id} is read from the archive, but is not archived")
            try:
                return await unpack(archive, cast("Receipt", receipt))
            except InvalidBatch as error:
                # The archive reader cannot check an HMAC, since it does not have the password.
                raise EntryCorrupt(
                    f"ledger {self._ledger_id}: the archive has a damaged batch: {error.message}"
                ) from error
            except (ObjectMissing, ObjectDamaged):
                await self._view.refresh()
                if self._view.metadata.archived == receipt:
                    raise
                sometimes("read: the archive object has moved")
        raise ArchiveUnavailable(
            f"ledger {self._ledger_id} has moved to another archive object during each of {MAX_METADATA_RETRIES} reads"
        )

    async def _from_any_replica(self, entry_id: int, ask: Callable[[BookieConnection], Awaitable[T]]) -> T:
        busy, refreshed = self._context.busy_backoff(), False
        while True:
            known, attempt = self._view.metadata, self._attempt(entry_id)
            found = await self._replicas.search(attempt, ask)
            if found is not None:
                return found.value
            if attempt.busy_pause_ms is None or not await busy.pause(attempt.busy_pause_ms / 1000):
                # The metadata may be older than a repair: refresh once before giving up. If all replicas say ABSENT,
                # the refresh must succeed; otherwise the error of the replicas is the better message.
                if refreshed or not await self._view.changed_since(known, needed=attempt.all_absent):
                    raise attempt.verdict()
                refreshed = True

    def _attempt(self, entry_id: int) -> ReadAttempt:
        metadata = self._view.metadata
        if metadata.closed and entry_id > metadata.last_entry_id:
            # A bookie may still have entries past the end.
            raise EntryAbsent(f"ledger {self._ledger_id} ends at entry {metadata.last_entry_id}, before {entry_id}")
        return self._replicas.attempt(metadata, entry_id, confirmed=entry_id <= self._view.lac)


def verified(ledger_id: int, first: int, batches: Sequence[Buffer], digest_key: bytes | None) -> VerifiedBatches:
    """Verify the batches of a bookie's answer; good batches before a bad one are kept.

    Raises:
        InvalidBatch: the first batch is damaged, or does not contain the requested entry.
        NewerFormat: the first batch has a format of a later version.
    """
    found: VerifiedBatches = []
    expected = first
    for batch in batches:
        try:
            header = verify_batch(batch, digest_key)
            # The first batch must contain ``first``; later ones must follow without a gap.
            starts = header.first_entry_id == expected if found else header.first_entry_id <= first
            if header.ledger_id != ledger_id or not starts or header.last_entry_id < expected:
                raise InvalidBatch(
                    f"ledger {ledger_id}: batch from {header.first_entry_id} is not the one at {expected}"
                )
        except (InvalidBatch, NewerFormat):
            if not found:
                raise
            break
        found.append((header, batch))
        expected = header.last_entry_id + 1
    if not found:
        raise InvalidBatch(f"ledger {ledger_id}: an empty answer for entry {first}")
    return found


class LedgerReadAhead:
    """The batches from the one with ``first`` to the one with ``last``, read one request ahead of the caller.

    Not an async generator: the event loop finalizes a dropped generator at an arbitrary time, and nested generators
    that are finalized at the same time interfere with each other.

    Args:
        last: ``None``: up to the first entry that no bookie has.
        fetch: reads some batches between a first and a last entry.
        spawn: runs it in the background.
    """

    def __init__(
        self,
        first: int,
        last: int | None,
        fetch: Callable[[int, int], Coroutine[Any, Any, VerifiedBatches]],
        spawn: Callable[[Coroutine[Any, Any, VerifiedBatches]], asyncio.Task[VerifiedBatches]],
    ) -> None:
        self._last = last
        self._end = MAX_ID if last is None else last
        self._fetch = fetch
        self._spawn = spawn
        self._ahead: asyncio.Task[VerifiedBatches] | None = spawn(fetch(first, self._end))

    async def next(self) -> VerifiedBatches:
        """The next batches; none at the end.

        Raises:
            Errors of ``fetch``, except ``EntryAbsent`` if the range has no end.
        """
        if self._ahead is None:
            return []
        try:
            fetched = await self._ahead
        except EntryAbsent:
            if self._last is None:
                return []
            raise
        following = fetched[-1][0].last_entry_id + 1
        # The next request is sent while the caller processes this answer.
        self._ahead = self._spawn(self._fetch(following, self._end)) if following <= self._end else None
        return fetched

    async def close(self) -> None:
        """Cancel the read in progress."""
        if self._ahead is not None:
            self._ahead.cancel()
            await asyncio.gather(self._ahead, return_exceptions=True)
