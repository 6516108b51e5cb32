"""A query of a stream with lost records: the batch with the loss reports it, and the query continues behind it."""

from __future__ import annotations

from contextlib import aclosing
from typing import Any, NamedTuple

import pytest

from tallybook.client.client import Client
from tallybook.spark.ledgers.reading import read_partition
from tallybook.spark.locations import ClusterLocation
from tallybook.spark.options import LocationOptions, ReadOptions
from tallybook.spark.query.bounds import bounds_of, parse_bound
from tallybook.spark.query.gaps import EntryGap
from tallybook.spark.query.record_snapshot import RecordRange
from tallybook.spark.streams.bounds_resolution import StreamResolver, resolve_records
from tallybook.spark.streams.offsets import RecordOffset, StreamProgress
from tallybook.spark.streams.planning import plan_records
from tallybook.spark.streams.ranges import RecordGap, RecordPartition
from tallybook.spark.streams.rows import RecordRows
from tallybook.stream import StreamStore, StreamWriter
from tallybook.stream.catalog.head import Head
from tallybook.stream.position import Position
from tallybook.stream.records.record import Outgoing

from ..simulated import scenario
from ..support.ledger_scenario import SMALL, lines
from ..support.memory_cluster import MemoryCluster
from ..support.streams import head_of
from .test_spark_records import advanced, began_of, following, place_of


class ReadRecord(NamedTuple):
    """Results of the micro-batches of a query."""

    payloads: list[list[bytes]]
    gaps: list[tuple[int | None, int | None]]
    offset: RecordOffset

    @property
    def all(self) -> list[bytes]:
        """Results in order."""
        return [payload for each in self.payloads for payload in each]


def reading(begin: str | None, most: int) -> ReadOptions:
    start = None if begin is None else parse_bound(begin)
    return ReadOptions(LocationOptions("sim:", None), records=bounds_of("default", "s", None, start, None),
                       max_entries_per_trigger=most, fail_on_data_loss=False)  # fmt: skip


async def look(place: ClusterLocation, wanted: tuple[RecordRange, ...]) -> tuple[list[bytes], list[tuple[Any, Any]]]:
    """Payloads that tasks find, and sequence numbers of missing records."""
    plan = await plan_records(place, wanted, fail=False)
    rows, found = RecordRows(plan.planned_ranges), list[Any]()
    async with aclosing(read_partition(place, RecordPartition(plan.planned_ranges))) as entries:
        async for each in entries:
            found += rows.lost(each, None) if isinstance(each, EntryGap) else rows.records(each.table)
    found += rows.rest()
    gaps = [(each.first, each.last) for each in found if isinstance(each, RecordGap)]
    tables = [each for each in found if not isinstance(each, RecordGap)]
    return [payload for table in tables for payload in table["payload"].to_pylist()], gaps


async def query(place: ClusterLocation, options: ReadOptions, offset: RecordOffset | None = None) -> ReadRecord:
    """Run micro-batches until nothing is left."""
    reader, found, gaps = following(options), list[list[bytes]](), list[tuple[int | None, int | None]]()
    at = offset or await began_of(reader, place)
    while (behind := await advanced(reader, place, at, bounded=True)) is not at:
        wanted, at = behind.since(at), behind
        gaps += [(gap.first, gap.last) for gap in (await plan_records(place, wanted, fail=False)).gaps]
        found.append((await look(place, wanted))[0])
    return ReadRecord(found, gaps, at)


async def reached(place: ClusterLocation, options: ReadOptions) -> StreamProgress:
    [found] = (await began_of(following(options), place)).streams.values()
    return found


async def three_segments(streams: StreamStore, client: Client) -> tuple[Head, list[str]]:
    """A stream of 30 records, of which the second ten are lost; and the positions of all."""
    await streams.create("s")
    for start in (0, 10, 20):
        async with await streams.writer("s") as writer:
            await writer.append_many(lines(10, start))
    positions = [str(record.position) async for record in streams.reader("s", follow=False)]
    head = await StreamResolver(place_of(client)).catalog.find("default", "s")
    await client.delete_ledger(head.segments[1].ledger_id, force=True)
    return head, positions


