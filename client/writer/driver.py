"""Performs the actions of a ``WriterMachine``: connections, sends, timers, metadata updates.

All decisions are the machine's. One driver serves one ledger handle, on one event loop.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, TypeVar, assert_never

from tallybook.core.answers import AddAnswer
from tallybook.core.coverage import sometimes
from tallybook.core.errors import OK_CODE, BookieUnavailable, LedgerFenced, TallybookError
from tallybook.core.ids import NO_ENTRY
from tallybook.core.settings import ClientSettings
from tallybook.metadata.ledger.model import LedgerMetadata, LedgerState, record_missed
from tallybook.runtime.clock import Clock
from tallybook.runtime.concurrency.backoff import Backoff, jittered, lengthened
from tallybook.runtime.tasks import Tasks
from tallybook.runtime.tracing.port import Span, under

from ..background import defect, defect_of
from ..connection.port import AddInFlight, BookieConnection
from ..placement.replacement import ReplacementFinder
from ..ports import UpdateLedger
from .actions import (
    BatchLimitsKnown,
    ChangeEnsemble,
    Confirmed,
    Died,
    MissedChanged,
    Reconnect,
    Rejoin,
    Released,
    Replaced,
    ReplacementWanted,
    Send,
    SendLater,
    WriterAction,
)
from .ensemble.members import MemberState
from .ensemble_change import EnsembleChanger
from .explicit_lacs import LacProgress
from .force import ForceRound, requested_pause_s
from .loop_attention import LoopAttention
from .machine import WriterMachine
from .shared import SharedWriterServices
from .timer import WriterTimer

T = TypeVar("T")


class WriterEvents(Protocol):
    """Receives the events of a writer's driver."""

    def confirmed(self, last_entry_id: int) -> None:
        """Every entry up to ``last_entry_id`` is confirmed."""

    def released(self, size: int) -> None:
        """``size`` bytes of batches are no longer retained."""

    def ensemble_changed(self, metadata: LedgerMetadata) -> None:
        """The metadata store has confirmed another ensemble."""

    def sizes_known(self) -> None:
        """The batch limits of the bookies are known."""

    def died(self, error: TallybookError) -> None:
        """Nothing more will be confirmed."""


@dataclass(slots=True, eq=False)
class _Link:
    """The connection to the bookie at one ensemble position."""

    driver: WriterDriver
    position: int
    bookie_id: str
    connection: BookieConnection | None = None
    attached_over: BookieConnection | None = None
    """The connection over which the ledger was attached; the attachment outlives the connection, until ``detach``."""
    generation: int = 0
    """Counts connections: failures of an earlier connection are ignored."""
    waiting: bool = False
    """Whether a connection is wanted."""
    timer: asyncio.TimerHandle | None = None
    """Runs until the connection is requested."""
    opened_at: float = float("-inf")
    refused_at: float = float("-inf")
    refusals: int = 0
    """Refusals since the last ack; each one lengthens the pause before the next attempt."""
    sendings: dict[int, AddInFlight] = field(default_factory=dict)
    """Unanswered batches of the connection, by first entry."""

    def reached(self, connection: BookieConnection) -> None:
        """See ``ConnectionWaiter``."""
        self.driver.reached(self, connection)

    def unreached(self, error: TallybookError) -> None:
        """See ``ConnectionWaiter``."""
        self.driver.unreached(self, error)

    def broken(self, error: TallybookError) -> None:
        """See ``ConnectionWaiter``."""
        self.driver.die(error)

    def cancel_wait(self) -> None:
        """Stop waiting for a connection."""
        self.waiting = False
        if self.timer is not None:
            self.timer.cancel()
        self.driver.common.connector.leave(self.bookie_id, self)

    def owed_since(self, first: int) -> float | None:
        """Since when the bookie owes the ack of a batch, if the connection knows."""
        sending = self.sendings.get(first)
        return None if sending is None else sending.owed_since

    def drop(self, silence_s: float, attention: LoopAttention) -> None:
        """Stop using the connection; break it, with everything queued on it, if it was silent for ``silence_s``.

        Other writers share it: while it answers them, only this ledger's unsent batches are withdrawn. The ledger stays
        attached.
        """
        given_up, self.connection = self.connection, None
        if given_up is not None and attention.now() - attention.at(given_up.progress_at) >= silence_s:
            sometimes("writer: breaks a silent connection")
            self.sendings = {}
            given_up.abort()
            return
        self._withdraw()

    def _withdraw(self) -> None:
        sendings, self.sendings = self.sendings, {}
        for sending in sendings.values():
            sending.withdraw()

    def detach(self, ledger_id: int) -> None:
        """Have the bookie forget the ledger, over this connection or a later one; withdraw unsent batches."""
        # A batch sent after this would attach the ledger again.
        self._withdraw()
        if self.attached_over is not None:
            self.attached_over.forget(ledger_id)


