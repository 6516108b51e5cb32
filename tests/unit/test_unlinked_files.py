"""Removed but open files of a simulated disk take space until they are truncated or closed."""

from tallybook.core.limits import SECTOR_BYTES

from .test_deterministic_disk import fresh


async def test_the_space_of_a_removed_file_is_freed_as_it_is_truncated_and_when_it_is_closed() -> None:
    disk = await fresh("f", capacity_bytes=3 * SECTOR_BYTES)
    file = await disk.open("/d/f")
    await file.write(0, [b"a" * 3 * SECTOR_BYTES])
    await disk.unlink("/d/f")
    await disk.sync_directory("/d")
    assert disk.free_bytes() == 0
    await file.truncate(SECTOR_BYTES)
    assert disk.free_bytes() == 2 * SECTOR_BYTES
    assert disk.fork().free_bytes() == 3 * SECTOR_BYTES, "a process that ends has no files open"
    await file.close()
    assert disk.free_bytes() == 3 * SECTOR_BYTES


async def test_the_truncation_of_a_removed_file_is_reported() -> None:
    disk = await fresh("f")
    file = await disk.open("/d/f")
    await file.write(0, [b"a" * 3 * SECTOR_BYTES])
    await file.truncate(2 * SECTOR_BYTES)
    assert not disk.state.cuts_without_name(), "it has one"
    await disk.unlink("/d/f")
    assert disk.state.cuts_without_name()
    await file.sync()
    assert not disk.state.cuts_without_name()
