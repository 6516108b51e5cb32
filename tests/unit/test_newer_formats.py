"""Every stored format in a newer version: refused with its number, and never reported as damage.

``formats.py`` lists the formats; the list for operators in docs/operate/upgrade.md is compared with it here.
"""

import asyncio
import json
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest

from tallybook.archive import encryption_record, url_record
from tallybook.archive.format import index_codec
from tallybook.archive.format.index_codec import directory_message, encode_part, read_directory
from tallybook.archive.objects.encryption import format as seal_format
from tallybook.bookie.directories import cookie, limbo
from tallybook.bookie.directories import layout as directories
from tallybook.bookie.directories import storage_directories as places
from tallybook.bookie.journal import format as journal_format
from tallybook.bookie.journal import superblock
from tallybook.bookie.journal.format import JournalMark, RingGeometry, SegmentHeader
from tallybook.bookie.ledgers import state as ledger_state
from tallybook.bookie.scrub import scrubber as scrub
from tallybook.bookie.storage.entry_log import format as entry_log_format
from tallybook.bookie.storage.entry_log import lengths as entry_log_lengths
from tallybook.bookie.storage.index import durable_mark as index_mark
from tallybook.bookie.storage.index import format as index_format
from tallybook.bookie.storage.location import IndexRow, Location
from tallybook.cli.local.launcher import read_run_file
from tallybook.client.reader.fetcher import verified
from tallybook.core import batch
from tallybook.core.answers import Incarnation
from tallybook.core.batch import encode_batch, verify_batch
from tallybook.core.errors import NewerFormat, TallybookError
from tallybook.core.quorum import Quorum
from tallybook.metadata import codec
from tallybook.metadata.ledger.model import Fragment, LedgerMetadata
from tallybook.metadata.memory import MemoryMetadata
from tallybook.metadata.records import format as record_format
from tallybook.metadata.records.leader import Leadership
from tallybook.metadata.store import BookieInfo, BookieMode
from tallybook.metadata.transactions import SinkRecord
from tallybook.repair.pause import paused_since
from tallybook.repair.service import repair_status
from tallybook.repair.tasks import Task, decode_task
from tallybook.runtime.clock import RealClock
from tallybook.runtime.rng import SeededRng
from tallybook.runtime.security import archive_keys
from tallybook.sim.deterministic import SimDisk
from tallybook.spark.ledgers import offset as stream_offset
from tallybook.spark.query import snapshot
from tallybook.spark.streams import offsets
from tallybook.stream import namespaces
from tallybook.stream.catalog import catalog, head_codec
from tallybook.stream.catalog import subscription_record as subscription
from tallybook.stream.catalog.delivery_record import Delivery
from tallybook.stream.catalog.head import Head
from tallybook.stream.policy import StreamPolicy
from tallybook.stream.records import envelope
from tallybook.stream.records.envelope import Envelope, RecordColumns, StreamMarks

from ..formats import FORMATS

LEDGER = LedgerMetadata(7, Quorum(1, 1, 1), (Fragment(0, ("b1",)),), "creator", 0)
BOOKIE = codec.StoredRegistration(BookieInfo("b1", "host:1", Incarnation("d", 1), BookieMode.WRITABLE), "session")
LOG = entry_log_format.LogFile("/b/entrylog-0000000000000005.log", bytes(16), 5)
FACTS = superblock.Superblock(
    1, bytes(16), 1, False, JournalMark(0, 0), JournalMark(1, 1), 1,
    RingGeometry(1 << 20, 4), True, JournalMark(0, 0), 0
)  # fmt: skip
ROW = IndexRow(7, 0, Location(1, 4096, 98, 3))
STATE = ledger_state.LedgerRow(fenced=True, lac=41, last_held=49)


class Case(NamedTuple):
    """A value as written by a version with other ``constants`` of a module, and as read by the present one."""

    module: ModuleType
    constants: dict[str, Any]
    write: Callable[[], Any]
    read: Callable[[Any], object]


def text_record(module: ModuleType, constant: str, values: dict[str, str]) -> Case:
    kind = getattr(module, "KIND", None) or getattr(module, "DIRECTORY_KIND", None) or directories.FORMAT_KIND
    known = getattr(module, constant)
    from tallybook.bookie.storage.text_record import decode_record, encode_record  # noqa: PLC0415

    return Case(
        module,
        {constant: known + 1},
        lambda: encode_record(kind, getattr(module, constant), values),
        lambda data: decode_record(kind, known, data, "/d/file"),
    )


