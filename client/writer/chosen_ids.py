"""A writer whose caller chooses the entry ids: for logs that were numbered somewhere else.

    entries = ledger.with_chosen_ids()
    await entries.append(7, b"...")      # confirmed once 0 .. 6 were given, too

Ids may come in any order and from many tasks. What comes early waits here until all lower ids
were given, and only then enters a batch: batches, the LAC and everything after them never know of
a gap. A gap that is never filled therefore holds up all that is above it, up to the close, which
refuses it.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, Self

from tallybook.core.batch import Buffer
from tallybook.core.errors import Busy, InvalidArgument, LedgerClosed, Outcome, TallybookError
from tallybook.core.ids import check_new_entry_id
from tallybook.metadata.model import LedgerMetadata
from tallybook.runtime.lifetime import close_or_abandon

from .appends import Appends
from .pending import PendingAppend

if TYPE_CHECKING:
    from .handle import LedgerWriter


class _Early(NamedTuple):
    """An entry that came before one with a lower id."""

    payload: bytes
    size: int
    turn: asyncio.Future[PendingAppend]


class ChosenIdsWriter:
    """Writes a ledger under ids of the caller's choice: each of 0, 1, 2, ... once, in any order.

    What waits for lower ids, in all ledgers of the client, takes at most half of its byte budget, so that the
    entries it waits for find room.
    """

    def __init__(self, ledger: LedgerWriter, appends: Appends) -> None:
        self._ledger = ledger
        self._appends = appends
        self._next = 0
        self._early: dict[int, _Early] = {}
        self._in_hand: set[int] = set()
        """Ids of entries that wait for room in the budget."""
        appends.on_end.append(self._ended)

    @property
    def ledger(self) -> LedgerWriter:
        """The writer of the ledger. It tells what is confirmed; appending to it as well would mix up the ids."""
        return self._ledger

    @property
    def next_missing(self) -> int:
        """The lowest id that was not given yet."""
        return self._next

    async def append(self, entry_id: int, payload: Buffer) -> int:
        """Write one entry under ``entry_id``; return the id once it, and every lower one, is confirmed.

        Cancelling the wait does not take the entry back, once it has found room.

        Raises:
            InvalidArgument: not an entry id, or it was given before; nothing was written.
            EntryTooLarge: above ``max_entry_bytes``; the handle stays good.
            Busy: too much waits for lower ids already; give those first.
            RequestTimeout: no room in the client's budget within the add timeout; not written.
            LedgerClosed, LedgerFenced, ...: as for ``LedgerWriter.append``.
        """
        size = self._appends.admissible(payload)
        self._check_new(entry_id)
        early_bytes = size if entry_id > self._next else 0
        if early_bytes and not self._appends.budget.count_early(size):
            raise Busy(f"ledger {self._ledger.id}: too much waits for entry {self._next}", retry_after_ms=1)
        self._in_hand.add(entry_id)
        # Counted before there is room: many at once must not take all of it.
        try:
            await self._appends.take_room(size)
        except BaseException:
            self._appends.budget.discount_early(early_bytes)
            raise
        finally:
            self._in_hand.discard(entry_id)
        pending = self._given(entry_id, payload if isinstance(payload, bytes) else bytes(payload), size, early_bytes)
        if isinstance(pending, PendingAppend):
            return await pending
        # Shielded: others must not lose their turn because this caller does not wait any more.
        return await (await asyncio.shield(pending))

    def _check_new(self, entry_id: int) -> None:
        check_new_entry_id(entry_id)
        if entry_id < self._next or entry_id in self._early or entry_id in self._in_hand:
            raise InvalidArgument(f"ledger {self._ledger.id}: entry {entry_id} was given before")

    def _given(
        self, entry_id: int, payload: bytes, size: int, early_bytes: int
    ) -> PendingAppend | asyncio.Future[PendingAppend]:
        """There is room for the entry: it enters a batch if all lower ones have, and takes along those above it."""
        if entry_id > self._next:
            turn: asyncio.Future[PendingAppend] = asyncio.get_running_loop().create_future()
            self._early[entry_id] = _Early(payload, size, turn)
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
        """Settle the end of the ledger before the first missing id; see ``LedgerWriter.close``.

        What still waits for lower ids fails with ``LedgerClosed`` and was not written.
        """
        reason = f"ledger {self._ledger.id} is closed before entry {self._next}, which was never given"
        self._refuse(LedgerClosed(reason))
        return await self._ledger.close()

    def abandon(self) -> None:
        """Stop without closing the ledger: it stays open, for a recovery to end."""
        self._ledger.abandon()

    def _ended(self, error: TallybookError) -> None:
        """The handle can append nothing more: what waits never got into a batch."""
        self._refuse(type(error)(error.message))

    def _refuse(self, error: TallybookError) -> None:
        error.outcome = Outcome.NOT_DONE
        early, self._early = self._early, {}
        for entry in early.values():
            self._appends.budget.discount_early(entry.size)
            self._appends.give_room(entry.size)
            if not entry.turn.done():
                entry.turn.set_exception(error)
                entry.turn.exception()  # whoever waits hears it; there may be nobody left

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await close_or_abandon(self, failed=kind is not None)
