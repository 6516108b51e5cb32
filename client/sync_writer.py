"""The writing handles of the blocking client: the asyncio ones, to which ``crossing`` takes appends of other threads.

any thread:   append_nowait -> room in the client's budget -> PendingAppend -> HandOver
the loop:     HandOver -> LedgerWriter.append_admitted -> batches, as ever
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from tallybook.core.batch import Buffer
from tallybook.core.errors import Busy, HandleClosed, LedgerClosed, TallybookError
from tallybook.metadata.model import LedgerMetadata
from tallybook.runtime.blocking import LoopThread
from tallybook.runtime.lifetime import end_block

from .budget import ByteBudget
from .crossing import Appends, Crossing, Line
from .writer import chosen_ids, handle, pending


class PendingAppend(Crossing[int]):
    """One append on its way: what ``LedgerWriter.append_nowait`` gives. Ask it for its ``result``, the entry's id.

    The entry is written whether or not anybody asks. What fails is raised as by ``LedgerWriter.append``.
    """

    __slots__ = ()


class _Line(Line):
    """The way of one ledger's appends to the loop."""

    def __init__(self, engine: handle.LedgerWriter, hand_over: Appends, budget: ByteBudget) -> None:
        super().__init__(hand_over)
        self._engine = engine
        self.budget = budget

    def send(self, appends: Sequence[Crossing[Any]]) -> None:
        """Have the handle take entries over."""
        sent: Sequence[pending.PendingAppend | TallybookError]
        try:
            sent = self._engine.append_admitted([append.item for append in appends])
        except TallybookError as error:
            # The handle has ended since there was room for these.
            self.budget.give(sum(append.room for append in appends))
            sent = [error] * len(appends)
        for append, state in zip(appends, sent, strict=True):
            append.state, append.item = state, None


class LedgerWriter:
    """The one writer of one open ledger. Several threads may share it: each one's entries keep their order.

    Any append that fails kills the handle: the last add confirmed cannot pass the failed
    entry. Whether a failed append took place is not known; a recovery may keep it.
    """

    def __init__(self, engine: handle.LedgerWriter, hand_over: Appends, budget: ByteBudget) -> None:
        self._engine = engine
        self._line = _Line(engine, hand_over, budget)

    @property
    def id(self) -> int:
        """The ledger's id."""
        return self._engine.id

    @property
    def last_add_confirmed(self) -> int:
        """The last entry that readers may read, -1 for none.

        It is confirmed, as is every lower one; with deferred sync it is the last one that was forced.
        """
        return self._engine.last_add_confirmed

    @property
    def length(self) -> int:
        """Payload bytes of all entries up to the last add confirmed."""
        return self._engine.length

    @property
    def metadata(self) -> LedgerMetadata:
        """The ledger's metadata: as closed, or as of the last change of its ensemble."""
        return self._engine.metadata

    @property
    def max_entry_bytes(self) -> int:
        """The largest entry that it takes now: less than the client's where a bookie of the ensemble takes less."""
        return self._engine.max_entry_bytes

    @property
    def ended(self) -> bool:
        """Whether the handle is closed, dead or abandoned: nothing can be appended."""
        return self._engine.ended

    def append_nowait(self, payload: Buffer) -> PendingAppend:
        """Send one entry off and return what to ask for its id.

        Raises:
            Busy: the client's byte budget is used up. After ``retry_after_ms`` about half of it should be free.
            EntryTooLarge: above ``max_entry_bytes``; the handle stays good.
            LedgerClosed, LedgerFenced, ...: the handle is closed or dead; nothing was sent.
            HandleClosed: the client is closed.
        """
        try:
            room = self._engine.take_room(payload)
        except LedgerClosed:
            self._line.loop.check_open()
            raise
        try:
            found = PendingAppend(self._line, payload if type(payload) is bytes else bytes(payload), room)
        except BaseException:
            # No memory for a copy, or Ctrl-C while it was made: nobody else gives the room back.
            with suppress(HandleClosed):  # the client is closed, and needs it no more
                self._line.loop.call_soon(self._line.budget.give, room)
            raise
        # Refused only when the client is closed: nobody needs its budget any more.
        self._line.hand_over.put(found)
        return found

    def append(self, payload: Buffer) -> int:
        """Append one entry; return its id once it is durable on an ack quorum; with deferred sync, once it is there.

        While bookies are merely busy, all of them, the wait has no end of its own; ``append_nowait`` and a timeout
        for its result has one. Giving up does not take the entry back.

        Raises:
            EntryTooLarge: above ``max_entry_bytes``; the handle stays good.
            RequestTimeout: no room in the client's budget within the add timeout; not sent.
            LedgerClosed, LedgerFenced, ...: the handle is closed or dead. The outcome tells whether the entry was not
                sent, or may have been written.
            HandleClosed: the client is closed.
        """
        self._line.loop.check_foreign()
        try:
            sent = self.append_nowait(payload)
        except Busy:
            return self._line.wait(lambda: self._engine.append(payload))
        return sent.result()

    def append_many(self, payloads: Sequence[Buffer]) -> range:
        """Append entries in order; return their ids once all are durable on an ack quorum.

        A quarter of the client's byte budget goes in at once. Of more than that, others may append to the ledger
        between two pieces: the range goes from the first entry to the last, and theirs are in it.

        Raises:
            As ``append``; some of the entries may then have been written.
        """
        return self._line.wait(lambda: self._engine.append_many(payloads))

    def with_chosen_ids(self) -> ChosenIdsWriter:
        """The same ledger, written under entry ids of the caller's choice: to be called instead of any append.

        Raises:
            InvalidArgument: something was appended already.
        """

        async def work() -> chosen_ids.ChosenIdsWriter:
            return self._engine.with_chosen_ids()

        return ChosenIdsWriter(self, self._line.wait(work), self._line.loop)

    def force(self) -> int:
        """Make durable what was appended with deferred sync; return the last add confirmed, which it has moved.

        It covers every append whose result was there before. Without deferred sync there is nothing to do.

        Raises:
            NotEnoughBookies: a bookie of the ensemble was away for the add timeout, or was started again since it
                acked. The handle is dead, and may still be closed, at the last add confirmed.
            LedgerFenced, ...: the handle is dead.
        """
        return self._line.wait(self._engine.force)

    def show(self) -> int:
        """Have readers see now what was appended by now, not only with the next entry or after a silence.

        Nothing of it depends on the metadata store. What is appended meanwhile is waited for, too. With deferred sync
        only what was forced is shown.

        Returns:
            The last entry that every reader sees who asks from now on, as enough bookies have been told; -1 for none.
            It is less than what was appended if bookies are away, or the handle is dead: ask again, or close.

        Raises:
            RequestTimeout: appends are still pending after the close timeout.
        """
        return self._line.wait(self._engine.show)

    def close(self) -> LedgerMetadata:
        """Wait for pending appends, settle the end of the ledger, return its final metadata.

        Closing twice returns the same. A handle that died still closes, at its last add confirmed,
        unless the ledger is in other hands. With deferred sync, what was appended is forced first.

        Raises:
            LedgerFenced: another client recovered the ledger.
            NotEnoughBookies: what was appended with deferred sync could not be forced; close again to leave it out.
            MetadataUnavailable, MetadataOutcomeUnknown: the end is not settled; close again.
            RequestTimeout: appends are still pending after the close timeout; close again.
            HandleClosed: the client is closed, and the ledger left to a recovery.
        """
        return self._line.wait(self._engine.close)

    def abandon(self) -> None:
        """Stop without closing the ledger: it stays open, for a recovery to end."""
        if not self._line.loop.closed:  # or else the client has done it
            self._line.loop.call(self._abandon)

    def _abandon(self) -> None:
        self._line.hand_over.flush()
        self._engine.abandon()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        end_block(self, failed=kind is not None)


