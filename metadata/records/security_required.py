"""Whether a cluster requires security: one record, which the first secured bookie writes.

A process without a security directory that finds it opens the metadata for reading only. A program that ignores the
record is held by the rights of the SQLite file or the ACLs of ZooKeeper alone.
"""

from __future__ import annotations

import json
from typing import Final

from tallybook.core.errors import DamagedFile, NewerFormat
from tallybook.runtime.clock import Clock
from tallybook.runtime.rng import Rng

from .record_format import FIRST, check_format
from .record_json import NOT_UNDERSTOOD
from .record_update import RecordUpdater
from .store import MetadataStore

RECORD: Final = "security/required"


async def requires_security(store: MetadataStore) -> bool:
    """Whether the cluster requires security. A record that cannot be understood counts as yes.

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
        MetadataOutcomeUnknown: it may have been recorded; the same call settles it.
        AccessDenied: this process may not change the metadata.
    """
    if await requires_security(store) is required:
        return
    value = json.dumps({"format": FIRST, "required": required}).encode()
    await RecordUpdater(store, clock, rng).update(RECORD, lambda _before: value)


def decode_required(value: bytes) -> bool:
    """What the record says.

    Raises:
        NewerFormat: a newer Tallybook wrote it.
        DamagedFile: it says something else.
    """
    try:
        found = json.loads(value)
        check_format(f"the record {RECORD}", found)
        required = found["required"]
    except NOT_UNDERSTOOD as error:
        raise DamagedFile(f"the record {RECORD} cannot be understood: {error!r}") from error
    if type(required) is not bool:
        raise DamagedFile(f"the record {RECORD} says neither true nor false")
    return required
