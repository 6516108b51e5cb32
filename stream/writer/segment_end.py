"""How a segment ended: found by whoever comes after its writer."""

from __future__ import annotations

from contextlib import aclosing
from typing import Any, Final, NamedTuple

from tallybook.client.client import Client
from tallybook.client.reader.handle import LedgerReader
from tallybook.core.ids import NO_ENTRY

from ..envelope import Envelope, Kind, Marks
from ..head import Segment, SegmentEnd

MOST_LOOKED_AT: Final = 1024
"""Entries that are read at once on the way back to the last record."""


class FoundEnd(NamedTuple):
    """The end of a segment.

    Args:
        kind: of its last envelope; ``None`` if there is none.
        last_place: segment, entry and slot of its last record; ``None`` if it has none.
    """

    end: SegmentEnd
    kind: Kind | None
    last_place: tuple[int, int, int] | None

    @property
    def as_sealed(self) -> dict[str, Any]:
        """What ``head.seal`` wants to know."""
        ends_stream = self.kind is Kind.END_OF_STREAM
        return {"end": self.end, "last_place": self.last_place, "ends_stream": ends_stream}


async def recovered_end(client: Client, segment: Segment, before: Marks, tag: str, now_ms: int) -> FoundEnd:
    """Fence a segment that may still be written, close it, and find where it leaves the stream.

    Args:
        before: where the stream stands at its beginning.

    Raises:
        As ``Client.open_ledger`` and ``LedgerReader.read``; EnvelopeDamaged: its last entry is no envelope.
    """
    reader = await client.open_ledger(segment.ledger_id)
    metadata = reader.metadata
    last = metadata.last_entry_id
    if last == NO_ENTRY:
        return FoundEnd(SegmentEnd(NO_ENTRY, before, 0, now_ms), None, None)
    envelope = await envelope_at(reader, segment.number, last, tag)
    end = SegmentEnd(last, envelope.marks, metadata.length, now_ms)
    return FoundEnd(end, envelope.kind, await last_record(reader, segment.number, last, tag, envelope))


async def last_record(
    reader: LedgerReader, number: int, last_entry: int, tag: str, envelope: Envelope | None = None
) -> tuple[int, int, int] | None:
    """Where the last record of a segment is, at or before an entry; ``None`` if there are only marks.

    Args:
        envelope: what that entry holds, if that is known.

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
        # Marks follow one another where a writer commits and appends nothing.
        high, span = low - 1, min(2 * span, MOST_LOOKED_AT)
    return None


async def envelope_at(reader: LedgerReader, number: int, entry: int, tag: str) -> Envelope:
    """What an entry of a segment holds.

    Raises:
        As ``LedgerReader.read_entry``; EnvelopeDamaged: it is no envelope.
    """
    return Envelope((await reader.read_entry(entry)).payload, number, entry, tag)
