"""The journal as seen by its caller: order, space, trimming, failure, stop, and the next start."""

import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tallybook.bookie.journal.format import BatchRecord, DeleteRecord, FenceRecord, JournalMark
from tallybook.bookie.journal.journal import Journal
from tallybook.bookie.journal.segment_recycler import FULL_PAUSE_SECONDS
from tallybook.core.errors import DiskFailed, DiskFull, InvalidArgument, InvariantViolation
from tallybook.core.limits import BLOCK_BYTES, KIB, MIB
from tallybook.runtime.rng import SeededRng
from tallybook.runtime.tasks import Tasks
from tallybook.sim.deterministic import Effect, Latency, SimDisk, World

from ..simulated import Parts, on_stage
from ..support.journal_bench import DIRECTORY, LARGE, SETTINGS, JournalBench, batch


@asynccontextmanager
async def journal_bench(_world: World, **settings: object) -> AsyncIterator[Parts]:
    disk = SimDisk(SeededRng(3), latency=Latency(0.0003, 0.0))
    yield {"bench": JournalBench(disk, SETTINGS.model_copy(update=settings))}


@asynccontextmanager
async def started_journal(world: World, **settings: object) -> AsyncIterator[Parts]:
    async with journal_bench(world, **settings) as parts:
        yield parts | {"journal": await parts["bench"].start()}
        await parts["bench"].journal.close(clean=False)


on_a_bench = partial(on_stage, journal_bench)
started = partial(on_stage, started_journal)


# -- writing ---------------------------------------------------------------------------------------------------------


@started()
async def test_what_gathers_during_a_write_is_one_block(bench: JournalBench) -> None:
    before = len(bench.blocks())
    bench.append(0)
    await bench.clock.sleep(0.0001)
    for number in range(1, 20):
        bench.append(number)
    assert await bench.drained()
    assert bench.blocks()[before : before + 2] == ["4096+4096", "8192+4096"]


@started()
async def test_the_largest_record_fits_and_a_larger_one_is_refused(bench: JournalBench, journal: Journal) -> None:
    largest = 8 * KIB - 128 - 8
    bench.append(1, largest)
    assert await bench.drained()
    with pytest.raises(InvalidArgument, match="8056"):
        journal.append(BatchRecord(bytes(largest + 1)), lambda: None)
    assert journal.queued_bytes == 0


@started()
async def test_a_block_fills_the_rest_of_a_segment_before_the_next_one_begins(
    bench: JournalBench, journal: Journal
) -> None:
    bench.append(0, 5000)
    assert await bench.drained()
    for number in range(1, 4):
        bench.append(number, 3000)
    assert await bench.drained()
    assert journal.durable_mark().segment == 2
    assert [block for block in bench.blocks() if not block.endswith("16384")] == [
        "4096+8192", "12288+4096", "4096+8192",
    ]  # fmt: skip


@started()
async def test_queue_and_age_count_what_is_not_durable(bench: JournalBench, journal: Journal) -> None:
    assert (journal.queued_bytes, journal.oldest_queued_age_seconds()) == (0, 0.0)
    bench.disk.fail("write", "segment", error=None, delay_seconds=5.0)
    bench.append(1)
    await bench.clock.sleep(1.0)
    bench.append(2)
    await bench.clock.sleep(1.0)
    assert journal.queued_bytes == 2 * BLOCK_BYTES
    assert journal.oldest_queued_age_seconds() == pytest.approx(2.0)
    assert not await journal.drained(0.5)
    assert await journal.drained(10.0)
    assert (journal.queued_bytes, journal.oldest_queued_age_seconds()) == (0, 0.0)


@started()
async def test_what_finds_the_next_block_full_waits_its_turn_and_is_counted_like_the_rest(
    bench: JournalBench, journal: Journal
) -> None:
    bench.disk.fail("write", "segment", error=None, delay_seconds=5.0)
    bench.append(1)
    await bench.clock.sleep(1.0)
    for number in range(2, 8):  # three blocks: one can be filled while the first is written
        bench.append(number, 3000)
    await bench.clock.sleep(2.0)
    assert journal.oldest_queued_age_seconds() == pytest.approx(3.0)
    while not bench.durable:
        await bench.clock.sleep(0.0001)
    assert journal.oldest_queued_age_seconds() == pytest.approx(4.0, abs=0.01)
    assert await journal.drained(20.0)
    assert (journal.queued_bytes, journal.oldest_queued_age_seconds()) == (0, 0.0)


# -- seals -----------------------------------------------------------------------------------------------------------


