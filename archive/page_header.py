"""The header in front of every Parquet page: how long the page is, and how many values it has.

It is a Thrift struct in the compact protocol (parquet-format, ``PageHeader``). Reading the few
numbers we need takes a page of code; a Thrift library would be slower and would want the whole file.
"""

from __future__ import annotations

from typing import Final, NamedTuple, TypeAlias

from tallybook.core.batch import Buffer
from tallybook.core.errors import DamagedFile

MAX_HEADER_BYTES: Final = 64 * 1024
"""Ours have some 30 bytes. Whatever is longer is no page header, or one that carries statistics of huge values."""

_DATA_PAGE: Final = 0
_DICTIONARY_PAGE: Final = 2

# Compact types of Thrift.
_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(1, 13)
_VARINTS: Final = frozenset({_I16, _I32, _I64})
_MAX_DEPTH: Final = 8


class PageHeader(NamedTuple):
    """What the walk over the pages of a file needs of a header. Lengths are in bytes."""

    header_bytes: int
    body_bytes: int
    """As stored, behind the header."""
    raw_bytes: int
    """Once decompressed."""
    values: int
    is_dictionary: bool


class IncompleteHeader(Exception):
    """The bytes end within the header. Never leaves this folder."""


def parse_page_header(data: Buffer, at: int = 0) -> PageHeader:
    """The header that begins at ``at``.

    Raises:
        IncompleteHeader: ``data`` ends within it.
        DamagedFile: what is there is no header of a data or dictionary page.
    """
    fields = _Struct(data, at)
    numbers = fields.read()
    kind, raw, body = numbers.get((1,)), numbers.get((2,)), numbers.get((3,))
    values = numbers.get((5, 1) if kind == _DATA_PAGE else (7, 1))
    if kind not in {_DATA_PAGE, _DICTIONARY_PAGE} or raw is None or body is None or values is None:
        raise DamagedFile(f"no header of a Parquet page at byte {at}")
    if min(raw, body, values) < 0:
        raise DamagedFile(f"a Parquet page at byte {at} has a negative length")
    return PageHeader(fields.at - at, body, raw, values, kind == _DICTIONARY_PAGE)


_Numbers: TypeAlias = dict[tuple[int, ...], int]
"""By the path of field ids that leads to them."""


class _Struct:
    """Reads one struct, with those inside it."""

    def __init__(self, data: Buffer, at: int) -> None:
        self._data = data
        self._begin = at
        self.at = at

    def read(self) -> _Numbers:
        numbers: _Numbers = {}
        self._read((), numbers)
        return numbers

    def _read(self, path: tuple[int, ...], numbers: _Numbers) -> None:
        if len(path) > _MAX_DEPTH:
            raise DamagedFile(f"no header of a Parquet page at byte {self._begin}: nested too deep")
        field = 0
        while head := self._byte():
            kind = head & 15
            field = field + (head >> 4) if head >> 4 else self._signed()
            if kind == _STRUCT:
                self._read((*path, field), numbers)
            elif kind in _VARINTS:
                numbers[*path, field] = self._signed()
            else:
                self._skip(kind)

    def _skip(self, kind: int) -> None:
        if kind in {_TRUE, _FALSE}:
            return
        if kind == _BYTE:
            self._move(1)
        elif kind == _DOUBLE:
            self._move(8)
        elif kind == _BINARY:
            self._move(self._unsigned())
        else:
            # No list, set or map stands in a page header.
            raise DamagedFile(f"no header of a Parquet page at byte {self._begin}: it has a field of type {kind}")

    def _move(self, count: int) -> None:
        self.at += count
        if self.at - self._begin > MAX_HEADER_BYTES:
            raise DamagedFile(f"no header of a Parquet page at byte {self._begin}: it is too long")
        if self.at > len(self._data):
            raise IncompleteHeader

    def _byte(self) -> int:
        self._move(1)
        return self._data[self.at - 1]

    def _unsigned(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7
            if shift > 63:
                raise DamagedFile(f"no header of a Parquet page at byte {self._begin}: a number without an end")

    def _signed(self) -> int:
        value = self._unsigned()
        return (value >> 1) ^ -(value & 1)
