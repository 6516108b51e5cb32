"""Finds segments that were created after a head was copied, by the stream ids in their ledgers' metadata."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from tallybook.core.coverage import sometimes
from tallybook.core.errors import DamagedFile, NewerFormat, NoSuchLedger
from tallybook.metadata.ledger.model import LedgerMetadata
from tallybook.metadata.store import MetadataStore
from tallybook.metadata.stream_use import segment_of

from ..catalog.head import Head, StreamSegment
from ..catalog.head_codec import decode_chapter
from ..names import chapter_record

CONCURRENT_READS: Final = 32
MAX_LISTED: Final = 2_000
"""Segments added to one head at most, so that its record stays below a megabyte; further ones are reported."""


class LaterSegments:
    """The segments of all streams, by the stream ids in the metadata of closed ledgers."""

    def __init__(self, metadata: MetadataStore) -> None:
        self._metadata = metadata
        self._of: Mapping[str, list[tuple[int, LedgerMetadata]]] | None = None

    async def load(self) -> None:
        """Read the ledgers, once. Call it before heads are read, so that heads have all segments added by writers.

        Raises:
            MetadataUnavailable: they cannot be read.
        """
        if self._of is None:
            self._of = await _segments(self._metadata)

    async def listed(self, head: Head) -> tuple[Head, tuple[str, ...]]:
        """Add later segments to a head; return it with a description of the segments that cannot be added.

        They are added as open: the next writer seals them, and moves them into chapters. For a stream that has a writer
        they are only reported.

        Raises:
            MetadataUnavailable: the ledgers, or a chapter, cannot be read.
            DamagedFile, NewerFormat: a chapter cannot be decoded.
        """
        if head.ended or head.deleting:
            return head, ()
        await self.load()
        listed = {each.ledger_id for each in head.segments} | {*head.doomed, head.making}
        found = [
            (number, ledger)
            for number, ledger in (self._of or {}).get(head.stream_id, ())
            if ledger.ledger_id not in listed and number >= head.truncation.segment
        ]
        if any(number <= chapter.last_segment for number, _ in found for chapter in head.chapters):
            in_chapters = await self._in_chapters(head)
            found = [each for each in found if each[1].ledger_id not in in_chapters]
        return with_later(head, found)

    async def _in_chapters(self, head: Head) -> set[int]:
        ledger_ids = set[int]()
        for chapter in head.chapters:
            name = chapter_record(head.stream_id, chapter.number)
            record = await self._metadata.read_record(name, linearizable=True)
            if record is not None:
                ledger_ids |= {each.ledger_id for each in decode_chapter(name, record.value)}
        return ledger_ids


def with_later(head: Head, found: Iterable[tuple[int, LedgerMetadata]]) -> tuple[Head, tuple[str, ...]]:
    """As ``LaterSegments.listed``, for segment numbers and ledgers that are not in the head. Pure."""
    by_number: dict[int, list[LedgerMetadata]] = {}
    for number, ledger in found:
        # An empty ledger may have been replaced by another one under the same number.
        by_number.setdefault(number, []).extend([ledger] if ledger.last_entry_id >= 0 else [])
    last = max([each.number for each in head.segments] + [each.last_segment for each in head.chapters], default=0)
    added, lost, expected = list[StreamSegment](), list[str](), head.next_segment
    for number, ledgers in sorted(by_number.items()):
        if number > expected:
            numbers = str(expected) if number == expected + 1 else f"{expected} to {number - 1}"
            lost.append(f"stream {head.name!r}: segment {numbers}, unless it stayed empty")
        expected = max(expected, number + 1)
        if len(ledgers) > 1:
            why = "of several"
        elif number <= last:
            why = "which came back when the stream had gone on without it"
        elif head.owner is not None:
            why = "which came back while the stream is written"
        elif len(added) == MAX_LISTED:
            why = "for which its head has no space"
        else:
            added += [StreamSegment(number, each.ledger_id, each.created_at_ms) for each in ledgers]
            continue
        lost += [f"stream {head.name!r}: segment {number} (ledger {each.ledger_id}), {why}" for each in ledgers]
    if head.owner is None and expected > head.next_segment:
        head = replace(head, next_segment=expected)
    if not added:
        return head, tuple(lost)
    sometimes("stream: lists segments that were made after its head was copied")
    return replace(head, segments=(*head.segments, *added)), tuple(lost)


async def _segments(metadata: MetadataStore) -> dict[str, list[tuple[int, LedgerMetadata]]]:
    async def read(ledger_id: int) -> LedgerMetadata | None:
        try:
            return (await metadata.read_ledger(ledger_id)).value
        except (NoSuchLedger, DamagedFile, NewerFormat):
            return None

    found: dict[str, list[tuple[int, LedgerMetadata]]] = {}
    last = -1
    while True:
        page = await metadata.list_ledgers(last)
        for at in range(0, len(page.ledger_ids), CONCURRENT_READS):
            for ledger in await asyncio.gather(*map(read, page.ledger_ids[at : at + CONCURRENT_READS])):
                segment = segment_of(ledger) if ledger is not None and ledger.closed else None
                if ledger is not None and segment is not None:
                    found.setdefault(segment[0], []).append((segment[1], ledger))
        following = page.next_after()
        if following is None:
            return found
        last = following
