"""Fuzz target: entry logs and index rows, as a bookie finds them in its directories."""

from __future__ import annotations

import struct
import uuid
from collections.abc import Iterator

from tallybook.bookie.ledgers import state as ledger_state
from tallybook.bookie.ledgers.state import Ledger, LedgerRow
from tallybook.bookie.storage.entry_log import format as fmt
from tallybook.bookie.storage.entry_log import lengths as entry_log_lengths
from tallybook.bookie.storage.entry_log.format import LedgerShare, LogFile, TableRow
from tallybook.bookie.storage.entry_log.inspect import verify_entry_log
from tallybook.bookie.storage.entry_log.scan import Footer, Stretch, read_footer, walk
from tallybook.bookie.storage.index import durable_mark as index_mark
from tallybook.bookie.storage.index import format as index_format
from tallybook.bookie.storage.location import IndexRow, Location
from tallybook.core.batch import encode_batch
from tallybook.core.errors import DamagedFile
from tallybook.core.limits import BLOCK_BYTES

from ..harness import REFUSED, Target, attempt, finished, same
from ..mutations import with_crc
from ..one_file_disk import OneFile

TARGET = Target("entry_logs", words=(b"TLOG\x01\x00", b"TSTR\x01\x00", b"TFTR\x01\x00", b"TEND", b"TLEN", b"TIXM"))

UUID = uuid.UUID("00112233-4455-6677-8899-aabbccddeeff").bytes
LOG = LogFile("/b/entrylog-0000000000000005.log", UUID, 5)
BATCH = encode_batch(7, 0, [b"hello"], lac=-1, ledger_length=5, written_at_us=1)
ROWS = [TableRow(7, 0, -1, 1, len(BATCH)), TableRow(9, 3, 2, 3, 98)]
PART_HEAD = 60


def some_headers() -> Iterator[bytes]:
    """The fields of the header only: zeros and a checksum follow."""
    yield fmt.encode_log_header(LOG)[:32]


@TARGET.decoder("bookie/storage/entry_log/format.py:decode_log_header", seeds=some_headers)
def log_header(data: bytes) -> None:
    """The first block of a log."""
    attempt(DamagedFile, fmt.decode_log_header, LOG.path, data)
    block = data[: BLOCK_BYTES - 4].ljust(BLOCK_BYTES, b"\0")
    block = with_crc(block, BLOCK_BYTES - 4, (0, BLOCK_BYTES - 4))
    found = attempt(DamagedFile, fmt.decode_log_header, LOG.path, block)
    if found is not REFUSED:
        same(fmt.decode_log_header(LOG.path, fmt.encode_log_header(found)), found, "the header of a log")


def some_stretches() -> Iterator[bytes]:
    """Range headers with their tables."""
    yield fmt.encode_stretch(LOG, BLOCK_BYTES, ROWS[:1], 0)
    yield fmt.encode_stretch(LOG, BLOCK_BYTES, ROWS, BLOCK_BYTES)


@TARGET.decoder(
    "bookie/storage/entry_log/format.py:decode_stretch_header",
    "bookie/storage/entry_log/format.py:decode_table",
    "bookie/storage/entry_log/format.py:_decode_part",
    "bookie/storage/entry_log/format.py:_checked",
    "bookie/storage/entry_log/format.py:_crc_fits",
    "bookie/storage/entry_log/format.py:part_identity",
    seeds=some_stretches,
)
def stretch(data: bytes) -> None:
    """The header of a range of batches, and its table."""
    if len(data) >= fmt.PART_HEADER_BYTES:
        fmt.part_identity(data)
    header = attempt(DamagedFile, fmt.decode_stretch_header, LOG, BLOCK_BYTES, data)
    if header is REFUSED:
        return
    attempt(DamagedFile, fmt.decode_table, LOG, header, data)
    end = header.batches_offset - header.offset
    mended = with_crc(data, PART_HEAD, (0, PART_HEAD), (fmt.PART_HEADER_BYTES, end))
    header = fmt.decode_stretch_header(LOG, BLOCK_BYTES, mended)
    found = attempt(DamagedFile, fmt.decode_table, LOG, header, mended)
    if found is not REFUSED:
        again = fmt.encode_stretch(LOG, BLOCK_BYTES, [row for row, _ in found], header.vouched)
        same(again, mended[:end], "a stretch")


def some_footers() -> Iterator[bytes]:
    """Footers without ledgers, and with some."""
    for ledgers in ({}, {7: LedgerShare(77, 1), 9: LedgerShare(98, 2)}):
        footer = fmt.encode_footer(LOG, BLOCK_BYTES, ledgers)
        yield footer[: fmt.PART_HEADER_BYTES + len(ledgers) * fmt.MAP_ROW_BYTES]


