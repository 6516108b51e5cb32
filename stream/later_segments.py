"""Segments that a head does not list yet, found by the marks of their ledgers: they were made after it was copied."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from tallybook.core.errors import DamagedFile, NewerFormat, NoSuchLedger
from tallybook.core.marks import sometimes
from tallybook.metadata.ledger_use import segment_of
from tallybook.metadata.model import LedgerMetadata
from tallybook.metadata.store import MetadataStore

from .head import Head, Segment

CONCURRENT_READS: Final = 32
MOST_LISTED: Final = 2_000
"""Segments that are added to one head, whose record has to stay below a megabyte; the others are named."""


class LaterSegments:
    """The segments of all streams, by what the closed ledgers of a metadata store say of themselves.

    The ledgers are read once, when the first stream is asked about.
    """

    def __init__(self, metadata: MetadataStore) -> None:
        self._metadata = metadata
        self._of: Mapping[str, list[tuple[int, LedgerMetadata]]] | None = None

    async def listed(self, head: Head) -> tuple[Head, tuple[str, ...]]:
        """The head with the segments that come behind its last one; and what cannot be listed, in words.

        They are listed as open: the next writer finds out where they end, and puts them into chapters.

        Raises:
            MetadataUnavailable: the ledgers cannot be read.
        """
        if head.ended or head.deleting:
            return head, ()
        if self._of is None:
            self._of = await _segments(self._metadata)
        return with_later(head, self._of.get(head.stream_id, ()))


def with_later(head: Head, found: Iterable[tuple[int, LedgerMetadata]]) -> tuple[Head, tuple[str, ...]]:
    """As ``LaterSegments.listed``, of these numbers and ledgers. Pure."""
    by_number: dict[int, list[LedgerMetadata]] = {}
    for number, ledger in found:
        if number >= head.next_segment:
            # One that stayed empty was announced, and perhaps made again under the same number.
            by_number.setdefault(number, []).extend([ledger] if ledger.last_entry_id >= 0 else [])
    if not by_number:
        return head, ()
    added, lost, expected = list[Segment](), list[str](), head.next_segment
    for number, ledgers in sorted(by_number.items()):
        if number > expected:
            numbers = str(expected) if number == expected + 1 else f"{expected} to {number - 1}"
            lost.append(f"stream {head.name!r}: segment {numbers}, unless it stayed empty")
        expected = number + 1
        if len(ledgers) == 1 and len(added) < MOST_LISTED:
            added.append(Segment(number, ledgers[0].ledger_id, ledgers[0].created_at_ms))
            continue
        why = "of several" if len(ledgers) > 1 else "for which its head has no room"
        lost += [f"stream {head.name!r}: segment {number} (ledger {each.ledger_id}), {why}" for each in ledgers]
    sometimes("stream: lists segments that were made after its head was copied")
    return replace(head, segments=(*head.segments, *added), next_segment=expected), tuple(lost)


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
        if page.complete or not page.ledger_ids:
            return found
        last = page.ledger_ids[-1]
