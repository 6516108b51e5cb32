"""Wraps a bookie so that the oracle sees every answer before it leaves."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from functools import partial
from typing import TypeVar

from tallybook.bookie.bookie import Bookie
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
from tallybook.core.batch import EntrySlice
from tallybook.core.buffers import Buffer
from tallybook.core.error_codes import error_class
from tallybook.core.errors import OK_CODE, EntryAbsent, EntryTooLarge, NoSuchLedger, PeerError, StorageError
from tallybook.core.ids import NO_ENTRY, NO_IDENTITY

from .oracle import Oracle

T = TypeVar("T")


class ObservedBookie:
    """A ``LedgerStore`` over one incarnation of a bookie.

    Args:
        memory_fails: returns whether reads currently return corrupted copies.
    """

    def __init__(self, bookie: Bookie, oracle: Oracle, memory_fails: Callable[[], bool]) -> None:
        self._bookie = bookie
        self._oracle = oracle
        self._memory_fails = memory_fails
        self._early: dict[int, list[Buffer]] = {}
        """Deferred adds acked by this incarnation and not forced yet, by ledger."""
        self._lacs: dict[int, int] = {}
        """The last LAC that this incarnation returned, by ledger."""

    @property
    def bookie_id(self) -> str:
        """See the port."""
        return self._bookie.bookie_id

    @property
    def incarnation(self) -> Incarnation:
        """See the port."""
        return self._bookie.incarnation

    @property
    def max_batch_bytes(self) -> int:
        """See the port."""
        return self._bookie.max_batch_bytes

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
        """See the port."""
        oracle, bookie = self._oracle, self._bookie
        by_writer = not kind.from_recovery
        oracle.sent(bookie.bookie_id, bookie.incarnation, batch, by_writer=by_writer)

        def answered(answer: AddAnswer) -> None:
            if answer.code == OK_CODE and kind is AddKind.DEFERRED:
                oracle.mark("bookie: acked before it was durable")
                self._early.setdefault(answer.ledger_id, []).append(batch)
            elif answer.code == OK_CODE:
                oracle.acked(bookie.bookie_id, bookie.incarnation, batch, by_writer=by_writer)
                if kind is AddKind.RECOVERY:
                    oracle.mark("bookie: recovery add")
                    oracle.written_back(bookie.bookie_id, batch)
            else:
                too_large = answer.code == EntryTooLarge.wire_code and by_writer
                oracle.expect(not too_large, "I24", f"{bookie.bookie_id} was sent a batch of {len(batch)} bytes")
                oracle.mark(f"bookie: add refused, {error_class(answer.code).__name__}")
            on_answer(answer)

        bookie.add(batch, key, answered, kind=kind, others_in_flight=others_in_flight, identity=identity)

    def identified(
        self, ledger_id: int, identity: bytes, *, for_write: bool = False, for_repair: bool = False
    ) -> AbstractAsyncContextManager[None]:
        """See the port."""
        return self._bookie.identified(ledger_id, identity, for_write=for_write, for_repair=for_repair)

    async def any_opens(self, ledger_id: int, shown: Sequence[tuple[bytes, bytes]]) -> bool:
        """See the port."""
        return await self._bookie.any_opens(ledger_id, shown)

    async def force(self, ledger_id: int, key: bytes) -> None:
        """See the port."""
        early = self._early.pop(ledger_id, [])
        try:
            await self._bookie.force(ledger_id, key)
        except BaseException:
            self._early[ledger_id] = early + self._early.get(ledger_id, [])
            raise
        self._oracle.mark("bookie: forced")
        for batch in early:
            self._oracle.acked(self.bookie_id, self.incarnation, batch, by_writer=True)

    async def fence(self, ledger_id: int, key: bytes) -> FenceAnswer:
        """See the port."""
        answer = await self._bookie.fence(ledger_id, key)
        self._oracle.fenced(self.bookie_id, self.incarnation, ledger_id)
        self._check_lac(ledger_id, answer.lac)
        return answer

    async def read_batches(
        self, ledger_id: int, first: int, last: int, max_bytes: int, *, background: bool = False
    ) -> ReadAnswer:
        """See the port."""
        read = partial(self._bookie.read_batches, ledger_id, first, last, max_bytes, background=background)
        return self._given_out(ledger_id, await self._read(ledger_id, first, read))

    async def recovery_read(self, ledger_id: int, entry_id: int, key: bytes, max_bytes: int = 0) -> ReadAnswer:
        """See the port."""
        self._oracle.recovery_read(self.bookie_id, ledger_id, entry_id)
        read = partial(self._bookie.recovery_read, ledger_id, entry_id, key, max_bytes)
        try:
            return self._given_out(ledger_id, await self._read(ledger_id, entry_id, read))
        except EntryAbsent:
            self._oracle.fenced(self.bookie_id, self.incarnation, ledger_id)
            raise

    async def read_entry(self, ledger_id: int, entry_id: int) -> EntrySlice:
        """See the port."""
        found = await self._read(ledger_id, entry_id, lambda: self._bookie.read_entry(ledger_id, entry_id))
        return replace(found, payload=_damaged(found.payload)) if self._memory_fails() and found.payload else found

    async def read_lac(self, ledger_id: int) -> LacAnswer:
        """See the port."""
        answer = await self._bookie.read_lac(ledger_id)
        self._check_lac(ledger_id, answer.lac)
        return answer

    async def wait_lac(self, ledger_id: int, above: int, timeout_ms: int) -> LacAnswer:
        """See the port."""
        answer = await self._bookie.wait_lac(ledger_id, above, timeout_ms)
        self._check_lac(ledger_id, answer.lac)
        return answer

    async def write_lac(self, ledger_id: int, lac: int, key: bytes) -> None:
        """See the port."""
        await self._bookie.write_lac(ledger_id, lac, key)
        self._oracle.mark("bookie: explicit LAC")

    async def held(self, ledger_id: int, first: int, last: int) -> HeldAnswer:
        """See the port."""
        return await self._bookie.held(ledger_id, first, last)

    async def damaged(self, after: tuple[int, int], limit: int) -> tuple[DamagedBatch, ...]:
        """See the port."""
        return await self._bookie.damaged(after, limit)

    async def held_ledgers(self, after: int, limit: int) -> HeldLedgers:
        """See the port."""
        return await self._bookie.held_ledgers(after, limit)

    async def end_limbo(self, ledger_id: int) -> None:
        """See the port. After its limbo ends, a bookie must hold everything that the metadata name it for (I11)."""
        await self._bookie.end_limbo(ledger_id)
        known = self._oracle.ledgers.get(ledger_id)
        if known is None:
            return
        metadata = known.metadata
        named = [first for first in known.firsts if self.bookie_id in metadata.bookies_of(first)]
        for first in named:
            if metadata.closed and first <= metadata.last_entry_id:
                await self._check_held(ledger_id, first)

    async def _check_held(self, ledger_id: int, entry_id: int) -> None:
        try:
            await self._bookie.read_batches(ledger_id, entry_id, entry_id, 1)
        except EntryAbsent:
            detail = f"{self.bookie_id} ended the limbo of ledger {ledger_id}, and has no entry {entry_id}"
            self._oracle.expect(ledger_id not in self._oracle.ledgers, "I11", detail)
        except (PeerError, StorageError):
            self._oracle.mark("bookie: damaged, or gone, when its limbo ended")

    async def status(self) -> BookieStatus:
        """See the port."""
        return await self._bookie.status()

    async def trace(self, ledger_id: int, entry_id: int) -> CopyTrace:
        """See the port."""
        return await self._bookie.trace(ledger_id, entry_id)

    def _check_lac(self, ledger_id: int, lac: int) -> None:
        known = self._oracle.ledgers.get(ledger_id)
        if known is None:
            return
        if lac > known.confirmable:
            detail = f"{self.bookie_id} says that {lac} of ledger {ledger_id} is confirmed"
            self._oracle.violated("I6", f"{detail}, an ack quorum holds up to {known.confirmable}")
        before = self._lacs.get(ledger_id, NO_ENTRY)
        if lac < before:
            detail = f"{self.bookie_id} says that {lac} of ledger {ledger_id} is confirmed"
            self._oracle.violated("I6", f"{detail}, and has said {before} in the same life")
        self._lacs[ledger_id] = lac

    def _given_out(self, ledger_id: int, answer: ReadAnswer) -> ReadAnswer:
        self._check_lac(ledger_id, answer.lac)
        if not self._memory_fails():
            return answer
        self._oracle.mark("bookie: returned a damaged copy")
        return answer._replace(batches=tuple(map(_damaged, answer.batches)))

    async def _read(self, ledger_id: int, entry_id: int, read: Callable[[], Awaitable[T]]) -> T:
        directory = self._bookie.incarnation.directory_uuid
        held = self._oracle.may_hold(self.bookie_id, ledger_id, entry_id, directory)
        try:
            return await read()
        except EntryAbsent:
            self._oracle.mark("bookie: read answered ABSENT")
            if held and self._oracle.may_hold(self.bookie_id, ledger_id, entry_id, directory):
                detail = f"{self.bookie_id} acked entry {entry_id} of ledger {ledger_id} and answers that it is absent"
                self._oracle.violated("I11", detail)
            raise
        except NoSuchLedger:
            if ledger_id not in self._oracle.missed:
                self._oracle.check_gone(self.bookie_id, ledger_id)
            raise


def _damaged(batch: Buffer) -> bytes:
    """The batch with its last byte, a payload byte, changed."""
    return bytes(batch[:-1]) + bytes([batch[-1] ^ 1])
