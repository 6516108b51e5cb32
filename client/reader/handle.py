"""The reading handle of a ledger: ranges, single entries, and the tail.

Sequential reads are *sticky*: they stay with the bookie that served last, because its caches
are warm, until it fails or the write set changes. Whole batches travel; every byte is checked
here, against what the writer sealed, before a caller sees it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final, TypeVar, cast

from tallybook.core.answers import LacAnswer
from tallybook.core.batch import BatchHeader, Buffer, Entry, entries
from tallybook.core.errors import (
    ArchiveKeyMissing,
    ArchiveUnavailable,
    BookieUnavailable,
    CallerError,
    EntryAbsent,
    EntryCorrupt,
    InvalidArgument,
    InvalidBatch,
    MetadataUnavailable,
    NewerFormat,
    ObjectDamaged,
    ObjectMissing,
    PeerError,
    ReadBeyondLac,
    StorageError,
    TallybookError,
    check,
    is_defect,
)
from tallybook.core.ids import MAX_ID, check_entry_id
from tallybook.core.marks import sometimes
from tallybook.metadata.archived import Receipt
from tallybook.metadata.doubt import believed_to
from tallybook.metadata.model import LedgerMetadata
from tallybook.runtime.lifetime import Lifetime, while_open
from tallybook.runtime.span_catalogue import READ
from tallybook.runtime.steps import Steps
from tallybook.runtime.tracing import begin

from ..bookie_port import BookieConnection
from ..ports import Archive
from .ahead import ReadAhead, Sealed
from .context import ReaderContext
from .entries import Entries, EntryGroups, Piece, verified
from .lac import TailPolls, highest_lac, told_lac
from .machine import ReadAttempt
from .pace import Pace
from .replicas import Replicas

T = TypeVar("T")

MOST_MOVES: Final = 3
"""Archive objects that are tried for one read. Compaction moves a ledger once in hours."""

METADATA_AGE_S: Final = 30.0
"""Age at which a tail reads the metadata again although nothing told of a change."""


@dataclass(slots=True)
class _Tail:
    """What one tail knows of the metadata."""

    polls: TailPolls
    read_at: float
    changed: bool = True
    """There may be a change that was not read yet, as at the start: the metadata are those of the opening."""
    store_away: bool = False
    """Whether the metadata store did not answer last time."""


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
        self._metadata = metadata
        self._identity = metadata.identity
        self._version: int | None = None
        """Of the metadata. Nothing that this handle reads is older than those it was made with."""
        self._context = context
        self._digest_key = digest_key
        self._archive_first = archive_first
        self._lac = metadata.last_entry_id if metadata.closed else lac
        pace = Pace(context.settings.speculative_read_ms / 1000)
        self._replicas = Replicas(context.connections, context.clock, pace, context.report, context.deeds)

    @property
    def _lifetime(self) -> Lifetime:
        return self._context.lifetime

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

    def read(self, first: int, last: int) -> Entries:
        """The entries ``first .. last``, both included, in order.

        Raises:
            InvalidArgument: negative ids, or last < first.
            ReadBeyondLac: ``last`` lies past the last add confirmed.
            EntryCorrupt, EntryUnknown, DataMissing: no replica has a good copy.
            PeerError, StorageError: none has, and this is the most serious of their answers. ``Busy``: all of them
                stayed so for as long as a request may take; read again later.
            MetadataUnavailable, DamagedFile: none has, and who has others by now cannot be read.
            NoSuchLedger: none has, because the ledger was deleted.
            HandleClosed: the client is closed.
            OtherLedger: none has, and a bookie holds another ledger of this id.
        """
        return Entries(self.read_batches(first, last))

    def read_batches(self, first: int, last: int) -> EntryGroups:
        """Like ``read``, but hands out the entries of a batch at a time: cheaper for bulk.

        Raises:
            As ``read``.
        """
        return EntryGroups(self._steps(self._range(first, last)))

    def read_sealed(self, first: int, last: int) -> Steps[Sealed]:
        """Whole batches as the writer sealed them, verified, from the one that holds ``first`` to that of ``last``.

        For who copies a ledger: what comes back is byte for byte what bookies hold.

        Raises:
            As ``read``.
        """
        pieces = self._range(first, last)

        async def batches() -> AsyncGenerator[Sealed, None]:
            async with aclosing(pieces()) as found:
                async for piece in found:
                    yield piece.batches

        return self._steps(batches)

    def read_unconfirmed(self, first: int, last: int | None = None) -> Entries:
        """Like ``read``, but also past the last add confirmed: what the bookies have, up to the first gap.

        Good for a look at what a writer has under way, or has left behind, when a recovery is not wanted. Nothing
        above the last add confirmed is promised: an entry that was seen may yet vanish when the ledger is recovered.
        Past the end of a closed ledger there is nothing, whatever bookies still hold.

        Args:
            last: the last entry wanted; ``None``: whatever there is, which ends before the first entry that every
                bookie says it does not have.

        Raises:
            EntryAbsent: no bookie has this entry; those before it were handed out. Never without ``last``.
            As ``read`` otherwise, but for ``ReadBeyondLac``.
        """
        return Entries(EntryGroups(self._steps(self._range(first, last, confirmed=False))))

    def _range(
        self, first: int, last: int | None, *, confirmed: bool = True
    ) -> Callable[[], AsyncGenerator[Piece, None]]:
        """What reads a range; called again after an error, it goes on behind what it has given."""
        position, end = first, MAX_ID if last is None else last

        async def pieces() -> AsyncGenerator[Piece, None]:
            nonlocal position
            if position > end >= first:
                return
            if confirmed:
                self._check_range(position, end)
            else:
                _check_ids(position, position if last is None else last)
            ahead = self._read_ahead(position, last)
            try:
                while fetched := await ahead.next():
                    piece = Piece(fetched, position, end)
                    position = piece.behind
                    yield piece
            finally:
                await ahead.close()

        return pieces

    def _steps(self, source: Callable[[], AsyncGenerator[T, None]]) -> Steps[T]:
        """The steps of a range, which ends by itself: one that nobody waits for is not wanted any more."""
        return Steps(source, self._spawn, self._context.lifetime, linger_s=0)

    def _read_ahead(self, first: int, last: int | None) -> ReadAhead:
        return ReadAhead(first, last, self._fetch, self._spawn)

    def _spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        return self._context.tasks.spawn(work, name=f"reader-{self.id}")

    @while_open
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
            found = await connection.read_entry(self.id, entry_id, identity=self._identity)
            if (found.ledger_id, found.entry_id) != (self.id, entry_id):
                raise InvalidBatch(f"asked for entry {entry_id} of ledger {self.id}, got {found.entry_id}")
            return found.verify()

        async def unpack(archive: Archive, receipt: Receipt) -> Entry:
            return await archive.entry(receipt, self.id, entry_id)

        return await self._traced(entry_id, self._from_either(entry_id, ask, unpack))

    @while_open
    async def read_batch(self, entry_id: int) -> tuple[BatchHeader, Buffer]:
        """The verified batch that holds ``entry_id``, as the writer sealed it.

        Raises:
            As ``read``.
        """
        self._check_range(entry_id, entry_id)
        return (await self._fetch(entry_id, entry_id))[0]

    def _check_range(self, first: int, last: int) -> None:
        _check_ids(first, last)
        if last > self._lac:
            raise ReadBeyondLac(f"ledger {self.id}: entry {last} lies past the last add confirmed, {self._lac}")

    async def _fetch(self, first: int, last: int) -> Sealed:
        """Verified batches from the one that holds ``first``, as many as one request brings."""

        async def ask(connection: BookieConnection) -> Sealed:
            # The metadata may be others than before, if they were read again meanwhile.
            fragment_end = self._metadata.fragment_end(self._metadata.fragment_of(first))
            end = min(last, fragment_end, self._metadata.quorum.stripe_end(first))
            end = believed_to(self._metadata, connection.bookie_id, first, end)
            answer = await connection.read_batches(
                self.id, first, end, self._context.settings.read_bytes, identity=self._identity
            )  # fmt: skip
            return self._verified(first, answer.batches)

        async def unpack(archive: Archive, receipt: Receipt) -> Sealed:
            found = await archive.batches(receipt, self.id, first, last, self._context.settings.read_bytes)
            return self._verified(first, tuple(batch for _, batch in found))

        return await self._traced(first, self._from_either(first, ask, unpack))

    def _verified(self, first: int, batches: tuple[Buffer, ...]) -> Sealed:
        return verified(self.id, first, batches, self._digest_key)

    async def _traced(self, entry_id: int, reading: Awaitable[T]) -> T:
        with begin(self._context.tracer, READ, ledger_id=self.id, first_entry_id=entry_id):
            return await reading

    async def _from_either(
        self,
        entry_id: int,
        ask: Callable[[BookieConnection], Awaitable[T]],
        unpack: Callable[[Archive, Receipt], Awaitable[T]],
    ) -> T:
        """From bookies; or from the archive, where they need not have the ledger any more, or do not give it."""
        archive, failure = self._context.archive, None
        if (
            archive is not None
            and self._archive_first
            and self._metadata.archived
            and not self._metadata.copies_released
        ):
            try:
                return await self._from_archive(archive, unpack)
            except (PeerError, StorageError, ArchiveKeyMissing):
                return await self._from_any_replica(entry_id, ask)
        if archive is None or not self._metadata.copies_released:
            try:
                return await self._from_any_replica(entry_id, ask)
            except TallybookError as error:
                beyond = self._metadata.closed and entry_id > self._metadata.last_entry_id
                if archive is None or self._metadata.archived is None or beyond or is_defect(error):
                    raise
                sometimes("read: the archive stands in for bookies")
                failure = error
        try:
            return await self._from_archive(archive, unpack)
        except (PeerError, StorageError, CallerError) as error:
            if failure is not None:
                # The bookies are still to have it: what ails them is what has to be seen to.
                failure.settled = failure.settled and not isinstance(error, PeerError)
                raise failure from error
            raise

    async def _from_archive(self, archive: Archive, unpack: Callable[[Archive, Receipt], Awaitable[T]]) -> T:
        """From the archive object of the ledger; from another one, if it has moved meanwhile."""
        for _ in range(MOST_MOVES):
            receipt = self._metadata.archived
            check(receipt is not None, f"ledger {self.id} is to be read from an archive that it is not in")
            try:
                return await unpack(archive, cast("Receipt", receipt))
            except InvalidBatch as error:
                # Of the checks of an object, the digest is the one that only who knows the password can make.
                raise EntryCorrupt(f"ledger {self.id}: the archive gives a bad batch: {error.message}") from error
            except (ObjectMissing, ObjectDamaged):
                await self.refresh()
                if self._metadata.archived == receipt:
                    raise
                sometimes("read: the archive object has moved")
        raise ArchiveUnavailable(
            f"ledger {self.id} moves from one archive object to the next faster than it can be read"
        )

    async def _from_any_replica(self, entry_id: int, ask: Callable[[BookieConnection], Awaitable[T]]) -> T:
        deadline, looked_again = self._request_deadline(), False
        while True:
            known, attempt = self._metadata, self._attempt(entry_id)
            found = await self._replicas.search(attempt, ask)
            if found is not None:
                return found.value
            if not await self._paused_for_busy(attempt, deadline):
                # The metadata may be older than a repair: look once more before giving up. Where all say ABSENT, they
                # have to be read; or else what the replicas said is the better message.
                if looked_again or not await self._changed_since(known, needed=attempt.all_absent):
                    raise attempt.verdict()
                looked_again = True

    def _attempt(self, entry_id: int) -> ReadAttempt:
        metadata = self._metadata
        if metadata.closed and entry_id > metadata.last_entry_id:
            # A bookie may still hold what the close has cut off.
            raise EntryAbsent(f"ledger {self.id} ends at entry {metadata.last_entry_id}, before {entry_id}")
        return self._replicas.attempt(metadata, entry_id, confirmed=entry_id <= self._lac)

    def _request_deadline(self) -> float:
        """Monotonic second until which a request that begins now may take."""
        return self._context.clock.monotonic() + self._context.settings.request_timeout_ms / 1000

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

    async def _changed_since(self, known: LedgerMetadata, *, needed: bool = False) -> bool:
        """Read the metadata again; say whether they are others than ``known``.

        Args:
            needed: raise while the store does not answer, instead of saying that nothing has changed.

        Raises:
            NoSuchLedger: the ledger was deleted.
            DamagedFile, NewerFormat: the metadata cannot be read.
            PeerError: the store does not answer.
        """
        try:
            await self.refresh()
        except PeerError:
            if needed:
                raise
            return False
        # Somebody else may have read the change while the bookies were asked.
        return self._metadata != known

    # -- last add confirmed and tail --------------------------------------------------

    @while_open
    async def refresh(self) -> bool:
        """Read the metadata again; say whether they are others than before. They never go back.

        Raises:
            NoSuchLedger: the ledger was deleted.
            MetadataUnavailable: the store does not answer.
            DamagedFile, NewerFormat: they cannot be decoded.
        """
        before = self._metadata
        found = await self._context.read_metadata(self.id)
        # Of several reads at once, the answers come in any order.
        if self._version is None or found.version > self._version:
            self._metadata, self._version = found
            # A fragment begins after what was confirmed before it.
            last_fragment = self._metadata.last_fragment
            settled = self._metadata.last_entry_id if self._metadata.closed else last_fragment.first_entry_id - 1
            self._lac = max(self._lac, settled)
        return self._metadata != before

    @while_open
    async def read_last_add_confirmed(self) -> int:
        """Read the metadata, then ask the bookies for the last add confirmed; it never falls.

        Raises:
            BookieUnavailable: too few bookies answered to be sure.
            NoSuchLedger: the ledger was deleted.
            MetadataUnavailable, DamagedFile: the metadata cannot be read.
        """
        if not self._metadata.closed:
            await self.refresh()
        return await self.ask_last_add_confirmed()

    @while_open
    async def ask_last_add_confirmed(self) -> int:
        """Like ``read_last_add_confirmed``, but read the metadata only where too few bookies answer.

        What comes back was confirmed. There is more only if the ledger has gone to other bookies meanwhile.

        Raises:
            BookieUnavailable: too few bookies answered to be sure.
            NoSuchLedger: the ledger was deleted.
            DamagedFile, NewerFormat: the metadata cannot be read.
        """
        clock, connections, looked_again = self._context.clock, self._context.connections, False
        deadline = self._request_deadline()
        while not self._metadata.closed:
            asked = self._metadata
            try:
                self._seen(await highest_lac(asked, connections, clock=clock, deadline=deadline))
                break
            except BookieUnavailable:
                # The ledger may have left them, or have ended.
                if looked_again or not await self._changed_since(asked):
                    raise
                looked_again = True
        return self._lac

    @while_open
    async def try_read_last_add_confirmed(self) -> int:
        """Like ``read_last_add_confirmed``, but content with whatever bookies answer, and without the metadata.

        What comes back was confirmed; there may be more.

        Raises:
            BookieUnavailable: none answered.
        """
        if not self._metadata.closed:
            clock, connections = self._context.clock, self._context.connections
            self._seen(await told_lac(self._metadata, connections, clock=clock, deadline=self._request_deadline()))
        return self._lac

    def _seen(self, lac: int) -> None:
        if not self._metadata.closed:
            self._lac = max(self._lac, lac)

    def tail(self, first: int = 0) -> Entries:
        """Entries from ``first`` on, as they are confirmed; ends when the ledger is closed and read.

        While the metadata store is away, a read that fails is tried again: other bookies may have the ledger by now.

        Raises:
            As ``read``; also NoSuchLedger when the ledger is deleted meanwhile, and DamagedFile where its metadata
                cannot be decoded. Never MetadataUnavailable.
        """
        return Entries(self.tail_batches(first))

    def tail_batches(self, first: int = 0) -> EntryGroups:
        """Like ``tail``, but hands out the entries of a batch at a time: cheaper for bulk.

        Raises:
            As ``tail``.
        """
        return EntryGroups(Steps(self._tailed(first), self._spawn, self._context.lifetime))

    def _tailed(self, first: int) -> Callable[[], AsyncGenerator[Piece, None]]:
        """What follows the ledger; called again after an error, it goes on behind what it has given."""
        position = first

        async def pieces() -> AsyncGenerator[Piece, None]:
            nonlocal position
            check_entry_id(position)
            tail = self._new_tail()
            try:
                while True:
                    if position <= (end := self._lac):
                        ahead = self._read_ahead(position, end)
                        try:
                            while fetched := await ahead.next():
                                piece = Piece(fetched, position, end)
                                position = piece.behind
                                yield piece
                        except PeerError as error:
                            if not await self._worth_another_try(error):
                                raise
                        finally:
                            await ahead.close()
                    elif self._metadata.closed:
                        return
                    elif fetched := await self._wait_for_more(tail, position):
                        piece = Piece(fetched, position, self._lac)
                        position = piece.behind
                        yield piece
            finally:
                await tail.polls.close()

        return pieces

    def _new_tail(self) -> _Tail:
        context, retry_s = self._context, self._context.settings.reconnect_ms / 1000
        watch = context.watch(self.id)
        polls = TailPolls(context.connections, watch, clock=context.clock, tasks=context.tasks, retry_s=retry_s)
        return _Tail(polls, context.clock.monotonic())

    async def _worth_another_try(self, error: PeerError) -> bool:
        """Whether the metadata have changed since a read failed; or after a pause, where they cannot be read."""
        try:
            if not isinstance(error, MetadataUnavailable):
                return await self.refresh()
        except MetadataUnavailable:
            pass
        await self._context.pause()
        return True

    async def _wait_for_more(self, tail: _Tail, position: int) -> Sealed:
        """Return when the LAC moved, the metadata may have changed, or the poll ended.

        Returns:
            What has come along from ``position`` on; there may be more.
        """
        check(not self._metadata.closed, f"ledger {self.id}: waiting for more of a closed ledger")
        clock = self._context.clock
        # What may have changed is read at once; while the store is away the bookies are what there is to wait for.
        at_once = tail.changed and not tail.store_away
        timeout_ms = 0 if at_once else self._context.settings.tail_wait_ms
        bring = position == self._lac + 1
        news = await tail.polls.news(self._metadata, above=self._lac, timeout_ms=timeout_ms, bring=bring)
        tail.changed = tail.changed or news.metadata_changed
        before = self._lac
        if news.answer is not None:
            self._seen(news.answer.lac)
        if self._lac > before:
            return self._brought(position, news.answer)
        fenced = news.answer is not None and news.answer.fenced
        if not (tail.changed or fenced or clock.monotonic() - tail.read_at >= METADATA_AGE_S):
            return []
        try:
            await self.refresh()
        except MetadataUnavailable:
            sometimes("tail: the metadata store is away")
            # Nothing is known to have changed. The bookies still tell of new entries.
            tail.store_away = True
            await self._context.pause()
            return []
        tail.changed, tail.store_away, tail.read_at = False, False, clock.monotonic()
        if fenced and not self._metadata.closed:
            sometimes("tail: waits for a recovery")
            await self._wait_for_recovery(tail)
        return []

    def _brought(self, position: int, answer: LacAnswer | None) -> Sealed:
        """The good ones among the batches that came with an answer. The rest is read, from whoever has good copies."""
        if answer is None or not answer.batches:
            return []
        try:
            return [each for each in self._verified(position, answer.batches) if each[0].first_entry_id <= self._lac]
        except (InvalidBatch, NewerFormat):
            sometimes("tail: what came along is damaged")
            return []

    async def _wait_for_recovery(self, tail: _Tail) -> None:
        """A recovery is under way. Fenced bookies answer every poll at once, so wait for the metadata instead."""
        if await tail.polls.changed(self._context.settings.tail_wait_ms / 1000):
            tail.changed = True


def _check_ids(first: int, last: int) -> None:
    check_entry_id(first)
    check_entry_id(last)
    if last < first:
        raise InvalidArgument(f"the range {first} .. {last} is empty")
