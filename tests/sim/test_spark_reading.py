"""Partitions of a query, read while the cluster changes: the same rows, or a gap of exactly what is lost."""

from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from tallybook.archive.format.index_codec import IndexRoot
from tallybook.archive.format.schema import SCHEMA
from tallybook.archive.scan import ObjectScan
from tallybook.client.client import Client
from tallybook.core.errors import (
    ArchiveUnavailable,
    BookieUnavailable,
    DataMissing,
    NoSuchLedger,
    TallybookError,
    Unauthorized,
)
from tallybook.core.ranges import LedgerEntryRange
from tallybook.metadata.ledger.archived import Receipt
from tallybook.metadata.ledger.model import DigestType, LedgerMetadata
from tallybook.metadata.store import BookieInfo
from tallybook.metadata.transactions import View, read_view
from tallybook.runtime.tasks import InlineWorkers, Tasks
from tallybook.sim.cluster.faulty_objects import FaultyObjectStore, ObjectFault
from tallybook.spark.ledgers.planning import cut, resolve_snapshot
from tallybook.spark.ledgers.reading import EntryRows, read_partition
from tallybook.spark.locations import LedgerBatches, LedgerLocation
from tallybook.spark.options import LocationOptions, ReadOptions
from tallybook.spark.query.gaps import EntryGap
from tallybook.spark.query.partitions import EntryPartition, planned_range_of
from tallybook.spark.query.snapshot import Snapshot, TimeRange

from ..simulated import scenario
from ..support.archive_stage import TINY, ArchiveStage
from ..support.fault_script import FaultScript
from ..support.ledger_scenario import SMALL, lines
from ..support.memory_cluster import MemoryCluster
from .parts import closed_ledger, written_ledger

SMALL_GROUPS = TINY.model_copy(update={"row_group_bytes": 256})
"""A row group for each batch or two."""


class StagePlace:
    """A ``LedgerLocation`` over a simulated cluster and its archive."""

    def __init__(self, stage: ArchiveStage, client: Client, password: bytes = b"") -> None:
        self.stage = stage
        self.client = client
        self.password = password
        self.cluster_id = stage.cluster.metadata.cluster_id
        self.damaged: Mapping[str, str] = {}
        self.scans: list[str] = []
        self.tasks = Tasks("scan", self._died)
        self.store: Any = stage.store
        self.admin = stage.cluster.metadata.client()

    def lost_with(self, key: str) -> Collection[int] | None:
        return ()

    def missing(self, ledger_id: int, first: int, last: int) -> EntryGap:
        return EntryGap.of_deleted(ledger_id, first, last)

    async def ledger_ids(self) -> list[int]:
        return [ledger_id async for ledger_id in self.client.list_ledgers()]

    async def metadata(self, ledger_id: int) -> LedgerMetadata | None:
        try:
            return await self.client.ledger_metadata(ledger_id)
        except NoSuchLedger:
            return None

    async def view(self) -> View:
        return await read_view(self.admin.store)

    async def confirmed(self, metadata: LedgerMetadata) -> int:
        return metadata.last_entry_id if metadata.closed else (await self.verified_ledger(metadata)).last_add_confirmed  # type: ignore[attr-defined]

    async def verified_ledger(self, metadata: LedgerMetadata) -> LedgerBatches:
        password = self.password if metadata.key_verifier else b""
        return await self.client.open_ledger(metadata.ledger_id, password=password, recover=False)

    async def scan(self, receipt: Receipt) -> ObjectScan:
        self.scans.append(receipt.key)
        return ObjectScan(self.store, InlineWorkers(), self.tasks, receipt)

    async def directory(self, receipt: Receipt) -> IndexRoot:
        return await self.stage.reader.directory(receipt)

    async def bookies(self) -> Mapping[str, BookieInfo]:
        return await self.client.bookies()

    async def archive_url(self) -> str:
        return self.stage.store.url

    def _died(self, name: str, error: BaseException) -> None:
        raise AssertionError(name) from error


@asynccontextmanager
async def staged(cluster: MemoryCluster, password: bytes = b"") -> AsyncIterator[StagePlace]:
    async with ArchiveStage(cluster, SMALL_GROUPS) as stage, cluster.client(SMALL, archive=stage.reader) as reading:
        place = StagePlace(stage, reading, password)
        yield place
        await place.tasks.close()


