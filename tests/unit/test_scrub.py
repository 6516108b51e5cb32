"""Scrub on a simulated disk: bit rot is found without reads, and index and logs are compared."""

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from functools import partial
from typing import NamedTuple

import pytest

from tallybook.bookie.ledgers.disposition import LedgerDisposition
from tallybook.bookie.scrub import scrubber as scrub
from tallybook.bookie.scrub.damage_list import DamageList
from tallybook.bookie.storage import log_contents
from tallybook.bookie.storage.entry_log.format import parse_log_name
from tallybook.bookie.storage.entry_log.inspect import FoundBatch, inspect_entry_log
from tallybook.bookie.storage.index.survey import RangeSurvey, RowKey
from tallybook.bookie.storage.location import IndexRow, Location
from tallybook.core.add_kind import AddKind
from tallybook.core.answers import DamagedBatch
from tallybook.core.errors import Busy, DiskFull, EntryUnknown
from tallybook.core.limits import KIB, SECTOR_BYTES
from tallybook.core.settings import ScrubSettings
from tallybook.runtime.clock import Clock
from tallybook.sim.deterministic import SimDisk, World
from tallybook.sim.memory_bookie.index import MemoryIndex
from tallybook.sim.stage.disk_bookie import ROOT, DiskBookie, KnownMetadata, batch_of, tiny_settings

from ..simulated import Parts, on_stage

LEDGER = 1
PERIOD_S = 3_600
ENTRIES = 12


