"""A bookie's place in the membership: kept, found again, and given up only to somebody else."""

import asyncio
from dataclasses import replace

import pytest

from tallybook.bookie.enrolment import Enrolment
from tallybook.core.answers import Incarnation
from tallybook.core.errors import DiskFailed, MetadataConflict, MetadataOutcomeUnknown, MetadataUnavailable
from tallybook.metadata.memory import MemoryMetadata
from tallybook.metadata.store import BookieInfo, BookieMode
from tallybook.runtime.deterministic import World, run_seed
from tallybook.runtime.rng import SeededRng

INFO = BookieInfo("b1", "host:1", Incarnation("directory", 3), free_bytes=1000)
SECONDS = 3.0


class Bookie:
    """The bookie around an enrolment: its mode, and a membership that fails when told to."""

    def __init__(self, world: World) -> None:
        self.metadata = MemoryMetadata(SeededRng(1))
        self.membership = self.metadata.client().membership
        self.clock = world.clock
        self.mode = BookieMode.WRITABLE
        self.failures: list[Exception] = []
        self.applies = False
        self.free_bytes: int | None = 1000
        self.enrolment = Enrolment(self, INFO, lambda: self.mode, self.measure, self.clock)

    async def measure(self) -> int:
        if self.free_bytes is None:
            raise DiskFailed("cannot tell")
        return self.free_bytes

    async def register(self, info: BookieInfo):
        if self.failures:
            if self.applies:
                await self.membership.register(info)
            raise self.failures.pop(0)
        return await self.membership.register(info)

    async def bookies(self):
        return await self.membership.bookies()

    def watch(self):
        return self.membership.watch()

    @property
    def listed(self) -> BookieInfo | None:
        """What the cluster sees of it."""
        found = self.metadata.bookies.get("b1")
        return None if found is None else found.info


def play(scenario) -> None:
    """Run ``scenario(bookie, keeping)`` on virtual time with an enrolment that is being kept."""

    async def run(world: World) -> None:
        bookie = Bookie(world)
        await bookie.enrolment.enter()
        keeping = asyncio.ensure_future(bookie.enrolment.keep())
        try:
            await scenario(bookie, keeping)
        finally:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)

    run_seed(1, run)


def test_j29_a_lost_registration_is_made_again():
    async def scenario(bookie: Bookie, keeping) -> None:
        bookie.metadata.expire("b1")
        assert bookie.listed is None
        await bookie.clock.sleep(SECONDS)
        assert bookie.listed == INFO
        assert bookie.enrolment.listed

    play(scenario)


def test_while_the_store_is_away_the_bookie_keeps_trying_and_knows_that_it_is_not_listed():
    async def scenario(bookie: Bookie, keeping) -> None:
        bookie.failures = [MetadataUnavailable("away")] * 20
        bookie.metadata.expire("b1")
        await bookie.clock.sleep(SECONDS)
        assert not bookie.enrolment.listed
        assert not keeping.done()
        await bookie.clock.sleep(20)
        assert bookie.listed == INFO
        assert bookie.enrolment.listed

    play(scenario)


def test_an_entry_that_an_earlier_attempt_of_its_own_left_behind_is_waited_out():
    async def scenario(bookie: Bookie, keeping) -> None:
        bookie.failures, bookie.applies = [MetadataOutcomeUnknown("landed all the same")], True
        bookie.metadata.expire("b1")
        await bookie.clock.sleep(SECONDS)
        assert bookie.listed == INFO
        assert not bookie.enrolment.listed
        assert not keeping.done()
        bookie.metadata.expire("b1")
        await bookie.clock.sleep(SECONDS)
        assert bookie.enrolment.listed

    play(scenario)


@pytest.mark.parametrize("other", [Incarnation("directory", 4), Incarnation("another directory", 1)])
def test_somebody_else_under_its_name_ends_it(other):
    async def scenario(bookie: Bookie, keeping) -> None:
        bookie.metadata.expire("b1")
        await bookie.metadata.client().membership.register(replace(INFO, address="host:2", incarnation=other))
        with pytest.raises(MetadataConflict):
            await asyncio.wait_for(asyncio.shield(keeping), SECONDS)
        assert bookie.listed.incarnation == other

    play(scenario)


def test_the_registered_mode_follows_the_bookie_also_over_a_lost_registration():
    async def scenario(bookie: Bookie, keeping) -> None:
        bookie.mode = BookieMode.READ_ONLY
        await bookie.clock.sleep(SECONDS)
        assert bookie.listed.mode is BookieMode.READ_ONLY
        bookie.metadata.expire("b1")
        bookie.mode = BookieMode.WRITABLE
        await bookie.clock.sleep(SECONDS)
        assert bookie.listed.mode is BookieMode.WRITABLE

    play(scenario)


def test_a_mode_whose_registration_is_in_doubt_is_told_again_although_it_was_taken_back():
    async def scenario(bookie: Bookie, keeping) -> None:
        registration = bookie.enrolment._registration
        update = registration.update

        async def update_in_doubt(info: BookieInfo) -> None:
            registration.update = update
            await update(info)
            bookie.mode = BookieMode.WRITABLE
            raise MetadataOutcomeUnknown("update: the answer is lost")

        registration.update = update_in_doubt
        bookie.mode = BookieMode.READ_ONLY
        await bookie.clock.sleep(2 * SECONDS)
        assert registration.update == update
        assert bookie.listed.mode is BookieMode.WRITABLE

    play(scenario)


def test_free_disk_is_registered_again_when_it_has_changed_by_a_tenth_and_at_most_once_a_minute():
    async def scenario(bookie: Bookie, keeping) -> None:
        for free_bytes, told in ((999, 1000), (905, 1000), (895, 895), (0, 0), (5, 5)):
            before = bookie.listed.free_bytes
            bookie.free_bytes = free_bytes
            await bookie.clock.sleep(50)
            assert bookie.listed.free_bytes == before
            await bookie.clock.sleep(12)
            assert bookie.listed.free_bytes == told

    play(scenario)


def test_a_disk_that_cannot_be_measured_keeps_the_bookie_listed_with_what_was_known():
    async def scenario(bookie: Bookie, keeping) -> None:
        bookie.free_bytes = None
        await bookie.clock.sleep(200)
        assert bookie.listed == INFO
        bookie.metadata.expire("b1")
        await bookie.clock.sleep(SECONDS)
        assert bookie.listed == INFO
        assert bookie.enrolment.listed

    play(scenario)


def test_leaving_takes_it_off_the_list_at_once():
    async def scenario(bookie: Bookie, keeping) -> None:
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
        await bookie.enrolment.leave()
        assert bookie.listed is None
        await bookie.enrolment.leave()

    play(scenario)


def test_leaving_gives_up_on_a_store_that_does_not_answer():
    async def run(world: World) -> float:
        bookie = Bookie(world)
        await bookie.enrolment.enter()
        registration = bookie.metadata.bookies["b1"]

        async def hang() -> None:
            await asyncio.Event().wait()

        registration.close = hang
        started = world.clock.monotonic()
        await bookie.enrolment.leave()
        return world.clock.monotonic() - started

    assert run_seed(1, run).value < 10
