"""Faults of streams that a second reading found: each kept somebody from going on, or left something for ever."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import replace

import pytest

from tallybook.client.client import Client
from tallybook.client.reader.handle import LedgerReader
from tallybook.core.batch import Entry
from tallybook.core.errors import (
    DamagedFile,
    DataMissing,
    InvalidArgument,
    MetadataUnavailable,
    NoSuchLedger,
    StreamExists,
    StreamFenced,
)
from tallybook.metadata.faulty import Fault, FaultyStore
from tallybook.metadata.store import MetadataStore
from tallybook.runtime.deterministic import World, run_seed
from tallybook.sim.stage.cluster import MemoryCluster
from tallybook.sim.stage.scenario import SMALL, lines, scenario
from tallybook.stream import Gap, GapReason, Position, Start, StreamPolicy, StreamStore
from tallybook.stream import head as head_module
from tallybook.stream.envelope import MAX_RECORDS, Marks
from tallybook.stream.head import Chapter, Head, Segment, SegmentEnd, Truncation
from tallybook.stream.keeping import expired
from tallybook.stream.releasing import LONGEST_RELEASE_SECONDS
from tallybook.stream.writer import loss


@pytest.fixture(autouse=True)
def small_chapters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Heads with so little room that a few segments are put into chapters."""
    monkeypatch.setattr(head_module, "MAX_SEGMENTS", 6)
    monkeypatch.setattr(head_module, "CHAPTER_SEGMENTS", 4)


class Outage:
    """While it lasts, the metadata store does not answer."""

    def __init__(self, cluster: MemoryCluster) -> None:
        self.lasts = False
        self._cluster = cluster

    def next(self, _operation: str) -> Fault | None:
        return Fault.UNAVAILABLE if self.lasts else None

    def __call__(self, store: MetadataStore) -> FaultyStore:
        return FaultyStore(store, self, self._cluster.world.clock)


@asynccontextmanager
async def process(cluster: MemoryCluster, name: str) -> AsyncIterator[tuple[StreamStore, Outage]]:
    """A process of its own, whose metadata store can be taken away."""
    outage = Outage(cluster)
    async with cluster.client(SMALL, seen_through=outage) as client, StreamStore(client, name=name) as streams:
        yield streams, outage


async def filled(streams: StreamStore, count: int = 10, **policy: object) -> list[Position]:
    """A stream ``s`` of that many records."""
    await streams.create("s", **policy)
    async with await streams.writer("s") as writer:
        return [await writer.append(line) for line in lines(count)]


@scenario()
async def test_a_subscription_goes_on_after_an_outage_that_an_advance_did_not_outlast(
    cluster: MemoryCluster, client: Client
) -> None:
    async with StreamStore(client) as calm, process(cluster, "p") as (streams, outage):
        positions = await filled(calm)
        reader = await streams.subscribe("s", "x")
        outage.lasts = True
        with pytest.raises(MetadataUnavailable):
            await reader.advance(positions[2])
        with pytest.raises(MetadataUnavailable):
            await reader.close()
        outage.lasts = False
        await reader.close()
        [info] = [each async for each in calm.subscriptions("s")]
        assert (info.cursor.position, info.reader) == (positions[2], None)


@scenario()
async def test_what_could_not_be_let_go_of_in_an_outage_is_let_go_of_after_it(
    cluster: MemoryCluster, client: Client
) -> None:
    async with StreamStore(client) as calm, process(cluster, "p") as (streams, outage):
        await filled(calm)
        writer = await streams.writer("s")
        reader = await streams.subscribe("s", "x")
        outage.lasts = True
        writer.abandon()
        reader.abandon()
        await cluster.world.clock.sleep(60)
        outage.lasts = False
        async with await calm.writer("s", wait_s=LONGEST_RELEASE_SECONDS + 5):
            pass
        async with await calm.subscribe("s", "x", wait_s=LONGEST_RELEASE_SECONDS + 5):
            pass


@scenario()
async def test_what_a_writer_before_left_half_made_is_deleted_without_a_keeper(
    cluster: MemoryCluster, client: Client
) -> None:
    async with StreamStore(client) as calm, process(cluster, "p") as (streams, outage):
        await filled(calm)
        writer = await streams.writer("s")
        made = streams._client.create_ledger

        async def and_then_nothing(**options: object) -> object:
            ledger = await made(**options)  # type: ignore[arg-type]
            outage.lasts = True
            return ledger

        streams._client.create_ledger = and_then_nothing  # type: ignore[method-assign, assignment]
        with pytest.raises(MetadataUnavailable):
            await writer._segments._make()
        async with await calm.writer("s") as successor:
            await successor.append(b"x")
            await cluster.world.clock.sleep(60)
            head = await calm._find("s")
            assert head.doomed == ()
        named = {segment.ledger_id for segment in (await calm._find("s")).segments}
        assert {ledger_id async for ledger_id in client.list_ledgers()} == named


