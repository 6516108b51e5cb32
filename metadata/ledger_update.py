"""The one loop that changes a ledger's metadata: read, apply a pure transition, compare-and-set.

A *transition* takes the current value and gives the next one, or raises to say that the
change is not allowed any more. It must be idempotent: applied to a value that already holds
its change, it gives that value back. This is how the loop recognises its own edit::

            .--> read --> transition --> unchanged: done
            |                 |
            |              changed
            |                 |
            |          compare-and-set --> Ok: done
            |                 |
            `--- BadVersion --+-- Unknown --> read back (linearizable)

After ``Unknown`` the write may have landed, may still land, or neither. What settles it:

- the value was read back with the edit in it: done;
- its version has moved on without the edit: the write can no longer land, start over;
- the version is the same: proves nothing. The loop writes again over that same version;
  whichever of the two lands, the other one cannot.

If none of these comes about in time, ``MetadataOutcomeUnknown`` is raised, and the caller
may neither assume the change nor go on as if it had not been made.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from tallybook.core.errors import MetadataOutcomeUnknown, MetadataUnavailable, NoSuchLedger, TallybookError, is_defect
from tallybook.core.marks import sometimes
from tallybook.runtime.clock import Clock
from tallybook.runtime.rng import Rng

from .attempts import Attempts
from .model import LedgerMetadata, check_succession
from .store import MetadataStore, Ok, Unknown, Versioned

Transition: TypeAlias = Callable[[LedgerMetadata], LedgerMetadata]


class LedgerUpdater:
    """Changes ledgers in ``store``. Holds no state of its own: one per process is enough.

    Args:
        store: where the ledgers are.
        clock: for the pauses between attempts.
        rng: spreads those pauses, so that two updaters do not meet again and again.
        timeout_seconds: after so long no further attempt is begun.
    """

    def __init__(self, store: MetadataStore, clock: Clock, rng: Rng, *, timeout_seconds: float = 20.0) -> None:
        self._store = store
        self._clock = clock
        self._rng = rng
        self._timeout_seconds = timeout_seconds

    @property
    def store(self) -> MetadataStore:
        """Where the ledgers are."""
        return self._store

    async def update(self, ledger_id: int, transition: Transition, *, known: Versioned | None = None) -> Versioned:
        """Apply ``transition`` and return the value that holds its change, with its version.

        ``known`` saves the first read where the caller holds a recent value; an old one costs
        a conflict and nothing else.

        Raises:
            NoSuchLedger: the ledger does not exist, or no longer does.
            MetadataConflict: somebody else was first again and again; nothing was changed.
            MetadataUnavailable: the store does not answer; nothing was changed.
            MetadataOutcomeUnknown: the change may have been made, or may still be made.
            Whatever ``transition`` raises: the change is not allowed, and was not made. Where an earlier attempt of
                this call may yet land, it is ``MetadataOutcomeUnknown`` instead.
        """
        attempts = self._attempts(f"the update of ledger {ledger_id}")
        current = known
        while True:
            try:
                if current is None:
                    current = await self._store.read_ledger(ledger_id, linearizable=True)
                    attempts.saw(current.version)
                wanted = transition(current.value)
                if wanted == current.value:
                    if current is not known:
                        sometimes("update: the change is there already")
                        return current
                    # What the caller knew may be old. Only a value read now proves that there is nothing to do.
                    current = None
                    continue
                check_succession(current.value, wanted)
                result = await self._store.update_ledger(wanted, current.version)
            except NoSuchLedger:
                # Over what is gone no write of ours can land.
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
        """Store a new ledger; repeated until its outcome is known, since creation is idempotent by its token.

        Raises:
            LedgerExists: the id is, or was, used by somebody else.
            MetadataUnavailable: the store does not answer; nothing was created.
            MetadataOutcomeUnknown: it may have been created; the same call settles it.
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
        """Delete the ledger, whatever its version.

        Raises:
            NoSuchLedger: it does not exist, and it was not this call that deleted it.
            MetadataConflict, MetadataUnavailable, MetadataOutcomeUnknown: as for ``update``.
        """
        attempts = self._attempts(f"the deletion of ledger {ledger_id}")
        while True:
            try:
                current = await self._store.read_ledger(ledger_id, linearizable=True)
                attempts.saw(current.version)
                result = await self._store.delete_ledger(ledger_id, current.version, current.value.identity)
            except NoSuchLedger:
                if attempts.unsettled:
                    # Ids are never used again, so whoever removed it, it is as this call was to leave it.
                    return
                raise
            except TallybookError as error:
                if is_defect(error):
                    raise
                attempts.give_up(error)
            if isinstance(result, Ok):
                return
            await attempts.failed(result, current.version)

    def _attempts(self, what: str) -> Attempts:
        return Attempts(what, self._clock, self._rng, self._clock.monotonic() + self._timeout_seconds)
