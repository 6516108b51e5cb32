"""Record of a restored metadata store: the store is older than what bookies have seen.

A bookie detects it if it stores a ledger at or above the id counter that the metadata does not know, if it has seen a
higher counter, or if it stores another ledger under an id than the metadata has, or has deleted. An offloader detects
it by such a ledger in the archive's manifest. The detector writes the record, then raises the counter above all used
ids, so that none is allocated again. Until the record is approved, bookies and offloaders delete nothing, because the
metadata may be out of date. A damaged record counts as not approved. An operator either restores the right copy, which
has no record, or approves the record and continues with the older copy.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, replace
from typing import Final

from tallybook.core.errors import DamagedFile
from tallybook.core.ids import MAX_ID
from tallybook.runtime.clock import Clock
from tallybook.runtime.rng import Rng

from ..store import MetadataStore
from .format import FIRST, load_json, reporting_damage
from .update import RecordUpdater

RECORD: Final = "collection/behind"
MANIFEST: Final = "archive/manifest"
"""Used instead of a bookie id (it is not a valid one): an offloader detected it by the archive's manifest."""


@dataclass(frozen=True, slots=True)
class RestoreRecord:
    """Content of the record.

    Attributes:
        id_counter: all ids allocated before the restore that the store still knows are below it.
        highest_id: ids up to this one may have been allocated twice.
        bookie_id: the bookie that detected it last, or ``MANIFEST``; empty: the record was damaged.
        approved_at_ms: when an operator approved it; 0: not yet.
    """

    id_counter: int
    highest_id: int
    bookie_id: str
    found_at_ms: int
    approved_at_ms: int = 0

    @property
    def pauses(self) -> bool:
        """Whether deletions are paused."""
        return not self.approved_at_ms

    @property
    def description(self) -> str:
        """Description for people."""
        if not self.bookie_id:
            return (
                f"the record {RECORD} cannot be decoded: the metadata store may be an older copy of itself, and "
                "may have assigned ids twice"
            )
        who = "the manifest of the archive" if self.bookie_id == MANIFEST else f"bookie {self.bookie_id}"
        return (
            f"{who} knows of ledger ids up to {self.highest_id}, but the metadata store only of "
            f"those below {self.id_counter}: it was restored from an older copy"
        )


def encode_restore_record(behind: RestoreRecord) -> bytes:
    """Encode the record."""
    return json.dumps({"format": FIRST, **asdict(behind)}, sort_keys=True).encode()


def decode_restore_record(name: str, value: bytes) -> RestoreRecord:
    """Decode the record.

    Raises:
        DamagedFile: the record is invalid.
        NewerFormat: a newer version wrote it.
    """
    found = load_json(name, value)
    with reporting_damage(name):
        behind = RestoreRecord(**{key: found[key] for key in RestoreRecord.__slots__})
        numbers = (behind.id_counter, behind.highest_id, behind.found_at_ms, behind.approved_at_ms)
        good = type(behind.bookie_id) is str and all(type(each) is int and 0 <= each <= MAX_ID for each in numbers)
    if not good:
        raise DamagedFile(f"the record {name} has impossible values")
    return behind


UNREADABLE: Final = RestoreRecord(0, 0, "", 0)
"""Stands for a damaged record: not approved. The reused ids are unknown: all allocated ids may have been allocated
twice, until the record is rewritten."""

REMEDY: Final = (
    "stop every writer and bring back the right copy of the metadata, or continue with this one: "
    "POST /api/v1/bookie/gc/approve_store to a bookie"
)
"""Instructions for operators."""


async def read_restore_record(store: MetadataStore) -> RestoreRecord | None:
    """Read the record, linearizably; ``UNREADABLE`` if it is damaged; ``None``: no restore was detected.

    Raises:
        MetadataUnavailable: the store does not answer.
        NewerFormat: see ``decode_restore_record``.
    """
    record = await store.read_record(RECORD, linearizable=True)
    return None if record is None else _readable(record.value)


async def ids_below(
    id_counter: Callable[[], Awaitable[int]], found: Callable[[], Awaitable[RestoreRecord | None]]
) -> int:
    """An upper bound of all ids that the store has ever allocated, as far as known, also after a restore.

    Args:
        id_counter: reads the counter of the store, linearizably.
        found: reads the record of a restore.
    """
    counter = await id_counter()
    # In this order: the record is written before the counter is raised.
    behind = await found()
    return max(counter, 0 if behind is None else behind.highest_id + 1)


async def unapproved_restore(store: MetadataStore) -> RestoreRecord | None:
    """The record, if an operator has not approved it.

    Raises:
        As ``read_restore_record``.
    """
    found = await read_restore_record(store)
    return found if found is not None and found.pauses else None


class RestoreRecordStore:
    """Reads and writes the record in a store."""

    def __init__(self, store: MetadataStore, clock: Clock, rng: Rng) -> None:
        self._store = store
        self._clock = clock
        self._records = RecordUpdater(store, clock, rng)

    async def read(self) -> RestoreRecord | None:
        """See ``read_restore_record``."""
        return await read_restore_record(self._store)

    async def report(self, bookie_id: str, id_counter: int, highest_id: int) -> RestoreRecord:
        """Record what a bookie detected, and raise the counter above ``highest_id``.

        Raises:
            MetadataUnavailable, MetadataConflict, MetadataOutcomeUnknown: it may not have been recorded; try again.
            NewerFormat: see ``decode_restore_record``.
        """
        found = RestoreRecord(id_counter, highest_id, bookie_id, self._now_ms())

        def note(value: bytes | None) -> bytes:
            before = None if value is None else _readable(value)
            return encode_restore_record(_with(None if before is UNREADABLE else before, found))

        # In this order: once the counter is raised, the restore can no longer be detected.
        record = await self._records.update(RECORD, note)
        await self._store.raise_id_counter(min(highest_id + 1, MAX_ID))
        return decode_restore_record(RECORD, record.value)

    async def approve(self) -> bool:
        """Approve the record for an operator, so that bookies resume. Whether there was an unapproved_restore record.

        A damaged record is rewritten.

        Raises:
            DamagedFile: the record was removed meanwhile.
            Otherwise as ``report``.
        """
        before = await self.read()
        if before is None or not before.pauses:
            return False
        now_ms = self._now_ms()
        id_counter = await self._store.id_counter()

        def approved(value: bytes | None) -> bytes:
            if value is None:
                raise DamagedFile(f"the record {RECORD} was removed by another process")
            found = _readable(value)
            if found is UNREADABLE:
                found = replace(found, id_counter=id_counter, highest_id=max(id_counter - 1, 0), found_at_ms=now_ms)
            return encode_restore_record(replace(found, approved_at_ms=now_ms)) if found.pauses else value

        await self._records.update(RECORD, approved)
        return True

    def _now_ms(self) -> int:
        return max(1, self._clock.wall_us() // 1000)


def _readable(value: bytes) -> RestoreRecord:
    """Decode the record; ``UNREADABLE`` if it is damaged.

    Raises:
        NewerFormat: a newer version wrote it.
    """
    try:
        return decode_restore_record(RECORD, value)
    except DamagedFile:
        return UNREADABLE


def _with(before: RestoreRecord | None, found: RestoreRecord) -> RestoreRecord:
    """Merge one more detection into the record; unchanged if it already covers it."""
    if before is None:
        return found
    id_counter, highest_id = min(before.id_counter, found.id_counter), max(before.highest_id, found.highest_id)
    if before.pauses and (id_counter, highest_id) == (before.id_counter, before.highest_id):
        return before
    return replace(found, id_counter=id_counter, highest_id=highest_id)
