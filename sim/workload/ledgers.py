"""Clients that work with ledgers: writers, recoverers and readers, each in a process of its own.

Every actor has a *slot*. When its process dies, the next one takes the slot under a new name. All operations and
results go into the history; confirmed results are also reported to the oracle at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from tallybook.client.background import client_tasks
from tallybook.client.client import Client
from tallybook.client.connection.pool import BookieConnections
from tallybook.client.ports import ClientWorld
from tallybook.client.reader.handle import LedgerReader
from tallybook.core.errors import Busy, NoSuchLedger, Outcome, TallybookError, is_defect
from tallybook.core.settings import ClientSettings
from tallybook.metadata.ledger.model import DigestType, LedgerMetadata, LedgerState
from tallybook.runtime.rng import Rng
from tallybook.runtime.tasks import Tasks

from ..cluster.bucket import ProcessArchive
from ..cluster.process import SimEnvironment, SimProcess
from ..configuration.run_configuration import RunConfiguration, pick
from ..deterministic import SimClock
from ..oracle.oracle import ATTEMPT, check_listing
from ..supervised_tasks import vital
from .history import History, LedgerEnd, Operation, OperationKind, Reading
from .reads import read_single, read_unconfirmed
from .write_modes import ChosenIdsModeWriter, DeferredSyncModeWriter, WorkloadWriter

CLOSE_ATTEMPTS: Final = 5
PASSWORD: Final = b"open sesame"


@dataclass(frozen=True, slots=True)
class CreatedLedger:
    """A ledger that a client of the run created."""

    ledger_id: int
    password: bytes


@dataclass(frozen=True, slots=True)
class Burst:
    """A burst of entries that were appended together.

    Attributes:
        end: number of entries of the ledger, with this burst.
        settling: task that ends when the outcome of each append is known.
        errors: errors of failed appends, without Busy of the client's own budget.
    """

    end: int
    settling: asyncio.Task[None]
    errors: list[TallybookError]


@dataclass(eq=False)
class ClientProcess:
    """A client and its process."""

    process: SimProcess
    client: Client
    rng: Rng

    @property
    def name(self) -> str:
        """Name of the process."""
        return self.process.name


Actor: TypeAlias = Callable[[ClientProcess], Awaitable[None]]


class Workload:
    """All clients of a run.

    Args:
        history: records operations and results.
    """

    def __init__(
        self, config: RunConfiguration, env: SimEnvironment, history: History, settings: ClientSettings
    ) -> None:
        self.over = False
        """Set after healing: actors finish what they have begun."""
        self.ledgers: list[CreatedLedger] = []
        self.processes: dict[str, ClientProcess] = {}
        """The living process of each slot."""
        self._config = config
        self._env = env
        self._oracle = env.oracle
        self._history = history
        self._settings = settings
        self._clock = SimClock()
        self._rng = env.rng.fork("workload")
        self._tasks = Tasks("workload", self._died)
        self._attempts = 0
        self._extra_clients: dict[str, int] = {}
        """Number of extra clients created so far, by name."""
        self._unowned: list[CreatedLedger] = []
        """Ledgers created without an owner, for writers to adopt."""
        self._slots: dict[str, asyncio.Task[None]] = {}
        self._read_timeouts: list[asyncio.Timeout] = []
        """Active timeouts of readers; ``finish`` removes them."""

    def start(self) -> None:
        """Fill every slot."""
        config = self._config
        actors: list[tuple[str, int, Actor]] = [
            ("writer", config.writers, self._writer),
            ("recoverer", config.recoverers, self._recoverer),
            ("reader", config.readers, self._reader),
        ]
        for kind, count, actor in actors:
            self.start_actors(kind, count, actor)

    def start_actors(self, kind: str, count: int, actor: Actor) -> None:
        """Start ``count`` actors of this kind, each in a slot of its own."""
        for number in range(count):
            slot = f"{kind}-{number}"
            self._slots[slot] = self._tasks.spawn(self._fill(slot, actor), name=slot)
            vital(self._oracle, self._slots[slot])

    def kill_actors(self, kind: str) -> None:
        """Kill the actors of this kind that are not frozen."""
        for slot in self.running(kind):
            if slot in self.processes:
                self.processes[slot].process.kill()

    def finish(self) -> None:
        """Let actors finish: no new work, and readers wait without a timeout."""
        self.over = True
        for read_timeout in self._read_timeouts:
            if not read_timeout.expired():
                read_timeout.reschedule(None)

    def running(self, kind: str) -> list[str]:
        """Slots of this kind whose actor is neither frozen nor done."""
        left = [slot for slot, task in self._slots.items() if slot.startswith(kind) and not task.done()]
        return [slot for slot in left if slot not in self.asleep()]

    def asleep(self) -> list[str]:
        """Slots whose process is frozen."""
        return [slot for slot, client in self.processes.items() if client.process.frozen]

    async def close(self) -> None:
        """Kill what is left."""
        for client in self.processes.values():
            client.process.kill()
        await self._tasks.close()

    @asynccontextmanager
    async def extra_client(self, name: str) -> AsyncIterator[ClientProcess]:
        """An additional client for checks; no fault strikes its process."""
        extra = self._extra_clients[name] = self._extra_clients.get(name, 0) + 1
        client = self._process(name, extra)
        async with client.client:
            yield client

    def _died(self, name: str, error: BaseException) -> None:
        self._oracle.violated("simulation", f"{name}: {error!r}")

    async def _fill(self, slot: str, actor: Actor) -> None:
        lives = 0
        while not self.over:
            client = self.processes[slot] = self._process(f"{slot}.{lives}")
            lives += 1
            vital(self._oracle, client.process.spawn(self._live(client, actor)))
            await client.process.ended.wait()
            await self._clock.sleep(client.rng.random())
        self.processes.pop(slot, None)

    def _process(self, name: str, life: int = 1) -> ClientProcess:
        env = self._env
        # Every process has a generator of its own, so that no id is drawn twice.
        rng = self._rng.fork(name if life == 1 else f"{name} {life}")
        process = SimProcess(name, env, self._clock_of(rng), rng)
        session, bucket = process.session, env.bucket
        connections = BookieConnections(
            process.transport,
            session.membership,
            self._settings,
            process.clock,
            client_tasks(f"{name} connections"),
            cluster_id=env.metadata.shared.cluster_id,
            client_id=name,
            rng=rng.fork("connections"),
        )
        archive = None if bucket is None else ProcessArchive(process, bucket)
        world = ClientWorld(session.store, session.membership, connections, process.clock, rng.fork("client"), archive)
        return ClientProcess(process, Client(world, self._settings), rng)

    def _clock_of(self, rng: Rng) -> SimClock:
        skew_s = 0.0 if self._config.archive is None else self._config.archive.skew_s
        return SimClock(skew_us=int(skew_s * 1e6 * (2 * rng.fork("clock").random() - 1)))

    async def _live(self, client: ClientProcess, actor: Actor) -> None:
        try:
            async with client.client:
                while not self.over:
                    await actor(client)
        except TallybookError as error:
            if is_defect(error):
                raise
        except Exception as error:  # noqa: BLE001 - any undeclared error of a client is a defect
            self._oracle.violated("client", f"{client.name} met {error!r}")
        finally:
            client.process.kill()

    async def _pause(self, client: ClientProcess, mean_seconds: float) -> None:
        await self._clock.sleep(2 * mean_seconds * client.rng.random())

    # -- writers --------------------------------------------------------------------------

    async def _writer(self, client: ClientProcess) -> None:
        """Create or adopt one ledger, write it, and close it or leave it open."""
        config, rng = self._config, client.rng
        writer = await self._open_writer(client)
        if writer is None:
            await self._pause(client, 0.5)
            return
        self._oracle.adopted(writer.id, client.name)
        burst: Burst | None = None
        for _ in range(rng.randint(1, config.ledger_bursts)):
            burst = self._burst(client, writer, burst)
            await self._pause(client, config.think_seconds)
            if writer.ended or self.over:
                break
        if self.over:
            # First wait until connections to bookies that lost power have timed out.
            await self._clock.sleep(config.keepalive_seconds + config.add_timeout_ms / 1000)
        if self.over and not writer.ended:
            burst = self._burst(client, writer, burst)
            await asyncio.wait((burst.settling,))
            self._expect_progress(client, writer, burst)
        if rng.random() < 0.8:
            await self.close_one(client, writer)
        else:
            self._oracle.mark("writer: abandoned")
            writer.abandon()

    async def _open_writer(self, client: ClientProcess) -> WorkloadWriter | None:
        """Open a ledger for writing in a random write mode; ``None`` if that failed."""
        rng = client.rng
        kind = pick(rng, ("deferred", "chosen", "adopted")) if rng.random() < self._config.write_mode_share else "plain"
        if kind == "adopted":
            return await self._adopted(client)
        created = self._history.create(client.name)
        try:
            ledger = await client.client.create_ledger(**self._options(rng, created), deferred_sync=kind == "deferred")
        except TallybookError as error:
            self._failed(created, error)
            return None
        self._made(created, ledger.id)
        if kind == "deferred":
            return DeferredSyncModeWriter(ledger, rng)
        return (
            ChosenIdsModeWriter(ledger, rng, client.process.spawn) if kind == "chosen" else WorkloadWriter(ledger, rng)
        )

    async def _adopted(self, client: ClientProcess) -> WorkloadWriter | None:
        """Adopt one of the last unowned ledgers, which other writers may try to adopt, too."""
        rng = client.rng
        if len(self._unowned) < 2 or rng.random() < 0.3:
            created = self._history.create(client.name)
            try:
                metadata = await client.client.create_unowned_ledger(**self._options(rng, created))
            except TallybookError as error:
                self._failed(created, error)
                return None
            self._unowned.append(self._made(created, metadata.ledger_id))
        made = pick(rng, self._unowned[-2:])
        try:
            return WorkloadWriter(await client.client.adopt_ledger(made.ledger_id, password=made.password), rng)
        except TallybookError as error:
            self._oracle.mark(f"adoption: {type(error).__name__}")
            return None

    def _options(self, rng: Rng, created: Operation) -> dict[str, Any]:
        """Options of the next ledger."""
        self._attempts += 1
        created.payload = b"%s %d" % (created.actor.encode(), self._attempts)
        quorum, hmac = self._config.quorum(rng), self._config.hmac
        return {
            "ensemble": quorum.ensemble,
            "write_quorum": quorum.write_quorum,
            "ack_quorum": quorum.ack_quorum,
            "stripe_entries": quorum.stripe_entries,
            "custom": {ATTEMPT: created.payload},
            "password": self._password,
            "digest": DigestType.HMAC_SHA256 if hmac else DigestType.CRC32C,
        }

    @property
    def _password(self) -> bytes:
        return PASSWORD if self._config.passwords or self._config.hmac else b""

    def _made(self, created: Operation, ledger_id: int) -> CreatedLedger:
        created.ledger_id = ledger_id
        created.ok()
        made = CreatedLedger(ledger_id, self._password)
        self.ledgers.append(made)
        return made

    def _burst(self, client: ClientProcess, writer: WorkloadWriter, before: Burst | None) -> Burst:
        """Append some entries; a background task records their outcomes after those of the burst before."""
        rng, appends = client.rng, []
        first = 0 if before is None else before.end
        end = first + rng.randint(1, self._config.burst)
        for at in range(first, end):
            payload = b"%d/%d/" % (writer.id, at) + b"." * rng.randint(0, self._config.entry_bytes)
            appends.append(self._history.append(client.name, writer.id, payload))
        errors: list[TallybookError] = []
        sent: list[tuple[Operation, Awaitable[int]]] = []
        for append, written in zip(appends, writer.write([append.payload for append in appends]), strict=True):
            if isinstance(written, Busy):
                self._oracle.mark("writer: client budget used up")
                self._failed(append, written)
            elif isinstance(written, TallybookError):
                errors.append(written)
            else:
                sent.append((append, written))
        settling = client.process.spawn(self._settle(writer, sent, errors, before))
        vital(self._oracle, settling, "client")
        return Burst(end, settling, errors)

    async def _settle(
        self,
        writer: WorkloadWriter,
        sent: list[tuple[Operation, Awaitable[int]]],
        errors: list[TallybookError],
        before: Burst | None,
    ) -> None:
        if before is not None:
            # Two tasks that wait for entries of one batch may wake up in any order.
            await asyncio.wait((before.settling,))
        for append, pending in sent:
            try:
                writer.succeeded.append((append, await pending))
            except TallybookError as error:
                self._failed(append, error)
                errors.append(error)
                writer.failed()
            else:
                await self._record_durable(writer)
        await self._record_durable(writer)

    def _expect_progress(self, client: ClientProcess, writer: WorkloadWriter, burst: Burst) -> None:
        """Expect that entries appended after healing are confirmed, unless the ledger was fenced or recovered (L2).

        Ledgers with a damaged bookie are exempt: it refuses adds in limbo until a repair, which need not run here.
        """
        known = self._oracle.ledgers.get(writer.id)
        its_own = known is not None and known.metadata.state is LedgerState.OPEN and not known.fenced_by
        members = known.metadata.last_fragment.bookies if known is not None else ()
        if its_own and writer.makes_progress and not set(members) & set(self._oracle.injected_damage.bookies()):
            self._oracle.mark("writer: gets on after healing")
            detail = f"{client.name} cannot append to ledger {writer.id}: {burst.errors[:1]!r}"
            self._oracle.expect(not burst.errors, "L2", detail)

    async def write_on_all(self, client: ClientProcess, bookies: int) -> bool:
        """Write and close a ledger whose every entry needs the ack of every bookie; return whether that succeeded."""
        writer = await self.begin(client, ensemble=bookies, write_quorum=bookies, ack_quorum=bookies)
        return writer is not None and await self.close_one(client, writer)

    async def begin(self, client: ClientProcess, **sizes: int) -> WorkloadWriter | None:
        """Create a ledger with these quorums and write some entries; ``None`` unless all were confirmed."""
        created = self._history.create(client.name)
        try:
            ledger = await client.client.create_ledger(**{**self._options(client.rng, created), **sizes})
        except TallybookError as error:
            self._failed(created, error)
            return None
        self._made(created, ledger.id)
        writer = WorkloadWriter(ledger, client.rng)
        self._oracle.adopted(writer.id, client.name)
        burst = self._burst(client, writer, None)
        await asyncio.wait((burst.settling,))
        if not burst.errors and self._history.highest_confirmed(writer.id) >= 0:
            return writer
        await self.close_one(client, writer)
        return None

    async def abandon_unacked(
        self, client: ClientProcess, batches: int, deafen: Callable[[Sequence[str]], Awaitable[None]]
    ) -> tuple[CreatedLedger, Sequence[str]] | None:
        """Abandon an open ledger whose writer gets no acks of its last batches; return ledger and members, or ``None``.

        Args:
            deafen: suppresses the answers of these bookies to the client.
        """
        created = self._history.create(client.name)
        sizes = {"ensemble": 3, "write_quorum": 3, "ack_quorum": 2, "stripe_entries": 1}
        try:
            ledger = await client.client.create_ledger(**{**self._options(client.rng, created), **sizes})
            made = self._made(created, ledger.id)
            members = ledger.metadata.last_fragment.bookies
            await deafen(members)
        except TallybookError as error:
            self._failed(created, error)
            return None
        writer = WorkloadWriter(ledger, client.rng)
        self._oracle.adopted(writer.id, client.name)
        burst = None
        for _ in range(8 * batches):
            burst = self._burst(client, writer, burst)
            await self._clock.sleep(0.02)
        await self._clock.sleep(0.2)
        writer.abandon()
        return made, members

    async def _record_durable(self, writer: WorkloadWriter) -> None:
        """Record as confirmed the successful appends that are durable by now."""
        if not writer.succeeded:
            return
        through = await writer.durable_up_to(writer.succeeded[-1][1])
        while writer.succeeded and writer.succeeded[0][1] <= through:
            append, entry_id = writer.succeeded.pop(0)
            append.ok(entry_id=entry_id)
            self._oracle.confirmed(writer.id, entry_id)

    async def close_one(self, client: ClientProcess, writer: WorkloadWriter) -> bool:
        """Try to close the ledger, else abandon it; return whether it is closed."""
        for _ in range(CLOSE_ATTEMPTS):
            close = self._history.close(client.name, writer.id)
            in_flight = self._oracle.closing(writer.id)
            try:
                close.ok(end=_end(await writer.close()))
            except TallybookError as error:
                self._failed(close, error)
                if error.outcome is Outcome.NOT_DONE and not in_flight:
                    self._oracle.not_closed(writer.id)
                if not error.retriable and error.outcome is not Outcome.UNKNOWN:
                    break
                await self._pause(client, 0.3)
            else:
                return True
        writer.abandon()
        return False

    # -- recoverers and readers -----------------------------------------------------------

    async def _recoverer(self, client: ClientProcess) -> None:
        await self._pause(client, 1.5)
        made = self._some_ledger(client.rng)
        if made is None or (client.rng.random() < 0.5 and not await self._is_listed(client, made)):
            return
        if made.password and client.rng.random() < 0.2:
            await self._guess(client, made)
        if await self.recover(client, made) and client.rng.random() < self._config.deletions:
            await self._delete(client, made)

    async def _is_listed(self, client: ClientProcess, made: CreatedLedger) -> bool:
        try:
            return made.ledger_id in await check_listing(client.client, self._oracle)
        except TallybookError as error:
            self._oracle.mark(f"listing: {type(error).__name__}")
            return False

    async def _guess(self, client: ClientProcess, made: CreatedLedger) -> None:
        """Try to recover the ledger with a wrong password, which must fail (I23)."""
        try:
            await client.client.recover_ledger(made.ledger_id, password=b"a guess")
        except TallybookError as error:
            self._oracle.mark(f"guessed password: {type(error).__name__}")
        else:
            self._oracle.violated(
                "I23", f"{client.name} recovers ledger {made.ledger_id} with a password that it guessed"
            )

    async def _delete(self, client: ClientProcess, made: CreatedLedger) -> None:
        try:
            await client.client.delete_ledger(made.ledger_id, password=made.password)
            self._oracle.mark("ledger: deleted")
        except TallybookError as error:
            self._oracle.mark(f"deletion: {type(error).__name__}")

    async def recover(self, client: ClientProcess, made: CreatedLedger) -> bool:
        """Recover one ledger; return whether its end is known, or it is gone."""
        recover = self._history.recover(client.name, made.ledger_id)
        try:
            metadata = await client.client.recover_ledger(made.ledger_id, password=made.password)
        except NoSuchLedger:
            # NoSuchLedger is final; it is wrong for a ledger that exists.
            self._oracle.expect(self._may_be_gone(made), "I2", f"ledger {made.ledger_id} is not found")
            return True
        except TallybookError as error:
            self._failed(recover, error)
            self._oracle.mark(f"recovery: {type(error).__name__}")
            return False
        recover.ok(end=_end(metadata))
        return True

    def _may_be_gone(self, made: CreatedLedger) -> bool:
        """Whether NoSuchLedger is a correct answer: the ledger was deleted, or its row was missing for a while."""
        return made.ledger_id not in self._oracle.ledgers or made.ledger_id in self._oracle.missed

    async def _reader(self, client: ClientProcess) -> None:
        """Follow one ledger to its end, or until a timeout."""
        await self._pause(client, 0.5)
        made = self._some_ledger(client.rng)
        if made is None:
            return
        try:
            async with self.read_timeout(1.0 + 9.0 * client.rng.random()):
                if client.rng.random() < 0.3:
                    unconfirmed = await client.client.open_ledger(made.ledger_id, password=made.password, recover=False)
                    reading = self._history.reading(client.name, made.ledger_id)
                    await read_unconfirmed(unconfirmed, reading, self._oracle.mark)
                await self.read(client, made)
                return
        except TimeoutError:
            self._oracle.mark("reader: gone before the end")
        except TallybookError as error:
            if is_defect(error):
                raise
            self._oracle.mark(f"reader: {type(error).__name__}")
        if self.over:
            await self.follow(client, made)

    @asynccontextmanager
    async def read_timeout(self, seconds: float) -> AsyncIterator[None]:
        """A timeout that ``finish`` removes."""
        read_timeout = asyncio.timeout(None if self.over else seconds)
        self._read_timeouts.append(read_timeout)
        try:
            async with read_timeout:
                yield
        finally:
            self._read_timeouts.remove(read_timeout)

    async def follow(self, client: ClientProcess, made: CreatedLedger) -> None:
        """Read a ledger to its end; on errors other than NoSuchLedger start again from the beginning."""
        while True:
            try:
                await self.read(client, made)
            except NoSuchLedger:
                self._oracle.expect(self._may_be_gone(made), "L5", f"ledger {made.ledger_id} is not found")
                return
            except TallybookError as error:
                if is_defect(error):
                    raise
                self._oracle.mark(f"reader: {type(error).__name__}")
            else:
                return
            await self._pause(client, 0.3)

    async def read(self, client: ClientProcess, made: CreatedLedger) -> Reading:
        """Follow one ledger to its end; errors of the reader are raised."""
        reader = await client.client.open_ledger(made.ledger_id, password=made.password, recover=False)
        reading = self._history.reading(client.name, made.ledger_id)
        self._check_lac(reader, reading)
        await read_single(client.rng, reader, reading)
        async for entry in reader.tail():
            reading.saw(entry.entry_id, entry.payload)
            self._check_lac(reader, reading)
        self._check_lac(reader, reading)
        reading.done(_end(reader.metadata))
        return reading

    def _check_lac(self, reader: LedgerReader, reading: Reading) -> None:
        reading.lac(reader.last_add_confirmed)
        known = self._oracle.ledgers.get(reader.id)
        if known is not None and reader.last_add_confirmed > known.confirmable:
            detail = f"a reader of ledger {reader.id} sees {reader.last_add_confirmed} as confirmed"
            self._oracle.violated("I6", f"{detail}, an ack quorum holds up to {known.confirmable}")

    def _some_ledger(self, rng: Rng) -> CreatedLedger | None:
        """Draw a ledger, mostly a young one; ``None`` if there is none."""
        if not self.ledgers:
            return None
        newest = len(self.ledgers) - 1
        return self.ledgers[newest - min(newest, int(newest * rng.random() ** 3 + rng.random()))]

    def _failed(self, operation: Operation, error: TallybookError) -> None:
        if is_defect(error):
            self._oracle.violated("defect", f"{operation.actor} met {error!r}")
        if error.outcome is Outcome.NOT_DONE:
            operation.failed()
            if operation.kind is OperationKind.CREATE:
                self._oracle.not_created(operation.payload)


def _end(metadata: LedgerMetadata) -> LedgerEnd:
    return LedgerEnd(metadata.last_entry_id, metadata.length)
