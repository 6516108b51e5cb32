"""Offloaders with faulty object stores: storms, wrong answers, refusals, and ledgers deleted meanwhile.

In each test nothing is committed that is not in the bucket, every ledger reads as it was written, and after the store
has healed everything is archived and nothing else is left.
"""

from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

import pytest

from tallybook.archive.catalog import read_catalog
from tallybook.archive.manifest import MANIFEST_KEY
from tallybook.archive.objects.encryption.store import EncryptedStore
from tallybook.archive.objects.memory import MemoryObjectStore
from tallybook.archive.objects.port import ObjectStore
from tallybook.archive.objects.retries import RetryingStore, RetryPolicy
from tallybook.archive.reader import ArchiveReader
from tallybook.client.client import Client
from tallybook.core.errors import (
    ArchiveDenied,
    ArchiveUnavailable,
    DamagedFile,
    MetadataConflict,
    NoSuchLedger,
    ObjectDamaged,
    ObjectMissing,
    TallybookError,
)
from tallybook.core.settings import OffloadSettings
from tallybook.metadata.ledger.model import LedgerMetadata
from tallybook.metadata.ledger_update import LedgerUpdater
from tallybook.metadata.store import MetadataStore, Versioned
from tallybook.offload.ledger_listing import LedgerListing
from tallybook.offload.mover import Mover
from tallybook.offload.offloader import Offloader
from tallybook.offload.totals import MAX_RETRY_SECONDS
from tallybook.offload.verify import verify_objects
from tallybook.runtime.clock import Clock
from tallybook.runtime.tasks import InlineWorkers, Tasks
from tallybook.sim.cluster.faulty_objects import FaultyObjectStore, ObjectFault, RandomObjectFaults, fits

from ..sampling import sample
from ..simulated import scenario
from ..support.archive_keys import InMemoryKeys
from ..support.archive_stage import ArchiveStage
from ..support.ledger_scenario import lines, read_all
from ..support.memory_cluster import MemoryCluster
from ..support.steps import CallSteps, OffloadProcess
from .parts import closed_id as closed

T = TypeVar("T")

SETTINGS = OffloadSettings(
    row_group_bytes=4096,
    own_object_bytes=1_500,
    set_object_bytes=4_000,
    max_set_wait_s=0,
    compact_below_bytes=1_000,
    deletion_lag_s=30,
    attempt_ttl_s=60,
    orphan_delay_s=20,
    tidy_interval_s=0,
)


def offloader(stage: ArchiveStage, store: ObjectStore, metadata: MetadataStore | None = None) -> Offloader:
    """An offloader that sees the bucket through ``store``."""
    world = stage.cluster.world
    metadata, rng = metadata or stage.cluster.metadata.client().store, world.rng.fork("offloader")
    updater = LedgerUpdater(metadata, world.clock, rng.fork("updater"))
    mover = Mover(stage.client, updater, store, InlineWorkers(), SETTINGS, world.clock, rng)
    reader = ArchiveReader(store, InlineWorkers(), Tasks("reader", lambda _name, _error: None))
    return Offloader(
        mover, LedgerListing(metadata), updater, store, reader, InlineWorkers(), SETTINGS, world.clock, rng
    )


async def in_order(stage: ArchiveStage, written: dict[int, int]) -> None:
    """Check that each ledger is in one good object and that there are no other objects."""
    for ledger_id, count in written.items():
        assert await read_all(stage.client, ledger_id) == lines(count)
    ledgers = [await stage.client.ledger_metadata(ledger_id) for ledger_id in written]
    assert all(metadata.archived and metadata.archiving is None for metadata in ledgers)
    assert all([verdict.good async for verdict in verify_objects(stage.store, InlineWorkers(), ledgers)])
    keys = {found.key async for page in stage.store.list() for found in page}
    assert keys - {MANIFEST_KEY} == {metadata.archived.key for metadata in ledgers if metadata.archived}
    assert await stage.store.unfinished_uploads() == []


