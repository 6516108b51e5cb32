"""Entry log format: encoding and checking, no I/O.

An entry log holds the batches of many ledgers, as they were sent: a header, *stretches*, and a footer once it is
finished. One append writes a stretch: a table and the batches it lists. docs/reference/formats/entry-log.md has the
bytes of each, and an example.

With the table, a scan reads a thousandth of the log, and can say what a damaged batch was. A stretch states its offset,
its log and its bookie, so that bytes which merely look like one (a client may store anything) are not accepted.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from crc32c import crc32c

from tallybook.core.buffers import Buffer
from tallybook.core.errors import DamagedFile, InvalidArgument, NewerFormat
from tallybook.core.ids import MAX_ID, NO_ENTRY
from tallybook.core.limits import BATCH_HEADER_BYTES, BLOCK_BYTES, MAX_BATCH_BYTES, MAX_BATCH_ENTRIES, MIB

from ..location import Location

VERSION: Final = 1
LOG_HEADER_BYTES: Final = BLOCK_BYTES
PART_HEADER_BYTES: Final = 64
TABLE_ROW_BYTES: Final = 32
MAP_ROW_BYTES: Final = 24
END_MARK_BYTES: Final = 16
MAX_STRETCH_BATCHES: Final = 1_000
"""Also keeps a stretch within one vectored write of Linux, which takes 1,024 buffers."""
MAX_STRETCH_BATCH_BYTES: Final = MIB
MAX_TABLE_BYTES: Final = MAX_STRETCH_BATCHES * TABLE_ROW_BYTES

LOG_MAGIC: Final = b"TLOG"
STRETCH_MAGIC: Final = b"TSTR"
FOOTER_MAGIC: Final = b"TFTR"
END_MAGIC: Final = b"TEND"

_LOG_HEADER: Final = struct.Struct("<4sHH16sq")
_PART_HEADER: Final = struct.Struct("<4sHH16sqqIIqI")
_TABLE_ROW: Final = struct.Struct("<qqqII")
_MAP_ROW: Final = struct.Struct("<qqq")
_END_MARK: Final = struct.Struct("<q4s")
_CRC: Final = struct.Struct("<I")

_PREFIX: Final = "entrylog-"
_SUFFIX: Final = ".log"
_REMOVED: Final = ".removed"
_ID_DIGITS: Final = 16


class LogFile(NamedTuple):
    """The identity of an entry log, and its path for messages."""

    path: str
    directory_uuid: bytes
    log_id: int

    def damaged(self, offset: int, what: str) -> DamagedFile:
        """The error for damage at ``offset``."""
        return DamagedFile(f"{self.path}, offset {offset}: {what}")


class TableRow(NamedTuple):
    """One batch as listed in the table of its stretch."""

    ledger_id: int
    first_entry_id: int
    lac: int
    entry_count: int
    size: int

    @property
    def last_entry_id(self) -> int:
        """Id of the last entry in the batch."""
        return self.first_entry_id + self.entry_count - 1


class StretchHeader(NamedTuple):
    """The first 64 bytes of a stretch, unverified: its CRC covers the table as well."""

    offset: int
    batch_count: int
    batch_bytes: int
    vouched: int
    crc: int

    @property
    def batches_offset(self) -> int:
        """Offset of the first batch in the log."""
        return self.offset + PART_HEADER_BYTES + self.batch_count * TABLE_ROW_BYTES

    @property
    def end(self) -> int:
        """Offset of the next part in the log."""
        return aligned(self.batches_offset + self.batch_bytes)


class LedgerShare(NamedTuple):
    """Size of one ledger's part of an entry log."""

    bytes: int
    batches: int


_NO_SHARE: Final = LedgerShare(0, 0)


class Footer(NamedTuple):
    """The footer of a finished log."""

    offset: int
    ledgers: dict[int, LedgerShare]


