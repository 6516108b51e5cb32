"""Lines of a client in which very many wait: the last of them costs no more than the first."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

import pytest

from tallybook.client.rpc_lacs import LacLine
from tallybook.client.writer.metadata_line import MetadataLine
from tallybook.core.limits import MIB
from tallybook.runtime import grpc_messages as wire
from tallybook.runtime.transport import Lane

from .test_wire_client import WELCOME, Scripted, scripted

FEW, MANY = 8192, 65_536
MOST = 2 * MANY / FEW
"""How much longer the many may take than the few: twice their share. Where each looks at all before it, it is more."""


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
    """LACs of ledgers to which nothing is appended are told."""
    told, done = 0, asyncio.Event()

    async def send(lacs: Sequence[wire.LedgerLac]) -> Sequence[wire.RefusedLac]:
        nonlocal told
        told += len(lacs)
        if told == count:
            done.set()
        return ()

    line = LacLine(send, bookie.world.clock, bookie.world.rng, bookie.tasks, "LACs")
    for ledger_id in range(count):
        line.tell(wire.LedgerLac(ledger_id, 0, b"k"), line.end)
    await done.wait()


async def take_turns(bookie: Scripted, count: int) -> None:
    """Writers come to the metadata store, one after the other."""
    line = MetadataLine(most=1, kept=0)
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
@scripted
async def test_a_line_of_very_many_takes_as_long_for_each_as_a_short_one(
    bookie: Scripted, drain: Callable[[Scripted, int], Awaitable[None]]
) -> None:
    few = max([await cpu_s(drain(bookie, FEW)) for _ in range(2)])
    assert await cpu_s(drain(bookie, MANY)) < MOST * few
