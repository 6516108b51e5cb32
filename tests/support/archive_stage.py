"""An object store and an offloader beside a small cluster, for short tests.

For example:

    async with ArchiveStage(cluster) as stage:
        await stage.archive(ledger.id)
        stage.client     # reads from the archive what bookies do not have
"""

from __future__ import annotations

from types import TracebackType
from typing import Self

from tallybook.archive.objects.memory import MemoryObjectStore
from tallybook.archive.objects.port import ObjectStore
from tallybook.archive.reader import ArchiveReader
from tallybook.client.client import Client
from tallybook.core.errors import InvariantViolation
from tallybook.core.settings import OffloadSettings
from tallybook.metadata.ledger.archived import release_copies
from tallybook.metadata.ledger_update import LedgerUpdater
from tallybook.offload.mover import Moved, Mover
from tallybook.offload.policy import PlannedObject, planned_of
from tallybook.runtime.tasks import InlineWorkers, Tasks

from .ledger_scenario import SMALL
from .memory_cluster import MemoryCluster

TINY = OffloadSettings(
    row_group_bytes=4096,
    own_object_bytes=20_000,
    set_object_bytes=50_000,
    set_object_ledgers=5,
    deletion_lag_s=60,
    attempt_ttl_s=100,
    orphan_delay_s=20,
)
"""Offload settings with tiny limits."""


class ArchiveStage:
    """An object store, a client that reads from it, and the steps of an offloader.

    Args:
        store: instead of one in memory; the caller closes it.
    """

    def __init__(
        self, cluster: MemoryCluster, settings: OffloadSettings = TINY, *, store: ObjectStore | None = None
    ) -> None:
        world = cluster.world
        self.cluster = cluster
        self.settings = settings
        self.store: ObjectStore = store or MemoryObjectStore(world.clock, name="stage")
        self._movers = 0
        self._tasks = Tasks("archive", self._died)
        self.reader = ArchiveReader(self.store, InlineWorkers(), self._tasks)
        self.client = cluster.client(SMALL, archive=self.reader)

    async def __aenter__(self) -> Self:
        await self.client.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.client.close()
        await self._tasks.close()

    def mover(self, store: ObjectStore | None = None, client: Client | None = None) -> Mover:
        """A new mover; ``store`` and ``client`` default to those of the stage."""
        world = self.cluster.world
        self._movers += 1
        rng = world.rng.fork(f"mover-{self._movers}")
        updater = LedgerUpdater(self.cluster.metadata.client().store, world.clock, rng.fork("updater"))
        return Mover(
            client or self.client,
            updater,
            store or self.store,
            InlineWorkers(),
            self.settings,
            world.clock,
            rng,
        )

    async def planned(self, *ledger_ids: int) -> PlannedObject:
        """Plan of one object with these ledgers."""
        ledgers = [await self.client.ledger_metadata(ledger_id) for ledger_id in sorted(ledger_ids)]
        return planned_of(ledgers)

    async def archive(self, *ledger_ids: int) -> Moved:
        """Archive these ledgers in one object."""
        return await self.mover().move(await self.planned(*ledger_ids))

    async def release(self, ledger_id: int) -> None:
        """Release the copies of an archived ledger, and drop them at all bookies."""
        metadata = await self.client.ledger_metadata(ledger_id)
        if metadata.archived is None:
            raise InvariantViolation(f"ledger {ledger_id} is not archived")
        object_id = metadata.archived.object_id
        await self.cluster.edit(ledger_id, lambda current: release_copies(current, object_id))
        for bookie in self.cluster.bookies.values():
            bookie.delete(ledger_id)

    def _died(self, name: str, error: BaseException) -> None:
        raise InvariantViolation(f"task {name} of the archive died: {error!r}") from error
