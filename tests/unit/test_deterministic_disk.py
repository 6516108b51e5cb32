"""What a simulated disk forgets in a power loss, and the ways in which it fails and rots."""

import asyncio

import pytest

from tallybook.core.errors import DirectoryInUse, DiskFailed, DiskFull
from tallybook.core.limits import BLOCK_BYTES, SECTOR_BYTES
from tallybook.runtime.deterministic import CrashOptions, DiskState, Effect, Latency, SimDisk, World, run_seed
from tallybook.runtime.deterministic.content import Content
from tallybook.runtime.disk import Space
from tallybook.runtime.rng import SeededRng

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


async def test_synced_bytes_survive_every_power_loss() -> None:
    disk = await fresh("f")
    file = await disk.open("/d/f")
    await file.write(0, [b"kept"])
    await file.sync()
    assert await outcomes(disk, "/d/f") == {b"kept"}


async def test_a_read_sees_what_a_power_loss_would_take() -> None:
    disk = await fresh("f")
    file = await disk.open("/d/f")
    await file.write(0, [b"pending"])
    assert await file.read(0, 100) == b"pending"
    assert await outcomes(disk, "/d/f", options=FEW) == {b"", b"pending", bytes(7)}


async def test_a_write_after_the_sync_is_open_and_does_not_endanger_what_was_synced() -> None:
    disk = await fresh("f")
    file = await disk.open("/d/f")
    await file.write(0, [b"a" * 1000])
    await file.sync()
    await file.write(1000, [b"b" * 1000])
    for found in await outcomes(disk, "/d/f"):
        assert found is not None
        assert found[:1000] == b"a" * 1000


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


async def test_a_durable_write_is_open_until_it_returns_and_then_settled() -> None:
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


async def test_a_file_may_have_grown_by_zeros_without_the_bytes() -> None:
    disk = await fresh("f")
    file = await disk.open("/d/f")
    await file.write(0, [b"a" * 1024])
    found = await outcomes(disk, "/d/f", options=FEW)
    assert {b"", bytes(1024), b"a" * 512, b"a" * 512 + bytes(512), bytes(512) + b"a" * 512, b"a" * 1024} == found


async def test_a_truncate_is_open_until_the_sync() -> None:
    disk = await fresh("f")
    file = await disk.open("/d/f")
    await file.write(0, [b"abcdef"])
    await file.sync()
    await file.truncate(3)
    assert await outcomes(disk, "/d/f") == {b"abcdef", b"abc"}
    await file.sync()
    assert await outcomes(disk, "/d/f") == {b"abc"}


async def test_a_direct_write_carries_an_older_overlapping_buffered_one_with_it() -> None:
    disk = await fresh("f")
    buffered, direct = await disk.open("/d/f"), await disk.open("/d/f", durable=True)
    await buffered.write(0, [b"old" * 1000])
    await direct.write(0, [b"n" * BLOCK_BYTES])
    assert await outcomes(disk, "/d/f") == {b"n" * BLOCK_BYTES}


# -- names ----------------------------------------------------------------------------------


async def test_a_file_synced_in_a_directory_that_was_not_may_be_gone() -> None:
    disk = await fresh()
    file = await disk.open("/d/f", create=True)
    await file.write(0, [b"synced"])
    await file.sync()
    assert await outcomes(disk, "/d/f") == {None, b"synced"}
    await disk.sync_directory("/d")
    assert await outcomes(disk, "/d/f") == {b"synced"}


async def test_some_file_systems_keep_the_name_with_the_first_sync() -> None:
    disk = await fresh(names_with_sync=True)
    file = await disk.open("/d/f", create=True)
    await file.write(0, [b"synced"])
    assert None in await outcomes(disk, "/d/f")
    await file.sync()
    assert await outcomes(disk, "/d/f") == {b"synced"}


async def test_creations_survive_independently_of_each_other() -> None:
    disk = await fresh()
    for name in ("a", "b"):
        await (await disk.open(f"/d/{name}", create=True)).close()
    assert await listings(disk) == {(), ("a",), ("b",), ("a", "b")}


async def test_a_rename_is_open_until_the_directory_is_synced() -> None:
    disk = await fresh("old")
    await disk.rename("/d/old", "/d/new")
    assert await listings(disk) == {("old",), ("new",)}
    await disk.sync_directory("/d")
    assert await listings(disk) == {("new",)}


async def test_an_unlinked_file_may_come_back_with_its_old_bytes() -> None:
    disk = await fresh("f")
    file = await disk.open("/d/f")
    await file.write(0, [b"old"])
    await file.sync()
    await file.close()
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


