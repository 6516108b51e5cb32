"""The simulated object store: which requests take effect, and what clients learn of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager

import pytest

from tallybook.archive.objects.port import ObjectStore
from tallybook.core.errors import ArchiveBusy, ArchiveUnavailable, Outcome, TallybookError
from tallybook.sim.cluster.bucket import FOREIGN_KEY, LATEST_SECONDS, TIMEOUT_SECONDS, Bucket, BucketFaults
from tallybook.sim.cluster.metadata import MetadataFaults, SimMetadata
from tallybook.sim.cluster.process import SimEnvironment, SimProcess
from tallybook.sim.coverage import CoverageMarks
from tallybook.sim.deterministic import SimNet, World
from tallybook.sim.oracle.oracle import Oracle

from ..simulated import Parts, on_stage

KEY = "ledgers/1"


class Small:
    """A bucket and one process, without random faults."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.marks = CoverageMarks()
        oracle = Oracle(self.marks, world.note, lambda: 0)
        metadata = SimMetadata(world.rng, MetadataFaults(), session_seconds=2.0, timeout_seconds=1.0)
        self.bucket = Bucket(world.rng, BucketFaults(), metadata.later, world.note, self.marks)
        self.around = SimEnvironment(SimNet(world.rng.fork("net")), metadata, oracle, world.rng, 3.0, world.note)
        self.process = SimProcess("client", self.around, world.clock, world.rng.fork("client"))
        self.store: ObjectStore = self.bucket.client_store(self.process)

    def keys(self) -> list[str]:
        return [found.key for found in self.bucket.objects() if found.key != FOREIGN_KEY]

    async def upload(self, data: bytes = b"data") -> None:
        upload = self.store.upload(KEY)
        await upload.write(data)
        await upload.finish()

    def in_the_process(self, work: Awaitable[None]) -> list[TallybookError]:
        """Start work in the process; its error is added to the list."""
        failed: list[TallybookError] = []

        async def run() -> None:
            try:
                await work
            except TallybookError as error:
                failed.append(error)

        self.process.spawn(run())
        return failed


@asynccontextmanager
async def small_stage(world: World) -> AsyncIterator[Parts]:
    stage = Small(world)
    try:
        yield {"stage": stage}
    finally:
        stage.around.bury()


small = on_stage(small_stage, seed=7)


@small
async def test_a_sent_request_lands_although_its_sender_is_dead(stage: Small) -> None:
    upload = stage.store.upload(KEY)
    await upload.write(b"data")
    stage.bucket.on_request = lambda _who, _name: stage.world.loop.call_later(0, stage.process.kill)
    stage.in_the_process(upload.finish())
    await stage.world.clock.sleep(1.0)
    assert stage.process.dead
    assert stage.keys() == [KEY]


@small
async def test_an_upload_of_a_process_that_died_stays_unfinished(stage: Small) -> None:
    upload = stage.store.upload(KEY)
    await upload.write(b"data")
    stage.process.kill()
    assert (stage.keys(), [left.key for left in stage.bucket.uploads()]) == ([], [KEY])


@small
async def test_a_late_request_lands_after_its_sender_has_timed_out(stage: Small) -> None:
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
async def test_a_storm_refuses_all_requests_and_passes(stage: Small) -> None:
    stage.bucket.storm()
    with pytest.raises(ArchiveBusy):
        await stage.store.put(KEY, b"data")
    assert stage.store.retries.stats["put_busy"] > 1, "it was asked again and again"
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
async def test_the_oracle_is_notified_of_each_removed_object(stage: Small) -> None:
    gone: list[str] = []
    stage.bucket.on_removed = gone.append
    await stage.upload()
    assert gone == []
    await stage.store.delete(KEY)
    assert gone == [KEY]
