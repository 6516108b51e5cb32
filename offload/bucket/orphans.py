"""Tracks orphans: objects and uploads left in the bucket by failed attempts, compaction and deleted ledgers.

An object is an orphan while no ledger's metadata names it, neither as its archive object nor as its attempt. The
metadata is read *after* the bucket was listed: an attempt names an object before it exists, so every listed object had
been named by then. An orphan is removed after it has been seen without an owner for a while (readers may still use it),
and if it is old enough by the store's clock that no attempt can still use it. The first duration is measured by the
process's own clock, and its start is stored in the bucket's manifest for the next process. An incomplete listing of
ledgers proves nothing.

An unfinished upload belongs to its attempt, and is an orphan once that has ended: the object may exist nevertheless,
from another upload of the same attempt.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from tallybook.archive.format.schema import object_id_of
from tallybook.archive.objects.port import ObjectInfo, UnfinishedUpload
from tallybook.core.settings import OffloadSettings
from tallybook.metadata.ledger.model import LedgerMetadata


@dataclass(frozen=True, slots=True)
class Owned:
    """Ids of objects that belong to ledgers."""

    held: frozenset[str]
    """Objects that contain a ledger."""
    attempted: frozenset[str]
    """Objects of attempts in progress."""

    @classmethod
    def by(cls, ledgers: Iterable[LedgerMetadata], missing: Iterable[str] = ()) -> Owned:
        """Objects owned by these ledgers, which must be all existing ones.

        Args:
            missing: keys of objects that are kept for ledgers that the metadata does not explain.
        """
        held, attempted = {object_id for key in missing if (object_id := object_id_of(key)) is not None}, set()
        for metadata in ledgers:
            if metadata.archived is not None:
                held.add(metadata.archived.object_id)
            if metadata.archiving is not None:
                attempted.add(metadata.archiving.object_id)
        return cls(frozenset(held), frozenset(attempted))

    def is_orphan(self, key: str) -> bool:
        """Whether the key is that of an archive object without an owner. Foreign objects are never removed."""
        object_id = object_id_of(key)
        return object_id is not None and object_id not in self.held and object_id not in self.attempted

    def is_abandoned_upload(self, key: str) -> bool:
        """Whether the key is that of an archive object without an attempt in progress."""
        object_id = object_id_of(key)
        return object_id is not None and object_id not in self.attempted


@dataclass(frozen=True, slots=True)
class Garbage:
    """Objects and uploads that may be removed."""

    objects: tuple[ObjectInfo, ...]
    uploads: tuple[UnfinishedUpload, ...]

    def __bool__(self) -> bool:
        return bool(self.objects or self.uploads)

    def without(self, owned: Owned) -> Garbage:
        """Without those that have an owner."""
        return Garbage(
            tuple(found for found in self.objects if owned.is_orphan(found.key)),
            tuple(upload for upload in self.uploads if owned.is_abandoned_upload(upload.key)),
        )

    def without_objects(self, keys: Collection[str]) -> Garbage:
        """Without these objects."""
        return Garbage(tuple(found for found in self.objects if found.key not in keys), self.uploads)


@dataclass(frozen=True, slots=True)
class _Seen:
    """When an object was first seen without an owner."""

    monotonic_s: float
    wall_ms: int


class OrphanWatch:
    """Tracks since when objects have had no owner."""

    def __init__(self, settings: OffloadSettings) -> None:
        self._settings = settings
        self._alone_since: dict[str, _Seen] = {}

    @property
    def count(self) -> int:
        """Orphans that wait to be removed."""
        return len(self._alone_since)

    @property
    def since_ms(self) -> dict[str, int]:
        """When each orphan was first seen, in milliseconds since the epoch."""
        return {key: seen.wall_ms for key, seen in self._alone_since.items()}

    def restore(self, since_ms: Mapping[str, int], *, monotonic_s: float, wall_ms: int) -> None:
        """Take over the orphans known to another process, or to this one before a restart.

        A time in the future, from a wrong clock, counts as now.
        """
        for key, since in since_ms.items():
            seen = _Seen(monotonic_s - max(0, wall_ms - since) / 1000, min(since, wall_ms))
            self._alone_since.setdefault(key, seen)

    def update(
        self,
        objects: Sequence[ObjectInfo],
        uploads: Sequence[UnfinishedUpload],
        owned: Owned,
        *,
        monotonic_s: float,
        wall_ms: int,
    ) -> Garbage:
        """The orphans of a listing that may be removed; ``owned`` was read after the listing."""
        alone: dict[str, _Seen] = {}
        gone = []
        for found in objects:
            if not owned.is_orphan(found.key):
                continue
            seen = alone[found.key] = self._alone_since.get(found.key, _Seen(monotonic_s, wall_ms))
            alone_s = monotonic_s - seen.monotonic_s
            if self._old(found.modified_at_ms, wall_ms) and alone_s >= self._settings.orphan_delay_s:
                gone.append(found)
        self._alone_since = alone
        dead = [
            upload
            for upload in uploads
            if owned.is_abandoned_upload(upload.key) and self._old(upload.began_at_ms, wall_ms)
        ]
        return Garbage(tuple(gone), tuple(dead))

    def removed(self, key: str) -> None:
        """Note that an object was removed."""
        self._alone_since.pop(key, None)

    def _old(self, since_ms: int, wall_ms: int) -> bool:
        return wall_ms - since_ms >= self._settings.attempt_ttl_s * 1000
