"""The appends of one ledger, from payload to confirmation.

    admissible -> take_budget -> gather -> accumulator -> (sealed) batch -> submit -> confirmed -> awaiters

An append has three steps: check that the entry may be appended; take its bytes from the client's budget; then, without
a wait in between, assign its id and add it to a batch.

Batching follows back-pressure, without a timer: with few unconfirmed batches, a group is sealed in the next iteration
of the event loop. With more, a group must be fuller before it is sealed; at the limit, appends only gather.

A future per entry would cost more than everything else that a client does for an entry. The entries of a batch are
confirmed together, so they share one ``AppendGroup``; a ``PendingAppend`` only has its group and its entry id.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

from tallybook.core.batch import encode_batch, encoded_bytes
from tallybook.core.buffers import Buffer, check_buffer
from tallybook.core.errors import Busy, EntryTooLarge, LedgerClosed, Outcome, RequestTimeout, TallybookError
from tallybook.core.limits import BATCH_TABLE_ROW_BYTES, MAX_BATCH_ENTRIES
from tallybook.core.quorum import Quorum
from tallybook.core.settings import ClientSettings
from tallybook.metadata.ledger.model import LedgerMetadata
from tallybook.runtime.clock import Clock
from tallybook.runtime.concurrency.handle_lifetime import Lifetime

from ..budget import ByteBudget
from ..recovery_counters import RecoveryCounters
from .machine import WriterMachine


class SharedOutcome:
    """Appends that complete together, with one outcome."""

    __slots__ = ("_callbacks", "_waiters", "done", "error")

    def __init__(self) -> None:
        self.done = False
        self.error: TallybookError | None = None
        self._waiters: list[asyncio.Future[None]] = []
        self._callbacks: list[Callable[[Any], None]] = []

    def complete(self, error: TallybookError | None = None) -> None:
        """Complete, or fail, all of them, once."""
        self.done, self.error = True, error
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        if self._callbacks:
            loop = asyncio.get_running_loop()
            for callback in self._callbacks:
                # Not called here: an exception of the callback must not interrupt the writer.
                loop.call_soon(callback, self)
        self._waiters, self._callbacks = [], []

    def on_complete(self, callback: Callable[[Any], None]) -> None:
        """Call back on the event loop when they have completed; at once if they have."""
        if self.done:
            callback(self)
        else:
            self._callbacks.append(callback)

    async def wait(self) -> None:
        """Wait until they have completed. Cancelling the wait does not cancel the appends."""
        if not self.done:
            # One future per waiter: cancelling one of them must not cancel the others.
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter


class AppendGroup(SharedOutcome):
    """The entries of one batch, from the first append to the confirmation.

    The group *is* the batch: when it is sealed its boundaries are final.
    """

    __slots__ = ("_sealed_count", "first_entry_id", "held_bytes", "payloads", "sealed_at")

    def __init__(self, first_entry_id: int) -> None:
        super().__init__()
        self.first_entry_id = first_entry_id
        self.payloads: list[bytes] = []
        self.held_bytes = 0
        """Size of the entries in a batch, as counted in the client's budget."""
        self.sealed_at = 0.0
        """Monotonic second of the sealing, once sealed."""
        self._sealed_count = 0

    @property
    def entry_count(self) -> int:
        """Entries gathered so far, or sealed."""
        return self._sealed_count or len(self.payloads)

    @property
    def last_entry_id(self) -> int:
        """Id of the last entry gathered."""
        return self.first_entry_id + self.entry_count - 1

    @property
    def payload_bytes(self) -> int:
        """Payload bytes of all entries."""
        return self.held_bytes - self.entry_count * BATCH_TABLE_ROW_BYTES

    def add(self, payload: bytes) -> PendingAppend:
        """Gather one more entry."""
        payloads = self.payloads
        pending = PendingAppend(self, self.first_entry_id + len(payloads))
        payloads.append(payload)
        self.held_bytes += len(payload) + BATCH_TABLE_ROW_BYTES
        return pending

    def seal(self) -> None:
        """Drop the payloads: the encoded batch contains them."""
        self._sealed_count = len(self.payloads)
        self.payloads = []


