"""The writing handles of the blocking client. They pass appends of other threads to the asyncio handles.

The way of an append:

    any thread:   append_nowait -> bytes of the client's budget -> PendingAppend -> ThreadHandOff
    the loop:     ThreadHandOff -> LedgerWriter.append_admitted -> batches, as with asyncio
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Generic, TypeVar

from tallybook.core.buffers import Buffer
from tallybook.core.errors import Busy, HandleClosed, LedgerClosed, TallybookError
from tallybook.runtime.blocking.handle import BlockingHandle
from tallybook.runtime.blocking.loop_thread import LoopThread

from ..budget import ByteBudget
from ..writer import chosen_ids, handle
from ..writer.appends import PendingAppend as LoopAppend
from .thread_handoff import AppendHandOff, AppendingHandle, AppendRoute, ThreadAppend

W = TypeVar("W", bound=AppendingHandle)


class PendingAppend(ThreadAppend[int]):
    """A pending append, returned by ``LedgerWriter.append_nowait``. Its ``result`` is the entry id.

    The entry is written even if the result is never asked for. ``result`` raises the errors of ``LedgerWriter.append``.
    """

    __slots__ = ()


class _LedgerRoute(AppendRoute):
    """Passes the appends of one ledger to the loop."""

    def __init__(self, engine: handle.LedgerWriter, hand_over: AppendHandOff, budget: ByteBudget) -> None:
        super().__init__(engine, hand_over)
        self._engine = engine
        self.budget = budget

    def send(self, appends: Sequence[ThreadAppend[Any]]) -> None:
        """Give entries to the asyncio handle."""
        sent: Sequence[LoopAppend | TallybookError]
        try:
            sent = self._engine.append_admitted([append.item for append in appends])
        except TallybookError as error:
            # The handle ended after the budget was taken.
            self.budget.give(sum(append.cost_bytes for append in appends))
            sent = [error] * len(appends)
        for append, state in zip(appends, sent, strict=True):
            append.state, append.item = state, None


class LedgerWriterBase(AppendingHandle):
    """The only writer of one open ledger. Several threads may share it; the entries of each thread keep their order.

    A failed append ends the handle: the last add confirmed cannot pass the failed entry. Whether a failed append took
    place is unknown; a recovery may keep it. After the client's close every call raises ``HandleClosed``.
    """

    def __init__(self, engine: handle.LedgerWriter, hand_over: AppendHandOff, budget: ByteBudget) -> None:
        super().__init__(_LedgerRoute(engine, hand_over, budget))
        self._engine = engine
        self._budget = budget

    def _append_nowait(self, payload: Buffer) -> PendingAppend:
        try:
            cost = self._engine.take_budget(payload)
        except LedgerClosed:
            self._loop.check_open()
            raise
        try:
            found = PendingAppend(self._route, payload if type(payload) is bytes else bytes(payload), cost)
        except BaseException:
            # No memory for the copy, or Ctrl-C: give the budget back here.
            with suppress(HandleClosed):  # the client is closed and its budget no longer used
                self._loop.call_soon(self._budget.give, cost)
            raise
        # Refused only if the client is closed, so the budget need not be given back.
        self._route.hand_over.put(found)
        return found

    def _append(self, payload: Buffer) -> int:
        """Append one entry; return its id once an ack quorum has it on disk (with deferred sync: has received it).

        While all bookies are busy, the call waits without a limit; use ``append_nowait`` and ``result(timeout)`` for
        a limit. A timeout does not cancel the append.

        Raises:
            EntryTooLarge: above ``max_entry_bytes``; the handle stays usable.
            RequestTimeout: the client's byte budget stayed used up for the add timeout; not sent.
            LedgerClosed, LedgerFenced, ...: the handle is closed or failed. The error's outcome says whether the entry
                was not sent, or may have been written.
            HandleClosed: the client is closed.
        """
        self._loop.check_foreign()
        try:
            sent = self._append_nowait(payload)
        except Busy:
            return self._run(self._engine.append, payload)
        return sent.result()

    def _with_chosen_ids(self) -> chosen_ids.ChosenIdsWriter:
        async def work() -> chosen_ids.ChosenIdsWriter:
            return self._engine.with_chosen_ids()

        return self._run(work)


class ChosenIdsWriterBase(BlockingHandle, Generic[W]):
    """Writes a ledger under entry ids that the caller chooses: each of 0, 1, 2, ... once, in any order.

    ``append`` waits until all lower ids were given. So a single thread has to give ids in order; several threads need
    not. Entries that wait for lower ids, in all ledgers of the client, take at most half of its byte budget.
    """

    def __init__(self, ledger: W, engine: chosen_ids.ChosenIdsWriter, loop: LoopThread) -> None:
        super().__init__(loop)
        self._ledger = ledger
        self._engine = engine
