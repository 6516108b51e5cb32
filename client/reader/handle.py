"""The reading handle of a ledger: ranges, single entries, the last add confirmed, and the tail.

``fetcher`` gets entries from bookies or the archive, ``tail`` follows the ledger, ``view`` is what the reader knows of
it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Self, TypeVar

from tallybook.core.batch import BatchHeader, Entry
from tallybook.core.buffers import Buffer
from tallybook.core.errors import BookieUnavailable, InvalidArgument, ReadBeyondLac
from tallybook.core.ids import MAX_ID, check_entry_id
from tallybook.metadata.ledger.model import LedgerMetadata
from tallybook.runtime.concurrency.async_iterators import ResumableIterator
from tallybook.runtime.concurrency.handle_lifetime import Lifetime, while_open

from .context import ReaderContext
from .entries import Entries, EntryGroups
from .fetcher import EntryFetcher, FetchedBatches, VerifiedBatches
from .lac import highest_lac, reported_lac
from .tail import LedgerTail
from .view import LedgerView

T = TypeVar("T")


class LedgerReader:
    """Reads one ledger up to its last add confirmed (LAC), which never falls."""

    def __init__(
        self,
        metadata: LedgerMetadata,
        context: ReaderContext,
        *,
        lac: int,
        digest_key: bytes | None = None,
        archive_first: bool = False,
    ) -> None:
        self._context = context
        self._view = LedgerView(metadata, lac, context)
        self._fetcher = EntryFetcher(self._view, context, digest_key=digest_key, archive_first=archive_first)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Do nothing: a reader holds nothing that has to be closed."""

    @property
    def _lifetime(self) -> Lifetime:
        return self._context.lifetime

    @property
    def id(self) -> int:
        """The ledger's id."""
        return self._view.metadata.ledger_id

    @property
    def metadata(self) -> LedgerMetadata:
        """The ledger's metadata as last read."""
        return self._view.metadata

    @property
    def last_add_confirmed(self) -> int:
        """Highest entry id that may be read, -1 for none."""
        return self._view.lac

    @property
    def closed(self) -> bool:
        """Whether the ledger is closed, by the metadata as last read."""
        return self._view.metadata.closed

    # -- ranges -----------------------------------------------------------------------

    def read(self, first: int, last: int) -> Entries:
        """The entries ``first .. last``, both included, in order.

        Raises:
            InvalidArgument: negative ids, or last < first.
            ReadBeyondLac: ``last`` lies past the last add confirmed.
            EntryCorrupt, EntryUnknown, DataMissing: no replica has a good copy.
            PeerError, StorageError: no replica gave a good copy; this is the most serious of their errors. ``Busy``:
                all were busy for the request timeout; retry later.
            MetadataUnavailable, DamagedFile: no replica gave a good copy, and the current metadata cannot be read.
            NoSuchLedger: the ledger was deleted.
            HandleClosed: the client is closed.
            OtherLedger: no replica has a good copy, and a bookie has another ledger with this id.
        """
        return Entries(self.read_batches(first, last))

    def read_batches(self, first: int, last: int) -> EntryGroups:
        """Like ``read``, but yields the entries of one batch at a time, which is cheaper for bulk reads.

        Raises:
            As ``read``.
        """
        return EntryGroups(self._steps(self._range(first, last)))

    def read_sealed(self, first: int, last: int) -> ResumableIterator[VerifiedBatches]:
        """Whole verified batches as the writer sealed them, from the one with ``first`` to the one with ``last``.

        For copying a ledger: the batches are byte for byte those on the bookies.

        Raises:
            As ``read``.
        """
        pieces = self._range(first, last)

        async def batches() -> AsyncGenerator[VerifiedBatches, None]:
            async with aclosing(pieces()) as found:
                async for piece in found:
                    yield piece.batches

        return self._steps(batches)

    def read_unconfirmed(self, first: int, last: int | None = None) -> Entries:
        """Like ``read``, but also past the last add confirmed: entries on the bookies, up to the first gap.

        Shows entries that a writer has in flight, or left behind, without a recovery. Entries above the last add
        confirmed may disappear when the ledger is recovered. Past the end of a closed ledger there are none.

        Args:
            last: the last entry to read; ``None``: up to the first entry that every bookie says is absent.

        Raises:
            EntryAbsent: no bookie has this entry; all entries before it were yielded. Never without ``last``.
            As ``read`` otherwise, except ``ReadBeyondLac``.
        """
        return Entries(EntryGroups(self._steps(self._range(first, last, confirmed=False))))

    def _range(
        self, first: int, last: int | None, *, confirmed: bool = True
    ) -> Callable[[], AsyncGenerator[FetchedBatches, None]]:
        """A generator function that reads a range; called again after an error, it continues after the last entry."""
        position, end = first, MAX_ID if last is None else last

        async def pieces() -> AsyncGenerator[FetchedBatches, None]:
            nonlocal position
            if position > end >= first:
                return
            if confirmed:
                self._check_range(position, end)
            else:
                _check_ids(position, position if last is None else last)
            ahead = self._fetcher.read_ahead(position, last)
            try:
                while fetched := await ahead.next():
                    piece = FetchedBatches(fetched, position, end)
                    position = piece.behind
                    yield piece
            finally:
                await ahead.close()

        return pieces

    def _steps(self, source: Callable[[], AsyncGenerator[T, None]]) -> ResumableIterator[T]:
        """A resumable iterator over a range; without a waiting caller its reads are cancelled at once."""
        return ResumableIterator(source, self._context.spawner(self.id), self._context.lifetime, linger_s=0)

    @while_open
    async def read_entry(self, entry_id: int) -> Entry:
        """One entry.

        Raises:
            As ``read``.
        """
        self._check_range(entry_id, entry_id)
        return await self._fetcher.entry(entry_id)

    @while_open
    async def read_batch(self, entry_id: int) -> tuple[BatchHeader, Buffer]:
        """The verified batch that contains ``entry_id``, as the writer sealed it.

        Raises:
            As ``read``.
        """
        self._check_range(entry_id, entry_id)
        return (await self._fetcher.batches(entry_id, entry_id))[0]

    def _check_range(self, first: int, last: int) -> None:
        _check_ids(first, last)
        if last > self._view.lac:
            raise ReadBeyondLac(f"ledger {self.id}: entry {last} is after the last add confirmed, {self._view.lac}")

    # -- last add confirmed and tail --------------------------------------------------

    @while_open
    async def refresh(self) -> bool:
        """Read the metadata again; return whether they have changed. They never go back to an older version.

        Raises:
            NoSuchLedger: the ledger was deleted.
            MetadataUnavailable: the store does not answer.
            DamagedFile, NewerFormat: the metadata cannot be decoded.
        """
        return await self._view.refresh()

    @while_open
    async def read_last_add_confirmed(self) -> int:
        """Read the metadata, then ask the bookies for the last add confirmed; it never falls.

        Raises:
            BookieUnavailable: too few bookies answered.
            NoSuchLedger: the ledger was deleted.
            MetadataUnavailable, DamagedFile: the metadata cannot be read.
        """
        if not self._view.metadata.closed:
            await self.refresh()
        return await self.ask_last_add_confirmed()

    @while_open
    async def ask_last_add_confirmed(self) -> int:
        """Like ``read_last_add_confirmed``, but read the metadata only if too few bookies answer.

        The result is confirmed. It is the latest unless the ensemble has changed meanwhile.

        Raises:
            BookieUnavailable: too few bookies answered.
            NoSuchLedger: the ledger was deleted.
            DamagedFile, NewerFormat: the metadata cannot be read.
        """
        busy, refreshed = self._context.busy_backoff(), False
        while not self._view.metadata.closed:
            asked = self._view.metadata
            try:
                self._view.seen(await highest_lac(asked, self._context.connections, busy))
                break
            except BookieUnavailable:
                # The ensemble may have changed, or the ledger may be closed.
                if refreshed or not await self._view.changed_since(asked):
                    raise
                refreshed = True
        return self._view.lac

    @while_open
    async def try_read_last_add_confirmed(self) -> int:
        """Like ``read_last_add_confirmed``, but one answer of a bookie is enough, and the metadata are not read.

        The result is confirmed, but may not be the latest.

        Raises:
            BookieUnavailable: no bookie answered.
        """
        if not self._view.metadata.closed:
            busy = self._context.busy_backoff()
            self._view.seen(await reported_lac(self._view.metadata, self._context.connections, busy))
        return self._view.lac

    def tail(self, first: int = 0) -> Entries:
        """Follow the ledger: entries from ``first`` on, as they are confirmed. Ends at the end of the closed ledger.

        While the metadata store is unavailable, failed reads are retried: the ensemble may have changed.

        Raises:
            As ``read``; also NoSuchLedger if the ledger is deleted meanwhile, and DamagedFile if its metadata cannot be
                decoded. Never MetadataUnavailable.
        """
        return Entries(self.tail_batches(first))

    def tail_batches(self, first: int = 0) -> EntryGroups:
        """Like ``tail``, but yields the entries of one batch at a time, which is cheaper for bulk reads.

        Raises:
            As ``tail``.
        """
        tail = LedgerTail(first, self._view, self._fetcher, self._context)
        return EntryGroups(ResumableIterator(tail.pieces, self._context.spawner(self.id), self._context.lifetime))


def _check_ids(first: int, last: int) -> None:
    check_entry_id(first)
    check_entry_id(last)
    if last < first:
        raise InvalidArgument(f"the range {first} .. {last} is empty")
