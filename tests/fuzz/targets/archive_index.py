"""Fuzz target: the index of an archive object and the pages that it locates, in an untrusted bucket."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
from crc32c import crc32c

from tallybook.archive.format.batch_rows import BatchAttributes
from tallybook.archive.format.index_codec import (
    ArchivedLedger,
    IndexRoot,
    RowGroup,
    Run,
    batches_message,
    directory_message,
    pages_message,
    read_batches,
    read_directory,
    read_pages,
)
from tallybook.archive.format.index_tables import PageTable
from tallybook.archive.format.page_scan import MAX_HEADER_BYTES, IncompleteHeader, Page, PageScan, parse_page_header
from tallybook.archive.reader import _decoded, _run_of
from tallybook.core.errors import DamagedFile, EntryAbsent, InvalidBatch, InvariantViolation
from tallybook.metadata.ledger.archived import IndexPart

from ..harness import REFUSED, Target, attempt, same

TARGET = Target(
    "archive_index",
    words=(b"\x0a\x00", b"\xff" * 9 + b"\x01", b"\x80" * 9 + b"\x01", b"\x15\x00\x15", b"\x28\xb5\x2f\xfd"),
)

OBJECT_BYTES = 1 << 20
CODEC = pa.Codec("zstd")


def _as_part(raw: bytes) -> tuple[bytes, IndexPart]:
    """``raw`` as stored in an object, and the pointer to it."""
    stored = CODEC.compress(raw, asbytes=True)
    return stored, IndexPart(100, len(stored), len(raw), crc32c(stored))


def _read(read: Callable[[bytes, IndexPart], Any], data: bytes) -> Any:
    """Decode ``data`` as a compressed message, and then as a plain one."""
    attempt(DamagedFile, read, data, IndexPart(100, len(data), 1000, crc32c(data)))
    return attempt(DamagedFile, read, *_as_part(data))


def some_page_tables() -> Iterator[bytes]:
    """Tables of one page, and of several."""
    yield pages_message([Page(0, 4, 20, 80, 100, 5)], 7).SerializeToString()
    pages = [Page(0, 4, 20, 80, 100, 5), Page(3, 104, 21, 800, 1000, 2**32 - 1)]
    yield pages_message(pages, 7).SerializeToString()


@TARGET.decoder(
    "archive/format/index_codec.py:read_pages", "archive/format/index_codec.py:_opened", seeds=some_page_tables
)
def page_table(data: bytes) -> None:
    """The page table: locations of pages."""
    found = _read(lambda stored, part: read_pages(stored, RowGroup(7, part), "place", OBJECT_BYTES), data)
    if found is not REFUSED:
        pages = [found.page(number) for number in range(len(found))]
        same([found.rows_of(number) > 0 for number in range(len(found))], [True] * len(found), "rows of pages")
        for page in pages:
            same(
                page.stored_bytes > 0 and 0 <= page.offset <= page.offset + page.stored_bytes <= OBJECT_BYTES,
                True,
                f"{page}",
            )
        same(found.at_row(6), len(found) - 1, "the page of the last row")
        again = read_pages(*_packed(pages_message(pages, 7), lambda part: RowGroup(7, part)), "place", OBJECT_BYTES)
        same([again.page(number) for number in range(len(again))], pages, "a page table")


def _packed(message: Any, pointing: Callable[[IndexPart], Any]) -> tuple[bytes, Any]:
    stored, part = _as_part(message.SerializeToString())
    return stored, pointing(part)


def _run(part: IndexPart) -> Run:
    return Run(0, 0, 10, 3, part)


def some_batch_tables() -> Iterator[bytes]:
    """Tables of one batch, and of several with digests."""
    yield batches_message([BatchAttributes(3, 10, 100, 2, 150, 1_700_000_000_000_000, 5, b"")]).SerializeToString()
    facts = [
        BatchAttributes(3, 4, 100, -1, 150, -5, 5, bytes(32)),
        BatchAttributes(7, 6, 10, 6, 160, 2**62, 6, bytes(32)),
    ]
    yield batches_message(facts).SerializeToString()


@TARGET.decoder("archive/format/index_codec.py:read_batches", seeds=some_batch_tables)
def batch_table(data: bytes) -> None:
    """The batch table: batches that the entries were in."""
    found = _read(lambda stored, part: read_batches(stored, _run(part), "place"), data)
    if found is not REFUSED:
        facts = [found.facts(number) for number in range(len(found))]
        same(found.holding(12), len(found) - 1, "the batch of the last entry")
        again = read_batches(*_packed(batches_message(facts), _run), "place")
        same([again.facts(number) for number in range(len(again))], facts, "a batch table")


def some_directories() -> Iterator[bytes]:
    """Directories of one ledger, and of several that share a row group."""
    part = IndexPart(50, 100, 200, 5)
    one = ArchivedLedger(7, b"metadata", 10, 100, 77, (Run(0, 0, 10, 0, part),))
    yield directory_message(IndexRoot("object", 17, (RowGroup(10, part),), (one,))).SerializeToString()
    more = (
        ArchivedLedger(7, b"metadata", 14, 100, 77, (Run(0, 0, 10, 0, part), Run(1, 0, 4, 10, part))),
        ArchivedLedger(8, b"", 0, 0, 0, ()),
        ArchivedLedger(9, b"metadata", 6, 100, 77, (Run(1, 4, 6, 0, part),)),
    )
    yield directory_message(IndexRoot("object", 17, (RowGroup(10, part), RowGroup(10, part)), more)).SerializeToString()


@TARGET.decoder(
    "archive/format/index_codec.py:read_directory",
    "archive/format/index_codec.py:_read_part",
    "archive/format/index_codec.py:_check_directory",
    "archive/reader.py:_run_of",
    seeds=some_directories,
)
def directory(data: bytes) -> None:
    """The directory: ledgers of an object."""
    found = _read(lambda stored, part: read_directory(stored, part, "place", OBJECT_BYTES), data)
    if found is not REFUSED:
        message = directory_message(found)
        again = read_directory(*_packed(message, lambda part: part), "place", OBJECT_BYTES)
        same(again, found, "a directory")
        for ledger in found.ledgers:
            for entry in (0, ledger.entries - 1, ledger.entries):
                if entry >= 0:
                    attempt(EntryAbsent, _run_of, found, ledger.ledger_id, entry)


def some_page_headers() -> Iterator[bytes]:
    """Page headers as Arrow writes them: of a dictionary, of data, with statistics."""
    yield bytes.fromhex("150415101514 4c15021500120000".replace(" ", ""))
    yield bytes.fromhex("1500150615102c15 0a15001506150600 00".replace(" ", ""))
    yield bytes.fromhex("15001506151015e4cc9eca0b 5c150a1500 1506 15061c 1801611801610000 00".replace(" ", ""))


@TARGET.decoder(
    "archive/format/page_scan.py:parse_page_header",
    "archive/format/page_scan.py:_parse_struct",
    "archive/format/page_scan.py:_unsigned",
    "archive/format/page_scan.py:_signed",
    "archive/format/page_scan.py:PageScan.feed",
    "archive/format/page_scan.py:PageScan._begin",
    seeds=some_page_headers,
)
def page_header(data: bytes) -> None:
    """The header of a page; and a sequence of pages, which is read alike in one piece and in several."""
    found = attempt((DamagedFile, IncompleteHeader), parse_page_header, data)
    if found is not REFUSED:
        same(0 < found.header_bytes <= min(len(data), MAX_HEADER_BYTES), True, f"{found}")
        same(parse_page_header(memoryview(b"x" + data), 1), found, "a header that begins elsewhere")
        same(parse_page_header(data[: found.header_bytes]), found, "a header that nothing follows")
        for size in range(0, found.header_bytes, 7):
            same(attempt(IncompleteHeader, parse_page_header, data[:size]), REFUSED, f"{size} bytes of a header")
    same(_walked(data, 1 + len(data) // 16), _walked(data, len(data)), "what a walk finds")


def _walked(data: bytes, step: int) -> object:
    walk = PageScan(4, 10, 1)
    try:
        for at in range(0, len(data), max(1, step)):
            walk.feed(data[at : at + step])
    except (DamagedFile, InvariantViolation) as error:
        return type(error)
    return walk.pages


def some_pages() -> Iterator[bytes]:
    """The values of a page, before compression."""
    yield b"\x05\x00\x00\x00hello\x00\x00\x00\x00"


@TARGET.decoder("archive/reader.py:_decoded", seeds=some_pages)
def page(data: bytes) -> None:
    """A page as a reader fetches it: the raw bytes, and ``data`` as its uncompressed content."""
    for stored, raw_bytes in ((data, 1000), (CODEC.compress(data, asbytes=True), len(data))):
        ends = ([0, 2], [4, 4 + len(stored)], [0], [raw_bytes], [crc32c(stored)])
        table = PageTable(*(pa.array(column, pa.int64()).to_numpy() for column in ends))
        attempt((DamagedFile, InvalidBatch), _decoded, memoryview(stored), table, range(1), "place")
