"""Stream faults found in reviews: each blocked a process, or left something behind for ever."""

from __future__ import annotations

from contextlib import aclosing, suppress
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
from tallybook.stream import Gap, GapReason, Position, Start, StreamPolicy, StreamStore
from tallybook.stream.catalog.head import Chapter, Head, SegmentEnd, StreamSegment, Truncation
from tallybook.stream.records.envelope import MAX_RECORDS, StreamMarks
from tallybook.stream.releasing import LONGEST_RELEASE_SECONDS
from tallybook.stream.retention.janitor import expired
from tallybook.stream.writer import loss

from ..support.faulty_metadata import MetadataFault
from ..support.ledger_scenario import SMALL, lines
from ..support.memory_cluster import MemoryCluster
from ..support.streams import catalog_of, head_of, updates_refused
from .stream_parts import Outage, filled, on_streams, process

pytestmark = pytest.mark.usefixtures("small_chapters")


@on_streams
async def test_a_subscription_goes_on_after_an_outage_that_an_advance_did_not_outlast(others, cluster):
    async with process(cluster, "p") as (streams, outage):
        positions = await filled(others)
        reader = await streams.subscribe("s", "x")
        outage.lasts = True
        with pytest.raises(MetadataUnavailable):
            await reader.advance(positions[2])
        with pytest.raises(MetadataUnavailable):
            await reader.close()
        outage.lasts = False
        await reader.close()
        [info] = [each async for each in others.subscriptions("s")]
        assert (info.cursor.position, info.reader) == (positions[2], None)


@on_streams
async def test_what_could_not_be_let_go_of_in_an_outage_is_let_go_of_after_it(others, cluster):
    async with process(cluster, "p") as (streams, outage):
        await filled(others)
        writer = await streams.writer("s")
        reader = await streams.subscribe("s", "x")
        outage.lasts = True
        writer.abandon()
        reader.abandon()
        await cluster.world.clock.sleep(60)
        outage.lasts = False
        async with await others.writer("s", wait_s=LONGEST_RELEASE_SECONDS + 5):
            pass
        async with await others.subscribe("s", "x", wait_s=LONGEST_RELEASE_SECONDS + 5):
            pass


@on_streams
async def test_what_a_writer_before_left_half_made_is_deleted_without_a_keeper(others, cluster, client):
    outage = Outage(cluster)
    async with cluster.client(SMALL, seen_through=outage) as own, StreamStore(own) as streams:
        await filled(others, roll_bytes=1024)
        writer = await streams.writer("s")
        made = own.create_ledger

        async def and_then_nothing(**options: object) -> object:
            ledger = await made(**options)
            outage.lasts = True
            return ledger

        own.create_ledger = and_then_nothing
        await writer.append(b"x" * 700)
        await cluster.world.clock.sleep(1)
        assert outage.lasts, "the next segment is half made"
        async with await others.writer("s") as successor:
            await successor.append(b"x")
            await cluster.world.clock.sleep(60)
            head = await head_of(others)
            assert head.doomed == ()
        named = {segment.ledger_id for segment in (await head_of(others)).segments}
        assert {ledger_id async for ledger_id in client.list_ledgers()} == named


@on_streams
async def test_a_subscription_whose_ledger_is_lost_is_listed_and_can_be_reset(streams, client):
    positions = await filled(streams)
    await (await streams.subscribe("s", "sound")).close()
    before = {ledger_id async for ledger_id in client.list_ledgers()}
    reader = await streams.subscribe("s", "x")
    await reader.advance(positions[4])
    reader.abandon()
    [of_the_cursor] = {ledger_id async for ledger_id in client.list_ledgers()} - before
    await client.delete_ledger(of_the_cursor, force=True)
    with pytest.raises(DamagedFile, match="reset it"):
        await streams.subscribe("s", "x")
    assert [(each.name, each.cursor is None) async for each in streams.subscriptions("s")] == [
        ("sound", False),
        ("x", True),
    ]
    await streams.reset_subscription("s", "x", Start.at(positions[3]))
    async with await streams.subscribe("s", "x", follow=False) as again:
        assert [record.payload async for record in again] == lines(10)[3:]


@on_streams
async def test_a_young_stream_that_lost_its_name_gets_it_back_at_once(streams: StreamStore) -> None:
    await filled(streams)
    await catalog_of(streams).unname((await head_of(streams)).stream_id, "default", "s")
    assert await streams.keep() == 0
    assert await streams.exists("s")


@on_streams
async def test_retention_gives_up_part_of_a_chapter(streams, cluster, client):
    await streams.create("s", retention="50m")
    for index in range(20):
        async with await streams.writer("s") as writer:
            await writer.append(b"%d" % index)
        await cluster.world.clock.sleep(400)
    before = await head_of(streams)
    assert await streams.keep() == 0
    assert (await streams.info("s")).first_sequence == 13, "what is older is gone"
    assert [record.payload async for record in streams.reader("s", follow=False)] == [
        b"%d" % index for index in range(13, 20)
    ]
    after = await head_of(streams)
    assert after.chapters[0].first_segment not in {each.first_segment for each in before.chapters}, "in its middle"
    assert len([ledger_id async for ledger_id in client.list_ledgers()]) == 7
    await streams.delete("s")
    assert [ledger_id async for ledger_id in client.list_ledgers()] == []


