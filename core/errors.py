"""Every error Tallybook raises, in one tree.

    TallybookError
    |-- CallerError                 the caller asked for something that cannot be
    |   |-- InvalidArgument           a value outside its domain
    |   |   |-- EntryTooLarge           an entry above the limit
    |   |   |-- InvalidBatch            bytes that are not a well-formed batch
    |   |   |-- ForeignPosition         a position of another stream
    |   |   `-- OutOfOrder              a transaction id below the one before
    |   |-- InvalidConfig             a setting that is unknown or outside its domain
    |   |-- NoSuchLedger              never created, or deleted
    |   |-- LedgerExists              created before, by somebody else
    |   |-- HandleClosed              the client, reader, writer or store that was called is closed
    |   |   |-- LedgerClosed              appended to after its close
    |   |   `-- StreamClosed              its writer, reader or store was closed
    |   |-- LedgerFenced              somebody recovered it; this writer is out
    |   |-- LedgerHasWriter           it was owned before; recover it instead
    |   |-- Unauthorized              wrong password or key
    |   |-- ReadBeyondLac             past the last add confirmed
    |   |-- Conflict                  other bytes are held under these ids
    |   |-- OtherLedger               another ledger is held under this id
    |   |-- ForeignDirectory          a data directory of another bookie or cluster
    |   |-- DirectoryInUse            another process holds the data directory
    |   |-- NoSuchBookie              no bookie of this id is alive
    |   |-- ArchiveDenied             the object store refuses us, or has no such bucket
    |   |   `-- ArchiveKeyMissing         an object is sealed with a key that is not here
    |   |-- NoSuchStream              never created, or deleted
    |   |-- StreamExists              there is one of that name
    |   |-- StreamEnded               it was ended for ever
    |   |-- StreamFenced              another writer took it; this one is out
    |   |-- StreamOwned               somebody else has it, and is to be waited for
    |   |-- StreamGap                 records are missing where a reader is
    |   |-- ReaderTooSlow             left behind by what it follows
    |   |-- PositionMismatch          the last record is another one than was asked for
    |   |-- NoSuchSubscription        never created, or deleted
    |   |-- NoSuchNamespace           never made, or deleted
    |   |-- NoSuchCluster             no cluster was ever made at this metadata URI
    |   |-- LedgerInUse               part of a living stream
    |   |-- Unauthenticated           no certificate or token, or not a good one
    |   |-- AccessDenied              known, and not allowed to do this
    |   `-- CreditExceeded            more was sent than may be unanswered
    |-- PeerError                   another process did not do its part
    |   |-- Busy                      overloaded; try again after ``retry_after_ms``
    |   |-- BookieUnavailable         connection refused or lost
    |   |-- RequestTimeout            no answer before the deadline
    |   |-- ProtocolViolation         an answer or a frame that the protocol forbids
    |   |-- StaleIncarnation          meant for an earlier life of that bookie
    |   |-- BookieReadOnly            serves reads, fences and recovery only
    |   |-- NotEnoughBookies          no ensemble, or no quorum left in it
    |   |-- RecoveryFailed            the end of the ledger cannot be told now
    |   |-- MetadataUnavailable       the metadata store does not answer
    |   |-- MetadataConflict          changed by somebody else meanwhile
    |   |-- MetadataOutcomeUnknown    a metadata write may or may not have landed
    |   |-- ArchiveUnavailable        the object store does not answer as it should
    |   |   `-- ArchiveBusy             it asks for fewer requests
    |   `-- NoCommonVersion           it speaks other versions of the protocol only
    |-- StorageError                stored bytes, or the device under them
    |   |-- EntryAbsent               ABSENT: never acked here, and nothing lost
    |   |-- EntryCorrupt              CORRUPT: it was here, it is damaged
    |   |-- EntryUnknown              UNKNOWN: this bookie cannot tell
    |   |-- DataMissing               confirmed, yet no replica has it
    |   |-- DamagedFile               a file that fails its checks
    |   |-- DiskFailed                read, write or sync refused by the device
    |   |-- DiskFull                  no space left
    |   |   `-- OutOfFiles              no file can be opened now
    |   |-- ObjectMissing             the object store has no such object
    |   |-- ObjectDamaged             an object that fails its checks
    |   |-- EnvelopeDamaged           an entry of a stream that holds no records
    |   `-- NewerFormat               intact, but written by a newer Tallybook
    `-- InvariantViolation          a defect in Tallybook itself

Each class has ``fault`` (whose), ``retriable`` (the same call may succeed later), ``outcome`` (whether the effect took
place) and ``wire_code`` (its number between processes, never reused). Only ABSENT may ever shorten a ledger.
"""

