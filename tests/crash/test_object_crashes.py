"""Power is lost at every disk operation of an object's upload into a directory."""

import pytest

from tallybook.archive.objects.directory_writes import DirectoryUpload
from tallybook.archive.objects.keys import UNFINISHED_SUFFIX
from tallybook.runtime.deterministic import CrashFound, SimDisk, enumerate_crashes

OBJECTS = {"ledgers/1": b"a" * 5000, "ledgers/2": b"b" * 9000, "sets/1-2": b"c" * 100}


class Unsynced(SimDisk):
    """Stands for what obstore does: renames, and leaves the rest to luck."""

    async def sync_directory(self, path: str) -> None:
        """Do nothing."""


async def write_objects(disk, promises) -> None:
    for key, data in OBJECTS.items():
        upload = DirectoryUpload(disk, "/archive", key, "some-id")
        await upload.write(data[:1000])
        await upload.write(data[1000:])
        await upload.finish()
        promises.add(key)


async def found_objects(disk) -> dict[str, bytes]:
    """What lies in the directory, by name."""
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


def test_the_check_notices_a_name_that_was_not_synced():
    async def careless(disk, promises):
        sync_directory, disk.sync_directory = disk.sync_directory, Unsynced.sync_directory.__get__(disk)
        try:
            await write_objects(disk, promises)
        finally:
            disk.sync_directory = sync_directory

    with pytest.raises(CrashFound, match="is gone"):
        enumerate_crashes(careless, check_objects)
