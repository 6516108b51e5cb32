"""Calls over gRPC, seen from the server: one port with services of any kind, health and reflection.

Messages pass as the bytes they are, so every method is a stream of them both ways; on the wire that is what a method
with one request and one answer is, too. Frames that are not gRPC, messages above the limit, unknown methods and floods
of connections are refused by gRPC itself, connection by connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

import grpc
import grpc.aio

from tallybook.core.access import OpenAccess, Presented

from .calls import Call, CallerGone, CallFailed, CallHandler, Services
from .clock import RealClock
from .grpc_about import About
from .grpc_connections import ConnectionWatch
from .grpc_handlers import Handlers
from .grpc_load import GrpcLoad
from .grpc_options import gateway_options
from .grpc_security import presented
from .grpc_server import bind
from .identity import Certified, Guarded
from .refusals import Refusals
from .under_way import UnderWay

DETAILS_KEY: Final = "grpc-status-details-bin"
"""The trailer in which every gRPC library looks for the details of an error."""

_END_SECONDS: Final = 5.0
"""How long the status of a failed call may take to leave. One that nobody takes waits for the connection's end."""

_CODES: Final = {code.value[0]: code for code in grpc.StatusCode}


class CallListener:
    """An address, bound, and then served. Made by ``bound_calls``."""

    def __init__(
        self,
        server: grpc.aio.Server,
        about: About,
        handlers: Handlers,
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
        """To be run by the owner, and told of authenticated calls."""

    @property
    def address(self) -> str:
        """Host and port that clients connect to."""
        return self._address

    async def serve(self, services: Services) -> None:
        """Serve ``services``, the standard health service and reflection.

        Args:
            services: their messages are known to reflection if the code generated for them is loaded.
        """
        for service, methods in services.items():
            # No serialisers: messages are bytes already.
            handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
                name: grpc.stream_stream_rpc_method_handler(_served(handler, self._handlers), None, None)
                for name, handler in methods.items()
            }
            self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
        self._about.serve(services, self._server)
        await self._server.start()

    def retire(self) -> None:
        """Tell whoever asks that this server is about to stop."""
        self._about.retire()

    async def close(self, grace_seconds: float) -> None:
        """Accept nothing more, give calls ``grace_seconds`` to end, then cancel them."""
        await self._server.stop(grace_seconds)
        await self._handlers.close()


def bound_calls(
    address: str,
    *,
    max_calls: int,
    max_connections: int,
    max_connection_calls: int,
    spare_connections: int = 0,
    security: Guarded | None = None,
    token_address: str = "",
    refusals: Refusals | None = None,
    under_way: UnderWay | None = None,
    load: GrpcLoad | None = None,
) -> CallListener:
    """Bind ``address``, and let nobody in before ``CallListener.serve``: services may want to know where they are.

    Args:
        security: with TLS, to clients that have a certificate; ``None``: to anybody. Who somebody is, services ask
            themselves; it is asked here for those calls about the port that last.
        token_address: another one, to clients that have none, with TLS as well; empty: none.
        refusals: those of the process; ``None``: of this port alone.
        under_way: the same of what is asked.
        load: counts connections and calls; ``None``: nobody asks for the counts.
        max_calls: more at once are refused.
        max_connections: on both addresses; of these, half may be without an authenticated call; more are dropped by
            the watch.
        max_connection_calls: more calls on one connection wait, at the client.
        spare_connections: how many more gRPC accepts, for the watch to choose from; beyond, the newest are dropped. Of
            all that it accepts, each address has an equal share, which must be more than ``max_connections`` for the
            watch to see those who come while that many are there.

    Raises:
        InvalidConfig: the address cannot be bound.
    """
    # gRPC counts the connections of each address by themselves.
    accepted = max(1, (max_connections + spare_connections) // (2 if token_address else 1))
    options = gateway_options(max_connections=accepted, max_connection_calls=max_connection_calls)
    server = grpc.aio.server(options=options, maximum_concurrent_rpcs=max_calls)
    served = _bound(server, address, security, certificates=True)
    for_tokens = _bound(server, token_address, security, certificates=False) if token_address else ""
    load = load or GrpcLoad()
    load.max_connections, load.max_calls = max_connections, max_calls
    handlers = Handlers(load)
    about = About(security or OpenAccess(), max_calls, handlers, load, refusals, under_way)
    ports = [int(each.rpartition(":")[2]) for each in (served, for_tokens) if each]
    connections = ConnectionWatch(ports, max_connections, load, RealClock())
    return CallListener(server, about, handlers, served, for_tokens, connections)


def _bound(server: grpc.aio.Server, address: str, security: Certified | None, *, certificates: bool) -> str:
    port = bind(server, address, security, certificates=certificates)
    return f"{address.rpartition(':')[0]}:{port}"


def _served(handler: CallHandler, handlers: Handlers) -> Callable[[Any, Any], Awaitable[None]]:
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
        # The client takes nothing. gRPC keeps the status behind what waits to be sent; nothing waits for it here.
        return


class _GrpcCall:
    """The server's end of a call."""

    def __init__(self, context: Any) -> None:
        self._context = context
        # Asked now, because gRPC brings the process down when it is asked after the call has ended.
        self._peer = str(context.peer())
        self._presented = presented(context)
        self._begun = False

    @property
    def peer(self) -> str:
        """The client's address, as gRPC tells it."""
        return self._peer

    @property
    def presented(self) -> Presented:
        """Certificate and headers that it has come with."""
        return self._presented

    async def receive(self) -> bytes | None:
        """The next message; see the port."""
        try:
            message = await self._context.read()
        except (grpc.RpcError, grpc.aio.BaseError, asyncio.InvalidStateError) as error:
            raise CallerGone(f"the call from {self._peer} broke: {type(error).__name__}") from None
        return None if message is grpc.aio.EOF else message

    async def send(self, message: bytes) -> None:
        """Hand over one message; see the port."""
        try:
            if not self._begun:
                # Or a first message whose wait is cancelled would leave gRPC in doubt whether its headers went out.
                await self._context.send_initial_metadata(())
                self._begun = True
            await self._context.write(message)
        except (grpc.RpcError, grpc.aio.BaseError, asyncio.InvalidStateError) as error:
            raise CallerGone(f"the call from {self._peer} broke: {type(error).__name__}") from None
