"""Registration of a bookie: kept, renewed after a loss, and given up only to another process with its id."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from tallybook.bookie.process.registration import BookieRegistration
from tallybook.core.answers import Incarnation
from tallybook.core.errors import DiskFailed, MetadataConflict, MetadataOutcomeUnknown, MetadataUnavailable
from tallybook.metadata.memory import MemoryMetadata
from tallybook.metadata.store import BookieInfo, BookieMode
from tallybook.runtime.rng import SeededRng
from tallybook.sim.deterministic import World

from ..simulated import Parts, on_stage

INFO = BookieInfo("b1", "host:1", Incarnation("directory", 3), free_bytes=1000)
SECONDS = 3.0


class Bookie:
    """A bookie with a registration: its mode, and a membership that fails on demand."""

    def __init__(self, world: World) -> None:
        self.metadata = MemoryMetadata(SeededRng(1))
        self.membership = self.metadata.client().membership
        self.clock = world.clock
        self.mode = BookieMode.WRITABLE
        self.keeping: asyncio.Future[None]
        self.failures: list[Exception] = []
        self.applies = False
        self.free_bytes: int | None = 1000
        self.registration = BookieRegistration(self, INFO, lambda: self.mode, self.measure, self.clock, world.rng)

    async def keep_no_longer(self) -> None:
        self.keeping.cancel()
        await asyncio.gather(self.keeping, return_exceptions=True)

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
        """The registration as the cluster sees it."""
        found = self.metadata.bookies.get("b1")
        return None if found is None else found.info


@asynccontextmanager
async def registered_bookie(world: World) -> AsyncIterator[Parts]:
    """A bookie whose registration is being kept."""
    bookie = Bookie(world)
    await bookie.registration.enter()
    bookie.keeping = asyncio.ensure_future(bookie.registration.keep())
    try:
        yield {"bookie": bookie}
    finally:
        await bookie.keep_no_longer()


registered = on_stage(registered_bookie)


@registered
async def test_j29_a_lost_registration_is_made_again(bookie: Bookie) -> None:
    bookie.metadata.expire("b1")
    assert bookie.listed is None
    await bookie.clock.sleep(SECONDS)
    assert bookie.listed == INFO
    assert bookie.registration.listed


@registered
async def test_while_the_store_is_away_the_bookie_keeps_trying_and_knows_that_it_is_not_listed(bookie: Bookie) -> None:
    bookie.failures = [MetadataUnavailable("away")] * 20
    bookie.metadata.expire("b1")
    await bookie.clock.sleep(SECONDS)
    assert not bookie.registration.listed
    assert not bookie.keeping.done()
    await bookie.clock.sleep(20)
    assert bookie.listed == INFO
    assert bookie.registration.listed


@registered
async def test_an_entry_that_an_earlier_attempt_of_its_own_left_behind_is_waited_out(bookie: Bookie) -> None:
    bookie.failures, bookie.applies = [MetadataOutcomeUnknown("landed all the same")], True
    bookie.metadata.expire("b1")
    await bookie.clock.sleep(SECONDS)
    assert bookie.listed == INFO
    assert not bookie.registration.listed
    assert not bookie.keeping.done()
    bookie.metadata.expire("b1")
    await bookie.clock.sleep(SECONDS)
    assert bookie.registration.listed


@pytest.mark.parametrize("other", [Incarnation("directory", 4), Incarnation("another directory", 1)])
@registered
async def test_another_process_under_its_id_ends_it(bookie: Bookie, *, other) -> None:
    bookie.metadata.expire("b1")
    await bookie.metadata.client().membership.register(replace(INFO, address="host:2", incarnation=other))
    with pytest.raises(MetadataConflict):
        await asyncio.wait_for(asyncio.shield(bookie.keeping), SECONDS)
    assert bookie.listed.incarnation == other


@registered
async def test_the_registered_mode_follows_the_bookie_also_over_a_lost_registration(bookie: Bookie) -> None:
    bookie.mode = BookieMode.READ_ONLY
    await bookie.clock.sleep(SECONDS)
    assert bookie.listed.mode is BookieMode.READ_ONLY
    bookie.metadata.expire("b1")
    bookie.mode = BookieMode.WRITABLE
    await bookie.clock.sleep(SECONDS)
    assert bookie.listed.mode is BookieMode.WRITABLE


@registered
async def test_a_mode_whose_registration_is_in_doubt_is_reported_again_although_it_was_taken_back(
    bookie: Bookie,
) -> None:
    registration = bookie.registration._registration
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


@registered
async def test_free_disk_is_registered_again_when_it_has_changed_by_a_tenth_and_at_most_once_a_minute(
    bookie: Bookie,
) -> None:
    for free_bytes, told in ((999, 1000), (905, 1000), (895, 895), (0, 0), (5, 5)):
        before = bookie.listed.free_bytes
        bookie.free_bytes = free_bytes
        await bookie.clock.sleep(50)
        assert bookie.listed.free_bytes == before
        await bookie.clock.sleep(12)
        assert bookie.listed.free_bytes == told


@registered
async def test_a_disk_that_cannot_be_measured_keeps_the_bookie_listed_with_what_was_known(bookie: Bookie) -> None:
    bookie.free_bytes = None
    await bookie.clock.sleep(200)
    assert bookie.listed == INFO
    bookie.metadata.expire("b1")
    await bookie.clock.sleep(SECONDS)
    assert bookie.listed == INFO
    assert bookie.registration.listed


@registered
async def test_leaving_takes_it_off_the_list_at_once(bookie: Bookie) -> None:
    await bookie.keep_no_longer()
    await bookie.registration.leave()
    assert bookie.listed is None
    await bookie.registration.leave()


@registered
async def test_leaving_gives_up_on_a_store_that_does_not_answer(bookie: Bookie) -> None:
    await bookie.keep_no_longer()
    bookie.metadata.bookies["b1"].close = asyncio.Event().wait
    started = bookie.clock.monotonic()
    await bookie.registration.leave()
    assert bookie.clock.monotonic() - started < 10