from __future__ import annotations

from typing import Self

from .error_root import Fault as Fault
from .error_root import Outcome as Outcome
from .error_root import TallybookError as TallybookError


class CallerError(TallybookError):
    """The request cannot be satisfied as asked, now or later."""

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
    """A ledger of this id was created before by somebody else."""

    wire_code = 106


class HandleClosed(CallerError):
    """What was called is closed, or what it belongs to: a client, a reader, a writer or a store. Open another one."""

    wire_code = 139


class LedgerClosed(HandleClosed):
    """The ledger is closed: its end is settled and nothing can be appended. Or its writer was closed or abandoned."""

    wire_code = 107


class LedgerFenced(CallerError):
    """A recovery has fenced the ledger; the old writer may not go on."""

    wire_code = 108


class LedgerHasWriter(CallerError):
    """The ledger has, or had, an owner. Recover it and create the next one."""

    wire_code = 109


class Unauthorized(CallerError):
    """The password or key does not fit the ledger."""

    wire_code = 110


class ReadBeyondLac(CallerError):
    """The read reaches past the last add confirmed."""

    wire_code = 111


class Conflict(CallerError):
    """Other bytes are already held under overlapping entry ids."""

    wire_code = 112


class OtherLedger(CallerError):
    """The bookie holds another ledger under this id: the metadata were restored from an older copy. Create another."""

    wire_code = 142


class ForeignDirectory(CallerError):
    """A data directory belongs to another bookie or cluster, or lost its identity."""

    wire_code = 113


class DirectoryInUse(CallerError):
    """Another process holds the lock of the data directory."""

    wire_code = 114


class NoSuchBookie(CallerError):
    """No bookie of this id is alive."""

    wire_code = 115


class ArchiveDenied(CallerError):
    """The object store knows no such bucket, or refuses these credentials."""

    wire_code = 116


class ForeignPosition(InvalidArgument):
    """A position belongs to another stream."""

    wire_code = 117


class OutOfOrder(InvalidArgument):
    """The transaction id of a record is below that of one before it."""

    wire_code = 118


class NoSuchStream(CallerError):
    """The stream was never created, or it was deleted."""

    wire_code = 119


class StreamExists(CallerError):
    """There is a stream of this name already."""

    wire_code = 120


class StreamClosed(HandleClosed):
    """The writer, the reader or the subscription of the stream was closed or let go of, or the store of streams was."""

    wire_code = 121


class StreamEnded(CallerError):
    """The stream was ended for ever: nothing can be appended."""

    wire_code = 122


class StreamFenced(CallerError):
    """Another writer has taken the stream; this one may not go on."""

    wire_code = 123


class StreamOwned(CallerError):
    """Another process, ``owner``, has the stream or the subscription, and is still there. Wait, or take it."""

    wire_code = 124
    retriable = True

    def __init__(self, message: str = "", *, owner: str = "") -> None:
        super().__init__(message)
        self.owner = owner


