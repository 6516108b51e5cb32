"""``offload rebuild-catalog`` when the copy of the stream records cannot be read."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from tallybook.archive.format.schema import object_key
from tallybook.archive.manifest import Manifest, decode_manifest, encode_manifest
from tallybook.archive.objects.memory import MemoryObjectStore
from tallybook.archive.stream_records import RECORDS_KEY, RecordsCopy, encode_records, read_records
from tallybook.cli.commands.offload import app
from tallybook.core.errors import NewerFormat
from tallybook.metadata.sqlite import schema
from tallybook.runtime.clock import RealClock
from tallybook.runtime.tasks import InlineWorkers

from .test_archive_catalog import UUID, an_object


class Lost:
    """A bucket with one ledger, whose cluster is lost, and the metadata of a new cluster."""

    def __init__(self, folder: Path, copy: bytes) -> None:
        self.bucket, metadata = folder / "bucket", folder / "new.db"
        self.uri = f"sqlite://{metadata}"
        schema.connect(str(metadata), self.uri, "test").close()
        key = object_key(UUID.format(1), [1])
        (self.bucket / key).parent.mkdir(parents=True)
        (self.bucket / key).write_bytes(an_object(1))
        (self.bucket / "_manifest.parquet").write_bytes(encode_manifest(Manifest("lost", {1: key}, {})))
        (self.bucket / RECORDS_KEY).write_bytes(copy)

    def rebuild(self, *options: str) -> Result:
        words = ["rebuild-catalog", f"file://{self.bucket}", "--metadata", self.uri, "--take-over", "--json"]
        return CliRunner().invoke(app, [*words, *options])

    @property
    def taken_over(self) -> bool:
        return decode_manifest((self.bucket / "_manifest.parquet").read_bytes(), "it").cluster_id != "lost"


def test_a_damaged_copy_of_the_records_of_streams_keeps_no_ledger_from_coming_back(tmp_path: Path) -> None:
    lost = Lost(tmp_path, b"damaged")
    found = lost.rebuild()
    told = json.loads(found.stdout)
    assert (found.exit_code, told["ledgers_entered"], told["objects_damaged"]) == (1, 1, 1)
    assert f"{RECORDS_KEY}: " in found.stderr
    assert "--accept-lost-streams" in found.stderr
    assert not lost.taken_over
    found = lost.rebuild("--accept-lost-streams")
    assert (found.exit_code, json.loads(found.stdout)["ledgers_known"], lost.taken_over) == (1, 1, True)


def test_a_copy_of_stream_records_of_a_newer_tallybook_is_named_and_the_rest_of_the_bucket_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as newer:
        newer.setattr("tallybook.archive.stream_records.FORMAT", 2)
        copy = encode_records(RecordsCopy())
    lost = Lost(tmp_path, copy)
    found = lost.rebuild()
    assert (json.loads(found.stdout)["ledgers_entered"], lost.taken_over) == (1, True)
    assert isinstance(found.exception, NewerFormat)
    assert (lost.bucket / RECORDS_KEY).read_bytes() == copy


def test_a_record_of_streams_that_is_taken_for_deleted_is_named_and_is_no_error(tmp_path: Path) -> None:
    name = "stream-namespaces/tenant"
    lost = Lost(tmp_path, encode_records(RecordsCopy({name: b"{}"}, {name: 7})))
    found = lost.rebuild()
    assert (found.exit_code, json.loads(found.stdout)["stream_records_deleted"]) == (0, 1), found.stderr
    assert f"{name}: it is not restored" in found.stderr


class Replaced(MemoryObjectStore):
    """Replaces the copy while it is read: the bytes are those of two."""

    times = 1

    async def read(self, key: str, offset: int, size: int) -> bytes:
        data = await super().read(key, offset, size)
        self.times -= 1
        return data if self.times < 0 else data[: size // 2] + bytes(size - size // 2)


async def test_a_copy_that_is_replaced_while_it_is_read_is_read_again() -> None:
    store, copy = Replaced(RealClock()), RecordsCopy({"stream-names/a": b"x"})
    await store.put(RECORDS_KEY, encode_records(copy))
    assert await read_records(store, InlineWorkers()) == copy
