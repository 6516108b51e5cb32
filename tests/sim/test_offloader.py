"""The offloader: archives due ledgers, releases copies later, merges small objects, and leaves nothing behind."""

import asyncio
from dataclasses import replace
from functools import partial

import pytest

from tallybook.archive.format.schema import object_key
from tallybook.archive.library import ArchiveLibrary
from tallybook.archive.objects.memory import MemoryObjectStore
from tallybook.client.client import Client
from tallybook.core.errors import ArchiveUnavailable, NoSuchLedger
from tallybook.core.settings import OffloadSettings
from tallybook.metadata.ledger.archived import ArchiveAttempt, Receipt, begin_archiving
from tallybook.metadata.ledger.model import LedgerMetadata
from tallybook.metadata.memory import MemoryMetadata
from tallybook.metadata.transactions import Transaction
from tallybook.offload.ledger_listing import PASSES_UNREAD
from tallybook.offload.rebuild import rebuild_catalog
from tallybook.offload.verify import verify_object, verify_objects
from tallybook.runtime.rng import SeededRng
from tallybook.runtime.tasks import InlineWorkers
from tallybook.sim.cluster.faulty_objects import FaultyObjectStore, ObjectFault

from ..simulated import scenario
from ..support.archive_stage import ArchiveStage
from ..support.fault_script import FaultScript
from ..support.ledger_scenario import eventually, lines, read_all
from ..support.memory_cluster import MemoryCluster
from .parts import closed_ledger as closed
from .parts import object_keys as keys
from .parts import offloader, written_ledger

EAGER = OffloadSettings(
    row_group_bytes=4096,
    own_object_bytes=1_500,
    set_object_bytes=4_000,
    set_object_ledgers=5,
    max_set_wait_s=30,
    compact_below_bytes=1_000,
    deletion_lag_s=60,
    attempt_ttl_s=100,
    orphan_delay_s=20,
    tidy_interval_s=0,
)


@scenario()
async def test_large_ledgers_go_at_once_and_small_ones_wait_for_company(cluster: MemoryCluster, client: Client) -> None:
    large, small = await closed(client, 120), await closed(client, 10)
    still_open = await written_ledger(client, 200)
    async with ArchiveStage(cluster, EAGER) as stage:
        worker = offloader(stage, EAGER)
        await worker.run_pass()
        assert (await client.ledger_metadata(large.id)).archived is not None
        assert (await client.ledger_metadata(small.id)).archived is None
        assert worker.backlog.waiting_ledgers == 1
        assert worker.streamed_bytes == (await client.ledger_metadata(large.id)).length
        await cluster.world.clock.sleep(EAGER.max_set_wait_s)
        await worker.run_pass()
        assert (await client.ledger_metadata(small.id)).archived is not None
        assert (await client.ledger_metadata(still_open.id)).archiving is None
        assert worker.totals.ledgers_archived == 2
    still_open.abandon()


@scenario()
async def test_waiting_ledgers_are_reported_during_the_first_pass(cluster: MemoryCluster, client: Client) -> None:
    """A slow bucket takes hours; waiting work counts for the bottleneck."""
    ledgers = [await closed(client, 120) for _ in range(2)]
    clock = cluster.world.clock
    slow = FaultyObjectStore(MemoryObjectStore(clock), FaultScript([("finish", ObjectFault.TIMED_OUT)]), clock)
    async with ArchiveStage(cluster, EAGER, store=slow) as stage:
        worker = offloader(stage, EAGER)
        assert worker.backlog.waiting_ledgers == 0
        round_under_way = asyncio.ensure_future(worker.run_pass())
        await eventually(lambda: worker.streamed_bytes > 0, cluster)
        assert (worker.totals.rounds, worker.backlog.waiting_ledgers) == (0, 2)
        waiting = [(await client.ledger_metadata(ledger.id)).length for ledger in ledgers]
        assert worker.backlog.waiting_bytes == sum(waiting)
        await round_under_way
        assert worker.backlog.waiting_ledgers == 1, "one has failed"
    await slow.close()


@scenario()
async def test_copies_are_released_after_the_lag_and_only_if_the_object_still_exists(
    cluster: MemoryCluster, client: Client
) -> None:
    kept, lost = await closed(client, 120), await closed(client, 130)
    async with ArchiveStage(cluster, EAGER) as stage:
        worker = offloader(stage, EAGER)
        await worker.run_pass()
        receipt = (await client.ledger_metadata(lost.id)).archived
        assert receipt is not None
        await cluster.world.clock.sleep(EAGER.deletion_lag_s - 1)
        await worker.run_pass()
        assert not (await client.ledger_metadata(kept.id)).copies_released
        await stage.store.put(receipt.key, b"something else")
        await cluster.world.clock.sleep(2)
        await worker.run_pass()
        assert (await client.ledger_metadata(kept.id)).copies_released
        assert not (await client.ledger_metadata(lost.id)).copies_released
        assert receipt.key in worker.totals.last_error


