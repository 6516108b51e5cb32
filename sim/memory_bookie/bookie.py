"""A whole bookie in memory: everything the protocol asks of one, and nothing else.

It implements ``bookie/port.LedgerStore`` for tests and for simulation. It is neither fast nor lasting, but it answers
as a real one must: the fence is checked before "already held", an identical resend is acked only when the first copy
is durable, other bytes under held ids are CONFLICT, a fence (and a recovery read, which fences too) answers only when
everything taken before it is durable, and ABSENT, CORRUPT and UNKNOWN are three answers.

What was taken is visible at once and durable ``commit_seconds`` later. ``kill`` loses the difference; ``restart``
begins the next life from what was durable. Helpers hold answers back, freeze it and plant faults. It is not random.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeAlias

from tallybook.bookie.settled import Settled, SettledLedgers, SettledLookup
from tallybook.bookie.verifiers import FactsLookup
from tallybook.core.answers import (
    AddAnswer,
    BookieStatus,
    CopyTrace,
    DamagedBatch,
    FenceAnswer,
    HeldAnswer,
    HeldLedgers,
    Incarnation,
    LacAnswer,
    ReadAnswer,
)
from tallybook.core.batch import Buffer, EntrySlice, cut_entry, decode_header, verify_batch
from tallybook.core.errors import (
    OK_CODE,
    BookieReadOnly,
    BookieUnavailable,
    Busy,
    Conflict,
    EntryAbsent,
    EntryTooLarge,
    EntryUnknown,
    InvalidArgument,
    InvalidBatch,
    LedgerFenced,
    NoSuchLedger,
    OtherLedger,
    StorageError,
    TallybookError,
    Unauthorized,
)
from tallybook.core.ids import MAX_ID, MAX_NEW_ENTRY_ID, NO_ENTRY, NO_IDENTITY
from tallybook.core.limits import MAX_BATCH_BYTES
from tallybook.runtime.clock import Clock
from tallybook.runtime.tasks import Tasks

from . import memory_inspection as inspection
from .memory_faults import MemoryFaults
from .memory_journal import MemoryJournal
from .memory_ledger import MemoryLedger, fits
from .memory_life import Add, AddCallback, Life, Waiter, check_identity, lac_of, ledger_of, open_door, settle, wake

Gate: TypeAlias = Callable[[str, int], Awaitable[None]]
"""Awaited with (method name, ledger id) before an answer leaves: a test's place to hold one back."""


