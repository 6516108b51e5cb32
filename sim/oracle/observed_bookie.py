"""A bookie that is watched: every answer passes the god on its way out."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from functools import partial
from typing import TypeVar

from tallybook.bookie.bookie import Bookie
from tallybook.bookie.port import AddCallback
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
from tallybook.core.batch import Buffer, EntrySlice
from tallybook.core.errors import (
    OK_CODE,
    EntryAbsent,
    EntryTooLarge,
    NoSuchLedger,
    PeerError,
    StorageError,
    error_class,
)
from tallybook.core.ids import NO_ENTRY, NO_IDENTITY

from .god import God

T = TypeVar("T")


class ObservedBookie:
    """A ``LedgerStore`` over one life of a bookie.

    Args:
        memory_fails: whether what it gives out now is not what it holds.
    """

    def __init__(self, bookie: Bookie, god: God, memory_fails: Callable[[], bool]) -> None:
        self._bookie = bookie
        self._god = god
        self._memory_fails = memory_fails
        self._early: dict[int, list[Buffer]] = {}
        """Of each ledger what this life has acked before it was durable, and was not made so by a force."""
        self._lacs: dict[int, int] = {}
        """The last LAC that this life has told of each ledger."""

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
        recovery: bool = False,
        deferred: bool = False,
        repair: bool = False,
        beside: bool = False,
        identity: bytes = NO_IDENTITY,
    ) -> None:
        """See the port."""
        god, bookie = self._god, self._bookie
        by_writer = not (recovery or repair)
        god.sent(bookie.bookie_id, bookie.incarnation, batch, by_writer=by_writer)

        def answered(answer: AddAnswer) -> None:
            if answer.code == OK_CODE and deferred:
                god.mark("bookie: acked before it was durable")
                self._early.setdefault(answer.ledger_id, []).append(batch)
            elif answer.code == OK_CODE:
                god.acked(bookie.bookie_id, bookie.incarnation, batch, by_writer=by_writer)
                if recovery:
                    god.mark("bookie: recovery add")
            else:
                too_large = answer.code == EntryTooLarge.wire_code and by_writer
                god.expect(not too_large, "I24", f"{bookie.bookie_id} was sent a batch of {len(batch)} bytes")
                god.mark(f"bookie: add refused, {error_class(answer.code).__name__}")
            on_answer(answer)

        bookie.add(
            batch, key, answered,
            recovery=recovery, deferred=deferred, repair=repair, beside=beside, identity=identity,
        )  # fmt: skip

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
        self._god.mark("bookie: forced")
        for batch in early:
            self._god.acked(self.bookie_id, self.incarnation, batch, by_writer=True)

    async def fence(self, ledger_id: int, key: bytes) -> FenceAnswer:
        """See the port."""
        answer = await self._bookie.fence(ledger_id, key)
        self._god.fenced(self.bookie_id, self.incarnation, ledger_id)
        self._look_at_lac(ledger_id, answer.lac)
        return answer

    async def read_batches(self, ledger_id: int, first: int, last: int, max_bytes: int) -> ReadAnswer:
        """See the port."""
        read = partial(self._bookie.read_batches, ledger_id, first, last, max_bytes)
        return self._given_out(ledger_id, await self._read(ledger_id, first, read))

    async def recovery_read(self, ledger_id: int, entry_id: int, key: bytes, max_bytes: int = 0) -> ReadAnswer:
        """See the port."""
        read = partial(self._bookie.recovery_read, ledger_id, entry_id, key, max_bytes)
        try:
            return self._given_out(ledger_id, await self._read(ledger_id, entry_id, read))
        except EntryAbsent:
            self._god.fenced(self.bookie_id, self.incarnation, ledger_id)
            raise

    async def read_entry(self, ledger_id: int, entry_id: int) -> EntrySlice:
        """See the port."""
        found = await self._read(ledger_id, entry_id, lambda: self._bookie.read_entry(ledger_id, entry_id))
        return replace(found, payload=_damaged(found.payload)) if self._memory_fails() and found.payload else found

    async def read_lac(self, ledger_id: int) -> LacAnswer:
        """See the port."""
        answer = await self._bookie.read_lac(ledger_id)
        self._look_at_lac(ledger_id, answer.lac)
        return answer

    async def wait_lac(self, ledger_id: int, above: int, timeout_ms: int) -> LacAnswer:
        """See the port."""
        answer = await self._bookie.wait_lac(ledger_id, above, timeout_ms)
        self._look_at_lac(ledger_id, answer.lac)
        return answer

    async def write_lac(self, ledger_id: int, lac: int, key: bytes) -> None:
        """See the port."""
        await self._bookie.write_lac(ledger_id, lac, key)
        self._god.mark("bookie: explicit LAC")

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
        """See the port. Whoever says that nothing is lost any more has all that it is named for."""
        await self._bookie.end_limbo(ledger_id)
        known = self._god.ledgers.get(ledger_id)
        if known is None:
            return
        metadata = known.metadata
        named = [first for first in known.firsts if self.bookie_id in metadata.bookies_of(first)]
        for first in named:
            if metadata.closed and first <= metadata.last_entry_id:
                await self._look_for(ledger_id, first)

    async def _look_for(self, ledger_id: int, entry_id: int) -> None:
        try:
            await self._bookie.read_batches(ledger_id, entry_id, entry_id, 1)
        except EntryAbsent:
            detail = f"{self.bookie_id} is told that nothing of ledger {ledger_id} is lost, and has no entry {entry_id}"
            self._god.expect(ledger_id not in self._god.ledgers, "I11", detail)
        except (PeerError, StorageError):
            self._god.mark("bookie: damaged, or gone, when its limbo ended")

    async def status(self) -> BookieStatus:
        """See the port."""
        return await self._bookie.status()

    async def trace(self, ledger_id: int, entry_id: int) -> CopyTrace:
        """See the port."""
        return await self._bookie.trace(ledger_id, entry_id)

    def _look_at_lac(self, ledger_id: int, lac: int) -> None:
        known = self._god.ledgers.get(ledger_id)
        if known is None:
            return
        if lac > known.confirmable:
            detail = f"{self.bookie_id} says that {lac} of ledger {ledger_id} is confirmed"
            self._god.violated("I6", f"{detail}, an ack quorum holds up to {known.confirmable}")
        before = self._lacs.get(ledger_id, NO_ENTRY)
        if lac < before:
            detail = f"{self.bookie_id} says that {lac} of ledger {ledger_id} is confirmed"
            self._god.violated("I6", f"{detail}, and has said {before} in the same life")
        self._lacs[ledger_id] = lac

    def _given_out(self, ledger_id: int, answer: ReadAnswer) -> ReadAnswer:
        self._look_at_lac(ledger_id, answer.lac)
        if not self._memory_fails():
            return answer
        self._god.mark("bookie: gave out a damaged copy")
        return answer._replace(batches=tuple(map(_damaged, answer.batches)))

    async def _read(self, ledger_id: int, entry_id: int, read: Callable[[], Awaitable[T]]) -> T:
        directory = self._bookie.incarnation.directory_uuid
        held = self._god.may_hold(self.bookie_id, ledger_id, entry_id, directory)
        try:
            return await read()
        except EntryAbsent:
            self._god.mark("bookie: read answered ABSENT")
            if held and self._god.may_hold(self.bookie_id, ledger_id, entry_id, directory):
                detail = f"{self.bookie_id} acked entry {entry_id} of ledger {ledger_id} and says that it is absent"
                self._god.violated("I11", detail)
            raise
        except NoSuchLedger:
            if ledger_id not in self._god.missed:
                self._god.gone(self.bookie_id, ledger_id)
            raise


def _damaged(batch: Buffer) -> bytes:
    """With another last byte, which is one of a payload."""
    return bytes(batch[:-1]) + bytes([batch[-1] ^ 1])
