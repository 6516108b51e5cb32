"""The superblock: the facts about a journal that must survive any crash.

It is one file with two slots of 4 KiB. Every change is written to both, one after the other, each with the next
sequence number, and takes effect only when both are durable. So a crash tears at most one slot, damage to one slot
loses nothing, and the facts of the older slot are always safe to start from: what the newer one permits was not done
yet. docs/reference/formats/journal.md has the bytes of a slot, and an example.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from crc32c import crc32c

from tallybook.core.buffers import Buffer
from tallybook.core.errors import NewerFormat
from tallybook.core.limits import BLOCK_BYTES

from .format import INSTANCE_BYTES, JournalMark, RingGeometry

SLOT_COUNT: Final = 2
SLOT_BYTES: Final = BLOCK_BYTES
SUPERBLOCK_BYTES: Final = SLOT_COUNT * SLOT_BYTES

MAGIC: Final = b"TJSB"
VERSION: Final = 1
_FLAG_CLEAN: Final = 1
_FLAG_PREVIOUS_CLEAN: Final = 2

_SLOT: Final = struct.Struct("<4sBBHQ16sQ4QQQIIQQI")
_CRC_AT: Final = 112
_CRC: Final = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class Superblock:
    """The contents of one slot."""

    sequence: int
    instance: bytes
    boot: int
    clean: bool
    """Stopped with everything checkpointed: the next boot replays nothing."""
    trim: JournalMark
    """Everything up to here is checkpointed."""
    begin: JournalMark
    """Segment and block number of the first block this boot may write. No earlier incarnation used either number."""
    prepared: int
    """Highest segment whose header is durable; blocks are only ever written up to there."""
    geometry: RingGeometry
    previous_clean: bool
    """Whether the incarnation before this one ended cleanly."""
    previous_end: JournalMark
    """The last block that was found of the previous incarnation."""
    previous_damage: int
    """Number of damaged places found in what the previous incarnation left."""

    def expected_segments(self) -> range:
        """The segments that replay must find: they may hold blocks after the trim mark."""
        if self.clean:
            return range(0)
        return range(self.trim.segment, self.prepared + 1)

    def next_begin(self) -> JournalMark:
        """Segment and block numbers above anything that may be on the disk, readable or not.

        Every block takes at least 4 KiB of a prepared segment, which bounds the block numbers that this incarnation can
        have used.
        """
        max_blocks = len(self.expected_segments()) * self.geometry.blocks_per_segment
        return JournalMark(self.prepared + 1, self.trim.block + max_blocks + 1)


def encode_slot(facts: Superblock) -> bytes:
    """Encode one slot of 4 KiB."""
    flags = _FLAG_CLEAN * facts.clean | _FLAG_PREVIOUS_CLEAN * facts.previous_clean
    plain = _SLOT.pack(
        MAGIC, VERSION, flags, 0, facts.sequence, facts.instance, facts.boot, *facts.trim, *facts.begin,
        facts.prepared, facts.geometry.segment_bytes, facts.geometry.segment_count, facts.previous_damage,
        *facts.previous_end, 0,
    )[:_CRC_AT]  # fmt: skip
    return (plain + _CRC.pack(crc32c(plain))).ljust(SLOT_BYTES, b"\0")


def decode_slot(data: Buffer) -> Superblock | None:
    """The facts in one slot, or ``None`` if it fails its checks.

    Raises:
        NewerFormat: they are intact and have a later version; magic, version and checksum stay in the same places.
    """
    if len(data) < _SLOT.size:
        return None
    (magic, version, flags, reserved, sequence, instance, boot, *marks, prepared, segment_bytes, count, damage,
     end_segment, end_block, crc) = _SLOT.unpack_from(data)  # fmt: skip
    if crc32c(memoryview(data)[:_CRC_AT]) != crc or magic != MAGIC:
        return None
    if version > VERSION:
        raise NewerFormat.of("the superblock", version, VERSION)
    if version != VERSION:
        return None
    if reserved or flags & ~(_FLAG_CLEAN | _FLAG_PREVIOUS_CLEAN) or len(instance) != INSTANCE_BYTES:
        return None
    # Prepared segments lie in the ring, which a replay scans.
    if segment_bytes % BLOCK_BYTES or segment_bytes < 2 * BLOCK_BYTES or not count or prepared - marks[0] > count:
        return None
    return Superblock(
        sequence=sequence,
        instance=instance,
        boot=boot,
        clean=bool(flags & _FLAG_CLEAN),
        trim=JournalMark(marks[0], marks[1]),
        begin=JournalMark(marks[2], marks[3]),
        prepared=prepared,
        geometry=RingGeometry(segment_bytes, count),
        previous_clean=bool(flags & _FLAG_PREVIOUS_CLEAN),
        previous_end=JournalMark(end_segment, end_block),
        previous_damage=damage,
    )


def slot_offset(sequence: int) -> int:
    """Offset in the file of the contents with this sequence number."""
    return sequence % SLOT_COUNT * SLOT_BYTES


def newest(slots: Sequence[Superblock | None]) -> Superblock | None:
    """The facts to start from: the valid slot with the highest sequence number."""
    return max((slot for slot in slots if slot is not None), key=lambda slot: slot.sequence, default=None)


def next_versions(facts: Superblock) -> list[Superblock]:
    """``facts`` once for each slot, in writing order, with the next sequence numbers."""
    return [replace(facts, sequence=facts.sequence + step) for step in range(1, SLOT_COUNT + 1)]