def next_version(module: ModuleType, write: Callable[[], Any], read: Callable[[Any], object], name: str = "VERSION"):
    return Case(module, {name: getattr(module, name) + 1}, write, read)


def sealed_batch() -> bytes:
    return encode_batch(7, 3, [b"hello", b"", b"tally"], lac=2, ledger_length=99, written_at_us=17)


def stretch() -> bytes:
    return entry_log_format.encode_stretch(LOG, 4096, [entry_log_format.TableRow(7, 3, 2, 3, 98)], 4096)


def one_envelope() -> bytes:
    columns = RecordColumns(5)
    columns.payloads.append(b"record")
    return envelope.encode_records(columns, StreamMarks(0, 0, 0, 0))


BYTES = {
    "batch": next_version(batch, sealed_batch, verify_batch),
    "superblock": next_version(superblock, lambda: superblock.encode_slot(FACTS), superblock.decode_slot),
    "segment": next_version(
        journal_format,
        lambda: journal_format.encode_segment_header(SegmentHeader(bytes(16), 8, 3, 1 << 20)),
        journal_format.decode_segment_header,
    ),
    "entry log": next_version(
        entry_log_format,
        lambda: entry_log_format.encode_log_header(LOG),
        lambda data: entry_log_format.decode_log_header(LOG.path, data),
    ),
    "stretch": next_version(
        entry_log_format, stretch, lambda data: entry_log_format.decode_stretch_header(LOG, 4096, data)
    ),
    "footer": next_version(
        entry_log_format,
        lambda: entry_log_format.encode_footer(LOG, 8192, {7: entry_log_format.LedgerShare(98, 1)}),
        lambda data: entry_log_format.decode_footer(LOG, 8192, data),
    ),
    "index row": Case(
        index_format,
        {"VERSION": 2},
        lambda: index_format.encode_row(ROW),
        lambda pair: index_format.decode_row(*pair),
    ),
    "index state": Case(
        index_format,
        {"_HEAD": bytes([2, 0, 0, 0])},
        lambda: index_format.encode_state(7, b"state"),
        lambda pair: index_format.decode_state(*pair),
    ),
    "ledger state": Case(
        ledger_state,
        {"VERSION": ledger_state.NEWEST_VERSION + 1},
        lambda: ledger_state.encode_row(7, STATE),
        lambda data: ledger_state.decode_row(7, data),
    ),
    "cookie": text_record(cookie, "VERSION", {"bookie_id": "b"}),
    "format file": text_record(directories, "FORMAT_WITH_DIRECTORIES", {"journal": "begun"}),
    "place": text_record(places, "DIRECTORY_VERSION", {"bookie_id": "b"}),
    "limbo": text_record(limbo, "VERSION", {"events": "0"}),
    "scrub": text_record(scrub, "VERSION", {"after": "0"}),
    "ledger": next_version(
        codec, lambda: codec.encode_ledger(LEDGER), lambda data: codec.decode_ledger(data, 7, "here"), "FORMAT"
    ),
    "wrapped key": next_version(
        seal_format,
        lambda: seal_format.encode_key(seal_format.wrap(bytes(32), "k1", bytes(32), bytes(12), 5, "key")),
        lambda data: seal_format.decode_key(data, "here"),
    ),
    "live bookie": next_version(
        codec, lambda: codec.encode_bookie(BOOKIE), lambda data: codec.decode_bookie(data, "here"), "FORMAT"
    ),
}
"""Checksummed formats: a newer version keeps checksum and version at their offsets."""


@pytest.mark.parametrize("name", BYTES)
def test_bytes_of_the_next_version_are_named_as_such_and_one_flipped_bit_is_damage(name, monkeypatch):
    case = BYTES[name]
    with monkeypatch.context() as newer:
        for constant, value in case.constants.items():
            newer.setattr(case.module, constant, value)
        written = case.write()
    with pytest.raises(NewerFormat, match=r"is of format \d+, this Tallybook knows \d+: a newer Tallybook wrote it"):
        case.read(written)
    known = case.write()
    case.read(known)
    # The byte that holds the version is the only one that differs, but for the checksum: a flipped bit is no version.
    data, other = (each[-1] if isinstance(each, tuple) else each for each in (known, written))
    at = next(place for place, (one, two) in enumerate(zip(data, other, strict=True)) if one != two)
    places_of_version = [place for place in range(at, at + 4) if data[place] != other[place]]
    flipped = bytes([*data[: places_of_version[0]], data[places_of_version[0]] ^ 64, *data[places_of_version[0] + 1 :]])
    try:
        found = case.read((known[0], flipped) if isinstance(known, tuple) else flipped)
    except TallybookError as error:
        assert not isinstance(error, NewerFormat)  # noqa: PT017 - of two kinds, or none
    else:
        assert found is None


