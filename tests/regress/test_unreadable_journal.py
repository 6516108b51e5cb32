"""A device that failed to read the journal once, at a start, put every ledger into limbo until a repair."""

import pytest

from tallybook.core.errors import EntryAbsent, EntryUnknown
from tallybook.sim.deterministic import SimDisk, World, run_seed
from tallybook.sim.stage.disk_bookie import DiskBookie, batch_of, tiny_settings

SEGMENT_READS = 40
"""More seconds than one read of the journal takes."""


def started_again(*, refused: int, then: type[EntryAbsent | EntryUnknown]) -> None:
    """Start a bookie once more while so many reads of its journal fail; what it never held must read as ``then``."""

    async def scenario(world: World) -> None:
        node = DiskBookie(SimDisk(world.rng), world.clock, settings=tiny_settings())
        await node.boot()
        for entry_id in range(5):
            assert (await node.add(batch_of(entry_id))).code == 0
        await node.kill()
        fault = node.disk.fail("read", "/journal/segment", times=refused)
        await node.boot()
        assert fault.seen >= min(refused, SEGMENT_READS)
        if then is EntryAbsent:
            assert (await node.bookie.read_batches(1, 4, 4, 1)).batches == (batch_of(4),)
        with pytest.raises(then):
            await node.bookie.read_batches(1, 5, 5, 1)
        await node.stop()

    run_seed(1, scenario, deadline_seconds=600)


@pytest.mark.parametrize("refused", [1, 3, 5, 8])
def test_a_journal_that_can_be_read_a_little_later_has_lost_nothing(refused: int) -> None:
    started_again(refused=refused, then=EntryAbsent)


def test_a_journal_that_stays_unreadable_leaves_its_ledgers_in_limbo() -> None:
    started_again(refused=1_000_000, then=EntryUnknown)
