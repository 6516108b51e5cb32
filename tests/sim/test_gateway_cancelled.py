"""Gateway calls whose client disconnects at any moment: no resources stay reserved."""

from __future__ import annotations

from tallybook.client.client import Client
from tallybook.proto import stream_pb2 as pb

from ..simulated import scenario
from ..support.cancellation import each_cut
from ..support.gateway_calls import FakeCall
from ..support.gateways import CLOSE, AppendCall, gateways, opening, records
from ..support.ledger_scenario import eventually
from ..support.memory_cluster import MemoryCluster


@scenario()
async def test_an_append_that_is_cancelled_at_any_of_its_awaits_holds_nothing_and_loses_no_ack(
    cluster: MemoryCluster, client: Client
) -> None:
    async with gateways(cluster, writer_idle_ms=10) as [gateway]:
        calls: list[AppendCall] = []

        def begin():
            payload = b"%d" % len(calls)
            calls.append(AppendCall(opening(), records([payload, payload]), CLOSE))
            return gateway.service.handlers()["Append"](calls[-1])

        cuts = [at async for at in each_cut(begin)]
        assert len(cuts) >= 2
        assert calls[-1].acked() == 2, "the one that was not cancelled is served"
        await eventually(gateway.idle, cluster)
        found = await gateway.payloads()
        for number, call in enumerate(calls):
            assert found.count(b"%d" % number) >= call.acked(), "what was acked is there"
            assert found.count(b"%d" % number) <= 2


@scenario()
async def test_a_read_that_is_cancelled_at_any_of_its_awaits_holds_nothing(
    cluster: MemoryCluster, client: Client
) -> None:
    async with gateways(cluster, writer_idle_ms=10) as [gateway]:
        await gateway.call("Append", AppendCall(opening(), records([b"one", b"two"]), CLOSE))
        await eventually(gateway.idle, cluster)
        calls: list[FakeCall[pb.ReadStreamReply]] = []

        def begin():
            calls.append(FakeCall(pb.ReadStreamReply))
            calls[-1].say(pb.ReadStreamRequest(name="s"))
            return gateway.service.handlers()["Read"](calls[-1])

        cuts = [at async for at in each_cut(begin)]
        assert len(cuts) >= 2
        assert [each.payload for reply in calls[-1].replies for each in reply.records.records] == [b"one", b"two"]
        await eventually(gateway.idle, cluster)
        assert await gateway.payloads() == [b"one", b"two"]
