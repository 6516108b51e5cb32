"""Copies the records of streams into the bucket, so that they outlive the metadata store as archived ledgers do."""

from __future__ import annotations

import asyncio
from hashlib import sha256
from typing import Final

from tallybook.archive.objects.port import ObjectStore
from tallybook.archive.records import RECORDS_KEY, encode_records
from tallybook.core.marks import sometimes
from tallybook.metadata.store import MetadataStore
from tallybook.runtime.tasks import Workers

COPIED: Final = ("stream-chapters/", "stream-heads/", "stream-names/", "stream-namespaces/", "stream-subscriptions/")
"""What the names of copied records begin with (``stream/names.py``)."""
CONCURRENT_READS: Final = 32
_ALL: Final = "stream-"


class RecordsCopier:
    """The copy in one bucket.

    Args:
        workers: where it is encoded.
    """

    def __init__(self, metadata: MetadataStore, store: ObjectStore, workers: Workers) -> None:
        self._metadata = metadata
        self._store = store
        self._workers = workers
        self._content = b""
        """SHA-256 of what this process has written last."""

    async def copy(self) -> bool:
        """Replace the copy if a record has changed since this process wrote it; whether it was replaced.

        A record is read on its own, so the copy is of no single moment: who restores it settles contradictions.

        Raises:
            MetadataUnavailable: the records cannot be read.
            ArchiveUnavailable, ArchiveDenied: the copy may not have been replaced.
        """
        names = [name for name in await self._listed() if name.startswith(COPIED)]
        records: dict[str, bytes] = {}
        for at in range(0, len(names), CONCURRENT_READS):
            chunk = names[at : at + CONCURRENT_READS]
            for name, record in zip(chunk, await asyncio.gather(*map(self._metadata.read_record, chunk)), strict=True):
                if record is not None:
                    records[name] = record.value
        if not records and not self._content:
            return False
        data = await self._workers.run(encode_records, records)
        content = sha256(data).digest()
        if content == self._content:
            return False
        await self._store.put(RECORDS_KEY, data)
        self._content = content
        sometimes("offload: records of streams are copied")
        return True

    async def _listed(self) -> list[str]:
        names: list[str] = []
        while True:
            page = await self._metadata.list_records(_ALL, names[-1] if names else "")
            names += page.names
            if page.complete or not page.names:
                return names
