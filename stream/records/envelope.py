"""The envelope: the content of one entry of a segment's ledger, with one or more records, or a mark. Pure.

docs/reference/formats/envelope.md has the layout: a header, then the columns, one after the other. Except for the
payloads and their lengths, a column is present only if some record has a value.

Every envelope contains the highest values so far, so a stream can be searched by any of them with binary search, and
the last envelope has the stream's marks.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import IntEnum
from itertools import accumulate, pairwise
from typing import Final, NamedTuple

from tallybook.core.errors import EnvelopeDamaged, NewerFormat
from tallybook.core.ids import MAX_ID
from tallybook.core.limits import MIB

from ..position import Position
from .compression import Compression, compressed, decompressed
from .record import NO_TIME, NO_TXID

MAGIC: Final = b"TS"
VERSION: Final = 1
MAX_RECORDS: Final = 8_192
"""Records in one envelope at most; bounds what a reader allocates."""
MAX_RAW_BYTES: Final = 8 * MIB
"""Size of a decompressed body at most; bounds what a reader allocates."""
HEADER_BYTES: Final = 56
RECORD_OVERHEAD_BYTES: Final = 26
"""Overhead of a record at most, besides payload, key and id."""

_HEADER: Final = struct.Struct("<2sBBBBHIIqqqqq")
_NO_KEY: Final = 2**32 - 1
_TIMES, _TXIDS, _KEYS, _IDS = 1, 2, 4, 8
_ALL: Final = _TIMES | _TXIDS | _KEYS | _IDS


class EnvelopeKind(IntEnum):
    """The kind of an envelope: records, or a mark."""

    RECORDS = 0
    KEEP_ALIVE = 1
    """A mark that only moves the last add confirmed."""
    END_OF_SEGMENT = 2
    """The stream continues in the next segment."""
    END_OF_STREAM = 3
    """The stream is sealed."""


class StreamMarks(NamedTuple):
    """The state of a stream at some point: record count and highest values.

    Args:
        next_sequence: number of the next record.
        highest_time: highest timestamp so far, in milliseconds; ``NO_TIME`` before the first.
        highest_txid: highest transaction id so far; ``NO_TXID`` before the first.
        ids_before: number of the record after the last one that has an id; 0 if none has.
    """

    next_sequence: int = 0
    highest_time: int = NO_TIME
    highest_txid: int = NO_TXID
    ids_before: int = 0


START: Final = StreamMarks()


class RecordColumns:
    """The records of an envelope to be encoded, by column. A column without values takes no space."""

    __slots__ = ("default_time", "ids", "keys", "payloads", "times", "txids")

    def __init__(self, default_time: int) -> None:
        self.default_time = default_time
        self.payloads: list[bytes] = []
        self.times: list[int] | None = None
        self.txids: list[int] | None = None
        self.keys: list[bytes | None] | None = None
        self.ids: list[bytes] | None = None

    def add(
        self, payload: bytes, time: int | None, key: bytes | None, dedup_id: bytes | None, txid: int | None
    ) -> None:
        """Add a record."""
        before = len(self.payloads)
        self.payloads.append(payload)
        if self.times is not None or (time is not None and time != self.default_time):
            if self.times is None:
                self.times = [self.default_time] * before
            self.times.append(self.default_time if time is None else time)
        if self.txids is not None or txid is not None:
            if self.txids is None:
                self.txids = [NO_TXID] * before
            self.txids.append(NO_TXID if txid is None else txid)
        if self.keys is not None or key is not None:
            if self.keys is None:
                self.keys = [None] * before
            self.keys.append(key)
        if self.ids is not None or dedup_id is not None:
            if self.ids is None:
                self.ids = [b""] * before
            self.ids.append(dedup_id or b"")

    @classmethod
    def of(cls, envelope: Envelope) -> RecordColumns:
        """The columns of an encoded envelope."""
        found, columns = cls(envelope.default_time), envelope.columns
        found.payloads, found.keys, found.ids = columns.payloads, columns.keys, columns.ids
        found.times = None if columns.times is None else list(columns.times)
        found.txids = None if columns.txids is None else list(columns.txids)
        return found

    def between(self, begin: int, end: int) -> RecordColumns:
        """The columns of the records ``begin .. end - 1``."""
        found = RecordColumns(self.default_time)
        found.payloads = self.payloads[begin:end]
        found.times = None if self.times is None else self.times[begin:end]
        found.txids = None if self.txids is None else self.txids[begin:end]
        found.keys = None if self.keys is None else self.keys[begin:end]
        # Without any id there must be no column: see ``marks_after``.
        found.ids = None if self.ids is None or not any(self.ids[begin:end]) else self.ids[begin:end]
        return found

    def sizes(self) -> list[int]:
        """Bytes of payload, key and id of each record."""
        found = [*map(len, self.payloads)]
        if self.keys is not None:
            found = [size + len(key or b"") for size, key in zip(found, self.keys, strict=True)]
        if self.ids is not None:
            found = [size + len(dedup_id) for size, dedup_id in zip(found, self.ids, strict=True)]
        return found

    def marks_after(self, marks: StreamMarks) -> StreamMarks:
        """The stream's marks after these records."""
        if not self.payloads:
            return marks
        time = self.default_time if self.times is None else max(self.times)
        txid = NO_TXID if self.txids is None else max(self.txids)
        ids_before = marks.ids_before
        if self.ids is not None:
            ids_before = marks.next_sequence + max(at for at, dedup_id in enumerate(self.ids) if dedup_id) + 1
        return StreamMarks(
            marks.next_sequence + len(self.payloads),
            max(marks.highest_time, time),
            max(marks.highest_txid, txid),
            ids_before,
        )