class WriterDriver:
    """Runs one ``WriterMachine``.

    Args:
        machine: decides.
        common: services shared by the writers of a client.
        key: the ledger key for bookies.
        update: compare-and-set on the ledger's metadata, to record missed ranges.
        spans: spans of traced batches, by first entry; ``None``: tracing is off.
        limits: receives the batch limit of each bookie on connecting.
    """

    def __init__(
        self,
        machine: WriterMachine,
        metadata: LedgerMetadata,
        common: SharedWriterServices,
        replacements: ReplacementFinder,
        key: bytes,
        update: UpdateLedger,
        clock: Clock,
        tasks: Tasks,
        settings: ClientSettings,
        spans: Mapping[int, Span] | None = None,
        limits: dict[str, int] | None = None,
    ) -> None:
        self.machine = machine
        self._spans = spans
        self.common = common
        self._attention = common.attention
        self._timer: WriterTimer | None = None
        """The client's timer that will call ``tick``, if any."""
        self._limits = {} if limits is None else limits
        self._links = [_Link(self, at, bookie) for at, bookie in enumerate(machine.fragment.bookies)]
        self._key = key
        self._identity = metadata.identity
        self._update = update
        self._clock = clock
        self._tasks = tasks
        self._settings = settings
        self._deferred = machine.rules.deferred
        self._silence_s = machine.rules.add_timeout_s
        self._stopped = False
        self._moved = asyncio.Event()
        self._missed_stale = False
        self._recording = False
        self._record_again_at = float("-inf")
        quiet_s = settings.explicit_lac_ms / 1000
        self._lacs = LacProgress(len(self._links), machine.lac, clock.monotonic(), quiet_s=quiet_s)
        self._lac_shown = NO_ENTRY
        """The LAC that enough members have acked for every reader to see it."""
        self._changer = EnsembleChanger(
            machine,
            metadata,
            replacements,
            update,
            clock,
            perform=self._perform,
            learned=self._learned,
            spawn=self._spawn,
            common=common,
        )

    def start(self, events: WriterEvents) -> None:
        """Start connecting to every bookie of the ensemble.

        Args:
            events: receives confirmations and the writer's end.
        """
        self._events = events
        for link in self._links:
            self._reconnect(link)
        self._let_visit()

    def _learned(self, metadata: LedgerMetadata) -> None:
        self._events.ensemble_changed(metadata)

    def submit(self, first: int, last: int, payload_bytes: int, batch: bytes) -> None:
        """Send a sealed batch to its write set."""
        self._lacs.batch_sent(self.machine.lac, self._clock.monotonic())
        self._attention.watch()
        self._perform(self.machine.submit(first, last, payload_bytes, batch, self._attention.now()))

    def die(self, error: TallybookError) -> None:
        """Stop confirming."""
        self._perform(self.machine.die(error))

    async def await_acks(self, timeout_s: float) -> None:
        """Give live members up to ``timeout_s`` to ack confirmed batches."""
        deadline = self._clock.monotonic() + timeout_s
        while not self.machine.all_acked and (left := deadline - self._clock.monotonic()) > 0:
            self._moved.clear()
            try:
                async with asyncio.timeout(left):
                    await self._moved.wait()
            except TimeoutError:
                return

    async def show(self) -> int:
        """Send the LAC to bookies now; return the LAC that every reader sees, because enough bookies know it; or -1.

        A failed writer can do this, too, until it is stopped or its client closed: its LAC remains valid.
        """
        lac = self.machine.lac
        if self._lac_shown < lac and not self._stopped and not self._tasks.closing:
            everyone = set(range(len(self._links)))
            telling = {
                self._spawn(self._write_lac(link.connection, lac), f"show-{link.position}"): link.position
                for link in self._links
                if link.connection is not None
            }
            waiting, heard = set(telling), set[int]()
            while waiting and self.machine.quorum.covered(everyone - heard):
                # Slower bookies receive it as well, but are not waited for.
                _, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                heard = {at for each, at in telling.items() if each.done() and not each.cancelled() and each.result()}
            if not self.machine.quorum.covered(everyone - heard):
                # Every reader asks so many bookies that at least one of them knows the LAC.
                self._lac_shown = max(lac, self._lac_shown)
        return self._lac_shown

    async def force(self) -> None:
        """Have every bookie make its acked entries durable, and move the LAC to the entries confirmed before.

        Raises:
            NotEnoughBookies: a bookie was unavailable for the add timeout, or lost entries; the writer has ended.
        """
        forcing = ForceRound(self.machine)
        outcomes = await asyncio.gather(*(self._force(link, forcing) for link in self._links), return_exceptions=True)
        for outcome in outcomes:
            if outcome is not None:
                raise outcome
        if self.machine.error is not None:
            raise self.machine.error.with_traceback(None)

    async def _force(self, link: _Link, forcing: ForceRound) -> None:
        """Ask one bookie until the round does not await it any more."""
        deadline = self._clock.monotonic() + self._settings.add_timeout_ms / 1000
        backoff = Backoff(self._clock, self.common.rng, first_s=self._settings.reconnect_ms / 1000, deadline=deadline)
        while forcing.awaits(link.position):
            connection = link.connection
            failed: TallybookError = BookieUnavailable(f"{link.bookie_id} is not connected")
            if connection is not None:
                try:
                    await connection.force(self.machine.ledger_id, self._key, identity=self._identity)
                except TallybookError as error:
                    failed = error
                    current = connection is link.connection
                    self._perform(forcing.failed(link.position, error, connected=current, now=self._attention.now()))
                else:
                    self._perform(forcing.done(link.position))
                    return
            if forcing.awaits(link.position) and not await backoff.pause(requested_pause_s(failed)):
                self._perform(forcing.timed_out(link.position, failed))

    def stop(self) -> None:
        """End background work; connections stay in the pool."""
        self._stopped = True
        if self._timer is not None:
            self._timer.leave(self)
        self._changer.stop()
        for link in self._links:
            link.cancel_wait()
            self._drop(link)
            link.detach(self.machine.ledger_id)

    def _spawn(self, work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        task = self._tasks.spawn(work, name=f"writer-{self.machine.ledger_id}-{name}")
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        """End the writer if one of its tasks ended with an unexpected error."""
        error = defect_of(task)
        if error is not None:
            self.die(error)

    def _guarded(self, call: Callable[[], None]) -> None:
        """The same for callbacks: an unexpected error ends this writer only."""
        try:
            call()
        except Exception as error:  # noqa: BLE001 - it must not end the task that the writers of a client share
            self.die(defect(f"writer-{self.machine.ledger_id}", error))

    # -- actions ----------------------------------------------------------------------

    def _perform(self, actions: list[WriterAction]) -> None:
        for action in actions:
            match action:
                case Send():
                    self._send(action)
                case Confirmed():
                    self._events.confirmed(action.last_entry_id)
                case Released():
                    self._events.released(action.size)
                case SendLater():
                    self._send_later(action)
                case BatchLimitsKnown():
                    self._events.sizes_known()
                case Reconnect():
                    self._reconnect(self._links[action.position], breaking=action.breaking)
                case Rejoin():
                    link = self._links[action.position]
                    link.refusals += 1
                    link.refused_at = self._clock.monotonic()
                    self._reconnect(link)
                case MissedChanged():
                    self._missed_stale = True
                case ReplacementWanted():
                    self._changer.start()
                case Replaced():
                    self._relink(action)
                case Died():
                    self._events.died(action.error)
                    self._detach_all()
                case ChangeEnsemble():
                    self._changer.write_next(action)
                case _:
                    assert_never(action)
        if actions:
            self._moved.set()
        self._let_visit()
        if (pause_s := self._lacs.pause_s(self.machine.lac)) is not None:
            self.common.lacs.call_in(pause_s, self)

    def _send(self, action: Send) -> None:
        link = self._links[action.position]
        if link.connection is None:
            return
        answered = partial(self._answered, link, link.generation)
        first = action.first_entry_id
        if self._spans is None:
            link.sendings[first] = link.connection.add(
                action.batch, self._key, answered, deferred=self._deferred, identity=self._identity
            )
        else:
            # Sends are also triggered by answers to other batches, so the current span may be another one's.
            with under(self._spans.get(first)):
                link.sendings[first] = link.connection.add(
                    action.batch, self._key, answered, deferred=self._deferred, identity=self._identity
                )

    def _answered(self, link: _Link, generation: int, answer: AddAnswer) -> None:
        if generation == link.generation:
            link.sendings.pop(answer.first_entry_id, None)
        if answer.code == OK_CODE:
            link.refusals = 0
            self._perform(self.machine.acked(link.position, answer.first_entry_id, link.bookie_id))
        elif generation == link.generation and self._current(link):
            self._perform(self.machine.refused(link.position, answer, self._attention.now()))

    def _send_later(self, action: SendLater) -> None:
        link = self._links[action.position]

        async def resume() -> None:
            await self._clock.sleep(lengthened(self.common.rng, action.delay_ms / 1000))
            if self._current(link):
                self._perform(self.machine.resume(action.position, action.pause, self._attention.now()))

        self._spawn(resume(), "busy")

    # -- connections ------------------------------------------------------------------

    def _current(self, link: _Link) -> bool:
        """Whether its bookie is still the member at the position."""
        return self._links[link.position] is link

    def _detach_all(self) -> None:
        """Detach the ledger from all bookies and stop connecting: nothing more will be added."""
        for link in self._links:
            link.cancel_wait()
            link.detach(self.machine.ledger_id)

    def _drop(self, link: _Link, *, if_silent: bool = False) -> None:
        """Stop using its connection; break it ``if_silent``."""
        link.drop(self._silence_s if if_silent else math.inf, self._attention)

    def _relink(self, action: Replaced) -> None:
        """Connect to the replacement bookies; answers of the replaced ones are ignored."""
        for at in action.positions:
            self._links[at].cancel_wait()
            self._drop(self._links[at], if_silent=at in action.silent)
            self._links[at].detach(self.machine.ledger_id)
            self._links[at] = _Link(self, at, self.machine.fragment.bookies[at])
            self._lacs.replaced(at)
            self._reconnect(self._links[at])

    def _reconnect(self, link: _Link, *, breaking: bool = False) -> None:
        link.generation += 1
        if breaking:
            # The bookie may hang and still accept connections: back off more each time.
            link.refusals += 1
            link.refused_at = self._clock.monotonic()
        # Batches queued for a bookie that does not keep up must not stay in memory.
        self._drop(link, if_silent=breaking)
        if not link.waiting and not self._stopped:
            link.waiting = True
            # Without a pause, a bookie that accepts the connection and then refuses would be asked in a tight loop.
            # The connection may be old, so its age alone is no pause.
            again_at = max(link.opened_at, link.refused_at) + self._reconnect_pause_s(link.refusals)
            pause_s = again_at - self._clock.monotonic()
            if pause_s > 0:
                link.timer = asyncio.get_running_loop().call_later(pause_s, self._want, link)
            else:
                self._want(link)

    def _want(self, link: _Link) -> None:
        """Request a connection, unless the writer has ended or the position has another bookie."""
        if not self._stopped and self.machine.error is None and self._current(link):
            self.common.connector.want(link.bookie_id, link)
        else:
            link.waiting = False

    def reached(self, link: _Link, connection: BookieConnection) -> None:
        """A connection for a position is available."""
        link.waiting = False
        if self._current(link):
            self._guarded(partial(self._connected, link, connection))

    def unreached(self, link: _Link, error: TallybookError) -> None:
        """A connection attempt failed; the machine decides how long to wait."""
        if self._current(link):
            self._guarded(lambda: self._perform(self.machine.unreached(link.position, error)))

    def _reconnect_pause_s(self, refusals: int) -> float:
        """Pause before the next connection attempt: doubles with every refusal, up to the add timeout."""
        shortest_s = self._settings.reconnect_ms / 1000
        longest_s = max(shortest_s, self._settings.add_timeout_ms / 1000)
        return jittered(self.common.rng, min(shortest_s * 2.0 ** min(refusals, 16), longest_s))

    def _connected(self, link: _Link, connection: BookieConnection) -> None:
        if self._stopped or self.machine.error is not None:
            # The writer ended while the connection was made; attaching now would last as long as the client.
            return
        if refusing := self.machine.identified(link.position, connection.incarnation):
            self._perform(refusing)
            return
        link.connection, link.opened_at = connection, self._clock.monotonic()
        self._limits[link.bookie_id] = connection.max_batch_bytes
        # While attached, the ledger has a writer, and is not recovered as abandoned even if idle.
        link.attached_over = connection
        connection.attach(
            self.machine.ledger_id,
            self._key,
            deferred=self._deferred,
            identity=self._identity,
            on_replaced=partial(self._found_replaced, link),
        )
        self._lacs.connected(link.position, self.machine.lac)
        self._perform(self.machine.connected(link.position, self._attention.now()))

    def _found_replaced(self, link: _Link) -> None:
        """The bookie's disk was replaced, perhaps while the writer was idle."""
        if self._current(link) and not self._stopped and self.machine.error is None:
            self._guarded(lambda: self._perform(self.machine.gone(link.position)))

    # -- timers -----------------------------------------------------------------------

    def _let_visit(self) -> None:
        """Schedule ``tick`` after an event. A writer at rest needs no timer."""
        if self._timer is None and not self._stopped:
            self._timer = self.common.timer(urgent=self.machine.quorum_lost)
            self._timer.visit(self)

    def tick(self) -> None:
        """Called by the timer: check timeouts, and record missed ranges in the metadata."""
        self._guarded(self._tick)
        self._timer = None
        if self.machine.error is None and (self._missed_stale or not self.machine.at_rest):
            self._let_visit()

    def _tick(self) -> None:
        now = self._clock.monotonic()
        judged_at = self._attention.now()
        for position, first in self.machine.suspects(judged_at):
            if (since := self._links[position].owed_since(first)) is not None:
                self.machine.owed_since(position, first, self._attention.at(since))
        self._perform(self.machine.tick(judged_at))
        if self._missed_stale and not self._recording and self.machine.error is None and now >= self._record_again_at:
            # In the background: the metadata store may be slow.
            self._recording = True
            self._spawn(self._record_missed(), "missed")

    def lac_is_due(self) -> None:
        """Send an explicit LAC, unless a batch has carried the LAC since it moved."""
        if self._stopped or self.machine.error is not None:
            return
        connected = {
            link.position: link.connection
            for link in self._links
            if link.connection is not None and self.machine.member(link.position) is MemberState.UP
        }
        lac = self.machine.lac
        due = self._lacs.due(lac, self._clock.monotonic(), connected)
        if due.again_s is not None:
            self.common.lacs.call_in(due.again_s, self)
        for position in due.positions:
            link = self._links[position]
            on_lost = partial(self._lac_lost, link, link.generation)
            connected[position].queue_lac(
                self.machine.ledger_id, lac, self._key, identity=self._identity, on_lost=on_lost
            )

    def _lac_lost(self, link: _Link, generation: int) -> None:
        """The connection was lost before the bookie took the LAC: send it over the next one."""
        if self._stopped or not self._current(link):
            return
        self._lacs.lost(link.position)
        lost = generation == link.generation
        self._guarded(
            lambda: self._perform(self.machine.disconnected(link.position, self._attention.now()) if lost else [])
        )

    async def _write_lac(self, connection: BookieConnection, lac: int) -> bool:
        """Send the LAC to one bookie; return whether the bookie has stored it."""
        try:
            await connection.write_lac(self.machine.ledger_id, lac, self._key, identity=self._identity)
        except TallybookError:
            # The next batch or the close carries it; readers only see the entry later. If the ledger was fenced, the
            # answer to the next batch says so.
            return False
        return True

    async def _record_missed(self) -> None:
        try:
            async with self.common.metadata.turn():
                self._missed_stale = False
                await self._update(self._with_missed)
        except TallybookError as error:
            if error.retriable:
                self._missed_stale = True
                self._record_again_at = self._clock.monotonic() + self._settings.reconnect_ms / 1000
            else:
                self.die(error)
        finally:
            self._recording = False

    def _with_missed(self, metadata: LedgerMetadata) -> LedgerMetadata:
        if metadata.state is not LedgerState.OPEN:
            raise LedgerFenced(f"ledger {metadata.ledger_id} is not open for writing any more: {metadata.state.value}")
        return record_missed(metadata, self.machine.missed())
