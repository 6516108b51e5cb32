"""The real world of a client: a metadata store by its URI, gRPC to the bookies, this machine's clock and randomness."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from tallybook.core.access import Permission
from tallybook.core.config import ClientSettings
from tallybook.metadata.guarded import guarded
from tallybook.metadata.uri import open_metadata
from tallybook.runtime.clock import RealClock
from tallybook.runtime.grpc_transport import GrpcTransport
from tallybook.runtime.open_tracing import open_tracer
from tallybook.runtime.rng import SystemRng
from tallybook.runtime.tasks import Tasks

if TYPE_CHECKING:
    from tallybook.archive.objects.credentials import StoreCredentials
    from tallybook.runtime.security import Security

from .authorization import Said, WriteGuard, authorize
from .background import client_tasks, defect_of
from .bookie_port import BookieConnection
from .cluster_archive import ClusterArchive
from .connections import BookieConnections
from .ports import ClientWorld


async def open_world(uri: str, settings: ClientSettings, *, credentials: StoreCredentials | None = None) -> ClientWorld:
    """Reach the cluster whose metadata is at ``uri``. Bookies are connected to when they are first needed.

    Args:
        credentials: of the archive's object store, in place of those of the environment.

    Raises:
        InvalidConfig: the URI names no metadata store, the security directory is no good, or traces are wanted and
            their library is not installed.
        NoSuchCluster: there is none at ``uri``.
        MetadataUnavailable: the store does not answer within the metadata timeout.
    """
    clock, rng = RealClock(), SystemRng()
    security = _security(settings)
    metadata = await open_metadata(
        uri, clock=clock, rng=rng, timeout_seconds=settings.metadata_timeout_ms / 1000, security=settings.security
    )
    try:
        cluster_id = await metadata.store.cluster_id()
        tracer = open_tracer(settings.traces, settings.service, security=settings.security)
    except BaseException:
        await metadata.close()
        raise
    tasks = client_tasks("connections")
    if security is not None:
        tasks.spawn(security.keep_fresh(clock), name="security").add_done_callback(defect_of)
    connections = BookieConnections(
        GrpcTransport(security=security),
        metadata.membership,
        settings,
        clock,
        tasks,
        cluster_id=cluster_id,
        client_id=f"pid {os.getpid()}",
        rng=rng.fork("connections"),
    )
    owned = _OwnedConnections(connections, tasks)
    standing, guard = None if security is None else security.standing, None
    if standing is not None and not standing.by_rules and not standing.may_not(Permission.WRITE):

        async def ask() -> Said:
            return await authorize(world, Permission.WRITE)

        by_role = standing.permissions is not None
        guard = WriteGuard(standing.name or "this certificate", clock, tasks, ask, by_role=by_role)
        metadata = guarded(metadata, guard)
    archive = ClusterArchive(metadata.store, clock, rng, settings, credentials=credentials)
    world = ClientWorld(
        metadata.store, metadata.membership, owned, clock, rng, archive, connections.load, metadata.load, tracer, guard
    )
    return world


def _security(settings: ClientSettings) -> Security | None:
    if not settings.security:
        return None
    # What checks certificates takes long to load.
    from tallybook.runtime.security import open_security  # noqa: PLC0415

    return open_security(settings.security, serves=False)


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