def encode_records(columns: RecordColumns, before: StreamMarks, compression: Compression = Compression.NONE) -> bytes:
    """Encode an envelope of records.

    Args:
        before: the stream's marks before them.
    """
    payloads, count = columns.payloads, len(columns.payloads)
    after, present, parts = columns.marks_after(before), 0, []
    if columns.times is not None:
        present |= _TIMES
        parts.append(struct.pack(f"<{count}q", *columns.times))
    if columns.txids is not None:
        present |= _TXIDS
        parts.append(struct.pack(f"<{count}q", *columns.txids))
    parts.append(struct.pack(f"<{count}I", *map(len, payloads)))
    keys, ids = columns.keys, columns.ids
    if keys is not None:
        present |= _KEYS
        parts.append(struct.pack(f"<{count}I", *(_NO_KEY if key is None else len(key) for key in keys)))
    if ids is not None:
        present |= _IDS
        parts.append(struct.pack(f"<{count}H", *map(len, ids)))
    parts += payloads
    if keys is not None:
        parts += [key for key in keys if key]
    if ids is not None:
        parts += ids
    # Joined once at the end, unless it is compressed.
    raw_bytes = sum(map(len, parts))
    if compression is not Compression.NONE:
        compression, body = compressed(b"".join(parts), compression)
        parts = [body]
    header = _HEADER.pack(
        MAGIC, VERSION, EnvelopeKind.RECORDS, compression, present, 0, count, raw_bytes, before.next_sequence,
        columns.default_time, after.highest_time, after.highest_txid, after.ids_before,
    )  # fmt: skip
    return b"".join((header, *parts))


def encode_mark(kind: EnvelopeKind, marks: StreamMarks, time: int) -> bytes:
    """Encode a mark, an envelope without records.

    Args:
        time: time of creation, in milliseconds since the epoch.
    """
    return _HEADER.pack(
        MAGIC, VERSION, kind, Compression.NONE, 0, 0, 0, 0, marks.next_sequence, time, marks.highest_time,
        marks.highest_txid, marks.ids_before,
    )  # fmt: skip


