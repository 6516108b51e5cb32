"""Brings the records of streams back from the copy that an archive has of them, after the metadata store was lost.

The ledgers are there by then (``offload/rebuild.py``), but for those that were not archived. So what a record says of
ledgers is mended: a segment that was still open, and an advance of a subscription, are gone with their ledger. A
segment that was made after the copy, and archived, is known by the mark of its ledger, and is listed again. The stream
goes on behind its last archived segment, and the subscription where its cursor ledger was begun, which is earlier. A
segment that had ended and was not archived stays listed, and readers meet a gap there. All of that is reported. Ids of
ledgers that a record names are not given out again: bookies may still have entries of them.

A record that was deleted does not come back (``gone_records``).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Final

from tallybook.archive.records import RecordsCopy
from tallybook.core.errors import (
    DamagedFile,
    InvalidArgument,
    MetadataConflict,
    MetadataOutcomeUnknown,
    NewerFormat,
    NoSuchLedger,
)
from tallybook.metadata.ledger_use import HEADS, head_record, is_of_stream
from tallybook.metadata.store import MetadataStore, Ok, Record, Unknown
from tallybook.offload.rebuild import raise_counter

from .catalog import decode_name
from .gone_records import GoneRecords
from .head import Head
from .head_codec import decode_chapter, decode_head, encode_chapter, encode_head
from .later_segments import LaterSegments
from .names import CHAPTERS, NAMES, NAMESPACES, SUBSCRIPTIONS, name_record
from .subscription import record as subscriptions
from .taken_names import enter_beside

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
    listed: int = 0
    """Segments that the stream, which was there, has again."""
    deleted: bool = False
    """Whether it was deleted, or was lost with all that is of it: it does not come back."""
    entered_as: str | None = None
    """The name that a stream has come back under, since another stream has its own."""
    problem: str = ""
    """Why the record does not come back, or not as it was."""


async def restore_streams(
    metadata: MetadataStore, copy: RecordsCopy, *, own: bool = True
) -> AsyncIterator[RestoredRecord]:
    """Enter the records of streams into a metadata store; those that are there already stay as they are.

    A stream whose name leads to another one by now is entered under another name.

    Args:
        own: whether the copy is of the cluster of this metadata store, which knows then what was deleted.

    Raises:
        MetadataConflict: a stream was changed meanwhile; the same call goes on.
        MetadataUnavailable, MetadataOutcomeUnknown: the metadata store; the same call goes on where it ended.
    """
    records = copy.records
    later, gone = LaterSegments(metadata), GoneRecords(metadata, copy, own=own)
    await gone.look()
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
                value, lost = await _mended(metadata, name, records[name], later)
                result = await metadata.write_record(name, value, None)
            except (DamagedFile, NewerFormat, InvalidArgument) as error:
                yield RestoredRecord(name, problem=error.message)
                continue
            if isinstance(result, Unknown):
                raise MetadataOutcomeUnknown(f"{name} may have been restored: {result.reason}; run it again")
            yield RestoredRecord(name, known=not isinstance(result, Ok), lost=lost)


async def _known_head(metadata: MetadataStore, name: str, present: Record, later: LaterSegments) -> RestoredRecord:
    """What becomes of a stream that is there: the same one, by its id, which may have gone on since.

    Segments whose ledgers have come back only now, since their object could not be read before, are listed.
    """
    try:
        head = decode_head(name, present.value)
        mended, lost = await later.listed(head)
    except (DamagedFile, NewerFormat) as error:
        return RestoredRecord(name, known=True, problem=error.message)
    if mended != head:
        result = await metadata.write_record(name, encode_head(mended), present.version)
        if isinstance(result, Unknown):
            raise MetadataOutcomeUnknown(f"{name} may have been changed: {result.reason}; run it again")
        if not isinstance(result, Ok):
            raise MetadataConflict(f"{name} was changed while its segments were listed: run it again")
    listed = len(mended.segments) - len(head.segments)
    return RestoredRecord(name, known=True, lost=lost, listed=listed)


async def _goes_by_another(metadata: MetadataStore, name: str, value: bytes) -> bool:
    """Whether the stream that a name led to is there under another one: it was renamed since."""
    leads_to = head_record(decode_name(name, value))
    found = await metadata.read_record(leads_to, linearizable=True)
    head = None if found is None else decode_head(leads_to, found.value)
    return head is not None and name not in {
        name_record(head.namespace, each) for each in (head.name, head.renaming) if each is not None
    }


async def _beside(metadata: MetadataStore, name: str, copy: RecordsCopy, gone: GoneRecords) -> RestoredRecord:
    """What becomes of a record where one of its name is there that holds something else."""
    if name.startswith(NAMESPACES):
        problem = f"namespace {name.removeprefix(NAMESPACES)!r} is there with other settings, and keeps them"
        return RestoredRecord(name, known=True, problem=problem)
    if not name.startswith(NAMES):
        return RestoredRecord(name, known=True)  # of the same stream, by its id, which has gone on since
    if await gone.was_deleted(name):
        return RestoredRecord(name, deleted=True)
    entered_as = await enter_beside(metadata, name, decode_name(name, copy.records[name]))
    if entered_as is None:
        return RestoredRecord(name, known=True)
    problem = f"another stream has this name by now: the restored one is {entered_as!r}"
    return RestoredRecord(name, entered_as=entered_as, problem=problem)


async def _mended(
    metadata: MetadataStore, name: str, value: bytes, later: LaterSegments
) -> tuple[bytes, tuple[str, ...]]:
    """The record as it may be entered, and what is lost of what it names."""
    if name.startswith(HEADS):
        head = decode_head(name, value)
        ids = [each.ledger_id for each in head.segments]
        await raise_counter(metadata, max([*ids, *head.doomed, head.making or 0]))
        return await _mended_head(metadata, head, later)
    if name.startswith(SUBSCRIPTIONS):
        found = subscriptions.decode(name, value)
        await raise_counter(metadata, max([*subscriptions.ledgers_of(found), *found.doomed, found.making or 0]))
        return await _mended_subscription(metadata, found)
    if name.startswith(CHAPTERS):
        stream_id = name.removeprefix(CHAPTERS).partition("/")[0]
        segments = decode_chapter(name, value)
        held = {each.ledger_id: await _held(metadata, each.ledger_id, stream_id) for each in segments}
        left = [each for each in segments if held[each.ledger_id] is not _Held.BY_OTHERS]
        gone = [each for each in segments if held[each.ledger_id] is not _Held.BY_STREAM]
        # As it was, where nothing of it has to go.
        value = encode_chapter(left) if len(left) < len(segments) else value
        return value, tuple(f"{name}: segment {each.number} (ledger {each.ledger_id})" for each in gone)
    return value, ()


async def _mended_head(metadata: MetadataStore, head: Head, later: LaterSegments) -> tuple[bytes, tuple[str, ...]]:
    named = {*(each.ledger_id for each in head.segments), *head.doomed}
    held = {ledger_id: await _held(metadata, ledger_id, head.stream_id) for ledger_id in named}
    lost = tuple(
        f"stream {head.name!r}: segment {each.number} (ledger {each.ledger_id})"
        for each in head.segments
        if held[each.ledger_id] is not _Held.BY_STREAM
    )
    left = tuple(
        each
        for each in head.segments
        if held[each.ledger_id] is _Held.BY_STREAM or (each.end is not None and held[each.ledger_id] is _Held.BY_NOBODY)
    )
    doomed = tuple(each for each in head.doomed if held[each] is not _Held.BY_OTHERS)
    head = replace(head, owner=None, making=None, segments=left, doomed=doomed)
    mended, more_lost = await later.listed(head)
    return encode_head(mended), lost + more_lost


async def _mended_subscription(
    metadata: MetadataStore, found: subscriptions.Subscription
) -> tuple[bytes, tuple[str, ...]]:
    ledger_id, lost = found.ledger_id, tuple[str, ...]()
    if ledger_id is not None and await _held(metadata, ledger_id, found.stream_id) is not _Held.BY_STREAM:
        ledger_id = None
        lost = (
            f"subscription {found.name!r}: its last advances (ledger {found.ledger_id}); it goes on {found.cursor}",
        )
    doomed = tuple(
        [each for each in found.doomed if await _held(metadata, each, found.stream_id) is not _Held.BY_OTHERS]
    )
    mended = replace(found, owner=None, making=None, ledger_id=ledger_id, doomed=doomed)
    return subscriptions.encode(mended), lost


class _Held(Enum):
    """Whose a ledger id is by now. Where ledgers were made before the rebuild, it may be others'."""

    BY_STREAM = auto()
    BY_OTHERS = auto()
    BY_NOBODY = auto()


async def _held(metadata: MetadataStore, ledger_id: int, stream_id: str) -> _Held:
    try:
        found = (await metadata.read_ledger(ledger_id, linearizable=True)).value
    except NoSuchLedger:
        return _Held.BY_NOBODY
    except (DamagedFile, NewerFormat):
        return _Held.BY_STREAM  # it is there, though its record cannot be read
    return _Held.BY_STREAM if is_of_stream(found, stream_id) else _Held.BY_OTHERS
