"""The metadata ports: a store of ledgers that agrees with itself, small records beside them, and who is alive.

Every write has one of three results: ``Ok``, ``BadVersion`` (somebody else was first) or
``Unknown`` (the connection was lost before the answer: it may have landed, or may still
land). Callers must treat the three apart; a driver never guesses. Reads raise
``MetadataUnavailable`` when the store does not answer in time, and so do writes that were
certainly not made.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol, TypeAlias

from tallybook.core.answers import Incarnation
from tallybook.core.errors import MetadataUnavailable
from tallybook.core.ids import DELETED_IDENTITY_BYTES, NO_IDENTITY

from .model import LedgerMetadata


class Versioned(NamedTuple):
    """A value with the version that a compare-and-set on it must name. Versions only grow."""

    value: LedgerMetadata
    version: int


@dataclass(frozen=True, slots=True)
class Ok:
    """The write took place and this is the value's version now."""

    version: int


@dataclass(frozen=True, slots=True)
class BadVersion:
    """The write did not take place: the value is at another version, or gone."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """Nobody can say yet whether the write took, or will take, place."""

    reason: str


WriteResult: TypeAlias = Ok | BadVersion | Unknown


class Deletion(NamedTuple):
    """The record of a deletion.

    Attributes:
        digest: the first bytes of the identity of the ledger that was deleted; empty where it is not known.
    """

    digest: bytes

    @classmethod
    def of(cls, identity: bytes) -> Deletion:
        """The record of the deletion of the ledger with this identity."""
        digest = identity[:DELETED_IDENTITY_BYTES]
        return cls(digest if any(digest) else NO_IDENTITY)

    def is_of(self, identity: bytes) -> bool:
        """Whether the ledger of this identity may have been deleted: where either is not known, it may."""
        return not identity or not self.digest or self == Deletion.of(identity)


class LedgerPage(NamedTuple):
    """Part of a listing, in ascending order.

    ``complete`` is true only if the store vouches that no ledger above the given start is
    missing from this page; nothing may be deleted on the word of an incomplete listing.
    """

    ledger_ids: tuple[int, ...]
    complete: bool

    def next_after(self) -> int | None:
        """The id behind which the listing goes on; ``None``: this was all of it.

        Raises:
            MetadataUnavailable: the page was cut off before its first ledger, so that nothing says what there is.
        """
        if self.complete:
            return None
        if not self.ledger_ids:
            raise MetadataUnavailable("a listing of ledgers was cut off: try again")
        return self.ledger_ids[-1]


class Record(NamedTuple):
    """A small named value beside the ledgers, with the version that a compare-and-set on it must name.

    Versions only grow for as long as the record exists. One that is deleted and made again may repeat them, so what
    several processes compare-and-set is better emptied than deleted.
    """

    value: bytes
    version: int


class RecordPage(NamedTuple):
    """Part of a listing of records, in the order of their names; ``complete`` as for ``LedgerPage``."""

    names: tuple[str, ...]
    complete: bool

    def next_after(self) -> str | None:
        """The name behind which the listing goes on; ``None``: this was all of it.

        Raises:
            MetadataUnavailable: as for ``LedgerPage.next_after``.
        """
        if self.complete:
            return None
        if not self.names:
            raise MetadataUnavailable("a listing of records was cut off: try again")
        return self.names[-1]


class LedgerWatch(Protocol):
    """Tells that a ledger's metadata may have changed."""

    async def changed(self) -> None:
        """Return once the ledger was written or deleted since the last return (or since the watch began).

        May return without a change; never misses one. The caller reads the value again.
        Versions it reads never go back.
        """

    async def close(self) -> None:
        """Stop watching."""


