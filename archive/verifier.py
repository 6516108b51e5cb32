"""Reads a whole object once, from its first byte to its last, and tells whether it is what its receipt says.

    segments()                      the object, cut at its row groups
    hash(bytes)                     every segment, in order
    row_group(number, bytes)        those that are row groups; beside ``hash``, on another thread, if the driver likes

A row group is decoded by Parquet itself, as Spark will decode it: the checksum of every page is verified there. Then
every row is compared with the batch that it came from, every batch with the checksum its writer gave it, each page
with the table that finds it, each row group with what the footer says of it, each ledger with its number of entries,
its length and the checksum over all of its batches, and the object with its SHA-256. Only an object that passes may
ever become the only copy of a ledger.

Pure computation, in memory for a row group, and nothing per entry. The tables of the index and the footer, which lie
behind the row groups, have to be read first.
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

from tallybook.core.batch import Buffer, seal_columns
from tallybook.core.errors import DamagedFile, InvalidArgument, check
from tallybook.core.limits import MIB
from tallybook.metadata.archived import IndexPart

from .batch_rows import BatchFacts
from .index_codec import Directory, Run
from .page_header import IncompleteHeader, parse_page_header
from .row_groups import check_footer_keys, decode_row_group, extent_of
from .schema import PAYLOAD_COLUMN, SORTING_COLUMNS
from .tables import BatchTable, PageTable

_REST_BYTES: Final = 16 * MIB
"""Largest segment that is no row group."""


class Segment(NamedTuple):
    """A stretch of an object. ``row_group`` is its number, ``None`` for what lies around row groups."""

    begin: int
    end: int
    row_group: int | None

    @property
    def size(self) -> int:
        """In bytes."""
        return self.end - self.begin


@dataclass(frozen=True, slots=True)
class Found:
    """What an object holds of a ledger, as read."""

    entries: int
    payload_bytes: int
    rolling_crc: int


@dataclass(slots=True)
class _Progress:
    """One ledger, as far as it has been read."""

    entries: int = 0
    payload_bytes: int = 0
    rolling_crc: int = 0


class _Piece(NamedTuple):
    """A run of a row group, and its batches."""

    ledger_id: int
    run: Run
    batches: BatchTable


class ObjectCheck:
    """Checks one object.

    Args:
        directory: its directory.
        directory_part: where it lies.
        footer: of the Parquet file.
        page_tables: one for each row group.
        batch_tables: by ledger, one for each of its runs.
        place: names the object in messages.

    Raises:
        DamagedFile: the footer does not point at the directory.
    """

    def __init__(
        self,
        directory: Directory,
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
            DamagedFile: row groups are not one behind the other within it.
        """
        found: list[Segment] = []
        at = 0
        for number in range(len(self._directory.row_groups)):
            begin, end = extent_of(self._footer, number, self._object_bytes, self._place)
            if begin < at:
                raise DamagedFile(f"{self._place}: row group {number} begins within the one before")
            found += _cut(at, begin)
            found.append(Segment(begin, end, number))
            at = end
        return found + _cut(at, self._object_bytes)

    def hash(self, data: Buffer) -> None:
        """The next segment."""
        self._sha256.update(data)
        self._hashed_bytes += len(data)

    def row_group(self, number: int, begin: int, data: Buffer) -> None:
        """The next row group; its bytes begin at byte ``begin`` of the object.

        Raises:
            DamagedFile: it is not what was archived.
        """
        check(number == self._next_group, f"row group {self._next_group} is to be checked, not {number}")
        self._next_group += 1
        self._check_pages(self._page_tables[number], number, begin, memoryview(data))
        rows = self._directory.row_groups[number].rows
        table = decode_row_group(data, begin, self._footer, number, rows, self._object_bytes, self._place)
        group = _Rows(table, number, self._place)
        group.check_footer(self._footer.row_group(number))
        for piece in self._pieces[number]:
            group.check_ids(piece)
            progress = self._progress[piece.ledger_id]
            progress.rolling_crc = group.check_batches(piece, progress.rolling_crc)
            progress.entries += piece.run.rows
            progress.payload_bytes += int(piece.batches.payload_bytes.sum())

    def end(self) -> tuple[bytes, dict[int, Found]]:
        """The SHA-256 of all bytes, and what was found of each ledger.

        Raises:
            DamagedFile: the object ended before its last byte, or a ledger is not what the directory says.
        """
        if self._next_group != len(self._directory.row_groups) or self._hashed_bytes != self._object_bytes:
            raise DamagedFile(f"{self._place}: it ends at byte {self._hashed_bytes}, before its last entry")
        found = {}
        for ledger in self._directory.ledgers:
            progress = self._progress[ledger.ledger_id]
            found[ledger.ledger_id] = Found(progress.entries, progress.payload_bytes, progress.rolling_crc)
            if found[ledger.ledger_id] != Found(ledger.entries, ledger.payload_bytes, ledger.rolling_crc):
                raise DamagedFile(f"{self._place}: ledger {ledger.ledger_id} is not what its directory says")
        return self._sha256.digest(), found

    def _check_pages(self, table: PageTable, group: int, begin: int, data: memoryview) -> None:
        """The page table finds the pages of the payload column, every one, by its true length and rows."""
        column = self._footer.row_group(group).column(PAYLOAD_COLUMN)
        start = column.data_page_offset
        if (int(table.offsets[0]), int(table.offsets[-1])) != (start, start + column.total_compressed_size):
            raise DamagedFile(f"{self._place}: the page table of row group {group} is not that of its payloads")
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
                raise DamagedFile(f"{self._place}: the page at byte {page.offset} is not what its table says")


