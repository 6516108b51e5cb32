"""Subscriptions: the position is kept by one reader at a time, in a ledger and not in metadata writes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager

import pytest

from tallybook.client.client import Client
from tallybook.core.errors import (
    ForeignPosition,
    InvalidArgument,
    MetadataUnavailable,
    NoSuchSubscription,
    StreamClosed,
    StreamFenced,
    StreamGap,
    StreamOwned,
)
from tallybook.metadata.store import MetadataStore
from tallybook.stream import Gap, Position, Start, StreamStore, SubscriptionReader
from tallybook.stream.subscription import handle

from ..simulated import scenario
from ..support.faulty_metadata import FaultyMetadataStore, MetadataFault
from ..support.ledger_scenario import SMALL, lines
from ..support.memory_cluster import MemoryCluster
from ..support.streams import head_of


@asynccontextmanager
async def written(
    client: Client, count: int = 20, **policy: object
) -> AsyncIterator[tuple[StreamStore, list[Position]]]:
    """A stream ``s`` of so many records, and their positions."""
    async with StreamStore(client, name="first") as streams:
        await streams.create("s", **policy)
        async with await streams.writer("s") as writer:
            positions = [await writer.append(line) for line in lines(count)]
        yield streams, positions


async def next_of(reader: SubscriptionReader) -> bytes:
    """Payload of the next record."""
    async with aclosing(reader.batches()) as batches:
        batch = await anext(batches)
        assert not isinstance(batch, Gap)
        return batch[0].payload


async def cursors(streams: StreamStore) -> dict[str, str]:
    """Cursor of each subscription."""
    return {each.name: str(each.cursor) async for each in streams.subscriptions("s")}


@scenario()
async def test_a_reader_continues_behind_what_it_has_processed(cluster: MemoryCluster, client: Client) -> None:
    async with written(client) as (streams, positions):
        async with await streams.subscribe("s", "billing") as billing:
            seen = []
            async for record in billing:
                seen.append(record.payload)
                await billing.advance(record.position)
                if len(seen) == 7:
                    break
        assert seen == lines(7)
        assert await cursors(streams) == {"billing": f"after {positions[6]}"}
        async with await streams.subscribe("s", "billing", follow=False) as billing:
            assert [record.payload async for record in billing] == lines(13, 7)


@scenario()
async def test_a_new_subscription_starts_where_it_was_asked_to_and_an_old_one_does_not(
    cluster: MemoryCluster, client: Client
) -> None:
    async with written(client) as (streams, positions):
        for start, wanted in ((Start.at(positions[5]), 5), (Start.at(positions[9]), 5)):
            async with await streams.subscribe("s", "x", start=start) as reader:
                assert await next_of(reader) == lines(20)[wanted]
        async with await streams.subscribe("s", "late", start=Start.latest(), follow=False) as reader:
            assert [record async for record in reader] == []
        assert list(await cursors(streams)) == ["late", "x"]


@scenario()
async def test_a_second_reader_replaces_the_first_which_advances_no_more(
    cluster: MemoryCluster, client: Client
) -> None:
    async with written(client) as (streams, positions), cluster.client(SMALL) as another, StreamStore(another) as other:
        first = await streams.subscribe("s", "x")
        await first.advance(positions[3])
        second = await other.subscribe("s", "x")
        assert await next_of(second) == lines(20)[4]
        with pytest.raises(StreamFenced):
            await first.advance(positions[10])
        await second.advance(positions[5])
        await cluster.world.clock.sleep(1)
        with pytest.raises(StreamFenced):
            await first.advance(positions[11])
        assert await cursors(streams) == {"x": f"after {positions[5]}"}
        first.abandon()
        await second.close()


@scenario()
async def test_a_waiting_reader_gets_the_subscription_when_its_reader_leaves(
    cluster: MemoryCluster, client: Client
) -> None:
    async with written(client) as (streams, positions), cluster.client(SMALL) as another, StreamStore(another) as other:
        first = await streams.subscribe("s", "x")
        with pytest.raises(StreamOwned, match="first"):
            await other.subscribe("s", "x", wait_s=1)
        waiting = asyncio.ensure_future(other.subscribe("s", "x", wait_s=60))
        await first.advance(positions[3])
        await first.close()
        second = await waiting
        assert second.cursor.position == positions[3]
        await second.close()


@scenario()
async def test_advancing_writes_no_metadata_and_its_ledgers_stay_few(cluster: MemoryCluster, client: Client) -> None:
    written_records: list[str] = []

    class Counting:
        def next(self, operation: str) -> MetadataFault | None:
            if operation in {"write_record", "update_ledger", "create_ledger"}:
                written_records.append(operation)
            return None

    def seen_through(store: MetadataStore) -> FaultyMetadataStore:
        return FaultyMetadataStore(store, Counting(), cluster.world.clock)

    async with (
        written(client, 300) as (streams, positions),
        cluster.client(SMALL, seen_through=seen_through) as counted,
    ):
        async with StreamStore(counted) as other, await other.subscribe("s", "x") as reader:
            await reader.advance(positions[0])
            before = len(written_records)
            for position in positions[1:]:
                await reader.advance(position)
            assert len(written_records) == before
            ledgers = [ledger_id async for ledger_id in client.list_ledgers()]
        named = {segment.ledger_id for segment in (await head_of(streams)).segments}
        assert len(set(ledgers) - named) == 1, "the cursor ledger, while there is a reader"
        assert {ledger_id async for ledger_id in client.list_ledgers()} == named, "none, when there is not"


@scenario()
async def test_a_cursor_ledger_is_given_up_for_another_one_after_some_time(
    cluster: MemoryCluster, client: Client, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handle, "ADVANCES", 10)
    async with written(client, 60) as (streams, positions):
        reader = await streams.subscribe("s", "x")
        for position in positions:
            await reader.advance(position)
        ledgers = {ledger_id async for ledger_id in client.list_ledgers()}
        named = {segment.ledger_id for segment in (await head_of(streams)).segments}
        assert len(ledgers - named) <= 2
        assert await cursors(streams) == {"x": f"after {positions[-2]}"} or await cursors(streams) == {
            "x": f"after {positions[-1]}"
        }
        await reader.close()
        assert await cursors(streams) == {"x": f"after {positions[-1]}"}


@scenario(bookies=5)
async def test_a_reader_continues_when_its_cursor_ledger_is_recovered(cluster: MemoryCluster, client: Client) -> None:
    async with written(client) as (streams, positions):
        named = {segment.ledger_id for segment in (await head_of(streams)).segments}
        reader = await streams.subscribe("s", "x")
        await reader.advance(positions[2])
        [ledger_id] = {ledger_id async for ledger_id in client.list_ledgers()} - named
        await client.recover_ledger(ledger_id)
        await reader.advance(positions[4])
        await reader.close()
        assert await cursors(streams) == {"x": f"after {positions[4]}"}


@scenario()
async def test_many_advances_at_once_are_stored_as_the_last_of_them(cluster: MemoryCluster, client: Client) -> None:
    async with written(client, 200) as (streams, positions):
        async with await streams.subscribe("s", "x") as reader:
            for position in positions:
                reader.advance_nowait(position)
            await reader.advance(positions[-1])
            assert reader._ledger is not None
            assert reader._ledger.last_add_confirmed < 5
        assert await cursors(streams) == {"x": f"after {positions[-1]}"}


@scenario()
async def test_a_subscription_does_not_go_back_by_itself_but_may_be_set_back(
    cluster: MemoryCluster, client: Client
) -> None:
    async with written(client) as (streams, positions):
        reader = await streams.subscribe("s", "x")
        await reader.advance(positions[9])
        with pytest.raises(InvalidArgument, match="cannot go back"):
            await reader.advance(positions[3])
        with pytest.raises(ForeignPosition):
            await reader.advance("1-0-0@ffffffff")
        await streams.reset_subscription("s", "x", Start.at(positions[2]))
        with pytest.raises(StreamFenced):
            await reader.advance(positions[12])
        reader.abandon()
        with pytest.raises(StreamClosed):
            await reader.advance(positions[12])
        async with await streams.subscribe("s", "x") as again:
            assert await next_of(again) == lines(20)[2]


@scenario()
async def test_a_reader_that_never_advances_holds_nothing_up_and_gets_a_report_of_missed_records(
    cluster: MemoryCluster, client: Client
) -> None:
    async with written(client, 100, roll_bytes=1024) as (streams, positions):
        await (await streams.subscribe("s", "idle")).close()
        await streams.truncate("s", before=positions[60])
        async with await streams.subscribe("s", "idle", follow=False) as reader:
            with pytest.raises(StreamGap, match="record 59 was truncated"):
                [record async for record in reader]
            assert [record.payload async for record in reader] == lines(40, 60)


@scenario()
async def test_subscriptions_are_deleted_alone_or_with_their_stream(cluster: MemoryCluster, client: Client) -> None:
    async with written(client) as (streams, positions):
        for name in ("a", "b"):
            reader = await streams.subscribe("s", name)
            await reader.advance(positions[0])
        await streams.unsubscribe("s", "a")
        assert list(await cursors(streams)) == ["b"]
        with pytest.raises(NoSuchSubscription):
            await streams.unsubscribe("s", "a")
        await streams.delete("s")
        assert [ledger_id async for ledger_id in client.list_ledgers()] == []


@scenario()
async def test_a_subscription_whose_close_fails_is_released_while_its_session_lasts(
    cluster: MemoryCluster, client: Client
) -> None:
    away = False

    class Away:
        def next(self, operation: str) -> MetadataFault | None:
            return MetadataFault.UNAVAILABLE if away and operation == "write_record" else None

    def seen_through(store: MetadataStore) -> FaultyMetadataStore:
        return FaultyMetadataStore(store, Away(), cluster.world.clock)

    async with (
        written(client) as (streams, positions),
        cluster.client(SMALL, seen_through=seen_through) as troubled,
        StreamStore(troubled) as first,
    ):
        billing = await first.subscribe("s", "billing")

        async def use() -> None:
            nonlocal away
            async with billing:
                await billing.advance(positions[3])
                away = True

        with pytest.raises(MetadataUnavailable):
            await use()
        with pytest.raises(StreamClosed):
            await billing.advance(positions[4])
        away = False
        # As in a gateway, whose one store goes on for all of its clients.
        async with await streams.subscribe("s", "billing", wait_s=5) as second:
            assert await next_of(second) == lines(1, 4)[0]


@scenario()
async def test_no_task_of_a_closed_subscription_continues_while_its_handle_is_kept(
    cluster: MemoryCluster, client: Client
) -> None:
    async with written(client) as (streams, positions):
        for leave in (SubscriptionReader.close, SubscriptionReader.abandon):
            before = {task.get_name() for task in asyncio.all_tasks()}
            reader = await streams.subscribe("s", "billing", start=Start.after(positions[-1]))
            with pytest.raises(TimeoutError):
                await reader.next(0.2)
            left = leave(reader)
            if left is not None:
                await left
            await cluster.world.clock.sleep(1)
            assert {task.get_name() for task in asyncio.all_tasks()} <= before
            with pytest.raises(StreamClosed):
                await reader.next()


@scenario()
async def test_two_closes_of_a_subscription_at_once_are_one(cluster: MemoryCluster, client: Client) -> None:
    async with written(client) as (streams, positions):
        reader = await streams.subscribe("s", "billing")
        reader.advance_nowait(positions[3])
        await asyncio.gather(reader.close(), reader.close())
        assert (await cursors(streams))["billing"] == f"after {positions[3]}"


@scenario()
async def test_a_close_that_finds_another_reader_there_ends_the_handle_and_the_calls_that_wait_on_it(
    cluster: MemoryCluster, client: Client
) -> None:
    async with written(client) as (streams, positions), cluster.client(SMALL) as another:
        reader = await streams.subscribe("s", "billing", start=Start.latest())
        waiting = asyncio.ensure_future(reader.next())
        await cluster.world.clock.sleep(1)
        async with StreamStore(another) as others, await others.subscribe("s", "billing"):
            with pytest.raises(StreamFenced):
                await reader.close()
            with pytest.raises(StreamClosed):
                async with asyncio.timeout(5):
                    await waiting
            with pytest.raises(StreamClosed):
                await reader.advance(positions[-1])
            await reader.close()


@scenario()
async def test_a_close_that_was_cancelled_is_completed_by_the_next_one(cluster: MemoryCluster, client: Client) -> None:
    async with written(client) as (streams, _):
        reader = await streams.subscribe("s", "billing")
        begun, closed, close = asyncio.Event(), asyncio.Event(), reader.reader.close

        async def cut_off() -> None:
            if not begun.is_set():
                begun.set()
                await asyncio.Event().wait()
            await close()
            closed.set()

        reader.reader.close = cut_off  # type: ignore[method-assign]
        closing = asyncio.ensure_future(reader.close())
        await begun.wait()
        closing.cancel()
        await asyncio.gather(closing, return_exceptions=True)
        await reader.close()
        assert closed.is_set()
