"""``SubscriptionReader``: reads a stream from a stored cursor, and advances the cursor.

    async with streams.subscribe("orders/eu", "billing") as billing:
        async for record in billing:
            ...
            await billing.advance(record.position)

A subscription has one reader at a time: a new one replaces the present one, as a writer does with a stream.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import partial
from types import TracebackType
from typing import Final, Self

from tallybook.client.client import Client
from tallybook.client.writer.handle import LedgerWriter
from tallybook.core.coverage import sometimes
from tallybook.core.errors import (
    InvalidArgument,
    Outcome,
    RequestTimeout,
    StreamClosed,
    StreamFenced,
    TallybookError,
    is_defect,
)
from tallybook.metadata.stream_use import CURSOR
from tallybook.runtime.clock import Clock
from tallybook.runtime.concurrency.async_iterators import DEFAULT_BATCH
from tallybook.runtime.concurrency.backoff import Backoff
from tallybook.runtime.concurrency.handle_lifetime import Lifetime, close_or_abandon
from tallybook.runtime.tasks import Tasks

from ..catalog.head import Owner
from ..catalog.subscription_record import Cursor, Subscription, announce, begin, rest
from ..policy import StreamPolicy
from ..position import Position
from ..reader.handle import RecordBatches, StreamReader
from ..records.envelope import Record
from .store import SubscriptionRecords

ADVANCES: Final = 10_000
"""Entries of a cursor ledger after which it is replaced."""
ADVANCE_SECONDS: Final = 60.0
"""How long storing an advance is retried."""
FIRST_PAUSE_SECONDS: Final = 0.05
LONGEST_PAUSE_SECONDS: Final = 2.0


def subscription_lifetime(name: str, parent: Lifetime | None = None) -> Lifetime:
    """The lifetime of a subscription's reader.

    Args:
        parent: the lifetime of its store.
    """
    return Lifetime(f"the reader of subscription {name}", parent=parent, error=StreamClosed)


class SubscriptionReader:
    """The only reader of a subscription. ``async for`` yields records, as with a ``StreamReader``.

    Concurrent advances cost one append: only the last one is stored. If the process dies, advances that were not
    awaited may be lost; the next reader then gets those records again.
    """

    def __init__(
        self,
        subscriptions: SubscriptionRecords,
        client: Client,
        found: Subscription,
        owner: Owner,
        policy: StreamPolicy,
        reader: StreamReader,
        clock: Clock,
        tasks: Tasks,
        release_ownership: Callable[[], None],
        lifetime: Lifetime | None = None,
    ) -> None:
        self._subscriptions = subscriptions
        self._client = client
        self._found = found
        self._owner = owner
        self._policy = policy
        self._reader = reader
        self._clock = clock
        self._tasks = tasks
        self._release_ownership = release_ownership
        self._lifetime = lifetime or subscription_lifetime(found.name)
        self._ledger: LedgerWriter | None = None
        self._stored = found.cursor
        self._wanted = found.cursor
        self._storing: asyncio.Task[None] | None = None
        self._moved = asyncio.Event()
        self._error: TallybookError | None = None
        """The final error: another reader has the subscription, or it was deleted."""
        self._trouble: TallybookError | None = None
        """The error of an advance that may be tried again."""
        self._closing = self._closed = False
        self._one_closes = asyncio.Lock()

    @property
    def name(self) -> str:
        """The name of the subscription."""
        return self._found.name

    @property
    def cursor(self) -> Cursor:
        """The stored cursor."""
        return self._stored

    @property
    def reader(self) -> StreamReader:
        """The reader of the stream."""
        return self._reader

    def __aiter__(self) -> AsyncIterator[Record]:
        return self._reader.__aiter__()

    def batches(self) -> RecordBatches:
        """Batches of records from the cursor on; see ``StreamReader.batches``."""
        return self._reader.batches()

    async def next(self, timeout: float | None = None) -> Record | None:  # noqa: ASYNC109 - it cancels nothing
        """The next record; ``None`` at the end. See ``StreamReader.next``."""
        return await self._reader.next(timeout)

    async def read_batch(
        self,
        max_records: int = DEFAULT_BATCH,
        timeout: float | None = None,  # noqa: ASYNC109 - it cancels nothing
    ) -> list[Record] | None:
        """Up to ``max_records`` available records; ``None`` at the end. See ``StreamReader.read_batch``."""
        return await self._reader.read_batch(max_records, timeout)

    # -- advancing ---------------------------------------------------------------------------------------------------

    def advance_nowait(self, position: Position | str) -> None:
        """Acknowledge the record at a position and all before it; the cursor is stored soon.

        Raises:
            InvalidArgument: the cursor is further already; ``StreamStore.reset_subscription`` sets it back.
            ForeignPosition: a position of another stream.
            StreamFenced: another reader has the subscription.
            StreamClosed, HandleClosed: the handle, its store or its client is closed.
        """
        self._lifetime.check()
        if self._closing:
            raise self._lifetime.closed(Outcome.NOT_DONE)
        if self._error is not None:
            raise self._error.with_outcome(self._error.outcome)
        wanted = Position.parse(position) if isinstance(position, str) else position
        cursor = Cursor(wanted.of_stream(self._found.stream_id), after=True)
        if cursor.order < self._wanted.order:
            raise InvalidArgument(
                f"subscription {self.name} was already advanced to {self._wanted} and cannot go back to {wanted}"
            )
        self._wanted = cursor
        self._begin_to_store()

    async def advance(self, position: Position | str) -> None:
        """Like ``advance_nowait``, but returns once the cursor is stored on an ack quorum.

        Raises:
            RequestTimeout: not stored in time; it is still being retried.
            MetadataUnavailable, BookieUnavailable, ...: it cannot be stored now; the next advance, or ``close``,
                retries.
            As ``advance_nowait``.
        """
        with self._lifetime.use():
            self.advance_nowait(position)
            await self._until_stored(self._wanted)

    def _begin_to_store(self) -> None:
        if self._storing is None and self._error is None and self._stored != self._wanted:
            self._trouble = None
            self._storing = self._tasks.spawn(self._store(), name=f"advance-{self.name}")

    async def _until_stored(self, wanted: Cursor) -> None:
        try:
            async with asyncio.timeout(2 * ADVANCE_SECONDS):
                while self._stored.order < wanted.order:
                    trouble = self._error or self._trouble
                    if trouble is not None:
                        # A copy for each waiter: an exception must not share its traceback.
                        raise trouble.with_outcome(trouble.outcome)
                    self._moved.clear()
                    await self._moved.wait()
        except TimeoutError:
            raise RequestTimeout(f"subscription {self.name} cannot be advanced to {wanted} in time") from None

    async def _store(self) -> None:
        """Store the wanted cursor, with retries."""
        rng = self._client.world.rng.fork("subscription")
        backoff = Backoff(self._clock, rng, first_s=FIRST_PAUSE_SECONDS, longest_s=LONGEST_PAUSE_SECONDS)
        backoff.deadline = self._clock.monotonic() + ADVANCE_SECONDS
        try:
            while self._stored != self._wanted:
                try:
                    await self._store_once(self._wanted)
                    backoff.reset()
                    backoff.deadline = self._clock.monotonic() + ADVANCE_SECONDS
                except TallybookError as error:
                    if self._over(error):
                        self._error = error
                        return
                    if not await backoff.pause():
                        self._trouble = error
                        return
                    sometimes("subscription: an advance is tried again")
        except asyncio.CancelledError:
            # The handle was abandoned, or its store closed.
            self._error = self._error or self._lifetime.closed()
            raise
        finally:
            self._storing = None
            self._moved.set()

    def _over(self, error: TallybookError) -> bool:
        """Whether a retry is useless. A failed cursor ledger is not final: another one replaces it.

        Raises:
            ``error``, if it is a defect.
        """
        if is_defect(error):
            self._error = error
            raise error
        if self._ledger is not None and self._ledger.ended:
            self._ledger.abandon()
            self._ledger = None
            return False
        return self._is_final(error)

    async def _store_once(self, wanted: Cursor) -> None:
        if self._ledger is not None and self._ledger.last_add_confirmed >= ADVANCES:
            await self._rest(leave=False)
        if self._ledger is None:
            self._ledger = await self._begin()
        await self._ledger.append(str(wanted).encode())
        self._stored = wanted
        self._moved.set()

    async def _begin(self) -> LedgerWriter:
        """Create a cursor ledger. The previous one is fenced, and its cursor moved to the record."""
        found = await self._subscriptions.read(self._found.stream_id, self.name)
        if found.owner != self._owner:
            raise StreamFenced(f"subscription {self.name} was taken by another reader")
        if found.ledger_id is not None:
            # Keep the stored cursor, and fence the ledger, so that nothing is stored there any more.
            cursor = await self._subscriptions.cursor(found, fence=True)
            await self._change(partial(rest, owner=self._owner, cursor=cursor))
        ledger_id = await self._client.reserve_ledger_id()
        await self._change(partial(announce, owner=self._owner, ledger_id=ledger_id))
        ledger = await self._client.create_ledger(
            ensemble=self._policy.ensemble,
            write_quorum=self._policy.write_quorum,
            ack_quorum=self._policy.ack_quorum,
            custom={CURSOR: f"{self._found.stream_id}/{self.name}".encode()},
            ledger_id=ledger_id,
        )
        try:
            await self._change(partial(begin, owner=self._owner, ledger_id=ledger_id))
        except BaseException:
            ledger.abandon()
            raise
        await self._subscriptions.tidy(self._found)
        return ledger

    async def _rest(self, *, leave: bool) -> None:
        """Write the stored cursor to the record, and give up the cursor ledger."""
        if self._ledger is not None:
            self._ledger.abandon()
            self._ledger = None
        await self._change(partial(rest, owner=self._owner, cursor=self._stored, leave=leave))
        await self._subscriptions.tidy(self._found)

    async def _change(self, transition: partial[Subscription]) -> None:
        self._found = await self._subscriptions.change(self._found.stream_id, self._found.name, transition)

    # -- the end -----------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Store the cursor, and release the subscription. A second close is a no-op.

        Raises:
            StreamFenced: another reader has the subscription; this one is closed.
            MetadataUnavailable, RequestTimeout, ...: the cursor may not be stored, or the subscription not released;
                close again.
        """
        async with self._one_closes:
            if not self._closed:
                self._lifetime.check()
                try:
                    await self._leave()
                except TallybookError as error:
                    if self._is_final(error):
                        # Closing again would be useless; abandoning wakes tasks that wait for a record.
                        self.abandon()
                    raise
                self._lifetime.end()
        await self._reader.close()

    async def _leave(self) -> None:
        with self._lifetime.use():
            self._closing = True
            self._begin_to_store()
            await self._until_stored(self._wanted)
            await self._rest(leave=True)
            self._closed = True

    def _is_final(self, error: TallybookError) -> bool:
        """Whether a retry is useless."""
        return self._error is not None or isinstance(error, StreamFenced) or (not error.retriable and error.settled)

    def abandon(self) -> None:
        """Release everything at once, without storing the cursor; the next reader takes the subscription over."""
        if self._closed:
            return
        self._closed = True
        self._release_ownership()
        self._lifetime.end()
        self._reader.abandon()
        if self._storing is not None:
            self._storing.cancel()
        if self._ledger is not None:
            self._ledger.abandon()
            self._ledger = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await close_or_abandon(self, failed=kind is not None)
