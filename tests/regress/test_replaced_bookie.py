"""A replacement bookie under the id of its predecessor: entries acked by the latter are UNKNOWN, never ABSENT."""

import pytest

from tallybook.bookie.directories.layout import replace_identity
from tallybook.bookie.directories.limbo import Limbo, load_limbo, store_limbo
from tallybook.core.errors import BookieUnavailable, DiskFailed, EntryAbsent, EntryUnknown, LedgerFenced
from tallybook.runtime.rng import SeededRng
from tallybook.sim.deterministic import SimDisk, World
from tallybook.sim.stage.disk_bookie import DiskBookie, KnownMetadata, batch_of, tiny_settings

from ..simulated import simulated


async def predecessor(world: World) -> KnownMetadata:
    """A bookie that acked entry 0 of ledger 1 and is gone, with its disk. Its id stays in the ledger's metadata."""
    node = DiskBookie(SimDisk(SeededRng(1)), world.clock, KnownMetadata(id_counter=50))
    await node.boot()
    assert (await node.add(batch_of(0))).code == 0
    await node.stop()
    return node.metadata


async def replaced(world: World) -> tuple[DiskBookie, KnownMetadata]:
    """A replacement that never booted."""
    metadata = await predecessor(world)
    node = DiskBookie(SimDisk(SeededRng(2)), world.clock, metadata)
    await replace_identity(tiny_settings(), node.disk, metadata, SeededRng(3), metadata.read_id_counter)
    return node, metadata


async def check_knows_nothing_of_old_ledgers(node: DiskBookie, id_counter: int) -> None:
    for ledger_id in (1, id_counter - 1):
        with pytest.raises(EntryUnknown):
            await node.bookie.read_batches(ledger_id, 0, 0, 1)
        with pytest.raises(EntryUnknown):
            await node.bookie.recovery_read(ledger_id, 0, b"")
        with pytest.raises(EntryUnknown):
            await node.bookie.fence(ledger_id, b"")
        assert (await node.add(batch_of(1, ledger_id=ledger_id))).code == LedgerFenced.wire_code
    with pytest.raises(EntryAbsent):
        await node.bookie.read_batches(id_counter, 0, 0, 1)
    assert (await node.add(batch_of(0, ledger_id=id_counter))).code == 0


@simulated
async def test_a_replaced_bookie_never_says_absent_of_what_its_predecessor_may_have_acked(world: World) -> None:
    node, _ = await replaced(world)
    await node.boot()
    await check_knows_nothing_of_old_ledgers(node, 50)
    await node.lose_power()
    await node.boot()
    with pytest.raises(EntryUnknown):
        await node.bookie.read_batches(1, 0, 0, 1)
    await node.stop()


@simulated
async def test_ledgers_made_between_the_replacement_and_the_first_boot_count_as_lost_too(world: World) -> None:
    """The predecessor may have run on until then."""
    node, metadata = await replaced(world)
    metadata.id_counter = 70
    await node.boot()
    await check_knows_nothing_of_old_ledgers(node, 70)
    await node.stop()


@pytest.mark.parametrize("nth", range(1, 8))
@simulated
async def test_a_start_that_finishes_a_replacement_remembers_that_it_is_one(world: World, *, nth: int) -> None:
    """The replacement is cut off at its nth rename: one for each file that it writes."""
    metadata = await predecessor(world)
    node = DiskBookie(SimDisk(SeededRng(2)), world.clock, metadata)
    old_cookie = metadata.cookies["b1"]
    node.disk.fail("rename", nth=nth)
    with pytest.raises(DiskFailed):
        await replace_identity(tiny_settings(), node.disk, metadata, SeededRng(3), metadata.read_id_counter)
    if metadata.cookies["b1"] == old_cookie:
        await replace_identity(tiny_settings(), node.disk, metadata, SeededRng(3), metadata.read_id_counter)
    await node.kill()
    await node.boot()
    await check_knows_nothing_of_old_ledgers(node, 50)
    await node.stop()


@simulated
async def test_ledgers_made_while_the_predecessor_keeps_the_replacement_from_enrolling_count_as_lost(world):
    node, metadata = await replaced(world)
    for id_counter in (70, 90):
        await node.boot(registers=False)
        # UNKNOWN, regardless of what the predecessor had of them.
        for ledger_id in (1, 69, 10_000):
            with pytest.raises(EntryUnknown):
                await node.bookie.read_batches(ledger_id, 0, 0, 1)
        assert node.bookie.read_only
        with pytest.raises(BookieUnavailable):
            await node.bookie.end_limbo(1)
        await node.stop()
        metadata.id_counter = id_counter
    await node.boot(registers=False)
    metadata.id_counter = 110
    await node.bookie.registered()
    assert not node.bookie.read_only
    await check_knows_nothing_of_old_ledgers(node, 110)
    await node.stop()
    metadata.id_counter = 200
    await node.boot()
    with pytest.raises(EntryUnknown):
        await node.bookie.read_batches(109, 0, 0, 1)
    with pytest.raises(EntryAbsent):
        await node.bookie.read_batches(111, 0, 0, 1)
    await node.stop()


@simulated
async def test_a_ledger_that_is_asked_for_before_the_enrolment_and_made_after_it_is_like_any_other(world):
    node, _ = await replaced(world)
    await node.boot(registers=False)
    with pytest.raises(EntryUnknown):
        await node.bookie.read_batches(60, 0, 0, 1)
    with pytest.raises(EntryUnknown):
        await node.bookie.fence(61, b"")
    await node.bookie.flush()
    await node.bookie.registered()
    assert (await node.add(batch_of(0, ledger_id=60))).code == 0
    await node.lose_power()
    await node.boot()
    assert (await node.bookie.read_batches(60, 0, 0, 1)).batches == (batch_of(0, ledger_id=60),)
    with pytest.raises(EntryAbsent):
        await node.bookie.read_batches(62, 0, 0, 1)
    await node.stop()


@simulated
async def test_a_replacement_whose_enrolment_is_not_noted_is_in_limbo_as_before(world: World) -> None:
    node, metadata = await replaced(world)
    await node.boot(registers=False)
    metadata.id_counter = 80
    node.disk.fail("rename", "limbo")
    with pytest.raises(DiskFailed):
        await node.bookie.registered()
    with pytest.raises(EntryUnknown):
        await node.bookie.read_batches(10_000, 0, 0, 1)
    await node.kill()
    await node.boot()
    await check_knows_nothing_of_old_ledgers(node, 80)
    await node.stop()


@simulated
async def test_a_marker_that_does_not_tell_of_an_enrolment_is_that_of_an_enrolled_bookie(world: World) -> None:
    disk = SimDisk(world.rng)
    await disk.make_directory("/data")
    await store_limbo(disk, "/data/limbo", Limbo(1, 50))
    assert b"enrolled" not in (await disk.read_file("/data/limbo", 4096) or b"")
    assert await load_limbo(disk, "/data/limbo") == Limbo(1, 50)
    await store_limbo(disk, "/data/limbo", Limbo(1, 50, awaits_registration=True))
    assert await load_limbo(disk, "/data/limbo") == Limbo(1, 50, awaits_registration=True)
