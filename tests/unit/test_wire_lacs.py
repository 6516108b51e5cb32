"""Explicit LACs of many ledgers share messages to a bookie."""

import asyncio

import pytest

from tallybook.client.connection.lac_updates import MAX_IN_FLIGHT
from tallybook.core.errors import Busy, InvalidArgument
from tallybook.wire import messages as wire
from tallybook.wire.batches import MAX_LACS
from tallybook.wire.lanes import Lane

from .test_wire_client import connected


@connected()
async def test_lacs_that_wait_share_a_message_and_the_newest_of_a_ledger_counts(bookie, connection):
    for lac in (2, 3):
        for ledger_id in range(1, 101):
            connection.queue_lac(ledger_id, lac, b"k", identity=b"i" * 16)
    told = []
    for _ in range(4):
        request = await bookie.asked(Lane.CONTROL)
        told.append(request.ask.lacs)
        await bookie.reply(Lane.CONTROL, request.request_id, None)
    assert [len(lacs) for lacs in told] == [MAX_LACS, MAX_LACS, MAX_LACS, 100 - 3 * MAX_LACS]
    assert [lac for lacs in told for lac in lacs] == [
        wire.LedgerLac(ledger_id, 3, b"k", b"i" * 16) for ledger_id in range(1, 101)
    ]


@connected()
async def test_only_some_messages_with_lacs_are_in_flight_at_a_time(bookie, connection):
    count = 2 * MAX_IN_FLIGHT * MAX_LACS
    for ledger_id in range(1, count + 1):
        connection.queue_lac(ledger_id, 0, b"")
    under_way = [await bookie.asked(Lane.CONTROL) for _ in range(MAX_IN_FLIGHT)]
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await bookie.asked(Lane.CONTROL)
    for request in under_way:
        await bookie.reply(Lane.CONTROL, request.request_id, Busy("no room", retry_after_ms=1))
    rest = [await bookie.asked(Lane.CONTROL) for _ in range(MAX_IN_FLIGHT)]
    assert sum(len(request.ask.lacs) for request in under_way + rest) == count


@connected()
async def test_a_bookie_without_shared_lacs_gets_each_alone(bookie, connection):
    for ledger_id in (1, 2, 3):
        connection.queue_lac(ledger_id, 4, b"k")
    request = await bookie.asked(Lane.CONTROL)
    assert len(request.ask.lacs) == 3
    await bookie.reply(Lane.CONTROL, request.request_id, InvalidArgument("a kind that this version does not know"))
    told = [await bookie.asked(Lane.CONTROL) for _ in range(1)]
    for ledger_id in (2, 3):
        await bookie.reply(Lane.CONTROL, told[-1].request_id, None)
        told.append(await bookie.asked(Lane.CONTROL))
        assert told[-1].ask == wire.WriteLac(ledger_id, 4, b"k")
