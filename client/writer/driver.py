"""Performs the actions of a ``WriterMachine``: timers and metadata updates here, the rest by a link to each bookie.

All decisions are the machine's. One driver serves one ledger handle, on one event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Protocol, TypeVar, assert_never

from tallybook.core.errors import LedgerFenced, TallybookError
from tallybook.core.ids import NO_ENTRY
from tallybook.core.settings import ClientSettings
from tallybook.metadata.ledger.model import LedgerMetadata, LedgerState, record_missed
from tallybook.runtime.clock import Clock
from tallybook.runtime.concurrency.backoff import lengthened
from tallybook.runtime.tasks import Tasks
from tallybook.runtime.tracing.port import Span

from ..background import defect, defect_of
from ..placement.replacement_probe import ReplacementFinder
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
from .bookie_link import BookieLink, LinkContext
from .ensemble.members import MemberState
from .ensemble.update_errors import NextStep, WriterUpdate, next_step
from .ensemble_change import EnsembleChanger
from .explicit_lacs import LacProgress
from .force import ForceRound
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


class WriterDriver:
    """Runs one ``WriterMachine``.

    Args:
        machine: decides.
        events: receives confirmations and the writer's end.
        common: services shared by the writers of a client.
        key: the ledger key for bookies.
        update: compare-and-set on the ledger's metadata, to record missed ranges.
        spans: spans of traced batches, by first entry; ``None``: tracing is off.
        limits: receives the batch limit of each bookie on connecting.
    """

    def __init__(
        self,
        *,
        machine: WriterMachine,
        metadata: LedgerMetadata,
        events: WriterEvents,
        common: SharedWriterServices,
        replacements: ReplacementFinder,
        key: bytes,
        update: UpdateLedger,
        clock: Clock,
        tasks: Tasks,
        settings: ClientSettings,
        spans: Mapping[int, Span] | None,
        limits: dict[str, int],
    ) -> None:
        self._machine = machine
        self._events = events
        self._common = common
        self._attention = common.attention
        self._timer: WriterTimer | None = None
        """The client's timer that will call ``tick``, if any."""
        self._update = update
        self._clock = clock
        self._tasks = tasks
        self._settings = settings
        self._stopped = False
        self._moved = asyncio.Event()
        self._missed_stale = False
        self._recording = False
        self._record_again_at = float("-inf")
        quiet_s = settings.explicit_lac_ms / 1000
        self._lacs = LacProgress(machine.quorum.ensemble, machine.lac, clock.monotonic(), quiet_s=quiet_s)
        self._lac_shown = NO_ENTRY
        """The LAC that enough members have acked for every reader to see it."""
        self._link_context = LinkContext(
            machine, self, common, self._lacs, clock, settings, key, metadata.identity, spans, limits
        )
        self._links = [BookieLink(self._link_context, *place) for place in enumerate(machine.fragment.bookies)]
        self._changer = EnsembleChanger(
            machine,
            metadata,
            replacements,
            update,
            clock,
            perform=self.perform,
            learned=events.ensemble_changed,
            spawn=self._spawn,
            common=common,
        )

    def start(self) -> None:
        """Start connecting to every bookie of the ensemble."""
        for link in self._links:
            link.reconnect()
        self._let_visit()

    def submit(self, first: int, last: int, payload_bytes: int, batch: bytes) -> None:
        """Send a sealed batch to its write set."""
        self._lacs.batch_sent(self._machine.lac, self._clock.monotonic())
        self._attention.watch()
        self.perform(self._machine.submit(first, last, payload_bytes, batch, self._attention.now()))

    def die(self, error: TallybookError) -> None:
        """Stop confirming."""
        self.perform(self._machine.die(error))

    async def await_acks(self, timeout_s: float) -> None:
        """Give live members up to ``timeout_s`` to ack confirmed batches."""
        deadline = self._clock.monotonic() + timeout_s
        while not self._machine.all_acked and (left := deadline - self._clock.monotonic()) > 0:
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
        lac = self._machine.lac
        if self._lac_shown < lac and not self._stopped and not self._tasks.closing:
            writes = {
                self._spawn(link.write_lac(lac), f"show-{link.position}"): link.position
                for link in self._links
                if link.connection is not None
            }
            waiting, acked = set(writes), set[int]()
            while waiting and not self._machine.quorum.visible(acked):
                # Slower bookies receive it as well, but are not waited for.
                _, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                acked = {at for each, at in writes.items() if each.done() and not each.cancelled() and each.result()}
            if self._machine.quorum.visible(acked):
                self._lac_shown = max(lac, self._lac_shown)
        return self._lac_shown

    async def force(self) -> None:
        """Have every bookie make its acked entries durable, and move the LAC to the entries confirmed before.

        Raises:
            NotEnoughBookies: a bookie was unavailable for the add timeout, or lost entries; the writer has ended.
        """
        forcing = ForceRound(self._machine)
        outcomes = await asyncio.gather(*(link.force(forcing) for link in self._links), return_exceptions=True)
        for outcome in outcomes:
            if outcome is not None:
                raise outcome
        if self._machine.error is not None:
            raise self._machine.error.with_traceback(None)

    def stop(self) -> None:
        """End background work; connections stay in the pool."""
        self._stopped = True
        if self._timer is not None:
            self._timer.leave(self)
        self._machine.stop()
        self._changer.stop()
        for link in self._links:
            link.end()

    def _spawn(self, work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        task = self._tasks.spawn(work, name=f"writer-{self._machine.ledger_id}-{name}")
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        """End the writer if one of its tasks ended with an unexpected error."""
        error = defect_of(task)
        if error is not None:
            self.die(error)

    def guarded(self, call: Callable[[], None]) -> None:
        """Call; an unexpected error ends this writer only."""
        try:
            call()
        except Exception as error:  # noqa: BLE001 - it must not end the task that the writers of a client share
            self.die(defect(f"writer-{self._machine.ledger_id}", error))

    # -- actions ----------------------------------------------------------------------

    def perform(self, actions: list[WriterAction]) -> None:
        """Perform what the machine decided."""
        for action in actions:
            match action:
                case Send():
                    self._links[action.position].send(action)
                case Confirmed():
                    self._events.confirmed(action.last_entry_id)
                case Released():
                    self._events.released(action.size)
                case SendLater():
                    self._send_later(action)
                case BatchLimitsKnown():
                    self._events.sizes_known()
                case Reconnect():
                    self._links[action.position].reconnect(breaking=action.breaking)
                case Rejoin():
                    self._links[action.position].rejoin()
                case MissedChanged():
                    self._missed_stale = True
                case ReplacementWanted():
                    self._changer.start()
                case Replaced():
                    self._relink(action)
                case Died():
                    self._events.died(action.error)
                    for link in self._links:
                        link.detach()
                case ChangeEnsemble():
                    pass  # ``EnsembleChanger`` has begun it, and writes it
                case _:
                    assert_never(action)
        if actions:
            self._moved.set()
        self._let_visit()
        if (pause_s := self._lacs.pause_s(self._machine.lac)) is not None:
            self._common.lacs.call_in(pause_s, self)

    def _send_later(self, action: SendLater) -> None:
        link = self._links[action.position]

        async def resume() -> None:
            await self._clock.sleep(lengthened(self._common.rng, action.delay_ms / 1000))
            if not link.ended:
                self.perform(self._machine.resume(action.position, action.pause, self._attention.now()))

        self._spawn(resume(), "busy")

    def _relink(self, action: Replaced) -> None:
        """Connect to the replacement bookies; answers of the replaced ones are ignored."""
        for at in action.positions:
            self._links[at].end(if_silent=at in action.silent)
            self._links[at] = link = BookieLink(self._link_context, at, self._machine.fragment.bookies[at])
            self._lacs.replaced(at)
            link.reconnect()

    # -- timers -----------------------------------------------------------------------

    def _let_visit(self) -> None:
        """Schedule ``tick`` after an event. A writer at rest needs no timer."""
        if self._timer is None and not self._stopped:
            self._timer = self._common.timer(urgent=self._machine.quorum_lost)
            self._timer.visit(self)

    def tick(self) -> None:
        """Called by the timer: check timeouts, and record missed ranges in the metadata."""
        self.guarded(self._tick)
        self._timer = None
        if self._machine.error is None and (self._missed_stale or not self._machine.at_rest):
            self._let_visit()

    def _tick(self) -> None:
        now = self._clock.monotonic()
        judged_at = self._attention.now()
        for position, first in self._machine.suspects(judged_at):
            if (since := self._links[position].owed_since(first)) is not None:
                self._machine.owed_since(position, first, self._attention.at(since))
        self.perform(self._machine.tick(judged_at))
        if self._missed_stale and not self._recording and self._machine.error is None and now >= self._record_again_at:
            # In the background: the metadata store may be slow.
            self._recording = True
            self._spawn(self._record_missed(), "missed")

    def lac_is_due(self) -> None:
        """Send an explicit LAC, unless a batch has carried the LAC since it moved."""
        if self._stopped or self._machine.error is not None:
            return
        connected = [
            link.position
            for link in self._links
            if link.connection is not None and self._machine.member(link.position) is MemberState.UP
        ]
        lac = self._machine.lac
        due = self._lacs.due(lac, self._clock.monotonic(), connected, in_flight=self._machine.unconfirmed_batches > 0)
        if due.again_s is not None:
            self._common.lacs.call_in(due.again_s, self)
        for position in due.positions:
            self._links[position].queue_lac(lac)

    async def _record_missed(self) -> None:
        try:
            async with self._common.metadata.turn():
                self._missed_stale = False
                await self._update(self._with_missed)
        except TallybookError as error:
            if next_step(WriterUpdate.RECORD_MISSED, error) is NextStep.END:
                self.die(error)
            else:
                self._missed_stale = True
                self._record_again_at = self._clock.monotonic() + self._settings.reconnect_ms / 1000
        finally:
            self._recording = False

    def _with_missed(self, metadata: LedgerMetadata) -> LedgerMetadata:
        if metadata.state is not LedgerState.OPEN:
            raise LedgerFenced(f"ledger {metadata.ledger_id} is not open for writing any more: {metadata.state.value}")
        return record_missed(metadata, self._machine.missed())
