"""Contract of ``Disk``: files and directories. ``conftest.py`` lists the disks."""

import asyncio

import pytest

from tallybook.core.errors import DamagedFile, DirectoryInUse, DiskFailed, InvalidArgument, InvariantViolation
from tallybook.core.limits import BLOCK_BYTES, MIB


def block(letter: bytes, blocks: int = 1) -> bytes:
    return letter * (BLOCK_BYTES * blocks)


# -- files ----------------------------------------------------------------------------------


async def test_a_missing_file_is_not_opened(place) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"):
        await place.disk.open(place / "nowhere")
    assert await place.disk.list(place.root) == []


async def test_a_file_is_not_created_in_a_missing_directory(place) -> None:
    with pytest.raises(FileNotFoundError):
        await place.disk.open(place / "nowhere/file", create=True)


async def test_a_created_file_is_empty_and_listed(place) -> None:
    file = await place.disk.open(place / "new", create=True)
    assert await file.size() == 0
    assert await file.read(0, 10) == b""
    assert file.path == place / "new"
    assert await place.disk.list(place.root) == ["new"]
    await file.close()


async def test_create_keeps_what_an_existing_file_holds(place) -> None:
    await (await place.file("old", b"contents")).close()
    again = await place.disk.open(place / "old", create=True)
    assert await again.read(0, 100) == b"contents"
    await again.close()


async def test_what_was_written_is_read_back_from_any_offset(place) -> None:
    file = await place.file("f", b"0123456789")
    assert await file.read(3, 4) == b"3456"
    assert await file.read(0, 10) == b"0123456789"
    await file.close()


async def test_a_read_is_short_only_at_the_end_of_the_file(place) -> None:
    file = await place.file("f", b"0123456789")
    assert await file.read(8, 100) == b"89"
    assert await file.read(10, 100) == b""
    assert await file.read(5000, 100) == b""
    await file.close()


async def test_buffers_of_every_kind_are_written_back_to_back(place) -> None:
    file = await place.file("f")
    await file.write(2, [b"ab", b"", bytearray(b"cd"), memoryview(b"xefx")[1:3]])
    assert await file.read(0, 100) == b"\0\0abcdef"
    await file.close()


async def test_thousands_of_buffers_are_written_in_one_call(place) -> None:
    file = await place.file("f")
    buffers = [index.to_bytes(3, "big") for index in range(3000)]
    await file.write(0, buffers)
    assert await file.read(0, 10_000) == b"".join(buffers)
    await file.close()


async def test_a_write_of_nothing_changes_nothing(place) -> None:
    file = await place.file("f", b"abc")
    await file.write(100, [])
    await file.write(100, [b""])
    assert await file.size() == 3
    await file.close()


async def test_a_gap_before_a_write_reads_as_zeros(place) -> None:
    file = await place.file("f", b"abc")
    await file.write(10_000, [b"end"])
    assert await file.size() == 10_003
    assert await file.read(0, 20_000) == b"abc" + bytes(9_997) + b"end"
    await file.close()


async def test_an_overwrite_changes_its_own_range_only(place) -> None:
    file = await place.file("f", block(b"a", 3))
    await file.write(BLOCK_BYTES - 1, [b"bb"])
    assert await file.read(0, 3 * BLOCK_BYTES) == b"a" * (BLOCK_BYTES - 1) + b"bb" + b"a" * (2 * BLOCK_BYTES - 1)
    await file.close()


async def test_truncate_cuts_and_extends_with_zeros(place) -> None:
    file = await place.file("f", block(b"a", 2))
    await file.truncate(100)
    assert await file.size() == 100
    await file.truncate(5000)
    assert await file.read(0, 9000) == b"a" * 100 + bytes(4900)
    await file.truncate(0)
    assert await file.read(0, 9000) == b""
    await file.close()


async def test_what_is_read_from_memory_is_what_the_file_holds_or_nothing(place) -> None:
    data = b"".join(bytes([index]) * BLOCK_BYTES for index in range(8))
    file = await place.file("f", data)
    for offset in range(0, len(data), 1000):
        assert file.read_cached(offset, 700) in {None, data[offset : offset + 700]}
    assert file.read_cached(len(data) - 10, 700) is None
    await file.close()
    with pytest.raises(DiskFailed, match="closed"):
        file.read_cached(0, 1)


