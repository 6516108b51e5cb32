"""The gateway of a real cluster, used by a real gRPC client like a program in any language."""

import asyncio
import contextlib
import json
import signal
import subprocess
import urllib.request
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest
from google.rpc.error_details_pb2 import ErrorInfo, RetryInfo
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from grpc_status import rpc_status

from tallybook.client.client import Client
from tallybook.core.limits import MAX_ENTRY_BYTES, MIB
from tallybook.core.settings import GatewaySettings
from tallybook.gateway.ledgers.service import LEDGER_SERVICE
from tallybook.gateway.server import serving
from tallybook.gateway.streams.service import STREAM_SERVICE
from tallybook.proto import ledger_pb2 as pb
from tallybook.proto import ledger_pb2_grpc

from .grpc_codes import CUT_OFF, DEADLINE_SECONDS, begun

CLOSED = pb.LEDGER_STATE_CLOSED
OPEN = pb.LEDGER_STATE_OPEN


def got(address: str, path: str) -> str:
    """The body served over HTTP."""
    with urllib.request.urlopen(f"http://{address}{path}", timeout=10) as answer:
        return answer.read().decode()


class Gateway:
    """A client of one gateway."""

    def __init__(self, channel: grpc.aio.Channel, address: str, http: str = "") -> None:
        self.channel = channel
        self.address = address
        self.http = http
        self.stub = ledger_pb2_grpc.LedgerServiceStub(channel)

    async def append(self, **opening: Any) -> "Appending":
        """Open an Append stream."""
        call = await begun(self.stub.Append, pb.AppendRequest(open=pb.AppendOpen(**opening)))
        return Appending(call, (await call.read()).opened)

    async def written(self, payloads: list[bytes]) -> pb.Ledger:
        """A closed ledger with these entries."""
        create, close = pb.AppendOpen(create=pb.CreateRequest()), pb.AppendClose()
        call = self.stub.Append([pb.AppendRequest(open=create, payloads=payloads), pb.AppendRequest(close=close)])
        return [reply async for reply in call][-1].closed

    async def read(self, ledger_id: int, first: int = 0, **more: Any) -> list[bytes]:
        """Entries of a ledger, seen to follow each other."""
        found: list[bytes] = []
        async for message in self.stub.Read(pb.ReadRequest(ledger_id=ledger_id, first=first, **more)):
            assert message.first_entry_id == first + len(found)
            found += message.payloads
        return found

    async def describe(self, ledger_id: int) -> pb.Ledger:
        return await self.stub.Describe(pb.DescribeRequest(ledger_id=ledger_id))

    async def closed(self, ledger_id: int) -> pb.Ledger:
        """The state of a ledger that is closed soon."""
        async with asyncio.timeout(DEADLINE_SECONDS):
            while (ledger := await self.describe(ledger_id)).state != CLOSED:  # noqa: ASYNC110 (no notification)
                await asyncio.sleep(0.01)
        return ledger

    async def number(self, name: str) -> float:
        """One of the gateway's metrics."""
        lines = (await asyncio.to_thread(got, self.http, "/metrics")).splitlines()
        return float(next(line for line in lines if line.startswith(f"{name} ")).rpartition(" ")[2])

    async def until(self, name: str, value: float) -> None:
        """Wait until a metric has a value."""
        async with asyncio.timeout(DEADLINE_SECONDS):
            while await self.number(name) != value:  # noqa: ASYNC110 (no notification)
                await asyncio.sleep(0.01)


class Appending:
    """A client's end of an Append stream."""

    def __init__(self, call: Any, opened: pb.AppendOpened) -> None:
        self.call = call
        self.ledger_id = opened.ledger_id
        self.window = opened.window
        self.acked = 0
        self.credit = opened.window.credit_bytes

    async def send(self, *payloads: bytes, close: bool = False) -> None:
        self.credit -= sum(map(len, payloads)) + len(payloads) * self.window.payload_overhead_bytes
        await self.call.write(pb.AppendRequest(payloads=payloads, close=pb.AppendClose() if close else None))

    async def ack(self) -> None:
        """The next ack, which follows the one before."""
        reply = await self.call.read()
        assert reply.HasField("ack"), reply
        assert reply.ack.first_entry_id == self.acked
        self.acked += reply.ack.count
        self.credit += reply.ack.credit_bytes

    async def end(self) -> pb.Ledger:
        """The final state, after the last acks."""
        while (reply := await self.call.read()).HasField("ack"):
            self.acked += reply.ack.count
            self.credit += reply.ack.credit_bytes
        assert await self.call.read() is grpc.aio.EOF
        assert await self.call.code() is grpc.StatusCode.OK
        return reply.closed


