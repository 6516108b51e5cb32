"""Accepting a loss, with a power failure at every disk operation.

After any crash, the bookie either still refuses to start until the loss is accepted once more, or it starts with every
ledger in limbo. No entry that may have been acked is ever ABSENT, and the remaining entries are served.
"""

import pytest

from tallybook.bookie.directories.cookie import decode_cookie
from tallybook.bookie.directories.limbo import Limbo
from tallybook.bookie.directories.storage_directories import own_directories
from tallybook.bookie.recovery import accepted_loss as accepting_loss
from tallybook.bookie.recovery.accepted_loss import accept_loss
from tallybook.core.errors import DamagedFile, EntryUnknown, ForeignDirectory
from tallybook.core.limits import KIB
from tallybook.sim.deterministic import (
    CrashFound,
    CrashOptions,
    Promises,
    SimClock,
    SimDisk,
    World,
    enumerate_crashes,
    run_seed,
)
from tallybook.sim.stage.disk_bookie import ROOT, DiskBookie, KnownMetadata, batch_of, tiny_settings

from ..support.damage import said_of

SETTINGS = tiny_settings()
FEW = CrashOptions(subsets=2, singles=2, torn_writes=1, tear_points=1)
STORED, JOURNALED, FENCED = 1, 2, 3
BELOW = 1_000
LOSSES = {
    "journal": ["journal/cookie", "journal/superblock"],
    "superblock": ["journal/superblock"],
    "journal and format file": ["journal/cookie", "journal/superblock", "FORMAT"],
    "limbo": ["limbo"],
    "limbo and journal": ["limbo", "journal/cookie"],
}


def damaged(what: str) -> SimDisk:
    """The disk of a bookie that was killed, and lost files since."""

    async def scenario(world: World) -> SimDisk:
        node = DiskBookie(SimDisk(world.rng), world.clock, None, SETTINGS)
        await node.boot()
        assert (await node.add(batch_of(0, ledger_id=STORED))).code == 0
        await node.bookie.flush()
        assert (await node.add(batch_of(0, ledger_id=JOURNALED))).code == 0
        await node.bookie.fence(FENCED, b"")
        await node.kill()
        for name in LOSSES[what]:
            await node.disk.unlink(f"{ROOT}/{name}")
            await node.disk.sync_directory(f"{ROOT}/{name}".rpartition("/")[0])
        return node.disk

    return run_seed(1, scenario).value


async def node_on(disk: SimDisk) -> DiskBookie:
    cookie = await disk.read_file(f"{ROOT}/cookie", 4 * KIB)
    assert cookie is not None
    return DiskBookie(disk, SimClock(), KnownMetadata(cookies={"b1": cookie}, id_counter=BELOW), SETTINGS)


async def accept(node: DiskBookie) -> None:
    await accept_loss(SETTINGS, node.disk, node.metadata, node.metadata.read_id_counter)


async def accepts(disk: SimDisk, promises: Promises) -> None:
    node = await node_on(disk)
    await accept(node)
    promises.add("accepted")
    await node.boot()
    assert (await node.add(batch_of(0, ledger_id=BELOW))).code == 0
    promises.add("acked")
    await node.stop()
    assert node.failures == []


async def says_absent_of_nothing(disk: SimDisk, promises: tuple[object, ...]) -> None:
    node = await node_on(disk)
    boots = []
    for _ in range(2):
        try:
            await node.boot()
        except (DamagedFile, ForeignDirectory):
            assert "accepted" not in promises
            await accept(node)
            await node.boot()
        boots.append(node.bookie.incarnation.boot)
        assert await said_of(node, STORED, 0) == "held"
        assert await said_of(node, STORED, 1) == "EntryUnknown"
        assert await said_of(node, JOURNALED, 0) in ("held", "EntryUnknown")
        assert await said_of(node, BELOW - 1, 0) == "EntryUnknown"
        for ledger_id in (STORED, JOURNALED, FENCED):
            assert (await node.add(batch_of(5, ledger_id=ledger_id))).code != 0
            with pytest.raises(EntryUnknown):
                await node.bookie.fence(ledger_id, b"")
        assert "acked" not in promises or await said_of(node, BELOW, 0) == "held"
        await node.kill()
    assert 1 < boots[0] < boots[1]


@pytest.mark.parametrize("what", list(LOSSES))
def test_a_loss_is_accepted_as_a_whole_despite_any_crash(crashes, what: str) -> None:
    report = crashes(accepts, says_absent_of_nothing, options=FEW, doubles=20, disk=damaged(what))
    assert report.distinct > 50


def test_a_loss_that_leaves_ledgers_out_of_limbo_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def forgets(disk: SimDisk, path: str, limbo: Limbo) -> None:
        """Nothing is written."""

    monkeypatch.setattr(accepting_loss, "store_limbo", forgets)
    with pytest.raises(CrashFound):
        enumerate_crashes(accepts, says_absent_of_nothing, options=FEW, disk=damaged("journal"), max_failures=1)


def test_a_part_that_is_made_again_before_the_limbo_is_durable_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    store_limbo, make_place = accepting_loss.store_limbo, accepting_loss._make_directory

    async def late(disk: SimDisk, path: str, limbo: Limbo) -> None:
        """The parts come first."""
        cookie = decode_cookie(disk.peek(f"{ROOT}/cookie"), "cookie")
        await accepting_loss._put_aside(disk, f"{ROOT}/journal", 1)
        await accepting_loss.write_format(
            disk, accepting_loss.DirectoryLayout(ROOT), {"journal": "given-up"}, own_directories(ROOT)
        )
        await make_place(disk, own_directories(ROOT).journal[0], cookie)
        await store_limbo(disk, path, limbo)

    monkeypatch.setattr(accepting_loss, "store_limbo", late)
    with pytest.raises(CrashFound):
        enumerate_crashes(accepts, says_absent_of_nothing, options=FEW, disk=damaged("journal"), max_failures=1)
