"""The batch: encoding of consecutive entries of one ledger.

The writer encodes a batch once. The same bytes are the message to the bookies, the journal record, the value in the
write cache and the range of an entry log that one index row points to. The boundaries of a batch never change after
its first send.

docs/reference/formats/batch.md has the layout, an example, and the seed of an entry's checksum: an entry handed out
under another id of its ledger does not pass; under another ledger id, one in 2^32 does.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Final, NamedTuple

from crc32c import crc32c

from .buffers import Buffer
from .errors import EntryTooLarge, InvalidArgument, InvalidBatch, NewerFormat
from .ids import MAX_ID, NO_ENTRY
from .keys import same_secret
from .limits import (
    BATCH_DIGEST_BYTES,
    BATCH_HEADER_BYTES,
    BATCH_TABLE_ROW_BYTES,
    MAX_BATCH_BYTES,
    MAX_BATCH_ENTRIES,
    MAX_ENTRY_BYTES,
)

MAGIC: Final = b"TBAT"
VERSION: Final = 1
FLAG_DIGEST: Final = 1

_HEADER: Final = struct.Struct("<4sBBHIIqqqqqII")
_IDS: Final = struct.Struct("<8xI4xqq")
_CRC_AT: Final = 60
_CRC: Final = struct.Struct("<I")
_LEDGER: Final = struct.Struct("<q")
_SEED_SPACE: Final = 1 << 32
_MANY_ENTRIES: Final = 32


@dataclass(frozen=True, slots=True)
class BatchHeader:
    """The decoded first 64 bytes of a batch. Lengths are in bytes."""

    ledger_id: int
    first_entry_id: int
    entry_count: int
    payload_bytes: int
    lac: int
    ledger_length: int
    written_at_us: int
    flags: int
    crc: int

    @property
    def last_entry_id(self) -> int:
        """Id of the last entry in the batch."""
        return self.first_entry_id + self.entry_count - 1

    @property
    def total_bytes(self) -> int:
        """Length of the whole batch."""
        trailer = BATCH_DIGEST_BYTES if self.flags & FLAG_DIGEST else 0
        return BATCH_HEADER_BYTES + self.entry_count * BATCH_TABLE_ROW_BYTES + self.payload_bytes + trailer


class Entry(NamedTuple):
    """One entry, as readers get it. A tuple, because readers create millions of them.

    Args:
        written_at_us: when the writer sealed its batch, in microseconds since the epoch.
    """

    ledger_id: int
    entry_id: int
    payload: bytes
    written_at_us: int


def encoded_bytes(entry_count: int, payload_bytes: int, *, digest: bool = False) -> int:
    """Length of a batch of ``entry_count`` entries with ``payload_bytes`` of payload in all."""
    trailer = BATCH_DIGEST_BYTES if digest else 0
    return BATCH_HEADER_BYTES + entry_count * BATCH_TABLE_ROW_BYTES + payload_bytes + trailer


def encode_batch(
    ledger_id: int,
    first_entry_id: int,
    payloads: Sequence[Buffer],
    *,
    lac: int,
    ledger_length: int,
    written_at_us: int,
    digest_key: bytes | None = None,
) -> bytes:
    """Seal ``payloads`` into a batch.

    ``ledger_length`` counts payload bytes of the ledger up to and including this batch.
    ``digest_key`` adds the HMAC trailer.

    Raises:
        InvalidArgument: no payload, too many, a number out of its range, the batch exceeds
            ``MAX_BATCH_BYTES``, or a payload is not a buffer of single bytes.
        EntryTooLarge: one payload exceeds ``MAX_ENTRY_BYTES``.
    """
    front, body = _head_and_body(
        ledger_id, first_entry_id, payloads, lac, ledger_length, written_at_us, digest=digest_key is not None
    )
    if digest_key is not None:
        body += hmac.new(digest_key, front + b"\0\0\0\0" + body, hashlib.sha256).digest()
    return b"".join((front, _CRC.pack(crc32c(body, crc32c(front))), body))


def seal_batch(
    ledger_id: int,
    first_entry_id: int,
    payloads: Sequence[Buffer],
    *,
    lac: int,
    ledger_length: int,
    written_at_us: int,
    digest: bytes = b"",
) -> bytes:
    """Rebuild a batch from its parts, with the bytes of its first encoding. ``digest`` is the trailer, not checked.

    Raises:
        As ``encode_batch``.
    """
    if len(digest) not in {0, BATCH_DIGEST_BYTES}:
        raise InvalidArgument(f"a digest has {BATCH_DIGEST_BYTES} bytes, got {len(digest)}")
    front, body = _head_and_body(
        ledger_id, first_entry_id, payloads, lac, ledger_length, written_at_us, digest=bool(digest)
    )
    body += digest
    return b"".join((front, _CRC.pack(crc32c(body, crc32c(front))), body))


def encode_header(
    ledger_id: int,
    first_entry_id: int,
    table: bytes,
    payload: Buffer,
    *,
    lac: int,
    ledger_length: int,
    written_at_us: int,
    digest: bytes = b"",
) -> tuple[bytes, int]:
    """The header of a batch whose table and payload are already encoded, and the batch checksum.

    The batch is the header, ``table``, ``payload`` and ``digest``. Nothing is copied, and there is no cost per entry.

    Raises:
        InvalidArgument: a number out of its range.
    """
    count, rest = divmod(len(table), BATCH_TABLE_ROW_BYTES)
    if rest or len(digest) not in {0, BATCH_DIGEST_BYTES}:
        raise InvalidArgument(f"a batch cannot have a table of {len(table)} bytes and a digest of {len(digest)}")
    front = _front(
        ledger_id, first_entry_id, count, len(payload), lac, ledger_length, written_at_us, digest=bool(digest)
    )
    crc = crc32c(digest, crc32c(payload, crc32c(table, crc32c(front))))
    return front + _CRC.pack(crc), crc


def _head_and_body(
    ledger_id: int,
    first_entry_id: int,
    payloads: Sequence[Buffer],
    lac: int,
    ledger_length: int,
    written_at_us: int,
    *,
    digest: bool,
) -> tuple[bytes, bytes]:
    """The header up to its checksum, and everything after the checksum except the digest."""
    count = len(payloads)
    lengths = array("I", map(len, payloads))
    payload_bytes = sum(lengths)
    if lengths and max(lengths) > MAX_ENTRY_BYTES:
        raise EntryTooLarge(f"an entry of {max(lengths)} bytes exceeds the limit of {MAX_ENTRY_BYTES}")
    front = _front(ledger_id, first_entry_id, count, payload_bytes, lac, ledger_length, written_at_us, digest=digest)
    table = array("I", bytes(count * BATCH_TABLE_ROW_BYTES))
    table[0::2] = lengths
    table[1::2] = array("I", map(crc32c, payloads, _seeds(ledger_id, first_entry_id, count)))
    if sys.byteorder == "big":
        table.byteswap()
    body = b"".join((table.tobytes(), *payloads))
    if len(body) != count * BATCH_TABLE_ROW_BYTES + payload_bytes:
        raise InvalidArgument("a payload must be a buffer of single bytes")
    return front, body


def _front(
    ledger_id: int,
    first_entry_id: int,
    count: int,
    payload_bytes: int,
    lac: int,
    ledger_length: int,
    written_at_us: int,
    *,
    digest: bool,
) -> bytes:
    """The header up to its checksum.

    Raises:
        InvalidArgument: a number out of its range.
    """
    if not 1 <= count <= MAX_BATCH_ENTRIES:
        raise InvalidArgument(f"a batch holds 1 .. {MAX_BATCH_ENTRIES} entries, got {count}")
    if not 0 <= ledger_id <= MAX_ID or not 0 <= first_entry_id <= MAX_ID - count + 1:
        raise InvalidArgument(
            f"ledger {ledger_id} or {count} entry ids from {first_entry_id} on are not in 0 .. 2^63-1"
        )
    if not NO_ENTRY <= lac < first_entry_id or not payload_bytes <= ledger_length <= MAX_ID:
        raise InvalidArgument(f"lac {lac} or length {ledger_length} does not fit a batch from entry {first_entry_id}")
    if not -MAX_ID <= written_at_us <= MAX_ID:
        raise InvalidArgument(f"time of writing {written_at_us} us does not fit 64 bits")
    if encoded_bytes(count, payload_bytes, digest=digest) > MAX_BATCH_BYTES:
        raise InvalidArgument(f"{count} entries of {payload_bytes} bytes in all exceed a batch of {MAX_BATCH_BYTES}")
    head = _HEADER.pack(
        MAGIC, VERSION, FLAG_DIGEST if digest else 0, 0, count, payload_bytes,
        ledger_id, first_entry_id, lac, ledger_length, written_at_us, 0, 0,
    )  # fmt: skip
    return head[:_CRC_AT]


def decode_header(batch: Buffer) -> BatchHeader:
    """Decode the header and run all checks that do not need the checksum.

    Raises:
        InvalidBatch: wrong magic or version, counts out of range, or a length that is not
            exactly what the counts add up to.
        NewerFormat: an intact batch of a later version.
    """
    if len(batch) < BATCH_HEADER_BYTES:
        raise InvalidBatch(f"a batch of {len(batch)} bytes is shorter than its header")
    (magic, version, flags, reserved, count, payload_bytes, ledger_id, first, lac, length, written_at, zero, crc) = (
        _HEADER.unpack_from(batch)
    )
    if magic != MAGIC or version != VERSION:
        if magic == MAGIC and version > VERSION and _crc_of(memoryview(batch)) == crc:
            raise NewerFormat.of("the batch", version, VERSION)
        raise InvalidBatch(f"not a batch of version {VERSION}: magic {magic!r}, version {version}")
    if flags & ~FLAG_DIGEST or reserved or zero:
        raise InvalidBatch("reserved bits of the batch header are set")
    header = BatchHeader(ledger_id, first, count, payload_bytes, lac, length, written_at, flags, crc)
    if not 1 <= count <= MAX_BATCH_ENTRIES:
        raise InvalidBatch(f"entry count {count} is not in 1 .. {MAX_BATCH_ENTRIES}")
    if header.total_bytes != len(batch) or len(batch) > MAX_BATCH_BYTES:
        raise InvalidBatch(f"lengths do not add up: {len(batch)} bytes given, header says {header.total_bytes}")
    if ledger_id < 0 or not 0 <= first <= MAX_ID - count + 1:
        raise InvalidBatch(f"ids out of range: ledger {ledger_id}, first entry {first}")
    if not NO_ENTRY <= lac < first or length < payload_bytes:
        raise InvalidBatch(f"lac {lac} or ledger length {length} cannot belong to a batch from entry {first}")
    if written_at < -MAX_ID:
        raise InvalidBatch(f"{written_at} us is not a valid time of writing")
    return header


def peek_ids(batch: Buffer) -> tuple[int, int, int]:
    """Ledger id, first entry id and entry count from the header, unchecked.

    Raises:
        InvalidBatch: shorter than a header.
    """
    if len(batch) < BATCH_HEADER_BYTES:
        raise InvalidBatch(f"a batch of {len(batch)} bytes is shorter than its header")
    count, ledger_id, first_entry_id = _IDS.unpack_from(batch)
    return ledger_id, first_entry_id, count


def verify_batch(batch: Buffer, digest_key: bytes | None = None) -> BatchHeader:
    """Check a whole batch and return its header.

    Raises:
        InvalidBatch: malformed, or a checksum or digest that does not match, or entries whose
            lengths are not those of the payload. With ``digest_key``, a batch without a
            digest trailer does not pass.
        NewerFormat: an intact batch of a later version.
    """
    header = decode_header(batch)
    view = memoryview(batch)
    if _crc_of(view) != header.crc:
        raise InvalidBatch(f"checksum mismatch in ledger {header.ledger_id} from entry {header.first_entry_id}")
    if _sum_of_lengths(view, header.entry_count) != header.payload_bytes:
        raise _not_adding_up(header)
    if digest_key is not None:
        _verify_digest(view, header, digest_key)
    return header


def _crc_of(view: memoryview) -> int:
    """CRC of all bytes except the CRC field. Every version has it at the same offset, over the same bytes."""
    return int(crc32c(view[BATCH_HEADER_BYTES:], crc32c(view[:_CRC_AT])))


def _verify_digest(view: memoryview, header: BatchHeader, digest_key: bytes) -> None:
    if not header.flags & FLAG_DIGEST:
        raise InvalidBatch(f"ledger {header.ledger_id}: a batch from entry {header.first_entry_id} has no digest")
    signed = b"".join((view[:_CRC_AT], b"\0\0\0\0", view[BATCH_HEADER_BYTES:-BATCH_DIGEST_BYTES]))
    expected = hmac.new(digest_key, signed, hashlib.sha256).digest()
    if not same_secret(expected, view[-BATCH_DIGEST_BYTES:]):
        raise InvalidBatch(f"digest mismatch in ledger {header.ledger_id} from entry {header.first_entry_id}")


def payload_slices(batch: Buffer, header: BatchHeader) -> list[tuple[int, int]]:
    """Start and end offset of every payload within ``batch``.

    Raises:
        InvalidBatch: the length table does not add up to the payload bytes.
    """
    start = BATCH_HEADER_BYTES + header.entry_count * BATCH_TABLE_ROW_BYTES
    ends = list(accumulate(_table(batch, header)[0::2], initial=start))
    if ends[-1] != start + header.payload_bytes:
        raise _not_adding_up(header)
    return list(pairwise(ends))


def entries(batch: Buffer, header: BatchHeader, first: int = 0, last: int = MAX_ID) -> list[Entry]:
    """The entries of a **verified** batch whose ids lie in ``first .. last``.

    Raises:
        InvalidBatch: the length table does not add up to the payload bytes.
    """
    data = batch if isinstance(batch, bytes) else bytes(batch)
    low = max(first, header.first_entry_id)
    high = max(min(last, header.last_entry_id), low - 1)
    wanted = payload_slices(data, header)[low - header.first_entry_id : high - header.first_entry_id + 1]
    ledger_id, written_at_us = header.ledger_id, header.written_at_us
    return [
        Entry(ledger_id, entry_id, data[start:end], written_at_us)
        for entry_id, (start, end) in enumerate(wanted, start=low)
    ]


@dataclass(frozen=True, slots=True)
class EntrySlice:
    """One entry that a bookie cut out of its batch, with the checksum from its writer."""

    ledger_id: int
    entry_id: int
    payload: bytes
    payload_crc: int
    written_at_us: int
    lac: int

    def verify(self) -> Entry:
        """Return the entry if its bytes are those the writer sealed under these ids.

        Raises:
            InvalidBatch: the checksum does not match.
        """
        if entry_crc(self.ledger_id, self.entry_id, self.payload) != self.payload_crc:
            raise InvalidBatch(f"checksum mismatch in ledger {self.ledger_id}, entry {self.entry_id}")
        return Entry(self.ledger_id, self.entry_id, self.payload, self.written_at_us)


def cut_entry(batch: Buffer, header: BatchHeader, entry_id: int) -> EntrySlice:
    """Cut one entry out of a batch, unverified: the reader checks it.

    Raises:
        InvalidBatch: the entry is not in this batch, or its length reaches beyond the payload.
    """
    place = entry_place(batch, header, entry_id)
    payload = bytes(memoryview(batch)[place.offset : place.offset + place.size])
    return EntrySlice(header.ledger_id, entry_id, payload, place.crc, header.written_at_us, header.lac)


class EntryPlace(NamedTuple):
    """Where the payload of an entry is in its batch, in bytes, and its checksum."""

    offset: int
    size: int
    crc: int


def entry_place(table_part: Buffer, header: BatchHeader, entry_id: int) -> EntryPlace:
    """The place of an entry in its batch.

    Args:
        table_part: the batch, or only its header and table.

    Raises:
        InvalidBatch: the entry is not in this batch, or its length reaches beyond the payload.
    """
    index = entry_id - header.first_entry_id
    if not 0 <= index < header.entry_count:
        raise InvalidBatch(f"entry {entry_id} is not in the batch from entry {header.first_entry_id}")
    table = _table(table_part, header)
    payloads = BATCH_HEADER_BYTES + header.entry_count * BATCH_TABLE_ROW_BYTES
    start, size = payloads + sum(table[0 : 2 * index : 2]), table[2 * index]
    if start + size > payloads + header.payload_bytes:
        raise _not_adding_up(header)
    return EntryPlace(start, size, table[2 * index + 1])


def entry_crc(ledger_id: int, entry_id: int, payload: Buffer) -> int:
    """CRC-32C of one payload, seeded by its ledger id and entry id."""
    return int(crc32c(payload, _seed_base(ledger_id, entry_id)))


def _table(batch: Buffer, header: BatchHeader) -> array[int]:
    table = array("I")
    end = BATCH_HEADER_BYTES + header.entry_count * BATCH_TABLE_ROW_BYTES
    table.frombytes(memoryview(batch)[BATCH_HEADER_BYTES:end])
    if sys.byteorder == "big":
        table.byteswap()
    return table


def _sum_of_lengths(view: memoryview, entry_count: int) -> int:
    """Sum of the entry lengths. Runs for every batch that a bookie accepts."""
    rows = view[BATCH_HEADER_BYTES : BATCH_HEADER_BYTES + entry_count * BATCH_TABLE_ROW_BYTES]
    if entry_count >= _MANY_ENTRIES:
        # Fast path: usually all lengths are equal, which needs no number per entry.
        table = bytes(rows)
        if all(table[at::BATCH_TABLE_ROW_BYTES].count(table[at]) == entry_count for at in range(4)):
            return entry_count * int.from_bytes(table[:4], "little")
    if sys.byteorder == "big":
        lengths = array("I", bytes(rows))
        lengths.byteswap()
        return sum(lengths[::2])
    return sum(rows.cast("I")[::2])


def _not_adding_up(header: BatchHeader) -> InvalidBatch:
    return InvalidBatch(f"entry lengths of ledger {header.ledger_id} do not add up to the payload")


def _seed_base(ledger_id: int, entry_id: int) -> int:
    return (int(crc32c(_LEDGER.pack(ledger_id))) + entry_id) % _SEED_SPACE


def _seeds(ledger_id: int, first_entry_id: int, count: int) -> Sequence[int]:
    start = _seed_base(ledger_id, first_entry_id)
    if start + count <= _SEED_SPACE:
        return range(start, start + count)
    return [(start + i) % _SEED_SPACE for i in range(count)]
