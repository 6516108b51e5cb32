"""Decodes many envelopes at once into Arrow columns, for readers of streams as tables; no Python code runs per record.

    entries of a segment            records
    [envelope | envelope | mark] -> row 0 0 0 1 1     which envelope
                                    slot 0 1 2 0 1    which record of it
                                    payload, key, ... columns of Arrow

An envelope stores its records column by column (``envelope``), so a column of many envelopes is the concatenation of
their columns. This module knows the layout of ``envelope``, and accepts and rejects the same envelopes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tallybook.core.errors import EnvelopeDamaged, InvariantViolation
from tallybook.core.ids import MAX_ID
from tallybook.core.limits import MIB

from .compression import Compression, decompressed
from .envelope import HEADER_BYTES, MAGIC, MAX_RAW_BYTES, MAX_RECORDS, VERSION, Envelope, EnvelopeKind
from .record import NO_TXID

PIECE_BYTES: Final = 32 * MIB
"""Bytes of decompressed bodies that are decoded at a time; bounds the memory of compressed envelopes."""

Int64Array: TypeAlias = npt.NDArray[np.int64]
Flags: TypeAlias = npt.NDArray[np.bool_]

_HEADER: Final = np.dtype(
    [
        ("magic", "<u2"), ("version", "u1"), ("kind", "u1"), ("compression", "u1"), ("present", "u1"),
        ("reserved", "<u2"), ("count", "<u4"), ("raw_bytes", "<u4"), ("sequence", "<i8"), ("time", "<i8"),
        ("highest_time", "<i8"), ("highest_txid", "<i8"), ("ids_before", "<i8"),
    ]
)  # fmt: skip
_MAGIC: Final = int.from_bytes(MAGIC, "little")
_NO_KEY: Final = 2**32 - 1
_TIMES, _TXIDS, _KEYS, _IDS = 1, 2, 4, 8
_ALL: Final = _TIMES | _TXIDS | _KEYS | _IDS


@dataclass(frozen=True, slots=True)
class EnvelopeColumns:
    """The columns of consecutive envelopes.

    Args:
        first_row: index of the first of these envelopes in the input.
        good: for each entry, whether it is a valid envelope.
        sequence: for each valid one, the number of its first record; for a mark, of the next record.
        count: for each valid one, its number of records.
        row: for each record, the index of its envelope in the input.
    """

    first_row: int
    good: Flags
    sequence: Int64Array
    count: Int64Array
    row: Int64Array
    slot: Int64Array
    record_sequence: Int64Array
    timestamp_ms: Int64Array
    payload: pa.Array
    key: pa.Array
    dedup_id: pa.Array
    txid: pa.Array


def decode(envelopes: pa.Array, piece_bytes: int = PIECE_BYTES) -> Iterator[EnvelopeColumns]:
    """Decode envelopes in order, some at a time.

    Args:
        envelopes: payloads of entries, binary, none of them null.
    """
    data, offsets = _bytes_of(envelopes)
    headers, good = _headers(data, offsets)
    sizes = np.where(good, headers["raw_bytes"].astype(np.int64), 0) + HEADER_BYTES
    first, total = 0, len(good)
    ends = np.cumsum(sizes)
    while first < total:
        done = ends[first - 1] if first else 0
        last = max(first + 1, int(np.searchsorted(ends, done + piece_bytes, "right")))
        yield _piece(data, offsets[first : last + 1], headers[first:last], good[first:last], first)
        first = last


def damage(payload: bytes, segment: int, entry: int, tag: str) -> EnvelopeDamaged:
    """The error of an invalid envelope, as raised by ``envelope``.

    Raises:
        NewerFormat: nothing; it is one of a later version.
    """
    try:
        envelope = Envelope(payload, segment, entry, tag)
        if envelope.count:
            envelope.records()
    except EnvelopeDamaged as error:
        return error
    raise InvariantViolation(f"entry {entry} of segment {segment} of stream {tag} is an envelope after all")


def _bytes_of(envelopes: pa.Array) -> tuple[memoryview, Int64Array]:
    """The data and offsets of an Arrow array."""
    _, offsets, data = envelopes.buffers()
    if offsets is None or not len(envelopes):
        return memoryview(b""), np.zeros(1, np.int64)
    width = np.int64 if pa.types.is_large_binary(envelopes.type) else np.int32
    found = np.frombuffer(offsets, width, len(envelopes) + 1, envelopes.offset * np.dtype(width).itemsize)
    return memoryview(data or b""), found.astype(np.int64)


def _headers(data: memoryview, offsets: Int64Array) -> tuple[npt.NDArray[np.void], Flags]:
    """The header of each entry, and whether it is valid."""
    sizes = np.diff(offsets)
    long = sizes >= HEADER_BYTES
    headers = np.zeros(len(sizes), _HEADER)
    if long.any():
        begins = offsets[:-1][long]
        found = np.frombuffer(data, np.uint8)[begins[:, None] + np.arange(HEADER_BYTES)]
        headers[long] = found.view(_HEADER).reshape(-1)
    kind, count, raw = headers["kind"], headers["count"], headers["raw_bytes"].astype(np.int64)
    good = (
        long
        & (headers["magic"] == _MAGIC)
        & (headers["version"] == VERSION)
        & (headers["reserved"] == 0)
        & (kind <= EnvelopeKind.END_OF_STREAM)
        & (headers["compression"] <= Compression.LZ4)
        & ((headers["present"] & ~np.uint8(_ALL)) == 0)
        & ((kind == EnvelopeKind.RECORDS) == (count > 0))
        & (count <= MAX_RECORDS)
        & (raw <= MAX_RAW_BYTES)
        & ((headers["compression"] != 0) | (raw == sizes - HEADER_BYTES))
        & (headers["sequence"] >= 0)
        & (headers["sequence"] <= MAX_ID - count.astype(np.int64))
        & ((count > 0) | ((sizes <= HEADER_BYTES) & (headers["compression"] == 0)))
    )
    return headers, good


def _piece(
    data: memoryview, offsets: Int64Array, headers: npt.NDArray[np.void], good: Flags, first_row: int
) -> EnvelopeColumns:
    bodies, begins, good = _bodies(data, offsets, headers, good)
    while True:
        rows = np.flatnonzero(good & (headers["count"] > 0))
        found = _Bodies(bodies, begins[rows], headers[rows])
        bad = found.disagreeing
        if not bad.any():
            break
        good = good.copy()
        good[rows[bad]] = False
    return found.columns(rows, headers, good, first_row)


def _bodies(
    data: memoryview, offsets: Int64Array, headers: npt.NDArray[np.void], good: Flags
) -> tuple[memoryview, Int64Array, Flags]:
    """The decompressed bodies, and the offset of each."""
    packed = np.flatnonzero(good & (headers["compression"] != 0))
    begins = offsets[:-1] + HEADER_BYTES
    if not len(packed):
        return data, begins, good
    good, ends = good.copy(), offsets[1:].tolist()
    parts: list[bytes | memoryview] = []
    for row, (begin, end, compression, raw_bytes) in enumerate(
        zip(begins.tolist(), ends, headers["compression"].tolist(), headers["raw_bytes"].tolist(), strict=True)
    ):
        if not good[row] or not compression:
            parts.append(data[begin:end] if good[row] else b"")
            continue
        try:
            parts.append(decompressed(data[begin:end], Compression(compression), raw_bytes))
        except EnvelopeDamaged:
            good[row] = False
            parts.append(b"")
    starts = np.zeros(len(parts), np.int64)
    np.cumsum([len(part) for part in parts[:-1]], out=starts[1:])
    return memoryview(b"".join(parts)), starts, good


class _Bodies:
    """The bodies of envelopes that have records.

    Args:
        begins: where each of them begins in ``data``.
    """

    def __init__(self, data: memoryview, begins: Int64Array, headers: npt.NDArray[np.void]) -> None:
        self._data = data
        self._headers = headers
        self._counts = headers["count"].astype(np.int64)
        present = headers["present"]
        widths = ((_TIMES, 8), (_TXIDS, 8), (_ALL, 4), (_KEYS, 4), (_IDS, 2))
        self._has = [(present & flag) != 0 if flag != _ALL else np.ones(len(present), bool) for flag, _ in widths]
        spans = [np.where(has, self._counts * width, 0) for has, (_, width) in zip(self._has, widths, strict=True)]
        self._begins = np.cumsum([begins, *spans], axis=0)
        """Offsets of the five tables of each envelope, and of the payloads after them."""
        raw = headers["raw_bytes"].astype(np.int64)
        self.disagreeing: Flags = self._begins[5] - begins > raw
        """Envelopes whose columns do not match the size of the body."""
        if self.disagreeing.any():
            return
        self.sizes = self._numbers(2, "<u4").astype(np.int64)
        key_sizes = self._numbers(3, "<u4").astype(np.int64)
        self.keyed = np.repeat(self._has[3], self._counts)
        self.no_key = key_sizes == _NO_KEY
        self.key_sizes = np.where(self.no_key, 0, key_sizes)
        self.id_sizes = self._numbers(4, "<u2").astype(np.int64)
        self._payload_ends = self._begins[5] + self._sums(self.sizes, 2)
        self._key_ends = self._payload_ends + self._sums(self.key_sizes, 3)
        self._id_ends = self._key_ends + self._sums(self.id_sizes, 4)
        self.disagreeing = self._id_ends - begins != raw

    def _numbers(self, table: int, kind: str) -> npt.NDArray[np.generic]:
        """One table of numbers, concatenated over all envelopes that have it."""
        has = self._has[table]
        return np.frombuffer(self._joined(self._begins[table][has], self._begins[table + 1][has]), kind)

    def _joined(self, begins: Int64Array, ends: Int64Array) -> bytes:
        data = self._data
        return b"".join([data[begin:end] for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)])

    def _sums(self, sizes: Int64Array, table: int) -> Int64Array:
        """The sum of ``sizes`` for each envelope; 0 for one without the table."""
        has = self._has[table]
        found = np.zeros(len(has), np.int64)
        if has.any():
            counts = self._counts[has]
            found[has] = np.add.reduceat(sizes, np.cumsum(counts) - counts)
        return found

    def columns(self, rows: Int64Array, headers: npt.NDArray[np.void], good: Flags, first_row: int) -> EnvelopeColumns:
        """The columns of the records.

        Args:
            rows: indices of these envelopes in ``headers``.
        """
        counts = self._counts
        total = int(counts.sum())
        slot = np.arange(total, dtype=np.int64) - np.repeat(np.cumsum(counts) - counts, counts)
        times = np.repeat(self._headers["time"], counts)
        times[np.repeat(self._has[0], counts)] = self._numbers(0, "<i8")
        txids = np.full(total, NO_TXID, np.int64)
        txids[np.repeat(self._has[1], counts)] = self._numbers(1, "<i8")
        return EnvelopeColumns(
            first_row,
            good,
            headers["sequence"][good].astype(np.int64),
            headers["count"][good].astype(np.int64),
            first_row + np.repeat(rows, counts),
            slot,
            np.repeat(self._headers["sequence"], counts).astype(np.int64) + slot,
            times.astype(np.int64),
            _binary(self.sizes, self._joined(self._begins[5], self._payload_ends)),
            self._keys(total),
            self._ids(total),
            pa.array(txids, pa.int64(), mask=txids == NO_TXID),
        )

    def _keys(self, total: int) -> pa.Array:
        if not self.keyed.any():
            return pa.nulls(total, pa.binary())
        sizes, there = np.zeros(total, np.int64), np.zeros(total, bool)
        sizes[self.keyed], there[self.keyed] = self.key_sizes, ~self.no_key
        return _binary(sizes, self._joined(self._payload_ends, self._key_ends), there)

    def _ids(self, total: int) -> pa.Array:
        if not len(self.id_sizes):
            return pa.nulls(total, pa.binary())
        sizes = np.zeros(total, np.int64)
        sizes[np.repeat(self._has[4], self._counts)] = self.id_sizes
        return _binary(sizes, self._joined(self._key_ends, self._id_ends), sizes > 0)


def _binary(sizes: Int64Array, data: bytes, there: Flags | None = None) -> pa.Array:
    """An Arrow binary array of consecutive values."""
    offsets: npt.NDArray[np.int32] = np.zeros(len(sizes) + 1, np.int32)
    np.cumsum(sizes, out=offsets[1:])
    valid = None if there is None else pa.py_buffer(np.packbits(there, bitorder="little"))
    return pa.Array.from_buffers(pa.binary(), len(sizes), [valid, pa.py_buffer(offsets), pa.py_buffer(data)])
