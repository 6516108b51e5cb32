"""Opens the real ``ClientWorld``: metadata store by URI, gRPC to bookies, system clock and randomness."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from tallybook.core.access import Permission
from tallybook.core.settings import ClientSettings
from tallybook.metadata.guarded_store import guarded
from tallybook.metadata.uri import open_metadata
from tallybook.runtime.clock import RealClock
from tallybook.runtime.extras import NeedsExtra
from tallybook.runtime.rng import SystemRng
from tallybook.runtime.tasks import Tasks
from tallybook.runtime.tcp.transport import TcpTransport
from tallybook.runtime.tracing.opening import open_tracer
from tallybook.wire.bookie_transport import bookie_transport

if TYPE_CHECKING:
    from tallybook.archive.objects.credentials import StoreCredentials
    from tallybook.runtime.security.process_security import Security

from .authorization import AuthorizationAnswer, WriteGuard, authorize
from .background import client_tasks, defect_of
from .cluster_archive import ClusterArchive
from .connection.pool import BookieConnections
from .connection.port import BookieConnection
from .connection.tcp_routes import TcpRoutes
from .ports import ClientWorld


async def open_world(uri: str, settings: ClientSettings, *, credentials: StoreCredentials | None = None) -> ClientWorld:
    """Open the cluster whose metadata is at ``uri``. Bookies are connected on first use.

    Args:
        credentials: for the archive's object store, in place of those of the environment.

    Raises:
        InvalidConfig: the URI names no metadata store, the security directory is invalid, or tracing is on and its
            library is not installed.
        NoSuchCluster: there is no cluster at ``uri``.
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
        tasks.spawn(security.reload_periodically(clock), name="security").add_done_callback(defect_of)
    connections = BookieConnections(
        bookie_transport(security=security),
        metadata.membership,
        settings,
        clock,
        tasks,
        cluster_id=cluster_id,
        client_id=f"pid {os.getpid()}",
        rng=rng.fork("connections"),
        tcp=TcpRoutes(TcpTransport((), security=security), clock),
    )
    owned = _OwnedConnections(connections, tasks)
    standing, guard = None if security is None else security.standing, None
    if standing is not None and not standing.by_rules and not standing.may_not(Permission.WRITE):

        async def ask() -> AuthorizationAnswer:
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
    # Loading the certificate library takes long.
    with NeedsExtra("a security directory"):
        from tallybook.runtime.security.process_security import open_security  # noqa: PLC0415

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