async def test_a_synced_file_reads_the_same(place) -> None:
    file = await place.file("f", b"abc")
    await file.sync()
    await file.sync()
    assert await file.read(0, 3) == b"abc"
    await file.close()


async def test_two_handles_of_one_file_see_each_others_writes(place) -> None:
    one = await place.file("f", b"abc")
    two = await place.disk.open(place / "f")
    await two.write(1, [b"X"])
    assert await one.read(0, 3) == b"aXc"
    await one.close()
    assert await two.read(0, 3) == b"aXc"
    await two.close()


async def test_a_file_opened_for_reading_refuses_changes(place) -> None:
    await (await place.file("f", b"abc")).close()
    file = await place.disk.open(place / "f", writable=False)
    with pytest.raises(DiskFailed):
        await file.write(0, [b"X"])
    with pytest.raises(DiskFailed):
        await file.truncate(0)
    assert await file.read(0, 3) == b"abc"
    await file.close()


async def test_a_closed_file_refuses_everything_but_a_second_close(place) -> None:
    file = await place.file("f", b"abc")
    await file.close()
    await file.close()
    for attempt in (file.read(0, 1), file.write(0, [b"X"]), file.sync(), file.truncate(0), file.size()):
        with pytest.raises(DiskFailed, match="closed"):
            await attempt


async def test_reads_run_side_by_side(place) -> None:
    file = await place.file("f", b"".join(index.to_bytes(4, "big") for index in range(10_000)))
    found = await asyncio.gather(*(file.read(4 * index, 4) for index in range(0, 10_000, 50)))
    assert found == [index.to_bytes(4, "big") for index in range(0, 10_000, 50)]
    await file.close()


async def test_opening_a_directory_as_a_file_fails(place) -> None:
    with pytest.raises(DiskFailed):
        await place.disk.open(place.root, writable=False)


async def test_names_may_hold_spaces_and_letters_of_any_script(place) -> None:
    await (await place.file("two words", b"1")).close()
    await (await place.file("日本", b"2")).close()
    assert await place.disk.list(place.root) == ["two words", "日本"]


# -- durable files --------------------------------------------------------------------------


async def test_a_durable_file_is_read_at_any_offset(place) -> None:
    file = await place.file("f", block(b"a") + block(b"b") + block(b"c"), durable=True)
    assert await file.read(BLOCK_BYTES - 1, 2) == b"ab"
    assert await file.read(2 * BLOCK_BYTES - 1, 50_000) == b"b" + block(b"c")
    assert await file.read(1, 3 * BLOCK_BYTES) == b"a" * (BLOCK_BYTES - 1) + block(b"b") + block(b"c")
    assert await file.read(50_000, 1) == b""
    await file.close()


async def test_a_durable_write_is_gathered_from_many_buffers(place) -> None:
    file = await place.file("f", block(b"-", 2), durable=True)
    await file.write(BLOCK_BYTES, [b"a" * 1000, b"b" * 2000, memoryview(b"c" * 1096)])
    assert await file.read(BLOCK_BYTES, BLOCK_BYTES) == b"a" * 1000 + b"b" * 2000 + b"c" * 1096
    await file.close()


