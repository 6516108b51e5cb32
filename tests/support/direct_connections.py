"""Connections of a client to bookies in the same process, without a wire.

``DirectConnection`` connects the client's port (``client/connection/port``) to a bookie's port (``bookie/port``), with
a delay in each direction, so that complete clients run against in-memory bookies from one seed. Like a stream it keeps
order, breaks as a whole, and belongs to one incarnation of the bookie. ``DirectConnections`` replaces the client's
pool.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, NoReturn, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

from tallybook.bookie.port import LedgerStore
from tallybook.bookie.rpc.attached_ledgers import AttachedLedgers, StreamAttachments
from tallybook.bookie.rpc.long_poll import with_batches
from tallybook.client.connection.lac_updates import LacSender
from tallybook.client.open_ledgers import LedgersAtBookie, OpenLedgers
from tallybook.core.access import Permission
from tallybook.core.add_kind import AddKind
from tallybook.core.answers import (
    AddAnswer,
    AddCallback,
    BookieStatus,
    CopyTrace,
    DamagedBatch,
    FenceAnswer,
    HeldAnswer,
    HeldLedgers,
    Incarnation,
    LacAnswer,
    ReadAnswer,
)
from tallybook.core.batch import EntrySlice, decode_header
from tallybook.core.error_codes import error_from_wire
from tallybook.core.errors import OK_CODE, BookieUnavailable, RequestTimeout
from tallybook.core.ids import NO_IDENTITY
from tallybook.runtime.clock import Clock
from tallybook.runtime.concurrency.progress_deadline import ProgressTracker
from tallybook.runtime.rng import Rng, SeededRng
from tallybook.runtime.tasks import Tasks
from tallybook.wire.messages import Attach, LedgerLac, RefusedLac

T = TypeVar("T")

RETURN_PAUSE_SECONDS: Final = 0.5
"""Maximum pause before the first attempt to reconnect to a dead bookie."""

Delay: TypeAlias = Callable[[], float]
"""Draws the delay of one message, in seconds."""


def no_delay() -> float:
    """Messages arrive in the next turn of the loop."""
    return 0.0


def _always(_bookie_id: str) -> bool:
    """Every bookie runs."""
    return True


class _OneWayLink:
    """One direction: messages arrive later and in order, unless the connection breaks first."""

    def __init__(self, clock: Clock, tasks: Tasks, delay: Delay, name: str) -> None:
        self._clock = clock
        self._tasks = tasks
        self._delay = delay
        self._name = name
        self._in_flight: deque[tuple[float, Callable[[], None]]] = deque()
        self._broken = False

    def send(self, deliver: Callable[[], None]) -> None:
        """Call ``deliver`` when the message has arrived."""
        if self._broken:
            return
        self._in_flight.append((self._clock.monotonic() + self._delay(), deliver))
        if len(self._in_flight) == 1:
            self._tasks.spawn(self._carry(), name=self._name)

    def cut(self) -> None:
        """Lose messages in flight and all later ones."""
        self._broken = True

    async def _carry(self) -> None:
        while self._in_flight:
            due, deliver = self._in_flight[0]
            await self._clock.sleep(max(due - self._clock.monotonic(), 0.0))
            if self._broken:
                self._in_flight.clear()
                return
            deliver()
            self._in_flight.popleft()


class _Sent(NamedTuple):
    """Handle of an add, which is sent at once."""

    owed_since: float

    def withdraw(self) -> None:
        """Do nothing: the add was sent."""


_lives: Final[WeakKeyDictionary[LedgerStore, tuple[Incarnation, AttachedLedgers]]] = WeakKeyDictionary()
"""Attached ledgers of each bookie to which a connection was opened, in its last incarnation."""


def _attached_in(store: LedgerStore, clock: Clock) -> AttachedLedgers:
    """Attached ledgers of all connections to the present incarnation of a bookie."""
    life = _lives.get(store)
    if life is None or life[0] != store.incarnation:
        life = _lives[store] = store.incarnation, AttachedLedgers(clock)
    return life[1]


class _Attached:
    """Attached ledgers of one connection."""

    def __init__(self, by_all: AttachedLedgers) -> None:
        self.by_all = by_all
        self._own = by_all.begin(may_write=True)

    def attach(self, attach: Attach) -> None:
        """Attach a ledger unless it is attached; takes effect at once."""
        if self._own.get(attach.ledger_id) != attach:
            self._own.attach(attach)

    def forget(self, ledger_id: int) -> None:
        """Detach a ledger."""
        self._own.detach(ledger_id)

    def end(self) -> None:
        """End the attachments of a closed connection."""
        self.by_all.end(self._own)
        self._own = StreamAttachments(may_write=True)


class DirectConnection:
    """A connection to one incarnation of a bookie in this process.

    Args:
        store: the bookie.
        delay: draws the delay of each message, in either direction.
        request_timeout_seconds: deadline of all requests but adds.
        ledgers: ledgers that the client has open at this bookie.
    """

    def __init__(
        self,
        store: LedgerStore,
        *,
        clock: Clock,
        tasks: Tasks,
        delay: Delay = no_delay,
        request_timeout_seconds: float = 5.0,
        ledgers: LedgersAtBookie | None = None,
        rng: Rng | None = None,
    ) -> None:
        self._store = store
        self._incarnation = store.incarnation
        self._tasks = tasks
        self._clock = clock
        self._progress_at = clock.monotonic()
        self._adding = ProgressTracker(clock)
        self._timeout_seconds = request_timeout_seconds
        self._there = _OneWayLink(clock, tasks, delay, f"to {store.bookie_id}")
        self._back = _OneWayLink(clock, tasks, delay, f"from {store.bookie_id}")
        self._pending: dict[int, tuple[AddAnswer, AddCallback]] = {}
        self._calls: dict[int, Callable[[], None]] = {}
        self._sent = 0
        self._attached = _Attached(_attached_in(store, clock))
        self._ledgers = LedgersAtBookie() if ledgers is None else ledgers
        self._broken = False
        self._lacs = LacSender(self._send_lacs, clock, rng or SeededRng(0), tasks, f"LACs to {store.bookie_id}")
        self._ledgers.connection_opened(self._attached, self._incarnation.directory_uuid)

    @property
    def bookie_id(self) -> str:
        """Id of the bookie."""
        return self._store.bookie_id

    @property
    def incarnation(self) -> Incarnation:
        """Incarnation to which it was opened."""
        return self._incarnation

    @property
    def max_batch_bytes(self) -> int:
        """Maximum batch size of the bookie."""
        return self._store.max_batch_bytes

    @property
    def broken(self) -> bool:
        """Whether it was cut, or the bookie has another incarnation now."""
        return self._broken or self._store.incarnation != self._incarnation

    def cut(self) -> None:
        """Break the connection: messages in flight are lost, waiting calls fail with BookieUnavailable."""
        self._broken = True
        self._ledgers.connection_ended(self._attached)
        self._attached.end()
        self._lacs.end()
        self._there.cut()
        self._back.cut()
        pending, self._pending = self._pending, {}
        for lost, on_answer in pending.values():
            on_answer(lost)
        calls, self._calls = self._calls, {}
        for fail in calls.values():
            fail()

    def abort(self) -> None:
        """Break the connection; see the port."""
        if not self.broken:
            self.cut()

    @property
    def progress_at(self) -> float:
        """When the last ack arrived, or the last add was sent while none was unanswered."""
        return self._progress_at if self._pending else self._clock.monotonic()

    def attach(
        self,
        ledger_id: int,
        key: bytes,
        *,
        deferred: bool = False,
        identity: bytes = NO_IDENTITY,
        on_replaced: Callable[[], None] = lambda: None,
    ) -> None:
        """Attach the ledger of a writer; see the port."""
        attach = Attach(ledger_id, key, deferred, identity)
        self._ledgers.attach(attach, self._incarnation.directory_uuid, on_replaced)

    def forget(self, ledger_id: int) -> None:
        """Detach a ledger; see the port."""
        self._ledgers.forget(ledger_id)

    def add(
        self, batch: bytes, key: bytes, on_answer: AddCallback, *, deferred: bool = False, identity: bytes = NO_IDENTITY
    ) -> _Sent:
        """Send one batch; see the port."""
        sent = _Sent(self._clock.monotonic())
        if not self._pending:
            self._progress_at = sent.owed_since
        header = decode_header(batch)
        lost = AddAnswer(header.ledger_id, header.first_entry_id, header.entry_count, BookieUnavailable.wire_code)
        if self.broken:
            asyncio.get_running_loop().call_soon(on_answer, lost)
            return sent
        self._attached.attach(Attach(header.ledger_id, key, deferred, identity))
        self._sent += 1
        number = self._sent
        self._pending[number] = (lost, on_answer)

        def answered(answer: AddAnswer) -> None:
            self._back.send(lambda: self._answer(number, answer))

        kind = AddKind.DEFERRED if deferred else AddKind.ORDINARY
        self._there.send(
            lambda: self._deliver(lambda: self._store.add(batch, key, answered, kind=kind, identity=identity))
        )
        return sent

    async def force(self, ledger_id: int, key: bytes, *, identity: bytes = NO_IDENTITY) -> None:
        """Make all adds of the ledger durable; see the port."""
        await self._call(
            self._about(ledger_id, identity, lambda: self._store.force(ledger_id, key), for_write=True),
            self._timeout_seconds,
        )

    async def recovery_add(self, batch: bytes, key: bytes, *, identity: bytes = NO_IDENTITY) -> None:
        """Send one batch as a recovery add; see the port."""
        await self._urgent_add(
            lambda on_answer: self._store.add(batch, key, on_answer, kind=AddKind.RECOVERY, identity=identity),
            "recovery add refused",
        )

    async def repair_add(self, batch: bytes, *, identity: bytes = NO_IDENTITY) -> None:
        """Send one batch as a repair add; see the port."""
        await self._urgent_add(
            lambda on_answer: self._store.add(batch, b"", on_answer, kind=AddKind.REPAIR, identity=identity),
            "repair add refused",
        )

    async def _urgent_add(self, add: Callable[[AddCallback], None], refused: str) -> None:
        async def work() -> AddAnswer:
            answered: asyncio.Future[AddAnswer] = asyncio.get_running_loop().create_future()
            add(lambda answer: _settle(answered, answer))
            return await answered

        answer = await self._call(work, self._timeout_seconds, self._adding)
        self._adding.made()
        if answer.code != OK_CODE:
            raise error_from_wire(answer.code, f"{self.bookie_id}: {refused}", answer.retry_after_ms)

    async def fence(self, ledger_id: int, key: bytes, *, identity: bytes = NO_IDENTITY) -> FenceAnswer:
        """Fence the ledger; see the port."""
        return await self._call(
            self._about(ledger_id, identity, lambda: self._store.fence(ledger_id, key), for_write=True),
            self._timeout_seconds,
        )

    async def read_batches(
        self,
        ledger_id: int,
        first: int,
        last: int,
        max_bytes: int,
        *,
        identity: bytes = NO_IDENTITY,
        background: bool = False,
    ) -> ReadAnswer:
        """Whole batches; see the port."""
        read = partial(self._store.read_batches, ledger_id, first, last, max_bytes, background=background)
        return await self._call(self._about(ledger_id, identity, read), self._timeout_seconds)

    async def recovery_read(
        self, ledger_id: int, entry_id: int, key: bytes, max_bytes: int = 0, *, identity: bytes = NO_IDENTITY
    ) -> ReadAnswer:
        """Fence and read; see the port."""
        return await self._call(
            self._about(
                ledger_id,
                identity,
                lambda: self._store.recovery_read(ledger_id, entry_id, key, max_bytes),
                for_write=True,
            ),
            self._timeout_seconds,
        )

    async def read_entry(self, ledger_id: int, entry_id: int, *, identity: bytes = NO_IDENTITY) -> EntrySlice:
        """One entry; see the port."""
        return await self._call(
            self._about(ledger_id, identity, lambda: self._store.read_entry(ledger_id, entry_id)), self._timeout_seconds
        )

    async def read_lac(self, ledger_id: int, *, identity: bytes = NO_IDENTITY) -> LacAnswer:
        """The highest LAC the bookie saw; see the port."""
        return await self._call(
            self._about(ledger_id, identity, lambda: self._store.read_lac(ledger_id)), self._timeout_seconds
        )

    async def wait_lac(
        self, ledger_id: int, above: int, timeout_ms: int, max_bytes: int = 0, *, identity: bytes = NO_IDENTITY
    ) -> LacAnswer:
        """Long poll; see the port."""

        async def wait() -> LacAnswer:
            answer = await self._store.wait_lac(ledger_id, above, timeout_ms)
            if not max_bytes or answer.lac <= above:
                return answer
            return await with_batches(self._store, ledger_id, above, answer, max_bytes)

        return await self._call(self._about(ledger_id, identity, wait), timeout_ms / 1000 + self._timeout_seconds)

    async def write_lac(self, ledger_id: int, lac: int, key: bytes, *, identity: bytes = NO_IDENTITY) -> None:
        """Tell the bookie a LAC; see the port."""
        await self._call(
            self._about(ledger_id, identity, lambda: self._store.write_lac(ledger_id, lac, key), for_write=True),
            self._timeout_seconds,
        )

    def queue_lac(
        self,
        ledger_id: int,
        lac: int,
        key: bytes,
        *,
        identity: bytes = NO_IDENTITY,
        on_lost: Callable[[], None] = lambda: None,
    ) -> None:
        """Tell the bookie a LAC, without an answer; see the port."""
        self._lacs.queue(LedgerLac(ledger_id, lac, key, identity), on_lost)

    async def _send_lacs(self, lacs: Sequence[LedgerLac]) -> Sequence[RefusedLac]:
        each = (self.write_lac(ledger_id, lac, key, identity=identity) for ledger_id, lac, key, identity in lacs)
        outcomes = await asyncio.gather(*each, return_exceptions=True)
        errors = [(at, error) for at, error in enumerate(outcomes) if isinstance(error, BaseException)]
        for _, error in errors:
            if isinstance(error, BookieUnavailable):
                raise error
        return [RefusedLac.of(at, error) for at, error in errors]

    async def held(self, ledger_id: int, first: int, last: int, *, identity: bytes = NO_IDENTITY) -> HeldAnswer:
        """The batches held of a ledger; see the port."""
        answer = await self._call(
            self._about(ledger_id, identity, lambda: self._store.held(ledger_id, first, last), for_repair=True),
            self._timeout_seconds,
        )
        return answer._replace(writer=await self._attached.by_all.writer_of(self._store, ledger_id))

    async def damaged(self, after: tuple[int, int], limit: int) -> tuple[DamagedBatch, ...]:
        """Copies that are known to be damaged; see the port."""
        return await self._call(lambda: self._store.damaged(after, limit), self._timeout_seconds)

    async def held_ledgers(self, after: int, limit: int) -> HeldLedgers:
        """Ledgers of which something is held; see the port."""
        return await self._call(lambda: self._store.held_ledgers(after, limit), self._timeout_seconds)

    async def end_limbo(self, ledger_id: int, *, identity: bytes = NO_IDENTITY) -> None:
        """All of a ledger was given back; see the port."""
        await self._call(
            self._about(ledger_id, identity, lambda: self._store.end_limbo(ledger_id), for_repair=True),
            self._timeout_seconds,
        )

    async def status(self) -> BookieStatus:
        """How it is doing; see the port."""
        return await self._call(self._store.status, self._timeout_seconds)

    async def trace(self, ledger_id: int, entry_id: int, *, identity: bytes = NO_IDENTITY) -> CopyTrace:
        """Where the copy of an entry lies; see the port."""
        return await self._call(
            self._about(ledger_id, identity, lambda: self._store.trace(ledger_id, entry_id)), self._timeout_seconds
        )

    async def authorize(self, permission: Permission, command: str, arguments: str) -> None:
        """See the port; in a simulation everything is allowed."""
        await self._call(self._store.status, self._timeout_seconds)

    def _about(
        self,
        ledger_id: int,
        identity: bytes,
        work: Callable[[], Coroutine[Any, Any, T]],
        *,
        for_write: bool = False,
        for_repair: bool = False,
    ) -> Callable[[], Coroutine[Any, Any, T]]:
        """The same work, with a check of the ledger's identity if the request has one."""
        if not identity:
            return work

        async def identified() -> T:
            async with self._store.identified(ledger_id, identity, for_write=for_write, for_repair=for_repair):
                return await work()

        return identified

    def _deliver(self, action: Callable[[], None]) -> None:
        if self._store.incarnation == self._incarnation:
            action()
        else:
            self.cut()

    def _answer(self, number: int, answer: AddAnswer) -> None:
        self._progress_at = self._clock.monotonic()
        lost_and_callback = self._pending.pop(number, None)
        if lost_and_callback is not None:
            lost_and_callback[1](answer)

    async def _call(
        self,
        work: Callable[[], Coroutine[Any, Any, T]],
        deadline_seconds: float,
        progress: ProgressTracker | None = None,
    ) -> T:
        """Do ``work`` at the bookie: a message there, the call, a message back; ``progress`` extends the deadline."""
        if self.broken:
            raise BookieUnavailable(f"the connection to {self.bookie_id} is broken")
        self._sent += 1
        number = self._sent
        arrived: asyncio.Future[Callable[[], T]] = asyncio.get_running_loop().create_future()
        self._calls[number] = lambda: _settle(arrived, self._raise_broken)

        def spawn() -> None:
            task = self._tasks.spawn(work(), name=f"call at {self.bookie_id}")
            # ``task.result`` returns or raises the outcome of the call when it is called.
            task.add_done_callback(lambda done: self._back.send(lambda: _settle(arrived, done.result)))

        self._there.send(lambda: self._deliver(spawn))
        try:
            async with progress.timeout(deadline_seconds) if progress else asyncio.timeout(deadline_seconds):
                outcome = await arrived
        except TimeoutError:
            raise RequestTimeout(f"{self.bookie_id} did not answer within {deadline_seconds} s") from None
        finally:
            self._calls.pop(number, None)
        return outcome()

    def _raise_broken(self) -> NoReturn:
        raise BookieUnavailable(f"the connection to {self.bookie_id} broke")


