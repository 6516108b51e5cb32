"""Background work of a writer: timers, connections, missed ranges. None of it may stop unnoticed."""

from __future__ import annotations

import asyncio

import pytest

from tallybook.client.client import Client
from tallybook.core.errors import InvariantViolation, NotEnoughBookies, Outcome
from tallybook.metadata.ledger.model import LedgerMetadata
from tallybook.metadata.store import WriteResult

from ..simulated import scenario
from ..support.direct_connections import DirectConnection, DirectConnections
from ..support.fault_script import FaultScript
from ..support.faulty_metadata import FaultyMetadataStore
from ..support.ledger_scenario import SMALL, eventually, lines, read_all
from ..support.memory_cluster import MemoryCluster
from .parts import written_ledger

SLOW_SECONDS = 30.0


class Slow(FaultyMetadataStore):
    """A metadata store that delays updates while ``slow``."""

    slow = False
    under_way = 0

    async def update_ledger(self, metadata: LedgerMetadata, expected_version: int) -> WriteResult:
        self.under_way += 1
        check = self.under_way == 1
        try:
            if self.slow:
                assert check, "one note at a time is enough"
                await self._clock.sleep(SLOW_SECONDS)
            return await super().update_ledger(metadata, expected_version)
        finally:
            self.under_way -= 1


@scenario()
async def test_timers_continue_while_the_metadata_store_takes_its_time(cluster: MemoryCluster, client: Client) -> None:
    stores: list[Slow] = []

    def slowly(store: object) -> Slow:
        stores.append(Slow(store, FaultScript([]), cluster.world.clock))  # type: ignore[arg-type]
        return stores[0]

    async with cluster.client(SMALL, seen_through=slowly) as other:
        ledger = await written_ledger(other, 10)
        stores[0].slow = True
        _, second, third = (cluster.bookies[name] for name in ledger.metadata.last_fragment.bookies)
        third.kill()
        await ledger.append_many(lines(10, 10))
        await eventually(lambda: stores[0].under_way == 1, cluster)
        second.hold_commits()
        began = cluster.world.clock.monotonic()
        with pytest.raises(NotEnoughBookies):
            await ledger.append(b"nobody acks it")
        assert cluster.world.clock.monotonic() - began < SLOW_SECONDS / 3
        second.release_commits()


@scenario()
async def test_a_defect_in_background_work_ends_the_writer_instead_of_hanging_it(
    cluster: MemoryCluster, client: Client
) -> None:
    async def defective(self: DirectConnections, bookie_id: str) -> DirectConnection:
        raise ValueError("a defect")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DirectConnections, "get", defective)
        ledger = await client.create_ledger()
        with pytest.raises(InvariantViolation, match="a defect") as caught:
            await asyncio.wait_for(ledger.append(b"x"), 60)
    assert caught.value.outcome is Outcome.UNKNOWN


@scenario()
async def test_a_bookie_that_refuses_adds_keeps_its_connection_for_everyone_else(
    cluster: MemoryCluster, client: Client
) -> None:
    """Reads, fences and other ledgers share the connection, so the writer pauses longer and longer."""
    finished = await written_ledger(client, 10)
    await finished.close()
    left_open = await written_ledger(client, 10)
    left_open.abandon()
    broken: list[str] = []
    offered = 0

    async def slowly(method: str, ledger_id: int) -> None:
        nonlocal offered
        offered += method == "add"
        await cluster.world.clock.sleep(0.0 if method == "add" else 1.0)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DirectConnection, "abort", lambda self: broken.append(self.bookie_id))
        ledger = await client.create_ledger()
        full = cluster.bookies[ledger.metadata.last_fragment.bookies[1]]
        full.read_only, full.gate = True, slowly
        began = cluster.world.clock.monotonic()
        other = next(bookie for bookie in cluster.bookies.values() if bookie is not full)

        async def write() -> None:
            for start in range(100):
                await ledger.append_many(lines(1, start))
                await cluster.world.clock.sleep(0.2)

        writing = asyncio.ensure_future(write())
        assert await read_all(client, finished.id) == lines(10)
        assert await read_all(client, left_open.id) == lines(10)
        await writing
        assert broken == []
        assert offered < 60, f"of 100 batches in {cluster.world.clock.monotonic() - began} s"
        full.read_only, full.gate = False, None
        await cluster.world.clock.sleep(3)
        await ledger.append(b"it takes adds again")
        await ledger.close()
    other.kill()
    assert await read_all(client, ledger.id) == [*lines(100), b"it takes adds again"]
    assert full.durable_batches(ledger.id)


@scenario()
async def test_the_first_refusal_over_an_old_connection_is_followed_by_a_pause(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger = await client.create_ledger()
    await ledger.append(b"first")
    # The connection is much older than any pause.
    await cluster.world.clock.sleep(60)
    full = cluster.bookies[ledger.metadata.last_fragment.bookies[1]]
    offered = 0

    async def count(method: str, ledger_id: int) -> None:
        nonlocal offered
        offered += method == "add"

    full.read_only, full.gate = True, count
    # The pause is once to twice that between connection attempts, and doubles with every refusal.
    for start in range(4):
        await ledger.append_many(lines(1, start))
        await cluster.world.clock.sleep(2 * SMALL.reconnect_ms / 1000 / 10)
    assert offered == 1
    await cluster.world.clock.sleep(0.5)
    await ledger.append(b"offered again")
    await cluster.world.clock.sleep(0.1)
    assert offered == 2
    full.read_only, full.gate = False, None
    await ledger.close()
