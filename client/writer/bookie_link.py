"""``BookieLink``, the connection of one writer to the bookie at one ensemble position.

It requests a connection after a pause, attaches the ledger, sends batches, LACs and forces, and reports what comes
back to the writer's machine. A link has one bookie: the replacement of a bookie gets another link.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from tallybook.core.answers import AddAnswer
from tallybook.core.coverage import sometimes
from tallybook.core.errors import OK_CODE, BookieUnavailable, TallybookError
from tallybook.core.settings import ClientSettings
from tallybook.runtime.clock import Clock
from tallybook.runtime.concurrency.backoff import Backoff
from tallybook.runtime.tracing.port import Span, under

from ..connection.port import AddInFlight, BookieConnection
from .actions import Send, WriterAction
from .explicit_lacs import LacProgress
from .force import ForceRound, requested_pause_s
from .machine import WriterMachine
from .shared import SharedWriterServices


class LinkEvents(Protocol):
    """Receives the events of a writer's links."""

    def perform(self, actions: list[WriterAction]) -> None:
        """Perform what the machine decided."""

    def guarded(self, call: Callable[[], None]) -> None:
        """Call; an unexpected error ends this writer only."""

    def die(self, error: TallybookError) -> None:
        """Nothing more will be confirmed."""


@dataclass(frozen=True, slots=True)
class LinkContext:
    """Settings and counters that the links of one writer share.

    Args:
        machine: decides.
        events: receives what the machine decided.
        common: services shared by the writers of a client.
        lacs: which LAC each bookie has been sent.
        key: the ledger key for bookies.
        identity: of the ledger.
        spans: spans of traced batches, by first entry; ``None``: tracing is off.
        limits: receives the batch limit of each bookie on connecting.
    """

    machine: WriterMachine
    events: LinkEvents
    common: SharedWriterServices
    lacs: LacProgress
    clock: Clock
    settings: ClientSettings
    key: bytes
    identity: bytes
    spans: Mapping[int, Span] | None
    limits: dict[str, int]


