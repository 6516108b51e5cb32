"""Headers and tables of stored batches from which single entries were read.

A batch has one checksum over all of its bytes, so the first read of an entry reads and checks all of them. What comes
before the payload is kept: with it, a later read of any entry reads that entry only, and checks it by the entry's own
checksum. Fronts of 1 KiB entries need a hundredth of the memory of their batches, so they cover many more of them.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from tallybook.core.batch import EntryPlace, EntrySlice, decode_header, entry_crc, entry_place
from tallybook.core.buffers import Buffer
from tallybook.core.limits import BATCH_HEADER_BYTES, BATCH_TABLE_ROW_BYTES, KIB
from tallybook.runtime.metrics.part_metrics import PartMetrics

from .first_entries import BatchStart, FirstEntries
from .location import IndexRow, Location

FRONTS_SHARE: Final = 8
"""Fronts get one part in this many of the memory for the read cache."""

MIN_BATCH_BYTES: Final = 8 * KIB
"""A smaller batch is read as fast as one entry of it."""

FRONT_OVERHEAD_BYTES: Final = 1 * KIB
"""Cost of a front besides its bytes: header, row and places in the tables."""


class BatchFront:
    """Header and table of one stored batch, which were verified with it."""

    __slots__ = ("_front", "_header", "last_read", "row")

    def __init__(self, row: IndexRow, batch: Buffer, last_read: int) -> None:
        self.row = row
        self.last_read = last_read
        """The last entry that was read of the batch."""
        self._header = decode_header(batch)
        end = BATCH_HEADER_BYTES + self._header.entry_count * BATCH_TABLE_ROW_BYTES
        self._front = bytes(memoryview(batch)[:end])

    @property
    def held_bytes(self) -> int:
        """Memory, overhead included."""
        return len(self._front) + FRONT_OVERHEAD_BYTES

    def place(self, entry_id: int) -> EntryPlace:
        """The place of an entry in the batch."""
        return entry_place(self._front, self._header, entry_id)

    def location(self, place: EntryPlace) -> Location:
        """Where the payload of that entry is."""
        batch = self.row.location
        return Location(batch.log_id, batch.offset + place.offset, place.size, 1)

    def entry(self, entry_id: int, place: EntryPlace, payload: bytes) -> EntrySlice | None:
        """The entry, or ``None`` if this is not its payload."""
        header = self._header
        if len(payload) != place.size or entry_crc(header.ledger_id, entry_id, payload) != place.crc:
            return None
        return EntrySlice(header.ledger_id, entry_id, payload, place.crc, header.written_at_us, header.lac)


class BatchFronts:
    """Fronts by ledger and entry; the least recently used leaves first.

    Args:
        max_bytes: of all fronts, overhead included; 0: none is kept.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.held_bytes = 0
        self.hits = 0
        """Entries read alone."""
        self._fronts: OrderedDict[BatchStart, BatchFront] = OrderedDict()
        self._firsts = FirstEntries()

    def find(self, ledger_id: int, entry_id: int) -> BatchFront | None:
        """The front of the batch with this entry."""
        key = self._firsts.at_or_before(ledger_id, entry_id)
        if key is None:
            return None
        front = self._fronts[key]
        if entry_id > front.row.last_entry_id:
            return None
        self._fronts.move_to_end(key)
        return front

    def put(self, row: IndexRow, batch: Buffer, entry_id: int) -> None:
        """Keep the front of a batch that was read and verified, for one entry of it."""
        if len(batch) < MIN_BATCH_BYTES:
            return
        key = row.ledger_id, row.first_entry_id
        self.discard(key)
        front = BatchFront(row, batch, entry_id)
        if front.held_bytes > self.max_bytes:
            return
        self._fronts[key] = front
        self._firsts.add(*key)
        self.held_bytes += front.held_bytes
        while self.held_bytes > self.max_bytes:
            self.discard(next(iter(self._fronts)))

    def discard(self, key: BatchStart) -> None:
        """Drop the front of one batch, if there is one."""
        front = self._fronts.pop(key, None)
        if front is not None:
            self._firsts.discard(*key)
            self.held_bytes -= front.held_bytes

    def forget(self, ledger_id: int) -> None:
        """Drop the fronts of a ledger."""
        for first in self._firsts.take_ledger(ledger_id):
            self.held_bytes -= self._fronts.pop((ledger_id, first)).held_bytes


METRICS: Final = (
    PartMetrics[BatchFronts]()
    .gauge(
        "batch_fronts_bytes",
        "tallybook_bookie_batch_fronts_bytes",
        "Bytes of headers and tables kept of stored batches, to read single entries of them.",
        lambda fronts: fronts.held_bytes,
    )
    .gauge(
        "max_batch_fronts_bytes",
        "tallybook_bookie_max_batch_fronts_bytes",
        "Maximum bytes of these.",
        lambda fronts: fronts.max_bytes,
    )
    .counter(
        "batch_front_hits_total",
        "tallybook_bookie_batch_front_hits_total",
        "Entries read from entry logs without the rest of their batches.",
        lambda fronts: fronts.hits,
    )
)
