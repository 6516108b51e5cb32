"""Between the messages of ``proto/ledger.proto`` and what the rest of Tallybook speaks of."""

from __future__ import annotations

import asyncio
from typing import Any, Final, TypeAlias, TypeVar

from google.protobuf.message import DecodeError, Message
from google.protobuf.timestamp_pb2 import Timestamp

from tallybook.core.errors import InvalidArgument, Outcome, RequestTimeout
from tallybook.core.moments import on_the_calendar
from tallybook.metadata.model import DigestType, LedgerMetadata, LedgerState
from tallybook.proto import ledger_pb2 as pb
from tallybook.runtime.calls import Call

from .credit import PAYLOAD_OVERHEAD_BYTES, Credit

M = TypeVar("M", bound=Message)

DEFAULT_COPIES: Final = 3
REQUEST_SECONDS: Final = 30.0
"""How long a call may take to say what it wants; until then it is in no limit but that of calls."""

_STATES: Final = {
    LedgerState.OPEN: pb.LEDGER_STATE_OPEN,
    LedgerState.IN_RECOVERY: pb.LEDGER_STATE_IN_RECOVERY,
    LedgerState.CLOSED: pb.LEDGER_STATE_CLOSED,
}
_DIGESTS: Final = {DigestType.CRC32C: pb.DIGEST_CRC32C, DigestType.HMAC_SHA256: pb.DIGEST_HMAC_SHA256}
_DIGEST_TYPES: Final = {number: digest for digest, number in _DIGESTS.items()} | {
    pb.DIGEST_UNSPECIFIED: DigestType.CRC32C
}


def decode(kind: type[M], raw: bytes) -> M:
    """The message in ``raw``.

    Raises:
        InvalidArgument: there is none.
    """
    try:
        return kind.FromString(raw)
    except DecodeError:
        raise InvalidArgument(f"{len(raw)} bytes are not a {kind.DESCRIPTOR.name}") from None


async def request_of(call: Call, kind: type[M]) -> M:
    """The one request of a call, or the first of several.

    Raises:
        InvalidArgument: there is none.
        RequestTimeout: there is none for long, though the call takes the place of another one.
    """
    try:
        async with asyncio.timeout(REQUEST_SECONDS):
            raw = await call.receive()
    except TimeoutError:
        message = f"no {kind.DESCRIPTOR.name} has come within {REQUEST_SECONDS:.0f} s"
        raise RequestTimeout(message, outcome=Outcome.NOT_DONE) from None
    if raw is None:
        raise InvalidArgument(f"the call ended without a {kind.DESCRIPTOR.name}")
    return decode(kind, raw)


Naming: TypeAlias = (
    pb.CloseRequest | pb.RecoverRequest | pb.DeleteRequest | pb.DescribeRequest | pb.ReadRequest | pb.TailRequest
)
"""A request that names a ledger, and nothing else it could mean."""


def ledger_of(request: Naming) -> int:
    """The id of the ledger that a request is about.

    Raises:
        InvalidArgument: it names none. To take that for ledger 0, which there is, would delete it for a client that has
            forgotten a field.
    """
    if not request.HasField("ledger_id"):
        raise InvalidArgument(f"ledger_id is left out of the {request.DESCRIPTOR.name}: it must be said, 0 too")
    return request.ledger_id


def creation(request: pb.CreateRequest) -> dict[str, Any]:
    """What a ledger is to be, as arguments of ``Client.create_ledger``.

    Raises:
        InvalidArgument: an unknown digest.
    """
    digest = _DIGEST_TYPES.get(request.digest)
    if digest is None:
        raise InvalidArgument(f"there is no digest number {request.digest}")
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


def shown_window(credit: Credit, most_bytes: int) -> pb.Window:
    """What a client is told of its credit.

    Args:
        most_bytes: that a payload may have, whatever the credit.
    """
    return pb.Window(
        credit_bytes=credit.window_bytes,
        payload_overhead_bytes=PAYLOAD_OVERHEAD_BYTES,
        max_payload_bytes=min(credit.max_payload_bytes, most_bytes),
    )


def moment(milliseconds: int) -> Timestamp:
    """A time that is given in milliseconds since the epoch."""
    found = Timestamp()
    found.FromMilliseconds(on_the_calendar(milliseconds))
    return found


def described(metadata: LedgerMetadata, last_add_confirmed: int = -1) -> pb.Ledger:
    """The state of a ledger.

    Args:
        last_add_confirmed: of a ledger that is not closed.
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
        created_at=moment(metadata.created_at_ms),
        custom=metadata.custom,
    )