class StreamGap(CallerError):
    """Records are missing where a reader is: they were truncated, or are lost. It goes on behind them.

    Args:
        gap: which; a ``tallybook.stream.Gap``.
    """

    wire_code = 125

    def __init__(self, message: str = "", *, gap: object = None) -> None:
        super().__init__(message)
        self.gap = gap


class ReaderTooSlow(CallerError):
    """A reader was left behind by what it follows. The message says where it was.

    Args:
        position: the same, if it reads a stream: of the first record that it may not have got.
    """

    wire_code = 126
    retriable = True

    def __init__(self, message: str = "", *, position: str = "") -> None:
        super().__init__(message)
        self.position = position


class PositionMismatch(CallerError):
    """The last record of the stream, at ``position``, is not the one the append was to follow; nothing was appended."""

    wire_code = 127

    def __init__(self, message: str = "", *, position: str = "") -> None:
        super().__init__(message)
        self.position = position


class NoSuchSubscription(CallerError):
    """The subscription was never created, or it was deleted."""

    wire_code = 128


class NoSuchNamespace(CallerError):
    """The namespace of streams was never made, or it was deleted."""

    wire_code = 129


class NoSuchCluster(CallerError):
    """No cluster was ever made at this metadata URI. A bookie makes one when it starts; nothing else does."""

    wire_code = 135

    @classmethod
    def at(cls, uri: str) -> Self:
        """With what to look at."""
        return cls(f"there is no cluster at {uri}: check the URI; the first 'tallybook bookie run' makes a cluster")


class LedgerInUse(CallerError):
    """The ledger is part of a living stream, which would lose records. Delete or truncate the stream, or force it."""

    wire_code = 136


class Unauthenticated(CallerError):
    """The caller has not proven who it is: no certificate or token, or one that is expired, forged or for others."""

    wire_code = 130


class AccessDenied(CallerError):
    """Whoever asks is known, and may not do this."""

    wire_code = 131


class CreditExceeded(CallerError):
    """A client has sent more than it may have unanswered. Wait for answers, then send on."""

    wire_code = 140
    retriable = True

    def __init__(self, message: str = "", *, retry_after_ms: int = 0) -> None:
        super().__init__(message)
        self.retry_after_ms = retry_after_ms


class ArchiveKeyMissing(ArchiveDenied):
    """An object of the archive is sealed with a key that this process was not given. The object may be whole."""

    wire_code = 141


class PeerError(TallybookError):
    """Another process failed to do its part; the request itself was fine."""

    wire_code = 200
    fault = Fault.PEER
    retriable = True


class Busy(PeerError):
    """The peer is overloaded and took nothing. Slow down, then send again.

    Args:
        own_limit: it would take as much from others: whoever asks has reached a limit of its own. Not told to peers.
    """

    wire_code = 201

    def __init__(self, message: str = "", *, retry_after_ms: int = 0, own_limit: bool = False) -> None:
        super().__init__(message)
        self.retry_after_ms = retry_after_ms
        self.own_limit = own_limit


class BookieUnavailable(PeerError):
    """The bookie refused the connection, or it was lost with work in flight."""

    wire_code = 202
    outcome = Outcome.UNKNOWN


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
    """The work was addressed to an earlier life of the bookie and was not done."""

    wire_code = 205


class BookieReadOnly(PeerError):
    """The bookie takes no ordinary adds: disk full or draining."""

    wire_code = 206


class NotEnoughBookies(PeerError):
    """Too few bookies answer to build or keep a quorum."""

    wire_code = 207


class RecoveryFailed(PeerError):
    """Recovery could not tell the ledger's end; nothing was cut, try again later."""

    wire_code = 208


class MetadataUnavailable(PeerError):
    """The metadata store does not answer; the operation did not take place."""

    wire_code = 209


class MetadataConflict(PeerError):
    """The metadata changed since it was read."""

    wire_code = 210


class MetadataOutcomeUnknown(PeerError):
    """A metadata write was cut off: it may have landed, or may still land."""

    wire_code = 211
    outcome = Outcome.UNKNOWN