def aligned(offset: int) -> int:
    """The first boundary at or after ``offset``."""
    return -(-offset // BLOCK_BYTES) * BLOCK_BYTES


def log_name(log_id: int) -> str:
    """The file name of an entry log."""
    return f"{_PREFIX}{log_id:0{_ID_DIGITS}x}{_SUFFIX}"


def parse_log_name(name: str) -> int | None:
    """The log id in a file name, or ``None`` if it is not the name of an entry log."""
    digits = name.removeprefix(_PREFIX).removesuffix(_SUFFIX)
    try:
        log_id = int(digits, 16)
    except ValueError:
        return None
    return log_id if 0 <= log_id <= MAX_ID and name == log_name(log_id) else None


def removed_name(log_id: int) -> str:
    """The file name of a removed entry log that its length note may still list."""
    return log_name(log_id) + _REMOVED


def parse_removed_name(name: str) -> int | None:
    """The log id in the file name of a removed log, or ``None`` if it is another name."""
    return parse_log_name(name.removesuffix(_REMOVED)) if name.endswith(_REMOVED) else None


def uuid_bytes(directory_uuid: str) -> bytes:
    """The 16 bytes of a directory's uuid.

    Raises:
        InvalidArgument: it is not a uuid.
    """
    try:
        return uuid.UUID(directory_uuid).bytes
    except ValueError as error:
        raise InvalidArgument(f"a bookie directory has a uuid, not {directory_uuid!r}") from error


# -- the log's header ------------------------------------------------------------------------


def encode_log_header(log: LogFile) -> bytes:
    """Encode the first block of a log."""
    head = _LOG_HEADER.pack(LOG_MAGIC, VERSION, 0, log.directory_uuid, log.log_id)
    block = head + bytes(LOG_HEADER_BYTES - len(head) - _CRC.size)
    return block + _CRC.pack(crc32c(block))


def decode_log_header(path: str, block: Buffer) -> LogFile:
    """Decode the first block of a log.

    Raises:
        DamagedFile: it is not the intact header of an entry log.
        NewerFormat: it has a later version. Any change of the log format changes this version.
    """
    view = memoryview(block)
    if len(view) < LOG_HEADER_BYTES or _CRC.unpack_from(view, LOG_HEADER_BYTES - _CRC.size)[0] != crc32c(
        view[: LOG_HEADER_BYTES - _CRC.size]
    ):
        raise DamagedFile(f"{path}, offset 0: the header of the entry log is damaged")
    magic, version, _reserved, directory_uuid, log_id = _LOG_HEADER.unpack_from(view)
    if magic == LOG_MAGIC and version > VERSION:
        raise NewerFormat.of(path, version, VERSION)
    if magic != LOG_MAGIC or version != VERSION:
        raise DamagedFile(f"{path}, offset 0: not an entry log of version {VERSION}: {magic!r}, version {version}")
    return LogFile(path, directory_uuid, log_id)


# -- stretches -------------------------------------------------------------------------------


def encode_stretch(log: LogFile, offset: int, rows: Sequence[TableRow], vouched: int) -> bytes:
    """Encode the header and the table of a stretch, which precede its batches."""
    table = b"".join(_TABLE_ROW.pack(*row) for row in rows)
    batch_bytes = sum(row.size for row in rows)
    return _part(STRETCH_MAGIC, log, (offset, len(rows), batch_bytes, vouched), table)


def decode_stretch_header(log: LogFile, offset: int, data: Buffer) -> StretchHeader:
    """Decode the header of the stretch at ``offset``; ``data`` begins with it.

    Raises:
        DamagedFile: it is not the header of a stretch that belongs here.
        NewerFormat: ``data`` has a complete one that belongs here, of a later version.
    """
    own_offset, batch_count, batch_bytes, vouched, crc = _decode_part(STRETCH_MAGIC, log, offset, data)
    if not 1 <= batch_count <= MAX_STRETCH_BATCHES or not 1 <= batch_bytes <= MAX_STRETCH_BATCH_BYTES:
        raise log.damaged(offset, f"a stretch of {batch_count} batches in {batch_bytes} bytes is impossible")
    if not 0 <= vouched <= offset:
        raise log.damaged(offset, f"the stretch vouches for bytes up to {vouched}, after its own offset")
    return StretchHeader(own_offset, batch_count, batch_bytes, vouched, crc)


def decode_table(log: LogFile, header: StretchHeader, data: Buffer) -> list[tuple[TableRow, Location]]:
    """The batches of a stretch; ``data`` holds its header and its table.

    Raises:
        DamagedFile: the checksum does not match, or a row is impossible.
    """
    view = _checked(log, header.offset, data, header.batches_offset - header.offset, header.crc)
    found: list[tuple[TableRow, Location]] = []
    position = header.batches_offset
    for values in _TABLE_ROW.iter_unpack(view):
        row = TableRow(*values)
        if not _plausible(row):
            raise log.damaged(header.offset, f"the table has an impossible row: {row}")
        found.append((row, Location(log.log_id, position, row.size, row.entry_count)))
        position += row.size
    if position != header.batches_offset + header.batch_bytes:
        raise log.damaged(header.offset, "the sizes in the table do not add up")
    return found


def _plausible(row: TableRow) -> bool:
    return (
        0 <= row.ledger_id <= MAX_ID
        and 1 <= row.entry_count <= MAX_BATCH_ENTRIES
        and 0 <= row.first_entry_id <= MAX_ID - row.entry_count + 1
        and NO_ENTRY <= row.lac < row.first_entry_id
        and BATCH_HEADER_BYTES < row.size <= MAX_BATCH_BYTES
    )


# -- the footer ------------------------------------------------------------------------------


def encode_footer(log: LogFile, offset: int, ledgers: Mapping[int, LedgerShare]) -> bytes:
    """Encode the footer, end mark included: a whole number of blocks."""
    ledger_map = b"".join(_MAP_ROW.pack(ledger_id, *share) for ledger_id, share in sorted(ledgers.items()))
    batch_bytes = sum(share.bytes for share in ledgers.values())
    part = _part(FOOTER_MAGIC, log, (offset, len(ledgers), 0, batch_bytes), ledger_map)
    mark = _END_MARK.pack(offset, END_MAGIC)
    gap = bytes(footer_bytes(len(ledgers)) - len(part) - END_MARK_BYTES)
    return b"".join((part, gap, mark, _CRC.pack(crc32c(mark))))


def footer_bytes(ledger_count: int) -> int:
    """Length of a footer for this many ledgers."""
    return aligned(PART_HEADER_BYTES + ledger_count * MAP_ROW_BYTES + END_MARK_BYTES)


def decode_end_mark(tail: Buffer) -> int | None:
    """Offset of the footer, from the last 16 bytes of a log; ``None`` if they are no end mark."""
    if len(tail) != END_MARK_BYTES or _CRC.unpack_from(tail, _END_MARK.size)[0] != crc32c(tail[: _END_MARK.size]):
        return None
    offset, magic = _END_MARK.unpack_from(tail)
    return int(offset) if magic == END_MAGIC and offset >= 0 else None


def check_footer_header(log: LogFile, offset: int, head: Buffer, size: int) -> None:
    """Check the first 64 bytes of a footer of ``size`` bytes, before the rest is read.

    Raises:
        DamagedFile: they are not the header of such a footer.
    """
    _, ledger_count, reserved, _, _ = _decode_part(FOOTER_MAGIC, log, offset, head)
    if reserved or footer_bytes(ledger_count) != size:
        raise log.damaged(offset, f"a footer of {size} bytes cannot list {ledger_count} ledgers")


def decode_footer(log: LogFile, offset: int, data: Buffer) -> Footer:
    """Decode the footer at ``offset``; ``data`` reaches from there to the end of the log.

    Raises:
        DamagedFile: it is not the footer of this log, or its checksum does not match.
    """
    check_footer_header(log, offset, data, len(data))
    _, ledger_count, _, batch_bytes, crc = _decode_part(FOOTER_MAGIC, log, offset, data)
    if decode_end_mark(memoryview(data)[-END_MARK_BYTES:]) != offset:
        raise log.damaged(offset, "the end mark of the footer is damaged")
    view = _checked(log, offset, data, PART_HEADER_BYTES + ledger_count * MAP_ROW_BYTES, crc)
    ledgers = {values[0]: LedgerShare(*values[1:]) for values in _MAP_ROW.iter_unpack(view)}
    if sum(share.bytes for share in ledgers.values()) != batch_bytes:
        raise log.damaged(offset, "the bytes in the ledger map do not add up")
    return Footer(offset, ledgers)


# -- common to stretches and footers --------------------------------------------------------


def part_magic(data: Buffer) -> bytes:
    """The magic of the part at the start of ``data``."""
    return bytes(data[:4])


def part_identity(data: Buffer) -> tuple[bytes, int]:
    """Directory uuid and log id that a part states, unchecked; for a log whose own header is damaged."""
    values = _PART_HEADER.unpack_from(data)
    return values[3], values[4]


def add_to_map(ledgers: dict[int, LedgerShare], row: TableRow) -> None:
    """Count one batch in a ledger map."""
    share = ledgers.get(row.ledger_id, _NO_SHARE)
    ledgers[row.ledger_id] = LedgerShare(share.bytes + row.size, share.batches + 1)


def take_from_map(ledgers: dict[int, LedgerShare], row: TableRow) -> None:
    """Undo ``add_to_map``."""
    share = ledgers.pop(row.ledger_id)
    if share.batches > 1:
        ledgers[row.ledger_id] = LedgerShare(share.bytes - row.size, share.batches - 1)


def _part(magic: bytes, log: LogFile, fields: tuple[int, int, int, int], body: bytes) -> bytes:
    head = _PART_HEADER.pack(magic, VERSION, 0, log.directory_uuid, log.log_id, *fields, 0)
    return b"".join((head, _CRC.pack(crc32c(body, crc32c(head))), body))


def _decode_part(magic: bytes, log: LogFile, offset: int, data: Buffer) -> tuple[int, int, int, int, int]:
    """The five numbers of a part's header, after checking that it belongs there."""
    if len(data) < PART_HEADER_BYTES:
        raise log.damaged(offset, f"{len(data)} bytes are too few for a part of a log")
    found, version, reserved, directory_uuid, log_id, own_offset, *numbers, zero = _PART_HEADER.unpack_from(data)
    here = (found, directory_uuid, log_id, own_offset) == (magic, log.directory_uuid, log.log_id, offset)
    if here and version > VERSION and _crc_fits(magic, data, numbers[0]):
        raise NewerFormat.of(f"{log.path}, offset {offset}: the {magic.decode()}", version, VERSION)
    if found != magic or version != VERSION or reserved or zero:
        raise log.damaged(offset, f"no {magic.decode()} of version {VERSION} begins here: {found!r}, version {version}")
    if (directory_uuid, log_id, own_offset) != (log.directory_uuid, log.log_id, offset):
        raise log.damaged(
            offset, f"this belongs to offset {own_offset} of log {log_id} of directory {directory_uuid.hex()}"
        )
    count, second, third = numbers
    return own_offset, count, second, third, _CRC.unpack_from(data, _PART_HEADER.size)[0]


def _crc_fits(magic: bytes, data: Buffer, count: int) -> bool:
    """Whether a part of any version is intact, as far as ``data`` reaches."""
    row = _TABLE_ROW.size if magic == STRETCH_MAGIC else MAP_ROW_BYTES
    view = memoryview(data)[: PART_HEADER_BYTES + count * row]
    stored = _CRC.unpack_from(view, _PART_HEADER.size)[0]
    return bool(stored == crc32c(view[PART_HEADER_BYTES:], crc32c(view[: _PART_HEADER.size])))


def _checked(log: LogFile, offset: int, data: Buffer, end: int, crc: int) -> memoryview:
    """The bytes from the header to ``end``, after checking both against ``crc``."""
    view = memoryview(data)[:end]
    if len(view) < end or crc32c(view[PART_HEADER_BYTES:], crc32c(view[: _PART_HEADER.size])) != crc:
        raise log.damaged(offset, f"checksum mismatch in a {part_magic(data).decode(errors='replace')}")
    return view[PART_HEADER_BYTES:]
