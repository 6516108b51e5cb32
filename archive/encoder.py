"""Encodes closed ledgers into one archive object, in little more memory than a row group.

    begin(ledger 7) add(batch) add(batch) ... end()   begin(ledger 9) ... end()   finish()
            |                                                                        |
            v  take(): bytes, whenever a row group is full                           v
    PAR1 | row group | row group | ... | page tables, batch tables, directory | footer | PAR1

The file is plain Parquet. Our index lies between its last row group and its footer, which points to it; other readers
ignore it. A row group ends between two batches, so no batch spans two.

Pure computation: no file, no clock. It is slow (milliseconds per MiB), so drivers run it on threads: ``take`` on one
thread may encode a full row group while ``add`` on another collects the next.
"""

from __future__ import annotations

import hashlib
from collections import deque
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from crc32c import crc32c

from tallybook.core.batch import BatchHeader
from tallybook.core.buffers import Buffer
from tallybook.core.errors import InvalidArgument, InvariantViolation, check
from tallybook.core.limits import KIB, MAX_BATCH_BYTES, MIB
from tallybook.metadata.ledger.archived import IndexPart

from .format.batch_rows import BatchAttributes, PayloadBuffer, RowGroupBuilder, attributes_of
from .format.index_codec import (
    MAX_ROW_GROUP_ROWS,
    ArchivedLedger,
    EncodedPart,
    IndexRoot,
    RowGroup,
    Run,
    batches_message,
    directory_message,
    encode_part,
    pages_message,
)
from .format.page_scan import PageScan
from .format.row_groups import footer_keys
from .format.schema import PAYLOAD_COLUMN, SCHEMA, SORTING_COLUMNS

PAGE_BYTES: Final = 64 * KIB
"""Payload bytes of a page before compression: reading one entry fetches one page."""

_COMPRESSION: Final = {
    "ledger_id": "zstd",
    "entry_id": "zstd",
    "written_at": "zstd",
    "crc32c": "none",  # nothing in it repeats
    "payload": "zstd",
}

_MAX_PAGE_STEP: Final = 16
"""Rows after which the Parquet writer checks whether a page is full. Checking every row costs up to 3.6 times the CPU
for small entries; checking every 16th lets pages of 4 KiB entries grow to twice their size."""


@dataclass(frozen=True, slots=True)
class EncoderOptions:
    """Layout of objects."""

    row_group_bytes: int = 8 * MIB
    """Approximate payload bytes of a row group: the unit that Spark reads; an encoder keeps three in memory."""
    row_group_rows: int = MAX_ROW_GROUP_ROWS
    page_bytes: int = PAGE_BYTES
    compression_level: int = 1
    """zstd level."""


@dataclass(frozen=True, slots=True)
class EncodedObject:
    """Result of an encoder, for the receipt. ``sha256`` covers all bytes of the object."""

    directory: IndexRoot
    directory_part: IndexPart
    object_bytes: int
    sha256: bytes


@dataclass(slots=True)
class _OpenRun:
    row_group: int
    first_row: int
    first_entry_id: int
    rows: int = 0
    batches: list[BatchAttributes] = field(default_factory=list)


class _SealedRun(NamedTuple):
    """A run whose batches are complete: only their encoded table is kept, a few bytes per batch."""

    row_group: int
    first_row: int
    first_entry_id: int
    rows: int
    batches: EncodedPart


@dataclass(slots=True)
class _OpenLedger:
    ledger_id: int
    metadata: bytes
    entries: int = 0
    payload_bytes: int = 0
    rolling_crc: int = 0
    run: _OpenRun | None = None
    closed_runs: list[_SealedRun] = field(default_factory=list)

    def close_run(self) -> None:
        run, self.run = self.run, None
        if run is not None:
            table = encode_part(batches_message(run.batches))
            self.closed_runs.append(_SealedRun(run.row_group, run.first_row, run.first_entry_id, run.rows, table))

    def without_runs(self) -> ArchivedLedger:
        return ArchivedLedger(self.ledger_id, self.metadata, self.entries, self.payload_bytes, self.rolling_crc, ())


