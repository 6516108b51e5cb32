"""All errors that Tallybook raises, as one tree below ``TallybookError``.

``CallerError``: the caller asked for something that cannot be. ``PeerError``: another process did not do its part.
``StorageError``: stored bytes, or the device under them. ``InvariantViolation``: a defect in Tallybook itself.

Each class has ``fault`` (who caused it), ``retriable`` (the same call may succeed later), ``outcome`` (whether the
effect took place) and ``wire_code`` (its number in messages, never reused; docs/reference/formats/wire.md lists them
all). Only ABSENT (``EntryAbsent``) may ever shorten a ledger.
"""

from __future__ import annotations

from typing import Self

from .error_root import Fault as Fault
from .error_root import Outcome as Outcome
from .error_root import TallybookError as TallybookError


class CallerError(TallybookError):
    """The request cannot be satisfied, now or later."""

    wire_code = 100
    fault = Fault.CALLER


class InvalidArgument(CallerError):
    """A value lies outside its domain."""

    wire_code = 101


class EntryTooLarge(InvalidArgument):
    """An entry is larger than ``limits.MAX_ENTRY_BYTES`` or the configured maximum."""

    wire_code = 102


class InvalidBatch(InvalidArgument):
    """Bytes are not a well-formed batch: magic, lengths, ids or checksum are wrong."""

    wire_code = 103


class InvalidConfig(CallerError):
    """A setting is unknown, malformed or outside its domain."""

    wire_code = 104


class NoSuchLedger(CallerError):
    """The ledger was never created, or it was deleted."""

    wire_code = 105


class LedgerExists(CallerError):
    """Another client created a ledger of this id before."""

    wire_code = 106


class HandleClosed(CallerError):
    """The handle (client, reader, writer or store), or its parent, is closed. Open another one."""

    wire_code = 139


class LedgerClosed(HandleClosed):
    """The ledger is closed and nothing can be appended. Or its writer was closed or abandoned."""

    wire_code = 107


class LedgerFenced(CallerError):
    """A recovery fenced the ledger; the old writer must stop."""

    wire_code = 108


class LedgerHasWriter(CallerError):
    """The ledger has, or had, an owner. Recover it and create the next ledger."""

    wire_code = 109


class Unauthorized(CallerError):
    """The password or key does not match the ledger."""

    wire_code = 110


class ReadBeyondLac(CallerError):
    """The read reaches past the last add confirmed."""

    wire_code = 111


class Conflict(CallerError):
    """The bookie stores other bytes under overlapping entry ids."""

    wire_code = 112


class OtherLedger(CallerError):
    """The bookie stores another ledger under this id: the metadata was restored from an older copy. Create another."""

    wire_code = 142


class ForeignDirectory(CallerError):
    """A data directory belongs to another bookie or cluster, or lost its identity."""

    wire_code = 113


class DirectoryInUse(CallerError):
    """Another process has locked the data directory."""

    wire_code = 114


class NoSuchBookie(CallerError):
    """No bookie of this id is alive."""

    wire_code = 115


class ArchiveDenied(CallerError):
    """The object store has no such bucket, or refuses these credentials."""

    wire_code = 116


class ForeignPosition(InvalidArgument):
    """A position belongs to another stream."""

    wire_code = 117


class OutOfOrder(InvalidArgument):
    """The transaction id of a record is lower than that of an earlier record."""

    wire_code = 118


class NoSuchStream(CallerError):
    """The stream was never created, or it was deleted."""

    wire_code = 119


class StreamExists(CallerError):
    """A stream of this name exists."""

    wire_code = 120


class StreamClosed(HandleClosed):
    """The stream's writer, reader or subscription was closed or released, or the stream store was closed."""

    wire_code = 121


class StreamEnded(CallerError):
    """The stream is sealed: nothing can be appended."""

    wire_code = 122


class StreamFenced(CallerError):
    """Another writer took over the stream; this writer must stop."""

    wire_code = 123


class StreamOwned(CallerError):
    """Another process, ``owner``, owns the stream or the subscription and is alive. Wait, or take it over."""

    wire_code = 124
    retriable = True

    def __init__(self, message: str = "", *, owner: str = "") -> None:
        super().__init__(message)
        self.owner = owner