@dataclass(slots=True, eq=False)
class BookieLink:
    """The connection to the bookie at one ensemble position."""

    context: LinkContext
    position: int
    bookie_id: str
    connection: BookieConnection | None = None
    """``None`` while the bookie is not connected."""
    ended: bool = False
    """Whether the bookie was replaced, or the writer stopped."""
    _attached_over: BookieConnection | None = None
    """The connection over which the ledger was attached; the attachment outlives it, until ``detach``."""
    _generation: int = 0
    """Counts connections: failures of an earlier connection are ignored."""
    _waiting: bool = False
    """Whether a connection is wanted."""
    _timer: asyncio.TimerHandle | None = None
    """Runs until the connection is requested."""
    _opened_at: float = float("-inf")
    _refused_at: float = float("-inf")
    _backoff: Backoff = field(init=False)
    """Pause before the next attempt to connect: each refusal lengthens it, an ack resets it."""
    _sendings: dict[int, AddInFlight] = field(default_factory=dict)
    """Unanswered batches of the connection, by first entry."""

    def __post_init__(self) -> None:
        settings, clock, rng = self.context.settings, self.context.clock, self.context.common.rng
        shortest_s, add_timeout_s = settings.reconnect_ms / 1000, settings.add_timeout_ms / 1000
        self._backoff = Backoff(clock, rng, first_s=shortest_s, longest_s=max(shortest_s, add_timeout_s))

    # -- connecting -------------------------------------------------------------------

    def reconnect(self, *, breaking: bool = False) -> None:
        """Stop using the connection, and request another one after a pause.

        Args:
            breaking: whether the bookie may hang: break a silent connection.
        """
        self._generation += 1
        if breaking:
            # The bookie may hang and still accept connections: back off more each time.
            self._count_refusal()
        # Batches queued for a bookie that does not keep up must not stay in memory.
        self._drop(if_silent=breaking)
        if self._waiting or self.ended:
            return
        self._waiting = True
        # Without a pause, a bookie that accepts the connection and then refuses would be asked in a tight loop.
        # The connection may be old, so its age alone is no pause.
        again_at = max(self._opened_at, self._refused_at) + self._backoff.current_s()
        pause_s = again_at - self.context.clock.monotonic()
        if pause_s > 0:
            self._timer = asyncio.get_running_loop().call_later(pause_s, self._want)
        else:
            self._want()

    def rejoin(self) -> None:
        """The bookie refuses batches of the ledger: reconnect, later with each refusal."""
        self._count_refusal()
        self.reconnect()

    def _count_refusal(self) -> None:
        self._backoff.lengthen()
        self._refused_at = self.context.clock.monotonic()

    def _want(self) -> None:
        """Request a connection, unless the writer or the link has ended."""
        if not self.ended and self.context.machine.error is None:
            self.context.common.connector.want(self.bookie_id, self)
        else:
            self._waiting = False

    def reached(self, connection: BookieConnection) -> None:
        """See ``ConnectionWaiter``."""
        self._waiting = False
        if not self.ended:
            self.context.events.guarded(partial(self._connected, connection))

    def unreached(self, error: TallybookError) -> None:
        """See ``ConnectionWaiter``; the machine decides how long to wait."""
        if not self.ended:
            context = self.context
            context.events.guarded(lambda: context.events.perform(context.machine.unreached(self.position, error)))

    def broken(self, error: TallybookError) -> None:
        """See ``ConnectionWaiter``."""
        self.context.events.die(error)

    def _connected(self, connection: BookieConnection) -> None:
        context, machine = self.context, self.context.machine
        if machine.error is not None:
            # The writer ended while the connection was made; attaching now would last as long as the client.
            return
        if refusing := machine.identified(self.position, connection.incarnation):
            context.events.perform(refusing)
            return
        self.connection, self._opened_at = connection, context.clock.monotonic()
        context.limits[self.bookie_id] = connection.max_batch_bytes
        # While attached, the ledger has a writer, and is not recovered as abandoned even if idle.
        self._attached_over = connection
        connection.attach(
            machine.ledger_id,
            context.key,
            deferred=machine.rules.deferred,
            identity=context.identity,
            on_replaced=self._found_replaced,
        )
        context.lacs.connected(self.position, machine.lac)
        context.events.perform(machine.connected(self.position, context.common.attention.now()))

    def _found_replaced(self) -> None:
        """The bookie's disk was replaced, perhaps while the writer was idle."""
        context = self.context
        if not self.ended and context.machine.error is None:
            context.events.guarded(lambda: context.events.perform(context.machine.gone(self.position)))

    # -- disconnecting ----------------------------------------------------------------

    def end(self, *, if_silent: bool = False) -> None:
        """Leave the bookie for good: the writer stops, or the bookie was replaced.

        Args:
            if_silent: break a silent connection.
        """
        self.ended = True
        self._drop(if_silent=if_silent)
        self.detach()

    def detach(self) -> None:
        """Stop connecting, withdraw unsent batches, and have the bookie forget the ledger: nothing more is added.

        The bookie forgets it over this connection or a later one.
        """
        self._waiting = False
        if self._timer is not None:
            self._timer.cancel()
        self.context.common.connector.leave(self.bookie_id, self)
        # A batch sent after this would attach the ledger again.
        self._withdraw()
        if self._attached_over is not None:
            self._attached_over.forget(self.context.machine.ledger_id)

    def _drop(self, *, if_silent: bool) -> None:
        """Stop using the connection; ``if_silent``, break it with everything queued on it.

        Other writers share it: while it answers them, only this ledger's unsent batches are withdrawn. The ledger stays
        attached.
        """
        given_up, self.connection = self.connection, None
        attention = self.context.common.attention
        silence_s = self.context.machine.rules.add_timeout_s if if_silent else math.inf
        if given_up is not None and attention.now() - attention.at(given_up.progress_at) >= silence_s:
            sometimes("writer: breaks a silent connection")
            self._sendings = {}
            given_up.abort()
            return
        self._withdraw()

    def _withdraw(self) -> None:
        sendings, self._sendings = self._sendings, {}
        for sending in sendings.values():
            sending.withdraw()

    # -- batches ----------------------------------------------------------------------

    def send(self, action: Send) -> None:
        """Send a batch, if the bookie is connected."""
        if self.connection is None:
            return
        context, first = self.context, action.first_entry_id
        answered, deferred = partial(self._answered, self._generation), context.machine.rules.deferred
        if context.spans is None:
            self._sendings[first] = self.connection.add(
                action.batch, context.key, answered, deferred=deferred, identity=context.identity
            )
        else:
            # Sends are also triggered by answers to other batches, so the current span may be another one's.
            with under(context.spans.get(first)):
                self._sendings[first] = self.connection.add(
                    action.batch, context.key, answered, deferred=deferred, identity=context.identity
                )

    def _answered(self, generation: int, answer: AddAnswer) -> None:
        current, context = generation == self._generation, self.context
        if current:
            self._sendings.pop(answer.first_entry_id, None)
        if answer.code == OK_CODE:
            self._backoff.reset()
            context.events.perform(context.machine.acked(self.position, answer.first_entry_id, self.bookie_id))
        elif current and not self.ended:
            context.events.perform(context.machine.refused(self.position, answer, context.common.attention.now()))

    def owed_since(self, first: int) -> float | None:
        """Since when the bookie owes the ack of a batch, if the connection knows."""
        sending = self._sendings.get(first)
        return None if sending is None else sending.owed_since

    async def force(self, forcing: ForceRound) -> None:
        """Ask the bookie to make its acked entries durable, until the round does not await it any more."""
        context, machine = self.context, self.context.machine
        deadline = context.clock.monotonic() + context.settings.add_timeout_ms / 1000
        first_s = context.settings.reconnect_ms / 1000
        backoff = Backoff(context.clock, context.common.rng, first_s=first_s, deadline=deadline)
        while forcing.awaits(self.position):
            connection = self.connection
            failed: TallybookError = BookieUnavailable(f"{self.bookie_id} is not connected")
            if connection is not None:
                try:
                    await connection.force(machine.ledger_id, context.key, identity=context.identity)
                except TallybookError as error:
                    failed, now = error, context.common.attention.now()
                    current = connection is self.connection
                    context.events.perform(forcing.failed(self.position, error, connected=current, now=now))
                else:
                    context.events.perform(forcing.done(self.position))
                    return
            if forcing.awaits(self.position) and not await backoff.pause(requested_pause_s(failed)):
                context.events.perform(forcing.timed_out(self.position, failed))

    # -- explicit LACs ----------------------------------------------------------------

    async def write_lac(self, lac: int) -> bool:
        """Send the LAC now; return whether the bookie has stored it."""
        context = self.context
        if self.connection is None:
            return False
        try:
            await self.connection.write_lac(context.machine.ledger_id, lac, context.key, identity=context.identity)
        except TallybookError:
            # The next batch or the close carries it; readers only see the entry later. If the ledger was fenced, the
            # answer to the next batch says so.
            return False
        return True

    def queue_lac(self, lac: int) -> None:
        """Send the LAC together with those of other ledgers."""
        context = self.context
        if self.connection is not None:
            on_lost = partial(self._lac_lost, self._generation)
            self.connection.queue_lac(
                context.machine.ledger_id, lac, context.key, identity=context.identity, on_lost=on_lost
            )

    def _lac_lost(self, generation: int) -> None:
        """The connection was lost before the bookie took the LAC: send it over the next one."""
        if self.ended:
            return
        context = self.context
        context.lacs.lost(self.position)
        lost = generation == self._generation
        now = context.common.attention.now()
        context.events.guarded(
            lambda: context.events.perform(context.machine.disconnected(self.position, now) if lost else [])
        )