async def test_a_directory_that_another_task_is_just_making_is_waited_for() -> None:
    disk = SimDisk(latency=Latency(mean_seconds=0.001))
    first = asyncio.ensure_future(disk.make_directory("/d"))
    await asyncio.sleep(0)
    await disk.make_directory("/d")
    assert all("/d" in survivor.state.directories for _, survivor in disk.crash_states(SeededRng(1)))
    await first


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


async def test_a_disk_that_lost_power_for_good_fails_for_whoever_still_uses_it() -> None:
    disk = await fresh("f")
    survivor = disk.lose_power(SeededRng(1))
    for attempt in (disk.open("/d/f"), disk.replace_file("/d/f", b"late"), disk.unlink("/d/f"), disk.lock("/d")):
        with pytest.raises(DiskFailed, match="lost power"):
            await attempt
    assert await survivor.list("/d") == ["f"]


async def test_random_crashes_reach_every_kind_of_outcome() -> None:
    found = set()
    for seed in range(60):
        disk = await fresh("f")
        file = await disk.open("/d/f")
        await file.write(0, [b"-" * 1024])
        await file.sync()
        await file.write(0, [b"x" * 1024])
        disk.crash(SeededRng(seed))
        content = disk.peek("/d/f")
        found.add(content if set(content) <= set(b"-x") else b"garbage")
    assert {b"-" * 1024, b"x" * 1024, b"garbage", b"x" * 512 + b"-" * 512} <= found


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


async def test_an_image_can_crash_again() -> None:
    disk = await fresh("f")
    image = disk.image({})
    file = await image.open("/d/f")
    await file.write(0, [b"a"])
    assert await outcomes(image, "/d/f", options=FEW) == {b"", b"a", b"\0"}


async def test_equal_disks_have_equal_digests_whatever_their_history() -> None:
    one, other = await fresh("f"), await fresh("f")
    file = await one.open("/d/f")
    await file.write(0, [b"a" * 9000])
    await file.write(0, [bytes(9000)])
    await file.truncate(5000)
    again = await other.open("/d/f")
    await again.truncate(5000)
    assert one.state.digest() == other.state.digest()
    await again.write(4999, [b"x"])
    assert one.state.digest() != other.state.digest()


async def test_unlinked_files_are_forgotten_once_nothing_can_bring_them_back() -> None:
    disk = await fresh("f")
    file = await disk.open("/d/f")
    await disk.unlink("/d/f")
    await disk.sync_directory("/d")
    assert len(disk.state.files) == 1  # still open
    await file.close()
    await disk.sync_directory("/d")
    assert len(disk.state.files) == 0


# -- failures -------------------------------------------------------------------------------


async def test_a_planned_failure_strikes_the_nth_matching_operation_only() -> None:
    disk = await fresh("f", "g")
    f, g = await disk.open("/d/f"), await disk.open("/d/g")
    disk.fail("write", "/f", nth=2, times=2)
    await f.write(0, [b"1"])
    await g.write(0, [b"1"])
    for _ in range(2):
        with pytest.raises(DiskFailed, match="planned failure"):
            await f.write(0, [b"2"])
    await f.write(0, [b"4"])
    assert disk.peek("/d/f") == b"4"
    assert disk.peek("/d/g") == b"1"


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


async def test_a_failed_sync_may_leave_its_data_in_the_cache_only() -> None:
    disk = await fresh("f")
    file = await disk.open("/d/f")
    await file.write(0, [b"lost"])
    disk.fail("sync", effect=Effect.CACHE_ONLY)
    with pytest.raises(DiskFailed):
        await file.sync()
    await file.sync()  # says ok
    assert await file.read(0, 4) == b"lost"
    assert await outcomes(disk, "/d/f") == {b""}


async def test_a_failed_sync_may_succeed_when_tried_again() -> None:
    disk = await fresh("f")
    file = await disk.open("/d/f")
    await file.write(0, [b"data"])
    disk.fail("sync", effect=Effect.IN_FLIGHT)
    with pytest.raises(DiskFailed):
        await file.sync()
    assert {b"", b"data"} <= await outcomes(disk, "/d/f", options=FEW)
    await file.sync()
    assert await outcomes(disk, "/d/f") == {b"data"}


