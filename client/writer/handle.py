"""The writing handle of a ledger: append, force, close.

An entry passes ``appends``, ``driver``, ``machine`` with its ``outbox``, ``bookie_link``, and then
``client/connection``: docs/understand/walk-append.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Any, Final, Self

from tallybook.core.buffers import Buffer, check_buffer
from tallybook.core.errors import (
    AccessDenied,
    Conflict,
    InvalidArgument,
    LedgerClosed,
    LedgerFenced,
    NoSuchLedger,
    OtherLedger,
    Outcome,
    TallybookError,
    Unauthorized,
)
from tallybook.core.ids import NO_ENTRY
from tallybook.core.settings import ClientSettings
from tallybook.metadata.ledger.model import LedgerMetadata, LedgerState, close
from tallybook.metadata.ledger_update import Transition
from tallybook.runtime.clock import Clock
from tallybook.runtime.concurrency.handle_lifetime import Lifetime, close_or_abandon, while_open
from tallybook.runtime.tasks import Tasks
from tallybook.runtime.tracing.port import NO_TRACER, Span, Tracer

from ..budget import ByteBudget
from ..placement.replacement_probe import ReplacementFinder
from ..ports import UpdateLedger
from ..recovery_counters import RecoveryCounters
from .appends import Appends, PendingAppend, cut_by_size
from .chosen_ids import ChosenIdsWriter
from .driver import WriterDriver
from .machine import WriterMachine
from .policy import WriterPolicy
from .shared import SharedWriterServices
from .traced_appends import TracedAppends


@dataclass(frozen=True, slots=True)
class WriterContext:
    """Services, settings and counters that a client gives to its writers."""

    common: SharedWriterServices
    replacements: ReplacementFinder
    clock: Clock
    tasks: Tasks
    settings: ClientSettings
    budget: ByteBudget
    tracer: Tracer = NO_TRACER
    counters: RecoveryCounters = field(default_factory=RecoveryCounters)
    limits: dict[str, int] = field(default_factory=dict)
    """The largest batch that each known bookie takes."""
    lifetime: Lifetime = field(default_factory=partial(Lifetime, "the client"))
    """The client's lifetime."""


_NOT_OURS: Final = (LedgerFenced, LedgerClosed, NoSuchLedger, Unauthorized, AccessDenied, Conflict, OtherLedger)
"""Errors after which a handle must not close its ledger."""