async def partition(place: LedgerLocation, *ranges: tuple[int, int, int], **options: Any) -> EntryPartition:
    """Plan of a query of these entries, in one partition."""
    wanted = tuple(LedgerEntryRange(*each) for each in ranges)
    snapshot = Snapshot(place.cluster_id, wanted, options.pop("written", TimeRange()))
    chosen = ReadOptions(LocationOptions("x", None), **options)
    known = {each.ledger_id: await place.metadata(each.ledger_id) for each in wanted}
    found = await cut(place, chosen, snapshot, known)  # type: ignore[arg-type]
    return EntryPartition(tuple(one for each in found for one in each.planned_ranges), snapshot.written)


class Read:
    """Result of a partition: entries and payloads, sources, and gaps."""

    def __init__(self) -> None:
        self.entries: list[tuple[int, int]] = []
        self.objects: set[str | None] = set()
        self.gaps: list[EntryGap] = []
        self.order: list[tuple[int, int]] = []

    def take(self, item: EntryRows | EntryGap) -> None:
        if isinstance(item, EntryGap):
            self.gaps.append(item)
            self.order.append((item.ledger_id, item.first))
            return
        assert item.table.schema == SCHEMA
        assert item.table.num_rows
        self.objects.add(item.object_key)
        for row in item.table.to_pylist():
            assert row["payload"] == lines(1, row["entry_id"])[0]
            self.entries.append((row["ledger_id"], row["entry_id"]))
        self.order.append(self.entries[-item.table.num_rows])

    @classmethod
    async def of(cls, place: LedgerLocation, wanted: EntryPartition) -> "Read":
        found = cls()
        await found.drain(place, wanted)
        return found

    async def drain(
        self, place: LedgerLocation, wanted: EntryPartition, behind_each: Callable[[], object] = lambda: None
    ) -> None:
        async with aclosing(read_partition(place, wanted)) as items:
            async for item in items:
                self.take(item)
                behind_each()

    def ids(self) -> list[int]:
        return [entry_id for _, entry_id in self.entries]


async def disturbed(place: LedgerLocation, wanted: EntryPartition, disturb: Any, after: int = 1) -> Read:
    """Read, and call something after so many items."""
    found, count = Read(), 0
    async with aclosing(read_partition(place, wanted)) as items:
        async for item in items:
            found.take(item)
            count += 1
            if count == after:
                await disturb()
    assert count > after, "it happened in the middle"
    return found


async def lose(stage: ArchiveStage, ledger_id: int, *entries: int) -> None:
    """Lose the batches with these entries at all bookies."""
    for bookie in stage.cluster.bookies.values():
        for entry_id in entries:
            bookie.drop(ledger_id, entry_id)


async def spoil(stage: ArchiveStage, key: str, begin: float = 0.0) -> None:
    """Change one byte in every hundred of an object, from some offset on."""
    size = (await stage.store.info(key)).size_bytes
    data = bytearray(await stage.store.read(key, 0, size))
    for at in range(int(begin * size), size, 50):
        data[at] ^= 0xFF
    await stage.store.put(key, data)
    stage.reader.forget(key)


async def remove(stage: ArchiveStage, key: str) -> None:
    await stage.store.delete(key)
    stage.reader.forget(key)


async def key_of(place: StagePlace, ledger_id: int) -> str:
    metadata = await place.metadata(ledger_id)
    assert metadata is not None
    assert metadata.archived is not None
    return metadata.archived.key


# --- the same rows, wherever they are ---------------------------------------------------------------------------------


