"""The writing handle of a ledger: append, and close.

The path of an entry through a client is this file, ``appends``, ``accumulator``, ``driver`` and ``machine``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Final, Self

from tallybook.core.batch import Buffer
from tallybook.core.config import ClientSettings
from tallybook.core.errors import (
    AccessDenied,
    Conflict,
    InvalidArgument,
    LedgerClosed,
    LedgerFenced,
    NoSuchLedger,
    OtherLedger,
    Outcome,
    Unauthorized,
)
from tallybook.core.ids import NO_ENTRY
from tallybook.metadata.model import LedgerMetadata, LedgerState, close
from tallybook.runtime.clock import Clock
from tallybook.runtime.lifetime import Lifetime, close_or_abandon, while_open
from tallybook.runtime.tasks import Tasks
from tallybook.runtime.tracing import NO_TRACER, Span, Tracer

from ..budget import ByteBudget
from ..deeds import Deeds
from ..ports import Transition, UpdateLedger
from ..spares import Spares
from .appends import Appends
from .chosen_ids import ChosenIdsWriter
from .common import CommonWork
from .driver import WriterDriver
from .machine import WriterMachine
from .pending import PendingAppend
from .rules import WriterRules
from .traced_appends import TracedAppends


@dataclass(frozen=True, slots=True)
class WriterContext:
    """What a handle shares with its client."""

    common: CommonWork
    spares: Spares
    clock: Clock
    tasks: Tasks
    settings: ClientSettings
    budget: ByteBudget
    tracer: Tracer = NO_TRACER
    deeds: Deeds = field(default_factory=Deeds)
    limits: dict[str, int] = field(default_factory=dict)
    """The largest batch of each bookie that was connected to."""
    lifetime: Lifetime = field(default_factory=partial(Lifetime, "the client"))
    """Of the client."""


_NOT_OURS: Final = (LedgerFenced, LedgerClosed, NoSuchLedger, Unauthorized, AccessDenied, Conflict, OtherLedger)
"""What ended a handle that may not even close its ledger any more."""


class LedgerWriter:
    """The one writer of one open ledger.

    Any append that fails kills the handle: the last add confirmed cannot pass the failed
    entry. Whether a failed append took place is not known; a recovery may keep it.
    """

    def __init__(
        self,
        metadata: LedgerMetadata,
        context: WriterContext,
        update: UpdateLedger,
        *,
        key: bytes,
        digest_key: bytes | None,
        deferred_sync: bool = False,
    ) -> None:
        settings = context.settings
        self._context = context
        self._update = update
        self._lifetime = Lifetime(
            f"ledger {metadata.ledger_id}: its writer", parent=context.lifetime, error=LedgerClosed
        )
        self._ended = LedgerClosed(f"ledger {metadata.ledger_id} is closed")
        self._closed: LedgerMetadata | None = None
        self._abandoned = False
        machine = WriterMachine(
            metadata.ledger_id,
            metadata.quorum,
            metadata.last_fragment.bookies,
            _rules(settings, deferred_sync),
            now=context.common.attention.now(),
            limits=context.limits,
        )
        self._machine = machine
        self._appends, spans = _appends(context, machine, metadata, digest_key)
        self._appends.lifetime = self._lifetime
        self._driver = WriterDriver(
            machine,
            metadata,
            context.common,
            context.spares,
            key,
            update,
            self._appends,
            context.clock,
            context.tasks,
            settings,
            spans,
            context.limits,
        )
        self._appends.submit, self._appends.end = self._driver.submit, self._driver.die
        self._driver.start()

    @property
    def id(self) -> int:
        """The ledger's id."""
        return self._machine.ledger_id

    @property
    def last_add_confirmed(self) -> int:
        """The last entry that readers may read, -1 for none.

        It is confirmed, as is every lower one; with deferred sync it is the last one that was forced.
        """
        return self._machine.lac

    @property
    def length(self) -> int:
        """Payload bytes of all entries up to the last add confirmed."""
        return self._machine.lac_length

    @property
    def max_entry_bytes(self) -> int:
        """The largest entry that is taken now: less than the setting where a bookie of the ensemble takes less."""
        return self._appends.max_entry_bytes

    @property
    def limits_known(self) -> bool:
        """Whether bookies have said what they take, so that ``max_entry_bytes`` is less where one takes less."""
        return self._appends.limits_known

    def when_limits_known(self, tell: Callable[[], None]) -> None:
        """Call back on the event loop once they have, or the handle has ended."""
        self._appends.when_limits_known(tell)

    async def wait_for_limits(self, within_s: float) -> bool:
        """Wait until they have, or the handle has ended; ``False``: not within so many seconds."""
        known = asyncio.Event()
        self._appends.when_limits_known(known.set)
        try:
            async with asyncio.timeout(within_s):
                await known.wait()
        except TimeoutError:
            return False
        return True

    @property
    def metadata(self) -> LedgerMetadata:
        """The ledger's metadata: as closed, or as of the last change of its ensemble."""
        return self._closed or self._appends.metadata

    @property
    def ended(self) -> bool:
        """Whether the handle is closed, dead or abandoned: nothing can be appended."""
        return self._machine.error is not None

    # -- append -----------------------------------------------------------------------

    def append_nowait(self, payload: Buffer) -> PendingAppend:
        """Send one entry off and return what to await for its id.

        Raises:
            Busy: the client's byte budget is used up. After ``retry_after_ms`` about half of it should be free.
            EntryTooLarge: above ``max_entry_bytes``, that of the client or of a bookie; the handle stays good.
            LedgerClosed, LedgerFenced, ...: the handle is closed or dead; nothing was sent.
        """
        self._lifetime.check()
        appends = self._appends
        if not appends.budget.try_take(appends.admissible(payload)):
            raise appends.no_room()
        return appends.gather(payload)

    def take_room(self, payload: Buffer) -> int:
        """Take room in the client's budget for ``payload``, for ``append_admitted`` to fill; tell how much.

        Raises:
            As ``append_nowait``.
        """
        appends = self._appends
        size = appends.admissible(payload)
        if not appends.budget.try_take(size):
            raise appends.no_room()
        return size

    def append_admitted(self, payloads: Sequence[bytes]) -> list[PendingAppend]:
        """The second half of ``append_nowait``, for what ``take_room`` has taken room for: the handle takes it over.

        Raises:
            LedgerClosed, LedgerFenced, ...: the handle has ended meanwhile; nothing was sent, and the room stays with
                the caller.
        """
        appends = self._appends
        appends.refuse_after_end()
        return [*map(appends.gather, payloads)]

    def append_held(self, payload: Buffer, held_bytes: int) -> PendingAppend:
        """Like ``append_nowait``, for whoever has taken room in the client's budget already: the handle takes it over.

        Args:
            held_bytes: what was taken of the budget. What is too much of it is given back.

        Raises:
            As ``append_nowait``, but for ``Busy``; the room stays with the caller then.
        """
        appends = self._appends
        appends.budget.exchange(held_bytes, appends.admissible(payload))
        return appends.gather(payload)

    async def append(self, payload: Buffer) -> int:
        """Append one entry; return its id once it is durable on an ack quorum; with deferred sync, once it is there.

        While bookies are merely busy, all of them, the wait has no end of its own: bound it by ``asyncio.timeout``.
        Cancelling the wait does not take the entry back.

        Raises:
            EntryTooLarge: above ``max_entry_bytes``, that of the client or of a bookie; the handle stays good.
            RequestTimeout: no room in the client's budget within the add timeout; not sent.
            LedgerClosed, LedgerFenced, ...: the handle is closed or dead. The outcome tells whether the entry was not
                sent, or may have been written.
        """
        self._lifetime.check()
        appends = self._appends
        size = appends.admissible(payload)
        if not appends.budget.try_take(size):
            await appends.take_room(size)
        return await appends.gather(payload)

    async def append_many(self, payloads: Sequence[Buffer]) -> range:
        """Append entries in order; return their ids once all are durable on an ack quorum.

        A quarter of the client's byte budget goes in at once. Of more than that, others may append to the ledger
        between two pieces: the range goes from the first entry to the last, and theirs are in it.

        Raises:
            As ``append``; some of the entries may then have been written.
        """
        self._lifetime.check()
        appends = self._appends
        sizes = [appends.admissible(payload) for payload in payloads]
        pending: list[PendingAppend] = []
        for piece in _pieces(sizes, appends.budget.limit_bytes // 4):
            room = sum(sizes[piece.start : piece.stop])
            if not appends.budget.try_take(room):
                await appends.take_room(room, Outcome.UNKNOWN if pending else Outcome.NOT_DONE)
            pending += [appends.gather(payloads[at]) for at in piece]
        if not pending:
            return range(appends.next_entry_id, appends.next_entry_id)
        # Confirmation is in order: when the last entry is confirmed, all are.
        last = await pending[-1]
        return range(pending[0].entry_id, last + 1)

    def with_chosen_ids(self) -> ChosenIdsWriter:
        """The same ledger, written under entry ids of the caller's choice: to be called instead of any append.

        Raises:
            InvalidArgument: something was appended already.
        """
        if self._appends.next_entry_id:
            raise InvalidArgument(f"ledger {self.id}: its entries have been given ids already")
        return ChosenIdsWriter(self, self._appends)

    # -- force ------------------------------------------------------------------------

    @while_open
    async def force(self) -> int:
        """Make durable what was appended with deferred sync; return the last add confirmed, which it has moved.

        It covers every append that was awaited before. Without deferred sync there is nothing to do.

        Raises:
            NotEnoughBookies: a bookie of the ensemble was away for the add timeout, or was started again since it
                acked. The handle is dead, and may still be closed, at the last add confirmed.
            LedgerFenced, ...: the handle is dead.
        """
        if self._machine.error is not None:
            raise self._machine.error.with_traceback(None)
        if self._machine.confirmed > self._machine.lac:
            await self._driver.force()
        return self._machine.lac

    # -- show -------------------------------------------------------------------------

    async def show(self) -> int:
        """Have readers see now what was appended by now, not only with the next entry or after a silence.

        Nothing of it depends on the metadata store. What is appended meanwhile is waited for, too: bound the wait by
        ``asyncio.timeout``. With deferred sync only what was forced is shown.

        Returns:
            The last entry that every reader sees who asks from now on, as enough bookies have been told; -1 for none.
            It is less than what was appended if bookies are away, or the handle is dead: ask again, or close.

        Raises:
            RequestTimeout: appends are still pending after the close timeout.
            LedgerClosed: the handle was abandoned, or its client closed.
        """
        if self._closed is not None:
            return self._closed.last_entry_id
        with self._lifetime.use():
            await self._appends.finish()
            return await self._driver.show()

    # -- close ------------------------------------------------------------------------

    async def close(self) -> LedgerMetadata:
        """Wait for pending appends, settle the end of the ledger, return its final metadata.

        Closing twice returns the same. A handle that died still closes, at its last add confirmed,
        unless the ledger is in other hands. With deferred sync, what was appended is forced first.

        Raises:
            LedgerFenced: another client recovers the ledger, or closed it at another entry. Entries up to the last add
                confirmed are in it; whether later appends are is for a reader to find out.
            LedgerClosed: the handle was abandoned, or its client closed.
            NoSuchLedger: the ledger was deleted.
            Unauthorized, AccessDenied: bookies refuse this client.
            Conflict: a bookie holds other bytes under the ids of this handle.
            OtherLedger: a bookie holds another ledger of this id: the metadata were restored from an older copy.
            NotEnoughBookies: what was appended with deferred sync could not be forced; close again to leave it out.
            MetadataUnavailable, MetadataOutcomeUnknown: the end is not settled; close again.
            RequestTimeout: appends are still pending after the close timeout; close again.
        """
        if self._closed is not None:
            return self._closed
        with self._lifetime.use():
            return await self._close()

    async def _close(self) -> LedgerMetadata:
        self._appends.closing = True
        await self._appends.finish()
        error = self._machine.error
        taken = isinstance(error, LedgerFenced | LedgerClosed) and error is not self._ended and not self._abandoned
        if taken:
            return await self._settle_end(self._end_of_other)
        if error is not None and error is not self._ended and isinstance(error, _NOT_OURS):
            self._driver.stop()
            raise error.with_traceback(None)
        if error is None:
            await self.force()
        await self._driver.settle(self._context.settings.request_timeout_ms / 1000)
        self._driver.die(self._ended)
        return await self._settle_end(self._end)

    async def _settle_end(self, transition: Transition) -> LedgerMetadata:
        try:
            self._closed = (await self._update(transition)).value
        except _NOT_OURS:
            self._driver.stop()
            raise
        self._driver.stop()
        return self._closed

    def _end(self, metadata: LedgerMetadata) -> LedgerMetadata:
        last, length = self._machine.lac, self._machine.lac_length
        if metadata.state is LedgerState.IN_RECOVERY:
            raise LedgerFenced(f"ledger {self.id} is being recovered by another client")
        if metadata.closed and (metadata.last_entry_id, metadata.length) != (last, length):
            raise LedgerFenced(f"ledger {self.id} was closed by another client at entry {metadata.last_entry_id}")
        return close(metadata, last, length if last != NO_ENTRY else 0, missed=self._machine.missed())

    def _end_of_other(self, metadata: LedgerMetadata) -> LedgerMetadata:
        """The ledger as the client that took it from this handle closed it: a success if that is our end, too."""
        if metadata.state is LedgerState.OPEN:
            raise LedgerFenced(f"ledger {self.id} was fenced by another client, which has not closed it yet")
        return self._end(metadata)

    def abandon(self) -> None:
        """Stop without closing the ledger: it stays open, for a recovery to end."""
        self._appends.closing = self._abandoned = True
        self._driver.die(LedgerClosed(f"ledger {self.id}: the handle was abandoned"))
        self._driver.stop()
        self._lifetime.end(f"ledger {self.id}: the handle was abandoned")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await close_or_abandon(self, failed=kind is not None)


def _pieces(sizes: Sequence[int], most: int) -> Iterator[range]:
    """Cut a run into pieces of at most ``most`` bytes, and at least one each."""
    start = total = 0
    for at, size in enumerate(sizes):
        if total + size > most and at > start:
            yield range(start, at)
            start, total = at, 0
        total += size
    if sizes:
        yield range(start, len(sizes))


def _rules(settings: ClientSettings, deferred_sync: bool) -> WriterRules:
    return WriterRules(
        add_timeout_s=settings.add_timeout_ms / 1000,
        away_timeout_s=settings.away_timeout_ms / 1000,
        lag_limit_bytes=settings.max_pending_bytes // 2,
        max_changes=settings.max_ensemble_changes if settings.ensemble_change else 0,
        delay_changes=settings.delay_ensemble_change,
        deferred=deferred_sync,
    )


def _appends(
    context: WriterContext, machine: WriterMachine, metadata: LedgerMetadata, digest_key: bytes | None
) -> tuple[Appends, Mapping[int, Span] | None]:
    """What gathers, and the spans of batches that are traced; ``None``: none ever is."""
    soon = context.common.slices.soon
    needed = (machine, metadata, context.settings, context.clock, context.budget, digest_key, context.deeds, soon)
    if context.tracer is NO_TRACER:
        return Appends(*needed), None
    traced = TracedAppends(*needed, tracer=context.tracer)
    return traced, traced.spans
