"""Spark reading a stream, on in-memory bookies: always a prefix of it, without holes."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack, aclosing
from dataclasses import replace
from typing import Any

import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

from tallybook.client.client import Client
from tallybook.core.errors import DataMissing, InvalidArgument, NoSuchStream, StreamGap
from tallybook.spark.columns import columns_for
from tallybook.spark.ledgers.reading import read_partition
from tallybook.spark.locations import ClusterLocation, _LazyArchive
from tallybook.spark.options import LocationOptions, ReadOptions
from tallybook.spark.query.bounds import RecordBounds, bounds_of, parse_bound
from tallybook.spark.query.gaps import EntryGap
from tallybook.spark.query.record_snapshot import RecordRange, RecordSnapshot
from tallybook.spark.streams.bounds_resolution import StreamResolver, resolve_records
from tallybook.spark.streams.micro_batches import RecordStreamReader
from tallybook.spark.streams.offsets import RecordOffset
from tallybook.spark.streams.planning import plan_records, sizes_of
from tallybook.spark.streams.ranges import RecordPartition
from tallybook.spark.streams.rows import RecordRows
from tallybook.stream import Start, StreamStore
from tallybook.stream.position import Position
from tallybook.stream.records.record import Outgoing

from ..simulated import scenario
from ..support.ledger_scenario import SMALL, lines
from ..support.memory_cluster import MemoryCluster
from .parts import one_stream

ALL = RecordBounds("default", "s", "")


def place_of(client: Client) -> ClusterLocation:
    return ClusterLocation(
        client, client.world.store, "c", _LazyArchive(AsyncExitStack(), ""), LocationOptions("sim:", None)
    )


def following(options: ReadOptions) -> RecordStreamReader:
    names = [name for name, _ in columns_for(options).names]
    return RecordStreamReader(options, StructType([StructField(name, BinaryType()) for name in names]))


async def began_of(reader: RecordStreamReader, place: ClusterLocation) -> RecordOffset:
    """Where the reader begins; Spark's own thread would ask for it."""
    return await reader._began(place)


async def advanced(
    reader: RecordStreamReader, place: ClusterLocation, offset: RecordOffset, *, bounded: bool
) -> RecordOffset:
    """How far the next micro-batch goes, likewise."""
    return await reader._advanced(place, offset, bounded=bounded)


async def read(place: ClusterLocation, wanted: tuple[RecordRange, ...]) -> list[bytes]:
    """Payloads of some records, none of which may be missing."""
    plan = await plan_records(place, wanted, fail=True)
    rows, found = RecordRows(plan.planned_ranges), list[Any]()
    async with aclosing(read_partition(place, RecordPartition(plan.planned_ranges))) as entries:
        async for each in entries:
            assert not isinstance(each, EntryGap), each
            found += rows.records(each.table)
    assert not list(rows.rest())
    return [payload for table in found for payload in table["payload"].to_pylist()]


@scenario()
async def test_at_any_moment_a_prefix_is_visible_and_two_consecutive_reads_miss_nothing(
    cluster: MemoryCluster, client: Client
) -> None:
    """While the stream rolls and is taken over."""
    other = cluster.client(SMALL)
    place, rng = place_of(other), cluster.world.rng.fork("looks")
    async with one_stream(client, roll_bytes=2048, ensemble=3, write_quorum=3, ack_quorum=2) as streams:
        appended: list[bytes] = []

        async def write() -> None:
            for turn in range(6):
                writer = await streams.writer("s")
                for start in range(0, 60, 5):
                    part = [b"%d.%d" % (turn, start + n) + b"." * 60 for n in range(5)]
                    appended.extend(part)
                    await writer.append_many(part)
                    await cluster.world.clock.sleep(rng.random() * 0.02)
                await writer.commit()
                if turn % 2:
                    await writer.close()

        writing = asyncio.ensure_future(write())
        seen: list[bytes] = []
        end: tuple[int, int, int] | None = None
        while not writing.done():
            await cluster.world.clock.sleep(rng.random() * 0.1)
            [wanted] = (await resolve_records(place, ALL)).ranges
            whole = await read(place, (wanted,))
            assert whole == appended[: len(whole)]
            since = wanted if end is None else RecordRange("s", wanted.stream_id, end, wanted.end)
            seen += await read(place, (since,))
            end = wanted.end
            assert seen == whole
        await writing
        [wanted] = (await resolve_records(place, ALL)).ranges
        assert await read(place, (wanted,)) == appended
    await other.close()


