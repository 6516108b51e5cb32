"""Record that a cluster's archive is encrypted.

The first offloader with archive keys writes it, and it stays. From then on an offloader without keys is refused: it
would store plain objects next to the encrypted ones, unnoticed.
"""

from __future__ import annotations

import json
from typing import Final

from tallybook.core.errors import ArchiveKeyMissing, DamagedFile, MetadataOutcomeUnknown
from tallybook.metadata.records.format import load_json
from tallybook.metadata.store import MetadataStore, Unknown

RECORD: Final = "archive/sealed"
FORMAT: Final = 1


async def encrypted_since(store: MetadataStore) -> int | None:
    """When the archive became encrypted, in milliseconds since the epoch; ``None``: it is not encrypted.

    Raises:
        MetadataUnavailable: the metadata store does not answer.
        DamagedFile, NewerFormat: the record is unreadable.
    """
    record = await store.read_record(RECORD, linearizable=True)
    if record is None:
        return None
    since_ms = load_json(RECORD, record.value, FORMAT, oldest=FORMAT).get("since_ms")
    if type(since_ms) is not int:
        raise DamagedFile(f"the record {RECORD} has no time: {since_ms!r}")
    return since_ms


async def record_encryption(store: MetadataStore, now_ms: int) -> None:
    """Record that the archive is encrypted from now on, unless it is recorded already.

    Raises:
        MetadataOutcomeUnknown: it may have been written; repeat the call.
        MetadataUnavailable, DamagedFile, NewerFormat: as ``encrypted_since``.
    """
    if await encrypted_since(store) is not None:
        return
    value = json.dumps({"format": FORMAT, "since_ms": now_ms}).encode()
    result = await store.write_record(RECORD, value, None)
    if isinstance(result, Unknown):
        raise MetadataOutcomeUnknown(f"the record that the archive is encrypted may have been written: {result.reason}")


def keys_missing(url: str) -> ArchiveKeyMissing:
    """The error for a process without keys that would write to an encrypted archive."""
    return ArchiveKeyMissing(
        f"the archive {url} is encrypted, but this process has no keys: set archive_keys "
        "(TALLYBOOK_ARCHIVE_KEYS) to the file with its keys"
    )