class StreamGap(CallerError):
    """Records, ``gap``, are missing at the reader's position: truncated or lost. The reader continues after them."""

    wire_code = 125

    def __init__(self, message: str = "", *, gap: object = None) -> None:
        super().__init__(message)
        self.gap = gap


class ReaderTooSlow(CallerError):
    """A reader fell behind what it follows. A stream reader may have missed records from ``position`` on."""

    wire_code = 126
    retriable = True

    def __init__(self, message: str = "", *, position: str = "") -> None:
        super().__init__(message)
        self.position = position


class PositionMismatch(CallerError):
    """The last record of the stream, at ``position``, is not the expected predecessor; nothing was appended."""

    wire_code = 127

    def __init__(self, message: str = "", *, position: str = "") -> None:
        super().__init__(message)
        self.position = position


class NoSuchSubscription(CallerError):
    """The subscription was never created, or it was deleted."""

    wire_code = 128


class NoSuchNamespace(CallerError):
    """The namespace of streams was never created, or it was deleted."""

    wire_code = 129


class NoSuchCluster(CallerError):
    """No cluster was ever created at this metadata URI. A bookie creates one when it starts; nothing else does."""

    wire_code = 135

    @classmethod
    def at(cls, uri: str) -> Self:
        """The error for the metadata store at ``uri``."""
        return cls(
            f"there is no cluster at {uri}: check the URI; 'tallybook up', or the first 'bookie run', creates one"
        )


class LedgerInUse(CallerError):
    """The ledger is part of a stream, which would lose records. Delete or truncate the stream, or force it."""

    wire_code = 136


class Unauthenticated(CallerError):
    """The caller is not authenticated: no certificate or token, or an expired, forged or foreign one."""

    wire_code = 130


class AccessDenied(CallerError):
    """The caller is authenticated, but not authorized for this operation."""

    wire_code = 131


class CreditExceeded(CallerError):
    """The client has more unanswered bytes than its credit. Wait for answers, then continue to send."""

    wire_code = 140
    retriable = True

    def __init__(self, message: str = "", *, retry_after_ms: int = 0) -> None:
        super().__init__(message)
        self.retry_after_ms = retry_after_ms


class QuotaExceeded(CallerError):
    """The stream, or its namespace, has reached its quota of stored bytes. Raise the quota, or delete records."""

    wire_code = 143


class ArchiveKeyMissing(ArchiveDenied):
    """An object of the archive is encrypted with a key that this process does not have. The object may be intact."""

    wire_code = 141


class PeerError(TallybookError):
    """Another process failed to do its part; the request itself was fine."""

    wire_code = 200
    fault = Fault.PEER
    retriable = True


class Busy(PeerError):
    """The peer is overloaded and did nothing. Slow down, then send again. ``own_limit``: only this caller has to."""

    wire_code = 201

    def __init__(self, message: str = "", *, retry_after_ms: int = 0, own_limit: bool = False) -> None:
        super().__init__(message)
        self.retry_after_ms = retry_after_ms
        self.own_limit = own_limit


class PeerUnavailable(PeerError):
    """Another process refused the connection, or it was lost with work in flight."""

    wire_code = 216
    outcome = Outcome.UNKNOWN


class BookieUnavailable(PeerUnavailable):
    """The bookie refused the connection, or it was lost with work in flight."""

    wire_code = 202


class RequestTimeout(PeerError):
    """No answer came before the deadline."""

    wire_code = 203
    outcome = Outcome.UNKNOWN


class ProtocolViolation(PeerError):
    """The peer sent something the protocol does not allow."""

    wire_code = 204
    retriable = False
    outcome = Outcome.UNKNOWN


class StaleIncarnation(PeerError):
    """The request was addressed to an earlier incarnation of the bookie and was not executed."""

    wire_code = 205


class BookieReadOnly(PeerError):
    """The bookie refuses ordinary adds: its disk is full, or it is draining."""

    wire_code = 206