@pytest.fixture
def gateway(cluster) -> Callable[..., Any]:
    """``async with gateway(settings...) as gateway``: one in this process, on the shared cluster."""

    @asynccontextmanager
    async def opened(**settings: Any) -> AsyncIterator[Gateway]:
        chosen = GatewaySettings(metadata=cluster.metadata, **settings)
        async with (
            asyncio.timeout(DEADLINE_SECONDS),
            Client(cluster.metadata, chosen.client) as client,
            serving(client, chosen) as addresses,
            grpc.aio.insecure_channel(addresses.grpc) as channel,
        ):
            yield Gateway(channel, addresses.grpc, addresses.http)

    return opened


@contextlib.contextmanager
def refused(code: grpc.StatusCode, reason: str):
    """The block ends with this error; what it yields has the details afterwards."""
    told: dict[str, Any] = {}
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        yield told
    assert (caught.value.code(), reason) == (code, reason), caught.value
    status = rpc_status.from_call(_Ended(caught.value))
    info, retry = ErrorInfo(), RetryInfo()
    assert status.details[0].Unpack(info)
    assert (info.reason, info.domain) == (reason, "tallybook")
    told |= info.metadata
    if len(status.details) > 1 and status.details[1].Unpack(retry):
        told["retry_ms"] = retry.retry_delay.ToMilliseconds()


class _Ended:
    """An error in the form that grpc_status decodes."""

    def __init__(self, error: grpc.aio.AioRpcError) -> None:
        self.code, self.details, self.trailing_metadata = error.code, error.details, error.trailing_metadata


# --- use --------------------------------------------------------------------------------------------------------------


async def test_a_ledger_from_its_creation_to_its_deletion(gateway):
    async with gateway() as client:
        create = pb.CreateRequest(password=b"secret", digest=pb.DIGEST_HMAC_SHA256, custom={"by": b"test"})
        created = await client.stub.Create(create)
        ledger = {"ledger_id": created.ledger_id, "password": b"secret"}
        assert (created.state, created.last_entry_id, created.has_writer, created.has_password) == (
            OPEN,
            -1,
            False,
            True,
        )
        assert (created.ensemble, created.write_quorum, created.ack_quorum) == (3, 3, 2)
        assert created.custom["by"] == b"test"
        assert created.created_at.seconds > 1_700_000_000

        stream = await client.append(**ledger)
        assert stream.ledger_id == created.ledger_id
        tail = client.stub.Tail(pb.TailRequest(**ledger))
        wanted = [b"%d" % number for number in range(1_000)]
        for start in range(0, 1_000, 100):
            await stream.send(*wanted[start : start + 100])
        while stream.acked < 1_000:
            await stream.ack()
        assert stream.credit == stream.window.credit_bytes
        seen: list[bytes] = []
        while len(seen) < 1_000:
            message = await tail.read()
            assert message.first_entry_id == len(seen)
            seen += message.payloads
        assert seen == wanted
        found = await client.stub.Describe(pb.DescribeRequest(**ledger))
        assert (found.state, found.last_entry_id, found.has_writer) == (OPEN, 999, True)

        await stream.send(b"end", close=True)
        closed = await stream.end()
        assert (closed.state, closed.last_entry_id, closed.length_bytes) == (CLOSED, 1_000, sum(map(len, wanted)) + 3)
        assert stream.acked == 1_001
        assert list((await tail.read()).payloads) == [b"end"]
        assert await tail.read() is grpc.aio.EOF
        assert await client.read(first=990, **ledger) == [*wanted[990:], b"end"]
        assert await client.read(first=5, last=7, max_bytes=1, **ledger) == wanted[5:8]
        assert (await client.stub.Recover(pb.RecoverRequest(**ledger))) == closed
        assert (await client.stub.Close(pb.CloseRequest(**ledger))) == closed
        await client.stub.Delete(pb.DeleteRequest(**ledger))
        with refused(grpc.StatusCode.NOT_FOUND, "NoSuchLedger"):
            await client.describe(created.ledger_id)


