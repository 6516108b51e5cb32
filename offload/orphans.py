"""Objects that belong to nobody: what failed attempts, compaction and deleted ledgers leave in the bucket.

An object is an orphan while no ledger's metadata name it, neither as what it is in nor as what it is being
written to. The names are read *after* the bucket was listed: an object is announced before it exists, so
whatever was listed had been announced by then. It is removed when it has been seen without an owner for a
while (readers may still be at it), by this process's own clock, and is old enough by the store's that no
attempt can be waiting for it. A listing of ledgers that may be incomplete proves nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from tallybook.archive.objects.port import ObjectInfo, UnfinishedUpload
from tallybook.archive.schema import object_id_of
from tallybook.core.config import OffloadSettings
from tallybook.metadata.model import LedgerMetadata


@dataclass(frozen=True, slots=True)
class Garbage:
    """What may go now."""

    objects: tuple[ObjectInfo, ...]
    uploads: tuple[UnfinishedUpload, ...]

    def __bool__(self) -> bool:
        return bool(self.objects or self.uploads)

    def without(self, owned: Collection[str]) -> Garbage:
        """The same but for objects with these ids."""
        return Garbage(
            tuple(found for found in self.objects if object_id_of(found.key) not in owned),
            tuple(upload for upload in self.uploads if object_id_of(upload.key) not in owned),
        )


class OrphanWatch:
    """Remembers since when objects have had no owner."""

    def __init__(self, settings: OffloadSettings) -> None:
        self._settings = settings
        self._alone_since: dict[str, float] = {}

    @property
    def count(self) -> int:
        """Objects that have no owner, and wait to be removed."""
        return len(self._alone_since)

    def look(
        self,
        objects: Sequence[ObjectInfo],
        uploads: Sequence[UnfinishedUpload],
        ledgers: Iterable[LedgerMetadata],
        *,
        monotonic_s: float,
        wall_ms: int,
    ) -> Garbage:
        """What may go, of what a listing showed; ``ledgers`` are all there are, read after it."""
        owned = owned_ids(ledgers)
        alone: dict[str, float] = {}
        gone = []
        for found in objects:
            object_id = object_id_of(found.key)
            # What has no name of ours is not ours to remove.
            if object_id is None or object_id in owned:
                continue
            since = alone[found.key] = self._alone_since.get(found.key, monotonic_s)
            old = wall_ms - found.modified_at_ms >= self._settings.attempt_ttl_s * 1000
            if old and monotonic_s - since >= self._settings.orphan_delay_s:
                gone.append(found)
        self._alone_since = alone
        dead = [
            upload
            for upload in uploads
            if (object_id := object_id_of(upload.key)) is not None
            and object_id not in owned
            and wall_ms - upload.began_at_ms >= self._settings.attempt_ttl_s * 1000
        ]
        return Garbage(tuple(gone), tuple(dead))

    def removed(self, key: str) -> None:
        """An object is gone."""
        self._alone_since.pop(key, None)


def owned_ids(ledgers: Iterable[LedgerMetadata]) -> set[str]:
    """Ids of the objects that some ledger is in, or is being written to."""
    owned = set()
    for metadata in ledgers:
        if metadata.archived is not None:
            owned.add(metadata.archived.object_id)
        if metadata.archiving is not None:
            owned.add(metadata.archiving.object_id)
    return owned
