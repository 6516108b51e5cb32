"""Record of the archive's URL: one per cluster, stored in the metadata.

Ledger metadata names objects relative to it. The first offloader writes it; an offloader with another URL is refused,
because readers would look for its objects in the wrong place. ``relocate`` changes it after the objects were moved. It
never contains credentials: they come from the environment of each process.
"""

from __future__ import annotations

import json
from typing import Final

from tallybook.core.errors import Conflict, DamagedFile, InvalidConfig, MetadataOutcomeUnknown
from tallybook.metadata.records.format import load_json
from tallybook.metadata.store import BadVersion, MetadataStore, Unknown

RECORD: Final = "archive/location"
FORMAT: Final = 1


async def read_location(store: MetadataStore) -> str | None:
    """Read the URL of the archive; ``None`` if there is none yet.

    Raises:
        MetadataUnavailable: the metadata store does not answer.
        DamagedFile, NewerFormat: the record is unreadable.
    """
    record = await store.read_record(RECORD, linearizable=True)
    if record is None:
        return None
    url = load_json(RECORD, record.value, FORMAT, oldest=FORMAT).get("url")
    if not isinstance(url, str):
        raise DamagedFile(f"the record {RECORD} has no URL: {url!r}")
    return url


async def relocate(store: MetadataStore, url: str) -> None:
    """Record that the archive is now at ``url``, replacing any earlier one.

    Raises:
        Conflict: the record was changed meanwhile; nothing was written.
        MetadataOutcomeUnknown: it may have been written; repeat the call.
        MetadataUnavailable: the store does not answer.
    """
    record = await store.read_record(RECORD, linearizable=True)
    value = json.dumps({"format": FORMAT, "url": url}).encode()
    result = await store.write_record(RECORD, value, None if record is None else record.version)
    if isinstance(result, Unknown):
        raise MetadataOutcomeUnknown(
            f"the archive may have been relocated to {url}: {result.reason}; run the command again"
        )
    if isinstance(result, BadVersion):
        raise Conflict(
            "another process has just recorded a location of the archive: check it, and run the command again"
        )


async def ensure_location(store: MetadataStore, url: str) -> None:
    """Make ``url`` the cluster's archive, if it has none.

    Raises:
        InvalidConfig: it has another one.
        MetadataOutcomeUnknown: it may have been recorded; repeat the call.
        MetadataUnavailable, DamagedFile: as ``read_location``.
    """
    if await read_location(store) is None:
        value = json.dumps({"format": FORMAT, "url": url}).encode()
        result = await store.write_record(RECORD, value, None)
        if isinstance(result, Unknown):
            raise MetadataOutcomeUnknown(f"the location of the archive may have been recorded: {result.reason}")
        if not isinstance(result, BadVersion):
            return
    current_url = await read_location(store)
    if current_url != url:
        raise other_location(current_url, url)


def other_location(current_url: str | None, url: str) -> InvalidConfig:
    """The error for ``url`` if the archive is at ``current_url``."""
    return InvalidConfig(
        f"the archive of this cluster is {current_url}, not {url}: give the same URL, or none; "
        "if its objects were moved, record that with 'tallybook offload relocate'"
    )
