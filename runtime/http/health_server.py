"""Health and metrics of a process that nobody calls for anything else."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from .clock import Clock
from .http import HttpServer, Listening
from .metrics import Metrics
from .security import security_of_server
from .tasks import Tasks


@asynccontextmanager
async def watchable(
    metrics: Metrics, listen: str | Listening, security: str, clock: Clock, tasks: Tasks
) -> AsyncIterator[str]:
    """Serve them until the block is left; the address is what it yields.

    Args:
        listen: host and port, of which 0 is any free one; or a socket that listens already.
        security: the directory that says who may look; empty: everybody.

    Raises:
        InvalidConfig: the address cannot be bound, or the directory says what cannot be.
    """
    http = HttpServer(metrics, lambda: None, security_of_server(security, clock, tasks, metrics))
    await http.start(listen, tasks)
    try:
        yield http.address
    finally:
        await http.close()
