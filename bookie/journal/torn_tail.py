"""Telling a torn tail from damage: pure, fed with what the reader finds on its way through the ring.

Blocks carry consecutive numbers, and one write is outstanding at a time: block k+1 is handed
to the device only after block k was durable. So

- a *later block of this life anywhere* proves that every block before it was durable, and
  one of them that is missing or fails its checks is **damage**;
- what fails its checks *with nothing after it* is the **tail**: the write that a crash cut
  off, never acked. It is cut.

    blocks   7   8   [bad]   10   11   [bad]   end of what was prepared
                       |                 '-- the tail: cut
                       '-- damage: block 9 was durable, 10 proves it

The header alone is proof: it has a CRC of its own. Segments that the superblock says were
prepared, but that cannot be read as such, are always damage; how much they held is known
only when a later block turns up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple

from .format import BlockHeader, Mark
from .superblock import Superblock


class DamageKind(StrEnum):
    """What is wrong."""

    MISSING = "missing"
    """The file of a segment is not there."""
    SHORT = "short"
    """The file of a segment ends too early."""
    HEADER = "header"
    """A segment does not begin with a valid header: zeros, junk, or a flipped bit."""
    FOREIGN = "foreign"
    """A segment file of another journal."""
    MISPLACED = "misplaced"
    """A file that holds another segment of this journal: swapped, or an old copy."""
    BLOCK = "block"
    """Blocks that were durable cannot be read."""
    UNREADABLE = "unreadable"
    """The device refuses to read some of it."""
    CHAIN = "chain"
    """A block is well-formed, but it is not the one its successor was written behind."""


@dataclass(frozen=True, slots=True)
class Damage:
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
        """Whether durable records may be gone."""
        return self.first_block is not None

    def __str__(self) -> str:
        if self.first_block is None:
            lost = "no block is lost"
        elif self.last_block is None:
            lost = f"blocks from {self.first_block} on may be lost"
        else:
            lost = f"blocks {self.first_block} .. {self.last_block} are lost"
        return f"{self.path} at {self.offset}: {self.kind.value}; {lost}"


class Run(NamedTuple):
    """A stretch of one file that holds consecutive intact blocks, all behind the trim mark."""

    path: str
    segment: int
    start: int
    end: int
    first_block: int
    last_block: int


class Findings(NamedTuple):
    """What a walk through the ring came to."""

    runs: tuple[Run, ...]
    damage: tuple[Damage, ...]
    end: Mark
    """The last intact block, or the trim mark."""


class Chain:
    """Follows the block numbers of one life and classifies what breaks them.

    Feed it with ``block``, ``hole`` and ``broken`` in the order of segments and
    offsets, then call ``findings``.
    """

    def __init__(self, facts: Superblock) -> None:
        self._trim = facts.trim
        self._trim_is_on_disk = facts.trim.block >= facts.begin.block
        self._trim_seen = False
        self._settled = facts.trim.block
        self._settled_crc: int | None = None
        # What failed its checks since the last settled block: its fate depends on what comes after it.
        self._suspect: Damage | None = None
        self._broken: list[Damage] = []
        self._runs: list[Run] = []
        self._damage: list[Damage] = []
        self._end = facts.trim

    def block(self, path: str, offset: int, header: BlockHeader, *, intact: bool) -> None:
        """A header that belongs where it was found; ``intact``: so is its body."""
        if header.block <= self._trim.block:
            if header.block == self._trim.block:
                self._trim_seen, self._settled_crc = True, header.crc
            self._suspect = None
            return
        if header.block <= self._settled:
            # Impossible in a life with one writer; whatever it is, it is not what comes next.
            self.hole(path, offset)
            return
        self._settle_up_to(header, path, offset)
        if not intact:
            self._settled, self._settled_crc = header.block - 1, None
            self._suspect = Damage(DamageKind.BLOCK, path, offset)
            return
        self._settled, self._settled_crc = header.block, header.crc
        self._end = header.mark
        self._extend_run(path, offset, header)

    def hole(self, path: str, offset: int) -> None:
        """A place that holds no block of this segment's life: unused, torn or damaged."""
        if self._suspect is None:
            self._suspect = Damage(DamageKind.BLOCK, path, offset)

    def broken(self, kind: DamageKind, path: str, offset: int, *, readable: bool = False) -> None:
        """What a crash cannot do to a prepared segment; ``readable``: its blocks are at hand nevertheless."""
        damage = Damage(kind, path, offset)
        if readable:
            self._damage.append(damage)
        else:
            self._broken.append(damage)

    def findings(self) -> Findings:
        """The end: what is unexplained now has nothing after it."""
        first_unknown = self._settled + 1
        for damage in self._broken:
            self._damage.append(replace(damage, first_block=first_unknown))
        trim_is_lost = self._trim_is_on_disk and not self._trim_seen and self._settled == self._trim.block
        if trim_is_lost and self._suspect is not None and not self._broken:
            # The block at the trim mark is unreadable, so where the next one would begin is not known either.
            self._damage.append(replace(self._suspect, first_block=first_unknown))
        return Findings(tuple(self._runs), tuple(self._damage), self._end)

    def _settle_up_to(self, header: BlockHeader, path: str, offset: int) -> None:
        """``header`` proves that every block before it was durable: what of them is missing is damage."""
        first_lost, last_lost = self._settled + 1, header.block - 1
        if first_lost <= last_lost:
            if not self._broken:
                self._broken.append(self._suspect or Damage(DamageKind.BLOCK, path, offset))
            self._damage += [replace(damage, first_block=first_lost, last_block=last_lost) for damage in self._broken]
        else:
            self._damage += self._broken
            if self._settled_crc is not None and header.previous_crc != self._settled_crc:
                self._damage.append(Damage(DamageKind.CHAIN, path, offset, last_lost, last_lost))
        self._broken, self._suspect = [], None

    def _extend_run(self, path: str, offset: int, header: BlockHeader) -> None:
        end = offset + header.total_bytes
        last = self._runs[-1] if self._runs else None
        if last is not None and (last.path, last.end, last.last_block) == (path, offset, header.block - 1):
            self._runs[-1] = last._replace(end=end, last_block=header.block)
        else:
            self._runs.append(Run(path, header.segment, offset, end, header.block, header.block))


def loses_records(damage: Sequence[Damage]) -> bool:
    """Whether any of the damage may have cost durable records."""
    return any(found.loses_records for found in damage)
