"""What clients do during a run: writers, recoverers, readers, each in a process of its own.

Every actor has a *slot*. When the process in it dies, another one takes its place under a new
name. What the actors do and are told goes into the history; what they are told is also shown
to the god at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final, TypeAlias

from tallybook.client.background import client_tasks
from tallybook.client.client import Client
from tallybook.client.connections import BookieConnections
from tallybook.client.ports import ClientWorld
from tallybook.client.reader.handle import LedgerReader
from tallybook.client.writer.handle import LedgerWriter
from tallybook.client.writer.pending import PendingAppend
from tallybook.core.config import ClientSettings
from tallybook.core.errors import Busy, Outcome, TallybookError, is_defect
from tallybook.metadata.model import DigestType, LedgerMetadata
from tallybook.runtime.deterministic import SimClock
from tallybook.runtime.rng import Rng
from tallybook.runtime.tasks import Tasks

from .history import End, History, Operation, Reading
from .process import SimProcess, Surroundings
from .swarm import Swarm

CLOSE_ATTEMPTS: Final = 5
PASSWORD: Final = b"open sesame"


@dataclass(frozen=True, slots=True)
class MadeLedger:
    """A ledger that a writer has made."""

    ledger_id: int
    password: bytes


@dataclass(eq=False)
class ClientProcess:
    """A client in its process."""

    process: SimProcess
    client: Client
    rng: Rng

    @property
    def name(self) -> str:
        """Of the process."""
        return self.process.name


Actor: TypeAlias = Callable[[ClientProcess], Awaitable[None]]


class Workload:
    """All clients of a run.

    Args:
        history: where everything goes.
    """

    def __init__(self, swarm: Swarm, around: Surroundings, history: History, settings: ClientSettings) -> None:
        self.over = False
        """Whatever is open is to be brought to an end."""
        self.ledgers: list[MadeLedger] = []
        self.processes: dict[str, ClientProcess] = {}
        """The living process of each slot."""
        self._swarm = swarm
        self._around = around
        self._god = around.god
        self._history = history
        self._settings = settings
        self._clock = SimClock()
        self._rng = around.rng.fork("workload")
        self._tasks = Tasks("workload", self._died)
        self._slots: dict[str, asyncio.Task[None]] = {}

    def start(self) -> None:
        """Fill every slot."""
        swarm = self._swarm
        actors: list[tuple[str, int, Actor]] = [
            ("writer", swarm.writers, self._writer),
            ("recoverer", swarm.recoverers, self._recoverer),
            ("reader", swarm.readers, self._reader),
        ]
        for kind, count, actor in actors:
            for number in range(count):
                slot = f"{kind}-{number}"
                self._slots[slot] = self._tasks.spawn(self._fill(slot, actor), name=slot)

    def running(self, kind: str) -> list[str]:
        """Slots of this kind whose actor has not come to its end."""
        return [slot for slot, task in self._slots.items() if slot.startswith(kind) and not task.done()]

    async def close(self) -> None:
        """Kill what is left."""
        for client in self.processes.values():
            client.process.kill()
        await self._tasks.close()

    @asynccontextmanager
    async def guest(self, name: str) -> AsyncIterator[ClientProcess]:
        """A client of the run's own, in no process that anything happens to."""
        client = self._process(name)
        async with client.client:
            yield client

    def _died(self, name: str, error: BaseException) -> None:
        self._god.violated("simulation", f"{name}: {error!r}")

    async def _fill(self, slot: str, actor: Actor) -> None:
        lives = 0
        while not self.over:
            client = self.processes[slot] = self._process(f"{slot}.{lives}")
            lives += 1
            client.process.spawn(self._live(client, actor))
            await client.process.ended.wait()
            await self._clock.sleep(client.rng.random())
        self.processes.pop(slot, None)

    def _process(self, name: str) -> ClientProcess:
        around = self._around
        rng = self._rng.fork(name)
        process = SimProcess(name, around, SimClock(), rng)
        session = process.session
        connections = BookieConnections(
            process.transport,
            session.membership,
            self._settings,
            process.clock,
            client_tasks(f"{name} connections"),
            cluster_id=around.metadata.shared.cluster_id,
            client_id=name,
        )
        world = ClientWorld(session.store, session.membership, connections, process.clock, rng.fork("client"))
        return ClientProcess(process, Client(world, self._settings), rng)

    async def _live(self, client: ClientProcess, actor: Actor) -> None:
        try:
            async with client.client:
                while not self.over:
                    await actor(client)
        except TallybookError as error:
            if is_defect(error):
                raise
        except Exception as error:  # noqa: BLE001 - whatever a client raises but its declared errors is a defect
            self._god.violated("client", f"{client.name} met {error!r}")
        finally:
            client.process.kill()

    async def _pause(self, client: ClientProcess, mean_seconds: float) -> None:
        await self._clock.sleep(2 * mean_seconds * client.rng.random())

    # -- writers --------------------------------------------------------------------------

    async def _writer(self, client: ClientProcess) -> None:
        """One ledger: made, written, closed or left open."""
        swarm, rng = self._swarm, client.rng
        quorum = swarm.quorum(rng)
        password = PASSWORD if swarm.passwords or swarm.hmac else b""
        made = self._history.create(client.name)
        try:
            ledger = await client.client.create_ledger(
                ensemble=quorum.ensemble,
                write_quorum=quorum.write_quorum,
                ack_quorum=quorum.ack_quorum,
                stripe_entries=quorum.stripe_entries,
                password=password,
                digest=DigestType.HMAC_SHA256 if swarm.hmac else DigestType.CRC32C,
            )
        except TallybookError as error:
            self._failed(made, error)
            await self._pause(client, 0.5)
            return
        made.ledger_id = ledger.id
        made.ok()
        self.ledgers.append(MadeLedger(ledger.id, password))
        number = 0
        settling: asyncio.Task[None] | None = None
        for _ in range(rng.randint(1, swarm.ledger_bursts)):
            number, settling = self._burst(client, ledger, number, settling)
            await self._pause(client, swarm.think_seconds)
            if ledger.ended or self.over:
                break
        if self.over and not ledger.ended:
            _, settling = self._burst(client, ledger, number, settling)
            await asyncio.wait((settling,))
        if rng.random() < 0.8:
            await self._close(client, ledger)
        else:
            self._god.mark("writer: abandoned")
            ledger.abandon()

    def _burst(
        self, client: ClientProcess, ledger: LedgerWriter, number: int, settling: asyncio.Task[None] | None
    ) -> tuple[int, asyncio.Task[None]]:
        """Append some entries; they are settled in the background, after those before them."""
        sent: list[tuple[Operation, PendingAppend]] = []
        for _ in range(client.rng.randint(1, self._swarm.burst)):
            append, pending = self._append(client, ledger, number)
            number += 1
            if pending is not None:
                sent.append((append, pending))
        return number, client.process.spawn(self._settle(ledger, sent, settling))

    def _append(
        self, client: ClientProcess, ledger: LedgerWriter, number: int
    ) -> tuple[Operation, PendingAppend | None]:
        payload = b"%d/%d/" % (ledger.id, number)
        payload += b"." * client.rng.randint(0, self._swarm.entry_bytes)
        append = self._history.append(client.name, ledger.id, payload)
        try:
            return append, ledger.append_nowait(payload)
        except TallybookError as error:
            if isinstance(error, Busy):
                self._god.mark("writer: client budget used up")
            self._failed(append, error)
            return append, None

    async def _settle(
        self,
        ledger: LedgerWriter,
        sent: list[tuple[Operation, PendingAppend]],
        settling: asyncio.Task[None] | None,
    ) -> None:
        if settling is not None:
            # Of two tasks that wait for entries of one batch, the later one may be woken first.
            await asyncio.wait((settling,))
        for append, pending in sent:
            try:
                entry_id = await pending
            except TallybookError as error:
                self._failed(append, error)
            else:
                append.ok(entry_id=entry_id)
                self._god.confirmed(ledger.id, entry_id)

    async def _close(self, client: ClientProcess, ledger: LedgerWriter) -> None:
        for _ in range(CLOSE_ATTEMPTS):
            close = self._history.close(client.name, ledger.id)
            try:
                close.ok(end=_end(await ledger.close()))
            except TallybookError as error:
                self._failed(close, error)
                if not error.retriable and error.outcome is not Outcome.UNKNOWN:
                    break
                await self._pause(client, 0.3)
            else:
                return
        ledger.abandon()

    # -- recoverers and readers -----------------------------------------------------------

    async def _recoverer(self, client: ClientProcess) -> None:
        await self._pause(client, 1.5)
        made = self._some_ledger(client.rng)
        if made is not None:
            await self.recover(client, made)

    async def recover(self, client: ClientProcess, made: MadeLedger) -> bool:
        """Recover one ledger; whether its end is known now."""
        recover = self._history.recover(client.name, made.ledger_id)
        try:
            metadata = await client.client.recover_ledger(made.ledger_id, password=made.password)
        except TallybookError as error:
            self._failed(recover, error)
            self._god.mark(f"recovery: {type(error).__name__}")
            return False
        recover.ok(end=_end(metadata))
        return True

    async def _reader(self, client: ClientProcess) -> None:
        """Follow one ledger to its end, or for a while."""
        await self._pause(client, 0.5)
        made = self._some_ledger(client.rng)
        if made is None:
            return
        seconds = 1.0 + 9.0 * client.rng.random()
        patience = asyncio.timeout(seconds)
        try:
            async with patience:
                await self.read(client, made, lambda: patience.reschedule(None) if self.over else None)
        except TimeoutError:
            return
        except TallybookError as error:
            if is_defect(error):
                raise
            self._god.mark(f"reader: {type(error).__name__}")

    async def read(
        self, client: ClientProcess, made: MadeLedger, on_entry: Callable[[], object] = lambda: None
    ) -> Reading:
        """Follow one ledger to its end.

        Raises:
            TallybookError: what the handle raised.
        """
        reader = await client.client.open_ledger(made.ledger_id, password=made.password, recover=False)
        reading = self._history.reading(client.name, made.ledger_id)
        self._look(reader, reading)
        async for entry in reader.tail():
            reading.saw(entry.entry_id, entry.payload)
            self._look(reader, reading)
            on_entry()
        self._look(reader, reading)
        reading.done(_end(reader.metadata))
        return reading

    def _look(self, reader: LedgerReader, reading: Reading) -> None:
        reading.lac(reader.last_add_confirmed)
        known = self._god.ledgers.get(reader.id)
        if known is not None and reader.last_add_confirmed > known.confirmable:
            detail = f"a reader of ledger {reader.id} sees {reader.last_add_confirmed} as confirmed"
            self._god.violated("I6", f"{detail}, an ack quorum holds up to {known.confirmable}")

    def _some_ledger(self, rng: Rng) -> MadeLedger | None:
        """Mostly a young one."""
        if not self.ledgers:
            return None
        newest = len(self.ledgers) - 1
        return self.ledgers[newest - min(newest, int(newest * rng.random() ** 3 + rng.random()))]

    def _failed(self, operation: Operation, error: TallybookError) -> None:
        if is_defect(error):
            self._god.violated("defect", f"{operation.actor} met {error!r}")
        if error.outcome is Outcome.NOT_DONE:
            operation.failed()


def _end(metadata: LedgerMetadata) -> End:
    return End(metadata.last_entry_id, metadata.length)
