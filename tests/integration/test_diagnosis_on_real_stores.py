"""Bottlenecks other than the disks of bookies, provoked on real stores, are named by the diagnosis.

The index in RocksDB, the metadata in SQLite, the archive in a directory and the gateway are those of production.
Wrappers at their ports make them slow, busy or unavailable. The metrics of every process are read over HTTP, as by
``tallybook cluster diagnose``.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import grpc.aio
import pytest

from tallybook.archive.objects.port import ObjectStore
from tallybook.archive.objects.retries import RetryingStore, RetryPolicy, RetrySettings
from tallybook.bookie.metrics import BOOKIE_METRICS
from tallybook.bookie.rpc.service import METRICS as SERVICE_METRICS
from tallybook.bookie.rpc.service import BookieService
from tallybook.bookie.storage.index.port import Index
from tallybook.bookie.storage.index.rocksdb import RocksIndex
from tallybook.client.client import Client
from tallybook.client.environment import open_world
from tallybook.core.limits import KIB
from tallybook.core.settings import BookieSettings, GatewaySettings, OffloadSettings, StorageSettings
from tallybook.gateway.server import serving
from tallybook.metadata.memory import MemoryMetadata
from tallybook.metadata.metered_store import MetadataLoad, MeteredStore
from tallybook.metadata.store import BookieInfo, MetadataStore
from tallybook.offload.open_archive import open_archive
from tallybook.offload.service import OffloadService
from tallybook.proto import ledger_pb2 as pb
from tallybook.proto import ledger_pb2_grpc
from tallybook.repair.diagnosis.bookie import MAINLY
from tallybook.repair.diagnosis.causes import Cause
from tallybook.repair.diagnosis.sampling import diagnose_cluster
from tallybook.repair.diagnosis.verdict import Diagnosis
from tallybook.runtime.clock import Clock, RealClock
from tallybook.runtime.disk.os_disk import RealDisk
from tallybook.runtime.http.health_server import serve_health
from tallybook.runtime.metrics.registry import Metrics
from tallybook.runtime.rng import SeededRng, SystemRng
from tallybook.runtime.tasks import Tasks, ThreadWorkers
from tallybook.sim.cluster import faulty_objects
from tallybook.sim.deterministic import SimDisk
from tallybook.sim.stage.disk_bookie import DiskBookie, batch_of, tiny_settings

from ..support import faulty_metadata
from ..support.fault_script import FaultScript
from ..support.waiting import until
from ..verdicts import named
from .grpc_codes import EXHAUSTED, begun

WATCHED_SECONDS = 2.0
MAX_LOOKS = 10
AGAIN_SECONDS = 0.05
"""Pause before a refused caller tries again: retries must not keep the processor busy."""


@asynccontextmanager
async def under_way(*work: Awaitable[Any]) -> AsyncIterator[None]:
    """Until the block is left."""
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        yield
        ended = [task for task in tasks if task.done()]
        assert not ended, ended
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@pytest.fixture(scope="module")
def cluster(cli, tmp_path_factory) -> Iterator[Any]:
    """One bookie, as a process, and its metadata."""
    with cli.up(tmp_path_factory.mktemp("diagnosis") / "cluster", bookies=1) as running:
        yield running
        assert running.stop() == 0


async def said_of(cluster: Any, process: str, cause: Cause) -> Diagnosis:
    """The diagnosis of a cluster with one process besides its bookie, once it names this cause."""
    async with Client(cluster.metadata) as client:
        return await diagnosed(cause, client.world, [process])


async def diagnosed(cause: Cause, world: Any, processes: list[str]) -> Diagnosis:
    """Diagnose until the verdict is ``cause``: on a busy machine, something else may be slow for a moment."""
    for _ in range(MAX_LOOKS):
        found = await diagnose_cluster(world, processes, WATCHED_SECONDS)
        if found.verdict is cause:
            break
    return found


# --- the archive ------------------------------------------------------------------------------------------------------

EAGER = OffloadSettings(own_object_bytes=KIB, interval_s=1, retry_s=1, concurrent_objects=10)
"""At any moment one of so many waits for the object store, also if computing ones wait for a processor."""
ENTRY_BYTES = 2 * KIB
"""Enough for an object of its own."""
LEDGERS = 30
REQUEST_SECONDS = 0.4
HURRIED = RetrySettings(first_pause=0.05, slowest_rate=4.0)


class SlowObjects(faulty_objects.FaultyObjectStore):
    """An object store that takes its time for every request."""

    def __init__(self, store: ObjectStore, clock: Clock) -> None:
        super().__init__(store, FaultScript([]), clock)
        self._pace = clock

    async def suffer(self, operation: str, key: str, call: Callable[[], Awaitable[Any]], **more: Any) -> Any:
        # What is written is on its way into an object, and the request is what ends that.
        if operation != "write":
            await self._pace.sleep(REQUEST_SECONDS)
        return await super().suffer(operation, key, call, **more)


class FewerPlease:
    """An object store that wants one request in two later."""

    def __init__(self) -> None:
        self._asked = 0

    def next(self, operation: str) -> faulty_objects.ObjectFault | None:
        if operation in ("write", "abort"):
            return None
        self._asked += 1
        return faulty_objects.ObjectFault.BUSY if self._asked % 2 else None


@asynccontextmanager
async def offloading(
    cluster: Any, directory: Path, through: Callable[[ObjectStore], ObjectStore]
) -> AsyncIterator[str]:
    """An offloader that is at it; the address of its metrics."""
    clock = RealClock()
    async with Client(cluster.metadata) as client, open_archive(client, f"file://{directory}") as archive:
        patience = RetryPolicy(clock, SystemRng(), HURRIED)
        store = RetryingStore(through(archive.store), patience)
        archive = replace(archive, store=store, encrypted_store=None)
        offloader = archive.offloader(client, EAGER)
        service = OffloadService(archive, offloader, EAGER, client=client)
        async with (
            serve_health(service.metrics(), "127.0.0.1:0", "", clock, archive.tasks) as address,
            under_way(service.lead()),
        ):
            await until(lambda: patience.meter.seconds.count)
            yield address


async def close_ledgers(cluster: Any) -> None:
    async def close_one(client: Client) -> None:
        async with await client.create_ledger(ensemble=1, write_quorum=1, ack_quorum=1) as writer:
            await writer.append(bytes(ENTRY_BYTES))

    async with Client(cluster.metadata) as client:
        await asyncio.gather(*(close_one(client) for _ in range(LEDGERS)))


async def test_a_slow_object_store_is_named_during_the_first_pass(cluster, tmp_path):
    await close_ledgers(cluster)
    async with offloading(cluster, tmp_path, lambda store: SlowObjects(store, RealClock())) as process:
        found = await said_of(cluster, process, Cause.ARCHIVE)
    told = named(found, Cause.ARCHIVE, process, "of the time a request was in progress")
    assert told["a request"].value >= REQUEST_SECONDS
    assert told["ledgers that wait"].value >= LEDGERS
    assert told["answers that asked for fewer requests"].value == told["requests that failed"].value == 0


async def test_an_object_store_that_wants_fewer_requests_is_named(cluster, tmp_path):
    await close_ledgers(cluster)
    busy = lambda store: faulty_objects.FaultyObjectStore(store, FewerPlease(), RealClock())  # noqa: E731
    async with offloading(cluster, tmp_path, busy) as process:
        found = await said_of(cluster, process, Cause.ARCHIVE)
    told = named(
        found, Cause.ARCHIVE, process, "answers that asked for fewer requests", "of all requests",
        "of the time requests waited because the store wanted fewer",
    )  # fmt: skip
    assert told["of all requests"].value == pytest.approx(0.5, abs=0.2)
    assert told["ledgers that wait"].value >= LEDGERS
    assert told["of the time a request was in progress"].value < MAINLY, "it answers at once"


# --- the gateway ------------------------------------------------------------------------------------------------------

STREAMS = 2
CLIENTS = 4
OPENING = pb.AppendRequest(open=pb.AppendOpen(create=pb.CreateRequest(ensemble=1)))


@asynccontextmanager
async def clients(call: Callable[[], Awaitable[Any]]) -> AsyncIterator[None]:
    """Have some make this call again and again. All come to their end: gRPC may keep a cancellation to itself."""
    over = False

    async def client() -> None:
        while not over:
            await call()
            await asyncio.sleep(AGAIN_SECONDS)

    calling = [asyncio.ensure_future(client()) for _ in range(CLIENTS)]
    try:
        yield
    finally:
        over = True
        await asyncio.gather(*calling)


async def test_a_gateway_that_is_asked_for_more_streams_than_it_may_have_is_named(cluster):
    settings = GatewaySettings(metadata=cluster.metadata, max_streams=STREAMS)
    refused = 0

    async def ask(stub: Any) -> None:
        nonlocal refused
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await (await begun(stub.Append, OPENING)).read()
        assert caught.value.code() is EXHAUSTED
        refused += 1

    async with (
        Client(cluster.metadata, settings.client) as client,
        serving(client, settings) as addresses,
        grpc.aio.insecure_channel(addresses.grpc) as channel,
    ):
        stub = ledger_pb2_grpc.LedgerServiceStub(channel)
        let_in = [await begun(stub.Append, OPENING) for _ in range(STREAMS)]
        for call in let_in:
            assert (await call.read()).HasField("opened")
        async with clients(partial(ask, stub)):
            await until(lambda: refused >= CLIENTS)
            found = await said_of(cluster, addresses.http, Cause.OVERLOADED)
        for call in let_in:
            call.cancel()
    why = "refused: calls for lack of space or credit"
    told = named(found, Cause.OVERLOADED, addresses.http, "of requests refused", why)
    assert told["of requests refused"].value == pytest.approx(1, abs=0.2), "no other calls come"


# --- the metadata -----------------------------------------------------------------------------------------------------

SLOW_SECONDS = 0.15


class TroubledMetadata(faulty_metadata.FaultyMetadataStore):
    """The metadata as one process has them: well, until ``trouble`` says otherwise."""

    def __init__(self, store: MetadataStore, clock: Clock) -> None:
        super().__init__(store, self, clock)
        self._pace = clock
        self._mended = asyncio.Event()
        self.trouble = ""
        self.met = 0
        """Operations that have met with it."""

    def next(self, _operation: str) -> faulty_metadata.MetadataFault | None:
        return faulty_metadata.MetadataFault.UNAVAILABLE if self.trouble == "away" else None

    async def _begin(self, operation: str) -> faulty_metadata.MetadataFault | None:
        self.met += bool(self.trouble)
        if self.trouble == "slow":
            await self._pace.sleep(SLOW_SECONDS)
        if self.trouble == "hanging":
            await self._mended.wait()
        return await super()._begin(operation)

    def mend(self) -> None:
        self.trouble = ""
        self._mended.set()


async def create_ledger(stub: Any) -> None:
    with suppress(grpc.aio.AioRpcError):
        await stub.Create(pb.CreateRequest(ensemble=1))


BEYOND = {
    "slow": ("a write",),
    "away": ("operations without an answer", "of all operations"),
    "hanging": ("of the time an operation was in progress",),
}


@pytest.mark.parametrize("trouble", BEYOND)
async def test_metadata_that_are_slow_away_or_hang_are_named_with_the_process_that_has_them_so(cluster, trouble):
    settings = GatewaySettings(metadata=cluster.metadata, keep_streams_s=0)
    world = await open_world(cluster.metadata, settings.client)
    load, metadata = MetadataLoad(world.clock), TroubledMetadata(world.store, world.clock)
    world = replace(world, store=MeteredStore(metadata, load), metadata_load=load)
    async with (
        Client(world, settings.client) as client,
        serving(client, settings) as addresses,
        grpc.aio.insecure_channel(addresses.grpc) as channel,
    ):
        stub = ledger_pb2_grpc.LedgerServiceStub(channel)
        await stub.Create(pb.CreateRequest(ensemble=1))
        metadata.trouble = trouble
        async with clients(partial(create_ledger, stub)):
            try:
                await until(lambda: metadata.met >= CLIENTS)
                found = await said_of(cluster, addresses.http, Cause.METADATA)
            finally:
                metadata.mend()
    told = named(found, Cause.METADATA, addresses.http, *BEYOND[trouble])
    if trouble == "slow":
        assert told["a write"].value >= SLOW_SECONDS
    assert (told["operations without an answer"].value > 0) == (trouble == "away")


# --- the index --------------------------------------------------------------------------------------------------------

LOOKUP_SECONDS = 0.03
SYNC_SECONDS = 0.5
ENTRIES = 40
IN_LEDGERS = range(1, 5)


class SlowIndex:
    """An index that takes longer for a question, or for a sync, than its disk does."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self.lookup_seconds = self.sync_seconds = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._index, name)

    async def find(self, ledger_id: int, entry_id: int) -> Any:
        await asyncio.sleep(self.lookup_seconds)
        return await self._index.find(ledger_id, entry_id)

    async def sync(self) -> None:
        await asyncio.sleep(self.sync_seconds)
        await self._index.sync()


