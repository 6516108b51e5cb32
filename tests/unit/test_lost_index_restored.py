"""An index that is made again beside an older copy of the metadata store."""

import pytest

from tallybook.bookie.garbage import Fate
from tallybook.bookie.limbo import load_limbo
from tallybook.bookie.store_check import NeverBehind
from tallybook.core.errors import MetadataUnavailable
from tallybook.metadata.behind import Behind
from tallybook.runtime.deterministic import World, run_seed
from tallybook.sim.stage.disk_bookie import ROOT, KnownMetadata

from .test_lost_index import BELOW, ENTRIES, LEDGERS, SETTLED, all_of, filled, lose

ABOVE = LEDGERS[-1]
DELETED = LEDGERS[0]


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


class Untold(KnownMetadata):
    """The counter is as high as a ledger of which they say nothing a few times, and then what is told."""

    def __init__(self, cookies: dict[str, bytes], *, times: int, then: Fate) -> None:
        super().__init__(cookies=cookies, id_counter=ABOVE, settled=SETTLED, fates={DELETED: Fate.DELETED})
        self._times = times
        self._then = then

    async def fate_of(self, ledger_id: int, _bookie_id: str = "", _identity: bytes = b"") -> Fate:
        if ledger_id != ABOVE:
            return await super().fate_of(ledger_id)
        self._times -= 1
        return Fate.UNKNOWN if self._times >= 0 else self._then


@pytest.mark.parametrize("then", [Fate.KEPT, Fate.MISSING])
def test_a_new_index_drops_nothing_before_it_is_told_whether_the_store_is_behind(then: Fate) -> None:
    async def scenario(world: World) -> None:
        node = await filled(world)
        await lose(node.disk)
        node.metadata = Untold(node.metadata.cookies, times=2, then=then)
        node.behind = Notes(None)
        await node.boot()
        held = (await all_of(node, DELETED))[:ENTRIES]
        assert held == ["NoSuchLedger" if then is Fate.KEPT else "held"] * ENTRIES
        await node.stop()

    run_seed(1, scenario)


def test_where_it_is_not_told_there_is_no_new_index_and_nothing_has_changed() -> None:
    async def scenario(world: World) -> None:
        node = await filled(world)
        await lose(node.disk)
        node.metadata = Untold(node.metadata.cookies, times=1_000, then=Fate.KEPT)
        with pytest.raises(MetadataUnavailable, match="whether they know 1 ledgers at or above the id counter"):
            await node.boot()
        assert (await load_limbo(node.disk, f"{ROOT}/limbo")).events == 0
        node.metadata = KnownMetadata(cookies=node.metadata.cookies, id_counter=BELOW, settled=SETTLED)
        await node.boot()
        assert (await all_of(node, DELETED))[:ENTRIES] == ["held"] * ENTRIES
        await node.stop()

    run_seed(1, scenario)


def test_a_new_index_is_made_however_many_ledgers_lie_above_the_counter(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(world: World) -> None:
        node = await filled(world)
        await lose(node.disk)
        node.metadata.fates = {DELETED: Fate.DELETED}
        node.metadata.id_counter = DELETED
        node.behind = notes = Notes(None)
        monkeypatch.setattr("tallybook.bookie.store_check.MAX_LOOKUPS", 1)
        monkeypatch.setattr("tallybook.bookie.store_check.LOOKUPS_AT_ONCE", 1)
        monkeypatch.setattr("tallybook.bookie.store_check.LOOKUPS_SECONDS", 0.0)
        await node.boot()
        assert notes.found is None
        assert (await all_of(node, DELETED))[:ENTRIES] != ["held"] * ENTRIES
        assert (await all_of(node, ABOVE))[:ENTRIES] == ["held"] * ENTRIES
        await node.stop()

    run_seed(1, scenario)
