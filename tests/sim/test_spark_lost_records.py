"""A query of a stream of which records are lost: it begins and ends so that it is told, and goes on behind them."""

from __future__ import annotations

from contextlib import aclosing
from typing import Any, NamedTuple

import pytest

from tallybook.client.client import Client
from tallybook.sim.stage.cluster import MemoryCluster
from tallybook.sim.stage.scenario import SMALL, lines, scenario
from tallybook.spark.gaps import Gap
from tallybook.spark.options import Place, ReadOptions
from tallybook.spark.places import Cluster
from tallybook.spark.reading import read_partition
from tallybook.spark.records.bounds import bounds_of, parse_place
from tallybook.spark.records.offsets import Reached, RecordOffset
from tallybook.spark.records.planning import plan_records
from tallybook.spark.records.rows import RecordRows
from tallybook.spark.records.settling import Streams, settle_records
from tallybook.spark.records.snapshot import RecordRange
from tallybook.spark.records.stretches import RecordGap, RecordPartition
from tallybook.stream import StreamStore, StreamWriter
from tallybook.stream.head import Head
from tallybook.stream.position import Position
from tallybook.stream.record import Outgoing

from .test_spark_records import following, place_of


class Seen(NamedTuple):
    """What the micro-batches of a query had."""

    payloads: list[list[bytes]]
    gaps: list[tuple[int | None, int | None]]
    offset: RecordOffset

    @property
    def all(self) -> list[bytes]:
        """In their order."""
        return [payload for each in self.payloads for payload in each]


def reading(begin: str | None, most: int) -> ReadOptions:
    start = None if begin is None else parse_place(begin)
    return ReadOptions(Place("sim:", None), records=bounds_of("default", "s", None, start, None),
                       max_entries_per_trigger=most, fail_on_data_loss=False)  # fmt: skip


async def look(place: Cluster, wanted: tuple[RecordRange, ...]) -> tuple[list[bytes], list[tuple[Any, Any]]]:
    """The payloads that tasks find, and the numbers of the records that they miss."""
    plan = await plan_records(place, wanted, fail=False)
    rows, found = RecordRows(plan.stretches), list[Any]()
    async with aclosing(read_partition(place, RecordPartition(plan.stretches))) as entries:
        async for each in entries:
            found += rows.lost(each, None) if isinstance(each, Gap) else rows.records(each.table)
    found += rows.rest()
    gaps = [(each.first, each.last) for each in found if isinstance(each, RecordGap)]
    tables = [each for each in found if not isinstance(each, RecordGap)]
    return [payload for table in tables for payload in table["payload"].to_pylist()], gaps


async def query(place: Cluster, options: ReadOptions, offset: RecordOffset | None = None) -> Seen:
    """Micro-batches until nothing is left."""
    reader, found, gaps = following(options), list[list[bytes]](), list[tuple[int | None, int | None]]()
    at = offset or await reader._began(place)
    while (behind := await reader._advanced(place, at, bounded=True)) is not at:
        wanted, at = behind.since(at), behind
        gaps += [(gap.first, gap.last) for gap in (await plan_records(place, wanted, fail=False)).gaps]
        found.append((await look(place, wanted))[0])
    return Seen(found, gaps, at)


async def reached(place: Cluster, options: ReadOptions) -> Reached:
    [found] = (await following(options)._began(place)).streams.values()
    return found


async def three_segments(streams: StreamStore, client: Client) -> tuple[Head, list[str]]:
    """A stream of three times ten records, of which the second ten are lost; and the positions of all of them."""
    await streams.create("s")
    for start in (0, 10, 20):
        async with await streams.writer("s") as writer:
            await writer.append_many(lines(10, start))
    positions = [str(record.position) async for record in streams.reader("s", follow=False)]
    head = await Streams(place_of(client)).catalog.find("default", "s")
    await client.delete_ledger(head.segments[1].ledger_id, force=True)
    return head, positions


async def small_entries(streams: StreamStore, count: int, each: int = 1) -> tuple[StreamWriter, int]:
    """A stream of entries of so many records, which the writer still writes; and the ledger."""
    await streams.create("s")
    writer = await streams.writer("s")
    for start in range(0, count * each, each):
        await writer.append_many(Outgoing(line, 1000 + start + at) for at, line in enumerate(lines(each, start)))
    await writer.commit()
    head = await streams._catalog.find("default", "s")
    return writer, head.open_segments[0].ledger_id


def lose(cluster: MemoryCluster, ledger_id: int, *entries: int) -> None:
    for bookie in cluster.bookies.values():
        for entry in entries:
            bookie.drop(ledger_id, entry)


@pytest.mark.parametrize("most", [3, 5, 12])
def test_a_query_of_bounded_micro_batches_that_begins_in_a_lost_segment_is_told_and_goes_on(most):
    @scenario()
    async def play(cluster: MemoryCluster, client: Client) -> None:
        place = place_of(client)
        async with StreamStore(client) as streams:
            _, positions = await three_segments(streams, client)
            for begin in ("sequence:13", positions[13]):
                seen = await query(place, reading(begin, most))
                assert seen.gaps == [(10, 19)]
                assert seen.all == lines(10, 20)
                assert max(map(len, seen.payloads)) <= most

    play()


