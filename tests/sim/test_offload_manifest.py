"""Listings from the bucket alone: after compaction, after deletion, and with offloaders that run rarely."""

import importlib
import re
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tallybook.archive.library import ArchiveLibrary
from tallybook.archive.manifest import MANIFEST_KEY, read_manifest
from tallybook.archive.objects.memory import MemoryObjectStore
from tallybook.client.client import Client
from tallybook.core.buffers import Buffer
from tallybook.core.errors import (
    ArchiveDenied,
    ArchiveKeyMissing,
    ArchiveUnavailable,
    NoSuchLedger,
    ObjectDamaged,
    TallybookError,
)
from tallybook.core.settings import OffloadSettings
from tallybook.metadata.memory import MemoryMetadata
from tallybook.offload.rebuild import claim_bucket, rebuild_catalog
from tallybook.runtime.clock import Clock
from tallybook.runtime.rng import SeededRng
from tallybook.runtime.tasks import InlineWorkers

from ..simulated import scenario
from ..support.archive_stage import ArchiveStage
from ..support.ledger_scenario import lines
from ..support.memory_cluster import MemoryCluster
from .parts import closed_id as closed
from .parts import object_keys as objects
from .parts import offloader

SETTINGS = OffloadSettings(
    row_group_bytes=4096,
    own_object_bytes=1_500,
    set_object_bytes=4_000,
    set_object_ledgers=5,
    max_set_wait_s=0,
    compact_below_bytes=1_000,
    deletion_lag_s=60,
    attempt_ttl_s=100,
    orphan_delay_s=50,
    tidy_interval_s=0,
)


async def merged_and_deleted(stage: ArchiveStage, client: Client) -> dict[int, int]:
    """Merged ledgers, one of them deleted later, and two ledgers in objects of their own, one of them deleted."""
    small = [await closed(client, 9) for _ in range(3)]
    large, gone = await closed(client, 120), await closed(client, 120)
    for ledger_id in (*small, large, gone):
        await stage.archive(ledger_id)
    worker = offloader(stage, SETTINGS)
    await worker.run_pass()
    assert worker.totals.ledgers_moved == 3
    await client.delete_ledger(small[0])
    await client.delete_ledger(gone)
    await worker.run_pass()
    assert len(await objects(stage)) == 6, "nothing was removed so far"
    return {small[1]: 9, small[2]: 9, large: 120}


@scenario()
async def test_the_bucket_alone_has_each_ledger_once_and_none_that_was_deleted(
    cluster: MemoryCluster, client: Client
) -> None:
    async with ArchiveStage(cluster, SETTINGS) as stage:
        living = await merged_and_deleted(stage, client)
        async with ArchiveLibrary(stage.store, InlineWorkers()) as library:
            assert {each: found.receipt.entries for each, found in library.ledgers.items()} == living
        fresh = MemoryMetadata(SeededRng(5)).client().store
        async for rebuilt in rebuild_catalog(stage.store, fresh, InlineWorkers()):
            assert not rebuilt.problem
        assert (await fresh.list_ledgers()).ledger_ids == tuple(living)


def write_files(folder: str, objects: dict[str, bytes]) -> None:
    for key, data in objects.items():
        path = Path(folder, key)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)


@scenario()
async def test_a_ledger_in_an_object_that_is_lost_or_damaged_is_not_called_absent(
    cluster: MemoryCluster, client: Client
) -> None:
    async with ArchiveStage(cluster, SETTINGS) as stage:
        lost, damaged, deleted = [await closed(client, 120) for _ in range(3)]
        await offloader(stage, SETTINGS).run_pass()
        receipts = [(await client.ledger_metadata(each)).archived for each in (lost, damaged)]
        await client.delete_ledger(deleted)
        await offloader(stage, SETTINGS).run_pass()
        keys = [receipt.key for receipt in receipts if receipt is not None]
        await stage.store.delete(keys[0])
        await stage.store.put(keys[1], b"something else")
        async with ArchiveLibrary(stage.store, InlineWorkers()) as library:
            assert set(library.damaged) == set(keys)
            for ledger_id, key in zip((lost, damaged), keys, strict=True):
                with pytest.raises(ObjectDamaged, match=key):
                    await anext(library.read(ledger_id))
            with pytest.raises(NoSuchLedger):
                await anext(library.read(deleted))


RECIPES: dict[str, tuple[str, Callable[[Any, str], Any]]] = {
    "duckdb": ("sql", lambda duckdb, recipe: duckdb.sql(recipe).to_arrow_table().to_pylist()),
    "polars": ("python", lambda polars, recipe: eval(recipe, {"pl": polars}).to_dicts()),
    "pandas": ("python", lambda pandas, recipe: eval(recipe, {"pd": pandas}).to_dict("records")),
}