async def test_a_small_ledger_may_be_one_message_and_an_empty_one_has_no_entries(gateway):
    async with gateway() as client:
        create, close = pb.AppendOpen(create=pb.CreateRequest(ensemble=1)), pb.AppendClose()
        payloads = [b"a", b"", b"c" * MAX_ENTRY_BYTES]
        ledger = await client.written(payloads)
        assert (ledger.last_entry_id, ledger.state) == (2, CLOSED)
        assert await client.read(ledger.ledger_id) == payloads
        replies = [
            reply async for reply in client.stub.Append([pb.AppendRequest(open=create), pb.AppendRequest(close=close)])
        ]
        empty = replies[-1].closed
        assert (empty.last_entry_id, empty.length_bytes, empty.ensemble, empty.ack_quorum) == (-1, 0, 1, 1)
        assert await client.read(empty.ledger_id) == []
        with refused(grpc.StatusCode.OUT_OF_RANGE, "ReadBeyondLac"):
            await client.read(ledger.ledger_id, last=3)


async def test_all_ledgers_are_listed_page_by_page(gateway):
    async with gateway() as client:
        made = [(await client.stub.Create(pb.CreateRequest())).ledger_id for _ in range(3)]
        found, token = [], ""
        while True:
            page = await client.stub.List(pb.ListRequest(page_size=1, page_token=token))
            found += page.ledger_ids
            if not (token := page.next_page_token):
                break
        assert found == sorted(found)
        assert set(made) <= set(found)
        assert set(made) <= set((await client.stub.List(pb.ListRequest())).ledger_ids)


async def test_standard_tools_find_their_way(gateway):
    async with gateway() as client:
        reflect = reflection_pb2_grpc.ServerReflectionStub(client.channel).ServerReflectionInfo
        everything = reflection_pb2.ServerReflectionRequest(list_services="")
        one = reflection_pb2.ServerReflectionRequest(file_containing_symbol=LEDGER_SERVICE)
        answers = [answer async for answer in reflect([everything, one])]
        services = {service.name for service in answers[0].list_services_response.service}
        assert {LEDGER_SERVICE, STREAM_SERVICE, "grpc.health.v1.Health"} <= services
        assert answers[1].file_descriptor_response.file_descriptor_proto
        health = health_pb2_grpc.HealthStub(client.channel)
        for name in ("", LEDGER_SERVICE, STREAM_SERVICE):
            assert (await health.Check(health_pb2.HealthCheckRequest(service=name))).status == 1
        assert await asyncio.to_thread(got, client.http, "/readyz") == "ok\n"


# --- how streams end --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["done writing", "cancelled", "deadline", "connection lost"])
async def test_a_ledger_is_closed_however_its_stream_ends_and_keeps_what_was_acked(gateway, way):
    async with gateway() as client, grpc.aio.insecure_channel(client.address) as channel:
        other = Gateway(channel, client.address)
        call = other.stub.Append(timeout=1 if way == "deadline" else None)
        await call.write(pb.AppendRequest(open=pb.AppendOpen(create=pb.CreateRequest())))
        stream = Appending(call, (await call.read()).opened)
        await stream.send(b"one", b"two")
        await stream.ack()
        if way == "done writing":
            await call.done_writing()
            assert (await stream.end()).state == CLOSED
        elif way == "cancelled":
            call.cancel()
        elif way == "connection lost":
            await channel.close()
        ledger = await client.closed(stream.ledger_id)
        assert ledger.last_entry_id == 1
        assert await client.read(ledger.ledger_id) == [b"one", b"two"]
        await client.until("tallybook_gateway_ledgers_written", 0)
        await client.until("tallybook_gateway_reserved_bytes", 0)


