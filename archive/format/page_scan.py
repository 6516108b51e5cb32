"""Finds the pages of an object from its bytes while they are written; parses page headers.

A Parquet writer reports positions by column and row group only, and a reader that wants one row would have to fetch all
of it. The scan notes position, row count and checksum of each page of one column, so that a single ranged read fetches
a single page.

Within a row group the columns are stored one after another, each as adjacent pages with as many values as the row group
has rows: this is how the scan tells the columns apart.

A page header is a Thrift struct in the compact protocol (parquet-format, ``PageHeader``). Reading the few numbers
needed takes a page of code; a Thrift library would be slower and would need the whole file.
"""

from __future__ import annotations

from typing import Final, NamedTuple, TypeAlias

from crc32c import crc32c

from tallybook.core.buffers import Buffer
from tallybook.core.errors import DamagedFile, check

MAX_HEADER_BYTES: Final = 64 * 1024
"""Our page headers have some 30 bytes. Anything longer is not a page header, or has statistics of huge values."""

_USUAL_HEADER_BYTES: Final = 128
"""Tried first: slicing 64 KiB for every header would cost more than parsing it."""

_DATA_PAGE: Final = 0
_DICTIONARY_PAGE: Final = 2

# Compact types of Thrift.
_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(1, 13)
_MAX_DEPTH: Final = 8
_MAX_SHIFT: Final = 63


class PageHeader(NamedTuple):
    """The fields of a header that the page scan needs. Lengths in bytes."""

    header_bytes: int
    body_bytes: int
    """As stored, without the header."""
    raw_bytes: int
    """After decompression."""
    values: int
    is_dictionary: bool


class IncompleteHeader(Exception):
    """The bytes end within the header. Handled within this folder."""


class Page(NamedTuple):
    """One data page of the indexed column. Lengths and offsets in bytes."""

    first_row: int
    """Within its row group."""
    offset: int
    """Of its header, in the object."""
    header_bytes: int
    body_bytes: int
    raw_bytes: int
    crc: int
    """CRC-32C of header and body as stored."""

    @property
    def stored_bytes(self) -> int:
        """Length of header and body."""
        return self.header_bytes + self.body_bytes


class PageScan:
    """Scans the pages of one row group.

    Args:
        offset: position of the row group in the object.
        rows: its number of rows.
        column: the column whose pages are noted, counted from 0.
    """

    def __init__(self, offset: int, rows: int, column: int) -> None:
        self._rows = rows
        self._column = column
        self._at = offset
        self._head = bytearray()
        """Beginning of a header that is not complete yet."""
        self._open: PageHeader | None = None
        self._left = 0
        """Missing bytes of the current page."""
        self._crc = 0
        self._begun_at = offset
        self._walking = 0
        self._row = 0
        self.pages: list[Page] = []

    @property
    def complete(self) -> bool:
        """Whether the last page of the column has been seen."""
        return self._walking > self._column

    def feed(self, data: Buffer) -> None:
        """Process the next bytes of the object.

        Raises:
            DamagedFile: they are not pages.
        """
        view, at = memoryview(data), 0
        while at < len(view) and not self.complete:
            if self._open is None:
                at += self._begin(view[at:])
            else:
                step = min(self._left, len(view) - at)
                if self._walking == self._column:
                    self._crc = crc32c(view[at : at + step], self._crc)
                at += step
                self._at += step
                self._left -= step
            if self._open is not None and not self._left:
                self._end(self._open)

    def _begin(self, view: memoryview) -> int:
        """Parse a header from the kept bytes and ``view``; return how many bytes of ``view`` it used."""
        kept = len(self._head)
        data: Buffer = view
        if kept:
            self._head += view
            data = self._head
        try:
            header = parse_page_header(data)
        except IncompleteHeader:
            if not kept:
                self._head += view
            return len(view)
        self._open, self._left = header, header.body_bytes
        self._crc = crc32c(memoryview(data)[: header.header_bytes])
        self._begun_at = self._at
        self._at += header.header_bytes
        self._head = bytearray()
        return header.header_bytes - kept

    def _end(self, header: PageHeader) -> None:
        self._open = None
        if header.is_dictionary:
            return
        if self._walking == self._column:
            self.pages.append(
                Page(self._row, self._begun_at, header.header_bytes, header.body_bytes, header.raw_bytes, self._crc)
            )
        self._row += header.values
        check(self._row <= self._rows, f"the pages of a column have {self._row} rows, its row group {self._rows}")
        if self._row == self._rows:
            self._walking, self._row = self._walking + 1, 0


