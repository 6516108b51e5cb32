"""Timers of writers on an overloaded event loop: decisions are delayed, but not for ever."""

from __future__ import annotations

import asyncio

import pytest

from tallybook.client.client import Client
from tallybook.core.errors import NotEnoughBookies
from tallybook.sim.deterministic import SimClock

from ..simulated import scenario
from ..support.ledger_scenario import SMALL
from ..support.memory_cluster import MemoryCluster

TIMEOUT_S = SMALL.add_timeout_ms / 1000


@scenario()
async def test_a_loop_that_is_always_late_puts_a_judgement_off_by_one_add_timeout_at_most(
    cluster: MemoryCluster, client: Client
) -> None:
    async def late(self: SimClock, seconds: float) -> None:
        await asyncio.sleep(seconds + TIMEOUT_S / 10)

    ledger = await client.create_ledger()
    await ledger.append(b"first")
    for bookie in cluster.bookies.values():
        bookie.pause()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SimClock, "sleep", late)
        began = cluster.world.clock.monotonic()
        with pytest.raises(NotEnoughBookies):
            await ledger.append(b"nobody acks it")
        # One timeout for each of: the ack, the quorum, and the judgements of both.
        assert cluster.world.clock.monotonic() - began < 5 * TIMEOUT_S
