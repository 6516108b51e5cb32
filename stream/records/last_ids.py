"""The ids of a stream's last records, read from the stream by whoever is to write it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import aclosing

from .dedup import ID_OVERHEAD_BYTES, DedupWindow, IdRoom
from .gaps import Gap
from .head import Head
from .reader.handle import StreamReader
from .writer.pending import PendingRecord, settled_record

ReaderFrom = Callable[[int], StreamReader]
"""Reads to the end from the record of this number on, across gaps."""


async def check_ids_fit(head: Head, room: IdRoom, reader_from: ReaderFrom) -> None:
    """See whether there is room for the ids of a stream, before its writer is fenced for nothing.

    Raises:
        Busy, InvalidArgument: as ``DedupWindow.check_room``.
        As ``StreamReader.batches``.
    """
    records = head.policy.dedup_records
    if room.fits(records * ID_OVERHEAD_BYTES, 0):
        return
    window: DedupWindow[PendingRecord] = DedupWindow(records, room)
    try:
        # What is settled tells nothing of what its writer is writing, so all of that is read.
        await _fill(window, reader_from(_first(head)))
    finally:
        window.clear()


async def read_window(head: Head, room: IdRoom | None, reader_from: ReaderFrom) -> DedupWindow[PendingRecord]:
    """The ids of the last records, as they are in the stream, which nobody else writes any more.

    Raises:
        As ``check_ids_fit``.
    """
    window: DedupWindow[PendingRecord] = DedupWindow(head.policy.dedup_records, room)
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
                    window.check_room((record.dedup_id,), record.sequence)
                    window.add(record.dedup_id, record.sequence, settled_record(record.position))
