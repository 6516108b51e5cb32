"""Append streams of a gateway on a simulated cluster: clients that disconnect, and bookies that fail."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from google.rpc import code_pb2
from google.rpc.error_details_pb2 import ErrorInfo
from google.rpc.status_pb2 import Status

from tallybook.client.background import client_tasks
from tallybook.client.client import Client
from tallybook.core.access import Access, OpenAccess
from tallybook.core.limits import KIB
from tallybook.core.settings import GatewaySettings
from tallybook.gateway.auth import Authorizer
from tallybook.gateway.context import GatewayContext
from tallybook.gateway.ledgers.service import LedgerService
from tallybook.gateway.limits import GatewayLimits
from tallybook.gateway.metrics import GatewayCounters
from tallybook.proto import ledger_pb2 as pb
from tallybook.runtime.calls import CallFailed
from tallybook.runtime.security.denial_log import DenialLog
from tallybook.runtime.tasks import Tasks

from ..sampling import sample
from ..simulated import scenario
from ..support.direct_connections import DirectConnection, DirectConnections
from ..support.gateway_calls import FakeCall
from ..support.ledger_scenario import SMALL, eventually, lines, read_all
from ..support.memory_cluster import MemoryCluster
from .parts import hold_commits, release_commits

CREATE = pb.AppendRequest(open=pb.AppendOpen(create=pb.CreateRequest(), credit_bytes=32 * KIB))
CLOSE = pb.AppendRequest(close=pb.AppendClose())


class AppendCall(FakeCall[pb.AppendReply]):
    """A client that writes a ledger."""

    def __init__(self) -> None:
        super().__init__(pb.AppendReply)

    def acked(self) -> int:
        return sum(reply.ack.count for reply in self.replies)

    def ledger_id(self) -> int:
        return self.replies[0].opened.ledger_id


class Stage:
    """A gateway with the calls to it."""

    def __init__(
        self, cluster: MemoryCluster, client: Client, tasks: Tasks, access: Access | None = None, **settings: Any
    ) -> None:
        chosen = GatewaySettings(metadata="memory:", client=SMALL.model_dump(), **settings)
        self.limits, self.counts = GatewayLimits(chosen), GatewayCounters()
        clock, access = cluster.world.clock, access or OpenAccess()
        authorizer = Authorizer(access, client, DenialLog(clock, access))
        self.service = LedgerService(GatewayContext(client, chosen, self.limits, self.counts, clock, tasks, authorizer))
        self._calls = client_tasks("calls")

    def call(self, method: str, call: AppendCall) -> asyncio.Task[None]:
        async def serve() -> None:
            await self.service.handlers()[method](call)

        return self._calls.spawn(serve(), name=method)

    async def close(self) -> None:
        """End every call."""
        await self._calls.close()

    def idle(self) -> bool:
        """Whether no ledger is being written and no memory is reserved."""
        total, appends = self.limits.total, self.counts.methods["LedgerService/Append"]
        return not (self.counts.writing or total.reserved_bytes or total.streams or appends.open)


@asynccontextmanager
async def stage(cluster: MemoryCluster, client: Client, **settings: Any) -> AsyncIterator[Stage]:
    tasks = client_tasks("gateway")
    gateway = Stage(cluster, client, tasks, **settings)
    try:
        yield gateway
    finally:
        await gateway.close()
        await tasks.close()


async def refusal(serving: asyncio.Task[None]) -> tuple[int, str]:
    """Status and reason with which a call ends."""
    with pytest.raises(CallFailed) as caught:
        await serving
    info = ErrorInfo()
    assert Status.FromString(caught.value.details).details[0].Unpack(info)
    return caught.value.code, info.reason


async def last_entry(client: Client, ledger_id: int) -> int | None:
    """Last entry id of a closed ledger."""
    metadata = await client.ledger_metadata(ledger_id)
    return metadata.last_entry_id if metadata.closed else None


@pytest.mark.parametrize("seed", [*sample(range(8))])
def test_a_client_that_goes_at_any_moment_of_the_opening_leaves_no_open_ledger(seed: int) -> None:
    @scenario(seed=seed)
    async def play(cluster: MemoryCluster, client: Client) -> None:
        async with stage(cluster, client) as gateway:
            for pause in range(12):
                call = AppendCall()
                call.say(CREATE)
                serving = gateway.call("Append", call)
                await cluster.world.clock.sleep(pause * 0.001)
                serving.cancel()
                await asyncio.gather(serving, return_exceptions=True)
            await eventually(gateway.idle, cluster)
            async for ledger_id in client.list_ledgers():
                assert await last_entry(client, ledger_id) == -1

    play()


@scenario()
async def test_acked_entries_are_in_the_ledger_of_a_client_that_disconnected_under_load(
    cluster: MemoryCluster, client: Client
) -> None:
    async with stage(cluster, client) as gateway:
        call = AppendCall()
        call.say(CREATE, *(pb.AppendRequest(payloads=lines(5, start)) for start in range(0, 100, 5)))
        serving = gateway.call("Append", call)
        await eventually(lambda: call.acked() >= 10, cluster)
        serving.cancel()
        await eventually(gateway.idle, cluster)
        last = await last_entry(client, call.ledger_id())
        assert last is not None
        assert call.acked() <= last + 1
        assert await read_all(client, call.ledger_id()) == lines(last + 1)
        assert gateway.counts.left_open == 0


@scenario()
async def test_a_stream_fails_with_its_quorum_and_its_ledger_ends_where_the_acks_did(
    cluster: MemoryCluster, client: Client
) -> None:
    async with stage(cluster, client) as gateway:
        call = AppendCall()
        call.say(CREATE, pb.AppendRequest(payloads=lines(5)))
        serving = gateway.call("Append", call)
        await eventually(lambda: call.acked() == 5, cluster)
        for name in ("bookie-0", "bookie-1"):
            cluster.die(name)
        call.say(pb.AppendRequest(payloads=lines(5, 5)))
        code, reason = await refusal(serving)
        assert (code, reason) == (code_pb2.UNAVAILABLE, "NotEnoughBookies")
        await eventually(gateway.idle, cluster)
        assert await last_entry(client, call.ledger_id()) == 4
        assert client.budget.taken_bytes == 0


@scenario()
async def test_a_client_that_takes_no_acks_is_cut_off_and_its_ledger_is_closed(
    cluster: MemoryCluster, client: Client
) -> None:
    async with stage(cluster, client, slow_reader_ms=1_000) as gateway:
        call = AppendCall()
        call.say(CREATE)
        serving = gateway.call("Append", call)
        await eventually(lambda: bool(call.replies), cluster)
        call.taking.clear()
        call.say(pb.AppendRequest(payloads=lines(5)))
        assert await refusal(serving) == (code_pb2.ABORTED, "ReaderTooSlow")
        await eventually(gateway.idle, cluster)
        assert await last_entry(client, call.ledger_id()) == 4


@scenario()
async def test_servers_that_do_not_keep_up_hold_a_stream_back_and_no_memory_grows(
    cluster: MemoryCluster, client: Client
) -> None:
    async with stage(cluster, client) as gateway:
        hold_commits(cluster)
        calls = [AppendCall() for _ in range(3)]
        serving = [gateway.call("Append", call) for call in calls]
        for call in calls:
            # Each keeps to its credit; together they want more than the client may hold.
            call.say(CREATE, *(pb.AppendRequest(payloads=[bytes(900)]) for _ in range(28)))
        await eventually(lambda: client.budget.taken_bytes > SMALL.max_pending_bytes - KIB, cluster)
        await cluster.world.clock.sleep(1)
        # The headers of batches come on top.
        assert client.budget.taken_bytes <= SMALL.max_pending_bytes + KIB
        assert sum(call.acked() for call in calls) == 0
        release_commits(cluster)
        for call in calls:
            call.say(CLOSE)
        await asyncio.gather(*serving)
        assert [call.acked() for call in calls] == [28, 28, 28]
        assert [await last_entry(client, call.ledger_id()) for call in calls] == [27, 27, 27]
        assert gateway.idle()


@scenario()
async def test_a_gateway_that_stops_waits_for_its_ledgers_no_longer_than_it_may(
    cluster: MemoryCluster, client: Client
) -> None:
    async with stage(cluster, client, stop_ms=500) as gateway:
        call = AppendCall()
        call.say(CREATE, pb.AppendRequest(payloads=lines(1)))
        gateway.call("Append", call)
        await eventually(lambda: call.acked() == 1, cluster)
        hold_commits(cluster)
        call.say(pb.AppendRequest(payloads=lines(1, 1)))
        await cluster.world.clock.sleep(0.1)
        before = cluster.world.clock.monotonic()
        for _ in range(2):
            await gateway.service.stop()
            assert cluster.world.clock.monotonic() - before == pytest.approx(0.5, abs=0.1), "in all"
        release_commits(cluster)
        await eventually(gateway.idle, cluster)
        assert call.replies[-1].closed.last_entry_id == 1
        assert gateway.idle()


@scenario()
async def test_a_payload_that_bookies_do_not_take_is_refused_before_any_of_its_message_is_appended(
    cluster: MemoryCluster, client: Client
) -> None:
    for bookie in cluster.bookies.values():
        bookie.max_batch_bytes = 8 * KIB
    async with stage(cluster, client) as gateway:
        call = AppendCall()
        call.say(CREATE)
        serving = gateway.call("Append", call)
        await eventually(lambda: bool(call.replies), cluster)
        call.say(pb.AppendRequest(payloads=[b"first"]))
        await eventually(lambda: call.acked() == 1, cluster)
        call.say(pb.AppendRequest(payloads=[b"small", b"x" * 10_000]))
        assert (await refusal(serving))[1] == "EntryTooLarge"
        await eventually(gateway.idle, cluster)
        assert await last_entry(client, call.ledger_id()) == 0


@scenario()
async def test_bookies_that_a_gateway_has_not_met_say_what_they_take_before_anything_is_appended(
    cluster: MemoryCluster, client: Client
) -> None:
    for bookie in cluster.bookies.values():
        bookie.max_batch_bytes = 8 * KIB
    connected = DirectConnections.get

    async def later(self: DirectConnections, bookie_id: str) -> DirectConnection:
        await cluster.world.clock.sleep(0.01)
        return await connected(self, bookie_id)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DirectConnections, "get", later)
        async with stage(cluster, client) as gateway:
            call = AppendCall()
            for request in (CREATE, *(pb.AppendRequest(payloads=each) for each in ([b"first"], [b"x" * 10_000]))):
                call.say(request)
            assert (await refusal(gateway.call("Append", call)))[1] == "EntryTooLarge"
            assert call.replies[0].opened.window.max_payload_bytes < 8 * KIB
            await eventually(gateway.idle, cluster)
            assert await last_entry(client, call.ledger_id()) == 0
