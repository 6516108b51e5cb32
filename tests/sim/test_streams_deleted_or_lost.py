"""Stream records missing in the metadata: deleted streams stay deleted, and lost ones are restored."""

import pytest

from tallybook.archive.stream_records import RecordsCopy, read_records
from tallybook.client.client import Client
from tallybook.offload.rebuild import rebuild_catalog
from tallybook.runtime.tasks import InlineWorkers
from tallybook.stream import StreamStore
from tallybook.stream.restore.restore import RestoredRecord, restore_streams

from ..simulated import scenario
from ..support.archive_stage import ArchiveStage
from ..support.ledger_scenario import SMALL, lines
from ..support.memory_cluster import MemoryCluster
from .parts import offloader, one_stream
from .test_streams_restored import SETTINGS


async def rebuilt(stage: ArchiveStage, cluster: MemoryCluster, *, own: bool = True) -> list[RestoredRecord]:
    """Result of ``rebuild-catalog`` for the stream records."""
    store = cluster.metadata.client().store
    async for each in rebuild_catalog(stage.store, store, InlineWorkers()):
        assert not each.problem
    copy: RecordsCopy = await read_records(stage.store, InlineWorkers())
    found = [each async for each in restore_streams(store, copy, own=own)]
    assert [each.problem for each in found if each.problem] == []
    return found


async def written(streams: StreamStore, name: str, *, subscription: str = "") -> None:
    """A stream of some records with a subscription after the last one."""
    await streams.create(name)
    async with await streams.writer(name) as writer:
        last = [await writer.append(line) for line in lines(5)][-1]
    if subscription:
        async with await streams.subscribe(name, subscription) as reader:
            await reader.advance(last)


async def lose(cluster: MemoryCluster, prefix: str = "stream-") -> None:
    """Remove records from the metadata store."""
    store = cluster.metadata.client().store
    for name in (await store.list_records(prefix)).names:
        record = await store.read_record(name)
        assert record is not None
        await store.delete_record(name, record.version)


async def subscriptions(streams: StreamStore, name: str) -> list[str]:
    return [each.name async for each in streams.subscriptions(name)]


@scenario()
async def test_streams_deleted_since_the_last_copy_stay_deleted_on_a_living_cluster(
    cluster: MemoryCluster, client: Client
) -> None:
    async with (
        ArchiveStage(cluster, SETTINGS) as stage,
        StreamStore(client) as streams,
        StreamStore(client, namespace="tenant") as others,
    ):
        for name in ("kept", "deleted", "reused", "renamed"):
            await written(streams, name, subscription="sub")
        await others.create_namespace()
        await written(others, "a")
        await offloader(stage, SETTINGS).run_pass()
        await streams.delete("deleted")
        await streams.delete("reused")
        await streams.create("reused")
        await streams.rename("renamed", "newly named")
        await others.delete("a")
        await others.delete_namespace()
        found = await rebuilt(stage, cluster)
        assert [name async for name in streams.list()] == ["kept", "newly named", "reused"]
        assert [name async for name in streams.namespaces()] == ["default"]
        assert await subscriptions(streams, "kept") == await subscriptions(streams, "newly named") == ["sub"]
        assert await subscriptions(streams, "reused") == []
        deleted = [each.name for each in found if each.deleted]
        assert {"stream-names/default/deleted", "stream-names/default/reused", "stream-namespaces/tenant"} <= {*deleted}
        assert not any(each.known or each.lost for each in found if each.deleted)
        left = (await cluster.metadata.client().store.list_records("stream-")).names
        assert not set(deleted) & {name for name in left if name != "stream-names/default/reused"}


@scenario()
async def test_a_deletion_in_another_cluster_says_nothing_of_the_ledgers_of_the_copy(
    cluster: MemoryCluster, client: Client
) -> None:
    async with ArchiveStage(cluster, SETTINGS) as stage:
        async with one_stream(client) as streams:
            writer = await streams.writer("s")
            await writer.append(b"never archived")
            await offloader(stage, SETTINGS).run_pass()
            await writer.close()
        fresh = MemoryCluster(cluster.world, bookies=3)
        await fresh.start()
        async with fresh.client(SMALL) as other:
            for _ in range(3):
                ledger = await other.create_ledger()
                await ledger.close()
                await other.delete_ledger(ledger.id)
            await rebuilt(stage, fresh, own=False)
            async with StreamStore(other) as streams:
                assert [name async for name in streams.list()] == ["s"]
        await fresh.stop()


