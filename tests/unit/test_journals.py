"""Several journals: each ledger keeps to one, all are replayed, and their list changes only when empty."""

import asyncio
from collections import Counter
from functools import partial
from itertools import permutations

import pytest

from tallybook.bookie.bookie import Bookie
from tallybook.bookie.journal.format import JournalMark
from tallybook.bookie.journal.journals import JournalMarks, Journals, journal_of
from tallybook.bookie.journal.superblock_file import read_superblock
from tallybook.core.add_kind import AddKind
from tallybook.core.errors import DamagedFile, DiskFailed, DiskFull, ForeignDirectory, InvalidConfig, NoSuchLedger
from tallybook.core.limits import KIB
from tallybook.core.settings import AdmissionSettings
from tallybook.sim.deterministic import SimDisk, World
from tallybook.sim.stage.disk_bookie import ROOT, DiskBookie, KnownMetadata, batch_of, tiny_settings

from ..simulated import on_stage, simulated
from .bookie_parts import booted

OWN = f"{ROOT}/journal"
TWO = "/disk2/journal"
THREE = "/disk3/journal"
BOTH = (OWN, TWO)

HERE = next(ledger_id for ledger_id in range(1, 100) if journal_of(ledger_id, 2) == 0)
THERE = next(ledger_id for ledger_id in range(1, 100) if journal_of(ledger_id, 2) == 1)
"""One ledger of each of two journals."""


def node_of(world: World, *journals: str, disk: SimDisk | None = None) -> DiskBookie:
    metadata = KnownMetadata()
    return DiskBookie(disk or SimDisk(world.rng), world.clock, metadata, tiny_settings(journal_directories=journals))


with_two = partial(on_stage, booted, journal_directories=BOTH)


async def written(disk: SimDisk, path: str) -> JournalMark:
    read = await read_superblock(disk, path)
    assert read is not None
    return read.facts.trim


async def holds(bookie: Bookie, ledger_id: int, *entries: int) -> None:
    for entry_id in entries:
        answer = await bookie.read_batches(ledger_id, entry_id, entry_id, 1)
        assert answer.batches == (batch_of(entry_id, ledger_id=ledger_id),)


def test_ledgers_are_spread_evenly_and_each_keeps_its_journal() -> None:
    # Written out: a journal that another version left must hold the ledgers that this one takes to be in it.
    assert [journal_of(ledger_id, 2) for ledger_id in range(12)] == [0, 1, 0, 0, 1, 1, 0, 0, 1, 1, 0, 0]
    for count in (1, 2, 3, 8):
        for ids in (range(1, 4_001), range(0, 4_000 * 64, 64), range(2**62, 2**62 + 4_000)):
            shares = Counter(journal_of(ledger_id, count) for ledger_id in ids)
            assert sorted(shares) == list(range(count))
            assert min(shares.values()) > 0.8 * 4_000 / count, (count, ids)


@with_two()
async def test_j03_a_busy_journal_does_not_move_the_mark_of_a_quiet_one(node: DiskBookie, world: World) -> None:
    assert (await node.add(batch_of(0, ledger_id=THERE))).code == 0
    await node.bookie.flush()
    before = await written(node.disk, OWN), await written(node.disk, TWO)
    for entry_id in range(20):
        assert (await node.add(batch_of(entry_id, ledger_id=HERE))).code == 0
        await world.clock.sleep(0.1)
    await node.bookie.flush()
    after = await written(node.disk, OWN), await written(node.disk, TWO)
    assert after[0] > before[0]
    # What is taken now is below the mark of the busy journal, and above that of its own.
    assert (await node.add(batch_of(1, ledger_id=THERE))).code == 0
    marks = node.parts.journals.durable_marks()
    assert after[1] < marks[1] < after[0], "the quiet journal must be behind for this to show anything"
    await node.lose_power()
    await node.boot()
    await holds(node.bookie, THERE, 0, 1)
    await holds(node.bookie, HERE, *range(20))