class PendingAppend:
    """A pending append. Await it for the entry id, once the entry is confirmed.

    It may be awaited any number of times, or never: the entry is written in any case.
    """

    __slots__ = ("entry_id", "group")

    def __init__(self, group: AppendGroup, entry_id: int) -> None:
        self.group = group
        self.entry_id = entry_id

    def __await__(self) -> Generator[object, None, int]:
        group = self.group
        if not group.done:
            yield from group.wait().__await__()
        if group.error is not None:
            raise group.error.with_traceback(None)
        return self.entry_id

    @property
    def done(self) -> bool:
        """Whether the append has completed or failed."""
        return self.group.done

    async def settled(self) -> None:
        """Wait until the append has completed or failed; see ``outcome``."""
        await self.group.wait()

    def outcome(self) -> int:
        """The entry id of a completed append, without awaiting it.

        Raises:
            LedgerClosed, LedgerFenced, ...: the append has failed.
        """
        if self.group.error is not None:
            raise self.group.error.with_traceback(None)
        return self.entry_id


class Accumulator:
    """Gathers appends into groups until their batch is sealed, in entry order; only the last group is open."""

    def __init__(self, quorum: Quorum, max_batch_bytes: int, *, digest: bool) -> None:
        self._quorum = quorum
        self._overhead = encoded_bytes(0, 0, digest=digest)
        self.limit(max_batch_bytes)
        self._groups: deque[AppendGroup] = deque()
        self._open = self._fresh(0)

    @property
    def next_entry_id(self) -> int:
        """The id of the next append."""
        return self._open.last_entry_id + 1

    def __bool__(self) -> bool:
        return bool(self._groups) or self._open.entry_count > 0

    def limit(self, max_batch_bytes: int) -> None:
        """Bound the size of open groups to a batch of ``max_batch_bytes``."""
        self._space = max_batch_bytes - self._overhead

    def add(self, payload: bytes) -> PendingAppend:
        """Gather one entry and assign its id."""
        group = self._open
        size = group.held_bytes + len(payload) + BATCH_TABLE_ROW_BYTES
        if (size > self._space or len(group.payloads) >= self._max_entries) and group.payloads:
            self._groups.append(group)
            group = self._open = self._fresh(group.last_entry_id + 1)
        return group.add(payload)

    def worth_sending(self, share: float) -> bool:
        """Whether there is a full group, or the open one has ``share`` of a full batch."""
        return bool(self._groups) or self._open.held_bytes >= share * self._space

    def take(self) -> AppendGroup | None:
        """Remove the next group to seal; its boundaries are then final."""
        if self._groups:
            return self._groups.popleft()
        group = self._open
        if not group.payloads:
            return None
        self._open = self._fresh(group.last_entry_id + 1)
        return group

    def take_all(self) -> list[AppendGroup]:
        """Remove all groups, to fail them."""
        groups = []
        while (group := self.take()) is not None:
            groups.append(group)
        return groups

    def _fresh(self, first_entry_id: int) -> AppendGroup:
        # A batch never crosses a stripe: its entries share one write set.
        self._max_entries = min(MAX_BATCH_ENTRIES, self._quorum.stripe_end(first_entry_id) - first_entry_id + 1)
        return AppendGroup(first_entry_id)


