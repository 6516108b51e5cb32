"""Resources of a gateway that streams use while they are written: writers, dedup ids, memory."""

from __future__ import annotations

import asyncio

import pytest
from google.protobuf.message import Message
from google.rpc import code_pb2

from tallybook.client.client import Client
from tallybook.core.limits import KIB, MIB
from tallybook.gateway.streams.writers import CLOSE_SECONDS
from tallybook.proto import stream_pb2 as pb
from tallybook.sim.memory_bookie.bookie import MemoryBookie
from tallybook.stream import StreamStore
from tallybook.stream.records.record import Outgoing

from ..simulated import scenario
from ..support.gateway_calls import FakeCall, caller
from ..support.gateways import CLOSE, COMMIT, AppendCall, SimGateway, gateways, opening, records, refusal
from ..support.ledger_scenario import eventually, lines
from ..support.memory_cluster import MemoryCluster
from .parts import hold_commits, release_commits


@scenario()
async def test_only_so_many_streams_are_written_through_one_gateway(cluster: MemoryCluster, client: Client) -> None:
    async with gateways(cluster, max_writers=1, writer_idle_ms=100) as [gateway]:
        await gateway.ask("Create", pb.CreateStreamRequest(name="other"), pb.Stream)
        call = AppendCall(opening())
        serving = gateway.call("Append", call)
        await eventually(lambda: bool(call.replies), cluster)
        refused = gateway.call("Append", AppendCall(opening("other")))
        assert (await refusal(refused))[:2] == (code_pb2.RESOURCE_EXHAUSTED, "Busy")
        call.say(CLOSE)
        await serving
        await eventually(gateway.idle, cluster)
        await gateway.call("Append", AppendCall(opening("other"), CLOSE))


@scenario()
async def test_the_least_recently_used_writer_makes_space_for_another_stream(
    cluster: MemoryCluster, client: Client
) -> None:
    async with gateways(cluster, max_writers=2, writer_idle_ms=600_000) as [gateway]:
        for name in ("b", "c"):
            await gateway.ask("Create", pb.CreateStreamRequest(name=name), pb.Stream)
        for name in ("s", "b", "s", "c"):
            await gateway.call("Append", AppendCall(opening(name), records([b"one"]), CLOSE))
        owners = [(await gateway.describe(name)).stream.owner for name in ("s", "b", "c")]
        assert owners == ["10.0.0.0:7450", "", "10.0.0.0:7450"]
        assert gateway.number("writers") == 2
        for name in ("b", "s", "c"):
            calls = [AppendCall(opening(name), records([b"two"]), CLOSE) for _ in range(3)]
            await asyncio.gather(*(gateway.call("Append", call) for call in calls))
            assert [call.acked() for call in calls] == [1] * 3
        owners = [(await gateway.describe(name)).stream.owner for name in ("s", "b", "c")]
        assert owners == ["10.0.0.0:7450", "", "10.0.0.0:7450"]


@scenario()
async def test_waiting_for_a_writer_that_cannot_be_closed_ends_with_an_error_in_time(
    cluster: MemoryCluster, client: Client
) -> None:
    async with gateways(cluster, writer_idle_ms=0, max_writers=1) as [gateway]:
        await gateway.ask("Create", pb.CreateStreamRequest(name="other"), pb.Stream)
        gone = AppendCall(opening())
        serving = gateway.call("Append", gone)
        await eventually(lambda: bool(gone.replies), cluster)
        hold_commits(cluster)
        gone.say(records([b"one"]))
        await cluster.world.clock.sleep(0.01)
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        began = cluster.world.clock.monotonic()
        waiting = [gateway.call("Append", AppendCall(opening(name))) for name in ("s", "other")]
        for each in waiting:
            code, reason, metadata = await refusal(each)
            assert (code, reason) == (code_pb2.DEADLINE_EXCEEDED, "RequestTimeout")
            assert (metadata["outcome"], metadata["retriable"]) == ("not done", "true")
        assert cluster.world.clock.monotonic() - began == pytest.approx(CLOSE_SECONDS, abs=1)
        release_commits(cluster)


@scenario()
async def test_dedup_ids_of_all_written_streams_stay_within_the_memory_limit(
    cluster: MemoryCluster, client: Client
) -> None:
    async with gateways(cluster, max_id_bytes=100 * KIB, writer_idle_ms=0) as [gateway]:
        await gateway.ask("Create", pb.CreateStreamRequest(name="other"), pb.Stream)
        wanted = lines(90)
        call = AppendCall(
            opening(), records(wanted[:50], ids=True), records(wanted[50:], ids=True), records([b"behind"])
        )
        code, reason, metadata = await refusal(gateway.call("Append", call))
        # The whole budget would not be enough, even without other streams.
        assert (code, reason, metadata["retriable"]) == (code_pb2.INVALID_ARGUMENT, "InvalidArgument", "false")
        assert call.acked() == 50
        assert await gateway.payloads() == wanted[:50]
        await eventually(gateway.idle, cluster)
        # What a stream has of ids comes back with its writer, and is given up with it.
        again = AppendCall(opening(), records(wanted[:50], ids=True))
        serving = gateway.call("Append", again)
        await eventually(lambda: again.acked() == 50, cluster)
        other = AppendCall(opening("other"), records(wanted[:60], ids=True), CLOSE)
        code, reason, metadata = await refusal(gateway.call("Append", other))
        assert (code, reason, metadata["retriable"]) == (code_pb2.RESOURCE_EXHAUSTED, "Busy", "true")
        again.say(CLOSE)
        await serving
        await eventually(gateway.idle, cluster)
        other = AppendCall(opening("other"), records(wanted[:60], ids=True), CLOSE)
        await gateway.call("Append", other)
        assert other.acked() == 60
        assert len(await gateway.payloads()) == 50


