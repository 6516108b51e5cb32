"""The metadata ports: a store of ledgers and named records, and the membership of live bookies.

Every write has one of three results: ``Ok``, ``BadVersion`` (another client was first) or ``Unknown`` (the connection
was lost before the answer: the write may have been applied, or may still be). Callers must distinguish the three; a
driver never guesses. Reads raise ``MetadataUnavailable`` if the store does not answer in time, and so do writes that
were certainly not applied.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol, TypeAlias

from tallybook.core.answers import Incarnation
from tallybook.core.errors import MetadataUnavailable
from tallybook.core.ids import DELETED_IDENTITY_BYTES, NO_IDENTITY

from .ledger.model import LedgerMetadata


class Versioned(NamedTuple):
    """A value with its version for compare-and-set. Versions only grow."""

    value: LedgerMetadata
    version: int


@dataclass(frozen=True, slots=True)
class Ok:
    """The write was applied; ``version`` is the new version."""

    version: int


@dataclass(frozen=True, slots=True)
class BadVersion:
    """The write was not applied: the value has another version, or is deleted."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """The write may have been applied, or may still be applied."""

    reason: str


WriteResult: TypeAlias = Ok | BadVersion | Unknown


class Deletion(NamedTuple):
    """The record of a deletion.

    Attributes:
        digest: the first bytes of the deleted ledger's identity; empty: unknown.
    """

    digest: bytes

    @classmethod
    def of(cls, identity: bytes) -> Deletion:
        """The record for a ledger with this identity."""
        digest = identity[:DELETED_IDENTITY_BYTES]
        return cls(digest if any(digest) else NO_IDENTITY)

    def is_of(self, identity: bytes) -> bool:
        """Whether the ledger with this identity may be the deleted one; an unknown identity matches any."""
        return not identity or not self.digest or self == Deletion.of(identity)


class LedgerPage(NamedTuple):
    """Part of a listing, in ascending order.

    ``complete`` is true only if the store guarantees that no ledger after this page exists; an incomplete listing must
    not be the reason to delete anything.
    """

    ledger_ids: tuple[int, ...]
    complete: bool

    def next_after(self) -> int | None:
        """The id after which the listing continues; ``None``: it is complete.

        Raises:
            MetadataUnavailable: the page is incomplete and empty.
        """
        if self.complete:
            return None
        if not self.ledger_ids:
            raise MetadataUnavailable("a listing of ledgers was incomplete: try again")
        return self.ledger_ids[-1]


class MetadataRecord(NamedTuple):
    """A small named value, with its version for compare-and-set.

    Versions only grow while the record exists. A deleted and recreated record may repeat them, so a record that
    several processes compare-and-set should be emptied rather than deleted.
    """

    value: bytes
    version: int


class RecordPage(NamedTuple):
    """Part of a listing of records, in the order of their names; ``complete`` as for ``LedgerPage``."""

    names: tuple[str, ...]
    complete: bool

    def next_after(self) -> str | None:
        """The name after which the listing continues; ``None``: it is complete.

        Raises:
            MetadataUnavailable: as for ``LedgerPage.next_after``.
        """
        if self.complete:
            return None
        if not self.names:
            raise MetadataUnavailable("a listing of records was incomplete: try again")
        return self.names[-1]


class LedgerWatch(Protocol):
    """Notifies of changes of a ledger's metadata."""

    async def changed(self) -> None:
        """Return once the ledger was written or deleted since the last return (or since the watch began).

        May return without a change; never misses one. The caller reads the value again. Versions that it reads never go
        back.
        """

    async def close(self) -> None:
        """Stop watching."""


