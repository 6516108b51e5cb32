"""A lost file keeps a bookie down until its loss is accepted; then it serves the rest, and answers truthfully."""

import pytest

from tallybook.bookie.directories.cookie import Cookie
from tallybook.bookie.directories.limbo import load_limbo
from tallybook.bookie.ledgers.confirmed_prefix import ConfirmedPrefix
from tallybook.core.add_kind import AddKind
from tallybook.core.answers import Incarnation
from tallybook.core.errors import (
    DamagedFile,
    DirectoryInUse,
    EntryUnknown,
    ForeignDirectory,
    MetadataUnavailable,
    TallybookError,
)
from tallybook.core.limits import BLOCK_BYTES
from tallybook.sim.deterministic import SimDisk, World
from tallybook.sim.stage.disk_bookie import ROOT, DiskBookie, KnownMetadata, batch_of

from ..simulated import simulated
from ..support.damage import said_of
from .loss_parts import accept, empty, everything_in

ENTRIES = 4
BELOW = 50
SETTLED = {1: ConfirmedPrefix(ENTRIES - 1, closed=True)}
LOSSES = [
    "journal", "journal/cookie", "journal/superblock", "journal/superblock damaged", "FORMAT", "FORMAT damaged",
    "limbo", "limbo damaged", "ledgers", "ledgers/cookie damaged", "journal FORMAT", "journal limbo", "limbo FORMAT",
    "journal ledgers limbo FORMAT", "journal index", "limbo index", "ledgers index",
]  # fmt: skip


async def filled(world: World) -> DiskBookie:
    """A bookie that was killed: entries 0 to 2 of ledger 1 in entry logs, entry 3 in the journal only."""
    node = DiskBookie(SimDisk(world.rng), world.clock, KnownMetadata(id_counter=BELOW, confirmed_prefixes=SETTLED))
    await node.boot()
    for entry_id in range(ENTRIES):
        if entry_id == ENTRIES - 1:
            await node.bookie.flush()
        assert (await node.add(batch_of(entry_id))).code == 0
    await node.bookie.fence(2, b"")
    await node.kill()
    return node


async def lose(disk: SimDisk, what: str) -> None:
    if what.endswith(" damaged"):
        path = f"{ROOT}/{what.removesuffix(' damaged')}"
        size = len(disk.peek(path))
        for offset in range(0, size, 40 if size < BLOCK_BYTES else BLOCK_BYTES):
            disk.rot.flip_bit(path, offset, 1)
        return
    for name in what.split():
        path = f"{ROOT}/{name}"
        await (empty(disk, path) if path in disk.state.directories else disk.unlink(path))


@pytest.mark.parametrize("what", LOSSES)
@simulated
async def test_after_a_loss_was_accepted_the_bookie_serves_what_is_left_and_says_absent_of_nothing(
    world: World, *, what: str
) -> None:
    node = await filled(world)
    await lose(node.disk, what)
    told = "bookie init --accept-loss" if what in ("journal", "ledgers") else None
    with pytest.raises((DamagedFile, ForeignDirectory), match=told):
        await node.boot()
    assert await accept(node)
    first = await node.boot()
    stored = "EntryUnknown" if "ledgers" in what and "damaged" not in what else "held"
    journaled = "EntryUnknown" if "journal" in what else "held"
    said = [await said_of(node, 1, entry_id) for entry_id in range(ENTRIES + 1)]
    assert said == [stored] * (ENTRIES - 1) + [journaled, "EntryUnknown"]
    assert await said_of(node, BELOW - 1, 0) == "EntryUnknown"
    for ledger_id in (1, 2, BELOW - 1):
        assert (await node.add(batch_of(9, ledger_id=ledger_id))).code != 0, "a fence may be lost"
        with pytest.raises(EntryUnknown):
            await node.bookie.fence(ledger_id, b"")
    assert (await node.add(batch_of(0, ledger_id=BELOW))).code == 0
    assert await said_of(node, BELOW, 1) == "EntryAbsent"
    for entry_id in range(ENTRIES):
        assert (await node.add(batch_of(entry_id), kind=AddKind.RECOVERY)).code == 0
    await node.bookie.end_limbo(1)
    assert await said_of(node, 1, ENTRIES) == "EntryAbsent"
    await node.lose_power()
    second = await node.boot()
    assert [await said_of(node, 1, entry_id) for entry_id in range(ENTRIES + 1)] == ["held"] * ENTRIES + ["EntryAbsent"]
    assert await said_of(node, BELOW - 1, 0) == "EntryUnknown"
    assert await said_of(node, BELOW, 0) == "held"
    later: list[Incarnation] = [first.incarnation, second.incarnation]
    assert 1 < later[0].boot < later[1].boot, "no life is taken for an earlier one"
    await node.stop()
    before = everything_in(node.disk)
    assert await accept(node) == []
    assert everything_in(node.disk) == before


