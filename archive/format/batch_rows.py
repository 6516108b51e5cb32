"""Batches as rows of a table, and back, byte for byte.

A batch is what was checksummed, and signed, when it was written. So an archive keeps what a batch
has besides its entries (a few bytes each, in the index), and gives whole batches back: readers check
them as they check those of bookies, and a ledger can go back to bookies as it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tallybook.core.batch import FLAG_DIGEST, BatchHeader, Buffer, seal_batch
from tallybook.core.errors import InvalidBatch
from tallybook.core.limits import BATCH_DIGEST_BYTES, BATCH_HEADER_BYTES, BATCH_TABLE_ROW_BYTES

from .schema import SCHEMA

_OFFSET_BYTES: Final = 4


class BatchFacts(NamedTuple):
    """What a batch has besides its entries; ``digest`` is empty without one."""

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


def facts_of(batch: Buffer, header: BatchHeader) -> BatchFacts:
    """The facts of a verified batch."""
    digest = bytes(memoryview(batch)[-BATCH_DIGEST_BYTES:]) if header.flags & FLAG_DIGEST else b""
    return BatchFacts(
        header.first_entry_id, header.entry_count, header.payload_bytes, header.lac, header.ledger_length,
        header.written_at_us, header.crc, digest,
    )  # fmt: skip


class Room:
    """Memory for payloads, to be used again: fresh memory costs five times as much, since the system has to clear it.

    Args:
        size_bytes: what is never touched costs nothing.
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
        """The first ``size`` bytes, where they lie."""
        return self._bytes[:size].data


class GatheredRows:
    """Verified batches that are to become rows of a table.

    Args:
        room: where payloads are copied to; what is in it is overwritten.
    """

    def __init__(self, room: Room | None = None) -> None:
        self.room = room or Room()
        self._tables: list[npt.NDArray[np.uint32]] = []
        """By batch: lengths and checksums of its entries, in turn."""
        self._headers: list[BatchHeader] = []
        self.rows = 0
        self.payload_bytes = 0

    def add(self, batch: Buffer, header: BatchHeader) -> None:
        """Gather one more batch."""
        count = header.entry_count
        payloads_at = BATCH_HEADER_BYTES + count * BATCH_TABLE_ROW_BYTES
        self._tables.append(np.frombuffer(batch, "<u4", 2 * count, BATCH_HEADER_BYTES).copy())
        self.room.put(self.payload_bytes, memoryview(batch)[payloads_at : payloads_at + header.payload_bytes])
        self._headers.append(header)
        self.rows += count
        self.payload_bytes += header.payload_bytes

    def largest_entry_bytes(self) -> int:
        """Length of the largest entry."""
        return max(int(table[0::2].max()) for table in self._tables)

    def table(self) -> pa.Table:
        """The rows. Their payloads lie in the room: nothing can be added before they are gone."""
        tables = np.concatenate(self._tables)
        counts = np.array([header.entry_count for header in self._headers], np.int64)
        offsets: npt.NDArray[np.int32] = np.zeros(self.rows + 1, np.int32)
        np.cumsum(tables[0::2], out=offsets[1:])
        # The id of a row: that of its batch's first entry, and how far behind that entry it is.
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
                [None, pa.py_buffer(offsets), pa.py_buffer(self.room.first(self.payload_bytes))],
            ),
        ]
        return pa.Table.from_arrays(columns, schema=SCHEMA)


def rebuild_batch(ledger_id: int, facts: BatchFacts, payloads: Sequence[Buffer]) -> bytes:
    """The batch as it was written.

    Raises:
        InvalidBatch: what comes out is not what went in.
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
        raise InvalidBatch(f"ledger {ledger_id}: the batch from entry {facts.first_entry_id} is not what was archived")
    return batch


def plain_values(data: memoryview, count: int) -> list[bytes]:
    """The values of a decompressed page of required byte arrays: each its length and its bytes.

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