async def test_a_durable_write_may_be_larger_than_any_buffer_of_the_disk(place) -> None:
    data = b"".join(index.to_bytes(4, "big") for index in range(3 * MIB // 4))
    file = await place.file("f", data, durable=True)
    assert await file.size() == 3 * MIB
    assert await file.read(0, 4 * MIB) == data
    await file.close()


@pytest.mark.parametrize(("offset", "size"), [(1, BLOCK_BYTES), (512, BLOCK_BYTES), (0, 100), (BLOCK_BYTES, 512)])
async def test_an_unaligned_durable_write_is_refused(place, offset: int, size: int) -> None:
    file = await place.file("f", block(b"a", 2), durable=True)
    with pytest.raises(InvalidArgument, match="aligned"):
        await file.write(offset, [b"X" * size])
    assert await file.read(0, 2 * BLOCK_BYTES) == block(b"a", 2)
    await file.close()


async def test_an_unaligned_direct_write_is_refused(place) -> None:
    file = await place.disk.open(place / "f", create=True, direct=True)
    for offset, size in [(1, BLOCK_BYTES), (0, 100)]:
        with pytest.raises(InvalidArgument, match="aligned"):
            await file.write(offset, [b"X" * size])
    assert await file.size() == 0
    await file.close()


async def test_what_was_written_directly_is_read_through_any_file(place) -> None:
    parts = [block(b"%d" % (index % 10)) + b"-" * (index * 1000) for index in range(60)]
    whole = b"".join(parts)
    padding = bytes(-len(whole) % BLOCK_BYTES)
    file = await place.disk.open(place / "f", create=True, direct=True)
    await file.write(0, [*parts, b"", padding])
    other = await place.disk.open(place / "f", writable=False)
    assert await other.read(0, 4 * MIB) == whole + padding
    await file.write(BLOCK_BYTES, [block(b"X")])
    await file.sync()
    for reader in (file, other):
        assert await reader.read(BLOCK_BYTES - 1, BLOCK_BYTES + 1) == whole[BLOCK_BYTES - 1 : BLOCK_BYTES] + block(b"X")
        await reader.close()


async def test_a_durable_file_whose_size_is_no_whole_block_is_read_to_its_end(place) -> None:
    await (await place.file("f", b"a" * 5000)).close()
    file = await place.disk.open(place / "f", durable=True)
    assert await file.size() == 5000
    assert await file.read(4990, 100) == b"a" * 10
    await file.close()


# -- whole files ----------------------------------------------------------------------------


async def test_a_small_file_is_read_whole_or_not_there(place) -> None:
    await place.disk.replace_file(place / "f", b"abc")
    assert await place.disk.read_file(place / "f", 100) == b"abc"
    assert await place.disk.read_file(place / "f", 3) == b"abc"
    assert await place.disk.read_file(place / "g", 100) is None


async def test_a_file_above_its_limit_is_damaged(place) -> None:
    await place.disk.replace_file(place / "f", b"abcd")
    with pytest.raises(DamagedFile, match="/f"):
        await place.disk.read_file(place / "f", 3)


async def test_replacing_a_file_leaves_the_new_bytes_and_nothing_else(place) -> None:
    for data in (b"a longer text", b"short", b"", b"x" * 100_000):
        await place.disk.replace_file(place / "f", data)
        assert await place.disk.read_file(place / "f", MIB) == data
    assert await place.disk.list(place.root) == ["f"]


async def test_what_a_crash_left_of_an_earlier_replacement_does_no_harm(place) -> None:
    await (await place.file("f.tmp", b"left over, and longer than the next")).close()
    await place.disk.replace_file(place / "f", b"new")
    assert await place.disk.read_file(place / "f", 100) == b"new"
    assert await place.disk.list(place.root) == ["f"]


async def test_a_file_is_not_replaced_in_a_missing_directory(place) -> None:
    with pytest.raises(FileNotFoundError):
        await place.disk.replace_file(place / "nowhere/f", b"abc")
    await place.disk.make_directory(place / "nowhere")
    await place.disk.replace_file(place / "nowhere/f", b"abc")


async def test_two_replacements_of_one_file_at_a_time_are_a_defect(place) -> None:
    results = await asyncio.gather(
        place.disk.replace_file(place / "f", b"1"), place.disk.replace_file(place / "f", b"2"), return_exceptions=True
    )
    assert results[0] is None
    assert isinstance(results[1], InvariantViolation)
    assert await place.disk.read_file(place / "f", 10) == b"1"


# -- names ----------------------------------------------------------------------------------


async def test_a_listing_is_sorted_and_names_directories_too(place) -> None:
    for name in ("b", "a", "c10", "c9"):
        await (await place.file(name)).close()
    await place.disk.make_directory(place / "directory")
    assert await place.disk.list(place.root) == ["a", "b", "c10", "c9", "directory"]
    assert await place.disk.list(place / "directory") == []


async def test_a_missing_directory_is_neither_listed_nor_synced(place) -> None:
    with pytest.raises(FileNotFoundError):
        await place.disk.list(place / "nowhere")
    with pytest.raises(FileNotFoundError):
        await place.disk.sync_directory(place / "nowhere")


async def test_a_directory_is_made_with_its_parents_as_often_as_one_likes(place) -> None:
    await place.disk.make_directory(place / "a/b/c")
    await place.disk.make_directory(place / "a/b/c")
    await place.disk.make_directory(place / "a/b")
    assert await place.disk.list(place / "a") == ["b"]
    await place.disk.sync_directory(place / "a/b")


async def test_a_directory_is_not_made_over_a_file(place) -> None:
    await (await place.file("f", b"abc")).close()
    for path in ("f", "f/below"):
        with pytest.raises(DiskFailed):
            await place.disk.make_directory(place / path)
    assert await place.disk.read_file(place / "f", 10) == b"abc"


async def test_a_rename_replaces_what_has_the_new_name(place) -> None:
    await place.disk.replace_file(place / "old", b"moved")
    await place.disk.replace_file(place / "new", b"gone")
    await place.disk.rename(place / "old", place / "new")
    await place.disk.sync_directory(place.root)
    assert await place.disk.list(place.root) == ["new"]
    assert await place.disk.read_file(place / "new", 10) == b"moved"


async def test_a_rename_needs_a_file_and_stays_in_its_directory(place) -> None:
    with pytest.raises(FileNotFoundError):
        await place.disk.rename(place / "nowhere", place / "new")
    await place.disk.make_directory(place / "directory")
    await place.disk.replace_file(place / "f", b"abc")
    with pytest.raises(InvalidArgument):
        await place.disk.rename(place / "f", place / "directory/f")
    with pytest.raises(DiskFailed):
        await place.disk.rename(place / "f", place / "directory")
    assert await place.disk.read_file(place / "f", 10) == b"abc"


async def test_an_open_file_follows_its_rename_and_outlives_its_name(place) -> None:
    file = await place.file("f", b"abc")
    await place.disk.rename(place / "f", place / "g")
    await file.write(1, [b"X"])
    assert await place.disk.read_file(place / "g", 10) == b"aXc"
    await place.disk.unlink(place / "g")
    await place.disk.sync_directory(place.root)
    assert await file.read(0, 10) == b"aXc"
    assert await place.disk.list(place.root) == []
    await file.close()


async def test_a_file_made_after_an_unlink_is_a_new_one(place) -> None:
    old = await place.file("f", b"old")
    await place.disk.unlink(place / "f")
    new = await place.file("f", b"n")
    assert await old.read(0, 10) == b"old"
    assert await new.read(0, 10) == b"n"
    await old.close()
    await new.close()


async def test_an_unlink_of_a_file_that_is_gone_is_no_error(place) -> None:
    await place.disk.unlink(place / "nowhere")
    await place.disk.replace_file(place / "f", b"abc")
    await place.disk.unlink(place / "f")
    await place.disk.unlink(place / "f")
    assert await place.disk.list(place.root) == []


async def test_a_directory_is_not_unlinked(place) -> None:
    await place.disk.make_directory(place / "directory")
    with pytest.raises(DiskFailed):
        await place.disk.unlink(place / "directory")
    assert await place.disk.list(place.root) == ["directory"]


async def test_a_directory_is_locked_by_one_at_a_time(place) -> None:
    lock = await place.disk.lock(place.root)
    with pytest.raises(DirectoryInUse, match=place.root):
        await place.disk.lock(place.root)
    await lock.release()
    await lock.release()
    again = await place.disk.lock(place.root)
    await lock.release()
    with pytest.raises(DirectoryInUse):
        await place.disk.lock(place.root)
    await again.release()


async def test_a_missing_directory_is_not_locked(place) -> None:
    with pytest.raises(FileNotFoundError):
        await place.disk.lock(place / "nowhere")


async def test_free_space_is_part_of_the_total(place) -> None:
    space = await place.disk.space(place.root)
    assert 0 < space.free_bytes <= space.total_bytes


async def test_a_directory_lies_on_the_disk_of_the_one_above_it(place) -> None:
    await place.disk.make_directory(place / "below")
    assert (await place.disk.space(place / "below")).device == (await place.disk.space(place.root)).device
