"""Copying and the other work of bookies: one that is too busy is waited for, and few requests are at one at a time."""

import asyncio
from collections.abc import Iterable

import pytest

from tallybook.core.answers import EntryRange, HeldAnswer, ReadAnswer
from tallybook.core.errors import Busy
from tallybook.core.quorum import Quorum
from tallybook.metadata.model import Fragment, LedgerMetadata, LedgerState
from tallybook.repair.copier import BUSY_SECONDS, GIVES_AT_ONE, READS_AT_ONE, SHORTEST_PAUSE_SECONDS, Copier
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


class WorkingBookie:
    """A connection to one that takes a second for each request, and says how many it has at a time at most.

    Args:
        takes: seconds for a read.
    """

    def __init__(self, world: World, bookie_id: str, takes: float = 1.0) -> None:
        self.bookie_id = bookie_id
        self._clock = world.clock
        self._takes = takes
        self._under_way = 0
        self.most = 0
        self.taken = 0

    async def _work(self, seconds: float) -> None:
        self._under_way += 1
        self.most = max(self.most, self._under_way)
        await self._clock.sleep(seconds)
        self._under_way -= 1

    async def held(self, _ledger_id: int, _first: int, last: int) -> HeldAnswer:
        return HeldAnswer((), last, False)

    async def repair_add(self, _batch: bytes) -> None:
        await self._work(1.0)
        self.taken += 1

    async def read_batches(self, ledger_id: int, first: int, *_: int) -> ReadAnswer:
        await self._work(self._takes)
        return ReadAnswer((batch_of(first, ledger_id=ledger_id),), first)


class Cluster:
    def __init__(self, bookies: Iterable[WorkingBookie]) -> None:
        self._bookies = {bookie.bookie_id: bookie for bookie in bookies}

    async def get(self, bookie_id: str) -> WorkingBookie:
        return self._bookies[bookie_id]


def ledger(ledger_id: int, *bookies: str, entries: int = 1) -> LedgerMetadata:
    quorum = Quorum(len(bookies), len(bookies), 1)
    fragments = (Fragment(0, bookies),)
    return LedgerMetadata(
        ledger_id, quorum, fragments, "creator", 0,
        state=LedgerState.CLOSED, last_entry_id=entries - 1, length=5 * entries,
    )  # fmt: skip


async def copy_all(world: World, bookies: Iterable[WorkingBookie], ledgers: Iterable[LedgerMetadata]) -> float:
    """Give the first bookie of each its copies, all at a time; how long that took."""
    began = world.clock.monotonic()
    copier = Copier(Cluster(bookies), Pace(world.clock, 0), world.clock)
    giving = (copier.give_all(each, next(iter(places_of(each))), each.fragments[0].bookies[0]) for each in ledgers)
    await asyncio.gather(*giving)
    return world.clock.monotonic() - began


def test_few_requests_are_at_one_bookie_at_a_time_however_many_ledgers_are_copied() -> None:
    async def scenario(world: World) -> tuple[int, int, int]:
        target, source = WorkingBookie(world, "target"), WorkingBookie(world, "source", takes=0.1)
        await copy_all(world, (target, source), (ledger(number, "target", "source") for number in range(1, 31)))
        return target.most, source.most, target.taken

    assert run_seed(1, scenario).value == (GIVES_AT_ONE, READS_AT_ONE, 30)


def test_a_source_that_answers_late_holds_up_no_more_than_are_at_it() -> None:
    async def scenario(world: World) -> float:
        bookies = WorkingBookie(world, "target"), WorkingBookie(world, "hung", takes=100), WorkingBookie(world, "good")
        ledgers = (ledger(number, "target", "hung", "good") for number in range(1, 3 + READS_AT_ONE))
        return await copy_all(world, bookies, ledgers)

    # Those that began with the late one wait for it; the others are read from the other source meanwhile.
    assert run_seed(1, scenario).value == pytest.approx(101)


def test_what_comes_next_is_read_while_what_was_read_is_given() -> None:
    async def scenario(world: World) -> float:
        bookies = WorkingBookie(world, "target"), WorkingBookie(world, "source")
        return await copy_all(world, bookies, [ledger(1, "target", "source", entries=10)])

    assert run_seed(1, scenario).value == pytest.approx(11)
