"""Fuzz target: ledger metadata, bookie registrations and metadata URIs, written by any process."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import replace

from tallybook.archive.objects.open import parse_url
from tallybook.core.answers import Incarnation
from tallybook.core.errors import DamagedFile, InvalidArgument, InvalidConfig
from tallybook.core.quorum import Quorum
from tallybook.gateway.ledgers.messages import ledger_message
from tallybook.metadata.codec import StoredRegistration, decode_bookie, decode_ledger, encode_bookie, encode_ledger
from tallybook.metadata.ledger.archived import ArchiveAttempt, IndexPart, Receipt
from tallybook.metadata.ledger.model import DigestType, Fragment, LedgerMetadata, LedgerState, MissedRange
from tallybook.metadata.store import BookieInfo, BookieMode, Deletion
from tallybook.metadata.transactions import is_pending
from tallybook.metadata.transactions.model import transaction_of
from tallybook.metadata.uri import parse_uri
from tallybook.metadata.zookeeper import layout
from tallybook.offload.policy import _own_min_age_s
from tallybook.stream.catalog.delivery_record import part_of

from ..harness import REFUSED, Target, attempt, same
from ..mutations import with_crc

TARGET = Target(
    "ledger_metadata",
    words=(
        b"TLED\x01\x00\x00\x00",
        b"TBKI\x01\x00\x00\x00",
        b"sqlite:///",
        b"zk://",
        b"s3://",
        b"file:///./",
        b"%2e",
        b"/../",
    ),
)

OPEN = LedgerMetadata(7, Quorum(3, 2, 2), (Fragment(0, ("a", "b", "c")),), "creator", 1_700_000_000_000)
CLOSED = replace(
    OPEN,
    fragments=(Fragment(0, ("a", "b", "c")), Fragment(5, ("a", "d", "c"))),
    state=LedgerState.CLOSED,
    last_entry_id=9,
    length=100,
    digest=DigestType.HMAC_SHA256,
    key_salt=bytes(16),
    key_verifier=bytes(32),
    writer_token="writer",
    missed=(MissedRange("b", 0, 4),),
    custom={"a": b"b", "tallybook.sink": b"sales/17", "tallybook.part": b"3"},
)
RECEIPT = Receipt("object", "ledgers/object.parquet", 5000, bytes(32), IndexPart(4000, 100, 200, 5), 10, 100, 77, 1)


def _sealed(data: bytes) -> bytes:
    """``data`` with the length and the checksum that its body should have."""
    if len(data) < 16:
        return data
    data = data[:8] + struct.pack("<I", len(data) - 16) + data[12:]
    return with_crc(data, 12, (0, 12), (16, None))


def some_ledgers() -> Iterator[bytes]:
    """Metadata in every state of a ledger."""
    yield encode_ledger(OPEN)
    yield encode_ledger(replace(OPEN, state=LedgerState.IN_RECOVERY, missed=(MissedRange("b", 0, None),)))
    yield encode_ledger(CLOSED)
    yield encode_ledger(replace(CLOSED, archiving=ArchiveAttempt("object", 5)))
    yield encode_ledger(replace(CLOSED, archived=RECEIPT, copies_released=True))


@TARGET.decoder(
    "metadata/codec.py:decode_ledger",
    "metadata/codec.py:_open",
    "metadata/codec.py:_receipt",
    "metadata/codec.py:_attempt",
    "metadata/codec.py:_refuse_unknown_fields",
    "metadata/codec.py:_unknown_fields",
    "metadata/codec.py:_known",
    "metadata/transactions/model.py:transaction_of",
    "metadata/transactions/model.py:_since",
    "offload/policy.py:_own_min_age_s",
    "stream/catalog/delivery_record.py:part_of",
    seeds=some_ledgers,
)
def ledger(data: bytes) -> None:
    """The metadata of a ledger, and values derived from them."""
    for given in (data, _sealed(data)):
        found = attempt(DamagedFile, decode_ledger, given, 7, "place")
        if found is REFUSED:
            continue
        again = attempt(InvalidArgument, encode_ledger, found)
        if again is not REFUSED:
            same(decode_ledger(again, 7, "place"), found, "the metadata of a ledger")
        transaction_of(found)
        is_pending(found)
        part_of(found)
        _own_min_age_s(found)
        ledger_message(found)


def some_bookies() -> Iterator[bytes]:
    """A registration."""
    info = BookieInfo("bookie-1", "127.0.0.1:1", Incarnation("uuid", 3), BookieMode.WRITABLE, "127.0.0.1:2", "rack", 5)
    yield encode_bookie(StoredRegistration(info, "session"))
    yield encode_bookie(StoredRegistration(replace(info, mode=BookieMode.READ_ONLY), ""))


@TARGET.decoder(
    "metadata/codec.py:decode_bookie",
    "metadata/sqlite/bookie_rows.py:Row.registered",
    "metadata/zookeeper/membership.py:ZooKeeperMembership.decode",
    seeds=some_bookies,
)
def bookie(data: bytes) -> None:
    """The registration of a bookie."""
    for given in (data, _sealed(data)):
        found = attempt(DamagedFile, decode_bookie, given, "place")
        if found is not REFUSED:
            same(decode_bookie(encode_bookie(found), "place"), found, "a registration")


def some_uris() -> Iterator[bytes]:
    """URIs of metadata stores, and of object stores."""
    for text in (
        "sqlite:///var/lib/metadata.db", "sqlite:///./data/m.db", "zk://zk1:2181,[::1]/tallybook", "memory:",
        "s3://bucket/a/b", "gs://bucket", "az://container/a", "file:///srv/archive", "file:///./archive", "s3a://x",
    ):  # fmt: skip
        yield text.encode()


@TARGET.decoder(
    "metadata/uri.py:parse_uri",
    "metadata/uri.py:_sqlite",
    "metadata/uri.py:_zookeeper",
    "archive/objects/open.py:parse_url",
    "archive/objects/open.py:_parse_file",
    "archive/objects/open.py:_parse_bucket",
    seeds=some_uris,
)
def uri(data: bytes) -> None:
    """A URI typed by an operator."""
    text = data.decode(errors="surrogateescape")
    attempt(InvalidConfig, parse_uri, text)
    attempt(InvalidConfig, parse_url, text)


def some_nodes() -> Iterator[bytes]:
    """Names of nodes, with their level in the tree."""
    yield b"\x00" + b"007f"
    yield b"\x04" + b"fff"
    yield b"\x05" + b"r-a%2Fb"
    yield b"\x06" + b"f-%C3%A4"


@TARGET.decoder(
    "metadata/zookeeper/layout.py:record_entries",
    "metadata/zookeeper/layout.py:_record_entry",
    "metadata/zookeeper/layout.py:child_range",
    "metadata/zookeeper/layout.py:deletion",
    "metadata/zookeeper/layout.py:with_deleted",
    seeds=some_nodes,
)
def nodes(data: bytes) -> None:
    """Names of ZooKeeper nodes, which any client may create, and which groups of ledgers were deleted."""
    kind, name = (data[0] if data else 0) % 7, data[1:].decode(errors="replace")
    if kind < len(layout.ids_below):
        found = attempt(DamagedFile, layout.child_range, kind, 0, name, "/path")
        if isinstance(found, range):
            digits = layout.Layout("").ledger(found.start).split("/")[2:]
            same(digits[kind], name, "the name of a node")
    else:
        entries = attempt(DamagedFile, layout.record_entries, [name], "a", "/path")
        if isinstance(entries, list):
            node = (
                layout.Layout("").record_folder(entries[0])
                if entries[0].endswith("/")
                else layout.Layout("").record(entries[0])
            )
            same(node.rpartition("/")[2], name, "the name of a node")
    record = Deletion.of(b"sixteen bytes, x")
    same(layout.deletion(layout.with_deleted(data[1:], 77, record), 77), record, "a deleted ledger")
