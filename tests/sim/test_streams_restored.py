"""Streams are restored from the bucket after the metadata store was lost."""

from collections.abc import AsyncIterator, Collection, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import Any, cast

import pytest

from tallybook.archive.catalog import read_catalog
from tallybook.archive.stream_records import RecordsCopy, decode_records, encode_records, read_records
from tallybook.client.client import Client
from tallybook.core.errors import ArchiveDenied, Conflict, DamagedFile, MetadataUnavailable, StreamGap
from tallybook.core.quorum import Quorum
from tallybook.core.settings import OffloadSettings
from tallybook.metadata.ledger.model import Fragment, LedgerMetadata, LedgerState
from tallybook.metadata.memory import MemoryMetadata
from tallybook.metadata.store import LedgerPage, MetadataStore, RecordPage
from tallybook.offload.bucket.records_copier import COPIED, GONE_KEPT_SECONDS, RecordsCopier
from tallybook.offload.rebuild import check_owner, claim_bucket, rebuild_catalog
from tallybook.runtime.rng import SeededRng
from tallybook.runtime.tasks import InlineWorkers
from tallybook.sim.deterministic import SimClock
from tallybook.stream import StreamStore
from tallybook.stream.catalog import head as heads
from tallybook.stream.catalog.head import Head
from tallybook.stream.policy import StreamPolicy
from tallybook.stream.restore.later_segments import MAX_LISTED, with_later
from tallybook.stream.restore.restore import ORDER, RestoredRecord, restore_streams

from ..simulated import scenario
from ..support.archive_stage import ArchiveStage
from ..support.ledger_scenario import SMALL, lines
from ..support.memory_cluster import MemoryCluster
from .parts import offloader, one_stream

SETTINGS = OffloadSettings(min_age_s=0, max_set_wait_s=0, own_object_bytes=1, row_group_bytes=4096, tidy_interval_s=0)


async def restored(stage: ArchiveStage, cluster: MemoryCluster) -> list[RestoredRecord]:
    """Restore the metadata of a cluster from the bucket alone; return the result of each record."""
    store = cluster.metadata.client().store
    async for rebuilt in rebuild_catalog(stage.store, store, InlineWorkers()):
        assert not rebuilt.problem
    return [each async for each in restore_streams(store, await read_records(stage.store, InlineWorkers()))]


@asynccontextmanager
async def another(cluster: MemoryCluster) -> AsyncIterator[MemoryCluster]:
    """A new cluster in the same world, instead of a lost one."""
    found = MemoryCluster(cluster.world, bookies=3)
    await found.start()
    try:
        yield found
    finally:
        await found.stop()


def test_every_kind_of_record_that_is_copied_is_restored_in_an_order() -> None:
    assert sorted(ORDER) == sorted(COPIED)


def test_bytes_that_are_no_copy_of_records_are_refused() -> None:
    copy = RecordsCopy({"stream-names/a": b"x", "stream-names/b": b"y"}, {"stream-names/b": 7})
    data = encode_records(copy)
    assert decode_records(data, "it") == copy
    for cut in (0, 4, len(data) - 1):
        with pytest.raises(DamagedFile, match="it cannot be decoded"):
            decode_records(data[:cut], "it")


