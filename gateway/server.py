"""The gateway process: wiring, start and clean stop.

    start: client of the cluster -> gRPC and HTTP servers -> ready
    stop:  not ready, NOT_SERVING -> close ledgers and streams -> end all calls -> close the client

A gateway has no data on disk. It closes the ledgers and streams that it writes when it stops. A killed gateway leaves
them open: ``Recover`` closes a ledger, and the next writer takes over a stream.
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
from tallybook.core.errors import InvalidConfig
from tallybook.core.settings import GatewaySettings
from tallybook.runtime.clock import RealClock
from tallybook.runtime.grpc.call_server import bound_calls
from tallybook.runtime.grpc.load import GRPC_METRICS, GrpcLoad
from tallybook.runtime.http.endpoints import HttpApi
from tallybook.runtime.http.server import HttpServer
from tallybook.runtime.listening import refuse_open_port
from tallybook.runtime.logging import logger
from tallybook.runtime.metrics.registry import Metrics
from tallybook.runtime.process_memory.descriptors import raise_descriptor_limit
from tallybook.runtime.rng import SystemRng
from tallybook.runtime.security.denial_log import DenialLog
from tallybook.runtime.security.in_flight import RequestsInFlight
from tallybook.runtime.security.server_security import security_of_server
from tallybook.runtime.tasks import Tasks, raise_defect
from tallybook.stream import run_janitor
from tallybook.stream.load import LAG_METRICS, STREAM_METRICS

from .auth import Authorizer
from .context import GatewayContext
from .ledgers.service import LEDGER_SERVICE, LedgerService
from .limits import GatewayLimits
from .metrics import GATEWAY_METRICS, GatewayCounters, GatewayNumbers
from .streams.service import STREAM_SERVICE, StreamService
from .streams.stores import StreamStores

_log = logger("gateway.server")

GRACE_SECONDS: Final = 0.5
"""How long calls may finish sending when the gateway stops."""

CALLS_BESIDES_STREAMS: Final = 64
"""Unary calls, health and reflection calls per connection; eight times as many for the gateway."""

OWN_DESCRIPTORS: Final = 256
"""Files and connections other than those of clients: bookies, metadata, HTTP."""

RESERVE_DIVISOR: Final = 8
"""Each port accepts at least ``max_connections / 8`` connections more than the limit: those that arrive between two
sweeps that drop connections."""


@dataclass(frozen=True, slots=True)
class ListenAddresses:
    """Addresses that a gateway serves on."""

    grpc: str
    http: str
    token_grpc: str = ""
    """For clients that authenticate with a token instead of a certificate; empty: not served."""


@asynccontextmanager
async def serving(client: Client, settings: GatewaySettings) -> AsyncIterator[ListenAddresses]:
    """Serve a cluster until the block is left; then close the ledgers and streams being written, and stop.

    Args:
        client: open, with ``settings.client``; the caller closes it afterwards.

    Raises:
        InvalidConfig: an address cannot be bound, or is not loopback while security is off; or the file descriptor
            limit is too low for ``max_connections``.
    """
    refuse_open_port("a gateway", settings.listen, security=settings.security, insecure=settings.insecure)
    reserve = reserve_connections(settings, raise_descriptor_limit())
    stopping = asyncio.Event()
    async with AsyncExitStack() as undo:
        tasks = Tasks("gateway", raise_defect("a gateway"))
        undo.push_async_callback(tasks.close)
        metrics = Metrics()
        security = security_of_server(settings.security, RealClock(), tasks, metrics)
        denials, in_flight = DenialLog(RealClock(), security or OpenAccess()), RequestsInFlight()
        load = GrpcLoad()
        metrics.add_part(GRPC_METRICS, load)
        listener = bound_calls(
            settings.listen,
            max_calls=settings.max_streams + 8 * CALLS_BESIDES_STREAMS,
            max_connections=settings.max_connections,
            max_connection_calls=settings.max_connection_streams + CALLS_BESIDES_STREAMS,
            reserve_connections=reserve,
            security=security,
            token_address=settings.token_listen,
            denials=denials,
            in_flight=in_flight,
            load=load,
        )
        undo.push_async_callback(listener.close, 0)
        stores = StreamStores(client, settings.advertise or listener.address, tasks, int(settings.max_id_bytes))
        undo.push_async_callback(stores.close)
        if settings.keep_streams_s:
            keeping = run_janitor(stores.default, RealClock(), SystemRng(), settings.keep_streams_s, stores.load)
            undo.push_async_callback(_cancel, tasks.spawn(keeping, name="stream janitor", essential=True))
        limits, counts = GatewayLimits(settings, in_flight), GatewayCounters()
        authorizer = Authorizer(security or OpenAccess(), client, denials, listener.connections.authenticated)
        tasks.spawn(listener.connections.run(), name="connections", essential=True)
        context = GatewayContext(client, settings, limits, counts, RealClock(), tasks, authorizer)
        ledgers, streams = LedgerService(context), StreamService(stores, context)
        metrics.add_part(GATEWAY_METRICS, GatewayNumbers(counts, limits.total, settings, stores.ids))
        metrics.add_part(STREAM_METRICS, stores.load)
        metrics.add_series(LAG_METRICS, stores.load.lag_series)
        show_client(metrics, client)
        names = (settings.advertise.rpartition(":")[0],) if settings.advertise else ()
        offer = HttpApi((), hosts=names)
        http = HttpServer(
            metrics, lambda: "stopping" if stopping.is_set() else None, security, offer, denials, in_flight
        )
        await http.start(settings.http_listen, tasks)
        undo.push_async_callback(http.close)
        # Calls cancelled by ``listener.close`` leave ledgers and streams open, so they are closed a second time.
        undo.push_async_callback(_stop, ledgers, streams)
        undo.push_async_callback(listener.close, GRACE_SECONDS)
        await listener.serve({LEDGER_SERVICE: ledgers.handlers(), STREAM_SERVICE: streams.handlers()})
        undo.push_async_callback(_stop, ledgers, streams)
        undo.callback(listener.retire)
        undo.callback(stopping.set)
        addresses = ListenAddresses(listener.address, http.address, listener.token_address)
        _log.info("ready", address=addresses.grpc, token_address=addresses.token_grpc, http_address=addresses.http)
        try:
            yield addresses
        finally:
            _log.info("stopping", ledger_count=counts.writing, stream_count=counts.writers)


def reserve_connections(settings: GatewaySettings, descriptors: int) -> int:
    """How many connections gRPC may accept beyond ``max_connections``.

    A sweep drops connections without an authenticated call once all ports together exceed the limit. Each port alone
    must therefore accept more than the limit (up to twice as many): a port that is full by gRPC's own count refuses
    every new client before the sweep finds anything to drop.

    Args:
        descriptors: the limit of open files.

    Raises:
        InvalidConfig: the limit of open files is too low for ``max_connections``.
    """
    ports, limit = 2 if settings.token_listen else 1, settings.max_connections
    available, least = descriptors - OWN_DESCRIPTORS, ports * (limit + max(1, limit // RESERVE_DIVISOR))
    if available < least:
        raise InvalidConfig(
            f"{descriptors} files may be open at once (ulimit -n), and max_connections = {limit} on {ports} port(s) "
            f"needs {least + OWN_DESCRIPTORS}: allow it more files, or lower max_connections"
        )
    return min(ports * 2 * limit, available) - limit


async def _stop(ledgers: LedgerService, streams: StreamService) -> None:
    await asyncio.gather(ledgers.stop(), streams.stop())


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