class Envelope:
    """A decoded envelope; its records refer to it for the values that they share.

    Args:
        payload: of the entry.
        segment, entry, tag: its place; see ``Position``.

    Raises:
        EnvelopeDamaged: not a valid envelope.
        NewerFormat: an envelope of a later version.
    """

    __slots__ = (
        "_body",
        "_columns",
        "_compression",
        "_present",
        "_raw_bytes",
        "count",
        "default_time",
        "entry",
        "first_sequence",
        "kind",
        "marks",
        "segment",
        "tag",
    )

    def __init__(self, payload: bytes | memoryview, segment: int, entry: int, tag: str) -> None:
        self.segment, self.entry, self.tag = segment, entry, tag
        self.first_sequence: int
        self._raw_bytes: int
        self.default_time: int
        if len(payload) < HEADER_BYTES:
            raise self._damaged(f"has {len(payload)} bytes")
        (
            magic, version, kind, compression, present, reserved, count, raw_bytes, self.first_sequence,
            self.default_time, highest_time, highest_txid, ids_before,
        ) = _HEADER.unpack_from(payload)  # fmt: skip
        if magic == MAGIC and version > VERSION:
            raise NewerFormat.of(self._where, version, VERSION)
        if magic != MAGIC or version != VERSION or reserved:
            raise self._damaged(f"begins with {bytes(payload[:8])!r}")
        if kind > EnvelopeKind.END_OF_STREAM or compression > Compression.LZ4 or present & ~_ALL:
            raise self._damaged(f"is of kind {kind}, compression {compression}, columns {present}")
        self.kind, self._compression = EnvelopeKind(kind), Compression(compression)
        if (kind == EnvelopeKind.RECORDS) != bool(count) or count > MAX_RECORDS or raw_bytes > MAX_RAW_BYTES:
            raise self._damaged(f"is of kind {kind}, with {count} records in {raw_bytes} bytes")
        if not compression and raw_bytes != len(payload) - HEADER_BYTES:
            raise self._damaged(f"has {len(payload)} bytes, with a body of {raw_bytes}")
        if not 0 <= self.first_sequence <= MAX_ID - count or (
            not count and (compression or len(payload) > HEADER_BYTES)
        ):
            raise self._damaged(f"has records from {self.first_sequence} on, in {len(payload)} bytes")
        self.count, self._present, self._raw_bytes = count, present, raw_bytes
        self.marks = StreamMarks(self.first_sequence + count, highest_time, highest_txid, ids_before)
        """The stream's marks after it."""
        self._body = payload if isinstance(payload, bytes) else bytes(payload)
        self._columns: _Columns | None = None

    @property
    def columns(self) -> _Columns:
        """The records, by column.

        Raises:
            EnvelopeDamaged: the body does not match the header.
        """
        if self._columns is None:
            body, start = self._body, HEADER_BYTES
            if self._compression is not Compression.NONE:
                body, start = decompressed(memoryview(body)[start:], self._compression, self._raw_bytes), 0
            try:
                self._columns = _columns(body, start, self.count, self._present)
            except (struct.error, _LengthsDisagree) as error:
                raise self._damaged(f"has a body of other lengths: {error}") from error
            self._body = b""
        return self._columns

    @property
    def memory_bytes(self) -> int:
        """Approximate memory once its records are decoded."""
        size: int = self._raw_bytes + HEADER_BYTES + self.count * RECORD_OVERHEAD_BYTES
        return size

    def records(self, first_slot: int = 0) -> list[Record]:
        """The records from a slot on.

        Raises:
            EnvelopeDamaged: as ``columns``.
        """
        payloads = self.columns.payloads
        if first_slot:
            return [Record(self, slot, payloads[slot]) for slot in range(first_slot, self.count)]
        return [Record(self, slot, payload) for slot, payload in enumerate(payloads)]

    @property
    def _where(self) -> str:
        return f"entry {self.entry} of segment {self.segment} of stream {self.tag}"

    def _damaged(self, how: str) -> EnvelopeDamaged:
        return EnvelopeDamaged(f"{self._where} {how}")