@scenario()
async def test_a_stream_comes_back_with_its_policy_its_archived_records_and_its_subscriptions_and_is_written_on(
    cluster: MemoryCluster, client: Client
) -> None:
    async with ArchiveStage(cluster, SETTINGS) as stage:
        async with StreamStore(client) as streams:
            await streams.create("sales/eu", retention=86_400)
            async with await streams.writer("sales/eu") as writer:
                positions = [await writer.append(line) for line in lines(20)]
            async with await streams.subscribe("sales/eu", "billing") as billing:
                await billing.advance(positions[4])
            written = await streams.writer("sales/eu")
            await written.append(b"never archived")
            await offloader(stage, SETTINGS).run_pass()
            await written.close()
        async with another(cluster) as fresh:
            records = await restored(stage, fresh)
            assert [each.problem for each in records if each.problem] == []
            lost = [what for each in records for what in each.lost]
            assert any("'sales/eu': segment" in what for what in lost), "the segment that was open is named"
            assert all(each.known for each in await restored(stage, fresh)), "once more changes nothing"
            async with fresh.client(SMALL, archive=stage.reader) as other, StreamStore(other) as streams:
                assert [name async for name in streams.list()] == ["sales/eu"]
                assert (await streams.info("sales/eu")).policy.retention == 86_400
                assert [each.name async for each in streams.subscriptions("sales/eu")] == ["billing"]
                async with await streams.writer("sales/eu") as writer:
                    await writer.append(b"after that")
                found = [record.payload async for record in streams.reader("sales/eu", follow=False)]
                assert found == [*lines(20), b"after that"]


@scenario()
async def test_a_stream_of_which_nothing_was_archived_comes_back_empty(cluster: MemoryCluster, client: Client) -> None:
    async with ArchiveStage(cluster, SETTINGS) as stage:
        async with one_stream(client) as streams:
            writer = await streams.writer("s")
            await writer.append(b"never archived")
            await offloader(stage, SETTINGS).run_pass()
            await writer.close()
        async with another(cluster) as fresh:
            await restored(stage, fresh)
            async with fresh.client(SMALL, archive=stage.reader) as other, StreamStore(other) as streams:
                assert [record async for record in streams.reader("s", follow=False)] == []
                async with await streams.writer("s") as writer:
                    await writer.append(b"after that")
                assert [record.payload async for record in streams.reader("s", follow=False)] == [b"after that"]


@scenario()
async def test_a_record_that_cannot_be_understood_is_named_and_keeps_no_other_from_coming_back(
    cluster: MemoryCluster, client: Client
) -> None:
    async with StreamStore(client) as streams:
        for name in ("a", "b"):
            await streams.create(name)
    source = cluster.metadata.client().store
    names = [name for name in (await source.list_records("stream-")).names if name.startswith(COPIED)]
    records = {name: record.value for name in names if (record := await source.read_record(name)) is not None}
    bad = next(name for name in names if name.startswith("stream-heads/"))
    fresh = MemoryMetadata(SeededRng(7)).client().store
    found = [each async for each in restore_streams(fresh, RecordsCopy(records | {bad: b"no head"}))]
    assert [each.name for each in found if each.problem] == [bad]
    assert len(found) == len(records)
    assert await fresh.read_record(bad) is None


async def copied(stage: ArchiveStage) -> RecordsCopy:
    await offloader(stage, SETTINGS).run_pass()
    return await read_records(stage.store, InlineWorkers())


class ClockAhead(SimClock):
    ahead_seconds = 0.0

    def wall_us(self) -> int:
        return super().wall_us() + int(self.ahead_seconds * 1_000_000)


def of_streams(copy: RecordsCopy, *prefixes: str) -> list[str]:
    return [name for name in sorted(copy.records) if name.startswith(prefixes)]


@scenario()
async def test_records_that_were_lost_from_the_metadata_come_back_from_the_bucket_and_those_that_were_deleted_do_not(
    cluster: MemoryCluster, client: Client
) -> None:
    store = cluster.metadata.client().store
    async with ArchiveStage(cluster, SETTINGS) as stage, StreamStore(client) as streams:
        for name in ("lost", "deleted"):
            await streams.create(name)
            async with await streams.writer(name) as writer:
                await writer.append(b"x")
            async with await streams.subscribe(name, "billing") as billing:
                await billing.advance((await anext(streams.reader(name, follow=False))).position)
        before = await copied(stage)
        await streams.delete("deleted")
        for name in of_streams(before, "stream-heads/", "stream-names/"):
            if (record := await store.read_record(name)) is not None:
                await store.delete_record(name, record.version)
        after = await copied(stage)
        assert after.records.keys() >= before.records.keys()
        assert set(of_streams(before, "stream-heads/", "stream-names/")) <= after.gone_at_ms.keys()
        assert await copied(stage) == after, "nothing has changed"
        found = [each async for each in restore_streams(store, after)]
        assert [each.problem for each in found if each.problem] == []
        assert [name async for name in streams.list()] == ["lost"]
        assert [each.name async for each in streams.subscriptions("lost")] == ["billing"]
        assert [record.payload async for record in streams.reader("lost", follow=False)] == [b"x"]


