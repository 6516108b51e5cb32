"""Message streams over gRPC: the transport, and the client side of a stream. ``stream_server`` has the server side.

Every stream has a channel, and so a TCP connection, of its own. Messages are bytes for gRPC: no serializer runs.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import grpc
import grpc.aio

from tallybook.core.access import NOTHING, Presented
from tallybook.core.errors import PeerUnavailable, Unauthenticated

from ..extras import NeedsExtra
from ..security.denial_log import DenialLog
from ..security.identity import CertificateSource, ServerSecurity
from ..security.in_flight import RequestsInFlight
from ..transport import Acceptor, Listener, MessageStream
from .load import GrpcLoad
from .options import CHANNEL_OPTIONS
from .tls import open_channel
from .tls_probe import tls_problem

_CLOSE_GRACE_SECONDS: Final = 1.0


class GrpcTransport:
    """The transport between processes.

    Args:
        service: full name of the gRPC service; its methods are the kinds of stream.
        kinds: names of these methods.
        max_streams: how many streams a listener serves at once.
        max_connections: how many connections it takes, with streams or without. A client has one for each stream.
        security: certificates for both ends; ``None``: without TLS.
        denials: log of denied calls, one for the process; ``None``: each listener has its own.
        in_flight: requests in flight, counted for the process; ``None``: each listener counts its own.
        load: counters of the listener, if there is only one; ``None``: nothing is counted.
    """

    def __init__(
        self,
        service: str,
        kinds: tuple[str, ...],
        *,
        max_streams: int = 4096,
        max_connections: int = 8192,
        security: ServerSecurity | None = None,
        denials: DenialLog | None = None,
        in_flight: RequestsInFlight | None = None,
        load: GrpcLoad | None = None,
    ) -> None:
        self._service = service
        self._kinds = kinds
        self._max_streams = max_streams
        self._max_connections = max_connections
        self._security = security
        self._denials = denials
        self._in_flight = in_flight
        self._load = load

    async def connect(self, address: str, kind: str, *, timeout_seconds: float) -> MessageStream:
        """Open a stream; see the port."""
        channel = open_channel(address, self._security, CHANNEL_OPTIONS)
        try:
            async with asyncio.timeout(timeout_seconds):
                await _until_ready(channel, address, self._security)
                # No serialisers: messages are bytes already.
                call: grpc.aio.StreamStreamCall[bytes, bytes]
                call = channel.stream_stream(f"/{self._service}/{kind}", None, None)()
                # A message for a call that was dropped before it had begun would wait for ever.
                await call.wait_for_connection()
        except TimeoutError:
            await channel.close()
            raise PeerUnavailable(f"{address} did not answer within {timeout_seconds} s") from None
        except grpc.aio.AioRpcError as error:
            await channel.close()
            raise PeerUnavailable(f"{address} refuses the stream: {error.details()}") from None
        except BaseException:
            await channel.close()
            raise
        return _ClientStream(channel, call, address)

    async def listen(self, address: str, acceptor: Acceptor) -> Listener:
        """Serve an address; see the port."""
        # A client does not need the libraries of a server.
        with NeedsExtra("a server"):
            from .stream_server import listen  # noqa: PLC0415

        return await listen(
            address,
            acceptor,
            service=self._service,
            kinds=self._kinds,
            max_streams=self._max_streams,
            max_connections=self._max_connections,
            security=self._security,
            denials=self._denials,
            in_flight=self._in_flight,
            load=self._load,
        )


class _ClientStream:
    """The client's end of a stream."""

    def __init__(self, channel: grpc.aio.Channel, call: Any, address: str) -> None:
        self._channel = channel
        self._call = call
        self._peer = address
        self._given_up = False
        self._closing: asyncio.Task[None] | None = None

    @property
    def peer(self) -> str:
        """The address to which the stream was opened."""
        return self._peer

    @property
    def presented(self) -> Presented:
        """Nothing: the server was authenticated when the connection was opened."""
        return NOTHING

    async def send(self, message: bytes) -> None:
        """Hand over one message; see the port."""
        try:
            await self._call.write(message)
        except asyncio.CancelledError:
            self._raise_if_ours()
            raise
        except (grpc.RpcError, grpc.aio.BaseError, asyncio.InvalidStateError) as error:
            raise self._broken(error) from None

    async def receive(self) -> bytes | None:
        """The next message; see the port."""
        try:
            message = await self._call.read()
        except asyncio.CancelledError:
            self._raise_if_ours()
            raise
        except (grpc.RpcError, grpc.aio.BaseError, asyncio.InvalidStateError) as error:
            raise self._broken(error) from None
        return None if message is grpc.aio.EOF else message

    async def close(self) -> None:
        """End the stream: say that nothing follows, give the peer a moment to end its side, then let go."""
        try:
            async with asyncio.timeout(_CLOSE_GRACE_SECONDS):
                await self._call.done_writing()
                await self._call.code()
        except (TimeoutError, grpc.RpcError, grpc.aio.BaseError, asyncio.InvalidStateError):
            self._given_up = True
        self.abort()
        if self._closing is not None:
            await self._closing

    def abort(self) -> None:
        """Drop the stream at once."""
        self._given_up = True
        self._call.cancel()
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._channel.close(None), name="close channel")

    def _raise_if_ours(self) -> None:
        """gRPC reports a call that we dropped as a cancelled task; only a task that is really cancelled may look so."""
        task = asyncio.current_task()
        if self._given_up and not (task and task.cancelling()):
            raise PeerUnavailable(f"the stream to {self._peer} was dropped")

    def _broken(self, error: Exception) -> PeerUnavailable:
        reason = error.details() if isinstance(error, grpc.aio.AioRpcError) else error
        return PeerUnavailable(f"the stream to {self._peer} broke: {reason}")


async def _until_ready(channel: grpc.aio.Channel, address: str, security: CertificateSource | None) -> None:
    """Wait for the connection. The first refusal counts: whether to try again is for the caller to say.

    Raises:
        PeerUnavailable: the address refuses connections.
        Unauthenticated: client and server do not agree on TLS, or on a certificate.
    """
    state = channel.get_state(try_to_connect=True)
    while state is not grpc.ChannelConnectivity.READY:
        if state in (grpc.ChannelConnectivity.TRANSIENT_FAILURE, grpc.ChannelConnectivity.SHUTDOWN):
            problem = await tls_problem(address, security)
            if problem is not None:
                raise Unauthenticated(f"no connection to {address}: {problem}")
            raise PeerUnavailable(f"{address} refuses connections")
        await channel.wait_for_state_change(state)
        state = channel.get_state()
