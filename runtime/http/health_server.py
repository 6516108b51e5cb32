"""HTTP server of health and metrics only, for processes without another port."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from ..clock import Clock
from ..listening import Listening
from ..metrics.registry import Metrics
from ..security.server_security import security_of_server
from ..tasks import Tasks
from .server import HttpServer


@asynccontextmanager
async def serve_health(
    metrics: Metrics, listen: str | Listening, security: str, clock: Clock, tasks: Tasks
) -> AsyncIterator[str]:
    """Serve health and metrics until the block is left; yields the address.

    Args:
        listen: host and port (0: any free port), or a listening socket.
        security: the security directory; empty: access is open to all.

    Raises:
        InvalidConfig: the address cannot be bound, or the security directory is invalid.
    """
    http = HttpServer(metrics, lambda: None, security_of_server(security, clock, tasks, metrics))
    await http.start(listen, tasks)
    try:
        yield http.address
    finally:
        await http.close()
