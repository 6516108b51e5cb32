"""Brings the records of streams back from the copy that an archive has of them, after the metadata store was lost.

The ledgers are there by then (``offload/rebuild.py``), but for those that were not archived. So what a record says of
ledgers is mended: a segment that was still open, and an advance of a subscription, are gone with their ledger. The
stream goes on behind its last archived segment, and the subscription where its cursor ledger was begun, which is
earlier. A segment that had ended and was not archived stays listed, and readers meet a gap there. All of that is
reported. Ids of ledgers that a record names are not given out again: bookies may still have entries of them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from tallybook.core.errors import DamagedFile, InvalidArgument, MetadataOutcomeUnknown, NewerFormat, NoSuchLedger
from tallybook.metadata.ledger_use import HEADS
from tallybook.metadata.store import MetadataStore, Ok, Unknown
from tallybook.offload.rebuild import raise_counter

from .head import Head
from .head_codec import decode_chapter, decode_head, encode_head
from .names import CHAPTERS, NAMES, NAMESPACES, SUBSCRIPTIONS
from .subscription import record as subscriptions

ORDER: Final = (NAMESPACES, CHAPTERS, HEADS, SUBSCRIPTIONS, NAMES)
"""Names come last: a stream is found only once all of it is there."""


@dataclass(frozen=True, slots=True)
class RestoredRecord:
    """What became of one record."""

    name: str
    known: bool = False
    """Whether the metadata store had one of that name, which stays as it is."""
    lost: tuple[str, ...] = ()
    """What does not come back, in words."""
    problem: str = ""
    """Why the record does not come back."""


async def restore_streams(metadata: MetadataStore, records: Mapping[str, bytes]) -> AsyncIterator[RestoredRecord]:
    """Enter the records of streams into a metadata store; those that are there already stay as they are.

    Args:
        records: by name, as they were copied.

    Raises:
        MetadataUnavailable, MetadataOutcomeUnknown: the metadata store; the same call goes on where it ended.
    """
    for prefix in ORDER:
        for name in sorted(name for name in records if name.startswith(prefix)):
            if await metadata.read_record(name, linearizable=True) is not None:
                yield RestoredRecord(name, known=True)
                continue
            try:
                value, lost = await _mended(metadata, name, records[name])
                result = await metadata.write_record(name, value, None)
            except (DamagedFile, NewerFormat, InvalidArgument) as error:
                yield RestoredRecord(name, problem=error.message)
                continue
            if isinstance(result, Unknown):
                raise MetadataOutcomeUnknown(f"{name} may have been restored: {result.reason}; run it again")
            yield RestoredRecord(name, known=not isinstance(result, Ok), lost=lost)


async def _mended(metadata: MetadataStore, name: str, value: bytes) -> tuple[bytes, tuple[str, ...]]:
    """The record as it may be entered, and what is lost of what it names."""
    if name.startswith(HEADS):
        head = decode_head(name, value)
        ids = [each.ledger_id for each in head.segments]
        await raise_counter(metadata, max([*ids, *head.doomed, head.making or 0]))
        return await _mended_head(metadata, head)
    if name.startswith(SUBSCRIPTIONS):
        found = subscriptions.decode(name, value)
        await raise_counter(metadata, max([*subscriptions.ledgers_of(found), *found.doomed, found.making or 0]))
        return await _mended_subscription(metadata, found)
    if name.startswith(CHAPTERS):
        segments = decode_chapter(name, value)
        gone = [each for each in segments if not await _exists(metadata, each.ledger_id)]
        return value, tuple(f"{name}: segment {each.number} (ledger {each.ledger_id})" for each in gone)
    return value, ()


async def _mended_head(metadata: MetadataStore, head: Head) -> tuple[bytes, tuple[str, ...]]:
    gone = {each.number for each in head.segments if not await _exists(metadata, each.ledger_id)}
    lost = tuple(
        f"stream {head.name!r}: segment {each.number} (ledger {each.ledger_id})"
        for each in head.segments
        if each.number in gone
    )
    left = tuple(each for each in head.segments if each.end is not None or each.number not in gone)
    return encode_head(replace(head, owner=None, making=None, segments=left)), lost


async def _mended_subscription(
    metadata: MetadataStore, found: subscriptions.Subscription
) -> tuple[bytes, tuple[str, ...]]:
    ledger_id, lost = found.ledger_id, tuple[str, ...]()
    if ledger_id is not None and not await _exists(metadata, ledger_id):
        ledger_id = None
        lost = (
            f"subscription {found.name!r}: its last advances (ledger {found.ledger_id}); it goes on {found.cursor}",
        )
    return subscriptions.encode(replace(found, owner=None, making=None, ledger_id=ledger_id)), lost


async def _exists(metadata: MetadataStore, ledger_id: int) -> bool:
    try:
        await metadata.read_ledger(ledger_id, linearizable=True)
    except NoSuchLedger:
        return False
    except (DamagedFile, NewerFormat):
        return True  # it is there, though its record cannot be read
    return True
