"""Updates a record: read, apply a pure transition, compare-and-set, in a loop. As ``ledger_update`` for ledgers.

A transition that returns the current value is done: it found its own change, or an equal one. So transitions must be
idempotent, and competing transitions must write different values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias, TypeVar

from tallybook.core.errors import InvariantViolation, TallybookError, is_defect

from ..store import MetadataRecord, Ok, WriteResult
from ..write_attempts import Updater

T = TypeVar("T")

RecordTransition: TypeAlias = Callable[[bytes | None], bytes]
"""Maps the value, or ``None`` if there is no record, to the next value; raises if the change is not permitted."""


class RecordUpdater(Updater):
    """Updates records in ``store``."""

    async def update(self, name: str, transition: RecordTransition) -> MetadataRecord:
        """Apply ``transition`` and return the record that has its change.

        Raises:
            MetadataConflict: other updates were first repeatedly; nothing was changed.
            MetadataUnavailable: the store does not answer; nothing was changed.
            MetadataOutcomeUnknown: the change may have been made, or may still be made.
            Any error of ``transition``: the change is not permitted and was not made. If an earlier attempt of this
                call may still be applied, ``MetadataOutcomeUnknown`` instead.
        """
        attempts = self._attempts(f"the update of {name}")
        while True:
            try:
                found = await self._store.read_record(name, linearizable=True)
                version = -1 if found is None else found.version
                attempts.note_version(version)
                wanted = transition(None if found is None else found.value)
                if found is not None and wanted == found.value:
                    return found
                result = await self._store.write_record(name, wanted, None if found is None else version)
            except TallybookError as error:
                if is_defect(error):
                    raise
                attempts.give_up(error)
            if isinstance(result, Ok):
                return MetadataRecord(wanted, result.version)
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
        """Apply ``transition`` to the decoded value of an existing record; returns the new decoded value.

        Args:
            decode: takes the record's name and value.
            absent: raised if there is no such record.

        Raises:
            ``absent``; any error of ``decode``.
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
            raise InvariantViolation(f"the update of {name} ended without applying its transition")
        return changed

    async def delete(self, name: str, condition: Callable[[bytes], bool] = lambda _value: True) -> None:
        """Remove a record, if it exists and its value meets ``condition``.

        Raises:
            As ``update``.
        """
        attempts = self._attempts(f"the removal of {name}")
        while True:
            try:
                found = await self._store.read_record(name, linearizable=True)
                if found is None or not condition(found.value):
                    return
                attempts.note_version(found.version)
                result: WriteResult = await self._store.delete_record(name, found.version)
            except TallybookError as error:
                if is_defect(error):
                    raise
                attempts.give_up(error)
            if isinstance(result, Ok):
                return
            await attempts.failed(result, found.version)