class _Sink:
    """File object for the Parquet writer: counts and hashes bytes, and keeps them until they are taken."""

    closed = False

    def __init__(self) -> None:
        self.written = 0
        self.sha256 = hashlib.sha256()
        self.chunks: list[bytes] = []
        self.walk: PageScan | None = None

    def write(self, data: Buffer) -> int:
        chunk = bytes(data)
        self.sha256.update(chunk)
        self.chunks.append(chunk)
        self.written += len(chunk)
        if self.walk is not None:
            self.walk.feed(chunk)
        return len(chunk)

    def tell(self) -> int:
        return self.written

    def flush(self) -> None:
        """No-op: bytes are not buffered."""

    def close(self) -> None:
        """No-op."""

    def writable(self) -> bool:
        return True

    def readable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return False


class ObjectEncoder:
    """Encodes one object.

    Args:
        object_id: a uuid that no other object has.
        created_at_ms: milliseconds since the epoch, for people.
    """

    def __init__(self, object_id: str, created_at_ms: int, options: EncoderOptions | None = None) -> None:
        self._object_id = object_id
        self._created_at_ms = created_at_ms
        self._options = options or EncoderOptions()
        self._sink = _Sink()
        self._file = pa.PythonFile(self._sink, mode="w")
        self._writer: pq.ParquetWriter | None = None
        self._free_buffers: list[PayloadBuffer] = []
        """Buffers of encoded row groups, for reuse."""
        self._gathered = RowGroupBuilder(self._buffer())
        self._full: deque[RowGroupBuilder] = deque()
        """Row groups to be encoded."""
        self._cut_groups = 0
        self._groups: list[tuple[int, EncodedPart]] = []
        """Row count and page table of each encoded row group."""
        self._ledger: _OpenLedger | None = None
        self._ledgers: list[_OpenLedger] = []

    def begin(self, ledger_id: int, metadata: bytes) -> None:
        """Begin a ledger: the next batches belong to it. ``metadata`` is encoded as in the metadata store.

        Raises:
            InvalidArgument: ledgers are not in ascending order of ids.
        """
        check(self._ledger is None, "a ledger begins before the one before it has ended")
        if self._ledgers and ledger_id <= self._ledgers[-1].ledger_id:
            raise InvalidArgument(
                f"ledger {ledger_id} cannot follow ledger {self._ledgers[-1].ledger_id}: ids must ascend"
            )
        self._ledger = _OpenLedger(ledger_id, metadata)

    def add(self, batch: Buffer, header: BatchHeader) -> None:
        """Add the next batch, verified.

        Raises:
            InvalidArgument: it belongs to another ledger, or does not follow the previous batch.
        """
        ledger = self._open_ledger()
        if (header.ledger_id, header.first_entry_id) != (ledger.ledger_id, ledger.entries):
            raise InvalidArgument(
                f"ledger {ledger.ledger_id} must continue with entry {ledger.entries}, "
                f"not with entry {header.first_entry_id} of ledger {header.ledger_id}"
            )
        if ledger.run is None:
            ledger.run = _OpenRun(self._cut_groups, self._gathered.rows, header.first_entry_id)
        ledger.run.batches.append(attributes_of(batch, header))
        ledger.run.rows += header.entry_count
        ledger.entries += header.entry_count
        ledger.payload_bytes += header.payload_bytes
        ledger.rolling_crc = crc32c(batch, ledger.rolling_crc)
        self._gathered.add(batch, header)
        full = self._gathered.payload_bytes >= self._options.row_group_bytes
        if full or self._gathered.rows >= self._options.row_group_rows:
            self._cut()

    @property
    def row_groups(self) -> int:
        """Number of full row groups so far. Each stays in memory until it is taken."""
        return self._cut_groups

    def end(self) -> ArchivedLedger:
        """End the ledger. The result has no runs yet: ``finish`` adds them."""
        ledger = self._open_ledger()
        ledger.close_run()
        self._ledgers.append(ledger)
        self._ledger = None
        return ledger.without_runs()

    def take(self) -> list[bytes]:
        """Encode the full row groups; returns the bytes written since the last call."""
        while self._full:
            self._encode(self._full.popleft())
        chunks, self._sink.chunks = self._sink.chunks, []
        return chunks

    def finish(self) -> EncodedObject:
        """Write the index and the footer; call ``take`` for the last bytes afterwards."""
        check(self._ledger is None, "the last ledger has not ended")
        self._cut()
        while self._full:
            self._encode(self._full.popleft())
        writer = self._writer or self._open_writer(0)
        groups = tuple(RowGroup(rows, self._put(pages)) for rows, pages in self._groups)
        ledgers = tuple(
            replace(ledger.without_runs(), runs=tuple(self._put_run(run) for run in ledger.closed_runs))
            for ledger in self._ledgers
        )
        directory = IndexRoot(self._object_id, self._created_at_ms, groups, ledgers)
        part = self._put(encode_part(directory_message(directory)))
        writer.add_key_value_metadata(footer_keys(self._object_id, part))
        writer.close()
        return EncodedObject(directory, part, self._sink.written, self._sink.sha256.digest())

    def _open_ledger(self) -> _OpenLedger:
        if self._ledger is None:
            raise InvariantViolation("no ledger was started")
        return self._ledger

    def _open_writer(self, largest_entry_bytes: int) -> pq.ParquetWriter:
        # One value for the whole file, derived from the entries of its first row group.
        step = max(1, min(_MAX_PAGE_STEP, self._options.page_bytes // max(1, largest_entry_bytes)))
        return pq.ParquetWriter(
            self._file,
            SCHEMA,
            compression=_COMPRESSION,
            compression_level={
                name: self._options.compression_level for name, codec in _COMPRESSION.items() if codec != "none"
            },
            use_dictionary=["ledger_id", "written_at"],
            column_encoding={"entry_id": "DELTA_BINARY_PACKED"},
            sorting_columns=SORTING_COLUMNS,
            # Statistics of payloads would copy the largest and the smallest one into the footer.
            write_statistics=["ledger_id", "entry_id", "written_at"],
            write_page_index=True,
            write_page_checksum=True,
            data_page_size=self._options.page_bytes,
            write_batch_size=step,
        )

    def _put_run(self, run: _SealedRun) -> Run:
        return Run(run.row_group, run.first_row, run.rows, run.first_entry_id, self._put(run.batches))

    def _put(self, sealed: EncodedPart) -> IndexPart:
        """Write one part of the index, past the Parquet writer, which asks the file for its position."""
        part = sealed.at(self._sink.written)
        self._file.write(sealed.stored)
        return part

    def _cut(self) -> None:
        """End the current row group."""
        if not self._gathered.rows:
            return
        self._full.append(self._gathered)
        self._gathered = RowGroupBuilder(self._buffer())
        self._cut_groups += 1
        if self._ledger is not None:
            self._ledger.close_run()

    def _buffer(self) -> PayloadBuffer:
        # The batch that fills a row group may exceed its size.
        return (
            self._free_buffers.pop()
            if self._free_buffers
            else PayloadBuffer(self._options.row_group_bytes + MAX_BATCH_BYTES)
        )

    def _encode(self, gathered: RowGroupBuilder) -> None:
        rows = gathered.rows
        if self._writer is None:
            self._writer = self._open_writer(gathered.largest_entry_bytes())
        walk = self._sink.walk = PageScan(self._sink.written, rows, PAYLOAD_COLUMN)
        self._writer.write_table(gathered.table(), row_group_size=rows)
        self._sink.walk = None
        check(walk.complete, f"a row group of {rows} rows was written, and not all of its pages were seen")
        self._groups.append((rows, encode_part(pages_message(walk.pages, rows))))
        self._free_buffers.append(gathered.buffer)
