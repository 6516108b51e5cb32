"""Metadata records that no process of ours writes are reported as damaged."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from tallybook.archive.url_record import RECORD as LOCATION
from tallybook.archive.url_record import read_location
from tallybook.core.errors import DamagedFile
from tallybook.metadata.memory import MemoryMetadata
from tallybook.metadata.records.leader import Leadership
from tallybook.metadata.store import MetadataRecord, MetadataStore
from tallybook.metadata.transactions import SinkRecord
from tallybook.offload.status_record import decode_status
from tallybook.repair.auditor import CHECKED_RECORD, Auditor
from tallybook.repair.fsck.records import RECORD_KINDS
from tallybook.repair.pause import PAUSED_RECORD, paused_since
from tallybook.repair.service import STATUS_RECORD, repair_status
from tallybook.repair.tasks import Task, decode_task
from tallybook.runtime.rng import SeededRng
from tallybook.stream.catalog import subscription_record as subscription
from tallybook.stream.catalog.head import Head, Owner
from tallybook.stream.catalog.head_codec import decode_head, encode_head
from tallybook.stream.catalog.subscription_record import Cursor, Subscription
from tallybook.stream.policy import StreamPolicy
from tallybook.stream.position import Position
from tallybook.stream.record_kinds import STREAM_KINDS

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


def held_by(value: bytes) -> object:
    leadership: Any = SimpleNamespace(_record="leader", _lease=10.0)
    return Leadership._holder(leadership, MetadataRecord(value, 1))


@pytest.mark.parametrize(
    ("decode", "values"),
    [
        (
            partial(SinkRecord.decode, "sinks/a"),
            [put(SinkRecord().encode(), "format", value) for value in ("[]", "{}")],
        ),
        (
            partial(decode_task, "repair/tasks/a"),
            [DEEP, put(Task((7,)).encode(), "beat", ENDLESS), put(Task((7,)).encode(), "ledgers", f"[{ENDLESS}]")],
        ),
        (decode_status, [DEEP, b"[]", b"5", b'{"at_ms": "x"}', b'{"at_ms": 1e999}', b'{"at_ms": []}']),
        (
            held_by,
            [
                DEEP,
                b'{"holder": "a", "lease_ms": %s}' % (b"9" * 400),
                b'{"holder": "\\ud800", "lease_ms": 1, "x": ' + DEEP,
            ],
        ),
        # Text without an encoding.
        (
            partial(decode_head, "stream-heads/a"),
            [put(HEAD, key, HALF_A_CHARACTER) for key in ("id", "namespace", "name")],
        ),
        (
            partial(subscription.decode, "stream-subscriptions/a"),
            [put(SUBSCRIPTION, key, HALF_A_CHARACTER) for key in ("stream", "name")],
        ),
    ],
    ids=["sink", "task", "offloader", "leader", "stream", "subscription"],
)
def test_a_record_that_no_process_writes_is_damaged(decode: Callable[[bytes], object], values: list[bytes]):
    for value in values:
        with pytest.raises(DamagedFile):
            decode(value)


@pytest.mark.parametrize(
    ("name", "read", "values"),
    [
        (PAUSED_RECORD, paused_since, [DEEP, b'{"since_ms": 1e999}']),
        (STATUS_RECORD, repair_status, [DEEP]),
        (LOCATION, read_location, [DEEP]),
    ],
)
async def test_a_stored_record_is_damaged(name: str, read: Callable[..., Any], values: list[bytes]):
    for value in values:
        with pytest.raises(DamagedFile):
            await read(await holding(name, value))


@pytest.mark.parametrize("value", [DEEP, b'{"began_ms": 1e999, "after": 5}'])
async def test_a_check_whose_progress_is_damaged_begins_anew(value: bytes):
    auditor: Any = SimpleNamespace(_store=await holding(CHECKED_RECORD, value))
    assert await Auditor._checked(auditor) == (None, -1)


@pytest.mark.parametrize("name", ["repair/status", "archive/status", "archive/location", "stream-namespaces/a"])
async def test_a_check_of_everything_says_which_record_is_damaged(name: str):
    understand: Callable[..., Any] = next(
        kind.understand for kind in (*RECORD_KINDS, *STREAM_KINDS) if name.startswith(kind.prefix)
    )
    store = await holding(name, DEEP)
    with pytest.raises(DamagedFile):
        [found async for found in understand(store, name, DEEP)]
