"""Splits a group of records that is too large for an entry, at record boundaries. Pure.

A group is gathered for the entry limit at that time. When it is sent, the limit may be lower: a bookie with a lower
limit has come back, has joined the ensemble, or has only now reported its limit.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..records.envelope import HEADER_BYTES, RECORD_OVERHEAD_BYTES, Envelope, EnvelopeKind, RecordColumns
from .pending import COST_BYTES, RecordGroup


def reopen(group: RecordGroup) -> None:
    """Decode an encoded group, so that it can be split or renumbered."""
    if group.payload and group.kind is EnvelopeKind.RECORDS:
        group.columns = RecordColumns.of(Envelope(group.payload, 0, 0, group.tag))
    group.payload = b""


def cut(group: RecordGroup, max_bytes: int) -> list[RecordGroup]:
    """Split a group into at least two groups whose envelopes have at most ``max_bytes``, or one record each.

    Args:
        group: a group of several records, not encoded, and not a set. It is empty afterwards, and refers to the pieces.
    """
    sizes = group.columns.sizes()
    borders = _borders(sizes, max_bytes - HEADER_BYTES)
    if len(borders) == 1:
        # By size it should have fit, but it was refused: halve it.
        borders = [0, len(sizes) // 2]
    pieces = []
    for begin, end in zip(borders, [*borders[1:], len(sizes)], strict=True):
        piece = RecordGroup(group.columns.default_time, group.tag, since=group.since)
        piece.columns = group.columns.between(begin, end)
        piece.count, total = end - begin, sum(sizes[begin:end])
        piece.bytes += total + piece.count * RECORD_OVERHEAD_BYTES
        piece.held_bytes = total + piece.count * COST_BYTES
        pieces.append(piece)
    group.cut_into(borders, pieces)
    return pieces


def _borders(sizes: Sequence[int], space: int) -> list[int]:
    """The index of the first record of each piece."""
    borders, used = [0], 0
    for at, size in enumerate(sizes):
        if at > borders[-1] and used + size + RECORD_OVERHEAD_BYTES > space:
            borders.append(at)
            used = 0
        used += size + RECORD_OVERHEAD_BYTES
    return borders
