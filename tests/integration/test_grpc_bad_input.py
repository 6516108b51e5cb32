"""A real gRPC port under attack: invalid input of one client does not affect the service of others.

``test_bad_http2.py`` has what is invalid in HTTP/2 itself.
"""

import asyncio
import os
import struct

import grpc
import grpc.aio
import pytest
from crc32c import crc32c
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from tallybook.bookie.rpc.request_stream import MAX_REQUESTS
from tallybook.core.answers import ReadAnswer
from tallybook.core.errors import Busy, InvalidBatch, InvalidConfig, ProtocolViolation, TallybookError
from tallybook.core.limits import MAX_BATCH_BYTES, MAX_MESSAGE_BYTES, MIB
from tallybook.core.settings import AdmissionSettings
from tallybook.wire import batches as wire_module
from tallybook.wire import messages as wire
from tallybook.wire.batches import frame_batch
from tallybook.wire.bookie_transport import SERVICE, bookie_transport
from tallybook.wire.lanes import Lane

from ..support.waiting import settled
from .grpc_port import HELLO, NOT_GRPC, batch, begin_call, begun, ended, message, served, served_from_disk, soon

# -- what is not gRPC -------------------------------------------------------------------------


async def test_silent_connections_harm_no_other_client():
    async with served() as port:
        silent = [await port.raw() for _ in range(300)]
        await port.works()
        for _, writer in silent:
            writer.close()


async def test_a_message_that_announces_four_gigabytes_is_refused_at_once():
    async with served() as port:
        reader, writer = await port.http2()
        writer.write(begin_call() + message(HELLO) + message(b"x" * 100, announced=2**32 - 1))
        assert await ended(reader)
        writer.close()


async def test_a_message_that_stops_in_the_middle_is_no_message():
    async with served() as port:
        reader, writer = await port.http2()
        writer.write(begin_call() + message(HELLO) + message(b"x" * 100, announced=200))
        await ended(reader)
        assert (await port.bookie.read_lac(1)).lac == -1
        await port.works()
        writer.close()


# -- gRPC, but not as agreed ------------------------------------------------------------------


@pytest.mark.parametrize("method", ["/tallybook.v1.Bookie/Nothing", "/tallybook.v2.Bookie/Add", "/", "/a/b/c"])
async def test_methods_that_do_not_exist_are_unimplemented(method):
    async with served() as port, port.channel() as channel:
        call = channel.stream_stream(method, None, None)()
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call.read()
        assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_metadata_above_the_limit_is_refused():
    async with served() as port, port.channel() as channel:
        call = channel.stream_stream(f"/{SERVICE}/Add", None, None)(metadata=(("x-big", "v" * 200_000),))
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call.read()
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        await port.works()


@pytest.mark.parametrize("size", [MAX_MESSAGE_BYTES + 1, 64 * MIB])
async def test_a_message_above_the_limit_ends_its_stream_only(size):
    async with served() as port, port.channel() as channel:
        other, call = await begun(channel), await begun(channel)
        await call.write(b"x" * size)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call.read()
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        await other.write(wire.encode_attach(wire.Attach(1, b"")) + frame_batch(batch(1)))
        assert wire.decode_acks(await other.read())
        other.cancel()


async def test_a_message_as_large_as_may_be_is_taken():
    async with served(AdmissionSettings(stream_credit_bytes=8 * MIB)) as port, port.channel() as channel:
        call = await begun(channel)
        attach = wire.encode_attach(wire.Attach(1, b""))
        frames = b"".join(frame_batch(batch(first, MAX_BATCH_BYTES - 104)) for first in range(1, 6))
        left = MAX_MESSAGE_BYTES - len(attach) - len(frames)
        whole = attach + frames + frame_batch(batch(6, left - 4 - 72))
        assert len(whole) == MAX_MESSAGE_BYTES
        await call.write(whole)
        acks = []
        while len(acks) < 6:
            acks += wire.decode_acks(await call.read())
        assert [ack.answer.code for ack in acks] == [0] * 6
        call.cancel()


