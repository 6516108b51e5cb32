"""No removal takes the last object that has a living ledger, whatever becomes of the metadata and of the bucket."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from copy import copy

import pytest

from tallybook.archive.catalog import ledgers_in
from tallybook.archive.manifest import MANIFEST_KEY, read_manifest
from tallybook.archive.objects.memory import MemoryStore
from tallybook.archive.objects.port import ObjectInfo
from tallybook.client.client import Client
from tallybook.core.errors import NoSuchLedger
from tallybook.metadata.memory import MemoryMetadata
from tallybook.offload.offloader import Offloader
from tallybook.runtime.clock import Clock
from tallybook.runtime.rng import Rng
from tallybook.runtime.tasks import InlineWorkers
from tallybook.sim.stage.archive import ArchiveStage
from tallybook.sim.stage.cluster import MemoryCluster
from tallybook.sim.stage.scenario import scenario

from .test_offload_manifest import SETTINGS, closed, objects, offloader

STEPS = 30
DELAY_S = SETTINGS.attempt_ttl_s + SETTINGS.orphan_delay_s


async def held_in(store: MemoryStore) -> dict[str, set[int]]:
    """The ledgers in each object."""
    found: dict[str, set[int]] = {}
    for each in [each async for page in store.list() for each in page if each.key.endswith(".parquet")]:
        if each.key != MANIFEST_KEY:
            found[each.key] = {held.metadata.ledger_id for held in await ledgers_in(store, each)}
    return found


class Watched(MemoryStore):
    """Fails the test where a removal takes the last object with a ledger that nobody has deleted."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.deleted: set[int] = set()
        self.removals = 0

    async def delete(self, key: str) -> None:
        held = await held_in(self)
        elsewhere = set().union(*(each for other, each in held.items() if other != key))
        last = held.get(key, set()) - elsewhere - self.deleted
        assert not last, f"{key} was the last object with ledgers {last}"
        self.removals += 1
        await super().delete(key)


class Play:
    """What happens to a cluster and to its bucket, in an order of chance."""

    def __init__(self, cluster: MemoryCluster, client: Client, stage: ArchiveStage, store: Watched, rng: Rng) -> None:
        self.cluster, self.client, self.stage, self.store, self.rng = cluster, client, stage, store, rng
        self.ledgers: list[int] = []
        self.worker: Offloader = offloader(stage)
        self.copies: list[MemoryMetadata] = []

    def _one(self) -> int | None:
        return self.ledgers[self.rng.randint(0, len(self.ledgers) - 1)] if self.ledgers else None

    async def write(self) -> None:
        self.ledgers.append(await closed(self.client, 9))

    async def tidy(self) -> None:
        await self.worker.round()

    async def wait(self) -> None:
        await self.cluster.world.clock.sleep(DELAY_S)

    async def restart(self) -> None:
        self.worker = offloader(self.stage)

    async def delete(self) -> None:
        ledger_id = self._one()
        if ledger_id is not None:
            with suppress(NoSuchLedger):
                await self.client.delete_ledger(ledger_id)
            self.store.deleted.add(ledger_id)

    async def copy_metadata(self) -> None:
        metadata, kept = self.cluster.metadata, MemoryMetadata(self.rng.fork("copy"))
        kept.ledgers = {ledger_id: copy(row) for ledger_id, row in metadata.ledgers.items()}
        kept.deletions = dict(metadata.deletions)
        self.copies.append(kept)

    async def restore_metadata(self) -> None:
        """An older copy comes back; the id counter is where it was."""
        if self.copies:
            kept = self.copies[self.rng.randint(0, len(self.copies) - 1)]
            self.cluster.metadata.ledgers = {ledger_id: copy(row) for ledger_id, row in kept.ledgers.items()}
            self.cluster.metadata.deletions = dict(kept.deletions)
            self.worker = offloader(self.stage)

    async def lose_object(self) -> None:
        held = await held_in(self.store)
        if held:
            key = sorted(held)[self.rng.randint(0, len(held) - 1)]
            await MemoryStore.delete(self.store, key)

    async def lose_manifest(self) -> None:
        with suppress(Exception):
            await MemoryStore.delete(self.store, MANIFEST_KEY)

    def step(self) -> Callable[[], Awaitable[None]]:
        often = [self.write, self.tidy, self.tidy, self.wait, self.wait, self.tidy]
        seldom = [self.restart, self.delete, self.copy_metadata, self.restore_metadata, self.lose_object]
        if self.rng.random() < 0.05:
            return self.lose_manifest
        steps = often if self.rng.random() < 0.6 else seldom
        return steps[self.rng.randint(0, len(steps) - 1)]


