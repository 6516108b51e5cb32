"""Where a cluster's archive is: one URL for everybody, kept with the metadata.

Ledgers' metadata name objects relative to it. The first offloader settles it; an offloader that is given another one
is refused, since objects of the same cluster in two places would be read in neither. ``relocate`` changes it once the
objects have been moved. Credentials are never in it: they come from the environment of each process.
"""

from __future__ import annotations

import json
from typing import Final

from tallybook.core.errors import Conflict, DamagedFile, InvalidConfig, MetadataOutcomeUnknown
from tallybook.metadata.record_format import check_format
from tallybook.metadata.record_json import NOT_UNDERSTOOD
from tallybook.metadata.store import BadVersion, MetadataStore, Unknown

RECORD: Final = "archive/location"
FORMAT: Final = 1


async def read_location(store: MetadataStore) -> str | None:
    """The URL of the archive; ``None`` if there is none yet.

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
        version, url = found["format"], found["url"]
    except NOT_UNDERSTOOD as error:
        raise DamagedFile(f"the record {RECORD} cannot be understood: {error}") from error
    if version != FORMAT or not isinstance(url, str):
        raise DamagedFile(f"the record {RECORD} is of format {version}; this Tallybook knows {FORMAT}")
    return url


async def relocate(store: MetadataStore, url: str) -> None:
    """Record that the archive is at ``url`` now, whatever was recorded before.

    Raises:
        Conflict: the record was changed meanwhile; nothing was written.
        MetadataOutcomeUnknown: it may have been written; the same call finds out.
        MetadataUnavailable: the store does not answer.
    """
    record = await store.read_record(RECORD, linearizable=True)
    value = json.dumps({"format": FORMAT, "url": url}).encode()
    result = await store.write_record(RECORD, value, None if record is None else record.version)
    if isinstance(result, Unknown):
        raise MetadataOutcomeUnknown(f"the archive may have been relocated to {url}: {result.reason}; run it again")
    if isinstance(result, BadVersion):
        raise Conflict("another process has just written where the archive is: look at it, and run it again")


async def settle_location(store: MetadataStore, url: str) -> None:
    """Make ``url`` the cluster's archive, if it has none.

    Raises:
        InvalidConfig: it has another one.
        MetadataOutcomeUnknown: it may have been settled; the same call finds out.
        MetadataUnavailable, DamagedFile: as ``read_location``.
    """
    if await read_location(store) is None:
        value = json.dumps({"format": FORMAT, "url": url}).encode()
        result = await store.write_record(RECORD, value, None)
        if isinstance(result, Unknown):
            raise MetadataOutcomeUnknown(f"the place of the archive may have been settled: {result.reason}")
        if not isinstance(result, BadVersion):
            return
    settled = await read_location(store)
    if settled != url:
        raise other_location(settled, url)


def other_location(settled: str | None, url: str) -> InvalidConfig:
    """The error where ``url`` was given for an archive that is at ``settled``."""
    return InvalidConfig(
        f"the archive of this cluster is {settled}, not {url}: give the same URL, or none; "
        "if its objects were moved, say so with 'tallybook offload relocate'"
    )