@scenario()
async def test_many_small_objects_become_few_and_nothing_is_lost_on_the_way(
    cluster: MemoryCluster, client: Client
) -> None:
    ledgers = [await closed(client, 9) for _ in range(12)]
    async with ArchiveStage(cluster, EAGER) as stage:
        for ledger in ledgers:
            await stage.archive(ledger.id)
        assert len(await keys(stage)) == 12
        worker = offloader(stage, EAGER)
        await worker.run_pass()
        await cluster.world.clock.sleep(EAGER.attempt_ttl_s)
        await worker.run_pass()
        await cluster.world.clock.sleep(EAGER.orphan_delay_s)
        moved = worker.totals.ledgers_moved
        await worker.run_pass()
        assert len(await keys(stage)) == 3
        assert worker.totals.ledgers_moved == moved == 12, "what is merged is left alone"
        for ledger in ledgers:
            assert await read_all(stage.client, ledger.id) == lines(9)


@scenario()
async def test_a_set_most_of_whose_ledgers_were_deleted_is_written_anew_once_without_them(
    cluster: MemoryCluster, client: Client
) -> None:
    ledgers = [await closed(client, 9) for _ in range(5)]
    settings = EAGER.model_copy(update={"compact_below_bytes": 0})
    async with ArchiveStage(cluster, settings) as stage:
        await stage.archive(*(ledger.id for ledger in ledgers))
        (whole,) = await keys(stage)
        worker = offloader(stage, settings)
        for at in range(5):
            await worker.run_pass()
            assert (await keys(stage), worker.totals.ledgers_moved) == ([whole], 0), at
            if at == 2:
                break
            await client.delete_ledger(ledgers[at].id)
        await client.delete_ledger(ledgers[2].id)
        await cluster.world.clock.sleep(settings.attempt_ttl_s)
        await worker.run_pass()
        assert worker.totals.ledgers_moved == 2
        for _ in range(3):
            await cluster.world.clock.sleep(settings.orphan_delay_s)
            await worker.run_pass()
        assert worker.totals.ledgers_moved == 2, "what lives is left alone"
        (rewritten,) = await keys(stage)
        assert rewritten != whole
        for ledger in ledgers[3:]:
            assert await read_all(stage.client, ledger.id) == lines(9)


@scenario()
async def test_a_set_of_which_one_ledger_is_left_gives_its_space_back(cluster: MemoryCluster, client: Client) -> None:
    """Also for a new offloader, and also if the rest is large."""
    ledgers = [await closed(client, count) for count in (90, 60, 60)]
    settings = EAGER.model_copy(update={"own_object_bytes": 4_000})
    async with ArchiveStage(cluster, settings) as stage:
        await stage.archive(*(ledger.id for ledger in ledgers))
        for ledger in ledgers[1:]:
            await client.delete_ledger(ledger.id)
        kept = await client.ledger_metadata(ledgers[0].id)
        assert kept.length >= settings.compact_below_bytes
        before = (await stage.store.info((await keys(stage))[0])).size_bytes
        await cluster.world.clock.sleep(settings.attempt_ttl_s)
        worker = offloader(stage, settings)
        for _ in range(3):
            await worker.run_pass()
            await cluster.world.clock.sleep(settings.attempt_ttl_s)
        (left,) = await keys(stage)
        assert left.startswith("ledgers/")
        assert (await stage.store.info(left)).size_bytes < before
        assert await read_all(stage.client, ledgers[0].id) == lines(90)


@scenario()
async def test_ledgers_merged_after_their_release_are_not_merged_again(cluster: MemoryCluster, client: Client) -> None:
    """The offloader rarely reads metadata of finished ledgers, so it must remember what it has moved itself."""
    ledgers = [await closed(client, 9) for _ in range(3)]
    async with ArchiveStage(cluster, EAGER) as stage:
        for ledger in ledgers:
            await stage.archive(ledger.id)
        await stage.release(ledgers[1].id)
        worker = offloader(stage, EAGER)
        for _ in range(3):
            await worker.run_pass()
            await cluster.world.clock.sleep(1)
        assert worker.totals.ledgers_moved == 3
        assert worker.totals.objects_written == 1


