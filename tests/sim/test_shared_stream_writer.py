"""What one writer does for many who use it at once, as the clients of a gateway do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tallybook.client.client import Client
from tallybook.core.errors import OutOfOrder, PositionMismatch, StreamClosed
from tallybook.sim.stage.cluster import MemoryCluster
from tallybook.sim.stage.scenario import scenario
from tallybook.stream import Outgoing, StreamStore, StreamWriter


@asynccontextmanager
async def busy(writer: StreamWriter, cluster: MemoryCluster) -> AsyncIterator[None]:
    """Append so often that something is always under way: the writer is never idle."""

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
async def test_a_commit_does_not_wait_for_what_others_append_meanwhile(cluster: MemoryCluster, client: Client) -> None:
    async with StreamStore(client) as streams:
        await streams.create("s")
        async with await streams.writer("s") as writer, busy(writer, cluster):
            one = await writer.append(b"one")
            async with asyncio.timeout(5):
                await writer.commit()
            assert one in [record.position async for record in streams.reader("s", follow=False)]


@scenario()
async def test_a_condition_does_not_wait_for_what_others_append_meanwhile(
    cluster: MemoryCluster, client: Client
) -> None:
    async with StreamStore(client) as streams:
        await streams.create("s")
        async with await streams.writer("s") as writer:
            async with busy(writer, cluster), asyncio.timeout(5):
                one = await writer.append(b"one")
                for wanted in (None, one):
                    with pytest.raises(PositionMismatch):
                        await writer.append(b"two", if_position=wanted)
            await writer.flush()
            assert await writer.append(b"two", if_position=writer.last_position) == writer.last_position
    assert client.budget.taken_bytes == 0


@scenario()
async def test_what_is_sent_together_is_in_order_though_it_pushes_an_id_out_of_the_window(
    cluster: MemoryCluster, client: Client
) -> None:
    async with StreamStore(client) as streams:
        await streams.create("s", dedup_records=2)
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
async def test_an_end_that_is_cut_off_is_not_told_as_one(cluster: MemoryCluster, client: Client) -> None:
    async with StreamStore(client) as streams:
        await streams.create("s")
        writer = await streams.writer("s")
        one = writer.append_nowait(b"one")
        ending = asyncio.create_task(writer.end_stream())
        await asyncio.sleep(0)
        writer.abandon()
        for each in (one, ending):
            with pytest.raises(StreamClosed):
                await each
        assert not (await streams.info("s")).ended
    assert client.budget.taken_bytes == 0
