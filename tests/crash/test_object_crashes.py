"""Upload of an object into a directory, with a power failure at every disk operation."""

import asyncio

import pytest

from tallybook.archive.objects.directory_writes import DirectoryUpload
from tallybook.archive.objects.keys import UNFINISHED_SUFFIX
from tallybook.archive.objects.open import open_store
from tallybook.runtime.clock import RealClock
from tallybook.runtime.rng import SystemRng
from tallybook.sim.deterministic import CrashFound, SimDisk, enumerate_crashes

OBJECTS = {"ledgers/1": b"a" * 5000, "ledgers/2": b"b" * 9000, "sets/1-2": b"c" * 100}


class Unsynced(SimDisk):
    """Stands for what obstore does: renames, and leaves the rest to luck."""

    async def sync_directory(self, path: str) -> None:
        """Do nothing."""


async def write_objects(disk, promises) -> None:
    for number, (key, data) in enumerate(OBJECTS.items()):
        upload = DirectoryUpload(disk, "/archive", key, f"some-id-{number}")
        await upload.write(data[:1000])
        await upload.write(data[1000:])
        await upload.finish()
        promises.add(key)


async def found_objects(disk) -> dict[str, bytes]:
    """The content of the directory, by name."""
    found = {}
    for folder in ("ledgers", "sets"):
        try:
            names = await disk.list(f"/archive/{folder}")
        except FileNotFoundError:
            continue
        for name in names:
            found[f"{folder}/{name}"] = await disk.read_file(f"/archive/{folder}/{name}", 1 << 20)
    return found


async def check_objects(disk, promises) -> None:
    found = await found_objects(disk)
    for key in promises:
        assert found.get(key) == OBJECTS[key], f"{key} was finished and is gone"
    for key, data in found.items():
        assert key.endswith(UNFINISHED_SUFFIX) or data == OBJECTS[key], f"{key} is there and not whole"


def test_an_object_appears_whole_and_stays_once_it_is_finished():
    report = enumerate_crashes(write_objects, check_objects)
    assert report.states > 50


async def test_what_a_crash_leaves_behind_is_found_as_an_unfinished_upload_and_goes(tmp_path):
    """Real directories in every state after a power failure, and a store opened on them."""
    left: set[frozenset[tuple[str, bytes]]] = set()

    async def remember(disk, promises) -> None:
        left.add(frozenset((await found_objects(disk)).items()))

    await asyncio.to_thread(enumerate_crashes, write_objects, remember)
    assert len(left) > 10
    uploads = 0
    for number, files in enumerate(sorted(map(sorted, left))):
        root = tmp_path / str(number)
        root.mkdir()
        for name, data in files:
            (root / name).parent.mkdir(exist_ok=True)
            (root / name).write_bytes(data)
        store = await open_store(f"file://{root}", RealClock(), SystemRng())
        try:
            unfinished = await store.unfinished_uploads()
            assert {upload.key for upload in unfinished} <= set(OBJECTS)
            uploads += len(unfinished)
            for upload in unfinished:
                await store.abort_upload(upload)
            listed = [found.key async for page in store.list() for found in page]
            for key in listed:
                assert await store.read(key, 0, len(OBJECTS[key])) == OBJECTS[key]
            there = {f"{file.parent.name}/{file.name}" for file in root.glob("*/*")}
            assert there == set(listed) == {name for name, _ in files if not name.endswith(UNFINISHED_SUFFIX)}
        finally:
            await store.close()
    assert uploads > 10


def test_the_check_notices_a_name_that_was_not_synced():
    async def careless(disk, promises):
        sync_directory, disk.sync_directory = disk.sync_directory, Unsynced.sync_directory.__get__(disk)
        try:
            await write_objects(disk, promises)
        finally:
            disk.sync_directory = sync_directory

    with pytest.raises(CrashFound, match="is gone"):
        enumerate_crashes(careless, check_objects)