@TARGET.decoder(
    "bookie/storage/entry_log/format.py:check_footer_header",
    "bookie/storage/entry_log/format.py:decode_footer",
    "bookie/storage/entry_log/format.py:decode_end_mark",
    seeds=some_footers,
)
def footer(data: bytes) -> None:
    """A footer of any size, with the zeros and the end mark that belong to it."""
    attempt(DamagedFile, fmt.decode_footer, LOG, BLOCK_BYTES, data)
    fmt.decode_end_mark(data[-fmt.END_MARK_BYTES :])
    if len(data) < fmt.PART_HEADER_BYTES:
        return
    count = struct.unpack_from("<I", data, 40)[0] % 300
    size, end = fmt.footer_bytes(count), fmt.PART_HEADER_BYTES + count * fmt.MAP_ROW_BYTES
    mark = fmt.encode_footer(LOG, BLOCK_BYTES, {})[-fmt.END_MARK_BYTES :]
    whole = data[:end].ljust(size - fmt.END_MARK_BYTES, b"\0") + mark
    whole = with_crc(whole, PART_HEAD, (0, PART_HEAD), (fmt.PART_HEADER_BYTES, end))
    found = attempt(DamagedFile, fmt.decode_footer, LOG, BLOCK_BYTES, whole)
    if found is not REFUSED and list(found.ledgers) == sorted(found.ledgers) and len(found.ledgers) == count:
        same(fmt.encode_footer(LOG, BLOCK_BYTES, found.ledgers), whole, "a footer")


def some_logs() -> Iterator[bytes]:
    """The content after the header of a log: a range; a range and a footer; damaged ones."""
    head = fmt.encode_stretch(LOG, BLOCK_BYTES, ROWS[:1], 0)
    first = (head + BATCH).ljust(BLOCK_BYTES, b"\0")
    yield first
    yield first + fmt.encode_footer(LOG, 2 * BLOCK_BYTES, {7: LedgerShare(len(BATCH), 1)})
    head = fmt.encode_stretch(LOG, 2 * BLOCK_BYTES, ROWS[:1], 2 * BLOCK_BYTES)
    yield bytes(BLOCK_BYTES) + (head + BATCH).ljust(BLOCK_BYTES, b"\0")


@TARGET.decoder(
    "bookie/storage/entry_log/scan.py:walk",
    "bookie/storage/entry_log/scan.py:_part_at",
    "bookie/storage/entry_log/scan.py:_footer_at",
    "bookie/storage/entry_log/scan.py:read_footer",
    "bookie/storage/entry_log/inspect.py:verify_entry_log",
    "bookie/storage/entry_log/inspect.py:_identity",
    seeds=some_logs,
)
def log(data: bytes) -> None:
    """A whole log, its header intact or not: as read by a scan, by a boot, and by the inspection commands."""
    mended = b"".join(_mended_part(data[at : at + BLOCK_BYTES]) for at in range(0, len(data), BLOCK_BYTES))
    for front in (fmt.encode_log_header(LOG), bytes(BLOCK_BYTES)):
        disk = OneFile(LOG.path, front + mended)
        size = len(front + mended)

        async def parts(disk: OneFile = disk, size: int = size) -> None:
            at = BLOCK_BYTES
            async for part in walk(LOG, disk.read, size):
                offset = part.header.offset if isinstance(part, Stretch) else part.offset
                same(offset, min(at, size), "where a part begins")
                at = part.header.end if isinstance(part, Stretch) else part.offset + getattr(part, "size", 0)
                if isinstance(part, Footer):
                    same(await read_footer(LOG, disk.read, size), part, "a footer")

        attempt((), finished, parts())
        attempt((), finished, verify_entry_log(disk, LOG.path))
        attempt(DamagedFile, finished, read_footer(LOG, disk.read, size))


def _mended_part(part: bytes) -> bytes:
    rows = {fmt.STRETCH_MAGIC: fmt.TABLE_ROW_BYTES, fmt.FOOTER_MAGIC: fmt.MAP_ROW_BYTES}.get(part[:4])
    if rows is None or len(part) < fmt.PART_HEADER_BYTES:
        return part
    end = fmt.PART_HEADER_BYTES + struct.unpack_from("<I", part, 40)[0] * rows
    return with_crc(part, PART_HEAD, (0, PART_HEAD), (fmt.PART_HEADER_BYTES, end))


def some_names() -> Iterator[bytes]:
    """Names of a log, and of a removed one."""
    yield fmt.log_name(5).encode()
    yield fmt.removed_name(2**63 - 1).encode()