class MetadataStore(Protocol):
    """Ledger metadata, the id counter, cookies and records. Safe for many clients and processes."""

    async def cluster_id(self) -> str:
        """The identity of this cluster, made on first use; the same for everybody ever after."""

    async def next_ledger_id(self) -> int:
        """A ledger id that nobody else ever gets. Taken from the counter in blocks; ids may be skipped."""

    async def id_counter(self) -> int:
        """All ids ever handed out lie below this. A linearizable read."""

    async def raise_id_counter(self, at_least: int) -> None:
        """Hand out no id below ``at_least`` any more, but for those of blocks that clients have taken. It never falls.

        Raises:
            MetadataUnavailable: it was not raised.
            MetadataOutcomeUnknown: it may have been; the same call settles it.
        """

    async def create_ledger(self, metadata: LedgerMetadata) -> Versioned:
        """Store a new ledger.

        Idempotent by ``creator_token``: creating what this creator already created returns
        what is stored.

        Raises:
            LedgerExists: the id is, or was, used by somebody else.
            MetadataOutcomeUnknown: it may have been created; the same call settles it.
        """

    async def read_ledger(self, ledger_id: int, *, linearizable: bool = False) -> Versioned:
        """The current value. With ``linearizable`` it reflects every write that ended before the call.

        Raises:
            NoSuchLedger: it was never created, or it was deleted.
        """

    async def update_ledger(self, metadata: LedgerMetadata, expected_version: int) -> WriteResult:
        """Replace the value if it still has ``expected_version``."""

    async def delete_ledger(self, ledger_id: int, expected_version: int, identity: bytes = NO_IDENTITY) -> WriteResult:
        """Remove the ledger if it still has ``expected_version``. Its id is never used again.

        ``identity`` is that of the ledger in this version, for the record of the deletion.
        """

    async def deletion(self, ledger_id: int) -> Deletion | None:
        """The record of the deletion of a ledger by ``delete_ledger``, if it was deleted. A linearizable read.

        A ledger of which there is neither metadata nor this record was not deleted by anybody: its metadata are lost,
        or the store is an older copy of itself.
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
        """Forget a bookie's identity; no error if there is none."""

    async def read_record(self, name: str, *, linearizable: bool = False) -> Record | None:
        """The record under ``name``, or ``None`` if there is none; ``linearizable`` as for ``read_ledger``.

        A name is a path such as ``archive/settings``: see ``rules.check_record_name``.
        """

    async def write_record(self, name: str, value: bytes, expected_version: int | None) -> WriteResult:
        """Replace the record if it still has ``expected_version``; make it if that is ``None`` and there is none.

        Raises:
            InvalidArgument: the value is larger than ``rules.MAX_RECORD_BYTES``, or the name names nothing.
        """

    async def delete_record(self, name: str, expected_version: int) -> WriteResult:
        """Remove the record if it still has ``expected_version``. The version in ``Ok`` means nothing."""

    async def list_records(self, prefix: str = "", after: str = "", limit: int = 1000) -> RecordPage:
        """Up to ``limit`` names that begin with ``prefix`` and come after ``after``, ordered by code points."""

    async def close(self) -> None:
        """Release connections and end background work."""


class BookieMode(Enum):
    """What a registered bookie takes."""

    WRITABLE = "writable"
    READ_ONLY = "read_only"


@dataclass(frozen=True, slots=True)
class BookieInfo:
    """A live bookie, as it registered itself."""

    bookie_id: str
    address: str
    incarnation: Incarnation
    mode: BookieMode = BookieMode.WRITABLE
    http_address: str = ""
    rack: str = ""
    free_bytes: int = 0
    """Of the file system that holds its data, a while ago; 0 where it is not known."""


class Registration(Protocol):
    """A bookie's entry among the living. Kept alive in the background until closed."""

    async def lost(self) -> None:
        """Return once the store no longer lists this registration (session expired)."""

    async def update(self, info: BookieInfo) -> None:
        """Change what is registered (mode, addresses). A call of unknown outcome does not land behind a later one."""

    async def close(self) -> None:
        """Leave; readers see it at once where the store allows."""


class MembershipWatch(Protocol):
    """Tells that the set of live bookies may have changed."""

    async def changed(self) -> None:
        """Return once the set may have changed since the last return (or since the watch began)."""

    async def close(self) -> None:
        """Stop watching."""


class Membership(Protocol):
    """Who is alive."""

    async def register(self, info: BookieInfo) -> Registration:
        """Appear among the living.

        Raises:
            MetadataConflict: another live process is registered under this bookie id.
        """

    async def bookies(self) -> Mapping[str, BookieInfo]:
        """Live bookies by id, in order of id."""

    def watch(self) -> MembershipWatch:
        """Start watching."""