@scenario()
async def test_what_has_gone_stays_in_the_copy_for_a_month_and_a_listing_that_was_cut_off_changes_nothing(
    cluster: MemoryCluster, client: Client
) -> None:
    async with ArchiveStage(cluster, SETTINGS) as stage, StreamStore(client) as streams:
        await streams.create("kept")
        await streams.create("deleted")
        before = await copied(stage)
        store, clock = cluster.metadata.client().store, ClockAhead()
        copier = RecordsCopier(store, stage.store, InlineWorkers(), clock)

        async def cut_off(prefix: str = "", after: str = "", limit: int = 1000) -> RecordPage:
            return RecordPage((), complete=False)

        listed, store.list_records = store.list_records, cut_off  # type: ignore[method-assign]
        with pytest.raises(MetadataUnavailable):
            await copier.copy()
        store.list_records = listed  # type: ignore[method-assign]
        assert await read_records(stage.store, InlineWorkers()) == before
        await streams.delete("deleted")
        assert await copier.copy()
        assert (await read_records(stage.store, InlineWorkers())).records.keys() == before.records.keys()
        clock.ahead_seconds = GONE_KEPT_SECONDS
        assert await copier.copy()
        after = await read_records(stage.store, InlineWorkers())
        assert after.gone_at_ms == {}
        assert of_streams(after, "stream-names/") == ["stream-names/default/kept"]


@scenario()
async def test_segments_that_were_archived_after_the_last_copy_are_listed_again_and_their_numbers_not_given_out(
    cluster: MemoryCluster, client: Client
) -> None:
    async with ArchiveStage(cluster, SETTINGS) as stage:
        rarely = offloader(stage, SETTINGS.model_copy(update={"tidy_interval_s": 3600}))
        async with StreamStore(client) as streams:
            await streams.create("sales")
            for at in range(4):
                async with await streams.writer("sales") as writer:
                    await writer.append_many(lines(10, 10 * at))
                if at != 2:
                    await rarely.run_pass()
            numbers = [each.number async for each in streams.segments("sales")]
        async with another(cluster) as fresh:
            records = await restored(stage, fresh)
            assert [(each.problem, each.lost) for each in records if each.problem or each.lost] == []
            async with fresh.client(SMALL, archive=stage.reader) as other, StreamStore(other) as streams:
                assert [each.number async for each in streams.segments("sales")] == numbers
                async with await streams.writer("sales") as writer:
                    position = await writer.append(b"after that")
                found = [record async for record in streams.reader("sales", follow=False)]
                assert [record.payload for record in found] == [*lines(40), b"after that"]
                assert len({record.position for record in found}) == 41
                assert found[-1].position == position


