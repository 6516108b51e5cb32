"""The pause record: an operator pauses the repair of the whole cluster with it.

While the repair is paused, the auditor still reports what it finds but publishes no tasks. A replicator finishes the
ledgers that it is repairing, gives its task up and claims none. Nothing is lost: the auditor finds the rest again.
"""

from __future__ import annotations

import json
from functools import partial
from typing import Final

from tallybook.metadata.records.format import FIRST, check_overwritable, load_json, reporting_damage
from tallybook.metadata.records.update import RecordUpdater
from tallybook.metadata.store import MetadataStore

PAUSED_RECORD: Final = "repair/paused"
_RUNNING: Final = b"{}"


async def paused_since(store: MetadataStore) -> int | None:
    """When the repair was paused, in milliseconds since the epoch; ``None`` if it is not paused.

    Raises:
        MetadataUnavailable: the store does not answer.
        DamagedFile, NewerFormat: the record cannot be decoded.
    """
    record = await store.read_record(PAUSED_RECORD, linearizable=True)
    return None if record is None else _decode(record.value)


async def pause(records: RecordUpdater, now_ms: int) -> None:
    """Pause the repair of the whole cluster. If it is already paused, nothing changes.

    Raises:
        MetadataConflict, MetadataUnavailable: nothing was changed.
        MetadataOutcomeUnknown: the repair may be paused.
        DamagedFile, NewerFormat: the record cannot be decoded.
    """

    def paused(found: bytes | None) -> bytes:
        held = found is not None and _decode(found) is not None
        return found if held and found is not None else json.dumps({"format": FIRST, "since_ms": now_ms}).encode()

    await records.update(PAUSED_RECORD, paused)


async def resume(records: RecordUpdater) -> None:
    """Resume the repair. Replaces the record even if it cannot be decoded.

    Raises:
        As ``pause``, except ``DamagedFile``.
    """
    await records.update(PAUSED_RECORD, partial(check_overwritable, PAUSED_RECORD, _RUNNING))


def _decode(value: bytes) -> int | None:
    since = load_json(PAUSED_RECORD, value).get("since_ms")
    with reporting_damage(PAUSED_RECORD):
        return None if since is None else int(since)