@scenario()
async def test_a_subscription_whose_ledger_is_lost_is_listed_and_can_be_reset(
    cluster: MemoryCluster, client: Client
) -> None:
    async with StreamStore(client) as streams:
        positions = await filled(streams)
        await (await streams.subscribe("s", "sound")).close()
        reader = await streams.subscribe("s", "x")
        await reader.advance(positions[4])
        reader.abandon()
        await client.delete_ledger((await streams._shelf.read(reader._found.stream_id, "x")).ledger_id or 0, force=True)
        with pytest.raises(DamagedFile, match="reset it"):
            await streams.subscribe("s", "x")
        assert [(each.name, each.cursor is None) async for each in streams.subscriptions("s")] == [
            ("sound", False),
            ("x", True),
        ]
        await streams.reset_subscription("s", "x", Start.at(positions[3]))
        async with await streams.subscribe("s", "x", follow=False) as again:
            assert [record.payload async for record in again] == lines(10)[3:]


@scenario()
async def test_a_young_stream_that_lost_its_name_gets_it_back_at_once(cluster: MemoryCluster, client: Client) -> None:
    async with StreamStore(client) as streams:
        await filled(streams)
        await streams._catalog.unname((await streams._find("s")).stream_id, "default", "s")
        assert await streams.keep() == 0
        assert await streams.exists("s")


def test_retention_gives_up_part_of_a_chapter() -> None:
    run_seed(1, retention_in_a_chapter, deadline_seconds=20_000)


async def retention_in_a_chapter(world: World) -> None:
    cluster = MemoryCluster(world, bookies=3)
    await cluster.start()
    async with cluster.client(SMALL) as client, StreamStore(client) as streams:
        await streams.create("s", retention="50m")
        for index in range(20):
            async with await streams.writer("s") as writer:
                await writer.append(b"%d" % index)
            await cluster.world.clock.sleep(400)
        before = await streams._find("s")
        assert await streams.keep() == 0
        assert (await streams.info("s")).first_sequence == 13, "what is older is gone"
        assert [record.payload async for record in streams.reader("s", follow=False)] == [
            b"%d" % index for index in range(13, 20)
        ]
        after = await streams._find("s")
        assert after.chapters[0].first_segment not in {each.first_segment for each in before.chapters}, "in its middle"
        assert len([ledger_id async for ledger_id in client.list_ledgers()]) == 7
        await streams.delete("s")
        assert [ledger_id async for ledger_id in client.list_ledgers()] == []
    await cluster.stop()


@pytest.mark.parametrize("cut_off_at", range(1, 7))
def test_a_rename_that_was_cut_off_is_finished(cut_off_at: int) -> None:
    @scenario()
    async def play(cluster: MemoryCluster, client: Client) -> None:
        async with StreamStore(client) as calm, process(cluster, "p") as (streams, outage):
            await filled(calm)
            writes = 0

            def no_more(operation: str) -> Fault | None:
                nonlocal writes
                writes += operation in {"write_record", "delete_record"}
                return Fault.UNAVAILABLE if writes >= cut_off_at else None

            outage.next = no_more  # type: ignore[method-assign]
            with suppress(MetadataUnavailable):
                await streams.rename("s", "t")
            assert await calm.keep() == 0
            [name] = [name async for name in calm.list()]
            assert name == ("s" if cut_off_at == 1 else "t")
            assert (await calm.info(name)).name == name
            assert len([record async for record in calm.reader(name, follow=False)]) == 10

    play()


@scenario()
async def test_a_rename_to_a_name_that_is_taken_changes_nothing(cluster: MemoryCluster, client: Client) -> None:
    async with StreamStore(client) as streams:
        await filled(streams)
        await streams.create("t")
        with pytest.raises(StreamExists):
            await streams.rename("s", "t")
        assert await streams.keep() == 0
        assert [name async for name in streams.list()] == ["s", "t"]
        assert (await streams.rename("s", "u")).name == "u"
        assert [name async for name in streams.list()] == ["t", "u"]


@scenario()
async def test_a_takeover_behind_many_marks_reads_few_times(cluster: MemoryCluster, client: Client) -> None:
    async with StreamStore(client) as streams:
        await filled(streams, 1)
        writer = await streams.writer("s")
        last = await writer.append(b"last")
        for _ in range(500):
            await writer.commit()
        writer.abandon()
        async with cluster.client(SMALL) as other, StreamStore(other) as others:
            began = cluster.world.clock.monotonic()
            successor = await others.writer("s")
            assert successor.last_position == last
            assert cluster.world.clock.monotonic() - began < 0.2, "one read after the other takes half a second"


def test_the_name_of_a_process_is_checked() -> None:
    for name in ("x" * 256, "a\nb"):
        with pytest.raises(InvalidArgument):
            StreamStore(None, name=name)  # type: ignore[arg-type]


async def left_behind(streams: StreamStore, count: int = 10) -> list[Position]:
    """A stream ``s`` of that many records whose writer has died."""
    await streams.create("s")
    writer = await streams.writer("s")
    positions = [await writer.append(line, dedup_id=line) for line in lines(count)]
    await writer.commit()
    writer.abandon()
    return positions


