"""Converts batches to table rows and back, byte for byte.

Writers checksum and sign whole batches. So the index stores what a batch has besides its entries (a few bytes each),
and readers get whole batches back: they verify them like those from bookies, and a ledger can be restored to bookies
unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tallybook.core.batch import FLAG_DIGEST, BatchHeader, seal_batch
from tallybook.core.buffers import Buffer
from tallybook.core.errors import InvalidBatch
from tallybook.core.limits import BATCH_DIGEST_BYTES, BATCH_HEADER_BYTES, BATCH_TABLE_ROW_BYTES

from .schema import SCHEMA

_OFFSET_BYTES: Final = 4


class BatchAttributes(NamedTuple):
    """Attributes of a batch besides its entries; ``digest`` is empty if there is none."""

    first_entry_id: int
    entries: int
    payload_bytes: int
    lac: int
    ledger_length: int
    written_at_us: int
    crc: int
    digest: bytes

    @property
    def last_entry_id(self) -> int:
        """Id of its last entry."""
        return self.first_entry_id + self.entries - 1


def attributes_of(batch: Buffer, header: BatchHeader) -> BatchAttributes:
    """The attributes of a verified batch."""
    digest = bytes(memoryview(batch)[-BATCH_DIGEST_BYTES:]) if header.flags & FLAG_DIGEST else b""
    return BatchAttributes(
        header.first_entry_id, header.entry_count, header.payload_bytes, header.lac, header.ledger_length,
        header.written_at_us, header.crc, digest,
    )  # fmt: skip


class PayloadBuffer:
    """Reusable memory for payloads: fresh memory costs five times as much, since the system has to clear it.

    Args:
        size_bytes: capacity; untouched memory costs nothing.
    """

    def __init__(self, size_bytes: int = 0) -> None:
        self._bytes = np.empty(size_bytes, np.uint8)

    def put(self, at: int, data: memoryview) -> None:
        """Copy ``data`` to byte ``at``."""
        end = at + len(data)
        if end > len(self._bytes):
            larger = np.empty(max(end, 2 * len(self._bytes)), np.uint8)
            larger[:at] = self._bytes[:at]
            self._bytes = larger
        self._bytes[at:end] = np.frombuffer(data, np.uint8)

    def first(self, size: int) -> memoryview:
        """View of the first ``size`` bytes, not copied."""
        return self._bytes[:size].data


class RowGroupBuilder:
    """Collects verified batches as rows of a table.

    Args:
        buffer: memory for payloads; its content is overwritten.
    """

    def __init__(self, buffer: PayloadBuffer | None = None) -> None:
        self.buffer = buffer or PayloadBuffer()
        self._tables: list[npt.NDArray[np.uint32]] = []
        """Per batch: lengths and checksums of its entries, alternating."""
        self._headers: list[BatchHeader] = []
        self.rows = 0
        self.payload_bytes = 0

    def add(self, batch: Buffer, header: BatchHeader) -> None:
        """Add a batch."""
        count = header.entry_count
        payloads_at = BATCH_HEADER_BYTES + count * BATCH_TABLE_ROW_BYTES
        self._tables.append(np.frombuffer(batch, "<u4", 2 * count, BATCH_HEADER_BYTES).copy())
        self.buffer.put(self.payload_bytes, memoryview(batch)[payloads_at : payloads_at + header.payload_bytes])
        self._headers.append(header)
        self.rows += count
        self.payload_bytes += header.payload_bytes

    def largest_entry_bytes(self) -> int:
        """Length of the largest entry."""
        return max(int(table[0::2].max()) for table in self._tables)

    def table(self) -> pa.Table:
        """The rows. Their payloads are views of the buffer: do not add batches while the table is in use."""
        tables = np.concatenate(self._tables)
        counts = np.array([header.entry_count for header in self._headers], np.int64)
        offsets: npt.NDArray[np.int32] = np.zeros(self.rows + 1, np.int32)
        np.cumsum(tables[0::2], out=offsets[1:])
        # Entry id of a row: the first entry id of its batch plus its offset in the batch.
        starts = np.array([header.first_entry_id for header in self._headers], np.int64)
        before = np.cumsum(counts) - counts
        entry_ids = np.arange(self.rows, dtype=np.int64) + np.repeat(starts - before, counts)
        columns = [
            pa.array(np.repeat(np.array([header.ledger_id for header in self._headers], np.int64), counts)),
            pa.array(entry_ids),
            pa.array(np.repeat(np.array([header.written_at_us for header in self._headers], np.int64), counts)).view(
                SCHEMA.field("written_at").type
            ),
            pa.array(np.ascontiguousarray(tables[1::2])),
            pa.Array.from_buffers(
                pa.binary(),
                self.rows,
                [None, pa.py_buffer(offsets), pa.py_buffer(self.buffer.first(self.payload_bytes))],
            ),
        ]
        return pa.Table.from_arrays(columns, schema=SCHEMA)


def rebuild_batch(ledger_id: int, facts: BatchAttributes, payloads: Sequence[Buffer]) -> bytes:
    """Rebuild the original batch.

    Raises:
        InvalidBatch: its checksum is not the original one.
    """
    batch = seal_batch(
        ledger_id,
        facts.first_entry_id,
        payloads,
        lac=facts.lac,
        ledger_length=facts.ledger_length,
        written_at_us=facts.written_at_us,
        digest=facts.digest,
    )
    crc = int.from_bytes(batch[BATCH_HEADER_BYTES - 4 : BATCH_HEADER_BYTES], "little")
    if crc != facts.crc:
        raise InvalidBatch(
            f"ledger {ledger_id}: the batch from entry {facts.first_entry_id} differs from what was archived"
        )
    return batch


def plain_values(data: memoryview, count: int) -> list[bytes]:
    """The values of a decompressed page of required byte arrays: length and bytes of each.

    Raises:
        InvalidBatch: the lengths do not add up to the page.
    """
    values, at, end = [], 0, len(data)
    for _ in range(count):
        start = at + _OFFSET_BYTES
        at = start + int.from_bytes(data[at:start], "little")
        if at > end:
            break
        values.append(bytes(data[start:at]))
    if at != end or len(values) != count:
        raise InvalidBatch(f"a page of {end} bytes does not hold {count} values")
    return values
