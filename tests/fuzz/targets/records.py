"""Fuzz target: metadata records, mostly JSON, written by other processes or changed by operators."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterator
from types import SimpleNamespace
from typing import Any

from tallybook.archive.encryption_record import RECORD as SEALED
from tallybook.archive.encryption_record import encrypted_since
from tallybook.archive.url_record import RECORD as LOCATION
from tallybook.archive.url_record import read_location
from tallybook.core.errors import DamagedFile, InvalidArgument, NewerFormat
from tallybook.metadata.records.bookie_modes import PREFIX as MODES
from tallybook.metadata.records.bookie_modes import requested_mode
from tallybook.metadata.records.format import check_overwritable
from tallybook.metadata.records.leader import Leadership
from tallybook.metadata.records.restored_store import RECORD as BEHIND
from tallybook.metadata.records.restored_store import RestoreRecord, decode_restore_record, encode_restore_record
from tallybook.metadata.records.security_required import decode_required
from tallybook.metadata.rules import check_record_name
from tallybook.metadata.store import MetadataRecord, RecordPage
from tallybook.metadata.stream_use import stream_of
from tallybook.metadata.transactions import CLOCK, SinkRecord, attempt_of, sink_record
from tallybook.metadata.transactions.model import read_clock
from tallybook.metadata.transactions.sink_record import Committed, attempt_name
from tallybook.offload.status_record import decode_status
from tallybook.repair.auditor import Auditor
from tallybook.repair.fsck.records import RECORD_KINDS
from tallybook.repair.pause import PAUSED_RECORD, paused_since
from tallybook.repair.service import repair_status
from tallybook.repair.task_progress import LedgerProgress, TaskProgress
from tallybook.repair.tasks import Task, decode_task
from tallybook.stream.catalog import subscription_record as subscription
from tallybook.stream.catalog.catalog import decode_name, encode_name
from tallybook.stream.catalog.delivery_record import Delivery, DeliveryStage, delivered, delivery_id
from tallybook.stream.catalog.head import Chapter, Head, Owner, SegmentEnd, StreamSegment, Truncation
from tallybook.stream.catalog.head_codec import decode_chapter, decode_head, encode_chapter, encode_head
from tallybook.stream.catalog.subscription_record import Cursor, Subscription, cursor_of
from tallybook.stream.names import NAMESPACES
from tallybook.stream.namespaces import Namespaces, _decode_usage
from tallybook.stream.policy import StreamPolicy
from tallybook.stream.position import Position
from tallybook.stream.record_kinds import STREAM_KINDS, STREAM_OWNERS
from tallybook.stream.records.envelope import StreamMarks

from ..harness import REFUSED, Target, attempt, finished, same
from ..mutations import JSON_WORDS, spoiled

TARGET = Target("records", words=JSON_WORDS)

STREAM = "5f0c9a21" * 4
POSITION = Position(3, 1842, 7, "5f0c9a21")
MARKS = StreamMarks(10, 5, -1, 3)
HEAD = Head(
    STREAM, "default", "orders/eu", 1, StreamPolicy.of(roll_bytes="8MiB", retention="72h"), 4, Owner("t", "s", "n"),
    (StreamSegment(3, 7, 1, SegmentEnd(9, MARKS, 100, 2)), StreamSegment(4, 8, 3)), (Chapter(1, 1, 2, MARKS, 5),), 5,
    MARKS, (3, 9, 0), True, 9, Truncation(2, 0, 1, 3), False, False, (5, 6), "other", "former",
)  # fmt: skip


class OneRecord:
    """A metadata store with one record."""

    def __init__(self, name: str, value: bytes) -> None:
        self._name, self._record = name, MetadataRecord(value, 1)

    async def read_record(self, name: str, **_how: object) -> MetadataRecord | None:
        """The record, if it is that."""
        return self._record if name == self._name else None

    async def list_records(self, prefix: str, after: str = "", _limit: int = 0) -> RecordPage:
        """Its name, if it fits."""
        fits = self._name.startswith(prefix) and self._name > after
        return RecordPage((self._name,) if fits else (), True)


def _comes_back(data: bytes, decode: Callable[[str, bytes], Any], encode: Callable[[Any], bytes]) -> Any:
    """Return the decoded value, after checking that its encoding decodes to the same."""
    found = attempt(DamagedFile, decode, "name", data)
    if found is not REFUSED:
        same(decode("name", encode(found)), found, "a record")
    return found


def some_sinks() -> Iterator[bytes]:
    """Sinks before the first transaction, and after some."""
    yield from spoiled(
        SinkRecord().encode(), SinkRecord(Committed(17, (4711, 4712, 4800), "owner"), 5, (3, 9)).encode()
    )


@TARGET.decoder(
    "metadata/records/format.py:check_overwritable",
    "metadata/transactions/sink_record.py:SinkRecord.decode",
    "metadata/transactions/sink_record.py:_ids_of",
    seeds=some_sinks,
)
def sink(data: bytes) -> None:
    """The committed transactions of a sink, and updates of any record."""
    attempt(NewerFormat, check_overwritable, "name", b"new", data)
    found = attempt(DamagedFile, SinkRecord.decode, "name", data)
    if found is not REFUSED:
        same(SinkRecord.decode("name", found.encode()), found, "a sink")
        attempt(InvalidArgument, sink_record.check_fits, found.last)


def some_heads() -> Iterator[bytes]:
    """Stream heads of minimal and maximal size."""
    yield from spoiled(encode_head(HEAD))
    yield encode_head(Head(STREAM, "default", "a", 1, StreamPolicy()))


@TARGET.decoder(
    "stream/catalog/head_codec.py:decode_head",
    "stream/catalog/head_codec.py:_segment",
    "stream/catalog/head_codec.py:_chapter",
    "stream/catalog/head_codec.py:_place",
    "stream/catalog/head_codec.py:_marks",
    "stream/catalog/head_codec.py:_number",
    "metadata/records/format.py:json_text",
    seeds=some_heads,
)
def head(data: bytes) -> None:
    """The head of a stream."""
    _comes_back(data, decode_head, encode_head)


@TARGET.decoder("metadata/stream_use.py:stream_of", seeds=some_heads)
def stream_of_a_ledger(data: bytes) -> None:
    """The head of a stream, as used in an error message; a damaged one does not prevent the refusal."""
    assert stream_of(STREAM, data)


def some_chapters() -> Iterator[bytes]:
    """Segments of a chapter."""
    yield from spoiled(encode_chapter(HEAD.segments))


@TARGET.decoder("stream/catalog/head_codec.py:decode_chapter", seeds=some_chapters)
def chapter(data: bytes) -> None:
    """Segments of a stream that do not fit into its head."""
    _comes_back(data, decode_chapter, encode_chapter)


def some_names() -> Iterator[bytes]:
    """A stream name."""
    yield from spoiled(encode_name(STREAM))


@TARGET.decoder("stream/catalog/catalog.py:decode_name", seeds=some_names)
def stream_name(data: bytes) -> None:
    """The record of a stream name."""
    _comes_back(data, decode_name, encode_name)


def some_deliveries() -> Iterator[bytes]:
    """A delivery in progress."""
    yield from spoiled(Delivery(17, 4, DeliveryStage.GIVEN_UP).encode())


@TARGET.decoder("stream/catalog/delivery_record.py:Delivery.decode", seeds=some_deliveries)
def delivery(data: bytes) -> None:
    """The progress of a delivery of a batch to a stream."""
    _comes_back(data, Delivery.decode, Delivery.encode)


def some_subscriptions() -> Iterator[bytes]:
    """Subscriptions with a reader, and without."""
    yield from spoiled(
        subscription.encode(Subscription(STREAM, "mine", Cursor(POSITION, True), 1, Owner("t", "s", "n"), 7, 8, (5, 6)))
    )
    yield subscription.encode(Subscription(STREAM, "mine", Cursor(POSITION, False), 1))


@TARGET.decoder(
    "stream/catalog/subscription_record.py:decode",
    "metadata/records/format.py:json_text",
    "stream/catalog/subscription_record.py:_number",
    seeds=some_subscriptions,
)
def subscriptions(data: bytes) -> None:
    """The record of a subscription, with the position of its reader."""
    _comes_back(data, subscription.decode, subscription.encode)


def some_namespaces() -> Iterator[bytes]:
    """A namespace with a policy, and one with a quota."""
    policy = HEAD.policy.model_dump(mode="json")
    yield from spoiled(json.dumps({"format": 1, "policy": policy}).encode())
    yield json.dumps({"format": 2, "policy": policy, "total_bytes": 4096}).encode()


@TARGET.decoder("stream/namespaces.py:_decode", seeds=some_namespaces)
def namespace(data: bytes) -> None:
    """The defaults for streams of a namespace."""
    attempt(DamagedFile, finished, Namespaces(OneRecord(NAMESPACES + "eu", data), None).policy("eu"))


def some_usages() -> Iterator[bytes]:
    """The stored bytes of a namespace."""
    yield from spoiled(b'{"format":1,"bytes":4096}')


@TARGET.decoder("stream/namespaces.py:_decode_usage", seeds=some_usages)
def namespace_usage(data: bytes) -> None:
    """The stored bytes of a namespace."""
    attempt(DamagedFile, _decode_usage, "usage", data)


def some_tasks() -> Iterator[bytes]:
    """Tasks of the repair."""
    yield from spoiled(Task((7, 8), frozenset({"a"}), True, True, "lost", "me", 3).encode())
    progress = TaskProgress(3, 1, 2, 5, 900, 2_000, 60, (LedgerProgress(7, 1, 2, 100, None),))
    yield from spoiled(Task((7, 8), progress=progress).encode())


@TARGET.decoder("repair/tasks.py:decode_task", "repair/task_progress.py:decode_progress", seeds=some_tasks)
def repair_task(data: bytes) -> None:
    """A repair task."""
    _comes_back(data, decode_task, Task.encode)


def some_small_ones() -> Iterator[bytes]:
    """Records of leaders, bookie modes, locations, counters."""
    yield from spoiled(
        json.dumps({"holder": "me", "lease_ms": 10_000, "by": "me", "write": 3}).encode(),
        json.dumps({"since_ms": 17}).encode(),
        json.dumps({"format": 1, "url": "s3://bucket/a"}).encode(),
        json.dumps({"began_ms": 17, "after": 5}).encode(),
        json.dumps({"at_ms": 17, "failures": 0, "last_error": ""}).encode(),
        json.dumps({"format": 1, "required": True}).encode(),
        encode_restore_record(RestoreRecord(10, 21, "b1", 17)),
    )
    yield b"read_only"
    yield b"17"
    yield "²".encode()


@TARGET.decoder(
    "metadata/records/restored_store.py:decode_restore_record",
    "metadata/records/bookie_modes.py:_decode",
    "metadata/records/leader.py:decode_leader",
    "metadata/records/security_required.py:decode_required",
    "metadata/transactions/model.py:read_clock",
    "metadata/transactions/model.py:_is_tick",
    "repair/pause.py:_decode",
    "repair/service.py:repair_status",
    "repair/auditor.py:Auditor._checked",
    "archive/url_record.py:read_location",
    "archive/encryption_record.py:encrypted_since",
    "offload/status_record.py:decode_status",
    seeds=some_small_ones,
)
def small_records(data: bytes) -> None:
    """Records of a few values, each decoded as every kind of them."""
    attempt(DamagedFile, finished, requested_mode(OneRecord(MODES + "a", data), "a"))
    attempt(DamagedFile, finished, read_clock(OneRecord(CLOCK, data)))
    attempt(DamagedFile, finished, paused_since(OneRecord(PAUSED_RECORD, data)))
    attempt(DamagedFile, finished, repair_status(OneRecord("repair/status", data)))
    attempt(DamagedFile, finished, read_location(OneRecord(LOCATION, data)))
    attempt(DamagedFile, finished, encrypted_since(OneRecord(SEALED, data)))
    attempt(DamagedFile, decode_status, data)
    attempt(DamagedFile, decode_required, data)
    attempt(DamagedFile, decode_restore_record, BEHIND, data)
    leadership = SimpleNamespace(_record="leader", _lease=10.0)
    attempt(DamagedFile, Leadership._holder, leadership, MetadataRecord(data, 1))
    attempt(NewerFormat, finished, Auditor._checked(SimpleNamespace(_store=OneRecord("repair/checked", data))))


def some_of_every_kind() -> Iterator[bytes]:
    """The name of a record, and its value."""
    for kind in (*RECORD_KINDS, *STREAM_KINDS):
        yield kind.prefix.encode() + b"a/1\n{}"
        yield kind.prefix.encode() + b"a\n" + encode_head(HEAD)


async def _every(found: AsyncIterator[Any]) -> None:
    async for _ in found:
        pass


@TARGET.decoder(
    "metadata/records/format.py:load_json",
    "repair/fsck/records.py:_mode",
    "repair/fsck/records.py:_attempt",
    "repair/fsck/records.py:_number",
    "metadata/records/kinds.py:decoding",
    "stream/record_kinds.py:_name",
    "stream/record_kinds.py:_head",
    "stream/record_kinds.py:_subscription",
    "stream/record_kinds.py:_stream_names",
    "stream/record_kinds.py:_subscription_names",
    seeds=some_of_every_kind,
)
def checked_records(data: bytes) -> None:
    """A check of everything, which reports unreadable records and ledgers that no record names."""
    name_bytes, _, value = data.partition(b"\n")
    name = name_bytes.decode(errors="replace")
    if attempt(InvalidArgument, check_record_name, name) is REFUSED:
        return
    store = OneRecord(name, value)
    for kind in (*RECORD_KINDS, *STREAM_KINDS):
        if name.startswith(kind.prefix):
            attempt(DamagedFile, finished, _every(kind.understand(store, name, value)))
    for owner in STREAM_OWNERS:
        finished(owner.is_named(OneRecord(f"stream-heads/5f/{STREAM}", value), 7, f"{STREAM}/3".encode()))
        finished(owner.is_named(OneRecord(f"stream-heads/5f/{STREAM}", value), 7, name_bytes))


def some_words() -> Iterator[bytes]:
    """Parts of names and entries."""
    yield f"after {POSITION}".encode()
    yield str(POSITION).encode()
    yield delivery_id(7, 3)
    yield attempt_name("sales", 17, 4711).encode()
    yield attempt_name("once/uuid", 0, 4711).encode()


@TARGET.decoder(
    "stream/catalog/subscription_record.py:cursor_of",
    "stream/catalog/subscription_record.py:Cursor.parse",
    "stream/position.py:Position.parse",
    "stream/catalog/delivery_record.py:delivered",
    "metadata/transactions/sink_record.py:attempt_of",
    seeds=some_words,
)
def words(data: bytes) -> None:
    """Entries of cursor ledgers, positions, ids of records, names of attempts."""
    found = attempt(DamagedFile, cursor_of, data, 7)
    if found is not REFUSED:
        same(str(found).encode(), data, "a cursor")
    text = data.decode(errors="replace")
    position = attempt(InvalidArgument, Position.parse, text)
    if position is not REFUSED:
        same(str(position), text, "a position")
    number = delivered(data)
    if number is not None:
        same(delivered(delivery_id(*number)), number, "the id of a record")
    if attempt(InvalidArgument, check_record_name, text) is not REFUSED:
        attempt_of(text)
