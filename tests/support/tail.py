"""A background reader that tails a ledger with its own client, whose metadata store can be cut off."""

from __future__ import annotations

import asyncio

from tallybook.client.background import client_tasks
from tallybook.metadata.store import LedgerWatch, MetadataStore

from .faulty_metadata import FaultyMetadataStore, MetadataFault
from .ledger_scenario import SMALL, eventually
from .memory_cluster import MemoryCluster


class MetadataOutage:
    """Fault source that makes a metadata store unavailable while ``on``; counts reads of ledgers."""

    def __init__(self) -> None:
        self.on = False
        self.reads = 0

    def next(self, operation: str) -> MetadataFault | None:
        """The fault of this operation; see ``MetadataFaultSource``."""
        self.reads += operation == "read_ledger"
        return MetadataFault.UNAVAILABLE if self.on and operation != "changed" else None


class _DeafStore(FaultyMetadataStore):
    """A store whose watches never fire, as after an unnoticed session loss."""

    def watch_ledger(self, ledger_id: int) -> LedgerWatch:
        """A watch that never fires."""
        return _DeafWatch()


class _DeafWatch:
    async def changed(self) -> None:
        await asyncio.Event().wait()

    async def close(self) -> None:
        pass


class BackgroundTail:
    """Tails a ledger from its first entry.

    Args:
        deaf: whether its metadata watches never fire.
    """

    def __init__(self, cluster: MemoryCluster, ledger_id: int, *, deaf: bool = False) -> None:
        self._cluster = cluster
        self._ledger_id = ledger_id
        self._kind = _DeafStore if deaf else FaultyMetadataStore
        self.outage = MetadataOutage()
        self.seen: list[bytes] = []
        self.task = client_tasks("tail").spawn(self._follow(), name="follow")

    async def _follow(self) -> None:
        def through(store: MetadataStore) -> MetadataStore:
            return self._kind(store, self.outage, self._cluster.world.clock)

        async with self._cluster.client(SMALL, seen_through=through) as client:
            reader = await client.open_ledger(self._ledger_id, recover=False)
            async for entry in reader.tail():
                self.seen.append(entry.payload)

    async def until(self, payloads: list[bytes], seconds: float = 60) -> None:
        """Wait until exactly these payloads were read; an error of the tail is raised here."""
        await eventually(lambda: self.seen == payloads or self.task.done(), self._cluster, seconds)
        if self.seen != payloads:
            await self.task

    async def stop(self) -> None:
        """Cancel it."""
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
