"""The one loop that changes a record beside the ledgers: read, apply a pure transition, compare-and-set.

What ``update`` does for ledgers, this does for records: a transition that gives a value back as it is has found its own
change, or one just like it, and is done. So it must be idempotent, and two that compete must be told apart by what they
write.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias, TypeVar

from tallybook.core.errors import InvariantViolation, TallybookError, is_defect
from tallybook.runtime.clock import Clock
from tallybook.runtime.rng import Rng

from .attempts import Attempts
from .store import MetadataStore, Ok, Record, WriteResult

T = TypeVar("T")

RecordTransition: TypeAlias = Callable[[bytes | None], bytes]
"""From the value, or ``None`` where there is no record, to the next one; or raises where the change is not allowed."""


class RecordUpdater:
    """Changes records in ``store``.

    Args:
        store: where the records are.
        clock: for the pauses between attempts.
        rng: spreads those pauses.
        timeout_seconds: after so long no further attempt is begun.
    """

    def __init__(self, store: MetadataStore, clock: Clock, rng: Rng, *, timeout_seconds: float = 20.0) -> None:
        self._store = store
        self._clock = clock
        self._rng = rng
        self._timeout_seconds = timeout_seconds

    async def update(self, name: str, transition: RecordTransition) -> Record:
        """Apply ``transition``; the record that holds its change.

        Raises:
            MetadataConflict: somebody else was first again and again; nothing was changed.
            MetadataUnavailable: the store does not answer; nothing was changed.
            MetadataOutcomeUnknown: the change may have been made, or may still be made.
            Whatever ``transition`` raises: the change is not allowed, and was not made. Where an earlier attempt of
                this call may yet land, it is ``MetadataOutcomeUnknown`` instead.
        """
        attempts = self._attempts(f"the update of {name}")
        while True:
            try:
                found = await self._store.read_record(name, linearizable=True)
                version = -1 if found is None else found.version
                attempts.saw(version)
                wanted = transition(None if found is None else found.value)
                if found is not None and wanted == found.value:
                    return found
                result = await self._store.write_record(name, wanted, None if found is None else version)
            except TallybookError as error:
                if is_defect(error):
                    raise
                attempts.give_up(error)
            if isinstance(result, Ok):
                return Record(wanted, result.version)
            await attempts.failed(result, version)

    async def change(
        self,
        name: str,
        transition: Callable[[T], T],
        *,
        decode: Callable[[str, bytes], T],
        encode: Callable[[T], bytes],
        absent: TallybookError,
    ) -> T:
        """Apply ``transition`` to what a record that is there says; what it says from then on.

        Args:
            decode: of the record's name and value.
            absent: raised where there is no such record.

        Raises:
            ``absent``; whatever ``decode`` raises.
            As ``update``.
        """
        changed: T | None = None

        def apply(found: bytes | None) -> bytes:
            nonlocal changed
            if found is None:
                raise absent
            known = decode(name, found)
            changed = transition(known)
            return found if changed == known else encode(changed)

        await self.update(name, apply)
        if changed is None:
            raise InvariantViolation(f"{name} was changed by nobody")
        return changed

    async def delete(self, name: str, condition: Callable[[bytes], bool] = lambda _value: True) -> None:
        """Remove a record, if it is there and its value is the one meant.

        Raises:
            As ``update``.
        """
        attempts = self._attempts(f"the removal of {name}")
        while True:
            try:
                found = await self._store.read_record(name, linearizable=True)
                if found is None or not condition(found.value):
                    return
                attempts.saw(found.version)
                result: WriteResult = await self._store.delete_record(name, found.version)
            except TallybookError as error:
                if is_defect(error):
                    raise
                attempts.give_up(error)
            if isinstance(result, Ok):
                return
            await attempts.failed(result, found.version)

    def _attempts(self, what: str) -> Attempts:
        return Attempts(what, self._clock, self._rng, self._clock.monotonic() + self._timeout_seconds)
