"""Finds the pages of an object from its bytes while they are written.

A Parquet writer reports positions by column and row group only, and a reader that wants one row would have to fetch all
of it. The scan notes position, row count and checksum of each page of one column, so that a single ranged read fetches
a single page.

Within a row group the columns are stored one after another, each as adjacent pages with as many values as the row group
has rows: this is how the scan tells the columns apart.
"""

from __future__ import annotations

from typing import NamedTuple

from crc32c import crc32c

from tallybook.core.batch import Buffer
from tallybook.core.errors import check

from .page_header import IncompleteHeader, PageHeader, parse_page_header


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
