"""Restores the records of streams from the archive's copy, after a loss of the metadata store.

Archived ledgers are restored before (``offload/rebuild.py``); other ledgers are lost. So the records are corrected:

- An open segment, and the last advances of a subscription, are lost with their ledger. The stream continues after its
  last archived segment, the subscription where its cursor ledger began.
- A segment that was created after the copy and archived is found by its ledger's metadata, and added again.
- A sealed segment that was not archived stays in the head; readers get a gap.

All of this is reported. Ledger ids in the records are not given out again: bookies may still have entries of them.
Deleted records are not restored (``deleted_records``).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Final

from tallybook.archive.stream_records import RecordsCopy
from tallybook.core.errors import (
    DamagedFile,
    InvalidArgument,
    MetadataConflict,
    MetadataOutcomeUnknown,
    NewerFormat,
    NoSuchLedger,
)
from tallybook.metadata.id_block import raise_counter
from tallybook.metadata.store import MetadataRecord, MetadataStore, Ok, Unknown
from tallybook.metadata.stream_use import HEADS, belongs_to_stream, head_record

from ..catalog import subscription_record as subscriptions
from ..catalog.catalog import decode_name
from ..catalog.head import Head
from ..catalog.head_codec import decode_chapter, decode_head, encode_chapter, encode_head
from ..names import CHAPTERS, NAMES, NAMESPACES, SUBSCRIPTIONS, name_record
from .deleted_records import DeletedRecords
from .later_segments import LaterSegments
from .taken_names import enter_beside

ORDER: Final = (NAMESPACES, CHAPTERS, HEADS, SUBSCRIPTIONS, NAMES)
"""Names come last, so that a stream is found only once it is complete."""


@dataclass(frozen=True, slots=True)
class RestoredRecord:
    """The outcome for one record."""

    name: str
    known: bool = False
    """Whether the metadata store already had a record with this name, which is kept."""
    lost: tuple[str, ...] = ()
    """Descriptions of what is not restored."""
    listed: int = 0
    """Segments that were added again to an existing stream."""
    deleted: bool = False
    """Whether it was deleted (or lost with all its ledgers), so that it is not restored."""
    entered_as: str | None = None
    """The new name of a stream whose own name is taken by another stream."""
    problem: str = ""
    """Why the record is not restored, or not unchanged."""


async def restore_streams(
    metadata: MetadataStore, copy: RecordsCopy, *, own: bool = True
) -> AsyncIterator[RestoredRecord]:
    """Restore the records of streams into a metadata store; existing records are kept.

    A stream whose name refers to another stream by now is restored under another name.

    Args:
        own: whether the copy is of this metadata store's cluster, whose deletion records then apply.

    Raises:
        MetadataConflict: a stream was changed meanwhile; repeat the call, which continues.
        MetadataUnavailable, MetadataOutcomeUnknown: the metadata store failed; repeat the call, which continues.
    """
    records = copy.records
    later, gone = LaterSegments(metadata), DeletedRecords(metadata, copy, own=own)
    await gone.load()
    for prefix in ORDER:
        if prefix == HEADS:
            await later.load()
        for name in sorted(name for name in records if name.startswith(prefix)):
            present = await metadata.read_record(name, linearizable=True)
            if present is not None and prefix == HEADS:
                yield await _known_head(metadata, name, present, later)
                continue
            if present is not None and present.value == records[name]:
                yield RestoredRecord(name, known=True)
                continue
            try:
                if present is not None:
                    yield await _beside(metadata, name, copy, gone)
                    continue
                if await gone.was_deleted(name):
                    yield RestoredRecord(name, deleted=True)
                    continue
                if name.startswith(NAMES) and await _goes_by_another(metadata, name, records[name]):
                    yield RestoredRecord(name, known=True)
                    continue
                value, lost = await _corrected(metadata, name, records[name], later)
                result = await metadata.write_record(name, value, None)
            except (DamagedFile, NewerFormat, InvalidArgument) as error:
                yield RestoredRecord(name, problem=error.message)
                continue
            if isinstance(result, Unknown):
                raise MetadataOutcomeUnknown(f"{name} may have been restored: {result.reason}; run it again")
            yield RestoredRecord(name, known=not isinstance(result, Ok), lost=lost)


async def _known_head(
    metadata: MetadataStore, name: str, present: MetadataRecord, later: LaterSegments
) -> RestoredRecord:
    """Handle an existing stream: the same one, by its id, which may have been written since.

    Segments whose ledgers were restored only now (their archive object could not be read before) are added.
    """
    try:
        head = decode_head(name, present.value)
        corrected, lost = await later.listed(head)
    except (DamagedFile, NewerFormat) as error:
        return RestoredRecord(name, known=True, problem=error.message)
    if corrected != head:
        result = await metadata.write_record(name, encode_head(corrected), present.version)
        if isinstance(result, Unknown):
            raise MetadataOutcomeUnknown(f"{name} may have been changed: {result.reason}; run it again")
        if not isinstance(result, Ok):
            raise MetadataConflict(f"{name} was changed while its segments were listed: run it again")
    listed = len(corrected.segments) - len(head.segments)
    return RestoredRecord(name, known=True, lost=lost, listed=listed)


async def _goes_by_another(metadata: MetadataStore, name: str, value: bytes) -> bool:
    """Whether the stream of a name exists under another name: it was renamed since."""
    leads_to = head_record(decode_name(name, value))
    found = await metadata.read_record(leads_to, linearizable=True)
    head = None if found is None else decode_head(leads_to, found.value)
    return head is not None and name not in {
        name_record(head.namespace, each) for each in (head.name, head.renaming) if each is not None
    }


async def _beside(metadata: MetadataStore, name: str, copy: RecordsCopy, gone: DeletedRecords) -> RestoredRecord:
    """Handle a record whose name exists with another value."""
    if name.startswith(NAMESPACES):
        problem = f"namespace {name.removeprefix(NAMESPACES)!r} is there with other settings, and keeps them"
        return RestoredRecord(name, known=True, problem=problem)
    if not name.startswith(NAMES):
        return RestoredRecord(name, known=True)  # the same stream, by its id, which was written since
    if await gone.was_deleted(name):
        return RestoredRecord(name, deleted=True)
    entered_as = await enter_beside(metadata, name, decode_name(name, copy.records[name]))
    if entered_as is None:
        return RestoredRecord(name, known=True)
    problem = f"another stream has this name by now: the restored one is {entered_as!r}"
    return RestoredRecord(name, entered_as=entered_as, problem=problem)


async def _corrected(
    metadata: MetadataStore, name: str, value: bytes, later: LaterSegments
) -> tuple[bytes, tuple[str, ...]]:
    """The corrected record, and descriptions of what is lost."""
    if name.startswith(HEADS):
        head = decode_head(name, value)
        ids = [each.ledger_id for each in head.segments]
        await raise_counter(metadata, max([*ids, *head.doomed, head.making or 0]))
        return await _corrected_head(metadata, head, later)
    if name.startswith(SUBSCRIPTIONS):
        found = subscriptions.decode(name, value)
        await raise_counter(metadata, max([*subscriptions.ledgers_of(found), *found.doomed, found.making or 0]))
        return await _corrected_subscription(metadata, found)
    if name.startswith(CHAPTERS):
        stream_id = name.removeprefix(CHAPTERS).partition("/")[0]
        segments = decode_chapter(name, value)
        held = {each.ledger_id: await _ledger_use(metadata, each.ledger_id, stream_id) for each in segments}
        left = [each for each in segments if held[each.ledger_id] is not _LedgerUse.BY_OTHERS]
        gone = [each for each in segments if held[each.ledger_id] is not _LedgerUse.BY_STREAM]
        # Unchanged bytes, if no segment is removed.
        value = encode_chapter(left) if len(left) < len(segments) else value
        return value, tuple(f"{name}: segment {each.number} (ledger {each.ledger_id})" for each in gone)
    return value, ()


async def _corrected_head(metadata: MetadataStore, head: Head, later: LaterSegments) -> tuple[bytes, tuple[str, ...]]:
    named = {*(each.ledger_id for each in head.segments), *head.doomed}
    held = {ledger_id: await _ledger_use(metadata, ledger_id, head.stream_id) for ledger_id in named}
    lost = tuple(
        f"stream {head.name!r}: segment {each.number} (ledger {each.ledger_id})"
        for each in head.segments
        if held[each.ledger_id] is not _LedgerUse.BY_STREAM
    )
    left = tuple(
        each
        for each in head.segments
        if held[each.ledger_id] is _LedgerUse.BY_STREAM
        or (each.end is not None and held[each.ledger_id] is _LedgerUse.UNUSED)
    )
    doomed = tuple(each for each in head.doomed if held[each] is not _LedgerUse.BY_OTHERS)
    head = replace(head, owner=None, making=None, segments=left, doomed=doomed)
    corrected, more_lost = await later.listed(head)
    return encode_head(corrected), lost + more_lost


async def _corrected_subscription(
    metadata: MetadataStore, found: subscriptions.Subscription
) -> tuple[bytes, tuple[str, ...]]:
    ledger_id, lost = found.ledger_id, tuple[str, ...]()
    if ledger_id is not None and await _ledger_use(metadata, ledger_id, found.stream_id) is not _LedgerUse.BY_STREAM:
        ledger_id = None
        lost = (
            f"subscription {found.name!r}: its last advances (ledger {found.ledger_id}); it goes on {found.cursor}",
        )
    doomed = tuple(
        [
            each
            for each in found.doomed
            if await _ledger_use(metadata, each, found.stream_id) is not _LedgerUse.BY_OTHERS
        ]
    )
    corrected = replace(found, owner=None, making=None, ledger_id=ledger_id, doomed=doomed)
    return subscriptions.encode(corrected), lost


class _LedgerUse(Enum):
    """The present use of a ledger id. Another component may use it, if ledgers were created before the rebuild."""

    BY_STREAM = auto()
    BY_OTHERS = auto()
    UNUSED = auto()


async def _ledger_use(metadata: MetadataStore, ledger_id: int, stream_id: str) -> _LedgerUse:
    try:
        found = (await metadata.read_ledger(ledger_id, linearizable=True)).value
    except NoSuchLedger:
        return _LedgerUse.UNUSED
    except (DamagedFile, NewerFormat):
        return _LedgerUse.BY_STREAM  # it exists, though its record cannot be read
    return _LedgerUse.BY_STREAM if belongs_to_stream(found, stream_id) else _LedgerUse.BY_OTHERS
