"""Status record of the leading offloader, written after each pass."""

from __future__ import annotations

from typing import Any, Final

from tallybook.metadata.records.format import load_json, reporting_damage
from tallybook.metadata.store import MetadataStore

STATUS_RECORD: Final = "archive/status"


async def last_pass(store: MetadataStore) -> dict[str, Any]:
    """Totals since its start, and the backlog; empty if there was no pass yet.

    Raises:
        MetadataUnavailable: the store does not answer.
        DamagedFile, NewerFormat: as ``decode_status``.
    """
    record = await store.read_record(STATUS_RECORD)
    return {} if record is None else decode_status(record.value)


def decode_status(value: bytes) -> dict[str, Any]:
    """Decode the record.

    Raises:
        DamagedFile: it is invalid.
        NewerFormat: a newer Tallybook wrote it.
    """
    found = load_json(STATUS_RECORD, value)
    at_ms = found.get("at_ms")
    with reporting_damage(STATUS_RECORD):
        return {**found, "at_ms": None if at_ms is None else int(at_ms)}
