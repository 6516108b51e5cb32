"""The writing handle of a ledger: append, and close.

    append_nowait -> accumulator -> (sealed) batch -> machine -> bookies -> confirmed -> awaiters

The path of an entry through a client is this file, ``accumulator``, ``driver`` and ``machine``.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

from tallybook.core.batch import Buffer, encode_batch
from tallybook.core.config import ClientSettings
from tallybook.core.errors import (
    Busy,
    Conflict,
    EntryTooLarge,
    InvalidArgument,
    LedgerClosed,
    LedgerFenced,
    NoSuchLedger,
    Outcome,
    RequestTimeout,
    TallybookError,
    Unauthorized,
)
from tallybook.core.ids import NO_ENTRY
from tallybook.core.limits import BATCH_TABLE_ROW_BYTES
from tallybook.metadata.model import LedgerMetadata, LedgerState, close, of_members
from tallybook.runtime.clock import Clock
from tallybook.runtime.tasks import Tasks

from ..budget import ByteBudget
from ..ports import Connections, UpdateLedger
from ..spares import Spares
from .accumulator import Accumulator
from .driver import WriterDriver
from .machine import WriterMachine
from .pending import AppendGroup, PendingAppend
from .rules import WriterRules


@dataclass(frozen=True, slots=True)
class WriterContext:
    """What a handle shares with its client."""

    connections: Connections
    spares: Spares
    clock: Clock
    tasks: Tasks
    settings: ClientSettings
    budget: ByteBudget


_NOT_OURS: Final = (LedgerFenced, LedgerClosed, NoSuchLedger, Unauthorized, Conflict)
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
        self._metadata = metadata
        self._context = context
        self._update = update
        self._budget = context.budget
        self._max_entry_bytes = int(settings.max_entry_bytes)
        self._digest_key = digest_key
        self._accumulator = Accumulator(metadata.quorum, settings.max_batch_bytes, digest=digest_key is not None)
        self._groups: deque[AppendGroup] = deque()
        self._payload_bytes = 0
        self._closing = False
        self._ended = LedgerClosed(f"ledger {metadata.ledger_id} is closed")
        self._closed: LedgerMetadata | None = None
        self._flush_scheduled = False
        self._idle = asyncio.Event()
        self.on_end: list[Callable[[TallybookError], None]] = []
        """Called once, when the handle can append nothing more: closed, dead or abandoned."""
        machine = WriterMachine(
            metadata.ledger_id,
            metadata.quorum,
            metadata.last_fragment.bookies,
            _rules(settings, deferred_sync),
            now=context.clock.monotonic(),
        )
        self._machine = machine
        self._driver = WriterDriver(
            machine,
            metadata,
            context.connections,
            context.spares,
            key,
            update,
            self,
            context.clock,
            context.tasks,
            settings,
        )
        self._driver.start()

    @property
    def id(self) -> int:
        """The ledger's id."""
        return self._metadata.ledger_id

    @property
    def last_add_confirmed(self) -> int:
        """Highest confirmed entry id, -1 for none."""
        return self._machine.lac

    @property
    def length(self) -> int:
        """Payload bytes of all confirmed entries."""
        return self._machine.lac_length

    @property
    def metadata(self) -> LedgerMetadata:
        """The ledger's metadata: as closed, or as of the last change of its ensemble."""
        return self._closed or self._metadata

    @property
    def ended(self) -> bool:
        """Whether the handle is closed, dead or abandoned: nothing can be appended."""
        return self._machine.error is not None

    # -- append -----------------------------------------------------------------------

    def append_nowait(self, payload: Buffer) -> PendingAppend:
        """Send one entry off and return what to await for its id.

        Raises:
            Busy: the client's byte budget is used up.
            EntryTooLarge: above ``max_entry_bytes``; the handle stays good.
            LedgerClosed, LedgerFenced, ...: the handle is closed or dead; nothing was sent.
        """
        size = self.admissible(payload)
        if not self._budget.try_take(size):
            raise Busy(f"ledger {self.id}: {self._budget.limit_bytes} bytes are pending", retry_after_ms=1)
        return self.gather(payload)

    async def append(self, payload: Buffer) -> int:
        """Append one entry; return its id once it is durable on an ack quorum.

        Cancelling the wait does not take the entry back.

        Raises:
            EntryTooLarge: above ``max_entry_bytes``; the handle stays good.
            RequestTimeout: no room in the client's budget within the add timeout; not sent.
            LedgerClosed, LedgerFenced, ...: the handle is closed or dead. The outcome tells whether the entry was not
                sent, or may have been written.
        """
        await self.take_room(self.admissible(payload))
        return await self.gather(payload)

    async def append_many(self, payloads: Sequence[Buffer]) -> range:
        """Append entries in order; return their ids once all are durable on an ack quorum.

        Raises:
            As ``append``; some of the entries may then have been written.
        """
        sizes = [self.admissible(payload) for payload in payloads]
        pending: list[PendingAppend] = []
        for payload, size in zip(payloads, sizes, strict=True):
            if not self._budget.try_take(size):
                await self.take_room(size, Outcome.UNKNOWN if pending else Outcome.NOT_DONE)
            pending.append(self.gather(payload))
        if not pending:
            return range(self._accumulator.next_entry_id, self._accumulator.next_entry_id)
        # Confirmation is in order: when the last entry is confirmed, all are.
        last = await pending[-1]
        return range(pending[0].entry_id, last + 1)

    def admissible(self, payload: Buffer) -> int:
        """What ``payload`` takes of the client's budget, if it can be appended now. First step of an append.

        Raises:
            As ``append``.
        """
        if self._refusing:
            raise self._refusal(Outcome.NOT_DONE)
        if type(payload) is not bytes and not isinstance(payload, bytes | bytearray | memoryview):
            raise InvalidArgument(f"an entry is bytes, not {type(payload).__name__}")
        size = payload.nbytes if isinstance(payload, memoryview) else len(payload)
        if size > self._max_entry_bytes:
            raise EntryTooLarge(f"an entry of {size} bytes exceeds the limit of {self._max_entry_bytes}")
        return size + BATCH_TABLE_ROW_BYTES

    @property
    def _refusing(self) -> bool:
        return self._closing or self._machine.error is not None

    def _refusal(self, outcome: Outcome) -> TallybookError:
        """Why nothing more is taken: of the kind that ended the handle, but what was not sent is not in doubt."""
        ended = self._machine.error or self._ended
        return type(ended)(ended.message, outcome=outcome)

    async def take_room(self, size: int, outcome: Outcome = Outcome.NOT_DONE) -> None:
        """Take ``size`` bytes of the budget, waiting for them; ``outcome`` is that of the whole call if it fails here.

        Second step of an append. Raises: As ``append``.
        """
        try:
            async with asyncio.timeout(self._context.settings.add_timeout_ms / 1000):
                await self._budget.take(size)
        except TimeoutError:
            message = f"ledger {self.id}: no room for another append within the add timeout"
            raise RequestTimeout(message, outcome=outcome) from None
        if self._refusing:
            self._budget.give(size)
            raise self._refusal(outcome)

    def give_room(self, size: int) -> None:
        """Give back what ``take_room`` took, instead of the last step."""
        self._budget.give(size)

    @property
    def budget(self) -> ByteBudget:
        """What all ledgers of the client may hold together."""
        return self._budget

    def gather(self, payload: Buffer) -> PendingAppend:
        """Give the entry the next id and send it off. Last step of an append: there is room for it already."""
        pending = self._accumulator.add(payload if isinstance(payload, bytes) else bytes(payload))
        if not self._flush_scheduled:
            self._flush_scheduled = True
            asyncio.get_running_loop().call_soon(self._flush)
        return pending

    def _flush(self) -> None:
        """Seal and send groups: at once while nothing is unconfirmed, and then the fuller, the more is.

        Whatever stays behind leaves with the next confirmation, so nothing waits for a timer. A batch costs a bookie
        about the same, small or large: under load, few large ones are both more entries a second and less latency.
        """
        self._flush_scheduled = False
        machine, limit = self._machine, self._context.settings.max_in_flight_batches
        while machine.error is None and (in_flight := machine.unconfirmed_batches) < limit:
            if in_flight and not self._accumulator.worth_sending(in_flight / limit):
                return
            group = self._accumulator.take()
            if group is None:
                return
            self._seal(group)

    def _seal(self, group: AppendGroup) -> None:
        self._payload_bytes += group.payload_bytes
        batch = encode_batch(
            self.id,
            group.first_entry_id,
            group.payloads,
            lac=self._machine.lac,
            ledger_length=self._payload_bytes,
            written_at_us=self._context.clock.wall_us(),
            digest_key=self._digest_key,
        )
        # The encoded batch is what is held from here on; the payloads may go.
        count, held = group.entry_count, group.held_bytes
        self._budget.exchange(held, len(batch))
        group.seal()
        self._groups.append(group)
        first = group.first_entry_id
        self._driver.submit(first, first + count - 1, group.payload_bytes, batch)

    # -- what the driver tells --------------------------------------------------------

    def confirmed(self, last_entry_id: int) -> None:
        """Settle every group up to ``last_entry_id``."""
        while self._groups and self._groups[0].last_entry_id <= last_entry_id:
            self._groups.popleft().complete()
        self._flush()
        if not self._groups and not self._accumulator:
            self._idle.set()

    def ensemble_changed(self, metadata: LedgerMetadata) -> None:
        """Remember what the metadata are now."""
        self._metadata = metadata

    def released(self, size: int) -> None:
        """Give bytes back to the client's budget."""
        self._budget.give(size)

    def died(self, error: TallybookError) -> None:
        """Fail whatever is not confirmed."""
        for group in self._groups:
            group.complete(error)
        self._groups.clear()
        for group in self._accumulator.take_all():
            self._budget.give(group.held_bytes)
            group.complete(error)
        self._idle.set()
        for tell in self.on_end:
            tell(error)

    # -- force ------------------------------------------------------------------------

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

    # -- close ------------------------------------------------------------------------

    async def close(self) -> LedgerMetadata:
        """Wait for pending appends, settle the end of the ledger, return its final metadata.

        Closing twice returns the same. A handle that died still closes, at its last add confirmed,
        unless the ledger is in other hands. With deferred sync, what was appended is forced first.

        Raises:
            LedgerFenced: another client recovered the ledger.
            NotEnoughBookies: what was appended with deferred sync could not be forced; close again to leave it out.
            MetadataUnavailable, MetadataOutcomeUnknown: the end is not settled; close again.
            RequestTimeout: appends are still pending after the close timeout; close again.
        """
        if self._closed is not None:
            return self._closed
        self._closing = True
        await self._finish_appends()
        error = self._machine.error
        if error is not None and error is not self._ended and isinstance(error, _NOT_OURS):
            raise error.with_traceback(None)
        if error is None:
            await self.force()
        await self._driver.settle(self._context.settings.request_timeout_ms / 1000)
        self._driver.die(self._ended)
        self._closed = (await self._update(self._end)).value
        self._driver.stop()
        return self._closed

    async def _finish_appends(self) -> None:
        timeout_s = 3 * self._context.settings.add_timeout_ms / 1000
        try:
            async with asyncio.timeout(timeout_s):
                while self._groups or self._accumulator:
                    self._idle.clear()
                    self._flush()
                    await self._idle.wait()
        except TimeoutError:
            raise RequestTimeout(f"ledger {self.id}: appends still pending after {timeout_s:.0f} s") from None

    def _end(self, metadata: LedgerMetadata) -> LedgerMetadata:
        last, length = self._machine.lac, self._machine.lac_length
        if metadata.state is LedgerState.IN_RECOVERY:
            raise LedgerFenced(f"ledger {self.id} is being recovered by another client")
        if metadata.closed and (metadata.last_entry_id, metadata.length) != (last, length):
            raise LedgerFenced(f"ledger {self.id} was closed by another client at entry {metadata.last_entry_id}")
        missed = of_members(metadata, self._machine.missed())
        return close(metadata, last, length if last != NO_ENTRY else 0, missed=missed)

    def abandon(self) -> None:
        """Stop without closing the ledger: it stays open, for a recovery to end."""
        self._closing = True
        self._driver.die(LedgerClosed(f"ledger {self.id}: the handle was abandoned"))
        self._driver.stop()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            await self.close()
        else:
            self.abandon()


def _rules(settings: ClientSettings, deferred_sync: bool) -> WriterRules:
    return WriterRules(
        add_timeout_s=settings.add_timeout_ms / 1000,
        away_timeout_s=settings.away_timeout_ms / 1000,
        lag_limit_bytes=settings.max_pending_bytes // 2,
        max_changes=settings.max_ensemble_changes if settings.ensemble_change else 0,
        delay_changes=settings.delay_ensemble_change,
        deferred=deferred_sync,
    )
