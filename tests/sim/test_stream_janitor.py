"""The stream janitor: retention, segments of killed writers, several janitors, waiting readers."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest

from tallybook.client.client import Client
from tallybook.core.errors import AccessDenied, DamagedFile, MetadataConflict, MetadataUnavailable
from tallybook.metadata.store import MetadataRecord as StoredRecord
from tallybook.stream import StreamStore, run_janitor
from tallybook.stream.catalog.catalog import StreamCatalog
from tallybook.stream.reader.reading import LONGEST_POLL_SECONDS
from tallybook.stream.retention.abandoned_writers import (
    END_SECONDS,
    MAX_CONCURRENCY,
    OPEN_GRACE_SECONDS,
    PASS_SECONDS,
    RELEASE_SECONDS,
)
from tallybook.stream.sessions import LEASE_SECONDS, SESSIONS
from tallybook.wire.batches import WRITER_RETURN_SECONDS

from ..simulated import scenario
from ..support.faulty_metadata import FaultyMetadataStore, MetadataFault
from ..support.ledger_scenario import lines
from ..support.memory_cluster import MemoryCluster
from ..support.streams import fall_silent, kill
from .parts import one_stream
from .test_streams_on_one_seed import payloads, stores


@scenario()
async def test_old_segments_are_given_up_by_the_streams_retention(cluster: MemoryCluster, client: Client) -> None:
    async with one_stream(client, roll_bytes=1024, retention="60s") as streams, await streams.writer("s") as writer:
        for line in lines(100):
            await writer.append(line)
        await cluster.world.clock.sleep(120)
        for line in lines(100, 100):
            await writer.append(line)
        await writer.commit()
        assert await streams.keep() == 0
        left = await payloads(streams, "s")
        assert left == lines(len(left), 200 - len(left))
        assert 100 <= len(left) < 200


@scenario()
async def test_a_stream_whose_writer_was_killed_is_ended_after_a_grace_period_and_then_given_up_by_its_retention(
    cluster: MemoryCluster, client: Client
) -> None:
    async with stores(cluster, 3) as (keeper, killed, alive):
        for name in ("left", "written"):
            await keeper.create(name, retention="300s", roll_after="10h")
        for name, store in (("left", killed), ("written", alive)):
            writer = await store.writer(name)
            await writer.append_many(lines(10))
            await writer.commit()
        await kill(killed)
        for streams in (killed, alive):
            assert (await streams.info("left")).owner
        clock = cluster.world.clock
        for _ in range(6):
            assert await keeper.keep() == 0
            await clock.sleep(10)
        assert (await keeper.info("left")).owner, "its writer may come back"
        for _ in range(6):
            assert await keeper.keep() == 0
            await clock.sleep(10)
        assert await payloads(keeper, "left") == lines(10)
        assert not (await keeper.info("left")).owner
        for _ in range(7):
            await clock.sleep(60)
            assert await keeper.keep() == 0
        assert (await keeper.info("left")).first_sequence == 10
        assert await payloads(keeper, "left") == []
        assert len([ledger_id async for ledger_id in client.list_ledgers()]) == 1
        assert (await writer.append(b"goes on")).segment == 1
        async with await keeper.writer("left") as following:
            await following.append(b"goes on, too")
        assert await payloads(keeper, "left") == [b"goes on, too"]
        await writer.close()


@scenario()
async def test_a_writer_without_metadata_store_continues_and_is_ended_once_it_is_dead(
    cluster: MemoryCluster, client: Client
) -> None:
    async with stores(cluster, 2) as (keeper, cut_off):
        await keeper.create("s", retention="300s", roll_after="10h")
        writer = await cut_off.writer("s")
        await writer.append_many(lines(10))
        # Its session is not renewed any more; its bookies notice this.
        await fall_silent(cut_off)
        for at in range(10, 40):
            await cluster.world.clock.sleep(10)
            assert await keeper.keep() == 0
            assert (await writer.append(lines(1, at)[0])).segment == 1
        await writer.commit()
        assert (await keeper.info("s")).owner
        await kill(cut_off)
        for _ in range(20):
            await cluster.world.clock.sleep(10)
            assert await keeper.keep() == 0
        assert not (await keeper.info("s")).owner
        assert await payloads(keeper, "s") == lines(40)


@pytest.mark.parametrize("refusing", [1, 3])
@scenario()
async def test_a_janitor_that_bookies_refuse_ends_a_stream_unless_another_bookie_knows_its_writer(
    cluster: MemoryCluster, *, refusing: int
) -> None:
    async with stores(cluster, 2) as (keeper, killed):
        await keeper.create("s", retention="300s", roll_after="10h")
        writer = await killed.writer("s")
        await writer.append_many(lines(10))
        await writer.commit()

        async def refused(*_asked: Any) -> Any:
            raise AccessDenied("writer may not keep")

        for name in sorted(cluster.bookies)[:refusing]:
            cluster.bookies[name].held = refused  # type: ignore[method-assign]
        await fall_silent(killed)
        if refusing < 3:
            for _ in range(30):
                await cluster.world.clock.sleep(10)
                assert await keeper.keep() == 0
            assert (await keeper.info("s")).owner, "its writer is only cut off from the metadata"
        await kill(killed)
        ended_s = await ended_after(cluster, keeper)
        assert OPEN_GRACE_SECONDS < ended_s <= OPEN_GRACE_SECONDS + LEASE_SECONDS + 2 * WRITER_RETURN_SECONDS + 20
        assert await payloads(keeper, "s") == lines(10)


async def ended_after(cluster: MemoryCluster, keeper: StreamStore) -> float:
    """Seconds until the janitor has closed the segment of the stream."""
    began = cluster.world.clock.monotonic()
    while (await keeper.info("s")).owner:
        await cluster.world.clock.sleep(10)
        assert await keeper.keep() == 0
    return cluster.world.clock.monotonic() - began


@scenario(deadline_seconds=4000)
async def test_streams_that_cannot_be_ended_hold_up_no_pass_for_long_and_others_come_first(
    cluster: MemoryCluster, client: Client
) -> None:
    async with stores(cluster, 2) as (keeper, killed):
        count = MAX_CONCURRENCY * (int(PASS_SECONDS / END_SECONDS) + 2)
        for number in range(count):
            await keeper.create(f"s{number}", retention="300s", roll_after="10h")
            await (await killed.writer(f"s{number}")).append(b"one")
        await kill(killed)
        change, clock = StreamCatalog.change, cluster.world.clock
        tried: list[str] = []

        async def stuck(catalog: StreamCatalog, stream_id: str, transition: Any) -> Any:
            tried.append(stream_id)
            await clock.sleep(10 * END_SECONDS)
            return await change(catalog, stream_id, transition)

        longest = 0.0
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(StreamCatalog, "change", stuck)
            for _ in range(30):
                await clock.sleep(10)
                began = clock.monotonic()
                await keeper.keep()
                longest = max(longest, clock.monotonic() - began)
                if len(set(tried)) == count:
                    break
        assert len(set(tried)) == count
        assert PASS_SECONDS <= longest <= PASS_SECONDS + END_SECONDS + RELEASE_SECONDS + 10


@scenario(deadline_seconds=2000)
async def test_many_abandoned_streams_are_ended_several_at_a_time(cluster: MemoryCluster, client: Client) -> None:
    async with StreamStore(client) as keeper, stores(cluster, 1) as [killed]:
        for number in range(3 * MAX_CONCURRENCY):
            await keeper.create(f"s{number}", retention="300s", roll_after="10h")
            await (await killed.writer(f"s{number}")).append(b"one")
        await kill(killed)
        ending = most = 0
        recover = client.open_ledger

        async def slow(*asked: Any, **options: Any) -> Any:
            nonlocal ending, most
            ending, most = ending + 1, max(most, ending + 1)
            try:
                await cluster.world.clock.sleep(2 * END_SECONDS)
                return await recover(*asked, **options)
            finally:
                ending -= 1

        client.open_ledger = slow  # type: ignore[method-assign, assignment]
        failed: list[int] = []
        clock = cluster.world.clock
        longest = 0.0
        while not any(failed):
            await clock.sleep(10)
            began = clock.monotonic()
            failed.append(await keeper.keep())
            longest = max(longest, clock.monotonic() - began)
        assert failed[-1] == 3 * MAX_CONCURRENCY
        assert most == MAX_CONCURRENCY
        assert longest < 3 * END_SECONDS + 10
        client.open_ledger = recover  # type: ignore[method-assign]
        for _ in range(20):
            await clock.sleep(10)
            assert await keeper.keep() == 0
        assert not [number for number in range(3 * MAX_CONCURRENCY) if (await keeper.info(f"s{number}")).owner]


@scenario()
async def test_what_has_ended_is_given_up_although_the_end_of_a_killed_writer_is_lost(
    cluster: MemoryCluster, client: Client
) -> None:
    async with stores(cluster, 2) as (keeper, killed):
        await keeper.create("s", retention="300s", roll_after="10h")
        async with await killed.writer("s") as writer:
            await writer.append_many(lines(10))
        await (await killed.writer("s")).append(b"lost")
        last = max([ledger_id async for ledger_id in client.list_ledgers()])
        await client.delete_ledger(last, force=True)
        await kill(killed)
        failed = 0
        for _ in range(40):
            await cluster.world.clock.sleep(10)
            failed += await keeper.keep()
        assert (await keeper.info("s")).first_sequence == 10
        assert 1 <= failed <= 400 / OPEN_GRACE_SECONDS, "named, and not tried again at once"


@scenario()
async def test_a_ledger_that_cannot_be_deleted_keeps_no_other_record_past_its_retention(
    cluster: MemoryCluster, client: Client
) -> None:
    async with one_stream(client, roll_bytes=1024, retention="60s") as streams:
        async with await streams.writer("s") as writer:
            for line in lines(100):
                await writer.append(line)
        damaged, *others = sorted([ledger_id async for ledger_id in client.list_ledgers()])
        assert others
        delete = client.delete_ledger

        async def refused(ledger_id: int, **options: Any) -> None:
            if ledger_id == damaged:
                raise DamagedFile(f"the metadata of ledger {damaged} are damaged")
            await delete(ledger_id, **options)

        client.delete_ledger = refused  # type: ignore[method-assign, assignment]
        await cluster.world.clock.sleep(120)
        assert await streams.keep() == 1
        assert [ledger_id async for ledger_id in client.list_ledgers()] == [damaged]
        assert await streams.keep() == 1
        client.delete_ledger = delete  # type: ignore[method-assign]
        assert await streams.keep() == 0
        assert [ledger_id async for ledger_id in client.list_ledgers()] == []


@scenario()
async def test_a_deletion_with_the_metadata_store_away_ends_at_the_first_ledger(
    cluster: MemoryCluster, client: Client
) -> None:
    async with one_stream(client, roll_bytes=1024) as streams:
        async with await streams.writer("s") as writer:
            for line in lines(100):
                await writer.append(line)
        assert len([ledger_id async for ledger_id in client.list_ledgers()]) > 2
        delete, asked = client.delete_ledger, list[int]()

        async def refused(ledger_id: int, **options: Any) -> None:
            asked.append(ledger_id)
            raise MetadataUnavailable("the metadata store does not answer")

        client.delete_ledger = refused  # type: ignore[method-assign, assignment]
        with pytest.raises(MetadataUnavailable):
            await streams.delete("s")
        assert len(asked) == 1
        client.delete_ledger = delete  # type: ignore[method-assign]
        assert await streams.keep() == 0
        assert [ledger_id async for ledger_id in client.list_ledgers()] == []


@scenario()
async def test_a_janitor_pass_ends_when_the_metadata_store_becomes_unavailable(
    cluster: MemoryCluster, client: Client
) -> None:
    outage = Outage()
    async with StreamStore(client) as streams:
        for number in range(20):
            await streams.create(f"s{number}")
    async with (
        cluster.client(seen_through=lambda store: FaultyMetadataStore(store, outage, cluster.world.clock)) as other,
        StreamStore(other) as streams,
    ):
        outage.left = 5
        with pytest.raises(MetadataUnavailable):
            await streams.keep()
        assert outage.refused == 2, "the operation of one stream, and a look whether it is the store"
        outage.left = None
        assert await streams.keep() == 0


class Outage:
    """Makes a metadata store unavailable after so many operations; ``None``: never."""

    def __init__(self) -> None:
        self.left: int | None = None
        self.refused = 0

    def next(self, _operation: str) -> MetadataFault | None:
        if self.left is None:
            return None
        self.left -= 1
        if self.left >= 0:
            return None
        self.refused += 1
        return MetadataFault.UNAVAILABLE


@scenario()
async def test_a_session_that_is_renewed_while_it_is_removed_ends_no_janitor_pass(
    cluster: MemoryCluster, client: Client
) -> None:
    async with stores(cluster, 2) as (keeper, silent):
        await keeper.create("s")
        await silent.writer("s")
        await fall_silent(silent)
        assert await keeper.keep() == 0
        await cluster.world.clock.sleep(LEASE_SECONDS)
        delete, store = keeper.metadata_store.delete_record, keeper.metadata_store

        async def renewed(name: str, version: int) -> None:
            raise MetadataConflict(f"{name} is at another version than {version}")

        store.delete_record = renewed  # type: ignore[method-assign]
        try:
            assert await keeper.keep() == 0
        finally:
            store.delete_record = delete  # type: ignore[method-assign]


@scenario()
async def test_one_of_several_janitors_maintains_the_streams_and_another_takes_over(
    cluster: MemoryCluster, client: Client
) -> None:
    async with stores(cluster, 2) as found:
        await found[0].create("s", roll_bytes=1024, retention="60s")
        writer = await found[0].writer("s")
        rounds = [0, 0]

        def counted(index: int, streams: StreamStore) -> StreamStore:
            keep = streams.keep

            async def counting() -> int:
                rounds[index] += 1
                return await keep()

            streams.keep = counting  # type: ignore[method-assign]
            return streams

        world = cluster.world
        janitors = [
            asyncio.ensure_future(run_janitor(counted(index, each), world.clock, world.rng.fork(f"{index}"), 10))
            for index, each in enumerate(found)
        ]
        for line in lines(100):
            await writer.append(line)
        await world.clock.sleep(200)
        assert (await found[0].info("s")).first_sequence > 50
        assert sorted(rounds)[0] == 0, "one of them only"
        leader = rounds.index(max(rounds))
        janitors[leader].cancel()
        await world.clock.sleep(60)
        assert rounds[1 - leader] > 0
        for keeper in janitors:
            keeper.cancel()
        await asyncio.gather(*janitors, return_exceptions=True)
        await writer.close()


@scenario()
async def test_readers_that_wait_for_the_next_segment_do_not_poll_in_step(
    cluster: MemoryCluster, client: Client
) -> None:
    async with one_stream(client) as streams:
        async with await streams.writer("s") as writer:
            await writer.append(b"one")
        reader = streams.reader("s")
        assert (await reader.next(timeout=5)).payload == b"one"
        looks, read, clock = list[float](), client.world.store.read_record, cluster.world.clock

        async def noted(name: str, *, linearizable: bool = False) -> StoredRecord | None:
            if not name.startswith(SESSIONS):
                looks.append(clock.monotonic())
            return await read(name, linearizable=linearizable)

        client.world.store.read_record = noted  # type: ignore[method-assign]
        try:
            with pytest.raises(TimeoutError):
                await reader.next(timeout=20)
        finally:
            client.world.store.read_record = read  # type: ignore[method-assign]
        pauses = [round(after - before, 3) for before, after in pairwise(looks)][6:]
        assert len(pauses) > 10
        assert len(set(pauses)) > 5, pauses
        assert all(LONGEST_POLL_SECONDS / 2 <= pause <= LONGEST_POLL_SECONDS + 0.1 for pause in pauses), pauses
