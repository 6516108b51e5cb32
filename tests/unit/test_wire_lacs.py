"""Explicit LACs of many ledgers share messages to a bookie."""

import asyncio

import pytest

from tallybook.client.rpc_lacs import AT_ONCE
from tallybook.core.errors import Busy, InvalidArgument
from tallybook.runtime import grpc_messages as wire
from tallybook.runtime.transport import Lane
from tallybook.runtime.wire import MAX_LACS

from .test_wire_client import scripted


@scripted
async def test_lacs_that_wait_share_a_message_and_the_newest_of_a_ledger_counts(bookie):
    connection = await bookie.open()
    for lac in (2, 3):
        for ledger_id in range(1, 101):
            connection.tell_lac(ledger_id, lac, b"k", identity=b"i" * 16)
    told = []
    for _ in range(4):
        request = await bookie.asked(Lane.CONTROL)
        told.append(request.ask.lacs)
        await bookie.reply(Lane.CONTROL, request.request_id, None)
    assert [len(lacs) for lacs in told] == [MAX_LACS, MAX_LACS, MAX_LACS, 100 - 3 * MAX_LACS]
    assert [lac for lacs in told for lac in lacs] == [
        wire.LedgerLac(ledger_id, 3, b"k", b"i" * 16) for ledger_id in range(1, 101)
    ]
    await connection.close()


@scripted
async def test_only_some_messages_with_lacs_are_under_way_at_a_time(bookie):
    connection = await bookie.open()
    count = 2 * AT_ONCE * MAX_LACS
    for ledger_id in range(1, count + 1):
        connection.tell_lac(ledger_id, 0, b"")
    under_way = [await bookie.asked(Lane.CONTROL) for _ in range(AT_ONCE)]
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await bookie.asked(Lane.CONTROL)
    for request in under_way:
        await bookie.reply(Lane.CONTROL, request.request_id, Busy("no room", retry_after_ms=1))
    rest = [await bookie.asked(Lane.CONTROL) for _ in range(AT_ONCE)]
    assert sum(len(request.ask.lacs) for request in under_way + rest) == count
    await connection.close()


@scripted
async def test_a_bookie_that_knows_no_shared_lacs_is_told_each_alone(bookie):
    connection = await bookie.open()
    for ledger_id in (1, 2, 3):
        connection.tell_lac(ledger_id, 4, b"k")
    request = await bookie.asked(Lane.CONTROL)
    assert len(request.ask.lacs) == 3
    await bookie.reply(Lane.CONTROL, request.request_id, InvalidArgument("a kind that this version does not know"))
    told = [await bookie.asked(Lane.CONTROL) for _ in range(1)]
    for ledger_id in (2, 3):
        await bookie.reply(Lane.CONTROL, told[-1].request_id, None)
        told.append(await bookie.asked(Lane.CONTROL))
        assert told[-1].ask == wire.WriteLac(ledger_id, 4, b"k")
    await connection.close()