@scenario()
async def test_orphans_are_removed_late_and_nothing_else(cluster: MemoryCluster, client: Client) -> None:
    ledger, deleted = await closed(client, 120), await closed(client, 120)
    async with ArchiveStage(cluster, EAGER) as stage:
        worker = offloader(stage, EAGER)
        await worker.run_pass()
        mine = await keys(stage)
        await stage.store.put("readme.txt", b"somebody else's")
        upload = stage.store.upload(mine[0].replace("ledgers/0", "ledgers/9").replace("parquet", "parquet"))
        await upload.write(b"part")
        await client.delete_ledger(deleted.id)
        await worker.run_pass()
        await cluster.world.clock.sleep(EAGER.orphan_delay_s + 1)
        await worker.run_pass()
        assert len(await keys(stage)) == 3, "it is too young: an attempt might still be waiting for it"
        await cluster.world.clock.sleep(EAGER.attempt_ttl_s)
        await worker.run_pass()
        left = await keys(stage)
        assert len(left) == 2
        assert "readme.txt" in left
        assert worker.totals.objects_removed == 1
        assert await read_all(stage.client, ledger.id) == lines(120)
        with pytest.raises(NoSuchLedger):
            await client.ledger_metadata(deleted.id)


@scenario()
async def test_the_bucket_is_listed_at_the_start_and_then_at_intervals_until_a_listing_comes_to_its_end(
    cluster: MemoryCluster, client: Client
) -> None:
    rarely = EAGER.model_copy(update={"tidy_interval_s": 100})
    await closed(client, 120)
    async with ArchiveStage(cluster, rarely) as stage:

        class Listed:
            failing, times = True, 0

            def __getattr__(self, name: str) -> object:
                return getattr(stage.store, name)

            def list(self) -> object:
                self.times += 1
                if self.failing:
                    raise ArchiveUnavailable("no listing today")
                return stage.store.list()

        worker = offloader(stage, rarely)
        bucket = worker._store = Listed()  # type: ignore[assignment]
        for _ in range(2):
            with pytest.raises(ArchiveUnavailable):
                await worker.run_pass()
        assert worker.totals.ledgers_archived == 1, "what goes does not wait for it"
        bucket.failing, bucket.times = False, 0
        for _ in range(11):
            await worker.run_pass()
            await cluster.world.clock.sleep(30)
        assert bucket.times == 3
        await worker.run_pass(tidy=True)
        assert bucket.times == 4


@scenario()
async def test_an_attempt_to_merge_that_was_cut_off_keeps_neither_its_object_nor_its_ledgers_where_they_are(
    cluster: MemoryCluster, client: Client
) -> None:
    ledgers = [await closed(client, 9) for _ in range(2)]
    async with ArchiveStage(cluster, EAGER) as stage:
        for ledger in ledgers:
            await stage.archive(ledger.id)
        planned = await stage.planned(*(ledger.id for ledger in ledgers))
        left = object_key("00000000-0000-4000-8000-000000000001", [ledger.id for ledger in ledgers])
        now_ms = cluster.world.clock.wall_us() // 1000
        for due in planned.ledgers:
            attempt = ArchiveAttempt("00000000-0000-4000-8000-000000000001", now_ms)
            announce = partial(begin_archiving, attempt=attempt, from_object=due.in_object, ttl_ms=1)
            await cluster.edit(due.ledger_id, announce)
        await stage.store.put(left, b"all that was written before the power was lost")
        worker = offloader(stage, EAGER)
        for _ in range(5):
            await worker.run_pass()
            await cluster.world.clock.sleep(EAGER.attempt_ttl_s)
        assert len(await keys(stage)) == 1
        assert left not in await keys(stage)
        for ledger in ledgers:
            assert (await client.ledger_metadata(ledger.id)).archiving is None
            assert await read_all(stage.client, ledger.id) == lines(9)


class Asked:
    """A metadata store that counts ledger reads."""

    def __init__(self, store: object) -> None:
        self._store = store
        self.ledgers_read = 0

    def __getattr__(self, name: str) -> object:
        self.ledgers_read += name == "read_ledger"
        return getattr(self._store, name)


