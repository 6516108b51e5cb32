"""Streams over gRPC, seen from the client. ``grpc_server`` is the other end.

Every stream has a channel, hence a TCP connection, of its own. Messages are handed to gRPC
as the bytes they are: no serialiser stands between.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import grpc
import grpc.aio

from tallybook.core.access import NOTHING, Presented
from tallybook.core.errors import BookieUnavailable

from .grpc_load import GrpcLoad
from .grpc_options import CHANNEL_OPTIONS, SERVICE
from .grpc_security import open_channel
from .grpc_server import listen
from .identity import Guarded
from .refusals import Refusals
from .transport import Acceptor, Lane, Listener, MessageStream
from .under_way import UnderWay

_CLOSE_GRACE_SECONDS: Final = 1.0


class GrpcTransport:
    """The transport between processes.

    Args:
        max_streams: how many streams a listener serves at once.
        max_connections: how many connections it takes, with streams or without. A client has one for each stream.
        security: certificates for both ends; ``None``: without TLS.
        refusals: those of the process; ``None``: each listener has its own.
        under_way: the same of what is asked.
        load: of the one listener that there is; ``None``: nobody asks for the counts.
    """

    def __init__(
        self,
        *,
        max_streams: int = 4096,
        max_connections: int = 8192,
        security: Guarded | None = None,
        refusals: Refusals | None = None,
        under_way: UnderWay | None = None,
        load: GrpcLoad | None = None,
    ) -> None:
        self._max_streams = max_streams
        self._max_connections = max_connections
        self._security = security
        self._refusals = refusals
        self._under_way = under_way
        self._load = load

    async def connect(self, address: str, lane: Lane, *, timeout_seconds: float) -> MessageStream:
        """Open a stream; see the port."""
        channel = open_channel(address, self._security, CHANNEL_OPTIONS)
        try:
            async with asyncio.timeout(timeout_seconds):
                await _until_ready(channel, address)
                # No serialisers: messages are bytes already.
                call: grpc.aio.StreamStreamCall[bytes, bytes]
                call = channel.stream_stream(f"/{SERVICE}/{lane.value}", None, None)()
                # A message for a call that was dropped before it had begun would wait for ever.
                await call.wait_for_connection()
        except TimeoutError:
            await channel.close()
            raise BookieUnavailable(f"{address} did not answer within {timeout_seconds} s") from None
        except grpc.aio.AioRpcError as error:
            await channel.close()
            raise BookieUnavailable(f"{address} refuses the stream: {error.details()}") from None
        except BaseException:
            await channel.close()
            raise
        return _ClientStream(channel, call, address)

    async def listen(self, address: str, acceptor: Acceptor) -> Listener:
        """Serve an address; see the port."""
        return await listen(
            address,
            acceptor,
            max_streams=self._max_streams,
            max_connections=self._max_connections,
            security=self._security,
            refusals=self._refusals,
            under_way=self._under_way,
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
        """The address it was opened to."""
        return self._peer

    @property
    def presented(self) -> Presented:
        """Nothing: whom it leads to was checked when it was opened."""
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
            raise BookieUnavailable(f"the stream to {self._peer} was dropped")

    def _broken(self, error: Exception) -> BookieUnavailable:
        reason = error.details() if isinstance(error, grpc.aio.AioRpcError) else error
        return BookieUnavailable(f"the stream to {self._peer} broke: {reason}")


async def _until_ready(channel: grpc.aio.Channel, address: str) -> None:
    """Wait for the connection. The first refusal counts: whether to try again is for the caller to say."""
    state = channel.get_state(try_to_connect=True)
    while state is not grpc.ChannelConnectivity.READY:
        if state in (grpc.ChannelConnectivity.TRANSIENT_FAILURE, grpc.ChannelConnectivity.SHUTDOWN):
            raise BookieUnavailable(f"{address} refuses connections")
        await channel.wait_for_state_change(state)
        state = channel.get_state()
