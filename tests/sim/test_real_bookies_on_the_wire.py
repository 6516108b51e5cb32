"""Clusters of real bookies with their wire, in the situations of docs/project/lessons.md, on a few seeds each."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial

import pytest

from tallybook.client.writer.handle import LedgerWriter
from tallybook.core.errors import BookieUnavailable, LedgerClosed, LedgerFenced, MetadataUnavailable, RecoveryFailed
from tallybook.core.limits import MIB
from tallybook.metadata.ledger.model import LedgerState
from tallybook.runtime.rng import SeededRng
from tallybook.sim.checks.budgets import check_budgets
from tallybook.sim.configuration.run_configuration import draw_configuration
from tallybook.sim.deterministic import World
from tallybook.sim.run import Universe
from tallybook.sim.workload.ledgers import ClientProcess

from ..simulated import Parts, on_stage
from ..support.cancellation import each_cut
from ..support.ledger_scenario import lines, read_all
from .parts import serving_universe

CALM = replace(
    draw_configuration(SeededRng("calm")),
    bookies=3,
    faults=(),
    net_delay_ms=1.0,
    disk_ms=0.2,
    batch_bytes=512,
    in_flight=4,
    pending_bytes=64 * 1024,
    write_cache_bytes=32 * 1024,
    segment_bytes=64 * 1024,
    window_bytes=16 * 1024,
    add_timeout_ms=10_000,
    request_timeout_ms=1_000,
    keepalive_seconds=10.0,
    session_seconds=6.0,
)
"""A small cluster with tiny limits, where nothing goes wrong by itself."""

TAILERS = 50
FAR_SECONDS = (0.05, 0.1)
HOSTS = tuple(f"b{number}" for number in range(3))


class Cluster:
    """Bookies, and clients in their own processes, observed by the oracle of the simulation."""

    def __init__(self, universe: Universe) -> None:
        self.universe = universe
        self.world = universe.world
        self.net = universe.env.net
        self.nodes = universe.nodes
        self.oracle = universe.oracle

    @asynccontextmanager
    async def clients(self, *names: str) -> AsyncIterator[list[ClientProcess]]:
        async with AsyncExitStack() as stack:
            yield [await stack.enter_async_context(self.universe.workload.extra_client(name)) for name in names]

    async def written(self, count: int) -> tuple[LedgerWriter, ClientProcess]:
        """An abandoned ledger with so many confirmed entries."""
        writer = self.universe.workload._process("writer")
        ledger = await writer.client.create_ledger()
        await ledger.append_many(lines(count))
        self.oracle.confirmed(ledger.id, count - 1)
        return ledger, writer


@asynccontextmanager
async def serving_cluster(world: World) -> AsyncIterator[Parts]:
    async with serving_universe(world, CALM) as universe:
        yield {"cluster": Cluster(universe)}


on_a_cluster = partial(on_stage, serving_cluster, deadline_seconds=600)


# -- C21: slow consumers, many tailers, stalls ---------------------------------------------------


@on_a_cluster()
async def test_c21_untaken_reads_and_many_tailers_neither_fill_a_bookie_nor_hold_up_a_writer(cluster: Cluster) -> None:
    """Sixty concurrent reads of a client that takes no answers: a bookie serves only as many as a stream may buffer.

    Each reserves memory for the largest batch, 0.5 MiB; sixty would need four times the limit of a stream.
    """
    clock, nodes = cluster.world.clock, cluster.nodes.values()
    most = {"answer bytes": 0, "add seconds": 0.0}

    async def watch() -> None:
        while True:
            most["answer bytes"] = max(most["answer bytes"], *(node.service.answer_bytes for node in nodes))
            check_budgets(cluster.universe, tasks_per_process=4 * TAILERS)
            await clock.sleep(0.002)

    async with cluster.clients("writer", "stuck", "tailers") as (writing, stuck, tailing):
        old = await writing.client.create_ledger()
        await old.append_many([bytes(600)] * 20)
        await old.close()
        ledger = await writing.client.create_ledger()
        tails = [await tailing.client.open_ledger(ledger.id, recover=False) for _ in range(TAILERS)]
        following = [asyncio.ensure_future(_drain(tail.tail())) for tail in tails]
        reader = await stuck.client.open_ledger(old.id)
        await _drain(reader.read(0, 19))
        watching = asyncio.ensure_future(watch())
        for host in HOSTS:
            cluster.net.cut(host, stuck.name)
        reads = [asyncio.ensure_future(_drain(reader.read(0, 19))) for _ in range(60)]
        for line in lines(30):
            before = clock.monotonic()
            await ledger.append(line)
            most["add seconds"] = max(most["add seconds"], clock.monotonic() - before)
        await ledger.close()
        assert await asyncio.gather(*following) == [lines(30)] * TAILERS
        cluster.net.heal_all()
        assert [len(entries) for entries in await asyncio.gather(*reads)] == [20] * 60
        watching.cancel()
    assert 4 * MIB < most["answer bytes"] <= 9 * MIB, "the room of one stream is used, and kept within"
    assert most["add seconds"] < 0.05, "an append waited for a reader"


@pytest.mark.parametrize("who", ["a bookie", "all bookies", "the writer", "a reader"])
@on_a_cluster()
async def test_c21_a_stall_of_five_seconds_fences_no_writer(cluster: Cluster, *, who: str) -> None:
    async with cluster.clients("writer", "reader") as (writing, reading):
        ledger = await writing.client.create_ledger()
        tail = await reading.client.open_ledger(ledger.id, recover=False)
        following = reading.process.spawn(_drain(tail.tail()))
        pending = [ledger.append_nowait(line) for line in lines(20)]
        bookies = [node.process for node in cluster.nodes.values()]
        stalled = {
            "a bookie": bookies[:1],
            "all bookies": bookies,
            "the writer": [writing.process],
            "a reader": [reading.process],
        }[who]
        await cluster.world.clock.sleep(0.002)
        for process in stalled:
            process.freeze()
        await cluster.world.clock.sleep(5.0)
        for process in stalled:
            process.thaw()
        pending += [ledger.append_nowait(line) for line in lines(20, start=20)]
        assert [await append for append in pending] == list(range(40))
        metadata = await reading.client.ledger_metadata(ledger.id)
        assert metadata.state is LedgerState.OPEN
        assert (len(metadata.fragments), metadata.missed) == (1, ())
        assert (await ledger.close()).last_entry_id == 39
        assert await following == lines(40)


# -- C31 and C32: recoveries ---------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_c31_recoveries_of_one_ledger_at_once_over_the_wire_all_come_to_the_same_end(seed: int) -> None:
    async def scene(cluster: Cluster) -> None:
        ledger, writer = await cluster.written(30)
        late = [ledger.append_nowait(line) for line in lines(10, start=30)]
        async with cluster.clients(*(f"recoverer-{number}" for number in range(6))) as clients:
            readers = await asyncio.gather(*(each.client.open_ledger(ledger.id) for each in clients))
            ends = {(reader.metadata.last_entry_id, reader.metadata.length) for reader in readers}
            assert len(ends) == 1
            (end,) = ends
            told = [number for number in await asyncio.gather(*late, return_exceptions=True) if isinstance(number, int)]
            assert end[0] >= max([29, *told])
            for each in clients:
                assert await read_all(each.client, ledger.id) == lines(end[0] + 1)
            with pytest.raises((LedgerFenced, LedgerClosed)):
                await ledger.append(b"late")
        writer.process.kill()

    on_a_cluster(seed=seed)(scene)()


@pytest.mark.parametrize("seed", range(4))
def test_c32_bookies_cut_off_one_by_one_and_let_in_in_another_order_leave_one_end_and_nothing_lost(seed: int) -> None:
    """Clog links at all moments of a recovery that is retried until it succeeds."""

    async def scene(cluster: Cluster) -> None:
        count = 200
        ledger, writer = await cluster.written(count)
        async with cluster.clients("one", "other", "reader") as (one, other, reader):
            for each in (one, other):
                for host in HOSTS:
                    cluster.net.set_delay(each.name, host, FAR_SECONDS)
                    cluster.net.set_delay(host, each.name, FAR_SECONDS)
            recovering = [asyncio.ensure_future(_recovered(cluster, each, ledger.id)) for each in (one, other)]
            rng = cluster.world.rng.fork("swizzle")
            while cluster.universe.metadata.value(ledger.id).state is LedgerState.OPEN:
                await cluster.world.clock.sleep(0.001)
            await cluster.world.clock.sleep(0.2 * rng.random())
            everyone = {*HOSTS, *(each.name for each in (one, other, reader, writer))}
            for name in rng.shuffled(HOSTS):
                await cluster.world.clock.sleep(0.05 * rng.random())
                cluster.net.partition([name], everyone - {name})
            await cluster.world.clock.sleep(3.0)
            assert not any(recovery.done() for recovery in recovering), "no bookie can be reached"
            for name in rng.shuffled(HOSTS):
                for each in everyone - {name}:
                    cluster.net.heal(name, each)
                    cluster.net.heal(each, name)
                await cluster.world.clock.sleep(1.0 * rng.random())
            healed = cluster.world.clock.monotonic()
            ends = await asyncio.gather(*recovering)
            assert cluster.world.clock.monotonic() - healed < 10.0
            assert ends == [(count - 1, sum(map(len, lines(count))))] * 2
            assert await read_all(reader.client, ledger.id) == lines(count)
        writer.process.kill()

    on_a_cluster(seed=seed)(scene)()


async def _recovered(cluster: Cluster, client: ClientProcess, ledger_id: int) -> tuple[int, int]:
    while True:
        try:
            metadata = await client.client.recover_ledger(ledger_id)
        except (RecoveryFailed, BookieUnavailable, MetadataUnavailable):
            await cluster.world.clock.sleep(0.2)
        else:
            return metadata.last_entry_id, metadata.length


# -- requests that are given up ------------------------------------------------------------------


@pytest.mark.parametrize("request_", ["add", "read", "LAC", "wait for the LAC", "fence"])
@on_a_cluster()
async def test_a_request_that_is_cancelled_at_any_of_its_awaits_leaves_nothing_and_others_are_served(
    cluster: Cluster, *, request_: str
) -> None:
    async with cluster.clients("caller", "other") as (calling, other):
        old = await other.client.create_ledger()
        await old.append_many(lines(20))
        await old.close()
        ledger, theirs = await calling.client.create_ledger(), await other.client.create_ledger()
        await ledger.append(b"first")
        reader = await calling.client.open_ledger(old.id)
        host = old.metadata.last_fragment.bookies[0]
        connection = await calling.client.world.connections.get(host)
        await connection.read_lac(old.id)
        begin = {
            "add": lambda: ledger.append(b"more"),
            "read": lambda: _drain(reader.read(0, 19)),
            "LAC": lambda: connection.read_lac(old.id),
            "wait for the LAC": lambda: connection.wait_lac(theirs.id, 0, 50),
            "fence": lambda: connection.fence(old.id, b""),
        }[request_]
        await theirs.append(b"warm")
        await cluster.world.clock.sleep(1)
        before = len(cluster.world.loop.living_tasks())
        cuts = [at async for at in each_cut(begin)]
        assert len(cuts) >= 2, "it waits for something"
        assert await theirs.append(b"served") == 1
        await ledger.append(b"last")
        await cluster.world.clock.sleep(6)
        assert len(cluster.world.loop.living_tasks()) == before
        assert calling.client.stats()["client_pending_bytes"] == 0
        for lane in (connection._reads, connection._control):
            assert [each.in_use for each in (lane._requests, lane._waits, lane._recovery)] == [0, 0, 0]
            assert not lane._calls
        assert (connection._adds._unanswered_bytes, len(connection._adds._unanswered)) == (0, 0)
        for node in cluster.nodes.values():
            stats = node.bookie.stats()
            assert (stats["inflight_bytes"], stats["adds_waiting"], node.service.answer_bytes) == (0, 0, 0)
        # A cancelled append is not undone: its entry is there, complete.
        found = await read_all(other.client, ledger.id)
        assert (found[0], found[-1]) == (b"first", b"last")
        assert set(found[1:-1]) <= {b"more"}
        assert await read_all(calling.client, old.id) == lines(20)


async def _drain(entries: AsyncIterator) -> list[bytes]:
    return [entry.payload async for entry in entries]
