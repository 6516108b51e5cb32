"""Copies and other requests of the repair to bookies: busy ones are waited for, with few requests at a time."""

import asyncio
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import replace

import pytest

from tallybook.core.answers import HeldAnswer, ReadAnswer
from tallybook.core.batch import verify_batch
from tallybook.core.errors import Busy, DataMissing, EntryAbsent, InvariantViolation, NoSuchLedger
from tallybook.core.limits import MAX_BATCH_BYTES
from tallybook.core.quorum import Quorum
from tallybook.metadata.ledger.model import Fragment, LedgerMetadata, LedgerState
from tallybook.repair.copier import ADDS_PER_BOOKIE, BUSY_SECONDS, MIN_PAUSE_SECONDS, READS_PER_BOOKIE, Copier
from tallybook.repair.needs import replicas_of
from tallybook.runtime.concurrency.rate_limit import RateLimiter
from tallybook.sim.deterministic import World
from tallybook.sim.stage.disk_bookie import batch_of

from ..simulated import simulated


class WorkingBookie:
    """A connection to one that takes a second for each request, and says how many it has at a time at most.

    Args:
        takes: seconds for a read.
        without: an entry that it does not have.
        refuses: how it answers every copy.
        busy: pauses that it asks for before it takes a copy, which take it no time.
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
        busy: Iterable[int] = (),
        busy_once: bool = False,
    ) -> None:
        self.bookie_id = bookie_id
        self._clock = world.clock
        self._takes = takes
        self._without = without
        self._refuses = refuses
        self._busy = list(busy)
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
        if self._busy:
            raise Busy("no room", retry_after_ms=self._busy.pop(0))
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
    copier = Copier(Cluster(bookies), RateLimiter(world.clock, 0), world.clock, world.rng)
    giving = (copier.copy_all(each, next(iter(replicas_of(each))), each.fragments[0].bookies[0]) for each in ledgers)
    await asyncio.gather(*giving)
    return world.clock.monotonic() - began


@simulated
async def test_few_requests_are_at_one_bookie_at_a_time_however_many_ledgers_are_copied(world: World) -> None:
    target, source = WorkingBookie(world, "target"), WorkingBookie(world, "source", takes=0.1)
    await copy_all(world, (target, source), (ledger(number, "target", "source") for number in range(1, 31)))
    assert (target.most, source.most, len(target.taken)) == (ADDS_PER_BOOKIE, READS_PER_BOOKIE, 30)


@simulated
async def test_a_source_that_answers_late_holds_up_no_more_than_are_at_it(world: World) -> None:
    ledgers = 16
    target, good = WorkingBookie(world, "target"), WorkingBookie(world, "good")
    bookies = target, WorkingBookie(world, "late", takes=100), good
    copying = asyncio.ensure_future(
        copy_all(world, bookies, [ledger(number, "target", "late", "good") for number in range(1, 1 + ledgers)])
    )
    await world.clock.sleep(ledgers / READS_PER_BOOKIE + 2)
    assert (len(target.taken), await copying) == (ledgers - READS_PER_BOOKIE, pytest.approx(101))


@simulated
async def test_a_bookie_that_was_slow_before_it_was_busy_is_not_left_for_that(world: World) -> None:
    target, source = WorkingBookie(world, "target", busy_once=True), WorkingBookie(world, "source", takes=0.01)
    ledgers = [ledger(number, "target", "source") for number in range(1, 201)]
    assert await copy_all(world, (target, source), ledgers) > 2 * BUSY_SECONDS
    assert len(target.taken) == 200


STAYS_BUSY = pytest.approx(BUSY_SECONDS, abs=1.5)


@pytest.mark.parametrize(
    ("busy", "refuses", "took", "copied"),
    [
        ([500, 0, 2_000], None, pytest.approx(1 + 1.25 * (2.5 + MIN_PAUSE_SECONDS), rel=0.2), True),
        ([60_000], None, 0, False),
        ([1_000] * 100, None, STAYS_BUSY, False),
        ((), Busy("no room", retry_after_ms=10), STAYS_BUSY, False),
    ],
    ids=["for a moment: the pauses that it names", "for long: at once", "always", "slow, and always"],
)
@simulated
async def test_a_busy_bookie_is_asked_again_or_left_for_later(
    world: World, *, busy: Iterable[int], refuses: Exception | None, took: float, copied: bool
) -> None:
    target = WorkingBookie(world, "target", busy=busy, refuses=refuses)
    began = world.clock.monotonic()
    with nullcontext() if copied else pytest.raises(Busy):
        await copy_all(world, (target, WorkingBookie(world, "source", takes=0)), [ledger(1, "target", "source")])
    assert (world.clock.monotonic() - began, bool(target.taken)) == (took, copied)


@simulated
async def test_what_comes_next_is_read_while_what_was_read_is_given(world: World) -> None:
    bookies = WorkingBookie(world, "target"), WorkingBookie(world, "source")
    assert await copy_all(world, bookies, [ledger(1, "target", "source", entries=10)]) == pytest.approx(11)


@simulated
async def test_a_ledger_is_read_from_one_source_as_long_as_that_has_a_place(world: World) -> None:
    target, source = WorkingBookie(world, "target"), WorkingBookie(world, "source")
    bookies = target, source, WorkingBookie(world, "other", takes=1.7)
    ledgers = [ledger(number, *(each.bookie_id for each in bookies), entries=10) for number in (1, 2)]
    await copy_all(world, bookies, ledgers)
    assert [len(each.ledgers_read) for each in bookies[1:]] == [1, 1], "each of two ledgers from a source of its own"


@simulated
async def test_of_a_ledger_that_is_striped_the_next_stripe_is_read_while_one_is_given(world: World) -> None:
    bookies = [WorkingBookie(world, name) for name in ("target", "source", "other")]
    striped = replace(ledger(1, "target", "source", "other", entries=12), quorum=Quorum(3, 2, 1, stripe_entries=1))
    assert await copy_all(world, bookies, [striped]) == pytest.approx(9), "eight of twelve entries"


@simulated
async def test_entries_before_one_without_copies_are_delivered_and_then_the_loss_is_reported(world: World) -> None:
    target, source = WorkingBookie(world, "target"), WorkingBookie(world, "source", takes=0.1, without=4)
    with pytest.raises(DataMissing, match="entry 4"):
        await copy_all(world, (target, source), [ledger(1, "target", "source", entries=9)])
    assert target.taken == [0, 1, 2, 3]


@pytest.mark.parametrize("error", [NoSuchLedger("it was deleted"), InvariantViolation("a defect")])
@simulated
async def test_how_a_bookie_refuses_what_it_is_given_is_told_though_the_next_read_fails_too(
    world: World, *, error: Exception
) -> None:
    target, source = WorkingBookie(world, "target", refuses=error), WorkingBookie(world, "source", 0.1, without=1)
    with pytest.raises(type(error), match=str(error)):
        await copy_all(world, (target, source), [ledger(1, "target", "source", entries=9)])
