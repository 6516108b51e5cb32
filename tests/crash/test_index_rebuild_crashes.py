"""Rebuilding a lost index, with a power failure at every disk operation.

After any crash, the next start succeeds without an operator. Each batch in the entry logs is there; no entry is ABSENT
and no ordinary add is accepted until the ledger was repaired; and the garbage collector drops deleted ledgers again.
"""

from dataclasses import replace

import pytest

from tallybook.bookie.directories.index_home import IndexHome
from tallybook.bookie.directories.limbo import Limbo, load_limbo
from tallybook.bookie.ledgers.confirmed_prefix import ConfirmedPrefix
from tallybook.bookie.ledgers.disposition import LedgerDisposition
from tallybook.bookie.recovery import lost_index
from tallybook.core.add_kind import AddKind
from tallybook.core.errors import EntryUnknown, LedgerFenced, NoSuchLedger
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

SETTINGS = tiny_settings(entry_log_bytes=8 * KIB)
FEW = CrashOptions(subsets=2, singles=3, torn_writes=1, tear_points=1)
REPAIRED, OTHER, DELETED, ONLY_JOURNALED = 1, 2, 3, 4
ENTRIES = 3
BELOW = 1_000
SETTLED = {REPAIRED: ConfirmedPrefix(ENTRIES - 1, closed=True)}


def without_index() -> SimDisk:
    """The disk of a bookie that was killed, of which the index is gone: three ledgers in logs, one in the journal."""

    async def scenario(world: World) -> SimDisk:
        node = DiskBookie(SimDisk(world.rng), world.clock, None, SETTINGS)
        await node.boot()
        for entry_id in range(ENTRIES):
            for ledger_id in (REPAIRED, OTHER, DELETED):
                assert (await node.add(batch_of(entry_id, ledger_id=ledger_id))).code == 0
            await node.bookie.flush()
        await node.bookie.fence(OTHER, b"")
        await node.bookie.delete_ledger(DELETED)
        await node.bookie.flush()
        assert (await node.add(batch_of(0, ledger_id=ONLY_JOURNALED))).code == 0
        await node.kill()
        for name in await node.disk.list(f"{ROOT}/index"):
            await node.disk.unlink(f"{ROOT}/index/{name}")
        await node.disk.sync_directory(f"{ROOT}/index")
        return node.disk

    return run_seed(1, scenario).value


async def node_on(disk: SimDisk) -> DiskBookie:
    cookie = await disk.read_file(f"{ROOT}/cookie", 4 * KIB)
    assert cookie is not None
    known = KnownMetadata(
        cookies={"b1": cookie},
        id_counter=BELOW,
        dispositions={DELETED: LedgerDisposition.DELETED},
        confirmed_prefixes=SETTLED,
    )
    return DiskBookie(disk, SimClock(), known, SETTINGS)


async def live_on(disk: SimDisk, promises: Promises) -> None:
    """Rebuild the index, repair one ledger, and restart twice, so that unused files are removed."""
    node = await node_on(disk)
    await node.boot()
    promises.add("booted")
    await node.bookie.end_limbo(REPAIRED)
    promises.add("repaired")
    await node.stop()
    await node.boot()
    assert (await node.add(batch_of(0, ledger_id=BELOW))).code == 0
    promises.add("acked")
    await node.stop()
    assert node.failures == []


async def knows_what_it_cannot_know(disk: SimDisk, promises: tuple[object, ...]) -> None:
    node = await node_on(disk)
    for _ in range(2):
        await node.boot()
        for ledger_id in (REPAIRED, OTHER):
            said = [await said_of(node, ledger_id, entry_id) for entry_id in range(ENTRIES + 1)]
            absent = "repaired" in promises and ledger_id == REPAIRED
            assert said[:ENTRIES] == ["held"] * ENTRIES
            assert said[ENTRIES] == "EntryAbsent" if absent else said[ENTRIES] in ("EntryAbsent", "EntryUnknown")
            assert absent or ledger_id == REPAIRED or said[ENTRIES] == "EntryUnknown"
            refused = LedgerFenced if absent else EntryUnknown
            code = (await node.add(batch_of(ENTRIES, ledger_id=ledger_id))).code
            assert code in (refused.wire_code, LedgerFenced.wire_code)
        assert await said_of(node, ONLY_JOURNALED, 0) == "held"
        assert await said_of(node, ONLY_JOURNALED, 1) == "EntryUnknown"
        assert await said_of(node, BELOW - 1, 0) == "EntryUnknown", "all of a ledger may be gone, its row as well"
        assert await said_of(node, DELETED, 0) in ("held", "NoSuchLedger")
        for _ in range(2):  # the settings have no delay
            await node.bookie.collect()
        assert await said_of(node, DELETED, 0) == "NoSuchLedger"
        assert (await node.add(batch_of(9, ledger_id=DELETED), kind=AddKind.RECOVERY)).code == NoSuchLedger.wire_code
        assert await said_of(node, BELOW, 0) == "held" if "acked" in promises else True
        await node.kill()


def test_j19_a_lost_index_is_rebuilt_despite_any_crash(crashes) -> None:
    report = crashes(live_on, knows_what_it_cannot_know, options=FEW, doubles=40, disk=without_index())
    assert report.distinct > 150


def test_a_new_index_that_is_put_in_use_before_it_is_complete_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    make, write_cookie, store_limbo = IndexHome.make, IndexHome.write_cookie, lost_index.store_limbo

    async def too_early(self: IndexHome, number: int) -> object:
        """The marker is written when the making begins."""
        index = await make(self, number)
        await write_cookie(self, number)
        marker = await load_limbo(self._disk, f"{ROOT}/limbo")
        await store_limbo(self._disk, f"{ROOT}/limbo", replace(marker.again(BELOW), index=number))
        return index

    monkeypatch.setattr(IndexHome, "make", too_early)
    with pytest.raises(CrashFound):
        enumerate_crashes(live_on, knows_what_it_cannot_know, options=FEW, disk=without_index(), max_failures=1)


def test_a_new_index_without_a_limbo_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    store_limbo = lost_index.store_limbo

    async def nothing_lost(disk: SimDisk, path: str, limbo: Limbo) -> None:
        await store_limbo(disk, path, replace(limbo, events=0))

    monkeypatch.setattr(lost_index, "store_limbo", nothing_lost)
    with pytest.raises(CrashFound):
        enumerate_crashes(live_on, knows_what_it_cannot_know, options=FEW, disk=without_index(), max_failures=1)
