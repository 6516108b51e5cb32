"""A bookie with several disks loses one: entries on the others are kept."""

from types import SimpleNamespace

import pytest

from tallybook.bookie.directories.layout import DirectoryLayout, read_format
from tallybook.bookie.directories.storage_directories import listed_directories
from tallybook.bookie.journal.journals import journal_of
from tallybook.bookie.recovery.index_rebuild import RebuildReport
from tallybook.bookie.recovery.lost_index import rebuild_stopped
from tallybook.bookie.storage.index.port import Index
from tallybook.core.add_kind import AddKind
from tallybook.core.errors import DamagedFile, EntryUnknown, ForeignDirectory
from tallybook.core.limits import KIB
from tallybook.sim.deterministic import SimDisk, World
from tallybook.sim.memory_bookie.index import MemoryIndex
from tallybook.sim.stage.disk_bookie import ROOT, DiskBookie, KnownMetadata, batch_of, tiny_settings

from ..simulated import simulated
from ..support.damage import said_of
from .loss_parts import accept, empty

JOURNALS = (f"{ROOT}/journal", "/disk2/journal", "/disk3/journal")
LEDGERS = ("/disk2/ledgers", "/disk3/ledgers")
LEDGER_IDS = tuple(
    next(ledger_id for ledger_id in range(1, 100) if journal_of(ledger_id, len(JOURNALS)) == at)
    for at in range(len(JOURNALS))
)
"""One ledger of each journal."""
STORED = 4
BELOW = 200


def settings_of(journals: tuple[str, ...] = JOURNALS, ledgers: tuple[str, ...] = LEDGERS):
    return tiny_settings(journal_directories=journals, ledger_directories=ledgers, entry_log_bytes=8 * KIB)


async def filled(world: World) -> DiskBookie:
    """A bookie that was killed: of each ledger the first entries in logs of both directories, the last in its journal.

    Every start begins an entry log, on the disk with fewer of them.
    """
    node = DiskBookie(SimDisk(world.rng), world.clock, KnownMetadata(id_counter=BELOW), settings_of())
    for entry_id in range(STORED):
        await node.boot()
        for ledger_id in LEDGER_IDS:
            assert (await node.add(batch_of(entry_id, ledger_id=ledger_id))).code == 0
        await node.stop()
    await node.boot()
    for ledger_id in LEDGER_IDS:
        assert (await node.add(batch_of(STORED, ledger_id=ledger_id))).code == 0
    await node.kill()
    return node


async def logs_of(disk: SimDisk) -> list[str]:
    names = [name for path in LEDGERS for name in await disk.list(path)]
    return [name for name in names if name.startswith("entrylog")]


async def listed(disk: SimDisk) -> list[str]:
    return [place.path for place in listed_directories(await read_format(disk, DirectoryLayout(ROOT)), ROOT)]


class Store:
    """The metadata as a rebuild reads them: every ledger exists."""

    def __init__(self, known: KnownMetadata) -> None:
        self.cluster_id, self.read_cookie, self.id_counter = known.cluster_id, known.read_cookie, known.read_id_counter

    async def read_record(self, name: str, *, linearizable: bool) -> None:
        return None

    async def read_ledger(self, ledger_id: int, *, linearizable: bool) -> SimpleNamespace:
        return SimpleNamespace(value=SimpleNamespace(copies_released=False, closed=False))


async def rebuilt(node: DiskBookie, world: World) -> RebuildReport:
    """The content of a new index, built while the bookie is stopped."""

    async def open_index(path: str, *, create: bool) -> Index:
        return await MemoryIndex.open(node.disk, path, create=create)

    store = Store(node.metadata)
    settings, disk, clock = node.settings, node.disk, world.clock
    _, report = await rebuild_stopped(settings, disk, store, clock, world.rng, open_index, dry_run=True)  # type: ignore[arg-type]
    return report


async def all_of(node: DiskBookie, ledger_id: int) -> list[str]:
    """The answer for each of its entries, and for one after them."""
    return [await said_of(node, ledger_id, entry_id) for entry_id in range(STORED + 2)]


@pytest.mark.parametrize("what", ["all", "superblock"])
@pytest.mark.parametrize("at", [0, 1])
@simulated
async def test_j13_one_lost_journal_of_several_costs_what_only_it_had_and_nothing_else(
    world: World, *, at: int, what: str
) -> None:
    node = await filled(world)
    boot = STORED + 1
    if what == "all":
        await empty(node.disk, JOURNALS[at])
    else:
        await node.disk.unlink(f"{JOURNALS[at]}/superblock")
    with pytest.raises((DamagedFile, ForeignDirectory), match=JOURNALS[at]):
        await node.boot()
    before = await listed(node.disk)
    (lost,) = await accept(node)
    assert JOURNALS[at] in lost
    assert await listed(node.disk) == before
    for _ in range(2):
        await node.boot()
        assert node.bookie.incarnation.boot > boot
        boot = node.bookie.incarnation.boot
        for journal, ledger_id in enumerate(LEDGER_IDS):
            journaled = "EntryUnknown" if journal == at else "held"
            assert await all_of(node, ledger_id) == ["held"] * STORED + [journaled, "EntryUnknown"]
            assert (await node.add(batch_of(9, ledger_id=ledger_id))).code == EntryUnknown.wire_code
        await node.lose_power()
    assert await accept(node) == []