@scenario()
async def test_the_rows_are_the_same_out_of_bookies_and_the_archive(cluster: MemoryCluster, client: Client) -> None:
    ledgers = [(await closed_ledger(client, count)).id for count in (40, 3, 21)]
    async with staged(cluster) as place:
        ranges = [(ledgers[0], 5, 33), (ledgers[1], 0, 2), (ledgers[2], 20, 20)]
        expected = [(ledger, entry) for ledger, first, last in ranges for entry in range(first, last + 1)]
        from_bookies = await Read.of(place, await partition(place, *ranges))
        assert (from_bookies.entries, from_bookies.objects, from_bookies.gaps) == (expected, {None}, [])
        await place.stage.archive(*ledgers)
        key = await key_of(place, ledgers[0])
        for wanted in (await partition(place, *ranges), await partition(place, *ranges, tier="archive")):
            archived = await Read.of(place, wanted)
            assert (archived.entries, archived.objects, archived.gaps) == (expected, {key}, [])
        assert place.scans == [key, key], "one scan for all ledgers of an object"
        again = await Read.of(place, await partition(place, *ranges, tier="bookies"))
        assert (again.entries, again.objects) == (expected, {None})
        for ledger_id in ledgers:
            await place.stage.release(ledger_id)
        released = await Read.of(place, await partition(place, *ranges))
        assert (released.entries, released.objects) == (expected, {key})


@scenario()
async def test_some_ledgers_come_from_bookies_and_some_from_the_archive(cluster: MemoryCluster, client: Client) -> None:
    first, second, third = [(await closed_ledger(client)).id for _ in range(3)]
    async with staged(cluster) as place:
        await place.stage.archive(second)
        found = await Read.of(place, await partition(place, (first, 0, 39), (second, 0, 39), (third, 0, 39)))
        assert sorted(found.entries) == [(each, entry) for each in (first, second, third) for entry in range(40)]
        assert found.objects == {None, await key_of(place, second)}


