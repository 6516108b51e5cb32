"""A stage and builders for regression tests of streams."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tallybook.metadata.store import MetadataStore
from tallybook.sim.deterministic import World
from tallybook.stream import Position, StreamStore

from ..simulated import Parts, memory_cluster, on_stage
from ..support.faulty_metadata import FaultyMetadataStore, MetadataFault
from ..support.ledger_scenario import SMALL, lines
from ..support.memory_cluster import MemoryCluster


@asynccontextmanager
async def two_stream_stores(world: World) -> AsyncIterator[Parts]:
    """``streams`` with its ``client`` of a ``cluster``, and ``others`` of another client."""
    async with (
        memory_cluster(world) as parts,
        StreamStore(parts["client"]) as streams,
        parts["cluster"].client(SMALL) as another,
        StreamStore(another) as others,
    ):
        yield parts | {"streams": streams, "others": others}


on_streams = on_stage(two_stream_stores)


async def filled(streams: StreamStore, count: int = 10, **policy: object) -> list[Position]:
    """A stream ``s`` of that many records."""
    await streams.create("s", **policy)
    async with await streams.writer("s") as writer:
        return [await writer.append(line) for line in lines(count)]


class Outage:
    """While it lasts, the metadata store does not answer."""

    def __init__(self, cluster: MemoryCluster) -> None:
        self.lasts = False
        self._cluster = cluster

    def next(self, _operation: str) -> MetadataFault | None:
        return MetadataFault.UNAVAILABLE if self.lasts else None

    def __call__(self, store: MetadataStore) -> FaultyMetadataStore:
        return FaultyMetadataStore(store, self, self._cluster.world.clock)


@asynccontextmanager
async def process(cluster: MemoryCluster, name: str) -> AsyncIterator[tuple[StreamStore, Outage]]:
    """A process of its own, whose metadata store can be taken away."""
    outage = Outage(cluster)
    async with cluster.client(SMALL, seen_through=outage) as client, StreamStore(client, name=name) as streams:
        yield streams, outage