@started()
async def test_after_silence_one_seal_is_written_and_no_more(bench: JournalBench, journal: Journal) -> None:
    bench.append(1)
    assert await bench.drained()
    written = journal.durable_mark()
    await bench.clock.sleep(0.045)
    assert journal.durable_mark() == written
    await bench.clock.sleep(0.010)
    assert journal.durable_mark() == JournalMark(written.segment, written.block + 1)
    await bench.clock.sleep(10.0)
    assert journal.durable_mark() == JournalMark(written.segment, written.block + 1)


@started()
async def test_a_busy_journal_is_not_sealed(bench: JournalBench, journal: Journal) -> None:
    first = journal.durable_mark()
    for number in range(8):
        bench.append(number)
        await bench.clock.sleep(0.040)
    assert journal.durable_mark().block == first.block + 8


# -- space, trimming, recycling ---------------------------------------------------------------------------------------


@settings(max_examples=150)
@given(
    sizes=st.lists(st.integers(1, 8000), min_size=5, max_size=60),
    pauses=st.lists(st.sampled_from([0.0, 0.0, 0.001, 0.2]), min_size=1, max_size=7),
    count=st.integers(3, 5),
    urgent=st.booleans(),
    seal_between=st.booleans(),
)
def test_everything_that_room_bytes_admits_is_written_without_a_trim(
    sizes: list[int], pauses: list[float], count: int, urgent: bool, seal_between: bool
) -> None:
    async def scenario(bench: JournalBench) -> None:
        journal = await bench.start()
        await bench.clock.sleep(1.0)
        admitted = 0
        for index, size in enumerate(sizes):
            told = journal.max_queued_bytes - journal.queued_bytes
            assert journal.space_bytes(urgent=True) == journal._ring.largest_body(told), "the metric is of another room"
            if size <= journal.space_bytes(urgent=urgent):
                if seal_between:
                    await bench.clock.sleep(0.1)
                bench.append(index, size)
                admitted += 1
            if pause := pauses[index % len(pauses)]:
                await bench.clock.sleep(pause)
        assert await bench.drained(), "room was promised, and there is none"
        assert len(bench.durable) == admitted
        await journal.trim(journal.durable_mark())
        await bench.clock.sleep(1.0)
        largest = 8 * KIB - 136
        assert journal.space_bytes() >= largest, "with all trimmed, the largest record fits"
        bench.append(1000, largest)
        assert await bench.drained()
        await journal.close(clean=False)

    on_a_bench(segment_count=count)(scenario)()


@started()
async def test_a_full_ring_queues_until_a_trim_makes_space(bench: JournalBench, journal: Journal) -> None:
    for number in range(7):
        bench.append(number, 5000)
    await bench.clock.sleep(1.0)
    assert bench.durable == [0, 1, 2, 3]
    assert journal.space_bytes() == 0
    assert journal.used_fraction > 0.8
    await journal.trim(journal.durable_mark())
    assert await bench.drained()
    assert bench.durable == list(range(7))
    await journal.close(clean=False)
    assert await bench.replayed() == [batch(number, 5000) for number in (4, 5, 6)]


@started()
async def test_f05_a_full_ring_still_takes_fences(bench: JournalBench, journal: Journal) -> None:
    await bench.clock.sleep(1.0)
    number = 0
    while journal.space_bytes() >= 100:
        bench.append(number)
        number += 1
        assert await bench.drained()
    fenced: list[int] = []
    while journal.space_bytes(urgent=True) >= 40:
        journal.append(FenceRecord(len(fenced), bytes(32)), lambda: fenced.append(1))
        assert await bench.drained()
    assert fenced


@started()
async def test_j23_a_segment_is_recycled_only_when_all_of_it_lies_below_the_mark(
    bench: JournalBench, journal: Journal
) -> None:
    marks = []
    for number in range(6):
        bench.append(number, 5000)
        await bench.clock.sleep(0.01)
        marks.append(journal.durable_mark())
    assert [mark.segment for mark in marks] == [1, 2, 3, 4, 4, 4]
    await journal.trim(marks[0])
    await bench.clock.sleep(0.02)
    assert bench.durable == [0, 1, 2, 3], "segment 1 holds the mark: it is not recycled"
    await journal.trim(marks[1])
    await bench.clock.sleep(0.02)
    assert bench.durable == [0, 1, 2, 3, 4], "segment 5 took the place of segment 1"
    await journal.close(clean=False)
    assert await bench.replayed() == [batch(number, 5000) for number in (2, 3, 4)]


@started()
async def test_marks_that_race_leave_the_higher_one(bench: JournalBench, journal: Journal) -> None:
    marks = []
    for number in range(4):
        bench.append(number)
        assert await bench.drained()
        marks.append(journal.durable_mark())
    trims = [bench.tasks.spawn(journal.trim(marks[index]), name="trim") for index in (2, 0, 1)]
    for trim in trims:
        await trim
    await journal.close(clean=False)
    assert await bench.replayed() == [batch(3)]


