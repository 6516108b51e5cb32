"""What clients do during a run: writers, recoverers, readers, each in a process of its own.

Every actor has a *slot*. When the process in it dies, another one takes its place under a new
name. What the actors do and are told goes into the history; what they are told is also shown
to the god at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from tallybook.client.background import client_tasks
from tallybook.client.client import Client
from tallybook.client.connections import BookieConnections
from tallybook.client.ports import ClientWorld
from tallybook.client.reader.handle import LedgerReader
from tallybook.core.config import ClientSettings
from tallybook.core.errors import Busy, EntryAbsent, NoSuchLedger, Outcome, TallybookError, is_defect
from tallybook.metadata.model import DigestType, LedgerMetadata, LedgerState
from tallybook.runtime.deterministic import SimClock
from tallybook.runtime.rng import Rng
from tallybook.runtime.tasks import Tasks

from .god import ATTEMPT
from .history import End, History, Kind, Operation, Reading
from .library import ProcessArchive
from .listing import listed
from .pens import ChosenPen, DeferredPen, Pen
from .process import SimProcess, Surroundings
from .swarm import Swarm, pick
from .vital import vital

CLOSE_ATTEMPTS: Final = 5
PASSWORD: Final = b"open sesame"


@dataclass(frozen=True, slots=True)
class MadeLedger:
    """A ledger that a writer has made."""

    ledger_id: int
    password: bytes


@dataclass(frozen=True, slots=True)
class Burst:
    """Some entries, appended at once.

    Attributes:
        end: how many entries there were with it.
        settling: ends when the outcome of each is known.
        errors: what became of those that failed, but for want of room in the client.
    """

    end: int
    settling: asyncio.Task[None]
    errors: list[TallybookError]


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
        self._attempts = 0
        self._guests: dict[str, int] = {}
        """How many of each name there have been."""
        self._unowned: list[MadeLedger] = []
        """Ledgers made for others to adopt."""
        self._slots: dict[str, asyncio.Task[None]] = {}
        self._patiences: list[asyncio.Timeout] = []
        """Of those who read now, and would not do so for ever."""

    def start(self) -> None:
        """Fill every slot."""
        swarm = self._swarm
        actors: list[tuple[str, int, Actor]] = [
            ("writer", swarm.writers, self._writer),
            ("recoverer", swarm.recoverers, self._recoverer),
            ("reader", swarm.readers, self._reader),
        ]
        for kind, count, actor in actors:
            self.employ(kind, count, actor)

    def employ(self, kind: str, count: int, actor: Actor) -> None:
        """Fill so many slots with actors of this kind, each in a process of its own."""
        for number in range(count):
            slot = f"{kind}-{number}"
            self._slots[slot] = self._tasks.spawn(self._fill(slot, actor), name=slot)
            vital(self._god, self._slots[slot])

    def dismiss(self, kind: str) -> None:
        """End those of this kind that are awake, in the middle of whatever they do."""
        for slot in self.running(kind):
            if slot in self.processes:
                self.processes[slot].process.kill()

    def finish(self) -> None:
        """Whatever is open is to be brought to an end: no new work, and readers wait as long as it takes."""
        self.over = True
        for patience in self._patiences:
            if not patience.expired():
                patience.reschedule(None)

    def running(self, kind: str) -> list[str]:
        """Slots of this kind whose actor is awake, and has not come to its end."""
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
    async def guest(self, name: str) -> AsyncIterator[ClientProcess]:
        """A client of the run's own, in no process that anything happens to."""
        guests = self._guests[name] = self._guests.get(name, 0) + 1
        client = self._process(name, guests)
        async with client.client:
            yield client

    def _died(self, name: str, error: BaseException) -> None:
        self._god.violated("simulation", f"{name}: {error!r}")

    async def _fill(self, slot: str, actor: Actor) -> None:
        lives = 0
        while not self.over:
            client = self.processes[slot] = self._process(f"{slot}.{lives}")
            lives += 1
            vital(self._god, client.process.spawn(self._live(client, actor)))
            await client.process.ended.wait()
            await self._clock.sleep(client.rng.random())
        self.processes.pop(slot, None)

    def _process(self, name: str, life: int = 1) -> ClientProcess:
        around = self._around
        # Nobody draws the same ids twice.
        rng = self._rng.fork(name if life == 1 else f"{name} {life}")
        process = SimProcess(name, around, self._clock_of(rng), rng)
        session, bucket = process.session, around.bucket
        connections = BookieConnections(
            process.transport,
            session.membership,
            self._settings,
            process.clock,
            client_tasks(f"{name} connections"),
            cluster_id=around.metadata.shared.cluster_id,
            client_id=name,
            rng=rng.fork("connections"),
        )
        archive = None if bucket is None else ProcessArchive(process, bucket)
        world = ClientWorld(session.store, session.membership, connections, process.clock, rng.fork("client"), archive)
        return ClientProcess(process, Client(world, self._settings), rng)

    def _clock_of(self, rng: Rng) -> SimClock:
        skew_s = 0.0 if self._swarm.archive is None else self._swarm.archive.skew_s
        return SimClock(skew_us=int(skew_s * 1e6 * (2 * rng.fork("clock").random() - 1)))

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
        """One ledger: made or adopted, written, closed or left open."""
        swarm, rng = self._swarm, client.rng
        pen = await self._pen(client)
        if pen is None:
            await self._pause(client, 0.5)
            return
        self._god.adopted(pen.id, client.name)
        burst: Burst | None = None
        for _ in range(rng.randint(1, swarm.ledger_bursts)):
            burst = self._burst(client, pen, burst)
            await self._pause(client, swarm.think_seconds)
            if pen.ended or self.over:
                break
        if self.over:
            # What bookies have left behind that lost their power is found to be gone first.
            await self._clock.sleep(swarm.keepalive_seconds + swarm.add_timeout_ms / 1000)
        if self.over and not pen.ended:
            burst = self._burst(client, pen, burst)
            await asyncio.wait((burst.settling,))
            self._expect_progress(client, pen, burst)
        if rng.random() < 0.8:
            await self.close_one(client, pen)
        else:
            self._god.mark("writer: abandoned")
            pen.abandon()

    async def _pen(self, client: ClientProcess) -> Pen | None:
        """A ledger to write, and the way in which it is written; ``None`` if there is none now."""
        rng = client.rng
        kind = pick(rng, ("deferred", "chosen", "adopted")) if rng.random() < self._swarm.unlike else "plain"
        if kind == "adopted":
            return await self._adopted(client)
        created = self._history.create(client.name)
        try:
            ledger = await client.client.create_ledger(**self._wanted(rng, created), deferred_sync=kind == "deferred")
        except TallybookError as error:
            self._failed(created, error)
            return None
        self._made(created, ledger.id)
        if kind == "deferred":
            return DeferredPen(ledger, rng)
        return ChosenPen(ledger, rng, client.process.spawn) if kind == "chosen" else Pen(ledger, rng)

    async def _adopted(self, client: ClientProcess) -> Pen | None:
        """Of the ledgers that nobody owned lately: others try to adopt them as well."""
        rng = client.rng
        if len(self._unowned) < 2 or rng.random() < 0.3:
            created = self._history.create(client.name)
            try:
                metadata = await client.client.create_unowned_ledger(**self._wanted(rng, created))
            except TallybookError as error:
                self._failed(created, error)
                return None
            self._unowned.append(self._made(created, metadata.ledger_id))
        made = pick(rng, self._unowned[-2:])
        try:
            return Pen(await client.client.adopt_ledger(made.ledger_id, password=made.password), rng)
        except TallybookError as error:
            self._god.mark(f"adoption: {type(error).__name__}")
            return None

    def _wanted(self, rng: Rng, created: Operation) -> dict[str, Any]:
        """What the next ledger is to be like."""
        self._attempts += 1
        created.payload = b"%s %d" % (created.actor.encode(), self._attempts)
        quorum, hmac = self._swarm.quorum(rng), self._swarm.hmac
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
        return PASSWORD if self._swarm.passwords or self._swarm.hmac else b""

    def _made(self, created: Operation, ledger_id: int) -> MadeLedger:
        created.ledger_id = ledger_id
        created.ok()
        made = MadeLedger(ledger_id, self._password)
        self.ledgers.append(made)
        return made

    def _burst(self, client: ClientProcess, pen: Pen, before: Burst | None) -> Burst:
        """Append some entries; they are settled in the background, after those before them."""
        rng, appends = client.rng, []
        first = 0 if before is None else before.end
        end = first + rng.randint(1, self._swarm.burst)
        for at in range(first, end):
            payload = b"%d/%d/" % (pen.id, at) + b"." * rng.randint(0, self._swarm.entry_bytes)
            appends.append(self._history.append(client.name, pen.id, payload))
        errors: list[TallybookError] = []
        sent: list[tuple[Operation, Awaitable[int]]] = []
        for append, written in zip(appends, pen.write([append.payload for append in appends]), strict=True):
            if isinstance(written, Busy):
                self._god.mark("writer: client budget used up")
                self._failed(append, written)
            elif isinstance(written, TallybookError):
                errors.append(written)
            else:
                sent.append((append, written))
        settling = client.process.spawn(self._settle(pen, sent, errors, before))
        vital(self._god, settling, "client")
        return Burst(end, settling, errors)

    async def _settle(
        self,
        pen: Pen,
        sent: list[tuple[Operation, Awaitable[int]]],
        errors: list[TallybookError],
        before: Burst | None,
    ) -> None:
        if before is not None:
            # Of two tasks that wait for entries of one batch, the later one may be woken first.
            await asyncio.wait((before.settling,))
        for append, pending in sent:
            try:
                pen.told.append((append, await pending))
            except TallybookError as error:
                self._failed(append, error)
                errors.append(error)
                pen.failed()
            else:
                await self._rely(pen)
        await self._rely(pen)

    def _expect_progress(self, client: ClientProcess, pen: Pen, burst: Burst) -> None:
        """What was appended after healing is confirmed, unless others have taken the ledger.

        A bookie that has lost something refuses what it cannot tell, until a repair that nobody does here.
        """
        known = self._god.ledgers.get(pen.id)
        its_own = known is not None and known.metadata.state is LedgerState.OPEN and not known.fenced_by
        members = known.metadata.last_fragment.bookies if known is not None else ()
        if its_own and pen.steadfast and not set(members) & set(self._god.harms.bookies()):
            self._god.mark("writer: gets on after healing")
            detail = f"{client.name} cannot append to ledger {pen.id}: {burst.errors[:1]!r}"
            self._god.expect(not burst.errors, "L2", detail)

    async def write_on_all(self, client: ClientProcess, bookies: int) -> bool:
        """Write a ledger whose every entry every bookie has to ack, and close it; whether that succeeded."""
        pen = await self.begin(client, ensemble=bookies, write_quorum=bookies, ack_quorum=bookies)
        return pen is not None and await self.close_one(client, pen)

    async def begin(self, client: ClientProcess, **sizes: int) -> Pen | None:
        """Write some entries to a new ledger of these sizes, which stays open; ``None`` if not all were confirmed."""
        created = self._history.create(client.name)
        try:
            ledger = await client.client.create_ledger(**{**self._wanted(client.rng, created), **sizes})
        except TallybookError as error:
            self._failed(created, error)
            return None
        self._made(created, ledger.id)
        pen = Pen(ledger, client.rng)
        self._god.adopted(pen.id, client.name)
        burst = self._burst(client, pen, None)
        await asyncio.wait((burst.settling,))
        if not burst.errors and self._history.highest_confirmed(pen.id) >= 0:
            return pen
        await self.close_one(client, pen)
        return None

    async def leave(
        self, client: ClientProcess, batches: int, deafen: Callable[[Sequence[str]], Awaitable[None]]
    ) -> tuple[MadeLedger, Sequence[str]] | None:
        """Leave a ledger with batches of whose acks its writer never hears, and its members; ``None`` if that failed.

        Args:
            deafen: keeps the answers of these bookies from the client.
        """
        created = self._history.create(client.name)
        sizes = {"ensemble": 3, "write_quorum": 3, "ack_quorum": 2, "stripe_entries": 1}
        try:
            ledger = await client.client.create_ledger(**{**self._wanted(client.rng, created), **sizes})
            made = self._made(created, ledger.id)
            members = ledger.metadata.last_fragment.bookies
            await deafen(members)
        except TallybookError as error:
            self._failed(created, error)
            return None
        pen = Pen(ledger, client.rng)
        self._god.adopted(pen.id, client.name)
        burst = None
        for _ in range(8 * batches):
            burst = self._burst(client, pen, burst)
            await self._clock.sleep(0.02)
        await self._clock.sleep(0.2)
        pen.abandon()
        return made, members

    async def _rely(self, pen: Pen) -> None:
        """Of what was confirmed, in this burst and before, write down what may be relied on."""
        if not pen.told:
            return
        through = await pen.reliable(pen.told[-1][1])
        while pen.told and pen.told[0][1] <= through:
            append, entry_id = pen.told.pop(0)
            append.ok(entry_id=entry_id)
            self._god.confirmed(pen.id, entry_id)

    async def close_one(self, client: ClientProcess, pen: Pen) -> bool:
        """Close the ledger, or leave it to others; whether it is closed."""
        for _ in range(CLOSE_ATTEMPTS):
            close = self._history.close(client.name, pen.id)
            under_way = self._god.closing(pen.id)
            try:
                close.ok(end=_end(await pen.close()))
            except TallybookError as error:
                self._failed(close, error)
                if error.outcome is Outcome.NOT_DONE and not under_way:
                    self._god.not_closed(pen.id)
                if not error.retriable and error.outcome is not Outcome.UNKNOWN:
                    break
                await self._pause(client, 0.3)
            else:
                return True
        pen.abandon()
        return False

    # -- recoverers and readers -----------------------------------------------------------

    async def _recoverer(self, client: ClientProcess) -> None:
        await self._pause(client, 1.5)
        made = self._some_ledger(client.rng)
        if made is None or (client.rng.random() < 0.5 and not await self._is_listed(client, made)):
            return
        if made.password and client.rng.random() < 0.2:
            await self._guess(client, made)
        if await self.recover(client, made) and client.rng.random() < self._swarm.deletions:
            await self._delete(client, made)

    async def _is_listed(self, client: ClientProcess, made: MadeLedger) -> bool:
        try:
            return made.ledger_id in await listed(client.client, self._god)
        except TallybookError as error:
            self._god.mark(f"listing: {type(error).__name__}")
            return False

    async def _guess(self, client: ClientProcess, made: MadeLedger) -> None:
        """Try a password that does not fit."""
        try:
            await client.client.recover_ledger(made.ledger_id, password=b"a guess")
        except TallybookError as error:
            self._god.mark(f"guessed password: {type(error).__name__}")
        else:
            self._god.violated("I23", f"{client.name} recovers ledger {made.ledger_id} with a password that it guessed")

    async def _delete(self, client: ClientProcess, made: MadeLedger) -> None:
        try:
            await client.client.delete_ledger(made.ledger_id, password=made.password)
            self._god.mark("ledger: deleted")
        except TallybookError as error:
            self._god.mark(f"deletion: {type(error).__name__}")

    async def recover(self, client: ClientProcess, made: MadeLedger) -> bool:
        """Recover one ledger; whether its end is known now."""
        recover = self._history.recover(client.name, made.ledger_id)
        try:
            metadata = await client.client.recover_ledger(made.ledger_id, password=made.password)
        except NoSuchLedger:
            # Gone for good, unless it is said of one that is there.
            self._god.expect(self._may_be_gone(made), "I2", f"ledger {made.ledger_id} is not found")
            return True
        except TallybookError as error:
            self._failed(recover, error)
            self._god.mark(f"recovery: {type(error).__name__}")
            return False
        recover.ok(end=_end(metadata))
        return True

    def _may_be_gone(self, made: MadeLedger) -> bool:
        """Whether a client may be told that there is no such ledger: it was deleted, or its row was away."""
        return made.ledger_id not in self._god.ledgers or made.ledger_id in self._god.missed

    async def _reader(self, client: ClientProcess) -> None:
        """Follow one ledger to its end, or for a while."""
        await self._pause(client, 0.5)
        made = self._some_ledger(client.rng)
        if made is None:
            return
        try:
            async with self.patience(1.0 + 9.0 * client.rng.random()):
                if client.rng.random() < 0.3:
                    await self._look_ahead(client, made)
                await self.read(client, made)
                return
        except TimeoutError:
            self._god.mark("reader: gone before the end")
        except TallybookError as error:
            if is_defect(error):
                raise
            self._god.mark(f"reader: {type(error).__name__}")
        if self.over:
            await self.follow(client, made)

    @asynccontextmanager
    async def patience(self, seconds: float) -> AsyncIterator[None]:
        """Wait for so long only, unless all is to come to its end meanwhile."""
        patience = asyncio.timeout(None if self.over else seconds)
        self._patiences.append(patience)
        try:
            async with patience:
                yield
        finally:
            self._patiences.remove(patience)

    async def follow(self, client: ClientProcess, made: MadeLedger) -> None:
        """Read a ledger to its end, from the beginning again where that fails, unless there is no such ledger."""
        while True:
            try:
                await self.read(client, made)
            except NoSuchLedger:
                self._god.expect(self._may_be_gone(made), "L5", f"ledger {made.ledger_id} is not found")
                return
            except TallybookError as error:
                if is_defect(error):
                    raise
                self._god.mark(f"reader: {type(error).__name__}")
            else:
                return
            await self._pause(client, 0.3)

    async def read(self, client: ClientProcess, made: MadeLedger) -> Reading:
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
        self._look(reader, reading)
        reading.done(_end(reader.metadata))
        return reading

    async def _look_ahead(self, client: ClientProcess, made: MadeLedger) -> None:
        """Read what is there beyond what is confirmed: no promise, but nothing else than what was appended."""
        reader = await client.client.open_ledger(made.ledger_id, password=made.password, recover=False)
        reading = self._history.reading(client.name, made.ledger_id)
        first = max(0, reader.last_add_confirmed)
        try:
            async for entry in reader.read_unconfirmed(first, first + 10):
                reading.saw(entry.entry_id, entry.payload)
                self._god.mark("reader: saw unconfirmed entries")
        except EntryAbsent:
            self._god.mark("reader: nothing unconfirmed")

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
            if operation.kind is Kind.CREATE:
                self._god.not_created(operation.payload)


def _end(metadata: LedgerMetadata) -> End:
    return End(metadata.last_entry_id, metadata.length)