@pytest.mark.parametrize("at", [0, 1])
@simulated
async def test_a_journal_that_was_given_up_and_comes_back_is_not_taken_for_the_one_in_its_place(
    world: World, *, at: int
) -> None:
    """Its disk was not mounted, so the new journal lay below the mount point; then it is mounted again."""
    node = await filled(world)
    path = JOURNALS[at]
    before = {name: node.disk.peek(f"{path}/{name}") for name in await node.disk.list(path)}
    await empty(node.disk, path)
    await accept(node)
    node.metadata.id_counter = BELOW + 100
    later = next(each for each in range(BELOW, BELOW + 100) if journal_of(each, len(JOURNALS)) == at)
    await node.boot()
    assert (await node.add(batch_of(0, ledger_id=later))).code == 0
    await node.kill()
    await empty(node.disk, path)
    for name, data in before.items():
        await node.disk.replace_file(f"{path}/{name}", data)
    with pytest.raises(DamagedFile, match=f"{path}.*given up.*accept-loss"):
        await node.boot()
    (lost,) = await accept(node)
    assert path in lost
    first = await node.boot()
    assert (await all_of(node, later))[:2] == ["EntryUnknown"] * 2
    await node.lose_power()
    assert (await node.boot()).incarnation.boot > first.incarnation.boot
    await node.stop()
    assert await accept(node) == []


@pytest.mark.parametrize("configured", [True, False])
@simulated
async def test_j13_one_lost_directory_of_entry_logs_costs_the_logs_in_it_and_nothing_else(
    world: World, *, configured: bool
) -> None:
    node = await filled(world)
    before = await logs_of(node.disk)
    await empty(node.disk, LEDGERS[1])
    if not configured:
        node.settings = settings_of(ledgers=LEDGERS[:1])
    with pytest.raises(ForeignDirectory, match=f"{LEDGERS[1]}.*accept-loss"):
        await node.boot()
    (lost,) = await accept(node)
    assert LEDGERS[1] in lost
    assert await listed(node.disk) == [*JOURNALS, *(LEDGERS if configured else LEDGERS[:1])]
    await node.boot()
    for ledger_id in LEDGER_IDS:
        said = await all_of(node, ledger_id)
        assert sorted(said[:STORED]) == ["EntryUnknown"] * 2 + ["held"] * 2
        assert said[STORED:] == ["held", "EntryUnknown"]
        held = [each for first, last in (await node.bookie.held(ledger_id, 0, 99)).ranges
                for each in range(first, last + 1)]  # fmt: skip
        assert held == [entry_id for entry_id, what in enumerate(said) if what == "held"]
        for entry_id in range(STORED):
            assert (await node.add(batch_of(entry_id, ledger_id=ledger_id), kind=AddKind.RECOVERY)).code == 0
        assert await all_of(node, ledger_id) == ["held"] * (STORED + 1) + ["EntryUnknown"]
    await node.stop()
    new = sorted(set(await logs_of(node.disk)) - set(before))
    assert new
    assert new[0] >= "entrylog-0000000100000001.log", "no id of a lost log is given again"
    assert await accept(node) == []


@simulated
async def test_a_directory_of_entry_logs_that_comes_back_is_not_taken_for_the_one_made_in_its_place(
    world: World,
) -> None:
    node = await filled(world)
    path = LEDGERS[1]
    before = {name: node.disk.peek(f"{path}/{name}") for name in await node.disk.list(path)}
    await empty(node.disk, path)
    await accept(node)
    await node.boot()
    await node.stop()
    made = {name: node.disk.peek(f"{path}/{name}") for name in await node.disk.list(path)}
    await empty(node.disk, path)
    for name, data in before.items():
        await node.disk.replace_file(f"{path}/{name}", data)
    with pytest.raises(ForeignDirectory, match=f"{path} is listed as .*swapped"):
        await node.boot()
    await empty(node.disk, path)
    for name, data in made.items():
        await node.disk.replace_file(f"{path}/{name}", data)
    await node.boot()
    await node.stop()
    assert await accept(node) == []