class LedgerWriter:
    """The only writer of one open ledger.

    A failed append ends the handle: the last add confirmed cannot pass the failed entry. Whether a failed append took
    place is unknown; a recovery may keep it.
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
            client_lag=context.common.lag,
        )
        self._machine = machine
        spans: dict[int, Span] | None = None if context.tracer is NO_TRACER else {}
        kind = Appends if spans is None else partial(TracedAppends, tracer=context.tracer, spans=spans)
        self._appends = kind(
            machine=machine,
            metadata=metadata,
            settings=settings,
            clock=context.clock,
            budget=context.budget,
            digest_key=digest_key,
            counters=context.counters,
            soon=context.common.slices.soon,
            lifetime=self._lifetime,
            submit=self._submit,
            end=self._die,
        )
        self._driver = WriterDriver(
            machine=machine,
            metadata=metadata,
            events=self._appends,
            common=context.common,
            replacements=context.replacements,
            key=key,
            update=update,
            clock=context.clock,
            tasks=context.tasks,
            settings=settings,
            spans=spans,
            limits=context.limits,
        )
        self._driver.start()

    def _submit(self, first: int, last: int, payload_bytes: int, batch: bytes) -> None:
        self._driver.submit(first, last, payload_bytes, batch)

    def _die(self, error: TallybookError) -> None:
        self._driver.die(error)

    @property
    def id(self) -> int:
        """The ledger's id."""
        return self._machine.ledger_id

    @property
    def last_add_confirmed(self) -> int:
        """The last entry that readers may read, -1 for none.

        It and all lower entries are confirmed; with deferred sync, forced.
        """
        return self._machine.lac

    @property
    def length(self) -> int:
        """Payload bytes of all entries up to the last add confirmed."""
        return self._machine.lac_length

    @property
    def max_entry_bytes(self) -> int:
        """The largest entry that the ledger takes now; below the client's limit if a bookie of it takes less."""
        return self._appends.max_entry_bytes

    @property
    def limits_known(self) -> bool:
        """Whether the batch limits of the bookies are known; then ``max_entry_bytes`` is final."""
        return self._appends.limits_known

    def when_limits_known(self, tell: Callable[[], None]) -> None:
        """Call ``tell`` on the event loop once the limits are known, or the handle has ended."""
        self._appends.when_limits_known(tell)

    async def wait_for_limits(self, within_s: float) -> bool:
        """Wait until the limits are known, or the handle has ended; ``False`` after ``within_s`` seconds."""
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
        """The ledger's metadata: as closed, or as of the last ensemble change."""
        return self._closed or self._appends.metadata

    @property
    def ended(self) -> bool:
        """Whether the handle is closed, failed or abandoned, so that nothing can be appended."""
        return self._machine.error is not None

    # -- append -----------------------------------------------------------------------

    def append_nowait(self, payload: Buffer) -> PendingAppend:
        """Send one entry and return the pending append; await it for the entry id.

        Raises:
            Busy: the client's byte budget is used up. After ``retry_after_ms`` about half of it should be free.
            EntryTooLarge: above ``max_entry_bytes``, that of the client or of a bookie; the handle stays usable.
            LedgerClosed, LedgerFenced, ...: the handle is closed or failed; nothing was sent.
        """
        self._lifetime.check()
        appends = self._appends
        if not appends.budget.try_take(appends.admissible(payload)):
            raise appends.budget_busy()
        return appends.gather(payload)

    def take_budget(self, payload: Buffer) -> int:
        """Take budget for ``payload``, for a later ``append_admitted``; return the bytes taken.

        Raises:
            As ``append_nowait``.
        """
        appends = self._appends
        size = appends.admissible(payload)
        if not appends.budget.try_take(size):
            raise appends.budget_busy()
        return size

    def append_admitted(self, payloads: Sequence[bytes]) -> list[PendingAppend]:
        """The second half of ``append_nowait``: append payloads for which ``take_budget`` has taken budget.

        Raises:
            LedgerClosed, LedgerFenced, ...: the handle has ended meanwhile; nothing was sent, and the caller must give
                the budget back.
        """
        appends = self._appends
        appends.refuse_after_end()
        return [*map(appends.gather, payloads)]

    def append_held(self, payload: Buffer, held_bytes: int) -> PendingAppend:
        """Like ``append_nowait``, if the caller has already taken budget; the handle takes it over.

        Args:
            held_bytes: bytes taken from the budget; the excess is given back.

        Raises:
            As ``append_nowait``, except ``Busy``; the caller then keeps the budget.
        """
        appends = self._appends
        appends.budget.exchange(held_bytes, appends.admissible(payload))
        return appends.gather(payload)

    def append(self, payload: Buffer) -> Coroutine[Any, Any, int]:
        """Append one entry; return its id once an ack quorum has it on disk (with deferred sync: has received it).

        While all bookies are busy, the call waits without a limit; bound it with ``asyncio.timeout``. Cancelling the
        wait does not cancel the append.

        Raises:
            EntryTooLarge: above ``max_entry_bytes``, that of the client or of a bookie; the handle stays usable.
            RequestTimeout: the client's byte budget stayed used up for the add timeout; not sent.
            LedgerClosed, LedgerFenced, ...: the handle is closed or failed. The error's outcome says whether the entry
                was not sent, or may have been written.
            TypeError: it is not bytes.
        """
        if type(payload) is not bytes:
            # Here, not in the coroutine: a call that is not awaited must fail, too.
            check_buffer(payload, "an entry")
        return self._append(payload)

    async def _append(self, payload: Buffer) -> int:
        self._lifetime.check()
        appends = self._appends
        size = appends.admissible(payload)
        if not appends.budget.try_take(size):
            await appends.take_budget(size)
        return await appends.gather(payload)

    def append_many(self, payloads: Sequence[Buffer]) -> Coroutine[Any, Any, range]:
        """Append entries in order; return their ids once all are durable on an ack quorum.

        Entries are appended in pieces of a quarter of the client's byte budget. Other tasks may append to the ledger
        between two pieces; the returned range, from first to last entry, then includes their entries.

        Raises:
            As ``append``; some of the entries may then have been written.
        """
        for payload in payloads:
            check_buffer(payload, "an entry")
        return self._append_many(payloads)

    async def _append_many(self, payloads: Sequence[Buffer]) -> range:
        self._lifetime.check()
        appends = self._appends
        sizes = [appends.admissible(payload) for payload in payloads]
        pending: list[PendingAppend] = []
        for piece in cut_by_size(sizes, appends.budget.limit_bytes // 4):
            size = sum(sizes[piece.start : piece.stop])
            if not appends.budget.try_take(size):
                await appends.take_budget(size, Outcome.UNKNOWN if pending else Outcome.NOT_DONE)
            pending += [appends.gather(payloads[at]) for at in piece]
        if not pending:
            return range(appends.next_entry_id, appends.next_entry_id)
        # Confirmation is in order: when the last entry is confirmed, all are.
        last = await pending[-1]
        return range(pending[0].entry_id, last + 1)

    def with_chosen_ids(self) -> ChosenIdsWriter:
        """Write the ledger under entry ids that the caller chooses. Call it before any append, and append only by it.

        Raises:
            InvalidArgument: an entry was already appended.
        """
        if self._appends.next_entry_id:
            raise InvalidArgument(f"ledger {self.id}: entries were appended already")
        return ChosenIdsWriter(self, self._appends)

    # -- force ------------------------------------------------------------------------

    @while_open
    async def force(self) -> int:
        """Make entries appended with deferred sync durable; return the new last add confirmed.

        It covers every append that completed before the call. Without deferred sync it does nothing.

        Raises:
            NotEnoughBookies: a bookie of the ensemble was unavailable for the add timeout, or restarted since it
                acked. The handle has failed; it can still be closed, at the last add confirmed.
            LedgerFenced, ...: the handle has failed.
        """
        if self._machine.error is not None:
            raise self._machine.error.with_traceback(None)
        if self._machine.confirmed > self._machine.lac:
            await self._driver.force()
        return self._machine.lac

    # -- show -------------------------------------------------------------------------

    async def show(self) -> int:
        """Publish the last add confirmed to bookies now, instead of with the next entry or after an idle time.

        Does not use the metadata store. Waits for pending appends, also those made meanwhile; bound the wait with
        ``asyncio.timeout``. With deferred sync it publishes only forced entries.

        Returns:
            The last entry that every later reader sees, because enough bookies know it; -1 for none. It is lower than
            the last appended entry if bookies are unavailable, or the handle has failed: call again, or close.

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
        """Wait for pending appends, close the ledger, return its final metadata.

        A second close returns the same. A failed handle still closes the ledger, at its last add confirmed, unless
        another client has recovered it. With deferred sync, entries are forced first.

        Raises:
            LedgerFenced: another client recovers the ledger, or closed it at another entry. Entries up to the last add
                confirmed are in it; a reader shows whether later appends are.
            LedgerClosed: the handle was abandoned, or its client closed.
            NoSuchLedger: the ledger was deleted.
            Unauthorized, AccessDenied: bookies refuse this client.
            Conflict: a bookie has other bytes under the ids of this handle.
            OtherLedger: a bookie has another ledger with this id: the metadata were restored from an older copy.
            NotEnoughBookies: entries appended with deferred sync could not be forced; close again to leave them out.
            MetadataUnavailable, MetadataOutcomeUnknown: the ledger may still be open; close again.
            RequestTimeout: appends are still pending after the close timeout; close again.
        """
        if self._closed is not None:
            return self._closed
        with self._lifetime.use():
            return await self._close()

    async def _close(self) -> LedgerMetadata:
        self._appends.refuse_new()
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
        await self._driver.await_acks(self._context.settings.request_timeout_ms / 1000)
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
        """The metadata as another client closed the ledger; a success if it is closed at this handle's end."""
        if metadata.state is LedgerState.OPEN:
            raise LedgerFenced(f"ledger {self.id} was fenced by another client, which has not closed it yet")
        return self._end(metadata)

    def abandon(self) -> None:
        """Stop without closing the ledger: it stays open until it is recovered."""
        self._abandoned = True
        self._appends.refuse_new()
        self._driver.die(LedgerClosed(f"ledger {self.id}: the handle was abandoned"))
        self._driver.stop()
        self._lifetime.end(f"ledger {self.id}: the handle was abandoned")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await close_or_abandon(self, failed=kind is not None)


def _rules(settings: ClientSettings, deferred_sync: bool) -> WriterPolicy:
    return WriterPolicy(
        add_timeout_s=settings.add_timeout_ms / 1000,
        away_timeout_s=settings.away_timeout_ms / 1000,
        lag_limit_bytes=settings.max_pending_bytes // 2,
        max_changes=settings.max_ensemble_changes if settings.ensemble_change else 0,
        delay_changes=settings.delay_ensemble_change,
        deferred=deferred_sync,
    )
