"""Streams through the gateway of a real cluster, used by a real gRPC client like a program in any language."""

import asyncio
import json
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest
from google.rpc.error_details_pb2 import ErrorInfo
from google.rpc.status_pb2 import Status

from tallybook.client.client import Client
from tallybook.core.settings import GatewaySettings
from tallybook.gateway.server import serving
from tallybook.metadata.stream_use import belongs_to_stream
from tallybook.proto import ledger_pb2, ledger_pb2_grpc, stream_pb2_grpc
from tallybook.proto import stream_pb2 as pb
from tallybook.runtime.grpc.call_server import DETAILS_KEY

from .grpc_codes import CUT_OFF, begun

DEADLINE_SECONDS = 60


class Gateway:
    """A client of one gateway."""

    def __init__(self, channel: grpc.aio.Channel, address: str) -> None:
        self.channel = channel
        self.address = address
        self.stub = stream_pb2_grpc.StreamServiceStub(channel)

    async def create(self, name: str) -> pb.Stream:
        return await self.stub.Create(pb.CreateStreamRequest(name=name))

    async def append(self, name: str, **opening: Any) -> "Appending":
        """Open an Append stream."""
        call = await begun(self.stub.Append, pb.StreamAppendRequest(open=pb.StreamAppendOpen(name=name, **opening)))
        return Appending(call, (await call.read()).opened)

    async def written(self, name: str, payloads: list[bytes]) -> None:
        """Append records that readers see."""
        stream = await self.append(name)
        await stream.send(*payloads, commit=pb.StreamCommit())
        await stream.call.done_writing()
        await stream.end()

    async def payloads(self, name: str, **more: Any) -> list[bytes]:
        """All records of a stream."""
        replies = self.stub.Read(pb.ReadStreamRequest(name=name, **more))
        return [record.payload async for reply in replies for record in reply.records.records]


class Appending:
    """A client's end of an Append stream."""

    def __init__(self, call: Any, opened: pb.StreamAppendOpened) -> None:
        self.call = call
        self.window = opened.window
        self.acked = 0

    async def send(self, *payloads: bytes, ids: bool = False, **more: Any) -> None:
        records = [pb.NewRecord(payload=each, dedup_id=each if ids else None) for each in payloads]
        await self.call.write(pb.StreamAppendRequest(records=records, **more))

    async def ack(self) -> None:
        reply = await self.call.read()
        assert reply.HasField("ack"), reply
        self.acked += reply.ack.count

    async def end(self) -> None:
        """Read up to the end, which is a good one."""
        while not (reply := await self.call.read()).HasField("closed"):
            self.acked += reply.ack.count
        assert await self.call.read() is grpc.aio.EOF
        assert await self.call.code() is grpc.StatusCode.OK


@asynccontextmanager
async def opened(cluster, **settings: Any) -> AsyncIterator[Gateway]:
    """A gateway in this process, on the shared cluster."""
    chosen = GatewaySettings(metadata=cluster.metadata, **settings)
    async with (
        asyncio.timeout(DEADLINE_SECONDS),
        Client(cluster.metadata, chosen.client) as client,
        serving(client, chosen) as addresses,
        grpc.aio.insecure_channel(addresses.grpc) as channel,
    ):
        yield Gateway(channel, addresses.grpc)


async def segment_of(cluster, stream: pb.Stream) -> int:
    """The ledger that is the only segment of a stream."""
    async with Client(cluster.metadata) as client:
        found = [await client.ledger_metadata(each) async for each in client.list_ledgers()]
    [ledger_id] = [each.ledger_id for each in found if belongs_to_stream(each, stream.stream_id)]
    return ledger_id


def reason_of(error: grpc.aio.AioRpcError) -> ErrorInfo:
    """The error details of a failed call."""
    trailer = dict(error.trailing_metadata())
    info = ErrorInfo()
    assert Status.FromString(trailer[DETAILS_KEY]).details[0].Unpack(info)
    return info


def started(cli, cluster, *words: object) -> tuple[subprocess.Popen[bytes], str]:
    """A gateway as a process of its own, and its address."""
    process = cli.start("gateway", "run", "--metadata", cluster.metadata, "--json", *words,
                        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)  # fmt: skip
    return process, json.loads(process.stdout.readline())["ready"]


async def test_a_stream_from_its_creation_to_its_end(cluster):
    async with opened(cluster) as client:
        name = "gateway/größe"
        assert (await client.create(name)).name == name
        follower = client.stub.Read(pb.ReadStreamRequest(name=name, follow=True, start=pb.StreamStart(sequence=2)))
        await client.written(name, [b"a", b"b", b"c"])
        assert [record.sequence for record in (await follower.read()).records.records] == [2]
        assert await client.payloads(name) == [b"a", b"b", b"c"]
        described = await client.stub.Describe(pb.DescribeStreamRequest(name=name))
        assert (described.record_count, described.stream.owner) == (3, client.address)
        subscription = client.stub.Subscribe()
        await subscription.write(pb.SubscribeRequest(open=pb.SubscribeOpen(name=name, subscription="x")))
        assert (await subscription.read()).HasField("opened")
        records = (await subscription.read()).records.records
        await subscription.write(pb.SubscribeRequest(advance=pb.Advance(position=records[1].position)))
        while not (reply := await subscription.read()).HasField("advanced"):
            pass
        assert reply.advanced.position == records[1].position
        await subscription.done_writing()
        while await subscription.read() is not grpc.aio.EOF:
            pass
        assert await subscription.code() is grpc.StatusCode.OK
        assert (await client.stub.End(pb.EndStreamRequest(name=name))).ended
        assert await follower.read() is grpc.aio.EOF
        listed = await client.stub.List(pb.ListStreamsRequest(prefix="gateway/"))
        assert list(listed.names) == [name]
        await client.stub.Delete(pb.DeleteStreamRequest(name=name))


