"""Bookies with smaller batch limits than a stream writer's batches: only records too large for an entry are refused."""

from __future__ import annotations

import asyncio

import pytest

from tallybook.client.client import Client
from tallybook.core.errors import EntryTooLarge, Outcome
from tallybook.stream import Outgoing, PendingRecord, StreamStore
from tallybook.stream.records.compression import Compression

from ..simulated import scenario
from ..support.ledger_scenario import SMALL, eventually, lines
from ..support.memory_cluster import MemoryCluster
from .parts import one_stream

LIMIT = 400
"""Less than the 1,024 bytes that the client of a scenario makes of a batch."""
LARGE = b"x" * 600


def limit_all(cluster: MemoryCluster, limit: int = LIMIT) -> None:
    for bookie in cluster.bookies.values():
        bookie.max_batch_bytes = limit


async def back_smaller(cluster: MemoryCluster, client: Client) -> None:
    """Restart an ensemble member with a smaller ``journal.max_commit_bytes``; the client is connected to it."""
    bookie = cluster.bookies["bookie-1"]
    bookie.kill()
    bookie.max_batch_bytes = LIMIT
    bookie.restart()
    await eventually(lambda: client.max_entry_bytes < LIMIT, cluster)


async def read(streams: StreamStore) -> list[tuple[bytes, str]]:
    """All records of the stream with their positions; checks that sequence numbers have no gaps."""
    records = [record async for record in streams.reader("s", follow=False)]
    assert [record.sequence for record in records] == [*range(len(records))]
    return [(record.payload, str(record.position)) for record in records]


async def settled(pending: list[PendingRecord]) -> list[str]:
    """Position of each record, or the error with its outcome."""
    found = []
    for each in pending:
        try:
            found.append(str(await each))
        except EntryTooLarge as error:
            found.append(f"too large, {error.outcome.name}")
    return found


REFUSED = f"too large, {Outcome.NOT_DONE.name}"


@scenario()
async def test_the_first_burst_of_a_client_is_cut_to_what_its_bookies_take(
    cluster: MemoryCluster, client: Client
) -> None:
    limit_all(cluster)
    async with one_stream(client) as streams:
        async with await streams.writer("s") as writer:
            positions = await asyncio.gather(*map(writer.append, lines(100)))
            assert len([each async for each in streams.segments("s")]) == 1, "none has failed"
        assert await read(streams) == [*zip(lines(100), map(str, positions), strict=True)]
    assert client.budget.taken_bytes == 0


@pytest.mark.parametrize("compression", Compression)
@scenario()
async def test_records_that_gathered_for_larger_bookies_are_cut_at_their_borders(
    cluster: MemoryCluster, client: Client, *, compression: Compression
) -> None:
    records = [
        Outgoing(b"%d" % at + b"y" * 50, timestamp_ms=at, key=b"k%d" % at, dedup_id=b"i%d" % at, txid=at)
        for at in range(40)
    ]
    async with StreamStore(client) as streams:
        await streams.create("s", compression=compression.name.lower())
        async with await streams.writer("s") as writer:
            await writer.append(b"first")
            await back_smaller(cluster, client)
            positions = await writer.append_many(records)
            assert await writer.append_many(records) == positions, "each is known by its id"
            await writer.commit()
        found = [record async for record in streams.reader("s", follow=False)][1:]
        assert [(r.payload, r.timestamp_ms, r.key, r.dedup_id, r.txid) for r in found] == [*map(tuple, records)]
        assert [record.position for record in found] == positions
        assert [record.sequence for record in found] == [*range(1, 41)]
    assert client.budget.taken_bytes == 0


@scenario()
async def test_a_record_that_bookies_do_not_take_any_more_is_refused_before_it_is_taken(
    cluster: MemoryCluster, client: Client
) -> None:
    async with one_stream(client) as streams:
        async with await streams.writer("s") as writer:
            await writer.append(b"first")
            await back_smaller(cluster, client)
            with pytest.raises(EntryTooLarge):
                await writer.append(LARGE)
            with pytest.raises(EntryTooLarge):
                await writer.append_set([b"y" * 200] * 2)
            await writer.append(b"second")
        assert [payload for payload, _ in await read(streams)] == [b"first", b"second"]


