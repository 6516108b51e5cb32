"""Gateways on a simulated cluster, and clients of their stream service.

async with gateways(cluster, 2) as [one, two]:
    call = AppendCall(opening(), records(lines(5)), CLOSE)
    await one.call("Append", call)
    call.positions()
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from google.protobuf.message import Message
from google.rpc.error_details_pb2 import ErrorInfo
from google.rpc.status_pb2 import Status

from tallybook.client.background import client_tasks
from tallybook.client.client import Client
from tallybook.core.access import Access, OpenAccess
from tallybook.core.errors import InvariantViolation
from tallybook.core.limits import KIB
from tallybook.core.settings import GatewaySettings
from tallybook.gateway.auth import Authorizer
from tallybook.gateway.context import GatewayContext
from tallybook.gateway.limits import GatewayLimits
from tallybook.gateway.metrics import GATEWAY_METRICS, GatewayCounters, GatewayNumbers
from tallybook.gateway.streams.service import StreamService
from tallybook.gateway.streams.stores import StreamStores
from tallybook.proto import stream_pb2 as pb
from tallybook.runtime.calls import CallFailed
from tallybook.runtime.metrics.histogram import Histogram
from tallybook.runtime.security.denial_log import DenialLog

from .gateway_calls import FakeCall
from .ledger_scenario import SMALL
from .memory_cluster import MemoryCluster

CLOSE = pb.StreamAppendRequest(close=pb.StreamAppendClose())
COMMIT = pb.StreamAppendRequest(commit=pb.StreamCommit())
NO_WAIT = {"wait_ms": 0}
SEEN_SECONDS = 0.5
"""After so long without appends readers see all records."""


def opening(name: str = "s", **more: Any) -> pb.StreamAppendRequest:
    """The first message of an Append."""
    return pb.StreamAppendRequest(open=pb.StreamAppendOpen(**{"name": name, "credit_bytes": 32 * KIB, **more}))


def records(payloads: list[bytes], *, ids: bool = False, **more: Any) -> pb.StreamAppendRequest:
    """A message with records; ``ids`` gives them dedup ids."""
    found = [pb.NewRecord(payload=each, dedup_id=each if ids else None) for each in payloads]
    return pb.StreamAppendRequest(records=found, **more)


class AppendCall(FakeCall[pb.StreamAppendReply]):
    """A client that appends."""

    def __init__(self, *requests: pb.StreamAppendRequest) -> None:
        super().__init__(pb.StreamAppendReply)
        self.say(*requests)

    def acked(self) -> int:
        """Number of acknowledged records."""
        return sum(reply.ack.count for reply in self.replies)

    def positions(self) -> list[str]:
        """Positions of the acknowledged records, in the order in which they were sent."""
        found = []
        for run in (run for reply in self.replies for run in reply.ack.positions):
            front, _, tag = run.first.partition("@")
            place, _, slot = front.rpartition("-")
            found += [f"{place}-{int(slot) + more}@{tag}" for more in range(run.count)]
        return found

    def last(self) -> str | None:
        """Kind of the last reply."""
        return self.replies[-1].WhichOneof("step") if self.replies else None


class SimGateway:
    """One gateway, with the calls to it."""

    def __init__(
        self, cluster: MemoryCluster, name: str, client: Client, access: Access | None = None, **settings: Any
    ) -> None:
        self.client = client
        chosen = GatewaySettings(metadata="memory:", client=SMALL.model_dump(), **settings)
        self.tasks = client_tasks(name)
        self.limits, self.counts = GatewayLimits(chosen), GatewayCounters()
        self.stores = StreamStores(client, name, self.tasks, int(chosen.max_id_bytes))
        self.numbers = GatewayNumbers(self.counts, self.limits.total, chosen, self.stores.ids)
        self._clock = cluster.world.clock
        access = access or OpenAccess()
        authorizer = Authorizer(access, client, DenialLog(self._clock, access))
        context = GatewayContext(client, chosen, self.limits, self.counts, self._clock, self.tasks, authorizer)
        self.service = StreamService(self.stores, context)
        self._calls = client_tasks("calls")
        self._dead = False

    def call(self, method: str, call: FakeCall[Any]) -> asyncio.Task[None]:
        """Begin a call."""

        async def serve() -> None:
            await self.service.handlers()[method](call)

        return self._calls.spawn(serve(), name=method)

    async def ask(self, method: str, request: Message, kind: type[Any]) -> Any:
        """Make a unary call and return its reply."""
        call = FakeCall(kind)
        call.say(request)
        await self.call(method, call)
        return call.replies[0]

    async def describe(self, name: str = "s") -> pb.StreamDescription:
        """Describe a stream, after readers can see all of it."""
        await self._clock.sleep(SEEN_SECONDS)
        found: pb.StreamDescription = await self.ask(
            "Describe", pb.DescribeStreamRequest(name=name), pb.StreamDescription
        )
        return found

    async def payloads(self, name: str = "s") -> list[bytes]:
        """All payloads of a stream, after readers can see them."""
        await self._clock.sleep(SEEN_SECONDS)
        return [each.payload async for each in self.stores.default.reader(name, follow=False)]

    async def pause(self) -> None:
        """Wait a millisecond."""
        await self._clock.sleep(0.001)

    def number(self, name: str) -> float:
        """Value of one metric; of a histogram its number of values."""
        found = GATEWAY_METRICS.readings(self.numbers)[name]
        return found.count if isinstance(found, Histogram) else found

    def idle(self) -> bool:
        """Whether no call is active and no memory is reserved."""
        busy = ("writers", "reserved_bytes", "streams", "subscribed", "open_StreamService/Append")
        return not any(map(self.number, busy))

    async def die(self) -> None:
        """End at once like a killed process: nothing is closed."""
        # The stream store must not do any more work either.
        await self.stores.default._tasks.close()
        await self._calls.close()
        await self.tasks.close()
        self.service._writers.abandon()
        self._dead = True

    async def close(self) -> None:
        """Stop."""
        if self._dead:
            return
        await self._calls.close()
        await self.service.stop()
        await self.tasks.close()
        await self.stores.close()


@asynccontextmanager
async def gateways(cluster: MemoryCluster, count: int = 1, **settings: Any) -> AsyncIterator[list[SimGateway]]:
    """Gateways of one cluster that has a stream ``s``."""
    clients = [cluster.client(SMALL) for _ in range(count)]
    found = [SimGateway(cluster, f"10.0.0.{index}:7450", client, **settings) for index, client in enumerate(clients)]
    await found[0].ask("Create", pb.CreateStreamRequest(name="s"), pb.Stream)
    try:
        yield found
    finally:
        for gateway in found:
            await gateway.close()
        for client in clients:
            await client.close()


async def refusal(serving: asyncio.Task[None]) -> tuple[int, str, dict[str, str]]:
    """Status code, reason and metadata of a failed call."""
    try:
        await serving
    except CallFailed as failed:
        info = ErrorInfo()
        Status.FromString(failed.details).details[0].Unpack(info)
        return failed.code, info.reason, dict(info.metadata)
    raise InvariantViolation("the call has not failed")
