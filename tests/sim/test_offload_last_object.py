"""No removal takes the last object of a living ledger, after any event of metadata and bucket."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from copy import copy
from dataclasses import replace

import pytest

from tallybook.archive.catalog import ledgers_in
from tallybook.archive.manifest import MANIFEST_KEY, read_manifest
from tallybook.archive.objects.memory import MemoryObjectStore
from tallybook.archive.objects.port import ObjectInfo, UnfinishedUpload
from tallybook.client.client import Client
from tallybook.core.errors import ArchiveUnavailable, NoSuchLedger
from tallybook.core.ids import NO_ENTRY
from tallybook.metadata.ledger.model import LedgerMetadata
from tallybook.metadata.memory import MemoryMetadata
from tallybook.metadata.store import MetadataStore
from tallybook.offload.offloader import Offloader
from tallybook.offload.rebuild import claim_bucket, rebuild_catalog
from tallybook.runtime.clock import Clock
from tallybook.runtime.rng import Rng
from tallybook.runtime.tasks import InlineWorkers

from ..sampling import sample
from ..simulated import scenario
from ..support.archive_stage import ArchiveStage
from ..support.memory_cluster import MemoryCluster
from .parts import closed_id as closed
from .parts import object_keys as objects
from .parts import offloader
from .test_offload_manifest import SETTINGS

STEPS = 30
DELAY_S = SETTINGS.attempt_ttl_s + SETTINGS.orphan_delay_s


Held = tuple[int, bytes]
"""A ledger in an object: its id, which others may have had, and its identity."""


async def held_in(store: MemoryObjectStore) -> dict[str, set[Held]]:
    """Ledgers by object."""
    found: dict[str, set[Held]] = {}
    for each in [each async for page in store.list() for each in page if each.key.endswith(".parquet")]:
        if each.key != MANIFEST_KEY:
            ledgers = [held.metadata for held in await ledgers_in(store, each)]
            found[each.key] = {(ledger.ledger_id, ledger.identity) for ledger in ledgers}
    return found


class Watched(MemoryObjectStore):
    """Fails the test if a removal takes the last object of a ledger that was not deleted."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.deleted: set[Held] = set()
        self.removals = 0

    async def delete(self, key: str) -> None:
        held = await held_in(self)
        elsewhere = set().union(*(each for other, each in held.items() if other != key))
        last = held.get(key, set()) - elsewhere - self.deleted
        assert not last, f"{key} was the last object with ledgers {last}"
        self.removals += 1
        await super().delete(key)


async def another_of(store: MetadataStore, lost: LedgerMetadata, rng: Rng) -> None:
    """A new empty ledger with the id of one whose metadata were lost."""
    nowhere = replace(lost, creator_token=rng.uuid(), archiving=None, archived=None, copies_released=False)
    await store.create_ledger(replace(nowhere, fragments=lost.fragments[:1], last_entry_id=NO_ENTRY, length=0))


