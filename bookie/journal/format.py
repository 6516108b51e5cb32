"""Journal format apart from the superblock: segment headers, block headers, records, positions.

A segment is a file of fixed size: a header of 4 KiB, then *blocks*, one per group commit, each a whole number of 4 KiB
long. docs/reference/formats/journal.md has the bytes of all of them, and an example.

The header CRC of a block covers the CRC of its body, so it stands for the whole block. A block says where it belongs
(instance, segment, offset): bytes of an earlier use of the segment, of another journal, or written to the wrong place
are never accepted as a live block. Records have no checksum of their own.

A fence carries the key verifier, so that replaying the fence of an unknown ledger creates its state, too. Kinds of
records are never reused: a number that was once on a disk keeps its meaning.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias, assert_never

from crc32c import crc32c

from tallybook.core.buffers import Buffer
from tallybook.core.errors import InvalidArgument, NewerFormat
from tallybook.core.ids import IDENTITY_BYTES, MAX_ID, NO_ENTRY
from tallybook.core.limits import BLOCK_BYTES, KEY_BYTES, MAX_COMMIT_BYTES

INSTANCE_BYTES: Final = 16
VERSION: Final = 1

SEGMENT_MAGIC: Final = b"TJSG"
_SEGMENT: Final = struct.Struct("<4sB3x16sQQQ4xI")
_SEGMENT_CRC_AT: Final = 52

BLOCK_MAGIC: Final = b"TJBK"
BLOCK_HEADER_BYTES: Final = 128
"""More than the fields need, for speed. Large messages begin shortly after a page boundary, where ``malloc`` puts
them; with a header of 64 bytes the first body would start a few bytes further on in its page, and some processors copy
between such addresses at a tenth of their speed (measured: 8 against 90 us for 256 KiB)."""
FLAG_SEAL: Final = 1
_BLOCK: Final = struct.Struct("<4sBBH16sQQIIIII64sI")
_BLOCK_CRC_AT: Final = 124
_UNUSED: Final = bytes(64)
_CRC: Final = struct.Struct("<I")
_HOLD_GIL: Final = 0
"""Third argument of ``crc32c``: a checksum takes microseconds, less than releasing the GIL costs."""

RECORD_HEADER_BYTES: Final = 8
"""Size of the header before each record in a block's body."""

KIND_BATCH: Final = 1
KIND_FENCE: Final = 2
KIND_LEDGER_KEY: Final = 3
KIND_EXPLICIT_LAC: Final = 4
KIND_DELETE: Final = 5
KIND_LEDGER_IDENTITY: Final = 6
NEWEST_KIND: Final = KIND_LEDGER_IDENTITY

FLAG_RECOVERY: Final = 1

_RECORD: Final = struct.Struct("<IBBH")
_ID_AND_KEY: Final = struct.Struct(f"<q{KEY_BYTES}s")
_ID_KEY_AND_IDENTITY: Final = struct.Struct(f"<q{KEY_BYTES}s{IDENTITY_BYTES}s")
_ID_AND_LAC: Final = struct.Struct("<qq")
_ID: Final = struct.Struct("<q")


class JournalMark(NamedTuple):
    """A position between two blocks: everything up to and including ``block`` lies below it. Ordered."""

    segment: int
    block: int


class RingGeometry(NamedTuple):
    """Size and number of segments of the ring."""

    segment_bytes: int
    segment_count: int

    @property
    def blocks_per_segment(self) -> int:
        """Maximum number of blocks in one segment: each is at least 4 KiB."""
        return self.segment_bytes // BLOCK_BYTES - 1

    def file_name(self, segment: int) -> str:
        """The file of segment number ``segment``."""
        return segment_file_name(segment % self.segment_count)


SEGMENT_PREFIX: Final = "segment-"
"""Prefix of the names of segment files."""


def segment_file_name(slot: int) -> str:
    """The name of the ``slot``-th file of the ring."""
    return f"{SEGMENT_PREFIX}{slot:04d}"