class Appends:
    """Gathers the appends of one handle, seals them into batches, and completes them.

    Args:
        machine: the writer machine.
        metadata: the ledger's metadata on opening.
        digest_key: signs batches if the ledger's digest is an HMAC.
        soon: calls in one of the next iterations of the event loop.
        lifetime: the handle's lifetime.
        submit: sends a sealed batch: its first and last entry id, its payload bytes, and itself.
        end: ends the handle, if an entry is larger than any batch may be.
    """

    def __init__(
        self,
        *,
        machine: WriterMachine,
        metadata: LedgerMetadata,
        settings: ClientSettings,
        clock: Clock,
        budget: ByteBudget,
        digest_key: bytes | None,
        counters: RecoveryCounters,
        soon: Callable[[Callable[[], None]], None],
        lifetime: Lifetime,
        submit: Callable[[int, int, int, bytes], None],
        end: Callable[[TallybookError], None],
    ) -> None:
        self._counters = counters
        self._soon = soon
        self._machine = machine
        self._settings = settings
        self._clock = clock
        self._max_entry_bytes = int(settings.max_entry_bytes)
        self._overhead_bytes = encoded_bytes(1, 0, digest=digest_key is not None)
        """Overhead of a batch with one entry."""
        self._digest_key = digest_key
        self._accumulator = Accumulator(metadata.quorum, settings.max_batch_bytes, digest=digest_key is not None)
        self._groups: deque[AppendGroup] = deque()
        self._payload_bytes = 0
        self._flush_scheduled = False
        self._idle = asyncio.Event()
        self._awaiting_limits: list[Callable[[], None]] = []
        self.budget = budget
        """The byte budget of the client."""
        self.metadata = metadata
        """As of the last ensemble change."""
        self._closing = False
        self._lifetime = lifetime
        self._submit = submit
        self._end = end
        self._awaiting_end: list[Callable[[TallybookError], None]] = []

    @property
    def next_entry_id(self) -> int:
        """The id of the next append."""
        return self._accumulator.next_entry_id

    # -- the steps of an append -------------------------------------------------------

    def admissible(self, payload: Buffer) -> int:
        """The budget that ``payload`` needs, if it can be appended now. First step of an append.

        Raises:
            As ``append``.
        """
        self.refuse_after_end()
        if type(payload) is not bytes:
            check_buffer(payload, "an entry")
        size = payload.nbytes if isinstance(payload, memoryview) else len(payload)
        if size > self._max_entry_bytes or size + self._overhead_bytes > self._machine.sizes.max_bytes:
            raise EntryTooLarge(self._too_large(size))
        return size + BATCH_TABLE_ROW_BYTES

    @property
    def max_entry_bytes(self) -> int:
        """The largest entry that the ledger takes now; below the client's limit if a bookie of it takes less."""
        return min(self._max_entry_bytes, self._machine.sizes.max_bytes - self._overhead_bytes)

    @property
    def limits_known(self) -> bool:
        """Whether the batch limits of the bookies are known; nothing is sent before."""
        return self._machine.sizes.known

    def when_limits_known(self, tell: Callable[[], None]) -> None:
        """Call ``tell`` soon after the limits are known, or the handle has ended."""
        if self._machine.sizes.known or self._machine.error is not None:
            self._soon(tell)
        else:
            self._awaiting_limits.append(tell)

    def when_ended(self, tell: Callable[[TallybookError], None]) -> None:
        """Call ``tell`` once, when the handle is closed, failed or abandoned."""
        self._awaiting_end.append(tell)

    def _notify_limits_known(self) -> None:
        awaiting, self._awaiting_limits = self._awaiting_limits, []
        for tell in awaiting:
            # Not called here: an exception of the callback must not interrupt the writer.
            self._soon(tell)

    def _too_large(self, size: int) -> str:
        return f"ledger {self._machine.ledger_id}: an entry of {size} bytes exceeds the limit of {self.max_entry_bytes}"

    def refuse_new(self) -> None:
        """Refuse new appends from now on: the handle is being closed."""
        self._closing = True

    def refuse_after_end(self) -> None:
        """Check that the handle is not closed or failed.

        Raises:
            As ``append``.
        """
        if self._closing or self._machine.error is not None:
            raise self._refusal(Outcome.NOT_DONE)

    @property
    def _refusing(self) -> bool:
        return self._closing or self._machine.error is not None

    def _refusal(self, outcome: Outcome) -> TallybookError:
        """The error for a new append: of the class that ended the handle, but with the given outcome."""
        ended = self._machine.error or LedgerClosed(f"ledger {self._machine.ledger_id} is closed")
        return type(ended)(ended.message, outcome=outcome)

    async def take_budget(self, size: int, outcome: Outcome = Outcome.NOT_DONE) -> None:
        """Take ``size`` bytes of the budget, waiting for them. Second step of an append.

        Args:
            outcome: that of the whole call if it fails here.

        Raises:
            As ``append``.
        """
        try:
            async with asyncio.timeout(self._settings.add_timeout_ms / 1000):
                with self._lifetime.use(outcome):
                    await self.budget.take(size)
        except TimeoutError:
            message = f"ledger {self._machine.ledger_id}: max_pending_bytes stayed in use for the add timeout"
            raise RequestTimeout(message, outcome=outcome) from None
        if self._refusing:
            self.budget.give(size)
            raise self._refusal(outcome)

    def budget_busy(self) -> Busy:
        """The error for an append that does not wait for budget."""
        budget, settings = self.budget, self._settings
        round_bytes = settings.max_in_flight_batches * settings.max_batch_bytes
        message = f"ledger {self._machine.ledger_id}: {budget.taken_bytes} of {budget.limit_bytes} bytes are pending"
        return Busy(message, retry_after_ms=budget.retry_after_ms(round_bytes))

    def give_budget(self, size: int) -> None:
        """Give back the bytes of ``take_budget``, instead of the last step."""
        self.budget.give(size)

    def gather(self, payload: Buffer) -> PendingAppend:
        """Give the entry the next id, and add it to a batch. Last step of an append: its budget is taken."""
        pending = self._accumulator.add(payload if isinstance(payload, bytes) else bytes(payload))
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._soon(self._flush)
        return pending

    def _flush(self) -> None:
        """Seal and send groups: at once while no batch is unconfirmed; the more are, the fuller a group must be.

        The rest is sent with the next confirmation, so no timer is needed. A small batch costs a bookie about as much
        as a large one: under load, few large batches give more throughput and lower latency.
        """
        self._flush_scheduled = False
        machine, limit = self._machine, self._settings.max_in_flight_batches
        if not machine.sizes.known:
            # Wait for the limits: a sent batch cannot be cut any more.
            return
        self._accumulator.limit(min(self._settings.max_batch_bytes, machine.sizes.max_bytes))
        while machine.error is None and (in_flight := machine.unconfirmed_batches) < limit:
            if in_flight and not self._accumulator.worth_sending(in_flight / limit):
                return
            group = self._accumulator.take()
            if group is None:
                return
            self._seal(group)

    def _seal(self, group: AppendGroup) -> None:
        """Send a group as one batch, or as several if a bookie takes less than the size of the group."""
        digest, limit = self._digest_key is not None, self._machine.sizes.max_bytes
        space, held, first = limit - encoded_bytes(0, 0, digest=digest), group.held_bytes, group.first_entry_id
        pieces = [group.payloads]
        if held > space:
            sizes = [len(payload) + BATCH_TABLE_ROW_BYTES for payload in group.payloads]
            pieces = [group.payloads[piece.start : piece.stop] for piece in cut_by_size(sizes, space)]
        self._groups.append(group)
        largest = max(len(payloads[0]) for payloads in pieces)
        if largest > self.max_entry_bytes:
            # It was accepted before the bookies' limits were known.
            self.budget.give(held)
            self._end(EntryTooLarge(self._too_large(largest)))
            return
        batches = []
        for payloads in pieces:
            payload_bytes = sum(map(len, payloads))
            self._payload_bytes += payload_bytes
            batch = encode_batch(
                self._machine.ledger_id,
                first,
                payloads,
                lac=self._machine.lac,
                ledger_length=self._payload_bytes,
                written_at_us=self._clock.wall_us(),
                digest_key=self._digest_key,
            )
            batches.append((first, first + len(payloads) - 1, payload_bytes, batch))
            first += len(payloads)
        # From here on the encoded batches are held instead of the payloads.
        self.budget.exchange(held, sum(len(batch) for *_, batch in batches))
        group.seal()
        group.sealed_at = self._clock.monotonic()
        for each in batches:
            if self._machine.error is None:
                self._submit(*each)
            else:
                self.budget.give(len(each[-1]))

    # -- events of the driver ---------------------------------------------------------

    def confirmed(self, last_entry_id: int) -> None:
        """Complete every group up to ``last_entry_id``."""
        now = self._clock.monotonic()
        while self._groups and self._groups[0].last_entry_id <= last_entry_id:
            group = self._groups.popleft()
            self.budget.turned_round(now - group.sealed_at)
            group.complete()
        self._flush()
        if not self._groups and not self._accumulator:
            self._idle.set()

    def ensemble_changed(self, metadata: LedgerMetadata) -> None:
        """Store the metadata of a new ensemble."""
        self._counters.ensemble_changes += 1
        self.metadata = metadata

    def sizes_known(self) -> None:
        """The batch limits are known: send the waiting groups."""
        self._flush()
        self._notify_limits_known()

    def released(self, size: int) -> None:
        """Give bytes back to the client's budget."""
        self.budget.give(size)

    def died(self, error: TallybookError) -> None:
        """Fail all unconfirmed appends."""
        for group in self._groups:
            group.complete(error)
        self._groups.clear()
        for group in self._accumulator.take_all():
            self.budget.give(group.held_bytes)
            group.complete(error)
        self._idle.set()
        for tell in self._awaiting_end:
            tell(error)
        self._notify_limits_known()

    # -- the end ----------------------------------------------------------------------

    async def finish(self) -> None:
        """Wait until every append has completed or failed.

        Raises:
            RequestTimeout: not within the close timeout.
        """
        timeout_s = 3 * self._settings.add_timeout_ms / 1000
        try:
            async with asyncio.timeout(timeout_s):
                while self._groups or self._accumulator:
                    self._idle.clear()
                    self._flush()
                    await self._idle.wait()
        except TimeoutError:
            raise RequestTimeout(
                f"ledger {self._machine.ledger_id}: appends still pending after {timeout_s:.0f} s"
            ) from None


def cut_by_size(sizes: Sequence[int], limit: int) -> Iterator[range]:
    """Cut payloads of these sizes into pieces of at most ``limit`` bytes, with at least one payload each."""
    start = total = 0
    for at, size in enumerate(sizes):
        if total + size > limit and at > start:
            yield range(start, at)
            start, total = at, 0
        total += size
    if sizes:
        yield range(start, len(sizes))