def test_a_block_of_the_next_version_counts_only_where_it_belongs(monkeypatch):
    buffer = memoryview(bytearray(4096))
    monkeypatch.setattr(journal_format, "VERSION", 2)
    mark, here = JournalMark(8, 1062), {"instance": bytes(range(16)), "segment": 8, "offset": 4096}
    journal_format.put_block_header(
        buffer, instance=here["instance"], mark=mark, offset=4096, record_count=0, body_bytes=0, body_crc=0,
        previous_crc=0,
    )  # fmt: skip
    monkeypatch.undo()
    assert journal_format.decode_block_header(buffer) is None
    assert "block 1062 is of format 2" in str(journal_format.newer_block(buffer, **here))
    for elsewhere in ({"instance": bytes(16)}, {"segment": 9}, {"offset": 8192}):
        assert journal_format.newer_block(buffer, **{**here, **elsewhere}) is None, "a client may store such bytes"
    for at in range(128):
        flipped = bytearray(buffer)
        flipped[at] ^= 1
        assert journal_format.newer_block(flipped, **here) is None


def test_what_a_reader_was_sent_before_a_batch_of_the_next_version_is_as_good_as_ever(monkeypatch):
    def batch_of(first: int) -> bytes:
        return encode_batch(7, first, [b"entry"] * 5, lac=first - 1, ledger_length=1000, written_at_us=17)

    good = batch_of(0)
    monkeypatch.setattr(batch, "VERSION", 2)
    newer = batch_of(5)
    monkeypatch.undo()
    assert [each[1] for each in verified(7, 0, (good, newer), None)] == [good]
    with pytest.raises(NewerFormat):
        verified(7, 5, (newer, good), None)


# --- records ----------------------------------------------------------------------------------------------------------

SUBSCRIPTION = json.dumps(
    {"format": 1, "stream": "s", "name": "n", "cursor": "x", "created_ms": 1, "owner": None, "ledger": None,
     "making": None, "doomed": []}
).encode()  # fmt: skip


async def read_with(name: str, read: Callable[[Any], Any], value: bytes) -> None:
    store = MemoryMetadata(SeededRng(1)).client().store
    await store.write_record(name, value, None)
    await read(store)


async def lead(store: Any) -> None:
    await Leadership(store, RealClock(), SeededRng(1), record="archive/leader", lease_s=1).lead(asyncio.Event().wait)


RECORDS: dict[str, tuple[bytes, Callable[[bytes], object]]] = {
    "sink": (SinkRecord().encode(), lambda value: SinkRecord.decode("r", value)),
    "task": (Task((7,), frozenset(), False).encode(), lambda value: decode_task("r", value)),
    "name": (catalog.encode_name("5f0c9a21" * 4), lambda value: catalog.decode_name("r", value)),
    "head": (
        head_codec.encode_head(Head("5f0c9a21" * 4, "default", "orders", 1, StreamPolicy.of(max_bytes=4096))),
        lambda value: head_codec.decode_head("r", value),
    ),
    "chapter": (head_codec.encode_chapter([]), lambda value: head_codec.decode_chapter("r", value)),
    "namespace": (b'{"format":2,"policy":{},"total_bytes":4096}', lambda value: namespaces._decode("r", value)),
    "subscription": (SUBSCRIPTION, lambda value: subscription.decode("r", value)),
    "delivery": (Delivery(1, 0).encode(), lambda value: Delivery.decode("r", value)),
    "archive": (
        b'{"format":1,"url":"file:///x"}',
        lambda value: asyncio.run(read_with(url_record.RECORD, url_record.read_location, value)),
    ),
    "sealing": (
        b'{"format":1,"since_ms":1}',
        lambda value: asyncio.run(read_with(encryption_record.RECORD, encryption_record.encrypted_since, value)),
    ),
    "keys of an archive": (
        b'{"format":1,"current":"k","keys":{"k":"MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="}}',
        lambda value: archive_keys.parse_archive_keys(value, "keys.json"),
    ),
    "pause": (
        b'{"format":1,"since_ms":1}',
        lambda value: asyncio.run(read_with("repair/paused", paused_since, value)),
    ),
    "status": (b'{"format":1}', lambda value: asyncio.run(read_with("repair/status", repair_status, value))),
    "leader": (
        b'{"format":1,"holder":"x","lease_ms":1}',
        lambda value: asyncio.run(read_with("archive/leader", lead, value)),
    ),
}