async def test_close_ends_the_stream_of_a_writer_and_closes_a_ledger_without_writers(gateway, cluster):
    async with gateway() as client:
        stream = await client.append(create=pb.CreateRequest())
        await stream.send(b"one")
        closed = await client.stub.Close(pb.CloseRequest(ledger_id=stream.ledger_id))
        assert await stream.end() == closed
        assert closed.last_entry_id in (-1, 0), "it may have come before the payload"

        unnamed = await client.stub.Create(pb.CreateRequest())
        assert (await client.stub.Close(pb.CloseRequest(ledger_id=unnamed.ledger_id))).state == CLOSED

        async with Client(cluster.metadata) as elsewhere:
            writer = await elsewhere.create_ledger()
            await writer.append(b"one")
            for refuse in (
                client.stub.Close(pb.CloseRequest(ledger_id=writer.id)),
                client.append(ledger_id=writer.id),
            ):
                with refused(grpc.StatusCode.FAILED_PRECONDITION, "LedgerHasWriter"):
                    await refuse
            recovered = await client.stub.Recover(pb.RecoverRequest(ledger_id=writer.id))
            assert (recovered.state, recovered.last_entry_id) == (CLOSED, 0)


async def test_recover_puts_a_writer_out_and_its_stream_says_so(gateway):
    async with gateway() as client:
        stream = await client.append(create=pb.CreateRequest())
        await stream.send(b"one")
        await stream.ack()
        recovered = await client.stub.Recover(pb.RecoverRequest(ledger_id=stream.ledger_id))
        assert recovered.last_entry_id == 0
        with refused(grpc.StatusCode.FAILED_PRECONDITION, "LedgerFenced") as told:
            await stream.send(b"two")
            await stream.ack()
        assert told["retriable"] == "false"
        assert await client.closed(stream.ledger_id) == recovered


async def test_a_gateway_that_stops_closes_what_is_written_through_it(gateway):
    async with gateway() as reader:
        async with gateway() as client:
            channel = grpc.aio.insecure_channel(client.address)
            stream = await Gateway(channel, client.address).append(create=pb.CreateRequest())
            await stream.send(b"one")
            await stream.ack()
            ending = asyncio.ensure_future(stream.end())
        assert (await ending).last_entry_id == 0
        assert (await reader.describe(stream.ledger_id)).state == CLOSED
        await channel.close()


# --- what is refused --------------------------------------------------------------------------------------------------

WRONG_CALLS = {
    "an unknown ledger is read": ("Read", pb.ReadRequest(ledger_id=10**9), "NOT_FOUND", "NoSuchLedger"),
    "an unknown ledger is followed": ("Tail", pb.TailRequest(ledger_id=10**9), "NOT_FOUND", "NoSuchLedger"),
    "an unknown ledger is closed": ("Close", pb.CloseRequest(ledger_id=10**9), "NOT_FOUND", "NoSuchLedger"),
    "an unknown ledger is recovered": ("Recover", pb.RecoverRequest(ledger_id=10**9), "NOT_FOUND", "NoSuchLedger"),
    "an unknown ledger is deleted": ("Delete", pb.DeleteRequest(ledger_id=10**9), "NOT_FOUND", "NoSuchLedger"),
    "a ledger below none": ("Describe", pb.DescribeRequest(ledger_id=-1), "INVALID_ARGUMENT", "InvalidArgument"),
    "a range below none": ("Read", pb.ReadRequest(ledger_id=0, first=-1), "INVALID_ARGUMENT", "InvalidArgument"),
    "a tail below none": ("Tail", pb.TailRequest(ledger_id=0, first=-5), "INVALID_ARGUMENT", "InvalidArgument"),
    "a page of no list": ("List", pb.ListRequest(page_token="x"), "INVALID_ARGUMENT", "InvalidArgument"),
    "a page beyond every id": ("List", pb.ListRequest(page_token=str(2**63)), "INVALID_ARGUMENT", "InvalidArgument"),
    "a page beyond all": ("List", pb.ListRequest(page_token="9" * 30), "INVALID_ARGUMENT", "InvalidArgument"),
    "a quorum of too many": ("Create", pb.CreateRequest(ack_quorum=4), "INVALID_ARGUMENT", "InvalidArgument"),
    "more servers than there are": ("Create", pb.CreateRequest(ensemble=60), "UNAVAILABLE", "EnsembleTooLarge"),
    "a digest of no kind": ("Create", pb.CreateRequest(digest=9), "INVALID_ARGUMENT", "InvalidArgument"),
    "a signature without a password": ("Create", pb.CreateRequest(digest=2), "INVALID_ARGUMENT", "InvalidArgument"),
    "a password of two KiB": ("Create", pb.CreateRequest(password=bytes(2048)), "INVALID_ARGUMENT", "InvalidArgument"),
}  # fmt: skip


