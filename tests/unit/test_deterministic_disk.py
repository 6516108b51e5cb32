"""The simulated disk: losses at a power failure, errors, and bit rot."""

import asyncio

import pytest

from tallybook.core.errors import DirectoryInUse, DiskFailed, DiskFull
from tallybook.core.limits import BLOCK_BYTES, SECTOR_BYTES
from tallybook.runtime.disk.port import Space
from tallybook.runtime.rng import SeededRng
from tallybook.sim.deterministic import CrashOptions, DiskState, Effect, SimDisk
from tallybook.sim.deterministic.content import Content

FEW = CrashOptions(subsets=0, garbage=False)


async def fresh(*names: str, **settings: object) -> SimDisk:
    """A disk with a directory /d that holds empty files, all of it durable."""
    disk = SimDisk(**settings)  # type: ignore[arg-type]
    await disk.make_directory("/d")
    for name in names:
        await (await disk.open(f"/d/{name}", create=True)).close()
    await disk.sync_directory("/d")
    return disk


async def outcomes(disk: SimDisk, path: str, **settings: object) -> set[bytes | None]:
    """The contents that ``path`` can have after a power loss now."""
    found: set[bytes | None] = set()
    for _, survivor in disk.crash_states(SeededRng(1), **settings):  # type: ignore[arg-type]
        found.add(await survivor.read_file(path, 1 << 20))
    return found


async def listings(disk: SimDisk, **settings: object) -> set[tuple[str, ...]]:
    """The listings that /d can have after a power loss now."""
    return {tuple(await survivor.list("/d")) for _, survivor in disk.crash_states(SeededRng(1), **settings)}  # type: ignore[arg-type]


# -- data -----------------------------------------------------------------------------------


def write(offset: int, data: bytes) -> tuple[object, ...]:
    return "write", offset, [data]


@pytest.mark.parametrize(
    ("calls", "after"),
    [
        ([write(0, b"kept"), ("sync",)], {b"kept"}),
        ([write(0, b"pending")], {b"", b"pending", bytes(7)}),
        (
            [write(0, b"a" * 1024)],
            {b"", bytes(1024), b"a" * 512, b"a" * 512 + bytes(512), bytes(512) + b"a" * 512, b"a" * 1024},
        ),
        ([write(0, b"abcdef"), ("sync",), ("truncate", 3)], {b"abcdef", b"abc"}),
        ([write(0, b"abcdef"), ("sync",), ("truncate", 3), ("sync",)], {b"abc"}),
    ],
    ids=["synced", "pending", "grown by zeros", "truncated", "truncated and synced"],
)
async def test_what_was_synced_survives_every_power_loss_and_anything_else_in_part(calls, after) -> None:
    disk = await fresh("f")
    file = await disk.open("/d/f")
    for name, *arguments in calls:
        await getattr(file, name)(*arguments)
    assert await outcomes(disk, "/d/f", options=FEW) == after


async def test_a_sync_covers_the_writes_that_had_ended_and_not_those_made_meanwhile() -> None:
    disk = await fresh("f")
    file = await disk.open("/d/f")
    await file.write(0, [b"a"])
    syncing = asyncio.ensure_future(file.sync())
    await asyncio.sleep(0)
    await file.write(1, [b"b"])
    await syncing
    assert await outcomes(disk, "/d/f", options=FEW) == {b"a", b"ab", b"a\0"}


async def test_pending_writes_survive_in_any_combination() -> None:
    disk = await fresh("f")
    file = await disk.open("/d/f")
    await file.write(0, [b"-" * 1536])
    await file.sync()
    for sector, letter in enumerate((b"a", b"b", b"c")):
        await file.write(sector * SECTOR_BYTES, [letter * SECTOR_BYTES])
    found = {bytes(content[::SECTOR_BYTES]) for content in await outcomes(disk, "/d/f", subsets=200) if content}
    for combination in (b"---", b"abc", b"-bc", b"a-c", b"ab-", b"a--", b"-b-", b"--c"):
        assert combination in found


