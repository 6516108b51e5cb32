"""From entries of segments to records: the columns of a query of streams, a table of entries at a time.

The work is ``stream/columnar``'s; here is added where each record is, and taken away what is not wanted. What cannot be
understood, and numbers that are missing between two envelopes, are gaps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tallybook.core.errors import InvariantViolation
from tallybook.stream.columnar import EnvelopeColumns, Flags, Numbers, damage, decode
from tallybook.stream.head import Head
from tallybook.stream.position import Position

from ..gaps import Gap
from .stretches import RecordGap, RecordGapKind, RecordStretch

_TIME: Final = pa.timestamp("us", "UTC")
_MOST_MS: Final = (2**63 - 1) // 1000
"""Timestamps beyond are none that Spark could hold."""


class RecordRows:
    """Makes records of what a task reads.

    Args:
        stretches: all that it reads.
    """

    def __init__(self, stretches: Sequence[RecordStretch]) -> None:
        self._stretches: dict[int, list[RecordStretch]] = {}
        for each in stretches:
            self._stretches.setdefault(each.ledger_id, []).append(each)
        self._expected: dict[int, int | None] = {}
        """For each ledger, the number that its next record has, where that is known."""
        self._missing: dict[int, tuple[Position, str]] = {}
        """For each ledger, from where on records are missing, and why, as long as it is not known up to where."""

    def lost(self, gap: Gap, head: Head | None) -> Iterator[RecordGap]:
        """Entries that nobody has.

        Args:
            head: of their stream, as it is now, where their ledger was deleted.
        """
        stretch = self.stretch(gap.ledger_id, gap.first)
        kind: RecordGapKind = "lost"
        if gap.kind == "trimmed" and (head is None or head.deleting):
            kind = "deleted"
        elif gap.kind == "trimmed" and head is not None and head.truncation.segment > stretch.segment:
            kind = "truncated"
        if kind != "lost":
            at, first = stretch.at(gap.first), self._next(stretch, gap.first)
            yield RecordGap(stretch.stream, at, kind, first, None, gap.reason)
            return
        self._begin_gap(stretch, gap.first, gap.reason)

    def records(self, entries: pa.Table) -> Iterator[pa.Table | RecordGap]:
        """The records of some entries in a row, behind the gaps among them.

        Args:
            entries: of one ledger, with the columns of an archive object.
        """
        entry_ids = entries["entry_id"].to_numpy()
        stretch = self.stretch(entries["ledger_id"][0].as_py(), int(entry_ids[0]))
        payloads = entries["payload"].combine_chunks()
        if isinstance(payloads, pa.ChunkedArray):
            payloads = pa.concat_arrays(payloads.chunks)
        self._next(stretch, int(entry_ids[0]))
        for piece in decode(payloads):
            yield from self._gaps(stretch, piece, entry_ids, payloads)
            table = _table(stretch, piece, entries, entry_ids)
            if table.num_rows:
                yield table

    def rest(self) -> Iterator[RecordGap]:
        """Gaps behind which nothing came."""
        for ledger_id, (at, reason) in self._missing.items():
            stretch = self.stretch(ledger_id, at.entry)
            yield RecordGap(stretch.stream, at, "lost", self._expected.get(ledger_id), None, reason)
        self._missing.clear()

    def stretch(self, ledger_id: int, entry: int) -> RecordStretch:
        """What an entry is a part of."""
        for each in self._stretches.get(ledger_id, ()):
            if each.first <= entry <= each.last:
                return each
        raise InvariantViolation(f"entry {entry} of ledger {ledger_id} was not asked for")

    def _next(self, stretch: RecordStretch, entry: int) -> int | None:
        """The number of the first record from an entry on, where it is known."""
        if entry == 0:
            self._expected.setdefault(stretch.ledger_id, stretch.sequence)
        return self._expected.setdefault(stretch.ledger_id, None)

    def _begin_gap(self, stretch: RecordStretch, entry: int, reason: str) -> None:
        self._next(stretch, entry)
        self._missing.setdefault(stretch.ledger_id, (stretch.at(entry), reason))

    def _gaps(
        self, stretch: RecordStretch, piece: EnvelopeColumns, entry_ids: Numbers, payloads: pa.Array
    ) -> Iterator[RecordGap]:
        """What is missing between these envelopes, or before them."""
        ledger_id, rows = stretch.ledger_id, piece.first_row + np.flatnonzero(piece.good)
        ends = piece.sequence + piece.count
        expected = self._expected[ledger_id]
        sound = piece.good.all() and bool((piece.sequence[1:] == ends[:-1]).all())
        if sound and len(rows) and ledger_id not in self._missing and expected in {None, int(piece.sequence[0])}:
            self._expected[ledger_id] = int(ends[-1])
            return
        known = dict(zip(rows.tolist(), zip(piece.sequence.tolist(), ends.tolist(), strict=True), strict=True))
        for row in range(piece.first_row, piece.first_row + len(piece.good)):
            entry = int(entry_ids[row])
            if row not in known:
                error = damage(payloads[row].as_py(), stretch.segment, entry, stretch.tag)
                self._begin_gap(stretch, entry, error.message)
                continue
            begin, end = known[row]
            yield from self._gap_before(stretch, entry, begin)
            self._expected[ledger_id] = end

    def _gap_before(self, stretch: RecordStretch, entry: int, sequence: int) -> Iterator[RecordGap]:
        expected, missing = self._expected[stretch.ledger_id], self._missing.pop(stretch.ledger_id, None)
        if missing is not None and expected == sequence:
            return  # there were no records in what is lost, only marks
        if missing is None and (expected is None or expected >= sequence):
            return
        at, reason = missing or (stretch.at(entry), "nobody has them")
        yield RecordGap(stretch.stream, at, "lost", expected, sequence - 1, reason)


def _table(stretch: RecordStretch, piece: EnvelopeColumns, entries: pa.Table, entry_ids: Numbers) -> pa.Table:
    """The wanted records, with everything that is known of them."""
    chosen = _chosen(stretch, piece, entry_ids)
    row, slot = pa.array(piece.row), pa.array(piece.slot)
    total = len(row)
    ids = pa.array(entry_ids)
    texts = ids.cast(pa.string()).take(row)
    position = pc.binary_join_element_wise(f"{stretch.segment}", texts, slot.cast(pa.string()), "-")
    columns = {
        "stream": pa.repeat(stretch.stream, total),
        "position": pc.binary_join_element_wise(position, stretch.tag, "@"),
        "sequence": pa.array(piece.record_sequence),
        "timestamp": _times(piece.timestamp_ms),
        "key": piece.key,
        "txid": piece.txid,
        "payload": piece.payload,
        "segment": pa.repeat(pa.scalar(stretch.segment, pa.int64()), total),
        "ledger_id": pa.repeat(pa.scalar(stretch.ledger_id, pa.int64()), total),
        "entry_id": ids.take(row),
        "slot": slot.cast(pa.int32()),
        "timestamp_ms": pa.array(piece.timestamp_ms),
        "dedup_id": piece.dedup_id,
        "written_at": entries["written_at"].take(row),
    }
    table = pa.table(columns)
    return table if chosen is None else table.filter(pa.array(chosen))


def _chosen(stretch: RecordStretch, piece: EnvelopeColumns, entry_ids: Numbers) -> Flags | None:
    """Which of the records are wanted; ``None``: all of them."""
    if not len(piece.row):
        return None
    entry = entry_ids[piece.row]
    (first, slot), (last, behind) = stretch.begin, stretch.end
    if (int(entry[0]), int(piece.slot[0])) >= (first, slot) and (int(entry[-1]), int(piece.slot[-1])) < (last, behind):
        return None
    begun = (entry > first) | ((entry == first) & (piece.slot >= slot))
    found: Flags = begun & ((entry < last) | ((entry == last) & (piece.slot < behind)))
    return found


def _times(milliseconds: Numbers) -> pa.Array:
    fits = np.abs(milliseconds) <= _MOST_MS
    return pa.array(np.where(fits, milliseconds, 0) * 1000, mask=~fits).cast(_TIME)