@scenario()
async def test_a_query_goes_on_from_a_checkpoint_that_does_not_know_the_number_of_its_place(
    cluster: MemoryCluster, client: Client
) -> None:
    place = place_of(client)
    async with StreamStore(client) as streams:
        head, positions = await three_segments(streams, client)
        for at, number in ((13, -1), (13, 0), (23, -1), (23, 0), (3, -1)):
            begin = parse_place(positions[at])
            assert begin.position is not None
            kept = Reached("s", begin.position.place, number)
            seen = await query(place, reading(None, 2), RecordOffset("c", {head.stream_id: kept}))
            expected = lines(10, 20)[max(0, at - 20) :]
            assert seen.all[-len(expected) :] == expected
            assert all(each.sequence == 30 for each in seen.offset.streams.values())


@scenario()
async def test_a_query_of_bounded_micro_batches_that_begins_in_a_lost_entry_goes_on(
    cluster: MemoryCluster, client: Client
) -> None:
    async with StreamStore(client) as streams:
        writer, ledger_id = await small_entries(streams, 10)
        lose(cluster, ledger_id, 3, 4, 5)
        other = cluster.client(SMALL)
        place = place_of(other)
        head = await Streams(place).catalog.find("default", "s")
        at = [str(Position(1, entry, 0, tag=head.tag)) for entry in range(10)]
        assert (await reached(place, reading(at[3], 2))).sequence == 3, "the entry before it tells"
        assert (await reached(place, reading("sequence:4", 2))).sequence == 3
        assert (await reached(place, reading(at[4], 2))).sequence == -1
        for begin in (at[3], at[4], "sequence:4"):
            reader = following(reading(begin, 2))
            offset, turns = await reader._began(place), 0
            while (behind := await reader._advanced(place, offset, bounded=True)) is not offset:
                offset, turns = behind, turns + 1
            assert turns
            assert [each.at for each in offset.streams.values()] == [(await Streams(place).latest(head)).place]
        writer.abandon()
        await other.close()


@scenario()
async def test_of_a_place_without_a_number_it_is_said_that_nobody_knows_whether_any_were_truncated(
    cluster: MemoryCluster, client: Client
) -> None:
    place = place_of(client)
    stream_id = "5f0c9a21" + "0" * 24
    before = RecordOffset("c", {stream_id: Reached("s", (1, 0, 3), -1)})
    after = RecordOffset("c", {stream_id: Reached("s", (3, 1, 0), 30)})
    [wanted] = after.since(before)
    assert wanted.sequence is None
    async with StreamStore(client) as streams:
        head, _ = await three_segments(streams, client)
        await streams.truncate("s", before=Position(3, 0, 0, tag=head.tag))
        wanted = RecordRange("s", head.stream_id, wanted.first, wanted.end, wanted.sequence)
        [gap] = (await plan_records(place, [wanted], fail=False)).gaps
        assert "whether any are missing is not known" in gap.reason


@scenario()
async def test_an_end_in_what_is_lost_lies_behind_it_so_that_the_query_is_told(
    cluster: MemoryCluster, client: Client
) -> None:
    place = place_of(client)
    async with StreamStore(client) as streams:
        _, positions = await three_segments(streams, client)

        async def gaps(text: str, begin: str | None = None) -> list[tuple[str, int | None, int | None]]:
            start = None if begin is None else parse_place(begin)
            found = await settle_records(place, bounds_of("default", "s", None, start, parse_place(text)))
            plan = await plan_records(place, found.ranges, fail=False)
            assert len(plan.stretches) == (begin is None)
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
            [wanted] = (await settle_records(place, bounds_of("default", "s", None, None, parse_place(text)))).ranges
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
        head = await Streams(place).catalog.find("default", "s")
        while (await Streams(place).latest(head)).place < (1, 11, 0):
            await cluster.world.clock.sleep(0.01)  # until the bookies have heard that all of it is confirmed
        latest = await Streams(place).latest(head)
        assert (await reached(place, reading("sequence:3", 4))).sequence == 3
        assert (latest.place, latest.sequence, latest.number) == ((1, 11, 0), 9, -1)
        [wanted] = (await settle_records(place, bounds_of("default", "s", None, parse_place("latest"), None))).ranges
        assert wanted.sequence is None
        reader = following(reading("sequence:3", 4))
        offset = await reader._began(place)
        offset = await reader._advanced(place, began := offset, bounded=True)
        assert await look(place, offset.since(began)) == (lines(4, 3), [])
        end = await reader._advanced(place, offset, bounded=True)
        assert [(each.at, each.sequence) for each in end.streams.values()] == [((1, 11, 0), -1)]
        assert await look(place, end.since(offset)) == (lines(2, 7), [(9, None)])
        assert await reader._advanced(place, end, bounded=True) is end
        for line in lines(10, 10):
            await writer.append(line)
        await writer.commit()
        seen = await query(place, reading("sequence:3", 4), end)
        assert seen.all == lines(10, 10)
        assert max(map(len, seen.payloads)) == 4
        await writer.close()
        await other.close()