async def told(streams: StreamStore, **options: object) -> list[bytes | tuple[GapReason, int | None, int | None]]:
    """What stream ``s`` has, with gaps among it."""
    reader = streams.reader("s", follow=False, gaps="yield", **options)  # type: ignore[arg-type]
    found: list[bytes | tuple[GapReason, int | None, int | None]] = []
    async with aclosing(reader.batches()) as batches:
        async for each in batches:
            if isinstance(each, Gap):
                found.append((each.reason, each.first_sequence, each.next_sequence))
            else:
                found += [record.payload for record in each]
    return found


@scenario()
async def test_a_stream_whose_open_segment_is_gone_can_be_written_again(cluster: MemoryCluster, client: Client) -> None:
    async with StreamStore(client) as streams:
        await left_behind(streams)
        [segment] = (await streams._find("s")).open_segments
        await client.delete_ledger(segment.ledger_id, force=True)
        with pytest.raises(NoSuchLedger):
            await streams.writer("s")
        async with await streams.writer("s", accept_loss=True) as writer:
            behind = writer.next_sequence
            assert behind == loss.LOST_LEDGER_RECORDS
            last = await writer.append(b"after", dedup_id=lines(10)[0])
        assert await told(streams) == [(GapReason.LOST, 0, behind), b"after"]
        assert await told(streams, start=Start.sequence(3)) == [(GapReason.LOST, 0, behind), b"after"]
        assert await streams.last("s") == (last, behind)
        async with await streams.writer("s") as writer:
            assert await writer.append(b"again", dedup_id=lines(10)[0]) == last, "ids behind the loss are known"


@pytest.mark.parametrize("readable", [0, 3, 9])
def test_a_stream_whose_last_entries_are_lost_can_be_written_again(
    readable: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    @scenario()
    async def play(cluster: MemoryCluster, client: Client) -> None:
        async with StreamStore(client) as streams:
            await left_behind(streams)
            read = LedgerReader.read_entry

            async def read_entry(reader: LedgerReader, entry_id: int) -> Entry:
                if entry_id >= readable:
                    raise DataMissing("nobody has it")
                return await read(reader, entry_id)

            with monkeypatch.context() as patched:
                patched.setattr(LedgerReader, "read_entry", read_entry)
                with pytest.raises(DataMissing):
                    await streams.writer("s")
                writer = await streams.writer("s", accept_loss=True)
            lost = 11 - readable
            assert writer.next_sequence == readable + lost * MAX_RECORDS, "ten records and a mark"
            assert (writer.last_position is None) == (readable == 0)
            await writer.append(b"after")
            await writer.close()
            assert (await told(streams))[-1] == b"after"

    play()


@scenario()
async def test_the_numbers_behind_a_loss_go_on_where_the_next_segment_says(
    cluster: MemoryCluster, client: Client
) -> None:
    async with StreamStore(client) as streams:
        await streams.create("s", roll_bytes=1024)
        writer = await streams.writer("s")

        async def never() -> None:
            await asyncio.Event().wait()

        writer._segments._seal_full = never  # type: ignore[method-assign]
        while len((await streams._find("s")).open_segments) < 2 or len(writer._segments._full) < 1:
            await writer.append(b"x" * 100)
        sent = writer.next_sequence
        await writer.append(b"last")
        await writer.commit()
        writer.abandon()
        first, *_ = (await streams._find("s")).open_segments
        await client.delete_ledger(first.ledger_id, force=True)
        async with await streams.writer("s", accept_loss=True) as successor:
            assert successor.next_sequence == sent + 1
        assert (await told(streams))[-1] == b"last"


def test_retention_stops_at_what_is_young_also_where_a_clock_went_back() -> None:
    def segment(number: int, ended_at_ms: int) -> Segment:
        return Segment(number, number, 0, SegmentEnd(0, Marks(10 * number), 0, ended_at_ms))

    policy = StreamPolicy.of(None, retention="1s")
    young = Chapter(1, 1, 4, Marks(40), 9_500)
    head = Head("0" * 32, "default", "s", 0, policy, chapters=(young,), segments=(segment(5, 100), segment(6, 100)))
    assert expired(head, 10_000) is None
    head = replace(head, chapters=(replace(young, ended_at_ms=200),), segments=(segment(5, 9_500), segment(6, 100)))
    assert expired(head, 10_000) == Truncation(5, 0, 0, 40)


@scenario()
async def test_a_commit_of_a_writer_that_is_over_already_says_so_at_once(
    cluster: MemoryCluster, client: Client
) -> None:
    async with StreamStore(client) as streams:
        await streams.create("s")
        writer = await streams.writer("s")
        await writer.append(b"x")
        writer._flow.die(StreamFenced("somebody else has it"))
        began = cluster.world.clock.monotonic()
        with pytest.raises(StreamFenced):
            await writer.commit()
        assert cluster.world.clock.monotonic() - began < 1
