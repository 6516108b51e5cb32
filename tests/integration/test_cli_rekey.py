"""``tallybook offload rekey`` when the copy key is unusable: this is reported, and does not block the rotation."""

import asyncio
from pathlib import Path

import pytest

from tallybook.archive.copy_key import RECORD, ensure_copy_key
from tallybook.archive.format.schema import object_key
from tallybook.archive.objects.open import open_store
from tallybook.metadata.records.update import RecordUpdater
from tallybook.metadata.uri import open_metadata
from tallybook.runtime.clock import RealClock
from tallybook.runtime.rng import SystemRng
from tallybook.runtime.security.archive_keys import add_key

from ..support.archive_keys import InMemoryKeys

SEALED, PLAIN = (object_key(f"00000000-0000-4000-8000-{number:012d}", [number]) for number in (1, 2))
TEXT = bytes(range(256)) * 300


async def make(uri: str, bucket: str, keys: Path, *, lost: bool) -> None:
    """An encrypted object, a plain one, and a record that is damaged, or wrapped with a lost key."""
    metadata = await open_metadata(uri, create=True, clock=RealClock(), rng=SystemRng(), timeout_seconds=10)
    try:
        if lost:
            await ensure_copy_key(RecordUpdater(metadata.store, RealClock(), SystemRng()), InMemoryKeys(9), make=True)
        else:
            await metadata.store.write_record(RECORD, b"something else", None)
    finally:
        await metadata.close()
    for key, with_keys in ((SEALED, str(keys)), (PLAIN, "")):
        store = await open_store(bucket, RealClock(), SystemRng(), archive_keys=with_keys)
        await store.put(key, TEXT)
        await store.close()


@pytest.mark.parametrize("lost", [False, True])
def test_all_objects_get_the_current_key_though_the_key_for_encrypted_copies_cannot_be_used(cli, tmp_path, lost):
    bucket, keys = tmp_path / "bucket", tmp_path / "keys.json"
    bucket.mkdir()
    first = add_key(keys).current
    asyncio.run(make(f"sqlite://{tmp_path}/metadata.db", f"file://{bucket}", keys, lost=lost))
    second = add_key(keys).current

    def rekey(*options):
        return cli.run(
            "offload", "rekey", "--metadata", f"sqlite://{tmp_path}/metadata.db", "--archive", f"file://{bucket}",
            "--json", *options, TALLYBOOK_ARCHIVE_KEYS=str(keys),
        )  # fmt: skip

    for options, before in ((("--dry-run",), first), ((), first), ((), second)):
        done = rekey(*options)
        assert (done.code, f"the record {RECORD}" in done.err) == (1, True), done.err
        assert (done.json["rewrapped"], done.json["failed"]) == (int(before == first), 0)
        assert (done.json["plain"], done.json["keys_before"]) == (1, [before])
    refused = rekey("--seal-plain")
    assert (refused.code, refused.out, RECORD in refused.err) == (4 if lost else 6, b"", True), refused.err
    assert (bucket / PLAIN).read_bytes() == TEXT, "no copy is encrypted with a key that another run would not have"
