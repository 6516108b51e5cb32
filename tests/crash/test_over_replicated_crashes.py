"""Dropping over-replicated copies, with a power failure at every disk operation.

After any crash, no writer is ever accepted for a ledger with a dropped copy, the neighbour has all its entries, the
remaining copies are correct, no row points into a missing log, the next start finishes the work of this one, and a
repair can restore copies.
"""

from typing import NamedTuple

import pytest

from tallybook.bookie.ledgers.confirmed_prefix import ConfirmedPrefix
from tallybook.bookie.ledgers.disposition import LedgerDisposition
from tallybook.bookie.write.fencing import LedgerFencing
from tallybook.core.add_kind import AddKind
from tallybook.core.errors import EntryAbsent, LedgerFenced
from tallybook.core.ids import NO_ENTRY
from tallybook.core.limits import KIB
from tallybook.sim.deterministic import CrashFound, CrashOptions, Promises, SimClock, SimDisk, enumerate_crashes
from tallybook.sim.stage.disk_bookie import DiskBookie, batch_of, tiny_settings
from tallybook.sim.stage.left_disk import bookie_on, disk_after, pieces_cut, rows_without_logs, truncated_logs

DELAY_S = 20
SETTINGS = tiny_settings(entry_log_bytes=4 * KIB, unnamed_delay_s=DELAY_S)
FEW = CrashOptions(subsets=1, singles=2, torn_writes=1, tear_points=1)
KEPT, LEFT = 1, 2
ENTRIES = 3


class Acked(NamedTuple):
    entry_id: int


class Gone(NamedTuple):
    ledger_id: int


def batch(ledger_id: int, entry_id: int) -> bytes:
    return batch_of(entry_id, ledger_id=ledger_id, payload=bytes(900))


def filled() -> SimDisk:
    """The disk of a bookie with two ledgers, each alone in a log."""
    return disk_after(SETTINGS, ([batch(each, entry_id) for entry_id in range(ENTRIES)] for each in (LEFT, KEPT)))


async def node_on(disk: SimDisk) -> DiskBookie:
    return await bookie_on(
        disk,
        SETTINGS,
        dispositions={LEFT: LedgerDisposition.UNNAMED},
        confirmed_prefixes={LEFT: ConfirmedPrefix(ENTRIES, closed=True)},
    )


async def collect_what_is_left_for_long(node: DiskBookie) -> None:
    await node.bookie.collect()
    await SimClock().sleep(DELAY_S)
    await node.bookie.collect()


async def collect(disk: SimDisk, promises: Promises) -> None:
    """A batch of each ledger that only the journal has, then the rounds, and what comes after it."""
    node = await node_on(disk)
    await node.boot()
    for ledger_id in (LEFT, KEPT):
        assert (await node.add(batch(ledger_id, ENTRIES))).code == 0
    promises.add(Acked(ENTRIES))
    await node.bookie.flush()
    await collect_what_is_left_for_long(node)
    assert node.bookie.stats()["leftovers_dropped_total"] == 1
    promises.add(Gone(LEFT))
    await node.bookie.collect()
    assert pieces_cut(disk) > 0
    await node.stop()
    assert node.failures == []


async def is_held(node: DiskBookie, ledger_id: int, entry_id: int) -> bool:
    try:
        answer = await node.bookie.read_batches(ledger_id, entry_id, entry_id, 1)
    except EntryAbsent:
        return False
    assert answer.batches == (batch(ledger_id, entry_id),)
    return True


async def nothing_is_taken_where_a_copy_is_gone(disk: SimDisk, promises: tuple[object, ...]) -> None:
    acked = [*range(ENTRIES), *(promise.entry_id for promise in promises if isinstance(promise, Acked))]
    node = await node_on(disk)
    await node.boot()
    assert truncated_logs(disk, node.bookie) == []
    assert all([await is_held(node, KEPT, entry_id) for entry_id in acked])
    left = [await is_held(node, LEFT, entry_id) for entry_id in acked]
    if not all(left) or Gone(LEFT) in promises:
        assert (await node.add(batch(LEFT, 50))).code == LedgerFenced.wire_code
    assert await rows_without_logs(node) == []
    await ends_what_was_begun(node)


async def ends_what_was_begun(node: DiskBookie) -> None:
    await node.bookie.flush()
    await collect_what_is_left_for_long(node)
    assert await node.parts.index.ledgers_with_rows(NO_ENTRY, 100) == [KEPT]
    assert (await node.add(batch(LEFT, 50))).code == LedgerFenced.wire_code
    for entry_id in range(ENTRIES):
        assert (await node.add(batch(LEFT, entry_id), kind=AddKind.REPAIR)).code == 0
        assert await is_held(node, LEFT, entry_id)
        assert await is_held(node, KEPT, entry_id)
    await node.stop()
    assert node.failures == []


def test_no_writer_is_accepted_for_ledgers_with_dropped_copies_after_any_crash(crashes) -> None:
    report = crashes(collect, nothing_is_taken_where_a_copy_is_gone, options=FEW, doubles=30, disk=filled())
    assert report.distinct > 200


def test_a_fence_that_is_not_durable_before_the_copies_go_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def in_memory(self: LedgerFencing, ledger_id: int) -> None:
        async with self._table.using(ledger_id) as ledger:
            ledger.set_fenced()

    monkeypatch.setattr(LedgerFencing, "fence_closed", in_memory)
    with pytest.raises(CrashFound, match="crash states fail"):
        enumerate_crashes(collect, nothing_is_taken_where_a_copy_is_gone, disk=filled(), options=FEW, max_failures=1)
