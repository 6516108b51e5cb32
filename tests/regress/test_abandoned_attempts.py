"""An offloader died after announcing a move: its ledgers were never moved again, and its object was never deleted."""

from functools import partial

from tallybook.archive.format.schema import object_key
from tallybook.archive.manifest import MANIFEST_KEY
from tallybook.client.client import Client
from tallybook.core.settings import OffloadSettings
from tallybook.metadata.ledger.archived import ArchiveAttempt, begin_archiving
from tallybook.metadata.ledger_update import LedgerUpdater
from tallybook.offload.ledger_listing import LedgerListing
from tallybook.offload.offloader import Offloader
from tallybook.runtime.tasks import InlineWorkers

from ..simulated import scenario
from ..support.archive_stage import ArchiveStage
from ..support.ledger_scenario import lines, read_all
from ..support.memory_cluster import MemoryCluster

SETTINGS = OffloadSettings(
    row_group_bytes=4096,
    own_object_bytes=1_500,
    set_object_bytes=4_000,
    compact_below_bytes=1_000,
    deletion_lag_s=60,
    attempt_ttl_s=100,
    orphan_delay_s=20,
    tidy_interval_s=0,
)
OBJECT_ID = "00000000-0000-4000-8000-000000000001"
DAY_MS = 24 * 3600 * 1000


async def archived_and_announced_again(stage: ArchiveStage, client: Client, *, ahead_ms: int = 0) -> list[int]:
    """Two small ledgers, each in an object of its own, whose merge was cut off when the offloader died."""
    ledger_ids = []
    for _ in range(2):
        ledger = await client.create_ledger()
        await ledger.append_many(lines(5))
        await ledger.close()
        await stage.archive(ledger.id)
        ledger_ids.append(ledger.id)
    now_ms = stage.cluster.world.clock.wall_us() // 1000 + ahead_ms
    for ledger_id in ledger_ids:
        receipt = (await client.ledger_metadata(ledger_id)).archived
        attempt = ArchiveAttempt(OBJECT_ID, now_ms)
        begin = partial(begin_archiving, attempt=attempt, from_object=receipt.object_id, ttl_ms=100_000)
        await stage.cluster.edit(ledger_id, begin)
    await stage.store.put(object_key(OBJECT_ID, ledger_ids), b"as far as it came")
    return ledger_ids


def offloader(stage: ArchiveStage) -> Offloader:
    world, store = stage.cluster.world, stage.cluster.metadata.client().store
    updater = LedgerUpdater(store, world.clock, world.rng.fork("offloader"))
    workers = InlineWorkers()
    return Offloader(
        stage.mover(),
        LedgerListing(store),
        updater,
        stage.store,
        stage.reader,
        workers,
        SETTINGS,
        world.clock,
        world.rng,
    )


async def comes_to_rest(stage: ArchiveStage, client: Client, ledger_ids: list[int]) -> None:
    worker = offloader(stage)
    for _ in range(8):
        await worker.run_pass()
        await stage.cluster.world.clock.sleep(30)
    found = [await client.ledger_metadata(ledger_id) for ledger_id in ledger_ids]
    assert [metadata.archiving for metadata in found] == [None, None]
    (key,) = {metadata.archived.key for metadata in found}
    assert [listed.key async for page in stage.store.list() for listed in page] == [MANIFEST_KEY, key]
    for ledger_id in ledger_ids:
        assert await read_all(stage.client, ledger_id) == lines(5)


@scenario()
async def test_ledgers_whose_merger_died_are_merged_later_and_its_object_goes(cluster, client):
    async with ArchiveStage(cluster, SETTINGS) as stage:
        ledger_ids = await archived_and_announced_again(stage, client)
        await offloader(stage).run_pass()
        announced = [(await client.ledger_metadata(ledger_id)).archiving for ledger_id in ledger_ids]
        assert all(announced), "it may be alive"
        await comes_to_rest(stage, client, ledger_ids)


@scenario()
async def test_an_attempt_that_seems_to_begin_tomorrow_holds_nothing_up(cluster: MemoryCluster, client: Client) -> None:
    async with ArchiveStage(cluster, SETTINGS) as stage:
        ledger_ids = await archived_and_announced_again(stage, client, ahead_ms=DAY_MS)
        await comes_to_rest(stage, client, ledger_ids)
