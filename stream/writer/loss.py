"""Determines the end of a segment whose last entries are lost, for a writer with ``accept_loss``.

    entries   ... 17 18 19 [lost] [lost]        18: a mark, 17: records, up to number 420
                        '--- 2 lost: numbers continue at 420 + 2 * 8,192 at the latest

The number of records in a lost entry is unknown. The maximum is assumed, so that no number is given twice; a later
segment has the exact number. Readers get a gap. Only people decide to continue like this, never a writer by itself: the
missing entries may come back with an unavailable bookie.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tallybook.client.client import Client
from tallybook.client.reader.handle import LedgerReader
from tallybook.core.errors import NoSuchLedger, StorageError, TallybookError
from tallybook.core.ids import MAX_ID, NO_ENTRY

from ..catalog.head import SegmentEnd, StreamSegment
from ..gaps import is_lost
from ..reader.segment_end import RecoveredEnd, envelope_at
from ..records.envelope import MAX_RECORDS, Envelope, EnvelopeKind, StreamMarks

LOST_LEDGER_RECORDS: Final = 1 << 32
"""Assumed number of records in a ledger that is completely lost."""


def is_loss(error: TallybookError) -> bool:
    """Whether an error means that data is lost, and not only unavailable."""
    return isinstance(error, NoSuchLedger) or is_lost(error)


async def end_after_loss(
    client: Client,
    segment: StreamSegment,
    following: Sequence[StreamSegment],
    before: StreamMarks,
    tag: str,
    now_ms: int,
) -> RecoveredEnd:
    """Like ``recovered_end``, for a segment whose last entries, or all of them, are lost.

    Args:
        following: the later segments.

    Raises:
        As ``recovered_end``, if data is unavailable but not lost.
    """
    limit = await _first_number(client, following, tag)
    try:
        reader = await client.open_ledger(segment.ledger_id)
    except NoSuchLedger:
        # Kept with one entry, since it was not empty: readers then report it as lost.
        return RecoveredEnd(SegmentEnd(0, _bounded(before, LOST_LEDGER_RECORDS, limit), 0, now_ms), None, None)
    metadata = reader.metadata
    known, lost, place = before, 0, None
    kind: EnvelopeKind | None = None
    for entry in range(metadata.last_entry_id, NO_ENTRY, -1):
        envelope = await _readable(reader, segment.number, entry, tag)
        if envelope is None:
            lost += known is before
            continue
        known = envelope.marks if known is before else known
        # If the very last entry is readable, it says whether the stream has ended.
        kind = envelope.kind if entry == metadata.last_entry_id else kind
        if envelope.count:
            place = segment.number, entry, envelope.count - 1
            break
    marks = _bounded(known, lost * MAX_RECORDS, limit)
    return RecoveredEnd(SegmentEnd(metadata.last_entry_id, marks, metadata.length, now_ms), kind, place)


def _bounded(known: StreamMarks, lost_records: int, limit: int) -> StreamMarks:
    return known._replace(next_sequence=min(known.next_sequence + lost_records, limit))


async def _first_number(client: Client, following: Sequence[StreamSegment], tag: str) -> int:
    """The number of the first record of the later segments; the maximum if there is none."""
    for segment in following:
        try:
            reader = await client.open_ledger(segment.ledger_id)
        except NoSuchLedger:
            continue
        for entry in range(reader.last_add_confirmed + 1):
            envelope = await _readable(reader, segment.number, entry, tag)
            if envelope is not None:
                return envelope.first_sequence
    return MAX_ID


async def _readable(reader: LedgerReader, number: int, entry: int, tag: str) -> Envelope | None:
    try:
        return await envelope_at(reader, number, entry, tag)
    except StorageError as error:
        if not is_loss(error):
            raise
        return None