class ArchiveUnavailable(PeerError):
    """The object store does not answer, or not as it should."""

    wire_code = 212


class ArchiveBusy(ArchiveUnavailable):
    """The object store took nothing and asks for fewer requests."""

    wire_code = 213


class NoCommonVersion(PeerError):
    """Client and bookie know no version of the protocol in common. One of them is to be upgraded."""

    wire_code = 214
    retriable = False


class StorageError(TallybookError):
    """Stored bytes, or the device that holds them."""

    wire_code = 300
    fault = Fault.STORAGE


class EntryAbsent(StorageError):
    """ABSENT: the bookie never acked this entry and cannot have lost it."""

    wire_code = 301


class EntryCorrupt(StorageError):
    """CORRUPT: the bookie held this entry and its copy is damaged."""

    wire_code = 302


class EntryUnknown(StorageError):
    """UNKNOWN: the bookie cannot tell whether it held this entry."""

    wire_code = 303
    retriable = True


class DataMissing(StorageError):
    """The entry was confirmed, yet every replica answers that it is not there."""

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
    """The process, or the system, has as many files open as it may; nothing was done."""

    wire_code = 308


class ObjectMissing(StorageError):
    """The object store has no object under this key."""

    wire_code = 309


class ObjectDamaged(StorageError):
    """An object is not what was archived. The message names its key."""

    wire_code = 310


class EnvelopeDamaged(StorageError):
    """An entry of a stream's segment is not what a writer of streams makes."""

    wire_code = 311


class NewerFormat(StorageError):
    """Bytes are intact, and of a format that only a newer Tallybook knows. Nothing was changed."""

    wire_code = 312
    fault = Fault.CALLER

    @classmethod
    def of(cls, what: str, found: object, known: object) -> Self:
        """The error for ``what``, whose format is ``found`` where ``known`` is the newest that is known here."""
        return cls(
            f"{what} is of format {found}, this Tallybook knows {known}: a newer one has written it, and is needed"
        )


class InvariantViolation(TallybookError):
    """Something that cannot be has happened: a defect. The process must stop."""

    wire_code = 900
    outcome = Outcome.UNKNOWN


OK_CODE = 0
"""Wire code of success."""


def check(condition: bool, message: str) -> None:
    """Hold an invariant at run time, also under ``python -O``.

    Raises:
        InvariantViolation: ``condition`` is false.
    """
    if not condition:
        raise InvariantViolation(message)


def is_defect(error: BaseException) -> bool:
    """Whether ``error`` says that something is wrong with Tallybook itself, not with a request, a peer or a device."""
    return isinstance(error, InvariantViolation) or not isinstance(error, TallybookError)


def _leaves(root: type[TallybookError]) -> list[type[TallybookError]]:
    return [root, *(leaf for child in root.__subclasses__() for leaf in _leaves(child))]


_BY_CODE = {error.wire_code: error for error in _leaves(TallybookError)}
check(len(_BY_CODE) == len(_leaves(TallybookError)), "two errors share a wire code")


def error_classes() -> tuple[type[TallybookError], ...]:
    """Every class of the tree, in the order of their wire codes."""
    return tuple(_BY_CODE[code] for code in sorted(_BY_CODE))


def error_class(wire_code: int) -> type[TallybookError]:
    """The class that ``wire_code`` names; ``TallybookError`` for a code of a newer peer."""
    return _BY_CODE.get(wire_code, TallybookError)


def error_from_wire(wire_code: int, message: str, retry_after_ms: int = 0) -> TallybookError:
    """Rebuild the error that a peer reported."""
    found = error_class(wire_code)
    if found is Busy:
        return Busy(message, retry_after_ms=retry_after_ms)
    if found is TallybookError:
        return TallybookError(f"peer reported unknown error {wire_code}: {message}", outcome=Outcome.UNKNOWN)
    return found(message)
