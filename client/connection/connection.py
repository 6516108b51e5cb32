"""A connection to one incarnation of a bookie, over any transport.

It has three streams: adds, reads, and control (fences, recovery, LAC), so that none delays another. When one breaks,
the connection is broken: every pending add and call gets ``BookieUnavailable``, with unknown outcome. A broken
connection is not repaired; ``pool`` opens another.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import TypeVar

from tallybook.core.access import Permission
from tallybook.core.answers import (
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
from tallybook.core.batch import EntrySlice
from tallybook.core.errors import (
    BookieUnavailable,
    PeerUnavailable,
    ProtocolViolation,
    StaleIncarnation,
    TallybookError,
)
from tallybook.core.ids import NO_IDENTITY
from tallybook.core.limits import BLOCK_BYTES
from tallybook.core.settings import ClientSettings
from tallybook.runtime.logging import logger
from tallybook.runtime.rng import Rng, SystemRng
from tallybook.runtime.tasks import Tasks
from tallybook.runtime.transport import MessageStream, Transport
from tallybook.wire import inspection
from tallybook.wire import messages as wire
from tallybook.wire.batches import MAX_ADD_COST_BYTES, FrameCache
from tallybook.wire.lanes import Lane
from tallybook.wire.versions import SPOKEN

from ..background import defect_of
from ..load import ClientLoad
from ..open_ledgers import LedgersAtBookie
from .add_stream import AddStream
from .lac_updates import LacSender
from .port import AddInFlight
from .request_stream import RequestStream
from .tcp_routes import TcpRoutes

T = TypeVar("T")

_log = logger("client.bookie_rpc")


class BookieRpc:
    """A ``BookieConnection`` over three streams. Made by ``open_bookie``."""

    def __init__(
        self,
        welcome: wire.Welcome,
        adds: AddStream,
        reads: RequestStream,
        control: RequestStream,
        settings: ClientSettings,
        tasks: Tasks,
        load: ClientLoad,
        ledgers: LedgersAtBookie | None = None,
        on_lost: Callable[[], None] = lambda: None,
        rng: Rng | None = None,
    ) -> None:
        self._welcome = welcome
        self._ledgers = LedgersAtBookie() if ledgers is None else ledgers
        self._on_lost = on_lost
        self._load = load
        load.connected += 1
        self._adds = adds
        self._reads = reads
        self._control = control
        self._timeout_seconds = settings.request_timeout_ms / 1000
        self._lacs = LacSender(
            self._send_lacs, load.clock, rng or SystemRng(), tasks, f"LACs to {welcome.bookie_id}"
        )  # fmt: skip
        self._broken = False
        self._receivers = [
            tasks.spawn(self._receive(lane, receive), name=f"{lane.value} from {welcome.bookie_id}")
            for lane, receive in (
                (Lane.ADD, adds.receive),
                (Lane.READ, reads.receive),
                (Lane.CONTROL, control.receive),
            )
        ]
        for receiver in self._receivers:
            receiver.add_done_callback(defect_of)
        self._ledgers.connection_opened(adds, welcome.incarnation.directory_uuid)

    @property
    def bookie_id(self) -> str:
        """The bookie's id."""
        return self._welcome.bookie_id

    @property
    def incarnation(self) -> Incarnation:
        """The incarnation that it was opened to."""
        return self._welcome.incarnation

    @property
    def max_batch_bytes(self) -> int:
        """The largest batch that the bookie takes."""
        return self._welcome.max_batch_bytes

    @property
    def broken(self) -> bool:
        """Whether it was lost or closed."""
        return self._broken

    def abort(self) -> None:
        """Break the connection; see the port."""
        self._lose(BookieUnavailable(f"the connection to {self.bookie_id} was given up"))

    @property
    def progress_at(self) -> float:
        """When adds last made progress; see the port."""
        return self._adds.progress_at

    def attach(
        self,
        ledger_id: int,
        key: bytes,
        *,
        deferred: bool = False,
        identity: bytes = NO_IDENTITY,
        on_replaced: Callable[[], None] = lambda: None,
    ) -> None:
        """Attach a ledger; see the port."""
        attach = wire.Attach(ledger_id, key, deferred, identity)
        self._ledgers.attach(attach, self.incarnation.directory_uuid, on_replaced)
        if self._broken:
            # Lost before the ledger was registered: request the reconnect again.
            self._on_lost()

    def forget(self, ledger_id: int) -> None:
        """Detach a ledger; see the port."""
        self._ledgers.forget(ledger_id)

    def add(
        self, batch: bytes, key: bytes, on_answer: AddCallback, *, deferred: bool = False, identity: bytes = NO_IDENTITY
    ) -> AddInFlight:
        """Send one batch; see the port."""
        return self._adds.add(batch, key, on_answer, deferred=deferred, identity=identity)

    async def force(self, ledger_id: int, key: bytes, *, identity: bytes = NO_IDENTITY) -> None:
        """Make acked batches durable; see the port."""
        await self._control.call(wire.Force(ledger_id, key), self._timeout_seconds, identity)

    async def recovery_add(self, batch: bytes, key: bytes, *, identity: bytes = NO_IDENTITY) -> None:
        """Send one batch as a recovery add; see the port."""
        await self._control.call(wire.RecoveryAdd(key, batch, identity), self._timeout_seconds)

    async def fence(self, ledger_id: int, key: bytes, *, identity: bytes = NO_IDENTITY) -> FenceAnswer:
        """Fence the ledger; see the port."""
        return self._of(
            FenceAnswer, await self._control.call(wire.Fence(ledger_id, key), self._timeout_seconds, identity)
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
        ask = wire.ReadBatches(ledger_id, first, last, max_bytes, background)
        return self._batches(await self._reads.call(ask, self._timeout_seconds, identity))

    async def recovery_read(
        self, ledger_id: int, entry_id: int, key: bytes, max_bytes: int = 0, *, identity: bytes = NO_IDENTITY
    ) -> ReadAnswer:
        """Fence and read; see the port."""
        ask = wire.RecoveryRead(ledger_id, entry_id, key, max_bytes)
        return self._batches(await self._control.call(ask, self._timeout_seconds, identity))

    async def read_entry(self, ledger_id: int, entry_id: int, *, identity: bytes = NO_IDENTITY) -> EntrySlice:
        """One entry; see the port."""
        return self._of(
            EntrySlice, await self._reads.call(wire.ReadEntry(ledger_id, entry_id), self._timeout_seconds, identity)
        )

    async def read_lac(self, ledger_id: int, *, identity: bytes = NO_IDENTITY) -> LacAnswer:
        """The highest LAC that the bookie has seen; see the port."""
        return self._of(LacAnswer, await self._control.call(wire.ReadLac(ledger_id), self._timeout_seconds, identity))

    async def wait_lac(
        self, ledger_id: int, above: int, timeout_ms: int, max_bytes: int = 0, *, identity: bytes = NO_IDENTITY
    ) -> LacAnswer:
        """Long poll; see the port."""
        deadline_seconds = timeout_ms / 1000 + self._timeout_seconds
        ask = wire.WaitLac(ledger_id, above, timeout_ms, max_bytes)
        return self._of(LacAnswer, await self._reads.call(ask, deadline_seconds, identity))

    async def write_lac(self, ledger_id: int, lac: int, key: bytes, *, identity: bytes = NO_IDENTITY) -> None:
        """Write an explicit LAC; see the port."""
        await self._control.call(wire.WriteLac(ledger_id, lac, key), self._timeout_seconds, identity)

    def queue_lac(
        self,
        ledger_id: int,
        lac: int,
        key: bytes,
        *,
        identity: bytes = NO_IDENTITY,
        on_lost: Callable[[], None] = lambda: None,
    ) -> None:
        """Queue an explicit LAC; see the port."""
        self._lacs.queue(wire.LedgerLac(ledger_id, lac, key, identity), on_lost)

    async def _send_lacs(self, lacs: Sequence[wire.LedgerLac]) -> Sequence[wire.RefusedLac]:
        if len(lacs) == 1:
            await self.write_lac(*lacs[0][:3], identity=lacs[0].identity)
            return ()
        answer = await self._control.call(wire.WriteLacs(tuple(lacs)), self._timeout_seconds)
        refused = answer.refused if isinstance(answer, wire.LacsAnswer) else ()
        if any(each.at >= len(lacs) for each in refused):
            raise ProtocolViolation(f"{self.bookie_id} refused a LAC that was not sent to it")
        return refused

    async def repair_add(self, batch: bytes, *, identity: bytes = NO_IDENTITY) -> None:
        """Write a missing copy; see the port."""
        await self._control.call(inspection.RepairAdd(batch, identity), self._timeout_seconds)

    async def held(self, ledger_id: int, first: int, last: int, *, identity: bytes = NO_IDENTITY) -> HeldAnswer:
        """The bookie's inventory of a ledger; see the port."""
        ask = inspection.AskHeld(ledger_id, first, last)
        return self._of(HeldAnswer, await self._control.call(ask, self._timeout_seconds, identity))

    async def damaged(self, after: tuple[int, int], limit: int) -> tuple[DamagedBatch, ...]:
        """Known damaged copies; see the port."""
        ask = inspection.AskDamaged(*after, limit)
        found = self._of(inspection.DamagedAnswer, await self._control.call(ask, self._timeout_seconds)).batches
        self._check_page(after, [(each.ledger_id, each.first_entry_id) for each in found])
        return found

    async def held_ledgers(self, after: int, limit: int) -> HeldLedgers:
        """Ledgers of which the bookie has a batch; see the port."""
        ask = inspection.AskHeldLedgers(after, limit)
        page = self._of(HeldLedgers, await self._control.call(ask, self._timeout_seconds))
        self._check_page((after,), [(each.ledger_id,) for each in page.ledgers])
        return page

    async def end_limbo(self, ledger_id: int, *, identity: bytes = NO_IDENTITY) -> None:
        """End a ledger's limbo; see the port."""
        await self._control.call(inspection.EndLimbo(ledger_id), self._timeout_seconds, identity)

    async def status(self) -> BookieStatus:
        """The bookie's status; see the port."""
        return self._of(BookieStatus, await self._control.call(inspection.AskStatus(), self._timeout_seconds))

    async def trace(self, ledger_id: int, entry_id: int, *, identity: bytes = NO_IDENTITY) -> CopyTrace:
        """The location and state of an entry's copy; see the port."""
        ask = inspection.AskTrace(ledger_id, entry_id)
        return self._of(CopyTrace, await self._control.call(ask, self._timeout_seconds, identity))

    async def authorize(self, permission: Permission, command: str, arguments: str) -> None:
        """Check that this client is authorized to run a command; see the port."""
        ask = inspection.Authorize(permission.value, command, arguments)
        await self._control.call(ask, self._timeout_seconds)

    async def close(self) -> None:
        """End the connection; waiting callers get ``BookieUnavailable``."""
        self._lose(BookieUnavailable(f"the connection to {self.bookie_id} was closed"))
        for receiver in self._receivers:
            receiver.cancel()
        await asyncio.gather(*self._receivers, return_exceptions=True)
        await asyncio.gather(self._adds.close(), self._reads.close(), self._control.close())

    async def _receive(self, lane: Lane, receive: Callable[[], Awaitable[None]]) -> None:
        """Run one stream's receiver; its end is the end of the connection."""
        reason: TallybookError = BookieUnavailable(f"{self.bookie_id} ended the {lane.value} stream")
        try:
            await receive()
        except TallybookError as error:
            reason = error
        finally:
            self._lose(reason)

    def _lose(self, reason: TallybookError) -> None:
        if self._broken:
            return
        self._broken = True
        self._load.connected -= 1
        _log.info("connection lost", bookie_id=self.bookie_id, error=reason.message)
        lost = BookieUnavailable(f"the connection to {self.bookie_id} was lost: {reason.message}")
        self._ledgers.connection_ended(self._adds)
        self._adds.end()
        self._lacs.end()
        self._reads.end(lost)
        self._control.end(lost)
        self._on_lost()

    def _of(self, kind: type[T], answer: wire.Answer) -> T:
        if not isinstance(answer, kind):
            raise ProtocolViolation(f"{self.bookie_id} answered with {type(answer).__name__}, not {kind.__name__}")
        return answer

    def _check_page(self, after: tuple[int, ...], found: Sequence[tuple[int, ...]]) -> None:
        """Check that a page of a listing is in order and starts after ``after``: else a caller would loop for ever.

        Raises:
            ProtocolViolation: it does not.
        """
        if any(place <= before for before, place in pairwise([after, *found])):
            raise ProtocolViolation(f"{self.bookie_id} lists {found[:3]} ... where the request was after {after}")

    def _batches(self, answer: wire.Answer) -> ReadAnswer:
        batches = self._of(ReadAnswer, answer)
        if not batches.batches:
            raise ProtocolViolation(f"{self.bookie_id} answered a read with no batch")
        return batches


async def open_bookie(
    transport: Transport,
    address: str,
    *,
    bookie_id: str,
    expected: Incarnation | None,
    settings: ClientSettings,
    tasks: Tasks,
    cluster_id: str = "",
    client_id: str = "",
    load: ClientLoad,
    frames: FrameCache | None = None,
    ledgers: LedgersAtBookie | None = None,
    on_lost: Callable[[], None] = lambda: None,
    rng: Rng | None = None,
    tcp: TcpRoutes | None = None,
) -> BookieRpc:
    """Connect to the bookie ``bookie_id`` at ``address``.

    Args:
        expected: the incarnation to connect to; ``None``: any.
        load: request counters of the client, over all its connections.
        frames: shared by all connections of one client, so that a batch is framed once.
        ledgers: the ledgers that the client has open at this bookie, to be attached.
        on_lost: called once, when the connection is lost or closed.
        rng: for pauses before LACs are sent again.
        tcp: for adds and reads, if the bookie has a TCP port and it is reached; else everything uses ``transport``.

    Raises:
        BookieUnavailable: no answer within ``settings.connect_timeout_ms``.
        StaleIncarnation: another incarnation, or another bookie, answers.
        NoCommonVersion: the bookie supports no protocol version of this client.
        TallybookError: the bookie refuses this client, for this reason.
    """
    timeout_seconds = settings.connect_timeout_ms / 1000
    hello = wire.Hello(cluster_id, client_id, expected)
    streams: dict[Lane, MessageStream] = {}
    try:
        async with asyncio.timeout(timeout_seconds):
            welcomes = await _open_streams(streams, transport, tcp, address, hello, timeout_seconds)
        _check_welcomes(welcomes, bookie_id, address)
    except BaseException as error:
        for stream in streams.values():
            stream.abort()
        await asyncio.gather(*(stream.close() for stream in streams.values()))
        if isinstance(error, TimeoutError):
            reason = f"{bookie_id} at {address} did not answer within {timeout_seconds} s"
            raise BookieUnavailable(reason) from None
        if type(error) is PeerUnavailable:
            raise BookieUnavailable(error.message, outcome=error.outcome) from None
        raise
    welcome = welcomes[0]
    adds = AddStream(
        streams[Lane.ADD], welcome.credit_bytes, tasks, frames or FrameCache(), load,
        add_timeout_s=settings.add_timeout_ms / 1000, max_attached=welcome.max_attached,
    )  # fmt: skip
    reads = RequestStream(streams[Lane.READ], welcomes[1], tasks, load)
    control = RequestStream(streams[Lane.CONTROL], welcomes[2], tasks, load)
    return BookieRpc(welcome, adds, reads, control, settings, tasks, load, ledgers, on_lost, rng)


async def _open_streams(
    streams: dict[Lane, MessageStream],
    transport: Transport,
    tcp: TcpRoutes | None,
    address: str,
    hello: wire.Hello,
    timeout_seconds: float,
) -> list[wire.Welcome]:
    """Open ``streams``; returns the welcomes of ``Add``, ``Read`` and ``Control``."""
    last: list[wire.Welcome] = []
    greet = partial(_greet, hello)

    async def open_lane(lane: Lane) -> wire.Welcome:
        if tcp is not None and last:
            greeted = await tcp.open(lane, address, last[0], greet, timeout_seconds)
            if greeted is not None:
                streams[lane] = greeted.stream
                return greeted.welcome
        streams[lane] = stream = await transport.connect(address, lane, timeout_seconds=timeout_seconds)
        return await greet(stream)

    if tcp is not None:
        # Its welcome says whether there is a TCP port for the others.
        last = [await open_lane(Lane.CONTROL)]
    lanes = [lane for lane in (Lane.ADD, Lane.READ, Lane.CONTROL) if lane not in streams]
    outcomes = await asyncio.gather(*map(open_lane, lanes), return_exceptions=True)
    return [*map(_welcome, outcomes), *last]


async def _greet(hello: wire.Hello, stream: MessageStream) -> wire.Welcome:
    await stream.send(wire.encode_hello(hello))
    first = await stream.receive()
    if first is None:
        raise BookieUnavailable(f"{stream.peer} ended the stream before its welcome")
    return wire.decode_welcome(first)


def _welcome(outcome: wire.Welcome | BaseException) -> wire.Welcome:
    if isinstance(outcome, BaseException):
        raise outcome
    return outcome


def _check_welcomes(welcomes: list[wire.Welcome], bookie_id: str, address: str) -> None:
    for welcome in welcomes:
        if welcome.bookie_id != bookie_id:
            raise StaleIncarnation(f"{welcome.bookie_id} answers at {address}, not {bookie_id}")
        if welcome.incarnation != welcomes[0].incarnation:
            raise StaleIncarnation(f"{bookie_id} restarted while it was connected to")
        granted = min(welcome.credit_bytes - MAX_ADD_COST_BYTES + 1, welcome.max_requests, welcome.max_waits)
        known = SPOKEN.oldest <= welcome.protocol_version <= SPOKEN.newest
        limited = welcome.max_batch_bytes != welcomes[0].max_batch_bytes or welcome.max_batch_bytes < BLOCK_BYTES
        if welcome.protocol_version != welcomes[0].protocol_version or not known or granted < 1 or limited:
            raise ProtocolViolation(f"{bookie_id} sent an invalid welcome: {welcome}")
