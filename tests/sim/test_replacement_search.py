"""The search for replacement bookies while most bookies hang: a rack is silent, but still registered."""

from __future__ import annotations

from tallybook.client.client import Client
from tallybook.core.settings import ClientSettings

from ..simulated import scenario
from ..support.memory_cluster import MemoryCluster
from .parts import written_ledger

DEFAULTS = ClientSettings()
ENOUGH_S = 0.5
"""For the change itself, after its detection."""


def hang_all_but_one(cluster: MemoryCluster, taken: tuple[str, ...]) -> str:
    """Freeze all bookies outside the ensemble except one."""
    *hung, good = [name for name in cluster.bookies if name not in taken]
    for name in hung:
        cluster.bookies[name].pause()
    return good


@scenario(bookies=14)
async def test_a_writer_continues_with_the_one_replacement_that_serves_among_ten_that_hang(
    cluster: MemoryCluster, client: Client
) -> None:
    async with cluster.client(DEFAULTS) as writer:
        ledger = await written_ledger(writer, 10)
        members = ledger.metadata.last_fragment.bookies
        good = hang_all_but_one(cluster, members)
        for name in members[:2]:
            cluster.die(name)
        began = cluster.world.clock.monotonic()
        assert await ledger.append(b"one of three is left") == 10
        took = cluster.world.clock.monotonic() - began
        assert took < DEFAULTS.away_timeout_ms / 4 / 1000 + ENOUGH_S
        assert set(ledger.metadata.last_fragment.bookies) > {good, members[2]}
        assert (await ledger.close()).last_entry_id == 10


@scenario(bookies=9)
async def test_a_recovery_uses_all_serving_bookies_however_late_they_answer(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger = await written_ledger(client, 20, ensemble=5, write_quorum=5, ack_quorum=3)
    ledger.abandon()
    members = ledger.metadata.last_fragment.bookies
    quick, slow, *hung = [name for name in cluster.bookies if name not in members]
    for name in hung:
        cluster.bookies[name].pause()

    async def slowly(method: str, _ledger_id: int) -> None:
        if method == "read_lac":
            await cluster.world.clock.sleep(1.0)

    cluster.bookies[slow].gate = slowly
    for name in members[:2]:
        cluster.die(name)
    async with cluster.client(DEFAULTS) as recoverer:
        closed = await recoverer.recover_ledger(ledger.id)
    assert set(closed.last_fragment.bookies) == {*members[2:], quick, slow}
    assert closed.missed == ()