class NotEnoughBookies(PeerError):
    """Too few bookies answer to build or keep a quorum."""

    wire_code = 207


class EnsembleTooLarge(NotEnoughBookies):
    """A new ensemble has more members than bookies are registered: start more bookies, or ask for a smaller one."""

    wire_code = 215
    fault = Fault.CALLER


class RecoveryFailed(PeerError):
    """Recovery could not determine the ledger's end; nothing was truncated. Try again later."""

    wire_code = 208


class MetadataUnavailable(PeerError):
    """The metadata store does not answer; the operation did not take place."""

    wire_code = 209


class MetadataConflict(PeerError):
    """The metadata changed since it was read."""

    wire_code = 210


class MetadataOutcomeUnknown(PeerError):
    """A metadata write was interrupted: it may have been applied, or may still be applied."""

    wire_code = 211
    outcome = Outcome.UNKNOWN


class ArchiveUnavailable(PeerError):
    """The object store does not answer, or answers wrongly."""

    wire_code = 212


class ArchiveBusy(ArchiveUnavailable):
    """The object store refused the request and asks for fewer requests."""

    wire_code = 213


class NoCommonVersion(PeerError):
    """Client and bookie have no protocol version in common. Upgrade one of them."""

    wire_code = 214
    retriable = False


class StorageError(TallybookError):
    """Stored bytes, or the device that stores them, failed."""

    wire_code = 300
    fault = Fault.STORAGE


class EntryAbsent(StorageError):
    """ABSENT: the bookie never acked this entry and cannot have lost it."""

    wire_code = 301


class EntryCorrupt(StorageError):
    """CORRUPT: the bookie stored this entry and its copy is damaged."""

    wire_code = 302


class EntryUnknown(StorageError):
    """UNKNOWN: the bookie cannot tell whether it stored this entry."""

    wire_code = 303
    retriable = True


class DataMissing(StorageError):
    """The entry was confirmed, but every replica answers that it does not have it."""

    wire_code = 304


class DamagedFile(StorageError):
    """A file fails its checks. The message names the file and the offset."""

    wire_code = 305


class DiskFailed(StorageError):
    """The device or file system refused a read, a write or a sync."""

    wire_code = 306
    outcome = Outcome.UNKNOWN


class DiskFull(StorageError):
    """No space is left for the write."""

    wire_code = 307
    retriable = True


class OutOfFiles(DiskFull):
    """The process, or the system, has reached its limit of open files; nothing was done."""

    wire_code = 308


class ObjectMissing(StorageError):
    """The object store has no object under this key."""

    wire_code = 309


class ObjectDamaged(StorageError):
    """An object differs from what was archived. The message names its key."""

    wire_code = 310


class EnvelopeDamaged(StorageError):
    """An entry of a stream segment is not a valid record envelope."""

    wire_code = 311


class NewerFormat(StorageError):
    """The bytes are intact, but in a format that only a newer Tallybook knows. Nothing was changed."""

    wire_code = 312
    fault = Fault.CALLER

    @classmethod
    def of(cls, what: str, found: object, known: object) -> Self:
        """The error for ``what``, whose format is ``found``; ``known`` is the newest format known here."""
        return cls(
            f"{what} is of format {found}, this Tallybook knows {known}: a newer Tallybook wrote it, and is needed"
        )


class InvariantViolation(TallybookError):
    """An impossible state was reached: a defect. The process must stop."""

    wire_code = 900
    outcome = Outcome.UNKNOWN


NOT_FOUND = (NoSuchBookie, NoSuchLedger, NoSuchNamespace, NoSuchStream, NoSuchSubscription, ReadBeyondLac)
"""The named thing does not exist, or not yet."""

OK_CODE = 0
"""Wire code of success."""


def check(condition: bool, message: str) -> None:
    """Enforce an invariant at run time, also under ``python -O``: raise InvariantViolation if it is false."""
    if not condition:
        raise InvariantViolation(message)


def is_defect(error: BaseException) -> bool:
    """Whether ``error`` indicates a defect in Tallybook itself, not in a request, a peer or a device."""
    return isinstance(error, InvariantViolation) or not isinstance(error, TallybookError)