class OnRocksDB(DiskBookie):
    """A bookie whose entries are on a disk in memory, which delays no request; its index is on this machine's disk."""

    def __init__(self, root: Path, disk: RealDisk, workers: ThreadWorkers) -> None:
        super().__init__(SimDisk(SeededRng(1)), RealClock(), settings=without_caches())
        self._root, self._real, self._workers = root, disk, workers
        self.index: SlowIndex | None = None

    async def _open_index(self, directory: str, *, create: bool) -> Index:
        place = str(self._root / Path(directory).name)
        await self._real.make_directory(place)
        rocks = await RocksIndex.open(self._real, place, self._workers, self.settings.storage, create=create)
        self.index = SlowIndex(rocks)
        return self.index


def without_caches() -> BookieSettings:
    """Nothing that is read stays in memory, and nothing is read ahead."""
    settings = tiny_settings()
    storage = settings.storage.model_dump() | {"read_cache_bytes": 0, "read_ahead_bytes": 0}
    return settings.model_copy(update={"storage": StorageSettings(**storage)})


@asynccontextmanager
async def on_rocksdb(root: Path) -> AsyncIterator[OnRocksDB]:
    disk, workers = RealDisk(), ThreadWorkers(2, "index")
    node = OnRocksDB(root, disk, workers)
    try:
        await node.boot()
        yield node
        await node.stop()
    finally:
        await workers.close()
        await disk.close()


