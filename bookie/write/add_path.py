"""The add path: from bytes of a client to a record in the journal.

In this order, and nothing out of it: the batch is checked (`verify_batch`), admission may say
BUSY, everything that may wait happens (the ledger's state, its key verifier, a look for what
is already held under these ids, room in the write cache), and then, without giving up the
event loop in between, `_decide`: refused? key? overlap? - and `_hand_over`: journal, then
write cache. The ack comes from ``Commits`` when the record is durable, in a later turn.

Nearly every batch has nothing to wait for: its ledger is in memory, the key is the one that
passed last time, its ids lie above all that is held, and there is room. Such a batch is
handed over at once, with no task. All others take the slow way, which is the same steps with
waits between them, and ends in the same `_hand_over`.

A batch of a repair always takes the slow way, and shows no key: ``repair_adds.py`` has what is asked instead.

Every add is answered exactly once, never from within ``take``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

from tallybook.core.answers import AddAnswer
from tallybook.core.batch import BatchHeader, Buffer, verify_batch
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
    error_from_wire,
    is_defect,
)
from tallybook.core.ids import MAX_NEW_ENTRY_ID, NO_ENTRY, NO_IDENTITY
from tallybook.core.marks import sometimes
from tallybook.runtime.clock import Clock
from tallybook.runtime.meter import UnderWay
from tallybook.runtime.tasks import Tasks
from tallybook.runtime.tracing import current_span

from .admission import CACHE_FULL, JOURNAL_ROOM, RECOVERY_SHARE, Admission, Refusal
from .commits import Commits, PendingAdd
from .journal.records import BatchRecord
from .ledger_state import Ledger
from .ledger_table import LedgerTable
from .making_way import Way
from .port import AddCallback
from .repair_adds import RepairAdds
from .storage.write_cache import BATCH_OVERHEAD_BYTES, WriteCache
from .traced_add import TracedAdd
from .verifiers import Verifiers, introduction_of

MAX_WAITING_ADDS: Final = 4_096
"""Adds on the slow way at once; more are BUSY."""

_WAITING: Final = Refusal(Busy.wire_code, 20, "adds that wait")

_Waiters = dict[asyncio.Future[None], int]
"""What wakes each add that waits for room, in the order in which they came, and its size."""


class StoredOverlap(Protocol):
    """What the index holds of a ledger within a range of ids."""

    async def __call__(self, ledger_id: int, first: int, last: int, *, mending: bool) -> list[Buffer | None]:
        """Batches, ``None`` for one that is damaged; see ``StoredBatches.overlapping``."""


class AddPath:
    """Takes batches.

    Args:
        stored_overlap: what is held already, apart from the write cache.
        way: removes rows that are worth nothing where a recovery or a repair brings a good copy.
        repairs: what is asked of a batch that a repair gives back.
        request_flush: asks for a checkpoint; cheap.
        look_at_journal: asks for one if the journal is getting full.
        on_defect: ends the node; called with the reason when the path itself fails.
        max_cache_wait_seconds: how long an add waits for room in the write cache, or in the journal.
    """

    def __init__(
        self,
        *,
        table: LedgerTable,
        cache: WriteCache,
        commits: Commits,
        admission: Admission,
        verifiers: Verifiers,
        stored_overlap: StoredOverlap,
        way: Way,
        repairs: RepairAdds,
        request_flush: Callable[[], None],
        look_at_journal: Callable[[], None],
        on_defect: Callable[[str], None],
        clock: Clock,
        tasks: Tasks,
        max_cache_wait_seconds: float,
    ) -> None:
        self._table = table
        self._cache = cache
        self._commits = commits
        self._admission = admission
        self._verifiers = verifiers
        self._stored_overlap = stored_overlap
        self._way = way
        self._repairs = repairs
        self._request_flush = request_flush
        self._look_at_journal = look_at_journal
        self._on_defect = on_defect
        self._clock = clock
        self._tasks = tasks
        self._max_cache_wait_seconds = max_cache_wait_seconds
        self._waiting: dict[asyncio.Task[bool], PendingAdd] = {}
        self._room_waiters: _Waiters = {}
        self._journal_waiters: dict[bool, _Waiters] = {True: {}, False: {}}
        """By lane: recovery adds have a reserve of their own."""
        self.cache_stalls = UnderWay(clock)
        """Adds that wait for room in the write cache."""
        self.journal_stalls = UnderWay(clock)
        """Adds that wait for room in the journal."""
        self.on_other_ledger: Callable[[int], None] = lambda _ledger_id: None
        """Called where an add is about another ledger of its id than is held."""
        self._closed_code = OK_CODE
        self.taken_batches = 0
        self.taken_bytes = 0
        cache.on_room = self._room_freed

    @property
    def waiting_count(self) -> int:
        """Adds on the slow way."""
        return len(self._waiting)

    def take(
        self,
        batch: Buffer,
        key: bytes,
        on_answer: AddCallback,
        recovery: bool,
        deferred: bool = False,
        repair: bool = False,
        beside: bool = False,
        identity: bytes = NO_IDENTITY,
    ) -> None:
        """Take one batch; see ``LedgerStore.add``. A repair add has the lane of recoveries."""
        recovery = recovery or repair
        try:
            header = verify_batch(batch)
        except (InvalidBatch, NewerFormat) as error:
            _answer_soon(on_answer, AddAnswer(NO_ENTRY, NO_ENTRY, 0, error.wire_code))
            return
        if header.last_entry_id > MAX_NEW_ENTRY_ID and not recovery:
            # Copies of one that an earlier version took are still added: the ledger must be recoverable.
            answer = AddAnswer(header.ledger_id, header.first_entry_id, header.entry_count, InvalidArgument.wire_code)
            _answer_soon(on_answer, answer)
            return
        size = len(batch) + BATCH_OVERHEAD_BYTES
        refusal = self._refusal(size, recovery, repair, beside)
        if refusal is not None:
            answer = AddAnswer(header.ledger_id, header.first_entry_id, header.entry_count, *refusal[:2])
            _answer_soon(on_answer, answer)
            return
        since = self._clock.monotonic()
        ids = (header.ledger_id, header.first_entry_id, header.entry_count)
        add = PendingAdd(*ids, size, since, on_answer, recovery, deferred, repair, identity)
        span = current_span()
        if span is not None:
            add.trace = TracedAdd(span)
        self._admission.take(size, recovery)
        ledger = self._table.get(header.ledger_id)
        if repair or ledger is None or not self._has_nothing_to_wait_for(ledger, header, batch, key, add):
            self._take_slowly(header, batch, key, add)
            return
        try:
            self._hand_over(ledger, header, batch, add)
        except TallybookError as error:
            asyncio.get_running_loop().call_soon(self._commits.answer, add, error.wire_code)

    def _room_freed(self) -> None:
        """The write cache has room again: let those who wait for it try."""
        for waiter in self._room_waiters:
            _wake(waiter)

    def journal_room_freed(self) -> None:
        """The journal may have room again: wake as many of those who wait for it as fit, each lane in its order."""
        for recovery, waiters in self._journal_waiters.items():
            woken_bytes = 0
            for waiter, size in waiters.items():
                woken_bytes += size
                if not self._admission.journal_takes(woken_bytes, recovery=recovery):
                    # Written is not yet flushed: by now a checkpoint may be what makes room.
                    self._look_at_journal()
                    break
                _wake(waiter)

    def refuse(self, code: int) -> None:
        """Take nothing from now on; what is on the slow way is refused as well, with ``code``."""
        self._closed_code = code
        for task in list(self._waiting):
            task.cancel()

    async def close(self, code: int) -> None:
        """Refuse everything, and wait until nothing is on the slow way."""
        self.refuse(code)
        await asyncio.gather(*list(self._waiting), return_exceptions=True)

    async def force(self, ledger_id: int, key: bytes) -> None:
        """See ``LedgerStore.force``."""
        async with self._table.using(ledger_id) as ledger:
            await self._verifiers.authorise(ledger, key)
            if ledger.refuses_add:
                raise error_from_wire(ledger.refuses_add, f"ledger {ledger_id} cannot be forced here")
            await self._commits.durable(ledger)

    # Step 2: admission.

    def _refusal(self, size: int, recovery: bool, repair: bool, beside: bool) -> Refusal | None:
        if self._closed_code:
            return Refusal(self._closed_code, 0, "closed")
        if len(self._waiting) >= MAX_WAITING_ADDS + (MAX_WAITING_ADDS // RECOVERY_SHARE if recovery else 0):
            self._admission.count(_WAITING)
            return _WAITING
        refusal = self._admission.refusal(
            size, self._table.dirty_count, recovery=recovery, repair=repair, beside=beside
        )
        if refusal is None:
            return None
        self._look_for_room(refusal)
        return refusal if recovery else self._admission.with_hint(refusal)

    def _look_for_room(self, refusal: Refusal) -> None:
        """Start a checkpoint where that ends the refusal; the journal may also just be waiting for its segments."""
        nothing_under_way = not self._admission.inflight_bytes and not self._admission.recovery_bytes
        if refusal.needs_flush or (refusal is JOURNAL_ROOM and nothing_under_way):
            # With nothing under way, no commit will look at the journal any more, however little of it is used.
            self._request_flush()
        elif refusal is JOURNAL_ROOM:
            self._look_at_journal()

    # Step 3: what may wait.

    def _has_nothing_to_wait_for(
        self, ledger: Ledger, header: BatchHeader, batch: Buffer, key: bytes, add: PendingAdd
    ) -> bool:
        """The fast way is open: nothing to load or to look up, and steps 4 and 5 can only succeed."""
        recovery = add.recovery
        return (
            self._is_new(ledger, header, recovery)
            and not (ledger.refuses_recovery if recovery else ledger.refuses_add)
            and ledger.fits_again(key)
            and ledger.is_identity(add.identity)
            and self._fits(batch, recovery)
            and add.size <= self._admission.max_add_bytes
        )

    def _is_new(self, ledger: Ledger, header: BatchHeader, recovery: bool) -> bool:
        """Nothing is held of these entries, and memory alone tells. A batch that comes late is mostly behind all that
        was flushed: to ask the index of it would be a search for what cannot be there."""
        first = header.first_entry_id
        if not ledger.may_hold(first):
            return True
        if recovery or ledger.may_be_flushed(first):
            return False
        return not self._cache.overlapping(ledger.ledger_id, first, header.last_entry_id)

    def _take_slowly(self, header: BatchHeader, batch: Buffer, key: bytes, add: PendingAdd) -> None:
        if add.trace is not None:
            add.trace.waits()
        task = self._tasks.spawn(self._prepare(header, batch, key, add), name=f"add to ledger {add.ledger_id}")
        self._waiting[task] = add
        task.add_done_callback(self._prepared)

    async def _prepare(self, header: BatchHeader, batch: Buffer, key: bytes, add: PendingAdd) -> bool:
        """The slow way. Returns whether the batch was held already, durably; if not, it has been handed over."""
        async with self._table.using(add.ledger_id) as ledger:
            await self._verifiers.learn(ledger)
            ledger.check_identity(add.identity, for_repair=add.repair)
            if add.repair:
                await self._repairs.check(header)
            stored: list[Buffer | None] = []
            looked_at = -1
            deadline = self._clock.monotonic() + self._max_cache_wait_seconds
            while True:
                # Batches move from the cache to the index. One that did so after the look into the index, and before
                # the look into the cache, would be seen by neither: the number of releases tells.
                # Whether to ask at all may have changed with what was waited for, too.
                if self._may_be_stored(ledger, header, add.recovery) and looked_at != self._cache.releases:
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
                if not self._fits(batch, add.recovery):
                    await self._room(add, deadline)
                elif not self._admission.journal_takes(add.size, recovery=add.recovery):
                    await self._journal_room(add, deadline)
                else:
                    self._hand_over(ledger, header, batch, add)
                    if add.repair:
                        self._repairs.note_held(ledger, header, add.identity)
                    return False

    @staticmethod
    def _may_be_stored(ledger: Ledger, header: BatchHeader, recovery: bool) -> bool:
        """Whether the index has to be asked. For a recovery it also tells what is in the way, of older entries."""
        first = header.first_entry_id
        return ledger.may_hold(first) if recovery else ledger.may_be_flushed(first)

    async def _look_into_storage(self, ledger: Ledger, header: BatchHeader, add: PendingAdd) -> list[Buffer | None]:
        if add.recovery:
            # Whoever makes way for it puts rows there that lead nowhere.
            ledger.last_flushed = max(ledger.last_flushed, header.last_entry_id)
        if add.repair:
            return await self._repairs.stored_overlap(header)
        if add.recovery:
            await self._way.make(header)
        first, last = header.first_entry_id, header.last_entry_id
        return await self._stored_overlap(add.ledger_id, first, last, mending=add.recovery)

    def _prepared(self, task: asyncio.Task[bool]) -> None:
        """The slow way ended: answer, unless the batch is in the journal's hands."""
        add = self._waiting.pop(task, None)
        # It may have been woken for room that it did not take.
        self.journal_room_freed()
        if add is None:
            return  # it met a defect, and is answered
        if task.cancelled():
            self._commits.answer(add, self._closed_code or BookieUnavailable.wire_code)
            return
        error = task.exception()
        if error is None:
            if task.result():
                self._commits.answer(add, self._closed_code)
        elif isinstance(error, TallybookError) and not is_defect(error):
            if isinstance(error, OtherLedger):
                self.on_other_ledger(add.ledger_id)
            self._commits.answer(add, error.wire_code, error.retry_after_ms if isinstance(error, Busy) else 0)
        else:
            self._on_defect(f"the add path failed on ledger {add.ledger_id}: {error!r}")
            self._commits.answer(add, InvariantViolation.wire_code)

    async def _room(self, add: PendingAdd, deadline: float) -> None:
        """Wait until the write cache may have room; ask for the checkpoint that makes it."""
        sometimes("add: waits for room in the write cache")
        self._request_flush()
        with self.cache_stalls:
            await self._woken(self._room_waiters, add, deadline, CACHE_FULL)

    async def _journal_room(self, add: PendingAdd, deadline: float) -> None:
        """Wait until the journal may have room. It has no segment ready; a checkpoint helps only if it is full."""
        sometimes("add: waits for room in the journal")
        self._look_at_journal()
        with self.journal_stalls:
            await self._woken(self._journal_waiters[add.recovery], add, deadline, JOURNAL_ROOM)

    async def _woken(self, waiters: _Waiters, add: PendingAdd, deadline: float, refusal: Refusal) -> None:
        """Wait to be woken, among ``waiters``; past the deadline, be refused."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiters[waiter] = add.size
        try:
            async with asyncio.timeout(max(0.0, deadline - self._clock.monotonic())):
                await waiter
        except TimeoutError as error:
            self._admission.count(refusal)
            hint = refusal if add.recovery else self._admission.with_hint(refusal)
            raise Busy(f"no {refusal.reason}", retry_after_ms=hint.retry_after_ms) from error
        finally:
            del waiters[waiter]

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
        """Whether the batch is held already, byte for byte; refuse it, the fence first, if it cannot be taken.

        ``key`` is ``None`` for a repair, of which the metadata were asked instead.
        """
        recovery = add.recovery
        # Before all else: the state of another ledger says nothing of this one.
        ledger.check_identity(add.identity, for_repair=add.repair)
        refused = ledger.refuses_recovery if recovery else ledger.refuses_add
        if refused and not (add.repair and ledger.doubted):
            raise error_from_wire(refused, f"ledger {ledger.ledger_id} takes no such add")
        if key is not None and not ledger.fits(key):
            raise Unauthorized(f"the key does not fit ledger {ledger.ledger_id}")
        if not ledger.may_hold(header.first_entry_id):
            return False
        held = self._cache.overlapping(ledger.ledger_id, header.first_entry_id, header.last_entry_id)
        if not held:
            return _is_stored(header, batch, recovery, stored)
        if any(copy != batch for copy in held):
            raise Conflict(f"ledger {ledger.ledger_id} holds other bytes from entry {header.first_entry_id}")
        return True

    def _hand_over(self, ledger: Ledger, header: BatchHeader, batch: Buffer, add: PendingAdd) -> None:
        """Journal first, because it may refuse: a batch that it has not got must not look like one that is held.

        In the same turn the rest: whatever is acked can be read. Where that fails, the node ends, since the batch
        would be acked and not be read before a replay.

        Raises:
            BookieUnavailable, DiskFailed: the bookie stops, or has failed; nothing was changed.
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
                ledger.saw_lac(header.lac)
            if not ledger.dirty:
                self._table.mark_dirty(ledger)
            self.taken_batches += 1
            self.taken_bytes += len(batch)
            if self._cache.wants_flush:
                self._request_flush()
            if add.deferred:
                self._commits.tell_early(add)
        except Exception as error:
            if not is_defect(error):
                raise
            self._end_node(add, error)

    def _end_node(self, add: PendingAdd, error: Exception) -> None:
        """A defect, with ``add`` half handed over: nothing is acked from now on, and ``add`` is answered once."""
        self._waiting = {task: waiting for task, waiting in self._waiting.items() if waiting is not add}
        handed_over = self._commits.holds(add)
        self._on_defect(f"the add path failed on ledger {add.ledger_id}: {error!r}")
        if not handed_over:
            asyncio.get_running_loop().call_soon(self._commits.answer, add, InvariantViolation.wire_code)

    def _record_verifier(self, ledger: Ledger) -> None:
        """The first batch of a ledger brings its key and identity along: replay knows them without the metadata."""
        self._commits.append(introduction_of(ledger), ledger)
        ledger.verifier_recorded = True

    def _fits(self, batch: Buffer, recovery: bool) -> bool:
        return self._cache.fits(len(batch), 0 if recovery else self._cache.reserve_bytes)


def _is_stored(header: BatchHeader, batch: Buffer, recovery: bool, stored: list[Buffer | None]) -> bool:
    """Whether the index holds these very bytes; refuse what overlaps other ones.

    A copy that is damaged, lost or unreadable counts as not held where a recovery or a repair brings the good one.
    """
    if None in stored and not (recovery and len(stored) == 1):
        raise EntryCorrupt(f"ledger {header.ledger_id}: what is held from entry {header.first_entry_id} is damaged")
    if any(copy is not None and copy != batch for copy in stored):
        raise Conflict(f"ledger {header.ledger_id} holds other bytes from entry {header.first_entry_id}")
    return bool(stored) and None not in stored


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


def _answer_soon(on_answer: AddCallback, answer: AddAnswer) -> None:
    """In the next turn: the caller may not be ready for an answer before its call returns."""
    asyncio.get_running_loop().call_soon(on_answer, answer)