@scenario()
async def test_passes_without_work_read_hardly_any_ledger(cluster: MemoryCluster, client: Client) -> None:
    for _ in range(10):
        await closed(client, 120)
    async with ArchiveStage(cluster, EAGER) as stage:
        asked = Asked(cluster.metadata.client().store)
        worker = offloader(stage, EAGER, seen_through=lambda _store: asked)
        await worker.run_pass()
        assert asked.ledgers_read <= 4 * 10
        asked.ledgers_read = 0
        for _ in range(PASSES_UNREAD // 2):
            await worker.run_pass()
        assert asked.ledgers_read <= 10, "those that wait to be released do not change by themselves either"
        await cluster.world.clock.sleep(EAGER.deletion_lag_s)
        await worker.run_pass()
        await worker.run_pass()
        assert worker.backlog.unreleased_ledgers == 0
        asked.ledgers_read = 0
        for _ in range(PASSES_UNREAD):
            await worker.run_pass()
        assert asked.ledgers_read <= 2 * 10, "each of them once in so many rounds, and when it was released"


@scenario()
async def test_a_ledger_that_fails_is_tried_again_later_and_later(cluster: MemoryCluster, client: Client) -> None:
    bad = await closed(client, 120)
    for bookie in cluster.bookies.values():
        bookie.drop(bad.id, 100)
    async with ArchiveStage(cluster, EAGER) as stage:
        worker = offloader(stage, EAGER)
        tries = []
        for _ in range(16):
            await worker.run_pass()
            tries.append(worker.totals.failures)
            await cluster.world.clock.sleep(30)
        assert tries[0] == 1
        assert 3 <= tries[-1] <= 6
        assert f"ledger {bad.id}" in worker.totals.last_error


@scenario()
async def test_a_bucket_alone_lists_its_contents(cluster: MemoryCluster, client: Client) -> None:
    ledgers = [await closed(client, count) for count in (0, 5, 120)]
    async with ArchiveStage(cluster, EAGER) as stage:
        await stage.archive(ledgers[0].id, ledgers[1].id)
        await stage.archive(ledgers[2].id)
        await stage.store.put((await keys(stage))[0].replace("0", "1"), b"no object")
        async with ArchiveLibrary(stage.store, InlineWorkers()) as library:
            assert list(library.ledgers) == [ledger.id for ledger in ledgers]
            assert len(library.damaged) == 1
            assert [entry.payload async for entry in library.read(ledgers[2].id)] == lines(120)
            assert [entry.payload async for entry in library.read(ledgers[2].id, 50, 60)] == lines(11, 50)
            assert [entry async for entry in library.read(ledgers[0].id)] == []
            with pytest.raises(NoSuchLedger):
                await anext(library.read(999))


@scenario()
async def test_a_metadata_store_is_filled_again_from_the_bucket(cluster: MemoryCluster, client: Client) -> None:
    ledgers = [await closed(client, count) for count in (5, 120)]
    async with ArchiveStage(cluster, EAGER) as stage:
        for ledger in ledgers:
            await stage.archive(ledger.id)
        fresh = MemoryMetadata(SeededRng(5)).client().store
        for again in (False, True):
            found = [each async for each in rebuild_catalog(stage.store, fresh, InlineWorkers())]
            entered = sum(len(each.known if again else each.ledger_ids) for each in found)
            assert entered == 2
        assert await fresh.id_counter() > ledgers[-1].id
        for ledger in ledgers:
            metadata = (await fresh.read_ledger(ledger.id)).value
            assert metadata.copies_released
            assert metadata.archived is not None
            original = (await client.ledger_metadata(ledger.id)).archived
            assert original is not None
            assert metadata.archived.object_sha256 == original.object_sha256


@scenario()
async def test_ledgers_of_a_job_that_died_before_its_commit_are_deleted_in_the_end(
    cluster: MemoryCluster, client: Client
) -> None:
    job = Transaction("sales", 3)
    settings = EAGER.model_copy(update={"transaction_ttl_s": 500})
    dead = await written_ledger(client, 5, custom=job.marks)
    await dead.close()
    kept = await closed(client, 5)
    async with ArchiveStage(cluster, settings) as stage:
        worker = offloader(stage, settings)
        await cluster.world.clock.sleep(490)
        await worker.run_pass()
        assert (await client.ledger_metadata(dead.id)).archived is None
        await cluster.world.clock.sleep(20)
        await worker.run_pass()
        with pytest.raises(NoSuchLedger):
            await client.ledger_metadata(dead.id)
        assert await client.ledger_metadata(kept.id)


@scenario()
async def test_a_sink_whose_record_cannot_be_understood_keeps_the_bucket_from_nothing(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger, deleted = await client.create_ledger(custom=Transaction("sales", 3).marks), await closed(client, 1)
    await ledger.close()
    await client.delete_ledger(deleted.id)
    settings = EAGER.model_copy(update={"transaction_ttl_s": 500})
    await cluster.metadata.client().store.write_record("sinks/sales", b'{"format": 9}', None)
    async with ArchiveStage(cluster, settings) as stage:
        worker = offloader(stage, settings)
        await stage.store.put(object_key("0b9b3a2e-8f57-4b38-9c58-0a53a30a3c77", [deleted.id]), b"of nobody")
        await cluster.world.clock.sleep(510)
        await worker.run_pass()
        await cluster.world.clock.sleep(EAGER.orphan_delay_s + 1)
        await worker.run_pass()
        assert (worker.totals.rounds, worker.totals.objects_removed) == (2, 1)
        assert "sinks/sales" in worker.totals.last_error
        assert (await client.ledger_metadata(ledger.id)).closed


@scenario()
async def test_verification_finds_a_flipped_bit_anywhere_in_an_object(cluster: MemoryCluster, client: Client) -> None:
    ledger = await closed(client, 30)
    async with ArchiveStage(cluster, EAGER) as stage:
        await stage.archive(ledger.id)
        metadata = await client.ledger_metadata(ledger.id)
        assert metadata.archived is not None
        key, size = metadata.archived.key, metadata.archived.object_bytes
        good = await stage.store.read(key, 0, size)
        for at in range(0, size, 97):
            await stage.store.put(key, good[:at] + bytes([good[at] ^ 4]) + good[at + 1 :])
            verdicts = [verdict async for verdict in verify_objects(stage.store, InlineWorkers(), [metadata])]
            assert [verdict.good for verdict in verdicts] == [False]
        await stage.store.put(key, good)
        assert [verdict.good async for verdict in verify_objects(stage.store, InlineWorkers(), [metadata])] == [True]


@scenario()
async def test_verification_compares_every_field_of_a_receipt_with_the_object(
    cluster: MemoryCluster, client: Client
) -> None:
    """The receipt of one ledger in a set is valid, independent of the other's."""
    ledgers = [await closed(client, 9), await closed(client, 9)]
    async with ArchiveStage(cluster) as stage:
        await stage.archive(*(ledger.id for ledger in ledgers))
        first, second = [(await client.ledger_metadata(ledger.id)).archived for ledger in ledgers]
        assert first is not None
        assert second is not None
        index = second.index
        wrong = {
            "entries": (replace(second, entries=second.entries + 1), "a different ledger"),
            "bytes": (replace(second, payload_bytes=second.payload_bytes - 1), "a different ledger"),
            "rolling crc": (replace(second, rolling_crc=second.rolling_crc ^ 1), "a different ledger"),
            "sha-256": (replace(second, object_sha256=bytes([1]) + second.object_sha256[1:]), "different bytes"),
            "hash of the index": (replace(second, index=replace(index, crc=index.crc ^ 1)), "index"),
            "place of the index": (replace(second, index=replace(index, offset=index.offset - 1)), "index"),
            "size": (replace(second, object_bytes=second.object_bytes - 1), "size"),
            "object": (replace(second, object_id="0b9b3a2e-8f57-4b38-9c58-0a53a30a3c77"), "is not the object"),
        }

        async def problem_of(*receipts: Receipt) -> str:
            named = dict(zip((ledger.id for ledger in ledgers[-len(receipts) :]), receipts, strict=True))
            return (await verify_object(stage.store, InlineWorkers(), second.key, named)).problem

        assert await problem_of(first, second) == ""
        for field, (receipt, words) in wrong.items():
            assert words in await problem_of(first, receipt), field
            assert await problem_of(receipt), field
        missing = await verify_object(stage.store, InlineWorkers(), second.key, {12_345: second})
        assert "does not contain ledger 12345" in missing.problem


@scenario()
async def test_verification_follows_ledgers_that_are_moved_or_deleted_meanwhile(
    cluster: MemoryCluster, client: Client
) -> None:
    moved, also, deleted, lost = [await closed(client, 30) for _ in range(4)]
    async with ArchiveStage(cluster, EAGER) as stage:
        for ledger in (moved, also, deleted, lost):
            await stage.archive(ledger.id)
        before = [await client.ledger_metadata(ledger.id) for ledger in (moved, also, deleted, lost)]
        await stage.archive(moved.id, also.id)
        await client.delete_ledger(deleted.id)
        for metadata in before:
            assert metadata.archived is not None
            await stage.store.delete(metadata.archived.key)

        async def current(ledger_id: int) -> LedgerMetadata | None:
            try:
                return await client.ledger_metadata(ledger_id)
            except NoSuchLedger:
                return None

        found = [each async for each in verify_objects(stage.store, InlineWorkers(), before, current)]
        assert {verdict.ledger_ids: verdict.good for verdict in found} == {
            (moved.id, also.id): True, (lost.id,): False,
        }  # fmt: skip
