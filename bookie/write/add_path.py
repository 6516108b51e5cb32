"""The add path: from the bytes of a client to a record in the journal (docs/understand/walk-append.md).

1. Verify the batch (``verify_batch``).
2. Admission, which may answer BUSY.
3. Wait for anything that needs waiting: the ledger's state, its key verifier, a lookup of batches already held under
   these ids, space in the write cache. Most batches take the *fast path*, which skips this step
   (``_takes_fast_path``); others, and all of a repair, take the *slow path* in a task of their own.
4. ``_decide``: fenced? key? overlap?
5. ``_hand_over``: journal, then write cache. Steps 4 and 5 run without yielding to the event loop.

``PendingAcks`` sends the ack when the record is durable, in a later turn. Every add is answered exactly once, never
from within ``take``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from tallybook.core.add_kind import AddKind
from tallybook.core.answers import AddAnswer, AddCallback
from tallybook.core.batch import BatchHeader, verify_batch
from tallybook.core.buffers import Buffer
from tallybook.core.coverage import sometimes
from tallybook.core.error_codes import error_from_wire
from tallybook.core.errors import (
    OK_CODE,
    BookieUnavailable,
    Busy,
    Conflict,
    EntryCorrupt,
    InvalidArgument,
    InvalidBatch,
    InvariantViolation,
    NewerFormat,
    OtherLedger,
    TallybookError,
    Unauthorized,
    is_defect,
)
from tallybook.core.ids import MAX_NEW_ENTRY_ID, NO_ENTRY, NO_IDENTITY
from tallybook.runtime.clock import Clock
from tallybook.runtime.metrics.part_metrics import PartMetrics
from tallybook.runtime.tasks import Tasks
from tallybook.runtime.tracing.port import current_span

from ..journal.format import BatchRecord
from ..ledgers.key_verification import KeyVerification, introducing_record
from ..ledgers.state import Ledger
from ..ledgers.table import LedgerTable
from ..storage.flushed_batches import FlushedBatches
from ..storage.write_cache import BATCH_OVERHEAD_BYTES, WriteCache
from .admission import CLOSED, JOURNAL_FULL, RECOVERY_SHARE, WAITING, Admission, Refusal
from .overlap_trim import OverlapTrim
from .pending_acks import PendingAcks, PendingAdd
from .repair_adds import RepairAdds
from .space_waiters import SpaceWaiters
from .traced_add import TracedAdd

MAX_WAITING_ADDS: Final = 4_096
"""Adds on the slow path at the same time; more are BUSY."""


class AddPath:
    """Takes batches.

    Args:
        stored: the batches already held, apart from the write cache.
        overlap_trim: trims dangling or damaged index rows that overlap a good copy of a recovery or a repair.
        repairs: the additional checks of repair adds.
        waiters: the adds that wait for space in the write cache or in the journal.
        request_flush: requests a checkpoint; cheap.
        check_journal: requests a checkpoint if the journal is getting full.
        on_other_ledger: called with the ledger id when an add means another ledger than the one held.
        on_defect: ends the process; called with the reason when the add path itself fails.
    """

    def __init__(
        self,
        *,
        table: LedgerTable,
        cache: WriteCache,
        commits: PendingAcks,
        admission: Admission,
        verifiers: KeyVerification,
        stored: FlushedBatches,
        overlap_trim: OverlapTrim,
        repairs: RepairAdds,
        waiters: SpaceWaiters,
        request_flush: Callable[[], None],
        check_journal: Callable[[], None],
        on_other_ledger: Callable[[int], None],
        on_defect: Callable[[str], None],
        clock: Clock,
        tasks: Tasks,
    ) -> None:
        self._table = table
        self._cache = cache
        self._commits = commits
        self._admission = admission
        self._verifiers = verifiers
        self._stored = stored
        self._overlap_trim = overlap_trim
        self._repairs = repairs
        self._waiters = waiters
        self._request_flush = request_flush
        self._check_journal = check_journal
        self._on_other_ledger = on_other_ledger
        self._on_defect = on_defect
        self._clock = clock
        self._tasks = tasks
        self._waiting: dict[asyncio.Task[bool], PendingAdd] = {}
        self._closed_code = OK_CODE
        self.taken_batches = 0
        self.taken_bytes = 0

    @property
    def waiting_count(self) -> int:
        """Adds on the slow path."""
        return len(self._waiting)

    def take(
        self,
        batch: Buffer,
        key: bytes,
        on_answer: AddCallback,
        *,
        kind: AddKind = AddKind.ORDINARY,
        others_in_flight: bool = False,
        identity: bytes = NO_IDENTITY,
    ) -> None:
        """Take one batch; see ``LedgerStore.add``. A repair add uses the lane of recovery adds."""
        recovery = kind.from_recovery
        try:
            header = verify_batch(batch)
        except (InvalidBatch, NewerFormat) as error:
            _answer_soon(on_answer, AddAnswer(NO_ENTRY, NO_ENTRY, 0, error.wire_code))
            return
        if header.last_entry_id > MAX_NEW_ENTRY_ID and not recovery:
            # Recovery still copies such an entry: an earlier version may have taken it.
            answer = AddAnswer(header.ledger_id, header.first_entry_id, header.entry_count, InvalidArgument.wire_code)
            _answer_soon(on_answer, answer)
            return
        size = len(batch) + BATCH_OVERHEAD_BYTES
        refusal = self._refusal(size, kind, others_in_flight=others_in_flight)
        if refusal is not None:
            answer = AddAnswer(header.ledger_id, header.first_entry_id, header.entry_count, *refusal[:2])
            _answer_soon(on_answer, answer)
            return
        since = self._clock.monotonic()
        ids = (header.ledger_id, header.first_entry_id, header.entry_count)
        add = PendingAdd(*ids, size, since, on_answer, kind, identity)
        span = current_span()
        if span is not None:
            add.trace = TracedAdd(span)
        self._admission.take(size, recovery=recovery)
        ledger = self._table.get(header.ledger_id)
        if add.repair or ledger is None or not self._takes_fast_path(ledger, header, batch, key, add):
            self._take_slow_path(header, batch, key, add)
            return
        try:
            self._hand_over(ledger, header, batch, add)
        except TallybookError as error:
            asyncio.get_running_loop().call_soon(self._commits.answer, add, error.wire_code)

    def refuse(self, code: int) -> None:
        """Take nothing from now on; refuse the adds on the slow path with ``code``."""
        self._closed_code = code
        for task in list(self._waiting):
            task.cancel()

    async def close(self, code: int) -> None:
        """Refuse everything, and wait until no add is on the slow path."""
        self.refuse(code)
        await asyncio.gather(*list(self._waiting), return_exceptions=True)

    async def force(self, ledger_id: int, key: bytes) -> None:
        """See ``LedgerStore.force``."""
        async with self._table.using(ledger_id) as ledger:
            await self._verifiers.authorize(ledger, key)
            if ledger.refuses_add:
                raise error_from_wire(ledger.refuses_add, f"ledger {ledger_id}: force refused")
            await self._commits.durable(ledger)

    # Step 2: admission.

    def _refusal(self, size: int, kind: AddKind, *, others_in_flight: bool) -> Refusal | None:
        if self._closed_code:
            return Refusal(self._closed_code, 0, CLOSED)
        recovery = kind.from_recovery
        if len(self._waiting) >= MAX_WAITING_ADDS + (MAX_WAITING_ADDS // RECOVERY_SHARE if recovery else 0):
            self._admission.count(WAITING)
            return WAITING
        refusal = self._admission.refusal(size, self._table.dirty_count, kind, others_in_flight=others_in_flight)
        if refusal is None:
            return None
        self._flush_if_needed(refusal)
        return refusal if recovery else self._admission.with_hint(refusal)

    def _flush_if_needed(self, refusal: Refusal) -> None:
        """Start a checkpoint if that ends the refusal; the journal may also just wait for its segments."""
        idle = not self._admission.inflight_bytes and not self._admission.recovery_bytes
        if refusal.needs_flush or (refusal is JOURNAL_FULL and idle):
            # With nothing in flight, no commit will check the journal any more, however little of it is used.
            self._request_flush()
        elif refusal is JOURNAL_FULL:
            self._check_journal()

    # Step 3: waits.

    def _takes_fast_path(self, ledger: Ledger, header: BatchHeader, batch: Buffer, key: bytes, add: PendingAdd) -> bool:
        """Whether the fast path is open: there is nothing to load or look up, and steps 4 and 5 can only succeed."""
        recovery = add.recovery
        return (
            self._is_new(ledger, header, recovery=recovery)
            and not (ledger.refuses_recovery if recovery else ledger.refuses_add)
            and ledger.fits_again(key)
            and ledger.is_identity(add.identity)
            and self._fits(batch, recovery=recovery)
            and add.size <= self._admission.max_add_bytes
        )

    def _is_new(self, ledger: Ledger, header: BatchHeader, *, recovery: bool) -> bool:
        """Whether memory alone shows that none of these entries is held. A late batch mostly lies behind all that was
        flushed; looking it up in the index would be a search for nothing."""
        first = header.first_entry_id
        if not ledger.may_hold(first):
            return True
        if recovery or ledger.may_be_flushed(first):
            return False
        return not self._cache.overlapping(ledger.ledger_id, first, header.last_entry_id)

    def _take_slow_path(self, header: BatchHeader, batch: Buffer, key: bytes, add: PendingAdd) -> None:
        if add.trace is not None:
            add.trace.waits()
        task = self._tasks.spawn(self._prepare(header, batch, key, add), name=f"add to ledger {add.ledger_id}")
        self._waiting[task] = add
        task.add_done_callback(self._prepared)

    async def _prepare(self, header: BatchHeader, batch: Buffer, key: bytes, add: PendingAdd) -> bool:
        """The slow path. Returns whether the batch was held already, durably; if not, it has been handed over."""
        async with self._table.using(add.ledger_id) as ledger:
            await self._verifiers.learn(ledger)
            ledger.check_identity(add.identity, for_repair=add.repair)
            if add.repair:
                await self._repairs.check(header)
            stored: list[Buffer | None] = []
            looked_at = -1
            deadline = self._waiters.deadline()
            while True:
                # A batch that moves from the cache to the index between the two lookups would be missed by both: if
                # the count of releases has changed, the lookup is repeated. A wait may also have made it necessary.
                if self._may_be_stored(ledger, header, recovery=add.recovery) and looked_at != self._cache.releases:
                    looked_at = self._cache.releases
                    stored = await self._look_into_storage(ledger, header, add)
                    continue
                if self._decide(ledger, header, batch, None if add.repair else key, add, stored):
                    sometimes("add: held already")
                    await self._commits.durable(ledger)
                    if add.repair:
                        self._repairs.note_held(ledger, header, add.identity)
                    return True
                self._admission.check_size(add.size)
                if not self._fits(batch, recovery=add.recovery):
                    await self._waiters.wait_for_cache(add, deadline)
                elif not self._admission.journal_takes(add.size, recovery=add.recovery):
                    await self._waiters.wait_for_journal(add, deadline)
                else:
                    self._hand_over(ledger, header, batch, add)
                    if add.repair:
                        self._repairs.note_held(ledger, header, add.identity)
                    return False

    @staticmethod
    def _may_be_stored(ledger: Ledger, header: BatchHeader, *, recovery: bool) -> bool:
        """Whether the index must be asked. For a recovery it also shows older rows that overlap."""
        first = header.first_entry_id
        return ledger.may_hold(first) if recovery else ledger.may_be_flushed(first)

    async def _look_into_storage(self, ledger: Ledger, header: BatchHeader, add: PendingAdd) -> list[Buffer | None]:
        if add.recovery:
            # OverlapTrim may put dangling rows at these entries.
            ledger.last_flushed = max(ledger.last_flushed, header.last_entry_id)
        if add.repair:
            return await self._repairs.stored_overlap(header)
        if add.recovery:
            await self._overlap_trim.trim(header)
        first, last = header.first_entry_id, header.last_entry_id
        return await self._stored.overlapping(add.ledger_id, first, last, mending=add.recovery)

    def _prepared(self, task: asyncio.Task[bool]) -> None:
        """Answer when the slow path has ended, unless the journal has the batch."""
        add = self._waiting.pop(task, None)
        # The add may have been woken for space that it did not take.
        self._waiters.wake_for_journal()
        if add is None:
            return  # a defect; already answered
        if task.cancelled():
            self._commits.answer(add, self._closed_code or BookieUnavailable.wire_code)
            return
        error = task.exception()
        if error is None:
            if task.result():
                self._commits.answer(add, self._closed_code)
        elif isinstance(error, TallybookError) and not is_defect(error):
            if isinstance(error, OtherLedger):
                self._on_other_ledger(add.ledger_id)
            self._commits.answer(add, error.wire_code, error.retry_after_ms if isinstance(error, Busy) else 0)
        else:
            self._on_defect(f"the add path failed on ledger {add.ledger_id}: {error!r}")
            self._commits.answer(add, InvariantViolation.wire_code)

    # Steps 4 and 5, in one turn of the event loop: nothing below this line waits.

    def _decide(
        self,
        ledger: Ledger,
        header: BatchHeader,
        batch: Buffer,
        key: bytes | None,
        add: PendingAdd,
        stored: list[Buffer | None],
    ) -> bool:
        """Whether the batch is held already, byte for byte. Raises if it cannot be taken, a fence first.

        ``key`` is ``None`` for a repair, which the metadata authorized instead.
        """
        recovery = add.recovery
        # First of all: the state of another ledger says nothing about this one.
        ledger.check_identity(add.identity, for_repair=add.repair)
        refused = ledger.refuses_recovery if recovery else ledger.refuses_add
        if refused and not (add.repair and ledger.doubted):
            raise error_from_wire(refused, f"ledger {ledger.ledger_id}: add refused")
        if key is not None and not ledger.fits(key):
            raise Unauthorized(f"ledger {ledger.ledger_id}: wrong password")
        if not ledger.may_hold(header.first_entry_id):
            return False
        held = self._cache.overlapping(ledger.ledger_id, header.first_entry_id, header.last_entry_id)
        if not held:
            return _is_stored(header, batch, stored, recovery=recovery)
        if any(copy != batch for copy in held):
            raise Conflict(f"ledger {ledger.ledger_id} holds other bytes from entry {header.first_entry_id}")
        return True

    def _hand_over(self, ledger: Ledger, header: BatchHeader, batch: Buffer, add: PendingAdd) -> None:
        """Append to the journal, then put into the write cache, in one turn.

        The journal comes first because it may refuse: a batch that it does not have must not look held. If a later step
        fails, the process ends, since the batch would be acked and not be readable before a replay.

        Raises:
            BookieUnavailable, DiskFailed: the bookie is stopping, or has failed; nothing was changed.
        """
        last = header.last_entry_id
        try:
            if not ledger.verifier_recorded:
                self._record_verifier(ledger)
            self._commits.append(BatchRecord(batch, add.recovery), ledger, add)
            self._cache.put(add.ledger_id, add.first, last, batch)
            if add.trace is not None:
                add.trace.in_cache()
            ledger.last_held = max(ledger.last_held, last)
            if header.lac > ledger.lac:
                ledger.raise_lac(header.lac)
            if not ledger.dirty:
                self._table.mark_dirty(ledger)
            self.taken_batches += 1
            self.taken_bytes += len(batch)
            if self._cache.wants_flush:
                self._request_flush()
            if add.deferred:
                self._commits.ack_early(add)
        except Exception as error:
            if not is_defect(error):
                raise
            self._end_process(add, error)

    def _end_process(self, add: PendingAdd, error: Exception) -> None:
        """End the process after a defect with ``add`` half handed over: stop all acks, and answer ``add`` once."""
        self._waiting = {task: waiting for task, waiting in self._waiting.items() if waiting is not add}
        handed_over = self._commits.holds(add)
        self._on_defect(f"the add path failed on ledger {add.ledger_id}: {error!r}")
        if not handed_over:
            asyncio.get_running_loop().call_soon(self._commits.answer, add, InvariantViolation.wire_code)

    def _record_verifier(self, ledger: Ledger) -> None:
        """Journal key verifier and identity before the first batch of a ledger, so that replay needs no metadata."""
        self._commits.append(introducing_record(ledger), ledger)
        ledger.verifier_recorded = True

    def _fits(self, batch: Buffer, *, recovery: bool) -> bool:
        return self._cache.fits(len(batch), 0 if recovery else self._cache.reserve_bytes)


def _is_stored(header: BatchHeader, batch: Buffer, stored: list[Buffer | None], *, recovery: bool) -> bool:
    """Whether the index holds exactly these bytes; raises for an overlap with others.

    If a recovery or a repair brings a good copy, a damaged, lost or unreadable copy counts as not held.
    """
    if None in stored and not (recovery and len(stored) == 1):
        raise EntryCorrupt(f"ledger {header.ledger_id}: the copy from entry {header.first_entry_id} on is damaged")
    if any(copy is not None and copy != batch for copy in stored):
        raise Conflict(f"ledger {header.ledger_id} holds other bytes from entry {header.first_entry_id}")
    return bool(stored) and None not in stored


def _answer_soon(on_answer: AddCallback, answer: AddAnswer) -> None:
    """Answer in the next turn: the caller may not be ready for an answer before its call returns."""
    asyncio.get_running_loop().call_soon(on_answer, answer)


METRICS: Final = (
    PartMetrics[AddPath]()
    .counter(
        "adds_batches_total",
        "tallybook_bookie_add_batches_total",
        "Batches taken, without refused ones.",
        lambda adds: adds.taken_batches,
    )
    .counter(
        "adds_bytes_total", "tallybook_bookie_add_bytes_total", "Bytes of batches taken.", lambda adds: adds.taken_bytes
    )
    .gauge(
        "adds_waiting",
        "tallybook_bookie_adds_waiting",
        "Adds that wait for a ledger's state or for space.",
        lambda adds: adds.waiting_count,
    )
)
