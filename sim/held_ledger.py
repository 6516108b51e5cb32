"""A ledger that its writer keeps open while a repair works: the repair must not end it (L11).

After healing, a writer has a ledger of which a member is said to have missed entries where the ledger grows, as
after a short absence. The repair can mend that only once the ledger is closed, and may close only what no writer has.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from tallybook.metadata.model import LedgerState, MissedRange, record_missed
from tallybook.metadata.update import LedgerUpdater
from tallybook.runtime.deterministic import SimClock

from .pens import Pen
from .workload import ClientProcess

if TYPE_CHECKING:
    from .run import Universe

LEAST_SECONDS: Final = 8.0
"""How long a writer holds its ledger: longer than the grace period of every run, and a few walks of an auditor."""


class HeldLedger:
    """A ledger and its writer, which is idle."""

    def __init__(self, universe: Universe, holder: ClientProcess, pen: Pen) -> None:
        self._universe = universe
        self._holder = holder
        self._pen = pen
        self._until = universe.world.clock.monotonic() + LEAST_SECONDS

    @property
    def is_due(self) -> bool:
        """Whether the writer has held it for long enough."""
        return self._universe.world.clock.monotonic() >= self._until

    async def close(self) -> None:
        """It is still its writer's, which closes it now."""
        known = self._universe.god.ledgers[self._pen.id]
        open_still = known.metadata.state is LedgerState.OPEN and not known.fenced_by
        detail = f"the repair has ended ledger {self._pen.id}, whose writer is there"
        self._universe.god.expect(open_still, "L11", detail)
        await self._universe.workload.close_one(self._holder, self._pen)
        self._universe.god.mark("repair: leaves a ledger to its writer")


async def hold(universe: Universe, holder: ClientProcess) -> HeldLedger | None:
    """Write a ledger of which a member is said to have missed all, and keep it open."""
    swarm, god = universe.swarm, universe.god
    if len(universe.nodes) < 3 or swarm.passwords or swarm.hmac:
        return None  # nobody but its users ends a ledger with a password
    pen = await universe.workload.begin(holder, ensemble=3, write_quorum=3, ack_quorum=2, stripe_entries=1)
    if pen is None:
        return None
    last = universe.history.highest_confirmed(pen.id)
    member = god.ledgers[pen.id].metadata.last_fragment.bookies[0]
    store = universe.metadata.shared.client().store
    updater = LedgerUpdater(store, SimClock(), universe.world.rng.fork("held ledger"))
    await updater.update(pen.id, partial(record_missed, missed=[MissedRange(member, 0, last)]))
    return HeldLedger(universe, holder, pen)
