"""Append of ``StreamService`` on a simulated cluster: shared writers, disconnects, takeovers, gateway crashes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from google.rpc import code_pb2

from tallybook.client.client import Client
from tallybook.core.limits import KIB, MIB
from tallybook.proto import stream_pb2 as pb
from tallybook.stream import StreamStore

from ..sampling import sample
from ..simulated import scenario
from ..support.gateways import (
    CLOSE,
    COMMIT,
    NO_WAIT,
    SEEN_SECONDS,
    AppendCall,
    SimGateway,
    gateways,
    opening,
    records,
    refusal,
)
from ..support.ledger_scenario import eventually, lines
from ..support.memory_cluster import MemoryCluster
from .parts import hold_commits, release_commits


def told(call: AppendCall, count: int) -> Callable[[], bool]:
    return lambda: call.acked() >= count


@scenario()
async def test_a_call_that_does_not_say_what_it_wants_is_ended(cluster: MemoryCluster, client: Client) -> None:
    async with gateways(cluster) as [gateway]:
        code, reason, _ = await refusal(gateway.call("Append", AppendCall()))
        assert (code, reason) == (code_pb2.DEADLINE_EXCEEDED, "RequestTimeout")


# --- appending --------------------------------------------------------------------------------------------------------


@scenario()
async def test_records_are_acknowledged_in_order_with_their_positions_and_read_back(
    cluster: MemoryCluster, client: Client
) -> None:
    async with gateways(cluster) as [gateway]:
        rich = pb.NewRecord(payload=b"rich", key=b"k", timestamp_ms=17, txid=5, dedup_id=b"d")
        call = AppendCall(opening(), records(lines(50)), pb.StreamAppendRequest(records=[rich]))
        call.say(records([b"a", b"b"], set=True), records([b"last"], close=pb.StreamAppendClose()))
        await gateway.call("Append", call)
        assert call.replies[0].opened.window.credit_bytes == 32 * KIB
        assert call.acked() == 54
        assert call.last() == "closed"
        await cluster.world.clock.sleep(SEEN_SECONDS)
        found = [each async for each in gateway.stores.default.reader("s", follow=False)]
        assert [each.payload for each in found] == [*lines(50), b"rich", b"a", b"b", b"last"]
        assert [str(each.position) for each in found] == call.positions()
        assert call.replies[-1].closed.last_position == str(found[-1].position)
        assert (found[50].key, found[50].timestamp_ms, found[50].txid, found[50].dedup_id) == (b"k", 17, 5, b"d")
        assert found[51].position.entry == found[52].position.entry
        assert sum(reply.ack.credit_bytes for reply in call.replies) == sum(
            len(each.payload) + 256 + len(each.key or b"") + len(each.dedup_id or b"") for each in found
        )
        described = await gateway.describe()
        assert (described.first_position, described.last_position) == (call.positions()[0], call.positions()[-1])
        assert (described.first_sequence, described.next_sequence, described.record_count) == (0, 54, 54)
        assert described.stream.owner == "10.0.0.0:7450"


@scenario()
async def test_a_commit_is_answered_when_readers_see_the_sent_records(cluster: MemoryCluster, client: Client) -> None:
    async with gateways(cluster) as [gateway]:
        call = AppendCall(opening(), records(lines(3)), COMMIT)
        serving = gateway.call("Append", call)
        await eventually(lambda: call.last() == "committed", cluster)
        assert [reply.WhichOneof("step") for reply in call.replies] == ["opened", "ack", "committed"]
        assert await gateway.payloads() == lines(3)
        call.end()
        await serving
        assert call.last() == "closed"


@scenario()
async def test_all_appending_calls_share_one_writer_which_stays_for_a_while(
    cluster: MemoryCluster, client: Client
) -> None:
    async with gateways(cluster, writer_idle_ms=3_000) as [gateway]:
        calls = [AppendCall(opening()) for _ in range(5)]
        serving = [gateway.call("Append", call) for call in calls]
        for number in range(20):
            for index, call in enumerate(calls):
                call.say(records([b"%d-%d-%d" % (index, number, each) for each in range(3)]))
        for call in calls:
            call.say(CLOSE)
        await asyncio.gather(*serving)
        found = await gateway.payloads()
        assert len(found) == len(set(found)) == 300
        for index, call in enumerate(calls):
            assert call.acked() == 60
            mine = [each for each in found if each.startswith(b"%d-" % index)]
            assert mine == [b"%d-%d-%d" % (index, number, each) for number in range(20) for each in range(3)]
        for first in range(0, 300, 3):
            # Records of one message follow each other.
            assert len({each.rpartition(b"-")[0] for each in found[first : first + 3]}) == 1
        assert gateway.number("writers") == 1
        before = (await gateway.describe()).stream
        await gateway.call("Append", AppendCall(opening(), records([b"more"]), CLOSE))
        assert (await gateway.describe()).stream == before, "the same writer, the same segment"
        await eventually(gateway.idle, cluster, 5)
        assert not (await gateway.describe()).stream.owner


@pytest.mark.parametrize("seed", [*sample(range(6))])
def test_a_client_that_goes_at_any_moment_of_the_opening_leaves_no_writer_and_no_owner(seed: int) -> None:
    @scenario(seed=seed)
    async def play(cluster: MemoryCluster, client: Client) -> None:
        async with gateways(cluster, writer_idle_ms=0) as [gateway]:
            for pause in range(14):
                serving = gateway.call("Append", AppendCall(opening(take_over=pause % 2 == 0)))
                await cluster.world.clock.sleep(pause * 0.0015)
                serving.cancel()
                await asyncio.gather(serving, return_exceptions=True)
            await eventually(gateway.idle, cluster)
            await cluster.world.clock.sleep(1)
            assert not (await gateway.describe()).stream.owner
            await gateway.call("Append", AppendCall(opening(**NO_WAIT), records(lines(1)), CLOSE))
            assert await gateway.payloads() == lines(1)

    play()


@scenario()
async def test_unacknowledged_records_of_a_disconnected_client_are_sent_again_and_stored_once(
    cluster: MemoryCluster, client: Client
) -> None:
    async with gateways(cluster) as [gateway]:
        wanted = lines(100)
        call = AppendCall(opening(), *(records(wanted[at : at + 5], ids=True) for at in range(0, 100, 5)))
        serving = gateway.call("Append", call)
        await eventually(told(call, 10), cluster)
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        acked = call.acked()
        again = AppendCall(opening(), *(records(wanted[at : at + 5], ids=True) for at in range(acked, 100, 5)), CLOSE)
        await gateway.call("Append", again)
        assert await gateway.payloads() == wanted
        assert len(call.positions() + again.positions()) == len(set(call.positions() + again.positions())) == 100


@scenario()
async def test_an_impossible_request_is_reported_after_the_acks_of_all_before_it(
    cluster: MemoryCluster, client: Client
) -> None:
    async with gateways(cluster) as [gateway]:
        late = pb.StreamAppendRequest(records=[pb.NewRecord(payload=b"fine"), pb.NewRecord(payload=b"late", txid=1)])
        many = records([b"x"] * 10_000, set=True)
        for bad, code, reason in (
            (late, code_pb2.INVALID_ARGUMENT, "OutOfOrder"),
            (records([b"fine", bytes(1_050_000)]), code_pb2.INVALID_ARGUMENT, "EntryTooLarge"),
            (records([bytes(600_000)] * 2, set=True), code_pb2.INVALID_ARGUMENT, "EntryTooLarge"),
            (pb.StreamAppendRequest(set=True), code_pb2.INVALID_ARGUMENT, "InvalidArgument"),
            (records([b"a", b"b"], if_position=""), code_pb2.INVALID_ARGUMENT, "InvalidArgument"),
            (records([b"a"], if_position="nowhere"), code_pb2.INVALID_ARGUMENT, "InvalidArgument"),
            (records([b"a"], if_position="1-1-1@00000000"), code_pb2.INVALID_ARGUMENT, "ForeignPosition"),
            (records([b"a"], if_position=""), code_pb2.FAILED_PRECONDITION, "PositionMismatch"),
            (opening(), code_pb2.INVALID_ARGUMENT, "InvalidArgument"),
            (many, code_pb2.RESOURCE_EXHAUSTED, "CreditExceeded"),
        ):
            before = await gateway.payloads()
            first = pb.StreamAppendRequest(records=[pb.NewRecord(payload=b"good", txid=7)])
            call = AppendCall(opening(credit_bytes=2 * MIB), first, bad, records([b"behind"]))
            assert (await refusal(gateway.call("Append", call)))[:2] == (code, reason)
            if reason != "CreditExceeded":
                assert call.acked() == 1
            await gateway.call("Append", AppendCall(opening(), records([b"next"]), CLOSE))
            assert await gateway.payloads() == [*before, b"good", b"next"], reason
        assert gateway.client.budget.taken_bytes == 0


@scenario()
async def test_a_record_that_bookies_do_not_take_any_more_fails_its_own_call_and_no_other_one(
    cluster: MemoryCluster, client: Client
) -> None:
    async with gateways(cluster) as [gateway]:
        good = AppendCall(opening(), records([b"first"]))
        serving = gateway.call("Append", good)
        await eventually(told(good, 1), cluster)
        bookie = cluster.bookies["bookie-1"]
        bookie.kill()
        good.say(records([b"second"]))
        await eventually(told(good, 2), cluster)
        bookie.max_batch_bytes = 400
        bookie.restart()
        await eventually(lambda: gateway.client.max_entry_bytes < 400, cluster)
        bad = AppendCall(opening(), records([b"acked"]), records([b"fine", b"x" * 600]), records([b"behind"]))
        good.say(records([b"%d" % at * 20 for at in range(20)]), CLOSE)
        code, reason, metadata = await refusal(gateway.call("Append", bad))
        assert (code, reason, metadata["outcome"]) == (code_pb2.INVALID_ARGUMENT, "EntryTooLarge", "not done")
        await serving
        assert (good.acked(), bad.acked()) == (22, 1)
        assert sorted(await gateway.payloads()) == sorted(
            [b"first", b"second", b"acked", *(b"%d" % at * 20 for at in range(20))]
        )


@scenario()
async def test_a_condition_holds_or_ends_the_call_with_where_the_stream_is(
    cluster: MemoryCluster, client: Client
) -> None:
    async with gateways(cluster) as [gateway]:
        call = AppendCall(opening(), records([b"one"], if_position=""))
        serving = gateway.call("Append", call)
        await eventually(told(call, 1), cluster)
        [one] = call.positions()
        call.say(records([b"two"], if_position=one))
        await eventually(told(call, 2), cluster)
        call.say(records([b"three"], if_position=one))
        code, reason, metadata = await refusal(serving)
        assert (code, reason) == (code_pb2.FAILED_PRECONDITION, "PositionMismatch")
        assert metadata["position"] == call.positions()[1]
        assert await gateway.payloads() == [b"one", b"two"]


@scenario()
async def test_a_client_that_takes_no_acks_is_cut_off_and_others_of_its_stream_are_not(
    cluster: MemoryCluster, client: Client
) -> None:
    async with gateways(cluster, slow_reader_ms=1_000) as [gateway]:
        slow, quick = AppendCall(opening()), AppendCall(opening())
        serving = [gateway.call("Append", call) for call in (slow, quick)]
        await eventually(lambda: bool(slow.replies and quick.replies), cluster)
        slow.taking.clear()
        slow.say(records(lines(5)))
        assert (await refusal(serving[0]))[:2] == (code_pb2.ABORTED, "ReaderTooSlow")
        quick.say(records(lines(5, 5)), CLOSE)
        await serving[1]
        assert await gateway.payloads() == lines(10)


@scenario()
async def test_records_sent_with_the_opening_are_limited_by_the_credit_while_the_stream_is_awaited(
    cluster: MemoryCluster, client: Client
) -> None:
    async with gateways(cluster, 2) as [one, two]:
        call = AppendCall(opening())
        one.call("Append", call)
        await eventually(lambda: bool(call.replies), cluster)
        before = cluster.world.clock.monotonic()
        large = pb.StreamAppendRequest(open=opening(credit_bytes=1).open, records=[pb.NewRecord(payload=bytes(5_000))])
        assert (await refusal(two.call("Append", AppendCall(large))))[1] == "CreditExceeded"
        assert cluster.world.clock.monotonic() - before < 1
        assert two.idle()


@scenario()
async def test_a_stream_that_is_ended_refuses_more_and_loses_nothing(cluster: MemoryCluster, client: Client) -> None:
    async with gateways(cluster) as [gateway]:
        call = AppendCall(opening(), records(lines(5)))
        serving = gateway.call("Append", call)
        await eventually(lambda: bool(call.replies), cluster)
        ended = await gateway.ask("End", pb.EndStreamRequest(name="s"), pb.Stream)
        assert ended.ended
        call.say(records([b"more"]))
        assert (await refusal(serving))[:2] == (code_pb2.FAILED_PRECONDITION, "StreamEnded")
        assert call.acked() == 5
        assert (await gateway.ask("End", pb.EndStreamRequest(name="s"), pb.Stream)).ended
        assert (await refusal(gateway.call("Append", AppendCall(opening()))))[1] == "StreamEnded"
        assert await gateway.payloads() == lines(5)


@scenario()
async def test_an_append_while_a_stream_is_ended_waits_and_takes_no_ack_of_another_call(
    cluster: MemoryCluster, client: Client
) -> None:
    async with gateways(cluster) as [gateway]:
        call = AppendCall(opening())
        serving = gateway.call("Append", call)
        await eventually(lambda: bool(call.replies), cluster)
        hold_commits(cluster)
        call.say(records(lines(5)))
        ends = []
        for _ in range(2):
            await cluster.world.clock.sleep(0.05)
            ends.append(asyncio.create_task(gateway.ask("End", pb.EndStreamRequest(name="s"), pb.Stream)))
        coming = gateway.call("Append", AppendCall(opening(take_over=True)))
        await cluster.world.clock.sleep(0.05)
        release_commits(cluster)
        for ending in ends:
            assert (await ending).ended
        assert (await refusal(coming))[1] == "StreamEnded"
        await eventually(told(call, 5), cluster)
        call.say(CLOSE)
        await serving
        assert call.last() == "closed"
        assert await gateway.payloads() == lines(5)


@scenario()
async def test_a_gateway_that_stops_has_ended_the_stream_that_it_was_ending(
    cluster: MemoryCluster, client: Client
) -> None:
    async with gateways(cluster) as [gateway]:
        call = AppendCall(opening())
        gateway.call("Append", call)
        await eventually(lambda: bool(call.replies), cluster)
        hold_commits(cluster)
        call.say(records(lines(5)))
        await cluster.world.clock.sleep(0.05)
        ending = asyncio.create_task(gateway.ask("End", pb.EndStreamRequest(name="s"), pb.Stream))
        await cluster.world.clock.sleep(0.05)
        stopping = asyncio.create_task(gateway.service.stop())
        await cluster.world.clock.sleep(0.05)
        release_commits(cluster)
        await stopping
        assert (await gateway.stores.default.info("s")).sealed
        assert (await ending).ended


@scenario()
async def test_a_waiting_append_gets_its_stream_although_the_name_is_given_to_another(
    cluster: MemoryCluster, client: Client
) -> None:
    async with gateways(cluster, writer_idle_ms=0) as [gateway]:
        gone = AppendCall(opening())
        serving = gateway.call("Append", gone)
        await eventually(lambda: bool(gone.replies), cluster)
        hold_commits(cluster)
        gone.say(records([b"one"]))
        await cluster.world.clock.sleep(0.01)
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        # Its writer is closed, which takes as long as its last append.
        first = AppendCall(opening(), records([b"two"]))
        waiting = gateway.call("Append", first)
        await cluster.world.clock.sleep(0.01)
        await gateway.ask("Rename", pb.RenameStreamRequest(name="s", new_name="renamed"), pb.Stream)
        await gateway.ask("Create", pb.CreateStreamRequest(name="s"), pb.Stream)
        release_commits(cluster)
        await eventually(told(first, 1), cluster)
        await gateway.call("Append", AppendCall(opening("renamed"), records([b"three"]), CLOSE))
        await gateway.call("Append", AppendCall(opening("s"), records([b"new"]), CLOSE))
        first.say(CLOSE)
        await waiting
        assert await gateway.payloads("renamed") == [b"one", b"two", b"three"]
        assert await gateway.payloads("s") == [b"new"]


# --- takeovers --------------------------------------------------------------------------------------------------------


@scenario()
async def test_an_append_at_another_gateway_waits_and_gets_the_owner(cluster: MemoryCluster, client: Client) -> None:
    async with gateways(cluster, 2, writer_idle_ms=1_000) as [one, two]:
        first = AppendCall(opening(), records(lines(5)))
        serving = one.call("Append", first)
        await eventually(told(first, 5), cluster)
        code, reason, metadata = await refusal(two.call("Append", AppendCall(opening(wait_ms=2_000))))
        assert (code, reason) == (code_pb2.UNAVAILABLE, "StreamOwned")
        assert (metadata["owner"], metadata["retriable"]) == ("10.0.0.0:7450", "true")
        assert (await refusal(two.call("Append", AppendCall(opening(**NO_WAIT)))))[2]["owner"] == "10.0.0.0:7450"
        second = AppendCall(opening(), records(lines(5, 5)), CLOSE)
        waiting = two.call("Append", second)
        await cluster.world.clock.sleep(3)
        first.say(CLOSE)
        await serving
        await waiting
        assert first.last() == second.last() == "closed"
        assert await two.payloads() == lines(10)
        assert one.number("writers_fenced") == 0


@scenario()
async def test_a_writer_that_is_fenced_ends_all_its_clients_calls_with_the_typed_error(
    cluster: MemoryCluster, client: Client
) -> None:
    async with gateways(cluster) as [gateway], StreamStore(client, name="native") as streams:
        calls = [AppendCall(opening(), records(lines(5, 5 * index))) for index in range(3)]
        serving = [gateway.call("Append", call) for call in calls]
        await eventually(lambda: all(call.acked() == 5 for call in calls), cluster)
        async with await streams.writer("s") as writer:
            await writer.append(b"native")
            for call, each in zip(calls, serving, strict=True):
                call.say(records([b"lost"]))
                assert (await refusal(each))[:2] == (code_pb2.ABORTED, "StreamFenced")
            assert gateway.number("writers_fenced") == 1
            refused = gateway.call("Append", AppendCall(opening(wait_ms=500)))
            assert (await refusal(refused))[2]["owner"] == "native"
        await gateway.call("Append", AppendCall(opening(), records([b"after"]), CLOSE))
        found = await gateway.payloads()
        assert sorted(found[:15]) == sorted(lines(15))
        assert found[15:] == [b"native", b"after"]


@scenario()
async def test_clients_of_two_gateways_that_both_insist_do_not_fight_for_a_stream(
    cluster: MemoryCluster, client: Client
) -> None:
    async with gateways(cluster, 2) as both:
        clock, swaps = cluster.world.clock, 0
        until = clock.monotonic() + 60

        async def insist(gateway: SimGateway) -> None:
            nonlocal swaps
            while clock.monotonic() < until:
                call = AppendCall(opening(take_over=True))
                serving = gateway.call("Append", call)
                while not serving.done():
                    call.say(records([b"more"]) if clock.monotonic() < until else CLOSE)
                    await clock.sleep(0.2)
                swaps += bool(call.replies)
                await asyncio.gather(serving, return_exceptions=True)

        await asyncio.gather(*map(insist, both))
        assert 3 <= swaps <= 9, "about one in ten seconds"


@pytest.mark.parametrize("seed", range(4))
def test_when_a_gateway_dies_its_client_continues_at_another_and_nothing_is_lost_or_duplicated(seed: int) -> None:
    @scenario(seed=seed)
    async def play(cluster: MemoryCluster, client: Client) -> None:
        async with gateways(cluster, 2) as [one, two]:
            wanted = lines(200)
            call = AppendCall(opening(), *(records(wanted[at : at + 4], ids=True) for at in range(0, 100, 4)))
            serving = one.call("Append", call)
            await eventually(told(call, 20 + seed), cluster)
            await one.die()
            assert serving.done()
            began, acked = cluster.world.clock.monotonic(), call.acked()
            messages = [records(wanted[at : at + 4], ids=True) for at in range(acked, 200, 4)]
            again = AppendCall(opening(credit_bytes=64 * KIB), *messages, CLOSE)
            await two.call("Append", again)
            assert cluster.world.clock.monotonic() - began < 15
            assert await two.payloads() == wanted
            assert len(set(call.positions() + again.positions())) == 200
            found = [str(each.position) async for each in two.stores.default.reader("s", follow=False)]
            assert found == call.positions() + again.positions()

    play()


@scenario()
async def test_a_client_that_takes_the_stream_does_not_wait_for_a_gateway_that_died(
    cluster: MemoryCluster, client: Client
) -> None:
    async with gateways(cluster, 2) as [one, two]:
        call = AppendCall(opening(), records(lines(5)))
        one.call("Append", call)
        await eventually(told(call, 5), cluster)
        patient = AppendCall(opening(), records(lines(5, 5)), CLOSE)
        waiting = two.call("Append", patient)
        await cluster.world.clock.sleep(0.5)
        began = cluster.world.clock.monotonic()
        eager = AppendCall(opening(take_over=True), CLOSE)
        await two.call("Append", eager)
        await waiting
        assert cluster.world.clock.monotonic() - began < 2, "a waiting writer takes over a released stream"
        assert await two.payloads() == lines(10)


@scenario()
async def test_a_gateway_that_stops_ends_its_calls_and_releases_its_streams(
    cluster: MemoryCluster, client: Client
) -> None:
    async with gateways(cluster, 2) as [one, two]:
        call = AppendCall(opening(), records(lines(5)))
        serving = one.call("Append", call)
        await eventually(lambda: bool(call.replies), cluster)
        await one.service.stop()
        await serving
        assert call.last() == "closed"
        assert one.idle()
        acked = call.acked()
        await two.call("Append", AppendCall(opening(**NO_WAIT), records(lines(5, acked)), CLOSE))
        assert await two.payloads() == lines(acked + 5)


@scenario()
async def test_a_client_that_closes_just_when_a_gateway_stops_learns_from_the_acks_what_is_stored(
    cluster: MemoryCluster, client: Client
) -> None:
    async with gateways(cluster) as [gateway]:
        call = AppendCall(opening(), records(lines(5)))
        serving = gateway.call("Append", call)
        await eventually(told(call, 5), cluster)
        await gateway.service.stop()
        # The client knows nothing of that yet.
        call.say(records(lines(5, 5)), CLOSE)
        await serving
        assert call.last() == "closed"
        assert call.acked() == 5, "what came later was never looked at"
        assert await gateway.payloads() == lines(5)


@scenario()
async def test_a_gateway_that_stops_waits_for_its_streams_no_longer_than_it_may(
    cluster: MemoryCluster, client: Client
) -> None:
    async with gateways(cluster, stop_ms=500) as [gateway]:
        call = AppendCall(opening(), records(lines(1)))
        serving = gateway.call("Append", call)
        await eventually(told(call, 1), cluster)
        hold_commits(cluster)
        call.say(records(lines(1, 1)))
        await cluster.world.clock.sleep(0.1)
        before = cluster.world.clock.monotonic()
        await gateway.service.stop()
        assert cluster.world.clock.monotonic() - before == pytest.approx(0.5, abs=0.1)
        await gateway.ask("Create", pb.CreateStreamRequest(name="late"), pb.Stream)
        late = AppendCall(opening("late"), records(lines(1)))
        gateway.call("Append", late)
        await eventually(lambda: bool(late.replies), cluster)
        before = cluster.world.clock.monotonic()
        await gateway.service.stop()
        assert cluster.world.clock.monotonic() == pytest.approx(before, abs=0.1), "its time was over"
        code, reason, metadata = await refusal(serving)
        assert (code, reason) == (code_pb2.DEADLINE_EXCEEDED, "RequestTimeout")
        assert (metadata["retriable"], metadata["outcome"]) == ("true", "unknown")
        release_commits(cluster)


@scenario()
async def test_a_waiting_append_gets_an_error_when_a_gateway_stops(cluster: MemoryCluster, client: Client) -> None:
    async with gateways(cluster, 2, stop_ms=500) as [one, two]:
        await one.ask("Create", pb.CreateStreamRequest(name="other"), pb.Stream)
        owning, call = AppendCall(opening()), AppendCall(opening("other"))
        one.call("Append", owning)
        serving = two.call("Append", call)
        await eventually(lambda: bool(owning.replies and call.replies), cluster)
        waiting = two.call("Append", AppendCall(opening()))
        hold_commits(cluster)
        call.say(records(lines(1)))
        await cluster.world.clock.sleep(0.1)
        await two.service.stop()
        for each in (serving, waiting):
            assert (await refusal(each))[1] == "RequestTimeout"
        assert two.idle()
        release_commits(cluster)