@pytest.mark.parametrize("what", ["journal", "journal limbo", "journal FORMAT"])
@simulated
async def test_a_journal_that_is_lost_more_than_once_never_counts_a_life_twice(world: World, *, what: str) -> None:
    node = await filled(world)
    boots = []
    for _ in range(3):
        await lose(node.disk, what)
        await accept(node)
        for _ in range(2):
            boots.append((await node.boot()).incarnation.boot)
            await node.kill()
    assert boots == sorted(set(boots))


@simulated
async def test_what_is_left_of_a_journal_that_cannot_be_read_is_put_aside(world: World) -> None:
    node = await filled(world)
    segment = node.disk.peek(f"{ROOT}/journal/segment-0000")
    await lose(node.disk, "journal/superblock damaged")
    assert "neither of its two slots" in (await accept(node))[0]
    await node.boot()
    assert node.disk.peek(f"{ROOT}/journal/lost-1-segment-0000") == segment
    assert f"{ROOT}/journal/lost-1-superblock" in everything_in(node.disk)
    await node.stop()


@simulated
async def test_a_journal_that_never_was_is_not_lost(world: World) -> None:
    node = DiskBookie(SimDisk(world.rng), world.clock, KnownMetadata(id_counter=BELOW, confirmed_prefixes=SETTLED))
    node.disk.fail("create", "superblock")
    with pytest.raises(TallybookError):
        await node.boot()
    node.disk.faults.clear()
    assert await accept(node) == []
    assert (await node.boot()).incarnation.boot == 1
    assert (await load_limbo(node.disk, f"{ROOT}/limbo")).events == 0
    await node.stop()


@pytest.mark.parametrize("what", ["cookie", "cookie damaged", "another in journal", "another in ledgers", "metadata"])
@simulated
async def test_j28_a_wrong_identity_is_refused_with_any_accepted_loss(world: World, *, what: str) -> None:
    node = await filled(world)
    await lose(node.disk, "limbo")
    other = Cookie("b1", "another-uuid", "cluster-a").encode()
    match what:
        case "another in journal" | "another in ledgers":
            await node.disk.replace_file(f"{ROOT}/{what.rsplit(maxsplit=1)[-1]}/cookie", other)
        case "metadata":
            node.metadata.cookies["b1"] = other
        case _:
            await lose(node.disk, what)
    before = everything_in(node.disk)
    with pytest.raises((ForeignDirectory, DamagedFile)):
        await accept(node)
    assert everything_in(node.disk) == before


@simulated
async def test_nothing_is_accepted_while_the_bookie_runs_or_the_metadata_do_not_answer(world: World) -> None:
    class Away(KnownMetadata):
        async def read_id_counter(self) -> int:
            await world.clock.sleep(3_600)
            return BELOW

    node = await filled(world)
    await node.boot()
    with pytest.raises(DirectoryInUse):
        await accept(node)
    await node.kill()
    await lose(node.disk, "limbo")
    before = everything_in(node.disk)
    node.metadata = Away(cookies=node.metadata.cookies)
    with pytest.raises(MetadataUnavailable, match="id counter cannot be read"):
        await accept(node)
    assert everything_in(node.disk) == before


@pytest.mark.parametrize("then", ["a life that stores nothing", "the note of the loss is lost"])
@simulated
async def test_ids_of_lost_logs_are_not_used_again(world: World, *, then: str) -> None:
    node = await filled(world)
    await node.boot()
    await node.stop()
    for what in ("ledgers", "FORMAT") if "lost" in then else ("ledgers",):
        await lose(node.disk, what)
        await accept(node)
        await node.boot()
        await node.stop()
    await node.boot()
    assert (await node.add(batch_of(0, ledger_id=BELOW))).code == 0
    await node.bookie.flush()
    assert min(node.parts.logs.log_ids) > 1 << 32
    assert await said_of(node, 1, 0) == "EntryUnknown"
    await node.stop()


@simulated
async def test_after_its_limbo_marker_was_lost_a_bookie_counts_as_one_that_may_have_replaced_another(
    world: World,
) -> None:
    node = await filled(world)
    await lose(node.disk, "limbo")
    await accept(node)
    await node.boot(registers=False)
    assert node.bookie.read_only
    assert await said_of(node, BELOW, 0) == "EntryUnknown"
    node.metadata.id_counter = BELOW + 10
    await node.bookie.registered()
    assert await said_of(node, BELOW, 0) == "EntryUnknown"
    assert await said_of(node, BELOW + 10, 0) == "EntryAbsent"
    await node.stop()


@pytest.mark.parametrize("made_again", [False, True])
@simulated
async def test_what_was_repaired_before_the_limbo_marker_was_lost_counts_as_repaired_no_more(
    world: World, *, made_again: bool
) -> None:
    node = await filled(world)
    if made_again:
        await lose(node.disk, "index")
        await node.boot()
        await node.bookie.end_limbo(1)
        await node.stop()
    for _ in range(3):
        await lose(node.disk, "limbo")
        await accept(node)
        await node.boot()
        assert [await said_of(node, 1, entry_id) for entry_id in (0, ENTRIES)] == ["held", "EntryUnknown"]
        await node.bookie.end_limbo(1)
        assert await said_of(node, 1, ENTRIES) == "EntryAbsent"
        await node.stop()