@pytest.mark.parametrize("keys", [None, InMemoryKeys()], ids=["plain", "sealed"])
@pytest.mark.parametrize("seed", range(3))
def test_storms_and_faults_of_every_kind_are_outlasted_with_few_requests(seed: int, keys: InMemoryKeys | None) -> None:
    @scenario(seed=seed)
    async def play(cluster: MemoryCluster, client: Client) -> None:
        clock, rng = cluster.world.clock, cluster.world.rng.fork("faults")
        written = {await closed(client, count): count for count in (120, 10, 130, 0, 9)}
        odds = dict.fromkeys(
            (
                ObjectFault.FAILED,
                ObjectFault.ANSWER_LOST,
                ObjectFault.TIMED_OUT,
                ObjectFault.LEFT_BEHIND,
                ObjectFault.SHORT,
            ),
            0.03,
        )
        below = MemoryObjectStore(clock)
        async with ArchiveStage(cluster, SETTINGS, store=EncryptedStore(below, InlineWorkers(), keys)) as stage:
            faults = RandomObjectFaults(rng, clock, odds, storm=0.05, storm_seconds=5.0, ends_at=200.0)
            patience = RetryPolicy(clock, rng.fork("patience"))
            faulty = RetryingStore(FaultyObjectStore(below, faults, clock, timeout_seconds=5.0), patience)
            worker = offloader(stage, EncryptedStore(faulty, InlineWorkers(), keys))
            # After each failed attempt the next one waits about twice as long.
            while clock.monotonic() < 560:
                try:
                    await worker.run_pass()
                except (ArchiveUnavailable, ObjectDamaged):
                    assert clock.monotonic() < 300
                for ledger_id, count in written.items():
                    assert await read_all(stage.client, ledger_id) == lines(count)
                await clock.sleep(25)
            assert faults.seen[ObjectFault.BUSY] > 3
            assert faults.seen[ObjectFault.BUSY] < 150, "one every second would be no patience"
            await in_order(stage, written)
            assert bool([found async for page in below.list("sealed/") for found in page]) == (keys is not None)

    play()


@scenario()
async def test_an_object_whose_key_is_gone_keeps_no_other_from_its_turn(cluster: MemoryCluster, client: Client) -> None:
    """The object cannot be verified, so copies stay on bookies; the pass continues and reports it."""
    keys, below = InMemoryKeys(), MemoryObjectStore(cluster.world.clock)
    async with ArchiveStage(cluster, SETTINGS, store=EncryptedStore(below, InlineWorkers(), keys)) as stage:
        first = await closed(client, 120)
        worker = offloader(stage, EncryptedStore(below, InlineWorkers(), keys))
        await worker.run_pass()
        small = [await closed(client, 3) for _ in range(2)]
        keys.rotate(keep=False)
        second = await closed(client, 120)
        worker = offloader(stage, EncryptedStore(below, InlineWorkers(), keys))
        await cluster.world.clock.sleep(SETTINGS.deletion_lag_s + 1)
        await worker.run_pass()
        await cluster.world.clock.sleep(SETTINGS.deletion_lag_s + 1)
        await worker.run_pass()
        found = {each: await stage.client.ledger_metadata(each) for each in (first, *small, second)}
        assert [metadata.archived is not None for metadata in found.values()] == [True] * 4
        assert [metadata.copies_released for metadata in found.values()] == [False, True, True, True]
        assert "archive_keys does not have that key" in worker.totals.last_error
        assert await read_all(stage.client, first) == lines(120)


