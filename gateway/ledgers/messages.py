"""Conversion between messages of ``proto/tallybook/api/v1/ledger.proto`` and Tallybook types."""

from __future__ import annotations

from typing import Any, Final, TypeAlias, TypeVar

from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from tallybook.core.calendar import clamp_to_calendar
from tallybook.core.errors import InvalidArgument
from tallybook.metadata.ledger.model import DigestType, LedgerMetadata, LedgerState
from tallybook.proto import ledger_pb2 as pb

from ..credit import PAYLOAD_OVERHEAD_BYTES, Credit

M = TypeVar("M", bound=Message)

DEFAULT_COPIES: Final = 3

_STATES: Final = {
    LedgerState.OPEN: pb.LEDGER_STATE_OPEN,
    LedgerState.IN_RECOVERY: pb.LEDGER_STATE_IN_RECOVERY,
    LedgerState.CLOSED: pb.LEDGER_STATE_CLOSED,
}
_DIGESTS: Final = {DigestType.CRC32C: pb.DIGEST_CRC32C, DigestType.HMAC_SHA256: pb.DIGEST_HMAC_SHA256}
_DIGEST_TYPES: Final = {number: digest for digest, number in _DIGESTS.items()} | {
    pb.DIGEST_UNSPECIFIED: DigestType.CRC32C
}


LedgerRequest: TypeAlias = (
    pb.CloseRequest | pb.RecoverRequest | pb.DeleteRequest | pb.DescribeRequest | pb.ReadRequest | pb.TailRequest
)
"""A request with a ``ledger_id`` field."""


def ledger_of(request: LedgerRequest) -> int:
    """The ledger id of a request.

    Raises:
        InvalidArgument: the field is missing. It must not default to 0: a Delete without it would delete ledger 0.
    """
    if not request.HasField("ledger_id"):
        raise InvalidArgument(f"ledger_id is missing in the {request.DESCRIPTOR.name}: set it, also to 0")
    return request.ledger_id


def create_arguments(request: pb.CreateRequest) -> dict[str, Any]:
    """The arguments of ``Client.create_ledger`` for a request.

    Raises:
        InvalidArgument: unknown digest.
    """
    digest = _DIGEST_TYPES.get(request.digest)
    if digest is None:
        raise InvalidArgument(f"unknown digest number {request.digest}")
    ensemble = request.ensemble or DEFAULT_COPIES
    copies = request.write_quorum or min(DEFAULT_COPIES, ensemble)
    return {
        "ensemble": ensemble,
        "write_quorum": copies,
        "ack_quorum": request.ack_quorum or copies // 2 + 1,
        "password": request.password,
        "digest": digest,
        "custom": dict(request.custom),
    }


def window_message(credit: Credit, entry_limit_bytes: int) -> pb.Window:
    """The ``Window`` message for a credit.

    Args:
        entry_limit_bytes: largest payload that the ledger takes, independent of the credit.
    """
    return pb.Window(
        credit_bytes=credit.window_bytes,
        payload_overhead_bytes=PAYLOAD_OVERHEAD_BYTES,
        max_payload_bytes=min(credit.max_payload_bytes, entry_limit_bytes),
    )


def timestamp_message(milliseconds: int) -> Timestamp:
    """The ``Timestamp`` of milliseconds since the epoch."""
    found = Timestamp()
    found.FromMilliseconds(clamp_to_calendar(milliseconds))
    return found


def ledger_message(metadata: LedgerMetadata, last_add_confirmed: int = -1) -> pb.Ledger:
    """The ``Ledger`` message.

    Args:
        last_add_confirmed: used as the last entry of a ledger that is not closed.
    """
    return pb.Ledger(
        ledger_id=metadata.ledger_id,
        state=_STATES[metadata.state],
        last_entry_id=metadata.last_entry_id if metadata.closed else last_add_confirmed,
        length_bytes=metadata.length,
        ensemble=metadata.quorum.ensemble,
        write_quorum=metadata.quorum.write_quorum,
        ack_quorum=metadata.quorum.ack_quorum,
        digest=_DIGESTS[metadata.digest],
        has_password=bool(metadata.key_verifier),
        has_writer=metadata.writer_token is not None,
        archived=metadata.archived is not None,
        created_at=timestamp_message(metadata.created_at_ms),
        custom=metadata.custom,
    )
