"""Clients and bookies whose disks were replaced: same id, but none of the entries acked before."""

from __future__ import annotations

import pytest

from tallybook.client.client import Client
from tallybook.client.writer.handle import LedgerWriter
from tallybook.core.errors import RecoveryFailed
from tallybook.sim.memory_bookie.bookie import MemoryBookie

from ..simulated import scenario
from ..support.ledger_scenario import lines, read_all
from ..support.memory_cluster import MemoryCluster
from .parts import written_ledger


async def written_to_two_of_three(cluster: MemoryCluster, client: Client) -> tuple[LedgerWriter, list[MemoryBookie]]:
    """An abandoned ledger whose entries only its first two bookies have; and its three bookies."""
    ledger = await client.create_ledger()
    bookies = [cluster.bookies[name] for name in ledger.metadata.last_fragment.bookies]
    bookies[2].kill()
    await ledger.append_many(lines(50))
    ledger.abandon()
    bookies[2].restart()
    return ledger, bookies


@scenario()
async def test_recovery_over_a_replaced_member_waits_for_the_good_copy(cluster: MemoryCluster, client: Client) -> None:
    ledger, (good, replaced, _) = await written_to_two_of_three(cluster, client)
    replaced.replace(limbo_below=ledger.id + 1)
    good.kill()
    for _ in range(2):
        with pytest.raises(RecoveryFailed):
            await client.open_ledger(ledger.id)
    good.restart()
    assert await read_all(client, ledger.id) == lines(50)


@scenario()
async def test_a_replacement_that_is_not_in_limbo_would_cut_the_ledger(cluster: MemoryCluster, client: Client) -> None:
    """A replacement that is not in limbo gives wrong ABSENT answers, which end the ledger too early."""
    ledger, (good, replaced, _) = await written_to_two_of_three(cluster, client)
    replaced.replace()
    good.kill()
    assert (await client.open_ledger(ledger.id)).last_add_confirmed < 49


@scenario()
async def test_a_new_ledger_uses_a_replaced_bookie_like_any_other(cluster: MemoryCluster, client: Client) -> None:
    old = await client.create_ledger()
    await old.close()
    for bookie in cluster.bookies.values():
        bookie.replace(limbo_below=old.id + 1)
    ledger = await written_ledger(client, 20)
    assert (await ledger.close()).missed == ()
    assert await read_all(client, ledger.id) == lines(20)


@scenario()
async def test_a_writer_takes_back_the_acks_of_a_bookie_that_was_replaced(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger = await written_ledger(client, 10)
    first, replaced, third = (cluster.bookies[name] for name in ledger.metadata.last_fragment.bookies)
    first.hold_commits()
    third.hold_commits()
    pending = ledger.append_nowait(b"acked by one")
    await cluster.world.clock.sleep(0.5)
    replaced.replace(limbo_below=ledger.id + 1)
    await cluster.world.clock.sleep(0.5)
    large = b"too large to wait for a confirmation, so the writer looks" * 10
    ledger.append_nowait(large)
    await cluster.world.clock.sleep(0.7)
    first.release_commits()
    await cluster.world.clock.sleep(0.1)
    assert not pending.done, "one copy is left, and two are asked for"
    third.release_commits()
    assert await pending == 10
    metadata = await ledger.close()
    (missed,) = metadata.missed
    assert (missed.bookie_id, missed.first_entry_id, missed.last_entry_id) == (replaced.bookie_id, 0, 11)
    first.kill()
    assert await read_all(client, ledger.id) == [*lines(10), b"acked by one", large]
