"""The ledgers that a client's writers have open, by bookie, independent of the connection.

A bookie knows that a ledger has a writer by its attachment, which ends with the connection. An idle writer would not
notice the loss. So a lost connection is reopened if ledgers are open at that bookie, and they are attached again.
Without such ledgers, the client reconnects on its next request.

The bookie's disk may have been replaced in between (another directory id). Writers that were attached before are then
notified, so that an idle writer, too, replaces the bookie.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple, Protocol

from tallybook.core.errors import TallybookError, is_defect
from tallybook.runtime.clock import Clock
from tallybook.runtime.concurrency.backoff import Backoff
from tallybook.runtime.concurrency.loop_slices import SlicedCallbacks
from tallybook.runtime.rng import Rng
from tallybook.runtime.tasks import Tasks
from tallybook.wire.messages import Attach

from .background import defect_of

LONGEST_PAUSE_SECONDS: Final = 10.0
"""Between two attempts to reconnect; a bookie waits several times longer before it reports that there is no writer."""


class LedgerAttacher(Protocol):
    """The part of a connection that attaches ledgers."""

    def attach(self, attach: Attach) -> None:
        """Have the bookie attach a ledger, unless it is attached."""

    def forget(self, ledger_id: int) -> None:
        """Have the bookie forget a ledger."""


class _AttachedLedger(NamedTuple):
    """A ledger that is open at a bookie."""

    attach: Attach
    directory_uuid: str
    on_replaced: Callable[[], None]


def _call_soon(call: Callable[[], None]) -> None:
    asyncio.get_running_loop().call_soon(call)


class LedgersAtBookie:
    """The ledgers that are open at one bookie, and the connection over which they are attached.

    Args:
        soon: calls in one of the next iterations of the event loop.
    """

    def __init__(self, soon: Callable[[Callable[[], None]], None] = _call_soon) -> None:
        self._soon = soon
        self._open: dict[int, _AttachedLedger] = {}
        self._carrier: LedgerAttacher | None = None

    def __len__(self) -> int:
        return len(self._open)

    @property
    def carried(self) -> bool:
        """Whether there is a connection over which they are attached."""
        return self._carrier is not None

    def attach(self, attach: Attach, directory_uuid: str = "", on_replaced: Callable[[], None] = lambda: None) -> None:
        """Note that a writer has a ledger open at the bookie, until ``forget``.

        Args:
            directory_uuid: the bookie's directory id as the writer knows it; empty: any.
            on_replaced: called once the bookie is found to have another directory id.
        """
        self._open[attach.ledger_id] = _AttachedLedger(attach, directory_uuid, on_replaced)
        if self._carrier is not None:
            self._carrier.attach(attach)

    def forget(self, ledger_id: int) -> None:
        """Note that nothing more will be added to a ledger at the bookie."""
        self._open.pop(ledger_id, None)
        if self._carrier is not None:
            self._carrier.forget(ledger_id)

    def connection_opened(self, carrier: LedgerAttacher, directory_uuid: str = "") -> None:
        """A connection was opened: attach all ledgers over it.

        Args:
            directory_uuid: the directory id of the bookie at the other end.
        """
        self._carrier = carrier
        for ledger_id, each in self._open.items():
            carrier.attach(each.attach)
            if each.directory_uuid not in ("", directory_uuid):
                self._open[ledger_id] = _AttachedLedger(each.attach, directory_uuid, each.on_replaced)
                # Called later: the connection is not in use yet, and there may be thousands of writers.
                self._soon(each.on_replaced)

    def connection_ended(self, carrier: LedgerAttacher) -> None:
        """A connection was lost or closed."""
        if self._carrier is carrier:
            self._carrier = None


class OpenLedgers:
    """The open ledgers of one client at all bookies.

    Args:
        connect: opens a connection to a bookie unless there is one; raises ``TallybookError``.
        first_pause_s: longest pause before the first attempt to reconnect.
    """

    def __init__(
        self,
        connect: Callable[[str], Awaitable[object]],
        clock: Clock,
        tasks: Tasks,
        rng: Rng,
        *,
        first_pause_s: float,
    ) -> None:
        self._connect = connect
        self._clock = clock
        self._tasks = tasks
        self._rng = rng
        self._first_pause_s = first_pause_s
        self._slices = SlicedCallbacks(clock)
        """Spreads notifications of writers over event loop iterations."""
        self._at: dict[str, LedgersAtBookie] = {}
        self._pauses: dict[str, tuple[Backoff, float]] = {}
        """Backoff of each lost bookie, and when it was last connected."""
        self._returning: dict[str, asyncio.Task[None]] = {}
        self._closed = False

    def at(self, bookie_id: str) -> LedgersAtBookie:
        """The ledgers open at one bookie."""
        return self._at.setdefault(bookie_id, LedgersAtBookie(self._slices.soon))

    def lost(self, bookie_id: str) -> None:
        """A connection was lost: open another one if ledgers are open at the bookie."""
        if not self._at.get(bookie_id) or bookie_id in self._returning or self._closed or self._tasks.closing:
            return
        task = self._tasks.spawn(self._return_to(bookie_id), name=f"return to {bookie_id}", detached=True)
        self._returning[bookie_id] = task
        task.add_done_callback(defect_of)

    async def close(self) -> None:
        """Stop reconnecting."""
        self._closed = True
        returning = list(self._returning.values())
        for task in returning:
            task.cancel()
        await asyncio.gather(*returning, return_exceptions=True)

    async def _return_to(self, bookie_id: str) -> None:
        pauses, ledgers = self._pauses_of(bookie_id), self._at[bookie_id]
        try:
            # A connection may be lost again before it is returned here.
            while ledgers and not ledgers.carried:
                await self._clock.sleep(pauses.next_s())
                try:
                    await self._connect(bookie_id)
                except TallybookError as error:
                    if is_defect(error):
                        raise
                    # Bookie or metadata unavailable, or the client is refused: retry while ledgers are open there.
                    continue
                self._pauses[bookie_id] = pauses, self._clock.monotonic()
        finally:
            del self._returning[bookie_id]

    def _pauses_of(self, bookie_id: str) -> Backoff:
        """The backoff continues if the bookie was connected recently: it may accept connections and drop them."""
        known = self._pauses.get(bookie_id)
        if known is not None and self._clock.monotonic() - known[1] < LONGEST_PAUSE_SECONDS:
            return known[0]
        return Backoff(
            self._clock,
            self._rng.fork(bookie_id),
            first_s=self._first_pause_s,
            longest_s=max(self._first_pause_s, LONGEST_PAUSE_SECONDS),
        )