class DirectConnections:
    """Connections to in-process bookies, opened on demand and kept until they break.

    Args:
        alive: tells whether the bookie of this id runs; connections to others fail.
        rng: for pauses before reconnects.
    """

    def __init__(
        self,
        stores: Mapping[str, LedgerStore],
        *,
        clock: Clock,
        tasks: Tasks,
        delay: Delay = no_delay,
        request_timeout_seconds: float = 5.0,
        alive: Callable[[str], bool] = _always,
        rng: Rng,
    ) -> None:
        self._stores = stores
        self._alive = alive
        self._clock = clock
        self._tasks = tasks
        self._delay = delay
        self._timeout_seconds = request_timeout_seconds
        self._open: dict[str, DirectConnection] = {}
        self._closed = False
        self._rng = rng
        self._ledgers = OpenLedgers(self.get, clock, tasks, rng, first_pause_s=RETURN_PAUSE_SECONDS)

    async def get(self, bookie_id: str) -> DirectConnection:
        """The connection to a bookie.

        Raises:
            BookieUnavailable: there is no bookie of this id, or it is down.
        """
        held = self._open.get(bookie_id)
        if self._closed:
            raise BookieUnavailable("this client is closed")
        if bookie_id not in self._stores:
            raise BookieUnavailable(f"bookie {bookie_id} is not known")
        if not self._alive(bookie_id):
            if held is not None:
                held.abort()
            raise BookieUnavailable(f"bookie {bookie_id} is down")
        if held is not None and not held.broken:
            return held
        if held is not None:
            held.cut()
        made = DirectConnection(
            self._stores[bookie_id],
            clock=self._clock,
            tasks=self._tasks,
            delay=self._delay,
            request_timeout_seconds=self._timeout_seconds,
            ledgers=self._ledgers.at(bookie_id),
            rng=self._rng.fork(f"LACs to {bookie_id}"),
        )
        self._open[bookie_id] = made
        return made

    def lost(self, bookie_id: str) -> None:
        """Break the connection to a dead bookie, so that idle clients notice."""
        held = self._open.get(bookie_id)
        if held is not None and not held.broken:
            held.cut()
        self._ledgers.lost(bookie_id)

    async def close(self) -> None:
        """Break every connection; later ``get`` calls fail."""
        self._closed = True
        await self._ledgers.close()
        held, self._open = self._open, {}
        for connection in held.values():
            connection.cut()


def _settle(future: asyncio.Future[T], result: T) -> None:
    if not future.done():
        future.set_result(result)
