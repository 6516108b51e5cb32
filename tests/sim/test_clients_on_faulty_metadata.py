"""Clients with a metadata store that loses answers, delays writes and becomes unavailable, while bookies restart.

Every acked entry is read in the end, all clients agree on the end of the ledger, and it never changes again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

from tallybook.client.client import Client
from tallybook.client.writer.handle import LedgerWriter
from tallybook.core.errors import PeerError, TallybookError
from tallybook.metadata.ledger.model import LedgerMetadata
from tallybook.metadata.store import MetadataStore
from tallybook.sim.deterministic import World, run_seed
from tallybook.sim.memory_bookie.bookie import MemoryBookie

from ..sampling import sample
from ..support.faulty_metadata import FaultyMetadataStore, MetadataFault, RandomMetadataFaults
from ..support.ledger_scenario import SMALL, lines, read_all
from ..support.memory_cluster import MemoryCluster

T = TypeVar("T")

RATES = {
    MetadataFault.UNAVAILABLE: 0.05,
    MetadataFault.UNKNOWN_APPLIED: 0.1,
    MetadataFault.UNKNOWN_LOST: 0.1,
    MetadataFault.UNKNOWN_LATE: 0.1,
    MetadataFault.STALE: 0.3,
    MetadataFault.DELAYED: 0.3,
}


class Weather(RandomMetadataFaults):
    """Random faults, and outages of the metadata store."""

    outage = False

    def next(self, operation: str) -> MetadataFault | None:
        if self.outage and operation != "changed":
            return MetadataFault.UNAVAILABLE
        return super().next(operation)


class Play:
    """One seed: a writer, a nemesis, and recoverers."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.rng = world.rng.fork("nemesis")
        self.cluster = MemoryCluster(world, bookies=4)
        self.weather = Weather(world.rng.fork("weather"), RATES)
        self.stores: list[FaultyMetadataStore] = []
        self.sent = 0
        self.acked = -1

    def client(self) -> Client:
        return self.cluster.client(SMALL, seen_through=self._through)

    def _through(self, store: MetadataStore) -> FaultyMetadataStore:
        self.stores.append(FaultyMetadataStore(store, self.weather, self.world.clock))
        return self.stores[-1]

    async def insist(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Retry until it succeeds. Only retriable errors may occur, because the caller makes no mistakes."""
        for _ in range(200):
            try:
                return await ask()
            except PeerError:
                await self.world.clock.sleep(self.rng.random())
        raise AssertionError("it never worked")

    async def write(self, ledger: LedgerWriter) -> None:
        """Append a few entries now and then while faults last."""
        while True:
            pending = [ledger.append_nowait(payload) for payload in lines(5, self.sent)]
            self.sent += 5
            for append in pending:
                self.acked = await append
            await self.world.clock.sleep(self.rng.random() * 0.05)

    async def trouble(self, ledger_id: int) -> None:
        replaced = False
        for _ in range(6):
            victim = self.cluster.bookies[f"bookie-{self.rng.randint(0, 3)}"]
            self.weather.outage = self.rng.random() < 0.3
            if not replaced and self.rng.random() < 0.2:
                replaced = True
                victim.replace(limbo_below=ledger_id + 1)
            else:
                victim.kill()
            await self.world.clock.sleep(self.rng.random() * 4)
            if not victim.alive:
                victim.restart()
            self.weather.outage = False
            await self.world.clock.sleep(self.rng.random())

    async def run(self) -> None:
        await self.cluster.start()
        async with self.client() as client, self.client() as one, self.client() as two:
            unowned = await self.insist(
                lambda: client.create_unowned_ledger(ensemble=4, write_quorum=3, ack_quorum=2, stripe_entries=7)
            )
            ledger = await self.insist(lambda: client.adopt_ledger(unowned.ledger_id))
            writing = asyncio.ensure_future(self.write(ledger))
            await self.trouble(ledger.id)
            down = self.cluster.bookies[f"bookie-{self.rng.randint(0, 3)}"]
            down.kill()
            ends = await asyncio.gather(
                self.end(ledger, writing), self.recover(one, ledger.id), self.recover(two, ledger.id), self.heal(down)
            )
            for store in self.stores:
                await store.land_late_writes()
            settled = {(end.last_entry_id, end.length) for end in ends if end is not None}
            assert len(settled) == 1
            found = await self.insist(lambda: read_all(two, ledger.id))
            assert len(found) > self.acked
            assert found == lines(len(found))
            assert settled == {(len(found) - 1, sum(map(len, found)))}
        await self.cluster.stop()

    async def recover(self, client: Client, ledger_id: int) -> LedgerMetadata:
        await self.world.clock.sleep(self.rng.random())
        return await self.insist(lambda: client.recover_ledger(ledger_id))

    async def heal(self, down: MemoryBookie) -> None:
        await self.world.clock.sleep(self.rng.random() * 20)
        down.restart()

    async def end(self, ledger: LedgerWriter, writing: asyncio.Task[None]) -> LedgerMetadata | None:
        """Close the ledger by its writer in half of the seeds, concurrently with recoveries."""
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)
        if self.rng.random() < 0.5:
            ledger.abandon()
            return None
        for _ in range(20):
            try:
                return await ledger.close()
            except TallybookError as error:
                if not error.retriable:
                    return None
                await self.world.clock.sleep(self.rng.random())
        return None


@pytest.mark.parametrize("seed", [*sample(range(12))])
def test_nothing_acked_is_lost_while_bookies_and_metadata_fail(seed: int) -> None:
    async def play(world: World) -> None:
        await Play(world).run()

    run_seed(seed, play, deadline_seconds=3600)
