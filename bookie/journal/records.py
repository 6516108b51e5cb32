"""The records inside a block: batches, fences and other changes of ledger state.

A record is a header of 8 bytes and a body. Records stand back to back, unpadded; the block
around them has the checksum. Record header, little-endian::

    offset  size  field
         0     4  body bytes
         4     1  kind
         5     1  flags (BATCH, bit 0: a recovery add; all others zero)
         6     2  reserved, zero

    kind             body
    1 BATCH          the batch, byte for byte as the writer sent it
    2 FENCE          ledger id (8), key verifier (32)
    3 LEDGER_KEY     ledger id (8), key verifier (32)
    4 EXPLICIT_LAC   ledger id (8), last add confirmed (8, signed)
    5 DELETE         ledger id (8)
    6 LEDGER_IDENTITY  ledger id (8), key verifier (32), identity (16)

LEDGER_IDENTITY is written instead of LEDGER_KEY if the identity of the ledger is known. A fence carries the key
verifier, so that replaying the fence of an unknown ledger creates its state, too. Kinds are never reused: a number that
was once on a disk keeps its meaning.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias, assert_never

from tallybook.core.batch import Buffer
from tallybook.core.errors import InvalidArgument, NewerFormat
from tallybook.core.ids import IDENTITY_BYTES, MAX_ID, NO_ENTRY
from tallybook.core.limits import KEY_BYTES

from .format import RECORD_HEADER_BYTES

KIND_BATCH: Final = 1
KIND_FENCE: Final = 2
KIND_LEDGER_KEY: Final = 3
KIND_EXPLICIT_LAC: Final = 4
KIND_DELETE: Final = 5
KIND_LEDGER_IDENTITY: Final = 6
NEWEST_KIND: Final = KIND_LEDGER_IDENTITY

FLAG_RECOVERY: Final = 1

_HEADER: Final = struct.Struct("<IBBH")
_ID_AND_KEY: Final = struct.Struct(f"<q{KEY_BYTES}s")
_ID_KEY_AND_IDENTITY: Final = struct.Struct(f"<q{KEY_BYTES}s{IDENTITY_BYTES}s")
_ID_AND_LAC: Final = struct.Struct("<qq")
_ID: Final = struct.Struct("<q")


class BatchRecord(NamedTuple):
    """A batch, as the writer sent it. ``recovery``: it came from a recovery and passes a fence.

    A tuple, because one is made for every batch, and tuples are created fastest.
    """

    batch: Buffer
    recovery: bool = False


@dataclass(frozen=True, slots=True)
class FenceRecord:
    """The ledger is fenced. ``verifier`` (32 bytes) verifies its key."""

    ledger_id: int
    verifier: bytes


@dataclass(frozen=True, slots=True)
class LedgerKeyRecord:
    """The bookie met the ledger. ``verifier`` (32 bytes) verifies its key."""

    ledger_id: int
    verifier: bytes


@dataclass(frozen=True, slots=True)
class LedgerIdentityRecord:
    """The bookie met the ledger. ``verifier`` (32 bytes) verifies its key, ``identity`` (16 bytes) names the ledger."""

    ledger_id: int
    verifier: bytes
    identity: bytes


@dataclass(frozen=True, slots=True)
class ExplicitLacRecord:
    """An explicit LAC, which came without a batch."""

    ledger_id: int
    lac: int


@dataclass(frozen=True, slots=True)
class DeleteRecord:
    """The ledger is deleted, and stays unwritable."""

    ledger_id: int


StateRecord: TypeAlias = FenceRecord | LedgerKeyRecord | ExplicitLacRecord | DeleteRecord | LedgerIdentityRecord
"""A record about the state of a ledger."""
Record: TypeAlias = BatchRecord | StateRecord


class MalformedRecord(ValueError):
    """Bytes that are no record. The reader of the file reports them as damage, with file and offset."""


def encode_record(record: Record) -> tuple[bytes, Buffer]:
    """The header of ``record`` and its body, which is not copied.

    Raises:
        InvalidArgument: an id, a LAC or a verifier is out of range.
    """
    if isinstance(record, BatchRecord):
        # First and without further checks: this is the hot path, and the bookie has verified the batch.
        flags = FLAG_RECOVERY if record.recovery else 0
        return _HEADER.pack(len(record.batch), KIND_BATCH, flags, 0), record.batch
    if not 0 <= record.ledger_id <= MAX_ID:
        raise InvalidArgument(f"ledger id {record.ledger_id} is out of range")
    match record:
        case ExplicitLacRecord(ledger_id, lac):
            if not NO_ENTRY <= lac <= MAX_ID:
                raise InvalidArgument(f"last add confirmed {lac} is out of range")
            return _wire(KIND_EXPLICIT_LAC, _ID_AND_LAC.pack(ledger_id, lac))
        case DeleteRecord(ledger_id):
            return _wire(KIND_DELETE, _ID.pack(ledger_id))
        case FenceRecord(ledger_id, verifier):
            return _wire(KIND_FENCE, _ID_AND_KEY.pack(ledger_id, _checked(verifier)))
        case LedgerKeyRecord(ledger_id, verifier):
            return _wire(KIND_LEDGER_KEY, _ID_AND_KEY.pack(ledger_id, _checked(verifier)))
        case LedgerIdentityRecord(ledger_id, verifier, identity):
            if len(identity) != IDENTITY_BYTES:
                raise InvalidArgument(f"the identity of a ledger has {IDENTITY_BYTES} bytes, not {len(identity)}")
            return _wire(KIND_LEDGER_IDENTITY, _ID_KEY_AND_IDENTITY.pack(ledger_id, _checked(verifier), identity))
        case _:
            assert_never(record)


def _checked(verifier: bytes) -> bytes:
    if len(verifier) != KEY_BYTES:
        raise InvalidArgument(f"a key verifier has {KEY_BYTES} bytes, not {len(verifier)}")
    return verifier


def _wire(kind: int, body: bytes) -> tuple[bytes, Buffer]:
    return _HEADER.pack(len(body), kind, 0, 0), body


class RecordSpan(NamedTuple):
    """The place of one record in a block's body, and its header fields."""

    kind: int
    flags: int
    start: int
    end: int


