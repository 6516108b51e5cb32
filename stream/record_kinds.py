"""How ``fsck`` checks the metadata records of streams: what they refer to, and what must exist.

Also the reverse check: ledgers that were created for a stream or subscription that does not refer to them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

from tallybook.core.errors import DamagedFile, InvalidArgument, NewerFormat
from tallybook.metadata.records.format import load_json
from tallybook.metadata.records.kinds import LedgerOwner, RecordKind, decoding
from tallybook.metadata.store import MetadataRecord, MetadataStore
from tallybook.metadata.stream_use import CURSOR, HEADS, STREAM, head_record

from .catalog.catalog import decode_name
from .catalog.delivery_record import DELIVERIES, Delivery
from .catalog.head_codec import decode_chapter, decode_head
from .catalog.subscription_record import decode as decode_subscription
from .catalog.subscription_record import ledgers_of
from .names import CHAPTERS, NAMES, NAMESPACES, SUBSCRIPTIONS, chapter_record
from .service import LEADER_RECORD
from .sessions import SESSIONS

RESTORE: Final = "the stream cannot be opened: restore the record from a copy of the metadata"


async def _name(store: MetadataStore, name: str, value: bytes) -> AsyncIterator[int | str]:
    stream_id = decode_name(name, value)
    if await store.read_record(head_record(stream_id), linearizable=True) is None:
        yield f"the name of a stream leads to {stream_id}, which is not there"


async def _head(store: MetadataStore, name: str, value: bytes) -> AsyncIterator[int | str]:
    head = decode_head(name, value)
    if head.deleting:
        return
    for chapter in head.chapters:
        record = chapter_record(head.stream_id, chapter.number)
        found = await store.read_record(record, linearizable=True)
        if found is None:
            yield f"the head lists chapter {chapter.number}, which is not there: its segments are lost to readers"
            continue
        for segment in decode_chapter(record, found.value):
            # Earlier ones were truncated, and their ledgers may be gone.
            if segment.number >= chapter.first_segment:
                yield segment.ledger_id
    for segment in head.segments:
        yield segment.ledger_id


async def _subscription(_store: MetadataStore, name: str, value: bytes) -> AsyncIterator[int | str]:
    found = decode_subscription(name, value)
    if found.ledger_id is not None:
        yield found.ledger_id


def _anything(_name: str, _value: bytes) -> None:
    """Any value is valid: the next process overwrites it."""


STREAM_KINDS: Final = (
    RecordKind(NAMES, "name of a stream", _name, "restore the metadata from a copy, or create the stream anew"),
    RecordKind(HEADS, "stream", _head, RESTORE),
    RecordKind(CHAPTERS, "chapter of a stream", decoding(decode_chapter), RESTORE),
    RecordKind(NAMESPACES, "namespace", decoding(load_json), "'namespace create' writes it again"),
    RecordKind(SUBSCRIPTIONS, "subscription", _subscription, "delete the subscription, and begin it anew"),
    RecordKind(DELIVERIES, "delivery", decoding(Delivery.decode), "restore the metadata from a copy"),
    RecordKind(SESSIONS, "session of a writer", decoding(_anything), ""),
    RecordKind(LEADER_RECORD, "who tidies streams", decoding(_anything), ""),
)


async def _record(store: MetadataStore, name: str) -> MetadataRecord | None:
    try:
        return await store.read_record(name, linearizable=True)
    except InvalidArgument:
        return None  # not a valid record name


async def _stream_names(store: MetadataStore, ledger_id: int, value: bytes) -> bool:
    stream_id, _, number = value.decode(errors="replace").partition("/")
    name = head_record(stream_id)
    found = await _record(store, name)
    if found is None:
        return False
    try:
        head = decode_head(name, found.value)
        if ledger_id in {*head.doomed, head.making, *(segment.ledger_id for segment in head.segments)}:
            return True
        for chapter in head.chapters:
            # The record may list earlier, truncated segments.
            if chapter.last_segment < int(number):
                continue
            record = chapter_record(stream_id, chapter.number)
            listed = await store.read_record(record, linearizable=True)
            return listed is None or ledger_id in {each.ledger_id for each in decode_chapter(record, listed.value)}
    except (DamagedFile, NewerFormat, ValueError):
        return True  # which is a finding by itself
    return False


async def _subscription_names(store: MetadataStore, ledger_id: int, value: bytes) -> bool:
    name = SUBSCRIPTIONS + value.decode(errors="replace")
    found = await _record(store, name)
    try:
        return found is not None and ledger_id in ledgers_of(decode_subscription(name, found.value))
    except (DamagedFile, NewerFormat):
        return True  # as above


STREAM_OWNERS: Final = (
    LedgerOwner(STREAM, "the stream", _stream_names),
    LedgerOwner(CURSOR, "the subscription", _subscription_names),
)
