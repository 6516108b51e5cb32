"""Scrub on a simulated disk: what has rotted is found while nobody reads it, and index and logs are held together."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest

from tallybook.bookie import scrub
from tallybook.bookie.damage import DamageList
from tallybook.bookie.garbage import Fate
from tallybook.bookie.storage import log_contents
from tallybook.bookie.storage.entry_log_format import log_name
from tallybook.bookie.storage.location import IndexRow, Location
from tallybook.core.answers import DamagedBatch
from tallybook.core.config import ScrubSettings
from tallybook.core.errors import Busy, DiskFull, EntryUnknown
from tallybook.core.ids import MAX_ID
from tallybook.core.limits import KIB, SECTOR_BYTES
from tallybook.runtime.deterministic import SimClock, SimDisk, World, run_seed
from tallybook.sim.stage.disk_bookie import ROOT, DiskBookie, KnownMetadata, batch_of, tiny_settings

Scenario = Callable[[DiskBookie, World], Awaitable[None]]
LEDGER = 1
PERIOD_S = 3_600
ENTRIES = 12


def play(scenario: Scenario, *, period_s: int = PERIOD_S) -> None:
    async def run(world: World) -> None:
        settings = tiny_settings(entry_log_bytes=16 * KIB, scrub_period_s=period_s)
        node = DiskBookie(SimDisk(world.rng), world.clock, KnownMetadata(), settings)
        await node.boot()
        for entry_id in range(ENTRIES):
            await add(node, batch(entry_id))
            await node.bookie.flush()
        await node.stop()
        await node.boot()
        await scenario(node, world)
        await node.stop()
        assert node.failures == []

    run_seed(1, run, deadline_seconds=40 * PERIOD_S)


def batch(entry_id: int) -> bytes:
    return batch_of(entry_id, ledger_id=LEDGER, payload=b"x" * 900)


async def add(node: DiskBookie, data: bytes, *, recovery: bool = False) -> None:
    """Once the journal has room for it."""
    while (answer := await node.add(data, recovery=recovery)).code == Busy.wire_code:
        await SimClock().sleep(answer.retry_after_ms / 1000)
    assert answer.code == 0


async def row_of(node: DiskBookie, entry_id: int) -> IndexRow:
    row = await node.bookie._parts.index.find(LEDGER, entry_id)
    assert row is not None
    return row


def path_of(row: IndexRow) -> str:
    return f"{ROOT}/ledgers/{log_name(row.location.log_id)}"


def rot(node: DiskBookie, row: IndexRow) -> None:
    node.disk.rot.zero_sector(path_of(row), (row.location.offset + row.location.size // 2) // SECTOR_BYTES)


async def known(node: DiskBookie) -> list[int]:
    """First entries of batches that the bookie says are damaged."""
    return [each.first_entry_id for each in await node.bookie.damaged((-1, -1), 100)]


def test_a_batch_that_has_rotted_is_found_within_one_period_and_only_that_one() -> None:
    async def scenario(node: DiskBookie, world: World) -> None:
        rot(node, await row_of(node, 3))
        await world.clock.sleep(PERIOD_S)
        assert node.bookie.stats()["scrub_rounds_total"] >= 1
        assert await node.bookie.damaged((-1, -1), 100) == (DamagedBatch(LEDGER, 3, 3),)
        assert node.bookie.stats()["damaged_batches"] == 1

    play(scenario)


def test_a_batch_that_rots_when_it_was_just_looked_at_is_found_within_a_period_of_seconds_too() -> None:
    async def scenario(node: DiskBookie, world: World) -> None:
        scrub = node.bookie._parts.scrub
        scrub._settings = scrub._settings.model_copy(update={"min_bytes_per_second": 1})
        while not scrub.checked_bytes:
            await world.clock.sleep(0.1)
        rot(node, await row_of(node, 0))
        await world.clock.sleep(60)
        assert await known(node) == [0]

    play(scenario, period_s=60)


def test_what_rots_in_the_log_that_still_grows_is_found_too() -> None:
    async def scenario(node: DiskBookie, world: World) -> None:
        row = await row_of(node, ENTRIES - 1)
        assert row.location.log_id not in node.bookie._parts.logs.settled_log_ids
        rot(node, row)
        await world.clock.sleep(PERIOD_S)
        assert await known(node) == [ENTRIES - 1]

    play(scenario)


def test_of_a_log_that_grows_only_so_much_is_in_memory_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_contents, "PIECE_BYTES", 3_000)
    sizes: list[int] = []

    async def scenario(node: DiskBookie, world: World) -> None:
        for entry_id in range(ENTRIES, ENTRIES + 8):
            await add(node, batch(entry_id))
        await node.bookie.flush()
        logs, checked = node.bookie._parts.logs, set[int]()
        growing = set(logs.log_ids).difference(logs.settled_log_ids)
        read_many = logs.read_many

        async def counted(rows: Sequence[IndexRow]) -> list[bytes]:
            if rows[0].location.log_id in growing:
                sizes.append(sum(row.location.size for row in rows))
                checked.update(row.first_entry_id for row in rows)
            return await read_many(rows)

        monkeypatch.setattr(logs, "read_many", counted)
        await world.clock.sleep(PERIOD_S)
        assert checked >= set(range(ENTRIES, ENTRIES + 8))
        assert max(sizes) <= 3_000

    play(scenario)


def test_damage_that_was_mended_is_damage_no_more() -> None:
    async def scenario(node: DiskBookie, world: World) -> None:
        rot(node, await row_of(node, 3))
        await world.clock.sleep(PERIOD_S)
        assert await known(node) == [3]
        await add(node, batch(3), recovery=True)
        await node.bookie.flush()
        assert await known(node) == []
        assert node.bookie.stats()["damaged_batches"] == 0

    play(scenario)


def test_damage_in_a_table_costs_none_of_the_batches_their_check() -> None:
    async def scenario(node: DiskBookie, world: World) -> None:
        row = await row_of(node, 3)
        stretch = row.location.offset // SECTOR_BYTES
        node.disk.rot.zero_sector(path_of(row), stretch)  # the table, and the beginning of the batch
        await world.clock.sleep(PERIOD_S)
        assert await known(node) == [3]

    play(scenario)


def test_a_log_that_is_missing_is_missed() -> None:
    async def scenario(node: DiskBookie, world: World) -> None:
        row = await row_of(node, 0)
        rows = await node.bookie._parts.index.find_range(LEDGER, 0, MAX_ID, 100)
        lost = [each.first_entry_id for each in rows if each.location.log_id == row.location.log_id]
        await node.stop()
        await node.disk.unlink(path_of(row))
        await node.boot()
        # However long the first round takes.
        node.bookie._parts.scrub.round = lambda: world.clock.sleep(10 * PERIOD_S)  # type: ignore[method-assign]
        await world.clock.sleep(PERIOD_S / 5)
        assert await known(node) == lost

    play(scenario)


def test_a_scrub_that_is_cut_off_goes_on_where_it_was() -> None:
    async def scenario(node: DiskBookie, world: World) -> None:
        last = node.bookie._parts.logs.settled_log_ids[-1]
        row = next(
            each
            for each in await node.bookie._parts.index.find_range(LEDGER, 0, MAX_ID, 100)
            if each.location.log_id == last
        )
        rot(node, row)
        node.bookie._parts.scrub._settings = node.bookie._parts.scrub._settings.model_copy(
            update={"min_bytes_per_second": 100, "max_bytes_per_second": 100}
        )
        while not (await node.disk.read_file(f"{ROOT}/scrub", 4 * KIB)):
            await world.clock.sleep(1)
        await node.lose_power()
        await node.boot()
        scrub = node.bookie._parts.scrub
        await scrub.round()
        assert await known(node) == [row.first_entry_id]
        logs = node.bookie._parts.logs
        everything = sum(each.location.size for each in await node.bookie._parts.index.rows_after(-1, -1, 1000))
        assert scrub.checked_bytes < everything
        assert logs.settled_log_ids

    play(scenario)


def test_what_rots_is_found_within_a_period_while_the_bookie_fills_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_contents, "PIECE_BYTES", 3_000)
    period_s, more = 60, 200

    async def scenario(node: DiskBookie, world: World) -> None:
        scrub = node.bookie._parts.scrub
        scrub._settings = scrub._settings.model_copy(update={"min_bytes_per_second": 1})
        while not scrub.checked_bytes:
            await world.clock.sleep(0.1)
        for entry_id in range(ENTRIES, ENTRIES + more):
            await add(node, batch(entry_id))
            if not entry_id % 8:
                await node.bookie.flush()
        rows = [await row_of(node, ENTRIES + number) for number in (0, more // 2, more - 50)]
        assert all(row.location.log_id in node.bookie._parts.logs.settled_log_ids for row in rows)
        for row in rows:
            rot(node, row)
        await world.clock.sleep(period_s)
        assert await known(node) == [row.first_entry_id for row in rows]

    play(scenario, period_s=period_s)


def test_what_rots_behind_a_round_that_was_cut_off_is_found_within_a_period_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(log_contents, "PIECE_BYTES", 3_000)

    async def scenario(node: DiskBookie, world: World) -> None:
        def slow() -> ScrubSettings:
            return node.bookie._parts.scrub._settings.model_copy(update={"min_bytes_per_second": 1})

        node.bookie._parts.scrub._settings = slow()
        *_, last_but_one, last = node.bookie._parts.logs.settled_log_ids
        while node.bookie._parts.scrub._round.passed_up_to < last_but_one:
            await world.clock.sleep(1)
        row = await row_of(node, 0)
        rot(node, row)
        await node.stop()
        await node.boot()
        assert await node.bookie._parts.scrub._noted() == last_but_one < last
        node.bookie._parts.scrub._settings = slow()
        await world.clock.sleep(PERIOD_S)
        assert await known(node) == [0]

    play(scenario)


def test_a_round_begins_when_nine_tenths_of_a_period_are_over() -> None:
    async def scenario(node: DiskBookie, world: World) -> None:
        await world.clock.sleep(scrub.PAUSE_SECONDS + 0.88 * PERIOD_S)
        assert node.bookie._parts.scrub.rounds == 1
        await world.clock.sleep(0.05 * PERIOD_S)
        assert node.bookie._parts.scrub.rounds == 2

    play(scenario)


def test_what_is_finished_after_a_round_that_ended_early_does_not_wait_for_the_next() -> None:
    async def scenario(node: DiskBookie, world: World) -> None:
        reader = node.bookie._parts.scrub
        while not reader.rounds:
            await world.clock.sleep(1)
        before = reader.checked_bytes
        for entry_id in range(ENTRIES, ENTRIES + 40):
            await add(node, batch(entry_id))
            if not entry_id % 8:
                await node.bookie.flush()
        row = await row_of(node, ENTRIES)
        assert row.location.log_id in node.bookie._parts.logs.settled_log_ids
        rot(node, row)
        await world.clock.sleep(2 * scrub.PAUSE_SECONDS)
        assert (await known(node), reader.rounds) == ([ENTRIES], 1)
        assert before < reader.checked_bytes < before + 41 * 1_000, "what was read before is not read again"
        await world.clock.sleep(0.9 * PERIOD_S)
        assert reader.rounds == 2

    play(scenario)


def test_of_a_log_that_is_damaged_and_was_finished_between_two_rounds_what_its_rows_point_at_is_read() -> None:
    async def scenario(node: DiskBookie, world: World) -> None:
        reader = node.bookie._parts.scrub
        while not reader.rounds:
            await world.clock.sleep(1)
        for entry_id in range(ENTRIES, ENTRIES + 40):
            await add(node, batch(entry_id))
            if not entry_id % 8:
                await node.bookie.flush()
        row = await row_of(node, ENTRIES)
        # The table, and the beginning of the batch.
        node.disk.rot.zero_sector(path_of(row), row.location.offset // SECTOR_BYTES)
        await world.clock.sleep(2 * scrub.PAUSE_SECONDS)
        assert (await known(node), reader.rounds) == ([ENTRIES], 1)

    play(scenario)


def test_an_error_between_two_rounds_leaves_what_is_new_to_the_next_and_repeats_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def fail(*_: object) -> None:
        raise EntryUnknown("the index is not there")

    async def scenario(node: DiskBookie, world: World) -> None:
        reader = node.bookie._parts.scrub
        while not reader.rounds:
            await world.clock.sleep(1)
        monkeypatch.setattr(reader, "_read_finished", fail)
        await world.clock.sleep(0.8 * PERIOD_S)
        assert reader.rounds == 1
        await world.clock.sleep(0.15 * PERIOD_S)
        assert reader.rounds == 2

    play(scenario)


def test_what_lay_in_logs_that_are_gone_is_looked_for_soon_after_that_failed() -> None:
    period_s = 7 * 86_400

    async def scenario(node: DiskBookie, world: World) -> None:
        reader, asked = node.bookie._parts.scrub, list[float]()

        async def agree(*_: object, **__: object) -> None:
            asked.append(world.clock.monotonic())
            if len(asked) == 1:
                raise EntryUnknown("the index is not there")

        reader._agree = agree  # type: ignore[method-assign]
        await world.clock.sleep(3 * scrub.PAUSE_SECONDS)
        assert asked[1] - asked[0] == pytest.approx(scrub.PAUSE_SECONDS)

    play(scenario, period_s=period_s)


@pytest.mark.parametrize("period_s", [PERIOD_S, 7 * 86_400])
def test_a_round_that_fails_is_tried_again_soon(period_s: int) -> None:
    soon = max(scrub.PAUSE_SECONDS, period_s / 100)

    async def scenario(node: DiskBookie, world: World) -> None:
        node.disk.fail("write", "scrub", error=DiskFull)
        await world.clock.sleep(scrub.PAUSE_SECONDS + 0.5 * soon)
        assert node.bookie._parts.scrub.rounds == 0
        await world.clock.sleep(soon)
        assert node.bookie._parts.scrub.rounds == 1

    play(scenario, period_s=period_s)


def test_a_log_that_was_passed_over_is_not_noted_as_gone_through(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_contents, "PIECE_BYTES", 3_000)

    async def scenario(node: DiskBookie, world: World) -> None:
        logs, reader = node.bookie._parts.logs, node.bookie._parts.scrub
        reader._settings = reader._settings.model_copy(update={"min_bytes_per_second": 1})
        first, over, *rest = logs.settled_log_ids
        monkeypatch.setattr(type(logs), "settled_log_ids", property(lambda _: [first, *rest]))
        while not reader._round._passed.issuperset(rest):
            await world.clock.sleep(1)
        await world.clock.sleep(1)
        assert await reader._noted() == over - 1 == first

    play(scenario)


def test_a_wait_ends_sooner_where_more_comes_meanwhile() -> None:
    async def scenario(node: DiskBookie, world: World) -> None:
        reader = node.bookie._parts.scrub
        reader._settings = reader._settings.model_copy(update={"min_bytes_per_second": 1})
        reader._round = reader._new_round(after=0)
        began, size = world.clock.monotonic(), reader._round.left_bytes // 2
        waiting = asyncio.ensure_future(reader._wait_for(size))
        for entry_id in range(ENTRIES, ENTRIES + 200):
            await add(node, batch(entry_id))
            if not entry_id % 8:
                await node.bookie.flush()
        await waiting
        assert world.clock.monotonic() - began < 0.3 * PERIOD_S

    play(scenario)


def test_it_reads_no_faster_than_it_may() -> None:
    async def scenario(node: DiskBookie, world: World) -> None:
        scrub = node.bookie._parts.scrub
        scrub._settings = scrub._settings.model_copy(update={"min_bytes_per_second": 100, "max_bytes_per_second": 200})
        began = world.clock.monotonic()
        await scrub.round()
        assert world.clock.monotonic() - began >= (scrub.checked_bytes - 5_000) / 200

    play(scenario, period_s=0)


def test_a_ledger_that_is_dropped_takes_its_damage_along() -> None:
    async def scenario(node: DiskBookie, world: World) -> None:
        rot(node, await row_of(node, 3))
        await world.clock.sleep(PERIOD_S)
        assert await known(node) == [3]
        node.metadata.fates[LEDGER] = Fate.RELEASED
        await node.bookie.collect()
        assert node.bookie.stats()["damaged_batches"] == 0

    play(scenario)


def test_one_question_what_is_damaged_reads_a_bounded_number_of_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrub, "MAX_LOOKS", 4)

    async def scenario(node: DiskBookie, world: World) -> None:
        parts = node.bookie._parts
        for entry_id in range(ENTRIES):
            parts.damage.add(DamagedBatch(LEDGER, entry_id, entry_id))
        rot(node, await row_of(node, 9))
        rot(node, await row_of(node, 10))
        reads = len(node.disk.trace)
        for left in (8, 4):
            with pytest.raises(Busy):
                await node.bookie.damaged((-1, -1), 1_000)
            assert len(parts.damage) == left
        operations = list(node.disk.trace)[reads:]
        assert sum(each.name == "read" and "entrylog" in each.path for each in operations) == 2 * 4
        assert await known(node) == [9, 10]
        for entry_id in range(5):
            parts.damage.add(DamagedBatch(LEDGER, entry_id, entry_id))
        assert [each[1] for each in await node.bookie.damaged((LEDGER, 2), 1_000)] == [9, 10]
        assert await node.bookie.damaged((LEDGER, 10), 1_000) == ()

    play(scenario, period_s=0)


class Counted(int):
    """A number that counts how often it is compared."""

    compared = 0

    def __lt__(self, other: int) -> bool:
        Counted.compared += 1
        return int(self) < int(other)

    def __eq__(self, other: object) -> bool:
        Counted.compared += 1
        return int(self) == other

    __hash__ = int.__hash__


def compared(work: Callable[[], object]) -> int:
    before = Counted.compared
    work()
    return Counted.compared - before


def test_what_is_asked_of_a_long_list_of_damage_costs_no_look_at_all_of_it() -> None:
    damage = DamageList()
    for number in range(10_000):
        damage.add(DamagedBatch(Counted(number // 10), Counted(number % 10), 9))
    rows = [IndexRow(500, first, Location(1, 0, 100, 1)) for first in (3, 4)]
    assert compared(lambda: damage.page((998, 5), 3)) < 200
    assert compared(lambda: damage.page((-1, -1), 3)) < 200
    assert compared(lambda: damage.written_anew(rows)) < 500
    assert compared(lambda: damage.forget_ledgers([7, 9_999])) < 500
    assert len(damage) == 10_000 - 2 - 10
    assert [each[:2] for each in damage.page((500, 2), 1)] == [(500, 5)]
    assert [each[:2] for each in damage.page((6, 9), 1)] == [(8, 0)]


def test_rows_written_anew_are_taken_off_the_list_whichever_is_longer() -> None:
    for on_list, written in ((range(0, 90, 3), range(30, 36)), (range(33, 36), range(90)), ((1,), ()), ((), (1,))):
        damage = DamageList()
        for first in on_list:
            damage.add(DamagedBatch(LEDGER, first, first))
        damage.written_anew([IndexRow(LEDGER, first, Location(1, 0, 100, 1)) for first in written])
        assert [each[1] for each in damage.page((-1, -1), 100)] == sorted(set(on_list) - set(written))
        assert len(damage) == len(set(on_list) - set(written))


def test_the_list_is_bounded_and_told_in_pages() -> None:
    damage = DamageList(limit=5)
    for ledger_id in (3, 1, 2):
        for first in (10, 0):
            damage.add(DamagedBatch(ledger_id, first, first + 9))
    assert len(damage) == 5
    assert damage.met == 6
    assert [each[:2] for each in damage.page((-1, -1), 2)] == [(1, 0), (1, 10)]
    assert [each[:2] for each in damage.page((1, 10), 10)] == [(2, 10), (3, 0), (3, 10)]