async def test_a_call_that_cannot_be_met_says_why(gateway):
    async with gateway() as client:
        for method, request, code, reason in WRONG_CALLS.values():
            with refused(grpc.StatusCode[code], reason) as told:
                answer = getattr(client.stub, method)(request)
                await (answer.read() if method in ("Read", "Tail") else answer)
            assert told["outcome"] == "not done"


async def test_a_wrong_password_opens_nothing(gateway):
    async with gateway() as client:
        ledger_id = (await client.stub.Create(pb.CreateRequest(password=b"right"))).ledger_id
        for password in (b"wrong", b""):
            ledger: Any = {"ledger_id": ledger_id, "password": password}
            for refuse in (
                client.append(**ledger),
                client.read(**ledger),
                client.stub.Tail(pb.TailRequest(**ledger)).read(),
                client.stub.Close(pb.CloseRequest(**ledger)),
                client.stub.Recover(pb.RecoverRequest(**ledger)),
                client.stub.Delete(pb.DeleteRequest(**ledger)),
                client.stub.Describe(pb.DescribeRequest(**ledger)),
            ):
                with refused(grpc.StatusCode.PERMISSION_DENIED, "Unauthorized"):
                    await refuse
        assert not (await client.stub.Describe(pb.DescribeRequest(ledger_id=ledger_id, password=b"right"))).has_writer


GARBAGE = {
    "noise": b"\xff" * 100,
    "nothing at all": b"",
    "payloads before the open": pb.AppendRequest(payloads=[b"early"]).SerializeToString(),
    "a close before the open": pb.AppendRequest(close=pb.AppendClose()).SerializeToString(),
    "no ledger": pb.AppendRequest(open=pb.AppendOpen()).SerializeToString(),
    "a field cut short": pb.AppendRequest(open=pb.AppendOpen(password=bytes(50))).SerializeToString()[:-7],
    "an open that is a number": b"\x08\x01",
    "payloads that are a number": pb.AppendRequest(close=pb.AppendClose()).SerializeToString() + b"\x18\x01",
    "text that is not UTF-8": pb.AppendRequest(open=pb.AppendOpen(create=pb.CreateRequest(custom={"abc": b""})))
    .SerializeToString()
    .replace(b"abc", b"\xff\xfe\xfd"),
    **{
        f"groups within groups, {depth} deep": pb.AppendRequest(
            open=pb.AppendOpen(create=pb.CreateRequest())
        ).SerializeToString()
        + b"\xa3\x06" * depth
        + b"\xa4\x06" * depth
        for depth in (101, 5_000, 1_000_000)
    },
}


async def test_bytes_that_open_no_ledger_are_refused_and_leave_nothing(gateway):
    async with gateway() as client:
        raw = client.channel.stream_stream(f"/{LEDGER_SERVICE}/Append")
        for garbage in GARBAGE.values():
            with refused(grpc.StatusCode.INVALID_ARGUMENT, "InvalidArgument"):
                await raw([garbage]).read()
        with refused(grpc.StatusCode.INVALID_ARGUMENT, "InvalidArgument"):
            await raw([]).read()
        for depth in (10, 90):
            # What a newer client may say; 100 are followed, and no more.
            create = client.channel.unary_unary(f"/{LEDGER_SERVICE}/Create")
            assert await create(b"\xa3\x06" * depth + b"\xa4\x06" * depth)
        stream = await client.append(create=pb.CreateRequest())
        await stream.send(b"kept")
        await stream.ack()
        with refused(grpc.StatusCode.INVALID_ARGUMENT, "InvalidArgument"):
            await stream.call.write(pb.AppendRequest(open=pb.AppendOpen(ledger_id=1)))
            await stream.call.read()
        assert await client.read((await client.closed(stream.ledger_id)).ledger_id) == [b"kept"]
        await client.until("tallybook_gateway_reserved_bytes", 0)


