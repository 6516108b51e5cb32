"""What the metadata of a ledger say of its copy in an object store, and the only ways to change that.

            .-- begin_archiving (an attempt that is too old may be replaced) --.
            v                                                                  |
    nothing --> ATTEMPT (an object id) -- commit_archived --> ARCHIVED (a receipt) -- release_copies --> RELEASED
                    |                                            |  ^                 bookies may drop
                    `-- abandon_archiving                        `--' commit_archived: moved to another object

An attempt names the object before it is written, so an object that no ledger names belongs to nobody and
can be collected. A receipt is everything that is needed to know the object again: its length, the hash of
its bytes, where its index lies. Keys are relative to the archive's prefix: metadata can never lead elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from tallybook.core.errors import Conflict, InvalidArgument

if TYPE_CHECKING:
    from .model import LedgerMetadata

SHA256_BYTES: Final = 32
MAX_KEY_BYTES: Final = 1024
"""Longest key, in UTF-8, that object stores take."""


@dataclass(frozen=True, slots=True)
class IndexPart:
    """Where a part of an object's index lies, and how to know it. Offsets and lengths in bytes."""

    offset: int
    stored_bytes: int
    raw_bytes: int
    """Once decompressed."""
    crc: int
    """CRC-32C as stored."""

    @property
    def end(self) -> int:
        """Offset of the byte behind it."""
        return self.offset + self.stored_bytes


@dataclass(frozen=True, slots=True)
class ArchiveAttempt:
    """Somebody is writing an object with this ledger in it."""

    object_id: str
    began_at_ms: int
    """Milliseconds since the epoch, as the machine of that somebody believes."""

    def __post_init__(self) -> None:
        if not self.object_id:
            raise InvalidArgument("an attempt to archive names its object")

    def is_dead(self, now_ms: int, ttl_ms: int) -> bool:
        """Whether nobody is believed to be at it any more, at ``now_ms`` since the epoch.

        One that seems to begin as long after now was made by a clock that was wrong, and would never grow old.
        """
        return abs(now_ms - self.began_at_ms) >= ttl_ms


@dataclass(frozen=True, slots=True)
class Receipt:
    """A copy of the whole ledger that was read back and found good."""

    object_id: str
    key: str
    object_bytes: int
    object_sha256: bytes
    index: IndexPart
    """The directory of the object."""
    entries: int
    payload_bytes: int
    rolling_crc: int
    """CRC-32C over the ledger's batches as they were written, one after the other."""
    archived_at_ms: int

    def __post_init__(self) -> None:
        _check_key(self.key)
        if not self.object_id:
            raise InvalidArgument(f"{self.key}: a receipt names its object")
        if len(self.object_sha256) != SHA256_BYTES:
            raise InvalidArgument(f"{self.key}: a SHA-256 has {SHA256_BYTES} bytes, got {len(self.object_sha256)}")
        if min(self.entries, self.payload_bytes) < 0:
            raise InvalidArgument(f"{self.key}: {self.entries} entries of {self.payload_bytes} bytes in all")
        index = self.index
        if index.offset < 0 or min(index.stored_bytes, index.raw_bytes) < 1 or index.end > self.object_bytes:
            raise InvalidArgument(f"{self.key}: its index does not lie within its {self.object_bytes} bytes")


def _check_key(key: str) -> None:
    """A key stays below the prefix that it is appended to."""
    folders = key.split("/")
    strange = "\\" in key or not key.isprintable() or any(folder in {"", ".", ".."} for folder in folders)
    if strange or len(key.encode()) > MAX_KEY_BYTES:
        raise InvalidArgument(f"{key!r} is not the key of an archive object")


def begin_archiving(
    metadata: LedgerMetadata, attempt: ArchiveAttempt, *, from_object: str | None, ttl_ms: int
) -> LedgerMetadata:
    """Announce an object that will hold the ledger.

    Args:
        from_object: id of the object that holds it now, ``None`` if none does: what the attempt is to replace.
        ttl_ms: age at which another attempt is taken for dead when this one begins.

    Raises:
        InvalidArgument: the ledger is not closed, or is in that object already; an object is never written twice.
        Conflict: another attempt is under way, or the ledger is in another object by now.
    """
    if not metadata.closed:
        raise InvalidArgument(f"ledger {metadata.ledger_id} is not closed: only closed ledgers are archived")
    held_by = metadata.archived.object_id if metadata.archived else None
    if held_by == attempt.object_id:
        raise InvalidArgument(f"ledger {metadata.ledger_id} is in object {held_by} already")
    if held_by != from_object:
        raise Conflict(f"ledger {metadata.ledger_id} is in object {held_by}, not in {from_object}")
    other = metadata.archiving
    if other is not None and other.object_id != attempt.object_id and not other.is_dead(attempt.began_at_ms, ttl_ms):
        raise Conflict(f"ledger {metadata.ledger_id} is being archived into object {other.object_id}")
    return replace(metadata, archiving=attempt)


def commit_archived(metadata: LedgerMetadata, receipt: Receipt) -> LedgerMetadata:
    """The object of the attempt is complete and was read back: the ledger is in it. Doing so again changes nothing.

    Raises:
        Conflict: another attempt has taken the place of the one that made this object.
        InvalidArgument: the receipt is not of the whole ledger.
    """
    if metadata.archived == receipt:
        return metadata
    if metadata.archiving is None or metadata.archiving.object_id != receipt.object_id:
        raise Conflict(f"ledger {metadata.ledger_id} is not being archived into object {receipt.object_id} any more")
    return replace(metadata, archived=receipt, archiving=None)


def abandon_archiving(metadata: LedgerMetadata, object_id: str) -> LedgerMetadata:
    """Give an attempt up; nothing changes if it is not the one under way."""
    if metadata.archiving is None or metadata.archiving.object_id != object_id:
        return metadata
    return replace(metadata, archiving=None)


def release_copies(metadata: LedgerMetadata, object_id: str) -> LedgerMetadata:
    """The bookies may drop their copies from now on, for ever: the archive has been verified once more.

    Raises:
        Conflict: the ledger is not in that object (any more).
    """
    if metadata.archived is None or metadata.archived.object_id != object_id:
        raise Conflict(f"ledger {metadata.ledger_id} is not in object {object_id}")
    return replace(metadata, copies_released=True)
