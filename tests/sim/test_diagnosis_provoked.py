"""Each bottleneck made on purpose, with the code of a bookie and a client that runs in production: is it named?

The disk, the network, the metadata and the object store are simulated, and slow where a test wants them slow. The
bookie's own metrics are read as Prometheus would see them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from tallybook.archive.metrics import ARCHIVE_METRICS
from tallybook.archive.metrics import numbers as asked_of
from tallybook.archive.objects.patience import Patience
from tallybook.bookie.metrics import BOOKIE_METRICS
from tallybook.bookie.service import BookieService
from tallybook.bookie.storage.index_memory import MemoryIndex
from tallybook.client.connections import BookieConnections
from tallybook.client.metrics import CLIENT_METRICS
from tallybook.core.answers import AddAnswer
from tallybook.core.config import AdmissionSettings, BookieSettings, ClientSettings, StorageSettings
from tallybook.core.errors import ArchiveBusy, DiskFull, MetadataUnavailable
from tallybook.core.limits import KIB, MIB
from tallybook.metadata.client import MetadataClient
from tallybook.metadata.memory import MemoryMetadata
from tallybook.metadata.metered import METADATA_METRICS
from tallybook.metadata.store import BookieInfo
from tallybook.offload.metrics import OFFLOAD_METRICS, numbers
from tallybook.offload.offloader import Backlog, Totals
from tallybook.repair.diagnosis.causes import Cause
from tallybook.repair.diagnosis.samples import Point, Sample
from tallybook.repair.diagnosis.verdict import Diagnosis, diagnose
from tallybook.runtime.deterministic import SimDisk, SimNet, World, run_seed
from tallybook.runtime.meter import Reading
from tallybook.runtime.metrics import MetricInfo, StatsCollector
from tallybook.runtime.tasks import Tasks
from tallybook.sim.stage.disk_bookie import DiskBookie, batch_of, tiny_settings

ALWAYS = 10**9
WARM_UP_SECONDS, WATCHED_SECONDS = 2.0, 5.0
RETRY_SECONDS = 0.05


def shown(name: str, at: float, catalogue: tuple[MetricInfo, ...], readings: Any) -> Sample:
    """What a process would show now."""
    families = StatsCollector(catalogue, lambda: readings).collect()
    points = [Point(each.name, frozenset(each.labels.items()), each.value) for f in families for each in f.samples]
    return Sample(name, at, points)


class Watched:
    """One bookie on a disk that a test makes slow, its load, and what a diagnosis says of it."""

    def __init__(self, world: World, settings: BookieSettings | None = None, disk: SimDisk | None = None) -> None:
        self.world = world
        self.disk = disk or SimDisk(world.rng)
        self.node = DiskBookie(self.disk, world.clock, settings=settings)
        self.tasks = Tasks("load", lambda name, error: None)

    def sample(self) -> Sample:
        readings = {**self.node.bookie.readings(), "streams": 3}
        return shown("b1", self.world.clock.monotonic(), BOOKIE_METRICS, readings)

    async def diagnosis(self) -> Diagnosis:
        await self.world.clock.sleep(WARM_UP_SECONDS)
        before = self.sample()
        await self.world.clock.sleep(WATCHED_SECONDS)
        return diagnose({"b1": before}, {"b1": self.sample()})

    def add(self, writers: int, *, size: int = 1000, pause_seconds: float = 0.0, entries: int = ALWAYS) -> None:
        """Have writers, each with a ledger of its own, add one batch after the other."""
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
            # Time passes in a simulation only where somebody waits.
            await self.world.clock.sleep(RETRY_SECONDS if answer.code else pause_seconds or 0.0001)

    def read(self, ledger_ids: range, entries: int) -> None:
        """Have a reader for each of the ledgers, which jumps about in it."""
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
    try:
        yield one
    finally:
        await one.tasks.close()
        one.disk.faults.clear()
        await one.node.stop(clean=False)


def verdict_of(play: Callable[[World], Awaitable[Diagnosis]]) -> Diagnosis:
    return run_seed(1, play, deadline_seconds=3600).value


def test_a_device_that_takes_long_for_a_sync_is_named():
    async def play(world: World) -> Diagnosis:
        async with watched(world) as one:
            one.disk.fail("write", "/journal/segment", times=ALWAYS, error=None, delay_seconds=0.03)
            one.add(4, size=200)
            return await one.diagnosis()

    found = verdict_of(play)
    assert found.verdict is Cause.DEVICE, found
    told = {each.what: each.value for each in found.findings[0].evidence}
    assert told["a durable write"] == pytest.approx(0.03, rel=0.1)


def test_a_journal_that_gets_more_than_its_device_writes_is_named():
    async def play(world: World) -> Diagnosis:
        settings = tiny_settings(segment_bytes=8 * MIB, write_cache_bytes=12 * MIB)
        async with watched(world, settings) as one:
            # A commit takes 16 KiB, so that the batches of eighty writers wait for many.
            one.disk.fail("write", "/journal/segment", times=ALWAYS, error=None, delay_seconds=0.005)
            one.add(80, size=4_000)
            return await one.diagnosis()

    assert verdict_of(play).verdict is Cause.JOURNAL


@pytest.mark.parametrize("operation", ["write", "sync"])
def test_entry_logs_that_are_written_too_slowly_are_named(operation: str):
    async def play(world: World) -> Diagnosis:
        async with watched(world) as one:
            one.disk.fail(operation, "entrylog-", times=ALWAYS, error=None, delay_seconds=0.4)
            one.add(8, size=2_000)
            return await one.diagnosis()

    found = verdict_of(play)
    assert found.verdict is Cause.FLUSH, found
    assert any("waited for room" in each.what and each.value > 0 for each in found.findings[0].evidence)


def test_an_index_that_is_written_too_slowly_is_named():
    async def play(world: World) -> Diagnosis:
        async with watched(world) as one:
            one.disk.fail("sync", "/index/changes.log", times=ALWAYS, error=None, delay_seconds=0.5)
            one.add(8, size=2_000)
            return await one.diagnosis()

    assert verdict_of(play).verdict is Cause.INDEX


def with_small_caches(**sizes: Any) -> BookieSettings:
    """Nothing that is read stays in memory, and nothing is read ahead."""
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

    found = verdict_of(play)
    assert found.verdict is Cause.READS, found


def test_an_index_that_takes_long_for_a_question_is_named(monkeypatch):
    async def play(world: World) -> Diagnosis:
        find = MemoryIndex.find

        async def slowly(self: MemoryIndex, ledger_id: int, entry_id: int) -> Any:
            await world.clock.sleep(0.03)
            return await find(self, ledger_id, entry_id)

        async with watched(world, with_small_caches()) as one:
            await filled(one, 4, 40)
            monkeypatch.setattr(MemoryIndex, "find", slowly)
            one.read(range(1, 5), 40)
            return await one.diagnosis()

    assert verdict_of(play).verdict is Cause.INDEX


def test_a_full_disk_is_named_before_all_that_comes_of_it():
    async def play(world: World) -> Diagnosis:
        async with watched(world) as one:
            one.disk.fail("write", "entrylog-", times=ALWAYS, error=DiskFull)
            one.add(8, size=2_000)
            return await one.diagnosis()

    assert verdict_of(play).verdict is Cause.DISK_FULL


def test_more_than_is_let_in_is_named():
    async def play(world: World) -> Diagnosis:
        settings = tiny_settings(admission=AdmissionSettings(max_inflight_bytes=4 * KIB))
        async with watched(world, settings) as one:
            one.disk.fail("write", "/journal/segment", times=ALWAYS, error=None, delay_seconds=0.002)
            # All at once, and then none for a while: the device has time enough.
            one.add(60, size=1_000, pause_seconds=0.5)
            return await one.diagnosis()

    assert verdict_of(play).verdict is Cause.OVERLOADED


def test_a_bookie_with_little_to_do_waits_for_its_clients():
    async def play(world: World) -> Diagnosis:
        async with watched(world) as one:
            one.disk.fail("write", "/journal/segment", times=ALWAYS, error=None, delay_seconds=0.001)
            one.add(2, size=100, pause_seconds=0.05)
            return await one.diagnosis()

    assert verdict_of(play).verdict is Cause.CLIENTS


@pytest.mark.parametrize("trouble", ["slow", "away", "hanging"])
def test_metadata_that_are_slow_away_or_hang_are_named(trouble: str):
    async def play(world: World) -> Diagnosis:
        async def id_counter() -> int:
            if trouble == "away":
                raise MetadataUnavailable("nobody answers")
            await world.clock.sleep(0.2 if trouble == "slow" else 100)
            return 1

        plain = MemoryMetadata(world.rng).client()
        client = MetadataClient(SimpleNamespace(id_counter=id_counter), plain.membership).metered(world.clock)  # type: ignore[arg-type]
        assert client.load is not None
        tasks = Tasks("asking", lambda name, error: None)

        async def ask() -> None:
            while True:
                try:
                    await client.store.id_counter()
                except MetadataUnavailable:
                    await world.clock.sleep(0.5)

        tasks.spawn(ask(), name="ask")
        await world.clock.sleep(WARM_UP_SECONDS)
        look = partial(shown, "g1", catalogue=METADATA_METRICS)
        before = look(at=world.clock.monotonic(), readings=client.load.readings())
        await world.clock.sleep(WATCHED_SECONDS)
        after = look(at=world.clock.monotonic(), readings=client.load.readings())
        await tasks.close()
        return diagnose({"g1": before}, {"g1": after})

    assert verdict_of(play).verdict is Cause.METADATA


def test_an_object_store_that_wants_fewer_requests_is_named():
    async def play(world: World) -> Diagnosis:
        patience = Patience(world.clock, world.rng.fork("patience"))
        state = SimpleNamespace(totals=Totals(), backlog=Backlog(waiting_ledgers=7), streamed_bytes=0)
        tasks = Tasks("offloading", lambda name, error: None)
        asked = 0

        async def put() -> None:
            nonlocal asked
            asked += 1
            await world.clock.sleep(0.01)
            if asked % 3 == 0:
                raise ArchiveBusy("slow down")

        async def offload() -> None:
            while True:
                await patience.ask("put", put)

        tasks.spawn(offload(), name="offload")
        look = partial(shown, "o1", catalogue=(*OFFLOAD_METRICS, *ARCHIVE_METRICS))

        def readings() -> dict[str, Reading]:
            return {**numbers(state, leads=True), **asked_of(patience)}  # type: ignore[arg-type]

        before = look(at=world.clock.monotonic(), readings=readings())
        await world.clock.sleep(WATCHED_SECONDS)
        after = look(at=world.clock.monotonic(), readings=readings())
        await tasks.close()
        return diagnose({"o1": before}, {"o1": after})

    assert verdict_of(play).verdict is Cause.ARCHIVE


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
            look = partial(shown, "g1", catalogue=CLIENT_METRICS)
            before = {"b1": one.sample(), "g1": look(at=world.clock.monotonic(), readings=pool.load.readings())}
            await world.clock.sleep(WATCHED_SECONDS)
            after = {"b1": one.sample(), "g1": look(at=world.clock.monotonic(), readings=pool.load.readings())}
            await pool.close()
            net.kill("b1")
            return diagnose(before, after)

    assert verdict_of(play).verdict is cause


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
