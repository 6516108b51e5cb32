"""Parses Parquet page headers: length and number of values of a page.

A header is a Thrift struct in the compact protocol (parquet-format, ``PageHeader``). Reading the few numbers needed
takes a page of code; a Thrift library would be slower and would need the whole file.
"""

from __future__ import annotations

from typing import Final, NamedTuple, TypeAlias

from tallybook.core.batch import Buffer
from tallybook.core.errors import DamagedFile

MAX_HEADER_BYTES: Final = 64 * 1024
"""Ours have some 30 bytes. Anything longer is not a page header, or has statistics of huge values."""

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


def parse_page_header(data: Buffer, at: int = 0) -> PageHeader:
    """Parse the header that begins at ``at``.

    Raises:
        IncompleteHeader: ``data`` ends within it.
        DamagedFile: it is not the header of a data or dictionary page.
    """
    numbers: _Numbers = {}
    try:
        try:
            size = _read(bytes(data[at : at + _USUAL_HEADER_BYTES]), 0, (), numbers)
        except IndexError:
            numbers.clear()
            size = _read(bytes(data[at : at + MAX_HEADER_BYTES]), 0, (), numbers)
    except IndexError:
        if len(data) - at >= MAX_HEADER_BYTES:
            raise DamagedFile(f"no header of a Parquet page at byte {at}: it is too long") from None
        raise IncompleteHeader from None
    except ValueError as error:
        raise DamagedFile(f"no header of a Parquet page at byte {at}: {error}") from None
    kind, raw, body = numbers.get((1,)), numbers.get((2,)), numbers.get((3,))
    values = numbers.get((5, 1) if kind == _DATA_PAGE else (7, 1))
    if kind not in {_DATA_PAGE, _DICTIONARY_PAGE} or raw is None or body is None or values is None:
        raise DamagedFile(f"no header of a Parquet page at byte {at}")
    if min(raw, body, values) < 0:
        raise DamagedFile(f"a Parquet page at byte {at} has a negative length")
    return PageHeader(size, body, raw, values, kind == _DICTIONARY_PAGE)


_Numbers: TypeAlias = dict[tuple[int, ...], int]
"""By path of field ids."""


def _read(data: bytes, at: int, path: tuple[int, ...], numbers: _Numbers) -> int:
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
            at = _read(data, at, (*path, field), numbers)
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
            raise ValueError("a number without an end")
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        shift += 7
    return value, at


def _signed(data: bytes, at: int) -> tuple[int, int]:
    value, at = _unsigned(data, at)
    return (value >> 1) ^ -(value & 1), at
