"""Records of the metadata store that hold what no process of ours writes are damaged, whatever it is that they hold."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from tallybook.archive.location import RECORD as LOCATION
from tallybook.archive.location import read_location
from tallybook.core.errors import DamagedFile
from tallybook.metadata.leader import Leadership
from tallybook.metadata.memory import MemoryMetadata
from tallybook.metadata.sink_record import SinkRecord
from tallybook.metadata.store import MetadataStore, Record
from tallybook.offload.status_record import decode_status
from tallybook.repair.auditor import CHECKED_RECORD, Auditor
from tallybook.repair.fsck_records import RECORD_KINDS
from tallybook.repair.pause import PAUSED_RECORD, paused_since
from tallybook.repair.service import STATUS_RECORD, repair_status
from tallybook.repair.tasks import Task, decode_task
from tallybook.runtime.rng import SeededRng
from tallybook.stream.head import Head, Owner
from tallybook.stream.head_codec import decode_head, encode_head
from tallybook.stream.policy import StreamPolicy
from tallybook.stream.position import Position
from tallybook.stream.record_kinds import STREAM_KINDS
from tallybook.stream.subscription import record as subscription
from tallybook.stream.subscription.record import Cursor, Subscription

DEEP = b"[" * 2_000
ENDLESS = "1e999"
HALF_A_CHARACTER = '"\\ud800"'

STREAM = "5f0c9a21" * 4
HEAD = encode_head(Head(STREAM, "default", "a", 1, StreamPolicy(), owner=Owner("t", "s", "n")))
SUBSCRIPTION = subscription.encode(Subscription(STREAM, "a", Cursor(Position(1, 0, 0, STREAM[:8]), True), 1))


def put(record: bytes, key: str, value: str) -> bytes:
    """The record with another value under ``key``."""
    found = json.loads(record)
    assert key in found
    return json.dumps({**found, key: "here"}).replace('"here"', value).encode()


async def holding(name: str, value: bytes) -> MetadataStore:
    """A store with this record."""
    store = MemoryMetadata(SeededRng("records")).client().store
    await store.write_record(name, value, None)
    return store


@pytest.mark.parametrize("value", ["[]", "{}"])
def test_a_sink_of_a_format_that_is_no_number_is_damaged(value: str):
    with pytest.raises(DamagedFile):
        SinkRecord.decode("sinks/a", put(SinkRecord().encode(), "format", value))


@pytest.mark.parametrize(
    "value",
    [DEEP, put(Task((7,)).encode(), "beat", ENDLESS), put(Task((7,)).encode(), "ledgers", f"[{ENDLESS}]")],
)
def test_a_task_of_the_repair_is_damaged(value: bytes):
    with pytest.raises(DamagedFile):
        decode_task("repair/tasks/a", value)


@pytest.mark.parametrize("value", [DEEP, b'{"since_ms": 1e999}'])
async def test_a_pause_of_the_repair_is_damaged(value: bytes):
    with pytest.raises(DamagedFile):
        await paused_since(await holding(PAUSED_RECORD, value))


async def test_the_status_of_the_repair_is_damaged():
    with pytest.raises(DamagedFile):
        await repair_status(await holding(STATUS_RECORD, DEEP))


@pytest.mark.parametrize("value", [DEEP, b'{"began_ms": 1e999, "after": 5}'])
async def test_a_check_whose_progress_is_damaged_begins_anew(value: bytes):
    auditor: Any = SimpleNamespace(_store=await holding(CHECKED_RECORD, value))
    assert await Auditor._checked(auditor) == (None, -1)


@pytest.mark.parametrize("value", [DEEP, b"[]", b"5", b'{"at_ms": "x"}', b'{"at_ms": 1e999}', b'{"at_ms": []}'])
def test_the_status_of_the_offloader_is_damaged(value: bytes):
    with pytest.raises(DamagedFile):
        decode_status(value)


async def test_the_place_of_the_archive_is_damaged():
    with pytest.raises(DamagedFile):
        await read_location(await holding(LOCATION, DEEP))


@pytest.mark.parametrize(
    "value",
    [DEEP, b'{"holder": "a", "lease_ms": %s}' % (b"9" * 400), b'{"holder": "\\ud800", "lease_ms": 1, "x": ' + DEEP],
)
def test_a_leader_is_damaged(value: bytes):
    leadership: Any = SimpleNamespace(_record="leader", _lease=10.0)
    with pytest.raises(DamagedFile):
        Leadership._holder(leadership, Record(value, 1))


@pytest.mark.parametrize("key", ["id", "namespace", "name"])
def test_a_stream_whose_text_has_no_encoding_is_damaged(key: str):
    with pytest.raises(DamagedFile):
        decode_head("stream-heads/a", put(HEAD, key, HALF_A_CHARACTER))


@pytest.mark.parametrize("key", ["stream", "name"])
def test_a_subscription_whose_text_has_no_encoding_is_damaged(key: str):
    with pytest.raises(DamagedFile):
        subscription.decode("stream-subscriptions/a", put(SUBSCRIPTION, key, HALF_A_CHARACTER))


def kinds_of_json() -> list[str]:
    return ["repair/status", "archive/status", "archive/location", "stream-namespaces/a"]


@pytest.mark.parametrize("name", kinds_of_json())
async def test_a_check_of_everything_says_which_record_is_damaged(name: str):
    understand: Callable[..., Any] = next(
        kind.understand for kind in (*RECORD_KINDS, *STREAM_KINDS) if name.startswith(kind.prefix)
    )
    store = await holding(name, DEEP)
    with pytest.raises(DamagedFile):
        [found async for found in understand(store, name, DEEP)]