@with_two()
async def test_j24_a_journal_that_a_crash_kept_from_forgetting_brings_nothing_deleted_back(
    node: DiskBookie, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def first_one_only(self: Journals, marks: JournalMarks) -> None:
        await self.each[0].trim(marks[0])

    for ledger_id in (HERE, THERE):
        for entry_id in (2, 0, 1):
            assert (await node.add(batch_of(entry_id, ledger_id=ledger_id), kind=AddKind.RECOVERY)).code == 0
        await node.bookie.write_lac(ledger_id, 2, b"")
    await node.bookie.flush()
    gone = next(ledger_id for ledger_id in range(THERE + 1, 100) if journal_of(ledger_id, 2) == 1)
    assert (await node.add(batch_of(0, ledger_id=gone))).code == 0
    await node.bookie.delete_ledger(gone)
    monkeypatch.setattr(Journals, "trim", first_one_only)
    await node.bookie.flush()
    monkeypatch.undo()
    await node.lose_power()
    await node.boot()
    for ledger_id in (HERE, THERE):
        await holds(node.bookie, ledger_id, 0, 1, 2)
        assert (await node.bookie.read_lac(ledger_id)).lac == 2
    assert (await node.add(batch_of(1, ledger_id=gone), kind=AddKind.RECOVERY)).code == NoSuchLedger.wire_code
    with pytest.raises(NoSuchLedger):
        await node.bookie.read_batches(gone, 0, 0, 1)


@with_two()
async def test_a_device_that_holds_up_one_journal_holds_up_only_its_ledgers(node: DiskBookie) -> None:
    assert (await node.add(batch_of(0, ledger_id=HERE))).code == 0
    assert (await node.add(batch_of(0, ledger_id=THERE))).code == 0
    node.disk.fail("write-durable", TWO, error=None, delay_seconds=0.8)
    slow = node.add(batch_of(1, ledger_id=THERE))
    fence = asyncio.ensure_future(node.bookie.fence(THERE, b""))
    # Its own order is kept: the fence waits for the add before it.
    for entry_id in range(1, 4):
        assert (await node.add(batch_of(entry_id, ledger_id=HERE))).code == 0
    await node.bookie.fence(HERE, b"")
    assert not slow.done()
    assert not fence.done()
    assert (await slow).code == 0
    assert (await fence).last_held == 1


@simulated
async def test_adds_are_refused_while_one_journal_is_too_old_and_taken_again_when_it_has_caught_up(
    world: World,
) -> None:
    settings = tiny_settings(journal_directories=BOTH, admission=AdmissionSettings(max_queue_age_ms=500))
    node = DiskBookie(SimDisk(world.rng), world.clock, KnownMetadata(), settings)
    await node.boot()
    assert (await node.add(batch_of(0, ledger_id=HERE))).code == 0
    node.disk.fail("write-durable", TWO, error=None, delay_seconds=5.0)
    slow = node.add(batch_of(0, ledger_id=THERE))
    await world.clock.sleep(1.0)
    assert (await node.add(batch_of(1, ledger_id=HERE))).code != 0
    assert (await slow).code == 0
    assert (await node.add(batch_of(1, ledger_id=HERE))).code == 0
    await node.stop()


@simulated
async def test_a_journal_that_fails_ends_the_node_and_nothing_is_acked_by_the_others_either(world: World) -> None:
    node = node_of(world, *BOTH)
    await node.boot()
    node.disk.fail("write-durable", TWO)
    assert (await node.add(batch_of(0, ledger_id=THERE))).code == DiskFailed.wire_code
    assert (await node.add(batch_of(0, ledger_id=HERE))).code == DiskFailed.wire_code
    assert any("the journal failed" in failure for failure in node.failures)
    await node.lose_power()


class Load:
    """A journal, as far as it says how busy it is."""

    def __init__(self, space_bytes: int, age_seconds: float, used_fraction: float) -> None:
        self._room_bytes = space_bytes
        self._age_seconds = age_seconds
        self.used_fraction = used_fraction

    def space_bytes(self, *, urgent: bool = False) -> int:
        return self._room_bytes + (10 if urgent else 0)

    def oldest_queued_age_seconds(self) -> float:
        return self._age_seconds


def test_the_fullest_of_several_journals_decides() -> None:
    for loads in permutations([Load(50, 0.1, 0.2), Load(40, 0.3, 0.1), Load(70, 0.2, 0.9)]):
        journals = Journals(loads)  # type: ignore[arg-type]
        assert journals.space_bytes() == 40
        assert journals.space_bytes(urgent=True) == 50
        assert journals.oldest_queued_age_seconds() == 0.3
        assert journals.used_fraction == 0.9


async def test_a_journal_that_cannot_be_closed_keeps_no_other_from_it() -> None:
    closed: list[str] = []

    class Closes:
        def __init__(self, name: str, error: Exception | None) -> None:
            self.name, self.error = name, error

        async def close(self, *, clean: bool) -> None:
            closed.append(self.name)
            if self.error is not None:
                raise self.error

    for first, second in ((DiskFailed("planted"), None), (None, DiskFailed("planted"))):
        closed.clear()
        with pytest.raises(DiskFailed, match="planted"):
            await Journals([Closes("one", first), Closes("two", second)]).close(clean=True)  # type: ignore[list-item]
        assert sorted(closed) == ["one", "two"]


@with_two()
async def test_a_start_that_ends_between_two_journals_is_followed_by_a_life_above_both(node: DiskBookie) -> None:
    assert (await node.add(batch_of(0, ledger_id=HERE))).code == 0
    assert (await node.add(batch_of(0, ledger_id=THERE))).code == 0
    await node.kill()
    node.disk.fail("write-durable", f"{TWO}/superblock", error=DiskFull)
    with pytest.raises(DiskFull):
        await node.boot()
    node.disk.faults.clear()
    await node.kill()
    await node.boot()
    assert node.bookie.incarnation.boot == 3
    await holds(node.bookie, HERE, 0)
    await holds(node.bookie, THERE, 0)
    found = [await read_superblock(node.disk, path) for path in BOTH]
    assert [read.facts.boot for read in found if read is not None] == [3, 3]


@with_two()
async def test_adds_go_on_although_one_ledger_fills_its_journal_again_and_again(node: DiskBookie, world: World) -> None:
    taken = 0
    for entry_id in range(60):
        while (await node.add(batch_of(entry_id, ledger_id=HERE, payload=bytes(8 * KIB)))).code:
            await world.clock.sleep(0.1)
        taken += 1
    assert taken == 60
    assert await written(node.disk, OWN) > JournalMark(4, 0)


# -- which journals there are ----------------------------------------------------------------


@simulated
async def test_after_a_clean_stop_journals_may_be_added_removed_and_added_back_and_no_incarnation_repeats(
    world: World,
) -> None:
    node = node_of(world)
    boots = []
    for number, journals in enumerate([(), BOTH, (TWO,), (THREE,), (OWN, THREE, TWO), ()]):
        node.settings = tiny_settings(journal_directories=journals)
        await node.boot()
        boots.append(node.bookie.incarnation.boot)
        for ledger_id in range(1, 6):
            assert (await node.add(batch_of(number, ledger_id=ledger_id))).code == 0
        await node.lose_power()
        await node.boot()
        boots.append(node.bookie.incarnation.boot)
        for ledger_id in range(1, 6):
            await holds(node.bookie, ledger_id, *range(number + 1))
        await node.stop()
    assert boots == list(range(1, 13))


@pytest.mark.parametrize("changed", [(OWN, TWO, THREE), (OWN,), (TWO,), (THREE, TWO), ()])
@with_two()
async def test_journals_that_hold_anything_are_not_changed(node: DiskBookie, *, changed: tuple[str, ...]) -> None:
    assert (await node.add(batch_of(0, ledger_id=THERE))).code == 0
    await node.lose_power()
    node.settings = tiny_settings(journal_directories=changed)
    with pytest.raises(InvalidConfig, match="has records that are not checkpointed"):
        await node.boot()
    # Their order in the settings means nothing.
    node.settings = tiny_settings(journal_directories=(TWO, OWN))
    await node.boot()
    await holds(node.bookie, THERE, 0)
    await node.stop()
    node.settings = tiny_settings(journal_directories=changed)
    await node.boot()
    await holds(node.bookie, THERE, 0)


@pytest.mark.parametrize("lost", BOTH)
@simulated
async def test_j13_one_of_two_journals_that_came_back_empty_is_refused_by_name(world: World, *, lost: str) -> None:
    node = node_of(world, *BOTH)
    await node.boot()
    assert (await node.add(batch_of(0))).code == 0
    await node.stop()
    cookie = node.disk.peek(f"{lost}/cookie")
    for name in await node.disk.list(lost):
        await node.disk.unlink(f"{lost}/{name}")
    with pytest.raises(ForeignDirectory, match=f"{lost} is missing or empty"):
        await node.boot()
    # Nor does it help if an operator has put the cookie back.
    await node.disk.replace_file(f"{lost}/cookie", cookie)
    with pytest.raises(DamagedFile, match=f"the journal in {lost} is missing"):
        await node.boot()


@with_two()
async def test_damage_in_one_journal_leaves_in_limbo_what_may_have_been_in_it(node: DiskBookie) -> None:
    for entry_id in range(3):
        assert (await node.add(batch_of(entry_id, ledger_id=THERE))).code == 0
    await node.kill()
    path = next(
        f"{TWO}/{name}" for name in await node.disk.list(TWO) if batch_of(1)[:4] in node.disk.peek(f"{TWO}/{name}")
    )
    node.disk.rot.zero_sector(path, 8)
    await node.boot()
    assert node.parts.table.limbo.covers(THERE, 0)


@simulated
async def test_a_journal_without_space_for_its_segments_is_refused_by_name(world: World) -> None:
    node = node_of(world)
    await node.boot()
    await node.stop()
    node.disk.capacity_bytes = node.disk.state.used_bytes() + 100 * KIB
    node.settings = tiny_settings(journal_directories=BOTH)
    with pytest.raises(DiskFull, match=f"{TWO} has [0-9]+ bytes free, {4 * 64 * KIB} are needed for the journal"):
        await node.boot()
