"""Queries of a bucket without its cluster: which objects they read, and what they report of missing ones."""

from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest

from tallybook.archive.catalog import read_catalog
from tallybook.archive.manifest import MANIFEST_KEY, Manifest, write_manifest
from tallybook.archive.objects.memory import MemoryObjectStore
from tallybook.archive.objects.port import ObjectStore
from tallybook.client.client import Client
from tallybook.core.errors import ArchiveDenied, InvalidConfig, NoSuchLedger, ObjectDamaged
from tallybook.core.ranges import LedgerEntryRange
from tallybook.metadata.ledger.model import DigestType
from tallybook.runtime.tasks import InlineWorkers, Tasks
from tallybook.spark.ledgers.planning import cut, resolve_snapshot
from tallybook.spark.ledgers.reading import read_partition
from tallybook.spark.locations import BucketLocation, OpenedArchive, TaskBucketLocation
from tallybook.spark.options import LocationOptions, ReadOptions
from tallybook.spark.query.gaps import EntryGap
from tallybook.spark.query.id_ranges import IdRanges
from tallybook.spark.query.partitions import EntryPartition
from tallybook.spark.query.snapshot import Snapshot

from ..simulated import scenario
from ..support.archive_stage import ArchiveStage
from ..support.ledger_scenario import lines
from ..support.memory_cluster import MemoryCluster

URL = "memory:"


