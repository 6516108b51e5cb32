"""When the index is compacted: once enough was dropped from it, and not before."""

import pytest

from tallybook.bookie.garbage import Fate
from tallybook.bookie.index_upkeep import IndexUpkeep
from tallybook.core.errors import DiskFull
from tallybook.runtime.deterministic import SimDisk, World, run_seed
from tallybook.sim.stage.disk_bookie import DiskBookie, KnownMetadata, batch_of, tiny_settings


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
    upkeep = IndexUpkeep(index, after=10)
    upkeep.dropped([7, 5], 3)
    await upkeep.compact_if_worth()
    assert index.ranges == []
    upkeep.dropped([20], 4)
    for _ in range(2):
        await upkeep.compact_if_worth()
    assert index.ranges == [(5, 20)]
    upkeep.dropped([40], 8)
    await upkeep.compact_if_worth()
    upkeep.dropped([30], 0)
    await upkeep.compact_if_worth()
    assert index.ranges == [(5, 20), (30, 40)]
    assert upkeep.compactions == 2


async def test_what_failed_for_want_of_room_is_tried_again():
    index = Compacted()
    upkeep = IndexUpkeep(index, after=2)
    upkeep.dropped([3], 5)
    index.full = True
    with pytest.raises(DiskFull):
        await upkeep.compact_if_worth()
    index.full = False
    await upkeep.compact_if_worth()
    assert (index.ranges, upkeep.compactions) == ([(3, 3)], 1)


async def test_it_never_is_where_the_settings_do_not_want_it():
    index = Compacted()
    upkeep = IndexUpkeep(index, after=0)
    upkeep.dropped([3], 10**9)
    await upkeep.compact_if_worth()
    assert index.ranges == []


@pytest.mark.parametrize(("after", "ranges"), [(8, [(2, 5)]), (9, [])])
def test_the_collector_has_the_index_compacted_after_a_round_that_dropped_much(after, ranges):
    async def run(world: World) -> None:
        settings = tiny_settings()
        collection = settings.collection.model_copy(update={"compact_index_after": after})
        node = DiskBookie(
            SimDisk(world.rng), world.clock, KnownMetadata(), settings.model_copy(update={"collection": collection})
        )
        await node.boot()
        for ledger_id in range(1, 7):
            await node.add(batch_of(0, ledger_id=ledger_id))
        await node.bookie.flush()
        node.metadata.fates.update(dict.fromkeys(range(2, 6), Fate.RELEASED))
        await node.bookie.collect()
        assert node.bookie._parts.index.compacted == ranges
        assert node.bookie.stats()["index_compactions_total"] == len(ranges)
        await node.stop()

    run_seed(1, run, deadline_seconds=3600)