@scenario()
async def test_each_bound_is_found_where_a_reader_would_begin(cluster: MemoryCluster, client: Client) -> None:
    place = place_of(client)
    async with one_stream(client, roll_bytes=1024) as streams:
        async with await streams.writer("s") as writer:
            for start in range(0, 100, 5):
                await writer.append_many(lines(5, start))
        positions = [str(record.position) async for record in streams.reader("s", follow=False)]
        for at in (0, 1, 4, 5, 37, 99):
            for text in (positions[at], f"sequence:{at}"):
                bounds = bounds_of("default", "s", None, parse_bound(text), None)
                assert await read(place, (await resolve_records(place, bounds)).ranges) == lines(100 - at, at)
                bounds = bounds_of("default", "s", None, None, parse_bound(text))
                assert await read(place, (await resolve_records(place, bounds)).ranges) == lines(at)
        head = await StreamResolver(place).catalog.find("default", "s")
        found = StreamResolver(place)
        latest = await found.latest(head)
        begin = await found.at(head, Start.sequence(33), latest)
        assert (begin.sequence, latest.sequence) == (33, 100)
        sizes = await sizes_of(place, found, head, begin, latest)
        assert sum(count for count, _ in sizes) == 67
        await streams.delete("s")
        with pytest.raises(NoSuchStream, match="deleted"):
            await plan_records(place, (RecordRange("s", head.stream_id, (1, 0, 0), latest.address),), fail=True)
        plan = await plan_records(place, (RecordRange("s", head.stream_id, (1, 0, 0), latest.address),), fail=False)
        assert [gap.kind for gap in plan.gaps] == ["deleted"]


@scenario()
async def test_a_bound_in_bytes_does_not_wait_for_ever_for_deleted_records(
    cluster: MemoryCluster, client: Client
) -> None:
    """Its size is unknown; the micro-batch reports the loss."""
    place = place_of(client)
    options = ReadOptions(LocationOptions("sim:", None), records=ALL, max_bytes_per_trigger=100)
    async with one_stream(client) as streams:
        async with await streams.writer("s") as writer:
            await writer.append_many(lines(5))
        head = await StreamResolver(place).catalog.find("default", "s")
        for segment in head.segments:
            await client.delete_ledger(segment.ledger_id, force=True)
        reader = following(options)
        began = await began_of(reader, place)
        offset = await advanced(reader, place, began, bounded=True)
        assert offset is not began
        with pytest.raises(DataMissing):
            await plan_records(place, offset.since(began), fail=True)


@scenario()
async def test_a_query_that_read_all_of_a_stream_misses_nothing_after_it_expired(
    cluster: MemoryCluster, client: Client
) -> None:
    place = place_of(client)
    async with one_stream(client, retention="30s") as streams:
        async with await streams.writer("s") as writer:
            await writer.append_many(lines(5))
        reader = following(ReadOptions(LocationOptions("sim:", None), records=ALL))
        began = await began_of(reader, place)
        offset = await advanced(reader, place, began, bounded=False)
        await cluster.world.clock.sleep(60)
        assert await streams.keep() == 0
        assert (await streams.info("s")).first_sequence == 5
        quiet = await advanced(reader, place, offset, bounded=False)
        assert not (await plan_records(place, quiet.since(offset), fail=True)).planned_ranges
        async with await streams.writer("s") as writer:
            await writer.append_many(lines(5, 5))
        end = await advanced(reader, place, quiet, bounded=False)
        for since in (offset, quiet):
            assert await read(place, end.since(since)) == lines(5, 5)
        with pytest.raises(StreamGap, match="the stream begins at record 5"):
            await plan_records(place, end.since(began), fail=True)