async def test_a_durable_write_is_pending_until_it_returns_and_then_certain() -> None:
    disk = await fresh("f")
    file = await disk.open("/d/f", durable=True)
    await file.write(0, [b"a" * BLOCK_BYTES])
    assert await outcomes(disk, "/d/f") == {b"a" * BLOCK_BYTES}
    writing = asyncio.ensure_future(file.write(0, [b"b" * BLOCK_BYTES]))
    await asyncio.sleep(0)
    during = await outcomes(disk, "/d/f", options=FEW)
    assert {b"a" * BLOCK_BYTES, b"b" * BLOCK_BYTES, b"b" * SECTOR_BYTES + b"a" * (BLOCK_BYTES - SECTOR_BYTES)} <= during
    await writing
    assert await outcomes(disk, "/d/f") == {b"b" * BLOCK_BYTES}


async def test_a_write_is_torn_at_every_sector_from_either_side() -> None:
    disk = await fresh("f")
    file = await disk.open("/d/f", durable=True)
    await file.write(0, [b"-" * BLOCK_BYTES])
    writing = asyncio.ensure_future(file.write(0, [b"x" * BLOCK_BYTES]))
    await asyncio.sleep(0)
    found = await outcomes(disk, "/d/f", options=FEW)
    for kept in range(1, 8):
        new, old = b"x" * kept * SECTOR_BYTES, b"-" * (BLOCK_BYTES - kept * SECTOR_BYTES)
        assert new + old in found
        assert old + new in found
    await writing


async def test_a_torn_part_may_hold_garbage_but_only_within_the_write() -> None:
    disk = await fresh("f")
    file = await disk.open("/d/f")
    await file.write(0, [b"-" * 3000])
    await file.sync()
    await file.write(600, [b"x" * 1000])
    found = await outcomes(disk, "/d/f")
    assert any(content and set(content[600:1600]) - set(b"x-") for content in found)
    assert all(content and content[:600] == b"-" * 600 and content[1600:] == b"-" * 1400 for content in found)


async def test_without_power_safe_overwrite_the_rest_of_a_sector_may_be_harmed() -> None:
    disk = await fresh("f", state=DiskState(power_safe_overwrite=False))
    file = await disk.open("/d/f")
    await file.write(0, [b"-" * 2048])
    await file.sync()
    await file.write(600, [b"x" * 10])
    found = await outcomes(disk, "/d/f")
    assert any(content and content[512:600] != b"-" * 88 for content in found)
    assert all(content and content[:512] == b"-" * 512 and content[1024:] == b"-" * 1024 for content in found)


async def test_a_direct_write_carries_an_older_overlapping_buffered_one_with_it() -> None:
    disk = await fresh("f")
    buffered, direct = await disk.open("/d/f"), await disk.open("/d/f", durable=True)
    await buffered.write(0, [b"old" * 1000])
    await direct.write(0, [b"n" * BLOCK_BYTES])
    assert await outcomes(disk, "/d/f") == {b"n" * BLOCK_BYTES}


# -- names ----------------------------------------------------------------------------------


@pytest.mark.parametrize("names_with_sync", [False, True], ids=["", "a file system that keeps the name with a sync"])
async def test_a_file_synced_in_a_directory_that_was_not_may_be_gone(names_with_sync: bool) -> None:
    disk = await fresh(names_with_sync=names_with_sync)
    file = await disk.open("/d/f", create=True)
    await file.write(0, [b"synced"])
    assert None in await outcomes(disk, "/d/f")
    await file.sync()
    assert await outcomes(disk, "/d/f") == {b"synced"} | (set() if names_with_sync else {None})
    await disk.sync_directory("/d")
    assert await outcomes(disk, "/d/f") == {b"synced"}


async def test_creations_and_renames_are_open_until_the_directory_is_synced_independently_of_each_other() -> None:
    disk = await fresh("old")
    await disk.rename("/d/old", "/d/new")
    await (await disk.open("/d/a", create=True)).close()
    assert await listings(disk) == {("old",), ("new",), ("a", "old"), ("a", "new")}
    await disk.sync_directory("/d")
    assert await listings(disk) == {("a", "new")}


async def test_an_unlinked_file_may_come_back_with_its_old_bytes() -> None:
    disk = await fresh("f")
    await disk.replace_file("/d/f", b"old")
    await disk.unlink("/d/f")
    again = await disk.open("/d/f", create=True)
    await again.write(0, [b"new"])
    await again.sync()
    assert await outcomes(disk, "/d/f") == {b"old", b"new", None}
    await disk.sync_directory("/d")
    assert await outcomes(disk, "/d/f") == {b"new"}


