"""Encoding of ledger metadata and bookie registrations as bytes.

A value is a header with magic, format, length and checksum, and a protobuf message of
``proto/tallybook/metadata/v1/metadata.proto``. docs/reference/formats/metadata.md has the bytes, an example, and what a
reader refuses: damage raises ``DamagedFile`` with its location, intact bytes of a newer version raise ``NewerFormat``,
and nothing is guessed.

A ledger with a field unknown to this process, at any depth, is refused, too: the field may change what may be done with
the ledger. Unknown fields of a registration are ignored: a refusal would hide all other bookies, too. A change that an
older client must not miss is a new mode, which is refused.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple, TypeVar

from crc32c import crc32c
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet

from tallybook.core.answers import Incarnation
from tallybook.core.errors import DamagedFile, InvalidArgument, NewerFormat
from tallybook.core.limits import MAX_METADATA_BYTES
from tallybook.core.quorum import Quorum
from tallybook.proto import metadata_pb2 as pb

from .ledger.archived import ArchiveAttempt, IndexPart, Receipt
from .ledger.model import DigestType, Fragment, LedgerMetadata, LedgerState, MissedRange
from .store import BookieInfo, BookieMode

Decoded = TypeVar("Decoded")
Number = TypeVar("Number", bound=int)

LEDGER_MAGIC: Final = b"TLED"
BOOKIE_MAGIC: Final = b"TBKI"
FORMAT: Final = 1

_HEADER: Final = struct.Struct("<4sHHI")
_CRC: Final = struct.Struct("<I")
_BODY_AT: Final = _HEADER.size + _CRC.size

_STATES: Final = {
    LedgerState.OPEN: pb.LEDGER_STATE_OPEN,
    LedgerState.IN_RECOVERY: pb.LEDGER_STATE_IN_RECOVERY,
    LedgerState.CLOSED: pb.LEDGER_STATE_CLOSED,
}
_DIGESTS: Final = {
    DigestType.CRC32C: pb.DIGEST_TYPE_CRC32C,
    DigestType.HMAC_SHA256: pb.DIGEST_TYPE_HMAC_SHA256,
}
_MODES: Final = {
    BookieMode.WRITABLE: pb.BOOKIE_MODE_WRITABLE,
    BookieMode.READ_ONLY: pb.BOOKIE_MODE_READ_ONLY,
}
_STATE_OF: Final = {number: state for state, number in _STATES.items()}
_DIGEST_OF: Final = {number: digest for digest, number in _DIGESTS.items()}
_MODE_OF: Final = {number: mode for mode, number in _MODES.items()}


class StoredRegistration(NamedTuple):
    """A stored registration of a live bookie: its information and the session that owns it."""

    info: BookieInfo
    session: str


def encode_ledger(metadata: LedgerMetadata) -> bytes:
    """Encode ``metadata``; equal values give equal bytes.

    Raises:
        InvalidArgument: a value does not fit its field, or all of it exceeds ``MAX_METADATA_BYTES``.
    """
    what = f"the metadata of ledger {metadata.ledger_id}"
    try:
        message = pb.Ledger(
            ledger_id=metadata.ledger_id,
            quorum=pb.Quorum(
                ensemble=metadata.quorum.ensemble,
                write_quorum=metadata.quorum.write_quorum,
                ack_quorum=metadata.quorum.ack_quorum,
                stripe_entries=metadata.quorum.stripe_entries,
            ),
            fragments=[pb.Fragment(first_entry_id=f.first_entry_id, bookies=f.bookies) for f in metadata.fragments],
            creator_token=metadata.creator_token,
            created_at_ms=metadata.created_at_ms,
            state=_STATES[metadata.state],
            last_entry_id=metadata.last_entry_id,
            length=metadata.length,
            digest=_DIGESTS[metadata.digest],
            key_salt=metadata.key_salt,
            key_verifier=metadata.key_verifier,
            writer_token=metadata.writer_token,
            missed=[
                pb.MissedRange(bookie_id=m.bookie_id, first_entry_id=m.first_entry_id, last_entry_id=m.last_entry_id)
                for m in metadata.missed
            ],
            custom=dict(metadata.custom),
            archiving=_attempt_message(metadata.archiving),
            archived=_receipt_message(metadata.archived),
            copies_released=metadata.copies_released,
        )
        return _seal(LEDGER_MAGIC, message, what)
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"{what} cannot be stored: {error}") from error


def decode_ledger(data: bytes, ledger_id: int, place: str) -> LedgerMetadata:
    """Decode the metadata of ``ledger_id``; ``place`` is the location for error messages.

    Raises:
        DamagedFile: the bytes fail a check, or belong to another ledger.
        NewerFormat: a newer version wrote them, or they have a field of one.
    """
    message = pb.Ledger()
    _open(LEDGER_MAGIC, data, message, place)
    _refuse_unknown_fields(message, place)
    if message.ledger_id != ledger_id:
        raise DamagedFile(f"{place}: the metadata of ledger {message.ledger_id} are stored under ledger {ledger_id}")
    try:
        return LedgerMetadata(
            ledger_id=message.ledger_id,
            quorum=Quorum(
                message.quorum.ensemble,
                message.quorum.write_quorum,
                message.quorum.ack_quorum,
                message.quorum.stripe_entries,
            ),
            fragments=tuple(Fragment(f.first_entry_id, tuple(f.bookies)) for f in message.fragments),
            creator_token=message.creator_token,
            created_at_ms=message.created_at_ms,
            state=_known(_STATE_OF, message.state, "ledger state", place),
            last_entry_id=message.last_entry_id,
            length=message.length,
            digest=_known(_DIGEST_OF, message.digest, "digest type", place),
            key_salt=message.key_salt,
            key_verifier=message.key_verifier,
            writer_token=message.writer_token if message.HasField("writer_token") else None,
            missed=tuple(
                MissedRange(m.bookie_id, m.first_entry_id, m.last_entry_id if m.HasField("last_entry_id") else None)
                for m in message.missed
            ),
            custom=dict(message.custom),
            archiving=_attempt(message.archiving) if message.HasField("archiving") else None,
            archived=_receipt(message.archived) if message.HasField("archived") else None,
            copies_released=message.copies_released,
        )
    except InvalidArgument as error:
        raise DamagedFile(f"{place}: {error.message}") from error


def _attempt_message(attempt: ArchiveAttempt | None) -> pb.ArchiveAttempt | None:
    if attempt is None:
        return None
    return pb.ArchiveAttempt(object_id=attempt.object_id, began_at_ms=attempt.began_at_ms)


def _attempt(message: pb.ArchiveAttempt) -> ArchiveAttempt:
    return ArchiveAttempt(message.object_id, message.began_at_ms)


def _receipt_message(receipt: Receipt | None) -> pb.Receipt | None:
    if receipt is None:
        return None
    return pb.Receipt(
        object_id=receipt.object_id,
        key=receipt.key,
        object_bytes=receipt.object_bytes,
        object_sha256=receipt.object_sha256,
        index=pb.IndexPart(
            offset=receipt.index.offset,
            stored_bytes=receipt.index.stored_bytes,
            raw_bytes=receipt.index.raw_bytes,
            crc32c=receipt.index.crc,
        ),
        entries=receipt.entries,
        payload_bytes=receipt.payload_bytes,
        rolling_crc32c=receipt.rolling_crc,
        archived_at_ms=receipt.archived_at_ms,
    )


def _receipt(message: pb.Receipt) -> Receipt:
    index = message.index
    return Receipt(
        message.object_id,
        message.key,
        message.object_bytes,
        message.object_sha256,
        IndexPart(index.offset, index.stored_bytes, index.raw_bytes, index.crc32c),
        message.entries,
        message.payload_bytes,
        message.rolling_crc32c,
        message.archived_at_ms,
    )


def encode_bookie(registered: StoredRegistration) -> bytes:
    """Encode a registration.

    Raises:
        InvalidArgument: a value does not fit its field, or all of it exceeds ``MAX_METADATA_BYTES``.
    """
    info = registered.info
    what = f"the registration of bookie {info.bookie_id!r}"
    try:
        message = pb.Bookie(
            bookie_id=info.bookie_id,
            address=info.address,
            directory_uuid=info.incarnation.directory_uuid,
            boot=info.incarnation.boot,
            mode=_MODES[info.mode],
            http_address=info.http_address,
            rack=info.rack,
            free_bytes=info.free_bytes,
            version=info.version,
            session=registered.session,
        )
        return _seal(BOOKIE_MAGIC, message, what)
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"{what} cannot be stored: {error}") from error


def decode_bookie(data: bytes, place: str) -> StoredRegistration:
    """Decode a registration; ``place`` is the location for error messages.

    Raises:
        DamagedFile: the bytes fail a check.
        NewerFormat: they were written in a newer format, or with a newer mode.
    """
    message = pb.Bookie()
    _open(BOOKIE_MAGIC, data, message, place)
    info = BookieInfo(
        bookie_id=message.bookie_id,
        address=message.address,
        incarnation=Incarnation(message.directory_uuid, message.boot),
        mode=_known(_MODE_OF, message.mode, "bookie mode", place),
        http_address=message.http_address,
        rack=message.rack,
        free_bytes=message.free_bytes,
        version=message.version,
    )
    return StoredRegistration(info, message.session)


def _seal(magic: bytes, message: Message, what: str) -> bytes:
    body = message.SerializeToString(deterministic=True)
    if _BODY_AT + len(body) > MAX_METADATA_BYTES:
        raise InvalidArgument(f"{what} takes {_BODY_AT + len(body)} bytes, more than {MAX_METADATA_BYTES}")
    header = _HEADER.pack(magic, FORMAT, 0, len(body))
    return header + _CRC.pack(crc32c(body, crc32c(header))) + body


def _open(magic: bytes, data: bytes, message: Message, place: str) -> None:
    """Check ``data`` and parse its body into ``message``."""
    if len(data) < _BODY_AT:
        raise DamagedFile(f"{place}: {len(data)} bytes are too few for a header")
    found, version, _reserved, length = _HEADER.unpack_from(data)
    if found != magic:
        raise DamagedFile(f"{place}: starts with {found!r} instead of {magic!r}")
    body = data[_BODY_AT:]
    if length != len(body) or _CRC.unpack_from(data, _HEADER.size)[0] != crc32c(body, crc32c(data[: _HEADER.size])):
        raise DamagedFile(f"{place}: length or checksum is wrong")
    if version > FORMAT:
        raise NewerFormat.of(place, version, FORMAT)
    if version < FORMAT:
        raise DamagedFile(f"{place}: format {version} does not exist")
    try:
        message.ParseFromString(body)
    except DecodeError as error:
        raise DamagedFile(f"{place}: not a {message.DESCRIPTOR.name} message: {error}") from error


def _refuse_unknown_fields(message: Message, place: str) -> None:
    unknown = sorted(set(_unknown_fields(message)))
    if unknown:
        raise NewerFormat.of(place, f"{FORMAT} with fields {', '.join(unknown)}", "no such fields")


def _unknown_fields(message: Message) -> Iterable[str]:
    """Names, such as ``Ledger.60``, of fields in the message that its definition does not have."""
    extras = UnknownFieldSet(message)
    for index in range(len(extras)):
        yield f"{message.DESCRIPTOR.name}.{extras[index].field_number}"
    for field, value in message.ListFields():
        # The only map, custom metadata, contains bytes and no messages.
        if field.type == FieldDescriptor.TYPE_MESSAGE and field.name != "custom":
            for part in value if field.is_repeated else (value,):
                yield from _unknown_fields(part)


def _known(table: Mapping[Number, Decoded], number: Number, what: str, place: str) -> Decoded:
    try:
        return table[number]
    except KeyError:
        if number <= 0:
            raise DamagedFile(f"{place}: {what} {number} does not exist") from None
        raise NewerFormat.of(place, f"{FORMAT} with {what} {number}", "none of that number") from None
