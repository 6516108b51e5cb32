"""Rebuilds the deduplication window of a stream from its last records, for a new writer."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import aclosing

from ..catalog.head import Head
from ..gaps import Gap
from ..reader.handle import StreamReader
from ..records.dedup import ID_OVERHEAD_BYTES, DedupMemory, DedupWindow
from .pending import PendingRecord, settled_record

ReaderFrom = Callable[[int], StreamReader]
"""Makes a reader from the record with this number to the end, across gaps."""


async def check_ids_fit(head: Head, memory: DedupMemory, reader_from: ReaderFrom) -> None:
    """Check that there is memory for the ids of a stream. To be called before its present writer is fenced.

    Raises:
        Busy, InvalidArgument: as ``DedupWindow.check_space``.
        As ``StreamReader.batches``.
    """
    records = head.policy.dedup_records
    if memory.fits(records * ID_OVERHEAD_BYTES, 0):
        return
    window: DedupWindow[PendingRecord] = DedupWindow(records, memory)
    try:
        # The present writer may still append records with ids, so read up to the end.
        await _fill(window, reader_from(_first(head)))
    finally:
        window.clear()


async def read_window(head: Head, memory: DedupMemory | None, reader_from: ReaderFrom) -> DedupWindow[PendingRecord]:
    """Read the window from the stream, after the previous writer was fenced.

    Raises:
        As ``check_ids_fit``.
    """
    window: DedupWindow[PendingRecord] = DedupWindow(head.policy.dedup_records, memory)
    first = _first(head)
    if head.settled_marks.ids_before > first:
        try:
            await _fill(window, reader_from(first))
        except BaseException:
            window.clear()
            raise
    return window


def _first(head: Head) -> int:
    return max(head.settled_marks.next_sequence - head.policy.dedup_records, head.truncation.sequence)


async def _fill(window: DedupWindow[PendingRecord], reader: StreamReader) -> None:
    async with aclosing(reader.batches()) as batches:
        async for batch in batches:
            for record in [] if isinstance(batch, Gap) else batch:
                if record.dedup_id is not None:
                    window.check_space((record.dedup_id,), record.sequence)
                    window.add(record.dedup_id, record.sequence, settled_record(record.position))