async def test_more_than_the_credit_is_refused_with_the_time_to_come_back(gateway):
    async with gateway() as client:
        stream = await client.append(create=pb.CreateRequest(), credit_bytes=10_000)
        assert stream.window.credit_bytes == 10_000
        with refused(grpc.StatusCode.RESOURCE_EXHAUSTED, "CreditExceeded") as told:
            await stream.send(bytes(5_000), bytes(5_000))
            await stream.ack()
        assert told["retry_ms"] > 0
        assert (await client.closed(stream.ledger_id)).last_entry_id == -1


async def test_messages_and_entries_that_are_too_large_are_refused_and_others_go_on(gateway):
    async with gateway() as client:
        stream = await client.append(create=pb.CreateRequest())
        with refused(grpc.StatusCode.INVALID_ARGUMENT, "EntryTooLarge"):
            await stream.send(bytes(MAX_ENTRY_BYTES + 1))
            await stream.ack()
        stream = await client.append(create=pb.CreateRequest())
        await stream.send(bytes(5 * MIB))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stream.ack()
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert (await client.closed(stream.ledger_id)).last_entry_id == -1
        assert (await client.written([b"fine"])).last_entry_id == 0


async def test_streams_beyond_the_limits_are_refused_until_others_end(gateway):
    async with gateway(max_connection_streams=2, max_connection_bytes=16 * MIB) as client:
        ledger_id = (await client.stub.Create(pb.CreateRequest())).ledger_id
        tails = [client.stub.Tail(pb.TailRequest(ledger_id=ledger_id)) for _ in range(2)]
        await client.until("tallybook_gateway_streams", 2)
        with refused(grpc.StatusCode.RESOURCE_EXHAUSTED, "Busy") as told:
            await client.read(ledger_id)
        assert told["retry_ms"] > 0
        tails[0].cancel()
        await client.until("tallybook_gateway_streams", 1)
        assert await client.read(ledger_id) == []
        tails[1].cancel()
        await client.until('tallybook_gateway_calls_rejected_total{method="LedgerService/Read"}', 1)


# --- slow clients -----------------------------------------------------------------------------------------------------


async def test_a_deadline_ends_a_tail_at_once(gateway):
    async with gateway() as client:
        ledger_id = (await client.stub.Create(pb.CreateRequest())).ledger_id
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await client.stub.Tail(pb.TailRequest(ledger_id=ledger_id), timeout=0.2).read()
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await client.until('tallybook_gateway_calls_cancelled_total{method="LedgerService/Tail"}', 1)
        await client.until("tallybook_gateway_streams", 0)


async def test_a_deadline_that_is_over_ends_a_call_and_one_that_is_far_away_does_not(gateway):
    async with gateway() as client:
        ledger_id = (await client.stub.Create(pb.CreateRequest())).ledger_id
        for over in (0, -1, -(10**9)):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await client.stub.Tail(pb.TailRequest(ledger_id=ledger_id), timeout=over).read()
            assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        found = await client.stub.Describe(pb.DescribeRequest(ledger_id=ledger_id), timeout=10**9)
        assert found.ledger_id == ledger_id
        await client.until("tallybook_gateway_streams", 0)


