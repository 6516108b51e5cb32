"""Free space of the ring: pure arithmetic, always on the safe side.

A record is *charged* what it would cost alone in a block. Group commits only make it cheaper, so as long as the charges
of all queued records fit, each of them will be written without waiting for a checkpoint. The loss at the end of a
segment is bounded: the writer leaves a segment only when the next record does not fit into the rest of it.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from tallybook.core.limits import BLOCK_BYTES

from .format import BLOCK_HEADER_BYTES, RECORD_HEADER_BYTES, RingGeometry, aligned

_OVERHEAD_BYTES: Final = BLOCK_HEADER_BYTES + RECORD_HEADER_BYTES

SEAL_BYTES: Final = BLOCK_BYTES
"""Kept free: a seal may be written between two reads of the ring's state."""

ADD_RESERVE_SHARE: Final = 16
"""One part in this many is kept from ordinary adds, for recovery."""


def charge_bytes(body_bytes: int) -> int:
    """Worst-case cost of a record with this body."""
    return aligned(_OVERHEAD_BYTES + body_bytes)


class RingSpace(NamedTuple):
    """Computes free space for the writer of a ring."""

    geometry: RingGeometry
    max_commit_bytes: int

    @property
    def max_body_bytes(self) -> int:
        """Largest body of one record."""
        return self.max_commit_bytes - _OVERHEAD_BYTES

    @property
    def reserve_bytes(self) -> int:
        """Space kept for fences and LACs, which must work while adds are refused.

        Small enough that the largest record fits into the smallest ring (three segments of two commits each) once all
        of it is trimmed, even if a seal then opened the next segment.
        """
        return min(self.max_commit_bytes, 2 * self.max_commit_bytes - 3 * BLOCK_BYTES)

    @property
    def least_ready(self) -> int:
        """Number of ready segments that suffices for ordinary adds of any size until the writer opens the next one."""
        count = self.geometry.segment_count
        reserve_bytes = self.geometry.segment_bytes * count // ADD_RESERVE_SHARE + self.reserve_bytes
        needed_bytes = reserve_bytes + self.max_commit_bytes + BLOCK_BYTES
        return next((ready for ready in range(1, count) if self.writable_bytes(0, ready) >= needed_bytes), count)

    def writable_bytes(self, remaining_bytes: int, ready_count: int) -> int:
        """Maximum sum of charges, given the rest of the open segment and the number of ready segments."""
        max_wasted = self.max_commit_bytes - BLOCK_BYTES
        if not ready_count:
            return max(0, remaining_bytes - SEAL_BYTES)
        usable = self.geometry.segment_bytes - BLOCK_BYTES
        # Every segment but the last is left when the next record does not fit.
        in_open_segment = max(0, remaining_bytes - max_wasted)
        return in_open_segment + ready_count * usable - (ready_count - 1) * max_wasted - SEAL_BYTES

    def largest_body(self, free_bytes: int) -> int:
        """The largest body whose charge is at most ``free_bytes``; 0 if there is none."""
        return max(0, free_bytes // BLOCK_BYTES * BLOCK_BYTES - _OVERHEAD_BYTES)
