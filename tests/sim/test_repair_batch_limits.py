"""A repair with bookies that accept smaller batches than a ledger has."""

from __future__ import annotations

import pytest

from tallybook.client.client import Client
from tallybook.core.limits import MAX_BATCH_BYTES
from tallybook.metadata.ledger.model import LedgerMetadata
from tallybook.metadata.records.bookie_modes import RequestedMode, request_mode
from tallybook.repair.status.drain_reasons import why_still_referenced
from tallybook.repair.status.overview import overview
from tallybook.sim.memory_bookie.bookie import MemoryBookie

from ..simulated import scenario
from ..support.direct_connections import DirectConnection
from ..support.ledger_scenario import eventually, lines, read_all
from ..support.memory_cluster import MemoryCluster
from .parts import repair
from .test_repair import QUICK, metadata_of

LIMIT = 400
LARGE = b"x" * 600


async def with_large_batches(client: Client) -> LedgerMetadata:
    ledger = await client.create_ledger()
    await ledger.append(b"first")
    await ledger.append_many([LARGE] * 3)
    return await ledger.close()


async def drain(cluster: MemoryCluster, client: Client, name: str) -> None:
    await request_mode(client.world.store, cluster.world.clock, cluster.world.rng, name, RequestedMode.DRAINING)


def others(cluster: MemoryCluster, ledger: LedgerMetadata) -> list[MemoryBookie]:
    return [bookie for name, bookie in cluster.bookies.items() if name not in ledger.last_fragment.bookies]


@scenario(bookies=5, deadline_seconds=600)
async def test_a_replacement_accepts_batches_as_large_as_the_members_do(cluster: MemoryCluster, client: Client) -> None:
    ledger = await with_large_batches(client)
    small, large = others(cluster, ledger)
    small.max_batch_bytes = LIMIT
    leaving = ledger.last_fragment.bookies[0]
    await drain(cluster, client, leaving)
    async with repair(cluster, QUICK) as service:
        await eventually(lambda: service.replicator.totals.replaced > 0, cluster, 300)
    assert large.bookie_id in (await metadata_of(cluster, ledger.ledger_id)).last_fragment.bookies
    assert list(small.durable_batches(ledger.ledger_id)) == [], "nothing was copied in vain"
    assert service.replicator.totals.incomplete_ledgers == 0


@scenario(bookies=5, deadline_seconds=600)
async def test_a_bookie_that_refuses_a_batch_without_having_said_what_it_takes_is_passed_over(
    cluster: MemoryCluster, client: Client
) -> None:
    ledgers = [await with_large_batches(client) for _ in range(6)]
    small = cluster.bookies["bookie-4"]
    small.max_batch_bytes = LIMIT
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DirectConnection, "max_batch_bytes", MAX_BATCH_BYTES)
        await drain(cluster, client, "bookie-0")
        async with repair(cluster, QUICK) as service:
            await eventually(lambda: service.auditor.audit.draining == {"bookie-0"}, cluster, 60)
            await eventually(lambda: service.auditor.audit.findings.moving == 0, cluster, 300)
    for ledger in ledgers:
        metadata = await metadata_of(cluster, ledger.ledger_id)
        assert "bookie-0" not in metadata.last_fragment.bookies
        named = [name for name in metadata.last_fragment.bookies if name not in ledger.last_fragment.bookies]
        assert small.bookie_id not in named
        assert await read_all(client, ledger.ledger_id) == [b"first", *[LARGE] * 3]


@scenario(bookies=4, deadline_seconds=600)
async def test_a_member_that_does_not_take_what_it_missed_is_replaced(cluster: MemoryCluster, client: Client) -> None:
    ledger, smaller = await missing_large_batches(cluster, client)
    await cluster.register(next(name for name in cluster.bookies if name not in ledger.last_fragment.bookies))
    async with repair(cluster, QUICK) as service:
        await eventually(lambda: service.replicator.totals.replaced > 0, cluster, 300)
    metadata = await metadata_of(cluster, ledger.ledger_id)
    assert smaller.bookie_id not in metadata.last_fragment.bookies
    assert metadata.missed == ()
    assert cluster.under_replicated(metadata, copies=3) == []


async def missing_large_batches(cluster: MemoryCluster, client: Client) -> tuple[LedgerMetadata, MemoryBookie]:
    """A closed ledger, and a restarted member that missed batches which it does not accept any more."""
    ledger = await client.create_ledger()
    members = ledger.metadata.last_fragment.bookies
    for name in cluster.bookies.keys() - set(members):
        cluster.metadata.expire(name)
    await ledger.append(b"first")
    smaller = cluster.die(members[1])
    await ledger.append_many([LARGE, LARGE])
    await ledger.append_many(lines(5))
    metadata = await ledger.close()
    assert [each.bookie_id for each in metadata.missed] == [smaller.bookie_id]
    smaller.max_batch_bytes = LIMIT
    smaller.restart()
    await cluster.register(smaller.bookie_id)
    return metadata, smaller


@scenario(deadline_seconds=900)
async def test_a_member_that_cannot_be_replaced_gets_what_it_takes_and_status_names_the_rest(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger, smaller = await missing_large_batches(cluster, client)
    ledger_id = ledger.ledger_id
    async with repair(cluster, QUICK) as service:
        await eventually(lambda: service.replicator.totals.incomplete_ledgers > 0, cluster, 300)
        await cluster.world.clock.sleep(10)
        held = smaller.durable_batches(ledger_id)
        assert {first for first in held if len(held[first]) <= LIMIT} == {
            first
            for first, batch in cluster.bookies[ledger.last_fragment.bookies[0]].durable_batches(ledger_id).items()
            if len(batch) <= LIMIT
        }
        [named] = [each for each in (await overview(client.world)).problems if "cannot be copied" in each]
        assert named.startswith(f"ledger {ledger_id} cannot be copied")
        assert f"{smaller.bookie_id} does not accept a batch of" in named
        # Its setting is raised.
        cluster.die(smaller.bookie_id)
        smaller.max_batch_bytes = MAX_BATCH_BYTES
        smaller.restart()
        await cluster.register(smaller.bookie_id)
        await eventually(lambda: service.auditor.audit.findings.under_replicated == 0, cluster, 300)
        await cluster.world.clock.sleep(10)
        assert not any("cannot be copied" in each for each in (await overview(client.world)).problems)
    assert cluster.under_replicated(await metadata_of(cluster, ledger_id), copies=3) == []


@scenario(bookies=4, deadline_seconds=600)
async def test_a_drain_says_that_bookies_take_too_small_batches(cluster: MemoryCluster, client: Client) -> None:
    ledger = await with_large_batches(client)
    [small] = others(cluster, ledger)
    small.max_batch_bytes = LIMIT
    leaving = ledger.last_fragment.bookies[0]
    await drain(cluster, client, leaving)
    async with repair(cluster, QUICK) as service:
        await eventually(lambda: service.replicator.totals.incomplete_ledgers > 0, cluster, 300)
        await cluster.world.clock.sleep(10)
        why = await why_still_referenced(client.world, leaving, [ledger.ledger_id], within_s=5)
        problems = (await overview(client.world)).problems
    assert f"{small.bookie_id} up to {LIMIT} bytes): raise their journal.max_commit_bytes" in why[ledger.ledger_id]
    assert any(f"{small.bookie_id} does not accept a batch of" in each for each in problems)
