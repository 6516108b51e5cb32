"""Message streams over gRPC, server side: one port with the methods of one service, health and reflection.

The server does not decode messages. It turns each call into a ``MessageStream`` and gives it to the acceptor; when the
acceptor returns, the call ends. gRPC itself refuses frames that are not gRPC, messages above the limit, unknown methods
and too many streams of one connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import grpc.aio

from tallybook.core.access import OpenAccess, Presented
from tallybook.core.errors import InvalidConfig, PeerUnavailable

from ..security.denial_log import DenialLog
from ..security.identity import CertificateSource, ServerSecurity
from ..security.in_flight import RequestsInFlight
from ..transport import Acceptor
from .handlers import RunningHandlers, send_headers
from .health_and_reflection import StandardServices
from .load import GrpcLoad
from .options import SERVER_OPTIONS
from .tls import add_port, presented


class GrpcListener:
    """A served address. Made by ``listen``."""

    def __init__(
        self, server: grpc.aio.Server, about: StandardServices, address: str, handlers: RunningHandlers
    ) -> None:
        self._server = server
        self._about = about
        self._address = address
        self._handlers = handlers

    @property
    def address(self) -> str:
        """Host and port that clients connect to."""
        return self._address

    async def close(self, grace_seconds: float) -> None:
        """Accept nothing more, give streams ``grace_seconds`` to end, then drop them."""
        self._about.retire()
        await self._server.stop(grace_seconds)
        await self._handlers.close()


async def listen(
    address: str,
    acceptor: Acceptor,
    *,
    service: str,
    kinds: tuple[str, ...],
    max_streams: int,
    max_connections: int,
    security: ServerSecurity | None = None,
    denials: DenialLog | None = None,
    in_flight: RequestsInFlight | None = None,
    load: GrpcLoad | None = None,
) -> GrpcListener:
    """Serve ``address`` with one stream method for each kind, the standard health service and reflection.

    Args:
        service: full name of the gRPC service; its descriptor must be loaded, for reflection.
        kinds: names of its methods, each of which is a stream both ways.
        max_connections: more are dropped as soon as they are made.
        security: TLS, for clients with a certificate; ``None``: without TLS, for any client. The acceptor authenticates
            its streams; this port does so for the long-running calls about itself.
        denials: the denial log of the process; ``None``: one of this port alone.
        in_flight: counts the requests of each principal; ``None``: of this port alone.
        load: counts connections and calls; ``None``: without counts.

    Raises:
        InvalidConfig: the address cannot be bound.
    """
    max_streams_total = calls_for(max_streams)
    options = (*SERVER_OPTIONS, ("grpc.max_allowed_incoming_connections", max_connections))
    server = grpc.aio.server(options=options, maximum_concurrent_rpcs=max_streams_total)
    load = load or GrpcLoad()
    load.max_connections, load.max_calls = max_connections, max_streams_total
    handlers = RunningHandlers(load)
    methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        kind: grpc.stream_stream_rpc_method_handler(_handler(kind, acceptor, handlers), None, None) for kind in kinds
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, methods),))
    about = StandardServices(security or OpenAccess(), max_streams_total, handlers, load, denials, in_flight)
    about.serve((service,), server)
    port = bind(server, address, security)
    await server.start()
    host = address.rpartition(":")[0]
    return GrpcListener(server, about, f"{host}:{port}", handlers)


def calls_for(max_streams: int) -> int:
    """Maximum concurrent RPCs of a port that serves ``max_streams`` streams.

    Higher than the service's own limit plus health and reflection calls. It is a last resort, because the service
    refuses with a typed error and gRPC does not.
    """
    return max_streams + max_streams // 2 + 8


def bind(
    server: grpc.aio.Server, address: str, security: CertificateSource | None, *, certificates: bool = True
) -> int:
    """Let ``server`` serve ``address``; returns the port.

    Args:
        security: ``None``: without TLS.
        certificates: whether clients must present one.

    Raises:
        InvalidConfig: the address cannot be bound.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise InvalidConfig(f"{address!r} is not an address: expected host:port")
    bound = add_port(server, address, security, certificates=certificates)
    if not bound:
        raise InvalidConfig(f"cannot listen on {address}: in use, or not an address of this machine")
    return bound


def _handler(kind: str, acceptor: Acceptor, handlers: RunningHandlers) -> Callable[[Any, Any], Awaitable[None]]:
    async def serve(_requests: object, context: Any) -> None:
        await handlers.enter(context)
        stream = _ServerStream(context)
        # The acceptor runs in its own task: it sees a lost connection as a broken stream, not as a cancellation.
        task = asyncio.get_running_loop().create_task(_accepted(acceptor, kind, stream), name=f"{kind} stream")
        handlers.keep(task)
        try:
            await asyncio.wait((task, stream.ended), return_when=asyncio.FIRST_COMPLETED)
            if stream.ended.done() and not stream.ended.result():
                await context.abort(grpc.StatusCode.UNAVAILABLE, "dropped by the server")
            if task.done():
                task.result()
        except asyncio.CancelledError:
            stream.abort()
            raise

    return serve


async def _accepted(acceptor: Acceptor, kind: str, stream: _ServerStream) -> None:
    try:
        await acceptor(kind, stream)
    except PeerUnavailable:
        # The stream is broken, or the acceptor gave up: end it in both cases.
        stream.abort()


class _ServerStream:
    """The server's end of a stream.

    A client that drops the stream may look like one that ended it: gRPC reports both in the same way.
    """

    def __init__(self, context: Any) -> None:
        self._context = context
        # Read now, because gRPC crashes the process if the peer is read after the call has ended.
        self._peer = str(context.peer())
        self._presented = presented(context)
        self._begun = False
        self.ended: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        """Set once this side ended the stream: true if it closed it, false if it dropped it."""

    @property
    def peer(self) -> str:
        """The client's address, as gRPC tells it."""
        return self._peer

    @property
    def presented(self) -> Presented:
        """Certificate and headers that it has come with."""
        return self._presented

    async def send(self, message: bytes) -> None:
        """Hand over one message; see the port."""
        self._check_open()
        try:
            if not self._begun:
                self._begun = True
                await send_headers(self._context)
            await self._context.write(message)
        except (grpc.RpcError, grpc.aio.BaseError, asyncio.InvalidStateError) as error:
            raise self._broken(error) from None

    async def receive(self) -> bytes | None:
        """The next message; see the port."""
        self._check_open()
        try:
            message = await self._context.read()
        except (grpc.RpcError, grpc.aio.BaseError, asyncio.InvalidStateError) as error:
            raise self._broken(error) from None
        if message is grpc.aio.EOF:
            self._check_open()
            return None
        return bytes(message)

    async def close(self) -> None:
        """End the stream: the client receives what was sent, then the end."""
        if not self.ended.done():
            self.ended.set_result(True)

    def abort(self) -> None:
        """Drop the stream at once."""
        if not self.ended.done():
            self.ended.set_result(False)

    def _check_open(self) -> None:
        if self.ended.done():
            raise PeerUnavailable(f"the stream from {self.peer} has ended")

    def _broken(self, error: Exception) -> PeerUnavailable:
        return PeerUnavailable(f"the stream from {self.peer} broke: {type(error).__name__}")
