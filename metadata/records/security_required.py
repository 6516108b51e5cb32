"""Record that a cluster requires security; the first secured bookie writes it.

A process without a security directory that finds the record opens the metadata read-only. A program that ignores the
record is bound only by the permissions of the SQLite file or the ACLs of ZooKeeper.
"""

from __future__ import annotations

import json
from typing import Final

from tallybook.core.errors import DamagedFile, NewerFormat
from tallybook.runtime.clock import Clock
from tallybook.runtime.rng import Rng

from ..store import MetadataStore
from .format import FIRST, load_json
from .update import RecordUpdater

RECORD: Final = "security/required"


async def requires_security(store: MetadataStore) -> bool:
    """Whether the cluster requires security. An unreadable record counts as yes.

    Raises:
        MetadataUnavailable: the store does not answer.
    """
    record = await store.read_record(RECORD, linearizable=True)
    if record is None:
        return False
    try:
        return decode_required(record.value)
    except (DamagedFile, NewerFormat):
        return True


async def require_security(store: MetadataStore, clock: Clock, rng: Rng, *, required: bool = True) -> None:
    """Record that the cluster requires security from now on, or no longer does.

    Raises:
        MetadataUnavailable, MetadataConflict: nothing was changed.
        MetadataOutcomeUnknown: it may have been recorded; repeat the call.
        AccessDenied: this process may not change the metadata.
    """
    if await requires_security(store) is required:
        return
    value = json.dumps({"format": FIRST, "required": required}).encode()
    await RecordUpdater(store, clock, rng).update(RECORD, lambda _before: value)


def decode_required(value: bytes) -> bool:
    """Decode the record.

    Raises:
        NewerFormat: a newer Tallybook wrote it.
        DamagedFile: the record is invalid.
    """
    required = load_json(RECORD, value).get("required")
    if type(required) is not bool:
        raise DamagedFile(f"the record {RECORD} says neither true nor false")
    return required