@scenario()
async def test_a_ledger_that_was_archived_since_the_query_was_planned_is_scanned(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger = (await closed_ledger(client)).id
    async with staged(cluster) as place:
        wanted = await partition(place, (ledger, 3, 38))
        await place.stage.archive(ledger)
        await place.stage.release(ledger)
        found = await Read.of(place, wanted)
        assert (found.ids(), found.objects) == (list(range(3, 39)), {await key_of(place, ledger)})


@scenario()
async def test_an_open_ledger_is_read_up_to_its_last_confirmed_entry(cluster: MemoryCluster, client: Client) -> None:
    ledger = await written_ledger(client, 7)
    await ledger.append_many(lines(7, 7))
    await ledger.force()
    async with staged(cluster) as place:
        snapshot, known, gaps = await resolve_snapshot(place, ReadOptions(LocationOptions("x", None)))
        assert gaps == []
        confirmed = snapshot.ranges[0].last
        assert 6 <= confirmed <= 13
        for wanted in await cut(place, ReadOptions(LocationOptions("x", None)), snapshot, known):
            assert (await Read.of(place, wanted)).ids() == list(range(confirmed + 1))
    await ledger.close()


@scenario()
async def test_entries_of_other_times_are_left_out_everywhere(cluster: MemoryCluster, client: Client) -> None:
    ledger = await client.create_ledger()
    moments = []
    for at in range(0, 21, 7):
        await ledger.append_many(lines(7, at))
        await cluster.world.clock.sleep(10)
        moments.append(cluster.world.clock.wall_us())
    await ledger.close()
    async with staged(cluster) as place:
        for archived in (False, True):
            if archived:
                await place.stage.archive(ledger.id)
            for first, end, expected in [
                (moments[0], moments[1], range(7, 14)), (moments[1], None, range(14, 21)),
                (None, moments[0], range(7)), (moments[2], None, ()), (None, 0, ()),
            ]:  # fmt: skip
                wanted = await partition(place, (ledger.id, 0, 20), written=TimeRange(first, end))
                assert (await Read.of(place, wanted)).ids() == list(expected)
        wanted = await partition(place, (ledger.id, 0, 20))
        table = next(iter([each async for each in read_partition(place, wanted)])).table  # type: ignore[union-attr]
        edge = table["written_at"].cast(pa.int64())[0].as_py()
        inclusive = await partition(place, (ledger.id, 0, 20), written=TimeRange(edge, edge + 1))
        assert (await Read.of(place, inclusive)).ids() == list(range(7))


@scenario()
async def test_several_stretches_of_one_ledger_are_each_read_once(cluster: MemoryCluster, client: Client) -> None:
    ledger = (await closed_ledger(client)).id
    async with staged(cluster) as place:
        await place.stage.archive(ledger)
        metadata = await place.metadata(ledger)
        assert metadata is not None
        pieces = tuple(
            planned_range_of(LedgerEntryRange(ledger, *each), metadata) for each in ((0, 9), (10, 12), (20, 30))
        )
        wanted = EntryPartition(pieces)
        expected = [*range(13), *range(20, 31)]
        assert (await Read.of(place, wanted)).ids() == expected
        await spoil(place.stage, await key_of(place, ledger), 0.3)
        found = await Read.of(place, wanted)
        assert sorted(found.ids()) == expected


# --- what changes in the middle ---------------------------------------------------------------------------------------


@scenario()
async def test_a_ledger_that_is_moved_to_another_object_in_the_middle_of_a_scan_is_read_on_there(
    cluster: MemoryCluster, client: Client
) -> None:
    ledgers = [(await closed_ledger(client)).id for _ in range(3)]
    async with staged(cluster) as place:
        for ledger in ledgers:
            await place.stage.archive(ledger)
            await place.stage.release(ledger)
        before = await key_of(place, ledgers[1])
        wanted = await partition(place, *((ledger, 0, 39) for ledger in ledgers))

        async def compact() -> None:
            await place.stage.archive(*ledgers)
            for ledger, old in zip(ledgers, olds, strict=True):
                assert await key_of(place, ledger) != old
                await remove(place.stage, old)

        olds = [await key_of(place, ledger) for ledger in ledgers]
        found = await disturbed(place, wanted, compact, after=2)
        assert found.entries == [(each, entry) for each in ledgers for entry in range(40)]
        assert found.gaps == []
        assert await key_of(place, ledgers[0]) in found.objects
        assert before not in found.objects, "the ledgers behind were looked for in the new object at once"


@scenario()
async def test_a_damaged_object_is_read_as_far_as_it_goes_and_bookies_give_the_rest(
    cluster: MemoryCluster, client: Client
) -> None:
    ledgers = [(await closed_ledger(client)).id for _ in range(2)]
    async with staged(cluster) as place:
        await place.stage.archive(*ledgers)
        key = await key_of(place, ledgers[0])
        wanted = await partition(place, *((ledger, 0, 39) for ledger in ledgers))
        good = await place.stage.store.read(key, 0, (await place.stage.store.info(key)).size_bytes)
        for change in (spoil, remove):
            await place.stage.store.put(key, good)
            found = await disturbed(place, wanted, lambda change=change: change(place.stage, key))
            assert sorted(found.entries) == [(each, entry) for each in ledgers for entry in range(40)]
            assert found.gaps == []
            assert found.objects == {key, None}
        found = await Read.of(place, wanted)
        assert (found.ids(), found.objects, found.gaps) == ([*range(40), *range(40)], {None}, [])


@scenario()
async def test_an_object_that_is_damaged_after_a_ledger_was_found_in_it_is_left_where_it_was_read_to(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger = (await closed_ledger(client)).id
    async with staged(cluster) as place:
        wanted = await partition(place, (ledger, 2, 38))
        await place.stage.archive(ledger)
        key = await key_of(place, ledger)
        found = await disturbed(place, wanted, lambda: remove(place.stage, key))
        assert (found.ids(), found.gaps, found.objects) == (list(range(2, 39)), [], {key, None})


@scenario()
async def test_entries_only_in_a_damaged_or_missing_object_are_a_gap(cluster: MemoryCluster, client: Client) -> None:
    ledger = (await closed_ledger(client)).id
    for change in (spoil, remove):
        ledger = (await closed_ledger(client)).id
        async with staged(cluster) as place:
            await place.stage.archive(ledger)
            await place.stage.release(ledger)
            key = await key_of(place, ledger)
            wanted = await partition(place, (ledger, 0, 39))

            async def happen(change: Any = change, place: StagePlace = place, key: str = key) -> None:
                await change(place.stage, key)

            found = await disturbed(place, wanted, happen)
            seen = len(found.entries)
            assert found.ids() == list(range(seen))
            assert 0 < seen < 40
            assert [(gap.ledger_id, gap.first, gap.last, gap.kind) for gap in found.gaps] == [
                (ledger, seen, 39, "lost")
            ]
            assert key in found.gaps[0].reason
            whole = await Read.of(place, wanted)
            assert [(gap.first, gap.last, gap.kind) for gap in whole.gaps] == [(0, 39, "lost")]
            assert isinstance(whole.gaps[0].error(), DataMissing)


@scenario()
async def test_a_ledger_that_is_deleted_in_between_is_trimmed_from_where_it_was_read_to(
    cluster: MemoryCluster, client: Client
) -> None:
    first, second = [(await closed_ledger(client)).id for _ in range(2)]
    async with staged(cluster) as place:
        wanted = await partition(place, (first, 0, 39), (second, 0, 39))

        async def delete() -> None:
            await place.client.delete_ledger(second)

        found = await disturbed(place, wanted, delete)
        assert found.ids() == list(range(40))
        assert found.gaps == [EntryGap.of_deleted(second, 0, 39)]
        await place.stage.archive(first)
        wanted = await partition(place, (first, 2, 38))
        key = await key_of(place, first)

        async def delete_archived() -> None:
            await place.client.delete_ledger(first)
            await remove(place.stage, key)

        found = await disturbed(place, wanted, delete_archived)
        assert found.ids() == list(range(2, 2 + len(found.ids())))
        assert found.gaps == [EntryGap.of_deleted(first, 2 + len(found.ids()), 38)]
        assert isinstance(found.gaps[0].error(), NoSuchLedger)


@scenario()
async def test_gaps_known_when_the_query_was_planned_are_reported_first(cluster: MemoryCluster, client: Client) -> None:
    ledger = (await closed_ledger(client)).id
    async with staged(cluster) as place:
        known = EntryGap.of_deleted(99, 0, 5)
        wanted = replace(await partition(place, (ledger, 0, 39)), gaps=(known,))
        found = await Read.of(place, wanted)
        assert found.gaps == [known]
        assert found.order[0] == (99, 0)
        assert len(found.entries) == 40


@scenario()
async def test_entries_that_all_bookies_lost_are_a_gap_of_exactly_those_with_rows_on_both_sides(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger = await closed_ledger(client, 280)
    async with staged(cluster) as place:
        await lose(place.stage, ledger.id, 14, 21, 140, *range(196, 252, 7))
        found = await Read.of(place, await partition(place, (ledger.id, 0, 279)))
        gaps = [(gap.first, gap.last) for gap in found.gaps]
        lost = {entry for first, last in gaps for entry in range(first, last + 1)}
        assert gaps == [(14, 27), (140, 146), (196, 251)]
        assert found.ids() == [entry for entry in range(280) if entry not in lost]
        assert found.order == sorted(found.order)
        assert {gap.kind for gap in found.gaps} == {"lost"}
        inside = await Read.of(place, await partition(place, (ledger.id, 16, 142)))
        assert [(gap.first, gap.last) for gap in inside.gaps] == [(16, 27), (140, 142)]
        assert inside.ids() == [*range(28, 140)]
        await lose(place.stage, ledger.id, 273)
        end = await Read.of(place, await partition(place, (ledger.id, 260, 279)))
        assert (end.ids(), [(gap.first, gap.last) for gap in end.gaps]) == ([*range(260, 273)], [(273, 279)])


@scenario()
async def test_what_the_archive_has_of_entries_that_all_bookies_lost_is_no_gap(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger = await closed_ledger(client)
    async with staged(cluster) as place:
        await place.stage.archive(ledger.id)
        await lose(place.stage, ledger.id, 14, 21)
        for tier in ("auto", "bookies"):
            found = await Read.of(place, await partition(place, (ledger.id, 0, 39), tier=tier))
            assert (found.ids(), found.gaps) == (list(range(40)), [])


# --- what may pass is no gap ------------------------------------------------------------------------------------------


@scenario()
async def test_bookies_that_do_not_answer_are_an_error_and_never_a_gap(cluster: MemoryCluster, client: Client) -> None:
    ledger = await closed_ledger(client, 280)
    async with staged(cluster) as place:
        wanted = await partition(place, (ledger.id, 0, 279))
        names = list(cluster.bookies)
        for kept in (0, 1):
            # The available bookies have lost an entry; the absent one may have it.
            await lose(place.stage, ledger.id, 140)
            for name in names[kept:]:
                cluster.bookies[name].pause()
            found = Read()
            with pytest.raises(TallybookError) as raised:
                await found.drain(place, wanted)
            assert raised.value.retriable
            assert found.gaps == []
            assert len(found.entries) <= 140
            for name in names[kept:]:
                cluster.bookies[name].resume()
        for name in names:
            cluster.die(name)
        with pytest.raises(BookieUnavailable):
            await Read.of(place, wanted)


@scenario()
async def test_an_error_that_may_pass_while_the_end_of_a_gap_is_looked_for_is_raised(
    cluster: MemoryCluster, client: Client
) -> None:
    """The gap certainly begins; its end is unknown now."""
    ledger = await closed_ledger(client, 280)
    async with staged(cluster) as place:
        await lose(place.stage, ledger.id, *range(7, 273, 7))
        wanted = await partition(place, (ledger.id, 0, 279))
        found = Read()

        def pause() -> None:
            for name in list(cluster.bookies)[1:]:
                cluster.bookies[name].pause()

        with pytest.raises(TallybookError) as raised:
            await found.drain(place, wanted, pause)
        assert raised.value.retriable
        assert (found.ids(), found.gaps) == (list(range(7)), [])
        for bookie in cluster.bookies.values():
            bookie.resume()


@scenario()
async def test_an_archive_that_does_not_answer_is_an_error_and_never_a_gap(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger = await closed_ledger(client)
    async with staged(cluster) as place:
        await place.stage.archive(ledger.id)
        await place.stage.release(ledger.id)
        wanted = await partition(place, (ledger.id, 0, 39))
        for reads in range(3):
            script = FaultScript([*[("read", None)] * reads, ("read", ObjectFault.FAILED)])
            place.store = FaultyObjectStore(place.stage.store, script, cluster.world.clock)
            found = Read()
            with pytest.raises(ArchiveUnavailable):
                await found.drain(place, wanted)
            assert found.gaps == []
            assert script.finished
        place.store = place.stage.store
        assert (await Read.of(place, wanted)).ids() == list(range(40))


# --- the careful way --------------------------------------------------------------------------------------------------


@scenario()
async def test_a_signed_ledger_is_read_batch_by_batch_and_only_with_its_password(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger = await closed_ledger(client, password=b"secret", digest=DigestType.HMAC_SHA256)
    async with staged(cluster, b"secret") as place:
        await place.stage.archive(ledger.id)
        found = await Read.of(place, await partition(place, (ledger.id, 3, 36)))
        assert (found.ids(), place.scans) == (list(range(3, 37)), [])
        await place.stage.release(ledger.id)
        found = await Read.of(place, await partition(place, (ledger.id, 3, 36)))
        assert (found.ids(), found.objects, place.scans) == (list(range(3, 37)), {await key_of(place, ledger.id)}, [])
        wanted = await partition(place, (ledger.id, 3, 36))
        place.password = b"guessed"
        with pytest.raises(Unauthorized):
            await Read.of(place, wanted)
        for password in (b"", b"guessed"):
            with pytest.raises(Unauthorized):
                await resolve_snapshot(place, ReadOptions(LocationOptions("x", None, password)))
        assert (await resolve_snapshot(place, ReadOptions(LocationOptions("x", None, b"secret"))))[0].ranges


@scenario()
async def test_a_forged_batch_of_a_signed_ledger_is_no_row(cluster: MemoryCluster, client: Client) -> None:
    """The object is consistent; only a reader with the password can detect the other batches."""
    ledger = await closed_ledger(client, password=b"secret", digest=DigestType.HMAC_SHA256)
    async with staged(cluster, b"secret") as place:
        await place.stage.archive(ledger.id)
        await place.stage.release(ledger.id)
        wanted = await partition(place, (ledger.id, 0, 39))
        opened = place.verified_ledger

        async def with_another_key(metadata: LedgerMetadata) -> LedgerBatches:
            reader: Any = await opened(metadata)
            reader._fetcher._digest_key = b"another key".ljust(32)
            return reader  # type: ignore[no-any-return]

        place.verified_ledger = with_another_key  # type: ignore[method-assign]
        found = await Read.of(place, wanted)
        assert (found.ids(), [(gap.first, gap.last) for gap in found.gaps]) == ([], [(0, 39)])
