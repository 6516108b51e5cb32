"""Gateway requests without a ledger id are refused; ledger 0 must be named explicitly."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from google.protobuf.message import Message
from google.rpc import code_pb2

from tallybook.client.client import Client
from tallybook.core.access import OpenAccess, Permission, Presented, Principal
from tallybook.gateway.metrics import METHODS
from tallybook.proto import ledger_pb2

from ..simulated import scenario
from ..support.gateway_calls import FakeCall
from ..support.ledger_scenario import lines, read_all
from ..support.memory_cluster import MemoryCluster
from .test_gateway import CLOSE, CREATE, AppendCall, Stage, refusal, stage

LEDGER_REQUESTS: dict[str, tuple[type[Message], type[Message]]] = {
    "Describe": (ledger_pb2.DescribeRequest, ledger_pb2.Ledger),
    "Read": (ledger_pb2.ReadRequest, ledger_pb2.Entries),
    "Tail": (ledger_pb2.TailRequest, ledger_pb2.Entries),
    "Close": (ledger_pb2.CloseRequest, ledger_pb2.Ledger),
    "Recover": (ledger_pb2.RecoverRequest, ledger_pb2.Ledger),
    "Delete": (ledger_pb2.DeleteRequest, ledger_pb2.DeleteReply),
}
"""Request and answer of each method, Delete at the end."""


async def ledger_zero(gateway: Stage, client: Client) -> None:
    """Write the first ledger of a cluster."""
    call = AppendCall()
    call.say(CREATE, ledger_pb2.AppendRequest(payloads=lines(3)), CLOSE)
    await gateway.call("Append", call)
    assert call.ledger_id() == 0
    assert await read_all(client, 0) == lines(3)


def call_with(method: str, request: Message) -> Any:
    """A call with one request."""
    call: FakeCall[Any] = FakeCall(LEDGER_REQUESTS[method][1] if method in LEDGER_REQUESTS else ledger_pb2.AppendReply)
    call.say(request)
    return call


def test_every_method_that_names_a_ledger_is_here():
    methods = {method.partition("/")[2] for method in METHODS if method.startswith("LedgerService/")}
    assert methods - {"Create", "List"} == {*LEDGER_REQUESTS, "Append"}


class Limited:
    """Grants callers only ledgers with certain names."""

    def principal(self, presented: Presented) -> Principal:
        return Principal("orders", frozenset(Permission), ledgers=("orders-",))


@pytest.mark.parametrize("access", [OpenAccess(), Limited()], ids=["open", "limited"])
@pytest.mark.parametrize("method", [*LEDGER_REQUESTS, "Append"])
@pytest.mark.parametrize("password", [b"", b"secret"])
@scenario()
async def test_a_request_that_names_no_ledger_is_refused_and_does_nothing_to_ledger_zero(
    cluster: MemoryCluster, client: Client, *, access, method, password, caplog
) -> None:
    caplog.set_level(logging.INFO)
    async with stage(cluster, client) as gateway:
        await ledger_zero(gateway, client)
    async with stage(cluster, client, access=access) as gateway:
        if method == "Append":
            said: Any = ledger_pb2.AppendRequest(open=ledger_pb2.AppendOpen(password=password))
        else:
            said = LEDGER_REQUESTS[method][0](password=password)
        call = call_with(method, said)
        assert await refusal(gateway.call(method, call)) == (code_pb2.INVALID_ARGUMENT, "InvalidArgument")
        assert not call.replies
        assert (await client.ledger_metadata(0)).closed
        assert await read_all(client, 0) == lines(3)
        assert not [each for each in caplog.records if each.name == "tallybook.audit"]


@scenario()
async def test_ledger_zero_is_served_if_zero_is_named(cluster: MemoryCluster, client: Client) -> None:
    async with stage(cluster, client) as gateway:
        await ledger_zero(gateway, client)
        for method, (kind, _) in LEDGER_REQUESTS.items():
            call = call_with(method, kind(ledger_id=0))
            await gateway.call(method, call)
            assert call.replies, method
        assert [each async for each in client.list_ledgers()] == []