def record_spans(body: Buffer, record_count: int) -> list[RecordSpan]:
    """The records of a block's body, by their headers alone.

    Raises:
        MalformedRecord: they do not fill the body exactly, or one is impossible.
        NewerFormat: one has a kind, or a flag, that a later version has added.
    """
    spans = []
    at = 0
    for _ in range(record_count):
        if at + RECORD_HEADER_BYTES > len(body):
            raise MalformedRecord(f"record header at {at} leaves a body of {len(body)} bytes")
        size, kind, flags, reserved = _HEADER.unpack_from(body, at)
        start = at + RECORD_HEADER_BYTES
        at = start + size
        if at > len(body):
            raise MalformedRecord(f"record at {start} of {size} bytes leaves a body of {len(body)} bytes")
        # The checksum of the body has passed, so these values were written on purpose.
        if kind > NEWEST_KIND:
            raise NewerFormat.of(f"the record at {start} of a block", f"kind {kind}", f"kinds up to {NEWEST_KIND}")
        if flags & ~(FLAG_RECOVERY if kind == KIND_BATCH else 0):
            raise NewerFormat.of(f"the record at {start} of a block", f"kind {kind} with flags {flags}", "no such flag")
        if reserved or kind not in _BODY_BYTES or size != (_BODY_BYTES[kind] or size):
            raise MalformedRecord(f"record at {start}: kind {kind} with {size} bytes is invalid")
        spans.append(RecordSpan(kind, flags, start, at))
    if at != len(body):
        raise MalformedRecord(f"{record_count} records end at {at} of {len(body)} bytes")
    return spans


_BODY_BYTES: Final = {
    KIND_BATCH: 0,
    KIND_FENCE: _ID_AND_KEY.size,
    KIND_LEDGER_KEY: _ID_AND_KEY.size,
    KIND_EXPLICIT_LAC: _ID_AND_LAC.size,
    KIND_DELETE: _ID.size,
    KIND_LEDGER_IDENTITY: _ID_KEY_AND_IDENTITY.size,
}
"""Body bytes of each kind; 0: any."""


def decode_records(body: Buffer, record_count: int) -> Iterator[Record]:
    """The records of a block's body, in order. Their bytes are copies: they do not keep the block alive.

    Raises:
        MalformedRecord: the body is not exactly ``record_count`` well-formed records.
    """
    view = memoryview(body)
    for span in record_spans(body, record_count):
        yield _decode(span, bytes(view[span.start : span.end]))


def _decode(span: RecordSpan, body: bytes) -> Record:
    if span.kind == KIND_BATCH:
        return BatchRecord(body, bool(span.flags & FLAG_RECOVERY))
    ledger_id = _ID.unpack_from(body)[0]
    if ledger_id < 0:
        raise MalformedRecord(f"ledger id {ledger_id} is out of range")
    if span.kind == KIND_EXPLICIT_LAC:
        lac = _ID_AND_LAC.unpack(body)[1]
        if lac < NO_ENTRY:
            raise MalformedRecord(f"last add confirmed {lac} is out of range")
        return ExplicitLacRecord(ledger_id, lac)
    if span.kind == KIND_DELETE:
        return DeleteRecord(ledger_id)
    if span.kind == KIND_LEDGER_IDENTITY:
        return LedgerIdentityRecord(*_ID_KEY_AND_IDENTITY.unpack(body))
    verifier = body[_ID.size :]
    return FenceRecord(ledger_id, verifier) if span.kind == KIND_FENCE else LedgerKeyRecord(ledger_id, verifier)
