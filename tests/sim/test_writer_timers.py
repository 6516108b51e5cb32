"""The timers of writers on an event loop that has too much to do: judgements are put off, and not for ever."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack

import pytest

from tallybook.client.client import Client
from tallybook.client.writer import pacing
from tallybook.client.writer.pacing import BackgroundPacing
from tallybook.core.errors import NotEnoughBookies
from tallybook.runtime.deterministic import SimClock
from tallybook.sim.stage.cluster import MemoryCluster
from tallybook.sim.stage.scenario import SMALL, scenario

TIMEOUT_S = SMALL.add_timeout_ms / 1000
PERIOD_S = 0.1


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
        patch.setattr(pacing, "WORK_S", 0.3 * TIMEOUT_S)
        began = cluster.world.clock.monotonic()
        with pytest.raises(NotEnoughBookies):
            await ledger.append(b"nobody acks it")
        # One timeout for each of: the ack, the quorum, and the judgements of both.
        assert cluster.world.clock.monotonic() - began < 5 * TIMEOUT_S


def test_writers_without_a_quorum_keep_their_period_among_very_many_that_have_one() -> None:
    shared = BackgroundPacing()
    with ExitStack() as waiting:
        for _ in range(10_000):
            waiting.enter_context(shared.waiting(urgent=False))
        waiting.enter_context(shared.waiting(urgent=True))
        assert shared.pause_s(PERIOD_S, 7, urgent=True) == PERIOD_S
        assert shared.pause_s(PERIOD_S, 7) > 10 * PERIOD_S


def test_very_many_writers_without_a_quorum_share_the_event_loop_as_others_do() -> None:
    shared = BackgroundPacing()
    with ExitStack() as waiting:
        for _ in range(10_000):
            waiting.enter_context(shared.waiting(urgent=True))
        pauses = [shared.pause_s(PERIOD_S, ledger_id, urgent=True) for ledger_id in range(1000)]
        assert sum(pauses) / len(pauses) == pytest.approx(10_000 * pacing.WORK_S, rel=0.05)
    assert shared.pause_s(PERIOD_S, 7, urgent=True) == PERIOD_S
