"""The CLI writes lines to a ledger and prints them, in virtual time: windows, errors and partial results."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from contextlib import nullcontext

import pytest

from tallybook.cli.lines.ledger_append import LedgerFeeder, make_visible, release_ledger_writer
from tallybook.cli.lines.ledger_read import copy_range, entries_as_lines, follow
from tallybook.client.client import Client
from tallybook.core.errors import EntryCorrupt, EntryTooLarge, LedgerFenced, ReadBeyondLac
from tallybook.core.settings import ClientSettings
from tallybook.runtime.tasks import InlineWorkers

from ..simulated import scenario
from ..support.memory_cluster import MemoryCluster

# A budget that one piece of input exceeds, so that feeding has to wait for space.
SMALL = ClientSettings(max_batch_bytes=1024, max_in_flight_batches=4, max_pending_bytes=16 * 1024, add_timeout_ms=2000)
LINES = [b"line %d" % number for number in range(3_000)]


class Watch:
    """Records its calls."""

    def __init__(self) -> None:
        self.entries: list[int] = []
        self.ended = False

    def update(self, entries: int, size: int, seconds: float) -> None:
        self.entries.append(entries)

    def end(self) -> None:
        self.ended = True


async def pieces(lines, size=700, fail: Exception | None = None):
    """Yield ``lines`` in pieces; raise ``fail`` at the end."""
    for start in range(0, len(lines), size):
        yield lines[start : start + size]
    if fail is not None:
        raise fail


fed = scenario(client_settings=SMALL)


async def all_of(client: Client, ledger_id: int) -> list[bytes]:
    """All entries, after a recovery."""
    reader = await client.open_ledger(ledger_id)
    return [entry.payload async for entry in reader.read(0, reader.last_add_confirmed)]


@fed
async def test_more_than_the_budget_holds_is_fed_in_order_and_all_is_confirmed(
    cluster: MemoryCluster, client: Client
) -> None:
    writer, watch = await client.create_ledger(), Watch()
    feeder = LedgerFeeder(writer, cluster.world.clock, watch, window_bytes=20_000)
    await feeder.feed(pieces(LINES))
    assert (feeder.entries, feeder.size_bytes) == (len(LINES), sum(map(len, LINES)))
    assert watch.ended
    assert watch.entries == sorted(watch.entries)
    took = feeder.seconds
    await cluster.world.clock.sleep(5)
    assert feeder.seconds == took > 0
    assert await all_of(client, writer.id) == LINES


@fed
async def test_the_window_bounds_entries_in_flight(cluster: MemoryCluster, client: Client) -> None:
    writer = await client.create_ledger()
    given = 0

    async def source():
        nonlocal given
        for number in range(0, len(LINES), 10):
            assert given - writer.length <= 3_000 + 10 * 20, "more input was taken than the window allows"
            piece = LINES[number : number + 10]
            given += sum(map(len, piece))
            yield piece

    await LedgerFeeder(writer, cluster.world.clock, Watch(), window_bytes=3_000).feed(source())


@fed
async def test_an_error_of_the_input_comes_after_everything_before_it_was_confirmed(
    cluster: MemoryCluster, client: Client
) -> None:
    writer, watch = await client.create_ledger(), Watch()
    feeder = LedgerFeeder(writer, cluster.world.clock, watch)
    with pytest.raises(OSError, match="torn"):
        await feeder.feed(pieces(LINES, fail=OSError("torn cable")))
    assert feeder.entries == len(LINES)
    assert watch.ended


@fed
async def test_an_entry_that_is_too_large_ends_it_and_the_ones_before_are_counted(
    cluster: MemoryCluster, client: Client
) -> None:
    writer = await client.create_ledger()
    feeder = LedgerFeeder(writer, cluster.world.clock, Watch())
    with pytest.raises(EntryTooLarge):
        await feeder.feed(pieces([b"a", b"b", bytes(2 << 20), b"c"]))
    assert feeder.entries == 2


@fed
async def test_a_fenced_writer_ends_it_with_the_confirmed_entries(cluster: MemoryCluster, client: Client) -> None:
    writer = await client.create_ledger()
    feeder = LedgerFeeder(writer, cluster.world.clock, Watch())
    ends: list[int] = []

    async def source():
        yield LINES[:100]
        await make_visible(client, writer, b"", cluster.world.clock)
        ends.append((await client.recover_ledger(writer.id)).last_entry_id + 1)
        yield LINES[100:]

    with pytest.raises(LedgerFenced):
        await feeder.feed(source())
    assert feeder.entries == ends[0] == 100


@fed
async def test_a_writer_that_is_fenced_ends_it_though_no_line_comes_any_more(
    cluster: MemoryCluster, client: Client
) -> None:
    writer = await client.create_ledger()
    feeder = LedgerFeeder(writer, cluster.world.clock, Watch())

    async def source():
        yield LINES[:100]
        await make_visible(client, writer, b"", cluster.world.clock)
        await client.recover_ledger(writer.id)
        yield LINES[100:101]
        await asyncio.Event().wait()

    with pytest.raises(LedgerFenced):
        await feeder.feed(source())
    assert feeder.entries == 100


@fed
async def test_cancelled_it_reports_confirmed_entries_soon_and_not_after_a_timeout(
    cluster: MemoryCluster, client: Client
) -> None:
    clock = cluster.world.clock
    writer = await client.create_ledger()
    feeder = LedgerFeeder(writer, clock, Watch())

    async def source():
        yield LINES[:500]
        for name in ("bookie-0", "bookie-1"):
            cluster.bookies[name].kill()
        yield LINES[500:600]
        await asyncio.Event().wait()

    feeding = asyncio.ensure_future(feeder.feed(source()))
    await clock.sleep(0.5)
    feeding.cancel()
    before = clock.monotonic()
    with pytest.raises(asyncio.CancelledError):
        await feeding
    assert clock.monotonic() - before < 1.5
    assert feeder.entries <= 500
    await release_ledger_writer(client, writer, b"", clock)
    assert clock.monotonic() - before < 8


@fed
async def test_leaving_an_open_ledger_waits_until_readers_see_all_of_it(cluster: MemoryCluster, client: Client) -> None:
    writer = await client.create_ledger()
    await LedgerFeeder(writer, cluster.world.clock, Watch()).feed(pieces(LINES))
    await release_ledger_writer(client, writer, b"", cluster.world.clock)
    reader = await client.open_ledger(writer.id, recover=False)
    assert reader.last_add_confirmed == len(LINES) - 1
    assert not reader.closed


def printed(body: Callable[[MemoryCluster, Client, int], Awaitable[None]]) -> bytes:
    """Output of ``body`` to the descriptor that it gets."""
    reading, writing = os.pipe()
    try:
        fed(lambda cluster, client: body(cluster, client, writing))()
        os.close(writing)
        with os.fdopen(reading, "rb", closefd=False) as pipe:
            return pipe.read()
    finally:
        os.close(reading)


async def filled(client: Client, lines: list[bytes]) -> int:
    """A closed ledger of ``lines``."""
    async with await client.create_ledger() as writer:
        await writer.append_many(lines)
    return writer.id


@pytest.mark.parametrize(
    ("first", "last", "expected"),
    [(None, None, range(200)), (5, None, range(5, 200)), (None, 5, range(6)), (7, 7, [7])],
)
def test_a_range_is_printed_with_both_its_ends(first, last, expected):
    async def body(cluster: MemoryCluster, client: Client, out: int) -> None:
        reader = await client.open_ledger(await filled(client, LINES[:200]))
        await copy_range(reader, first, last, entries_as_lines, out, InlineWorkers())

    assert printed(body) == b"".join(LINES[number] + b"\n" for number in expected)


def test_an_empty_ledger_prints_nothing_but_has_no_first_entry():
    async def body(cluster: MemoryCluster, client: Client, out: int) -> None:
        reader = await client.open_ledger(await filled(client, []))
        await copy_range(reader, None, None, entries_as_lines, out, InlineWorkers())
        with pytest.raises(ReadBeyondLac):
            await copy_range(reader, 0, None, entries_as_lines, out, InlineWorkers())

    assert printed(body) == b""


def test_good_entries_are_printed_before_the_error():
    class Breaking:
        """A reader of a ledger whose third batch no replica has."""

        id, last_add_confirmed = 7, 9

        async def read_batches(self, first, last):
            reader = self.good
            async for entries in reader.read_batches(0, 3):
                yield entries
            raise EntryCorrupt("rot")

    async def body(cluster: MemoryCluster, client: Client, out: int) -> None:
        breaking = Breaking()
        breaking.good = await client.open_ledger(await filled(client, LINES[:10]))
        with pytest.raises(EntryCorrupt):
            await copy_range(breaking, None, None, entries_as_lines, out, InlineWorkers())

    assert printed(body) == b"".join(line + b"\n" for line in LINES[:4])


def test_following_prints_each_entry_when_it_is_confirmed_and_ends_with_the_close():
    async def body(cluster: MemoryCluster, client: Client, out: int) -> None:
        writer = await client.create_ledger()
        reader = await client.open_ledger(writer.id, recover=False)
        following = asyncio.ensure_future(follow(reader, 1, entries_as_lines, out, InlineWorkers()))
        for line in LINES[:5]:
            await writer.append(line)
            await cluster.world.clock.sleep(1)
        await writer.close()
        await following

    assert printed(body) == b"".join(line + b"\n" for line in LINES[1:5])


@pytest.mark.parametrize(("first", "beyond"), [(4, False), (5, False), (6, True), (99, True)])
def test_following_a_closed_ledger_from_past_its_end_is_reported_but_not_from_right_behind_it(first, beyond):
    async def body(cluster: MemoryCluster, client: Client, out: int) -> None:
        reader = await client.open_ledger(await filled(client, LINES[:5]), recover=False)
        with pytest.raises(ReadBeyondLac) if beyond else nullcontext():
            await follow(reader, first, entries_as_lines, out, InlineWorkers())

    assert printed(body) == b"".join(line + b"\n" for line in LINES[first:5])
