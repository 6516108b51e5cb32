"""A single auditor pass on request (``cluster audit``), and the wait until its tasks are done.

This auditor has not watched the membership, so it does not know how long bookies have been away. It takes the lost
bookies from the standing auditor's status and from the caller. It ignores an old status: a bookie that was lost then
may have come back since, and be away only for a moment now.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from tallybook.client.client import Client
from tallybook.core.errors import RequestTimeout
from tallybook.core.quantities import counted
from tallybook.core.settings import RepairSettings

from .auditor import AuditReport
from .service import STALE_SECONDS, RepairService, age_of, repair_status
from .tasks import PREFIX

POLL_SECONDS: Final = 0.5


class SingleAudit:
    """An auditor for a single pass.

    Args:
        lost: bookies that count as lost, besides those in the standing auditor's status.
    """

    def __init__(self, client: Client, settings: RepairSettings, lost: Collection[str] = ()) -> None:
        self._world = client.world
        self._auditor = RepairService(client, settings).auditor
        self._lost = frozenset(lost)
        self.tasks: frozenset[str] = frozenset()
        """Names of the tasks that are not done, as far as is known."""

    @property
    def published(self) -> int:
        """Tasks that were published."""
        return self._auditor.published

    async def audit(self, *, publish: bool = True) -> AuditReport:
        """Walk over all ledgers and publish tasks, or with ``publish`` false only report.

        Raises:
            As ``Auditor.run_pass``.
        """
        status = await repair_status(self._world.store) or {}
        age_s = age_of(status, self._world.clock)
        known = status.get("lost") if age_s is not None and age_s < STALE_SECONDS else None
        lost = self._lost | frozenset(known if isinstance(known, list) else ())
        found = await self._auditor.run_pass(full_walk=True, lost=lost, publish=publish)
        self.tasks = await self._listed()
        return found

    async def wait_until_done(self, timeout_s: float) -> None:
        """Wait until the tasks that existed after the pass are done or dropped.

        Raises:
            RequestTimeout: some are not done. Replicators go on with them.
            MetadataUnavailable: the store does not answer.
        """
        clock = self._world.clock
        deadline = clock.monotonic() + timeout_s
        while self.tasks:
            if clock.monotonic() >= deadline:
                tasks = counted(len(self.tasks), "task of the repair is", "tasks of the repair are")
                raise RequestTimeout(f"after {timeout_s:.0f} s {tasks} not finished")
            await clock.sleep(POLL_SECONDS)
            self.tasks &= await self._listed()

    async def _listed(self) -> frozenset[str]:
        found: set[str] = set()
        after: str | None = ""
        while after is not None:
            page = await self._world.store.list_records(PREFIX, after)
            found.update(page.names)
            after = page.next_after()
        return frozenset(found)