@scenario()
async def test_a_stream_whose_end_is_lost_is_said_to_be_so(cluster: MemoryCluster, client: Client) -> None:
    place = place_of(client)
    async with one_stream(client) as streams, await streams.writer("s") as writer:
        await writer.append_many(lines(5))
        head = await StreamResolver(place).catalog.find("default", "s")
        [segment] = head.open_segments
        await client.delete_ledger(segment.ledger_id, force=True)
        with pytest.raises(DataMissing, match=f"ledger {segment.ledger_id}"):
            await resolve_records(place, ALL)
        writer.abandon()


@scenario()
async def test_a_query_does_not_begin_before_what_it_asks_for(cluster: MemoryCluster, client: Client) -> None:
    place = place_of(client)
    async with one_stream(client) as streams:
        async with await streams.writer("s") as writer:
            await writer.append_many(Outgoing(line, 1000 + at) for at, line in enumerate(lines(5)))

        async def begun(text: str) -> int:
            bounds = bounds_of("default", "s", None, parse_bound(text), None)
            began = await began_of(following(ReadOptions(LocationOptions("sim:", None), records=bounds)), place)
            return next(iter(began.streams.values())).sequence

        for text in ("sequence:6", "9000-01-01T00:00:00Z"):
            with pytest.raises(InvalidArgument, match=r"startingPosition .* stream s"):
                await begun(text)
        assert await begun("sequence:5") == 5, "the one that comes next"
        # Later than what is there: what comes next is later still.
        assert await begun("2020-01-01T00:00:00Z") == 5
        assert await begun("txid:7") == 5


@scenario()
async def test_a_query_follows_a_stream_under_its_new_name(cluster: MemoryCluster, client: Client) -> None:
    place = place_of(client)
    for bounds, another in (
        (bounds_of("default", None, "a/*", None, None), "a/s"),
        (bounds_of("default", "t", None, None, None), "t"),
    ):
        async with StreamStore(client) as streams:
            await streams.create(another)
            async with await streams.writer(another) as writer:
                await writer.append_many(lines(5))
            reader = following(ReadOptions(LocationOptions("sim:", None), records=bounds))
            began = await began_of(reader, place)
            offset = await advanced(reader, place, began, bounded=False)
            await streams.rename(another, f"b/{another}")
            async with await streams.writer(f"b/{another}") as writer:
                await writer.append_many(lines(5, 5))
            end = await advanced(reader, place, offset, bounded=True)
            assert await read(place, end.since(offset)) == lines(5, 5)
            # A query that ends with what is there began when the stream had its new name.
            once = following(ReadOptions(LocationOptions("sim:", None), records=bounds))
            once._target = await once._ends(place)
            end = await advanced(once, place, offset, bounded=False)
            assert await read(place, end.since(offset)) == lines(5, 5)
            assert [each.name for each in end.streams.values()] == [f"b/{another}"]
            assert not await read(place, (await advanced(once, place, end, bounded=False)).since(end))
            if bounds.name is not None:
                with pytest.raises(NoSuchStream):
                    await began_of(once, place)
                with pytest.raises(NoSuchStream):
                    await advanced(once, place, replace(offset, streams={}), bounded=False)


@scenario()
async def test_a_query_that_starts_behind_all_truncated_records_misses_nothing(
    cluster: MemoryCluster, client: Client
) -> None:
    place = place_of(client)
    async with one_stream(client) as streams:
        for start in (0, 5):
            async with await streams.writer("s") as writer:
                await writer.append_many(lines(5, start))
        head = await StreamResolver(place).catalog.find("default", "s")
        first, second = head.segments
        assert first.end is not None
        behind = Start.at(Position(first.number, first.end.last_entry + 1, 0, tag=head.tag))
        bounds = replace(ALL, start=behind)
        token = str(await resolve_records(place, bounds))
        await streams.truncate("s", before=Position(second.number, 0, 0, tag=head.tag))
        known = RecordSnapshot.of_json(json.loads(token))
        assert await read(place, known.ranges) == lines(5, 5)
        # A position alone does not show whether there was a record.
        bare = (await resolve_records(place, bounds)).ranges
        with pytest.raises(StreamGap, match="whether any are missing is not known"):
            await plan_records(place, bare, fail=True)