@scenario()
async def test_a_record_that_fits_no_entry_is_refused_alone_and_the_writer_continues(
    cluster: MemoryCluster, client: Client
) -> None:
    limit_all(cluster)
    async with one_stream(client) as streams:
        async with await streams.writer("s") as writer:
            payloads = [b"of client A", LARGE, *lines(20), LARGE, b"of client B"]
            sent = [writer.append_nowait(payload, dedup_id=b"%d" % at) for at, payload in enumerate(payloads)]
            async with asyncio.timeout(10):
                committed = asyncio.ensure_future(writer.commit())
                places = await settled(sent)
                await committed
            assert [at for at, place in enumerate(places) if place == REFUSED] == [1, 22]
            assert writer.next_sequence == 22
            again = await writer.append(b"small", dedup_id=b"1", if_position=writer.last_position)
            assert str(again) not in places, "a record that was refused is not known by its id"
        wanted = [each for each in zip(payloads, places, strict=True) if each[1] != REFUSED]
        assert await read(streams) == [*wanted, (b"small", str(again))]
    assert client.budget.taken_bytes == 0


@scenario(deadline_seconds=3600)
async def test_what_a_segment_took_that_has_failed_is_cut_or_refused_in_the_next_one(
    cluster: MemoryCluster, client: Client
) -> None:
    patient = SMALL.model_copy(update={"add_timeout_ms": 60_000})
    async with cluster.client(patient) as another, StreamStore(another) as streams:
        await streams.create("s")
        async with await streams.writer("s") as writer:
            await writer.append(b"first")
            cluster.bookies["bookie-1"].kill()
            for name in ("bookie-0", "bookie-2"):
                cluster.bookies[name].hold_commits()
            payloads = [b"%d" % at * 66 for at in range(100, 220)]
            payloads.insert(60, LARGE)
            sent = list[PendingRecord]()
            for payload in payloads:
                sent.append(writer.append_nowait(payload))
                await cluster.world.clock.sleep(0.001)
            await back_smaller(cluster, another)
            for name in ("bookie-0", "bookie-2"):
                cluster.bookies[name].release_commits()
            places = await settled(sent)
            last = await writer.append(b"last")
            assert [at for at, place in enumerate(places) if place == REFUSED] == [60]
        wanted = [each for each in zip(payloads, places, strict=True) if each[1] != REFUSED]
        assert (await read(streams))[1:] == [*wanted, (b"last", str(last))]
        assert len([each async for each in streams.segments("s")]) == 2
        assert another.budget.taken_bytes == 0


@scenario()
async def test_a_set_that_fits_no_entry_any_more_is_refused_whole(cluster: MemoryCluster, client: Client) -> None:
    limit_all(cluster)
    async with one_stream(client) as streams:
        async with await streams.writer("s") as writer:
            together = asyncio.ensure_future(writer.append_set([b"y" * 200] * 4))
            behind = asyncio.ensure_future(writer.append_set(lines(3)))
            with pytest.raises(EntryTooLarge) as told:
                await together
            assert told.value.outcome is Outcome.NOT_DONE
            positions = await behind
        assert await read(streams) == [*zip(lines(3), map(str, positions), strict=True)]


@scenario()
async def test_of_many_records_of_which_one_is_refused_it_is_not_said_that_none_is_there(
    cluster: MemoryCluster, client: Client
) -> None:
    limit_all(cluster)
    async with one_stream(client) as streams:
        async with await streams.writer("s") as writer:
            with pytest.raises(EntryTooLarge) as told:
                await writer.append_many([b"before", LARGE, b"behind"])
            assert told.value.outcome is Outcome.UNKNOWN
        assert [payload for payload, _ in await read(streams)] == [b"before", b"behind"]


@pytest.mark.parametrize("how", ["flush", "close"])
@scenario()
async def test_an_unreported_refusal_is_reported_by_the_call_that_waits_for_all(
    cluster: MemoryCluster, client: Client, *, how: str
) -> None:
    limit_all(cluster)
    async with one_stream(client) as streams:
        writer = await streams.writer("s")
        for payload in (b"before", LARGE, b"behind"):
            writer.append_nowait(payload)
        with pytest.raises(EntryTooLarge):
            await (writer.flush() if how == "flush" else writer.close())
        await writer.close()
        assert [payload for payload, _ in await read(streams)] == [b"before", b"behind"]
        info = await streams.info("s")
        assert info.owner is None, "the stream is let go of all the same"


@scenario()
async def test_where_none_may_be_left_out_a_refusal_ends_the_writer(cluster: MemoryCluster, client: Client) -> None:
    limit_all(cluster)
    async with cluster.client(SMALL) as another, StreamStore(client) as streams, StreamStore(another) as others:
        await streams.create("s")
        writer = await others.writer("s")
        writer.end_at_refusal()
        sent = [writer.append_nowait(payload) for payload in (b"before", LARGE, b"behind")]
        with pytest.raises(EntryTooLarge):
            await sent[-1]
        assert writer.ended
        writer.abandon()
        async with await streams.writer("s"):
            pass
        assert b"behind" not in [payload for payload, _ in await read(streams)]