async def small_entries(streams: StreamStore, count: int, each: int = 1) -> tuple[StreamWriter, int]:
    """An open stream with entries of so many records; and its ledger."""
    await streams.create("s")
    writer = await streams.writer("s")
    for start in range(0, count * each, each):
        await writer.append_many(Outgoing(line, 1000 + start + at) for at, line in enumerate(lines(each, start)))
    await writer.commit()
    head = await head_of(streams)
    return writer, head.open_segments[0].ledger_id


def lose(cluster: MemoryCluster, ledger_id: int, *entries: int) -> None:
    for bookie in cluster.bookies.values():
        for entry in entries:
            bookie.drop(ledger_id, entry)


@pytest.mark.parametrize("most", [3, 5, 12])
@scenario()
async def test_a_query_of_bounded_micro_batches_that_starts_in_a_lost_segment_reports_the_loss_and_continues(
    cluster: MemoryCluster, client: Client, *, most
) -> None:
    place = place_of(client)
    async with StreamStore(client) as streams:
        _, positions = await three_segments(streams, client)
        for begin in ("sequence:13", positions[13]):
            seen = await query(place, reading(begin, most))
            assert seen.gaps == [(10, 19)]
            assert seen.all == lines(10, 20)
            assert max(map(len, seen.payloads)) <= most


@scenario()
async def test_a_query_continues_from_a_checkpoint_without_a_sequence_number(
    cluster: MemoryCluster, client: Client
) -> None:
    place = place_of(client)
    async with StreamStore(client) as streams:
        head, positions = await three_segments(streams, client)
        for at, number in ((13, -1), (13, 0), (23, -1), (23, 0), (3, -1)):
            begin = parse_bound(positions[at])
            assert begin.position is not None
            kept = StreamProgress("s", begin.position.place, number)
            seen = await query(place, reading(None, 2), RecordOffset("c", {head.stream_id: kept}))
            expected = lines(10, 20)[max(0, at - 20) :]
            assert seen.all[-len(expected) :] == expected
            assert all(each.sequence == 30 for each in seen.offset.streams.values())


@scenario()
async def test_a_query_of_bounded_micro_batches_that_starts_in_a_lost_entry_continues(
    cluster: MemoryCluster, client: Client
) -> None:
    async with StreamStore(client) as streams:
        writer, ledger_id = await small_entries(streams, 10)
        lose(cluster, ledger_id, 3, 4, 5)
        other = cluster.client(SMALL)
        place = place_of(other)
        head = await StreamResolver(place).catalog.find("default", "s")
        at = [str(Position(1, entry, 0, tag=head.tag)) for entry in range(10)]
        assert (await reached(place, reading(at[3], 2))).sequence == 3, "the entry before it tells"
        assert (await reached(place, reading("sequence:4", 2))).sequence == 3
        assert (await reached(place, reading(at[4], 2))).sequence == -1
        for begin in (at[3], at[4], "sequence:4"):
            reader = following(reading(begin, 2))
            offset, turns = await began_of(reader, place), 0
            while (behind := await advanced(reader, place, offset, bounded=True)) is not offset:
                offset, turns = behind, turns + 1
            assert turns
            assert [each.at for each in offset.streams.values()] == [(await StreamResolver(place).latest(head)).address]
        writer.abandon()
        await other.close()


@scenario()
async def test_for_a_position_without_a_number_it_is_unknown_whether_records_were_truncated(
    cluster: MemoryCluster, client: Client
) -> None:
    place = place_of(client)
    stream_id = "5f0c9a21" + "0" * 24
    before = RecordOffset("c", {stream_id: StreamProgress("s", (1, 0, 3), -1)})
    after = RecordOffset("c", {stream_id: StreamProgress("s", (3, 1, 0), 30)})
    [wanted] = after.since(before)
    assert wanted.sequence is None
    async with StreamStore(client) as streams:
        head, _ = await three_segments(streams, client)
        await streams.truncate("s", before=Position(3, 0, 0, tag=head.tag))
        wanted = RecordRange("s", head.stream_id, wanted.first, wanted.end, wanted.sequence)
        [gap] = (await plan_records(place, [wanted], fail=False)).gaps
        assert "whether any are missing is not known" in gap.reason