async def test_a_directory_is_durable_when_it_has_been_made() -> None:
    disk = SimDisk()
    making = asyncio.ensure_future(disk.make_directory("/d"))
    await asyncio.sleep(0)
    found = ["/d" in survivor.state.directories for _, survivor in disk.crash_states(SeededRng(1))]
    assert sorted(set(found)) == [False, True]
    await making
    assert all("/d" in survivor.state.directories for _, survivor in disk.crash_states(SeededRng(1)))


async def test_a_replaced_file_holds_the_old_or_the_new_bytes_at_every_moment() -> None:
    disk = await fresh()
    await disk.replace_file("/d/f", b"old" * 500)
    found: set[bytes | None] = set()
    snapshots: list[SimDisk] = []
    disk.on_submit = disk.on_operation = lambda _operation: snapshots.append(disk.fork())
    await disk.replace_file("/d/f", b"new" * 700)
    for snapshot in snapshots:
        found |= await outcomes(snapshot, "/d/f")
    assert found == {b"old" * 500, b"new" * 700}
    assert await outcomes(disk, "/d/f") == {b"new" * 700}
    assert [operation.name for operation in disk.trace][-6:] == [
        "create", "truncate", "write", "sync", "rename", "sync-directory",
    ]  # fmt: skip


# -- the life of a disk ---------------------------------------------------------------------


async def test_a_crash_in_place_ends_files_pumps_and_locks_and_keeps_what_is_durable() -> None:
    disk = await fresh("f")
    await disk.lock("/d")
    file = await disk.open("/d/f")
    await file.write(0, [b"kept"])
    await file.sync()
    with pytest.raises(DirectoryInUse):
        await disk.lock("/d")
    disk.crash(SeededRng(1))
    with pytest.raises(DiskFailed, match="lost power"):
        await file.read(0, 4)
    await file.close()
    await disk.lock("/d")
    assert await disk.read_file("/d/f", 10) == b"kept"


async def test_an_operation_in_flight_at_the_crash_fails_and_reaches_the_new_life_only_by_chance() -> None:
    kept = 0
    for seed in range(40):
        disk = await fresh("f")
        file = await disk.open("/d/f", durable=True)
        writing = asyncio.ensure_future(file.write(0, [b"x" * BLOCK_BYTES]))
        await asyncio.sleep(0)
        disk.crash(SeededRng(seed))
        after = disk.peek("/d/f")
        with pytest.raises(DiskFailed, match="lost power"):
            await writing
        assert disk.peek("/d/f") == after
        kept += after == b"x" * BLOCK_BYTES
    assert 0 < kept < 40


async def test_crash_images_do_not_affect_each_other_or_the_disk() -> None:
    disk = await fresh("f")
    file = await disk.open("/d/f")
    await file.write(0, [b"base"])
    await file.sync()
    await file.write(0, [b"next"])
    survivors = [survivor for _, survivor in disk.crash_states(SeededRng(1), options=FEW)]
    for number, survivor in enumerate(survivors):
        other = await survivor.open("/d/f")
        await other.write(0, [b"%04d" % number])
        await other.sync()
    assert [survivor.peek("/d/f") for survivor in survivors] == [b"%04d" % number for number in range(len(survivors))]
    assert disk.peek("/d/f") == b"next"
    assert b"base" in await outcomes(disk, "/d/f", options=FEW)


# -- failures -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "operation", ["create", "open", "read", "write", "sync", "truncate", "rename", "unlink", "sync-directory", "mkdir"]
)
async def test_every_kind_of_operation_can_fail_without_effect(operation: str) -> None:
    disk = await fresh("f")
    file = await disk.open("/d/f")
    disk.fail(operation)
    attempts = {
        "create": lambda: disk.open("/d/new", create=True),
        "open": lambda: disk.open("/d/f"),
        "read": lambda: file.read(0, 1),
        "write": lambda: file.write(0, [b"x"]),
        "sync": file.sync,
        "truncate": lambda: file.truncate(9),
        "rename": lambda: disk.rename("/d/f", "/d/g"),
        "unlink": lambda: disk.unlink("/d/f"),
        "sync-directory": lambda: disk.sync_directory("/d"),
        "mkdir": lambda: disk.make_directory("/e"),
    }
    before = disk.state.digest()
    with pytest.raises(DiskFailed):
        await attempts[operation]()
    assert disk.state.digest() == before
    assert disk.state.pending() == []


