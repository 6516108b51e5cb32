"""Fuzz target: requests to a gateway by clients in any language."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from google.protobuf.message import Message

from tallybook.core.errors import EntryTooLarge, InvalidArgument
from tallybook.core.quorum import Quorum
from tallybook.core.settings import GatewaySettings
from tallybook.gateway import requests
from tallybook.gateway.ledgers import messages
from tallybook.gateway.ledgers.service import _page_start
from tallybook.gateway.outflow import message_bytes, reserved_bytes
from tallybook.gateway.streams.messages import new_records, policy_changes, start_of, wait_seconds
from tallybook.proto import ledger_pb2, stream_pb2
from tallybook.runtime.http.guard import fields_of
from tallybook.stream.names import check_namespace, check_prefix, check_stream_name, check_subscription
from tallybook.stream.policy import StreamPolicy
from tallybook.stream.records.record import size_of

from ..harness import REFUSED, Target, attempt

TARGET = Target("gateway_requests", words=(b"\x0a\x00", b"\xff" * 9 + b"\x01", b"3-1842-7@5f0c9a21", b"\xed\xa0\x80"))

SETTINGS = GatewaySettings(metadata="memory:")
POSITION = "3-1842-7@5f0c9a21"


def _kinds(module: Any) -> dict[str, type[Message]]:
    """Every message type of a proto file that a client sends, most often inside another one."""
    return {
        name: getattr(module, name)
        for name in sorted(module.DESCRIPTOR.message_types_by_name)
        if name.endswith(("Request", "Open"))
    }


LEDGER_KINDS, STREAM_KINDS = _kinds(ledger_pb2), _kinds(stream_pb2)


def _create(request: ledger_pb2.CreateRequest) -> None:
    found = messages.create_arguments(request)
    Quorum(found["ensemble"], found["write_quorum"], found["ack_quorum"])


def _with_policy(request: Any) -> None:
    changes = policy_changes(request.policy, getattr(request, "clear", ()))
    StreamPolicy.of(None, **changes)


def _named(request: Any) -> None:
    for check, field in (
        (check_namespace, "namespace"), (check_stream_name, "name"), (check_stream_name, "new_name"),
        (check_prefix, "prefix"), (check_subscription, "subscription"),
    ):  # fmt: skip
        if field in request.DESCRIPTOR.fields_by_name:
            attempt(InvalidArgument, check, getattr(request, field))


def _starting(request: Any) -> None:
    for field in ("start", "before"):
        if field in request.DESCRIPTOR.fields_by_name:
            attempt(InvalidArgument, start_of, getattr(request, field))


def _records(request: Any) -> None:
    for record in new_records(request.records):
        attempt((InvalidArgument, EntryTooLarge), size_of, record)


def _waiting(request: Any) -> None:
    wait_seconds(request, SETTINGS)


def _paged(request: ledger_pb2.ListRequest) -> None:
    _page_start(request.page_token)


def _sized(request: Any) -> None:
    reserved_bytes(message_bytes(request.max_bytes, SETTINGS), SETTINGS)


def _understood(kinds: dict[str, type[Message]], data: bytes, more: dict[str, Callable[[Any], None]]) -> None:
    """Decode ``data`` as a message of each type, and interpret it as the service does."""
    for kind in kinds.values():
        found = attempt(InvalidArgument, requests.decode, kind, data)
        if found is REFUSED:
            continue
        fields = found.DESCRIPTOR.fields_by_name
        _named(found)
        _starting(found)
        for field, read in more.items():
            if field in fields:
                attempt(InvalidArgument, read, found)


def some_ledger_requests() -> Iterator[bytes]:
    """One request of each type."""
    pb = ledger_pb2
    for message in (
        pb.CreateRequest(ensemble=3, write_quorum=2, ack_quorum=2, password=b"p", digest=pb.DIGEST_HMAC_SHA256),
        pb.CreateRequest(custom={"a": b"b"}),
        pb.ListRequest(page_size=5, page_token="17"), pb.DescribeRequest(ledger_id=7, password=b"p"),
    ):  # fmt: skip
        yield message.SerializeToString()
    for kind in LEDGER_KINDS.values():
        yield kind().SerializeToString()


@TARGET.decoder(
    "gateway/requests.py:decode", "gateway/ledgers/messages.py:create_arguments",
    "gateway/ledgers/service.py:_page_start", "gateway/requests.py:request_of", seeds=some_ledger_requests,
)  # fmt: skip
def ledger_request(data: bytes) -> None:
    """A request to the ledger service."""
    _understood(LEDGER_KINDS, data, {
        "digest": _create, "page_token": _paged, "max_bytes": _sized, "ledger_id": messages.ledger_of,
    })  # fmt: skip


def some_stream_requests() -> Iterator[bytes]:
    """One request of each type."""
    pb = stream_pb2
    starts = (
        pb.StreamStart(position=POSITION), pb.StreamStart(after=POSITION), pb.StreamStart(timestamp_ms=5),
        pb.StreamStart(sequence=7), pb.StreamStart(txid=-7), pb.StreamStart(edge=pb.EDGE_LATEST),
    )  # fmt: skip
    policy = pb.StreamPolicy(ensemble=3, roll_bytes=1 << 20, retention_s=5, compression=pb.COMPRESSION_ZSTD)
    yield pb.CreateStreamRequest(name="orders/eu", namespace="eu", policy=policy).SerializeToString()
    yield pb.SetPolicyRequest(name="orders/eu", policy=policy, clear=["offload_after_s"]).SerializeToString()
    yield pb.RenameStreamRequest(name="a", new_name="b").SerializeToString()
    for start in starts:
        yield pb.TruncateStreamRequest(name="a", before=start).SerializeToString()
        yield pb.ReadStreamRequest(name="a", start=start).SerializeToString()
    record = pb.NewRecord(payload=b"x", timestamp_ms=5, key=b"k", dedup_id=b"id", txid=9)
    yield pb.StreamAppendRequest(records=[record, pb.NewRecord(payload=b"")]).SerializeToString()
    yield pb.StreamAppendRequest(open=pb.StreamAppendOpen(name="a", wait_ms=5)).SerializeToString()
    yield pb.EndStreamRequest(name="a", wait_ms=5, take_over=True).SerializeToString()


@TARGET.decoder(
    "gateway/streams/messages.py:policy_changes", "gateway/streams/messages.py:start_of",
    "gateway/streams/messages.py:new_records", "gateway/streams/messages.py:wait_seconds",
    "stream/records/record.py:size_of", seeds=some_stream_requests,
)  # fmt: skip
def stream_request(data: bytes) -> None:
    """A request to the stream service."""
    _understood(STREAM_KINDS, data, {"policy": _with_policy, "records": _records, "wait_ms": _waiting})


def some_bodies() -> Iterator[bytes]:
    """Bodies of HTTP requests to the console."""
    yield b"{}"
    yield b'{"reason": "disk", "reason": 5}'
    yield b'{"reason": ' + b"[" * 5_000


@TARGET.decoder("runtime/http/guard.py:fields_of", "runtime/strict_json.py:loads_strict", seeds=some_bodies)
def body(data: bytes) -> None:
    """The body of a request to a console."""
    attempt(InvalidArgument, fields_of, data, ("reason",))
