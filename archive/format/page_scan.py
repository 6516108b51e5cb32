"""Finds the pages of an object while it is being written, from the bytes that pass by.

A Parquet writer tells where its pages lie only by column and row group, and a reader that wants
one row has to fetch all of them. Here each page of one column is noted: where it lies, how many rows
it has, and its checksum, so that later a single ranged read brings a single page.

Within a row group the columns follow one another, each as pages back to back, and each with as
many values as the row group has rows: that is how the walk tells one column from the next.
"""

from __future__ import annotations

from typing import NamedTuple

from crc32c import crc32c

from tallybook.core.batch import Buffer
from tallybook.core.errors import check

from .page_header import IncompleteHeader, PageHeader, parse_page_header


class Page(NamedTuple):
    """One data page of the column that is indexed. Lengths and offsets are in bytes."""

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
        """Header and body."""
        return self.header_bytes + self.body_bytes


class PageWalk:
    """Walks the pages of one row group.

    Args:
        offset: where in the object the row group begins.
        rows: how many rows it has.
        column: the column whose pages are kept, counted from 0.
    """

    def __init__(self, offset: int, rows: int, column: int) -> None:
        self._rows = rows
        self._column = column
        self._at = offset
        self._head = bytearray()
        """The beginning of a header whose end has not come by yet."""
        self._open: PageHeader | None = None
        self._left = 0
        """Bytes of the open page that have not come by yet."""
        self._crc = 0
        self._begun_at = offset
        self._walking = 0
        self._row = 0
        self.pages: list[Page] = []

    @property
    def complete(self) -> bool:
        """The last page of the column has come by."""
        return self._walking > self._column

    def feed(self, data: Buffer) -> None:
        """The next bytes of the object.

        Raises:
            DamagedFile: they are no pages.
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
        """Read a header from ``view`` and what was kept; return how many bytes of ``view`` it took."""
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
