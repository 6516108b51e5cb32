"""One record of a stream as it is appended: what may be in it. ``envelope`` has records as they are read."""

from __future__ import annotations

from typing import Final, NamedTuple, TypeAlias

from tallybook.core.errors import EntryTooLarge, InvalidArgument
from tallybook.core.ids import MAX_ID
from tallybook.core.limits import MAX_ENTRY_BYTES

MOST_BESIDE_BYTES: Final = 256
"""More than an entry has beside the one record in it."""
MAX_RECORD_BYTES: Final = MAX_ENTRY_BYTES - MOST_BESIDE_BYTES
"""Payload, key and id of a record together: it has to fit one entry, with what is known of it."""
MAX_DEDUP_ID_BYTES: Final = 1024

NO_TIME: Final = -(2**63)
"""Before any timestamp; no record has it."""
NO_TXID: Final = -(2**63)
"""Before any transaction id."""


Payload: TypeAlias = bytes | bytearray | memoryview
"""What a record says, in any kind of bytes."""


class Anything:
    """Wherever the stream stands."""


ANYTHING: Final = Anything()


class Outgoing(NamedTuple):
    """A record to be appended.

    Args:
        payload: what it says.
        timestamp_ms: when it happened, in milliseconds since the epoch; by default, when it is appended. Need not grow.
        key: what it is about. Not looked at.
        dedup_id: appended again with the same id soon after, it is there once.
        txid: number of the application's, which never falls within a stream.
    """

    payload: Payload
    timestamp_ms: int | None = None
    key: bytes | None = None
    dedup_id: bytes | None = None
    txid: int | None = None

    @classmethod
    def of(
        cls,
        payload: Payload,
        timestamp_ms: int | None,
        key: bytes | None,
        dedup_id: bytes | str | None,
        txid: int | None,
    ) -> Outgoing:
        """A record, whose id may be text."""
        return cls(payload, timestamp_ms, key, dedup_id.encode() if isinstance(dedup_id, str) else dedup_id, txid)


def size_of(record: Outgoing) -> int:
    """Bytes of payload, key and id of a record that may be appended.

    Raises:
        InvalidArgument: a part of it is not what it has to be.
        EntryTooLarge: it is larger than ``MAX_RECORD_BYTES``.
    """
    payload, timestamp_ms, key, dedup_id, txid = record
    if type(payload) is not bytes and not isinstance(payload, bytes | bytearray | memoryview):
        raise InvalidArgument(f"a record is bytes, not {type(payload).__name__}")
    size = payload.nbytes if isinstance(payload, memoryview) else len(payload)
    if key is not None:
        if not isinstance(key, bytes):
            raise InvalidArgument(f"the key of a record is bytes, not {type(key).__name__}")
        size += len(key)
    if dedup_id is not None:
        if type(dedup_id) is not bytes or not 1 <= len(dedup_id) <= MAX_DEDUP_ID_BYTES:
            raise InvalidArgument(f"the id of a record has 1 .. {MAX_DEDUP_ID_BYTES} bytes, got {dedup_id!r:.80}")
        size += len(dedup_id)
    for what, number in (("timestamp", timestamp_ms), ("transaction id", txid)):
        if number is not None and (type(number) is not int or not -MAX_ID <= number <= MAX_ID):
            raise InvalidArgument(f"a {what} is a whole number of 64 bits, got {number!r}")
    if size > MAX_RECORD_BYTES:
        raise EntryTooLarge(f"a record of {size} bytes exceeds the limit of {MAX_RECORD_BYTES}")
    return size
