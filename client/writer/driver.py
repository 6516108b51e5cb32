"""Does what the writer machine says: connections, sends, timers, metadata notes.

All decisions are the machine's; this is the thin shell between it and the world. One driver
serves one ledger handle and lives on one event loop.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from tallybook.core.answers import AddAnswer, Incarnation
from tallybook.core.config import ClientSettings
from tallybook.core.errors import (
    OK_CODE,
    BookieUnavailable,
    Busy,
    InvariantViolation,
    LedgerFenced,
    NotEnoughBookies,
    PeerError,
    StorageError,
    TallybookError,
)
from tallybook.core.ids import NO_ENTRY
from tallybook.core.marks import sometimes
from tallybook.metadata.model import LedgerMetadata, LedgerState, record_missed
from tallybook.runtime.clock import Clock
from tallybook.runtime.tasks import Tasks
from tallybook.runtime.tracing import Span, under

from ..background import defect, defect_of
from ..bookie_port import BookieConnection, Sending
from ..ports import UpdateLedger
from ..spares import Spares
from .actions import (
    Action,
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
    SizesKnown,
)
from .attention import Attention
from .codes import CONNECTION_CODES
from .common import CommonWork
from .events import WriterEvents
from .machine import WriterMachine
from .members import Member
from .replacing import Replacing
from .rounds import Rounds

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class _Link:
    """The connection to the bookie that holds one position of the ensemble."""

    driver: WriterDriver
    position: int
    bookie_id: str
    connection: BookieConnection | None = None
    attached_over: BookieConnection | None = None
    """Where the bookie was told that the ledger has a writer: this outlives the connection, until ``detach``."""
    incarnation: Incarnation | None = None
    """The life of the bookie that answered first, or last where any life of the same directories will do."""
    generation: int = 0
    """Counts connections: a failure reported by an earlier one says nothing about this one."""
    waiting: bool = False
    """For a connection."""
    timer: asyncio.TimerHandle | None = None
    """Until it waits for one."""
    opened_at: float = float("-inf")
    refused_at: float = float("-inf")
    refusals: int = 0
    """How often it refused since it last acked: each time it is left alone for longer."""
    lac_told: int = NO_ENTRY
    """The highest LAC that the bookie was told alone."""
    sendings: dict[int, Sending] = field(default_factory=dict)
    """Batches that the connection was given and has not answered, by their first entry."""

    def reached(self, connection: BookieConnection) -> None:
        """See ``Waiting``."""
        self.driver.reached(self, connection)

    def unreached(self, error: TallybookError) -> None:
        """See ``Waiting``."""
        self.driver.unreached(self, error)

    def broken(self, error: TallybookError) -> None:
        """See ``Waiting``."""
        self.driver.die(error)

    def wait_no_more(self) -> None:
        """No connection is wanted any more."""
        self.waiting = False
        if self.timer is not None:
            self.timer.cancel()
        self.driver.common.reaching.leave(self.bookie_id, self)

    def owed_since(self, first: int) -> float | None:
        """From when on its bookie owes the ack of a batch, where the connection knows."""
        sending = self.sendings.get(first)
        return None if sending is None else sending.owed_since

    def drop(self, silence_s: float, attention: Attention) -> None:
        """Have nothing more to do with the connection; break it, with all that is queued on it, if it is silent.

        Others share it: while it answers them, only what is not sent yet of this ledger goes. The ledger stays
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
        """Have the bookie forget the ledger, over this connection or a later one; what is not sent yet goes, too."""
        # A batch that leaves after this would attach the ledger again.
        self._withdraw()
        if self.attached_over is not None:
            self.attached_over.forget(ledger_id)


