"""Cuts a group of records that fits no entry any more, at the borders of records. Pure.

A group is gathered for the entry that bookies took then. By the time it is sent they may take less: a smaller bookie
has come back, or taken another's place, or has only now said what it takes.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..envelope import HEADER_BYTES, RECORD_OVERHEAD_BYTES, Columns, Envelope, Kind
from .pending import ROOM_BYTES, RecordGroup


def reopen(group: RecordGroup) -> None:
    """Take an envelope that was encoded apart, so that it can be cut, or numbered anew."""
    if group.payload and group.kind is Kind.RECORDS:
        group.columns = Columns.of(Envelope(group.payload, 0, 0, group.tag))
    group.payload = b""


def cut(group: RecordGroup, most_bytes: int) -> list[RecordGroup]:
    """The same records in groups whose envelopes have ``most_bytes`` at the most, or one record each; at least two.

    Args:
        group: of several records, not encoded, and no set. It is empty then, and says which group a record is in.
    """
    sizes = group.columns.sizes()
    borders = _borders(sizes, most_bytes - HEADER_BYTES)
    if len(borders) == 1:
        # It should have fitted: smaller ones do, come what may.
        borders = [0, len(sizes) // 2]
    pieces = []
    for begin, end in zip(borders, [*borders[1:], len(sizes)], strict=True):
        piece = RecordGroup(group.columns.default_time, group.tag, since=group.since)
        piece.columns = group.columns.between(begin, end)
        piece.count, total = end - begin, sum(sizes[begin:end])
        piece.bytes += total + piece.count * RECORD_OVERHEAD_BYTES
        piece.held_bytes = total + piece.count * ROOM_BYTES
        pieces.append(piece)
    group.cut_into(borders, pieces)
    return pieces


def _borders(sizes: Sequence[int], room: int) -> list[int]:
    """Where each piece begins."""
    borders, used = [0], 0
    for at, size in enumerate(sizes):
        if at > borders[-1] and used + size + RECORD_OVERHEAD_BYTES > room:
            borders.append(at)
            used = 0
        used += size + RECORD_OVERHEAD_BYTES
    return borders