@pytest.mark.parametrize("seed", range(20))
def test_no_removal_takes_the_last_object_that_has_a_living_ledger(seed: int) -> None:
    @scenario(seed=seed, deadline_seconds=60_000)
    async def play(cluster: MemoryCluster, client: Client) -> None:
        store = Watched(cluster.world.clock)
        async with ArchiveStage(cluster, SETTINGS, store=store) as stage:
            played = Play(cluster, client, stage, store, cluster.world.rng.fork("play"))
            for _ in range(3):
                await played.write()
            for _ in range(STEPS):
                await played.step()()

    play()


async def merged(stage: ArchiveStage, client: Client) -> tuple[list[int], str, dict[int, object]]:
    """Three ledgers that were merged into one object; its key, and their metadata from before."""
    ledgers = [await closed(client, 9) for _ in range(3)]
    for ledger_id in ledgers:
        await stage.archive(ledger_id)
    before = {each: copy(stage.cluster.metadata.ledgers[each]) for each in ledgers}
    await offloader(stage).round()
    (home,) = [key for key in await objects(stage) if key.startswith("sets/")]
    return ledgers, home, before  # type: ignore[return-value]


@scenario(deadline_seconds=6_000)
async def test_metadata_from_before_a_merge_cost_neither_the_merged_object_nor_its_lines_in_the_manifest(
    cluster: MemoryCluster, client: Client
) -> None:
    async with ArchiveStage(cluster, SETTINGS) as stage:
        ledgers, home, before = await merged(stage, client)
        worker = offloader(stage)
        for _ in range(3):
            await cluster.world.clock.sleep(DELAY_S)
            await worker.round()
        assert await objects(stage) == [home], "what was merged is gone"
        cluster.metadata.ledgers.update(before)  # type: ignore[arg-type]
        for _ in range(3):
            worker = offloader(stage)
            await worker.round()
            assert "older copy" in worker.totals.last_error
            await cluster.world.clock.sleep(DELAY_S)
        manifest = await read_manifest(stage.store, InlineWorkers())
        assert manifest is not None
        assert (manifest.ledgers, await objects(stage)) == (dict.fromkeys(ledgers, home), [home])


@scenario(deadline_seconds=6_000)
async def test_what_was_merged_stays_while_the_object_that_has_it_now_is_not_there(
    cluster: MemoryCluster, client: Client
) -> None:
    async with ArchiveStage(cluster, SETTINGS) as stage:
        _, home, _ = await merged(stage, client)
        found: ObjectInfo = await stage.store.info(home)
        kept = await stage.store.read(home, 0, found.size_bytes)
        await stage.store.delete(home)
        before, worker = await objects(stage), offloader(stage)
        for _ in range(3):
            await worker.round()
            assert home in worker.totals.last_error or "stay" in worker.totals.last_error
            await cluster.world.clock.sleep(DELAY_S)
        assert await objects(stage) == before
        await stage.store.put(home, kept)
        for _ in range(2):
            await worker.round()
            await cluster.world.clock.sleep(DELAY_S)
        assert await objects(stage) == [home], "once it is back, the others go"
