"""Compaction, with a power failure at every disk operation.

After any crash, each entry of the kept ledger is there, byte for byte; no row points into a missing log; and the next
start finishes the compaction without copying moved entries again. A removed log is gone for good, and a crash during
its incremental truncation leaves no part of it.
"""

from typing import NamedTuple

import pytest

from tallybook.bookie.gc.entry_log_compaction import Compaction
from tallybook.bookie.ledgers.disposition import LedgerDisposition
from tallybook.bookie.storage.entry_log.logs import Appender
from tallybook.core.errors import NoSuchLedger
from tallybook.core.ids import NO_ENTRY
from tallybook.core.limits import KIB
from tallybook.sim.bugs.catalog import planted
from tallybook.sim.deterministic import CrashFound, CrashOptions, Promises, SimDisk, enumerate_crashes
from tallybook.sim.stage.disk_bookie import DiskBookie, batch_of, tiny_settings
from tallybook.sim.stage.left_disk import bookie_on, disk_after, pieces_cut, rows_without_logs, truncated_logs

from ..sampling import SAMPLE

SETTINGS = tiny_settings(entry_log_bytes=16 * KIB, compact_below_percent=100)
FEW = CrashOptions(subsets=2, singles=2, torn_writes=1, tear_points=1)
KEPT, DROPPED = 1, 2
ENTRIES = 8


class Acked(NamedTuple):
    entry_id: int


class Removed(NamedTuple):
    log_ids: frozenset[int]


def batch(ledger_id: int, entry_id: int) -> bytes:
    return batch_of(entry_id, ledger_id=ledger_id, payload=b"x" * 900)


def filled() -> SimDisk:
    """The disk of a bookie with two ledgers, side by side in each log."""
    return disk_after(SETTINGS, ([batch(DROPPED, each), batch(KEPT, each)] for each in range(ENTRIES)))


async def node_on(disk: SimDisk) -> DiskBookie:
    return await bookie_on(disk, SETTINGS, dispositions={DROPPED: LedgerDisposition.RELEASED})


async def compact(disk: SimDisk, promises: Promises) -> None:
    """A round that drops one ledger and moves the other one, in a life in which both grow."""
    node = await node_on(disk)
    await node.boot()
    for ledger_id in (KEPT, DROPPED):
        assert (await node.add(batch(ledger_id, ENTRIES))).code == 0
    promises.add(Acked(ENTRIES))
    before = frozenset(node.parts.logs.log_ids)
    await node.bookie.collect()
    promises.add(Removed(before.difference(node.parts.logs.log_ids)))
    assert node.bookie.stats()["compacted_bytes_total"] > 0
    assert pieces_cut(disk) >= 2 * node.bookie.stats()["entry_logs_removed_total"] > 0
    assert (await node.add(batch(KEPT, ENTRIES + 1))).code == 0
    promises.add(Acked(ENTRIES + 1))
    await node.stop()
    assert node.failures == []


async def holds_all(disk: SimDisk, promises: tuple[object, ...]) -> None:
    acked = [*range(ENTRIES), *(promise.entry_id for promise in promises if isinstance(promise, Acked))]
    removed = {log_id for promise in promises if isinstance(promise, Removed) for log_id in promise.log_ids}
    node = await node_on(disk)
    await node.boot()
    assert truncated_logs(disk, node.bookie) == []
    for _ in range(2):
        assert not removed.intersection(node.parts.logs.log_ids)
        for entry_id in acked:
            answer = await node.bookie.read_batches(KEPT, entry_id, entry_id, 1)
            assert answer.batches == (batch(KEPT, entry_id),)
        assert await rows_without_logs(node) == []
        await node.bookie.collect()
    assert node.bookie.stats()["compacted_bytes_total"] <= sum(len(batch(KEPT, each)) for each in range(ENTRIES + 2))
    with pytest.raises(NoSuchLedger):
        await node.bookie.read_batches(DROPPED, 0, 0, 1)
    assert await node.parts.index.ledgers_with_rows(NO_ENTRY, 100) == [KEPT]
    await node.stop()
    assert node.failures == []


def test_e02_every_entry_is_there_whenever_the_power_is_lost_while_logs_are_copied(crashes) -> None:
    report = crashes(compact, holds_all, options=FEW, doubles=30, disk=filled())
    assert report.distinct > 350


def removes_before_the_index_is_durable(monkeypatch: pytest.MonkeyPatch) -> None:
    async def remove(self: Compaction, log_id: int) -> int:
        removed = await self._logs.remove(log_id)
        await self._logs.free_removed()
        return removed

    monkeypatch.setattr(Compaction, "remove", remove)


def does_not_sync_its_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    async def write(self: Compaction, rows, batches) -> None:
        locations = await self._logs.append(batches, appender=Appender.COMPACTION)
        moved = [row._replace(location=location) for row, location in zip(rows, locations, strict=True)]
        await self._index.apply(moved, {})

    monkeypatch.setattr(Compaction, "_write", write)


@pytest.mark.parametrize("bug", [removes_before_the_index_is_durable, does_not_sync_its_copies])
def test_a_compaction_that_skips_a_step_is_found(bug, monkeypatch: pytest.MonkeyPatch) -> None:
    bug(monkeypatch)
    with pytest.raises(CrashFound):
        enumerate_crashes(compact, holds_all, options=FEW, disk=filled(), sample=SAMPLE, max_failures=1)


def test_a_log_that_is_cut_before_it_is_gone_is_found() -> None:
    with planted("log cut before it is gone"), pytest.raises(CrashFound, match="crash states fail"):
        enumerate_crashes(compact, holds_all, options=FEW, disk=filled(), sample=SAMPLE, max_failures=1)