class ChosenIdsWriter:
    """Writes a ledger under ids of the caller's choice: each of 0, 1, 2, ... once, in any order.

    ``append`` waits until all lower ids were given. So one thread alone has to give them in order; many threads
    together need not. What waits for lower ids, in all ledgers of the client, takes at most half of its byte budget.
    """

    def __init__(self, ledger: LedgerWriter, engine: chosen_ids.ChosenIdsWriter, loop: LoopThread) -> None:
        self._ledger = ledger
        self._engine = engine
        self._loop = loop

    @property
    def ledger(self) -> LedgerWriter:
        """The writer of the ledger. It tells what is confirmed; appending to it as well would mix up the ids."""
        return self._ledger

    @property
    def next_missing(self) -> int:
        """The lowest id that was not given yet."""
        return self._engine.next_missing

    def append(self, entry_id: int, payload: Buffer) -> int:
        """Write one entry under ``entry_id``; return the id once it, and every lower one, is confirmed.

        Giving up does not take the entry back, once it has found room.

        Raises:
            InvalidArgument: not an entry id, or it was given before; nothing was written.
            EntryTooLarge: above ``max_entry_bytes``; the handle stays good.
            Busy: too much waits for lower ids already; give those first.
            RequestTimeout: no room in the client's budget within the add timeout; not written.
            LedgerClosed, LedgerFenced, ...: as for ``LedgerWriter.append``.
        """
        return self._loop.run(self._engine.append(entry_id, payload))

    def close(self) -> LedgerMetadata:
        """Settle the end of the ledger before the first missing id; see ``LedgerWriter.close``.

        What still waits for lower ids fails with ``LedgerClosed`` and was not written.
        """
        return self._loop.run(self._engine.close())

    def abandon(self) -> None:
        """Stop without closing the ledger: it stays open, for a recovery to end."""
        self._ledger.abandon()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        end_block(self, failed=kind is not None)
