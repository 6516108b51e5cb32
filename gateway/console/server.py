"""One console as a process: everything put together, from the start to the clean stop. It keeps nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from tallybook.client.client import Client
from tallybook.client.metrics import show_client
from tallybook.core.config import ConsoleSettings
from tallybook.core.errors import InvalidConfig, InvariantViolation
from tallybook.repair.diagnosis.look import ANSWER_SECONDS, AT_ONCE, Looker
from tallybook.runtime.clock import RealClock
from tallybook.runtime.http import HttpServer, is_loopback
from tallybook.runtime.http_api import Offer
from tallybook.runtime.http_client import HttpClient
from tallybook.runtime.logging import logger
from tallybook.runtime.metrics import Metrics
from tallybook.runtime.security import security_of_server
from tallybook.runtime.tasks import Tasks, ThreadWorkers

from ..stores import Stores
from .auditing import Auditing
from .bookies import Bookies
from .cluster_view import ClusterView
from .ledgers import Ledgers
from .pages import pages
from .routes import endpoints
from .streams import Streams
from .upkeep import Upkeep

_log = logger("console")


@asynccontextmanager
async def serving(client: Client, settings: ConsoleSettings) -> AsyncIterator[str]:
    """Serve operators until the block is left; the address is what it yields.

    Args:
        client: open, with ``settings.client``; the caller closes it afterwards.

    Raises:
        InvalidConfig: the address cannot be bound, or is open to others without security.
    """
    _check_listen(settings)
    stopping = asyncio.Event()
    async with AsyncExitStack() as undo:
        tasks = Tasks("console", _died)
        undo.push_async_callback(tasks.close)
        metrics = Metrics()
        show_client(metrics, client)
        security = security_of_server(settings.security, RealClock(), tasks, metrics)
        # It writes no stream, so nobody sees its name, and it has no ids to remember.
        stores = Stores(client, "console", tasks, 1)
        undo.push_async_callback(stores.close)
        asking = HttpClient(security, ANSWER_SECONDS, AT_ONCE)
        undo.push_async_callback(asking.close)
        parsing = ThreadWorkers(1, "metrics")
        undo.push_async_callback(parsing.close)
        looker = Looker(client.world, settings.processes, asking.fetch, parsing)
        # They end before what they ask with.
        looks = Tasks("console", _died)
        undo.push_async_callback(looks.close)
        view = ClusterView(client, looker, looks)
        table = endpoints(
            Bookies(client, view),
            Ledgers(client),
            Streams(stores, client.world.clock, looks),
            Upkeep(client, view, settings, Auditing(client, looks)),
        )
        offer = Offer(table, pages(), settings.hosts)
        http = HttpServer(metrics, lambda: "stopping" if stopping.is_set() else None, security, offer)
        await http.start(settings.listen, tasks)
        undo.push_async_callback(http.close)
        undo.callback(stopping.set)
        _log.info("ready", address=http.address)
        yield http.address


def _check_listen(settings: ConsoleSettings) -> None:
    host = settings.listen.rpartition(":")[0].strip("[]")
    if not is_loopback(host) and not settings.security:
        raise InvalidConfig(
            f"a console on {settings.listen} would let anybody administer the cluster: without security it listens on "
            "loopback only"
        )


def _died(name: str, error: BaseException) -> None:
    raise InvariantViolation(f"task {name} of a console died: {error!r}") from error
