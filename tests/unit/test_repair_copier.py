"""Copying to a bookie that is too busy: it is waited for as long as that makes sense, and never without a pause."""

import pytest

from tallybook.core.answers import EntryRange, HeldAnswer, ReadAnswer
from tallybook.core.errors import Busy
from tallybook.core.quorum import Quorum
from tallybook.metadata.model import Fragment, LedgerMetadata, LedgerState
from tallybook.repair.copier import BUSY_SECONDS, SHORTEST_PAUSE_SECONDS, Copier
from tallybook.repair.needs import places_of
from tallybook.runtime.deterministic import World, run_seed
from tallybook.runtime.pace import Pace
from tallybook.sim.stage.disk_bookie import batch_of

LEDGER = LedgerMetadata(
    7, Quorum(2, 2, 1), (Fragment(0, ("full", "good")),), "creator", 0,
    state=LedgerState.CLOSED, last_entry_id=0, length=5,
)  # fmt: skip


class BusyBookie:
    """A connection to one that holds nothing, and refuses some copies before it takes one."""

    bookie_id = "full"

    def __init__(self, refusals: list[int]) -> None:
        self.refusals = refusals
        self.asked = 0
        self.taken: list[bytes] = []

    async def held(self, _ledger_id: int, first: int, last: int) -> HeldAnswer:
        return HeldAnswer((), last, False) if not self.taken else HeldAnswer((EntryRange(first, last),), last, False)

    async def repair_add(self, batch: bytes) -> None:
        self.asked += 1
        if self.refusals:
            raise Busy("no room", retry_after_ms=self.refusals.pop(0))
        self.taken.append(batch)

    async def read_batches(self, *_: int) -> ReadAnswer:
        return ReadAnswer((batch_of(0, ledger_id=7),), 0)


class Everybody:
    def __init__(self, bookie: BusyBookie) -> None:
        self.bookie = bookie

    async def get(self, _: str) -> BusyBookie:
        return self.bookie


def copy(bookie: BusyBookie) -> tuple[float, bool]:
    """Copy to it; how long that took, and whether it has what it lacked."""

    async def scenario(world: World) -> tuple[float, bool]:
        began = world.clock.monotonic()
        copier = Copier(Everybody(bookie), Pace(world.clock, 0), world.clock)
        try:
            await copier.give_all(LEDGER, next(iter(places_of(LEDGER))), "full")
        except Busy:
            return world.clock.monotonic() - began, False
        return world.clock.monotonic() - began, True

    return run_seed(1, scenario).value


def test_a_bookie_that_is_busy_for_a_moment_is_asked_again_after_the_pause_that_it_names() -> None:
    bookie = BusyBookie([500, 0, 2_000])
    assert copy(bookie) == (pytest.approx(2.5 + SHORTEST_PAUSE_SECONDS), True)
    assert len(bookie.taken) == 1


def test_a_bookie_that_will_be_busy_for_long_is_left_for_later_at_once() -> None:
    bookie = BusyBookie([60_000])
    assert copy(bookie) == (0, False)
    assert (bookie.asked, bookie.taken) == (1, [])


def test_a_bookie_that_stays_busy_is_left_for_later() -> None:
    bookie = BusyBookie([1_000] * 100)
    assert copy(bookie) == (BUSY_SECONDS, False)
    assert bookie.taken == []
