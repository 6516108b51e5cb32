"""How the journal stops, and what its next life finds."""

import pytest

from tallybook.bookie.journal.journal import Journal
from tallybook.bookie.journal.records import DeleteRecord
from tallybook.core.errors import InvariantViolation
from tallybook.core.limits import BLOCK_BYTES, KIB, MIB
from tallybook.runtime.rng import SeededRng
from tallybook.sim.journal_bench import DIRECTORY, LARGE, SETTINGS, Bench, batch, simulate

# -- stopping and starting -------------------------------------------------------------------------------------------


def test_j06_a_clean_stop_replays_nothing_and_boots_count_up() -> None:
    async def scenario(bench: Bench) -> None:
        for boot in (1, 2, 3):
            recovered = await bench.recover()
            assert (recovered.boot, recovered.clean, recovered.fresh) == (boot, True, boot == 1)
            assert [record async for record in recovered.records()] == []
            journal = await bench.start()
            bench.append(boot)
            assert await bench.drained()
            await journal.trim(journal.durable_mark())
            await bench.clock.sleep(0.2)
            await journal.close(clean=True)

    simulate(scenario)


def test_a_stop_is_not_clean_while_something_is_not_trimmed() -> None:
    async def scenario(bench: Bench) -> None:
        journal = await bench.start()
        bench.append(0)
        assert await bench.drained()
        with pytest.raises(InvariantViolation, match="clean"):
            await journal.close(clean=True)
        assert not (await bench.recover()).clean
        assert await bench.replayed() == [batch(0)]

    simulate(scenario)


def test_closing_drops_what_is_queued_and_finishes_what_is_on_its_way() -> None:
    async def scenario(bench: Bench) -> None:
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

    simulate(scenario)


def test_i19_recovering_twice_equals_recovering_once() -> None:
    async def scenario(bench: Bench) -> None:
        await bench.start()
        for number in range(5):
            bench.append(number, 1000)
        assert await bench.drained()
        await bench.journal.close(clean=False)
        operations = bench.disk.state.digest()
        first, second = await bench.recover(), await bench.recover()
        assert first.boot == second.boot == 2
        expected = [batch(number, 1000) for number in range(5)]
        for recovered in (first, second, first):
            assert [record async for record in recovered.records()] == expected
        assert bench.disk.state.digest() == operations, "recovery writes nothing"

    simulate(scenario)


def test_a_new_boot_writes_where_nothing_of_the_old_one_lies() -> None:
    async def scenario(bench: Bench) -> None:
        await bench.start()
        bench.append(0)
        assert await bench.drained()
        old = bench.journal.durable_mark()
        await bench.journal.close(clean=False)
        await bench.start()
        bench.append(1)
        assert await bench.drained()
        new = bench.journal.durable_mark()
        assert new.segment > old.segment + 1, "not even in a segment that was only prepared"
        assert new.block > old.block + 1
        await bench.journal.close(clean=False)
        assert await bench.replayed() == [batch(1)]

    simulate(scenario)


def test_the_ring_changes_its_shape_between_two_lives() -> None:
    async def scenario(bench: Bench) -> None:
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

    simulate(scenario)


def test_either_slot_of_the_superblock_is_enough() -> None:
    async def scenario(bench: Bench) -> None:
        journal = await bench.start()
        for number in range(4):
            bench.append(number)
            assert await bench.drained()
            if number == 1:
                await journal.trim(journal.durable_mark())
        await journal.close(clean=False)
        whole = await bench.recover()
        for slot in (0, 1):
            disk = bench.disk.fork()
            disk.rot.flip_bit(f"{DIRECTORY}/superblock", slot * BLOCK_BYTES + 20)
            other = await Journal.recover(disk, DIRECTORY, SETTINGS, SeededRng(1))
            assert (other.boot, other.clean) == (whole.boot, whole.clean)
            assert [record async for record in other.records()] == [batch(2), batch(3)]

    simulate(scenario)


def test_reading_a_ring_takes_little_memory_at_a_time() -> None:
    async def scenario(bench: Bench) -> None:
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

    simulate(scenario, **LARGE.model_dump())
