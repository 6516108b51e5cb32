"""Every add of a bookie ends under any settings. Test names carry ids of docs/project/lessons.md."""

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from tallybook.core.errors import Busy
from tallybook.core.limits import BLOCK_BYTES, KIB, MIB
from tallybook.core.settings import AdmissionSettings, BookieSettings, JournalSettings, StorageSettings
from tallybook.sim.deterministic import SimDisk, World
from tallybook.sim.deterministic.world import run_untraced
from tallybook.sim.stage.disk_bookie import ROOT, DiskBookie, batch_of

BUSY_CODE = Busy.wire_code
ADDS = 40
LONGEST_SECONDS = 60.0


@st.composite
def any_settings(draw: st.DrawFn) -> BookieSettings:
    """Settings that are valid, near every limit and far from it."""
    commit = draw(st.sampled_from([2, 3, 4, 16])) * BLOCK_BYTES
    segment = commit * draw(st.integers(3, 5)) + draw(st.integers(0, 3)) * BLOCK_BYTES
    count = draw(st.integers(3, 6))
    return BookieSettings(
        bookie_id="b1",
        data_directory=ROOT,
        metadata="memory:",
        journal=JournalSettings(
            segment_bytes=segment,
            segment_count=count,
            max_commit_bytes=commit,
            seal_after_ms=draw(st.sampled_from([1, 50, 60_000])),
        ),
        storage=StorageSettings(
            write_cache_bytes=draw(st.integers(4 * commit, segment * (count - 1))),
            read_cache_bytes=draw(st.sampled_from([0, 64 * KIB])),
            entry_log_bytes=draw(st.sampled_from([64 * KIB, MIB])),
            flush_interval_ms=draw(st.sampled_from([1, 1_000, 3_600_000])),
            min_free_bytes=0,
        ),
        admission=AdmissionSettings(
            max_inflight_bytes=draw(st.sampled_from([4 * commit, 64 * MIB])),
            max_queue_age_ms=draw(st.sampled_from([1, 1_000])),
            max_cache_wait_ms=draw(st.sampled_from([1, 1_000])),
        ),
    )


@settings(max_examples=40)
@given(chosen=any_settings(), share=st.sampled_from([0.05, 0.5, 0.9]))
def test_j10_no_setting_keeps_an_add_from_ending_or_a_flush_from_coming(chosen: BookieSettings, share: float) -> None:
    """Each is acked in the end, by a writer that retries on BUSY, and is there after a power failure."""
    size = int(share * (chosen.journal.max_commit_bytes - 400))

    async def scenario(world: World) -> None:
        node = DiskBookie(SimDisk(world.rng), world.clock, None, chosen)
        await node.boot()

        async def added(number: int) -> None:
            while True:
                answer = await node.add(batch_of(number, payload=bytes(size)))
                if answer.code == 0:
                    return
                assert answer.code == BUSY_CODE, answer
                await world.clock.sleep(max(1, answer.retry_after_ms) / 1000)

        async with asyncio.timeout(LONGEST_SECONDS):
            await asyncio.gather(*(added(number) for number in range(ADDS)))
            await node.bookie.fence(2, b"")
            await node.bookie.flush()
        assert node.bookie.stats()["write_cache_bytes"] == 0
        assert node.failures == []
        await node.lose_power()
        await node.boot()
        for number in range(ADDS):
            answer = await node.bookie.read_batches(1, number, number, 1)
            assert answer.batches == (batch_of(number, payload=bytes(size)),)
        await node.stop()

    run_untraced(1, scenario, deadline_seconds=600)
