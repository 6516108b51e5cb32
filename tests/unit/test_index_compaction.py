"""``bookie/storage/index/compaction.py``: the index is compacted once enough was dropped, and not before."""

import pytest

from tallybook.bookie.gc import reclaimer
from tallybook.bookie.ledgers.disposition import LedgerDisposition
from tallybook.bookie.storage.index.compaction import IndexMaintenance
from tallybook.core.errors import DiskFull
from tallybook.sim.deterministic import SimDisk, World
from tallybook.sim.stage.disk_bookie import DiskBookie, KnownMetadata, batch_of, tiny_settings

from ..simulated import on_stage, world_alone


class Compacted:
    """An index that is compacted, unless its disk is full."""

    def __init__(self) -> None:
        self.ranges: list[tuple[int, int]] = []
        self.full = False

    async def compact(self, first_ledger: int, last_ledger: int) -> None:
        if self.full:
            raise DiskFull("no room")
        self.ranges.append((first_ledger, last_ledger))


async def test_it_is_compacted_once_enough_ledgers_and_rows_are_gone_and_only_where_they_were():
    index = Compacted()
    maintenance = IndexMaintenance(index, after=10)
    maintenance.dropped([7, 5], 3)
    await maintenance.compact_if_worth()
    assert index.ranges == []
    maintenance.dropped([20], 4)
    for _ in range(2):
        await maintenance.compact_if_worth()
    assert index.ranges == [(5, 20)]
    maintenance.dropped([40], 8)
    await maintenance.compact_if_worth()
    maintenance.dropped([30], 0)
    await maintenance.compact_if_worth()
    assert index.ranges == [(5, 20), (30, 40)]
    assert maintenance.compactions == 2


async def test_what_failed_for_lack_of_space_is_tried_again():
    index = Compacted()
    maintenance = IndexMaintenance(index, after=2)
    maintenance.dropped([3], 5)
    index.full = True
    with pytest.raises(DiskFull):
        await maintenance.compact_if_worth()
    index.full = False
    await maintenance.compact_if_worth()
    assert (index.ranges, maintenance.compactions) == ([(3, 3)], 1)


async def test_it_never_is_where_the_settings_do_not_want_it():
    index = Compacted()
    maintenance = IndexMaintenance(index, after=0)
    maintenance.dropped([3], 10**9)
    await maintenance.compact_if_worth()
    assert index.ranges == []


@pytest.mark.parametrize(("after", "ranges"), [(12, [(2, 5)]), (13, [])])
@on_stage(world_alone, deadline_seconds=3600)
async def test_garbage_collection_has_the_index_compacted_after_a_pass_that_dropped_much(
    world: World, *, after, ranges, monkeypatch
) -> None:
    monkeypatch.setattr(reclaimer, "MAX_FIND_ROWS", 2)
    settings = tiny_settings()
    collection = settings.collection.model_copy(update={"compact_index_after": after})
    node = DiskBookie(
        SimDisk(world.rng), world.clock, KnownMetadata(), settings.model_copy(update={"collection": collection})
    )
    await node.boot()
    for ledger_id in range(1, 7):
        for entry_id in range(5 if ledger_id == 2 else 1):
            await node.add(batch_of(entry_id, ledger_id=ledger_id))
    await node.bookie.flush()
    node.metadata.dispositions.update(dict.fromkeys(range(2, 6), LedgerDisposition.RELEASED))
    await node.bookie.collect()
    assert node.parts.index.compacted == ranges
    assert node.bookie.stats()["index_compactions_total"] == len(ranges)
    await node.stop()
