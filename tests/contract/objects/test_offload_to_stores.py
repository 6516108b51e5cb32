"""An offloader with every object store: the whole life of a ledger, and failures of the bucket meanwhile.

Cluster, clients and metadata are those of the simulation, on the real event loop; only the object store is real.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext

import pytest

from tallybook.archive.manifest import MANIFEST_KEY
from tallybook.archive.objects.port import ObjectStore
from tallybook.client.client import Client
from tallybook.core.errors import ArchiveDenied
from tallybook.core.limits import MAX_ENTRY_BYTES, MIB
from tallybook.core.settings import OffloadSettings
from tallybook.metadata.ledger.model import LedgerMetadata
from tallybook.offload.offloader import Offloader
from tallybook.offload.verify import verify_objects
from tallybook.runtime.clock import RealClock
from tallybook.runtime.rng import SeededRng
from tallybook.runtime.tasks import InlineWorkers
from tallybook.sim.deterministic import World

from ...support.archive_stage import ArchiveStage
from ...support.ledger_scenario import read_all
from ...support.memory_cluster import MemoryCluster
from ...support.steps import CallSteps, OffloadProcess

SETTINGS = OffloadSettings(
    row_group_bytes=4 * MIB,
    max_set_wait_s=0,
    own_object_bytes=10_000,
    set_object_bytes=1_000_000,
    compact_below_bytes=10_000,
    deletion_lag_s=3_600,
    attempt_ttl_s=7_200,
    orphan_delay_s=600,
    tidy_interval_s=0,
)
LARGEST = [bytes([at]) * MAX_ENTRY_BYTES for at in range(17)]
"""The size of a ledger: three parts of an upload to S3."""


class Ahead(RealClock):
    """The machine's clock, or any time after."""

    def __init__(self) -> None:
        self.by_s = 0

    def monotonic(self) -> float:
        return super().monotonic() + self.by_s

    def wall_us(self) -> int:
        return super().wall_us() + self.by_s * 1_000_000


class Play:
    """A small cluster, an offloader, and a bucket."""

    def __init__(self, clock: Ahead, cluster: MemoryCluster, client: Client, stage: ArchiveStage) -> None:
        self.clock = clock
        self.cluster = cluster
        self.client = client
        self.stage = stage
        self.offloader: Offloader
        self.written: dict[int, list[bytes]] = {}

    @property
    def store(self) -> ObjectStore:
        return self.stage.store

    async def ledger(self, payloads: list[bytes]) -> int:
        ledger = await self.client.create_ledger(ensemble=1, write_quorum=1, ack_quorum=1)
        await ledger.append_many(payloads)
        await ledger.close()
        self.written[ledger.id] = payloads
        return ledger.id

    async def round_after(self, seconds: int = 0) -> None:
        """Time passes, and the offloader looks for work; bookies drop what they may."""
        self.clock.by_s += seconds
        await self.offloader.run_pass()
        for metadata in await self.ledgers():
            if metadata.copies_released:
                for bookie in self.cluster.bookies.values():
                    bookie.delete(metadata.ledger_id)

    async def ledgers(self) -> list[LedgerMetadata]:
        return [await self.client.ledger_metadata(ledger_id) for ledger_id in self.written]

    async def problems(self) -> list[str]:
        found = [each async for each in verify_objects(self.store, InlineWorkers(), await self.ledgers())]
        return [verdict.problem for verdict in found if not verdict.good]

    async def keys(self) -> list[str]:
        found = [found.key async for page in self.store.list() for found in page]
        return [key for key in found if key != MANIFEST_KEY]

    async def all_is_read(self) -> None:
        for ledger_id, payloads in self.written.items():
            assert await read_all(self.stage.client, ledger_id) == payloads


@asynccontextmanager
async def play_on(store: ObjectStore) -> AsyncIterator[Play]:
    clock = Ahead()
    cluster = MemoryCluster(World("real", None, SeededRng(7), clock), bookies=1)
    await cluster.start()
    async with cluster.client() as client, ArchiveStage(cluster, SETTINGS, store=store) as stage:
        play = Play(clock, cluster, client, stage)
        async with OffloadProcess(stage, CallSteps(), SETTINGS) as process:
            play.offloader = process.offloader
            yield play
    await cluster.stop()


async def test_ledgers_live_through_archiving_release_and_merging_on_every_store(place):
    async with place.opened() as store, play_on(store) as play:
        for payloads in ([], [b""], [b"", b"x", b""], LARGEST):
            await play.ledger(payloads)
        await play.round_after()
        small = await play.ledger([b"y" * 100])
        deleted = await play.ledger([b"z" * 100] * 200)
        await play.round_after()
        assert len(await play.keys()) == 5, "of large ledgers, of two sets, and of one more that takes their place"
        await play.client.delete_ledger(deleted)
        del play.written[deleted]
        await play.round_after(3_601)
        assert all(metadata.copies_released for metadata in await play.ledgers())
        await play.all_is_read()
        left = store.upload((await play.keys())[0].replace("-", "0-", 1))
        await left.write(bytes(9 * MIB))
        await play.round_after(3_601)
        await play.round_after(601)
        assert len(await play.keys()) == 2
        assert await play.problems() == []
        assert small in play.written
        await play.all_is_read()
        await left.abort()


async def test_an_object_that_was_truncated_or_replaced_keeps_its_copies_and_is_named(place):
    async with place.opened() as store, play_on(store) as play:
        ledgers = [await play.ledger([bytes([at]) * 1000] * 20) for at in range(3)]
        await play.round_after()
        keys = await play.keys()
        data = {key: await store.read(key, 0, (await store.info(key)).size_bytes) for key in keys}
        await store.put(keys[0], data[keys[0]][:-10])
        await store.put(keys[1], data[keys[2]])
        problems = await play.problems()
        assert [keys[0] in problems[0], keys[1] in problems[1]] == [True, True]
        await play.round_after(3_601)
        assert [metadata.copies_released for metadata in await play.ledgers()] == [False, False, True]
        await play.all_is_read()
        for bookie in play.cluster.bookies.values():
            bookie.delete(ledgers[0])
        await store.put(keys[0], data[keys[0]])
        await play.all_is_read()
        await play.round_after()
        assert (await play.ledgers())[0].copies_released


async def test_a_bucket_that_goes_in_the_middle_costs_no_entry(bucket):
    async with bucket.opened() as store, play_on(store) as play:
        await play.ledger([b"a" * 1000] * 20)
        await play.round_after()
        bucket.remove()
        await play.ledger([b"b" * 1000] * 20)
        with pytest.raises(ArchiveDenied, match="there is no such bucket"):
            await play.round_after(3_601)
        assert "there is no such bucket" in play.offloader.totals.last_error
        with pytest.raises(ArchiveDenied, match="there is no such bucket"):
            await play.problems()
        assert [metadata.copies_released for metadata in await play.ledgers()] == [False, False]
        await play.all_is_read()
        bucket.make()
        await play.round_after(600)
        first, second = await play.ledgers()
        assert first.archived is not None
        assert not first.copies_released
        assert second.archived is not None
        problems = await play.problems()
        assert len(problems) == 1
        assert first.archived.key in problems[0]
        await play.all_is_read()


async def test_keys_that_are_not_right_are_refused_in_words(bucket, monkeypatch):
    """moto takes any keys."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-the-secret")
    async with bucket.opened() as store, play_on(store) as play:
        await play.ledger([b"a" * 1000] * 20)
        with nullcontext() if bucket.server.key == "testing" else pytest.raises(ArchiveDenied, match="see AWS_SECRET"):
            await play.round_after()
        await play.all_is_read()
