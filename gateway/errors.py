"""Mapping of Tallybook errors to gRPC statuses, with standard error details.

    NoSuchLedger -> NOT_FOUND, ErrorInfo {reason: "NoSuchLedger", domain: "tallybook", metadata: {fault: "caller", ...}}
    Busy         -> RESOURCE_EXHAUSTED, the same, and RetryInfo {retry_delay}

``STATUS_CODES`` lists every class of ``core/errors``, also those that could inherit their status: a new error class
needs an explicit decision.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.rpc.code_pb2 import (
    ABORTED,
    ALREADY_EXISTS,
    DATA_LOSS,
    DEADLINE_EXCEEDED,
    FAILED_PRECONDITION,
    INTERNAL,
    INVALID_ARGUMENT,
    NOT_FOUND,
    OUT_OF_RANGE,
    PERMISSION_DENIED,
    RESOURCE_EXHAUSTED,
    UNAUTHENTICATED,
    UNAVAILABLE,
    UNKNOWN,
)
from google.rpc.error_details_pb2 import ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status

from tallybook.core import errors as e
from tallybook.runtime.calls import CallFailed
from tallybook.stream import Gap

DOMAIN: Final = "tallybook"

OWNED_RETRY_MS: Final = 1_000
"""Retry delay for a stream that another writer owns."""

MAX_MESSAGE_BYTES: Final = 1_000
"""Status and details are sent as headers, of which clients accept 8 KiB; non-ASCII text takes three times its size."""

STATUS_CODES: Final[Mapping[type[e.TallybookError], int]] = {
    e.TallybookError: UNKNOWN,
    # Caused by the caller.
    e.CallerError: FAILED_PRECONDITION,
    e.InvalidArgument: INVALID_ARGUMENT,
    e.EntryTooLarge: INVALID_ARGUMENT,
    e.InvalidBatch: INVALID_ARGUMENT,
    e.ForeignPosition: INVALID_ARGUMENT,
    e.OutOfOrder: INVALID_ARGUMENT,
    e.InvalidConfig: FAILED_PRECONDITION,
    e.NoSuchLedger: NOT_FOUND,
    e.LedgerExists: ALREADY_EXISTS,
    # A handle of the gateway itself, closed when the gateway stops.
    e.HandleClosed: UNAVAILABLE,
    e.LedgerClosed: FAILED_PRECONDITION,
    e.LedgerFenced: FAILED_PRECONDITION,
    e.LedgerHasWriter: FAILED_PRECONDITION,
    e.Unauthorized: PERMISSION_DENIED,
    e.ReadBeyondLac: OUT_OF_RANGE,
    e.Conflict: FAILED_PRECONDITION,
    e.OtherLedger: FAILED_PRECONDITION,
    e.ForeignDirectory: FAILED_PRECONDITION,
    e.DirectoryInUse: FAILED_PRECONDITION,
    e.NoSuchBookie: NOT_FOUND,
    e.ArchiveDenied: FAILED_PRECONDITION,
    e.ArchiveKeyMissing: FAILED_PRECONDITION,
    e.NoSuchStream: NOT_FOUND,
    e.StreamExists: ALREADY_EXISTS,
    e.StreamClosed: FAILED_PRECONDITION,
    e.StreamEnded: FAILED_PRECONDITION,
    e.StreamFenced: ABORTED,
    e.StreamOwned: UNAVAILABLE,
    e.StreamGap: OUT_OF_RANGE,
    e.ReaderTooSlow: ABORTED,
    e.PositionMismatch: FAILED_PRECONDITION,
    e.NoSuchSubscription: NOT_FOUND,
    e.NoSuchNamespace: NOT_FOUND,
    e.NoSuchCluster: FAILED_PRECONDITION,
    e.LedgerInUse: FAILED_PRECONDITION,
    e.Unauthenticated: UNAUTHENTICATED,
    e.AccessDenied: PERMISSION_DENIED,
    e.CreditExceeded: RESOURCE_EXHAUSTED,
    e.QuotaExceeded: RESOURCE_EXHAUSTED,
    # Caused by another process: the same call may succeed later.
    e.PeerError: UNAVAILABLE,
    e.Busy: RESOURCE_EXHAUSTED,
    e.PeerUnavailable: UNAVAILABLE,
    e.BookieUnavailable: UNAVAILABLE,
    e.RequestTimeout: DEADLINE_EXCEEDED,
    e.ProtocolViolation: INTERNAL,
    e.StaleIncarnation: UNAVAILABLE,
    e.BookieReadOnly: UNAVAILABLE,
    e.NotEnoughBookies: UNAVAILABLE,
    e.EnsembleTooLarge: UNAVAILABLE,
    e.RecoveryFailed: UNAVAILABLE,
    e.MetadataUnavailable: UNAVAILABLE,
    e.MetadataConflict: ABORTED,
    e.MetadataOutcomeUnknown: UNAVAILABLE,
    e.ArchiveUnavailable: UNAVAILABLE,
    e.ArchiveBusy: UNAVAILABLE,
    e.NoCommonVersion: FAILED_PRECONDITION,
    # Caused by stored bytes.
    e.StorageError: INTERNAL,
    e.EntryAbsent: NOT_FOUND,
    e.EntryCorrupt: DATA_LOSS,
    e.EntryUnknown: UNAVAILABLE,
    e.DataMissing: DATA_LOSS,
    e.DamagedFile: DATA_LOSS,
    e.DiskFailed: INTERNAL,
    e.DiskFull: RESOURCE_EXHAUSTED,
    e.OutOfFiles: RESOURCE_EXHAUSTED,
    e.ObjectMissing: DATA_LOSS,
    e.ObjectDamaged: DATA_LOSS,
    e.EnvelopeDamaged: DATA_LOSS,
    e.NewerFormat: FAILED_PRECONDITION,
    # A defect.
    e.InvariantViolation: INTERNAL,
}
"""The gRPC status of each error."""


def status_of(error: e.TallybookError) -> CallFailed:
    """The gRPC status with which a call ends that failed with ``error``."""
    code = next(STATUS_CODES[kind] for kind in type(error).__mro__ if kind in STATUS_CODES)
    message = error.message.encode(errors="replace")[:MAX_MESSAGE_BYTES].decode(errors="ignore") or type(error).__name__
    info = ErrorInfo(
        reason=type(error).__name__,
        domain=DOMAIN,
        metadata={
            "fault": error.fault.value,
            "outcome": error.outcome.value,
            "retriable": str(error.retriable).lower(),
            "wire_code": str(error.wire_code),
            **_particulars(error),
        },
    )
    status = Status(code=code, message=message, details=[_packed(info)])
    retry_ms = _retry_after_ms(error)
    if retry_ms is not None:
        delay = Duration()
        delay.FromMilliseconds(retry_ms)
        status.details.append(_packed(RetryInfo(retry_delay=delay)))
    return CallFailed(code, message, status.SerializeToString())


def _retry_after_ms(error: e.TallybookError) -> int | None:
    if isinstance(error, e.Busy | e.CreditExceeded):
        return max(1, error.retry_after_ms)
    return OWNED_RETRY_MS if isinstance(error, e.StreamOwned) else None


def _particulars(error: e.TallybookError) -> dict[str, str]:
    """Extra ``ErrorInfo`` metadata of some error classes."""
    if isinstance(error, e.StreamOwned):
        return {"owner": error.owner} if error.owner else {}
    if isinstance(error, e.PositionMismatch):
        return {"position": error.position}
    if isinstance(error, e.ReaderTooSlow):
        return {"position": error.position} if error.position else {}
    if isinstance(error, e.StreamGap) and isinstance(error.gap, Gap):
        gap = error.gap
        numbers = {"first_sequence": gap.first_sequence, "next_sequence": gap.next_sequence}
        known = {name: str(number) for name, number in numbers.items() if number is not None}
        return {"gap_reason": gap.reason.value, **known}
    return {}


def _packed(message: ErrorInfo | RetryInfo) -> AnyMessage:
    packed = AnyMessage()
    packed.Pack(message)
    return packed