class MemoryBookie:
    """One bookie's ledgers, in memory.

    Args:
        bookie_id: its identity in ledger metadata; the uuids of its directories are made from it.
        facts_of: how it learns key verifier and identity of a ledger it meets for the first time.
        clock: for the delay of commits and the timeouts of long polls.
        tasks: where its background work runs.
        commit_seconds: how long a record takes to become durable; 0 is the next turn of the loop.
        closed_up_to: at which entries of a ledger there can be no writer; without it, at none.
    """

    def __init__(
        self,
        bookie_id: str,
        *,
        facts_of: FactsLookup,
        clock: Clock,
        tasks: Tasks,
        commit_seconds: float = 0.0,
        closed_up_to: SettledLookup | None = None,
    ) -> None:
        self._bookie_id = bookie_id
        self._facts_of = facts_of
        self._clock = clock
        self._tasks = tasks
        self._commit_seconds = commit_seconds
        self._settled = SettledLedgers(closed_up_to or _never_settled)
        self._began = clock.monotonic()
        self.gate: Gate | None = None
        self.read_only = False
        self.max_batch_bytes = MAX_BATCH_BYTES
        """Larger batches are refused as too large."""
        self.busy_retry_ms: int | None = None
        """While set, ordinary adds are answered BUSY with this hint."""
        self._directories = self._boot = 1
        self._disk: dict[int, MemoryLedger] = {}
        self.faults = MemoryFaults(bookie_id)
        self._life = self._new_life()

    def _new_life(self) -> Life:
        clock, delay = self._clock, self._commit_seconds
        journal = MemoryJournal(self._bookie_id, clock=clock, tasks=self._tasks, commit_seconds=delay)
        return Life(journal, self._disk)

    # The port.

    @property
    def bookie_id(self) -> str:
        """Its identity in ledger metadata."""
        return self._bookie_id

    @property
    def incarnation(self) -> Incarnation:
        """This life of it."""
        which = f"-{self._directories}" if self._directories > 1 else ""
        return Incarnation(f"directory-of-{self._bookie_id}{which}", self._boot)

    def add(
        self,
        batch: Buffer,
        key: bytes,
        on_answer: AddCallback,
        *,
        recovery: bool = False,
        deferred: bool = False,
        repair: bool = False,
        beside: bool = False,
        identity: bytes = NO_IDENTITY,
    ) -> None:
        """Take one batch; see the port. Bytes that are no batch are answered with ids of -1."""
        try:
            header = verify_batch(batch)
        except InvalidBatch as error:
            _soon(on_answer, AddAnswer(NO_ENTRY, NO_ENTRY, 0, error.wire_code))
            return
        add = Add(bytes(batch), header, key, on_answer, recovery or repair, deferred, repair, identity)
        if header.last_entry_id > MAX_NEW_ENTRY_ID and not add.recovery:
            self._refuse(add, InvalidArgument())
            return
        if repair:
            self._background(self._admit_repair(add), "repair add")
        elif self._life.door is None:
            self._admit(add)
        else:
            self._background(self._admit_later(add), "frozen add")

    @asynccontextmanager
    async def identified(
        self, ledger_id: int, identity: bytes, *, for_write: bool = False, for_repair: bool = False
    ) -> AsyncIterator[None]:
        """Refuse a request about another ledger of the same id; see the port."""
        life = self._life
        if for_write:
            await self._learn_verifier(await self._enter(), ledger_id)
        check_identity(life, ledger_id, identity)
        yield
        check_identity(life, ledger_id, identity)

    async def any_opens(self, ledger_id: int, shown: Sequence[tuple[bytes, bytes]]) -> bool:
        """Whether one of these keys and identities opens the ledger; see the port."""
        verifier = await self._learn_verifier(self._life, ledger_id)
        for identity in [mine for key, mine in shown if fits(key, verifier)]:
            with suppress(OtherLedger):
                check_identity(self._life, ledger_id, identity)
                return True
        return False

    async def force(self, ledger_id: int, key: bytes) -> None:
        """Make durable what was taken of the ledger; see the port."""
        life = await self._enter()
        await self._check_key(life, ledger_id, key)
        self.faults.raise_limbo(ledger_id)
        if ledger_id in life.ledgers and life.ledgers[ledger_id].fenced:
            raise LedgerFenced(f"{self._bookie_id}: ledger {ledger_id} is fenced")
        await life.journal.durable(_nothing)
        await self._leave(life, "force", ledger_id)

    async def fence(self, ledger_id: int, key: bytes) -> FenceAnswer:
        """Fence the ledger, durably; see the port. Of a ledger in limbo it fences and then says UNKNOWN."""
        life = await self._enter()
        await self._fence(life, ledger_id, key)
        await self._leave(life, "fence", ledger_id)
        self.faults.raise_limbo(ledger_id)
        ledger = ledger_of(life.ledgers, ledger_id)
        return FenceAnswer(ledger.lac, ledger.last_held)

    async def read_batches(self, ledger_id: int, first: int, last: int, max_bytes: int) -> ReadAnswer:
        """Whole batches from the one that holds ``first``; see the port."""
        life = await self._enter()
        await self._leave(life, "read_batches", ledger_id)
        return self._read(life, ledger_id, first, last, max_bytes)

    async def recovery_read(self, ledger_id: int, entry_id: int, key: bytes, max_bytes: int = 0) -> ReadAnswer:
        """Fence, then the batch that holds ``entry_id`` and what follows; see the port."""
        life = await self._enter()
        await self._fence(life, ledger_id, key)
        await self._leave(life, "recovery_read", ledger_id)
        return self._read(life, ledger_id, entry_id, MAX_ID if max_bytes else entry_id, max_bytes)

    async def read_entry(self, ledger_id: int, entry_id: int) -> EntrySlice:
        """One entry; see the port."""
        life = await self._enter()
        await self._leave(life, "read_entry", ledger_id)
        batch = self._read(life, ledger_id, entry_id, entry_id, 0).batches[0]
        return cut_entry(batch, decode_header(batch), entry_id)

    async def read_lac(self, ledger_id: int) -> LacAnswer:
        """The highest LAC seen; see the port."""
        life = await self._enter()
        await self._leave(life, "read_lac", ledger_id)
        self.faults.raise_limbo(ledger_id)
        if ledger_id not in life.ledgers:
            raise EntryAbsent(f"{self._bookie_id}: nothing is held of ledger {ledger_id}")
        return lac_of(life, ledger_id)

    async def wait_lac(self, ledger_id: int, above: int, timeout_ms: int) -> LacAnswer:
        """Long poll for the LAC; see the port."""
        life = await self._enter()
        self.faults.raise_limbo(ledger_id)
        await self._wait_for_news(life, ledger_id, above, timeout_ms / 1000)
        await self._leave(life, "wait_lac", ledger_id)
        return lac_of(life, ledger_id)

    async def write_lac(self, ledger_id: int, lac: int, key: bytes) -> None:
        """Remember an explicit LAC; see the port."""
        life = await self._enter()
        await self._check_key(life, ledger_id, key)
        identity = life.identities.get(ledger_id, NO_IDENTITY)
        ledger_of(life.ledgers, ledger_id, identity).see_lac(lac)
        wake(life, ledger_id)
        await life.journal.durable(lambda: ledger_of(self._disk, ledger_id, identity).see_lac(lac))
        await self._leave(life, "write_lac", ledger_id)

    # Repair and inspection.

    async def held(self, ledger_id: int, first: int, last: int) -> HeldAnswer:
        """What is held of a ledger, all of it durable; see the port."""
        life = await self._enter()
        answer = inspection.held_ranges(life.ledgers, self.faults, ledger_id, first, last)
        await life.journal.durable(_nothing)
        await self._leave(life, "held", ledger_id)
        return answer

    async def damaged(self, after: tuple[int, int], limit: int) -> tuple[DamagedBatch, ...]:
        """Copies in which a test has planted damage; see the port."""
        life = await self._enter()
        await self._leave(life, "damaged", NO_ENTRY)
        return inspection.damaged(life.ledgers, self.faults, after, limit)

    async def held_ledgers(self, after: int, limit: int) -> HeldLedgers:
        """Ledgers of which a batch is held; see the port."""
        life = await self._enter()
        await self._leave(life, "held_ledgers", NO_ENTRY)
        return inspection.held_ledgers(life.ledgers, self.faults, after, limit)

    async def end_limbo(self, ledger_id: int) -> None:
        """All of a ledger was given back; see the port."""
        life = await self._enter()
        settled = await self._settled.settled_at(ledger_id, self._bookie_id)
        self._check_alive(life)
        if self.faults.in_limbo(ledger_id):
            if settled.closed:
                await self._set_fence(life, ledger_id)
            self.faults.end_limbo(ledger_id)
        await self._leave(life, "end_limbo", ledger_id)

    async def status(self) -> BookieStatus:
        """How it is doing; see the port."""
        life = await self._enter()
        await self._leave(life, "status", NO_ENTRY)
        uptime_seconds = self._clock.monotonic() - self._began
        return inspection.status(life.ledgers, self.faults, read_only=self.read_only, uptime_seconds=uptime_seconds)

    async def trace(self, ledger_id: int, entry_id: int) -> CopyTrace:
        """What is held of an entry; see the port."""
        life = await self._enter()
        await self._leave(life, "trace", ledger_id)
        return inspection.trace(life.ledgers, self.faults, ledger_id, entry_id)

    # Life and death.

    @property
    def alive(self) -> bool:
        """Whether it answers at all."""
        return self._life.alive

    def kill(self) -> None:
        """Die at once. What was not durable is gone; everyone still waiting hears BookieUnavailable."""
        life = self._life
        if not life.alive:
            return
        life.alive = False
        life.journal.kill()
        unmet, life.unmet = life.unmet, {}
        for add in (add for adds in unmet.values() for add in adds):
            self._refuse(add, BookieUnavailable())
        for ledger_id in list(life.lac_waiters):
            wake(life, ledger_id)
        open_door(life)

    def restart(self) -> None:
        """Begin the next life from what was durable."""
        self.kill()
        self._boot += 1
        self._life = self._new_life()

    def replace(self, *, limbo_below: int = 0) -> None:
        """Die with the disk; a newcomer takes the id, on empty directories with a uuid of their own.

        Args:
            limbo_below: ledgers with lower ids may have been acked under this id, so the newcomer cannot say ABSENT
                of them. 0 plays a newcomer that does not know of its predecessor, which no real one may be.
        """
        self.kill()
        self._directories += 1
        self._boot = 1
        self._disk = {}
        self.faults.heal()
        self.faults.limbo_below(limbo_below)
        self._life = self._new_life()

    def pause(self) -> None:
        """Freeze: nothing that comes is looked at, nothing becomes durable, until ``resume``."""
        self._life.journal.hold()
        if self._life.door is None:
            self._life.door = []

    def resume(self) -> None:
        """Go on after ``pause``, in the order in which things came."""
        self._life.journal.release()
        open_door(self._life)

    def hold_commits(self) -> None:
        """Take work, but let nothing become durable, hence nothing be acked, until ``release_commits``."""
        self._life.journal.hold()

    def release_commits(self) -> None:
        """Make durable what ``hold_commits`` held back."""
        self._life.journal.release()

    # For tests; faults are planted through ``faults``.

    def drop(self, ledger_id: int, entry_id: int) -> None:
        """Lose the batch that holds this entry and do not know it: it reads as ABSENT from now on."""
        for ledgers in (self._life.ledgers, self._disk):
            ledger_of(ledgers, ledger_id).drop(entry_id)

    def delete(self, ledger_id: int) -> None:
        """Forget a ledger that the metadata no longer names."""
        for ledgers in (self._life.ledgers, self._disk):
            ledgers.pop(ledger_id, None)
        self._life.verifiers.pop(ledger_id, None)

    def durable_batches(self, ledger_id: int) -> dict[int, bytes]:
        """What a crash would leave of the ledger, by first entry id, in order."""
        return self._disk[ledger_id].batches if ledger_id in self._disk else {}

    def durably_fenced(self, ledger_id: int) -> bool:
        """Whether the ledger would still be fenced after a crash."""
        return ledger_id in self._disk and self._disk[ledger_id].fenced

    # Adds.

    async def _admit_later(self, add: Add) -> None:
        try:
            await self._enter()
        except BookieUnavailable as error:
            self._refuse(add, error)
        else:
            self._admit(add)

    async def _admit_repair(self, add: Add) -> None:
        """The metadata are asked instead of the key, whatever is known of the ledger already."""
        try:
            life = await self._enter()
            await self._learn_verifier(life, add.ledger_id)
            await self._settled.check_entry(add.ledger_id, add.header.last_entry_id)
            self._check_alive(life)
        except TallybookError as error:
            self._refuse(add, error)
        else:
            self._take(life, add)

    def _admit(self, add: Add) -> None:
        """Everything that may wait comes first: the key verifier of a ledger met for the first time."""
        life = self._life
        if not life.alive:
            self._refuse(add, BookieUnavailable())
        elif self.busy_retry_ms is not None and not add.recovery:
            self._refuse(add, Busy(retry_after_ms=self.busy_retry_ms))
        elif len(add.batch) > self.max_batch_bytes and not add.recovery:
            self._refuse(add, EntryTooLarge())
        elif self.read_only and not add.recovery:
            self._refuse(add, BookieReadOnly())
        elif add.ledger_id in life.unmet:
            life.unmet[add.ledger_id].append(add)
        elif add.ledger_id in life.verifiers:
            self._take(life, add)
        else:
            life.unmet[add.ledger_id] = [add]
            self._background(self._introduce(life, add.ledger_id), "introduce")

    async def _introduce(self, life: Life, ledger_id: int) -> None:
        error: TallybookError | None = None
        try:
            await self._learn_verifier(life, ledger_id)
        except TallybookError as reason:
            error = reason
        for add in life.unmet.pop(ledger_id, []):
            if error is None:
                self._take(life, add)
            else:
                self._refuse(add, error)

    def _take(self, life: Life, add: Add) -> None:
        """Fence, key and overlap are looked at in one step with taking the batch; the fence first."""
        header = add.header
        try:
            check_identity(life, add.ledger_id, add.identity)
        except OtherLedger as error:
            self._refuse(add, error)
            return
        fenced = add.ledger_id in life.ledgers and life.ledgers[add.ledger_id].fenced
        if fenced and not add.recovery:
            self._refuse(add, LedgerFenced())
            return
        if not add.repair and not fits(add.key, life.verifiers[add.ledger_id]):
            self._refuse(add, Unauthorized())
            return
        if not add.recovery and self.faults.in_limbo(add.ledger_id):
            self._refuse(add, EntryUnknown())
            return
        identity = life.identities.get(add.ledger_id, NO_IDENTITY)
        ledger = ledger_of(life.ledgers, add.ledger_id, identity)
        overlapping = ledger.overlapping(header.first_entry_id, header.last_entry_id)
        if not overlapping and len(add.batch) > self.max_batch_bytes:
            self._refuse(add, EntryTooLarge())
        elif not overlapping:
            ledger.put(add.batch)
            wake(life, add.ledger_id)
            if add.deferred:
                self._tell(add, OK_CODE)
            life.journal.write(
                lambda: ledger_of(self._disk, add.ledger_id, identity).put(add.batch),
                _ignore if add.deferred else lambda code: self._tell(add, code),
            )
        elif overlapping == [add.batch]:
            # It queues behind the first copy, hence is answered only when that one is durable.
            life.journal.write(self._mending(add) if add.recovery else _nothing, lambda code: self._tell(add, code))
        else:
            self._refuse(add, Conflict())

    def _mending(self, add: Add) -> Callable[[], None]:
        header = add.header
        return lambda: self.faults.mend(header.ledger_id, header.first_entry_id, header.last_entry_id)

    def _refuse(self, add: Add, error: TallybookError) -> None:
        self._tell(add, error.wire_code, error.retry_after_ms if isinstance(error, Busy) else 0)

    def _tell(self, add: Add, code: int, retry_after_ms: int = 0) -> None:
        answer = add.answer(code, retry_after_ms)
        if self.gate is None:
            _soon(add.on_answer, answer)
        else:
            self._background(self._tell_through(self.gate, add, answer), "gated answer")

    async def _tell_through(self, gate: Gate, add: Add, answer: AddAnswer) -> None:
        life = self._life
        await gate("repair_add" if add.repair else "recovery_add" if add.recovery else "add", add.ledger_id)
        # A killed process sends nothing, whatever it had decided to send.
        add.on_answer(answer if life.alive else add.answer(BookieUnavailable.wire_code))

    # Keys and fences.

    async def _learn_verifier(self, life: Life, ledger_id: int) -> bytes:
        known = life.verifiers.get(ledger_id)
        if known is not None:
            return known
        facts = await self._facts_of(ledger_id)
        self._check_alive(life)
        if facts is None:
            raise NoSuchLedger(f"{self._bookie_id}: the metadata does not know ledger {ledger_id}")
        life.verifiers[ledger_id] = facts.verifier
        life.identities[ledger_id] = facts.identity
        return facts.verifier

    async def _check_key(self, life: Life, ledger_id: int, key: bytes) -> None:
        if not fits(key, await self._learn_verifier(life, ledger_id)):
            raise Unauthorized(f"{self._bookie_id}: the key does not fit ledger {ledger_id}")

    async def _fence(self, life: Life, ledger_id: int, key: bytes) -> None:
        await self._check_key(life, ledger_id, key)
        await self._set_fence(life, ledger_id)

    async def _set_fence(self, life: Life, ledger_id: int) -> None:
        identity = life.identities.get(ledger_id, NO_IDENTITY)
        ledger_of(life.ledgers, ledger_id, identity).fenced = True
        wake(life, ledger_id)

        def apply() -> None:
            ledger_of(self._disk, ledger_id, identity).fenced = True

        await life.journal.durable(apply)

    # Reads.

    def _read(self, life: Life, ledger_id: int, first: int, last: int, max_bytes: int) -> ReadAnswer:
        self.faults.raise_error(ledger_id, first, first)
        ledger = life.ledgers.get(ledger_id)
        found: list[Buffer] = []
        size = 0
        for batch in ledger.run_from(first) if ledger else ():
            header = decode_header(batch)
            size += len(batch)
            if found and (header.first_entry_id > last or size > max_bytes):
                break
            try:
                self.faults.raise_error(ledger_id, header.first_entry_id, header.last_entry_id)
            except StorageError:
                if found:
                    break
                raise
            found.append(self.faults.as_stored(batch, header))
        if ledger and found:
            return ReadAnswer(tuple(found), ledger.lac)
        self.faults.raise_limbo(ledger_id)
        raise EntryAbsent(f"{self._bookie_id}: entry {first} of ledger {ledger_id} is not here")

    # Waiting.

    async def _wait_for_news(self, life: Life, ledger_id: int, above: int, timeout_seconds: float) -> None:
        deadline = self._clock.monotonic() + timeout_seconds
        while True:
            answer, left = lac_of(life, ledger_id), deadline - self._clock.monotonic()
            if answer.lac > above or answer.fenced or left <= 0:
                return
            waiter: Waiter = asyncio.get_running_loop().create_future()
            waiters = life.lac_waiters.setdefault(ledger_id, [])
            waiters.append(waiter)
            timer = self._background(self._ring(waiter, left), "long poll")
            try:
                await waiter
            finally:
                timer.cancel()
                if waiter in waiters:
                    waiters.remove(waiter)
            self._check_alive(life)

    async def _ring(self, waiter: Waiter, seconds: float) -> None:
        await self._clock.sleep(seconds)
        settle(waiter)

    async def _enter(self) -> Life:
        """Wait while the process is frozen; then the life this call belongs to."""
        life = self._life
        while life.door is not None:
            waiter: Waiter = asyncio.get_running_loop().create_future()
            life.door.append(waiter)
            await waiter
        self._check_alive(life)
        return life

    async def _leave(self, life: Life, name: str, ledger_id: int) -> None:
        if self.gate is not None:
            await self.gate(name, ledger_id)
        await self._enter()
        self._check_alive(life)

    def _check_alive(self, life: Life) -> None:
        if not life.alive:
            raise BookieUnavailable(f"bookie {self._bookie_id} is down")

    def _background(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        return self._tasks.spawn(work, name=f"{self._bookie_id} {name}")


async def _never_settled(_ledger_id: int) -> Settled:
    """Metadata that say of no ledger that there is no writer."""
    return Settled(NO_ENTRY, closed=False)


def _soon(on_answer: AddCallback, answer: AddAnswer) -> None:
    # Never from within ``add``: a caller need not be ready for the answer before the call returns.
    asyncio.get_running_loop().call_soon(on_answer, answer)


def _ignore(_code: int) -> None:
    """What becomes of an add that was acked before."""


def _nothing() -> None:
    """What an identical resend changes on disk."""