class Watched:
    """An object store that records requests."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self.asked: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def list(self) -> Any:
        self.asked.add("list")
        return self._store.list()

    async def read(self, key: str, offset: int, size: int) -> bytes:
        self.asked.add(key)
        return await self._store.read(key, offset, size)


@asynccontextmanager
async def archived(cluster: MemoryCluster, client: Client) -> AsyncIterator[tuple[OpenedArchive, list[str]]]:
    """Four ledgers in objects of their own, the last one with keyed digests; and the keys of the objects."""
    async with ArchiveStage(cluster) as stage:
        keys = []
        for number in range(4):
            signed = {"password": b"x", "digest": DigestType.HMAC_SHA256} if number == 3 else {}
            ledger = await client.create_ledger(**signed)  # type: ignore[arg-type]
            await ledger.append_many(lines(5))
            await ledger.close()
            await stage.archive(ledger.id)
            found = await client.ledger_metadata(ledger.id)
            assert found.archived is not None
            keys.append(found.archived.key)
        tasks = Tasks("spark", _died)
        yield OpenedArchive(Watched(stage.store), InlineWorkers(), tasks), keys  # type: ignore[arg-type]
        await tasks.close()


async def partitions(archive: OpenedArchive) -> list[EntryPartition]:
    """One partition per entry, as planned by the driver."""
    place = BucketLocation(URL, archive, await read_catalog(archive.store, archive.workers))
    options = ReadOptions(LocationOptions(None, URL, b"x"), min_partitions=100)
    snapshot, known, _ = await resolve_snapshot(place, options)
    return await cut(place, options, snapshot, known)


async def gaps(archive: OpenedArchive, partition: EntryPartition) -> list[EntryGap]:
    """Gaps that a task reports."""
    async with aclosing(read_partition(TaskBucketLocation(URL, archive, partition), partition)) as found:
        return [each async for each in found if isinstance(each, EntryGap)]


async def counted(archive: OpenedArchive, cluster_id: str, keys: list[str]) -> None:
    """Write the manifest."""
    await write_manifest(archive.store, archive.workers, Manifest(cluster_id, dict(enumerate(keys)), {}))


async def read(archive: OpenedArchive, partition: EntryPartition) -> tuple[list[tuple[int, int]], set[str]]:
    """Entries that a task returns, and its requests."""
    archive.store.asked.clear()  # type: ignore[attr-defined]
    entries = []
    async with aclosing(read_partition(TaskBucketLocation(URL, archive, partition), partition)) as found:
        async for each in found:
            assert not isinstance(each, EntryGap)
            pairs = zip(each.table["ledger_id"].to_pylist(), each.table["entry_id"].to_pylist(), strict=True)
            entries += pairs
    return entries, archive.store.asked  # type: ignore[attr-defined]


@scenario()
async def test_a_task_asks_a_bucket_for_its_own_objects_only(cluster: MemoryCluster, client: Client) -> None:
    async with archived(cluster, client) as (archive, keys):
        planned = await partitions(archive)
        assert len(planned) == 20
        for partition in planned:
            [planned_range] = partition.planned_ranges
            assert planned_range.receipt is not None
            entries, asked = await read(archive, partition)
            assert entries == [(planned_range.ledger_id, planned_range.first)]
            assert asked == {planned_range.receipt.key}
            assert planned_range.scannable is (planned_range.receipt.key != keys[3])


@scenario()
async def test_a_task_whose_object_is_gone_searches_the_bucket_for_another_one(
    cluster: MemoryCluster, client: Client
) -> None:
    async with archived(cluster, client) as (archive, keys):
        planned = await partitions(archive)
        for key in (keys[0], keys[3]):
            piece = next(each for each in planned if each.planned_ranges[0].receipt.key == key)  # type: ignore[union-attr]
            data = await archive.store.read(key, 0, (await archive.store.info(key)).size_bytes)
            folder, _, name = key.partition("/")
            await archive.store.put(f"{folder}/{'1' * 19}{name[19:]}", data)
            await archive.store.delete(key)
            entries, asked = await read(archive, piece)
            assert entries == [(piece.planned_ranges[0].ledger_id, 0)]
            assert "list" in asked


@scenario()
async def test_a_task_that_finds_no_archive_does_not_take_ledgers_for_deleted(
    cluster: MemoryCluster, client: Client
) -> None:
    """As if a disk is not mounted on the machine of the task."""
    async with archived(cluster, client) as (archive, _):
        planned = await partitions(archive)
        empty = OpenedArchive(Watched(MemoryObjectStore(cluster.world.clock)), InlineWorkers(), archive._tasks)  # type: ignore[arg-type]
        for partition in (planned[0], planned[-1]):
            with pytest.raises(ArchiveDenied, match="there is no archive at memory:"):
                await gaps(empty, partition)


@scenario()
async def test_nothing_is_planned_for_a_location_without_an_archive(cluster: MemoryCluster, client: Client) -> None:
    async with ArchiveStage(cluster) as stage:
        with pytest.raises(ArchiveDenied, match="neither a manifest nor an object"):
            await read_catalog(stage.store, InlineWorkers())


@scenario()
async def test_a_task_that_finds_the_archive_of_another_cluster_refuses(cluster: MemoryCluster, client: Client) -> None:
    async with archived(cluster, client) as (archive, keys):
        await counted(archive, "here", keys)
        planned = (await partitions(archive))[0]
        assert planned.cluster_id == "here"
        await archive.store.delete(keys[0])
        await counted(archive, "other", keys)
        with pytest.raises(InvalidConfig, match=r"planned on cluster here, and at memory: .* finds cluster other"):
            await gaps(archive, planned)
        await archive.store.delete(MANIFEST_KEY)
        with pytest.raises(InvalidConfig, match=r"planned on cluster here, .* an archive without a cluster id"):
            await gaps(archive, planned)


@pytest.mark.parametrize("manifest", [True, False])
@scenario()
async def test_a_ledger_that_no_object_has_any_more_is_lost_and_not_deleted(
    cluster: MemoryCluster, client: Client, *, manifest: bool
) -> None:
    async with archived(cluster, client) as (archive, keys):
        if manifest:
            await counted(archive, "here", keys)
        planned = (await partitions(archive))[0]
        token = Snapshot(planned.cluster_id, (LedgerEntryRange(0, 0, 4),))
        await archive.store.delete(keys[0])
        [gap] = await gaps(archive, planned)
        assert (gap.ledger_id, gap.first, gap.last, gap.kind) == (0, 0, 0, "lost")
        place = BucketLocation(URL, archive, await read_catalog(archive.store, archive.workers))
        options = ReadOptions(LocationOptions(None, URL, b"x"), snapshot=token, fail_on_data_loss=False)
        _, _, [gap] = await resolve_snapshot(place, options)
        assert (gap.ledger_id, gap.first, gap.last, gap.kind) == (0, 0, 4, "lost")
        with pytest.raises(ObjectDamaged if manifest else NoSuchLedger, match=r"ledger 0: .*object"):
            await resolve_snapshot(
                place, ReadOptions(LocationOptions(None, URL), ledgers=IdRanges.of([0]), fail_on_data_loss=False)
            )


@scenario()
async def test_a_query_fails_only_for_a_damaged_object_with_ledgers_that_it_wants(
    cluster: MemoryCluster, client: Client
) -> None:
    async with archived(cluster, client) as (archive, keys):
        await counted(archive, "here", keys)
        await archive.store.put(keys[1], b"no object")

        async def planned(wanted: IdRanges | None, snapshot: Snapshot | None = None) -> list[int]:
            place = BucketLocation(URL, archive, await read_catalog(archive.store, archive.workers))
            options = ReadOptions(LocationOptions(None, URL, b"x"), ledgers=wanted, snapshot=snapshot)
            found, _, _ = await resolve_snapshot(place, options)
            return [each.ledger_id for each in found.ranges]

        assert await planned(IdRanges.parse("0,2-3")) == [0, 2, 3]
        assert await planned(None, Snapshot("here", (LedgerEntryRange(2, 0, 4),))) == [2]
        for wanted in (None, IdRanges.of([1]), IdRanges.parse("1-3")):
            with pytest.raises(ObjectDamaged, match=f"1 damaged objects .* {keys[1]}"):
                await planned(wanted)
        await archive.store.delete(MANIFEST_KEY)
        with pytest.raises(ObjectDamaged):
            await planned(IdRanges.of([0]))


def _died(name: str, error: BaseException) -> None:
    raise AssertionError(name) from error
