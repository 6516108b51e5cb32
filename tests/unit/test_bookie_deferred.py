"""Adds of a bookie that are acked at once, mixed with adds that are acked when they are durable."""

from __future__ import annotations

import asyncio

import pytest

from tallybook.core.add_kind import AddKind
from tallybook.core.answers import AddAnswer
from tallybook.core.errors import Conflict, EntryAbsent, LedgerFenced
from tallybook.sim.stage.disk_bookie import DiskBookie, batch_of

from .bookie_parts import on_a_bookie

SLOW = 0.5


def add(node: DiskBookie, batch: bytes, *, deferred: bool) -> asyncio.Future[AddAnswer]:
    answered: asyncio.Future[AddAnswer] = asyncio.get_running_loop().create_future()
    node.bookie.add(batch, b"", answered.set_result, kind=AddKind.DEFERRED if deferred else AddKind.ORDINARY)
    return answered


def slow_journal(node: DiskBookie) -> None:
    """Every write of the journal takes its time from now on."""
    node.disk.fail("write", "journal", times=1_000, error=None, delay_seconds=SLOW)


@on_a_bookie()
async def test_j21_each_add_keeps_its_own_promise(node):
    await add(node, batch_of(0), deferred=False)
    slow_journal(node)
    now = asyncio.get_running_loop().time
    started = now()
    early, late = add(node, batch_of(1), deferred=True), add(node, batch_of(2), deferred=False)
    assert (await early).code == 0
    assert now() - started < SLOW, "it was acked when it was durable"
    assert not late.done()
    assert (await late).code == 0
    assert now() - started >= SLOW


@on_a_bookie()
async def test_j21_a_force_waits_until_what_was_acked_is_durable(node):
    await add(node, batch_of(0), deferred=False)
    slow_journal(node)
    for first in (1, 2, 3):
        await add(node, batch_of(first), deferred=True)
    started = asyncio.get_running_loop().time()
    await node.bookie.force(1, b"")
    assert asyncio.get_running_loop().time() - started >= SLOW / 2
    node.disk.faults.clear()
    await node.lose_power()
    await node.boot()
    for first in range(4):
        assert (await node.bookie.read_batches(1, first, first, 1)).batches == (batch_of(first),)
    with pytest.raises(EntryAbsent):
        await node.bookie.read_batches(1, 4, 4, 1)


@on_a_bookie()
async def test_what_is_refused_is_not_acked_early(node):
    assert (await add(node, batch_of(0), deferred=True)).code == 0
    assert (await add(node, batch_of(0, payload=b"other"), deferred=True)).code == Conflict.wire_code
    await node.bookie.fence(1, b"")
    assert (await add(node, batch_of(1), deferred=True)).code == LedgerFenced.wire_code
