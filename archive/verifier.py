"""Verifies an archive object: reads it once from the first to the last byte and compares it with its receipt.

The Parquet library decodes each row group, as Spark will: it verifies the checksum of every page. Then every row is
compared with its batch, every batch with its writer's checksum, each page with its table, each row group with the
footer, each ledger with its number of entries, its length and the checksum over all its batches, and the object with
its SHA-256. Only an object that passes may become the only copy of a ledger.

Pure computation, with memory for a row group and no cost per entry. The index tables and the footer, which follow the
row groups, have to be read first.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from crc32c import crc32c

from tallybook.core.batch import encode_header
from tallybook.core.buffers import Buffer
from tallybook.core.errors import DamagedFile, InvalidArgument, check
from tallybook.core.limits import MIB
from tallybook.metadata.ledger.archived import IndexPart

from .format.batch_rows import BatchAttributes
from .format.index_codec import IndexRoot, Run
from .format.index_tables import BatchTable, PageTable
from .format.page_scan import IncompleteHeader, parse_page_header
from .format.row_groups import check_footer_keys, decode_row_group, extent_of
from .format.schema import PAYLOAD_COLUMN, SORTING_COLUMNS

_REST_BYTES: Final = 16 * MIB
"""Largest segment that is not a row group."""


class Segment(NamedTuple):
    """A range of an object. ``row_group`` is its number; ``None``: outside of row groups."""

    begin: int
    end: int
    row_group: int | None

    @property
    def size(self) -> int:
        """Length in bytes."""
        return self.end - self.begin


@dataclass(frozen=True, slots=True)
class VerifiedLedger:
    """Content of an object for one ledger, as read."""

    entries: int
    payload_bytes: int
    rolling_crc: int


@dataclass(slots=True)
class _Progress:
    """Running totals of one ledger."""

    entries: int = 0
    payload_bytes: int = 0
    rolling_crc: int = 0


class _Piece(NamedTuple):
    """A run of a row group, with its batches."""

    ledger_id: int
    run: Run
    batches: BatchTable


class ObjectVerifier:
    """Verifies one object, in the segments that ``segments`` returns.

    ``hash`` gets every segment, in order. ``row_group`` gets those that are row groups, and may run in parallel to
    ``hash`` on another thread.

    Args:
        directory: its directory.
        directory_part: position of the directory.
        footer: of the Parquet file.
        page_tables: one per row group.
        batch_tables: by ledger, one per run.
        place: name of the object in messages.

    Raises:
        DamagedFile: the footer does not point to the directory.
    """

    def __init__(
        self,
        directory: IndexRoot,
        directory_part: IndexPart,
        footer: pq.FileMetaData,
        page_tables: Sequence[PageTable],
        batch_tables: Sequence[Sequence[BatchTable]],
        object_bytes: int,
        place: str,
    ) -> None:
        check_footer_keys(footer, directory.object_id, directory_part, place)
        self._directory = directory
        self._footer = footer
        self._page_tables = page_tables
        self._object_bytes = object_bytes
        self._place = place
        self._pieces = _by_row_group(directory, batch_tables)
        self._progress = {ledger.ledger_id: _Progress() for ledger in directory.ledgers}
        self._sha256 = hashlib.sha256()
        self._hashed_bytes = 0
        self._next_group = 0

    def segments(self) -> list[Segment]:
        """The whole object, in order.

        Raises:
            DamagedFile: row groups overlap, or lie outside the object.
        """
        found: list[Segment] = []
        at = 0
        for number in range(len(self._directory.row_groups)):
            begin, end = extent_of(self._footer, number, self._object_bytes, self._place)
            if begin < at:
                raise DamagedFile(f"{self._place}: row group {number} overlaps the previous one")
            found += _cut(at, begin)
            found.append(Segment(begin, end, number))
            at = end
        return found + _cut(at, self._object_bytes)

    def hash(self, data: Buffer) -> None:
        """Hash the next segment."""
        self._sha256.update(data)
        self._hashed_bytes += len(data)

    def row_group(self, number: int, begin: int, data: Buffer) -> None:
        """Verify the next row group; its bytes begin at byte ``begin`` of the object.

        Raises:
            DamagedFile: it differs from what was archived.
        """
        check(number == self._next_group, f"row group {self._next_group} is to be checked, not {number}")
        self._next_group += 1
        self._check_pages(self._page_tables[number], number, begin, memoryview(data))
        rows = self._directory.row_groups[number].rows
        table = decode_row_group([(begin, data)], self._footer, number, rows, self._object_bytes, self._place)
        group = _Rows(table, number, self._place)
        group.check_footer(self._footer.row_group(number))
        for piece in self._pieces[number]:
            group.check_ids(piece)
            progress = self._progress[piece.ledger_id]
            progress.rolling_crc = group.check_batches(piece, progress.rolling_crc)
            progress.entries += piece.run.rows
            progress.payload_bytes += int(piece.batches.payload_bytes.sum())

    def end(self) -> tuple[bytes, dict[int, VerifiedLedger]]:
        """The SHA-256 of all bytes, and the content found for each ledger.

        Raises:
            DamagedFile: bytes are missing, or a ledger does not match the directory.
        """
        if self._next_group != len(self._directory.row_groups) or self._hashed_bytes != self._object_bytes:
            raise DamagedFile(f"{self._place}: it ends at byte {self._hashed_bytes}, before its last entry")
        found = {}
        for ledger in self._directory.ledgers:
            progress = self._progress[ledger.ledger_id]
            found[ledger.ledger_id] = VerifiedLedger(progress.entries, progress.payload_bytes, progress.rolling_crc)
            if found[ledger.ledger_id] != VerifiedLedger(ledger.entries, ledger.payload_bytes, ledger.rolling_crc):
                raise DamagedFile(f"{self._place}: ledger {ledger.ledger_id} does not match its directory")
        return self._sha256.digest(), found

    def _check_pages(self, table: PageTable, group: int, begin: int, data: memoryview) -> None:
        """Check that the page table lists every page of the payload column with its true length and rows."""
        column = self._footer.row_group(group).column(PAYLOAD_COLUMN)
        start = column.data_page_offset
        if (int(table.offsets[0]), int(table.offsets[-1])) != (start, start + column.total_compressed_size):
            raise DamagedFile(f"{self._place}: the page table of row group {group} does not match its payloads")
        for number in range(len(table)):
            page = table.page(number)
            stored = data[page.offset - begin : page.offset - begin + page.stored_bytes]
            if crc32c(stored) != page.crc:
                raise DamagedFile(f"{self._place}: the page at byte {page.offset} fails its checksum")
            try:
                header = parse_page_header(stored)
            except IncompleteHeader:
                raise DamagedFile(f"{self._place}: the page at byte {page.offset} has no header") from None
            if (header.header_bytes, header.body_bytes, header.raw_bytes, header.values) != (
                page.header_bytes, page.body_bytes, page.raw_bytes, table.rows_of(number)
            ):  # fmt: skip
                raise DamagedFile(f"{self._place}: the page at byte {page.offset} does not match its table")


class _Rows:
    """The columns of a row group."""

    def __init__(self, table: pa.Table, number: int, place: str) -> None:
        self._what = f"{place}: row group {number}"
        if any(column.null_count for column in table.columns):
            raise DamagedFile(f"{self._what} lacks values")
        # A row group is usually one chunk; combining a single chunk would copy it.
        columns = [c.chunk(0) if c.num_chunks == 1 else c.combine_chunks() for c in table.columns]
        self._ledger_ids, self._entry_ids = columns[0].to_numpy(), columns[1].to_numpy()
        self._times, self._crcs = columns[2].view(pa.int64()).to_numpy(), columns[3].to_numpy()
        _, offsets, payload = columns[4].buffers()
        rows, skipped = len(columns[4]), columns[4].offset
        self._offsets: npt.NDArray[np.int32] = np.frombuffer(offsets, np.int32)[skipped : skipped + rows + 1]
        self._payload = memoryview(payload) if payload is not None else memoryview(b"")

    def check_footer(self, group: pq.RowGroupMetaData) -> None:
        """Check the footer's statistics and sort order: readers skip row groups and rows by them."""
        if group.sorting_columns not in ((), SORTING_COLUMNS):
            raise DamagedFile(f"{self._what}: its footer declares a sort order that its rows do not have")
        for at, values in enumerate((self._ledger_ids, self._entry_ids, self._times)):
            said = group.column(at).statistics
            if said is not None and (said.min_raw, said.max_raw) != (values.min(), values.max()):
                raise DamagedFile(f"{self._what}: its footer says {said.min_raw} .. {said.max_raw} of column {at}")

    def check_ids(self, piece: _Piece) -> None:
        """Check ledger id, entry id and time of every row."""
        rows, run, batches = slice(piece.run.first_row, piece.run.first_row + piece.run.rows), piece.run, piece.batches
        ids = np.arange(run.first_entry_id, run.first_entry_id + run.rows)
        times = np.repeat(batches.written_at_us, np.diff(batches.first_ids))
        if (
            (self._ledger_ids[rows] != piece.ledger_id).any()
            or not np.array_equal(self._entry_ids[rows], ids)
            or not np.array_equal(self._times[rows], times)
        ):
            raise DamagedFile(f"{self._what}: its rows do not match ledger {piece.ledger_id}")

    def check_batches(self, piece: _Piece, rolling_crc: int) -> int:
        """Check each batch against its checksum; returns the checksum over all batches."""
        rows = slice(piece.run.first_row, piece.run.first_row + piece.run.rows)
        table = np.empty(2 * piece.run.rows, "<u4")
        table[0::2] = np.diff(self._offsets[piece.run.first_row : piece.run.first_row + piece.run.rows + 1])
        table[1::2] = self._crcs[rows]
        for number in range(len(piece.batches)):
            facts = piece.batches.facts(number)
            first = facts.first_entry_id - piece.run.first_entry_id
            begin, end = self._offsets[rows.start + first], self._offsets[rows.start + first + facts.entries]
            cells, payload = table[2 * first : 2 * (first + facts.entries)].tobytes(), self._payload[begin:end]
            header, crc = self._sealed(piece.ledger_id, facts, cells, payload)
            if crc != facts.crc or len(payload) != facts.payload_bytes:
                raise DamagedFile(
                    f"{self._what}: ledger {piece.ledger_id}: the batch from entry {facts.first_entry_id} differs from "
                    "what was archived"
                )
            for part in (header, cells, payload, facts.digest):
                rolling_crc = crc32c(part, rolling_crc)
        return rolling_crc

    def _sealed(self, ledger_id: int, facts: BatchAttributes, cells: bytes, payload: memoryview) -> tuple[bytes, int]:
        try:
            return encode_header(
                ledger_id,
                facts.first_entry_id,
                cells,
                payload,
                lac=facts.lac,
                ledger_length=facts.ledger_length,
                written_at_us=facts.written_at_us,
                digest=facts.digest,
            )
        except InvalidArgument as error:
            raise DamagedFile(f"{self._what}: {error.message}") from error


def _by_row_group(directory: IndexRoot, tables: Sequence[Sequence[BatchTable]]) -> list[list[_Piece]]:
    """The runs of each row group, in the order of their rows."""
    found: list[list[_Piece]] = [[] for _ in directory.row_groups]
    for ledger, of_ledger in zip(directory.ledgers, tables, strict=True):
        for run, table in zip(ledger.runs, of_ledger, strict=True):
            found[run.row_group].append(_Piece(ledger.ledger_id, run, table))
    return found


def _cut(begin: int, end: int) -> list[Segment]:
    return [Segment(at, min(at + _REST_BYTES, end), None) for at in range(begin, end, _REST_BYTES)]