class MetadataStore(Protocol):
    """Ledger metadata, the id counter, cookies and records. Safe for many clients and processes."""

    async def cluster_id(self) -> str:
        """Identity of this cluster, created on first use; the same for all clients ever after."""

    async def next_ledger_id(self) -> int:
        """Allocate a unique ledger id. Taken from the counter in blocks; ids may be skipped."""

    async def id_counter(self) -> int:
        """All allocated ids are below this. A linearizable read."""

    async def raise_id_counter(self, at_least: int) -> None:
        """Allocate no id below ``at_least`` any more, except from blocks that clients have taken. Never lowers it.

        Raises:
            MetadataUnavailable: it was not raised.
            MetadataOutcomeUnknown: it may have been raised; repeat the call.
        """

    async def create_ledger(self, metadata: LedgerMetadata) -> Versioned:
        """Store a new ledger.

        Idempotent by ``creator_token``: returns the stored value if the same creator has created it.

        Raises:
            LedgerExists: another client uses, or used, the id.
            MetadataOutcomeUnknown: it may have been created; repeat the call.
        """

    async def read_ledger(self, ledger_id: int, *, linearizable: bool = False) -> Versioned:
        """The current value. With ``linearizable`` it includes every write that ended before the call.

        Raises:
            NoSuchLedger: it was never created, or it was deleted.
        """

    async def update_ledger(self, metadata: LedgerMetadata, expected_version: int) -> WriteResult:
        """Replace the value if it still has ``expected_version``."""

    async def delete_ledger(self, ledger_id: int, expected_version: int, identity: bytes = NO_IDENTITY) -> WriteResult:
        """Remove the ledger if it still has ``expected_version``. Its id is never used again.

        ``identity`` is that of this ledger, for the record of the deletion.
        """

    async def deletion(self, ledger_id: int) -> Deletion | None:
        """The record of a ledger's deletion by ``delete_ledger``, if it was deleted. A linearizable read.

        A ledger with neither metadata nor this record was not deleted: its metadata was lost, or the store was
        restored from an older copy.
        """

    async def list_ledgers(self, after: int = -1, limit: int = 1000) -> LedgerPage:
        """Up to ``limit`` ledger ids above ``after``."""

    def watch_ledger(self, ledger_id: int) -> LedgerWatch:
        """Start watching one ledger."""

    async def read_cookie(self, bookie_id: str) -> bytes | None:
        """The identity recorded for a bookie, or ``None`` if there is none."""

    async def write_cookie(self, bookie_id: str, cookie: bytes, *, replace: bool = False) -> None:
        """Record the identity of a bookie.

        Raises:
            MetadataConflict: there is another one and ``replace`` is false.
        """

    async def delete_cookie(self, bookie_id: str) -> None:
        """Delete a bookie's identity; no error if there is none."""

    async def read_record(self, name: str, *, linearizable: bool = False) -> MetadataRecord | None:
        """The record under ``name``, or ``None`` if there is none; ``linearizable`` as for ``read_ledger``.

        A name is a path such as ``archive/settings``: see ``rules.check_record_name``.
        """

    async def write_record(self, name: str, value: bytes, expected_version: int | None) -> WriteResult:
        """Replace the record if it still has ``expected_version``; create it if that is ``None`` and there is none.

        Raises:
            InvalidArgument: the value is larger than ``rules.MAX_RECORD_BYTES``, or the name is invalid.
        """

    async def delete_record(self, name: str, expected_version: int) -> WriteResult:
        """Remove the record if it still has ``expected_version``. The version in ``Ok`` has no meaning."""

    async def list_records(self, prefix: str = "", after: str = "", limit: int = 1000) -> RecordPage:
        """Up to ``limit`` names with ``prefix`` after ``after``, ordered by code points."""

    async def close(self) -> None:
        """Release connections and end background work."""


class BookieMode(Enum):
    """Which adds a registered bookie accepts."""

    WRITABLE = "writable"
    READ_ONLY = "read_only"


@dataclass(frozen=True, slots=True)
class BookieInfo:
    """A live bookie, as it registered."""

    bookie_id: str
    address: str
    incarnation: Incarnation
    mode: BookieMode = BookieMode.WRITABLE
    http_address: str = ""
    rack: str = ""
    free_bytes: int = 0
    """Of the file system of its data, not current; 0: unknown."""
    version: str = ""
    """Of Tallybook; empty: unknown."""


class Registration(Protocol):
    """A bookie's registration. Kept alive in the background until closed."""

    async def lost(self) -> None:
        """Return once the store no longer lists this registration (session expired)."""

    async def update(self, info: BookieInfo) -> None:
        """Change the registered information (mode, addresses). A call of unknown outcome never undoes a later one."""

    async def close(self) -> None:
        """End the registration; readers see it immediately if the store permits."""


class MembershipWatch(Protocol):
    """Notifies of changes of the set of live bookies."""

    async def changed(self) -> None:
        """Return once the set may have changed since the last return (or since the watch began)."""

    async def close(self) -> None:
        """Stop watching."""


class Membership(Protocol):
    """Membership: which bookies are alive."""

    async def register(self, info: BookieInfo) -> Registration:
        """Register a live bookie.

        Raises:
            MetadataConflict: another live process is registered under this bookie id.
        """

    async def bookies(self) -> Mapping[str, BookieInfo]:
        """Live bookies by id, in order of id."""

    def watch(self) -> MembershipWatch:
        """Start watching."""
