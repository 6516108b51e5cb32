"""Read, Subscribe and unary calls of ``StreamService``, on a simulated cluster."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from google.protobuf.message import Message
from google.rpc import code_pb2

from tallybook.client.client import Client
from tallybook.core.errors import NoSuchStream
from tallybook.core.limits import KIB, MIB
from tallybook.proto import stream_pb2 as pb
from tallybook.runtime.calls import CallFailed
from tallybook.stream import StreamStore

from ..simulated import scenario
from ..support.faulty_metadata import FaultyMetadataStore, MetadataFault
from ..support.gateway_calls import FakeCall, caller
from ..support.gateways import CLOSE, COMMIT, NO_WAIT, AppendCall, SimGateway, gateways, opening, records, refusal
from ..support.ledger_scenario import SMALL, eventually, lines
from ..support.memory_cluster import MemoryCluster

HOSTILE = ("", "/", "a//b", "..", "\x00", "line\nbreak", "e\u0301", "\u202e", " padded ", "x" * 256, "\N{DUCK}" * 64)


class Reading(FakeCall[pb.ReadStreamReply]):
    """A client that reads."""

    def __init__(self, **request: Any) -> None:
        super().__init__(pb.ReadStreamReply)
        self.say(pb.ReadStreamRequest(**{"name": "s", **request}))

    def payloads(self) -> list[bytes]:
        return [record.payload for reply in self.replies for record in reply.records.records]


class Subscribing(FakeCall[pb.SubscribeReply]):
    """A client that reads through a subscription."""

    def __init__(self, **opening: Any) -> None:
        super().__init__(pb.SubscribeReply)
        self.say(pb.SubscribeRequest(open=pb.SubscribeOpen(**{"name": "s", "subscription": "x", **opening})))

    def advance(self, position: str) -> None:
        self.say(pb.SubscribeRequest(advance=pb.Advance(position=position)))

    def payloads(self) -> list[bytes]:
        return [record.payload for reply in self.replies for record in reply.records.records]

    def positions(self) -> list[str]:
        return [record.position for reply in self.replies for record in reply.records.records]

    def advanced(self) -> list[str]:
        return [reply.advanced.position for reply in self.replies if reply.HasField("advanced")]


async def written(gateway: SimGateway, payloads: list[bytes], name: str = "s") -> list[str]:
    """Append visible records, each in its own entry; return their positions."""
    call = AppendCall(opening(name))
    serving = gateway.call("Append", call)
    for number, payload in enumerate(payloads):
        call.say(records([payload], set=True))
        while call.acked() <= number:
            await gateway.pause()
    call.say(COMMIT, CLOSE)
    await serving
    return call.positions()


# --- reading ----------------------------------------------------------------------------------------------------------


@scenario()
async def test_a_read_starts_where_it_was_asked_to(cluster: MemoryCluster, client: Client) -> None:
    async with gateways(cluster) as [gateway]:
        message = [
            pb.NewRecord(payload=b"%d" % number, timestamp_ms=1_000 + number, txid=number // 2) for number in range(20)
        ]
        call = AppendCall(opening(), pb.StreamAppendRequest(records=message), COMMIT, CLOSE)
        await gateway.call("Append", call)
        positions = call.positions()
        for start, first in (
            ({}, 0),
            ({"edge": pb.EDGE_EARLIEST}, 0),
            ({"edge": pb.EDGE_LATEST}, 20),
            ({"position": positions[7]}, 7),
            ({"after": positions[7]}, 8),
            ({"timestamp_ms": 1_005}, 5),
            ({"sequence": 19}, 19),
            ({"txid": 4}, 8),
        ):
            read = Reading(start=pb.StreamStart(**start))
            await gateway.call("Read", read)
            assert read.payloads() == [b"%d" % number for number in range(first, 20)], start
        small = Reading(max_bytes=1)
        await gateway.call("Read", small)
        assert [len(reply.records.records) for reply in small.replies] == [1] * 20
        record = small.replies[7].records.records[0]
        assert (record.position, record.sequence, record.timestamp_ms, record.txid) == (positions[7], 7, 1_007, 3)
        assert not record.HasField("key")
        assert not record.HasField("dedup_id")
        assert gateway.number("records_read") == 20 + 20 + 0 + 13 + 12 + 15 + 1 + 12 + 20


@scenario()
async def test_a_read_that_follows_gets_what_comes_and_ends_with_the_stream(
    cluster: MemoryCluster, client: Client
) -> None:
    async with gateways(cluster) as [gateway]:
        read = Reading(follow=True)
        serving = gateway.call("Read", read)
        await written(gateway, lines(5))
        await eventually(lambda: read.payloads() == lines(5), cluster)
        await gateway.ask("End", pb.EndStreamRequest(name="s"), pb.Stream)
        await serving
        assert read.payloads() == lines(5)


@scenario()
async def test_missing_records_are_reported_as_a_message_or_as_an_error(cluster: MemoryCluster, client: Client) -> None:
    async with gateways(cluster) as [gateway]:
        positions = await written(gateway, lines(10))
        before = pb.StreamStart(sequence=4)
        await gateway.ask("Truncate", pb.TruncateStreamRequest(name="s", before=before), pb.Stream)
        start = pb.StreamStart(position=positions[0])
        read = Reading(start=start, gaps_as_messages=True)
        await gateway.call("Read", read)
        gap = read.replies[0].gap
        assert (gap.reason, gap.next_sequence, gap.position) == (pb.GAP_REASON_TRUNCATED, 4, positions[0])
        assert not gap.HasField("first_sequence")
        assert read.payloads() == lines(6, 4)
        code, reason, metadata = await refusal(gateway.call("Read", Reading(start=start)))
        assert (code, reason) == (code_pb2.OUT_OF_RANGE, "StreamGap")
        assert (metadata["gap_reason"], metadata["next_sequence"]) == ("truncated", "4")
        described = await gateway.describe()
        assert (described.first_position, described.first_sequence, described.record_count) == (positions[4], 4, 6)


@scenario()
async def test_a_gap_comes_between_the_records_before_it_and_those_behind_it(
    cluster: MemoryCluster, client: Client
) -> None:
    async with gateways(cluster, writer_idle_ms=0) as [gateway]:
        await written(gateway, lines(10))
        await eventually(gateway.idle, cluster)
        async for ledger_id in client.list_ledgers():
            for bookie in cluster.bookies.values():
                if 4 in bookie.durable_batches(ledger_id):
                    bookie.drop(ledger_id, 4)
        read = Reading(gaps_as_messages=True)
        await gateway.call("Read", read)
        before, gap, behind = read.replies
        assert [record.payload for record in before.records.records] == lines(4)
        assert (gap.gap.reason, gap.gap.first_sequence, gap.gap.next_sequence) == (pb.GAP_REASON_LOST, 4, 5)
        assert [record.payload for record in behind.records.records] == lines(5, 5)


@scenario()
async def test_a_reader_that_takes_nothing_uses_little_memory_and_gets_its_position(
    cluster: MemoryCluster, client: Client
) -> None:
    async with gateways(cluster, slow_reader_ms=2_000, message_bytes=4 * KIB) as [gateway]:
        positions = await written(gateway, [bytes(900)] * 40)
        read = Reading()
        read.taking.clear()
        code, reason, metadata = await refusal(gateway.call("Read", read))
        assert (code, reason, metadata["position"]) == (code_pb2.ABORTED, "ReaderTooSlow", positions[0])
        assert (gateway.number("too_slow"), gateway.number("records_read")) == (1, 0)
        read = Reading(start=pb.StreamStart(position=positions[0]))
        await gateway.call("Read", read)
        assert len(read.payloads()) == 40


@scenario()
async def test_a_client_that_does_not_read_a_gap_message_gets_its_position(
    cluster: MemoryCluster, client: Client
) -> None:
    async with gateways(cluster, slow_reader_ms=2_000) as [gateway]:
        positions = await written(gateway, lines(10))
        before = pb.StreamStart(sequence=4)
        await gateway.ask("Truncate", pb.TruncateStreamRequest(name="s", before=before), pb.Stream)
        read = Reading(start=pb.StreamStart(position=positions[1]), gaps_as_messages=True)
        read.taking.clear()
        code, reason, metadata = await refusal(gateway.call("Read", read))
        assert (code, reason, metadata["position"]) == (code_pb2.ABORTED, "ReaderTooSlow", positions[1])
        assert gateway.number("too_slow") == 1


@scenario()
async def test_a_subscriber_that_stops_always_gets_its_position(cluster: MemoryCluster, client: Client) -> None:
    async with gateways(cluster, slow_reader_ms=2_000) as [gateway]:
        positions = await written(gateway, lines(10))
        unopened = Subscribing()
        unopened.taking.clear()
        assert (await refusal(gateway.call("Subscribe", unopened)))[2]["position"] == positions[0]
        call = Subscribing()
        serving = gateway.call("Subscribe", call)
        await eventually(lambda: call.payloads() == lines(10), cluster)
        call.taking.clear()
        call.advance(positions[6])
        code, reason, metadata = await refusal(serving)
        assert (code, reason, metadata["position"]) == (code_pb2.ABORTED, "ReaderTooSlow", positions[6])
        again = Subscribing(**NO_WAIT)
        serving = gateway.call("Subscribe", again)
        await eventually(lambda: again.payloads() == lines(3, 7), cluster)
        again.taking.clear()
        await gateway.ask("End", pb.EndStreamRequest(name="s"), pb.Stream)
        position = (await refusal(serving))[2]["position"]
        rest = Reading(start=pb.StreamStart(position=position))
        await gateway.call("Read", rest)
        assert rest.payloads() == [], "the end is all that it has not got"


@scenario()
async def test_a_subscription_whose_end_fails_is_not_kept_until_the_gateway_is_started_again(
    cluster: MemoryCluster, client: Client
) -> None:
    away = False

    class Away:
        def next(self, operation: str) -> MetadataFault | None:
            return MetadataFault.UNAVAILABLE if away and operation == "write_record" else None

    troubled = cluster.client(SMALL, seen_through=lambda store: FaultyMetadataStore(store, Away(), cluster.world.clock))
    gateway = SimGateway(cluster, "10.0.0.9:7450", troubled)
    async with gateways(cluster) as [other]:
        positions = await written(other, lines(5))
        call = Subscribing()
        serving = gateway.call("Subscribe", call)
        await eventually(lambda: call.payloads() == lines(5), cluster)
        call.advance(positions[2])
        await eventually(lambda: call.advanced() == [positions[2]], cluster)
        away = True
        call.end()
        assert (await refusal(serving))[1] == "MetadataUnavailable"
        away = False
        await cluster.world.clock.sleep(5)
        again = Subscribing(**NO_WAIT)
        serving = other.call("Subscribe", again)
        await eventually(lambda: again.payloads() == lines(2, 3), cluster)
        serving.cancel()
    await gateway.close()
    await troubled.close()


@scenario()
async def test_a_client_that_goes_ends_its_read(cluster: MemoryCluster, client: Client) -> None:
    async with gateways(cluster) as [gateway]:
        reads = [Reading(follow=True) for _ in range(3)]
        serving = [gateway.call("Read", read) for read in reads]
        await written(gateway, lines(2))
        await eventually(lambda: all(len(read.payloads()) == 2 for read in reads), cluster)
        for each in serving:
            each.cancel()
        await asyncio.gather(*serving, return_exceptions=True)
        await eventually(gateway.idle, cluster)


# --- subscriptions ----------------------------------------------------------------------------------------------------


@scenario()
async def test_a_subscription_continues_behind_what_its_client_has_processed(
    cluster: MemoryCluster, client: Client
) -> None:
    async with gateways(cluster, 2) as [one, two]:
        positions = await written(one, lines(10))
        call = Subscribing()
        serving = one.call("Subscribe", call)
        await eventually(lambda: call.payloads() == lines(10), cluster)
        assert call.replies[0].opened.cursor == pb.Cursor(position=positions[0], after=False)
        for position in positions[:4]:
            call.advance(position)
        await eventually(lambda: positions[3] in call.advanced(), cluster)
        call.advance(positions[5])
        call.end()
        await serving
        assert call.advanced()[-1] == positions[5]
        listed = await two.ask("ListSubscriptions", pb.ListSubscriptionsRequest(name="s"), pb.ListSubscriptionsReply)
        [found] = listed.subscriptions
        assert (found.subscription, found.cursor.position, found.cursor.after) == ("x", positions[5], True)
        assert not found.reader
        again = Subscribing(no_follow=True, **NO_WAIT)
        serving = two.call("Subscribe", again)
        await eventually(lambda: again.replies[-1:] != [] and again.replies[-1].HasField("at_end"), cluster)
        assert again.payloads() == lines(4, 6)
        again.end()
        await serving
        await eventually(lambda: one.idle() and two.idle(), cluster)


@scenario()
async def test_a_subscription_has_one_reader_that_is_awaited_or_taken_over(
    cluster: MemoryCluster, client: Client
) -> None:
    async with gateways(cluster, 2) as [one, two]:
        positions = await written(one, lines(10))
        first = Subscribing()
        serving = one.call("Subscribe", first)
        await eventually(lambda: first.payloads() == lines(10), cluster)
        code, reason, metadata = await refusal(two.call("Subscribe", Subscribing(wait_ms=1_000)))
        assert (code, reason, metadata["owner"]) == (code_pb2.UNAVAILABLE, "StreamOwned", "10.0.0.0:7450")
        second = Subscribing(take_over=True)
        two.call("Subscribe", second)
        await eventually(lambda: second.payloads() == lines(10), cluster)
        first.advance(positions[2])
        assert (await refusal(serving))[:2] == (code_pb2.ABORTED, "StreamFenced")
        second.advance(positions[4])
        await eventually(lambda: second.advanced() == [positions[4]], cluster)
        await two.service.stop()
        third = Subscribing(**NO_WAIT)
        serving = one.call("Subscribe", third)
        await eventually(lambda: third.payloads() == lines(5, 5), cluster)
        third.advance(positions[1])
        assert (await refusal(serving))[:2] == (code_pb2.INVALID_ARGUMENT, "InvalidArgument")


@pytest.mark.parametrize("count", [1, 2])
@scenario()
async def test_clients_that_both_insist_do_not_fight_for_a_subscription(
    cluster: MemoryCluster, client: Client, *, count: int
) -> None:
    async with gateways(cluster, count) as found:
        sent = AppendCall(opening(credit_bytes=MIB), records(lines(1_000)), COMMIT, CLOSE)
        await found[0].call("Append", sent)
        positions = iter(sent.positions())
        clock, swaps = cluster.world.clock, 0
        until = clock.monotonic() + 60

        async def insist(gateway: SimGateway) -> None:
            nonlocal swaps
            while clock.monotonic() < until:
                call = Subscribing(take_over=True)
                serving = gateway.call("Subscribe", call)
                while not serving.done():
                    if clock.monotonic() < until:
                        call.advance(next(positions))
                    else:
                        call.end()
                    await clock.sleep(0.2)
                swaps += bool(call.replies)
                await asyncio.gather(serving, return_exceptions=True)

        await asyncio.gather(insist(found[0]), insist(found[-1]))
        assert 3 <= swaps <= 9, "about one in ten seconds"


@scenario()
async def test_advances_are_kept_when_a_client_or_its_gateway_dies(cluster: MemoryCluster, client: Client) -> None:
    async with gateways(cluster, 2) as [one, two]:
        positions = await written(one, lines(10))
        first = Subscribing()
        serving = one.call("Subscribe", first)
        first.advance(positions[2])
        await eventually(lambda: bool(first.advanced()), cluster)
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        second = Subscribing(wait_ms=1_000)
        one.call("Subscribe", second)
        await eventually(lambda: second.payloads() == lines(7, 3), cluster)
        second.advance(positions[4])
        await eventually(lambda: bool(second.advanced()), cluster)
        await one.die()
        third = Subscribing()
        two.call("Subscribe", third)
        await eventually(lambda: third.payloads() == lines(5, 5), cluster, 15)


@scenario()
async def test_a_subscription_is_reset_and_deleted_under_its_reader(cluster: MemoryCluster, client: Client) -> None:
    async with gateways(cluster) as [gateway]:
        positions = await written(gateway, lines(10))
        call = Subscribing()
        serving = gateway.call("Subscribe", call)
        await eventually(lambda: call.payloads() == lines(10), cluster)
        start = pb.StreamStart(position=positions[7])
        request = pb.ResetSubscriptionRequest(name="s", subscription="x", start=start)
        reset = await gateway.ask("ResetSubscription", request, pb.Subscription)
        assert reset.cursor == pb.Cursor(position=positions[7], after=False)
        call.advance(positions[3])
        assert (await refusal(serving))[1] == "StreamFenced"
        await gateway.ask(
            "DeleteSubscription",
            pb.DeleteSubscriptionRequest(name="s", subscription="x"),
            pb.DeleteSubscriptionReply,
        )
        gone = pb.ResetSubscriptionRequest(name="s", subscription="x", start=start)
        with pytest.raises(CallFailed) as caught:
            await gateway.ask("ResetSubscription", gone, pb.Subscription)
        assert caught.value.code == code_pb2.NOT_FOUND


@scenario()
async def test_what_cannot_be_undone_has_to_say_where_in_the_stream(cluster: MemoryCluster, client: Client) -> None:
    async with gateways(cluster) as [gateway]:
        positions = await written(gateway, lines(10))
        call = Subscribing(no_follow=True)
        serving = gateway.call("Subscribe", call)
        call.advance(positions[7])
        call.end()
        await serving
        listing = pb.ListSubscriptionsRequest(name="s")
        stands = await gateway.ask("ListSubscriptions", listing, pb.ListSubscriptionsReply)
        assert stands.subscriptions[0].cursor == pb.Cursor(position=positions[7], after=True)
        for method, request in (
            ("ResetSubscription", pb.ResetSubscriptionRequest(name="s", subscription="x", start=pb.StreamStart())),
            ("ResetSubscription", pb.ResetSubscriptionRequest(name="s", subscription="x")),
            ("Truncate", pb.TruncateStreamRequest(name="s", before=pb.StreamStart())),
            ("Truncate", pb.TruncateStreamRequest(name="s")),
        ):
            asked: FakeCall[Any] = FakeCall(pb.Subscription if "Reset" in method else pb.Stream)
            asked.say(request)
            assert (await refusal(gateway.call(method, asked)))[:2] == (code_pb2.INVALID_ARGUMENT, "InvalidArgument")
        assert await gateway.ask("ListSubscriptions", listing, pb.ListSubscriptionsReply) == stands
        assert await gateway.payloads() == lines(10)
        # A client that means the beginning says so, also by the enum's number.
        edge = pb.ResetSubscriptionRequest(name="s", subscription="x", start=pb.StreamStart(edge=pb.EDGE_UNSPECIFIED))
        reset = await gateway.ask("ResetSubscription", edge, pb.Subscription)
        assert reset.cursor == pb.Cursor(position=positions[0], after=False)


# --- calls with one answer --------------------------------------------------------------------------------------------


@scenario()
async def test_streams_are_made_changed_renamed_listed_and_deleted(cluster: MemoryCluster, client: Client) -> None:
    async with gateways(cluster) as [gateway]:
        policy = pb.StreamPolicy(
            ensemble=2, write_quorum=2, ack_quorum=1, retention_s=0, compression=pb.COMPRESSION_LZ4, dedup_records=0
        )
        made = await gateway.ask("Create", pb.CreateStreamRequest(name="a/ü", policy=policy), pb.Stream)
        assert (made.policy.ensemble, made.policy.retention_s, made.policy.compression) == (2, 0, pb.COMPRESSION_LZ4)
        assert made.policy.HasField("retention_s")
        assert made.policy.HasField("dedup_records")
        assert not made.policy.HasField("offload_after_s")
        assert (made.policy.roll_after_s, made.ended, made.owner, made.segments) == (7_200, False, "", 0)
        described = await gateway.describe("a/ü")
        assert (described.record_count, described.first_position, described.last_position) == (0, "", "")

        change = pb.SetPolicyRequest(name="a/ü", policy=pb.StreamPolicy(roll_bytes=4_096), clear=["retention_s"])
        changed = await gateway.ask("SetPolicy", change, pb.Stream)
        assert (changed.policy.roll_bytes, changed.policy.HasField("retention_s")) == (4_096, False)
        assert (changed.policy.ensemble, changed.stream_id) == (2, made.stream_id)

        rename = pb.RenameStreamRequest(name="a/ü", new_name="a/b")
        assert (await gateway.ask("Rename", rename, pb.Stream)).stream_id == made.stream_id
        for name in ("a/c", "b"):
            await gateway.ask("Create", pb.CreateStreamRequest(name=name), pb.Stream)
        found, token = [], ""
        while True:
            request = pb.ListStreamsRequest(page_size=1, page_token=token)
            page = await gateway.ask("List", request, pb.ListStreamsReply)
            found += page.names
            if not (token := page.next_page_token):
                break
        assert found == ["a/b", "a/c", "b", "s"]
        page = await gateway.ask("List", pb.ListStreamsRequest(prefix="a/"), pb.ListStreamsReply)
        assert (list(page.names), page.next_page_token) == (["a/b", "a/c"], "")
        await gateway.ask("Delete", pb.DeleteStreamRequest(name="a/b"), pb.DeleteStreamReply)
        with pytest.raises(NoSuchStream):
            await gateway.stores.default.info("a/b")


@scenario()
async def test_streams_of_a_namespace_are_its_own_and_an_unused_namespace_leaves_nothing(
    cluster: MemoryCluster, client: Client
) -> None:
    async with gateways(cluster, writer_idle_ms=100) as [gateway], StreamStore(client, namespace="prod") as streams:
        with pytest.raises(CallFailed) as caught:
            await gateway.ask("Create", pb.CreateStreamRequest(name="s", namespace="prod"), pb.Stream)
        assert caught.value.code == code_pb2.NOT_FOUND
        await streams.create_namespace(retention="1h")
        made = await gateway.ask("Create", pb.CreateStreamRequest(name="s", namespace="prod"), pb.Stream)
        assert (made.namespace, made.policy.retention_s) == ("prod", 3_600)
        await gateway.call("Append", AppendCall(opening(namespace="prod"), records(lines(3)), COMMIT, CLOSE))
        assert await gateway.payloads() == []
        read = Reading(namespace="prod")
        await gateway.call("Read", read)
        assert read.payloads() == lines(3)
        await eventually(gateway.idle, cluster)
        await eventually(lambda: not gateway.stores._others, cluster)


@pytest.mark.parametrize("name", HOSTILE)
@scenario()
async def test_an_invalid_name_is_refused_by_every_method(cluster: MemoryCluster, client: Client, *, name: str) -> None:
    start = pb.StreamStart(edge=pb.EDGE_LATEST)
    asked: list[tuple[str, Message]] = [
        ("Create", pb.CreateStreamRequest(name=name)),
        ("Delete", pb.DeleteStreamRequest(name=name)),
        ("Rename", pb.RenameStreamRequest(name="s", new_name=name)),
        ("Rename", pb.RenameStreamRequest(name=name, new_name="t")),
        ("Describe", pb.DescribeStreamRequest(name=name)),
        ("SetPolicy", pb.SetPolicyRequest(name=name)),
        ("Truncate", pb.TruncateStreamRequest(name=name, before=start)),
        ("End", pb.EndStreamRequest(name=name)),
        ("Append", opening(name)),
        ("Read", pb.ReadStreamRequest(name=name)),
        ("Subscribe", pb.SubscribeRequest(open=pb.SubscribeOpen(name=name, subscription="x"))),
        ("Subscribe", pb.SubscribeRequest(open=pb.SubscribeOpen(name="s", subscription=name))),
        ("ListSubscriptions", pb.ListSubscriptionsRequest(name=name)),
        ("ResetSubscription", pb.ResetSubscriptionRequest(name="s", subscription=name, start=start)),
        ("DeleteSubscription", pb.DeleteSubscriptionRequest(name="s", subscription=name)),
    ]
    if name:
        asked += [
            ("Create", pb.CreateStreamRequest(name="s", namespace=name)),
            ("List", pb.ListStreamsRequest(page_token=name)),
            ("Append", opening(namespace=name)),
        ]
    async with gateways(cluster) as [gateway]:
        for method, request in asked:
            call = FakeCall(pb.Stream)
            call.say(request)
            assert (await refusal(gateway.call(method, call)))[:2] == (
                code_pb2.INVALID_ARGUMENT,
                "InvalidArgument",
            ), method
        assert not gateway.stores._others
        assert gateway.idle()


@scenario()
async def test_invalid_and_empty_messages_are_refused(cluster: MemoryCluster, client: Client) -> None:
    async with gateways(cluster) as [gateway]:
        asked: list[tuple[str, bytes]] = [
            ("Describe", b"\xff"),
            ("Append", b"\xff"),
            ("Append", b""),
            ("Subscribe", b""),
            ("Truncate", pb.TruncateStreamRequest(name="s").SerializeToString()),
            ("ResetSubscription", pb.ResetSubscriptionRequest(name="s", subscription="x").SerializeToString()),
            ("Truncate", pb.TruncateStreamRequest(name="s", before=pb.StreamStart()).SerializeToString()),
            (
                "ResetSubscription",
                pb.ResetSubscriptionRequest(name="s", subscription="x", start=pb.StreamStart()).SerializeToString(),
            ),
            ("SetPolicy", pb.SetPolicyRequest(name="s", clear=["ensemble"]).SerializeToString()),
            ("SetPolicy", pb.SetPolicyRequest(name="s", policy=pb.StreamPolicy(ensemble=0)).SerializeToString()),
            ("Create", pb.CreateStreamRequest(name="t", policy=pb.StreamPolicy(ack_quorum=9)).SerializeToString()),
            ("Read", pb.ReadStreamRequest(name="s", start=pb.StreamStart(sequence=-1)).SerializeToString()),
            ("Read", pb.ReadStreamRequest(name="s", start=pb.StreamStart(position="3-1")).SerializeToString()),
        ]
        for method, raw in asked:
            call = FakeCall(pb.Stream)
            call.say_bytes(raw)
            assert (await refusal(gateway.call(method, call)))[0] == code_pb2.INVALID_ARGUMENT, (method, raw)
        assert gateway.idle()


@scenario()
async def test_streams_of_both_services_count_against_the_same_limits(cluster: MemoryCluster, client: Client) -> None:
    async with gateways(cluster, max_connection_streams=2) as [gateway]:
        with gateway.limits.admit(caller("here"), 1):
            call = AppendCall(opening())
            gateway.call("Append", call)
            await eventually(lambda: bool(call.replies), cluster)
            more = {"Append": AppendCall(opening()), "Read": Reading(), "Subscribe": Subscribing()}
            for method, refused in more.items():
                assert (await refusal(gateway.call(method, refused)))[:2] == (code_pb2.RESOURCE_EXHAUSTED, "Busy")
        await gateway.call("Read", Reading())
