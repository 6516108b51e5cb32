"""The CLI writes lines to a stream and prints its records, in virtual time: budgets, failures and reports."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager

import pytest

from tallybook.cli.lines.feed import LineFeeder
from tallybook.cli.lines.ledger_read import Output
from tallybook.cli.lines.stream_append import StreamFeeder, release_stream_writer
from tallybook.cli.lines.stream_read import GapReporter, copy_records, records_as_lines
from tallybook.client.client import Client
from tallybook.core.errors import EntryTooLarge, NoSuchStream, StreamFenced
from tallybook.core.settings import ClientSettings
from tallybook.runtime.tasks import InlineWorkers
from tallybook.stream import Position, Start, StreamStore

from ..simulated import scenario
from ..support.ledger_scenario import eventually, lines
from ..support.memory_cluster import MemoryCluster
from .parts import one_stream

# A budget that one piece of input exceeds, so that feeding has to wait for space.
TIGHT = ClientSettings(max_batch_bytes=1024, max_in_flight_batches=4, max_pending_bytes=16 * 1024, add_timeout_ms=2000)


class Watch:
    """Records its calls."""

    def __init__(self) -> None:
        self.entries: list[int] = []

    def update(self, entries: int, size: int, seconds: float) -> None:
        self.entries.append(entries)

    def end(self) -> None:
        pass


async def silent(*pieces: list[bytes]):
    """Some input without an end."""
    for piece in pieces:
        yield piece
    await asyncio.Event().wait()


async def whole(pieces: list[list[bytes]]):
    """Input that ends."""
    for piece in pieces:
        yield piece


@asynccontextmanager
async def writing(
    cluster: MemoryCluster, client: Client
) -> AsyncIterator[tuple[StreamStore, Callable[[], LineFeeder]]]:
    """A stream store with a stream ``s``, and a factory of feeders."""
    async with one_stream(client) as streams:
        writer = await streams.writer("s")
        yield streams, lambda **options: StreamFeeder(writer, cluster.world.clock, Watch(), **options)
        await release_stream_writer(writer)


async def payloads(streams: StreamStore) -> list[bytes]:
    return [record.payload async for record in streams.reader("s", follow=False)]


@scenario()
async def test_more_than_the_budget_is_fed_in_order_and_every_position_is_reported(
    cluster: MemoryCluster, client: Client
) -> None:
    told: list[Position] = []

    async def tell(positions: list[Position]) -> None:
        told.extend(positions)

    async with cluster.client(TIGHT) as tight, writing(cluster, tight) as (streams, feeder_with):
        feeder = feeder_with(on_confirmed=tell, window_bytes=20_000)
        await feeder.feed(whole([lines(700, start) for start in range(0, 2_800, 700)]))
        assert (feeder.entries, feeder.size_bytes) == (2_800, sum(map(len, lines(2_800))))
        assert feeder.last_position == told[-1]
        await feeder._writer.commit()
        assert [record.position async for record in streams.reader("s", follow=False)] == told
        assert await payloads(streams) == lines(2_800)


@scenario()
async def test_positions_are_reported_while_the_input_is_silent(cluster: MemoryCluster, client: Client) -> None:
    told: list[Position] = []

    async def tell(positions: list[Position]) -> None:
        told.extend(positions)

    async with writing(cluster, client) as (_, feeder_with):
        feeding = asyncio.ensure_future(feeder_with(on_confirmed=tell).feed(silent([b"a", b"b"])))
        await eventually(lambda: len(told) == 2, cluster, 5)
        feeding.cancel()
        with pytest.raises(asyncio.CancelledError):
            await feeding


@scenario()
async def test_a_feeder_notices_a_takeover_without_further_lines(cluster: MemoryCluster, client: Client) -> None:
    async with cluster.client() as other, StreamStore(other) as others, writing(cluster, client) as (_, feeder_with):
        taken = asyncio.Event()

        async def source():
            yield lines(10)
            await taken.wait()
            yield [b"lost"]
            await asyncio.Event().wait()

        feeder = feeder_with()
        feeding = asyncio.ensure_future(feeder.feed(source()))
        await eventually(lambda: feeder.entries == 10, cluster, 5)
        async with await others.writer("s"):
            taken.set()
            with pytest.raises(StreamFenced):
                await feeding
        assert feeder.entries == 10
        assert await payloads(others) == lines(10)


@scenario()
async def test_a_line_too_long_ends_it_and_those_before_it_are_counted(cluster: MemoryCluster, client: Client) -> None:
    async with writing(cluster, client) as (streams, feeder_with):
        feeder = feeder_with()
        with pytest.raises(EntryTooLarge):
            await feeder.feed(whole([[b"a", b"b", bytes(2 << 20), b"c"]]))
        assert feeder.entries == 2
        async with aclosing(streams.reader("s").batches()) as batches:
            assert [record.payload for record in await anext(batches)] == [b"a", b"b"]


@scenario()
async def test_cancelled_while_bookies_are_down_it_counts_confirmed_records_and_soon_ends(
    cluster: MemoryCluster, client: Client
) -> None:
    async with writing(cluster, client) as (_, feeder_with):
        clock = cluster.world.clock
        feeder = feeder_with()

        async def source():
            yield lines(100)
            await eventually(lambda: feeder.entries == 100, cluster, 5)
            for name in ("bookie-0", "bookie-1"):
                cluster.bookies[name].kill()
            yield lines(100, 100)
            await asyncio.Event().wait()

        feeding = asyncio.ensure_future(feeder.feed(source()))
        await clock.sleep(1)
        feeding.cancel()
        before = clock.monotonic()
        with pytest.raises(asyncio.CancelledError):
            await feeding
        assert clock.monotonic() - before < 2
        assert feeder.entries == 100


@scenario()
async def test_records_that_were_read_are_printed_before_an_error(cluster: MemoryCluster, client: Client) -> None:
    reading, out = os.pipe()
    async with one_stream(client) as streams:
        async with await streams.writer("s") as writer:
            await writer.append_many(lines(10))
        output = Output(records_as_lines, out, InlineWorkers())
        pieces = streams.reader("s", start=Start.sequence(4)).batches()
        gaps = GapReporter("s", as_json=False)
        copying = asyncio.ensure_future(copy_records(pieces, output, gaps, cluster.world.clock))
        await cluster.world.clock.sleep(2)
        await streams.delete("s")
        with pytest.raises(NoSuchStream):
            await copying
    os.close(out)
    with os.fdopen(reading, "rb") as pipe:
        assert pipe.read() == b"".join(line + b"\n" for line in lines(6, 4))
