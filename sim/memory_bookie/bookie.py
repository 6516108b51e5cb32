"""A whole bookie in memory that implements ``bookie/port.LedgerStore``, for tests and simulation.

It is neither fast nor durable, but it answers like a real one: the fence is checked before duplicates; an identical
resend is acked only when the first copy is durable; other bytes under existing ids are CONFLICT; a fence (and a
recovery read, which fences) is answered only when everything accepted before is durable; ABSENT, CORRUPT and UNKNOWN
are three answers.

Accepted data are visible at once and durable ``commit_seconds`` later. ``kill`` loses the difference; ``restart``
begins the next life from the durable state. Other methods hold answers back, freeze the bookie or plant faults. It is
deterministic.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeAlias

from tallybook.bookie.ledgers.confirmed_prefix import ConfirmedPrefix, ConfirmedPrefixes, ConfirmedPrefixLookup
from tallybook.bookie.ledgers.key_verification import FactsLookup
from tallybook.core.add_kind import AddKind
from tallybook.core.answers import (
    AddAnswer,
    AddCallback,
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
from tallybook.core.batch import EntrySlice, cut_entry, decode_header, verify_batch
from tallybook.core.buffers import Buffer
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

from . import inspection
from .faults import MemoryFaults
from .journal import MemoryJournal
from .ledger import MemoryLedger, fits
from .life import MemoryAdd, MemoryLife, Waiter, check_identity, lac_of, ledger_of, resume_calls, settle, wake

AnswerGate: TypeAlias = Callable[[str, int], Awaitable[None]]
"""Awaited with (method name, ledger id) before an answer leaves, so that a test can hold it back."""


class MemoryBookie:
    """One bookie's ledgers, in memory.

    Args:
        bookie_id: its id in ledger metadata; the uuids of its directories are derived from it.
        facts_of: looks up key verifier and identity of a ledger, on its first use.
        clock: for commit delays and long poll timeouts.
        tasks: runs its background work.
        commit_seconds: how long a record takes to become durable; 0 is the next turn of the loop.
        confirmed_prefix_of: looks up the confirmed prefix of a ledger; by default it is empty.
    """

    def __init__(
        self,
        bookie_id: str,
        *,
        facts_of: FactsLookup,
        clock: Clock,
        tasks: Tasks,
        commit_seconds: float = 0.0,
        confirmed_prefix_of: ConfirmedPrefixLookup | None = None,
    ) -> None:
        self._bookie_id = bookie_id
        self._facts_of = facts_of
        self._clock = clock
        self._tasks = tasks
        self._commit_seconds = commit_seconds
        self._confirmed_prefixes = ConfirmedPrefixes(confirmed_prefix_of or _nothing_confirmed)
        self._began = clock.monotonic()
        self.gate: AnswerGate | None = None
        self.read_only = False
        self.max_batch_bytes = MAX_BATCH_BYTES
        """Larger batches are refused as too large."""
        self.busy_retry_ms: int | None = None
        """While set, ordinary adds are answered BUSY with this hint."""
        self._directories = self._boot = 1
        self._disk: dict[int, MemoryLedger] = {}
        self.faults = MemoryFaults(bookie_id)
        self._life = self._new_life()

    def _new_life(self) -> MemoryLife:
        clock, delay = self._clock, self._commit_seconds
        journal = MemoryJournal(self._bookie_id, clock=clock, tasks=self._tasks, commit_seconds=delay)
        return MemoryLife(journal, self._disk)

    @property
    def bookie_id(self) -> str:
        """Its id in ledger metadata."""
        return self._bookie_id

    @property
    def incarnation(self) -> Incarnation:
        """Its present incarnation."""
        which = f"-{self._directories}" if self._directories > 1 else ""
        return Incarnation(f"directory-of-{self._bookie_id}{which}", self._boot)

    def add(
        self,
        batch: Buffer,
        key: bytes,
        on_answer: AddCallback,
        *,
        kind: AddKind = AddKind.ORDINARY,
        others_in_flight: bool = False,
        identity: bytes = NO_IDENTITY,
    ) -> None:
        """Add one batch; see the port. Bytes that are no batch are answered with ids of -1."""
        try:
            header = verify_batch(batch)
        except InvalidBatch as error:
            _soon(on_answer, AddAnswer(NO_ENTRY, NO_ENTRY, 0, error.wire_code))
            return
        add = MemoryAdd(bytes(batch), header, key, on_answer, kind, identity)
        if header.last_entry_id > MAX_NEW_ENTRY_ID and not add.recovery:
            self._refuse(add, InvalidArgument())
            return
        if add.repair:
            self._background(self._admit_repair(add), "repair add")
        elif self._life.frozen_calls is None:
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
        """Make all adds of the ledger durable; see the port."""
        life = await self._enter()
        await self._check_key(life, ledger_id, key)
        self.faults.raise_limbo(ledger_id)
        if ledger_id in life.ledgers and life.ledgers[ledger_id].fenced:
            raise LedgerFenced(f"{self._bookie_id}: ledger {ledger_id} is fenced")
        await life.journal.durable(_nothing)
        await self._leave(life, "force", ledger_id)

    async def fence(self, ledger_id: int, key: bytes) -> FenceAnswer:
        """Fence the ledger durably; see the port. A ledger in limbo is fenced and answered with UNKNOWN."""
        life = await self._enter()
        await self._fence(life, ledger_id, key)
        await self._leave(life, "fence", ledger_id)
        self.faults.raise_limbo(ledger_id)
        ledger = ledger_of(life.ledgers, ledger_id)
        return FenceAnswer(ledger.lac, ledger.last_held)

    async def read_batches(
        self, ledger_id: int, first: int, last: int, max_bytes: int, *, background: bool = False
    ) -> ReadAnswer:
        """Batches from the one with entry ``first``; see the port."""
        life = await self._enter()
        await self._leave(life, "read_batches", ledger_id)
        return self._read(life, ledger_id, first, last, max_bytes)

    async def recovery_read(self, ledger_id: int, entry_id: int, key: bytes, max_bytes: int = 0) -> ReadAnswer:
        """Fence, then read the batch with ``entry_id`` and following ones; see the port."""
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

    async def held(self, ledger_id: int, first: int, last: int) -> HeldAnswer:
        """The batches held of a ledger, all of them durable; see the port."""
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
        prefix = await self._confirmed_prefixes.confirmed_at(ledger_id, self._bookie_id)
        self._check_alive(life)
        if self.faults.in_limbo(ledger_id):
            if prefix.closed:
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
        """The copy of an entry; see the port."""
        life = await self._enter()
        await self._leave(life, "trace", ledger_id)
        return inspection.trace(life.ledgers, self.faults, ledger_id, entry_id)

    # MemoryLife and death.

    @property
    def alive(self) -> bool:
        """Whether it answers at all."""
        return self._life.alive

    def kill(self) -> None:
        """Kill the process. State that is not durable is lost; waiting calls fail with BookieUnavailable."""
        life = self._life
        if not life.alive:
            return
        life.alive = False
        life.journal.kill()
        awaiting_facts, life.awaiting_facts = life.awaiting_facts, {}
        for add in (add for adds in awaiting_facts.values() for add in adds):
            self._refuse(add, BookieUnavailable())
        for ledger_id in list(life.lac_waiters):
            wake(life, ledger_id)
        resume_calls(life)

    def restart(self) -> None:
        """Begin the next life from the durable state."""
        self.kill()
        self._boot += 1
        self._life = self._new_life()

    def replace(self, *, limbo_below: int = 0) -> None:
        """Die with the disk; a replacement takes the id, on empty directories with a uuid of their own.

        Args:
            limbo_below: ledgers with lower ids may have been acked under this id, so the replacement cannot say ABSENT
                of them. 0 simulates a replacement that does not know of its predecessor, which is forbidden.
        """
        self.kill()
        self._directories += 1
        self._boot = 1
        self._disk = {}
        self.faults.heal()
        self.faults.limbo_below(limbo_below)
        self._life = self._new_life()

    def pause(self) -> None:
        """Freeze: no call is processed and nothing becomes durable until ``resume``."""
        self._life.journal.hold()
        if self._life.frozen_calls is None:
            self._life.frozen_calls = []

    def resume(self) -> None:
        """Continue after ``pause``, in the order of arrival."""
        self._life.journal.release()
        resume_calls(self._life)

    def hold_commits(self) -> None:
        """Accept adds, but let none become durable, so that none is acked, until ``release_commits``."""
        self._life.journal.hold()

    def release_commits(self) -> None:
        """Commit what ``hold_commits`` held back."""
        self._life.journal.release()

    # For tests; faults are planted through ``faults``.

    def drop(self, ledger_id: int, entry_id: int) -> None:
        """Lose the batch with this entry without noticing: it reads as ABSENT from now on."""
        for ledgers in (self._life.ledgers, self._disk):
            ledger_of(ledgers, ledger_id).drop(entry_id)

    def delete(self, ledger_id: int) -> None:
        """Drop a ledger."""
        for ledgers in (self._life.ledgers, self._disk):
            ledgers.pop(ledger_id, None)
        self._life.verifiers.pop(ledger_id, None)

    def durable_batches(self, ledger_id: int) -> dict[int, bytes]:
        """Durable batches of the ledger by first entry id, in order."""
        return self._disk[ledger_id].batches if ledger_id in self._disk else {}

    def durably_fenced(self, ledger_id: int) -> bool:
        """Whether the ledger is durably fenced."""
        return ledger_id in self._disk and self._disk[ledger_id].fenced

    async def _admit_later(self, add: MemoryAdd) -> None:
        try:
            await self._enter()
        except BookieUnavailable as error:
            self._refuse(add, error)
        else:
            self._admit(add)

    async def _admit_repair(self, add: MemoryAdd) -> None:
        """A repair add is checked against the metadata, not by a key."""
        try:
            life = await self._enter()
            await self._learn_verifier(life, add.ledger_id)
            await self._confirmed_prefixes.check_entry(add.ledger_id, add.header.last_entry_id)
            self._check_alive(life)
        except TallybookError as error:
            self._refuse(add, error)
        else:
            self._take(life, add)

    def _admit(self, add: MemoryAdd) -> None:
        """Check what needs no ledger state, and look up the key verifier on the first use of a ledger."""
        life = self._life
        if not life.alive:
            self._refuse(add, BookieUnavailable())
        elif self.busy_retry_ms is not None and not add.recovery:
            self._refuse(add, Busy(retry_after_ms=self.busy_retry_ms))
        elif len(add.batch) > self.max_batch_bytes and not add.recovery:
            self._refuse(add, EntryTooLarge())
        elif self.read_only and not add.recovery:
            self._refuse(add, BookieReadOnly())
        elif add.ledger_id in life.awaiting_facts:
            life.awaiting_facts[add.ledger_id].append(add)
        elif add.ledger_id in life.verifiers:
            self._take(life, add)
        else:
            life.awaiting_facts[add.ledger_id] = [add]
            self._background(self._look_up_facts(life, add.ledger_id), "introduce")

    async def _look_up_facts(self, life: MemoryLife, ledger_id: int) -> None:
        error: TallybookError | None = None
        try:
            await self._learn_verifier(life, ledger_id)
        except TallybookError as reason:
            error = reason
        for add in life.awaiting_facts.pop(ledger_id, []):
            if error is None:
                self._take(life, add)
            else:
                self._refuse(add, error)

    def _take(self, life: MemoryLife, add: MemoryAdd) -> None:
        """Check fence, key and overlap, the fence first, and store the batch, all in one step."""
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
            # It queues behind the first copy, so it is answered only when that one is durable.
            life.journal.write(self._mending(add) if add.recovery else _nothing, lambda code: self._tell(add, code))
        else:
            self._refuse(add, Conflict())

    def _mending(self, add: MemoryAdd) -> Callable[[], None]:
        header = add.header
        return lambda: self.faults.mend(header.ledger_id, header.first_entry_id, header.last_entry_id)

    def _refuse(self, add: MemoryAdd, error: TallybookError) -> None:
        self._tell(add, error.wire_code, error.retry_after_ms if isinstance(error, Busy) else 0)

    def _tell(self, add: MemoryAdd, code: int, retry_after_ms: int = 0) -> None:
        answer = add.answer(code, retry_after_ms)
        if self.gate is None:
            _soon(add.on_answer, answer)
        else:
            self._background(self._tell_through(self.gate, add, answer), "gated answer")

    async def _tell_through(self, gate: AnswerGate, add: MemoryAdd, answer: AddAnswer) -> None:
        life = self._life
        await gate("repair_add" if add.repair else "recovery_add" if add.recovery else "add", add.ledger_id)
        # A killed process sends no answer.
        add.on_answer(answer if life.alive else add.answer(BookieUnavailable.wire_code))

    async def _learn_verifier(self, life: MemoryLife, ledger_id: int) -> bytes:
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

    async def _check_key(self, life: MemoryLife, ledger_id: int, key: bytes) -> None:
        if not fits(key, await self._learn_verifier(life, ledger_id)):
            raise Unauthorized(f"{self._bookie_id}: the key does not fit ledger {ledger_id}")

    async def _fence(self, life: MemoryLife, ledger_id: int, key: bytes) -> None:
        await self._check_key(life, ledger_id, key)
        await self._set_fence(life, ledger_id)

    async def _set_fence(self, life: MemoryLife, ledger_id: int) -> None:
        identity = life.identities.get(ledger_id, NO_IDENTITY)
        ledger_of(life.ledgers, ledger_id, identity).fenced = True
        wake(life, ledger_id)

        def apply() -> None:
            ledger_of(self._disk, ledger_id, identity).fenced = True

        await life.journal.durable(apply)

    def _read(self, life: MemoryLife, ledger_id: int, first: int, last: int, max_bytes: int) -> ReadAnswer:
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

    async def _wait_for_news(self, life: MemoryLife, ledger_id: int, above: int, timeout_seconds: float) -> None:
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

    async def _enter(self) -> MemoryLife:
        """Wait while the process is frozen; return the life that this call belongs to."""
        life = self._life
        while life.frozen_calls is not None:
            waiter: Waiter = asyncio.get_running_loop().create_future()
            life.frozen_calls.append(waiter)
            await waiter
        self._check_alive(life)
        return life

    async def _leave(self, life: MemoryLife, name: str, ledger_id: int) -> None:
        if self.gate is not None:
            await self.gate(name, ledger_id)
        await self._enter()
        self._check_alive(life)

    def _check_alive(self, life: MemoryLife) -> None:
        if not life.alive:
            raise BookieUnavailable(f"bookie {self._bookie_id} is down")

    def _background(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        return self._tasks.spawn(work, name=f"{self._bookie_id} {name}")


async def _nothing_confirmed(_ledger_id: int) -> ConfirmedPrefix:
    """Default ``confirmed_prefix_of``: the confirmed prefix is empty."""
    return ConfirmedPrefix(NO_ENTRY, closed=False)


def _soon(on_answer: AddCallback, answer: AddAnswer) -> None:
    # Never inside ``add``: the caller may not be ready for the answer before the call returns.
    asyncio.get_running_loop().call_soon(on_answer, answer)


def _ignore(_code: int) -> None:
    """Journal callback of a deferred add, which was acked before."""


def _nothing() -> None:
    """Journal record without an effect."""