@scenario()
async def test_a_stream_whose_ids_never_fit_is_refused_before_its_writer_is_fenced(
    cluster: MemoryCluster, client: Client
) -> None:
    async with gateways(cluster, max_id_bytes=20 * KIB) as [gateway], StreamStore(client) as streams:
        async with await streams.writer("s") as writer:
            for number in range(30):
                await writer.append(b"by somebody else", dedup_id=b"%d" % number)
            await writer.flush()
            call = AppendCall(opening(take_over=True), records([b"x"]))
            assert (await refusal(gateway.call("Append", call)))[1] == "InvalidArgument"
            await writer.append(b"as before")
        assert len(await gateway.payloads()) == 31


@scenario()
async def test_a_stream_has_its_share_of_the_budget_though_all_its_clients_ask_while_there_is_no_room(
    cluster: MemoryCluster, client: Client
) -> None:
    async with StreamStore(client) as streams:
        await streams.create("burst")
        async with await streams.writer("burst") as writer:
            budget, most = client.budget, 0
            size = budget.limit_bytes // 100
            held = budget.limit_bytes - size
            assert budget.try_take(held)
            sending = [asyncio.ensure_future(writer.send([Outgoing(bytes(size))])) for _ in range(90)]
            await cluster.world.clock.sleep(0.01)
            hold_commits(cluster)
            budget.give(held)
            await cluster.world.clock.sleep(1)
            most = writer._flow.pending_bytes
            release_commits(cluster)
            await asyncio.gather(*sending)
            assert size < most < 0.6 * budget.limit_bytes


START = pb.StreamStart(sequence=0)
READING: dict[str, tuple[Message, type[Message]]] = {
    "Describe": (pb.DescribeStreamRequest(name="s"), pb.StreamDescription),
    "Truncate": (pb.TruncateStreamRequest(name="s", before=START), pb.Stream),
    "ListSubscriptions": (pb.ListSubscriptionsRequest(name="s"), pb.ListSubscriptionsReply),
    "ResetSubscription": (pb.ResetSubscriptionRequest(name="s", subscription="x", start=START), pb.Subscription),
}


@pytest.mark.parametrize("method", READING)
@scenario()
async def test_a_call_with_one_answer_that_reads_a_stream_reserves_what_it_reads_and_is_no_stream(
    cluster: MemoryCluster, client: Client, *, method: str
) -> None:
    async with gateways(cluster, max_connection_streams=1, max_connection_bytes=8 * MIB) as [gateway]:
        await gateway.call("Append", AppendCall(opening(), records(lines(3)), COMMIT, CLOSE))
        subscribed: FakeCall[pb.SubscribeReply] = FakeCall(pb.SubscribeReply)
        subscribed.say(pb.SubscribeRequest(open=pb.SubscribeOpen(name="s", subscription="x")))
        subscribed.end()
        await gateway.call("Subscribe", subscribed)
        with gateway.limits.admit(caller("here"), 7 * MIB):
            request, kind = READING[method]
            call = FakeCall(kind)
            call.say(request)
            assert (await refusal(gateway.call(method, call)))[:2] == (code_pb2.RESOURCE_EXHAUSTED, "Busy")
        with gateway.limits.admit(caller("here"), MIB):
            await gateway.ask(method, *READING[method])
        assert gateway.limits.total.reserved_bytes == 0


async def _opened(gateway: SimGateway, cluster: MemoryCluster, name: str) -> tuple[AppendCall, MemoryBookie]:
    """Open a stream on a single bookie; return the call and the bookie."""
    policy = pb.StreamPolicy(ensemble=1, write_quorum=1, ack_quorum=1)
    await gateway.ask("Create", pb.CreateStreamRequest(name=name, policy=policy), pb.Stream)
    before = {each async for each in gateway.client.list_ledgers()}
    call = AppendCall(opening(name), records([b"first"]))
    gateway.call("Append", call)
    await eventually(lambda: call.acked() == 1, cluster)
    [ledger_id] = [each async for each in gateway.client.list_ledgers() if each not in before]
    [bookie] = [each for each in cluster.bookies.values() if each.durable_batches(ledger_id)]
    return call, bookie


@scenario()
async def test_a_stream_with_slow_bookies_leaves_memory_for_the_others_of_its_gateway(
    cluster: MemoryCluster, client: Client
) -> None:
    async with gateways(cluster) as [gateway]:
        slow, away = await _opened(gateway, cluster, "slow")
        quick, bookie = slow, away
        for number in range(20):
            if bookie is not away:
                break
            quick, bookie = await _opened(gateway, cluster, f"quick{number}")
        away.hold_commits()
        more = [AppendCall(opening("slow")) for _ in range(4)]
        for call in more:
            call.say(records([bytes(900)] * 20))
            gateway.call("Append", call)
        await eventually(lambda: all(call.replies for call in more), cluster)
        await cluster.world.clock.sleep(0.1)
        quick.say(records([bytes(900)] * 20))
        await eventually(lambda: quick.acked() == 21, cluster, 1)
        assert slow.acked() + sum(call.acked() for call in more) == 1
        away.release_commits()
        await eventually(lambda: all(call.acked() == 20 for call in more), cluster)
        flows = [shared.writer._flow for shared in gateway.service._writers._shared.values()]
        await eventually(lambda: not any(flow.pending_bytes for flow in flows), cluster)