FLOODS = {
    "empty batches": b"\x7a\x00" * (MAX_MESSAGE_BYTES // 2),
    "unknown fields": b"\xa0\x06\x01" * (MAX_MESSAGE_BYTES // 3),
}


@pytest.mark.parametrize("lane", list(Lane), ids=[lane.value for lane in Lane])
@pytest.mark.parametrize("flood", FLOODS.values(), ids=FLOODS.keys())
async def test_a_message_of_millions_of_fields_ends_its_stream_before_it_holds_up_others(lane, flood, monkeypatch):
    looked = []
    read_varint = wire_module._read_varint
    monkeypatch.setattr(wire_module, "_read_varint", lambda message, at: looked.append(at) or read_varint(message, at))
    async with served() as port, port.channel() as channel:
        unheard = channel.stream_stream(f"/{SERVICE}/{lane.value}", None, None)()
        for call in (unheard, await begun(channel, lane)):
            looked.clear()
            await call.write(flood)
            assert isinstance(wire.decode_reply(await soon(call.read())).outcome, ProtocolViolation)
            assert len(looked) < 20_000
            assert await call.read() is grpc.aio.EOF


@pytest.mark.parametrize(
    "first",
    [b"", b"\xff" * 1000, frame_batch(batch(0)), HELLO + b"\x7a"],
    ids=["empty", "noise", "batch", "cut"],
)
@pytest.mark.parametrize("lane", list(Lane), ids=[lane.value for lane in Lane])
async def test_a_peer_that_does_not_begin_with_a_hello_is_told_and_disconnected(lane, first):
    async with served() as port, port.channel() as channel:
        call = channel.stream_stream(f"/{SERVICE}/{lane.value}", None, None)()
        await call.write(first)
        said = await soon(call.read())
        with pytest.raises(ProtocolViolation, match=r"hello|offset|end|bytes|not a valid"):
            wire.decode_welcome(said)
        assert await call.read() is grpc.aio.EOF


async def test_a_thousand_streams_of_one_client_leave_space_for_others():
    async with served(AdmissionSettings(max_streams=200)) as port, port.channel() as channel:
        calls = [channel.stream_stream(f"/{SERVICE}/Read", None, None)() for _ in range(1000)]
        writing = [asyncio.ensure_future(call.write(HELLO)) for call in calls]
        await settled(lambda: port.service.stream_count)
        await port.works()
        for call, write in zip(calls, writing, strict=True):
            write.cancel()
            call.cancel()
        await asyncio.gather(*writing, return_exceptions=True)


async def test_of_one_connection_sixty_four_streams_are_served_at_a_time():
    async with served() as port, port.channel() as channel:
        calls = [await begun(channel, Lane.READ) for _ in range(64)]
        waiting = asyncio.ensure_future(begun(channel, Lane.READ))
        done, _ = await asyncio.wait([waiting], timeout=0.5)
        assert not done, "the next one waits for its turn"
        await port.works()
        calls[0].cancel()
        for call in (await soon(waiting), *calls[1:]):
            call.cancel()


async def test_streams_beyond_the_limit_get_busy_and_slots_are_freed():
    async with served(AdmissionSettings(max_streams=6)) as port:
        transport, streams = bookie_transport(), []
        for _ in range(6):
            streams.append(await transport.connect(port.address, Lane.ADD, timeout_seconds=5))
            await streams[-1].send(HELLO)
            wire.decode_welcome(await streams[-1].receive())
        with pytest.raises(Busy):
            await port.works()
        for stream in streams:
            await stream.close()


async def test_a_peer_that_does_not_read_ties_up_little_and_delays_no_other():
    async with served() as port, port.channel() as channel:
        deaf = await begun(channel, Lane.READ)
        for request_id in range(1, MAX_REQUESTS + 1):
            await deaf.write(wire.encode_request(request_id, wire.ReadBatches(1, 0, 0, 2 * MIB)))
        asked = await settled(lambda: port.bookie.reads)
        assert asked < 40
        await port.works()
        assert await settled(lambda: port.bookie.reads) <= asked + 1
        # It reads after all, and gets everything it requests next.
        for _ in range(20):
            assert isinstance(wire.decode_reply(await soon(deaf.read())).outcome, ReadAnswer)
        deaf.cancel()


async def test_peers_that_vanish_at_any_moment_leave_nothing_behind():
    async with served() as port:
        transport = bookie_transport()
        for turns in range(60):
            stream = await transport.connect(port.address, Lane.READ, timeout_seconds=5)
            await stream.send(HELLO)
            await stream.receive()
            for request_id in range(1, 10):
                await stream.send(wire.encode_request(request_id, wire.WaitLac(1, 5, 60_000)))
            for _ in range(turns % 6):
                await asyncio.sleep(0)
            stream.abort()
            await stream.close()
        for _ in range(500):
            if port.service.stream_count:
                await asyncio.sleep(0.01)
        assert port.service.stream_count == 0


# -- a bookie on a disk -----------------------------------------------------------------------


async def test_a_bookie_on_a_disk_outlives_every_attack_and_so_does_what_it_holds(tmp_path):
    cookies = {}
    async with served_from_disk(tmp_path, cookies) as port, port.channel() as channel:
        for said in NOT_GRPC.values():
            _, writer = await port.raw()
            writer.write(said)
            await writer.drain()
            writer.close()
        for lane in Lane:
            for flood in (*FLOODS.values(), b"\xff" * 1000, HELLO, frame_batch(b"TBAT")):
                call = await begun(channel, lane)
                await call.write(flood)
                assert isinstance(wire.decode_reply(await soon(call.read())).outcome, ProtocolViolation)
        await port.works()
        await batches_that_are_none_are_refused_one_by_one(channel)
        await requests_that_cannot_be_are_answered(channel)
        await readers_that_do_not_read_delay_no_other(port, channel)
    async with served_from_disk(tmp_path, cookies) as port:
        answer = await port.bookie.read_batches(1, 0, 100, 8 * MIB)
        assert list(answer.batches) == [batch(0), *(batch(first, 500_000) for first in range(1, 7))]


async def batches_that_are_none_are_refused_one_by_one(channel):
    call = await begun(channel)
    flipped, uneven = bytearray(batch(1)), bytearray(batch(1))
    flipped[-1] ^= 1
    uneven[64] += 1
    uneven[60:64] = struct.pack("<I", crc32c(uneven[64:], crc32c(uneven[:60])))
    bad = [bytes(flipped), bytes(uneven), bytes(64), b"TBAT" + bytes(MAX_BATCH_BYTES), batch(1)[:-1], os.urandom(1000)]
    await call.write(wire.encode_attach(wire.Attach(1, b"")) + b"".join(frame_batch(each) for each in bad[:2]))
    acks = []
    while len(acks) < 2:
        acks += wire.decode_acks(await soon(call.read()))
    assert {ack.answer.code for ack in acks} == {InvalidBatch.wire_code}
    call.cancel()
    control = await begun(channel, Lane.CONTROL)
    for request_id, each in enumerate(bad, start=1):
        await control.write(wire.encode_request(request_id, wire.RecoveryAdd(b"", each)))
        assert isinstance(wire.decode_reply(await soon(control.read())).outcome, InvalidBatch)
    control.cancel()


async def requests_that_cannot_be_are_answered(channel):
    control, reading = await begun(channel, Lane.CONTROL), await begun(channel, Lane.READ)
    asks = [
        (control, wire.Fence(-1, b"")),
        (control, wire.Fence(1, b"k" * 33)),
        (control, wire.Fence(1, b"k" * 32)),  # a key that does not fit
        (control, wire.WriteLac(1, -2, b"")),
        (control, wire.RecoveryRead(1, -1, b"")),
        (reading, wire.ReadEntry(2**63 - 1, 2**63 - 1)),
        (reading, wire.ReadBatches(1, 5, 4, 2**32 - 1)),
        (reading, wire.ReadLac(-(2**63))),
    ]
    for request_id, (call, ask) in enumerate(asks, start=1):
        await call.write(wire.encode_request(request_id, ask))
        assert isinstance(wire.decode_reply(await soon(call.read())).outcome, TallybookError)
    for call in (control, reading):
        call.cancel()


async def readers_that_do_not_read_delay_no_other(port, channel):
    adds = await begun(channel)
    await adds.write(wire.encode_attach(wire.Attach(1, b"")))
    for first in range(1, 7):
        await adds.write(frame_batch(batch(first, 500_000)))
        assert [ack.answer.code for ack in wire.decode_acks(await adds.read())] == [0]
    await port.bookie.flush()
    deaf = [await begun(channel, Lane.READ) for _ in range(3)]
    for call in deaf:
        for request_id in range(1, 101):
            await call.write(wire.encode_request(request_id, wire.ReadBatches(1, 0, 10, 4 * MIB)))
    await port.works()
    for call in (adds, *deaf):
        call.cancel()


# -- what else is on the port -----------------------------------------------------------------


async def test_health_and_reflection_answer():
    async with served() as port, port.channel() as channel:
        checked = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service=SERVICE))
        assert checked.status == health_pb2.HealthCheckResponse.SERVING
        call = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo()
        await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        listed = await call.read()
        assert SERVICE in [service.name for service in listed.list_services_response.service]
        await call.write(reflection_pb2.ServerReflectionRequest(file_containing_symbol=SERVICE))
        assert (await call.read()).file_descriptor_response.file_descriptor_proto
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF


async def test_a_port_in_use_is_refused_by_name():
    async with served() as port:
        with pytest.raises(InvalidConfig, match=port.address):
            await bookie_transport().listen(port.address, port.service.accept)