@scenario()
async def test_a_namespace_comes_back_only_where_a_stream_of_it_does(cluster: MemoryCluster, client: Client) -> None:
    async with ArchiveStage(cluster, SETTINGS) as stage:
        for namespace in ("deleted", "lost", "empty"):
            async with StreamStore(client, namespace=namespace) as streams:
                await streams.create_namespace()
                await written(streams, "a")
        await offloader(stage, SETTINGS).run_pass()
        for namespace in ("deleted", "empty"):
            async with StreamStore(client, namespace=namespace) as streams:
                await streams.delete("a")
                if namespace == "deleted":
                    await streams.delete_namespace()
        await offloader(stage, SETTINGS).run_pass()
        fresh = MemoryCluster(cluster.world, bookies=3)
        await fresh.start()
        found = await rebuilt(stage, fresh, own=False)
        assert "stream-namespaces/deleted" in [each.name for each in found if each.deleted]
        async with fresh.client(SMALL) as other, StreamStore(other) as streams:
            assert [name async for name in streams.namespaces()] == ["default", "empty", "lost"]
        await fresh.stop()


@pytest.mark.parametrize("copied", [True, False], ids=["copied", "not-copied"])
@scenario()
async def test_a_subscription_at_rest_comes_back_with_its_stream_unless_it_was_deleted_before(
    cluster: MemoryCluster, client: Client, *, copied: bool
) -> None:
    async with ArchiveStage(cluster, SETTINGS) as stage, StreamStore(client) as streams:
        await written(streams, "s", subscription="billing")
        await written(streams, "t", subscription="x")
        [billing] = [each.cursor async for each in streams.subscriptions("s")]
        async with await streams.subscribe("s", "deleted before"):
            pass
        await offloader(stage, SETTINGS).run_pass()
        await streams.unsubscribe("s", "deleted before")
        await streams.unsubscribe("t", "x")
        await offloader(stage, SETTINGS).run_pass()
        await cluster.world.clock.sleep(1)
        await lose(cluster, "stream-")
        if copied:
            await offloader(stage, SETTINGS).run_pass()
        found = await rebuilt(stage, cluster)
        assert [name async for name in streams.list()] == ["s", "t"]
        assert await subscriptions(streams, "s") == ["billing"]
        assert await subscriptions(streams, "t") == []
        gone = [each.name for each in found if each.deleted]
        assert [name.rpartition("/")[2] for name in gone] in (["deleted before", "x"], ["x", "deleted before"])
        assert [each.cursor async for each in streams.subscriptions("s")] == [billing]
        assert [each for each in await rebuilt(stage, cluster) if not (each.known or each.deleted)] == []


@scenario()
async def test_a_subscription_of_a_stream_that_came_back_comes_back_in_the_next_run(
    cluster: MemoryCluster, client: Client
) -> None:
    async with ArchiveStage(cluster, SETTINGS) as stage, StreamStore(client) as streams:
        await written(streams, "s", subscription="billing")
        await offloader(stage, SETTINGS).run_pass()
        await lose(cluster)
        await offloader(stage, SETTINGS).run_pass()
        await rebuilt(stage, cluster)
        await lose(cluster, "stream-subscriptions/")
        await rebuilt(stage, cluster)
        assert await subscriptions(streams, "s") == ["billing"]


@scenario()
async def test_a_record_of_which_it_is_not_known_whether_it_was_deleted_is_named(
    cluster: MemoryCluster, client: Client
) -> None:
    async with ArchiveStage(cluster, SETTINGS) as stage, StreamStore(client) as streams:
        await streams.create("empty")
        await offloader(stage, SETTINGS).run_pass()
        await lose(cluster)
        await offloader(stage, SETTINGS).run_pass()
        assert "stream-names/default/empty" in [each.name for each in await rebuilt(stage, cluster) if each.deleted]
