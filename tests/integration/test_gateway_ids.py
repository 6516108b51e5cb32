"""Ids in gateway requests: invalid, maximal and missing ones, in every method.

The requests are encoded by hand, since client libraries do not encode invalid messages.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import grpc.aio
import pytest

from tallybook.client.client import Client
from tallybook.core.settings import GatewaySettings
from tallybook.gateway.ledgers.service import LEDGER_SERVICE
from tallybook.gateway.metrics import METHODS
from tallybook.gateway.server import serving
from tallybook.proto import ledger_pb2 as pb

from .grpc_codes import DEADLINE_SECONDS, begun
from .test_gateway import refused

LEDGER_ID, FIRST, LAST, OPEN = 1, 3, 4, 1
"""Numbers of fields: of all requests that name a ledger, of ReadRequest and TailRequest, and of AppendRequest."""
UNARY = ("Describe", "Close", "Recover", "Delete")
READING = ("Read", "Tail")
NAMING = (*UNARY, *READING, "Append")
HIGHEST = 2**63 - 1


def varint(value: int) -> bytes:
    """A protobuf varint of any size."""
    said = bytearray()
    while value > 0x7F:
        said.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*said, value])


def field(number: int, value: int) -> bytes:
    """A field of 64 bits with a sign, as it is said; above 64 bits it is what no encoder makes."""
    return varint(number << 3) + varint(value % 2**64 if value < 0 else value)


NO_ID = {
    "just below none": field(LEDGER_ID, -1),
    "the lowest there is": field(LEDGER_ID, -(2**63)),
    "one above the highest": field(LEDGER_ID, 2**63),
    "all 64 bits": field(LEDGER_ID, 2**64 - 1),
    "70 bits": field(LEDGER_ID, 2**70 - 1),
    "77 bits": field(LEDGER_ID, 2**77 - 1),
}


class Port:
    """The ledger service of a gateway, to which anything may be said."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._channel = channel

    async def __call__(self, method: str, said: bytes) -> bytes:
        """The first answer; empty where the call ends without one."""
        path = f"/{LEDGER_SERVICE}/{method}"
        if method in UNARY:
            return await self._channel.unary_unary(path)(said)
        if method in READING:
            call = self._channel.unary_stream(path)(said)
        else:
            opening = varint(OPEN << 3 | 2) + varint(len(said)) + said
            call = await begun(self._channel.stream_stream(path), opening)
        answer = await call.read()
        call.cancel()
        return b"" if answer is grpc.aio.EOF else answer

    async def written(self) -> int:
        """A closed ledger of three entries."""
        append = self._channel.stream_stream(f"/{LEDGER_SERVICE}/Append", pb.AppendRequest.SerializeToString)
        create = pb.AppendOpen(create=pb.CreateRequest())
        first = pb.AppendRequest(open=create, payloads=[b"a", b"b", b"c"])
        requests = [first, pb.AppendRequest(close=pb.AppendClose())]
        return pb.AppendReply.FromString([reply async for reply in append(requests)][-1]).closed.ledger_id


@asynccontextmanager
async def served(metadata: str) -> AsyncIterator[Port]:
    chosen = GatewaySettings(metadata=metadata)
    async with (
        asyncio.timeout(DEADLINE_SECONDS),
        Client(metadata, chosen.client) as client,
        serving(client, chosen) as addresses,
        grpc.aio.insecure_channel(addresses.grpc) as channel,
    ):
        yield Port(channel)


def test_every_method_that_names_a_ledger_is_here():
    methods = {method.partition("/")[2] for method in METHODS if method.startswith("LedgerService/")}
    assert methods - {"Create", "List"} == set(NAMING)


@pytest.mark.parametrize("method", NAMING)
async def test_what_can_be_no_ledger_is_refused_and_the_highest_id_is_one_that_is_not_there(cluster, method):
    async with served(cluster.metadata) as port:
        for said in NO_ID.values():
            with refused(grpc.StatusCode.INVALID_ARGUMENT, "InvalidArgument") as told:
                await port(method, said)
            assert told["outcome"] == "not done"
        with refused(grpc.StatusCode.NOT_FOUND, "NoSuchLedger"):
            await port(method, field(LEDGER_ID, HIGHEST))


def test_ledger_id_zero_is_encoded_explicitly():
    for kind in (pb.DescribeRequest, pb.CloseRequest, pb.RecoverRequest, pb.DeleteRequest, pb.ReadRequest,
                 pb.TailRequest, pb.AppendOpen):  # fmt: skip
        assert kind(ledger_id=0).SerializeToString() == field(LEDGER_ID, 0)
        assert kind().SerializeToString() == b""


async def test_what_can_be_no_entry_is_refused_and_one_behind_the_end_is_read_beyond_it(cluster):
    async with served(cluster.metadata) as port:
        ledger = field(LEDGER_ID, await port.written())
        for number in (-1, -(2**63), 2**63, 2**64 - 1):
            for method in READING:
                with refused(grpc.StatusCode.INVALID_ARGUMENT, "InvalidArgument"):
                    await port(method, ledger + field(FIRST, number))
            with refused(grpc.StatusCode.INVALID_ARGUMENT, "InvalidArgument"):
                await port("Read", ledger + field(LAST, number))
        with refused(grpc.StatusCode.OUT_OF_RANGE, "ReadBeyondLac"):
            await port("Read", ledger + field(LAST, HIGHEST))
        for method in READING:
            assert await port(method, ledger + field(FIRST, HIGHEST)) == b"", "there is nothing, and it is the end"
        assert pb.Entries.FromString(await port("Read", ledger)).payloads == [b"a", b"b", b"c"]


@pytest.mark.parametrize("method", READING)
async def test_what_can_be_no_entry_is_refused_before_the_ledger_is_looked_for(cluster, method):
    async with served(cluster.metadata) as port:
        with refused(grpc.StatusCode.INVALID_ARGUMENT, "InvalidArgument"):
            await port(method, field(LEDGER_ID, HIGHEST) + field(FIRST, -1))
