"""Fuzz target: whole archive objects, and Parquet: the footer, row groups as decoded by Arrow, and the full check."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache

from crc32c import crc32c

from tallybook.archive.catalog import ledgers_in
from tallybook.archive.encoder import EncodedObject, EncoderOptions, ObjectEncoder
from tallybook.archive.format.index_codec import ArchivedLedger, read_batches, read_directory, read_pages
from tallybook.archive.format.row_groups import decode_row_group, extent_of, extents_of, read_footer
from tallybook.archive.format.schema import SCHEMA, object_id_of, object_key
from tallybook.archive.manifest import Manifest, decode_manifest, encode_manifest
from tallybook.archive.objects.port import ObjectInfo
from tallybook.archive.scan import _decoded_index
from tallybook.archive.stream_records import RecordsCopy, decode_records, encode_records
from tallybook.archive.verifier import ObjectVerifier
from tallybook.core.batch import encode_batch, verify_batch
from tallybook.core.errors import DamagedFile
from tallybook.core.quorum import Quorum
from tallybook.metadata.codec import encode_ledger
from tallybook.metadata.ledger.archived import IndexPart, Receipt
from tallybook.metadata.ledger.model import Fragment, LedgerMetadata, LedgerState

from ..harness import REFUSED, Target, attempt, finished, same

TARGET = Target(
    "archive_objects", words=(b"PAR1", b"tallybook.directory", b'{"offset": ', b"1e999", b"\x15", b"\x19", b"\x1c")
)

UUID = "00000000-0000-4000-8000-000000000001"
KEY = object_key(UUID, [7, 9])


def _metadata(ledger_id: int, entries: int, length: int) -> bytes:
    return encode_ledger(
        LedgerMetadata(
            ledger_id, Quorum(1, 1, 1), (Fragment(0, ("a",)),), "creator", 0,
            state=LedgerState.CLOSED, last_entry_id=entries - 1, length=length,
        )
    )  # fmt: skip


@cache
def an_object() -> tuple[bytes, EncodedObject]:
    """Two ledgers, three row groups, several pages."""
    encoder = ObjectEncoder(UUID, 17, EncoderOptions(row_group_bytes=60, page_bytes=30))
    for ledger_id, batches in ((7, [[b"hello", b"", b"x" * 40], [b"y" * 30]]), (9, [[b"bye"]])):
        first = length = 0
        payloads = [payload for batch in batches for payload in batch]
        encoder.begin(ledger_id, _metadata(ledger_id, len(payloads), sum(map(len, payloads))))
        for batch in batches:
            length += sum(map(len, batch))
            sealed = encode_batch(ledger_id, first, batch, lac=-1, ledger_length=length, written_at_us=first)
            encoder.add(sealed, verify_batch(sealed))
            first += len(batch)
        encoder.end()
    encoded = encoder.finish()
    return b"".join(encoder.take()), encoded


class OneObject:
    """A store with one object."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    async def read(self, _key: str, offset: int, size: int) -> bytes:
        """The bytes of this range, which must lie in the object."""
        same(0 <= offset < offset + size <= len(self._data), True, f"{size} bytes from {offset} on are asked for")
        return self._data[offset : offset + size]


def a_footer() -> Iterator[bytes]:
    """The footer of the object."""
    blob, encoded = an_object()
    yield blob[encoded.directory_part.end :]


@TARGET.decoder(
    "archive/catalog.py:_directory_part",
    "archive/catalog.py:ledgers_in",
    "archive/catalog.py:_found",
    "archive/catalog.py:_receipts",
    "archive/catalog.py:read_catalog",
    "archive/format/row_groups.py:read_footer",
    "archive/format/row_groups.py:check_footer_keys",
    "archive/format/row_groups.py:extents_of",
    "archive/format/row_groups.py:extent_of",
    "archive/scan.py:_decoded_index",
    seeds=a_footer,
)
def footer(data: bytes) -> None:
    """An object with another footer, as read by a listing and at the start of a scan."""
    blob, encoded = an_object()
    part = encoded.directory_part
    changed = blob[: part.end] + data
    info = ObjectInfo(KEY, len(changed), 17)
    attempt(DamagedFile, finished, ledgers_in(OneObject(changed), info))
    found = attempt(DamagedFile, read_footer, data, len(encoded.directory.row_groups), KEY)
    if found is not REFUSED:
        for number in range(found.num_row_groups):
            attempt(DamagedFile, extent_of, found, number, len(changed), KEY)
            attempt(DamagedFile, extents_of, found, number, len(changed), KEY, ["entry_id", "payload"])
    ledger = encoded.directory.ledgers[0]
    receipt = _receipt(ledger, len(changed), part)
    attempt(DamagedFile, _decoded_index, blob[part.offset : part.end] + data, receipt)


def _receipt(ledger: ArchivedLedger, size: int, part: IndexPart) -> Receipt:
    return Receipt(UUID, KEY, size, bytes(32), part, ledger.entries, ledger.payload_bytes, ledger.rolling_crc, 17)


def the_row_groups() -> Iterator[bytes]:
    """Each row group, after its number."""
    blob, encoded = an_object()
    found = read_footer(blob[encoded.directory_part.end :], len(encoded.directory.row_groups), KEY)
    for number in range(found.num_row_groups):
        begin, end = extent_of(found, number, len(blob), KEY)
        yield bytes([number]) + blob[begin:end]


