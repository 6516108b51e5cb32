"""The end of a segment of which something is lost: where that leaves the stream, as far as anybody can still tell.

    entries   ... 17 18 19 [lost] [lost]        18: a mark, 17: records, up to number 420
                        '--- 2 lost: numbers go on at 420 + 2 * 8,192 at the latest

Nobody knows how many records were in an entry that nobody has. They are taken for as many as an entry may have, so that
no number is ever given twice; a segment that comes behind says more. Readers are told that records are lost, as
anywhere else. To go on like this is for people to decide, never for a writer on its own: what is missing may come back
with a bookie that is away.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tallybook.client.client import Client
from tallybook.client.reader.handle import LedgerReader
from tallybook.core.errors import NoSuchLedger, StorageError, TallybookError
from tallybook.core.ids import MAX_ID, NO_ENTRY

from ..envelope import MAX_RECORDS, Envelope, Kind, Marks
from ..gaps import is_lost
from ..head import Segment, SegmentEnd
from .ending import FoundEnd, envelope_at

LOST_LEDGER_RECORDS: Final = 1 << 32
"""For how many records a ledger is taken that is not there at all."""


def is_loss(error: TallybookError) -> bool:
    """Whether an error says that something is gone, and not only away."""
    return isinstance(error, NoSuchLedger) or is_lost(error)


async def end_after_loss(
    client: Client, segment: Segment, following: Sequence[Segment], before: Marks, tag: str, now_ms: int
) -> FoundEnd:
    """Like ``recovered_end``, of a segment whose last entries, or all of them, are lost.

    Args:
        following: the segments behind it.

    Raises:
        As ``recovered_end``, where something is not lost but away.
    """
    most = await _first_number(client, following, tag)
    try:
        reader = await client.open_ledger(segment.ledger_id)
    except NoSuchLedger:
        # Listed with one entry, since it was not empty: so readers look for it, and are told.
        return FoundEnd(SegmentEnd(0, _at_most(before, LOST_LEDGER_RECORDS, most), 0, now_ms), None, None)
    metadata = reader.metadata
    known, lost, place = before, 0, None
    kind: Kind | None = None
    for entry in range(metadata.last_entry_id, NO_ENTRY, -1):
        envelope = await _readable(reader, segment.number, entry, tag)
        if envelope is None:
            lost += known is before
            continue
        known = envelope.marks if known is before else known
        # Where the last of all is there, it tells whether anything may come behind it.
        kind = envelope.kind if entry == metadata.last_entry_id else kind
        if envelope.count:
            place = segment.number, entry, envelope.count - 1
            break
    marks = _at_most(known, lost * MAX_RECORDS, most)
    return FoundEnd(SegmentEnd(metadata.last_entry_id, marks, metadata.length, now_ms), kind, place)


def _at_most(known: Marks, lost_records: int, most: int) -> Marks:
    return known._replace(next_sequence=min(known.next_sequence + lost_records, most))


async def _first_number(client: Client, following: Sequence[Segment], tag: str) -> int:
    """The number of the first record behind; where there is none yet, more than any."""
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
