"""Journal format apart from the superblock: segment headers, block headers, positions.

A segment is a file of fixed size. Its first 4 KiB are the *segment header*; after it come
*blocks*, one per group commit, each a whole number of 4 KiB long. A block is a block header
of 128 bytes, then records back to back (``records.py``), then zeros up to the next 4 KiB.

Segment header, little-endian (docs/reference/formats/journal.md shows an example)::

    offset  size  field
         0     4  magic "TJSG"
         4     1  version (1)
         5     3  reserved, zero
         8    16  journal instance, random, drawn when the journal was created
        24     8  segment sequence number s; the file is number s mod segment count
        32     8  boot that prepared the segment
        40     8  segment size in bytes
        48     4  reserved, zero
        52     4  CRC-32C of bytes 0 .. 51
        56  4040  zero, not checked

Block header::

    offset  size  field
         0     4  magic "TJBK"
         4     1  version (1)
         5     1  flags (bit 0: a seal, no records)
         6     2  reserved, zero
         8    16  journal instance
        24     8  segment sequence number
        32     8  block sequence number, global, never reused
        40     4  offset of this block in its segment, in units of 4 KiB
        44     4  record count
        48     4  body bytes: all records, without the padding
        52     4  header CRC of the block before it, 0 for the first block of a boot
        56     4  CRC-32C of the body
        60    64  reserved, zero
       124     4  CRC-32C of bytes 0 .. 123 (the header CRC)

The header CRC covers the body CRC, so it stands for the whole block. A block says where it belongs (instance, segment,
offset): bytes of an earlier life of the segment, of another journal, or written to the wrong place are never accepted
as a live block. The padding is neither covered nor read.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from crc32c import crc32c

from tallybook.core.batch import Buffer
from tallybook.core.errors import NewerFormat
from tallybook.core.limits import BLOCK_BYTES, MAX_COMMIT_BYTES

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
"""Size of the header before each record in a block's body; ``records.py`` has its layout."""


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