class Place(NamedTuple):
    """The place of a batch on the disk."""

    path: str
    offset: int
    size: int

    @property
    def sector(self) -> int:
        """The first one, which may have the end of the table before the batch."""
        return self.offset // SECTOR_BYTES

    @property
    def middle(self) -> int:
        return (self.offset + self.size // 2) // SECTOR_BYTES


class ScrubbedBookie(DiskBookie):
    """A bookie with some entries of one ledger in its logs."""

    async def store(self, entry_ids: range, flush_every: int = 1) -> None:
        for entry_id in entry_ids:
            await add(self, batch(entry_id))
            if not entry_id % flush_every:
                await self.bookie.flush()

    def count(self, stat: str) -> float:
        return self.bookie.stats()[stat]

    @property
    def clock(self) -> Clock:
        return self._clock

    async def until_scrubbed(self, stat: str) -> None:
        while not self.count(stat):
            await self.clock.sleep(0.1)

    async def logs(self) -> list[str]:
        """The logs by age; the last one may still grow."""
        names = await self.disk.list(f"{ROOT}/ledgers")
        return [f"{ROOT}/ledgers/{name}" for name in sorted(names) if name.endswith(".log")]

    async def places(self) -> dict[int, Place]:
        """Where the newest copy of each entry is stored."""
        found: dict[int, Place] = {}
        for path in await self.logs():
            async for part in inspect_entry_log(self.disk, path):
                if isinstance(part, FoundBatch):
                    found[part.header.first_entry_id] = Place(path, part.location.offset, part.location.size)
        return found

    async def rot(self, *entry_ids: int) -> None:
        places = await self.places()
        for entry_id in entry_ids:
            self.disk.rot.zero_sector(places[entry_id].path, places[entry_id].middle)

    async def known(self) -> list[int]:
        """First entries of batches that the bookie says are damaged."""
        return [each.first_entry_id for each in await self.bookie.damaged((-1, -1), 100)]

    async def reboot(self, **scrub_settings: int) -> None:
        """Stop and boot with other settings of the scrub."""
        await self.stop()
        self.set(**scrub_settings)
        await self.boot()

    def set(self, **scrub_settings: int) -> None:
        scrub = ScrubSettings(**(self.settings.scrub.model_dump() | scrub_settings))
        self.settings = self.settings.model_copy(update={"scrub": scrub})


@asynccontextmanager
async def scrubbed_bookie(world: World, *, period_s: int = PERIOD_S, **scrub_settings: int) -> AsyncIterator[Parts]:
    settings = tiny_settings(entry_log_bytes=16 * KIB)
    node = ScrubbedBookie(SimDisk(world.rng), world.clock, KnownMetadata(), settings)
    await node.boot()
    await node.store(range(ENTRIES))
    await node.reboot(period_s=period_s, **scrub_settings)
    yield {"node": node}
    await node.stop()
    assert node.failures == []


scrubbed = partial(on_stage, scrubbed_bookie, deadline_seconds=40 * PERIOD_S)


def batch(entry_id: int) -> bytes:
    return batch_of(entry_id, ledger_id=LEDGER, payload=b"x" * 900)


async def add(node: ScrubbedBookie, data: bytes, *, recovery: bool = False) -> None:
    """Once the journal has space for it."""
    while (
        answer := await node.add(data, kind=AddKind.RECOVERY if recovery else AddKind.ORDINARY)
    ).code == Busy.wire_code:
        await node.clock.sleep(answer.retry_after_ms / 1000)
    assert answer.code == 0


@scrubbed()
async def test_batches_that_rot_are_found_within_a_period_also_in_the_growing_log_until_they_are_mended(
    node: ScrubbedBookie,
) -> None:
    assert (await node.places())[ENTRIES - 1].path == (await node.logs())[-1]
    await node.rot(3, ENTRIES - 1)
    await node.clock.sleep(PERIOD_S)
    assert node.count("scrub_rounds_total") >= 1
    assert await node.known() == [3, ENTRIES - 1]
    assert node.count("damaged_batches") == 2
    await add(node, batch(3), recovery=True)
    await node.bookie.flush()
    assert await node.known() == [ENTRIES - 1]
    assert node.count("damaged_batches") == 1


@scrubbed(period_s=60, min_bytes_per_second=1)
async def test_a_batch_that_rots_when_it_was_just_looked_at_is_found_within_a_period_of_seconds_too(
    node: ScrubbedBookie,
) -> None:
    await node.until_scrubbed("scrubbed_bytes_total")
    await node.rot(0)
    await node.clock.sleep(60)
    assert await node.known() == [0]


@scrubbed()
async def test_of_a_log_that_grows_only_so_much_is_in_memory_at_a_time(
    node: ScrubbedBookie, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_contents, "PIECE_BYTES", 3_000)
    await node.store(range(ENTRIES, ENTRIES + 8), flush_every=ENTRIES + 8)
    await node.bookie.flush()
    *_, growing = await node.logs()
    began = node.disk.operations
    await node.clock.sleep(PERIOD_S)
    log_reads = [each for each in node.disk.trace if (each.name, each.path) == ("read", growing)]
    reads = [each.size for each in log_reads if each.number > began]
    places = [place for place in (await node.places()).values() if place.path == growing]
    assert sum(reads) >= sum(place.size for place in places) > 0
    assert max(reads) <= 3_000


@scrubbed()
async def test_damage_in_a_table_costs_none_of_the_batches_their_check(node: ScrubbedBookie) -> None:
    place = (await node.places())[3]
    node.disk.rot.zero_sector(place.path, place.sector)  # the table, and the beginning of the batch
    await node.clock.sleep(PERIOD_S)
    assert await node.known() == [3]


@scrubbed(min_bytes_per_second=1, max_bytes_per_second=1)
async def test_a_log_that_is_missing_is_missed_however_long_the_first_pass_takes(node: ScrubbedBookie) -> None:
    places = await node.places()
    await node.stop()
    await node.disk.unlink(places[0].path)
    await node.boot()
    await node.clock.sleep(PERIOD_S / 5)
    assert await node.known() == [entry_id for entry_id, each in places.items() if each.path == places[0].path]
    assert node.count("scrub_rounds_total") == 0


@scrubbed(min_bytes_per_second=100, max_bytes_per_second=100)
async def test_a_scrub_that_is_cut_off_goes_on_where_it_was(node: ScrubbedBookie) -> None:
    *_, last, _ = await node.logs()
    places = await node.places()
    rotten = min(entry_id for entry_id, each in places.items() if each.path == last)
    await node.rot(rotten)
    while not await node.disk.read_file(f"{ROOT}/scrub", 4 * KIB):
        await node.clock.sleep(1)
    await node.lose_power()
    await node.boot()
    await node.until_scrubbed("scrub_rounds_total")
    assert await node.known() == [rotten]
    assert node.count("scrubbed_bytes_total") < sum(each.size for each in places.values())


@scrubbed(period_s=60, min_bytes_per_second=1)
async def test_what_rots_is_found_within_a_period_while_the_bookie_fills_too(
    node: ScrubbedBookie, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_contents, "PIECE_BYTES", 3_000)
    period_s, more = 60, 200
    await node.until_scrubbed("scrubbed_bytes_total")
    await node.store(range(ENTRIES, ENTRIES + more), flush_every=8)
    rotten = [ENTRIES, ENTRIES + more // 2, ENTRIES + more - 50]
    places, newest = await node.places(), (await node.logs())[-1]
    assert all(places[entry_id].path != newest for entry_id in rotten)
    await node.rot(*rotten)
    await node.clock.sleep(period_s)
    assert await node.known() == rotten


@scrubbed(min_bytes_per_second=1)
async def test_what_rots_behind_a_pass_that_was_cut_off_is_found_within_a_period_all_the_same(
    node: ScrubbedBookie, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_contents, "PIECE_BYTES", 3_000)
    *_, last_but_one, _, _ = await node.logs()
    number = parse_log_name(last_but_one.rpartition("/")[2])
    while f"after {number}\n" not in (await node.disk.read_file(f"{ROOT}/scrub", 4 * KIB) or b"").decode():
        await node.clock.sleep(1)
    await node.rot(0)
    await node.reboot()
    await node.clock.sleep(PERIOD_S)
    assert await node.known() == [0]


@scrubbed()
async def test_a_round_begins_when_nine_tenths_of_a_period_are_over(node: ScrubbedBookie) -> None:
    await node.clock.sleep(scrub.PAUSE_SECONDS + 0.88 * PERIOD_S)
    assert node.count("scrub_rounds_total") == 1
    await node.clock.sleep(0.05 * PERIOD_S)
    assert node.count("scrub_rounds_total") == 2


@scrubbed()
async def test_what_is_finished_after_a_pass_that_ended_early_does_not_wait_for_the_next(node: ScrubbedBookie) -> None:
    await node.until_scrubbed("scrub_rounds_total")
    before = node.count("scrubbed_bytes_total")
    await node.store(range(ENTRIES, ENTRIES + 40), flush_every=8)
    assert (await node.places())[ENTRIES].path != (await node.logs())[-1]
    await node.rot(ENTRIES)
    await node.clock.sleep(2 * scrub.PAUSE_SECONDS)
    assert (await node.known(), node.count("scrub_rounds_total")) == ([ENTRIES], 1)
    after = node.count("scrubbed_bytes_total")
    assert before < after < before + 41 * 1_000, "what was read before is not read again"
    await node.clock.sleep(0.9 * PERIOD_S)
    assert node.count("scrub_rounds_total") == 2


@scrubbed()
async def test_of_a_log_that_is_damaged_and_was_finished_between_two_rounds_what_its_rows_point_at_is_read(
    node: ScrubbedBookie,
) -> None:
    await node.until_scrubbed("scrub_rounds_total")
    await node.store(range(ENTRIES, ENTRIES + 40), flush_every=8)
    place = (await node.places())[ENTRIES]
    node.disk.rot.zero_sector(place.path, place.sector)  # the table, and the beginning of the batch
    await node.clock.sleep(2 * scrub.PAUSE_SECONDS)
    assert (await node.known(), node.count("scrub_rounds_total")) == ([ENTRIES], 1)


@scrubbed()
async def test_an_error_between_two_rounds_leaves_what_is_new_to_the_next_and_repeats_none(
    node: ScrubbedBookie, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object) -> None:
        raise EntryUnknown("the index is not there")

    await node.until_scrubbed("scrub_rounds_total")
    await node.store(range(ENTRIES, ENTRIES + 40), flush_every=8)
    place = (await node.places())[ENTRIES]
    node.disk.rot.zero_sector(place.path, place.sector)  # so that its rows have to be found in the index
    with monkeypatch.context() as patch:
        patch.setattr(MemoryIndex, "survey_from", fail)
        await node.clock.sleep(0.8 * PERIOD_S)
    assert node.count("scrub_failures_total") > 0
    assert node.count("scrub_rounds_total") == 1
    await node.clock.sleep(0.15 * PERIOD_S)
    assert node.count("scrub_rounds_total") == 2
    assert await node.known() == [ENTRIES]


@scrubbed(period_s=7 * 86_400)
async def test_what_lay_in_logs_that_are_gone_is_looked_for_soon_after_that_failed(
    node: ScrubbedBookie, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[float] = []
    survey_from = MemoryIndex.survey_from

    async def fails_once(index: MemoryIndex, first: RowKey, count: int) -> RangeSurvey:
        asked.append(node.clock.monotonic())
        if len(asked) == 1:
            raise EntryUnknown("the index is not there")
        return await survey_from(index, first, count)

    monkeypatch.setattr(MemoryIndex, "survey_from", fails_once)
    await node.clock.sleep(3 * scrub.PAUSE_SECONDS)
    assert asked[1] - asked[0] == pytest.approx(scrub.PAUSE_SECONDS)


@pytest.mark.parametrize("period_s", [PERIOD_S, 7 * 86_400])
def test_a_pass_that_fails_is_tried_again_soon(period_s: int) -> None:
    @scrubbed(period_s=period_s)
    async def play(node: ScrubbedBookie) -> None:
        soon = max(scrub.PAUSE_SECONDS, period_s / 100)
        node.disk.fail("write", "scrub", error=DiskFull)
        await node.clock.sleep(scrub.PAUSE_SECONDS + 0.5 * soon)
        assert node.count("scrub_rounds_total") == 0
        await node.clock.sleep(soon)
        assert node.count("scrub_rounds_total") == 1

    play()


@scrubbed(min_bytes_per_second=1)
async def test_a_wait_ends_sooner_where_more_comes_meanwhile(node: ScrubbedBookie) -> None:
    await node.until_scrubbed("scrubbed_bytes_total")
    began, before = node.clock.monotonic(), node.count("scrubbed_bytes_total")
    await node.store(range(ENTRIES, ENTRIES + 200), flush_every=8)
    while node.count("scrubbed_bytes_total") == before:
        await node.clock.sleep(1)
    assert node.clock.monotonic() - began < 60, "at the first rate it takes two minutes"


@scrubbed(period_s=20, min_bytes_per_second=100, max_bytes_per_second=200)
async def test_it_reads_no_faster_than_it_may(node: ScrubbedBookie) -> None:
    await node.until_scrubbed("scrubbed_bytes_total")
    began = node.clock.monotonic()
    await node.until_scrubbed("scrub_rounds_total")
    assert node.clock.monotonic() - began >= (node.count("scrubbed_bytes_total") - 5_000) / 200


@scrubbed()
async def test_a_ledger_that_is_dropped_takes_its_damage_along(node: ScrubbedBookie) -> None:
    await node.rot(3)
    await node.clock.sleep(PERIOD_S)
    assert await node.known() == [3]
    node.metadata.dispositions[LEDGER] = LedgerDisposition.RELEASED
    await node.bookie.collect()
    assert node.count("damaged_batches") == 0


@scrubbed()
async def test_one_question_what_is_damaged_reads_a_bounded_number_of_batches(
    node: ScrubbedBookie, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = await node.places()

    def flip(entry_ids: Iterable[int]) -> None:
        for path, offset, size in (places[entry_id] for entry_id in entry_ids):
            node.disk.rot.flip_bit(path, offset + size // 2)

    flip(places)
    await node.until_scrubbed("scrub_rounds_total")
    assert await node.known() == list(range(ENTRIES))
    flip(set(places).difference((9, 10)))
    monkeypatch.setattr(scrub, "MAX_REREADS", 4)
    began = node.disk.operations
    for left in (8, 4):
        with pytest.raises(Busy):
            await node.bookie.damaged((-1, -1), 1_000)
        assert node.count("damaged_batches") == left
    reads = [each for each in node.disk.trace if each.number > began and each.name == "read"]
    assert sum(each.path in {place.path for place in places.values()} for each in reads) == 2 * 4
    assert await node.known() == [9, 10]
    assert await node.bookie.damaged((LEDGER, 10), 1_000) == ()


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


def test_a_query_of_a_long_damage_list_does_not_scan_all_of_it() -> None:
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


def test_the_list_is_bounded_and_returned_in_pages() -> None:
    damage = DamageList(limit=5)
    for ledger_id in (3, 1, 2):
        for first in (10, 0):
            damage.add(DamagedBatch(ledger_id, first, first + 9))
    assert len(damage) == 5
    assert damage.met == 6
    assert [each[:2] for each in damage.page((-1, -1), 2)] == [(1, 0), (1, 10)]
    assert [each[:2] for each in damage.page((1, 10), 10)] == [(2, 10), (3, 0), (3, 10)]