@pytest.mark.parametrize(
    ("effect", "at_once", "later"),
    [(Effect.CACHE_ONLY, {b""}, {b""}), (Effect.IN_FLIGHT, {b"", b"data", bytes(4)}, {b"data"})],
)
async def test_a_failed_sync_leaves_its_data_in_the_cache_only_or_succeeds_when_tried_again(
    effect: Effect, at_once: set[bytes], later: set[bytes]
) -> None:
    disk = await fresh("f")
    file = await disk.open("/d/f")
    await file.write(0, [b"data"])
    disk.fail("sync", effect=effect)
    with pytest.raises(DiskFailed):
        await file.sync()
    assert await outcomes(disk, "/d/f", options=FEW) == at_once
    await file.sync()
    assert await file.read(0, 4) == b"data"
    assert await outcomes(disk, "/d/f") == later


async def test_a_failed_write_may_have_got_half_way() -> None:
    disk = await fresh("f")
    file = await disk.open("/d/f", durable=True)
    disk.fail("write", effect=Effect.PART)
    with pytest.raises(DiskFailed):
        await file.write(0, [b"x" * BLOCK_BYTES])
    assert disk.peek("/d/f") == b"x" * (BLOCK_BYTES // 2)
    assert b"" in await outcomes(disk, "/d/f")


async def test_a_full_disk_takes_what_fits_and_says_so() -> None:
    disk = await fresh("f", "g", capacity_bytes=3 * SECTOR_BYTES)
    file, other = await disk.open("/d/f"), await disk.open("/d/g")
    await file.write(0, [b"a" * 2 * SECTOR_BYTES])
    with pytest.raises(DiskFull):
        await other.write(0, [b"b" * 2 * SECTOR_BYTES])
    assert disk.peek("/d/g") == b"b" * SECTOR_BYTES
    assert await disk.space("/d") == Space(0, 3 * SECTOR_BYTES)
    await file.write(0, [b"c" * SECTOR_BYTES])  # overwriting needs no space
    await disk.unlink("/d/f")
    await file.close()
    await other.write(SECTOR_BYTES, [b"b" * SECTOR_BYTES])


# -- rot ------------------------------------------------------------------------------------


async def test_rot_changes_what_is_durable_and_nothing_else() -> None:
    disk = await fresh("f", "g")
    for name, letter in (("f", b"f"), ("g", b"g")):
        file = await disk.open(f"/d/{name}", durable=True)
        await file.write(0, [letter * BLOCK_BYTES])
        await file.write(0, [letter.upper() * BLOCK_BYTES])
        await file.close()
    disk.rot.flip_bit("/d/f", 1000, 3)
    disk.rot.zero_sector("/d/f", 2)
    disk.rot.stale_sector("/d/f", 3)
    disk.rot.copy_sector("/d/f", 4, "/d/g", 0)
    [content] = await outcomes(disk, "/d/f")
    expected = bytearray(b"F" * BLOCK_BYTES)
    expected[1000] ^= 8
    expected[1024:1536], expected[1536:2048], expected[2048:2560] = bytes(512), b"f" * 512, b"G" * 512
    assert content == expected == disk.peek("/d/f")
    assert disk.peek("/d/g") == b"G" * BLOCK_BYTES


# -- contents -------------------------------------------------------------------------------


def test_contents_behave_like_a_byte_array_under_random_changes() -> None:
    rng = SeededRng(1)
    for _ in range(30):
        content, model = Content(), bytearray()
        for _ in range(60):
            offset = rng.randint(0, 20_000)
            if rng.random() < 0.2:
                content.resize(offset)
                model = model[:offset] + bytes(max(0, offset - len(model)))
            else:
                data = rng.token(rng.randint(1, 9000)) if rng.random() < 0.7 else bytes(rng.randint(1, 9000))
                content.write(offset, data)
                model += bytes(max(0, offset + len(data) - len(model)))
                model[offset : offset + len(data)] = data
            if rng.random() < 0.3:
                content = content.fork()
            start = rng.randint(0, 25_000)
            assert content.size == len(model)
            assert content.read(start, 7000) == model[start : start + 7000]
        assert content.read(0, content.size) == model
