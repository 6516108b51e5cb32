"""A client reconnects to bookies for the ledgers that it has open there, and only for these."""

from __future__ import annotations

import asyncio
from functools import partial

from tallybook.client.background import client_tasks
from tallybook.client.open_ledgers import LONGEST_PAUSE_SECONDS, LedgersAtBookie, OpenLedgers
from tallybook.core.errors import BookieUnavailable
from tallybook.runtime.concurrency.loop_slices import SLICE_S
from tallybook.sim.deterministic import World
from tallybook.wire.messages import Attach

from ..simulated import simulated
from ..support.late_clock import LateClock


class Carrier:
    """A connection that keeps what it attached."""

    def __init__(self) -> None:
        self.attached: list[int] = []

    def attach(self, attach: Attach) -> None:
        self.attached.append(attach.ledger_id)

    def forget(self, ledger_id: int) -> None:
        self.attached.remove(ledger_id)


class Bookie:
    """A bookie to which connections are made as a test says."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.tried_at: list[float] = []
        self.up = True
        self.drops = 0
        """So many connections are lost as soon as they are made."""
        self.carrier = Carrier()
        self.tasks = client_tasks("test")
        self.ledgers = OpenLedgers(self.connect, world.clock, self.tasks, world.rng, first_pause_s=0.5)

    async def connect(self, bookie_id: str) -> None:
        self.tried_at.append(self.world.clock.monotonic())
        if not self.up:
            raise BookieUnavailable(f"{bookie_id} is down")
        self.carrier = Carrier()
        self.ledgers.at(bookie_id).connection_opened(self.carrier)
        if self.drops:
            self.drops -= 1
            self.lose(bookie_id)

    def lose(self, bookie_id: str) -> None:
        self.ledgers.at(bookie_id).connection_ended(self.carrier)
        self.ledgers.lost(bookie_id)

    async def close(self) -> None:
        await self.ledgers.close()
        await self.tasks.close()


@simulated
async def test_a_bookie_that_is_away_is_tried_less_and_less_often_and_not_any_more_once_nothing_is_open_there(
    world: World,
) -> None:
    bookie = Bookie(world)
    await bookie.connect("b1")
    bookie.ledgers.at("b1").attach(Attach(1, b""))
    bookie.up = False
    bookie.lose("b1")
    await world.clock.sleep(300)
    pauses = [later - before for before, later in zip(bookie.tried_at[1:], bookie.tried_at[2:], strict=False)]
    assert pauses[0] <= 1
    assert max(pauses) <= LONGEST_PAUSE_SECONDS
    assert 300 / LONGEST_PAUSE_SECONDS <= len(pauses) <= 2 * 300 / LONGEST_PAUSE_SECONDS + 10
    bookie.ledgers.at("b1").forget(1)
    await world.clock.sleep(LONGEST_PAUSE_SECONDS)
    tried = len(bookie.tried_at)
    await world.clock.sleep(100)
    assert len(bookie.tried_at) == tried
    await bookie.close()


@simulated
async def test_a_connection_that_is_lost_as_soon_as_it_is_made_is_made_again_and_less_often_each_time(
    world: World,
) -> None:
    bookie = Bookie(world)
    await bookie.connect("b1")
    bookie.ledgers.at("b1").attach(Attach(1, b""))
    bookie.drops = 8
    bookie.lose("b1")
    await world.clock.sleep(120)
    assert bookie.carrier.attached == [1]
    assert len(bookie.tried_at) == 10
    assert bookie.tried_at[-1] - bookie.tried_at[1] > 2 * LONGEST_PAUSE_SECONDS
    await bookie.close()


@simulated
async def test_writers_are_notified_once_of_a_bookie_with_another_directory_and_stay_attached() -> None:
    ledgers = LedgersAtBookie()
    told: list[int] = []
    ledgers.connection_opened(Carrier(), "first")
    ledgers.attach(Attach(1, b""), "first", lambda: told.append(1))
    ledgers.connection_opened(Carrier(), "first")
    await asyncio.sleep(0)
    assert told == [], "the same one was started again"
    ledgers.attach(Attach(2, b""), "second", lambda: told.append(2))
    for _ in range(2):
        carrier = Carrier()
        ledgers.connection_opened(carrier, "second")
        await asyncio.sleep(0)
        assert (told, carrier.attached) == ([1], [1, 2])


@simulated
async def test_the_event_loop_is_not_blocked_while_very_many_writers_are_notified_of_another_directory(
    world: World,
) -> None:
    clock, tasks = LateClock(world.clock), client_tasks("test")
    ledgers = OpenLedgers(_never, clock, tasks, world.rng, first_pause_s=0.5).at("b1")
    told: list[int] = []

    def replaced(ledger_id: int) -> None:
        clock.stand_still(SLICE_S)
        told.append(ledger_id)

    for ledger_id in range(10):
        ledgers.attach(Attach(ledger_id, b""), "first", partial(replaced, ledger_id))
    ledgers.connection_opened(Carrier(), "second")
    for done in range(10):
        assert told == list(range(done))
        await asyncio.sleep(0)
    await tasks.close()


async def _never(bookie_id: str) -> None:
    raise BookieUnavailable(f"{bookie_id} is down")
