"""A task over a bucket without its cluster looks at its own objects, unless they are not what they were."""

from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

from tallybook.archive.catalog import read_catalog
from tallybook.archive.objects.port import ObjectStore
from tallybook.client.client import Client
from tallybook.metadata.model import DigestType
from tallybook.runtime.tasks import InlineWorkers, Tasks
from tallybook.sim.stage.archive import ArchiveStage
from tallybook.sim.stage.cluster import MemoryCluster
from tallybook.sim.stage.scenario import lines, scenario
from tallybook.spark.gaps import Gap
from tallybook.spark.options import Place, ReadOptions
from tallybook.spark.places import Bucket, BucketOfTask, OpenedArchive
from tallybook.spark.plan import EntryPartition
from tallybook.spark.planning import cut, settle
from tallybook.spark.reading import read_partition

URL = "memory:"


class Watched:
    """An object store that tells what it was asked for."""

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
    """Four ledgers, each in an object of its own, the last one with digests by a key; and the keys of the objects."""
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
    """A partition for each entry, as the driver plans them."""
    place = Bucket(URL, archive, await read_catalog(archive.store, archive.workers))
    options = ReadOptions(Place(None, URL, b"x"), min_partitions=100)
    snapshot, known, _ = await settle(place, options)
    return await cut(place, options, snapshot, known)


async def read(archive: OpenedArchive, partition: EntryPartition) -> tuple[list[tuple[int, int]], set[str]]:
    """The entries that a task gives, and what it has asked for."""
    archive.store.asked.clear()  # type: ignore[attr-defined]
    entries = []
    async with aclosing(read_partition(BucketOfTask(URL, archive, partition), partition)) as found:
        async for each in found:
            assert not isinstance(each, Gap)
            pairs = zip(each.table["ledger_id"].to_pylist(), each.table["entry_id"].to_pylist(), strict=True)
            entries += pairs
    return entries, archive.store.asked  # type: ignore[attr-defined]


@scenario()
async def test_a_task_asks_a_bucket_for_its_own_objects_only(cluster: MemoryCluster, client: Client) -> None:
    async with archived(cluster, client) as (archive, keys):
        planned = await partitions(archive)
        assert len(planned) == 20
        for partition in planned:
            [stretch] = partition.stretches
            assert stretch.receipt is not None
            entries, asked = await read(archive, partition)
            assert entries == [(stretch.ledger_id, stretch.first)]
            assert asked == {stretch.receipt.key}
            assert stretch.scannable is (stretch.receipt.key != keys[3])


@scenario()
async def test_a_task_whose_object_is_gone_looks_through_the_bucket_for_another_one(
    cluster: MemoryCluster, client: Client
) -> None:
    async with archived(cluster, client) as (archive, keys):
        planned = await partitions(archive)
        for key in (keys[0], keys[3]):
            piece = next(each for each in planned if each.stretches[0].receipt.key == key)  # type: ignore[union-attr]
            data = await archive.store.read(key, 0, (await archive.store.info(key)).size_bytes)
            folder, _, name = key.partition("/")
            await archive.store.put(f"{folder}/{'1' * 19}{name[19:]}", data)
            await archive.store.delete(key)
            entries, asked = await read(archive, piece)
            assert entries == [(piece.stretches[0].ledger_id, 0)]
            assert "list" in asked


def _died(name: str, error: BaseException) -> None:
    raise AssertionError(name) from error
