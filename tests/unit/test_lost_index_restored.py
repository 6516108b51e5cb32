"""An index that is made again beside an older copy of the metadata store."""

import pytest

from tallybook.bookie.garbage import Fate
from tallybook.bookie.store_check import NeverBehind
from tallybook.metadata.behind import Behind
from tallybook.runtime.deterministic import World, run_seed

from .test_lost_index import BELOW, ENTRIES, LEDGERS, all_of, filled, lose


class Notes(NeverBehind):
    """An older copy of the metadata, as another bookie has found it, or nobody yet."""

    def __init__(self, found: Behind | None) -> None:
        self.found = found

    async def read(self) -> Behind | None:
        return self.found

    async def report(self, bookie_id: str, id_counter: int, highest_id: int) -> Behind:
        self.found = Behind(id_counter, highest_id, bookie_id, 1)
        return self.found


@pytest.mark.parametrize("shown_by", ["a note", "a ledger above the counter", "a counter that was higher"])
def test_beside_an_older_copy_of_the_metadata_a_new_index_drops_nothing(shown_by: str) -> None:
    async def scenario(world: World) -> None:
        node = await filled(world)
        if shown_by == "a counter that was higher":
            await node.boot()
            await node.bookie.compare_store()
            await node.stop()
        await lose(node.disk)
        node.metadata.fates = {1: Fate.DELETED, 2: Fate.RELEASED}
        node.behind = notes = Notes(Behind(1, 99, "b7", 1) if shown_by == "a note" else None)
        if shown_by == "a ledger above the counter":
            node.metadata.fates[3] = Fate.MISSING
            node.metadata.id_counter = 3
        elif shown_by == "a counter that was higher":
            node.metadata.id_counter = BELOW - 1
        await node.boot()
        assert notes.found is not None
        for ledger_id in LEDGERS:
            assert (await all_of(node, ledger_id))[:ENTRIES] == ["held"] * ENTRIES
        await node.stop()

    run_seed(1, scenario)
