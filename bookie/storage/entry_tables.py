"""Entry tables: headers and tables of stored batches from which single entries were read.

A batch has one checksum over all of its bytes, so the first read of an entry reads and checks all of them. The table,
with lengths and checksums of the entries, is kept: with it, a later read of any entry reads that entry only, and checks
it by the entry's own checksum. Tables of 1 KiB entries need a hundredth of the memory of their batches, so they cover
many more of them than the read cache does.
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

TABLES_SHARE: Final = 8
"""Entry tables get one part in this many of the memory for the read cache."""

MIN_SAVING: Final = 8
"""No table is kept, and no entry read alone, unless the batch is at least this many times as large."""

TABLE_OVERHEAD_BYTES: Final = 1 * KIB
"""Cost of a table besides its bytes: header, row and places in the collections."""

READ_COST_BYTES: Final = 16 * KIB
"""Reading an entry from the device takes as long as so many more bytes of a batch."""


class EntryTable:
    """Header and table of one stored batch, which were verified with it."""

    __slots__ = ("_header", "_read_bytes", "_table", "last_read", "row")

    def __init__(self, row: IndexRow, batch: Buffer, last_read: int) -> None:
        self.row = row
        self.last_read = last_read
        """The last entry that was read of the batch."""
        self._header = decode_header(batch)
        end = BATCH_HEADER_BYTES + self._header.entry_count * BATCH_TABLE_ROW_BYTES
        self._table = bytes(memoryview(batch)[:end])
        self._read_bytes = 0
        """Cost of the entries that were read from the device alone."""

    @property
    def size_bytes(self) -> int:
        """Length of header and table."""
        return len(self._table)

    @property
    def held_bytes(self) -> int:
        """Memory, overhead included."""
        return len(self._table) + TABLE_OVERHEAD_BYTES

    def place(self, entry_id: int) -> EntryPlace:
        """The place of an entry in the batch."""
        return entry_place(self._table, self._header, entry_id)

    def location(self, place: EntryPlace) -> Location:
        """Where the payload of that entry is."""
        batch = self.row.location
        return Location(batch.log_id, batch.offset + place.offset, place.size, 1)

    def saves(self, place: EntryPlace) -> bool:
        """Whether to read that entry alone, rather than the batch."""
        return place.size * MIN_SAVING <= self.row.location.size

    def count_device_read(self, place: EntryPlace) -> bool:
        """Count that the device must be asked for that entry; ``False`` once the whole batch is the better request.

        By then entries have cost as much as the batch does, which is cached and costs nothing more.
        """
        self._read_bytes += place.size + READ_COST_BYTES
        return self._read_bytes < self.row.location.size

    def entry(self, entry_id: int, place: EntryPlace, payload: bytes) -> EntrySlice | None:
        """The entry, or ``None`` if this is not its payload."""
        header = self._header
        if len(payload) != place.size or entry_crc(header.ledger_id, entry_id, payload) != place.crc:
            return None
        return EntrySlice(header.ledger_id, entry_id, payload, place.crc, header.written_at_us, header.lac)


class EntryTables:
    """Entry tables by ledger and entry; the least recently used leaves first.

    Args:
        max_bytes: of all tables, overhead included; 0: none is kept.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.held_bytes = 0
        self.hits = 0
        """Entries read alone."""
        self._tables: OrderedDict[BatchStart, EntryTable] = OrderedDict()
        self._firsts = FirstEntries()

    def find(self, ledger_id: int, entry_id: int) -> EntryTable | None:
        """The table of the batch with this entry."""
        start = self._firsts.at_or_before(ledger_id, entry_id)
        if start is None:
            return None
        table = self._tables[start]
        if entry_id > table.row.last_entry_id:
            return None
        self._tables.move_to_end(start)
        return table

    def put(self, row: IndexRow, batch: Buffer, entry_id: int) -> None:
        """Keep the table of a batch that was read and verified, for one entry of it."""
        start = row.ledger_id, row.first_entry_id
        self.discard(start)
        table = EntryTable(row, batch, entry_id)
        if table.held_bytes > self.max_bytes or table.size_bytes * MIN_SAVING > len(batch):
            return
        self._tables[start] = table
        self._firsts.add(*start)
        self.held_bytes += table.held_bytes
        while self.held_bytes > self.max_bytes:
            self.discard(next(iter(self._tables)))

    def discard(self, start: BatchStart) -> None:
        """Drop the table of one batch, if there is one."""
        table = self._tables.pop(start, None)
        if table is not None:
            self._firsts.discard(*start)
            self.held_bytes -= table.held_bytes

    def forget(self, ledger_id: int) -> None:
        """Drop the tables of a ledger."""
        for first in self._firsts.take_ledger(ledger_id):
            self.held_bytes -= self._tables.pop((ledger_id, first)).held_bytes


METRICS: Final = (
    PartMetrics[EntryTables]()
    .gauge(
        "entry_tables_bytes",
        "tallybook_bookie_entry_tables_bytes",
        "Bytes of headers and tables kept of stored batches, to read single entries of them.",
        lambda tables: tables.held_bytes,
    )
    .gauge(
        "max_entry_tables_bytes",
        "tallybook_bookie_max_entry_tables_bytes",
        "Capacity for headers and tables of stored batches.",
        lambda tables: tables.max_bytes,
    )
    .counter(
        "lone_entries_total",
        "tallybook_bookie_lone_entries_total",
        "Entries read from entry logs without the rest of their batches.",
        lambda tables: tables.hits,
    )
)
