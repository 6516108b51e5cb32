"""One stream writer with many concurrent users, such as clients of a gateway."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tallybook.client.client import Client
from tallybook.core.errors import OutOfOrder, PositionMismatch, StreamClosed
from tallybook.stream import Outgoing, StreamWriter

from ..simulated import scenario
from ..support.memory_cluster import MemoryCluster
from .parts import one_stream


@asynccontextmanager
async def busy(writer: StreamWriter, cluster: MemoryCluster) -> AsyncIterator[None]:
    """Append so often that the writer is never idle."""

    async def append() -> None:
        while True:
            writer.append_nowait(b"more")
            await cluster.world.clock.sleep(0.0002)

    others = asyncio.create_task(append())
    try:
        yield
    finally:
        others.cancel()
        await asyncio.gather(others, return_exceptions=True)


@scenario()
async def test_a_commit_does_not_wait_for_later_appends_of_others(cluster: MemoryCluster, client: Client) -> None:
    async with one_stream(client) as streams, await streams.writer("s") as writer, busy(writer, cluster):
        one = await writer.append(b"one")
        async with asyncio.timeout(5):
            await writer.commit()
        assert one in [record.position async for record in streams.reader("s", follow=False)]


@scenario()
async def test_a_condition_does_not_wait_for_later_appends_of_others(cluster: MemoryCluster, client: Client) -> None:
    async with one_stream(client) as streams, await streams.writer("s") as writer:
        async with busy(writer, cluster), asyncio.timeout(5):
            one = await writer.append(b"one")
            for wanted in (None, one):
                with pytest.raises(PositionMismatch):
                    await writer.append(b"two", if_position=wanted)
        await writer.flush()
        assert await writer.append(b"two", if_position=writer.last_position) == writer.last_position
    assert client.budget.taken_bytes == 0


@scenario()
async def test_records_sent_together_are_in_order_although_they_push_an_id_out_of_the_window(
    cluster: MemoryCluster, client: Client
) -> None:
    async with one_stream(client, dedup_records=2) as streams:
        async with await streams.writer("s") as writer:
            a, b, c = (Outgoing(each, dedup_id=each, txid=each[0]) for each in (b"a", b"b", b"c"))
            sent = await writer.send([a, b])
            with pytest.raises(OutOfOrder):
                await writer.send([c, a])
            again = await writer.send([a, c])
            assert await sent[0] == await again[0]
        found = [record.payload async for record in streams.reader("s", follow=False)]
        assert found == [b"a", b"b", b"c"]
    assert client.budget.taken_bytes == 0


@scenario()
async def test_the_former_name_of_seal_still_works_and_warns(cluster: MemoryCluster, client: Client) -> None:
    async with one_stream(client) as streams:
        writer = await streams.writer("s")
        with pytest.warns(DeprecationWarning, match="seal"):
            await writer.end_stream()
        assert (await streams.info("s")).sealed


@scenario()
async def test_a_cancelled_end_is_not_reported_as_one(cluster: MemoryCluster, client: Client) -> None:
    async with one_stream(client) as streams:
        writer = await streams.writer("s")
        one = writer.append_nowait(b"one")
        ending = asyncio.create_task(writer.seal())
        await asyncio.sleep(0)
        writer.abandon()
        for each in (one, ending):
            with pytest.raises(StreamClosed):
                await each
        assert not (await streams.info("s")).sealed
    assert client.budget.taken_bytes == 0
