"""Copying and the other work of bookies: one that is too busy is waited for, and few requests are at one at a time."""

import asyncio
from collections.abc import Iterable
from dataclasses import replace

import pytest

from tallybook.core.answers import EntryRange, HeldAnswer, ReadAnswer
from tallybook.core.batch import verify_batch
from tallybook.core.errors import Busy, DataMissing, EntryAbsent, InvariantViolation, NoSuchLedger
from tallybook.core.limits import MAX_BATCH_BYTES
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
    max_batch_bytes = MAX_BATCH_BYTES

    def __init__(self, refusals: list[int]) -> None:
        self.refusals = refusals
        self.asked = 0
        self.taken: list[bytes] = []

    async def held(self, _ledger_id: int, first: int, last: int, **_identity: bytes) -> HeldAnswer:
        return HeldAnswer((), last, False) if not self.taken else HeldAnswer((EntryRange(first, last),), last, False)

    async def repair_add(self, batch: bytes, **_identity: bytes) -> None:
        self.asked += 1
        if self.refusals:
            raise Busy("no room", retry_after_ms=self.refusals.pop(0))
        self.taken.append(batch)

    async def read_batches(self, *_: int, **_identity: bytes) -> ReadAnswer:
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
        without: an entry that it does not have.
        refuses: how it answers every copy.
        busy_once: it takes no batch when it is given it for the first time.
    """

    max_batch_bytes = MAX_BATCH_BYTES

    def __init__(
        self,
        world: World,
        bookie_id: str,
        takes: float = 1.0,
        *,
        without: int | None = None,
        refuses: Exception | None = None,
        busy_once: bool = False,
    ) -> None:
        self.bookie_id = bookie_id
        self._clock = world.clock
        self._takes = takes
        self._without = without
        self._refuses = refuses
        self._busy_once = busy_once
        self._seen: set[tuple[int, int]] = set()
        self._under_way = 0
        self.most = 0
        self.taken: list[int] = []
        self.ledgers_read: set[int] = set()
        """Ledgers of which anything was read here."""

    async def _work(self, seconds: float) -> None:
        self._under_way += 1
        self.most = max(self.most, self._under_way)
        await self._clock.sleep(seconds)
        self._under_way -= 1

    async def held(self, _ledger_id: int, _first: int, last: int, **_identity: bytes) -> HeldAnswer:
        return HeldAnswer((), last, False)

    async def repair_add(self, batch: bytes, **_identity: bytes) -> None:
        await self._work(1.0)
        header = verify_batch(batch)
        if self._refuses is not None:
            raise self._refuses
        if self._busy_once and (key := (header.ledger_id, header.first_entry_id)) not in self._seen:
            self._seen.add(key)
            raise Busy("in a moment", retry_after_ms=10)
        self.taken.append(header.first_entry_id)

    async def read_batches(self, ledger_id: int, first: int, *_: int, **_identity: bytes) -> ReadAnswer:
        self.ledgers_read.add(ledger_id)
        await self._work(self._takes)
        if first == self._without:
            raise EntryAbsent("it never had it")
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
        return target.most, source.most, len(target.taken)

    assert run_seed(1, scenario).value == (GIVES_AT_ONE, READS_AT_ONE, 30)


def test_a_source_that_answers_late_holds_up_no_more_than_are_at_it() -> None:
    ledgers = 16

    async def scenario(world: World) -> tuple[int, float]:
        target, good = WorkingBookie(world, "target"), WorkingBookie(world, "good")
        bookies = target, WorkingBookie(world, "late", takes=100), good
        copying = asyncio.ensure_future(
            copy_all(world, bookies, [ledger(number, "target", "late", "good") for number in range(1, 1 + ledgers)])
        )
        await world.clock.sleep(ledgers / READS_AT_ONE + 2)
        return len(target.taken), await copying

    assert run_seed(1, scenario).value == (ledgers - READS_AT_ONE, pytest.approx(101))


def test_a_bookie_that_was_slow_before_it_was_busy_is_not_left_for_that() -> None:
    ledgers = 200

    async def scenario(world: World) -> tuple[int, float]:
        target, source = WorkingBookie(world, "target", busy_once=True), WorkingBookie(world, "source", takes=0.01)
        took = await copy_all(
            world, (target, source), [ledger(number, "target", "source") for number in range(1, 1 + ledgers)]
        )
        return len(target.taken), took

    taken, took = run_seed(1, scenario).value
    assert taken == ledgers
    assert took > 2 * BUSY_SECONDS


def test_a_slow_bookie_that_stays_busy_is_left_for_later() -> None:
    async def scenario(world: World) -> float:
        target = WorkingBookie(world, "target", refuses=Busy("no room", retry_after_ms=10))
        began = world.clock.monotonic()
        with pytest.raises(Busy):
            await copy_all(world, (target, WorkingBookie(world, "source", takes=0)), [ledger(1, "target", "source")])
        return world.clock.monotonic() - began

    assert run_seed(1, scenario).value == pytest.approx(BUSY_SECONDS, abs=1)


def test_what_comes_next_is_read_while_what_was_read_is_given() -> None:
    async def scenario(world: World) -> float:
        bookies = WorkingBookie(world, "target"), WorkingBookie(world, "source")
        return await copy_all(world, bookies, [ledger(1, "target", "source", entries=10)])

    assert run_seed(1, scenario).value == pytest.approx(11)


def test_a_ledger_is_read_from_one_source_as_long_as_that_has_a_place() -> None:
    async def scenario(world: World) -> list[int]:
        target, source = WorkingBookie(world, "target"), WorkingBookie(world, "source")
        bookies = target, source, WorkingBookie(world, "other", takes=1.7)
        ledgers = [ledger(number, *(each.bookie_id for each in bookies), entries=10) for number in (1, 2)]
        await copy_all(world, bookies, ledgers)
        return [len(each.ledgers_read) for each in bookies[1:]]

    assert run_seed(1, scenario).value == [1, 1], "each of two ledgers from a source of its own"


def test_of_a_ledger_that_is_striped_the_next_stripe_is_read_while_one_is_given() -> None:
    async def scenario(world: World) -> float:
        bookies = [WorkingBookie(world, name) for name in ("target", "source", "other")]
        striped = replace(ledger(1, "target", "source", "other", entries=12), quorum=Quorum(3, 2, 1, stripe_entries=1))
        return await copy_all(world, bookies, [striped])

    assert run_seed(1, scenario).value == pytest.approx(9), "eight of twelve entries"


def test_what_was_read_before_an_entry_that_nobody_has_is_given_and_then_the_loss_is_told() -> None:
    async def scenario(world: World) -> list[int]:
        target, source = WorkingBookie(world, "target"), WorkingBookie(world, "source", takes=0.1, without=4)
        with pytest.raises(DataMissing, match="entry 4"):
            await copy_all(world, (target, source), [ledger(1, "target", "source", entries=9)])
        return target.taken

    assert run_seed(1, scenario).value == [0, 1, 2, 3]


@pytest.mark.parametrize("error", [NoSuchLedger("it was deleted"), InvariantViolation("a defect")])
def test_how_a_bookie_refuses_what_it_is_given_is_told_though_the_next_read_fails_too(error: Exception) -> None:
    async def scenario(world: World) -> None:
        target, source = WorkingBookie(world, "target", refuses=error), WorkingBookie(world, "source", 0.1, without=1)
        with pytest.raises(type(error), match=str(error)):
            await copy_all(world, (target, source), [ledger(1, "target", "source", entries=9)])

    run_seed(1, scenario)