async def test_a_segment_of_a_stream_is_deleted_by_force_only_and_the_stream_is_named(cluster):
    async with opened(cluster) as client:
        name = "in use"
        stream = await client.create(name)
        await client.written(name, [b"kept"])
        ledger_id = await segment_of(cluster, stream)
        ledgers = ledger_pb2_grpc.LedgerServiceStub(client.channel)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await ledgers.Delete(ledger_pb2.DeleteRequest(ledger_id=ledger_id))
        error = caught.value
        assert (error.code(), reason_of(error).reason) == (grpc.StatusCode.FAILED_PRECONDITION, "LedgerInUse")
        assert f"ledger {ledger_id} is segment 1 of stream '{name}' in namespace 'default'" in error.details()
        assert await client.payloads(name) == [b"kept"]
        await ledgers.Delete(ledger_pb2.DeleteRequest(ledger_id=ledger_id, force=True))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await ledgers.Describe(ledger_pb2.DescribeRequest(ledger_id=ledger_id))
        assert reason_of(caught.value).reason == "NoSuchLedger"
        await client.stub.Delete(pb.DeleteStreamRequest(name=name))


@pytest.mark.parametrize("name", ["\N{DUCK}" * 10_000, "\N{DUCK}" * 1_000 + "\x07", "a//b"])
async def test_a_hostile_name_is_refused_in_words_that_fit_a_header(cluster, name):
    async with opened(cluster) as client:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await client.create(name)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert reason_of(caught.value).reason == "InvalidArgument"


async def test_a_deadline_ends_the_wait_for_a_stream_that_another_gateway_has(cluster):
    async with opened(cluster) as one, opened(cluster) as two:
        await one.create("owned")
        stream = await one.append("owned")
        request = pb.StreamAppendRequest(open=pb.StreamAppendOpen(name="owned"))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await two.stub.Append([request], timeout=0.5).read()
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        request = pb.StreamAppendRequest(open=pb.StreamAppendOpen(name="owned", wait_ms=0))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await two.stub.Append([request]).read()
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert reason_of(caught.value).metadata["owner"] == one.address
        await stream.send(b"still mine", close=pb.StreamAppendClose())
        await stream.end()
        await one.stub.Delete(pb.DeleteStreamRequest(name="owned"))


async def test_a_client_goes_on_at_another_gateway_when_its_own_is_killed_in_the_middle(cli, cluster):
    process, address = await asyncio.to_thread(started, cli, cluster)
    try:
        async with opened(cluster) as other, grpc.aio.insecure_channel(address) as channel:
            await other.create("handed-over")
            wanted = [b"%d" % number for number in range(4_000)]
            stream, sent = await Gateway(channel, address).append("handed-over"), 0

            async def append_for_ever() -> None:
                nonlocal sent
                while True:
                    while sent < stream.acked + 500:
                        await stream.send(*wanted[sent : sent + 50], ids=True)
                        sent += 50
                    await stream.ack()
                    if stream.acked > 1_000:
                        process.kill()

            # gRPC has an error of its own for a message that is written after the call has failed.
            with pytest.raises((grpc.aio.AioRpcError, asyncio.InvalidStateError)):
                await append_for_ever()
            assert await stream.call.code() in CUT_OFF
            acked = stream.acked
            again = await other.append("handed-over")
            for start in range(acked, 4_000, 50):
                await again.send(*wanted[start : start + 50], ids=True)
            await again.send(commit=pb.StreamCommit())
            await again.call.done_writing()
            await again.end()
            assert acked + again.acked == 4_000
            assert await other.payloads("handed-over") == wanted
            await other.stub.Delete(pb.DeleteStreamRequest(name="handed-over"))
    finally:
        process.kill()
        process.communicate()


async def test_a_gateway_process_that_stops_ends_its_streams_and_releases_them(cli, cluster):
    process, address = await asyncio.to_thread(started, cli, cluster)
    with process:
        async with opened(cluster) as other, grpc.aio.insecure_channel(address) as channel:
            await other.create("let-go")
            stream = await Gateway(channel, address).append("let-go")
            await stream.send(b"one")
            await stream.ack()
            process.send_signal(signal.SIGTERM)
            await stream.end()
            again = await other.append("let-go", wait_ms=3_000)
            await again.send(b"two", commit=pb.StreamCommit())
            await again.call.done_writing()
            await again.end()
            assert await other.payloads("let-go") == [b"one", b"two"]
            await other.stub.Delete(pb.DeleteStreamRequest(name="let-go"))
        assert await asyncio.to_thread(process.wait, cli.patience) == 0
