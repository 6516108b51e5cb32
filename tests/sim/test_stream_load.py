"""Stream failures without a writer are counted."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from unittest.mock import patch

import pytest

from tallybook.client.client import Client
from tallybook.core.errors import MetadataUnavailable
from tallybook.core.limits import MIB
from tallybook.stream import Start, StreamStore, run_janitor
from tallybook.stream.info import LagSweep
from tallybook.stream.load import StreamLoad
from tallybook.stream.reader.tails import KEPT_BYTES
from tallybook.stream.records.dedup import DedupMemory
from tallybook.stream.sessions import LEASE_SECONDS, RENEWALS
from tallybook.stream.subscription import lag

from ..simulated import scenario
from ..support.memory_cluster import MemoryCluster
from .parts import one_stream


@scenario()
async def test_renewals_of_a_session_that_fail_are_counted(cluster: MemoryCluster, client: Client) -> None:
    load = StreamLoad()
    async with StreamStore(client, load=load) as streams:
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
async def test_the_former_calls_for_counters_and_ids_still_work_and_warn(
    cluster: MemoryCluster, client: Client
) -> None:
    load, ids = StreamLoad(), DedupMemory(10_000)
    async with StreamStore(client) as streams:
        with pytest.warns(DeprecationWarning, match="count_in"):
            streams.count_in(load)
        with pytest.warns(DeprecationWarning, match="bound_ids"):
            streams.bound_ids(ids)
        await streams.create("s")
        async with await streams.writer("s") as writer:
            await writer.append(b"first", dedup_id=b"1")
            assert (load.taken, load.segments) == (1, 1)
            assert ids.taken_bytes > 0


@scenario()
async def test_janitor_passes_and_streams_that_failed_are_counted(cluster: MemoryCluster, client: Client) -> None:
    load, world = StreamLoad(), cluster.world
    async with StreamStore(client) as streams:
        told = iter([0, 3, MetadataUnavailable("not all streams are known")])

        async def keep() -> int:
            found = next(told, 0)
            if isinstance(found, int):
                return found
            raise found

        streams.keep = keep  # type: ignore[method-assign]
        keeping = asyncio.ensure_future(run_janitor(streams, world.clock, world.rng.fork("keeper"), 10, load))
        await world.clock.sleep(60)
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
    assert load.janitor_rounds >= 2
    assert load.janitor_failures == 4


@scenario()
async def test_memory_kept_of_open_segments_for_their_followers_is_reported(
    cluster: MemoryCluster, client: Client
) -> None:
    load = StreamLoad()
    async with StreamStore(client, load=load) as streams:
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
async def test_records_of_an_open_segment_that_are_not_kept_are_not_reported_either(
    cluster: MemoryCluster, client: Client
) -> None:
    load = StreamLoad()
    async with StreamStore(client, load=load) as streams:
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


@scenario()
async def test_the_leading_janitor_reports_the_lag_of_subscriptions(cluster: MemoryCluster, client: Client) -> None:
    load, world = StreamLoad(), cluster.world
    async with StreamStore(client, namespace="prod") as streams:
        await streams.create_namespace()
        await streams.create("orders/eu", roll_bytes=4096)
        async with await streams.writer("orders/eu") as writer:
            first = await writer.append(bytes(1000))
            await writer.append_many([bytes(1000)] * 9)
            await writer.commit()
            async with await streams.subscribe("orders/eu", "billing") as billing:
                await billing.advance(first)
            async with await streams.subscribe("orders/eu", "audit", start=Start.latest()):
                pass
            await world.clock.sleep(100)
            keeping = asyncio.ensure_future(run_janitor(streams, world.clock, world.rng.fork("keeper"), 10, load))
            await world.clock.sleep(30)
            series = load.lag_series()
            keys = {("prod", "orders/eu", name) for name in ("audit", "billing")}
            assert all(set(values) == keys for values in series.values())
            billing_lag = {name: values["prod", "orders/eu", "billing"] for name, values in series.items()}
            assert billing_lag["lag_records"] == 9
            assert 9_000 <= billing_lag["lag_bytes"] < 12_000
            assert 100 <= billing_lag["lag_seconds"] < 140
            assert {values["prod", "orders/eu", "audit"] for values in series.values()} == {0}
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
    assert load.lags == LagSweep(), "the next leader reports them"


@scenario()
async def test_more_subscriptions_than_series_count_as_unmeasured(cluster: MemoryCluster, client: Client) -> None:
    async with one_stream(client) as streams:
        async with await streams.writer("s") as writer:
            await writer.append(b"x")
            await writer.commit()
        for number in range(5):
            async with await streams.subscribe("s", f"sub-{number}"):
                pass
        with patch.object(lag, "MAX_SUBSCRIPTIONS", 3):
            sweep = await streams.sweep_lags()
        assert len(sweep.lags) == 3
        assert sweep.unmeasured == 2
        assert {found.records for found in sweep.lags.values()} == {1}
