"""The bookie with adds that are acked at once, beside adds that are acked when they are durable."""

from __future__ import annotations

import asyncio

import pytest

from tallybook.core.answers import AddAnswer
from tallybook.core.errors import Conflict, EntryAbsent, LedgerFenced, Unauthorized
from tallybook.runtime.deterministic import SimClock, SimDisk, World, run_seed
from tallybook.runtime.rng import SeededRng
from tallybook.sim.stage.disk_bookie import DiskBookie, KnownMetadata, batch_of

SLOW = 0.5


def play(scenario) -> None:
    async def run(world: World) -> None:
        node = DiskBookie(SimDisk(SeededRng("deferred")), SimClock(), KnownMetadata())
        await node.boot()
        await scenario(node)
        await node.stop(clean=False)

    run_seed(1, run, deadline_seconds=600)


def add(node: DiskBookie, batch: bytes, *, deferred: bool) -> asyncio.Future[AddAnswer]:
    answered: asyncio.Future[AddAnswer] = asyncio.get_running_loop().create_future()
    node.bookie.add(batch, b"", answered.set_result, deferred=deferred)
    return answered


def slow_journal(node: DiskBookie) -> None:
    """Every write of the journal takes its time from now on."""
    node.disk.fail("write", "journal", times=1_000, error=None, delay_seconds=SLOW)


def test_j21_each_add_keeps_its_own_promise() -> None:
    async def scenario(node: DiskBookie) -> None:
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

    play(scenario)


def test_j21_what_was_acked_early_is_read_at_once_and_lost_with_the_power() -> None:
    async def scenario(node: DiskBookie) -> None:
        await add(node, batch_of(0), deferred=False)
        slow_journal(node)
        assert (await add(node, batch_of(1), deferred=True)).code == 0
        assert (await node.bookie.read_batches(1, 1, 1, 1)).batches == (batch_of(1),)
        await node.lose_power()
        await node.boot()
        assert (await node.bookie.read_batches(1, 0, 0, 1)).batches == (batch_of(0),)

    play(scenario)


def test_j21_a_force_waits_until_what_was_acked_is_durable() -> None:
    async def scenario(node: DiskBookie) -> None:
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

    play(scenario)


def test_a_force_is_refused_as_an_add_would_be() -> None:
    async def scenario(node: DiskBookie) -> None:
        await add(node, batch_of(0), deferred=True)
        with pytest.raises(Unauthorized):
            await node.bookie.force(1, b"a key of 32 bytes, which is wrong")
        await node.bookie.fence(1, b"")
        with pytest.raises(LedgerFenced):
            await node.bookie.force(1, b"")

    play(scenario)


def test_what_is_refused_is_not_acked_early() -> None:
    async def scenario(node: DiskBookie) -> None:
        assert (await add(node, batch_of(0), deferred=True)).code == 0
        assert (await add(node, batch_of(0, payload=b"other"), deferred=True)).code == Conflict.wire_code
        await node.bookie.fence(1, b"")
        assert (await add(node, batch_of(1), deferred=True)).code == LedgerFenced.wire_code

    play(scenario)
