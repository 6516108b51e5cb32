"""Encoding of the index of an archive object: page tables, batch tables and the directory over them.

Each *part* is a message of ``proto/tallybook/archive/v1/archive.proto``, compressed with zstd; its checksum is stored
with the pointer to it: the directory has those of the tables, and the ledger's metadata, or the file's footer, that of
the directory. Sequences of numbers are stored as differences.

Decoders check every number that could make a reader fetch or allocate more than the object has.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
from crc32c import crc32c
from google.protobuf.message import DecodeError, Message

from tallybook.core.buffers import Buffer
from tallybook.core.errors import DamagedFile, NewerFormat
from tallybook.core.limits import BATCH_DIGEST_BYTES, MAX_BATCH_BYTES, MAX_BATCH_ENTRIES, MIB
from tallybook.metadata.ledger.archived import IndexPart
from tallybook.proto import archive_pb2 as pb

from .batch_rows import BatchAttributes
from .index_tables import BatchTable, Numbers, PageTable
from .page_scan import Page
from .schema import FORMAT

MAX_PART_BYTES: Final = 64 * MIB
"""Largest part of an index after decompression."""

MAX_ROW_GROUP_ROWS: Final = 1 << 18
"""Rows after which a row group is full; it ends with the current batch. Bounds its tables for any size of entries."""

_PAGE_ROW_BYTES: Final = 24
_BATCH_ROW_BYTES: Final = 76
_TABLE_REST_BYTES: Final = 128
"""Maximum bytes of a page and of a batch in their tables, and of the rest of a table."""

MAX_PAGE_BYTES: Final = 64 * MIB
"""Largest page after decompression: four times sixteen entries of the largest size."""

_HALF: Final = 1 << 63

M = TypeVar("M", bound=Message)


@dataclass(frozen=True, slots=True)
class RowGroup:
    """A row group, and the position of its page table."""

    rows: int
    pages: IndexPart


@dataclass(frozen=True, slots=True)
class Run:
    """The rows of one ledger in one row group: consecutive rows with consecutive entries."""

    row_group: int
    first_row: int
    rows: int
    first_entry_id: int
    batches: IndexPart

    @property
    def last_entry_id(self) -> int:
        """Id of its last entry."""
        return self.first_entry_id + self.rows - 1


@dataclass(frozen=True, slots=True)
class ArchivedLedger:
    """A ledger in the directory: all its entries, from 0 to the last one."""

    ledger_id: int
    metadata: bytes
    """Encoded as in the metadata store, at the time of archiving."""
    entries: int
    payload_bytes: int
    rolling_crc: int
    """CRC-32C over the ledger's batches as written, concatenated."""
    runs: tuple[Run, ...]


@dataclass(frozen=True, slots=True)
class IndexRoot:
    """The root of the index."""

    object_id: str
    created_at_ms: int
    row_groups: tuple[RowGroup, ...]
    ledgers: tuple[ArchivedLedger, ...]


class EncodedPart(NamedTuple):
    """An encoded part of the index, without a position yet."""

    stored: bytes
    raw_bytes: int

    def at(self, offset: int) -> IndexPart:
        """The pointer to the part at ``offset``."""
        return IndexPart(offset, len(self.stored), self.raw_bytes, crc32c(self.stored))


def encode_part(message: Message) -> EncodedPart:
    """Encode ``message`` as a part of the index."""
    raw = message.SerializeToString(deterministic=True)
    return EncodedPart(pa.Codec("zstd").compress(raw, asbytes=True), len(raw))


def _opened(kind: type[M], stored: Buffer, part: IndexPart, place: str, max_bytes: int = MAX_PART_BYTES) -> M:
    """Decode the message of ``part``, with at most ``max_bytes``.

    Raises:
        DamagedFile: the bytes do not match the pointer.
    """
    if len(stored) != part.stored_bytes or crc32c(stored) != part.crc:
        raise DamagedFile(f"{place}: the index at byte {part.offset} fails its checksum")
    if part.raw_bytes > min(max_bytes, MAX_PART_BYTES):
        raise DamagedFile(
            f"{place}: the index at byte {part.offset} is too large: {part.raw_bytes} bytes when decompressed"
        )
    message = kind()
    try:
        raw = pa.Codec("zstd").decompress(stored, part.raw_bytes, asbytes=True)
        message.ParseFromString(raw)
    except (DecodeError, OSError, ValueError) as error:
        raise DamagedFile(f"{place}: the index at byte {part.offset} cannot be decoded: {error}") from error
    return message