@TARGET.decoder("archive/format/row_groups.py:decode_row_group", seeds=the_row_groups)
def row_group(data: bytes) -> None:
    """The bytes of a row group, with a valid footer."""
    blob, encoded = an_object()
    groups = encoded.directory.row_groups
    found = read_footer(blob[encoded.directory_part.end :], len(groups), KEY)
    number = (data[0] if data else 0) % len(groups)
    begin, _ = extent_of(found, number, len(blob), KEY)
    parts = [(begin, data[1:20]), (begin + 19, data[20:])]
    for found_parts, columns in ((parts, ["entry_id"]), ([(begin, data[1:])], SCHEMA.names)):
        attempt(DamagedFile, decode_row_group, found_parts, found, number, groups[number].rows, len(blob), KEY, columns)


def some_changes() -> Iterator[bytes]:
    """The position of a change in the object, and the new bytes."""
    blob, _ = an_object()
    yield b""
    for at in range(4, len(blob), 97):
        yield at.to_bytes(2, "little") + bytes([blob[at] ^ 1])


@TARGET.decoder(
    "archive/verifier.py:ObjectVerifier.__init__",
    "archive/verifier.py:ObjectVerifier.segments",
    "archive/verifier.py:ObjectVerifier.row_group",
    "archive/verifier.py:ObjectVerifier._check_pages",
    "archive/verifier.py:_Rows.__init__",
    seeds=some_changes,
)
def object_as_a_whole(data: bytes) -> None:
    """An object with a changed range. If its index was changed, the checksums of the index are right again."""
    blob, encoded = an_object()
    at = int.from_bytes(data[:2], "little") % len(blob)
    changed = blob[:at] + data[2 : 2 + len(blob) - at] + blob[at + len(data[2:]) :]
    found = attempt(DamagedFile, _checked, changed, encoded)
    if found is not REFUSED:
        original = _checked(blob, encoded)
        same(
            [found[1][ledger_id].rolling_crc for ledger_id in (7, 9)],
            [original[1][ledger_id].rolling_crc for ledger_id in (7, 9)],
            "batches",
        )


def _checked(blob: bytes, encoded: EncodedObject) -> object:
    size, part = len(blob), encoded.directory_part
    stored = blob[part.offset : part.end]
    part = replace(part, crc=crc32c(stored))
    directory = read_directory(stored, part, KEY, size)
    sound = encoded.directory
    check = ObjectVerifier(
        sound,
        encoded.directory_part,
        read_footer(blob[part.end :], len(directory.row_groups), KEY),
        [read_pages(*_mended(blob, group), KEY, size) for group in sound.row_groups],
        [[read_batches(*_mended(blob, run), KEY) for run in one.runs] for one in sound.ledgers],
        size,
        KEY,
    )
    for segment in check.segments():
        data = blob[segment.begin : segment.end]
        check.hash(data)
        if segment.row_group is not None:
            check.row_group(segment.row_group, segment.begin, data)
    return check.end()


def _mended(blob: bytes, pointing: object) -> tuple[bytes, object]:
    name = "pages" if hasattr(pointing, "pages") else "batches"
    part = getattr(pointing, name)
    stored = blob[part.offset : part.end]
    return stored, replace(pointing, **{name: replace(part, crc=crc32c(stored))})


def some_keys() -> Iterator[bytes]:
    """The key of an object of ours."""
    yield KEY.encode()
    yield object_key(UUID, [7]).encode()


@TARGET.decoder("archive/format/schema.py:object_id_of", seeds=some_keys)
def key(data: bytes) -> None:
    """The key of an object in a bucket."""
    object_id_of(data.decode(errors="surrogateescape"))


def some_manifests() -> Iterator[bytes]:
    """An empty manifest, and one with ledgers in two objects and a deleted one."""
    yield encode_manifest(Manifest("a", {}, {}))
    yield encode_manifest(Manifest("a-cluster", {7: KEY, 9: KEY, 8: "ledgers/8"}, {"ledgers/1": 1_700_000_000_000}))


@TARGET.decoder(
    "archive/manifest.py:decode_manifest", "archive/format/root_file.py:decode_root_file", seeds=some_manifests
)
def manifest(data: bytes) -> None:
    """The manifest of a bucket."""
    found = attempt(DamagedFile, decode_manifest, data, "it")
    if found is not REFUSED:
        same(decode_manifest(encode_manifest(found), "it"), found, "a manifest")


def some_records() -> Iterator[bytes]:
    """Copies with no record, and with two."""
    yield encode_records(RecordsCopy())
    found = {"stream-names/default/a": b'{"format": 1}', "stream-heads/00/0": bytes(100)}
    yield encode_records(RecordsCopy(found, {"stream-heads/00/0": 1_700_000_000_000}))


@TARGET.decoder(
    "archive/stream_records.py:decode_records", "archive/stream_records.py:_decode_gone", seeds=some_records
)
def records(data: bytes) -> None:
    """The copy of the stream records."""
    found = attempt(DamagedFile, decode_records, data, "it")
    if found is not REFUSED:
        same(decode_records(encode_records(found), "it"), found, "records")