@started()
async def test_what_is_not_durable_cannot_be_trimmed(bench: JournalBench, journal: Journal) -> None:
    mark = journal.durable_mark()
    with pytest.raises(InvariantViolation, match="durable"):
        await journal.trim(JournalMark(mark.segment, mark.block + 1))


@started()
async def test_a_caller_that_cancels_its_trim_disturbs_no_other(bench: JournalBench, journal: Journal) -> None:
    bench.append(0)
    assert await bench.drained()
    trim = bench.tasks.spawn(journal.trim(journal.durable_mark()), name="trim")
    await bench.clock.sleep(0.0001)
    trim.cancel()
    await bench.clock.sleep(0.01)
    assert await bench.replayed() == [], "what was begun is finished: no write is left half done"
    bench.append(1)
    assert await bench.drained()
    await journal.trim(journal.durable_mark())
    await journal.close(clean=True)
    assert (await bench.recover()).clean


@started(**LARGE.model_dump())
async def test_a_fresh_journal_starts_with_two_segments_and_fills_the_rest_beside_its_writes(
    bench: JournalBench,
    journal: Journal,
) -> None:
    sizes = [len(bench.disk.peek(f"{DIRECTORY}/segment-{slot:04d}")) for slot in range(3)]
    assert sizes == [0, 4 * MIB, 4 * MIB], "segments 1 and 2 are ready"
    before = journal.space_bytes()
    bench.append(1)
    assert await journal.drained(0.002), "an add does not wait for the filling"
    await bench.clock.sleep(1.0)
    assert len(bench.disk.peek(f"{DIRECTORY}/segment-0000")) == 4 * MIB
    assert journal.space_bytes() > before


# -- failure ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("effect", [Effect.NOTHING, Effect.IN_FLIGHT, Effect.PART])
@pytest.mark.parametrize("error", [DiskFailed, DiskFull])
@started()
async def test_j14_a_failed_write_ends_the_journal_and_is_never_tried_again(
    bench: JournalBench, *, effect: Effect, error: type[Exception]
) -> None:
    await bench.clock.sleep(1.0)
    bench.append(0)
    assert await bench.drained()
    bench.disk.fail("write", "segment", error=error, effect=effect)
    for number in (1, 2, 3):
        bench.append(number)
    with pytest.raises(error):
        await bench.drained()
    await bench.clock.sleep(60.0)
    assert [type(failure) for failure in bench.failures] == [error]
    assert bench.durable == [0]
    with pytest.raises(error):
        bench.append(4)
    operations = bench.disk.operations
    await bench.clock.sleep(60.0)
    assert bench.disk.operations == operations


@started()
async def test_a_failed_superblock_write_ends_the_journal(bench: JournalBench, journal: Journal) -> None:
    await bench.clock.sleep(1.0)
    bench.append(0)
    assert await bench.drained()
    bench.disk.fail("write", "superblock")
    with pytest.raises(DiskFailed):
        await journal.trim(journal.durable_mark())
    with pytest.raises(DiskFailed):
        bench.append(1)
    assert len(bench.failures) == 1
    with pytest.raises(InvariantViolation):
        await journal.close(clean=True)
    assert not (await bench.recover()).clean


@on_a_bench()
async def test_a_background_failure_ends_the_journal(bench: JournalBench) -> None:
    bench.disk.fail("write", "segment-0003")
    journal = await bench.start()
    await bench.clock.sleep(5.0)
    assert [type(failure) for failure in bench.failures] == [DiskFailed]
    assert len(bench.fatal) == 1, "an essential task died"
    await journal.close(clean=False)


@on_a_bench()
async def test_j17_a_disk_that_is_full_delays_the_filling_of_further_segments_only(bench: JournalBench) -> None:
    fault = bench.disk.fail("write", "segment-0003", error=DiskFull, times=2, effect=Effect.PART)
    journal = await bench.start()
    bench.append(0)
    assert await bench.drained()
    await bench.clock.sleep(1.5 * FULL_PAUSE_SECONDS)
    assert fault.seen == 2
    with_two = journal.space_bytes()
    await bench.clock.sleep(2 * FULL_PAUSE_SECONDS)
    assert journal.space_bytes() > with_two
    assert bench.failures == bench.fatal == []
    await journal.close(clean=False)
    assert await bench.replayed() == [batch(0)]


@on_a_bench()
async def test_a_start_that_fails_can_be_tried_again(bench: JournalBench) -> None:
    for operation in ("mkdir", "write", "rename", "create", "sync-directory"):
        bench.disk.fail(operation, "journal", error=DiskFull if operation == "write" else DiskFailed)
        with pytest.raises((DiskFull, DiskFailed)):
            await bench.start()
    await bench.start()
    bench.append(0)
    assert await bench.drained()
    await bench.journal.close(clean=False)
    assert await bench.replayed() == [batch(0)]


