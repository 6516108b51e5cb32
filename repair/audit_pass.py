"""One round of an auditor, by whoever wants it now, and the wait until what it handed out is done.

Such an auditor has seen nobody leave. So it takes the word of the one that runs all the time for who is lost, and that
of whoever calls it. A word of long ago counts for nothing: who was lost then may have come back, and be away for a
moment now.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from tallybook.client.client import Client
from tallybook.core.config import RepairSettings
from tallybook.core.counted import counted
from tallybook.core.errors import RequestTimeout

from .auditor import Audit
from .service import STALE_SECONDS, RepairService, age_of, repair_status
from .tasks import PREFIX

LOOK_SECONDS: Final = 0.5


class OneRound:
    """An auditor for a single round.

    Args:
        lost: bookies that count as lost besides those that the standing auditor calls so.
    """

    def __init__(self, client: Client, settings: RepairSettings, lost: Collection[str] = ()) -> None:
        self._world = client.world
        self._auditor = RepairService(client, settings).auditor
        self._lost = frozenset(lost)
        self.tasks: frozenset[str] = frozenset()
        """Names of the tasks that are not done, as far as is known."""

    @property
    def published(self) -> int:
        """Tasks that were handed out."""
        return self._auditor.published

    async def audit(self, *, hand_out: bool = True) -> Audit:
        """Look over everything, and hand out what there is to do.

        Raises:
            As ``Auditor.round``.
        """
        status = await repair_status(self._world.store) or {}
        age_s = age_of(status, self._world.clock)
        known = status.get("lost") if age_s is not None and age_s < STALE_SECONDS else None
        lost = self._lost | frozenset(known if isinstance(known, list) else ())
        found = await self._auditor.round(everything=True, lost=lost, hand_out=hand_out)
        self.tasks = await self._listed()
        return found

    async def until_done(self, timeout_s: float) -> None:
        """Return when the tasks that there were after the round are done, or dropped for another time.

        Raises:
            RequestTimeout: they are not; they go on.
            MetadataUnavailable: the store does not answer.
        """
        clock = self._world.clock
        deadline = clock.monotonic() + timeout_s
        while self.tasks:
            if clock.monotonic() >= deadline:
                tasks = counted(len(self.tasks), "task of the repair is", "tasks of the repair are")
                raise RequestTimeout(f"after {timeout_s:.0f} s {tasks} not done")
            await clock.sleep(LOOK_SECONDS)
            self.tasks &= await self._listed()

    async def _listed(self) -> frozenset[str]:
        found: set[str] = set()
        after: str | None = ""
        while after is not None:
            page = await self._world.store.list_records(PREFIX, after)
            found.update(page.names)
            after = page.next_after()
        return frozenset(found)
