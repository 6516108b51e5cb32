"""Does what the writer machine says: connections, sends, timers, metadata notes.

All decisions are the machine's; this is the thin shell between it and the world. One driver
serves one ledger handle and lives on one event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from tallybook.core.answers import AddAnswer
from tallybook.core.config import ClientSettings
from tallybook.core.errors import OK_CODE, LedgerFenced, PeerError, TallybookError
from tallybook.metadata.model import LedgerMetadata, LedgerState, record_missed
from tallybook.runtime.clock import Clock
from tallybook.runtime.logging import logger
from tallybook.runtime.tasks import Tasks

from ..background import defect_of
from ..bookie_port import BookieConnection
from ..ports import Connections, UpdateLedger
from .machine import (
    Action,
    Confirmed,
    Died,
    Member,
    MissedChanged,
    Reconnect,
    Rejoin,
    Released,
    Send,
    SendLater,
    WriterMachine,
)


class WriterEvents(Protocol):
    """Whom the driver tells."""

    def confirmed(self, last_entry_id: int) -> None:
        """Every entry up to ``last_entry_id`` is confirmed."""

    def released(self, size: int) -> None:
        """So many bytes of batches are no longer held."""

    def died(self, error: TallybookError) -> None:
        """Nothing more will be confirmed."""


_log = logger("client.writer")


@dataclass(slots=True)
class _Link:
    """The connection to one position of the ensemble."""

    bookie_id: str
    connection: BookieConnection | None = None
    directory_uuid: str = ""
    generation: int = 0
    """Counts connections: a failure reported by an earlier one says nothing about this one."""
    connecting: bool = False
    opened_at: float = float("-inf")
    refused_at: float = float("-inf")
    refusals: int = 0
    """How often it refused since it last acked: each time it is left alone for longer."""


class WriterDriver:
    """Runs one ``WriterMachine``.

    Args:
        machine: the rules.
        connections: where connections come from.
        key: the ledger key shown to bookies.
        update: compare-and-set on the ledger's metadata, for what members missed.
        events: whom to tell.
    """

    def __init__(
        self,
        machine: WriterMachine,
        bookies: Sequence[str],
        connections: Connections,
        key: bytes,
        update: UpdateLedger,
        events: WriterEvents,
        clock: Clock,
        tasks: Tasks,
        settings: ClientSettings,
    ) -> None:
        self.machine = machine
        self._links = [_Link(bookie) for bookie in bookies]
        self._connections = connections
        self._key = key
        self._update = update
        self._events = events
        self._clock = clock
        self._tasks = tasks
        self._settings = settings
        self._stopped = asyncio.Event()
        self._moved = asyncio.Event()
        self._missed_stale = False
        self._recording = False
        self._record_again_at = float("-inf")
        self._quiet_since = clock.monotonic()
        self._lac_sent = machine.lac

    def start(self) -> None:
        """Begin to connect to every bookie of the ensemble."""
        for position in range(len(self._links)):
            self._reconnect(position)
        self._spawn(self._watch(), "timer")

    def submit(self, first: int, last: int, payload_bytes: int, batch: bytes) -> None:
        """Send a sealed batch to its write set."""
        self._quiet_since = self._clock.monotonic()
        self._lac_sent = self.machine.lac
        self._perform(self.machine.submit(first, last, payload_bytes, batch, self._quiet_since))

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

    def stop(self) -> None:
        """End background work; connections stay with the pool they came from."""
        self._stopped.set()

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = self._tasks.spawn(work, name=f"writer-{self.machine.ledger_id}-{name}")
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """A writer whose timers or connections died of a defect must not look alive."""
        error = defect_of(task)
        if error is not None:
            self.die(error)

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
                case Reconnect():
                    self._reconnect(action.position, breaking=action.breaking)
                case Rejoin():
                    link = self._links[action.position]
                    link.refusals += 1
                    link.refused_at = self._clock.monotonic()
                    self._reconnect(action.position)
                case MissedChanged():
                    self._missed_stale = True
                case Died():
                    self._events.died(action.error)
        if actions:
            self._moved.set()

    def _send(self, action: Send) -> None:
        link = self._links[action.position]
        if link.connection is not None:
            link.connection.add(action.batch, self._key, partial(self._answered, action.position, link.generation))

    def _answered(self, position: int, generation: int, answer: AddAnswer) -> None:
        if answer.code == OK_CODE:
            self._links[position].refusals = 0
            self._perform(self.machine.acked(position, answer.first_entry_id))
        elif generation == self._links[position].generation:
            now = self._clock.monotonic()
            first, code = answer.first_entry_id, answer.code
            self._perform(self.machine.refused(position, first, code, answer.retry_after_ms, now))

    def _send_later(self, action: SendLater) -> None:
        async def resend() -> None:
            await self._clock.sleep(max(action.delay_ms, 1) / 1000)
            now = self._clock.monotonic()
            self._perform(self.machine.resend(action.position, action.first_entry_id, now))

        self._spawn(resend(), "busy")

    # -- connections ------------------------------------------------------------------

    def _reconnect(self, position: int, *, breaking: bool = False) -> None:
        link = self._links[position]
        given_up, link.connection = link.connection, None
        link.generation += 1
        if breaking and given_up is not None:
            # What it still holds for a bookie that does not keep up must not stay in memory.
            given_up.abort()
        if not link.connecting and not self._stopped.is_set():
            link.connecting = True
            self._spawn(self._connect(position), f"connect-{position}")

    async def _connect(self, position: int) -> None:
        """Try until the position is connected, gone, or the writer stops."""
        link = self._links[position]
        pause_s = self._settings.reconnect_ms / 1000
        try:
            # A bookie that lets us in and then refuses must not be asked in a tight loop.
            # The connection may be old, so its age alone is no pause.
            opened_again_at = max(link.opened_at, link.refused_at) + self._patience_s(link.refusals)
            await self._clock.sleep(max(0.0, opened_again_at - self._clock.monotonic()))
            while not self._stopped.is_set() and self.machine.error is None:
                try:
                    connection = await self._connections.get(link.bookie_id)
                except TallybookError as error:
                    # A peer that is away is expected: the machine counts how long.
                    if not isinstance(error, PeerError):
                        _log.warning("bookie refuses this client", bookie=link.bookie_id, reason=error.message)
                    await self._clock.sleep(pause_s)
                    continue
                self._connected(position, connection)
                return
        finally:
            link.connecting = False

    def _patience_s(self, refusals: int) -> float:
        """How long to leave a position alone: longer with every refusal, up to the add timeout."""
        shortest_s = self._settings.reconnect_ms / 1000
        return max(shortest_s, min(shortest_s * 2.0 ** min(refusals, 16), self._settings.add_timeout_ms / 1000))

    def _connected(self, position: int, connection: BookieConnection) -> None:
        link = self._links[position]
        uuid = connection.incarnation.directory_uuid
        now = self._clock.monotonic()
        if link.directory_uuid not in ("", uuid):
            self._perform(self.machine.replaced(position))
            return
        link.directory_uuid, link.connection, link.opened_at = uuid, connection, now
        self._perform(self.machine.connected(position, now))

    # -- timers -----------------------------------------------------------------------

    async def _watch(self) -> None:
        """Timeouts, the LAC after silence, and notes of what members missed."""
        period_s = max(self._settings.explicit_lac_ms, 10) / 1000
        while not self._stopped.is_set():
            await self._clock.sleep(period_s)
            now = self._clock.monotonic()
            self._perform(self.machine.tick(now))
            if self.machine.error is not None:
                return
            if self.machine.lac > self._lac_sent and now - self._quiet_since >= period_s:
                self._tell_lac()
            if self._missed_stale and not self._recording and now >= self._record_again_at:
                # The metadata store may take its time; timers go on meanwhile.
                self._recording = True
                self._spawn(self._record_missed(), "missed")

    def _tell_lac(self) -> None:
        self._lac_sent = lac = self.machine.lac
        for position, link in enumerate(self._links):
            if link.connection is not None and self.machine.member(position) is Member.UP:
                self._spawn(self._write_lac(link.connection, lac), f"lac-{position}")

    async def _write_lac(self, connection: BookieConnection, lac: int) -> None:
        try:
            await connection.write_lac(self.machine.ledger_id, lac, self._key)
        except TallybookError:
            # The next batch or the close tells it; readers only learn of the entry later. If the ledger is not ours
            # any more, the answer to the next batch says so.
            return

    async def _record_missed(self) -> None:
        self._missed_stale = False
        try:
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
            raise LedgerFenced(f"ledger {metadata.ledger_id} was recovered by another client")
        return record_missed(metadata, self.machine.missed())
