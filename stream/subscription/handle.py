"""The handle of a subscription: read on from where it stands, and advance it.

    async with await streams.subscribe("orders/eu", "billing") as billing:
        async for record in billing:
            ...
            await billing.advance(record.position)

One reader at a time: who subscribes takes the place of whoever reads under that name, as a writer does with a stream.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import partial
from types import TracebackType
from typing import Final, Self

from tallybook.client.client import Client
from tallybook.client.writer.handle import LedgerWriter
from tallybook.core.errors import (
    InvalidArgument,
    Outcome,
    RequestTimeout,
    StreamClosed,
    StreamFenced,
    TallybookError,
    is_defect,
)
from tallybook.core.marks import sometimes
from tallybook.metadata.ledger_use import CURSOR
from tallybook.runtime.backoff import Backoff
from tallybook.runtime.clock import Clock
from tallybook.runtime.lifetime import Lifetime, close_or_abandon
from tallybook.runtime.steps import DEFAULT_BATCH
from tallybook.runtime.tasks import Tasks

from ..envelope import Record
from ..head import Owner
from ..policy import StreamPolicy
from ..position import Position
from ..reader.handle import RecordBatches, StreamReader
from .record import Cursor, Subscription, announce, begin, rest
from .shelf import Shelf

ADVANCES: Final = 10_000
"""Entries of a cursor ledger after which it is given up for another one."""
ADVANCE_SECONDS: Final = 60.0
"""How long an advance tries to be stored."""
FIRST_PAUSE_SECONDS: Final = 0.05
LONGEST_PAUSE_SECONDS: Final = 2.0


def subscription_lifetime(name: str, parent: Lifetime | None = None) -> Lifetime:
    """That of the reader of a subscription.

    Args:
        parent: that of its store.
    """
    return Lifetime(f"the reader of subscription {name}", parent=parent, error=StreamClosed)


class SubscriptionReader:
    """The one reader of a subscription. ``async for`` gives its records, as those of a ``StreamReader``.

    Several advances at a time cost one append: only the last of them is stored. It may happen that one is not stored,
    where the process dies; so what was done after the last one that was awaited may be seen again.
    """

    def __init__(
        self,
        shelf: Shelf,
        client: Client,
        found: Subscription,
        owner: Owner,
        policy: StreamPolicy,
        reader: StreamReader,
        clock: Clock,
        tasks: Tasks,
        let_go: Callable[[], None],
        lifetime: Lifetime | None = None,
    ) -> None:
        self._shelf = shelf
        self._client = client
        self._found = found
        self._owner = owner
        self._policy = policy
        self._reader = reader
        self._clock = clock
        self._tasks = tasks
        self._let_go = let_go
        self._lifetime = lifetime or subscription_lifetime(found.name)
        self._ledger: LedgerWriter | None = None
        self._stored = found.cursor
        self._wanted = found.cursor
        self._storing: asyncio.Task[None] | None = None
        self._moved = asyncio.Event()
        self._error: TallybookError | None = None
        """Why it is over: somebody else has it, or it was deleted."""
        self._trouble: TallybookError | None = None
        """Why an advance was given up that may be tried again."""
        self._closing = self._closed = False
        self._one_closes = asyncio.Lock()

    @property
    def name(self) -> str:
        """Of the subscription."""
        return self._found.name

    @property
    def cursor(self) -> Cursor:
        """How far it has come, by what is stored."""
        return self._stored

    @property
    def reader(self) -> StreamReader:
        """What reads the stream."""
        return self._reader

    def __aiter__(self) -> AsyncIterator[Record]:
        return self._reader.__aiter__()

    def batches(self) -> RecordBatches:
        """Records from where the subscription stands; see ``StreamReader.batches``."""
        return self._reader.batches()

    async def next(self, timeout: float | None = None) -> Record | None:  # noqa: ASYNC109 - it cancels nothing
        """The next record; ``None`` at the end. See ``StreamReader.next``."""
        return await self._reader.next(timeout)

    async def read_batch(
        self,
        max_records: int = DEFAULT_BATCH,
        timeout: float | None = None,  # noqa: ASYNC109 - it cancels nothing
    ) -> list[Record] | None:
        """Records that are there, at most ``max_records``; ``None`` at the end. See ``StreamReader.read_batch``."""
        return await self._reader.read_batch(max_records, timeout)

    # -- advancing ---------------------------------------------------------------------------------------------------

    def advance_nowait(self, position: Position | str) -> None:
        """The record at a position, and all before it, are done with; it is stored soon.

        Raises:
            InvalidArgument: the subscription has come further already; ``StreamStore.reset_subscription`` sets it back.
            ForeignPosition: a position of another stream.
            StreamFenced: another reader has the subscription.
            StreamClosed, HandleClosed: the handle, its store or its client is closed.
        """
        self._lifetime.check()
        if self._closing:
            raise self._lifetime.closed(Outcome.NOT_DONE)
        if self._error is not None:
            raise self._error.told_as(self._error.outcome)
        wanted = Position.parse(position) if isinstance(position, str) else position
        cursor = Cursor(wanted.of_stream(self._found.stream_id), after=True)
        if cursor.order < self._wanted.order:
            raise InvalidArgument(
                f"subscription {self.name} is {self._wanted} already, and does not go back to {wanted}"
            )
        self._wanted = cursor
        self._begin_to_store()

    async def advance(self, position: Position | str) -> None:
        """Like ``advance_nowait``, but returns once it is stored on an ack quorum.

        Raises:
            RequestTimeout: it cannot be stored in time; it is tried on.
            MetadataUnavailable, BookieUnavailable, ...: it cannot be stored now; the next advance, or ``close``, tries
                again.
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
                        # One of its own for each who waits.
                        raise trouble.told_as(trouble.outcome)
                    self._moved.clear()
                    await self._moved.wait()
        except TimeoutError:
            raise RequestTimeout(f"subscription {self.name} cannot be advanced to {wanted} in time") from None

    async def _store(self) -> None:
        """Store what is wanted, until that is stored."""
        deadline = self._clock.monotonic() + ADVANCE_SECONDS
        backoff: Backoff | None = None
        try:
            while self._stored != self._wanted:
                try:
                    await self._store_once(self._wanted)
                    deadline = self._clock.monotonic() + ADVANCE_SECONDS
                    backoff = None
                except TallybookError as error:
                    if self._over(error):
                        self._error = error
                        return
                    backoff = backoff or self._backoff()
                    pause = backoff.next_s()
                    if self._clock.monotonic() + pause > deadline:
                        self._trouble = error
                        return
                    sometimes("subscription: an advance is tried again")
                    await self._clock.sleep(pause)
        except asyncio.CancelledError:
            # The handle was abandoned, or its store closed.
            self._error = self._error or self._lifetime.closed()
            raise
        finally:
            self._storing = None
            self._moved.set()

    def _backoff(self) -> Backoff:
        rng = self._client.world.rng.fork("subscription")
        return Backoff(rng, first_s=FIRST_PAUSE_SECONDS, longest_s=LONGEST_PAUSE_SECONDS)

    def _over(self, error: TallybookError) -> bool:
        """Whether trying again is of no use. A ledger that has failed is not the end: another one takes its place.

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
        """Make a cursor ledger. The one before, if it failed, is fenced by now, or is given up with what it says."""
        found = await self._shelf.read(self._found.stream_id, self.name)
        if found.owner != self._owner:
            raise StreamFenced(f"subscription {self.name} was taken by another reader")
        if found.ledger_id is not None:
            # Nothing that was stored may be forgotten, and nothing may be stored there any more.
            cursor = await self._shelf.cursor(found, fence=True)
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
        await self._shelf.tidy(self._found)
        return ledger

    async def _rest(self, *, leave: bool) -> None:
        """Write down in the record what is stored, and give up the ledger."""
        if self._ledger is not None:
            self._ledger.abandon()
            self._ledger = None
        await self._change(partial(rest, owner=self._owner, cursor=self._stored, leave=leave))
        await self._shelf.tidy(self._found)

    async def _change(self, transition: partial[Subscription]) -> None:
        self._found = await self._shelf.change(self._found.stream_id, self._found.name, transition)

    # -- the end -----------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Store how far it has come, and let another reader have the subscription. Closing twice does no more.

        Raises:
            StreamFenced: another reader has it; this one is closed.
            MetadataUnavailable, RequestTimeout, ...: it may not be stored, or not let go of; close again.
        """
        async with self._one_closes:
            if not self._closed:
                self._lifetime.check()
                try:
                    await self._leave()
                except TallybookError as error:
                    if self._is_final(error):
                        # To close it again would be of no use, and a task that waits for a record has to be told.
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
        """Whether trying again is of no use."""
        return self._error is not None or isinstance(error, StreamFenced) or (not error.retriable and error.settled)

    def abandon(self) -> None:
        """Let go of everything at once; whoever comes next takes it over."""
        if self._closed:
            return
        self._closed = True
        self._let_go()
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