async def said_of_bookie(node: OnRocksDB) -> Diagnosis:
    """The diagnosis of a cluster of this bookie alone."""
    clock, tasks, metrics = RealClock(), Tasks("bookie", pytest.fail), Metrics()
    service = BookieService(node.bookie, node.settings, clock, tasks, "", pytest.fail)
    metrics.add(BOOKIE_METRICS.catalog, node.bookie.readings)
    metrics.add(SERVICE_METRICS.catalog, service.readings)
    async with AsyncExitStack() as undo:
        undo.push_async_callback(tasks.close)
        metadata = await undo.enter_async_context(MemoryMetadata(SeededRng(2)).client())
        address = await undo.enter_async_context(serve_health(metrics, "127.0.0.1:0", "", clock, tasks))
        info = BookieInfo("b1", "127.0.0.1:1", node.bookie.incarnation, http_address=address)
        await metadata.membership.register(info)
        world: Any = SimpleNamespace(
            store=metadata.store, membership=metadata.membership, clock=clock, metadata_load=None
        )
        return await diagnosed(Cause.INDEX, world, [])


async def add(node: OnRocksDB, ledger_id: int, count: int, size: int) -> None:
    """Add entries one after the other; refused adds are retried."""
    number = 0
    while number < count:
        answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        # It may come when the test is over.
        settle = partial(lambda to, answer: to.done() or to.set_result(answer), answered)
        node.bookie.add(batch_of(number, ledger_id=ledger_id, payload=bytes(size)), b"", settle)
        if (await answered).code:
            await asyncio.sleep(AGAIN_SECONDS)
        else:
            number += 1