class CutOff:
    """A metadata store whose first ledger listing fails before the first ledger."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def list_ledgers(self, *_args: Any, **_options: Any) -> LedgerPage:
        return LedgerPage((), complete=False)


async def two_rounds(stage: ArchiveStage, client: Client, *, between: int = 5, in_all: int = 10) -> RecordsCopy:
    """A stream with two archived segments whose copied head lists only the first one."""
    async with one_stream(client) as streams:
        async with await streams.writer("s") as writer:
            await writer.append_many(lines(between))
        copy = await copied(stage)
        async with await streams.writer("s") as writer:
            await writer.append_many(lines(in_all - between, between))
        await offloader(stage, SETTINGS).run_pass()
    return copy


async def entered(stage: ArchiveStage, cluster: MemoryCluster, copy: RecordsCopy) -> list[RestoredRecord]:
    """Restore the metadata of a cluster from the readable part of the bucket and a copy of the records."""
    store = cluster.metadata.client().store
    async for _ in rebuild_catalog(stage.store, store, InlineWorkers()):
        pass
    return [each async for each in restore_streams(store, copy)]


@contextmanager
def cold(stage: ArchiveStage, keys: Collection[str]) -> Iterator[None]:
    """A store that refuses to read some objects, as with Glacier."""
    read = stage.store.read

    async def refused(key: str, offset: int, size: int) -> bytes:
        if key in keys:
            raise ArchiveDenied(f"{key}: InvalidObjectState")
        return await read(key, offset, size)

    stage.store.read = refused  # type: ignore[method-assign]
    try:
        yield
    finally:
        stage.store.read = read  # type: ignore[method-assign]


async def objects_of(stage: ArchiveStage, ledger_id: int) -> list[str]:
    catalog = await read_catalog(stage.store, InlineWorkers())
    return [each.receipt.key for each in (catalog.ledgers[ledger_id], *catalog.older.get(ledger_id, ()))]


@scenario()
async def test_a_listing_of_ledgers_that_is_cut_off_restores_no_stream_without_its_later_segments(
    cluster: MemoryCluster, client: Client
) -> None:
    async with ArchiveStage(cluster, SETTINGS) as stage:
        copy = await two_rounds(stage, client)
        async with another(cluster) as fresh:
            store = fresh.metadata.client().store
            async for rebuilt in rebuild_catalog(stage.store, store, InlineWorkers()):
                assert not rebuilt.problem
            with pytest.raises(MetadataUnavailable, match="incomplete"):
                [each async for each in restore_streams(cast("MetadataStore", CutOff(store)), copy)]
            assert [each.lost async for each in restore_streams(store, copy) if each.lost] == []
            async with fresh.client(SMALL, archive=stage.reader) as other, StreamStore(other) as streams:
                assert [record.payload async for record in streams.reader("s", follow=False)] == lines(10)


@pytest.mark.parametrize("meanwhile", ["nothing", "written", "being written"])
@scenario()
async def test_a_segment_whose_object_comes_back_later_is_listed_in_a_stream_that_is_there_or_named(
    cluster: MemoryCluster, client: Client, *, meanwhile: str
) -> None:
    async with ArchiveStage(cluster, SETTINGS) as stage:
        copy = await two_rounds(stage, client)
        last = max([ledger_id async for ledger_id in client.list_ledgers()])
        async with another(cluster) as fresh, fresh.client(SMALL, archive=stage.reader) as other:
            with cold(stage, await objects_of(stage, last)):
                await entered(stage, fresh, copy)
            async with StreamStore(other) as streams, AsyncExitStack() as stack:
                if meanwhile != "nothing":
                    writer = await streams.writer("s")
                    await writer.append(b"since")
                    await (writer.commit() if meanwhile == "being written" else writer.close())
                    stack.callback(writer.abandon)
                found = await entered(stage, fresh, copy)
                lost = [what for each in found for what in each.lost]
                if meanwhile == "nothing":
                    assert lost == []
                    assert [each.listed for each in found if each.listed] == [1]
                else:
                    assert [f"(ledger {last})" in what for what in lost] == [True]
                again = await entered(stage, fresh, copy)
                assert not any(each.listed for each in again), "once more changes nothing"
                assert [what for each in again for what in each.lost] == lost
                wanted = lines(10) if meanwhile == "nothing" else [*lines(5), b"since"]
                assert [record.payload async for record in streams.reader("s", follow=False)] == wanted
                if meanwhile == "nothing":
                    async with await streams.writer("s") as writer:
                        await writer.append(b"after that")
                    records = [record async for record in streams.reader("s", follow=False)]
                    assert [record.sequence for record in records] == [*range(11)]


@scenario()
async def test_a_segment_of_the_copy_whose_object_comes_back_later_is_listed_again(
    cluster: MemoryCluster, client: Client
) -> None:
    async with ArchiveStage(cluster, SETTINGS) as stage:
        async with one_stream(client) as streams:
            async with await streams.writer("s") as writer:
                await writer.append_many(lines(5))
            writer = await streams.writer("s")
            await writer.append_many(lines(5, 5))
            copy = await copied(stage)
            await writer.close()
            await offloader(stage, SETTINGS).run_pass()
        last = max([ledger_id async for ledger_id in client.list_ledgers()])
        async with another(cluster) as fresh:
            with cold(stage, await objects_of(stage, last)):
                first = await entered(stage, fresh, copy)
            assert [f"(ledger {last})" in what for each in first for what in each.lost] == [True]
            assert [what for each in await entered(stage, fresh, copy) for what in each.lost] == []
            async with fresh.client(SMALL, archive=stage.reader) as other, StreamStore(other) as streams:
                assert [record.payload async for record in streams.reader("s", follow=False)] == lines(10)


@scenario()
async def test_a_living_stream_is_left_as_it_is_after_truncation_and_chapters(
    cluster: MemoryCluster, client: Client
) -> None:
    async with ArchiveStage(cluster, SETTINGS) as stage:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(heads, "MAX_SEGMENTS", 4)
            patch.setattr(heads, "CHAPTER_SEGMENTS", 2)
            async with one_stream(client) as streams:
                for at in range(9):
                    async with await streams.writer("s") as writer:
                        position = await writer.append(b"%d" % at)
                        if at == 1:
                            await streams.truncate("s", before=position)
                copy = await copied(stage)
                assert any(name.startswith("stream-chapters/") for name in copy.records)
                store = cluster.metadata.client().store
                names = sorted(copy.records)
                before = [await store.read_record(name) for name in names]
                found = [each async for each in restore_streams(store, copy)]
                assert all(each.known and not each.lost and not each.listed for each in found)
                assert [await store.read_record(name) for name in names] == before


@scenario()
async def test_a_rebuild_that_is_stopped_before_its_end_leaves_the_bucket_to_be_read_again(
    cluster: MemoryCluster, client: Client
) -> None:
    async with ArchiveStage(cluster, SETTINGS) as stage:
        async with StreamStore(client) as streams:
            await streams.create("sales")
            async with await streams.writer("sales") as writer:
                await writer.append_many(lines(20))
        await offloader(stage, SETTINGS).run_pass()
        before = await read_records(stage.store, InlineWorkers())
        async with another(cluster) as fresh:
            fresh.metadata.cluster_id = "another"
            fresh.client(SMALL)  # another seed for the next one
            async with fresh.client(SMALL) as other, StreamStore(other) as streams:
                await streams.create("new")
            store = fresh.metadata.client().store
            async for rebuilt in rebuild_catalog(stage.store, store, InlineWorkers()):
                assert rebuilt.ledger_ids
            worker = offloader(stage, SETTINGS, metadata=fresh.metadata)
            await worker.run_pass()
            assert "is the archive of cluster" in worker.totals.last_error
            assert await read_records(stage.store, InlineWorkers()) == before
            await restored(stage, fresh)
            await claim_bucket(stage.store, store, InlineWorkers())
            await worker.run_pass()
            assert len((await read_records(stage.store, InlineWorkers())).records) > len(before.records)
            async with fresh.client(SMALL, archive=stage.reader) as other, StreamStore(other) as streams:
                assert [name async for name in streams.list()] == ["new", "sales"]


@scenario()
async def test_the_bucket_of_another_cluster_is_taken_only_on_request(cluster: MemoryCluster, client: Client) -> None:
    async with ArchiveStage(cluster, SETTINGS) as stage:
        mine, fresh = client.world.store, MemoryMetadata(SeededRng(7)).client().store
        await check_owner(stage.store, fresh, InlineWorkers(), take_over=False)
        await offloader(stage, SETTINGS).run_pass()
        await check_owner(stage.store, mine, InlineWorkers(), take_over=False)
        with pytest.raises(Conflict, match="--take-over"):
            await check_owner(stage.store, fresh, InlineWorkers(), take_over=False)
        await check_owner(stage.store, fresh, InlineWorkers(), take_over=True)


@pytest.mark.parametrize("taken", ["name", "name and ids"])
@scenario()
async def test_a_stream_whose_name_another_one_has_by_now_comes_back_under_another_name_and_says_so(
    cluster: MemoryCluster, client: Client, *, taken: str
) -> None:
    async with ArchiveStage(cluster, SETTINGS) as stage:
        async with StreamStore(client) as streams:
            await streams.create("sales")
            async with await streams.writer("sales") as writer:
                await writer.append_many(lines(5))
        await offloader(stage, SETTINGS).run_pass()
        async with another(cluster) as fresh:
            fresh.client(SMALL)  # another seed for the next one
            fresh.metadata.id_counter = 0 if taken == "name and ids" else 100
            async with fresh.client(SMALL) as other, StreamStore(other) as streams:
                await streams.create("sales")
                async with await streams.writer("sales") as writer:
                    await writer.append(b"of the new one")
            records = await restored(stage, fresh)
            [beside] = [each.entered_as for each in records if each.entered_as is not None]
            assert [beside in each.problem for each in records if each.problem] == [True]
            assert any(each.lost for each in records) == (taken == "name and ids")
            assert not [each for each in await restored(stage, fresh) if each.problem], "once more changes nothing"
            async with fresh.client(SMALL, archive=stage.reader) as other, StreamStore(other) as streams:
                assert [name async for name in streams.list()] == ["sales", beside]
                async with await streams.writer(beside) as writer:
                    await writer.append(b"after that")
                await streams.rename(beside, "sales of before")
                reading = streams.reader("sales of before", follow=False)
                if taken == "name":
                    assert [record.payload async for record in reading] == [*lines(5), b"after that"]
                else:
                    with pytest.raises(StreamGap, match="record 0 to record 4 is lost"):
                        await anext(reading)
                await streams.delete("sales of before")
                found = [record.payload async for record in streams.reader("sales", follow=False)]
                assert found == [b"of the new one"]


def head_of(next_segment: int = 3, *, ended: bool = False) -> Head:
    return Head("a" * 32, "default", "sales", 0, StreamPolicy(), next_segment=next_segment, ended=ended)


def segment(ledger_id: int, last_entry_id: int = 5) -> LedgerMetadata:
    return LedgerMetadata(
        ledger_id, Quorum(1, 1, 1), (Fragment(0, ("a",)),), "c", 7, LedgerState.CLOSED, last_entry_id, last_entry_id + 1
    )


def test_what_of_later_segments_cannot_be_listed_is_named() -> None:
    found = [
        (2, segment(20)),
        (5, segment(51)),
        (5, segment(52)),
        (4, segment(40)),
        (4, segment(41, -1)),
        (7, segment(70, -1)),
    ]
    head, lost = with_later(head_of(), found)
    assert [(each.number, each.ledger_id, each.end) for each in head.segments] == [(2, 20, None), (4, 40, None)]
    assert head.next_segment == 8
    assert lost == (
        "stream 'sales': segment 3, unless it stayed empty",
        "stream 'sales': segment 5 (ledger 51), of several",
        "stream 'sales': segment 5 (ledger 52), of several",
        "stream 'sales': segment 6, unless it stayed empty",
    )


def test_a_head_takes_only_so_many_later_segments() -> None:
    head, lost = with_later(head_of(), [(each, segment(each)) for each in range(3, MAX_LISTED + 5)])
    assert (len(head.segments), head.next_segment) == (MAX_LISTED, MAX_LISTED + 5)
    assert [each.endswith("no space") for each in lost] == [True, True]
