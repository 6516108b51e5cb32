"""Distinguishes a torn tail from damage. Pure: the reader reports the blocks that it finds in the ring.

Blocks carry consecutive numbers, and one write is in flight at a time: block k+1 is handed to the device only after
block k was durable. So a *later block of this incarnation anywhere* proves that every block before it was durable, and
a missing or invalid one among them is **damage**. An invalid block *with nothing after it* is the **tail**: the write
that a crash interrupted, never acked. It is cut.

    blocks   7   8   [damage]   10   11   [tail]   end of the prepared segments

The header alone is proof: it has a CRC of its own. Segments that the superblock lists as prepared, but that cannot be
read as such, are always damage; how many blocks they held is known only when a later block is found.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple

from .format import BlockHeader, JournalMark
from .superblock import Superblock


class DamageKind(StrEnum):
    """The kinds of damage."""

    MISSING = "missing"
    """The file of a segment does not exist."""
    SHORT = "short"
    """The file of a segment is too short."""
    HEADER = "header"
    """A segment does not begin with a valid header: zeros, junk, or a flipped bit."""
    FOREIGN = "foreign"
    """A segment file of another journal."""
    MISPLACED = "misplaced"
    """A file that holds another segment of this journal: swapped, or an old copy."""
    BLOCK = "block"
    """Blocks that were durable cannot be read."""
    UNREADABLE = "unreadable"
    """The device refuses to read part of it."""
    CHAIN = "chain"
    """A block is well-formed, but the next block was written after a different block."""


@dataclass(frozen=True, slots=True)
class JournalDamage:
    """One damaged place. It is never cut silently: the caller decides what its loss means."""

    kind: DamageKind
    path: str
    offset: int
    """Bytes from the start of the file."""
    first_block: int | None = None
    """First block number that is lost, or ``None`` if it is certain that none is."""
    last_block: int | None = None
    """Last block number that is lost, or ``None`` if that is not known."""

    @property
    def loses_records(self) -> bool:
        """Whether durable records may be lost."""
        return self.first_block is not None

    def __str__(self) -> str:
        if self.first_block is None:
            lost = "no block is lost"
        elif self.last_block is None:
            lost = f"blocks from {self.first_block} on may be lost"
        else:
            lost = f"blocks {self.first_block} .. {self.last_block} are lost"
        return f"{self.path} at {self.offset}: {self.kind.value}; {lost}"


class BlockRange(NamedTuple):
    """A range of one file that holds consecutive intact blocks, all after the trim mark."""

    path: str
    segment: int
    start: int
    end: int
    first_block: int
    last_block: int


class ScanFindings(NamedTuple):
    """The result of a scan of the ring."""

    ranges: tuple[BlockRange, ...]
    damage: tuple[JournalDamage, ...]
    end: JournalMark
    """The last intact block, or the trim mark."""


class Chain:
    """Follows the block numbers of one incarnation and classifies what breaks them.

    Call ``block``, ``hole`` and ``broken`` in the order of segments and offsets, then ``findings``.
    """

    def __init__(self, facts: Superblock) -> None:
        self._trim = facts.trim
        self._trim_is_on_disk = facts.trim.block >= facts.begin.block
        self._trim_seen = False
        self._proven = facts.trim.block
        self._proven_crc: int | None = None
        # Invalid places since the last proven block: the next blocks decide whether they are damage.
        self._suspect: JournalDamage | None = None
        self._broken: list[JournalDamage] = []
        self._ranges: list[BlockRange] = []
        self._damage: list[JournalDamage] = []
        self._end = facts.trim

    def block(self, path: str, offset: int, header: BlockHeader, *, intact: bool) -> None:
        """Report a header that belongs where it was found; ``intact``: so is its body."""
        if header.block <= self._trim.block:
            if header.block == self._trim.block:
                self._trim_seen, self._proven_crc = True, header.crc
            self._suspect = None
            return
        if header.block <= self._proven:
            # Impossible with one writer; in any case not the next block.
            self.hole(path, offset)
            return
        self._prove_up_to(header, path, offset)
        if not intact:
            self._proven, self._proven_crc = header.block - 1, None
            self._suspect = JournalDamage(DamageKind.BLOCK, path, offset)
            return
        self._proven, self._proven_crc = header.block, header.crc
        self._end = header.mark
        self._extend_range(path, offset, header)

    def hole(self, path: str, offset: int) -> None:
        """Report a place without a block of this use of the segment: unused, torn or damaged."""
        if self._suspect is None:
            self._suspect = JournalDamage(DamageKind.BLOCK, path, offset)

    def broken(self, kind: DamageKind, path: str, offset: int, *, readable: bool = False) -> None:
        """Report damage that no crash can cause in a prepared segment; ``readable``: its blocks can be read."""
        damage = JournalDamage(kind, path, offset)
        if readable:
            self._damage.append(damage)
        else:
            self._broken.append(damage)

    def findings(self) -> ScanFindings:
        """The result, after everything was reported."""
        first_unknown = self._proven + 1
        for damage in self._broken:
            self._damage.append(replace(damage, first_block=first_unknown))
        trim_is_lost = self._trim_is_on_disk and not self._trim_seen and self._proven == self._trim.block
        if trim_is_lost and self._suspect is not None and not self._broken:
            # The block at the trim mark is unreadable, so the position of the next one is unknown, too.
            self._damage.append(replace(self._suspect, first_block=first_unknown))
        return ScanFindings(tuple(self._ranges), tuple(self._damage), self._end)

    def _prove_up_to(self, header: BlockHeader, path: str, offset: int) -> None:
        """``header`` proves that every block before it was durable: missing ones are damage."""
        first_lost, last_lost = self._proven + 1, header.block - 1
        if first_lost <= last_lost:
            if not self._broken:
                self._broken.append(self._suspect or JournalDamage(DamageKind.BLOCK, path, offset))
            self._damage += [replace(damage, first_block=first_lost, last_block=last_lost) for damage in self._broken]
        else:
            self._damage += self._broken
            if self._proven_crc is not None and header.previous_crc != self._proven_crc:
                self._damage.append(JournalDamage(DamageKind.CHAIN, path, offset, last_lost, last_lost))
        self._broken, self._suspect = [], None

    def _extend_range(self, path: str, offset: int, header: BlockHeader) -> None:
        end = offset + header.total_bytes
        last = self._ranges[-1] if self._ranges else None
        if last is not None and (last.path, last.end, last.last_block) == (path, offset, header.block - 1):
            self._ranges[-1] = last._replace(end=end, last_block=header.block)
        else:
            self._ranges.append(BlockRange(path, header.segment, offset, end, header.block, header.block))


def loses_records(damage: Sequence[JournalDamage]) -> bool:
    """Whether any of the damage may have lost durable records."""
    return any(found.loses_records for found in damage)
