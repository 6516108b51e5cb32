"""Whether the repair is paused: a record that every auditor and replicator looks at, and that an operator writes.

Paused, an auditor goes on to look and to tell what it finds, but hands out nothing, and a replicator takes no task and
puts back the one that it has, after the ledgers that it is at. Nothing is lost by it: what was found is found again.
"""

from __future__ import annotations

import json
from functools import partial
from typing import Final

from tallybook.core.errors import DamagedFile
from tallybook.metadata.record_format import FIRST, check_format, over_known
from tallybook.metadata.record_json import NOT_UNDERSTOOD
from tallybook.metadata.record_update import RecordUpdater
from tallybook.metadata.store import MetadataStore

PAUSED_RECORD: Final = "repair/paused"
_RUNNING: Final = b"{}"


async def paused_since(store: MetadataStore) -> int | None:
    """Since when the repair is paused, in milliseconds since the epoch; ``None`` if it is not.

    Raises:
        MetadataUnavailable: the store does not answer.
        DamagedFile, NewerFormat: the record holds something else.
    """
    record = await store.read_record(PAUSED_RECORD, linearizable=True)
    return None if record is None else _decode(record.value)


async def pause(records: RecordUpdater, now_ms: int) -> None:
    """Pause the repair of the whole cluster. If it is paused, it stays so since then.

    Raises:
        MetadataConflict, MetadataUnavailable: nothing was changed.
        MetadataOutcomeUnknown: it may have been.
        DamagedFile, NewerFormat: the record holds something else.
    """

    def paused(found: bytes | None) -> bytes:
        held = found is not None and _decode(found) is not None
        return found if held and found is not None else json.dumps({"format": FIRST, "since_ms": now_ms}).encode()

    await records.update(PAUSED_RECORD, paused)


async def resume(records: RecordUpdater) -> None:
    """Let the repair go on.

    Raises:
        As ``pause``, but for ``DamagedFile``: whatever the record holds is replaced.
    """
    await records.update(PAUSED_RECORD, partial(over_known, PAUSED_RECORD, _RUNNING))


def _decode(value: bytes) -> int | None:
    try:
        found = json.loads(value)
        check_format(PAUSED_RECORD, found)
        since = found.get("since_ms")
        return None if since is None else int(since)
    except NOT_UNDERSTOOD as error:
        raise DamagedFile(f"the record {PAUSED_RECORD} cannot be understood: {error!r}") from error
