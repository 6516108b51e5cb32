"""Memory that an offloader keeps for its work, and when it returns freed memory."""

from tallybook.archive.objects.retries import RetryingStore, RetryPolicy
from tallybook.archive.reader import ArchiveReader
from tallybook.client.background import client_tasks
from tallybook.client.client import Client
from tallybook.offload.offloader import Offloader
from tallybook.offload.open_archive import Archive
from tallybook.offload.service import OffloadService
from tallybook.runtime.tasks import InlineWorkers, Tasks, Workers

from ..simulated import scenario
from ..support.archive_stage import ArchiveStage
from ..support.memory_cluster import MemoryCluster
from .parts import closed_ledger as closed
from .parts import object_keys as keys
from .parts import offloader
from .test_offloader import EAGER


def opened(stage: ArchiveStage, tasks: Tasks) -> Archive:
    """The archive of the stage, for another process."""
    world = stage.cluster.world
    store = RetryingStore(stage.store, RetryPolicy(world.clock, world.rng.fork("patience")))
    metadata = stage.cluster.metadata.client().store
    return Archive(metadata, store, InlineWorkers(), tasks, world.clock, world.rng.fork("process"))


@scenario()
async def test_nothing_is_kept_in_memory_of_an_object_that_was_removed(cluster: MemoryCluster, client: Client) -> None:
    ledgers = [await closed(client, 9) for _ in range(12)]
    tasks = client_tasks("offloader")
    async with ArchiveStage(cluster, EAGER) as stage:
        for ledger in ledgers:
            await stage.archive(ledger.id)
            await stage.release(ledger.id)
        worker = offloader(stage, EAGER, reader=ArchiveReader(stage.store, InlineWorkers(), tasks))
        await worker.run_pass()
        assert len({key for key, _ in stage.reader._index}) == 12, "they were read to be merged"
        await cluster.world.clock.sleep(EAGER.attempt_ttl_s)
        await worker.run_pass()
        await cluster.world.clock.sleep(EAGER.orphan_delay_s)
        await worker.run_pass()
        assert worker.totals.objects_removed == 12
        assert {key for key, _ in stage.reader._index} <= set(await keys(stage))
        assert not stage.reader._pages
    await tasks.close()


@scenario()
async def test_nothing_is_kept_in_memory_of_a_directory_that_is_looked_at_once(
    cluster: MemoryCluster, client: Client
) -> None:
    ledgers = [await closed(client, 9) for _ in range(10)]
    tasks = client_tasks("offloader")
    async with ArchiveStage(cluster, EAGER) as stage:
        worker = opened(stage, tasks).offloader(stage.client, EAGER)
        await cluster.world.clock.sleep(EAGER.max_set_wait_s)
        await worker.run_pass()
        await cluster.world.clock.sleep(EAGER.deletion_lag_s)
        await worker.run_pass()
        assert worker.totals.ledgers_released == len(ledgers)
        assert not worker._reader._index
    await tasks.close()


def serving(stage: ArchiveStage, tasks: Tasks) -> tuple[Offloader, list[int]]:
    """Run an offloader as a service; return it, and the passes after which memory was returned."""
    place = opened(stage, tasks)
    worker, given = place.offloader(stage.client, EAGER), list[int]()

    async def give_back(_: Workers) -> None:
        given.append(worker.totals.rounds)

    tasks.spawn(OffloadService(place, worker, EAGER, give_back).lead(), name="service")
    return worker, given


@scenario()
async def test_memory_is_returned_after_a_pass_without_work_that_follows_one_with_work(
    cluster: MemoryCluster, client: Client
) -> None:
    clock, tasks = cluster.world.clock, client_tasks("offloader")
    await closed(client, 120)
    async with ArchiveStage(cluster, EAGER) as stage:
        worker, given = serving(stage, tasks)
        await clock.sleep(3.5 * EAGER.interval_s)
        for _ in range(2):
            await closed(client, 120)
            await clock.sleep(EAGER.interval_s)
        await clock.sleep(3 * EAGER.interval_s)
        assert (given, worker.totals.rounds) == ([2, 7], 9)
        await tasks.close()


@scenario()
async def test_memory_of_an_earlier_term_is_freed_in_the_next(cluster: MemoryCluster, client: Client) -> None:
    tasks = client_tasks("offloader")
    async with ArchiveStage(cluster, EAGER) as stage:
        worker, given = serving(stage, tasks)
        await cluster.world.clock.sleep(3.5 * EAGER.interval_s)
        assert (given, worker.totals.rounds) == ([1], 4)
        await tasks.close()
