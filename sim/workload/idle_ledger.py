"""Checks that a repair does not close a ledger that its writer holds open (L11).

After healing, a writer has a ledger with a missed range in its last fragment, as after a short absence of a member. The
repair can fix that only after the ledger is closed, but it may close only ledgers without a writer.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from tallybook.metadata.ledger.model import LedgerState, MissedRange, record_missed
from tallybook.metadata.ledger_update import LedgerUpdater

from ..deterministic import SimClock
from .ledgers import ClientProcess
from .write_modes import WorkloadWriter

if TYPE_CHECKING:
    from ..run import Universe

MIN_OPEN_SECONDS: Final = 8.0
"""How long the writer keeps the ledger open: longer than the grace period of any run plus a few auditor passes."""


class IdleLedger:
    """An open ledger with an idle writer."""

    def __init__(self, universe: Universe, holder: ClientProcess, writer: WorkloadWriter) -> None:
        self._universe = universe
        self._holder = holder
        self._writer = writer
        self._until = universe.world.clock.monotonic() + MIN_OPEN_SECONDS

    @property
    def is_due(self) -> bool:
        """Whether the writer has kept it open for long enough."""
        return self._universe.world.clock.monotonic() >= self._until

    async def close(self) -> None:
        """Check that the ledger is still open and not fenced (L11), then close it."""
        known = self._universe.oracle.ledgers[self._writer.id]
        open_still = known.metadata.state is LedgerState.OPEN and not known.fenced_by
        detail = f"the repair has closed or fenced ledger {self._writer.id}, whose writer is alive"
        self._universe.oracle.expect(open_still, "L11", detail)
        await self._universe.workload.close_one(self._holder, self._writer)
        self._universe.oracle.mark("repair: leaves a ledger to its writer")


async def open_idle_ledger(universe: Universe, holder: ClientProcess) -> IdleLedger | None:
    """Write a ledger, record all of it as missed by one member, and keep it open."""
    config, oracle = universe.config, universe.oracle
    if len(universe.nodes) < 3 or config.passwords or config.hmac:
        return None  # a repair cannot close a ledger with a password
    writer = await universe.workload.begin(holder, ensemble=3, write_quorum=3, ack_quorum=2, stripe_entries=1)
    if writer is None:
        return None
    last = universe.history.highest_confirmed(writer.id)
    member = oracle.ledgers[writer.id].metadata.last_fragment.bookies[0]
    store = universe.metadata.shared.client().store
    updater = LedgerUpdater(store, SimClock(), universe.world.rng.fork("held ledger"))
    await updater.update(writer.id, partial(record_missed, missed=[MissedRange(member, 0, last)]))
    return IdleLedger(universe, holder, writer)
