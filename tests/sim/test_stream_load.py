"""What goes wrong with streams while nobody writes is counted."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

from tallybook.client.client import Client
from tallybook.core.errors import MetadataUnavailable
from tallybook.core.limits import MIB
from tallybook.sim.stage.cluster import MemoryCluster
from tallybook.sim.stage.scenario import scenario
from tallybook.stream import StreamStore, keep_for_ever
from tallybook.stream.load import StreamLoad
from tallybook.stream.reader.tails import KEPT_BYTES
from tallybook.stream.sessions import LEASE_SECONDS, RENEWALS


@scenario()
async def test_renewals_of_a_session_that_fail_are_counted(cluster: MemoryCluster, client: Client) -> None:
    load = StreamLoad()
    async with StreamStore(client) as streams:
        streams.count_in(load)
        await streams.create("s")
        async with await streams.writer("s"):
            updater = streams._session._updater
            update = updater.update

            async def away(*_: object) -> None:
                raise MetadataUnavailable("it does not answer")

            updater.update = away  # type: ignore[assignment]
            await cluster.world.clock.sleep(LEASE_SECONDS / RENEWALS * 2.5)
            updater.update = update  # type: ignore[method-assign]
            await cluster.world.clock.sleep(LEASE_SECONDS)
    assert load.readings()["stream_failed_renewals"] == 2


@scenario()
async def test_rounds_of_the_keeper_and_what_it_could_not_look_after_are_counted(
    cluster: MemoryCluster, client: Client
) -> None:
    load, world = StreamLoad(), cluster.world
    async with StreamStore(client) as streams:
        told = iter([0, 3, MetadataUnavailable("not all streams are known")])

        async def keep() -> int:
            found = next(told, 0)
            if isinstance(found, int):
                return found
            raise found

        streams.keep = keep  # type: ignore[method-assign]
        keeping = asyncio.ensure_future(keep_for_ever(streams, world.clock, world.rng.fork("keeper"), 10, load))
        await world.clock.sleep(60)
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
    assert load.keeper_rounds >= 2
    assert load.keeper_failures == 4


@scenario()
async def test_what_is_kept_of_open_segments_for_those_who_follow_them_is_told(
    cluster: MemoryCluster, client: Client
) -> None:
    load = StreamLoad()
    async with StreamStore(client) as streams:
        streams.count_in(load)
        await streams.create("s")
        async with await streams.writer("s") as writer:
            await writer.append(b"first")
            readers = [streams.reader("s").batches() for _ in range(2)]
            async with aclosing(readers[0]), aclosing(readers[1]):
                for reader in readers:
                    await anext(reader)
                asked = [asyncio.ensure_future(anext(reader)) for reader in readers]
                await cluster.world.clock.sleep(1)
                assert (load.tails, load.tail_followers) == (1, 2)
                before = load.tail_bytes
                await writer.append(bytes(1000))
                await asyncio.gather(*asked)
                assert load.tail_bytes - before >= 1000
            await cluster.world.clock.sleep(1)
            assert (load.tails, load.tail_followers, load.tail_bytes) == (0, 0, 0)


@scenario()
async def test_what_is_not_kept_any_more_of_an_open_segment_is_not_told_either(
    cluster: MemoryCluster, client: Client
) -> None:
    load = StreamLoad()
    async with StreamStore(client) as streams:
        streams.count_in(load)
        await streams.create("s")
        async with await streams.writer("s") as writer:
            await writer.append(b"first")
            async with aclosing(streams.reader("s").batches()) as reader:
                await anext(reader)
                most = 0
                for _ in range(3 * KEPT_BYTES // MIB):
                    reading = asyncio.ensure_future(anext(reader))
                    await cluster.world.clock.sleep(1)
                    await writer.append(bytes(MIB // 2))
                    await reading
                    most = max(most, load.tail_bytes)
                assert 0 < most <= KEPT_BYTES
                assert load.tail_bytes > KEPT_BYTES - MIB
