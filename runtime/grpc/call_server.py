"""The gRPC server of RPCs: one port with any services, health and reflection.

Messages pass as bytes, and each method is registered as bidirectional streaming, which on the wire is the same as a
unary method with one message each way. gRPC itself refuses invalid frames, too large messages, unknown methods and
floods of connections.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

import grpc
import grpc.aio

from tallybook.core.access import OpenAccess, Presented

from ..calls import Call, CallerGone, CallFailed, CallHandler, Services
from ..clock import RealClock
from ..security.denial_log import DenialLog
from ..security.identity import CertificateSource, ServerSecurity
from ..security.in_flight import RequestsInFlight
from .connection_watch import ConnectionWatch
from .handlers import RunningHandlers, send_headers
from .health_and_reflection import StandardServices
from .load import GrpcLoad
from .options import call_server_options
from .stream_server import bind
from .tls import presented

DETAILS_KEY: Final = "grpc-status-details-bin"
"""The standard gRPC trailer for the details of an error."""

_END_SECONDS: Final = 5.0
"""How long the handler waits until the status of a failed call is sent. After that, gRPC keeps it until the connection
ends."""

_CODES: Final = {code.value[0]: code for code in grpc.StatusCode}


class CallListener:
    """A bound address, and its server. Made by ``bound_calls``."""

    def __init__(
        self,
        server: grpc.aio.Server,
        about: StandardServices,
        handlers: RunningHandlers,
        address: str,
        token_address: str,
        connections: ConnectionWatch,
    ) -> None:
        self._server = server
        self._about = about
        self._handlers = handlers
        self._address = address
        self.token_address = token_address
        """Host and port for clients without a certificate; empty: there is none."""
        self.connections = connections
        """The connection watch; the owner runs it and reports authenticated calls to it."""

    @property
    def address(self) -> str:
        """Host and port that clients connect to."""
        return self._address

    async def serve(self, services: Services) -> None:
        """Serve ``services``, the standard health service and reflection.

        Args:
            services: reflection describes them if their generated code is loaded.
        """
        for service, methods in services.items():
            # No serializers: messages are bytes already.
            handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
                name: grpc.stream_stream_rpc_method_handler(_served(handler, self._handlers), None, None)
                for name, handler in methods.items()
            }
            self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
        self._about.serve(services, self._server)
        await self._server.start()

    def retire(self) -> None:
        """Report NOT_SERVING in the health service, before the server stops."""
        self._about.retire()

    async def close(self, grace_seconds: float) -> None:
        """Refuse new calls, give running ones ``grace_seconds`` to end, then cancel them."""
        await self._server.stop(grace_seconds)
        await self._handlers.close()


def bound_calls(
    address: str,
    *,
    max_calls: int,
    max_connections: int,
    max_connection_calls: int,
    reserve_connections: int = 0,
    security: ServerSecurity | None = None,
    token_address: str = "",
    denials: DenialLog | None = None,
    in_flight: RequestsInFlight | None = None,
    load: GrpcLoad | None = None,
) -> CallListener:
    """Bind ``address``. It serves from ``CallListener.serve`` on, because services may need to know the address.

    Args:
        security: TLS with client certificates; ``None``: no TLS and no authentication. Services authenticate their
            callers themselves; here only long-running health and reflection calls are authenticated.
        token_address: second address, with TLS, for clients without a certificate; empty: none.
        denials: log of denied requests of the process; ``None``: of this port only.
        in_flight: limits of requests in flight of the process; ``None``: of this port only.
        load: counts connections and calls; ``None``: not counted.
        max_calls: limit of concurrent calls; more are refused.
        max_connections: limit for both addresses together; half of them may be without an authenticated call. The
            watch drops the rest.
        max_connection_calls: limit of concurrent calls on one connection; more wait at the client.
        reserve_connections: connections that gRPC accepts above ``max_connections``, from which the watch chooses those
            to drop; beyond, gRPC drops the newest. gRPC shares its limit equally between the addresses; the share must
            exceed ``max_connections``, so that the watch sees new connections while that many exist.

    Raises:
        InvalidConfig: the address cannot be bound.
    """
    # gRPC counts the connections of each address separately.
    accepted = max(1, (max_connections + reserve_connections) // (2 if token_address else 1))
    options = call_server_options(max_connections=accepted, max_connection_calls=max_connection_calls)
    server = grpc.aio.server(options=options, maximum_concurrent_rpcs=max_calls)
    served = _bound(server, address, security, certificates=True)
    for_tokens = _bound(server, token_address, security, certificates=False) if token_address else ""
    load = load or GrpcLoad()
    load.max_connections, load.max_calls = max_connections, max_calls
    handlers = RunningHandlers(load)
    about = StandardServices(security or OpenAccess(), max_calls, handlers, load, denials, in_flight)
    ports = [int(each.rpartition(":")[2]) for each in (served, for_tokens) if each]
    connections = ConnectionWatch(ports, max_connections, load, RealClock())
    return CallListener(server, about, handlers, served, for_tokens, connections)


def _bound(server: grpc.aio.Server, address: str, security: CertificateSource | None, *, certificates: bool) -> str:
    port = bind(server, address, security, certificates=certificates)
    return f"{address.rpartition(':')[0]}:{port}"


def _served(handler: CallHandler, handlers: RunningHandlers) -> Callable[[Any, Any], Awaitable[None]]:
    async def serve(_requests: object, context: Any) -> None:
        await handlers.enter(context)
        call: Call = _GrpcCall(context)
        try:
            await handler(call)
        except CallerGone:
            return
        except CallFailed as failed:
            await _fail(context, failed)

    return serve


async def _fail(context: Any, failed: CallFailed) -> None:
    trailer = ((DETAILS_KEY, failed.details),)
    try:
        async with asyncio.timeout(_END_SECONDS):
            await context.abort(_CODES[failed.code], failed.message, trailing_metadata=trailer)
    except TimeoutError:
        # The client does not read. gRPC queues the status; the handler does not wait for it.
        return


class _GrpcCall:
    """The server's end of a call."""

    def __init__(self, context: Any) -> None:
        self._context = context
        # Read now: gRPC crashes the process if it is read after the call has ended.
        self._peer = str(context.peer())
        self._presented = presented(context)
        self._begun = False

    @property
    def peer(self) -> str:
        """The client's address, as gRPC formats it."""
        return self._peer

    @property
    def presented(self) -> Presented:
        """Client certificate and headers of the call."""
        return self._presented

    async def receive(self) -> bytes | None:
        """The next message; see the port."""
        try:
            message = await self._context.read()
        except (grpc.RpcError, grpc.aio.BaseError, asyncio.InvalidStateError) as error:
            raise CallerGone(f"the call from {self._peer} broke: {type(error).__name__}") from None
        return None if message is grpc.aio.EOF else message

    async def send(self, message: bytes) -> None:
        """Send one message; see the port."""
        try:
            if not self._begun:
                self._begun = True
                await send_headers(self._context)
            await self._context.write(message)
        except (grpc.RpcError, grpc.aio.BaseError, asyncio.InvalidStateError) as error:
            raise CallerGone(f"the call from {self._peer} broke: {type(error).__name__}") from None
