"""A bookie and a connection to it, over each transport: the rig of the bookie contract.

A test that asks for ``rig`` (any bookie) or ``memory_rig`` (an in-memory one, whose answers can be held back) runs once
per way: in one process without a wire, over the simulated network, over gRPC on loopback. The first two run on virtual
time. ``MAKERS`` lists the kinds of bookie.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from tallybook.bookie.ledgers.confirmed_prefix import ConfirmedPrefix
from tallybook.bookie.ledgers.key_verification import LedgerFacts
from tallybook.bookie.port import LedgerStore
from tallybook.bookie.process.boot import boot
from tallybook.bookie.process.world import BookieWorld
from tallybook.bookie.rpc.service import BookieService
from tallybook.bookie.storage.index.port import Index
from tallybook.bookie.storage.index.rocksdb import RocksIndex
from tallybook.client.connection.connection import open_bookie
from tallybook.client.connection.port import BookieConnection
from tallybook.client.load import ClientLoad
from tallybook.core.answers import AddAnswer
from tallybook.core.batch import encode_batch
from tallybook.core.errors import NoSuchLedger
from tallybook.core.keys import key_verifier
from tallybook.core.limits import MIB
from tallybook.core.settings import BookieSettings, ClientSettings, JournalSettings, StorageSettings
from tallybook.runtime.clock import Clock, RealClock
from tallybook.runtime.disk.os_disk import RealDisk
from tallybook.runtime.rng import Rng, SystemRng
from tallybook.runtime.tasks import InlineWorkers, Tasks, ThreadWorkers
from tallybook.runtime.transport import Transport
from tallybook.sim.deterministic import SimDisk, SimNet, World, run_seed
from tallybook.sim.memory_bookie.bookie import MemoryBookie
from tallybook.sim.memory_bookie.index import MemoryIndex
from tallybook.sim.stage.disk_bookie import KnownMetadata
from tallybook.wire.bookie_transport import bookie_transport

from ..support.direct_connections import DirectConnection

KEY = b"k" * 32
VERIFIERS = {1: key_verifier(KEY), 2: key_verifier(b"l" * 32), 3: b"", 4: b"", 5: b""}
"""The ledgers that exist. 3 has no password."""

REQUEST_SECONDS = 1.0
DEADLINE_SECONDS = 30.0
SETTINGS = ClientSettings(request_timeout_ms=int(REQUEST_SECONDS * 1000))


SETTLED = {
    1: ConfirmedPrefix(99, closed=True),
    2: ConfirmedPrefix(9, closed=False),
    3: ConfirmedPrefix(-1, closed=False),
}
"""Ledger states: 1 is closed, 2 is open and in its second fragment, 3 is open."""


async def confirmed_prefix_of(ledger_id: int) -> ConfirmedPrefix:
    if ledger_id not in SETTLED:
        raise NoSuchLedger(f"no ledger {ledger_id}")
    return SETTLED[ledger_id]


IDENTITIES = {4: b"identity of four", 5: b"identity of five"}


async def facts_of(ledger_id: int) -> LedgerFacts | None:
    verifier = VERIFIERS.get(ledger_id)
    return None if verifier is None else LedgerFacts(verifier, IDENTITIES.get(ledger_id, b""))


@dataclass
class Place:
    """The environment of a bookie under test."""

    clock: Clock
    tasks: Tasks
    rng: Rng
    simulated: bool


Maker = Callable[[Place], AbstractAsyncContextManager[LedgerStore]]


@asynccontextmanager
async def memory_bookie(place: Place) -> AsyncIterator[MemoryBookie]:
    yield MemoryBookie(
        "b1", facts_of=facts_of, confirmed_prefix_of=confirmed_prefix_of, clock=place.clock, tasks=place.tasks
    )


@asynccontextmanager
async def disk_bookie(place: Place) -> AsyncIterator[LedgerStore]:
    """The bookie of production: on a simulated disk with an index in memory, or on this machine's."""
    with TemporaryDirectory() as root:
        settings = BookieSettings(
            bookie_id="b1", data_directory=root, metadata="memory:",
            journal=JournalSettings(segment_bytes=4 * MIB, segment_count=3),
            storage=StorageSettings(write_cache_bytes=8 * MIB, min_free_bytes=0),
        )  # fmt: skip
        disk = SimDisk(place.rng.fork("disk")) if place.simulated else RealDisk()
        workers = InlineWorkers() if place.simulated else ThreadWorkers(2, "workers")

        async def open_index(directory: str, *, create: bool) -> Index:
            if place.simulated:
                return await MemoryIndex.open(disk, directory, create=create)
            return await RocksIndex.open(disk, directory, workers, settings.storage, create=create)

        failures: list[str] = []
        bookie = await boot(
            settings,
            BookieWorld(
                disk=disk, clock=place.clock, rng=place.rng, tasks=place.tasks, workers=workers,
                open_index=open_index,
                facts_of=facts_of, disposition_of=KnownMetadata().disposition_of,
                id_counter=KnownMetadata().read_id_counter,
                confirmed_prefix_of=confirmed_prefix_of, registry=KnownMetadata(),
                fail_safe=failures.append,
            ),
        )  # fmt: skip
        yield bookie
        await bookie.close()
        await workers.close()
        if isinstance(disk, RealDisk):
            await disk.close()
        assert not failures


MAKERS: dict[str, Maker] = {"memory": memory_bookie, "disk": disk_bookie}


