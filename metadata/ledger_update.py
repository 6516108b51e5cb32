"""Updates a ledger's metadata: read, apply a pure transition, compare-and-set, in a loop.

A *transition* takes the current value and returns the next one, or raises if the change is not permitted any more. It
must be idempotent: applied to a value that already has the change, it returns that value. This is how the loop
recognises its own edit.

A write without an answer may have been applied, may still be applied, or neither. Then the value is read back,
linearizably. If it has the edit, the update is done. If its version is higher but the edit is missing, the write can
no longer be applied, so the loop starts over. The same version proves nothing: the loop writes again with that
version, and at most one of the two applies. If none of these happens in time, it raises ``MetadataOutcomeUnknown``;
the caller must assume neither outcome.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from tallybook.core.coverage import sometimes
from tallybook.core.errors import MetadataOutcomeUnknown, MetadataUnavailable, NoSuchLedger, TallybookError, is_defect

from .ledger.model import LedgerMetadata, check_succession
from .store import Ok, Unknown, Versioned
from .write_attempts import Updater

Transition: TypeAlias = Callable[[LedgerMetadata], LedgerMetadata]


class LedgerUpdater(Updater):
    """Updates ledgers in ``store``."""

    async def update(self, ledger_id: int, transition: Transition, *, known: Versioned | None = None) -> Versioned:
        """Apply ``transition`` and return the new value with its version.

        ``known`` saves the first read if the caller has a recent value; an old value costs only a conflict.

        Raises:
            NoSuchLedger: the ledger does not exist (any more).
            MetadataConflict: other updates were first repeatedly; nothing was changed.
            MetadataUnavailable: the store does not answer; nothing was changed.
            MetadataOutcomeUnknown: the change may have been made, or may still be made.
            Any error of ``transition``: the change is not permitted and was not made. If an earlier attempt of this
                call may still be applied, ``MetadataOutcomeUnknown`` instead.
        """
        attempts = self._attempts(f"the update of ledger {ledger_id}")
        current = known
        while True:
            try:
                if current is None:
                    current = await self._store.read_ledger(ledger_id, linearizable=True)
                    attempts.note_version(current.version)
                wanted = transition(current.value)
                if wanted == current.value:
                    if current is not known:
                        sometimes("update: the change was already made")
                        return current
                    # ``known`` may be old. Only a value read now proves that there is nothing to do.
                    current = None
                    continue
                check_succession(current.value, wanted)
                result = await self._store.update_ledger(wanted, current.version)
            except NoSuchLedger:
                # No write of ours can be applied to a deleted ledger.
                raise
            except TallybookError as error:
                if is_defect(error):
                    raise
                attempts.give_up(error)
            if isinstance(result, Ok):
                return Versioned(wanted, result.version)
            await attempts.failed(result, current.version)
            current = None

    async def create(self, metadata: LedgerMetadata) -> Versioned:
        """Store a new ledger; retries until the outcome is known: creation is idempotent by its token.

        Raises:
            LedgerExists: another client uses, or used, the id.
            MetadataUnavailable: the store does not answer; nothing was created.
            MetadataOutcomeUnknown: it may have been created; repeat the call to find out.
        """
        attempts = self._attempts(f"the creation of ledger {metadata.ledger_id}")
        while True:
            try:
                return await self._store.create_ledger(metadata)
            except MetadataOutcomeUnknown as error:
                await attempts.failed(Unknown(error.message), -1)
            except MetadataUnavailable as error:
                attempts.give_up(error)

    async def delete(self, ledger_id: int) -> None:
        """Delete the ledger at any version.

        Raises:
            NoSuchLedger: it does not exist, and this call did not delete it.
            MetadataConflict, MetadataUnavailable, MetadataOutcomeUnknown: as for ``update``.
        """
        attempts = self._attempts(f"the deletion of ledger {ledger_id}")
        while True:
            try:
                current = await self._store.read_ledger(ledger_id, linearizable=True)
                attempts.note_version(current.version)
                result = await self._store.delete_ledger(ledger_id, current.version, current.value.identity)
            except NoSuchLedger:
                if attempts.outcome_unknown:
                    # Ids are never reused, so the ledger is deleted, by this call or by another one.
                    return
                raise
            except TallybookError as error:
                if is_defect(error):
                    raise
                attempts.give_up(error)
            if isinstance(result, Ok):
                return
            await attempts.failed(result, current.version)
