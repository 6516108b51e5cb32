"""Mutations that random ones would hardly hit: correct checksums, and values that are valid in JSON."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator
from typing import Any

from crc32c import crc32c

CRC = struct.Struct("<I")

DEEP = 2_000
"""A nesting depth of lists beyond Python's recursion limit."""

STRANGE_VALUES = (
    "null", "true", "0", "-1", "1.5", "1e999", "-Infinity", "NaN", str(2**63), str(-(2**63)), str(2**64), "9" * 5000,
    '""', '"x"', '"\\ud800"', '"\\u0000"', '"a/b"', "[]", "[1]", "[[]]", '["x"]', "[[1,2,3,4,5,6,7]]", "[1e999]", "{}",
    '{"x":1}', "[" * DEEP + "]" * DEEP, "[" * 900 + "]" * 900,
)  # fmt: skip
"""JSON values of unexpected types or sizes."""

JSON_WORDS = (
    *(
        f'"{word}"'.encode()
        for word in ("format", "v", "cluster", "id", "name", "policy", "segments", "marks", "owner", "ledgers")
    ),
    b"Infinity", b"1e999", b"NaN", b"null", b"true", b"[[", b"{}", b"\\ud800", b"9223372036854775808", b"-1",
)  # fmt: skip
"""Words for the dictionary of the fuzzer."""


def with_crc(data: bytes, at: int, *covered: tuple[int, int | None]) -> bytes:
    """``data`` with the CRC-32C of some ranges of it at ``at``; unchanged if it is too short."""
    if len(data) < at + CRC.size:
        return data
    crc = 0
    for begin, end in covered:
        crc = crc32c(data[begin:end], crc)
    return data[:at] + CRC.pack(crc) + data[at + CRC.size :]


def spoiled(*records: bytes) -> Iterator[bytes]:
    """JSON records, and variants with an unexpected value for each field in turn, or without the field."""
    yield b"[" * DEEP
    yield b'{"a":' * DEEP
    yield b"\xff"
    yield b"[]"
    yield b"{}"
    for record in records:
        yield record
        found = json.loads(record)
        for path in list(_paths(found)):
            for strange in STRANGE_VALUES:
                yield _put(found, path, strange).encode("utf-8", "surrogatepass")


_HERE = "here the strange value goes"


def _paths(found: Any, before: tuple[Any, ...] = ()) -> Iterable[tuple[Any, ...]]:
    below: Iterable[tuple[Any, Any]] = ()
    if isinstance(found, dict):
        below = found.items()
    elif isinstance(found, list):
        below = enumerate(found)
    for key, value in below:
        yield (*before, key)
        yield from _paths(value, (*before, key))


def _put(found: Any, path: tuple[Any, ...], strange: str) -> str:
    changed = json.loads(json.dumps(found))
    at = changed
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = _HERE
    return json.dumps(changed).replace(f'"{_HERE}"', strange)
