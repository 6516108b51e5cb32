"""What belongs to nobody: what failed attempts, compaction and deleted ledgers leave in the bucket.

An object is an orphan while no ledger's metadata name it, neither as what it is in nor as what it is being
written to. The names are read *after* the bucket was listed: an object is announced before it exists, so
whatever was listed had been announced by then. It is removed when it has been seen without an owner for a
while (readers may still be at it), and is old enough by the store's clock that no attempt can be waiting for it.
How long it has been seen so is counted by the process's own clock, and since when is kept in the manifest of the
bucket, for the process that comes after. A listing of ledgers that may be incomplete proves nothing.

An unfinished upload belongs to the attempt that makes it, and to nobody once that is over: the object may be there
all the same, from another upload of the same attempt.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from tallybook.archive.objects.port import ObjectInfo, UnfinishedUpload
from tallybook.archive.schema import object_id_of
from tallybook.core.config import OffloadSettings
from tallybook.metadata.model import LedgerMetadata


@dataclass(frozen=True, slots=True)
class Owned:
    """Ids of objects that are some ledger's."""

    held: frozenset[str]
    """A ledger is in them."""
    attempted: frozenset[str]
    """Somebody is writing a ledger to them."""

    @classmethod
    def by(cls, ledgers: Iterable[LedgerMetadata], missing: Iterable[str] = ()) -> Owned:
        """What these ledgers own; all there are, for what is in neither to be nobody's.

        Args:
            missing: keys of objects that stay for ledgers which the metadata do not explain.
        """
        held, attempted = {object_id for key in missing if (object_id := object_id_of(key)) is not None}, set()
        for metadata in ledgers:
            if metadata.archived is not None:
                held.add(metadata.archived.object_id)
            if metadata.archiving is not None:
                attempted.add(metadata.archiving.object_id)
        return cls(frozenset(held), frozenset(attempted))

    def frees_object(self, key: str) -> bool:
        """Whether it is an object of ours, and nobody's. What has no name of ours is not ours to remove."""
        object_id = object_id_of(key)
        return object_id is not None and object_id not in self.held and object_id not in self.attempted

    def frees_upload(self, key: str) -> bool:
        """Whether it is an upload of ours to that key, and nobody is at it."""
        object_id = object_id_of(key)
        return object_id is not None and object_id not in self.attempted


@dataclass(frozen=True, slots=True)
class Garbage:
    """What may go now."""

    objects: tuple[ObjectInfo, ...]
    uploads: tuple[UnfinishedUpload, ...]

    def __bool__(self) -> bool:
        return bool(self.objects or self.uploads)

    def without(self, owned: Owned) -> Garbage:
        """The same but for what is somebody's after all."""
        return Garbage(
            tuple(found for found in self.objects if owned.frees_object(found.key)),
            tuple(upload for upload in self.uploads if owned.frees_upload(upload.key)),
        )

    def without_objects(self, keys: Collection[str]) -> Garbage:
        """The same but for these objects."""
        return Garbage(tuple(found for found in self.objects if found.key not in keys), self.uploads)


@dataclass(frozen=True, slots=True)
class _Seen:
    """When an object was first seen without an owner."""

    monotonic_s: float
    wall_ms: int


class OrphanWatch:
    """Remembers since when objects have had no owner."""

    def __init__(self, settings: OffloadSettings) -> None:
        self._settings = settings
        self._alone_since: dict[str, _Seen] = {}

    @property
    def count(self) -> int:
        """Objects that have no owner, and wait to be removed."""
        return len(self._alone_since)

    @property
    def since_ms(self) -> dict[str, int]:
        """Since when each of them has been seen without an owner, in milliseconds since the epoch."""
        return {key: seen.wall_ms for key, seen in self._alone_since.items()}

    def restore(self, since_ms: Mapping[str, int], *, monotonic_s: float, wall_ms: int) -> None:
        """Take over what another process has seen, or this one before it was restarted.

        What is said to be seen in the future, by a clock that was wrong, is taken to be seen now.
        """
        for key, since in since_ms.items():
            seen = _Seen(monotonic_s - max(0, wall_ms - since) / 1000, min(since, wall_ms))
            self._alone_since.setdefault(key, seen)

    def look(
        self,
        objects: Sequence[ObjectInfo],
        uploads: Sequence[UnfinishedUpload],
        owned: Owned,
        *,
        monotonic_s: float,
        wall_ms: int,
    ) -> Garbage:
        """What may go, of what a listing showed; ``owned`` was read after it."""
        alone: dict[str, _Seen] = {}
        gone = []
        for found in objects:
            if not owned.frees_object(found.key):
                continue
            seen = alone[found.key] = self._alone_since.get(found.key, _Seen(monotonic_s, wall_ms))
            alone_s = monotonic_s - seen.monotonic_s
            if self._old(found.modified_at_ms, wall_ms) and alone_s >= self._settings.orphan_delay_s:
                gone.append(found)
        self._alone_since = alone
        dead = [
            upload for upload in uploads if owned.frees_upload(upload.key) and self._old(upload.began_at_ms, wall_ms)
        ]
        return Garbage(tuple(gone), tuple(dead))

    def removed(self, key: str) -> None:
        """An object is gone."""
        self._alone_since.pop(key, None)

    def _old(self, since_ms: int, wall_ms: int) -> bool:
        return wall_ms - since_ms >= self._settings.attempt_ttl_s * 1000
