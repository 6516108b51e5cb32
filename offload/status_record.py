"""What the offloader that leads wrote down after its last round, for anybody to see."""

from __future__ import annotations

import json
from typing import Any, Final

from tallybook.core.errors import DamagedFile
from tallybook.metadata.record_format import check_format
from tallybook.metadata.record_json import NOT_UNDERSTOOD
from tallybook.metadata.store import MetadataStore

STATUS_RECORD: Final = "archive/status"


async def last_round(store: MetadataStore) -> dict[str, Any]:
    """Its totals since its start, and what is left; empty if there never was one.

    Raises:
        MetadataUnavailable: the store does not answer.
        DamagedFile, NewerFormat: as ``decode_status``.
    """
    record = await store.read_record(STATUS_RECORD)
    return {} if record is None else decode_status(record.value)


def decode_status(value: bytes) -> dict[str, Any]:
    """What the record holds.

    Raises:
        DamagedFile: something else.
        NewerFormat: a newer Tallybook has written it.
    """
    try:
        found = json.loads(value)
        check_format(STATUS_RECORD, found)
        at_ms = found.get("at_ms")
        return {**found, "at_ms": None if at_ms is None else int(at_ms)}
    except NOT_UNDERSTOOD as error:
        raise DamagedFile(f"the record {STATUS_RECORD} cannot be understood: {error}") from error