@dataclass
class Rig:
    """The fixture of a contract test."""

    bookie: Any
    connection: BookieConnection
    clock: Clock
    tasks: Tasks
    cut: Callable[[], Awaitable[None]]
    """Break the connection under the client's feet."""
    answers: list[AddAnswer] = field(default_factory=list)
    """Every answer to ``add``, in the order of arrival."""

    def add(
        self, batch: bytes, key: bytes = KEY, *, deferred: bool = False, identity: bytes = b""
    ) -> "asyncio.Future[AddAnswer]":
        """Send an add; a second answer to it fails the run."""
        answered: asyncio.Future[AddAnswer] = asyncio.get_running_loop().create_future()

        def on_answer(answer: AddAnswer) -> None:
            self.answers.append(answer)
            answered.set_result(answer)

        self.connection.add(batch, key, on_answer, deferred=deferred, identity=identity)
        return answered

    def background(self, work: Awaitable[Any]) -> "asyncio.Task[Any]":
        """Start a call."""
        return asyncio.ensure_future(work)

    async def settle(self) -> None:
        """Give calls in flight the time to arrive and, where possible, to be answered."""
        await self.clock.sleep(0.05)

    @staticmethod
    def batch(
        first: int, count: int = 1, *, ledger_id: int = 1, lac: int | None = None, text: bytes = b"entry"
    ) -> bytes:
        """A batch whose bytes follow from its arguments."""
        payloads = [text + b" %d" % entry_id for entry_id in range(first, first + count)]
        known = first - 1 if lac is None else lac
        return encode_batch(ledger_id, first, payloads, lac=known, ledger_length=10**9, written_at_us=17)


Play = Callable[[Rig], Awaitable[None]]
Reach = Callable[[LedgerStore, Place, World | None], AbstractAsyncContextManager[tuple[BookieConnection, Any]]]


@asynccontextmanager
async def directly(
    bookie: LedgerStore, place: Place, world: World | None
) -> AsyncIterator[tuple[BookieConnection, Any]]:
    """In one process, with a delay each way."""
    connection = DirectConnection(
        bookie, clock=place.clock, tasks=place.tasks, delay=lambda: 0.001, request_timeout_seconds=REQUEST_SECONDS
    )

    async def cut() -> None:
        connection.cut()

    yield connection, cut
    connection.cut()


@asynccontextmanager
async def served(
    bookie: LedgerStore, place: Place, here: Transport, there: Transport
) -> AsyncIterator[tuple[BookieConnection, Any]]:
    """Behind the service, over a transport."""
    settings = BookieSettings(data_directory="/nowhere", metadata="memory:")
    service = BookieService(bookie, settings, place.clock, place.tasks, "cluster", pytest.fail)
    listener = await there.listen("127.0.0.1:0", service.accept)
    connection = await open_bookie(
        here, listener.address, bookie_id="b1", expected=bookie.incarnation, settings=SETTINGS, tasks=place.tasks,
        cluster_id="cluster", client_id="contract", load=ClientLoad(RealClock()),
    )  # fmt: skip

    async def cut() -> None:
        await listener.close(0.0)

    yield connection, cut
    await connection.close()
    await listener.close(0.0)
    assert service.stream_count == 0


def over_simnet(bookie: LedgerStore, place: Place, world: World | None) -> AbstractAsyncContextManager[Any]:
    net = SimNet(place.rng.fork("net"))
    return served(bookie, place, net.transport("client"), net.transport("bookie"))


def over_grpc(bookie: LedgerStore, place: Place, world: World | None) -> AbstractAsyncContextManager[Any]:
    transport = bookie_transport()
    return served(bookie, place, transport, transport)


@dataclass(frozen=True)
class Way:
    """A kind of bookie, and how it is reached."""

    name: str
    maker: Maker
    reach: Reach
    simulated: bool

    def play(self, play: Play, run: Callable[[Any], Any]) -> None:
        """Run a test to its end."""
        if self.simulated:
            run_seed(1, lambda world: self._play(play, world.clock, world.rng, world), deadline_seconds=600)
        else:
            run(asyncio.wait_for(self._play(play, RealClock(), SystemRng(), None), DEADLINE_SECONDS))

    async def _play(self, play: Play, clock: Clock, rng: Rng, world: World | None) -> None:
        fatal: list[str] = []
        tasks = Tasks("rig", lambda name, error: fatal.append(f"{name}: {error!r}"))
        place = Place(clock, tasks, rng, self.simulated)
        async with self.maker(place) as bookie, self.reach(bookie, place, world) as (connection, cut):
            await play(Rig(bookie, connection, clock, tasks, cut))
        await tasks.close()
        assert not fatal


REACHES: dict[str, tuple[Reach, bool]] = {
    "direct": (directly, True),
    "simnet": (over_simnet, True),
    "grpc": (over_grpc, False),
}


def ways(makers: dict[str, Maker]) -> list[Any]:
    found = [
        Way(f"{kind}-{how}", maker, reach, simulated)
        for kind, maker in makers.items()
        for how, (reach, simulated) in REACHES.items()
    ]
    return [pytest.param(way, id=way.name) for way in found]


@pytest.fixture(params=ways(MAKERS))
def rig(request: pytest.FixtureRequest) -> Way:
    """Any bookie. The test receives a ``Rig``."""
    return request.param


@pytest.fixture(params=ways({"memory": memory_bookie}))
def memory_rig(request: pytest.FixtureRequest) -> Way:
    """An in-memory bookie. The test receives a ``Rig``."""
    return request.param


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run tests of the bookie contract on the loop of their way."""
    for name in ("rig", "memory_rig"):
        way = pyfuncitem.funcargs.get(name)
        if isinstance(way, Way):
            run = pyfuncitem._request.getfixturevalue("run")
            others = {key: pyfuncitem.funcargs[key] for key in pyfuncitem._fixtureinfo.argnames if key != name}
            way.play(lambda made: pyfuncitem.obj(**{name: made}, **others), run)  # noqa: B023
            return True
    return None