def pages_message(pages: Sequence[Page], rows: int) -> pb.PageTable:
    """The page table of a row group of ``rows`` rows."""
    ends = [page.first_row for page in pages[1:]] + [rows]
    return pb.PageTable(
        offset=pages[0].offset,
        rows=[end - page.first_row for page, end in zip(pages, ends, strict=True)],
        header_bytes=[page.header_bytes for page in pages],
        body_bytes=[page.body_bytes for page in pages],
        raw_bytes=[page.raw_bytes for page in pages],
        crc32c=[page.crc for page in pages],
    )


def read_pages(stored: Buffer, group: RowGroup, place: str, object_bytes: int) -> PageTable:
    """Decode the page table of a row group.

    Raises:
        DamagedFile: the table is damaged, or its pages lie outside the object.
    """
    max_bytes = group.rows * _PAGE_ROW_BYTES + _TABLE_REST_BYTES
    message = _opened(pb.PageTable, stored, group.pages, place, max_bytes)
    columns = (message.rows, message.header_bytes, message.body_bytes, message.raw_bytes, message.crc32c)
    rows, header_bytes, body_bytes, raw_bytes, crcs = (np.array(column, np.int64) for column in columns)
    if len({len(column) for column in columns}) != 1 or rows.sum() != group.rows or not rows.all():
        raise DamagedFile(f"{place}: a page table does not add up to its row group of {group.rows} rows")
    stored_bytes = header_bytes + body_bytes
    if message.offset + int(stored_bytes.sum()) > object_bytes:
        raise DamagedFile(f"{place}: a page table reaches beyond the object's {object_bytes} bytes")
    if not stored_bytes.all() or (raw_bytes > MAX_PAGE_BYTES).any():
        raise DamagedFile(f"{place}: a page table has an impossible page size")
    offsets = _sums(message.offset, stored_bytes)
    return PageTable(_sums(0, rows), offsets, header_bytes, raw_bytes, crcs)


def batches_message(batches: Sequence[BatchAttributes]) -> pb.BatchTable:
    """The batch table of a run."""
    first = batches[0]
    return pb.BatchTable(
        first_entry_id=first.first_entry_id,
        ledger_length_before=first.ledger_length - first.payload_bytes,
        entries=[batch.entries for batch in batches],
        payload_bytes=[batch.payload_bytes for batch in batches],
        written_at_us=_differences(batch.written_at_us for batch in batches),
        lac_lag=[batch.first_entry_id - 1 - batch.lac for batch in batches],
        length_gap=[
            0,
            *(
                _wrapped(after.ledger_length - after.payload_bytes - before.ledger_length)
                for before, after in pairwise(batches)
            ),
        ],
        crc32c=[batch.crc for batch in batches],
        digests=b"".join(batch.digest for batch in batches),
    )


def read_batches(stored: Buffer, run: Run, place: str) -> BatchTable:
    """Decode the batch table of a run.

    Raises:
        DamagedFile: the table is damaged, or belongs to another run.
    """
    max_bytes = run.rows * _BATCH_ROW_BYTES + _TABLE_REST_BYTES
    message = _opened(pb.BatchTable, stored, run.batches, place, max_bytes)
    columns = (message.entries, message.payload_bytes, message.written_at_us, message.length_gap, message.crc32c)
    entries, payload_bytes, times, gaps, crcs = (np.array(column, np.int64) for column in columns)
    lags = np.array(message.lac_lag, np.uint64).view(np.int64)
    count = len(crcs)
    if (
        any(len(column) != count for column in (entries, payload_bytes, times, gaps, lags))
        or entries.sum() != run.rows
        or not entries.all()
        or (entries > MAX_BATCH_ENTRIES).any()
        or (payload_bytes > MAX_BATCH_BYTES).any()
        or message.first_entry_id != run.first_entry_id
        or len(message.digests) not in {0, count * BATCH_DIGEST_BYTES}
    ):
        raise DamagedFile(f"{place}: a batch table does not match its {run.rows} entries from {run.first_entry_id}")
    first_ids = _sums(message.first_entry_id, entries)
    # Times and lengths wrap at 64 bits, as their differences did.
    lengths = message.ledger_length_before + np.cumsum(payload_bytes + gaps)
    return BatchTable(
        first_ids, payload_bytes, first_ids[:-1] - 1 - lags, lengths, np.cumsum(times), crcs, message.digests
    )


