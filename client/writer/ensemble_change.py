"""Ensemble changes: finds replacements for failed bookies, and writes the new ensemble to the metadata.

One task per writer, while a replacement is wanted. The writer machine decides which positions to replace. This task
searches bookies, writes the change by compare-and-set, and reports the outcome to the machine. If no bookie is
available, it searches again whenever the membership changes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from enum import Enum
from typing import Any, Final

from tallybook.core.coverage import sometimes
from tallybook.core.errors import LedgerClosed, MetadataOutcomeUnknown, MetadataUnavailable, TallybookError, is_defect
from tallybook.metadata.ledger.model import LedgerMetadata, change_ensemble, record_missed, require_open
from tallybook.metadata.ledger_update import Transition
from tallybook.metadata.store import MembershipWatch
from tallybook.runtime.clock import Clock
from tallybook.runtime.concurrency.backoff import Backoff, jittered
from tallybook.runtime.logging import logger

from ..placement.replacement_probe import ReplacementFinder
from ..ports import UpdateLedger
from .actions import ChangeEnsemble, WriterAction
from .ensemble.metadata_queue import MetadataTurn
from .ensemble.update_errors import NextStep, WriterUpdate, next_step
from .machine import WriterMachine
from .shared import SharedWriterServices

_log = logger("client.writer")

SEARCH_AGAIN_S: Final = 2.0
"""Upper bound of the first pause before another search without a membership change."""

LONGEST_SEARCH_AGAIN_S: Final = 16.0
"""Longest such pause; it doubles while an ack quorum serves."""

LONGEST_PAUSE_S: Final = 64.0
"""Longest pause between two attempts to write a change, while an ack quorum serves and the store fails."""

UNSETTLED_TIMEOUTS: Final = 3
"""Add timeouts for which the outcome of a change may be unknown, before the writer ends."""


class ChangeOutcome(Enum):
    """The outcome of an attempt to replace failed members."""

    DONE = "done, or not wanted any more"
    NO_BOOKIE = "no bookie was found"
    STORE_UNAVAILABLE = "the metadata store does not answer"
    NOT_CHANGED = "the metadata were certainly not changed"


class EnsembleChanger:
    """Replaces the failed bookies of one writer.

    Args:
        perform: performs the machine's actions.
        learned: receives the metadata after each change.
        spawn: runs a task of the writer.
        common: services shared by the writers of a client.
    """

    def __init__(
        self,
        machine: WriterMachine,
        metadata: LedgerMetadata,
        replacements: ReplacementFinder,
        update: UpdateLedger,
        clock: Clock,
        *,
        perform: Callable[[list[WriterAction]], None],
        learned: Callable[[LedgerMetadata], None],
        spawn: Callable[[Coroutine[Any, Any, None], str], asyncio.Task[None]],
        common: SharedWriterServices,
    ) -> None:
        self._machine = machine
        self._metadata = metadata
        self._replacements = replacements
        self._update = update
        self._clock = clock
        self._perform = perform
        self._learned = learned
        self._spawn = spawn
        self._common = common
        self._attention = common.attention
        self._turn: MetadataTurn | None = None
        self._task: asyncio.Task[None] | None = None
        self._stopped = False
        self._searches = Backoff(clock, common.rng, first_s=SEARCH_AGAIN_S, longest_s=LONGEST_SEARCH_AGAIN_S)
        self._long_pause: asyncio.Timeout | None = None
        """The pause between two searches while an ack quorum serves; the loss of the quorum ends it."""
        self._failures = Backoff(clock, common.rng, first_s=SEARCH_AGAIN_S, longest_s=LONGEST_PAUSE_S)
        """Pauses between failed attempts to write a change."""

    def start(self) -> None:
        """Start the task if a replacement is wanted; if the ack quorum was lost, end its pause."""
        if not self._stopped and (self._task is None or self._task.done()):
            self._task = self._spawn(self._run(), "replacing")
        elif self._machine.quorum_lost:
            if self._turn is not None:
                self._turn.hurry()
            if self._long_pause is not None and not self._long_pause.expired():
                self._long_pause.reschedule(0.0)

    async def _pause(self) -> None:
        await self._clock.sleep(jittered(self._common.rng, SEARCH_AGAIN_S))

    def stop(self) -> None:
        """Stop replacing bookies."""
        self._stopped = True
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        watch = self._replacements.watch()
        self._searches.reset()
        self._failures.reset()
        try:
            while self._machine.wanted(self._attention.now()):
                self._turn = self._common.metadata.turn(urgent=self._machine.quorum_lost)
                async with self._turn:
                    outcome = await self._try()
                if outcome is ChangeOutcome.NO_BOOKIE:
                    sometimes("writer: no replacement for a member")
                    await self._until_worth_while(watch)
                elif outcome is ChangeOutcome.STORE_UNAVAILABLE:
                    await self._pause()
                elif outcome is ChangeOutcome.NOT_CHANGED:
                    await self._after_a_failure()
        finally:
            await watch.close()

    async def _try(self) -> ChangeOutcome:
        """Search bookies, and write them to the metadata."""
        if not await self._store_answers():
            return ChangeOutcome.STORE_UNAVAILABLE
        positions = self._machine.wanted(self._attention.now())
        if not positions:
            return ChangeOutcome.DONE
        found = await self._found(positions)
        if found is None:
            return ChangeOutcome.STORE_UNAVAILABLE
        outcome = ChangeOutcome.DONE if found else ChangeOutcome.NO_BOOKIE
        if actions := self._machine.begin_change(found, self._attention.now()):
            outcome = ChangeOutcome.DONE
            self._perform(actions)
        for action in actions:
            if isinstance(action, ChangeEnsemble) and not await self._write(action):
                outcome = ChangeOutcome.NOT_CHANGED
        return outcome

    async def _store_answers(self) -> bool:
        """Whether the metadata store answers. Checked first, because during a change nothing is confirmed.

        If the ledger is not open any more, the writer ends, also if no replacement is available.
        """
        try:
            await self._update(require_open)
        except TallybookError as error:
            if is_defect(error):
                raise
            _log.info("no replacement yet", ledger_id=self._machine.ledger_id, error=error.message)
            if next_step(WriterUpdate.CHECK_OPEN, error) is NextStep.END:
                self._perform(self._machine.die(error))
            return False
        return True

    async def _found(self, positions: tuple[int, ...]) -> dict[int, str] | None:
        """Bookies for some of the positions; ``None`` if the live bookies cannot be listed."""
        machine = self._machine
        try:
            return await self._replacements.find(
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
        """Wait for a membership change, at most for a pause that doubles while an ack quorum serves."""
        lost = self._machine.quorum_lost
        if lost:
            self._searches.reset()
        pauses = self._common.search_pauses
        try:
            with pauses.pausing(urgent=lost):
                pause_s = self._searches.next_s(at_least_s=pauses.fair_s(urgent=lost))
                async with asyncio.timeout(pause_s) as pause:
                    self._long_pause = None if lost else pause
                    await watch.changed()
        except TimeoutError:
            return
        except MetadataUnavailable:
            # The watch has failed: pause instead.
            await self._pause()
        finally:
            self._long_pause = None

    async def _write(self, change: ChangeEnsemble) -> bool:
        """Write the change to the metadata. Until its outcome is known nothing may be confirmed.

        Returns:
            ``False`` if the change was certainly not made, so that the next attempt must wait.
        """
        machine = self._machine

        def changed(metadata: LedgerMetadata) -> LedgerMetadata:
            if machine.error is not None:
                raise LedgerClosed(f"ledger {machine.ledger_id}: its writer has ended")
            fresh = change_ensemble(metadata, change.known, change.wanted.first_entry_id, change.wanted.bookies)
            return record_missed(fresh, machine.missed())

        try:
            metadata = await self._change_metadata(changed)
        except TallybookError as error:
            if next_step(WriterUpdate.CHANGE_ENSEMBLE, error) is NextStep.CONTINUE:
                _log.info("ensemble not changed", ledger_id=machine.ledger_id, error=error.message)
                self._perform(machine.unchanged())
                return False
            sometimes("writer: ends in the middle of a change")
            # The ledger was taken over, or the change may still take effect: the writer must not continue.
            self._perform(machine.die(error))
        else:
            _log.info("ensemble changed", ledger_id=machine.ledger_id, first_entry_id=change.wanted.first_entry_id,
                      bookies_before=change.known.bookies, bookies_now=change.wanted.bookies)  # fmt: skip
            for at, (before, now) in enumerate(zip(change.known.bookies, change.wanted.bookies, strict=True)):
                if before != now and machine.blames(at):
                    self._replacements.avoid(before)
            self._learned(metadata)
            self._perform(machine.changed(self._attention.now()))
        return True

    async def _after_a_failure(self) -> None:
        """Back off after a failed write: an attempt blocks confirmations, so it must be rare while a quorum serves."""
        again_at = self._clock.monotonic() + self._failures.next_s()
        await self._pause()
        while not self._machine.quorum_lost and self._clock.monotonic() < again_at:
            await self._pause()

    async def _change_metadata(self, transition: Transition) -> LedgerMetadata:
        """Apply the change; retry while its outcome is unknown. Returns the changed metadata.

        Raises:
            MetadataOutcomeUnknown: the outcome was unknown for too long, and still is.
            InvalidArgument, MetadataConflict, MetadataUnavailable, LedgerFenced, ...: it was not and will not be made.
        """
        deadline = self._clock.monotonic() + UNSETTLED_TIMEOUTS * self._machine.rules.add_timeout_s
        doubt: MetadataOutcomeUnknown | None = None
        while True:
            try:
                return (await self._update(transition)).value
            except TallybookError as error:
                if next_step(WriterUpdate.CHANGE_ENSEMBLE, error, in_doubt=doubt is not None) is not NextStep.RESOLVE:
                    raise
                if isinstance(error, MetadataOutcomeUnknown):
                    doubt = error
            if doubt is not None and self._clock.monotonic() >= deadline:
                raise doubt
            sometimes("writer: asks again what became of a change")
            await self._pause()