@pytest.mark.parametrize("also", [(), ("cookie", "superblock")])
@simulated
async def test_a_lost_list_of_directories_is_made_again_from_their_cookies(
    world: World, *, also: tuple[str, ...]
) -> None:
    """Also together with a part of the data directory."""
    node = await filled(world)
    before = await listed(node.disk)
    await node.disk.unlink(f"{ROOT}/FORMAT")
    for name in also:
        await node.disk.unlink(f"{JOURNALS[0]}/{name}")
    with pytest.raises((DamagedFile, ForeignDirectory)):
        await node.boot()
    assert len(await accept(node)) == (2 if also else 1)
    assert await listed(node.disk) == before
    await node.boot()
    for at, ledger_id in enumerate(LEDGER_IDS):
        journaled = "EntryUnknown" if also and not at else "held"
        assert await all_of(node, ledger_id) == ["held"] * STORED + [journaled, "EntryUnknown"]
    await node.stop()


@simulated
async def test_a_directory_that_the_list_forgot_is_reported_as_what_it_is(world: World) -> None:
    """Accepting the loss of the list without naming the directories gives a list without them."""
    node = await filled(world)
    named = node.settings
    await node.disk.unlink(f"{ROOT}/FORMAT")
    node.settings = settings_of((JOURNALS[0],), ())
    await accept(node)
    node.settings = named
    with pytest.raises(ForeignDirectory, match=f"{LEDGERS[0]} is ledgers-.* of this bookie.*{ROOT}/FORMAT"):
        await node.boot()
    await node.disk.unlink(f"{ROOT}/FORMAT")
    await accept(node)
    await node.boot()
    for ledger_id in LEDGER_IDS:
        assert (await all_of(node, ledger_id))[:STORED] == ["held"] * STORED
    await node.stop()


@simulated
async def test_a_directory_known_only_from_the_list_may_be_lost(world: World) -> None:
    node = await filled(world)
    await node.disk.unlink(f"{ROOT}/FORMAT")
    await empty(node.disk, LEDGERS[0])
    assert len(await accept(node)) == 2
    assert await listed(node.disk) == [*JOURNALS, LEDGERS[1]]
    await node.boot()
    assert await listed(node.disk) == [*JOURNALS, LEDGERS[1], LEDGERS[0]]
    for ledger_id in LEDGER_IDS:
        assert (await all_of(node, ledger_id))[STORED] == "held"
        assert "EntryAbsent" not in await all_of(node, ledger_id)
    await node.stop()


@simulated
async def test_swapped_disks_and_those_of_another_bookie_are_no_loss_that_can_be_accepted(world: World) -> None:
    node = await filled(world)
    first, second = (node.disk.peek(f"{path}/cookie") for path in LEDGERS)
    await node.disk.replace_file(f"{LEDGERS[0]}/cookie", second)
    await empty(node.disk, LEDGERS[1])
    with pytest.raises(ForeignDirectory, match="swapped"):
        await accept(node)
    await node.disk.replace_file(f"{LEDGERS[0]}/cookie", first)
    node.settings = settings_of(journals=(*JOURNALS[:2], "/disk4/journal"))
    await node.disk.make_directory("/disk4/journal")
    await node.disk.replace_file("/disk4/journal/cookie", first)
    with pytest.raises(ForeignDirectory, match="configured for journal"):
        await accept(node)


@simulated
async def test_a_disk_that_was_moved_is_no_loss(world: World) -> None:
    node = await filled(world)
    moved = "/disk9/ledgers"
    await node.disk.make_directory(moved)
    for name in await node.disk.list(LEDGERS[1]):
        await node.disk.replace_file(f"{moved}/{name}", node.disk.peek(f"{LEDGERS[1]}/{name}"))
        await node.disk.unlink(f"{LEDGERS[1]}/{name}")
    node.settings = settings_of(ledgers=(LEDGERS[0], moved))
    assert await accept(node) == []
    assert (await rebuilt(node, world)).batches == len(LEDGER_IDS) * STORED
    await node.boot()
    assert await listed(node.disk) == [*JOURNALS, LEDGERS[0], moved]
    await node.stop()


@simulated
async def test_j19_an_index_is_made_again_from_the_entry_logs_in_all_directories(world: World) -> None:
    node = await filled(world)
    await empty(node.disk, f"{ROOT}/index")
    await node.boot()
    for ledger_id in LEDGER_IDS:
        assert await all_of(node, ledger_id) == ["held"] * (STORED + 1) + ["EntryUnknown"]
    assert node.parts.table.limbo.index == 1
    await node.stop()
    report = await rebuilt(node, world)
    assert (report.logs, report.batches) == (len(await logs_of(node.disk)), len(LEDGER_IDS) * (STORED + 1))
    await empty(node.disk, LEDGERS[0])
    with pytest.raises(DamagedFile, match=LEDGERS[0]):
        await rebuilt(node, world)