@on_a_bench()
async def test_what_was_recovered_starts_once(bench: JournalBench) -> None:
    recovered = await bench.recover()
    tasks = Tasks("bench", lambda _name, error: bench.fatal.append(error))
    journal = await recovered.start(bench.clock, tasks, bench.failures.append, on_space=lambda: None)
    with pytest.raises(InvariantViolation, match="once"):
        await recovered.start(bench.clock, tasks, bench.failures.append, on_space=lambda: None)
    await journal.close(clean=True)


@started()
async def test_a_start_that_fails_leaves_no_file_open(bench: JournalBench) -> None:
    await bench.journal.close(clean=False)
    for operation, path in (("write", "superblock"), ("size", "segment-0002"), ("write", "segment-0001")):
        for nth in (1, 2):
            bench.disk.fail(operation, path, nth=nth)
            with contextlib.suppress(DiskFailed):
                await bench.start()
                await bench.journal.close(clean=False)
            bench.disk.faults.clear()
            assert all(not file.handles for file in bench.disk.state.files.values())


@on_a_bench()
async def test_a_trim_that_meets_a_close_is_durable_or_fails(bench: JournalBench) -> None:
    for turns in range(6):
        journal = await bench.start()
        bench.append(turns)
        assert await bench.drained()
        trim = bench.tasks.spawn(journal.trim(journal.durable_mark()), name="trim")
        await bench.clock.sleep(0.00005 * turns)
        await journal.close(clean=False)
        try:
            await trim
        except (DiskFailed, InvariantViolation):
            assert await bench.replayed() == [batch(turns)]
        else:
            assert await bench.replayed() == []


@started()
async def test_a_callback_that_raises_ends_the_journal(bench: JournalBench, journal: Journal) -> None:
    def broken() -> None:
        raise ZeroDivisionError

    journal.append(batch(0), broken)
    bench.append(1)
    with pytest.raises(ZeroDivisionError):
        await bench.drained()
    assert bench.durable == []
    assert len(bench.failures) == 1


# -- stopping and starting -------------------------------------------------------------------------------------------


@on_a_bench()
async def test_a_stop_is_not_clean_while_something_is_not_trimmed(bench: JournalBench) -> None:
    journal = await bench.start()
    bench.append(0)
    assert await bench.drained()
    with pytest.raises(InvariantViolation, match="clean"):
        await journal.close(clean=True)
    assert not (await bench.recover()).clean
    assert await bench.replayed() == [batch(0)]


@on_a_bench()
async def test_closing_drops_what_is_queued_and_finishes_what_is_on_its_way(bench: JournalBench) -> None:
    journal = await bench.start()
    await bench.clock.sleep(1.0)
    bench.append(0)
    await bench.clock.sleep(0.0001)
    bench.append(1)
    await journal.close(clean=False)
    await journal.close(clean=False)
    assert bench.durable == [0]
    with pytest.raises(InvariantViolation):
        bench.append(2)
    assert await bench.replayed() == [batch(0)]


@on_a_bench()
async def test_the_ring_changes_its_shape_between_two_lives(bench: JournalBench) -> None:
    shapes = ((4, 16), (6, 16), (3, 24), (4, 16))
    for life, (count, size_kib) in enumerate(shapes):
        bench.settings = SETTINGS.model_copy(update={"segment_count": count, "segment_bytes": size_kib * KIB})
        before = [] if life == 0 else [batch(life - 1, 1000)]
        assert await bench.replayed() == before
        await bench.start()
        bench.append(life, 1000)
        assert await bench.drained()
        await bench.clock.sleep(1.0)
        await bench.journal.close(clean=False)
        names = [name for name in bench.disk.state.names(DIRECTORY) if name.startswith("segment-")]
        assert len(names) == count
        assert {len(bench.disk.peek(f"{DIRECTORY}/{name}")) for name in names} == {size_kib * KIB}


@on_a_bench(**LARGE.model_dump())
async def test_reading_a_ring_takes_little_memory_at_a_time(bench: JournalBench) -> None:
    journal = await bench.start()
    for number in range(5):
        bench.append(number, 900_000)
    journal.append(DeleteRecord(9), lambda: None)
    assert await bench.drained()
    await journal.close(clean=False)
    before = len(bench.disk.trace)
    assert len(await bench.replayed()) == 6
    reads = [operation.size for operation in list(bench.disk.trace)[before:] if operation.name == "read"]
    assert max(reads) <= MIB
    assert len(reads) < 40, "in large pieces"
