"""A writer whose caller chooses the entry ids, for logs that are numbered elsewhere.

    entries = ledger.with_chosen_ids()
    await entries.append(7, b"...")      # confirmed once 0 .. 6 were given, too

Ids may come in any order and from many tasks. An entry waits here until all lower ids were given, and then enters a
batch, so that batches and the LAC never have gaps. A gap that is never filled therefore blocks all higher entries
until the close, which fails them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from tallybook.core.buffers import Buffer, check_buffer
from tallybook.core.errors import Busy, InvalidArgument, LedgerClosed, Outcome, TallybookError
from tallybook.core.ids import check_new_entry_id
from tallybook.metadata.ledger.model import LedgerMetadata
from tallybook.runtime.concurrency.handle_lifetime import close_or_abandon

from .appends import Appends, PendingAppend

if TYPE_CHECKING:
    from .handle import LedgerWriter


class _OutOfOrderEntry(NamedTuple):
    """An entry that waits for lower ids."""

    payload: bytes
    size: int
    turn: asyncio.Future[PendingAppend]


class ChosenIdsWriter:
    """Writes a ledger under entry ids that the caller chooses: each of 0, 1, 2, ... once, in any order.

    Entries that wait for lower ids, in all ledgers of the client, take at most half of its byte budget, so that there
    is space for the lower ids.
    """

    def __init__(self, ledger: LedgerWriter, appends: Appends) -> None:
        self._ledger = ledger
        self._appends = appends
        self._next = 0
        self._early: dict[int, _OutOfOrderEntry] = {}
        self._awaiting_budget: set[int] = set()
        """Ids of entries that wait for budget."""
        appends.when_ended(self._ended)

    @property
    def ledger(self) -> LedgerWriter:
        """The ledger's writer, for what is confirmed. Do not append to it directly: the ids would be mixed up."""
        return self._ledger

    @property
    def next_missing(self) -> int:
        """The lowest id that was not given yet."""
        return self._next

    def append(self, entry_id: int, payload: Buffer) -> Coroutine[Any, Any, int]:
        """Write one entry under ``entry_id``; return the id once it and every lower entry are confirmed.

        Cancelling the wait does not cancel the append once the budget was taken.

        Raises:
            InvalidArgument: not an entry id, or it was given before; nothing was written.
            EntryTooLarge: above ``max_entry_bytes``; the handle stays usable.
            Busy: too many entries wait for lower ids; give those first.
            RequestTimeout: the client's byte budget stayed used up for the add timeout; not written.
            TypeError, LedgerClosed, LedgerFenced, ...: as for ``LedgerWriter.append``.
        """
        check_buffer(payload, "an entry")
        return self._append(entry_id, payload)

    async def _append(self, entry_id: int, payload: Buffer) -> int:
        size = self._appends.admissible(payload)
        self._check_new(entry_id)
        early_bytes = size if entry_id > self._next else 0
        if early_bytes and not self._appends.budget.count_early(size):
            raise Busy(f"ledger {self._ledger.id}: too many entries wait for entry {self._next}", retry_after_ms=1)
        self._awaiting_budget.add(entry_id)
        # Counted before the budget is taken, so that concurrent calls cannot take all of it.
        try:
            await self._appends.take_budget(size)
        except BaseException:
            self._appends.budget.discount_early(early_bytes)
            raise
        finally:
            self._awaiting_budget.discard(entry_id)
        pending = self._add(entry_id, payload if isinstance(payload, bytes) else bytes(payload), size, early_bytes)
        if isinstance(pending, PendingAppend):
            return await pending
        # Shielded: cancelling this caller must not cancel the shared future.
        return await (await asyncio.shield(pending))

    def _check_new(self, entry_id: int) -> None:
        check_new_entry_id(entry_id)
        if entry_id < self._next or entry_id in self._early or entry_id in self._awaiting_budget:
            raise InvalidArgument(f"ledger {self._ledger.id}: entry id {entry_id} was used before")

    def _add(
        self, entry_id: int, payload: bytes, size: int, early_bytes: int
    ) -> PendingAppend | asyncio.Future[PendingAppend]:
        """The budget was taken: add the entry to a batch if all lower ids were given, with the next ids that wait."""
        if entry_id > self._next:
            turn: asyncio.Future[PendingAppend] = asyncio.get_running_loop().create_future()
            self._early[entry_id] = _OutOfOrderEntry(payload, size, turn)
            return turn
        self._appends.budget.discount_early(early_bytes)
        pending = self._appends.gather(payload)
        self._next += 1
        while (early := self._early.pop(self._next, None)) is not None:
            self._appends.budget.discount_early(early.size)
            early.turn.set_result(self._appends.gather(early.payload))
            self._next += 1
        return pending

    async def close(self) -> LedgerMetadata:
        """Close the ledger before the first missing id; see ``LedgerWriter.close``.

        Entries that still wait for lower ids fail with ``LedgerClosed`` and were not written.
        """
        reason = f"ledger {self._ledger.id} is closed before entry {self._next}, which was never given"
        self._refuse(LedgerClosed(reason))
        return await self._ledger.close()

    def abandon(self) -> None:
        """Stop without closing the ledger: it stays open until it is recovered."""
        self._ledger.abandon()

    def _ended(self, error: TallybookError) -> None:
        """The handle has ended: fail the waiting entries, which were not written."""
        self._refuse(type(error)(error.message))

    def _refuse(self, error: TallybookError) -> None:
        error.outcome = Outcome.NOT_DONE
        early, self._early = self._early, {}
        for entry in early.values():
            self._appends.budget.discount_early(entry.size)
            self._appends.give_budget(entry.size)
            if not entry.turn.done():
                entry.turn.set_exception(error)
                entry.turn.exception()  # retrieved, so that asyncio does not warn if no caller waits any more

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await close_or_abandon(self, failed=kind is not None)
