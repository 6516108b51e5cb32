"""Copies the stream records into the bucket, so that they survive a loss of the metadata store like archived ledgers.

The metadata does not show whether a missing record was deleted or lost. It stays in the copy for ``GONE_KEPT_SECONDS``;
a restore decides by the ledgers that it names (``stream/restore/restore.py``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from tallybook.archive.objects.port import ObjectStore
from tallybook.archive.stream_records import RECORDS_KEY, RecordsCopy, encode_records, read_records
from tallybook.core.coverage import sometimes
from tallybook.core.errors import DamagedFile, ObjectDamaged
from tallybook.metadata.records.listing import record_names
from tallybook.metadata.store import MetadataStore
from tallybook.runtime.clock import Clock
from tallybook.runtime.logging import logger
from tallybook.runtime.tasks import Workers

_log = logger("offload.records_copier")

COPIED: Final = ("stream-chapters/", "stream-heads/", "stream-names/", "stream-namespaces/", "stream-subscriptions/")
"""Name prefixes of copied records (``stream/names.py``)."""
CONCURRENT_READS: Final = 32
GONE_KEPT_SECONDS: Final = 30 * 86_400.0
MAX_GONE: Final = 10_000
"""Maximum missing records in the copy; the latest ones are kept."""
_ALL: Final = "stream-"


class RecordsCopier:
    """The copy in one bucket.

    Args:
        workers: encode it.
    """

    def __init__(self, metadata: MetadataStore, store: ObjectStore, workers: Workers, clock: Clock) -> None:
        self._metadata = metadata
        self._store = store
        self._workers = workers
        self._clock = clock

    async def copy(self) -> bool:
        """Replace the copy if a record has changed; whether it was replaced.

        Records are read one by one, so the copy is not a snapshot: a restore resolves contradictions.

        Raises:
            MetadataUnavailable: the records are unreadable, or their listing is incomplete.
            ArchiveUnavailable, ArchiveDenied: the copy may not have been replaced.
            ArchiveKeyMissing, NewerFormat: the present copy is unreadable, and is kept.
        """
        before = await self._present()
        after = _next(before, await self._records(), self._clock.wall_us() // 1000)
        if after == before:
            return False
        await self._store.put(RECORDS_KEY, await self._workers.run(encode_records, after))
        sometimes("offload: records of streams are copied")
        return True

    async def _present(self) -> RecordsCopy:
        try:
            return await read_records(self._store, self._workers)
        except (DamagedFile, ObjectDamaged) as error:
            _log.error("the copy of the stream records is damaged and is written again", error=error.message)
            return RecordsCopy()

    async def _records(self) -> dict[str, bytes]:
        listed = [name async for name in record_names(self._metadata, _ALL) if name.startswith(COPIED)]
        records: dict[str, bytes] = {}
        for at in range(0, len(listed), CONCURRENT_READS):
            chunk = listed[at : at + CONCURRENT_READS]
            for name, record in zip(chunk, await asyncio.gather(*map(self._metadata.read_record, chunk)), strict=True):
                if record is not None:
                    records[name] = record.value
        return records


def _next(before: RecordsCopy, records: Mapping[str, bytes], now_ms: int) -> RecordsCopy:
    """The next copy: existing records, and missing ones for a limited time."""
    gone = {name: before.gone_at_ms.get(name, now_ms) for name in before.records if name not in records}
    oldest_ms = now_ms - GONE_KEPT_SECONDS * 1000
    latest = sorted((name for name in gone if gone[name] > oldest_ms), key=gone.__getitem__, reverse=True)[:MAX_GONE]
    return RecordsCopy(
        {**{name: before.records[name] for name in latest}, **records}, {name: gone[name] for name in latest}
    )