PAGE = Path("docs/operate/offload.md").read_text()


@pytest.mark.parametrize("tool", RECIPES)
@scenario()
async def test_the_documented_line_of_another_tool_reads_each_entry_once(
    cluster: MemoryCluster, client: Client, *, tool: str
) -> None:
    library = importlib.import_module(tool)
    language, run = RECIPES[tool]
    recipes = re.findall(rf"{tool}:\n\n```{language}\n(.+?)\n```", PAGE, re.IGNORECASE | re.DOTALL)
    async with ArchiveStage(cluster, SETTINGS) as stage:
        living = await merged_and_deleted(stage, client)
        with tempfile.TemporaryDirectory() as folder:
            found = [each async for page in stage.store.list() for each in page]
            write_files(folder, {each.key: await stage.store.read(each.key, 0, each.size_bytes) for each in found})
            rows = run(library, recipes[0].replace("ARCHIVE", folder))
        got = sorted((row["ledger_id"], row["entry_id"], bytes(row["payload"])) for row in rows)
        wanted = [(each, at, line) for each, count in living.items() for at, line in enumerate(lines(count))]
        assert got == sorted(wanted)


@scenario()
async def test_processes_that_run_only_once_remove_orphans(cluster: MemoryCluster, client: Client) -> None:
    """The next offloader knows orphans that the previous one has seen."""
    async with ArchiveStage(cluster, SETTINGS) as stage:
        living = await merged_and_deleted(stage, client)
        await cluster.world.clock.sleep(SETTINGS.attempt_ttl_s)
        await offloader(stage, SETTINGS).run_pass()
        assert len(await objects(stage)) == 2
        manifest = await read_manifest(stage.store, InlineWorkers())
        assert manifest is not None
        assert set(manifest.ledgers) == set(living)


@pytest.mark.parametrize("wrong", [None, b"no manifest"], ids=["gone", "damaged"])
@scenario(deadline_seconds=6_000)
async def test_the_pass_that_writes_a_manifest_anew_removes_nothing(
    cluster: MemoryCluster, client: Client, *, wrong: bytes | None
) -> None:
    async with ArchiveStage(cluster, SETTINGS) as stage:
        await merged_and_deleted(stage, client)
        worker, before = offloader(stage, SETTINGS), await objects(stage)
        await worker.run_pass()
        await cluster.world.clock.sleep(SETTINGS.attempt_ttl_s)
        if wrong is None:
            await stage.store.delete(MANIFEST_KEY)
        else:
            await stage.store.put(MANIFEST_KEY, wrong)
        await worker.run_pass()
        assert await objects(stage) == before
        assert "nothing is removed in this pass" in worker.totals.last_error
        assert await read_manifest(stage.store, InlineWorkers()) is not None
        await worker.run_pass()
        assert len(await objects(stage)) == 2


