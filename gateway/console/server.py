"""The console process: wiring, start and clean stop. It has no state on disk."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from importlib.resources import files
from typing import Final

from tallybook.client.client import Client
from tallybook.client.metrics import show_client
from tallybook.core.errors import InvalidConfig
from tallybook.core.settings import ConsoleSettings
from tallybook.repair.diagnosis.sampling import ANSWER_SECONDS, MAX_CONCURRENCY, ClusterSampler
from tallybook.runtime.clock import RealClock
from tallybook.runtime.http.client import HttpClient
from tallybook.runtime.http.endpoints import HttpApi, StaticPage
from tallybook.runtime.http.server import HttpServer
from tallybook.runtime.listening import is_loopback
from tallybook.runtime.logging import logger
from tallybook.runtime.metrics.registry import Metrics
from tallybook.runtime.security.server_security import security_of_server
from tallybook.runtime.tasks import Tasks, ThreadWorkers, raise_defect

from ..streams.stores import StreamStores
from .audit_pass import AuditPassRunner
from .bookies import ConsoleBookieEndpoints
from .cluster_view import ClusterView
from .ledgers import ConsoleLedgerEndpoints
from .maintenance import ConsoleMaintenanceEndpoints
from .routes import endpoints
from .streams import ConsoleStreamEndpoints

_log = logger("console")

_TYPES: Final = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
FRONT: Final = "index.html"


@asynccontextmanager
async def serving(client: Client, settings: ConsoleSettings) -> AsyncIterator[str]:
    """Serve the console until the block is left; yields its address.

    Args:
        client: open, with ``settings.client``; the caller closes it afterwards.

    Raises:
        InvalidConfig: the address cannot be bound, or is not loopback while security is off.
    """
    _check_listen(settings)
    stopping = asyncio.Event()
    async with AsyncExitStack() as undo:
        tasks = Tasks("console", raise_defect("a console"))
        undo.push_async_callback(tasks.close)
        metrics = Metrics()
        show_client(metrics, client)
        security = security_of_server(settings.security, RealClock(), tasks, metrics)
        # The console writes no stream: its owner name is never shown, and it needs no memory for ids.
        stores = StreamStores(client, "console", tasks, 1)
        undo.push_async_callback(stores.close)
        asking = HttpClient(security, ANSWER_SECONDS, MAX_CONCURRENCY)
        undo.push_async_callback(asking.close)
        parsing = ThreadWorkers(1, "metrics")
        undo.push_async_callback(parsing.close)
        sampler = ClusterSampler(client.world, settings.processes, asking.fetch, parsing)
        # Closed before the HTTP client and the thread that polls use.
        poll_tasks = Tasks("console", raise_defect("a console"))
        undo.push_async_callback(poll_tasks.close)
        view = ClusterView(client, sampler, poll_tasks)
        table = endpoints(
            ConsoleBookieEndpoints(client, view),
            ConsoleLedgerEndpoints(client, view),
            ConsoleStreamEndpoints(stores, client.world.clock, poll_tasks),
            ConsoleMaintenanceEndpoints(client, view, settings, AuditPassRunner(client, poll_tasks)),
        )
        offer = HttpApi(table, pages(), settings.hosts)
        http = HttpServer(metrics, lambda: "stopping" if stopping.is_set() else None, security, offer)
        await http.start(settings.listen, tasks)
        undo.push_async_callback(http.close)
        undo.callback(stopping.set)
        _log.info("ready", address=http.address)
        yield http.address


def pages() -> dict[str, StaticPage]:
    """The static files by URL path, read once; ``index.html`` also at ``/``. They contain no data of a cluster."""
    found: dict[str, StaticPage] = {}
    for file in files(__package__).joinpath("static").iterdir():
        media_type = _TYPES.get(file.name.rpartition(".")[2])
        if media_type is not None:
            found[f"/static/{file.name}"] = StaticPage(media_type, file.read_bytes())
    if f"/static/{FRONT}" in found:
        found["/"] = found[f"/static/{FRONT}"]
    return found


def _check_listen(settings: ConsoleSettings) -> None:
    host = settings.listen.rpartition(":")[0].strip("[]")
    if not is_loopback(host) and not settings.security:
        raise InvalidConfig(
            f"a console on {settings.listen} without security would let anyone administer the cluster: listen on "
            "loopback, or configure security"
        )
