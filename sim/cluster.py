"""A whole small cluster in one process and on one seed: real clients, in-memory bookies.

    def scenario(world): ...
        cluster = MemoryCluster(world, bookies=3)
        async with cluster.client() as client:
            ledger = await client.create_ledger()

Clients run the code that they run against real bookies; only the bookies, the metadata store
and the wire between them are simulated.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from tallybook.client.client import Client
from tallybook.client.ports import ClientWorld
from tallybook.core.answers import Incarnation
from tallybook.core.config import ClientSettings
from tallybook.core.errors import InvariantViolation, NoSuchLedger
from tallybook.metadata.memory import MemoryMetadata
from tallybook.metadata.store import BookieInfo, MetadataStore
from tallybook.runtime.deterministic import World
from tallybook.runtime.tasks import Tasks

from .direct import DirectConnections
from .memory_bookie import MemoryBookie

SeenThrough: TypeAlias = Callable[[MetadataStore], MetadataStore]

LONGEST_DELAY_SECONDS = 0.002


class MemoryCluster:
    """Bookies, metadata and wire of one simulated cluster.

    Args:
        world: the seed's loop, clock and randomness.
        bookies: how many bookies there are, named ``bookie-0`` and so on.
    """

    def __init__(self, world: World, *, bookies: int) -> None:
        self.world = world
        self.metadata = MemoryMetadata(world.rng.fork("metadata"))
        self._tasks = Tasks("cluster", self._died)
        self._admin = self.metadata.client()
        self._delays = world.rng.fork("delays")
        self._clients = 0
        self.bookies: dict[str, MemoryBookie] = {}
        for index in range(bookies):
            self.add(f"bookie-{index}")

    async def start(self) -> None:
        """Register every bookie."""
        for name in self.bookies:
            await self.register(name)

    def add(self, name: str) -> MemoryBookie:
        """One more bookie, which nobody knows of until ``register``."""
        bookie = MemoryBookie(name, verifier_of=self._verifier_of, clock=self.world.clock, tasks=self._tasks)
        self.bookies[name] = bookie
        return bookie

    async def register(self, name: str) -> None:
        """Let everybody know of a bookie, in the life it is in."""
        incarnation: Incarnation = self.bookies[name].incarnation
        await self._admin.membership.register(BookieInfo(name, f"sim:{name}", incarnation))

    def die(self, name: str) -> MemoryBookie:
        """Kill a bookie, and let everybody know at once."""
        self.bookies[name].kill()
        self.metadata.expire(name)
        return self.bookies[name]

    def client(self, settings: ClientSettings | None = None, *, seen_through: SeenThrough | None = None) -> Client:
        """One more client, with connections of its own.

        Args:
            seen_through: wraps the metadata store that this client gets, to make it misbehave.
        """
        self._clients += 1
        shared = self.metadata.client()
        store = seen_through(shared.store) if seen_through else shared.store
        connections = DirectConnections(
            self.bookies,
            clock=self.world.clock,
            tasks=self._tasks,
            delay=self._delay,
            alive=lambda name: self.bookies[name].alive,
        )
        rng = self.world.rng.fork(f"client-{self._clients}")
        return Client(ClientWorld(store, shared.membership, connections, self.world.clock, rng), settings)

    async def stop(self) -> None:
        """End the background work of the bookies."""
        await self._tasks.close()
        await self._admin.close()

    def _delay(self) -> float:
        return self._delays.random() * LONGEST_DELAY_SECONDS

    async def _verifier_of(self, ledger_id: int) -> bytes | None:
        try:
            return (await self._admin.store.read_ledger(ledger_id, linearizable=True)).value.key_verifier
        except NoSuchLedger:
            return None

    def _died(self, name: str, error: BaseException) -> None:
        raise InvariantViolation(f"task {name} of a simulated bookie died: {error!r}") from error
