"""Archive state in a ledger's metadata, and its transitions.

            .-- begin_archiving (an attempt that is too old may be replaced) --.
            v                                                                  |
    nothing --> ATTEMPT (an object id) -- commit_archived --> ARCHIVED (a receipt) -- release_copies --> RELEASED
                    |                                            |  ^                 bookies may drop
                    `-- abandon_archiving                        `--' commit_archived: moved to another object

An attempt names the object before it is written, so an object that no ledger names is an orphan and can be collected.
A receipt identifies and verifies the object: its length, the hash of its bytes, the position of its index. Keys are
relative to the archive's prefix, so metadata can never point outside it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from tallybook.core.errors import Conflict, InvalidArgument

if TYPE_CHECKING:
    from .model import LedgerMetadata

SHA256_BYTES: Final = 32
MAX_KEY_BYTES: Final = 1024
"""Maximum length of an object key in UTF-8, as object stores accept it."""

OFFLOAD_AFTER: Final = "tallybook.offload-after-s"
"""Key of the age in seconds at which a ledger is archived, among its custom metadata; it overrides the offloader's."""


@dataclass(frozen=True, slots=True)
class IndexPart:
    """Position and checksum of a part of an object's index. Offsets and lengths in bytes."""

    offset: int
    stored_bytes: int
    raw_bytes: int
    """Length after decompression."""
    crc: int
    """CRC-32C of the stored bytes."""

    @property
    def end(self) -> int:
        """Offset after the last byte."""
        return self.offset + self.stored_bytes


@dataclass(frozen=True, slots=True)
class ArchiveAttempt:
    """An offloader is writing an object with this ledger in it."""

    object_id: str
    began_at_ms: int
    """Milliseconds since the epoch, by the offloader's clock."""

    def __post_init__(self) -> None:
        if not self.object_id:
            raise InvalidArgument("an attempt to archive must name its object")

    def is_dead(self, now_ms: int, ttl_ms: int) -> bool:
        """Whether the attempt counts as abandoned at ``now_ms`` since the epoch.

        An attempt that seems to begin equally far in the future comes from a wrong clock and would never grow old.
        """
        return abs(now_ms - self.began_at_ms) >= ttl_ms


@dataclass(frozen=True, slots=True)
class Receipt:
    """Describes a copy of the whole ledger that was read back and verified."""

    object_id: str
    key: str
    object_bytes: int
    object_sha256: bytes
    index: IndexPart
    """The directory of the object."""
    entries: int
    payload_bytes: int
    rolling_crc: int
    """CRC-32C over the ledger's batches as written, concatenated."""
    archived_at_ms: int

    def __post_init__(self) -> None:
        _check_key(self.key)
        if not self.object_id:
            raise InvalidArgument(f"{self.key}: a receipt must name its object")
        if len(self.object_sha256) != SHA256_BYTES:
            raise InvalidArgument(f"{self.key}: a SHA-256 has {SHA256_BYTES} bytes, got {len(self.object_sha256)}")
        if min(self.entries, self.payload_bytes) < 0:
            raise InvalidArgument(
                f"{self.key}: a receipt cannot have {self.entries} entries with {self.payload_bytes} bytes"
            )
        index = self.index
        if index.offset < 0 or min(index.stored_bytes, index.raw_bytes) < 1 or index.end > self.object_bytes:
            raise InvalidArgument(f"{self.key}: its index is outside of its {self.object_bytes} bytes")


def _check_key(key: str) -> None:
    """A key must stay below the archive's prefix."""
    folders = key.split("/")
    strange = "\\" in key or not key.isprintable() or any(folder in {"", ".", ".."} for folder in folders)
    if strange or len(key.encode()) > MAX_KEY_BYTES:
        raise InvalidArgument(f"{key!r} is not the key of an archive object")


def begin_archiving(
    metadata: LedgerMetadata, attempt: ArchiveAttempt, *, from_object: str | None, ttl_ms: int
) -> LedgerMetadata:
    """Announce an object that will contain the ledger.

    Args:
        from_object: id of the object that contains it now, which the attempt replaces; ``None``: none.
        ttl_ms: age from which another attempt counts as abandoned when this one begins.

    Raises:
        InvalidArgument: the ledger is not closed, or already in that object; an object is never written twice.
        Conflict: another attempt is in progress, or the ledger has moved to another object.
    """
    if not metadata.closed:
        raise InvalidArgument(f"ledger {metadata.ledger_id} is not closed: only closed ledgers are archived")
    held_by = metadata.archived.object_id if metadata.archived else None
    if held_by == attempt.object_id:
        raise InvalidArgument(f"ledger {metadata.ledger_id} is already in object {held_by}")
    if held_by != from_object:
        raise Conflict(f"ledger {metadata.ledger_id} is in object {held_by}, not in {from_object}")
    other = metadata.archiving
    if other is not None and other.object_id != attempt.object_id and not other.is_dead(attempt.began_at_ms, ttl_ms):
        raise Conflict(f"ledger {metadata.ledger_id} is being archived into object {other.object_id}")
    return replace(metadata, archiving=attempt)


def commit_archived(metadata: LedgerMetadata, receipt: Receipt) -> LedgerMetadata:
    """Record the verified object of the attempt: the ledger is archived in it. Idempotent.

    Raises:
        Conflict: another attempt replaced the one that wrote this object.
        InvalidArgument: the receipt does not cover the whole ledger.
    """
    if metadata.archived == receipt:
        return metadata
    if metadata.archiving is None or metadata.archiving.object_id != receipt.object_id:
        raise Conflict(f"ledger {metadata.ledger_id} is not being archived into object {receipt.object_id} any more")
    return replace(metadata, archived=receipt, archiving=None)


def abandon_archiving(metadata: LedgerMetadata, object_id: str) -> LedgerMetadata:
    """End an attempt without a receipt; no change if it is not the current one."""
    if metadata.archiving is None or metadata.archiving.object_id != object_id:
        return metadata
    return replace(metadata, archiving=None)


def release_copies(metadata: LedgerMetadata, object_id: str) -> LedgerMetadata:
    """Permit bookies to drop their copies from now on: the archive was verified again.

    Raises:
        Conflict: the ledger is not, or no longer, in that object.
    """
    if metadata.archived is None or metadata.archived.object_id != object_id:
        raise Conflict(f"ledger {metadata.ledger_id} is not in object {object_id}")
    return replace(metadata, copies_released=True)
