"""Where a cluster's archive is: one URL for everybody, kept with the metadata.

Ledgers' metadata name objects relative to it. The first offloader settles it; whoever comes with another one
is refused, since objects of the same cluster in two places would be read in neither. Credentials are never
in it: they come from the environment of each process.
"""

from __future__ import annotations

import json
from typing import Final

from tallybook.core.errors import DamagedFile, InvalidConfig, MetadataOutcomeUnknown
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
        raise InvalidConfig(f"the archive of this cluster is {settled}, not {url}: give the same URL, or none")
