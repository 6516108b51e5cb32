"""The object store of a simulated cluster: what lands, what does not, and what its users hear of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from tallybook.archive.objects.port import ObjectStore
from tallybook.core.errors import ArchiveBusy, ArchiveUnavailable, Outcome, TallybookError
from tallybook.runtime.deterministic import SimNet, World, run_once
from tallybook.sim.bucket import FOREIGN_KEY, LATEST_SECONDS, PAGE_OBJECTS, TIMEOUT_SECONDS, Bucket, BucketFaults
from tallybook.sim.god import God
from tallybook.sim.marks import Marks
from tallybook.sim.metadata import MetadataFaults, SimMetadata
from tallybook.sim.process import SimProcess, Surroundings

KEY = "ledgers/1"


class Small:
    """A bucket, one process, and nothing that goes wrong by itself."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.marks = Marks()
        god = God(self.marks, world.note, lambda: 0)
        metadata = SimMetadata(world.rng, MetadataFaults(), session_seconds=2.0, timeout_seconds=1.0)
        self.bucket = Bucket(world.rng, BucketFaults(), metadata.later, world.note, self.marks)
        self.around = Surroundings(SimNet(world.rng.fork("net")), metadata, god, world.rng, 3.0, world.note)
        self.process = SimProcess("client", self.around, world.clock, world.rng.fork("client"))
        self.store: ObjectStore = self.bucket.door(self.process)

    def keys(self) -> list[str]:
        return [found.key for found in self.bucket.objects() if found.key != FOREIGN_KEY]

    async def upload(self, data: bytes = b"data") -> None:
        upload = self.store.upload(KEY)
        await upload.write(data)
        await upload.finish()

    def in_the_process(self, work: Awaitable[None]) -> list[TallybookError]:
        """Begin something in the process; the error it ends with appears in the list."""
        failed: list[TallybookError] = []

        async def run() -> None:
            try:
                await work
            except TallybookError as error:
                failed.append(error)

        self.process.spawn(run())
        return failed


def small(play: Callable[[Small], Awaitable[None]]) -> Callable[[], None]:
    """A test on one seed."""

    def test() -> None:
        async def run(world: World) -> None:
            stage = Small(world)
            try:
                await play(stage)
            finally:
                stage.around.bury()

        run_once(7, run)

    return test


@small
async def test_what_was_written_is_there_and_listed_page_by_page(stage: Small) -> None:
    names = [f"ledgers/{number}" for number in range(2 * PAGE_OBJECTS)]
    for name in names:
        await stage.store.put(name, name.encode())
    pages = [[found.key for found in page] async for page in stage.store.list("ledgers/")]
    assert [len(page) for page in pages] == [PAGE_OBJECTS, PAGE_OBJECTS]
    assert [name for page in pages for name in page] == names
    assert await stage.store.read(names[3], 0, 5) == b"ledge"
    assert stage.bucket.peek(names[3]) == names[3].encode()
    assert stage.bucket.peek("nothing") is None


@small
async def test_what_was_sent_lands_though_its_sender_is_dead(stage: Small) -> None:
    upload = stage.store.upload(KEY)
    await upload.write(b"data")
    stage.bucket.on_request = lambda _who, _name: stage.world.loop.call_later(0, stage.process.kill)
    stage.in_the_process(upload.finish())
    await stage.world.clock.sleep(1.0)
    assert stage.process.dead
    assert stage.keys() == [KEY]


@small
async def test_an_upload_of_who_died_before_its_end_stays_unfinished(stage: Small) -> None:
    upload = stage.store.upload(KEY)
    await upload.write(b"data")
    stage.process.kill()
    assert (stage.keys(), [left.key for left in stage.bucket.uploads()]) == ([], [KEY])


@small
async def test_a_request_that_is_late_lands_after_nobody_waits_for_it(stage: Small) -> None:
    upload = stage.store.upload(KEY)
    await upload.write(b"data")
    stage.bucket.faults.late = 1.0
    with pytest.raises(ArchiveUnavailable) as raised:
        await upload.finish()
    assert raised.value.outcome is Outcome.UNKNOWN
    assert stage.keys() == []
    await stage.world.clock.sleep(LATEST_SECONDS)
    assert stage.keys() == [KEY]


@small
async def test_nothing_reaches_a_store_that_is_away_until_it_is_healed(stage: Small) -> None:
    stage.bucket.away = True
    with pytest.raises(ArchiveUnavailable):
        await stage.store.put(KEY, b"data")
    assert stage.world.clock.monotonic() >= TIMEOUT_SECONDS
    stage.bucket.heal()
    await stage.store.put(KEY, b"data")
    assert stage.keys() == [KEY]


@small
async def test_a_storm_refuses_everybody_and_passes(stage: Small) -> None:
    stage.bucket.storm()
    with pytest.raises(ArchiveBusy):
        await stage.store.put(KEY, b"data")
    assert stage.store.patience.stats["put_busy"] > 1, "it was asked again and again"
    await stage.store.put(KEY, b"data")
    assert stage.keys() == [KEY]


@small
async def test_a_store_that_tears_uploads_says_that_all_is_well(stage: Small) -> None:
    stage.bucket.faults.torn = 1.0
    for _ in range(8):
        await stage.upload()
        if stage.marks.met["bucket: keeps other bytes than it was sent"]:
            break
    assert stage.bucket.peek(KEY) not in (None, b"data")
    stage.bucket.heal()
    await stage.upload()
    assert stage.bucket.peek(KEY) == b"data"


@small
async def test_whoever_knows_it_all_hears_of_each_object_that_goes(stage: Small) -> None:
    gone: list[str] = []
    stage.bucket.on_removed = gone.append
    await stage.upload()
    assert gone == []
    await stage.store.delete(KEY)
    assert gone == [KEY]
