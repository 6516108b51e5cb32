"""Read-ahead of a bookie: for sequential readers, within a budget, and only stored entries."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallybook.bookie.ledgers.disposition import LedgerDisposition
from tallybook.bookie.storage import read_ahead
from tallybook.bookie.storage.entry_log.writer import unpaced
from tallybook.bookie.storage.entry_tables import EntryTables
from tallybook.bookie.storage.flushed_batches import FlushedBatches
from tallybook.bookie.storage.location import IndexRow, Location
from tallybook.bookie.storage.read_ahead import (
    FIRST_WINDOW_BYTES,
    MAX_CONCURRENT_PIECES,
    PIECE_BYTES,
    SHARES,
    ReadAhead,
)
from tallybook.bookie.storage.read_cache import ReadCache
from tallybook.core.batch import encode_batch
from tallybook.core.errors import EntryCorrupt, EntryUnknown, NoSuchLedger
from tallybook.core.limits import KIB, MIB
from tallybook.runtime.clock import RealClock
from tallybook.runtime.metrics.usage import Meter
from tallybook.runtime.tasks import Tasks
from tallybook.sim.deterministic import SimDisk, World
from tallybook.sim.stage.disk_bookie import DiskBookie, KnownMetadata, batch_of, tiny_settings

from ..simulated import on_stage, world_alone

ENTRIES = 4
"""In each batch."""
SIZE = 64 * KIB
ASK = 260 * KIB
"""Four batches, with their headers."""
BUDGET = 16 * MIB


def batch(ledger_id: int, number: int, size: int = SIZE) -> bytes:
    payloads = [bytes([number % 251]) * (size // ENTRIES)] * ENTRIES
    return encode_batch(ledger_id, ENTRIES * number, payloads, lac=-1, ledger_length=10**12, written_at_us=1)


class Store:
    """Index and entry logs with ledgers of equal batches; reads of them are counted, and may be blocked."""

    def __init__(self, lengths: dict[int, int], size: int = SIZE) -> None:
        self.batches = {(each, n): batch(each, n, size) for each, length in lengths.items() for n in range(length)}
        self.damaged: set[tuple[int, int]] = set()
        self.reads: list[tuple[int, int]] = []
        self.reading = 0
        self.started: list[tuple[int, int]] = []
        self.held_up_from = 0
        """Only reads from this batch on may be blocked."""
        self.go_on = asyncio.Event()
        self.go_on.set()

    def row(self, ledger_id: int, number: int) -> IndexRow:
        data = self.batches[ledger_id, number]
        return IndexRow(ledger_id, ENTRIES * number, Location(1, 4096, len(data), ENTRIES))

    async def find(self, ledger_id: int, entry_id: int) -> IndexRow | None:
        found = await self.find_range(ledger_id, entry_id, entry_id, 1)
        return found[0] if found else None

    async def find_range(self, ledger_id: int, first: int, last: int, limit: int) -> list[IndexRow]:
        await asyncio.sleep(0)
        numbers = range(first // ENTRIES, min(last, 10**6) // ENTRIES + 1)
        found: list[IndexRow] = []
        for number in numbers:
            if len(found) == limit or number > 1_000:
                break
            if (ledger_id, number) in self.batches:
                found.append(self.row(ledger_id, number))
        return found

    async def read_many(self, rows: Sequence[IndexRow]) -> list[bytes]:
        self.reading += 1
        first = rows[0].ledger_id, rows[0].first_entry_id // ENTRIES
        self.started.append(first)
        try:
            await asyncio.sleep(0)
            if first[1] >= self.held_up_from:
                await self.go_on.wait()
        finally:
            self.reading -= 1
        found: list[bytes] = []
        for row in rows:
            key = row.ledger_id, row.first_entry_id // ENTRIES
            self.reads.append(key)
            if key in self.damaged:
                if found:
                    break
                raise EntryCorrupt("damaged")
            found.append(self.batches[key])
        return found


class Rig:
    def __init__(self, store: Store, tasks: Tasks, max_bytes: int, cache_bytes: int) -> None:
        self.store = store
        self.tasks = tasks
        self.damage: list[IndexRow] = []
        self.ahead = ReadAhead(store, store, lambda work, name: tasks.spawn(work, name=name), max_bytes, unpaced)
        self.stored = FlushedBatches(
            store,
            store,
            ReadCache(cache_bytes),
            EntryTables(0),
            self.ahead,
            self.damage.append,
            lambda _key: None,
            Meter(RealClock()),
            Meter(RealClock()),
        )

    async def read(self, ledger_id: int, number: int, last: int = 10**6, ask: int = ASK) -> list[int]:
        """The numbers of the batches that a read gives, each as it was written."""
        found = await self.stored.read_run(ledger_id, ENTRIES * number, last, ask)
        for at, data in enumerate(found):
            assert bytes(data) == self.store.batches[ledger_id, number + at]
        return list(range(number, number + len(found)))

    async def scan(self, ledger_id: int, number: int = 0, end: int = 10**6) -> list[int]:
        seen: list[int] = []
        while number < end and (found := await self.read(ledger_id, number)):
            seen += found
            number = found[-1] + 1
        return seen

    async def settled(self) -> None:
        """Until nothing is on its way."""
        async with asyncio.timeout(20):
            await asyncio.gather(*self.tasks._running, return_exceptions=True)


@asynccontextmanager
async def rig(
    lengths: dict[int, int], *, max_bytes: int = BUDGET, size: int = SIZE, cache_bytes: int = 0
) -> AsyncIterator[Rig]:
    tasks = Tasks("test", lambda name, error: None)
    made = Rig(Store(lengths, size), tasks, max_bytes, cache_bytes)
    try:
        yield made
        made.ahead.close()
        assert (made.ahead.held_bytes, len(made.ahead)) == (0, 0)
    finally:
        await tasks.close()


async def test_a_sequential_reader_finds_the_next_batches_read_and_nothing_is_read_twice():
    async with rig({7: 200}) as it:
        assert await it.scan(7) == list(range(200))
        assert sorted(it.store.reads) == [(7, number) for number in range(200)]
        assert it.ahead.used_batches == it.ahead.read_batches > 180


async def test_the_first_reads_and_those_that_jump_bring_nothing_ahead():
    async with rig({7: 200}) as it:
        for number in (0, 50, 10, 150, 100, 49):
            await it.read(7, number)
        await it.settled()
        assert (it.ahead.read_batches, it.ahead.held_bytes, len(it.ahead)) == (0, 0, 0)


@asynccontextmanager
async def twenty_that_wait() -> AsyncIterator[Rig]:
    """Readers of twenty ledgers; the disk reads ahead for two of them, and does not answer."""
    async with rig(dict.fromkeys(range(20), 40)) as it:
        it.store.held_up_from = 8
        it.store.go_on.clear()
        for ledger_id in range(20):
            await it.read(ledger_id, 0)
            await it.read(ledger_id, 4)
        await turns()
        assert [each for each in it.store.started if each[1] >= 8] == [(0, 8), (1, 8)]
        yield it


async def test_a_waiting_read_does_not_wait_for_read_ahead_of_others():
    async with twenty_that_wait() as it:
        asked = [asyncio.ensure_future(it.read(ledger_id, 8)) for ledger_id in (19, 0, 12)]
        await turns()
        assert it.store.reading == MAX_CONCURRENT_PIECES
        it.store.go_on.set()
        for reading in asked:
            assert (await reading)[0] == 8
        await it.settled()
        began = [each for each in it.store.started if each[1] == 8]
        assert began[:6] == [(0, 8), (1, 8), (19, 8), (12, 8), (2, 8), (3, 8)]


async def test_what_waits_for_its_turn_goes_with_its_stream():
    async with twenty_that_wait() as it:
        for ledger_id in range(1, 20):
            it.ahead.forget(ledger_id)
        it.store.go_on.set()
        await it.settled()
        assert [each for each in it.store.started if each[1] >= 8] == [(0, 8), (1, 8)]
        assert await it.scan(5) == list(range(40))


async def test_what_is_read_ahead_doubles_while_a_reader_goes_on_up_to_its_share():
    async with rig({7: 500}) as it:
        held, number = [], 0
        for _ in range(12):
            number = (await it.read(7, number))[-1] + 1
            await it.settled()
            held.append(it.ahead.held_bytes)
        share = BUDGET // SHARES
        assert held[0] == 0
        assert FIRST_WINDOW_BYTES <= held[1] <= FIRST_WINDOW_BYTES + 2 * SIZE
        assert held[1] < held[2] < held[4]
        assert share / 2 - 2 * SIZE <= max(held) <= share + 2 * SIZE


async def test_the_budget_is_kept_by_however_many_readers_and_the_disk_is_left_to_others():
    async with rig(dict.fromkeys(range(40), 60), max_bytes=2 * MIB) as it:

        async def watch() -> None:
            while True:
                assert it.ahead.held_bytes <= 2 * MIB
                await asyncio.sleep(0)

        watching = asyncio.ensure_future(watch())
        scans = await asyncio.gather(*(it.scan(each) for each in range(40)))
        assert not watching.done()
        watching.cancel()
        assert scans == [list(range(60))] * 40
        assert it.ahead.read_batches


async def turns(count: int = 50) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def held_up(it: Rig, number: int = 8) -> None:
    """A sequential reader of ledger 7 that will read ``number``, with the next batches in flight."""
    for at in range(0, number, 4):
        await it.read(7, at)
        if at + 4 == number:
            it.store.go_on.clear()
        await turns()
    assert it.ahead.held_bytes
    assert it.store.reading


async def test_what_was_found_elsewhere_while_it_was_read_ahead_is_passed_over():
    async with rig({7: 100}, cache_bytes=8 * MIB) as it:
        await held_up(it)
        for number in (8, 9, 10):
            it.stored._keep(it.store.row(7, number), it.store.batches[7, number], 10**6)
        assert await it.read(7, 8) == [8, 9, 10]
        it.store.go_on.set()
        await it.settled()
        assert await it.scan(7, 11) == list(range(11, 100))


async def test_abandoned_streams_are_evicted():
    async with rig(dict.fromkeys(range(30), 60), max_bytes=4 * MIB) as it:
        for ledger_id in range(30):
            await it.scan(ledger_id, end=12)
            await it.settled()
            assert it.ahead.held_bytes <= 4 * MIB
        before = it.ahead.read_batches
        assert await it.scan(29, 12) == list(range(12, 60))
        assert it.ahead.read_batches > before


async def test_many_that_jump_do_not_push_out_one_that_goes_on(monkeypatch):
    monkeypatch.setattr(read_ahead, "MAX_STREAMS", 2)
    async with rig({7: 500, 8: 500}) as it:
        number = 0
        while number < 400:
            number = (await it.read(7, number))[-1] + 1
            for at in range(3):
                await it.read(8, (number * 38 + 102 * at) % 400, ask=1)
        assert sum(each == 7 for each, _ in it.store.reads) <= 440
        assert it.ahead.used_batches > 350


async def test_a_reader_of_a_range_has_nothing_read_behind_its_end():
    async with rig({7: 200}) as it:
        last = ENTRIES * 40 - 1
        number = 0
        while number < 40:
            number = (await it.read(7, number, last))[-1] + 1
        await it.settled()
        assert max(it.store.reads) == (7, 39)
        assert it.ahead.held_bytes == 0


async def test_reading_entry_by_entry_is_read_ahead_too():
    async with rig({7: 100}, cache_bytes=MIB) as it:
        for entry_id in range(100 * ENTRIES):
            found = await it.stored.read_run(7, entry_id, entry_id, 1)
            assert found == [it.store.batches[7, entry_id // ENTRIES]]
        assert sorted(it.store.reads) == [(7, number) for number in range(100)]
        assert it.ahead.used_batches > 90


async def test_two_readers_side_by_side_get_everything():
    async with rig({7: 200}, cache_bytes=4 * MIB) as it:
        assert await asyncio.gather(it.scan(7), it.scan(7)) == [list(range(200))] * 2


async def test_a_reader_that_gives_up_takes_nothing_from_others():
    async with rig({7: 200}) as it:
        await held_up(it)
        waiting = [asyncio.ensure_future(it.read(7, 8)) for _ in range(2)]
        await turns()
        assert not any(each.done() for each in waiting)
        waiting[0].cancel()
        await asyncio.gather(waiting[0], return_exceptions=True)
        it.store.go_on.set()
        number = (await waiting[1])[-1] + 1
        assert await it.scan(7, number) == list(range(number, 200))
        assert len(it.store.reads) == len(set(it.store.reads))


@pytest.mark.parametrize("damaged", [10, 31, 59])
async def test_a_damaged_batch_is_reported_to_the_reader_that_requests_it(damaged: int):
    async with rig({7: 100}) as it:
        it.store.damaged.add((7, damaged))
        number = 0
        while number < damaged:
            number = (await it.read(7, number))[-1] + 1
        with pytest.raises(EntryCorrupt):
            await it.read(7, number)
        assert number == damaged
        assert it.damage == [it.store.row(7, damaged)]
        assert await it.scan(7, damaged + 1) == list(range(damaged + 1, 100))


async def test_an_unreadable_index_ends_the_read_ahead_and_not_the_reader(monkeypatch):
    async with rig({7: 100}) as it:
        calls = 0
        find_range = it.store.find_range

        async def sometimes_fails(*args: int) -> list[IndexRow]:
            nonlocal calls
            calls += 1
            if args[3] > 4 and calls % 2:
                raise EntryUnknown("not now")
            return await find_range(*args)

        monkeypatch.setattr(it.store, "find_range", sometimes_fails)
        seen: list[int] = []
        while len(seen) < 100:
            try:
                seen += await it.read(7, len(seen), ask=SIZE)
            except EntryUnknown:
                continue
        assert seen == list(range(100))


async def test_a_gap_ends_what_is_read_ahead():
    async with rig({7: 100}) as it:
        del it.store.batches[7, 50]
        assert await it.scan(7) == list(range(50))
        await it.settled()
        assert max(it.store.reads) == (7, 49)
        assert it.ahead.held_bytes == 0


async def test_nothing_of_a_forgotten_ledger_stays_with_any_read_in_flight():
    async with rig({7: 300, 8: 300}) as it:
        await it.scan(7, end=40)
        await it.scan(8, end=40)
        it.store.go_on.clear()
        seen = list(range(40))

        async def go_on() -> None:
            while found := await it.read(7, len(seen)):
                seen.extend(found)

        waiting = asyncio.ensure_future(go_on())
        await turns()
        before = len(seen)
        it.stored.forget(7)
        of_others = it.ahead.held_bytes
        for key in [key for key in it.store.batches if key[0] == 7]:
            del it.store.batches[key]
        it.store.go_on.set()
        await waiting
        assert len(seen) == before < 300
        await it.settled()
        assert it.ahead.held_bytes <= of_others + 2 * PIECE_BYTES
        assert all(stream.ledger_id == 8 for stream in it.ahead._streams.values())


async def test_nothing_is_read_ahead_where_the_settings_do_not_want_it():
    async with rig({7: 100}, max_bytes=0) as it:
        assert await it.scan(7) == list(range(100))
        assert (it.ahead.read_batches, len(it.ahead)) == (0, 0)


@on_stage(world_alone, deadline_seconds=3600)
async def test_a_ledger_that_is_deleted_is_gone_for_a_reader_that_went_through_it(world: World) -> None:
    settings = tiny_settings(entry_log_bytes=256 * KIB, write_cache_bytes=256 * KIB, segment_bytes=256 * KIB)
    node = DiskBookie(SimDisk(world.rng), world.clock, KnownMetadata(), settings)
    await node.boot()
    for first in range(0, 100, 2):
        assert (await node.add(batch_of(first, 2, payload=bytes(500)))).code == 0
    await node.bookie.flush()
    for first in range(0, 40, 2):
        assert (await node.bookie.read_batches(1, first, 99, 1)).batches
    await world.clock.sleep(1)
    assert node.bookie.stats()["read_ahead_bytes"]
    assert node.bookie.stats()["read_ahead_used_batches_total"]
    node.metadata.dispositions[1] = LedgerDisposition.RELEASED
    await node.bookie.collect()
    assert node.bookie.stats()["read_ahead_bytes"] == 0
    with pytest.raises(NoSuchLedger):
        await node.bookie.read_batches(1, 40, 99, 1)
    await node.stop()
    assert node.failures == []


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["on", "on", "on", "on", "jump", "again", "forget", "wait", "damage"]),
            st.integers(0, 2),
            st.integers(0, 39),
            st.sampled_from([1, 3000, 20_000]),
        ),
        max_size=60,
    ),
    st.sampled_from([0, 20_000, 200_000]),
)
def test_readers_always_get_what_is_stored_and_the_budget_is_kept(run, steps, cache_bytes):
    async def play() -> None:
        async with rig({0: 40, 1: 40, 2: 25}, max_bytes=60_000, size=2000, cache_bytes=cache_bytes) as it:
            at = {0: 0, 1: 0, 2: 0}
            for step, ledger_id, number, ask in steps:
                if step == "wait":
                    await it.settled()
                elif step == "forget":
                    it.stored.forget(ledger_id)
                elif step == "damage":
                    it.store.damaged.add((ledger_id, number))
                else:
                    start = {"on": at[ledger_id], "again": max(0, at[ledger_id] - 1)}.get(step, number)
                    try:
                        found = await it.read(ledger_id, start, ask=ask)
                    except EntryCorrupt:
                        assert (ledger_id, start) in it.store.damaged
                        found = [start]
                    assert bool(found) == ((ledger_id, start) in it.store.batches)
                    at[ledger_id] = found[-1] + 1 if found else 0
                held = sum(stream.held_bytes for stream in it.ahead._streams.values())
                assert it.ahead.held_bytes == held <= 60_000

    run(play())