class Record:
    """A record read from a stream."""

    __slots__ = ("_envelope", "_slot", "payload")

    def __init__(self, envelope: Envelope, slot: int, payload: bytes) -> None:
        self._envelope = envelope
        self._slot = slot
        self.payload = payload
        """The content."""

    @property
    def position(self) -> Position:
        """Its position in the stream."""
        envelope = self._envelope
        return Position(envelope.segment, envelope.entry, self._slot, envelope.tag)

    @property
    def place_behind(self) -> tuple[int, int, int]:
        """Segment, entry and slot of the next record."""
        envelope, slot = self._envelope, self._slot + 1
        if slot == envelope.count:
            return envelope.segment, envelope.entry + 1, 0
        return envelope.segment, envelope.entry, slot

    @property
    def sequence(self) -> int:
        """Its number in the stream, counted from 0."""
        return self._envelope.first_sequence + self._slot

    @property
    def timestamp_ms(self) -> int:
        """Event time, or time of the append, in milliseconds since the epoch."""
        times = self._envelope.columns.times
        return self._envelope.default_time if times is None else times[self._slot]

    @property
    def key(self) -> bytes | None:
        """Its key, if it has one."""
        keys = self._envelope.columns.keys
        return None if keys is None else keys[self._slot]

    @property
    def dedup_id(self) -> bytes | None:
        """Its deduplication id, if it has one."""
        ids = self._envelope.columns.ids
        return (ids[self._slot] or None) if ids is not None else None

    @property
    def txid(self) -> int | None:
        """Its transaction id, if it has one."""
        txids = self._envelope.columns.txids
        return None if txids is None or txids[self._slot] == NO_TXID else txids[self._slot]

    def _as_tuple(self) -> tuple[object, ...]:
        return (
            self.position, self.sequence, self.payload, self.timestamp_ms, self.key, self.dedup_id, self.txid
        )  # fmt: skip

    def __eq__(self, other: object) -> bool:
        return self._as_tuple() == other._as_tuple() if isinstance(other, Record) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.position)

    def __repr__(self) -> str:
        return f"Record({self.position}, {self.sequence}, {self.payload!r:.60})"


class _LengthsDisagree(Exception):
    """The columns do not match the size of the body."""


class _Columns(NamedTuple):
    payloads: list[bytes]
    times: Sequence[int] | None
    txids: Sequence[int] | None
    keys: list[bytes | None] | None
    ids: list[bytes] | None


def _columns(body: bytes, start: int, count: int, present: int) -> _Columns:
    at = start

    def numbers(code: str, wanted: int = _ALL) -> tuple[int, ...] | None:
        nonlocal at
        if wanted != _ALL and not present & wanted:
            return None
        found = struct.unpack_from(f"<{count}{code}", body, at)
        at += struct.calcsize(code) * count
        return found

    times, txids, sizes = numbers("q", _TIMES), numbers("q", _TXIDS), numbers("I") or ()
    key_sizes, id_sizes = numbers("I", _KEYS), numbers("H", _IDS)
    keys_at = at + sum(sizes)
    ids_at = keys_at + sum(size for size in key_sizes or () if size != _NO_KEY)
    if (end := ids_at + sum(id_sizes or ())) != len(body):
        raise _LengthsDisagree(f"{end - start} bytes of {len(body) - start}")
    keys: list[bytes | None] | None = None
    if key_sizes is not None:
        cut = _cut(body, keys_at, [0 if size == _NO_KEY else size for size in key_sizes])
        keys = [None if size == _NO_KEY else key for size, key in zip(key_sizes, cut, strict=True)]
    ids = None if id_sizes is None else _cut(body, ids_at, id_sizes)
    return _Columns(_cut(body, at, sizes), times, txids, keys, ids)


def _cut(body: bytes, start: int, sizes: Sequence[int]) -> list[bytes]:
    return [body[begin:end] for begin, end in pairwise(accumulate(sizes, initial=start))]