class Counting(MemoryObjectStore):
    """Counts replacements of the manifest, and can refuse them."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.replaced = 0
        self.refuses = False

    async def put(self, key: str, data: Buffer) -> None:
        if key == MANIFEST_KEY:
            if self.refuses:
                raise ArchiveDenied("memory: put of _manifest.parquet: HTTP 403 AccessDenied")
            self.replaced += 1
        await super().put(key, data)


@scenario()
async def test_the_manifest_is_replaced_only_when_it_changes_and_again_where_another_process_has_replaced_it(
    cluster: MemoryCluster, client: Client
) -> None:
    store = Counting(cluster.world.clock)
    async with ArchiveStage(cluster, SETTINGS, store=store) as stage:
        await closed(client, 120)
        worker = offloader(stage, SETTINGS)
        for _ in range(3):
            await worker.run_pass()
            await cluster.world.clock.sleep(1)
        assert store.replaced == 1
        await offloader(stage, SETTINGS).run_pass()
        assert store.replaced == 1, "another process finds it as it is to be"
        right = await read_manifest(store, InlineWorkers())
        for wrong in (b"no manifest", None):
            if wrong is None:
                await store.delete(MANIFEST_KEY)
            else:
                await store.put(MANIFEST_KEY, wrong)
            await worker.run_pass()
            assert await read_manifest(store, InlineWorkers()) == right


@scenario()
async def test_no_object_is_removed_while_the_manifest_cannot_be_written(
    cluster: MemoryCluster, client: Client
) -> None:
    store = Counting(cluster.world.clock)
    async with ArchiveStage(cluster, SETTINGS, store=store) as stage:
        ledger_id = await closed(client, 120)
        worker = offloader(stage, SETTINGS)
        await worker.run_pass()
        store.refuses = True
        await client.delete_ledger(ledger_id)
        for _ in range(3):
            await worker.run_pass()
            await cluster.world.clock.sleep(SETTINGS.attempt_ttl_s)
        assert (len(await objects(stage)), "manifest is not written" in worker.totals.last_error) == (1, True)
        store.refuses = False
        await worker.run_pass()
        assert await objects(stage) == []


@scenario()
async def test_in_the_bucket_of_another_cluster_nothing_is_removed_until_its_catalog_was_rebuilt(
    cluster: MemoryCluster, client: Client
) -> None:
    async with ArchiveStage(cluster, SETTINGS) as stage:
        living = await merged_and_deleted(stage, client)
        before, fresh = await objects(stage), MemoryMetadata(SeededRng(5))
        worker = offloader(stage, SETTINGS, metadata=fresh)
        for _ in range(3):
            await worker.run_pass()
            await cluster.world.clock.sleep(SETTINGS.attempt_ttl_s)
        assert await objects(stage) == before
        assert "rebuild-catalog" in worker.totals.last_error
        async for rebuilt in rebuild_catalog(stage.store, fresh.client().store, InlineWorkers()):
            assert not rebuilt.problem
        await claim_bucket(stage.store, fresh.client().store, InlineWorkers())
        await worker.run_pass()
        async with ArchiveLibrary(stage.store, InlineWorkers()) as library:
            assert set(library.ledgers) == set(living)
        assert len(await objects(stage)) == 2


class Unread(MemoryObjectStore):
    """Raises ``error`` for the next reads of the manifest."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.error: TallybookError | None = None
        self.times = 0

    async def read(self, key: str, offset: int, size: int) -> bytes:
        if key == MANIFEST_KEY and self.error is not None and self.times:
            self.times -= 1
            raise self.error
        return await super().read(key, offset, size)


async def manifest_bytes(store: MemoryObjectStore) -> bytes:
    return await MemoryObjectStore.read(store, MANIFEST_KEY, 0, (await store.info(MANIFEST_KEY)).size_bytes)


UNREAD: dict[str, TallybookError | None] = {
    "newer format": None,
    "timed out": ArchiveUnavailable("memory: read of _manifest.parquet: timed out"),
    "key missing": ArchiveKeyMissing("memory: _manifest.parquet: its key is not here"),
}


@pytest.mark.parametrize("why", UNREAD)
@scenario()
async def test_a_manifest_that_could_not_be_read_once_is_not_replaced_by_later_passes_of_the_process(
    cluster: MemoryCluster, client: Client, *, why: str
) -> None:
    store = Unread(cluster.world.clock)
    async with ArchiveStage(cluster, SETTINGS, store=store) as stage:
        await merged_and_deleted(stage, client)
        before = await objects(stage)
        if (error := UNREAD[why]) is None:
            table = pq.read_table(pa.BufferReader(await manifest_bytes(store)))
            newer = {**table.schema.metadata, b"tallybook.manifest": b"2"}
            out = pa.BufferOutputStream()
            pq.write_table(table.replace_schema_metadata(newer), out)
            await store.put(MANIFEST_KEY, out.getvalue().to_pybytes())
        store.error, store.times = error, 1
        kept, worker = await manifest_bytes(store), offloader(stage, SETTINGS)
        for _ in range(3):
            with suppress(ArchiveUnavailable):
                await worker.run_pass()
            assert await manifest_bytes(store) == kept
        assert await objects(stage) == before


@scenario()
async def test_a_manifest_that_the_store_refuses_is_written_anew_only_over_objects_that_the_metadata_explain(
    cluster: MemoryCluster, client: Client
) -> None:
    store = Unread(cluster.world.clock)
    async with ArchiveStage(cluster, SETTINGS, store=store) as stage:
        ledger_id = await closed(client, 120)
        await offloader(stage, SETTINGS).run_pass()
        kept, row = await manifest_bytes(store), cluster.metadata.ledgers.pop(ledger_id)
        store.error, store.times = ArchiveDenied("memory: HTTP 403 InvalidObjectState"), 1_000
        worker = offloader(stage, SETTINGS)
        for at in range(3):
            await worker.run_pass()
            assert (await manifest_bytes(store), worker.totals.rounds) == (kept, at + 1), "it ends no round"
            assert "InvalidObjectState" in worker.totals.last_error
        cluster.metadata.ledgers[ledger_id] = row
        for _ in range(2):
            await worker.run_pass()
        store.times = 0
        await worker.run_pass()
        manifest = await read_manifest(store, InlineWorkers())
        assert manifest is not None
        assert list(manifest.ledgers) == [ledger_id]
