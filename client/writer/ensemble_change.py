"""Gives the positions of failed bookies to others: finds them, and has the metadata say so.

One task per writer, while a replacement is wanted. The machine decides what is wanted, and
when; this asks for bookies, writes the change by compare-and-set, and tells the machine what
became of it. Without a bookie to be had it looks again whenever the membership changes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from enum import Enum
from typing import Any, Final

from tallybook.core.errors import (
    InvalidArgument,
    LedgerClosed,
    MetadataConflict,
    MetadataOutcomeUnknown,
    MetadataUnavailable,
    PeerError,
    TallybookError,
    is_defect,
)
from tallybook.core.marks import sometimes
from tallybook.metadata.model import LedgerMetadata, change_ensemble, record_missed, require_open
from tallybook.metadata.store import MembershipWatch
from tallybook.runtime.clock import Clock
from tallybook.runtime.logging import logger

from ..ports import Transition, UpdateLedger
from ..spares import Spares
from .actions import Action, ChangeEnsemble
from .common import CommonWork
from .machine import WriterMachine
from .metadata_line import Turn
from .search_pauses import spread_by_ledger

_log = logger("client.writer")

LOOK_AGAIN_S: Final = 2.0
"""First pause before bookies are looked for again, without news of the membership."""

LONGEST_LOOK_AGAIN_S: Final = 16.0
"""The longest one, which it becomes by doubling while an ack quorum serves."""

LONGEST_PAUSE_S: Final = 64.0
"""Between two attempts to write a change, while an ack quorum serves and the store takes nothing."""

UNSETTLED_TIMEOUTS: Final = 3
"""Add timeouts for which a change may stay in doubt, before the writer ends."""


class Tried(Enum):
    """What became of an attempt to replace the members that failed."""

    DONE = "done, or not wanted any more"
    NOBODY = "nobody was found"
    STORE_AWAY = "the metadata store does not answer, or does not tell who is alive"
    NOT_CHANGED = "the metadata were certainly not changed"


class Replacing:
    """Replaces the failed bookies of one writer.

    Args:
        perform: does what the machine says.
        learned: told of the metadata after each change.
        spawn: runs a task of the writer.
        common: shared by the writers of a client.
    """

    def __init__(
        self,
        machine: WriterMachine,
        metadata: LedgerMetadata,
        spares: Spares,
        update: UpdateLedger,
        clock: Clock,
        *,
        perform: Callable[[list[Action]], None],
        learned: Callable[[LedgerMetadata], None],
        spawn: Callable[[Coroutine[Any, Any, None], str], asyncio.Task[None]],
        common: CommonWork,
    ) -> None:
        self._machine = machine
        self._metadata = metadata
        self._spares = spares
        self._update = update
        self._clock = clock
        self._perform = perform
        self._learned = learned
        self._spawn = spawn
        self._common = common
        self._attention = common.attention
        self._turn: Turn | None = None
        self._task: asyncio.Task[None] | None = None
        self._stopped = False
        self._look_again_s = LOOK_AGAIN_S
        self._long_pause: asyncio.Timeout | None = None
        """Between two looks while an ack quorum serves: its loss ends it."""
        self._pause_s = LOOK_AGAIN_S
        """Before the next attempt to write a change, after one that failed."""

    def look(self) -> None:
        """A replacement may be wanted: see to it, unless that is being done; at once where the ack quorum was lost."""
        if not self._stopped and (self._task is None or self._task.done()):
            self._task = self._spawn(self._run(), "replacing")
        elif self._machine.quorum_lost:
            if self._turn is not None:
                self._turn.hurry()
            if self._long_pause is not None and not self._long_pause.expired():
                self._long_pause.reschedule(0.0)

    async def _pause(self) -> None:
        await self._clock.sleep(spread_by_ledger(LOOK_AGAIN_S, self._machine.ledger_id))

    def stop(self) -> None:
        """Replace nobody any more."""
        self._stopped = True
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        watch = self._spares.watch()
        self._pause_s = self._look_again_s = LOOK_AGAIN_S
        try:
            while self._machine.wanted(self._attention.now()):
                self._turn = self._common.metadata.turn(urgent=self._machine.quorum_lost)
                async with self._turn:
                    tried = await self._try()
                if tried is Tried.NOBODY:
                    sometimes("writer: nobody to replace a member")
                    await self._until_worth_while(watch)
                elif tried is Tried.STORE_AWAY:
                    await self._pause()
                elif tried is Tried.NOT_CHANGED:
                    await self._after_a_failure()
        finally:
            await watch.close()

    async def _try(self) -> Tried:
        """Look for bookies, and have the metadata name them."""
        if not await self._store_answers():
            return Tried.STORE_AWAY
        positions = self._machine.wanted(self._attention.now())
        if not positions:
            return Tried.DONE
        found = await self._found(positions)
        if found is None:
            return Tried.STORE_AWAY
        tried = Tried.DONE if found else Tried.NOBODY
        for action in self._machine.begin_change(found, self._attention.now()):
            tried = Tried.DONE
            if not isinstance(action, ChangeEnsemble):
                self._perform([action])
            elif not await self._write(action):
                tried = Tried.NOT_CHANGED
        return tried

    async def _store_answers(self) -> bool:
        """Whether the metadata can be read. Asked first, because during a change nothing is confirmed.

        A ledger that is not the writer's any more ends the writer, also where nobody can take a place.
        """
        try:
            await self._update(require_open)
        except TallybookError as error:
            if is_defect(error):
                raise
            _log.info("no replacement yet", ledger_id=self._machine.ledger_id, error=error.message)
            if not isinstance(error, PeerError):
                self._perform(self._machine.die(error))
            return False
        return True

    async def _found(self, positions: tuple[int, ...]) -> dict[int, str] | None:
        """Bookies for some of the positions; ``None`` where it cannot be told who is alive."""
        machine = self._machine
        try:
            return await self._spares.find(
                self._metadata,
                machine.fragment.bookies,
                positions,
                batch_bytes=machine.largest_unconfirmed_bytes,
            )
        except TallybookError as error:
            if is_defect(error):
                raise
            _log.info("no replacement yet", ledger_id=machine.ledger_id, error=error.message)
            return None

    async def _until_worth_while(self, watch: MembershipWatch) -> None:
        """Wait for news of the membership; without any, ever longer while an ack quorum serves, or until it is lost."""
        lost = self._machine.quorum_lost
        if lost:
            self._look_again_s = LOOK_AGAIN_S
        pauses = self._common.search_pauses
        try:
            with pauses.pausing(urgent=lost):
                pause_s = pauses.pause_s(self._look_again_s, self._machine.ledger_id, urgent=lost)
                async with asyncio.timeout(pause_s) as pause:
                    self._long_pause = None if lost else pause
                    await watch.changed()
        except TimeoutError:
            self._look_again_s = min(2 * self._look_again_s, LONGEST_LOOK_AGAIN_S)
            return
        except MetadataUnavailable:
            # The watch is of no more use; a pause, then, in its place.
            await self._pause()
        finally:
            self._long_pause = None

    async def _write(self, change: ChangeEnsemble) -> bool:
        """Put the change into the metadata. Until its outcome is certain nothing may be confirmed.

        Returns:
            Whether another attempt need not wait: it is ``False`` where the change was certainly not made.
        """
        machine = self._machine

        def changed(metadata: LedgerMetadata) -> LedgerMetadata:
            if machine.error is not None:
                raise LedgerClosed(f"ledger {machine.ledger_id}: its writer has ended")
            fresh = change_ensemble(metadata, change.known, change.wanted.first_entry_id, change.wanted.bookies)
            return record_missed(fresh, machine.missed())

        try:
            metadata = await self._settled(changed)
        except (InvalidArgument, MetadataConflict, MetadataUnavailable) as error:
            # Certainly not made: on with the members there are.
            _log.info("ensemble not changed", ledger_id=machine.ledger_id, error=error.message)
            self._perform(machine.unchanged())
            return False
        except TallybookError as error:
            sometimes("writer: ends in the middle of a change")
            # It is not ours to write any more, or the change may yet land: going on without knowing is forbidden.
            self._perform(machine.die(error))
        else:
            _log.info("ensemble changed", ledger_id=machine.ledger_id, first_entry_id=change.wanted.first_entry_id,
                      bookies_before=change.known.bookies, bookies_now=change.wanted.bookies)  # fmt: skip
            for at, (before, now) in enumerate(zip(change.known.bookies, change.wanted.bookies, strict=True)):
                if before != now and machine.blames(at):
                    self._spares.avoid(before)
            self._learned(metadata)
            self._perform(machine.changed(self._attention.now()))
        return True

    async def _after_a_failure(self) -> None:
        """Each attempt stops all confirmations until it has failed: while a quorum serves, they must become rare."""
        again_at = self._clock.monotonic() + self._pause_s
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
        await self._pause()
        while not self._machine.quorum_lost and self._clock.monotonic() < again_at:
            await self._pause()

    async def _settled(self, transition: Transition) -> LedgerMetadata:
        """The metadata with the change in them. While its outcome is unknown it is asked for again.

        Raises:
            MetadataOutcomeUnknown: it was in doubt for too long, and still is.
            InvalidArgument, MetadataConflict, MetadataUnavailable, LedgerFenced, ...: it was not, and will not be made.
        """
        deadline = self._clock.monotonic() + UNSETTLED_TIMEOUTS * self._machine.rules.add_timeout_s
        doubt: MetadataOutcomeUnknown | None = None
        while True:
            try:
                return (await self._update(transition)).value
            except MetadataOutcomeUnknown as error:
                doubt = error
            except (InvalidArgument, MetadataConflict, MetadataUnavailable):
                # Of this attempt alone: the one before may still land.
                if doubt is None:
                    raise
            if self._clock.monotonic() >= deadline:
                raise doubt
            sometimes("writer: asks again what became of a change")
            await self._pause()