def directory_message(directory: IndexRoot) -> pb.Directory:
    """The directory as a message."""
    return pb.Directory(
        object_id=directory.object_id,
        created_at_ms=directory.created_at_ms,
        row_groups=[pb.RowGroup(rows=group.rows, pages=_part(group.pages)) for group in directory.row_groups],
        ledgers=[
            pb.ArchivedLedger(
                ledger_id=ledger.ledger_id,
                metadata=ledger.metadata,
                entries=ledger.entries,
                payload_bytes=ledger.payload_bytes,
                rolling_crc32c=ledger.rolling_crc,
                runs=[
                    pb.Run(
                        row_group=run.row_group,
                        first_row=run.first_row,
                        rows=run.rows,
                        first_entry_id=run.first_entry_id,
                        batches=_part(run.batches),
                    )
                    for run in ledger.runs
                ],
            )
            for ledger in directory.ledgers
        ],
    )


def read_directory(stored: Buffer, part: IndexPart, place: str, object_bytes: int) -> IndexRoot:
    """Decode the directory of ``part``.

    Raises:
        DamagedFile: it is damaged, or points outside the object.
        NewerFormat: the object has a later format.
    """
    message = _opened(pb.Directory, stored, part, place)
    if message.format > FORMAT:
        raise NewerFormat.of(f"{place}: the object", message.format, FORMAT)
    # Each takes a few bytes of the object, but hundreds as a Python value.
    listed = len(message.row_groups) + len(message.ledgers) + sum(len(ledger.runs) for ledger in message.ledgers)
    if listed > object_bytes:
        raise DamagedFile(f"{place}: its directory lists {listed} items, more than its {object_bytes} bytes can hold")
    directory = IndexRoot(
        message.object_id,
        message.created_at_ms,
        tuple(RowGroup(group.rows, _read_part(group.pages)) for group in message.row_groups),
        tuple(
            ArchivedLedger(
                ledger.ledger_id,
                ledger.metadata,
                ledger.entries,
                ledger.payload_bytes,
                ledger.rolling_crc32c,
                tuple(
                    Run(run.row_group, run.first_row, run.rows, run.first_entry_id, _read_part(run.batches))
                    for run in ledger.runs
                ),
            )
            for ledger in message.ledgers
        ),
    )
    _check_directory(directory, place, object_bytes)
    return directory


def _check_directory(directory: IndexRoot, place: str, object_bytes: int) -> None:
    parts = [group.pages for group in directory.row_groups]
    parts += [run.batches for ledger in directory.ledgers for run in ledger.runs]
    if any(part.end > object_bytes or part.raw_bytes > MAX_PART_BYTES or not part.stored_bytes for part in parts):
        raise DamagedFile(f"{place}: its directory points beyond the object's {object_bytes} bytes")
    if any(group.rows > MAX_ROW_GROUP_ROWS + MAX_BATCH_ENTRIES for group in directory.row_groups):
        raise DamagedFile(f"{place}: it has a row group with too many rows")
    at = (0, 0)
    for ledger in directory.ledgers:
        entry_id = 0
        for run in ledger.runs:
            rows = directory.row_groups[run.row_group].rows if run.row_group < len(directory.row_groups) else 0
            end = run.first_row + run.rows
            if (
                run.first_entry_id != entry_id
                or (run.row_group, run.first_row) != at
                or not run.first_row < end <= rows
            ):
                raise DamagedFile(f"{place}: the runs of ledger {ledger.ledger_id} are not consecutive")
            at, entry_id = (run.row_group, end) if end < rows else (run.row_group + 1, 0), entry_id + run.rows
        if entry_id != ledger.entries:
            raise DamagedFile(
                f"{place}: ledger {ledger.ledger_id} has {entry_id} entries in its runs, not {ledger.entries}"
            )
    if at != (len(directory.row_groups), 0):
        raise DamagedFile(f"{place}: some of its rows belong to no ledger")
    ids = [ledger.ledger_id for ledger in directory.ledgers]
    if any(later <= earlier for earlier, later in pairwise(ids)):
        raise DamagedFile(f"{place}: its ledgers are not in the order of their ids")


def _part(part: IndexPart) -> pb.Part:
    return pb.Part(offset=part.offset, bytes=part.stored_bytes, raw_bytes=part.raw_bytes, crc32c=part.crc)


def _read_part(part: pb.Part) -> IndexPart:
    return IndexPart(part.offset, part.bytes, part.raw_bytes, part.crc32c)


def _differences(numbers: Iterable[int]) -> list[int]:
    return [_wrapped(after - before) for before, after in pairwise([0, *numbers])]


def _wrapped(number: int) -> int:
    """Wrap to 64 bits: writers choose times and lengths, so differences may not fit."""
    return (number + _HALF) % (2 * _HALF) - _HALF


def _sums(start: int, steps: Numbers) -> Numbers:
    """Running totals from ``start``: one number more than there are steps."""
    return np.cumsum(np.concatenate((np.array([start], np.int64), steps)))
