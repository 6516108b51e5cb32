"""Limbo, with a power failure at every disk operation: possibly lost entries are UNKNOWN until repaired, never ABSENT.

Tested twice: for a bookie whose journal is damaged after a boot, and for a replacement bookie on an empty directory.
"""

import pytest

from tallybook.bookie.directories.layout import replace_identity
from tallybook.bookie.ledgers.confirmed_prefix import ConfirmedPrefix
from tallybook.bookie.process import boot as boot_module
from tallybook.core.add_kind import AddKind
from tallybook.core.errors import EntryAbsent, EntryUnknown, LedgerFenced
from tallybook.core.limits import BLOCK_BYTES, KIB, SECTOR_BYTES
from tallybook.runtime.rng import SeededRng
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

SETTINGS = tiny_settings()
FEW = CrashOptions(subsets=3, singles=6, torn_writes=1, tear_points=2)
ENTRIES = 6
BELOW = 1_000
REPAIRED, OTHER, LOST = 1, 2, 3
OLD_COOKIE = b"the cookie of a directory that is gone"


def damaged() -> SimDisk:
    """The disk of a bookie that acked entries of two ledgers and crashed, with a block of its journal gone since."""

    async def scenario(world: World) -> SimDisk:
        node = DiskBookie(SimDisk(world.rng), world.clock, None, SETTINGS)
        await node.boot()
        for number in range(ENTRIES):
            for ledger_id in (REPAIRED, OTHER):
                assert (await node.add(batch_of(number, ledger_id=ledger_id))).code == 0
        await world.clock.sleep(0.2)  # a seal proves that the last block was durable
        await node.kill()
        path, at = records_of(node.disk)[-1]
        node.disk.rot.zero_sector(path, at // SECTOR_BYTES)
        return node.disk

    return run_seed(1, scenario).value


def records_of(disk: SimDisk) -> list[tuple[str, int]]:
    """Offsets of blocks with records, in the order of their numbers."""
    paths = [f"{ROOT}/journal/segment-{slot:04d}" for slot in range(SETTINGS.journal.segment_count)]
    found = [
        (int.from_bytes(data[at + 32 : at + 40], "little"), path, at)
        for path in paths
        for data in [disk.peek(path)]
        for at in range(BLOCK_BYTES, len(data), BLOCK_BYTES)
        if data[at : at + 4] == b"TJBK" and any(data[at + 44 : at + 48])
    ]
    return [(path, at) for _, path, at in sorted(found)]


async def said_of(node: DiskBookie, ledger_id: int, entry_id: int) -> str:
    try:
        answer = await node.bookie.read_batches(ledger_id, entry_id, entry_id, 1)
    except EntryAbsent:
        return "absent"
    except EntryUnknown:
        return "unknown"
    assert answer.batches == (batch_of(entry_id, ledger_id=ledger_id),)
    return "held"


async def repair(disk: SimDisk, promises: Promises) -> None:
    """Boot over the damage, which puts every ledger in limbo; repair one of them."""
    cookie = await disk.read_file(f"{ROOT}/cookie", 4 * KIB)
    assert cookie is not None
    metadata = KnownMetadata(
        cookies={"b1": cookie}, id_counter=BELOW, confirmed_prefixes={REPAIRED: ConfirmedPrefix(ENTRIES, closed=True)}
    )
    node = DiskBookie(disk, SimClock(), metadata, SETTINGS)
    await node.boot()
    promises.add("booted")
    for number in range(ENTRIES):
        assert (await node.add(batch_of(number), kind=AddKind.RECOVERY)).code == 0
    await node.bookie.end_limbo(REPAIRED)
    promises.add("repaired")
    await node.stop()
    assert node.failures == []


async def doubts(disk: SimDisk, promises: tuple[object, ...]) -> None:
    """Twice the same: nothing is said to be absent unless it was repaired."""
    cookie = await disk.read_file(f"{ROOT}/cookie", 4 * KIB)
    assert cookie is not None
    node = DiskBookie(disk, SimClock(), KnownMetadata(cookies={"b1": cookie}, id_counter=BELOW), SETTINGS)
    for _ in range(2):
        await node.boot()
        others = [await said_of(node, OTHER, number) for number in range(ENTRIES + 1)]
        assert "unknown" in others[:ENTRIES], "nothing is missing: the damage did none"
        assert others[ENTRIES] == "unknown"
        assert "absent" not in others
        assert await said_of(node, LOST, 0) == "unknown", "all of a ledger may be gone, its row as well"
        ours = [await said_of(node, REPAIRED, number) for number in range(ENTRIES + 1)]
        if "repaired" in promises:
            assert ours == ["held"] * ENTRIES + ["absent"]
            assert (await node.add(batch_of(ENTRIES))).code == LedgerFenced.wire_code
        else:
            assert "absent" not in ours[:ENTRIES]
        assert (await node.add(batch_of(ENTRIES, ledger_id=OTHER))).code in (
            EntryUnknown.wire_code,
            LedgerFenced.wire_code,
        )
        await node.kill()


def test_j16_limbo_after_damage_in_the_journal_outlasts_every_crash_until_it_was_repaired(crashes) -> None:
    report = crashes(repair, doubts, options=FEW, doubles=60, disk=damaged())
    assert report.distinct > 150


async def replace(disk: SimDisk, promises: Promises) -> None:
    """Take the place of a bookie that is gone, and serve a ledger made since."""

    class Registry(KnownMetadata):
        async def write_cookie(self, bookie_id: str, cookie: bytes, *, replace: bool = False) -> None:
            await super().write_cookie(bookie_id, cookie, replace=replace)
            promises.add(cookie)

    metadata = Registry(cookies={"b1": OLD_COOKIE}, id_counter=BELOW)
    promises.add(OLD_COOKIE)
    await replace_identity(SETTINGS, disk, metadata, SeededRng(1), metadata.read_id_counter)
    promises.add("replaced")
    node = DiskBookie(disk, SimClock(), metadata, SETTINGS)
    await node.boot()
    promises.add("enrolled")
    assert (await node.add(batch_of(0, ledger_id=BELOW))).code == 0
    promises.add("acked")
    await node.stop()


async def knows_nothing_of_old_ledgers(disk: SimDisk, promises: tuple[object, ...]) -> None:
    cookie = [promise for promise in promises if isinstance(promise, bytes)][-1]
    metadata = KnownMetadata(
        cookies={"b1": await disk.read_file(f"{ROOT}/cookie", 4 * KIB) or cookie}, id_counter=BELOW
    )
    if metadata.cookies["b1"] == OLD_COOKIE:
        await replace_identity(SETTINGS, disk, metadata, SeededRng(2), metadata.read_id_counter)
    node = DiskBookie(disk, SimClock(), metadata, SETTINGS)
    for registers in (False, True, False):
        await node.boot(registers=registers)
        for ledger_id in (REPAIRED, BELOW - 1):
            assert await said_of(node, ledger_id, 0) == "unknown"
            code = (await node.add(batch_of(1, ledger_id=ledger_id))).code
            assert code in (EntryUnknown.wire_code, LedgerFenced.wire_code)
        assert "acked" not in promises or await said_of(node, BELOW, 0) == "held"
        assert not registers or await said_of(node, BELOW, 1) == "absent"
        await node.kill()


def test_f09_a_replacement_bookie_answers_unknown_for_older_ledgers_after_any_crash_at_its_start(
    crashes,
) -> None:
    report = crashes(replace, knows_nothing_of_old_ledgers, options=FEW, doubles=60)
    assert report.distinct > 100


def test_a_limbo_that_is_noted_only_in_memory_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def forgets(disk: SimDisk, path: str, limbo: object) -> None:
        """Nothing is written."""

    monkeypatch.setattr(boot_module, "store_limbo", forgets)
    with pytest.raises(CrashFound):
        enumerate_crashes(repair, doubts, options=FEW, disk=damaged(), max_failures=1)
