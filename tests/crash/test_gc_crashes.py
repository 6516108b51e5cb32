"""Dropping ledgers and removing entry logs, with a power failure at every disk operation.

After any crash, a kept ledger has all its entries, a dropped one is gone for ever, and one that was being dropped is
either unchanged or gone as a whole. No acked entry is ever ABSENT. No row points into a missing log, and the next start
finishes the work of this one.
"""

import asyncio
from typing import NamedTuple

import pytest

from tallybook.bookie.gc.entry_log_compaction import Compaction
from tallybook.bookie.ledgers.disposition import LedgerDisposition
from tallybook.core.add_kind import AddKind
from tallybook.core.errors import NoSuchLedger
from tallybook.core.ids import NO_ENTRY
from tallybook.core.limits import KIB
from tallybook.sim.deterministic import CrashFound, CrashOptions, Promises, SimClock, SimDisk, enumerate_crashes
from tallybook.sim.memory_bookie.index import MemoryIndex
from tallybook.sim.stage.disk_bookie import DiskBookie, batch_of, tiny_settings
from tallybook.sim.stage.left_disk import bookie_on, disk_after, pieces_cut, rows_without_logs, truncated_logs

from ..sampling import SAMPLE

SETTINGS = tiny_settings(entry_log_bytes=4 * KIB)
FEW = CrashOptions(subsets=1, singles=2, torn_writes=1, tear_points=1)
KEPT, RELEASED, DELETED = 1, 2, 3
ENTRIES = 2
PLENTY_BYTES = 1 << 30
ROOM_FOR_ROWS_BYTES = 1 * KIB
"""Enough space for a tombstone in the index, and too little for a range of an entry log."""
FATES = {RELEASED: LedgerDisposition.RELEASED, DELETED: LedgerDisposition.DELETED}


class Acked(NamedTuple):
    ledger_id: int
    entry_id: int


class Gone(NamedTuple):
    ledger_id: int


def batch(ledger_id: int, entry_id: int) -> bytes:
    return batch_of(entry_id, ledger_id=ledger_id, payload=bytes(900))


def filled() -> SimDisk:
    """The disk of a bookie with three ledgers, each alone in a log and together in others."""
    groups = [[batch(each, entry_id)] for each in (RELEASED, DELETED, KEPT) for entry_id in range(ENTRIES)]
    return disk_after(SETTINGS, groups)


async def node_on(disk: SimDisk) -> DiskBookie:
    return await bookie_on(disk, SETTINGS, dispositions=FATES)


async def collect(disk: SimDisk, promises: Promises) -> None:
    """Two rounds, of which the second one drops the deleted ledger; some of what is dropped was never checkpointed."""
    node = await node_on(disk)
    await node.boot()
    for ledger_id in (KEPT, RELEASED, DELETED):
        assert (await node.add(batch(ledger_id, ENTRIES))).code == 0
        promises.add(Acked(ledger_id, ENTRIES))
    for ledger_id in (RELEASED, DELETED):
        await node.bookie.collect()
        promises.add(Gone(ledger_id))
    assert node.bookie.stats()["ledgers_dropped_total"] == 2
    assert node.bookie.stats()["entry_logs_removed_total"] >= 2
    assert pieces_cut(disk) >= node.bookie.stats()["entry_logs_removed_total"]
    await node.stop()
    assert node.failures == []


async def holds_or_is_gone(disk: SimDisk, promises: tuple[object, ...]) -> None:
    acked = [Acked(ledger_id, entry_id) for ledger_id in (KEPT, RELEASED, DELETED) for entry_id in range(ENTRIES)]
    acked += [promise for promise in promises if isinstance(promise, Acked)]
    gone = {promise.ledger_id for promise in promises if isinstance(promise, Gone)}
    disk.capacity_bytes = PLENTY_BYTES
    node = await node_on(disk)
    await node.boot()
    assert truncated_logs(disk, node.bookie) == []
    for ledger_id in (KEPT, RELEASED, DELETED):
        held = {await is_held(node, each.ledger_id, each.entry_id) for each in acked if each.ledger_id == ledger_id}
        assert len(held) == 1, f"a part of ledger {ledger_id} is gone"
        assert held == {True} or ledger_id != KEPT
        assert held == {False} or ledger_id not in gone
    assert await rows_without_logs(node) == []
    await ends_what_was_begun(node)


async def is_held(node: DiskBookie, ledger_id: int, entry_id: int) -> bool:
    """Whether the entry is there; if not, its ledger must not exist."""
    try:
        answer = await node.bookie.read_batches(ledger_id, entry_id, entry_id, 1)
    except NoSuchLedger:
        return False
    assert answer.batches == (batch(ledger_id, entry_id),)
    return True


async def ends_what_was_begun(node: DiskBookie) -> None:
    for _ in range(2):
        await node.bookie.collect()
    index = node.parts.index
    assert await index.ledgers_with_rows(NO_ENTRY, 100) == [KEPT]
    for ledger_id in FATES:
        assert not await is_held(node, ledger_id, 0)
        assert (await node.add(batch(ledger_id, 50), kind=AddKind.RECOVERY)).code == NoSuchLedger.wire_code
    for entry_id in range(ENTRIES):
        assert await is_held(node, KEPT, entry_id)
    await node.stop()
    assert node.failures == []


def test_a_dropped_ledger_is_there_or_gone_and_the_others_are_there_after_any_crash(crashes) -> None:
    report = crashes(collect, holds_or_is_gone, options=FEW, doubles=30, disk=filled())
    assert report.distinct > 200


async def collect_while_a_checkpoint_waits_for_room(disk: SimDisk, promises: Promises) -> None:
    """Dropped ledgers leave a checkpoint that had no space for them; kept ones do not."""
    node = await node_on(disk)
    await node.boot()
    for ledger_id in (KEPT, RELEASED):
        assert (await node.add(batch(ledger_id, ENTRIES))).code == 0
        promises.add(Acked(ledger_id, ENTRIES))
    disk.capacity_bytes = disk.state.used_bytes() + ROOM_FOR_ROWS_BYTES
    flushing = asyncio.ensure_future(node.bookie.flush())
    await SimClock().sleep(0.5)
    cache = node.parts.cache
    assert cache.flush_waits
    assert cache.flushes(RELEASED)
    await node.bookie.collect()
    promises.add(Gone(RELEASED))
    assert not cache.flushes(RELEASED)
    assert cache.flushes(KEPT)
    disk.capacity_bytes = PLENTY_BYTES
    await flushing
    await node.stop()
    assert node.failures == []


def test_e04_what_a_checkpoint_that_waits_for_space_drops_is_gone_and_the_rest_is_there_after_any_crash(
    crashes,
) -> None:
    work = collect_while_a_checkpoint_waits_for_room
    report = crashes(work, holds_or_is_gone, options=FEW, doubles=20, disk=filled())
    assert report.distinct > 200


def test_a_log_that_goes_before_its_rows_are_durably_gone_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Compaction.remove

    async def not_now(self: MemoryIndex) -> None:
        """Do nothing: pending changes stay pending."""

    async def without_sync(self: Compaction, log_id: int) -> int:
        with monkeypatch.context() as patched:
            patched.setattr(MemoryIndex, "sync", not_now)
            return await right(self, log_id)

    monkeypatch.setattr(Compaction, "remove", without_sync)
    with pytest.raises(CrashFound, match="crash states fail"):
        enumerate_crashes(collect, holds_or_is_gone, disk=filled(), options=FEW, sample=SAMPLE, max_failures=1)
