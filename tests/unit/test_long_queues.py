"""Queues of a client with very many waiters: the last costs no more than the first."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

import pytest

from tallybook.client.connection.lac_updates import LacSender
from tallybook.client.writer.ensemble.metadata_queue import MetadataQueue
from tallybook.core.limits import MIB
from tallybook.wire import messages as wire
from tallybook.wire.lanes import Lane

from .test_wire_client import WELCOME, Scripted, scripted

FEW, MANY = 8192, 65_536
MOST = 2 * MANY / FEW
"""How much longer many may take than few: twice their share. It is more if each waiter scans all before it."""


async def attach(bookie: Scripted, count: int) -> None:
    """Ledgers of idle writers are attached over a new connection."""
    bookie.welcomes = dict.fromkeys(Lane, WELCOME._replace(max_attached=MANY, credit_bytes=4 * MIB))
    connection = await bookie.open()
    for ledger_id in range(count):
        connection.attach(ledger_id, b"k")
    attached = 0
    while attached < count:
        attached += len(wire.decode_adds(await bookie.heard[Lane.ADD].get()).attaches)
    await connection.close()


async def tell_lacs(bookie: Scripted, count: int) -> None:
    """Explicit LACs of ledgers to which nothing is appended are sent."""
    told, done = 0, asyncio.Event()

    async def send(lacs: Sequence[wire.LedgerLac]) -> Sequence[wire.RefusedLac]:
        nonlocal told
        told += len(lacs)
        if told == count:
            done.set()
        return ()

    line = LacSender(send, bookie.world.clock, bookie.world.rng, bookie.tasks, "LACs")
    for ledger_id in range(count):
        line.queue(wire.LedgerLac(ledger_id, 0, b"k"), line.end)
    await done.wait()


async def take_turns(bookie: Scripted, count: int) -> None:
    """Writers come to the metadata store, one after the other."""
    line = MetadataQueue(limit=1, reserved=0)
    turns = [line.turn() for _ in range(count)]
    for turn in turns:
        line.wait(turn, urgent=False)
    for turn in turns:
        assert turn.given.is_set()
        line.release()


async def cpu_s(work: Awaitable[None]) -> float:
    began = time.process_time()
    await work
    return time.process_time() - began


@pytest.mark.parametrize("drain", [attach, tell_lacs, take_turns])
@scripted()
async def test_a_line_of_very_many_takes_as_long_for_each_as_a_short_one(
    bookie: Scripted, *, drain: Callable[[Scripted, int], Awaitable[None]]
) -> None:
    few = max([await cpu_s(drain(bookie, FEW)) for _ in range(2)])
    assert await cpu_s(drain(bookie, MANY)) < MOST * few
