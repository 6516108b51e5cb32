"""A record to be appended to a stream, and its limits. ``envelope`` has records as they are read."""

from __future__ import annotations

from typing import Final, NamedTuple, TypeAlias

from tallybook.core.buffers import check_buffer
from tallybook.core.errors import EntryTooLarge, InvalidArgument
from tallybook.core.ids import MAX_ID
from tallybook.core.limits import MAX_ENTRY_BYTES

MAX_ATTRIBUTE_BYTES: Final = 256
"""Upper bound of the overhead of an entry with one record."""
MAX_RECORD_BYTES: Final = MAX_ENTRY_BYTES - MAX_ATTRIBUTE_BYTES
"""Limit of payload, key and id of a record together: a record must fit in one entry."""
MAX_DEDUP_ID_BYTES: Final = 1024

NO_TIME: Final = -(2**63)
"""Lower than any timestamp; means none."""
NO_TXID: Final = -(2**63)
"""Lower than any transaction id; means none."""


Payload: TypeAlias = bytes | bytearray | memoryview
"""The payload of a record, as any bytes-like object."""


class Anything:
    """The type of ``ANYTHING``: no condition on the stream's last position."""


ANYTHING: Final = Anything()


class Outgoing(NamedTuple):
    """A record to be appended.

    Args:
        payload: the content.
        timestamp_ms: event time in milliseconds since the epoch; by default, the time of the append. Need not increase.
        key: a key for the application; not interpreted.
        dedup_id: deduplication id: a second append with the same id within the window is not stored again.
        txid: a number of the application's choice that never decreases within a stream.
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
        """Create a record; its id may be text."""
        return cls(payload, timestamp_ms, key, dedup_id.encode() if isinstance(dedup_id, str) else dedup_id, txid)


def size_of(record: Outgoing) -> int:
    """Check a record; return its size: bytes of payload, key and id.

    Raises:
        TypeError: the payload is not bytes.
        InvalidArgument: another field is invalid.
        EntryTooLarge: it is larger than ``MAX_RECORD_BYTES``.
    """
    payload, timestamp_ms, key, dedup_id, txid = record
    if type(payload) is not bytes:
        check_buffer(payload, "a record")
    size = payload.nbytes if isinstance(payload, memoryview) else len(payload)
    if key is not None:
        if not isinstance(key, bytes):
            raise InvalidArgument(f"the key of a record must be bytes, not {type(key).__name__}")
        size += len(key)
    if dedup_id is not None:
        if type(dedup_id) is not bytes or not 1 <= len(dedup_id) <= MAX_DEDUP_ID_BYTES:
            raise InvalidArgument(f"the id of a record has 1 .. {MAX_DEDUP_ID_BYTES} bytes, got {dedup_id!r:.80}")
        size += len(dedup_id)
    for what, number in (("timestamp", timestamp_ms), ("transaction id", txid)):
        if number is not None and (type(number) is not int or not -MAX_ID <= number <= MAX_ID):
            raise InvalidArgument(f"a {what} must be a 64-bit integer, got {number!r}")
    if size > MAX_RECORD_BYTES:
        raise EntryTooLarge(f"a record of {size} bytes exceeds the limit of {MAX_RECORD_BYTES}")
    return size
