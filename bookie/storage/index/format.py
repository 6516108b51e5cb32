"""Index format: rows of batches, and states of ledgers.

docs/reference/formats/index.md has the bytes of keys and values, and an example. Keys are big-endian, so that they sort
by id. RocksDB has checksums of its own; those of this format cover the key, too, so that a value under a wrong key, or
one that was changed before it was stored, is detected.
"""

from __future__ import annotations

import struct
from typing import Final

from crc32c import crc32c

from tallybook.core.errors import DamagedFile, NewerFormat
from tallybook.core.ids import MAX_ID
from tallybook.core.limits import BATCH_HEADER_BYTES, MAX_BATCH_BYTES, MAX_BATCH_ENTRIES

from ..entry_log.format import LOG_HEADER_BYTES
from ..location import NOWHERE_LOG_ID, IndexRow, Location

VERSION: Final = 1
ROW_KEY_BYTES: Final = 16
ROW_VALUE_BYTES: Final = 32
STATE_KEY_BYTES: Final = 8
STATE_HEAD_BYTES: Final = 8

_ROW_KEY: Final = struct.Struct(">qq")
_STATE_KEY: Final = struct.Struct(">q")
_ROW_VALUE: Final = struct.Struct("<B3xIqqI")
_HEAD: Final = bytes([VERSION, 0, 0, 0])
_CRC: Final = struct.Struct("<I")


def row_key(ledger_id: int, entry_id: int) -> bytes:
    """The key of the row of the batch that begins with this entry."""
    return _ROW_KEY.pack(ledger_id, entry_id)


def key_behind(ledger_id: int, first_entry_id: int) -> bytes:
    """The lowest possible key after this row's."""
    if ledger_id < 0 or first_entry_id == MAX_ID:
        return row_key(ledger_id + 1, 0)
    return row_key(ledger_id, first_entry_id + 1)


def split_row_key(key: bytes) -> tuple[int, int]:
    """Ledger id and first entry id of a row's key.

    Raises:
        DamagedFile: it is not the key of a row.
    """
    if len(key) != ROW_KEY_BYTES:
        raise DamagedFile(f"a row has the key {key.hex()} of {len(key)} bytes")
    ledger_id, first_entry_id = _ROW_KEY.unpack(key)
    return ledger_id, first_entry_id


def encode_row(row: IndexRow) -> tuple[bytes, bytes]:
    """Encode key and value of a row."""
    log_id, offset, size, entry_count = row.location
    key = _ROW_KEY.pack(row.ledger_id, row.first_entry_id)
    value = _ROW_VALUE.pack(VERSION, size, log_id, offset, entry_count)
    return key, value + _CRC.pack(crc32c(value, crc32c(key)))


def decode_row(key: bytes, value: bytes) -> IndexRow:
    """Decode the row under ``key``.

    Raises:
        DamagedFile: it fails its checks, or has an impossible location.
        NewerFormat: it is intact, and has a later version.
    """
    ledger_id, first_entry_id = split_row_key(key)
    body = value[: -_CRC.size]
    intact = len(value) > _CRC.size and _CRC.unpack(value[-_CRC.size :])[0] == crc32c(body, crc32c(key))
    if intact and body[0] > VERSION:
        raise NewerFormat.of(f"the row of ledger {ledger_id} from entry {first_entry_id} on", body[0], VERSION)
    if len(value) != ROW_VALUE_BYTES or body[:4] != _HEAD or not intact:
        raise DamagedFile(f"the row of ledger {ledger_id} from entry {first_entry_id} on is damaged: {value.hex()}")
    _, size, log_id, offset, entry_count = _ROW_VALUE.unpack(body)
    # Checked before any caller divides by the size or reads at the location. Plain numbers and no call: a range read
    # decodes a row for each batch.
    if not (
        1 <= entry_count <= MAX_BATCH_ENTRIES
        and 0 <= first_entry_id <= MAX_ID - entry_count + 1
        and ledger_id >= 0
        and size <= MAX_BATCH_BYTES
        and (
            log_id > 0 and LOG_HEADER_BYTES <= offset <= MAX_ID - size and size > BATCH_HEADER_BYTES
            if log_id != NOWHERE_LOG_ID
            else offset == 0 < size
        )
    ):
        raise DamagedFile(f"the row of ledger {ledger_id} from entry {first_entry_id} on is invalid: {value.hex()}")
    return IndexRow(ledger_id, first_entry_id, Location(log_id, offset, size, entry_count))


def state_key(ledger_id: int) -> bytes:
    """The key of a ledger's state."""
    return _STATE_KEY.pack(ledger_id)


def split_state_key(key: bytes) -> int:
    """The ledger id of a state's key.

    Raises:
        DamagedFile: it is not the key of a state.
    """
    if len(key) != STATE_KEY_BYTES:
        raise DamagedFile(f"a ledger state has the key {key.hex()} of {len(key)} bytes")
    return int(_STATE_KEY.unpack(key)[0])


def leading_ledger(key: bytes) -> int:
    """The ledger id at the beginning of any key.

    Raises:
        DamagedFile: it is no key.
    """
    return split_state_key(key[:STATE_KEY_BYTES])


def encode_state(ledger_id: int, state: bytes) -> tuple[bytes, bytes]:
    """Encode key and value of a ledger's state."""
    key = state_key(ledger_id)
    return key, b"".join((_HEAD, _CRC.pack(crc32c(state, crc32c(key + _HEAD))), state))


def decode_state(key: bytes, value: bytes) -> bytes:
    """Decode the state under ``key``.

    Raises:
        DamagedFile: it fails its checks.
        NewerFormat: it is intact, and has a later version.
    """
    state = value[STATE_HEAD_BYTES:]
    head = value[:4]
    intact = len(value) >= STATE_HEAD_BYTES and _CRC.unpack_from(value, 4)[0] == crc32c(state, crc32c(key + head))
    if intact and head[0] > VERSION:
        raise NewerFormat.of(f"the state of ledger {split_state_key(key)}", head[0], VERSION)
    if not intact or head != _HEAD:
        raise DamagedFile(f"the state of ledger {split_state_key(key)} is damaged: {value[:64].hex()}")
    return state
