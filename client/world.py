"""The real world of a client: a metadata store by its URI, gRPC to the bookies, this machine's clock and randomness."""

from __future__ import annotations

import os

from tallybook.core.config import ClientSettings
from tallybook.metadata.uri import open_metadata
from tallybook.runtime.clock import RealClock
from tallybook.runtime.grpc_transport import GrpcTransport
from tallybook.runtime.rng import SystemRng
from tallybook.runtime.tasks import Tasks

from .background import client_tasks
from .bookie_port import BookieConnection
from .cluster_archive import ClusterArchive
from .connections import BookieConnections
from .ports import ClientWorld


async def open_world(uri: str, settings: ClientSettings) -> ClientWorld:
    """Reach the cluster whose metadata is at ``uri``. Bookies are connected to when they are first needed.

    Raises:
        InvalidConfig: the URI names no metadata store.
        MetadataUnavailable: the store does not answer within the metadata timeout.
    """
    clock, rng = RealClock(), SystemRng()
    metadata = await open_metadata(uri, clock=clock, rng=rng, timeout_seconds=settings.metadata_timeout_ms / 1000)
    try:
        cluster_id = await metadata.store.cluster_id()
    except BaseException:
        await metadata.close()
        raise
    tasks = client_tasks("connections")
    connections = BookieConnections(
        GrpcTransport(),
        metadata.membership,
        settings,
        clock,
        tasks,
        cluster_id=cluster_id,
        client_id=f"pid {os.getpid()}",
    )
    owned = _OwnedConnections(connections, tasks)
    archive = ClusterArchive(metadata.store, clock, rng, settings)
    return ClientWorld(metadata.store, metadata.membership, owned, clock, rng, archive)


class _OwnedConnections:
    """The connections of one world; closing them ends their background work too."""

    def __init__(self, connections: BookieConnections, tasks: Tasks) -> None:
        self._connections = connections
        self._tasks = tasks

    async def get(self, bookie_id: str) -> BookieConnection:
        """A working connection; see the port."""
        return await self._connections.get(bookie_id)

    async def close(self) -> None:
        """Close every connection."""
        await self._connections.close()
        await self._tasks.close()