async def test_a_failed_write_may_have_got_half_way() -> None:
    disk = await fresh("f")
    file = await disk.open("/d/f", durable=True)
    disk.fail("write", effect=Effect.PART)
    with pytest.raises(DiskFailed):
        await file.write(0, [b"x" * BLOCK_BYTES])
    assert disk.peek("/d/f") == b"x" * (BLOCK_BYTES // 2)
    assert b"" in await outcomes(disk, "/d/f")


def test_a_fault_without_an_error_only_takes_longer() -> None:
    async def scenario(world: World) -> float:
        disk = await fresh("f")
        file = await disk.open("/d/f")
        disk.fail("sync", error=None, delay_seconds=30)
        before = world.loop.time()
        await file.sync()
        return world.loop.time() - before

    assert run_seed(1, scenario).value == pytest.approx(30)


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


def test_latency_has_its_mean_and_its_tail() -> None:
    latency, rng = Latency(), SeededRng(1)
    syncs = sorted(latency.draw(rng, "sync") for _ in range(5000))
    assert 0.00025 < syncs[2500] < 0.00035
    assert 20 < sum(seconds > 0.005 for seconds in syncs) < 100
    assert latency.draw(rng, "write") < 0.001


async def test_operations_are_traced_in_order_and_told_to_hooks() -> None:
    disk = await fresh()
    told: list[str] = []
    disk.on_submit = lambda operation: told.append(f"in {operation.name}")
    disk.on_operation = lambda operation: told.append(f"after {operation.name}")
    file = await disk.open("/d/f", create=True)
    await file.write(5, [b"abc"])
    await file.sync()
    assert told == ["in create", "after create", "in write", "after write", "in sync", "after sync"]
    last = [tuple(operation)[1:] for operation in disk.trace][-3:]
    assert last == [("create", "/d/f", 0, 0), ("write", "/d/f", 5, 3), ("sync", "/d/f", 0, 0)]
    numbers = [operation.number for operation in disk.trace]
    assert numbers == list(range(1, disk.operations + 1))


async def test_a_hook_may_cut_the_power_in_the_middle_of_an_operation() -> None:
    disk = await fresh("f")
    file = await disk.open("/d/f")

    def cut(operation: object) -> None:
        disk.on_submit = lambda _: None
        disk.crash(SeededRng(1))

    disk.on_submit = cut
    with pytest.raises(DiskFailed, match="lost power"):
        await file.write(0, [b"x"])


# -- rot ------------------------------------------------------------------------------------


async def rotten() -> SimDisk:
    disk = await fresh("f", "g")
    for name, letter in (("f", b"f"), ("g", b"g")):
        file = await disk.open(f"/d/{name}", durable=True)
        await file.write(0, [letter * BLOCK_BYTES])
        await file.write(0, [letter.upper() * BLOCK_BYTES])
        await file.close()
    return disk


async def test_rot_changes_what_is_durable_and_nothing_else() -> None:
    disk = await rotten()
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


async def test_rot_swaps_cuts_removes_and_duplicates() -> None:
    disk = await rotten()
    disk.rot.swap_sectors("/d/f", 0, "/d/g", 7)
    assert disk.peek("/d/f") == b"G" * 512 + b"F" * 3584
    assert disk.peek("/d/g") == b"G" * 3584 + b"F" * 512
    disk.rot.truncate("/d/f", 600)
    assert await outcomes(disk, "/d/f") == {b"G" * 512 + b"F" * 88}
    disk.rot.duplicate("/d/f", "/d/h")
    disk.rot.remove("/d/f")
    assert await listings(disk) == {("g", "h")}
    assert await outcomes(disk, "/d/h") == {b"G" * 512 + b"F" * 88}


async def test_rot_of_the_last_partial_sector_does_not_lengthen_the_file() -> None:
    disk = await fresh("f")
    file = await disk.open("/d/f")
    await file.write(0, [b"abc"])
    await file.sync()
    disk.rot.zero_sector("/d/f", 0)
    assert disk.peek("/d/f") == bytes(3)


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


def test_a_fork_of_contents_shares_nothing_that_either_side_changes() -> None:
    content = Content()
    content.write(0, b"base" * 3000)
    fork = content.fork()
    content.write(1, b"ONE")
    fork.resize(2)
    assert content.read(0, 5) == b"bONEb"
    assert content.size == 12_000
    assert fork.read(0, 5) == b"ba"


def test_zeros_take_no_memory_and_hash_like_a_hole() -> None:
    written, hole = Content(), Content()
    for page in range(256):
        written.write(page * BLOCK_BYTES, bytes(BLOCK_BYTES))
    hole.resize(256 * BLOCK_BYTES)
    assert written._pages == {}
    assert written.digest() == hole.digest()