class WriterDriver:
    """Runs one ``WriterMachine``.

    Args:
        machine: the rules.
        common: shared by the writers of a client.
        key: the ledger key shown to bookies.
        update: compare-and-set on the ledger's metadata, for what members missed.
        events: whom to tell.
        spans: of batches that are traced, by their first entry; ``None``: none ever is.
        limits: told of the largest batch of each bookie that is connected to.
    """

    def __init__(
        self,
        machine: WriterMachine,
        metadata: LedgerMetadata,
        common: CommonWork,
        spares: Spares,
        key: bytes,
        update: UpdateLedger,
        events: WriterEvents,
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
        self._rounds: Rounds | None = None
        """Which of the client's timers visits it, if one does."""
        self._limits = {} if limits is None else limits
        self._links = [_Link(self, at, bookie) for at, bookie in enumerate(machine.fragment.bookies)]
        self._key = key
        self._identity = metadata.identity
        self._update = update
        self._events = events
        self._clock = clock
        self._tasks = tasks
        self._settings = settings
        self._deferred = machine.rules.deferred
        self._silence_s = machine.rules.add_timeout_s
        self._stopped = False
        self._moved = asyncio.Event()
        self._lac_awaited = False
        """Whether ``lac_is_due`` is to be called."""
        self._missed_stale = False
        self._recording = False
        self._record_again_at = float("-inf")
        self._quiet_since = clock.monotonic()
        self._lac_sent = machine.lac
        """The LAC that was told to all who are there, or that a batch carries."""
        self._lac_shown = NO_ENTRY
        """Up to where so many have answered that they have heard of it that no reader misses it."""
        self._replacing = Replacing(
            machine,
            metadata,
            spares,
            update,
            clock,
            perform=self._perform,
            learned=events.ensemble_changed,
            spawn=self._spawn,
            common=common,
        )

    def start(self) -> None:
        """Begin to connect to every bookie of the ensemble."""
        for link in self._links:
            self._reconnect(link)
        self._let_visit()

    def submit(self, first: int, last: int, payload_bytes: int, batch: bytes) -> None:
        """Send a sealed batch to its write set."""
        self._quiet_since = self._clock.monotonic()
        self._lac_sent = self.machine.lac
        self._attention.watch()
        self._perform(self.machine.submit(first, last, payload_bytes, batch, self._attention.now()))

    def die(self, error: TallybookError) -> None:
        """Stop confirming."""
        self._perform(self.machine.die(error))

    async def settle(self, timeout_s: float) -> None:
        """Give live members up to ``timeout_s`` to ack what is confirmed already."""
        deadline = self._clock.monotonic() + timeout_s
        while not self.machine.settled and (left := deadline - self._clock.monotonic()) > 0:
            self._moved.clear()
            try:
                async with asyncio.timeout(left):
                    await self._moved.wait()
            except TimeoutError:
                return

    async def show(self) -> int:
        """Tell bookies the LAC now; return what so many of them have heard that every reader hears it, -1 for nothing.

        A writer that has ended for itself does so, too, until it is stopped, or its client closed: its LAC stands.
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
                # Those that take longer are told all the same, and not waited for.
                _, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                heard = {at for each, at in telling.items() if each.done() and not each.cancelled() and each.result()}
            if not self.machine.quorum.covered(everyone - heard):
                # Whoever reads asks so many that one who has heard is among them.
                self._lac_shown = max(lac, self._lac_shown)
        return self._lac_shown

    async def force(self) -> None:
        """Have every bookie make durable what it has acked, and move the LAC to what was confirmed before.

        A bookie that is busy or away is waited for, as long as its life is the one that acked. Any failure ends the
        writer: an entry that was acked may be lost, and the LAC cannot pass it.

        Raises:
            NotEnoughBookies: one of them was away for the add timeout, or has lost it; the writer has ended.
        """
        through, length = self.machine.confirmed, self.machine.confirmed_length
        outcomes = await asyncio.gather(*map(self._force, self._links), return_exceptions=True)
        if self.machine.error is None:
            for link, outcome in zip(self._links, outcomes, strict=True):
                if isinstance(outcome, PeerError | StorageError):
                    reason = f"{link.bookie_id} could not make durable what it had acked: {outcome.message}"
                    self.die(NotEnoughBookies(f"ledger {self.machine.ledger_id}: {reason}"))
                elif isinstance(outcome, TallybookError):
                    self.die(outcome)
                elif isinstance(outcome, BaseException):
                    raise outcome
        if self.machine.error is not None:
            raise self.machine.error.with_traceback(None)
        self._perform(self.machine.forced(through, length))

    async def _force(self, link: _Link) -> None:
        """Ask one bookie until it has done it. One that comes back in the same life still has what it acked."""
        deadline = self._clock.monotonic() + self._settings.add_timeout_ms / 1000
        while self.machine.error is None:
            connection = link.connection
            pause_ms: int = self._settings.reconnect_ms
            failed: PeerError = BookieUnavailable(f"{link.bookie_id} is not connected")
            if connection is not None:
                try:
                    await connection.force(self.machine.ledger_id, self._key, identity=self._identity)
                except Busy as busy:
                    failed, pause_ms = busy, max(busy.retry_after_ms, 1)
                except PeerError as error:
                    failed = error
                    if connection is link.connection and error.wire_code in CONNECTION_CODES:
                        self._perform(self.machine.disconnected(link.position, self._attention.now()))
                else:
                    return
            if self._clock.monotonic() + pause_ms / 1000 >= deadline:
                raise failed
            await self._clock.sleep(pause_ms / 1000)

    def stop(self) -> None:
        """End background work; connections stay with the pool they came from."""
        self._stopped = True
        if self._rounds is not None:
            self._rounds.leave(self)
        self._replacing.stop()
        for link in self._links:
            link.wait_no_more()
            self._drop(link)
            link.detach(self.machine.ledger_id)

    def _spawn(self, work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        task = self._tasks.spawn(work, name=f"writer-{self.machine.ledger_id}-{name}")
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        """A writer whose timers or connections died of a defect must not look alive."""
        error = defect_of(task)
        if error is not None:
            self.die(error)

    def _guarded(self, call: Callable[[], None]) -> None:
        """The same for what others call in the background."""
        try:
            call()
        except Exception as error:  # noqa: BLE001 - it must not end what the writers of a client share
            self.die(defect(f"writer-{self.machine.ledger_id}", error))

    # -- actions ----------------------------------------------------------------------

    def _perform(self, actions: list[Action]) -> None:
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
                case SizesKnown():
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
                    self._replacing.look()
                case Replaced():
                    self._relink(action)
                case Died():
                    self._events.died(action.error)
                    self._let_go()
                case ChangeEnsemble():
                    raise InvariantViolation("only a replacement that was found changes the ensemble")
        if actions:
            self._moved.set()
        self._let_visit()
        if not self._lac_awaited and self.machine.lac > self._lac_sent:
            self._tell_lac_in(self._settings.explicit_lac_ms / 1000)

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
            # Sends come out of the answers to other batches, too, so the span that is current may be anybody's.
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
            await self._clock.sleep(max(action.delay_ms, 1) / 1000)
            if self._current(link):
                self._perform(self.machine.resume(action.position, action.pause, self._attention.now()))

        self._spawn(resume(), "busy")

    # -- connections ------------------------------------------------------------------

    def _current(self, link: _Link) -> bool:
        """Whether its bookie still holds the position."""
        return self._links[link.position] is link

    def _let_go(self) -> None:
        """Bookies need not know any more that the ledger has a writer: it adds nothing more, and reaches for none."""
        for link in self._links:
            link.wait_no_more()
            link.detach(self.machine.ledger_id)

    def _drop(self, link: _Link, *, if_silent: bool = False) -> None:
        """Leave its connection to others, or break it ``if_silent``."""
        link.drop(self._silence_s if if_silent else math.inf, self._attention)

    def _relink(self, action: Replaced) -> None:
        """Other bookies hold these positions now. What those before them still answer concerns nobody."""
        for at in action.positions:
            self._links[at].wait_no_more()
            self._drop(self._links[at], if_silent=at in action.silent)
            self._links[at].detach(self.machine.ledger_id)
            self._links[at] = _Link(self, at, self.machine.fragment.bookies[at])
            self._reconnect(self._links[at])

    def _reconnect(self, link: _Link, *, breaking: bool = False) -> None:
        link.generation += 1
        if breaking:
            # It may hang and yet let us in: not at once again, and less often each time.
            link.refusals += 1
            link.refused_at = self._clock.monotonic()
        # What it still holds for a bookie that does not keep up must not stay in memory.
        self._drop(link, if_silent=breaking)
        if not link.waiting and not self._stopped:
            link.waiting = True
            # A bookie that lets us in and then refuses must not be asked in a tight loop.
            # The connection may be old, so its age alone is no pause.
            again_at = max(link.opened_at, link.refused_at) + self._patience_s(link.refusals)
            pause_s = again_at - self._clock.monotonic()
            if pause_s > 0:
                link.timer = asyncio.get_running_loop().call_later(pause_s, self._want, link)
            else:
                self._want(link)

    def _want(self, link: _Link) -> None:
        """Wait until the position is connected, gone or another bookie's, or the writer ends."""
        if not self._stopped and self.machine.error is None and self._current(link):
            self.common.reaching.want(link.bookie_id, link)
        else:
            link.waiting = False

    def reached(self, link: _Link, connection: BookieConnection) -> None:
        """A position may be connected."""
        link.waiting = False
        if self._current(link):
            self._guarded(partial(self._connected, link, connection))

    def unreached(self, link: _Link, error: TallybookError) -> None:
        """It is away: expected, the machine counts how long."""
        if self._current(link):
            self._guarded(lambda: self._perform(self.machine.unreached(link.position, error)))

    def _patience_s(self, refusals: int) -> float:
        """How long to leave a position alone: longer with every refusal, up to the add timeout."""
        shortest_s = self._settings.reconnect_ms / 1000
        return max(shortest_s, min(shortest_s * 2.0 ** min(refusals, 16), self._settings.add_timeout_ms / 1000))

    def _connected(self, link: _Link, connection: BookieConnection) -> None:
        if self._stopped or self.machine.error is not None:
            # It ended while the connection was made, and would stay attached as long as the client lives.
            return
        life, before, now = connection.incarnation, link.incarnation, self._clock.monotonic()
        if before is not None and before.directory_uuid != life.directory_uuid:
            self._perform(self.machine.gone(link.position))
            return
        if before is not None and before != life and self._deferred:
            lost = f"{link.bookie_id} was started again: what it acked before it was durable may be lost"
            self.die(NotEnoughBookies(f"ledger {self.machine.ledger_id}: {lost}"))
            return
        link.incarnation, link.connection, link.opened_at = life, connection, now
        self._limits[link.bookie_id] = connection.max_batch_bytes
        # It counts as written, and so is not ended for want of a writer, however idle it is.
        link.attached_over = connection
        connection.attach(
            self.machine.ledger_id,
            self._key,
            deferred=self._deferred,
            identity=self._identity,
            on_replaced=partial(self._found_replaced, link),
        )
        if link.lac_told < self.machine.lac:
            self._lac_sent = NO_ENTRY
        self._perform(self.machine.connected(link.position, self._attention.now()))

    def _found_replaced(self, link: _Link) -> None:
        """The disk of its bookie was replaced, while nothing was sent there maybe."""
        if self._current(link) and not self._stopped and self.machine.error is None:
            self._guarded(lambda: self._perform(self.machine.gone(link.position)))

    # -- timers -----------------------------------------------------------------------

    def _let_visit(self) -> None:
        """Something has happened, so time may change more of it. A writer at rest costs nothing."""
        if self._rounds is None and not self._stopped:
            self._rounds = self.common.rounds(urgent=self.machine.quorum_lost)
            self._rounds.visit(self)

    def tick(self) -> None:
        """Time has passed: timeouts, and notes of what members missed."""
        self._guarded(self._tick)
        self._rounds = None
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
            # The metadata store may take its time; timers go on meanwhile.
            self._recording = True
            self._spawn(self._record_missed(), "missed")

    def lac_is_due(self) -> None:
        """Nothing may have carried the LAC since it moved: tell it alone, unless something was sent meanwhile."""
        self._lac_awaited = False
        if self._stopped or self.machine.error is not None or self.machine.lac <= self._lac_sent:
            return
        left_s = self._quiet_since + self._settings.explicit_lac_ms / 1000 - self._clock.monotonic()
        if left_s > 0:
            self._tell_lac_in(left_s)
            return
        self._lac_sent = lac = self.machine.lac
        for link in self._links:
            if link.connection is None or self.machine.member(link.position) is not Member.UP or link.lac_told >= lac:
                # Who is away is told when it is back.
                continue
            link.lac_told, on_lost = lac, partial(self._lac_lost, link, link.generation)
            link.connection.tell_lac(self.machine.ledger_id, lac, self._key, identity=self._identity, on_lost=on_lost)

    def _lac_lost(self, link: _Link, generation: int) -> None:
        """The connection was lost before the bookie took the LAC: it is told over another one."""
        if self._stopped or not self._current(link):
            return
        link.lac_told = self._lac_sent = NO_ENTRY
        lost = generation == link.generation
        self._guarded(
            lambda: self._perform(self.machine.disconnected(link.position, self._attention.now()) if lost else [])
        )

    def _tell_lac_in(self, seconds: float) -> None:
        self._lac_awaited = True
        self.common.lacs.call_in(seconds, self)

    async def _write_lac(self, connection: BookieConnection, lac: int) -> bool:
        """Whether the bookie has heard of it, and will not forget it."""
        try:
            await connection.write_lac(self.machine.ledger_id, lac, self._key, identity=self._identity)
        except TallybookError:
            # The next batch or the close tells it; readers only learn of the entry later. If the ledger is not ours
            # any more, the answer to the next batch says so.
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