@pytest.mark.parametrize("name", RECORDS)
def test_a_record_of_the_next_format_is_named_as_such(name):
    value, read = RECORDS[name]
    found = json.loads(value)
    with pytest.raises(
        NewerFormat, match=rf"is of format {found['format'] + 1}, this Tallybook knows {found['format']}"
    ):
        read(json.dumps({**found, "format": found["format"] + 1, "also": "something new"}).encode())


def test_a_record_from_before_it_had_a_format_is_of_the_first():
    found = json.loads(Task((7,), frozenset(), False).encode())
    del found["format"]
    assert decode_task("r", json.dumps(found).encode()).ledger_ids == (7,)


def test_a_rewritten_status_does_not_replace_that_of_a_newer_version():
    for known in (None, b"{}", b'{"format":1}', b"junk"):
        assert record_format.check_overwritable("r", b"new", known) == b"new"
    with pytest.raises(NewerFormat):
        record_format.check_overwritable("r", b"new", b'{"format":2}')


# --- the rest ---------------------------------------------------------------------------------------------------------


def test_an_envelope_of_the_next_version_is_named_as_such(monkeypatch):
    with monkeypatch.context() as newer:
        newer.setattr(envelope, "VERSION", 2)
        written = one_envelope()
    with pytest.raises(NewerFormat, match="entry 4 of segment 3 of stream 5f0c9a21 is of format 2"):
        Envelope(written, 3, 4, "5f0c9a21")
    assert len(Envelope(one_envelope(), 3, 4, "5f0c9a21").records()) == 1


@pytest.mark.parametrize(
    ("read", "value"),
    [
        (stream_offset.StreamOffset.parse, {"v": 2}),
        (offsets.RecordOffset.parse, {"v": 2}),
        (lambda found: snapshot.parse_snapshot(json.dumps(found)), {"tallybook_snapshot": 2}),
    ],
    ids=["ledgers", "streams", "snapshot"],
)
def test_what_spark_has_kept_of_the_next_version_is_named_as_such(read, value):
    with pytest.raises(NewerFormat, match="is of format 2, this Tallybook knows 1"):
        read(value)


def test_a_run_file_of_the_next_version_is_named_as_such(tmp_path):
    file = tmp_path / "run.json"
    file.write_text('{"format": 2, "pid": 1}')
    with pytest.raises(NewerFormat, match=re.escape(str(file))):
        read_run_file(file)


async def test_the_note_of_lengths_and_the_mark_of_an_index_of_the_next_version_are_named_as_such(monkeypatch):
    disk = SimDisk()
    await disk.make_directory("/d")
    with monkeypatch.context() as newer:
        newer.setattr(entry_log_lengths, "_VERSION", 2)
        newer.setattr(index_mark, "_VERSION", 2)
        await entry_log_lengths.write_lengths(disk, "/d", bytes(16), {1: 4096})
        await index_mark.write_mark(disk, "/d", 17)
    with pytest.raises(NewerFormat, match="/d/lengths is of format 2"):
        await entry_log_lengths.read_lengths(disk, "/d", bytes(16))
    with pytest.raises(NewerFormat, match="/d/synced is of format 2"):
        await index_mark.read_mark(disk, "/d")


async def test_an_archive_object_of_the_next_format_is_named_as_such_and_never_left_out(monkeypatch):
    directory = index_codec.IndexRoot("an-object", 17, (), ())
    message = directory_message(directory)
    message.format = 2
    part = encode_part(message)
    with pytest.raises(NewerFormat, match="here: the object is of format 2, this Tallybook knows 1"):
        read_directory(part.stored, part.at(4), "here", 10_000)
    part = encode_part(directory_message(directory))
    assert read_directory(part.stored, part.at(4), "here", 10_000) == directory


def test_objects_of_the_first_format_are_written_as_they_were_before_they_said_so():
    assert (
        directory_message(index_codec.IndexRoot("an-object", 17, (), ())).SerializeToString()
        == b"\n\tan-object\x10\x11"
    )


# --- the page ---------------------------------------------------------------------------------------------------------


def test_the_page_on_upgrades_lists_every_format_with_its_version():
    page = (Path(__file__).parents[2] / "docs" / "operate" / "upgrade.md").read_text()
    listed = dict(re.findall(r"^\| ([^|]+?) \| (\d+) \| .* \|$", page, re.MULTILINE))
    assert listed == {name: str(version) for name, version in FORMATS.items()}
