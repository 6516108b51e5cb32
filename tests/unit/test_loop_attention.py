"""The clock by which writers judge bookies: time during which the event loop is late counts little."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tallybook.client.writer.loop_attention import BEAT_S, LoopAttention
from tallybook.sim.deterministic import World

from ..simulated import Parts, on_stage
from ..support.late_clock import LateClock


@asynccontextmanager
async def late_clock(world: World) -> AsyncIterator[Parts]:
    yield {"clock": LateClock(world.clock)}


with_late_clock = on_stage(late_clock)


@with_late_clock
async def test_judged_time_runs_with_the_clock_while_the_loop_is_in_time(clock: LateClock) -> None:
    attention = LoopAttention(clock)
    before = attention.now()
    with attention:
        await clock.sleep(100)
    assert attention.now() - before == pytest.approx(100)
    await clock.sleep(100)
    assert attention.now() - before == pytest.approx(200)


@with_late_clock
async def test_an_eighth_of_the_time_by_which_the_loop_is_late_counts(clock: LateClock) -> None:
    attention = LoopAttention(clock)
    with attention:
        sent_at = clock.monotonic()
        clock.stand_still(80)
        assert attention.now() - attention.at(sent_at) == pytest.approx(10, abs=BEAT_S), "it still stands"
        await clock.sleep(5)
        assert attention.now() - attention.at(sent_at) == pytest.approx(15, abs=2 * BEAT_S)
        later = clock.monotonic()
        clock.stand_still(80)
        await clock.sleep(5)
        assert attention.now() - attention.at(later) == pytest.approx(15, abs=2 * BEAT_S)
        assert attention.now() - attention.at(sent_at) == pytest.approx(30, abs=4 * BEAT_S)


@with_late_clock
async def test_a_stall_that_begins_with_a_send_is_seen_and_the_beat_ends_without_waiters(
    clock: LateClock,
) -> None:
    attention = LoopAttention(clock)
    attention.watch()
    sent_at = clock.monotonic()
    clock.stand_still(80)
    await clock.sleep(1)
    assert attention.now() - attention.at(sent_at) == pytest.approx(11, abs=2 * BEAT_S)
    before = attention.now()
    clock.stand_still(80)
    await clock.sleep(1)
    assert attention.now() - before == pytest.approx(81), "nobody waits, so nobody looks"
