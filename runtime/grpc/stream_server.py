"""Streams over gRPC, seen from the server: one port with the bookie's lanes, health and reflection.

The server knows nothing of what flows. It turns each call into a ``MessageStream`` and gives
it to the acceptor; when that returns, the call ends. Frames that are not gRPC, messages above
the limit, unknown methods and floods of streams are refused by gRPC itself, connection by
connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import grpc.aio

from tallybook.core.access import OpenAccess, Presented
from tallybook.core.errors import BookieUnavailable, InvalidConfig
from tallybook.proto import bookie_pb2

from .grpc_about import About
from .grpc_handlers import Handlers
from .grpc_load import GrpcLoad
from .grpc_options import SERVER_OPTIONS, SERVICE
from .grpc_security import add_port, presented
from .identity import Certified, Guarded
from .refusals import Refusals
from .transport import Acceptor, Lane
from .under_way import UnderWay


class GrpcListener:
    """A served address. Made by ``listen``."""

    def __init__(self, server: grpc.aio.Server, about: About, address: str, handlers: Handlers) -> None:
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
    max_streams: int,
    max_connections: int,
    security: Guarded | None = None,
    refusals: Refusals | None = None,
    under_way: UnderWay | None = None,
    load: GrpcLoad | None = None,
) -> GrpcListener:
    """Serve ``address`` with the lanes, the standard health service and reflection.

    Args:
        max_connections: more are dropped as soon as they are made, whatever they want.
        security: with TLS, to clients that have a certificate; ``None``: to anybody. Who somebody is, the acceptor asks
            itself; it is asked here for those calls about the port that last.
        refusals: those of the process; ``None``: of this port alone.
        under_way: the same of what is asked.
        load: counts connections and calls; ``None``: nobody asks for the counts.

    Raises:
        InvalidConfig: the address cannot be bound.
    """
    most = calls_for(max_streams)
    options = (*SERVER_OPTIONS, ("grpc.max_allowed_incoming_connections", max_connections))
    server = grpc.aio.server(options=options, maximum_concurrent_rpcs=most)
    load = load or GrpcLoad()
    load.max_connections, load.max_calls = max_connections, most
    handlers = Handlers(load)
    methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        lane.value: grpc.stream_stream_rpc_method_handler(_handler(lane, acceptor, handlers), None, None)
        for lane in Lane
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, methods),))
    about = About(security or OpenAccess(), most, handlers, load, refusals, under_way)
    about.serve((bookie_pb2.DESCRIPTOR.services_by_name["Bookie"].full_name,), server)
    port = bind(server, address, security)
    await server.start()
    host = address.rpartition(":")[0]
    return GrpcListener(server, about, f"{host}:{port}", handlers)


def calls_for(max_streams: int) -> int:
    """What a port with so many streams serves at once.

    It is above the service's own count, whose refusal is typed, and what calls about the port may take: the last line.
    """
    return max_streams + max_streams // 2 + 8


def bind(server: grpc.aio.Server, address: str, security: Certified | None, *, certificates: bool = True) -> int:
    """Let ``server`` serve ``address``; the port that it has there.

    Args:
        security: ``None``: without TLS.
        certificates: whether clients have to have one.

    Raises:
        InvalidConfig: the address cannot be bound.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise InvalidConfig(f"{address!r} is not an address: host:port is wanted")
    bound = add_port(server, address, security, certificates=certificates)
    if not bound:
        raise InvalidConfig(f"cannot listen on {address}: in use, or not an address of this machine")
    return bound


def _handler(lane: Lane, acceptor: Acceptor, handlers: Handlers) -> Callable[[Any, Any], Awaitable[None]]:
    async def serve(_requests: object, context: Any) -> None:
        await handlers.enter(context)
        stream = _ServerStream(context)
        # The acceptor runs in a task of its own: a connection that is lost reaches it as a broken stream, not as a
        # cancellation in the middle of whatever it awaits.
        task = asyncio.get_running_loop().create_task(_accepted(acceptor, lane, stream), name=f"{lane.value} stream")
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


async def _accepted(acceptor: Acceptor, lane: Lane, stream: _ServerStream) -> None:
    try:
        await acceptor(lane, stream)
    except BookieUnavailable:
        # That is how an acceptor learns that its stream is over; where it is not, it is now.
        stream.abort()


class _ServerStream:
    """The server's end of a stream.

    A client that drops the stream may look here like one that ended it: gRPC tells a reader no difference.
    """

    def __init__(self, context: Any) -> None:
        self._context = context
        # Asked now, because gRPC brings the process down when it is asked after the call has ended.
        self._peer = str(context.peer())
        self._presented = presented(context)
        self.ended: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        """Set once this side ended the stream: true in good order, false by dropping it."""

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
            raise BookieUnavailable(f"the stream from {self.peer} has ended")

    def _broken(self, error: Exception) -> BookieUnavailable:
        return BookieUnavailable(f"the stream from {self.peer} broke: {type(error).__name__}")