class Refusing(MemoryObjectStore):
    """A store that lists some objects, but neither returns nor removes them, as with Glacier and object locks."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.refused = dict[str, TallybookError]()

    async def read(self, key: str, offset: int, size: int) -> bytes:
        if key in self.refused:
            raise self.refused[key]
        return await super().read(key, offset, size)

    async def delete(self, key: str) -> None:
        if key in self.refused:
            raise self.refused[key]
        await super().delete(key)


GLACIER = ArchiveDenied("memory: read of an object: HTTP 403 InvalidObjectState")
FAILING = ArchiveUnavailable("memory: read of an object: HTTP 500 InternalError")


@pytest.mark.parametrize("refusal", [GLACIER, FAILING], ids=["denied", "failing"])
@scenario(deadline_seconds=6_000)
async def test_an_object_that_the_store_refuses_is_named_and_keeps_no_other_from_its_turn(
    cluster: MemoryCluster, client: Client, *, refusal: TallybookError
) -> None:
    cold_ledger, deleted, other = await closed(client, 120), await closed(client, 120), await closed(client, 120)
    store = Refusing(cluster.world.clock)
    async with ArchiveStage(cluster, SETTINGS, store=store) as stage:
        worker = offloader(stage, store)
        await worker.run_pass()
        ledgers = [await client.ledger_metadata(each) for each in (cold_ledger, deleted, other)]
        cold, gone, _ = [found.archived.key for found in ledgers if found.archived]
        store.refused = {cold: refusal, gone: refusal}
        await client.delete_ledger(deleted)
        later = await closed(client, 120)
        for _ in range(8):
            await cluster.world.clock.sleep(SETTINGS.attempt_ttl_s)
            await worker.run_pass()
        found = [await client.ledger_metadata(each) for each in (cold_ledger, other, later)]
        assert [metadata.copies_released for metadata in found] == [False, True, True]
        assert refusal.message in worker.totals.last_error
        assert worker.totals.failures < 16, "a refused object is asked for later and later"
        verdicts = {verdict.key: verdict async for verdict in verify_objects(store, InlineWorkers(), found)}
        assert [key for key, verdict in verdicts.items() if not verdict.good] == [cold]
        assert not verdicts[cold].checked
        assert refusal.message in verdicts[cold].problem
        catalog = await read_catalog(store, InlineWorkers())
        assert (list(catalog.ledgers), set(catalog.damaged)) == ([other, later], {cold})
        store.refused = {}
        await cluster.world.clock.sleep(MAX_RETRY_SECONDS)
        await worker.run_pass()
        assert (await client.ledger_metadata(cold_ledger)).copies_released
        assert worker.totals.objects_removed == 1


@scenario()
async def test_a_set_that_the_store_refuses_keeps_no_other_from_being_written_anew(
    cluster: MemoryCluster, client: Client
) -> None:
    store = Refusing(cluster.world.clock)
    settings = SETTINGS.model_copy(update={"compact_below_bytes": 0})
    async with ArchiveStage(cluster, settings, store=store) as stage:
        sets = [[await closed(client, 9) for _ in range(3)] for _ in range(2)]
        for members in sets:
            await stage.archive(*members)
        cold = (await client.ledger_metadata(sets[0][0])).archived
        assert cold is not None
        store.refused = {cold.key: GLACIER}
        for members in sets:
            await client.delete_ledger(members[0])
            await client.delete_ledger(members[1])
        worker = offloader(stage, store)
        await cluster.world.clock.sleep(settings.attempt_ttl_s)
        await worker.run_pass()
        assert worker.totals.ledgers_moved == 1


@scenario(deadline_seconds=6_000)
async def test_a_ledger_that_others_keep_changing_is_named_and_keeps_no_other_from_its_release(
    cluster: MemoryCluster, client: Client
) -> None:
    busy, other = await closed(client, 120), await closed(client, 120)
    async with ArchiveStage(cluster, SETTINGS) as stage:
        worker = offloader(stage, stage.store)
        await worker.run_pass()
        update = worker._updater.update

        async def contended(ledger_id: int, change: Callable[[LedgerMetadata], LedgerMetadata]) -> object:
            if ledger_id == busy:
                raise MetadataConflict(f"ledger {busy} was changed by others again and again")
            return await update(ledger_id, change)

        worker._updater.update = contended  # type: ignore[method-assign, assignment]
        await cluster.world.clock.sleep(SETTINGS.attempt_ttl_s)
        await worker.run_pass()
        assert (await client.ledger_metadata(other)).copies_released
        assert f"ledger {busy}" in worker.totals.last_error
        worker._updater.update = update  # type: ignore[method-assign]
        await cluster.world.clock.sleep(MAX_RETRY_SECONDS)
        await worker.run_pass()
        assert (await client.ledger_metadata(busy)).copies_released


@scenario()
async def test_a_ledger_whose_metadata_cannot_be_decoded_is_named_and_keeps_no_other_from_the_archive(
    cluster: MemoryCluster, client: Client
) -> None:
    """The object of the ledger is unknown, so none is removed."""
    damaged, deleted, other = await closed(client, 120), await closed(client, 120), await closed(client, 120)
    async with ArchiveStage(cluster, SETTINGS) as stage:
        metadata = cluster.metadata.client().store
        worker = offloader(stage, stage.store, metadata)
        await worker.run_pass()
        await client.delete_ledger(deleted)
        read = metadata.read_ledger

        async def failing(ledger_id: int, *, linearizable: bool = False) -> Versioned:
            if ledger_id == damaged:
                raise DamagedFile("ledger 0: its metadata cannot be decoded")
            return await read(ledger_id, linearizable=linearizable)

        metadata.read_ledger = failing  # type: ignore[method-assign]
        later = await closed(client, 120)
        for _ in range(4):
            await cluster.world.clock.sleep(SETTINGS.attempt_ttl_s)
            await worker.run_pass()
        assert [(await client.ledger_metadata(each)).copies_released for each in (other, later)] == [True, True]
        assert "cannot be decoded" in worker.totals.last_error
        assert worker.totals.objects_removed == 0


class At:
    """Injects one fault, at the n-th operation to which it applies."""

    def __init__(self, number: int, fault: ObjectFault) -> None:
        self._left, self._fault = number, fault

    @property
    def happened(self) -> bool:
        return self._left <= 0

    def next(self, operation: str) -> ObjectFault | None:
        if not fits(operation, self._fault):
            return None
        self._left -= 1
        return self._fault if self._left == 0 else None


@pytest.mark.parametrize(
    "fault", [ObjectFault.SHORT, ObjectFault.STALE, ObjectFault.MISSING, ObjectFault.FAILED, ObjectFault.ANSWER_LOST]
)
@scenario()
async def test_a_fault_at_any_call_of_an_attempt_leaves_the_ledger_as_it_was(
    cluster: MemoryCluster, client: Client, *, fault: ObjectFault
) -> None:
    """Wrong bytes in a successful answer, or a store that fails before or after the call took effect."""
    written = {await closed(client, count): count for count in (120, 9)}
    async with ArchiveStage(cluster, SETTINGS) as stage:
        planned, number = await stage.planned(*written), 1
        before = [await client.ledger_metadata(ledger_id) for ledger_id in written]
        while True:
            faults = At(number, fault)
            mover = stage.mover(FaultyObjectStore(stage.store, faults, cluster.world.clock))
            with suppress(ObjectDamaged, ObjectMissing, ArchiveUnavailable):
                await mover.move(planned)
            if not faults.happened:
                break
            assert [await client.ledger_metadata(ledger_id) for ledger_id in written] == before
            assert await stage.store.unfinished_uploads() == []
            number += 1
        assert number > (1 if fault is ObjectFault.ANSWER_LOST else 3)
        for ledger_id, count in written.items():
            assert (await client.ledger_metadata(ledger_id)).archived is not None
            assert await read_all(stage.client, ledger_id) == lines(count)


@scenario()
async def test_expired_keys_end_the_pass_and_cost_nothing(cluster: MemoryCluster, client: Client) -> None:
    written = {await closed(client, count): count for count in (120, 9)}
    clock = cluster.world.clock
    async with ArchiveStage(cluster, SETTINGS) as stage:
        denied = RandomObjectFaults(cluster.world.rng, clock, {ObjectFault.DENIED: 1.0}, ends_at=60.0)
        worker = offloader(stage, FaultyObjectStore(stage.store, denied, clock))
        with pytest.raises(ArchiveDenied, match="403"):
            await worker.run_pass()
        assert "403" in worker.totals.last_error
        assert worker.totals.failures > 0
        for _ in range(6):
            await clock.sleep(65)
            await worker.run_pass()
        await in_order(stage, written)


class Deleting(CallSteps):
    """Another client deletes a ledger at one call."""

    def __init__(self, at: int, delete: Callable[[], Awaitable[None]]) -> None:
        super().__init__()
        self._turn, self._delete = at, delete

    async def call(self, what: str, work: Callable[[], Awaitable[T]], lost: Callable[[str], T]) -> T:
        if len(self.calls) == self._turn:
            self._turn = -1
            await self._delete()
        return await super().call(what, work, lost)


def test_a_ledger_that_is_deleted_at_any_call_stays_deleted_and_its_object_goes() -> None:
    met: Counter[str] = Counter()

    def played(at: int) -> list[str]:
        calls: list[str] = []

        @scenario()
        async def play(cluster: MemoryCluster, client: Client) -> None:
            deleted, *others = [await closed(client, count) for count in (9, 8, 120)]
            async with ArchiveStage(cluster, SETTINGS) as stage:
                for ledger_id in (deleted, others[0]):
                    await stage.archive(ledger_id)
                steps = Deleting(at, lambda: client.delete_ledger(deleted))
                async with OffloadProcess(stage, steps, SETTINGS) as process:
                    for _ in range(6):
                        await process.run_pass()
                        await cluster.world.clock.sleep(61)
                    calls.extend(steps.calls)
                    for _ in range(3):  # what was deleted late has left a set that is written anew
                        await process.run_pass()
                        await cluster.world.clock.sleep(61)
                if at < len(calls):
                    met[calls[at]] += 1
                    with pytest.raises(NoSuchLedger):
                        await client.ledger_metadata(deleted)
                    await in_order(stage, dict(zip(others, (8, 120), strict=True)))

        play()
        return calls

    calls = played(10**6)
    backwards = calls[::-1]
    edges = {at for name in set(calls) for at in (calls.index(name), len(calls) - 1 - backwards.index(name))}
    for at in sorted(edges | set(sample(range(0, len(calls), 12)))):
        played(at)
    assert met.keys() >= {"update_ledger", "write", "finish", "info", "read", "list", "delete"}