def aligned(size: int) -> int:
    """``size`` rounded up to a multiple of 4 KiB."""
    return -(-size // BLOCK_BYTES) * BLOCK_BYTES


class SegmentHeader(NamedTuple):
    """The header in the first 4 KiB of a segment."""

    instance: bytes
    segment: int
    boot: int
    segment_bytes: int


def encode_segment_header(header: SegmentHeader) -> bytes:
    """Encode the first 4 KiB of a segment."""
    plain = _SEGMENT.pack(
        SEGMENT_MAGIC, VERSION, header.instance, header.segment, header.boot, header.segment_bytes, 0
    )[:_SEGMENT_CRC_AT]
    return (plain + _CRC.pack(crc32c(plain))).ljust(BLOCK_BYTES, b"\0")


def decode_segment_header(data: Buffer) -> SegmentHeader | None:
    """The header in the first bytes of ``data``, or ``None`` if there is no valid one.

    Raises:
        NewerFormat: it is intact and has a later version; magic, version and checksum stay in the same places.
    """
    if len(data) < _SEGMENT.size:
        return None
    magic, version, instance, segment, boot, segment_bytes, crc = _SEGMENT.unpack_from(data)
    if magic != SEGMENT_MAGIC or crc32c(memoryview(data)[:_SEGMENT_CRC_AT]) != crc:
        return None
    if version > VERSION:
        raise NewerFormat.of("the segment", version, VERSION)
    if version != VERSION:
        return None
    return SegmentHeader(instance, segment, boot, segment_bytes)


class BlockHeader(NamedTuple):
    """The header of a block."""

    instance: bytes
    segment: int
    block: int
    offset: int
    """Bytes from the start of the segment."""
    record_count: int
    body_bytes: int
    previous_crc: int
    body_crc: int
    is_seal: bool
    crc: int

    @property
    def total_bytes(self) -> int:
        """Length of the block on the disk, padding included."""
        return aligned(BLOCK_HEADER_BYTES + self.body_bytes)

    @property
    def mark(self) -> JournalMark:
        """The position directly after this block."""
        return JournalMark(self.segment, self.block)


def add_to_crc(crc: int, piece: memoryview) -> int:
    """The CRC of a body extended by ``piece``; the CRC of an empty body is 0."""
    return int(crc32c(piece, crc, _HOLD_GIL))


def put_block_header(
    buffer: memoryview,
    *,
    instance: bytes,
    mark: JournalMark,
    offset: int,
    record_count: int,
    body_bytes: int,
    body_crc: int,
    previous_crc: int,
) -> int:
    """Finish the block whose body is in ``buffer`` after the header: write the header, zero the padding.

    Args:
        body_crc: CRC of the body; see ``add_to_crc``.

    Returns:
        The header CRC, which the next block carries.
    """
    end = BLOCK_HEADER_BYTES + body_bytes
    padded_end = aligned(end)
    if padded_end != end:
        buffer[end:padded_end] = bytes(padded_end - end)
    flags = 0 if record_count else FLAG_SEAL
    _BLOCK.pack_into(
        buffer, 0,
        BLOCK_MAGIC, VERSION, flags, 0, instance, mark.segment, mark.block, offset // BLOCK_BYTES,
        record_count, body_bytes, previous_crc, body_crc, _UNUSED, 0,
    )  # fmt: skip
    crc = int(crc32c(buffer[:_BLOCK_CRC_AT]))
    _CRC.pack_into(buffer, _BLOCK_CRC_AT, crc)
    return crc


def decode_block_header(data: Buffer) -> BlockHeader | None:
    """The block header in the first bytes of ``data``, or ``None`` if there is no valid one.

    The caller checks whether the block belongs there, and whether its body is intact. A header of a later version is
    not accepted; see ``newer_block``.
    """
    view = memoryview(data)
    if len(view) < BLOCK_HEADER_BYTES or bytes(view[:4]) != BLOCK_MAGIC:
        return None
    (_, version, flags, reserved, instance, segment, block, position, count, body_bytes, previous, body_crc,
     unused, crc) = _BLOCK.unpack_from(view)  # fmt: skip
    if crc32c(view[:_BLOCK_CRC_AT]) != crc or version != VERSION or reserved or unused != _UNUSED or flags & ~FLAG_SEAL:
        return None
    is_seal = flags == FLAG_SEAL
    if is_seal != (count == 0) or count * RECORD_HEADER_BYTES > body_bytes or (is_seal and body_bytes):
        return None
    if BLOCK_HEADER_BYTES + body_bytes > MAX_COMMIT_BYTES:
        return None
    return BlockHeader(
        instance, segment, block, position * BLOCK_BYTES, count, body_bytes, previous, body_crc, is_seal, crc
    )


def newer_block(data: Buffer, instance: bytes, segment: int, offset: int) -> NewerFormat | None:
    """The error for a block of a later version that belongs at this place; ``None`` if there is no such block.

    Every version has the first 44 bytes of a header, and its checksum, in the same places. The place is checked because
    clients can store bytes that look like a block.
    """
    view = memoryview(data)
    if len(view) < BLOCK_HEADER_BYTES or bytes(view[:4]) != BLOCK_MAGIC:
        return None
    _, version, _, _, own_instance, own_segment, block, position, *_, crc = _BLOCK.unpack_from(view)
    here = (own_instance, own_segment, position * BLOCK_BYTES) == (instance, segment, offset)
    if version <= VERSION or not here or crc32c(view[:_BLOCK_CRC_AT]) != crc:
        return None
    return NewerFormat.of(f"block {block}", version, VERSION)


def body_is_intact(header: BlockHeader, body: Buffer) -> bool:
    """Whether ``body`` is exactly the bytes that ``header`` was made for."""
    return len(body) == header.body_bytes and crc32c(body) == header.body_crc


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
JournalRecord: TypeAlias = BatchRecord | StateRecord


class MalformedRecord(ValueError):
    """Bytes that are no record. The reader of the file reports them as damage, with file and offset."""


def encode_record(record: JournalRecord) -> tuple[bytes, Buffer]:
    """The header of ``record`` and its body, which is not copied.

    Raises:
        InvalidArgument: an id, a LAC or a verifier is out of range.
    """
    if isinstance(record, BatchRecord):
        # First and without further checks: this is the hot path, and the bookie has verified the batch.
        flags = FLAG_RECOVERY if record.recovery else 0
        return _RECORD.pack(len(record.batch), KIND_BATCH, flags, 0), record.batch
    if not 0 <= record.ledger_id <= MAX_ID:
        raise InvalidArgument(f"ledger id {record.ledger_id} is out of range")
    match record:
        case ExplicitLacRecord(ledger_id, lac):
            if not NO_ENTRY <= lac <= MAX_ID:
                raise InvalidArgument(f"last add confirmed {lac} is out of range")
            return _with_header(KIND_EXPLICIT_LAC, _ID_AND_LAC.pack(ledger_id, lac))
        case DeleteRecord(ledger_id):
            return _with_header(KIND_DELETE, _ID.pack(ledger_id))
        case FenceRecord(ledger_id, verifier):
            return _with_header(KIND_FENCE, _ID_AND_KEY.pack(ledger_id, _checked_verifier(verifier)))
        case LedgerKeyRecord(ledger_id, verifier):
            return _with_header(KIND_LEDGER_KEY, _ID_AND_KEY.pack(ledger_id, _checked_verifier(verifier)))
        case LedgerIdentityRecord(ledger_id, verifier, identity):
            if len(identity) != IDENTITY_BYTES:
                raise InvalidArgument(f"the identity of a ledger has {IDENTITY_BYTES} bytes, not {len(identity)}")
            return _with_header(
                KIND_LEDGER_IDENTITY, _ID_KEY_AND_IDENTITY.pack(ledger_id, _checked_verifier(verifier), identity)
            )
        case _:
            assert_never(record)


def _checked_verifier(verifier: bytes) -> bytes:
    if len(verifier) != KEY_BYTES:
        raise InvalidArgument(f"a key verifier has {KEY_BYTES} bytes, not {len(verifier)}")
    return verifier


def _with_header(kind: int, body: bytes) -> tuple[bytes, Buffer]:
    return _RECORD.pack(len(body), kind, 0, 0), body


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
            raise MalformedRecord(f"the record header at byte {at} is beyond the body of {len(body)} bytes")
        size, kind, flags, reserved = _RECORD.unpack_from(body, at)
        start = at + RECORD_HEADER_BYTES
        at = start + size
        if at > len(body):
            raise MalformedRecord(f"the record at byte {start} of {size} bytes is beyond the body of {len(body)} bytes")
        # The checksum of the body has passed, so these values were written on purpose.
        if kind > NEWEST_KIND:
            raise NewerFormat.of(f"the record at {start} of a block", f"kind {kind}", f"kinds up to {NEWEST_KIND}")
        if flags & ~(FLAG_RECOVERY if kind == KIND_BATCH else 0):
            raise NewerFormat.of(f"the record at {start} of a block", f"kind {kind} with flags {flags}", "no such flag")
        if reserved or kind not in _BODY_BYTES or size != (_BODY_BYTES[kind] or size):
            raise MalformedRecord(f"record at {start}: kind {kind} with {size} bytes is invalid")
        spans.append(RecordSpan(kind, flags, start, at))
    if at != len(body):
        raise MalformedRecord(f"{record_count} records end at byte {at} of {len(body)}")
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


def decode_records(body: Buffer, record_count: int) -> Iterator[JournalRecord]:
    """The records of a block's body, in order. Their bytes are copies: they do not keep the block alive.

    Raises:
        MalformedRecord: the body is not exactly ``record_count`` well-formed records.
    """
    view = memoryview(body)
    for span in record_spans(body, record_count):
        yield _decode_record(span, bytes(view[span.start : span.end]))


def _decode_record(span: RecordSpan, body: bytes) -> JournalRecord:
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
