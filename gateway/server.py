"""One gateway as a process: everything real, put together, from the start to the clean stop.

    client of the cluster -> gRPC and HTTP -> ready
    stop -> not ready, NOT_SERVING -> ledgers and streams closed -> no calls -> no client

It keeps nothing on disk: what it holds is the ledgers and streams that it writes, and those are closed when it stops.
One that is killed leaves them open: ledgers for ``Recover`` to close, streams for the next writer to take.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Final

from tallybook.client.client import Client
from tallybook.client.metrics import show_client
from tallybook.core.access import OpenAccess
from tallybook.core.config import GatewaySettings
from tallybook.core.errors import InvalidConfig, InvariantViolation
from tallybook.runtime.clock import RealClock
from tallybook.runtime.descriptors import raise_descriptor_limit
from tallybook.runtime.grpc_calls import bound_calls
from tallybook.runtime.grpc_load import GRPC_METRICS, GrpcLoad
from tallybook.runtime.http import HttpServer, refuse_open_port
from tallybook.runtime.http_api import Offer
from tallybook.runtime.logging import logger
from tallybook.runtime.metrics import Metrics
from tallybook.runtime.refusals import Refusals
from tallybook.runtime.rng import SystemRng
from tallybook.runtime.security import security_of_server
from tallybook.runtime.tasks import Tasks
from tallybook.runtime.under_way import UnderWay
from tallybook.stream import keep_for_ever
from tallybook.stream.load import STREAM_METRICS

from .authorizer import Authorizer
from .limits import Limits
from .metrics import GATEWAY_METRICS, Counts, bounds, numbers
from .service import LEDGER_SERVICE, LedgerService
from .stores import Stores
from .stream_service import STREAM_SERVICE, StreamService

_log = logger("gateway.server")

GRACE_SECONDS: Final = 0.5
"""How long calls may finish what they are sending when the gateway stops."""

CALLS_BESIDES_STREAMS: Final = 64
"""Calls with one answer, health and reflection, on one connection and, eight times as many, in all."""

OWN_DESCRIPTORS: Final = 256
"""Files and connections besides those of clients: bookies, metadata, HTTP."""


SPARE_SHARE: Final = 8
"""Each port accepts this part of ``max_connections`` beyond it at least: what comes between two looks of the watch."""


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where a gateway serves."""

    grpc: str
    http: str
    token_grpc: str = ""
    """For clients that have a token in place of a certificate; empty: there is none."""


@asynccontextmanager
async def serving(client: Client, settings: GatewaySettings) -> AsyncIterator[Addresses]:
    """Serve a cluster until the block is left; then close the ledgers that are written, and stop.

    Args:
        client: open, with ``settings.client``; the caller closes it afterwards.

    Raises:
        InvalidConfig: an address cannot be bound, or is open to others without security; or too few files may be open
            for so many connections.
    """
    refuse_open_port("a gateway", settings.listen, security=settings.security, insecure=settings.insecure)
    spare = spare_connections(settings, raise_descriptor_limit())
    stopping = asyncio.Event()
    async with AsyncExitStack() as undo:
        tasks = Tasks("gateway", _died)
        undo.push_async_callback(tasks.close)
        metrics = Metrics()
        security = security_of_server(settings.security, RealClock(), tasks, metrics)
        refusals, under_way = Refusals(RealClock(), security or OpenAccess()), UnderWay()
        load = GrpcLoad()
        metrics.add(GRPC_METRICS, load.readings)
        listener = bound_calls(
            settings.listen,
            max_calls=settings.max_streams + 8 * CALLS_BESIDES_STREAMS,
            max_connections=settings.max_connections,
            max_connection_calls=settings.max_connection_streams + CALLS_BESIDES_STREAMS,
            spare_connections=spare,
            security=security,
            token_address=settings.token_listen,
            refusals=refusals,
            under_way=under_way,
            load=load,
        )
        undo.push_async_callback(listener.close, 0)
        stores = Stores(client, settings.advertise or listener.address, tasks, int(settings.max_id_bytes))
        undo.push_async_callback(stores.close)
        if settings.keep_streams_s:
            keeping = keep_for_ever(stores.default, RealClock(), SystemRng(), settings.keep_streams_s, stores.load)
            undo.push_async_callback(_ended, tasks.spawn(keeping, name="stream keeper", essential=True))
        limits, counts = Limits(settings, under_way), Counts()
        authorizer = Authorizer(security or OpenAccess(), client, refusals, listener.connections.authenticated)
        tasks.spawn(listener.connections.run(), name="connections", essential=True)
        ledgers = LedgerService(client, settings, limits, counts, RealClock(), tasks, authorizer)
        streams = StreamService(stores, settings, limits, counts, RealClock(), tasks, authorizer)
        metrics.add(GATEWAY_METRICS, lambda: {**numbers(counts, limits.total), **bounds(settings, stores.ids)})
        metrics.add(STREAM_METRICS, stores.load.readings)
        show_client(metrics, client)
        names = (settings.advertise.rpartition(":")[0],) if settings.advertise else ()
        offer = Offer((), hosts=names)
        http = HttpServer(
            metrics, lambda: "stopping" if stopping.is_set() else None, security, offer, refusals, under_way
        )
        await http.start(settings.http_listen, tasks)
        undo.push_async_callback(http.close)
        # Calls that are dropped leave ledgers and streams to be closed behind them, hence twice.
        undo.push_async_callback(_stop, ledgers, streams)
        undo.push_async_callback(listener.close, GRACE_SECONDS)
        await listener.serve({LEDGER_SERVICE: ledgers.handlers(), STREAM_SERVICE: streams.handlers()})
        undo.push_async_callback(_stop, ledgers, streams)
        undo.callback(listener.retire)
        undo.callback(stopping.set)
        addresses = Addresses(listener.address, http.address, listener.token_address)
        _log.info("ready", address=addresses.grpc, token_address=addresses.token_grpc, http_address=addresses.http)
        try:
            yield addresses
        finally:
            _log.info("stopping", ledger_count=counts.writing, stream_count=counts.writers)


def spare_connections(settings: GatewaySettings, descriptors: int) -> int:
    """How many connections gRPC may accept beyond the bound, for those without an authenticated call to be dropped.

    Each port accepts up to twice the bound of all, but always more than that bound: a port that is full by gRPC's own
    count refuses every new client, and the watch, which counts all ports together, would find nothing to drop.

    Args:
        descriptors: files that may be open.

    Raises:
        InvalidConfig: too few files may be open for the connections that are configured.
    """
    ports, most = 2 if settings.token_listen else 1, settings.max_connections
    room, least = descriptors - OWN_DESCRIPTORS, ports * (most + max(1, most // SPARE_SHARE))
    if room < least:
        raise InvalidConfig(
            f"{descriptors} files may be open at once (ulimit -n), and max_connections = {most} on {ports} port(s) "
            f"needs {least + OWN_DESCRIPTORS}: allow it more files, or lower max_connections"
        )
    return min(ports * 2 * most, room) - most


async def _stop(ledgers: LedgerService, streams: StreamService) -> None:
    await asyncio.gather(ledgers.stop(), streams.stop())


async def _ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def _died(name: str, error: BaseException) -> None:
    raise InvariantViolation(f"task {name} of a gateway died: {error!r}") from error
