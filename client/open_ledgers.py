"""Ledgers that the writers of a client have open, bookie by bookie, whichever connection leads there.

A bookie knows that a ledger has a writer by its attachment, which ends with the connection. A writer that adds nothing
would not notice: so a connection that is lost is opened again for the ledgers that are open there, and these are
attached anew. A client without such ledgers reconnects when it next asks for something.

Such a connection may lead to another directory: the bookie's disk was replaced. Writers that were attached to the one
before are told, so that an idle one, too, has another bookie take the place.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple, Protocol

from tallybook.core.errors import TallybookError, is_defect
from tallybook.runtime.backoff import Backoff
from tallybook.runtime.clock import Clock
from tallybook.runtime.grpc_messages import Attach
from tallybook.runtime.rng import Rng
from tallybook.runtime.slices import Slices
from tallybook.runtime.tasks import Tasks

from .background import defect_of

LONGEST_PAUSE_SECONDS: Final = 10.0
"""Between two tries to reach a bookie again; a bookie waits several times longer before it says there is no writer."""


class Attaching(Protocol):
    """A connection, as far as it attaches ledgers."""

    def attach(self, attach: Attach) -> None:
        """Have the bookie attach a ledger, unless it has."""

    def forget(self, ledger_id: int) -> None:
        """Have the bookie forget a ledger."""


class _Open(NamedTuple):
    """A ledger that is open at a bookie."""

    attach: Attach
    directory_uuid: str
    on_replaced: Callable[[], None]


def _at_once(call: Callable[[], None]) -> None:
    asyncio.get_running_loop().call_soon(call)


class LedgersAtBookie:
    """Ledgers that are open at one bookie, and the connection that has them attached.

    Args:
        soon: calls in one of the next iterations of the event loop.
    """

    def __init__(self, soon: Callable[[Callable[[], None]], None] = _at_once) -> None:
        self._soon = soon
        self._open: dict[int, _Open] = {}
        self._carrier: Attaching | None = None

    def __len__(self) -> int:
        return len(self._open)

    @property
    def carried(self) -> bool:
        """Whether a connection is there that has them attached."""
        return self._carrier is not None

    def attach(self, attach: Attach, directory_uuid: str = "", on_replaced: Callable[[], None] = lambda: None) -> None:
        """A writer has a ledger open there, until ``forget``.

        Args:
            directory_uuid: of the bookie as the writer knows it; empty: any will do.
            on_replaced: called once it is found to have another one.
        """
        self._open[attach.ledger_id] = _Open(attach, directory_uuid, on_replaced)
        if self._carrier is not None:
            self._carrier.attach(attach)

    def forget(self, ledger_id: int) -> None:
        """Nothing is to be added to a ledger there any more."""
        self._open.pop(ledger_id, None)
        if self._carrier is not None:
            self._carrier.forget(ledger_id)

    def carried_by(self, carrier: Attaching, directory_uuid: str = "") -> None:
        """A new connection is there: attach all of them over it.

        Args:
            directory_uuid: of the bookie that it leads to.
        """
        self._carrier = carrier
        for ledger_id, each in self._open.items():
            carrier.attach(each.attach)
            if each.directory_uuid not in ("", directory_uuid):
                self._open[ledger_id] = _Open(each.attach, directory_uuid, each.on_replaced)
                # The connection is being made, and not in use yet; and there may be thousands of writers.
                self._soon(each.on_replaced)

    def left_by(self, carrier: Attaching) -> None:
        """A connection was lost or closed."""
        if self._carrier is carrier:
            self._carrier = None


class OpenLedgers:
    """Open ledgers of one client at all bookies.

    Args:
        connect: opens a connection to a bookie unless there is one; raises ``TallybookError``.
        first_pause_s: longest pause before the first try to reach a bookie again.
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
        self._slices = Slices(clock)
        """Of the event loop's time, for telling writers."""
        self._at: dict[str, LedgersAtBookie] = {}
        self._pauses: dict[str, tuple[Backoff, float]] = {}
        """Of bookies that were lost, and when they were reached last."""
        self._returning: dict[str, asyncio.Task[None]] = {}
        self._closed = False

    def at(self, bookie_id: str) -> LedgersAtBookie:
        """Those at one bookie."""
        return self._at.setdefault(bookie_id, LedgersAtBookie(self._slices.soon))

    def lost(self, bookie_id: str) -> None:
        """A connection was lost: open another one if ledgers are open there."""
        if not self._at.get(bookie_id) or bookie_id in self._returning or self._closed or self._tasks.closing:
            return
        task = self._tasks.spawn(self._return_to(bookie_id), name=f"return to {bookie_id}", apart=True)
        self._returning[bookie_id] = task
        task.add_done_callback(defect_of)

    async def close(self) -> None:
        """Reach no bookie again."""
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
                    # It is away, or its metadata are, or it refuses this client: tried again as long as it matters.
                    continue
                self._pauses[bookie_id] = pauses, self._clock.monotonic()
        finally:
            del self._returning[bookie_id]

    def _pauses_of(self, bookie_id: str) -> Backoff:
        """Longer ones where the bookie was reached just before: it may accept connections and drop them."""
        known = self._pauses.get(bookie_id)
        if known is not None and self._clock.monotonic() - known[1] < LONGEST_PAUSE_SECONDS:
            return known[0]
        return Backoff(
            self._rng.fork(bookie_id),
            first_s=self._first_pause_s,
            longest_s=max(self._first_pause_s, LONGEST_PAUSE_SECONDS),
        )