async def test_a_reader_that_takes_nothing_is_sent_little_and_cut_off(gateway):
    async with gateway(slow_reader_ms=300) as client:
        stream = await client.append(create=pb.CreateRequest())
        options = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 65_536)]
        async with grpc.aio.insecure_channel(client.address, options=options) as channel:
            call = Gateway(channel, "").stub.Tail(pb.TailRequest(ledger_id=stream.ledger_id))
            for _ in range(64):
                await stream.send(bytes(MIB // 2))
                while stream.credit < MIB:
                    await stream.ack()
            await client.until("tallybook_gateway_readers_too_slow_total", 1)
            assert await client.number('tallybook_gateway_sent_bytes_total{method="LedgerService/Tail"}') < 8 * MIB
            with refused(grpc.StatusCode.ABORTED, "ReaderTooSlow") as told:
                async for _ in call:
                    pass
            assert told["retriable"] == "true"
        stream.call.cancel()
        assert (await client.closed(stream.ledger_id)).last_entry_id == 63


async def test_a_gateway_tells_of_its_grpc_port(gateway):
    async with gateway(max_streams=7) as client:
        stream = await client.append(create=pb.CreateRequest())
        await client.until("tallybook_grpc_calls", 1)
        assert await client.number("tallybook_grpc_connections") == 1
        assert await client.number("tallybook_grpc_max_calls") > 7
        assert await client.number("tallybook_grpc_max_connections") > 0
        stream.call.cancel()
        await client.until("tallybook_grpc_connections", 0)


# --- processes --------------------------------------------------------------------------------------------------------


def started(cli, cluster, *words: object) -> tuple[subprocess.Popen[bytes], dict[str, Any]]:
    """A gateway as a process of its own, and what it says when it is ready."""
    process = cli.start("gateway", "run", "--metadata", cluster.metadata, "--json", *words,
                        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)  # fmt: skip
    return process, json.loads(process.stdout.readline())


async def test_what_a_killed_gateway_has_acked_is_there_after_a_recovery_by_another(cli, cluster, gateway):
    process, ready = await asyncio.to_thread(started, cli, cluster)
    try:
        async with gateway() as other, grpc.aio.insecure_channel(ready["ready"]) as channel:
            stream = await Gateway(channel, ready["ready"]).append(create=pb.CreateRequest())
            sent = 0

            async def append_for_ever() -> None:
                nonlocal sent
                while True:
                    while sent < stream.acked + 500:
                        await stream.send(*(b"%d" % (sent + number) for number in range(50)))
                        sent += 50
                    await stream.ack()
                    if stream.acked > 2_000:
                        process.kill()

            # gRPC has an error of its own for a message that is written after the call has failed.
            with pytest.raises((grpc.aio.AioRpcError, asyncio.InvalidStateError)):
                await append_for_ever()
            assert await stream.call.code() in CUT_OFF
            assert (await other.describe(stream.ledger_id)).state == OPEN
            ledger = await other.stub.Recover(pb.RecoverRequest(ledger_id=stream.ledger_id))
            assert stream.acked - 1 <= ledger.last_entry_id < sent
            found = await other.read(stream.ledger_id)
            assert found == [b"%d" % number for number in range(ledger.last_entry_id + 1)]
    finally:
        process.kill()
        process.communicate()


def test_the_command_says_when_it_is_ready_and_stops_cleanly(cli, cluster):
    process, ready = started(cli, cluster)
    with process:
        assert got(ready["http"], "/healthz") == "ok\n"
        assert ready["pid"] == process.pid
        taken = cli.run("gateway", "run", "--metadata", cluster.metadata, "--listen", ready["ready"], "--json")
        assert (taken.code, json.loads(taken.err.splitlines()[-1])["error"]["type"]) == (3, "InvalidConfig")
        process.send_signal(signal.SIGTERM)
        assert process.wait(cli.patience) == 0
    nowhere = cli.run("gateway", "run", "--metadata", "sqlite:////nowhere/metadata.db", "--json")
    assert (nowhere.code, nowhere.error["type"]) == (3, "NoSuchCluster")
    shown = cli.run(
        "gateway", "run", "--metadata", cluster.metadata, "--set", "client.read_bytes=1MiB", "--print-config"
    )
    assert shown.json["client"]["read_bytes"] == MIB


def test_up_runs_a_gateway_beside_the_bookies(cli, tmp_path):
    process = cli.start("up", "--data", tmp_path, "--bookies", 1, "--no-offload", "--json", *cli.small,
                        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)  # fmt: skip
    with process:
        served = json.loads(process.stdout.readline())["gateway"]
        with grpc.insecure_channel(served["address"]) as channel:
            stub = ledger_pb2_grpc.LedgerServiceStub(channel)
            assert stub.Create(pb.CreateRequest(ensemble=1), timeout=cli.patience).ensemble == 1
        process.send_signal(signal.SIGINT)
        assert process.wait(cli.patience) == 0
        assert not cli.alive(served["pid"])
    assert "stopping" in (tmp_path / "gateway.log").read_text()