class _Rows:
    """The columns of a row group."""

    def __init__(self, table: pa.Table, number: int, place: str) -> None:
        self._what = f"{place}: row group {number}"
        if any(column.null_count for column in table.columns):
            raise DamagedFile(f"{self._what} lacks values")
        # One chunk is what a row group comes in, and joining one with nothing would copy it.
        columns = [c.chunk(0) if c.num_chunks == 1 else c.combine_chunks() for c in table.columns]
        self._ledger_ids, self._entry_ids = columns[0].to_numpy(), columns[1].to_numpy()
        self._times, self._crcs = columns[2].view(pa.int64()).to_numpy(), columns[3].to_numpy()
        _, offsets, payload = columns[4].buffers()
        rows, skipped = len(columns[4]), columns[4].offset
        self._offsets: npt.NDArray[np.int32] = np.frombuffer(offsets, np.int32)[skipped : skipped + rows + 1]
        self._payload = memoryview(payload) if payload is not None else memoryview(b"")

    def check_footer(self, group: pq.RowGroupMetaData) -> None:
        """The footer's statistics and sort order are true: by them, readers pass over row groups and rows."""
        if group.sorting_columns not in ((), SORTING_COLUMNS):
            raise DamagedFile(f"{self._what}: its footer declares a sort order that its rows do not have")
        for at, values in enumerate((self._ledger_ids, self._entry_ids, self._times)):
            said = group.column(at).statistics
            if said is not None and (said.min_raw, said.max_raw) != (values.min(), values.max()):
                raise DamagedFile(f"{self._what}: its footer says {said.min_raw} .. {said.max_raw} of column {at}")

    def check_ids(self, piece: _Piece) -> None:
        """Every row has the ledger, the id and the time of the entry that it is."""
        rows, run, batches = slice(piece.run.first_row, piece.run.first_row + piece.run.rows), piece.run, piece.batches
        ids = np.arange(run.first_entry_id, run.first_entry_id + run.rows)
        times = np.repeat(batches.written_at_us, np.diff(batches.first_ids))
        if (
            (self._ledger_ids[rows] != piece.ledger_id).any()
            or not np.array_equal(self._entry_ids[rows], ids)
            or not np.array_equal(self._times[rows], times)
        ):
            raise DamagedFile(f"{self._what}: its rows are not those of ledger {piece.ledger_id}")

    def check_batches(self, piece: _Piece, rolling_crc: int) -> int:
        """Put together what a checksum was made of, batch by batch; return the checksum over all of them."""
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
                    f"{self._what}: ledger {piece.ledger_id}: the batch from entry {facts.first_entry_id} is not what "
                    "was archived"
                )
            for part in (header, cells, payload, facts.digest):
                rolling_crc = crc32c(part, rolling_crc)
        return rolling_crc

    def _sealed(self, ledger_id: int, facts: BatchFacts, cells: bytes, payload: memoryview) -> tuple[bytes, int]:
        try:
            return seal_columns(
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


def _by_row_group(directory: Directory, tables: Sequence[Sequence[BatchTable]]) -> list[list[_Piece]]:
    """The runs of each row group, in the order of their rows."""
    found: list[list[_Piece]] = [[] for _ in directory.row_groups]
    for ledger, of_ledger in zip(directory.ledgers, tables, strict=True):
        for run, table in zip(ledger.runs, of_ledger, strict=True):
            found[run.row_group].append(_Piece(ledger.ledger_id, run, table))
    return found


def _cut(begin: int, end: int) -> list[Segment]:
    return [Segment(at, min(at + _REST_BYTES, end), None) for at in range(begin, end, _REST_BYTES)]