@pytest.mark.parametrize("cut_off_at", range(1, 7))
@on_streams
async def test_a_rename_that_was_cut_off_is_finished(others, cluster, *, cut_off_at):
    async with process(cluster, "p") as (streams, outage):
        await filled(others)
        writes = 0

        def no_more(operation: str) -> MetadataFault | None:
            nonlocal writes
            writes += operation in {"write_record", "delete_record"}
            return MetadataFault.UNAVAILABLE if writes >= cut_off_at else None

        outage.next = no_more
        with suppress(MetadataUnavailable):
            await streams.rename("s", "t")
        assert await others.keep() == 0
        [name] = [name async for name in others.list()]
        assert name == ("s" if cut_off_at == 1 else "t")
        assert (await others.info(name)).name == name
        assert len([record async for record in others.reader(name, follow=False)]) == 10


@on_streams
async def test_a_rename_to_a_name_that_is_taken_changes_nothing(streams: StreamStore) -> None:
    await filled(streams)
    await streams.create("t")
    with pytest.raises(StreamExists):
        await streams.rename("s", "t")
    assert await streams.keep() == 0
    assert [name async for name in streams.list()] == ["s", "t"]
    assert (await streams.rename("s", "u")).name == "u"
    assert [name async for name in streams.list()] == ["t", "u"]


@on_streams
async def test_a_takeover_behind_many_marks_reads_few_times(streams: StreamStore, cluster: MemoryCluster) -> None:
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
            StreamStore(None, name=name)


async def left_behind(streams: StreamStore, count: int = 10) -> list[Position]:
    """A stream ``s`` of that many records whose writer has died."""
    await streams.create("s")
    writer = await streams.writer("s")
    positions = [await writer.append(line, dedup_id=line) for line in lines(count)]
    await writer.commit()
    writer.abandon()
    return positions


async def told(streams: StreamStore, **options: object) -> list[bytes | tuple[GapReason, int | None, int | None]]:
    """The records of stream ``s``, with gaps."""
    reader = streams.reader("s", follow=False, gaps="yield", **options)
    found: list[bytes | tuple[GapReason, int | None, int | None]] = []
    async with aclosing(reader.batches()) as batches:
        async for each in batches:
            if isinstance(each, Gap):
                found.append((each.reason, each.first_sequence, each.next_sequence))
            else:
                found += [record.payload for record in each]
    return found


@on_streams
async def test_a_stream_whose_open_segment_is_gone_can_be_written_again(streams: StreamStore, client: Client) -> None:
    await left_behind(streams)
    [segment] = (await head_of(streams)).open_segments
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
@on_streams
async def test_a_stream_whose_last_entries_are_lost_can_be_written_again(streams, *, readable, monkeypatch):
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


@on_streams
async def test_the_numbers_behind_a_loss_go_on_where_the_next_segment_says(streams, client):
    await streams.create("s", roll_bytes=1024)
    writer = await streams.writer("s")
    begin = await writer.append(b"x" * 100)
    while len((await head_of(streams)).open_segments) < 2:
        await writer.append(b"x" * 100)
    with updates_refused(client):
        while (await writer.append(b"x" * 100)).segment == begin.segment:
            pass
        sent = writer.next_sequence
        await writer.append(b"last")
        await writer.commit()
        writer.abandon()
    first, *_ = (await head_of(streams)).open_segments
    await client.delete_ledger(first.ledger_id, force=True)
    async with await streams.writer("s", accept_loss=True) as successor:
        assert successor.next_sequence == sent + 1
    assert (await told(streams))[-1] == b"last"


def test_retention_stops_at_what_is_young_also_where_a_clock_went_back() -> None:
    def segment(number: int, ended_at_ms: int) -> StreamSegment:
        return StreamSegment(number, number, 0, SegmentEnd(0, StreamMarks(10 * number), 0, ended_at_ms))

    policy = StreamPolicy.of(None, retention="1s")
    young = Chapter(1, 1, 4, StreamMarks(40), 9_500)
    head = Head("0" * 32, "default", "s", 0, policy, chapters=(young,), segments=(segment(5, 100), segment(6, 100)))
    assert expired(head, 10_000) is None
    head = replace(head, chapters=(replace(young, ended_at_ms=200),), segments=(segment(5, 9_500), segment(6, 100)))
    assert expired(head, 10_000) == Truncation(5, 0, 0, 40)


@on_streams
async def test_a_commit_of_a_writer_that_is_over_already_says_so_at_once(streams, others, cluster):
    await streams.create("s")
    writer = await streams.writer("s")
    await (await others.writer("s")).close()
    with pytest.raises(StreamFenced):
        await writer.append(b"x")
    began = cluster.world.clock.monotonic()
    with pytest.raises(StreamFenced):
        await writer.commit()
    assert cluster.world.clock.monotonic() - began < 1
