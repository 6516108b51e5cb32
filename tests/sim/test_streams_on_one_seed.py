"""Streams on in-memory bookies: written, rolled, taken over, and read from any start position."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager

import pytest

from tallybook.client.client import Client
from tallybook.core.errors import (
    ForeignPosition,
    InvalidArgument,
    NoSuchNamespace,
    NoSuchStream,
    Outcome,
    OutOfOrder,
    PositionMismatch,
    StreamClosed,
    StreamEnded,
    StreamExists,
    StreamFenced,
    StreamGap,
    StreamOwned,
)
from tallybook.stream import Gap, GapReason, Outgoing, Position, Record, Start, StreamReader, StreamStore

from ..simulated import scenario
from ..support.archive_stage import ArchiveStage
from ..support.faulty_metadata import FaultyMetadataStore, MetadataFault
from ..support.ledger_scenario import SMALL, eventually, lines
from ..support.memory_cluster import MemoryCluster
from ..support.streams import fall_silent, head_of
from .parts import one_stream


@asynccontextmanager
async def stores(cluster: MemoryCluster, count: int) -> AsyncIterator[list[StreamStore]]:
    """Stream stores of so many processes."""
    clients = [cluster.client(SMALL) for _ in range(count)]
    found = [StreamStore(client, name=f"process {index}") for index, client in enumerate(clients)]
    try:
        yield found
    finally:
        for store in found:
            await store.close()
        for client in clients:
            await client.close()


async def taken(reader: StreamReader) -> list[Record]:
    """All records of a reader that does not follow."""
    return [record async for record in reader]


async def payloads(streams: StreamStore, name: str, **options: object) -> list[bytes]:
    """Records of a stream from ``start`` on."""
    return [record.payload for record in await taken(streams.reader(name, follow=False, **options))]  # type: ignore[arg-type]


@scenario()
async def test_a_second_writer_fences_the_first_and_nothing_is_lost(cluster: MemoryCluster, client: Client) -> None:
    async with stores(cluster, 2) as (one, two):
        await one.create("s")
        first = await one.writer("s")
        await first.append_many(lines(10))
        second = await two.writer("s")
        await second.append(b"from the second")
        with pytest.raises(StreamFenced) as told:
            await first.append(b"too late")
        assert told.value.outcome is Outcome.UNKNOWN
        with pytest.raises(StreamFenced) as told:
            await first.append(b"even later")
        assert told.value.outcome is Outcome.NOT_DONE
        await second.close()
        assert await payloads(two, "s") == [*lines(10), b"from the second"]


@scenario()
async def test_a_waiting_writer_gets_the_stream_when_its_writer_closes_or_is_dead(
    cluster: MemoryCluster, client: Client
) -> None:
    async with stores(cluster, 3) as (one, two, three):
        await one.create("s")
        first = await one.writer("s")
        with pytest.raises(StreamOwned):
            await two.writer("s", wait_s=3)
        waiting = asyncio.ensure_future(two.writer("s", wait_s=60))
        await first.append(b"one")
        await first.close()
        second = await waiting
        await second.append(b"two")
        waiting = asyncio.ensure_future(three.writer("s", wait_s=60))
        # Its process falls silent: no word of its session any more.
        await fall_silent(two)
        third = await waiting
        await third.append(b"three")
        await third.close()
        assert await payloads(three, "s") == [b"one", b"two", b"three"]


@scenario()
async def test_a_follower_sees_appended_records_at_once_and_ends_with_the_stream(
    cluster: MemoryCluster, client: Client
) -> None:
    async with stores(cluster, 2) as (one, two):
        await one.create("s", roll_bytes=2048)
        seen: list[bytes] = []

        async def follow() -> None:
            async for record in two.reader("s"):
                seen.append(record.payload)  # noqa: PERF401 (read meanwhile)

        following = asyncio.ensure_future(follow())
        writer = await one.writer("s")
        for start in range(0, 300, 10):
            await writer.append_many(lines(10, start))
        await writer.commit()
        await eventually(lambda: len(seen) == 300, cluster, 5)
        await writer.append(b"the last")
        await writer.seal()
        await following
        assert seen == [*lines(300), b"the last"]
        with pytest.raises(StreamEnded):
            await two.writer("s")


class NothingCloses:
    """A client's metadata store that refuses ledger updates."""

    def next(self, operation: str) -> MetadataFault | None:
        return MetadataFault.UNAVAILABLE if operation == "update_ledger" else None