@scenario()
async def test_an_end_in_a_lost_range_lies_behind_it_so_that_the_query_reports_it(
    cluster: MemoryCluster, client: Client
) -> None:
    place = place_of(client)
    async with StreamStore(client) as streams:
        _, positions = await three_segments(streams, client)

        async def gaps(text: str, begin: str | None = None) -> list[tuple[str, int | None, int | None]]:
            start = None if begin is None else parse_bound(begin)
            found = await resolve_records(place, bounds_of("default", "s", None, start, parse_bound(text)))
            plan = await plan_records(place, found.ranges, fail=False)
            assert len(plan.planned_ranges) == (begin is None)
            return [(gap.kind, gap.first, gap.last) for gap in plan.gaps]

        for text in ("sequence:13", "sequence:19", positions[13]):
            assert await gaps(text) == [("lost", 10, 19)]
        for text in ("sequence:10", positions[10]):
            assert await gaps(text) == [], "nothing that is lost is asked for"
        assert await gaps("sequence:13", "sequence:13") == []
        assert await gaps("sequence:15", "sequence:13") == [("lost", 10, 19)]


@scenario()
async def test_an_end_behind_lost_entries_leaves_out_nothing_that_is_there(
    cluster: MemoryCluster, client: Client
) -> None:
    async with StreamStore(client) as streams:
        writer, ledger_id = await small_entries(streams, 10, each=2)
        lose(cluster, ledger_id, 3, 4, 5)
        other = cluster.client(SMALL)
        place = place_of(other)
        ends = [
            ("sequence:5", 5, (1, 2, 1)),
            ("sequence:6", 6, (1, 3, 0)),
            ("sequence:7", 12, (1, 6, 0)),
            ("sequence:9", 12, (1, 6, 0)),
            ("sequence:12", 12, (1, 6, 0)),
            ("sequence:13", 13, (1, 6, 1)),
            ("1970-01-01T00:00:01.013Z", 13, (1, 6, 1)),
            ("sequence:15", 15, (1, 7, 1)),
        ]
        for text, count, end in ends:
            [wanted] = (await resolve_records(place, bounds_of("default", "s", None, None, parse_bound(text)))).ranges
            assert wanted.end == end, text
            payloads, gaps = await look(place, (wanted,))
            assert payloads == [line for at, line in enumerate(lines(count)) if not 6 <= at < 12]
            assert [first for first, _ in gaps] == ([6] if count > 6 else [])
        writer.abandon()
        await other.close()


@scenario()
async def test_a_stream_whose_last_entry_is_lost_is_read_up_to_there_and_on_from_there(
    cluster: MemoryCluster, client: Client
) -> None:
    async with StreamStore(client) as streams:
        writer, ledger_id = await small_entries(streams, 10)
        lose(cluster, ledger_id, 9, 10)
        other = cluster.client(SMALL)
        place = place_of(other)
        head = await StreamResolver(place).catalog.find("default", "s")
        while (await StreamResolver(place).latest(head)).address < (1, 11, 0):
            await cluster.world.clock.sleep(0.01)  # until the bookies know that all of it is confirmed
        latest = await StreamResolver(place).latest(head)
        assert (await reached(place, reading("sequence:3", 4))).sequence == 3
        assert (latest.address, latest.sequence, latest.number) == ((1, 11, 0), 9, -1)
        [wanted] = (await resolve_records(place, bounds_of("default", "s", None, parse_bound("latest"), None))).ranges
        assert wanted.sequence is None
        reader = following(reading("sequence:3", 4))
        offset = await began_of(reader, place)
        offset = await advanced(reader, place, began := offset, bounded=True)
        assert await look(place, offset.since(began)) == (lines(4, 3), [])
        end = await advanced(reader, place, offset, bounded=True)
        assert [(each.at, each.sequence) for each in end.streams.values()] == [((1, 11, 0), -1)]
        assert await look(place, end.since(offset)) == (lines(2, 7), [(9, None)])
        assert await advanced(reader, place, end, bounded=True) is end
        for line in lines(10, 10):
            await writer.append(line)
        await writer.commit()
        seen = await query(place, reading("sequence:3", 4), end)
        assert seen.all == lines(10, 10)
        assert max(map(len, seen.payloads)) == 4
        await writer.close()
        await other.close()
