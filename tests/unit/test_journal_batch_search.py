"""Location of an entry in the journal of a running bookie: the named block has its batch."""

import re

from tallybook.sim.deterministic import SimDisk, World
from tallybook.sim.stage.disk_bookie import DiskBookie, KnownMetadata, batch_of, tiny_settings

from ..simulated import simulated


@simulated
async def test_the_block_that_is_named_has_the_batch_and_after_a_checkpoint_none_is_named(world: World) -> None:
    node = DiskBookie(
        SimDisk(world.rng),
        world.clock,
        KnownMetadata(),
        tiny_settings(journal_directories=("/data/bookie/journal", "/disk2/journal")),
    )
    await node.boot()
    batches = [batch_of(entry_id, ledger_id=2, payload=b"entry %d" % entry_id) for entry_id in range(5)]
    for batch in batches:
        assert (await node.add(batch)).code == 0
    [_, place] = (await node.bookie.trace(2, 3)).places
    assert place.where == "journal"
    assert place.size == len(batches[3])
    found = re.fullmatch(r"segment \d+ block \d+: (\S+) offset (\d+)", place.detail)
    assert found is not None, place.detail
    file = await node.disk.open(found[1], writable=False)
    block = bytes(await file.read(int(found[2]), 4096))
    await file.close()
    assert batches[3] in block
    await node.bookie.flush()
    assert [each.where for each in (await node.bookie.trace(2, 3)).places] == ["entry log"]
    await node.stop()