@TARGET.decoder(
    "bookie/storage/entry_log/format.py:parse_log_name",
    "bookie/storage/entry_log/format.py:parse_removed_name",
    seeds=some_names,
)
def log_name(data: bytes) -> None:
    """The name of a log file."""
    name = data.decode(errors="surrogateescape")
    number = fmt.parse_log_name(name)
    if number is not None:
        same(fmt.log_name(number), name, "the name of a log")
    number = fmt.parse_removed_name(name)
    if number is not None:
        same(fmt.removed_name(number), name, "the name of a log that is gone")


def some_rows() -> Iterator[bytes]:
    """Keys and values of batches, one after the other."""
    yield b"".join(index_format.encode_row(IndexRow(7, 3, Location(5, 4096, 98, 3))))
    yield b"".join(index_format.encode_row(IndexRow(0, 0, Location(0, 0, 1, 1))))


@TARGET.decoder(
    "bookie/storage/index/format.py:split_row_key", "bookie/storage/index/format.py:decode_row", seeds=some_rows
)
def index_row(data: bytes) -> None:
    """An index row of a batch."""
    key, value = data[: index_format.ROW_KEY_BYTES], data[index_format.ROW_KEY_BYTES :]
    attempt(DamagedFile, index_format.split_row_key, data)
    attempt(DamagedFile, index_format.decode_row, key, value)
    mended = with_crc(data, 44, (0, 44))[index_format.ROW_KEY_BYTES :]
    found = attempt(DamagedFile, index_format.decode_row, key, mended)
    if found is not REFUSED:
        same(index_format.encode_row(found), (key, mended), "a row of the index")


def some_states() -> Iterator[bytes]:
    """Keys and values of ledger states."""
    for row in (
        LedgerRow(), ledger_state.TOMBSTONE, LedgerRow(b"", True, True, False, 5, -1, 9, 2),
        LedgerRow(bytes(32), False, False, False, 5, 7, 9, 0), LedgerRow(b"", identity=bytes(16)),
    ):  # fmt: skip
        yield b"".join(index_format.encode_state(7, ledger_state.encode_row(7, row)))


@TARGET.decoder(
    "bookie/storage/index/format.py:split_state_key",
    "bookie/storage/index/format.py:leading_ledger",
    "bookie/storage/index/format.py:decode_state",
    "bookie/ledgers/state.py:decode_row",
    seeds=some_states,
)
def ledger_row(data: bytes) -> None:
    """An index row with the state of a ledger."""
    key, value = data[:8], data[8:]
    attempt(DamagedFile, index_format.leading_ledger, key)
    attempt(DamagedFile, index_format.decode_state, key, value)
    if len(key) < 8:
        return
    mended = with_crc(data, 12, (0, 12), (16, None))[8:]
    state = attempt(DamagedFile, index_format.decode_state, key, mended)
    if state is not REFUSED:
        same(index_format.encode_state(index_format.split_state_key(key), state), (key, mended), "a state in the index")
    for given in (value[8:], with_crc(key + value[8:], 8, (0, 8), (12, None))[8:]):
        ledger_id = index_format.split_state_key(key)
        row = attempt(DamagedFile, ledger_state.decode_row, ledger_id, given)
        if row is not REFUSED:
            same(ledger_state.decode_row(ledger_id, ledger_state.encode_row(ledger_id, row)), row, "a ledger's state")
            ledger = Ledger(ledger_id, row)
            ledger.fits(b"")
            ledger_state.encode_row(ledger_id, ledger.row_to_write())


def some_notes() -> Iterator[bytes]:
    """The durable position of the index, and the lengths of logs."""
    yield struct.pack("<4sIq", b"TIXM", 1, 77)
    yield struct.pack("<4sHH16sQ", b"TLEN", 1, 0, UUID, 0)
    yield struct.pack("<4sHH16sQQQ", b"TLEN", 1, 0, UUID, 1, 5, 8192)


@TARGET.decoder(
    "bookie/storage/index/durable_mark.py:read_mark",
    "bookie/storage/entry_log/lengths.py:read_lengths",
    seeds=some_notes,
)
def notes(data: bytes) -> None:
    """The two small files beside index and logs."""
    for given in (data, with_crc(data + bytes(4), len(data), (0, len(data)))):
        attempt(DamagedFile, finished, index_mark.read_mark(OneFile("index/synced", given), "index"))
        for owner in (None, UUID):
            attempt(
                DamagedFile, finished, entry_log_lengths.read_lengths(OneFile("logs/lengths", given), "logs", owner)
            )