@scenario(bookies=3)
async def test_readers_see_committed_records_even_if_no_segment_before_could_be_closed(
    cluster: MemoryCluster, client: Client
) -> None:
    silent = SMALL.model_copy(update={"explicit_lac_ms": 600_000})
    faulty = cluster.client(
        silent, seen_through=lambda store: FaultyMetadataStore(store, NothingCloses(), cluster.world.clock)
    )
    async with faulty, StreamStore(client) as streams:
        of_the_writer = StreamStore(faulty)
        await of_the_writer.create("s", roll_bytes=2048)
        writer = await of_the_writer.writer("s")
        for start in range(0, 300, 10):
            await writer.append_many(lines(10, start))
        await writer.commit()
        assert await payloads(streams, "s") == lines(300)
        assert not any(segment.end for segment in (await head_of(streams)).segments)
        writer.abandon()
        await of_the_writer.close()
        assert await payloads(streams, "s") == lines(300)


@scenario()
async def test_readers_start_where_they_were_asked_to(cluster: MemoryCluster, client: Client) -> None:
    async with one_stream(client, roll_bytes=2048) as streams:
        async with await streams.writer("s") as writer:
            positions = [
                await writer.append(f"{index}".encode(), timestamp_ms=1_000 + 10 * index, txid=index // 2)
                for index in range(200)
            ]

            async def first(start: Start) -> bytes | None:
                found = await payloads(streams, "s", start=start)
                return found[0] if found else None

            assert await first(Start.earliest()) == b"0"
            assert await first(Start.at(positions[77])) == b"77"
            assert await first(Start.after(str(positions[77]))) == b"78"
            assert await first(Start.sequence(150)) == b"150"
            assert await first(Start.timestamp(1_000)) == b"0"
            assert await first(Start.timestamp(1_555)) == b"56"
            assert await first(Start.timestamp("1970-01-01T00:00:02Z")) == b"100"
            assert await first(Start.txid(40)) == b"80"
            assert await first(Start.latest()) is None
            assert await first(Start.timestamp(10**9)) is None
        assert await first(Start.sequence(199)) == b"199"
        assert await first(Start.after(positions[199])) is None


@scenario()
async def test_a_time_is_found_where_timestamps_go_back(cluster: MemoryCluster, client: Client) -> None:
    async with one_stream(client, roll_bytes=1024) as streams:
        times = [50, 40, 30, 60, 10, 55, 61, 20, 70] * 10
        async with await streams.writer("s") as writer:
            for index, time in enumerate(times):
                await writer.append(b"%d" % index, timestamp_ms=time)
        for wanted in range(5, 75, 5):
            found = await payloads(streams, "s", start=Start.timestamp(wanted))
            expected = next((index for index, time in enumerate(times) if time >= wanted), None)
            assert (int(found[0]) if found else None) == expected


@scenario()
async def test_an_append_on_a_condition_is_made_only_where_the_stream_is_as_expected(
    cluster: MemoryCluster, client: Client
) -> None:
    async with one_stream(client) as streams:
        async with await streams.writer("s") as writer:
            one = await writer.append(b"one", if_position=None)
            with pytest.raises(PositionMismatch):
                await writer.append(b"no", if_position=None)
            two = await writer.append(b"two", if_position=one)
            with pytest.raises(PositionMismatch):
                await writer.append(b"no", if_position=str(one))
            outcomes = await asyncio.gather(
                *(writer.append(b"three", if_position=two) for _ in range(5)), return_exceptions=True
            )
            assert sum(isinstance(each, Position) for each in outcomes) == 1
        async with await streams.writer("s") as writer:
            last = next(each for each in outcomes if isinstance(each, Position))
            assert writer.last_position == last
            await writer.append(b"four", if_position=last)
        assert await payloads(streams, "s") == [b"one", b"two", b"three", b"four"]


@scenario()
async def test_an_id_may_come_again_once_it_is_out_of_the_window(cluster: MemoryCluster, client: Client) -> None:
    async with one_stream(client, dedup_records=10) as streams, await streams.writer("s") as writer:
        one = await writer.append(b"one", dedup_id="x")
        await writer.append_many(lines(8))
        assert await writer.append(b"again", dedup_id="x") == one
        await writer.append_many(lines(2))
        assert await writer.append(b"again", dedup_id="x") > one


@scenario()
async def test_resent_records_keep_their_order_although_their_transaction_id_has_fallen_behind(
    cluster: MemoryCluster, client: Client
) -> None:
    async with one_stream(client) as streams:
        async with await streams.writer("s") as writer:
            one = await writer.append(b"one", dedup_id="1", txid=1)
            await writer.append(b"two", dedup_id="2", txid=2)
            assert await writer.append(b"one", dedup_id="1", txid=1) == one
            assert await writer.append(b"one", dedup_id="1", txid=1, if_position=None) == one
            assert await writer.append_nowait(b"one", dedup_id="1", txid=1) == one
            assert await writer.append_set([Outgoing(b"one", dedup_id=b"1", txid=1)]) == [one]
            again = [Outgoing(b"one", dedup_id=b"1", txid=1), Outgoing(b"new", dedup_id=b"3", txid=3)]
            places = [await each for each in await writer.send(again)]
            assert places[0] == one < places[1]
            with pytest.raises(OutOfOrder):
                await writer.append(b"other", dedup_id="4", txid=2)
        assert await payloads(streams, "s") == [b"one", b"two", b"new"]
    assert client.budget.taken_bytes == 0


@scenario()
async def test_records_that_are_sent_off_together_are_sent_all_or_none(cluster: MemoryCluster, client: Client) -> None:
    async with one_stream(client) as streams:
        async with await streams.writer("s") as writer:
            for bad in (Outgoing(b"late", txid=4), Outgoing(bytes(2_000_000)), Outgoing(b"", dedup_id=b"")):
                with pytest.raises((OutOfOrder, InvalidArgument)):
                    await writer.send([Outgoing(b"fine", txid=5), bad])
            sent = await writer.send([Outgoing(b"a"), Outgoing(b"b", dedup_id=b"x"), Outgoing(b"b", dedup_id=b"x")])
            places = [await each for each in sent]
            assert places[0] < places[1] == places[2]
        assert await payloads(streams, "s") == [b"a", b"b"]
    assert client.budget.taken_bytes == 0


@scenario()
async def test_what_cannot_be_appended_is_refused_and_the_writer_stays_good(
    cluster: MemoryCluster, client: Client
) -> None:
    async with one_stream(client) as streams:
        async with await streams.writer("s") as writer:
            await writer.append(b"", txid=7)
            for refused, options in (
                (OutOfOrder, {"txid": 6}),
                (InvalidArgument, {"dedup_id": b""}),
                (InvalidArgument, {"key": "text"}),
                (InvalidArgument, {"timestamp_ms": 1.5}),
            ):
                with pytest.raises(refused):
                    await writer.append(b"x", **options)  # type: ignore[arg-type]
            with pytest.raises(TypeError):
                await writer.append("text")  # type: ignore[arg-type]
            with pytest.raises(ForeignPosition):
                await writer.append(b"x", if_position="1-0-0@ffffffff")
            await writer.append(b"fine", txid=7)
        with pytest.raises(StreamClosed):
            await writer.append(b"late")
        assert await payloads(streams, "s") == [b"", b"fine"]


@scenario()
async def test_truncated_records_come_as_a_gap_and_their_ledgers_go(cluster: MemoryCluster, client: Client) -> None:
    async with one_stream(client, roll_bytes=1024) as streams, await streams.writer("s") as writer:
        positions = [await writer.append(line) for line in lines(200)]
        await writer.commit()
        before = [ledger_id async for ledger_id in client.list_ledgers()]
        info = await streams.truncate("s", before=positions[120])
        assert info.first_sequence == 120
        assert len([ledger_id async for ledger_id in client.list_ledgers()]) < len(before)
        assert await payloads(streams, "s") == lines(80, 120)
        await streams.truncate("s", before=positions[10])
        assert (await streams.info("s")).first_sequence == 120
        with pytest.raises(StreamGap) as told:
            await payloads(streams, "s", start=Start.at(positions[5]))
        gap = told.value.gap
        assert isinstance(gap, Gap)
        assert (gap.reason, gap.next_sequence) == (GapReason.TRUNCATED, 120)
        reader = streams.reader("s", start=Start.at(positions[5]), follow=False, gaps="yield")
        async with aclosing(reader.batches()) as batches:
            pieces = [piece async for piece in batches]
        assert isinstance(pieces[0], Gap)
        assert not any(isinstance(piece, Gap) for piece in pieces[1:])
        await writer.append(b"goes on")


@scenario()
async def test_a_reader_that_has_read_all_truncated_records_misses_nothing(
    cluster: MemoryCluster, client: Client
) -> None:
    async with one_stream(client, retention="30s") as streams:
        reader = streams.reader("s", follow=False)
        async with await streams.writer("s") as writer:
            await writer.append_many(lines(5))
            await writer.commit()
            assert [record.payload for record in await taken(reader)] == lines(5)
        await cluster.world.clock.sleep(60)
        assert await streams.keep() == 0
        assert (await streams.info("s")).first_sequence == 5
        assert await taken(reader) == []
        async with await streams.writer("s") as writer:
            await writer.append_many(lines(5, 5))
        assert [record.payload for record in await taken(reader)] == lines(5, 5)


@scenario()
async def test_the_last_record_that_readers_see_is_known(cluster: MemoryCluster, client: Client) -> None:
    async with one_stream(client, roll_bytes=1024) as streams:
        assert await streams.last("s") is None
        async with await streams.writer("s") as writer:
            for count in (1, 30, 100):
                last = (await writer.append_many(lines(count)))[-1]
                await writer.commit()
                assert await streams.last("s") == (last, writer.next_sequence - 1)
        assert await streams.last("s") == (last, 130)
        # A writer that has appended nothing yet.
        async with await streams.writer("s"):
            assert await streams.last("s") == (last, 130)
        await streams.truncate("s", before=Start.after(last))
        assert await streams.last("s") is None
        with pytest.raises(NoSuchStream):
            await streams.last("t")


@scenario()
async def test_streams_are_created_listed_renamed_and_deleted(cluster: MemoryCluster, client: Client) -> None:
    async with StreamStore(client) as streams:
        for name in ("a", "a/b", "ä/ö", "b"):
            await streams.create(name)
        with pytest.raises(StreamExists):
            await streams.create("a")
        assert [name async for name in streams.list()] == ["a", "a/b", "b", "ä/ö"]
        assert [name async for name in streams.list("a")] == ["a", "a/b"]
        await streams.rename("b", "c")
        assert [name async for name in streams.list("c")] == ["c"]
        async with await streams.writer("a") as writer:
            await writer.append(b"x")
        await streams.delete("a")
        assert not await streams.exists("a")
        with pytest.raises(NoSuchStream):
            await streams.delete("a")
        await streams.create("a")
        assert await payloads(streams, "a") == []
        assert [ledger_id async for ledger_id in client.list_ledgers()] == []


@scenario()
async def test_writer_and_readers_of_a_deleted_stream_get_an_error(cluster: MemoryCluster, client: Client) -> None:
    async with stores(cluster, 2) as (one, two):
        await one.create("s")
        writer = await one.writer("s")
        await writer.append(b"x")
        await writer.commit()
        reader = two.reader("s")
        records = reader.batches()
        assert [record.payload for record in await anext(records) if isinstance(record, Record)] == [b"x"]
        await two.delete("s")
        with pytest.raises(NoSuchStream):
            await anext(records)
        with pytest.raises(NoSuchStream):
            await writer.append(b"y")


@scenario()
async def test_namespaces_keep_streams_apart_and_have_policies(cluster: MemoryCluster, client: Client) -> None:
    async with StreamStore(client) as default, StreamStore(client, namespace="prod") as prod:
        with pytest.raises(NoSuchNamespace):
            await prod.create("s")
        await prod.create_namespace(retention="1h", compression="zstd")
        info = await prod.create("s")
        assert (info.policy.retention, info.policy.compression) == (3600, "zstd")
        assert not await default.exists("s")
        assert [name async for name in default.namespaces()] == ["default", "prod"]
        with pytest.raises(InvalidArgument):
            await prod.delete_namespace()
        await prod.delete("s")
        await prod.delete_namespace()
        with pytest.raises(NoSuchNamespace):
            await prod.delete_namespace()
        assert [name async for name in default.namespaces()] == ["default"]


@scenario()
async def test_a_stream_is_read_through_segments_in_the_archive_and_positions_stay(
    cluster: MemoryCluster, client: Client
) -> None:
    async with ArchiveStage(cluster) as stage, StreamStore(stage.client) as streams:
        await streams.create("s", roll_bytes=1024, compression="zstd")
        writer = await streams.writer("s")
        positions = [await writer.append(line, txid=index) for index, line in enumerate(lines(200))]
        await writer.commit()
        ended = [segment for segment in (await head_of(streams)).segments if segment.end is not None]
        assert len(ended) > 3
        await stage.archive(*(segment.ledger_id for segment in ended))
        # Half of them are only there from now on.
        for segment in ended[::2]:
            await stage.release(segment.ledger_id)
            for bookie in cluster.bookies.values():
                bookie.delete(segment.ledger_id)
        records = await taken(streams.reader("s", follow=False))
        assert [record.position for record in records] == positions
        assert [record.payload for record in records] == lines(200)
        for wanted in (3, 77, 150):
            for start in (Start.at(positions[wanted]), Start.sequence(wanted), Start.txid(wanted)):
                assert (await payloads(streams, "s", start=start))[0] == lines(200)[wanted]
        await streams.truncate("s", before=positions[100])
        assert await payloads(streams, "s") == lines(100, 100)
        await writer.close()