def parse_page_header(data: Buffer, at: int = 0) -> PageHeader:
    """Parse the header that begins at ``at``.

    Raises:
        IncompleteHeader: ``data`` ends within it.
        DamagedFile: it is not the header of a data or dictionary page.
    """
    numbers: _Numbers = {}
    try:
        try:
            size = _parse_struct(bytes(data[at : at + _USUAL_HEADER_BYTES]), 0, (), numbers)
        except IndexError:
            numbers.clear()
            size = _parse_struct(bytes(data[at : at + MAX_HEADER_BYTES]), 0, (), numbers)
    except IndexError:
        if len(data) - at >= MAX_HEADER_BYTES:
            raise DamagedFile(f"there is no header of a Parquet page at byte {at}: it is too long") from None
        raise IncompleteHeader from None
    except ValueError as error:
        raise DamagedFile(f"there is no header of a Parquet page at byte {at}: {error}") from None
    kind, raw, body = numbers.get((1,)), numbers.get((2,)), numbers.get((3,))
    values = numbers.get((5, 1) if kind == _DATA_PAGE else (7, 1))
    if kind not in {_DATA_PAGE, _DICTIONARY_PAGE} or raw is None or body is None or values is None:
        raise DamagedFile(f"there is no header of a Parquet page at byte {at}")
    if min(raw, body, values) < 0:
        raise DamagedFile(f"a Parquet page at byte {at} has a negative length")
    return PageHeader(size, body, raw, values, kind == _DICTIONARY_PAGE)


_Numbers: TypeAlias = dict[tuple[int, ...], int]
"""By path of field ids."""


def _parse_struct(data: bytes, at: int, path: tuple[int, ...], numbers: _Numbers) -> int:
    """Parse the struct at ``at``, including nested ones; return its end.

    Raises:
        IndexError: ``data`` ends within it.
        ValueError: it cannot be part of a page header.
    """
    if len(path) > _MAX_DEPTH:
        raise ValueError("nested too deep")
    field = 0
    while head := data[at]:
        at += 1
        kind = head & 15
        if head >> 4:
            field += head >> 4
        else:
            field, at = _signed(data, at)
        if kind in {_I16, _I32, _I64}:
            numbers[*path, field], at = _signed(data, at)
        elif kind == _STRUCT:
            at = _parse_struct(data, at, (*path, field), numbers)
        elif kind == _BINARY:
            size, at = _unsigned(data, at)
            at += size
        elif kind == _BYTE:
            at += 1
        elif kind == _DOUBLE:
            at += 8
        elif kind not in {_TRUE, _FALSE}:
            # Page headers have no lists, sets or maps.
            raise ValueError(f"it has a field of type {kind}")
    return at + 1


def _unsigned(data: bytes, at: int) -> tuple[int, int]:
    """The number at ``at``, and its end."""
    byte = data[at]
    at += 1
    value, shift = byte & 127, 7
    while byte > 127:
        if shift > _MAX_SHIFT:
            raise ValueError("a number does not end")
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        shift += 7
    return value, at


def _signed(data: bytes, at: int) -> tuple[int, int]:
    value, at = _unsigned(data, at)
    return (value >> 1) ^ -(value & 1), at
