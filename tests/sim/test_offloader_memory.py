"""What an offloader keeps in memory of what it has done, and when it gives back what was freed."""

from tallybook.archive.objects.patience import Patience
from tallybook.archive.objects.patient import PatientStore
from tallybook.archive.reader import ArchiveReader
from tallybook.client.background import client_tasks
from tallybook.client.client import Client
from tallybook.offload.offloader import Offloader
from tallybook.offload.process import Archive
from tallybook.offload.service import OffloadService
from tallybook.runtime.tasks import InlineWorkers, Tasks, Workers
from tallybook.sim.stage.archive import ArchiveStage
from tallybook.sim.stage.cluster import MemoryCluster
from tallybook.sim.stage.scenario import scenario

from .test_offloader import EAGER, closed, keys, offloader


def opened(stage: ArchiveStage, tasks: Tasks) -> Archive:
    """The archive of the stage, as a process of its own has it."""
    world = stage.cluster.world
    store = PatientStore(stage.store, Patience(world.clock, world.rng.fork("patience")))
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
        worker = offloader(stage, reader=ArchiveReader(stage.store, InlineWorkers(), tasks))
        await worker.round()
        assert len({key for key, _ in stage.reader._index}) == 12, "they were read to be merged"
        await cluster.world.clock.sleep(EAGER.attempt_ttl_s)
        await worker.round()
        await cluster.world.clock.sleep(EAGER.orphan_delay_s)
        await worker.round()
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
        await worker.round()
        await cluster.world.clock.sleep(EAGER.deletion_lag_s)
        await worker.round()
        assert worker.totals.ledgers_released == len(ledgers)
        assert not worker._reader._index
    await tasks.close()


def serving(stage: ArchiveStage, tasks: Tasks) -> tuple[Offloader, list[int]]:
    """Run an offloader as a service; it, and after how many of its rounds memory was given back."""
    place = opened(stage, tasks)
    worker, given = place.offloader(stage.client, EAGER), list[int]()

    async def give_back(_: Workers) -> None:
        given.append(worker.totals.rounds)

    tasks.spawn(OffloadService(place, worker, EAGER, give_back).lead(), name="service")
    return worker, given


@scenario()
async def test_memory_is_given_back_once_a_round_finds_nothing_to_do_after_one_that_did(
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
async def test_what_a_term_before_has_left_in_memory_is_given_back_in_the_next(
    cluster: MemoryCluster, client: Client
) -> None:
    tasks = client_tasks("offloader")
    async with ArchiveStage(cluster, EAGER) as stage:
        worker, given = serving(stage, tasks)
        await cluster.world.clock.sleep(3.5 * EAGER.interval_s)
        assert (given, worker.totals.rounds) == ([1], 4)
        await tasks.close()
