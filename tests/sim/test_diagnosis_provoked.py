"""Each bottleneck, provoked with production code of bookie and client, is named by the diagnosis.

Disk and network are simulated, and slow where a test needs that. The bookie's metrics are read as by Prometheus.
Bottlenecks of other stores, and refusals of gateways, are provoked on real ones:
tests/integration/test_diagnosis_on_real_stores.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from tallybook.bookie.rpc.service import BookieService
from tallybook.cli.metric_catalogs import ALL_CATALOGS
from tallybook.client.connection.pool import BookieConnections
from tallybook.client.load import METRICS as CONNECTION_METRICS
from tallybook.client.stats import CLIENT_METRICS
from tallybook.core.answers import AddAnswer
from tallybook.core.errors import DiskFull
from tallybook.core.limits import KIB, MIB
from tallybook.core.settings import AdmissionSettings, BookieSettings, ClientSettings, StorageSettings
from tallybook.metadata.store import BookieInfo
from tallybook.repair.diagnosis.bookie import BUSY, MAINLY, QUEUED_WRITES
from tallybook.repair.diagnosis.causes import Cause
from tallybook.repair.diagnosis.samples import Point, Sample
from tallybook.repair.diagnosis.verdict import Diagnosis, diagnose
from tallybook.runtime.metrics.registry import MetricInfo, StatsCollector
from tallybook.runtime.tasks import Tasks
from tallybook.sim.deterministic import SimDisk, SimNet, World, run_seed
from tallybook.sim.stage.disk_bookie import DiskBookie, batch_of, tiny_settings

from ..verdicts import named

ALWAYS = 10**9
JOURNAL_BUSY = "of the time the busiest device writes a journal"
WARM_UP_SECONDS, WATCHED_SECONDS = 2.0, 5.0
RETRY_SECONDS = 0.05


def shown(name: str, at: float, catalog: Sequence[MetricInfo], readings: Any) -> Sample:
    """Present metrics of a process."""
    families = StatsCollector(catalog, lambda: readings).collect()
    points = [Point(each.name, frozenset(each.labels.items()), each.value) for f in families for each in f.samples]
    return Sample(name, at, points)


class Watched:
    """One bookie with a configurable slow disk, its load, and its diagnosis.

    A second bookie, ``b0``, gets no requests and must never be named.
    """

    def __init__(self, world: World, settings: BookieSettings | None = None, disk: SimDisk | None = None) -> None:
        self.world = world
        self.disk = disk or SimDisk(world.rng)
        self.node = DiskBookie(self.disk, world.clock, settings=settings)
        self.other = DiskBookie(SimDisk(world.rng.fork("other disk")), world.clock)
        self.tasks = Tasks("load", lambda name, error: None)

    def samples(self) -> dict[str, Sample]:
        """Present metrics of all bookies."""
        now, nodes = self.world.clock.monotonic(), {"b0": self.other, "b1": self.node}
        readings = {name: {**node.bookie.readings(), "streams": 3} for name, node in nodes.items()}
        return {name: shown(name, now, ALL_CATALOGS["A bookie"], each) for name, each in readings.items()}

    async def diagnosis(self) -> Diagnosis:
        await self.world.clock.sleep(WARM_UP_SECONDS)
        before = self.samples()
        await self.world.clock.sleep(WATCHED_SECONDS)
        return diagnose(before, self.samples())

    def add(self, writers: int, *, size: int = 1000, pause_seconds: float = 0.0, entries: int = ALWAYS) -> None:
        """Run writers that add one batch after the other, each to its own ledger."""
        for ledger_id in range(1, writers + 1):
            self.tasks.spawn(self._write(ledger_id, size, pause_seconds, entries), name=f"writer {ledger_id}")

    async def _write(self, ledger_id: int, size: int, pause_seconds: float, entries: int) -> None:
        number = 0
        while number < entries:
            answered: asyncio.Future[AddAnswer] = asyncio.get_running_loop().create_future()
            batch = batch_of(number, ledger_id=ledger_id, payload=bytes(size))
            # It may come when the test is over.
            self.node.bookie.add(batch, b"", lambda answer, to=answered: to.done() or to.set_result(answer))
            answer = await answered
            number += not answer.code
            # Simulated time passes only while a task waits.
            await self.world.clock.sleep(RETRY_SECONDS if answer.code else pause_seconds or 0.0001)

    def read(self, ledger_ids: range, entries: int) -> None:
        """Run a random reader for each ledger."""
        for ledger_id in ledger_ids:
            self.tasks.spawn(self._read(ledger_id, entries), name=f"reader {ledger_id}")

    async def _read(self, ledger_id: int, entries: int) -> None:
        number = 0
        while True:
            number = (number + 7) % entries
            await self.node.bookie.read_batches(ledger_id, number, number, 1)
            await self.world.clock.sleep(0.0001)


@asynccontextmanager
async def watched(world: World, settings: BookieSettings | None = None) -> AsyncIterator[Watched]:
    one = Watched(world, settings)
    await one.node.boot()
    await one.other.boot()
    try:
        yield one
    finally:
        await one.tasks.close()
        one.disk.faults.clear()
        await one.node.stop(clean=False)
        await one.other.stop(clean=False)


def verdict_of(play: Callable[[World], Awaitable[Diagnosis]]) -> Diagnosis:
    return run_seed(1, play, deadline_seconds=3600).value


def test_a_device_that_takes_long_for_a_sync_is_named():
    async def play(world: World) -> Diagnosis:
        async with watched(world) as one:
            one.disk.fail("write", "/journal/segment", times=ALWAYS, error=None, delay_seconds=0.03)
            one.add(4, size=200)
            return await one.diagnosis()

    told = named(verdict_of(play), Cause.DEVICE, "b1", JOURNAL_BUSY, "a durable write")
    assert told["a durable write"].value == pytest.approx(0.03, rel=0.1)


def test_a_journal_that_gets_more_than_its_device_writes_is_named():
    async def play(world: World) -> Diagnosis:
        settings = tiny_settings(segment_bytes=8 * MIB, write_cache_bytes=12 * MIB)
        async with watched(world, settings) as one:
            # A commit takes 16 KiB, so that the batches of eighty writers wait for many.
            one.disk.fail("write", "/journal/segment", times=ALWAYS, error=None, delay_seconds=0.005)
            one.add(80, size=4_000)
            return await one.diagnosis()

    told = named(verdict_of(play), Cause.JOURNAL, "b1", JOURNAL_BUSY)
    assert told["a durable write"].value == pytest.approx(0.005, rel=0.1)
    assert told["a group commit, waiting included"].value >= QUEUED_WRITES * told["a durable write"].value


OF_LOGS, OF_INDEX = "of the time entry logs were written", "of the time the index was written"


@pytest.mark.parametrize(
    ("operation", "path", "delay_seconds", "cause", "slow", "fast"),
    [
        ("write", "entrylog-", 0.4, Cause.FLUSH, OF_LOGS, OF_INDEX),
        ("sync", "entrylog-", 0.4, Cause.FLUSH, OF_LOGS, OF_INDEX),
        ("sync", "/index/changes.log", 0.5, Cause.INDEX, OF_INDEX, OF_LOGS),
    ],
)
def test_entry_logs_or_an_index_written_too_slowly_are_named(operation, path, delay_seconds, cause, slow, fast):
    async def play(world: World) -> Diagnosis:
        async with watched(world) as one:
            one.disk.fail(operation, path, times=ALWAYS, error=None, delay_seconds=delay_seconds)
            one.add(8, size=2_000)
            return await one.diagnosis()

    told = named(verdict_of(play), cause, "b1", "of the time adds waited for space")
    assert told[slow].value > MAINLY
    assert told[fast].value < 1 - MAINLY


def with_small_caches(**sizes: Any) -> BookieSettings:
    """Disable read cache and read-ahead."""
    settings = tiny_settings(**sizes)
    storage = settings.storage.model_dump() | {"read_cache_bytes": 0, "read_ahead_bytes": 0}
    return settings.model_copy(update={"storage": StorageSettings(**storage)})


async def filled(one: Watched, ledgers: int, entries: int) -> None:
    for ledger_id in range(1, ledgers + 1):
        for number in range(entries):
            while (await one.node.add(batch_of(number, ledger_id=ledger_id, payload=bytes(500)))).code:
                await one.world.clock.sleep(RETRY_SECONDS)
    await one.node.bookie.flush()


def test_reads_that_wait_for_the_disk_are_named():
    async def play(world: World) -> Diagnosis:
        async with watched(world, with_small_caches()) as one:
            await filled(one, 4, 40)
            one.disk.fail("read", "entrylog-", times=ALWAYS, error=None, delay_seconds=0.02)
            one.read(range(1, 5), 40)
            return await one.diagnosis()

    told = named(verdict_of(play), Cause.READS, "b1", "of the time entry logs were read")
    assert told["a read from an entry log"].value == pytest.approx(0.02, rel=0.1)
    assert told["batches from entry logs"].value > 1 > told["batches from memory"].value


def test_a_full_disk_is_named():
    async def play(world: World) -> Diagnosis:
        async with watched(world) as one:
            one.disk.fail("write", "entrylog-", times=ALWAYS, error=DiskFull)
            one.add(8, size=2_000)
            return await one.diagnosis()

    named(verdict_of(play), Cause.DISK_FULL, "b1", "of the time a checkpoint waited for space")


def test_more_than_is_let_in_is_named():
    async def play(world: World) -> Diagnosis:
        settings = tiny_settings(admission=AdmissionSettings(max_inflight_bytes=4 * KIB))
        async with watched(world, settings) as one:
            one.disk.fail("write", "/journal/segment", times=ALWAYS, error=None, delay_seconds=0.002)
            # All at once, and then none for a while: the device has time enough.
            one.add(60, size=1_000, pause_seconds=0.5)
            return await one.diagnosis()

    named(verdict_of(play), Cause.OVERLOADED, "b1", "of requests refused", "refused: bytes in flight")


def test_a_bookie_with_little_to_do_waits_for_its_clients():
    async def play(world: World) -> Diagnosis:
        async with watched(world) as one:
            one.disk.fail("write", "/journal/segment", times=ALWAYS, error=None, delay_seconds=0.001)
            one.add(2, size=100, pause_seconds=0.05)
            return await one.diagnosis()

    told = named(verdict_of(play), Cause.CLIENTS, "", "batches added")
    assert 0 < told[JOURNAL_BUSY].value < BUSY


@pytest.mark.parametrize(("delay_seconds", "cause"), [(0.02, Cause.NETWORK), (0.0002, Cause.CLIENTS)])
def test_a_network_that_takes_longer_than_the_bookies_is_named(delay_seconds: float, cause: Cause):
    async def play(world: World) -> Diagnosis:
        async with watched(world) as one:
            one.disk.fail("write", "/journal/segment", times=ALWAYS, error=None, delay_seconds=0.001)
            net = SimNet(world.rng.fork("net"))
            service = BookieService(one.node.bookie, one.node.settings, world.clock, one.tasks, "", pytest.fail)
            listener = await net.transport("b1").listen("b1:1", service.accept)
            for way in (("client", "b1"), ("b1", "client")):
                net.set_delay(*way, (delay_seconds, delay_seconds))

            async def bookies() -> dict[str, BookieInfo]:
                return {"b1": BookieInfo("b1", listener.address, one.node.bookie.incarnation)}

            members: Any = SimpleNamespace(bookies=bookies)
            pool = BookieConnections(net.transport("client"), members, ClientSettings(), world.clock, one.tasks)
            connection = await pool.get("b1")

            async def write() -> None:
                for number in range(ALWAYS):
                    answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
                    connection.add(batch_of(number), b"", answered.set_result)
                    await answered
                    await world.clock.sleep(0.01)

            one.tasks.spawn(write(), name="write")
            await world.clock.sleep(WARM_UP_SECONDS)
            look = partial(shown, "g1", catalog=CLIENT_METRICS)
            before = {
                **one.samples(),
                "g1": look(at=world.clock.monotonic(), readings=CONNECTION_METRICS.readings(pool.load)),
            }
            await world.clock.sleep(WATCHED_SECONDS)
            after = {
                **one.samples(),
                "g1": look(at=world.clock.monotonic(), readings=CONNECTION_METRICS.readings(pool.load)),
            }
            await pool.close()
            net.kill("b1")
            return diagnose(before, after)

    found = verdict_of(play)
    if cause is Cause.CLIENTS:
        named(found, cause, "", "batches added")
        return
    told = named(found, cause, "g1", "an add in the network, both ways")
    assert told["an add in the network, both ways"].value == pytest.approx(2 * delay_seconds, rel=0.2)


def test_every_add_and_every_write_is_in_a_histogram():
    async def play(world: World) -> tuple[dict[str, float], Any]:
        async with watched(world) as one:
            one.disk.fail("write", "/journal/segment", times=ALWAYS, error=None, delay_seconds=0.003)
            for number in range(20):
                assert (await one.node.add(batch_of(number))).code == 0
            await one.node.bookie.flush()
            return one.node.bookie.stats(), one.node.bookie.readings()

    stats, readings = run_seed(1, play, deadline_seconds=3600).value
    assert readings["add_seconds"].count == stats["adds_batches_total"] == 20
    assert readings["journal_commit_seconds"].count == stats["journal_commits_total"]
    assert readings["journal_write_seconds"].count >= 20
    assert readings["journal_write_seconds"].sum == pytest.approx(stats["journal_device_seconds_0"])
    # Each add waits for a write at least.
    assert readings["add_seconds"].sum >= 20 * 0.003
    assert readings["stage_append_seconds"].count == stats["checkpoints_total"] == 1
