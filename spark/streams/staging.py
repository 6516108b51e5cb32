"""Encodes rows to envelopes, which a task writes into its staged ledger. Pure, except for Arrow.

payload     BINARY or STRING
key         BINARY or STRING; optional, may be null
timestamp   TIMESTAMP; optional, may be null; default: the time at which the task encodes the row
txid        BIGINT or INT; optional, may be null; must not decrease
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from tallybook.core.errors import EntryTooLarge, InvalidArgument, InvalidConfig, OutOfOrder
from tallybook.stream.catalog.delivery_record import MAX_ID_BYTES, delivery_id
from tallybook.stream.records.envelope import (
    HEADER_BYTES,
    MAX_RECORDS,
    RECORD_OVERHEAD_BYTES,
    START,
    RecordColumns,
    StreamMarks,
    encode_records,
)
from tallybook.stream.records.record import MAX_RECORD_BYTES
from tallybook.stream.writer.flow import ENVELOPE_BYTES

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_BYTES: Final = frozenset({"binary", "string"})
_KINDS: Final = {
    "payload": _BYTES, "key": _BYTES, "timestamp": frozenset({"timestamp"}), "txid": frozenset({"bigint", "int"}),
}  # fmt: skip


def check_rows(schema: StructType, *, overwrite: bool) -> None:
    """Check that rows can become records.

    Raises:
        InvalidConfig: a column is missing, unknown or of the wrong type; or the write mode is overwrite.
    """
    if overwrite:
        raise InvalidConfig("streams are never overwritten: use mode('append'), or outputMode('append') for a stream")
    kinds = {field.name: field.dataType.simpleString() for field in schema.fields}
    wrong = [name for name, kind in kinds.items() if kind not in _KINDS.get(name, ())]
    if "payload" not in kinds or wrong:
        raise InvalidConfig(
            "records need column payload (BINARY or STRING), and may have key (BINARY or STRING), timestamp "
            f"(TIMESTAMP) and txid (BIGINT); these are {schema.simpleString()}; to_json(struct(*)) combines columns "
            "into one payload"
        )


@dataclass(frozen=True, slots=True)
class _Rows:
    """Columns of one batch as Python values."""

    payloads: list[bytes]
    keys: list[bytes | None] | None
    times: list[int | None] | None
    txids: list[int | None] | None


class EnvelopeStager:
    """Encodes the rows of one task to envelopes.

    Args:
        ledger_id: the staged ledger, whose entries the envelopes become, in order.
        max_bytes: entry size limit.
        now_ms: wall-clock time.
    """

    def __init__(self, ledger_id: int, max_bytes: int, now_ms: Callable[[], int]) -> None:
        self._ledger_id = ledger_id
        self._max_payload_bytes = min(max_bytes, MAX_RECORD_BYTES) - MAX_ID_BYTES - HEADER_BYTES - RECORD_OVERHEAD_BYTES
        self._full_bytes = min(ENVELOPE_BYTES, self._max_payload_bytes)
        self._now_ms = now_ms
        self._entry = self._rows = 0
        self._marks: StreamMarks = START
        self.txids: tuple[int, int] | None = None
        """First and last transaction id of all rows so far."""

    def envelopes(self, batch: pa.RecordBatch) -> Iterator[bytes]:
        """Encode the rows of a batch to entries.

        Raises:
            InvalidArgument: a row has no payload.
            EntryTooLarge: a row exceeds the record size limit.
            OutOfOrder: a transaction id decreases.
        """
        rows = self._understood(batch)
        sizes = [len(payload) for payload in rows.payloads]
        if rows.keys is not None:
            sizes = [size + len(key or b"") for size, key in zip(sizes, rows.keys, strict=True)]
        if sizes and max(sizes) > self._max_payload_bytes:
            at = sizes.index(max(sizes))
            raise EntryTooLarge(
                f"row {self._rows + at} of a task has {sizes[at]} bytes, and a record up to {self._max_payload_bytes}"
            )
        begin = total = 0
        for at, size in enumerate(sizes):
            if at > begin and (total + size + RECORD_OVERHEAD_BYTES > self._full_bytes or at - begin == MAX_RECORDS):
                yield self._envelope(rows, begin, at)
                begin, total = at, 0
            total += size + RECORD_OVERHEAD_BYTES
        if begin < len(sizes):
            yield self._envelope(rows, begin, len(sizes))
        self._rows += len(sizes)

    def _understood(self, batch: pa.RecordBatch) -> _Rows:
        payload = batch.column("payload").cast(pa.binary())
        if payload.null_count:
            at = payload.is_null().index(True).as_py()
            raise InvalidArgument(f"row {self._rows + at} of a task has no payload: null cannot be a record")
        names = batch.schema.names
        keys = batch.column("key").cast(pa.binary()).to_pylist() if "key" in names else None
        times = _milliseconds(batch.column("timestamp")) if "timestamp" in names else None
        txids = self._in_order(batch.column("txid").cast(pa.int64())) if "txid" in names else None
        return _Rows(payload.to_pylist(), keys, times, txids)

    def _in_order(self, txids: pa.Array) -> list[int | None]:
        there = txids.drop_null().to_numpy()
        if len(there):
            before = there[:1] if self.txids is None else np.array([self.txids[1]])
            falls = np.flatnonzero(np.diff(there, prepend=before) < 0)
            if len(falls):
                at = int(falls[0])
                highest = there[at - 1] if at else before[0]
                raise OutOfOrder(
                    f"transaction id {there[at]} comes after {highest}; sort rows by txid, or leave it out"
                )
            self.txids = (int(there[0]) if self.txids is None else self.txids[0], int(there[-1]))
        found: list[int | None] = txids.to_pylist()
        return found

    def _envelope(self, rows: _Rows, begin: int, end: int) -> bytes:
        columns = RecordColumns(self._now_ms())
        nothing: list[Any] = [None] * (end - begin)
        times = nothing if rows.times is None else rows.times[begin:end]
        keys = nothing if rows.keys is None else rows.keys[begin:end]
        txids = nothing if rows.txids is None else rows.txids[begin:end]
        # The last record has the id of the entry: an interrupted delivery recognizes appended entries by it.
        ids = [*nothing[1:], delivery_id(self._ledger_id, self._entry)]
        for record in zip(rows.payloads[begin:end], times, keys, ids, txids, strict=True):
            columns.add(*record)
        found = encode_records(columns, self._marks)
        self._marks, self._entry = columns.marks_after(self._marks), self._entry + 1
        return found


def _milliseconds(times: pa.Array) -> list[int | None]:
    """Milliseconds since the epoch, rounded down."""
    micros = times.cast(pa.timestamp("us", times.type.tz)).cast(pa.int64())
    whole = np.floor_divide(micros.fill_null(0).to_numpy(zero_copy_only=False), 1000)
    found: list[int | None] = pa.array(whole, mask=micros.is_null().to_numpy(zero_copy_only=False)).to_pylist()
    return found
