"""Whether a cluster's archive is sealed: a record beside that of its place.

The first offloader with keys of the archive writes it, and it stays. From then on, an offloader without keys is
refused: it would put beside the sealed objects what everybody can read, and nobody would notice.
"""

from __future__ import annotations

import json
from typing import Final

from tallybook.core.errors import ArchiveKeyMissing, DamagedFile, MetadataOutcomeUnknown
from tallybook.metadata.record_format import check_format
from tallybook.metadata.record_json import NOT_UNDERSTOOD
from tallybook.metadata.store import MetadataStore, Unknown

RECORD: Final = "archive/sealed"
FORMAT: Final = 1


async def sealed_since(store: MetadataStore) -> int | None:
    """Since when the archive is sealed, in milliseconds since the epoch; ``None``: it is not.

    Raises:
        MetadataUnavailable: the metadata store does not answer.
        DamagedFile, NewerFormat: the record cannot be understood.
    """
    record = await store.read_record(RECORD, linearizable=True)
    if record is None:
        return None
    try:
        found = json.loads(record.value)
        check_format(RECORD, found, FORMAT)
        version, since_ms = found["format"], found["since_ms"]
    except NOT_UNDERSTOOD as error:
        raise DamagedFile(f"the record {RECORD} cannot be understood: {error}") from error
    if version != FORMAT or type(since_ms) is not int:
        raise DamagedFile(f"the record {RECORD} is of format {version}; this Tallybook knows {FORMAT}")
    return since_ms


async def settle_sealing(store: MetadataStore, now_ms: int) -> None:
    """Write down that the archive is sealed from now on, if it was not before.

    Raises:
        MetadataOutcomeUnknown: it may have been written; the same call finds out.
        MetadataUnavailable, DamagedFile, NewerFormat: as ``sealed_since``.
    """
    if await sealed_since(store) is not None:
        return
    value = json.dumps({"format": FORMAT, "since_ms": now_ms}).encode()
    result = await store.write_record(RECORD, value, None)
    if isinstance(result, Unknown):
        raise MetadataOutcomeUnknown(f"that the archive is sealed may have been written: {result.reason}")


def refused(url: str) -> ArchiveKeyMissing:
    """The error for who would write to a sealed archive without keys."""
    return ArchiveKeyMissing(
        f"the archive {url} is sealed, and what goes there from here would not be: set archive_keys "
        "(TALLYBOOK_ARCHIVE_KEYS) to the file with its keys"
    )
