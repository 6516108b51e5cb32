"""The manifest of a bucket as bytes: it is decoded as it was encoded, and damage is detected."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallybook.archive.format.root_file import encode_root_file
from tallybook.archive.format.schema import object_key
from tallybook.archive.manifest import Manifest, decode_manifest, encode_manifest, read_manifest, write_manifest
from tallybook.archive.objects.memory import MemoryObjectStore
from tallybook.archive.objects.port import ObjectInfo
from tallybook.archive.stream_records import RecordsCopy, decode_records, encode_records, read_records
from tallybook.core.errors import ArchiveDenied, DamagedFile, NewerFormat
from tallybook.core.ids import MAX_ID
from tallybook.runtime.clock import RealClock
from tallybook.runtime.tasks import InlineWorkers

keys = st.builds(
    lambda ledger_id, object_id: object_key(str(object_id), [ledger_id]), st.integers(0, MAX_ID), st.uuids()
)
manifests = st.builds(
    Manifest,
    st.text("abcdef0123456789-", min_size=1),
    st.dictionaries(st.integers(0, MAX_ID), keys, max_size=20),
    st.dictionaries(keys, st.integers(0, 1 << 42), max_size=5),
)
SOME = Manifest("a-cluster", {1: object_key("a", [1, 2]), 2: object_key("a", [1, 2])}, {object_key("b", [1]): 17})


@given(manifests)
def test_a_manifest_comes_back_as_it_was_and_the_same_content_is_the_same_bytes(manifest: Manifest) -> None:
    data = encode_manifest(manifest)
    assert decode_manifest(data, "it") == manifest
    again = Manifest(manifest.cluster_id, dict(reversed(manifest.ledgers.items())), manifest.dropped)
    assert encode_manifest(again) == data


def test_bytes_that_are_no_manifest_are_refused() -> None:
    data = encode_manifest(SOME)
    for cut in (0, 4, len(data) // 2, len(data) - 1):
        with pytest.raises(DamagedFile, match="it cannot be decoded"):
            decode_manifest(data[:cut], "it")


@pytest.mark.parametrize(
    ("data", "decode"),
    [
        (encode_manifest(SOME), decode_manifest),
        (
            encode_records(RecordsCopy({"stream-names/a": b"x" * 50, "stream-heads/b": b"y"}, {"stream-heads/b": 7})),
            decode_records,
        ),
    ],
    ids=["manifest", "records of streams"],
)
def test_a_flipped_bit_is_found_or_changes_nothing(data: bytes, decode) -> None:
    sound = decode(data, "it")
    for at in range(len(data)):
        flipped = bytearray(data)
        flipped[at] ^= 1 << at % 8
        try:
            assert decode(bytes(flipped), "it") == sound
        except (DamagedFile, NewerFormat):
            continue


def forged(version: str, **columns: list[object]) -> bytes:
    table = pq.read_table(pa.BufferReader(encode_manifest(SOME)))
    for name, values in columns.items():
        at = table.schema.get_field_index(name)
        table = table.set_column(at, table.schema.field(at), pa.array(values, table.schema.field(at).type))
    return encode_root_file(table, "tallybook.manifest", int(version), {"tallybook.cluster": "c"})


def test_a_manifest_of_a_newer_format_is_refused_as_such() -> None:
    with pytest.raises(NewerFormat, match="it is of format 2"):
        decode_manifest(forged("2"), "it")


def test_a_manifest_that_contradicts_itself_is_refused() -> None:
    with pytest.raises(DamagedFile, match="names a ledger twice"):
        decode_manifest(forged("1", ledger_id=[1, 1, -1]), "it")


class Forbidding(MemoryObjectStore):
    """A bucket that may be listed by prefix only: there, S3 answers 403 where others answer 404."""

    async def info(self, key: str) -> ObjectInfo:
        raise ArchiveDenied(f"memory: look at {key}: HTTP 403")


async def test_what_is_forbidden_and_in_no_listing_is_not_there() -> None:
    store = Forbidding(RealClock())
    assert await read_manifest(store, InlineWorkers()) is None
    assert await read_records(store, InlineWorkers()) == RecordsCopy()
    await write_manifest(store, InlineWorkers(), SOME)
    with pytest.raises(ArchiveDenied):
        await read_manifest(store, InlineWorkers())
