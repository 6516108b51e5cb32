"""Decodes entries of segments to records, one table of entries at a time.

``stream/records/columnar`` decodes the envelopes; this module adds positions and removes unwanted records. Damaged
envelopes, and missing sequence numbers between two envelopes, become gaps.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tallybook.core.errors import InvariantViolation
from tallybook.stream.catalog.head import Head
from tallybook.stream.position import Position
from tallybook.stream.records.columnar import EnvelopeColumns, Flags, Int64Array, damage, decode

from ..query.gaps import EntryGap
from .ranges import PlannedRecordRange, RecordGap, RecordGapKind

_TIME: Final = pa.timestamp("us", "UTC")
_MAX_MS: Final = (2**63 - 1) // 1000
"""Largest timestamp that Spark can represent; later ones become null."""


class RecordRows:
    """Decodes the records of one task.

    Args:
        planned_ranges: all that it reads.
        columns: the wanted columns; ``None``: all.
    """

    def __init__(self, planned_ranges: Sequence[PlannedRecordRange], columns: Collection[str] | None = None) -> None:
        self._columns = columns
        self._ranges_of: dict[int, list[PlannedRecordRange]] = {}
        for each in planned_ranges:
            self._ranges_of.setdefault(each.ledger_id, []).append(each)
        self._expected: dict[int, int | None] = {}
        """For each ledger, the sequence number of its next record, if known."""
        self._missing: dict[int, tuple[Position, str]] = {}
        """For each ledger, the start and the reason of a gap whose end is not known yet."""

    def lost(self, gap: EntryGap, head: Head | None) -> Iterator[RecordGap]:
        """Handle lost entries.

        Args:
            head: current head of their stream, if their ledger was deleted.
        """
        planned_range = self.planned_range(gap.ledger_id, gap.first)
        kind: RecordGapKind = "lost"
        if gap.kind == "trimmed" and (head is None or head.deleting):
            kind = "deleted"
        elif gap.kind == "trimmed" and head is not None and head.truncation.segment > planned_range.segment:
            kind = "truncated"
        if kind != "lost":
            at, first = planned_range.at(gap.first), self._next(planned_range, gap.first)
            yield RecordGap(planned_range.stream, at, kind, first, None, gap.reason)
            return
        self._begin_gap(planned_range, gap.first, gap.reason)

    def records(self, entries: pa.Table) -> Iterator[pa.Table | RecordGap]:
        """The records of consecutive entries, with the gaps between them.

        Args:
            entries: entries of one ledger, with the columns of an archive object.
        """
        entry_ids = entries["entry_id"].to_numpy()
        planned_range = self.planned_range(entries["ledger_id"][0].as_py(), int(entry_ids[0]))
        payloads = entries["payload"].combine_chunks()
        if isinstance(payloads, pa.ChunkedArray):
            payloads = pa.concat_arrays(payloads.chunks)
        self._next(planned_range, int(entry_ids[0]))
        for piece in decode(payloads):
            yield from self._gaps(planned_range, piece, entry_ids, payloads)
            table = _table(planned_range, piece, entries, entry_ids, self._columns)
            if table.num_rows:
                yield table

    def rest(self) -> Iterator[RecordGap]:
        """Gaps not followed by any record."""
        for ledger_id, (at, reason) in self._missing.items():
            planned_range = self.planned_range(ledger_id, at.entry)
            yield RecordGap(planned_range.stream, at, "lost", self._expected.get(ledger_id), None, reason)
        self._missing.clear()

    def planned_range(self, ledger_id: int, entry: int) -> PlannedRecordRange:
        """The planned range of an entry."""
        for each in self._ranges_of.get(ledger_id, ()):
            if each.first <= entry <= each.last:
                return each
        raise InvariantViolation(f"entry {entry} of ledger {ledger_id} was not asked for")

    def _next(self, planned_range: PlannedRecordRange, entry: int) -> int | None:
        """The sequence number of the next record from an entry on, if known."""
        if entry == 0:
            self._expected.setdefault(planned_range.ledger_id, planned_range.sequence)
        return self._expected.setdefault(planned_range.ledger_id, None)

    def _begin_gap(self, planned_range: PlannedRecordRange, entry: int, reason: str) -> None:
        self._next(planned_range, entry)
        self._missing.setdefault(planned_range.ledger_id, (planned_range.at(entry), reason))

    def _gaps(
        self, planned_range: PlannedRecordRange, piece: EnvelopeColumns, entry_ids: Int64Array, payloads: pa.Array
    ) -> Iterator[RecordGap]:
        """The gaps before and between these envelopes."""
        ledger_id, rows = planned_range.ledger_id, piece.first_row + np.flatnonzero(piece.good)
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
                error = damage(payloads[row].as_py(), planned_range.segment, entry, planned_range.tag)
                self._begin_gap(planned_range, entry, error.message)
                continue
            begin, end = known[row]
            yield from self._gap_before(planned_range, entry, begin)
            self._expected[ledger_id] = end

    def _gap_before(self, planned_range: PlannedRecordRange, entry: int, sequence: int) -> Iterator[RecordGap]:
        expected, missing = self._expected[planned_range.ledger_id], self._missing.pop(planned_range.ledger_id, None)
        if missing is not None and expected == sequence:
            return  # the lost entries had no records, only marks
        if missing is None and (expected is None or expected >= sequence):
            return
        at, reason = missing or (planned_range.at(entry), "no copy has them")
        yield RecordGap(planned_range.stream, at, "lost", expected, sequence - 1, reason)


def _table(
    planned_range: PlannedRecordRange,
    piece: EnvelopeColumns,
    entries: pa.Table,
    entry_ids: Int64Array,
    wanted: Collection[str] | None,
) -> pa.Table:
    """The wanted records with the wanted columns."""
    chosen = _chosen(planned_range, piece, entry_ids)
    row, slot, ids = pa.array(piece.row), pa.array(piece.slot), pa.array(entry_ids)

    def position() -> pa.Array:
        texts = ids.cast(pa.string()).take(row)
        place = pc.binary_join_element_wise(f"{planned_range.segment}", texts, slot.cast(pa.string()), "-")
        return pc.binary_join_element_wise(place, planned_range.tag, "@")

    columns: dict[str, Callable[[], pa.Array]] = {
        "stream": lambda: pa.repeat(planned_range.stream, len(row)),
        "position": position,
        "sequence": lambda: pa.array(piece.record_sequence),
        "timestamp": lambda: _times(piece.timestamp_ms),
        "key": lambda: piece.key,
        "txid": lambda: piece.txid,
        "payload": lambda: piece.payload,
        "segment": lambda: pa.repeat(pa.scalar(planned_range.segment, pa.int64()), len(row)),
        "ledger_id": lambda: pa.repeat(pa.scalar(planned_range.ledger_id, pa.int64()), len(row)),
        "entry_id": lambda: ids.take(row),
        "slot": lambda: slot.cast(pa.int32()),
        "timestamp_ms": lambda: pa.array(piece.timestamp_ms),
        "dedup_id": lambda: piece.dedup_id,
        "written_at": lambda: entries["written_at"].take(row),
    }
    table = pa.table({name: make() for name, make in columns.items() if wanted is None or name in wanted})
    return table if chosen is None else table.filter(pa.array(chosen))


def _chosen(planned_range: PlannedRecordRange, piece: EnvelopeColumns, entry_ids: Int64Array) -> Flags | None:
    """Flags of the wanted records; ``None``: all of them."""
    if not len(piece.row):
        return None
    entry = entry_ids[piece.row]
    (first, slot), (last, behind) = planned_range.begin, planned_range.end
    if (int(entry[0]), int(piece.slot[0])) >= (first, slot) and (int(entry[-1]), int(piece.slot[-1])) < (last, behind):
        return None
    begun = (entry > first) | ((entry == first) & (piece.slot >= slot))
    found: Flags = begun & ((entry < last) | ((entry == last) & (piece.slot < behind)))
    return found


def _times(milliseconds: Int64Array) -> pa.Array:
    fits = np.abs(milliseconds) <= _MAX_MS
    return pa.array(np.where(fits, milliseconds, 0) * 1000, mask=~fits).cast(_TIME)