class Shy(Watched):
    """A store in which reads of objects in ``hang`` hang."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.hang: set[str] = set()

    async def read(self, key: str, offset: int, size: int) -> bytes:
        if key in self.hang:
            raise ArchiveUnavailable(f"memory: read of {key} failed")
        return await super().read(key, offset, size)


class Play:
    """Random events of a cluster and its bucket."""

    def __init__(self, cluster: MemoryCluster, client: Client, stage: ArchiveStage, store: Watched, rng: Rng) -> None:
        self.cluster, self.client, self.stage, self.store, self.rng = cluster, client, stage, store, rng
        self.ledgers: list[int] = []
        self.worker: Offloader = offloader(stage, SETTINGS)
        self.copies: list[MemoryMetadata] = []

    def _one(self) -> int | None:
        return self.ledgers[self.rng.randint(0, len(self.ledgers) - 1)] if self.ledgers else None

    async def write(self) -> None:
        self.ledgers.append(await closed(self.client, 9))

    async def tidy(self) -> None:
        await self.worker.run_pass()

    async def wait(self) -> None:
        await self.cluster.world.clock.sleep(DELAY_S)

    async def restart(self) -> None:
        self.worker = offloader(self.stage, SETTINGS)

    async def delete(self) -> None:
        ledger_id = self._one()
        if ledger_id is not None:
            with suppress(NoSuchLedger):
                identity = (await self.client.ledger_metadata(ledger_id)).identity
                await self.client.delete_ledger(ledger_id)
                self.store.deleted.add((ledger_id, identity))

    async def lose_one_to_another(self) -> None:
        """Lose the metadata of a ledger and create another one with its id."""
        ledger_id, store = self._one(), self.cluster.metadata.client().store
        if ledger_id is None or ledger_id not in self.cluster.metadata.ledgers:
            return
        lost = (await store.read_ledger(ledger_id)).value
        del self.cluster.metadata.ledgers[ledger_id]
        await another_of(store, lost, self.rng)

    async def copy_metadata(self) -> None:
        metadata, kept = self.cluster.metadata, MemoryMetadata(self.rng.fork("copy"))
        kept.ledgers = {ledger_id: copy(row) for ledger_id, row in metadata.ledgers.items()}
        kept.deletions = dict(metadata.deletions)
        self.copies.append(kept)

    async def restore_metadata(self) -> None:
        """Restore an older copy of the metadata, with the present id counter."""
        if self.copies:
            kept = self.copies[self.rng.randint(0, len(self.copies) - 1)]
            self.cluster.metadata.ledgers = {ledger_id: copy(row) for ledger_id, row in kept.ledgers.items()}
            self.cluster.metadata.deletions = dict(kept.deletions)
            self.worker = offloader(self.stage, SETTINGS)

    async def lose_object(self) -> None:
        held = await held_in(self.store)
        if held:
            key = sorted(held)[self.rng.randint(0, len(held) - 1)]
            await MemoryObjectStore.delete(self.store, key)

    async def lose_manifest(self) -> None:
        with suppress(Exception):
            await MemoryObjectStore.delete(self.store, MANIFEST_KEY)

    def step(self) -> Callable[[], Awaitable[None]]:
        often = [self.write, self.tidy, self.tidy, self.wait, self.wait, self.tidy]
        rarely = [self.restart, self.delete, self.copy_metadata, self.restore_metadata, self.lose_object]
        if self.rng.random() < 0.1:
            return self.lose_manifest if self.rng.random() < 0.5 else self.lose_one_to_another
        steps = often if self.rng.random() < 0.6 else rarely
        return steps[self.rng.randint(0, len(steps) - 1)]


@pytest.mark.parametrize("seed", [*sample(range(20))])
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
    """Merge three ledgers into one object; return its key and their earlier metadata."""
    ledgers = [await closed(client, 9) for _ in range(3)]
    for ledger_id in ledgers:
        await stage.archive(ledger_id)
    before = {each: copy(stage.cluster.metadata.ledgers[each]) for each in ledgers}
    await offloader(stage, SETTINGS).run_pass()
    (home,) = [key for key in await objects(stage) if key.startswith("sets/")]
    return ledgers, home, before  # type: ignore[return-value]


@scenario(deadline_seconds=6_000)
async def test_metadata_from_before_a_merge_cost_neither_the_merged_object_nor_its_lines_in_the_manifest(
    cluster: MemoryCluster, client: Client
) -> None:
    async with ArchiveStage(cluster, SETTINGS) as stage:
        ledgers, home, before = await merged(stage, client)
        worker = offloader(stage, SETTINGS)
        for _ in range(3):
            await cluster.world.clock.sleep(DELAY_S)
            await worker.run_pass()
        assert await objects(stage) == [home], "what was merged is gone"
        cluster.metadata.ledgers.update(before)  # type: ignore[arg-type]
        for _ in range(3):
            worker = offloader(stage, SETTINGS)
            await worker.run_pass()
            assert "older copy" in worker.totals.last_error
            await cluster.world.clock.sleep(DELAY_S)
        manifest = await read_manifest(stage.store, InlineWorkers())
        assert manifest is not None
        assert (manifest.ledgers, await objects(stage)) == (dict.fromkeys(ledgers, home), [home])


@scenario(deadline_seconds=6_000)
async def test_merged_objects_stay_while_the_new_object_is_missing(cluster: MemoryCluster, client: Client) -> None:
    async with ArchiveStage(cluster, SETTINGS) as stage:
        _, home, _ = await merged(stage, client)
        found: ObjectInfo = await stage.store.info(home)
        kept = await stage.store.read(home, 0, found.size_bytes)
        await stage.store.delete(home)
        before, worker = await objects(stage), offloader(stage, SETTINGS)
        for _ in range(3):
            await worker.run_pass()
            assert home in worker.totals.last_error or "stay" in worker.totals.last_error
            await cluster.world.clock.sleep(DELAY_S)
        assert await objects(stage) == before
        await stage.store.put(home, kept)
        for _ in range(2):
            await worker.run_pass()
            await cluster.world.clock.sleep(DELAY_S)
        assert await objects(stage) == [home], "once it is back, the others go"


@pytest.mark.parametrize("shared", [False, True], ids=["own object", "shared object"])
@pytest.mark.parametrize("when", ["kept", "deleted once archived", "deleted before"])
@scenario(deadline_seconds=60_000)
async def test_an_object_of_a_ledger_whose_id_another_one_has_stays_though_the_manifest_has_named_it(
    cluster: MemoryCluster, client: Client, *, when: str, shared: bool
) -> None:
    """The metadata are lost, and the new cluster creates a ledger before it takes the bucket over."""
    store = Watched(cluster.world.clock)
    async with ArchiveStage(cluster, SETTINGS, store=store) as stage:
        taken, other = [await closed(client, 9 if shared else 120) for _ in range(2)]
        await offloader(stage, SETTINGS).run_pass()
        held = {key: held for key, held in (await held_in(store)).items() if any(each == taken for each, _ in held)}
        lost, said = await client.ledger_metadata(taken), ""
        cluster.metadata.ledgers.clear()
        cluster.metadata.cluster_id = "another"
        metadata = cluster.metadata.client().store
        await another_of(metadata, lost, cluster.world.rng)
        rebuilt = [each async for each in rebuild_catalog(store, metadata, InlineWorkers())]
        assert [each.others for each in rebuilt if each.others] == [(taken,)]
        await claim_bucket(store, metadata, InlineWorkers())
        for at in range(5):
            if at == {"kept": None, "deleted once archived": 2, "deleted before": 0}[when]:
                found = await metadata.read_ledger(taken)
                await metadata.delete_ledger(taken, found.version, found.value.identity)
                store.deleted.add((taken, found.value.identity))
            if at == 3 and shared:
                found = await metadata.read_ledger(other)
                await metadata.delete_ledger(other, found.version, found.value.identity)
                store.deleted.add((other, found.value.identity))
            worker = offloader(stage, SETTINGS)
            await worker.run_pass()
            await cluster.world.clock.sleep(DELAY_S)
            said = worker.totals.last_error
        assert held.items() <= (await held_in(store)).items()
        assert f"ledger {taken}" in said
        manifest = await read_manifest(store, InlineWorkers())
        assert manifest is not None
        assert not manifest.objects & held.keys(), "it counts as an object that is younger than the manifest"


@pytest.mark.parametrize("how", ["damaged", "hanging"])
@scenario(deadline_seconds=60_000)
async def test_an_unreadable_object_stays_although_another_ledger_has_an_id_of_one_in_it(
    cluster: MemoryCluster, client: Client, *, how: str
) -> None:
    store = Shy(cluster.world.clock)
    async with ArchiveStage(cluster, SETTINGS, store=store) as stage:
        taken = await closed(client, 120)
        await offloader(stage, SETTINGS).run_pass()
        (key,) = await objects(stage)
        whole = await store.read(key, 0, (await store.info(key)).size_bytes)
        lost = await client.ledger_metadata(taken)
        cluster.metadata.ledgers.clear()
        await another_of(cluster.metadata.client().store, lost, cluster.world.rng)
        await stage.archive(taken)
        if how == "damaged":
            await store.put(key, whole[:-100])
        else:
            store.hang.add(key)
        for _ in range(4):
            worker = offloader(stage, SETTINGS)
            await worker.run_pass()
            await cluster.world.clock.sleep(DELAY_S)
            assert key in worker.totals.last_error
        manifest = await read_manifest(store, InlineWorkers())
        assert manifest is not None
        assert (manifest.ledgers, dict(manifest.dropped)) == ({taken: key}, {})
        assert key in await objects(stage)
        store.hang.clear()
        await store.put(key, whole)
        worker = offloader(stage, SETTINGS)
        await worker.run_pass()
        assert f"do not know ledger {taken}" in worker.totals.last_error, "it says itself whose it is"
        manifest = await read_manifest(store, InlineWorkers())
        assert manifest is not None
        assert manifest.ledgers[taken] != key


@scenario(deadline_seconds=6_000)
async def test_an_object_that_cannot_be_read_goes_where_its_ledgers_were_deleted(
    cluster: MemoryCluster, client: Client
) -> None:
    store = Shy(cluster.world.clock)
    async with ArchiveStage(cluster, SETTINGS, store=store) as stage:
        ledger_id = await closed(client, 120)
        await offloader(stage, SETTINGS).run_pass()
        store.hang = set(await objects(stage))
        await client.delete_ledger(ledger_id)
        await offloader(stage, SETTINGS).run_pass()
        manifest = await read_manifest(store, InlineWorkers())
        assert manifest is not None
        assert (manifest.ledgers, set(manifest.dropped)) == ({}, store.hang)


@scenario(deadline_seconds=6_000)
async def test_an_object_that_no_manifest_has_named_stays_though_its_ledger_goes_within_a_pass(
    cluster: MemoryCluster, client: Client
) -> None:
    """Its record is damaged, and the operator removes it to restore the ledger from the bucket."""

    class Mended(Watched):
        remove: int | None = None

        async def unfinished_uploads(self) -> list[UnfinishedUpload]:
            cluster.metadata.ledgers.pop(self.remove, None)  # type: ignore[arg-type]
            return list(await super().unfinished_uploads())

    store = Mended(cluster.world.clock)
    async with ArchiveStage(cluster, SETTINGS, store=store) as stage:
        worker = offloader(stage, SETTINGS)
        await closed(client, 120)
        await worker.run_pass()
        ledger_id = await closed(client, 120)
        await stage.archive(ledger_id)
        cluster.metadata.ledgers[ledger_id].value = b"damaged"
        for _ in range(3):
            await worker.run_pass()
            await cluster.world.clock.sleep(DELAY_S)
        store.remove = ledger_id
        await worker.run_pass()
        assert ledger_id not in cluster.metadata.ledgers
        assert len(await objects(stage)) == 2
        store.remove = None
        rebuilt = [each async for each in rebuild_catalog(store, cluster.metadata.client().store, InlineWorkers())]
        assert [each.ledger_ids for each in rebuilt if each.ledger_ids] == [(ledger_id,)]
