"""A small cluster in one process, from one seed: real clients and in-memory bookies.

    def scenario(world): ...
        cluster = MemoryCluster(world, bookies=3)
        async with cluster.client() as client:
            ledger = await client.create_ledger()

Clients run production code; bookies, metadata store and the wire between them are simulated.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TypeAlias

from tallybook.bookie.ledgers.confirmed_prefix import confirmed_prefix_of
from tallybook.bookie.ledgers.key_verification import LedgerFacts, facts_of
from tallybook.client.client import Client
from tallybook.client.ports import ClientWorld, LedgerArchive
from tallybook.core.add_kind import AddKind
from tallybook.core.answers import Incarnation
from tallybook.core.batch import decode_header
from tallybook.core.errors import InvariantViolation
from tallybook.core.settings import ClientSettings
from tallybook.metadata.ledger.model import LedgerMetadata
from tallybook.metadata.ledger_update import Transition
from tallybook.metadata.memory import MemoryMetadata
from tallybook.metadata.store import BookieInfo, BookieMode, MetadataStore, Ok
from tallybook.runtime.clock import Clock
from tallybook.runtime.tasks import Tasks
from tallybook.sim.deterministic import World
from tallybook.sim.memory_bookie.bookie import MemoryBookie

from .direct_connections import DirectConnections

SeenThrough: TypeAlias = Callable[[MetadataStore], MetadataStore]

MAX_DELAY_SECONDS = 0.002


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
        self._connections: list[DirectConnections] = []
        self.bookies: dict[str, MemoryBookie] = {}
        for index in range(bookies):
            self.add(f"bookie-{index}")

    async def start(self) -> None:
        """Register every bookie."""
        for name in self.bookies:
            await self.register(name)

    def add(self, name: str) -> MemoryBookie:
        """Add a bookie, which is not in the metadata store until ``register``."""
        bookie = MemoryBookie(
            name,
            facts_of=self._facts_of,
            clock=self.world.clock,
            tasks=self._tasks,
            confirmed_prefix_of=partial(confirmed_prefix_of, self._admin.store),
        )
        self.bookies[name] = bookie
        return bookie

    async def register(self, name: str) -> None:
        """Register a bookie with its present incarnation."""
        incarnation: Incarnation = self.bookies[name].incarnation
        await self._admin.membership.register(BookieInfo(name, f"sim:{name}", incarnation))

    async def make_read_only(self, name: str) -> None:
        """Make a registered bookie read-only, also in its registration."""
        self.bookies[name].read_only = True
        registration = self.metadata.bookies[name]
        await registration.update(replace(registration.info, mode=BookieMode.READ_ONLY))

    def die(self, name: str) -> MemoryBookie:
        """Kill a bookie, expire its registration and break all connections to it."""
        self.bookies[name].kill()
        self.metadata.expire(name)
        for connections in self._connections:
            connections.lost(name)
        return self.bookies[name]

    def client(
        self,
        settings: ClientSettings | None = None,
        *,
        seen_through: SeenThrough | None = None,
        archive: LedgerArchive | None = None,
        clock: Clock | None = None,
    ) -> Client:
        """A new client with its own connections.

        Args:
            seen_through: wraps the metadata store of this client, to make it misbehave.
            archive: from which it reads archived ledgers.
            clock: its own clock instead of that of the world.
        """
        self._clients += 1
        clock = clock or self.world.clock
        shared = self.metadata.client()
        store = seen_through(shared.store) if seen_through else shared.store
        connections = DirectConnections(
            self.bookies,
            clock=clock,
            tasks=self._tasks,
            delay=self._delay,
            alive=lambda name: self.bookies[name].alive,
            rng=self.world.rng.fork(f"connections-{self._clients}"),
        )
        self._connections.append(connections)
        rng = self.world.rng.fork(f"client-{self._clients}")
        return Client(ClientWorld(store, shared.membership, connections, clock, rng, archive), settings)

    async def edit(self, ledger_id: int, change: Transition) -> None:
        """Change a ledger's metadata, as another client would."""
        store = self._admin.store
        current = await store.read_ledger(ledger_id, linearizable=True)
        if not isinstance(await store.update_ledger(change(current.value), current.version), Ok):
            raise InvariantViolation(f"the metadata of ledger {ledger_id} changed meanwhile")

    def copy_ledger(self, ledger_id: int, source: str, target: str) -> None:
        """Copy the durable batches of a ledger from one bookie to another, as a repair would."""
        for batch in self.bookies[source].durable_batches(ledger_id).values():
            self.bookies[target].add(batch, b"", lambda _answer: None, kind=AddKind.RECOVERY)

    def under_replicated(self, metadata: LedgerMetadata, copies: int | None = None) -> list[int]:
        """Entries of a closed ledger with fewer than ``copies`` durable copies at the bookies of its metadata.

        The default is the ack quorum.
        """
        enough = copies or metadata.quorum.ack_quorum
        return [
            entry_id
            for entry_id in range(metadata.last_entry_id + 1)
            if sum(self._holds(name, metadata.ledger_id, entry_id) for name in metadata.bookies_of(entry_id)) < enough
        ]

    def _holds(self, name: str, ledger_id: int, entry_id: int) -> bool:
        batches = self.bookies[name].durable_batches(ledger_id)
        return any(first <= entry_id <= decode_header(batch).last_entry_id for first, batch in batches.items())

    async def stop(self) -> None:
        """Stop the background work of the bookies."""
        await self._tasks.close()
        await self._admin.close()

    def _delay(self) -> float:
        return self._delays.random() * MAX_DELAY_SECONDS

    async def _facts_of(self, ledger_id: int) -> LedgerFacts | None:
        return await facts_of(self._admin.store, ledger_id)

    def _died(self, name: str, error: BaseException) -> None:
        raise InvariantViolation(f"task {name} of a simulated bookie died: {error!r}") from error
