"""Recovers a segment and determines its end, after its writer has failed or lost the stream."""

from __future__ import annotations

from contextlib import aclosing
from typing import Any, Final, NamedTuple

from tallybook.client.client import Client
from tallybook.client.reader.handle import LedgerReader
from tallybook.core.ids import NO_ENTRY

from ..catalog.head import SegmentEnd, StreamSegment
from ..records.envelope import Envelope, EnvelopeKind, StreamMarks

MAX_ENTRIES_READ: Final = 1024
"""Entries read at a time in the backward search for the last record."""


class RecoveredEnd(NamedTuple):
    """The end of a segment.

    Args:
        kind: of its last envelope; ``None`` if there is none.
        last_place: segment, entry and slot of its last record; ``None`` if it has none.
    """

    end: SegmentEnd
    kind: EnvelopeKind | None
    last_place: tuple[int, int, int] | None

    @property
    def as_sealed(self) -> dict[str, Any]:
        """Arguments for ``head.seal``."""
        ends_stream = self.kind is EnvelopeKind.END_OF_STREAM
        return {"end": self.end, "last_place": self.last_place, "ends_stream": ends_stream}


async def recovered_end(
    client: Client, segment: StreamSegment, before: StreamMarks, tag: str, now_ms: int
) -> RecoveredEnd:
    """Fence and close a segment, and find the stream's marks at its end.

    Args:
        before: the stream's marks before it.

    Raises:
        As ``Client.open_ledger`` and ``LedgerReader.read``; EnvelopeDamaged: its last entry is not a valid envelope.
    """
    reader = await client.open_ledger(segment.ledger_id)
    metadata = reader.metadata
    last = metadata.last_entry_id
    if last == NO_ENTRY:
        return RecoveredEnd(SegmentEnd(NO_ENTRY, before, 0, now_ms), None, None)
    envelope = await envelope_at(reader, segment.number, last, tag)
    end = SegmentEnd(last, envelope.marks, metadata.length, now_ms)
    return RecoveredEnd(end, envelope.kind, await last_record(reader, segment.number, last, tag, envelope))


async def last_record(
    reader: LedgerReader, number: int, last_entry: int, tag: str, envelope: Envelope | None = None
) -> tuple[int, int, int] | None:
    """The place of the last record of a segment, at or before an entry; ``None`` if there are only marks.

    Args:
        envelope: the envelope in that entry, if known.

    Raises:
        As ``envelope_at``.
    """
    if envelope is not None and envelope.count:
        return number, last_entry, envelope.count - 1
    high, span = last_entry if envelope is None else last_entry - 1, 1
    while high > NO_ENTRY:
        low, place = max(0, high - span + 1), None
        async with aclosing(reader.read_batches(low, high)) as batches:
            async for batch in batches:
                for entry in batch:
                    found = Envelope(entry.payload, number, entry.entry_id, tag)
                    if found.count:
                        place = number, entry.entry_id, found.count - 1
        if place is not None:
            return place
        # There may be many marks in a row, if a writer commits without appending.
        high, span = low - 1, min(2 * span, MAX_ENTRIES_READ)
    return None


async def envelope_at(reader: LedgerReader, number: int, entry: int, tag: str) -> Envelope:
    """The envelope in an entry of a segment.

    Raises:
        As ``LedgerReader.read_entry``; EnvelopeDamaged: not a valid envelope.
    """
    return Envelope((await reader.read_entry(entry)).payload, number, entry, tag)