async def jump_about(node: OnRocksDB, ledger_id: int) -> None:
    number = 0
    while True:
        number = (number + 7) % ENTRIES
        await node.bookie.read_batches(ledger_id, number, number, 1)


async def test_an_index_that_takes_long_for_a_question_is_named(tmp_path):
    async with on_rocksdb(tmp_path) as node:
        for ledger_id in IN_LEDGERS:
            await add(node, ledger_id, ENTRIES, 500)
        await node.bookie.flush()
        assert node.index is not None
        node.index.lookup_seconds = LOOKUP_SECONDS
        async with under_way(*(jump_about(node, ledger_id) for ledger_id in IN_LEDGERS)):
            found = await said_of_bookie(node)
        node.index.lookup_seconds = 0
    told = named(found, Cause.INDEX, "b1", "of the time the index was read", "an index lookup")
    assert told["an index lookup"].value >= LOOKUP_SECONDS
    assert told["all questions together"].value > found.seconds > told["all reads from entry logs together"].value


async def test_an_index_that_is_written_more_slowly_than_adds_come_is_named(tmp_path):
    async with on_rocksdb(tmp_path) as node:
        assert node.index is not None
        node.index.sync_seconds = SYNC_SECONDS
        async with under_way(*(add(node, ledger_id, 10**9, 2_000) for ledger_id in range(1, 9))):
            found = await said_of_bookie(node)
        node.index.sync_seconds = 0
    told = named(found, Cause.INDEX, "b1", "of the time adds waited for space")
    assert told["of the time the index was written"].value > MAINLY
    assert told["of the time entry logs were written"].value < 1 - MAINLY
