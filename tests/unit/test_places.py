"""Directories of entry logs outside of the data directory: which is which, and all ways in which one may be wrong."""

from dataclasses import replace
from pathlib import Path

import pytest

from tallybook.bookie.directories import DataDirectory, claim
from tallybook.bookie.places import Place, PlaceCookie, listed_places, own_places, values_of
from tallybook.bookie.storage.entry_log_format import log_name
from tallybook.bookie.storage.entry_log_lengths import write_lengths
from tallybook.bookie.text_record import decode_record, encode_record
from tallybook.core.config import BookieSettings
from tallybook.core.errors import DamagedFile, DirectoryInUse, ForeignDirectory
from tallybook.core.limits import MIB
from tallybook.runtime.deterministic import SimDisk
from tallybook.runtime.rng import SeededRng
from tallybook.sim.stage.disk_bookie import KnownMetadata

ROOT = "/data/b1"
OWN = f"{ROOT}/ledgers"
TWO = "/disk2/logs"
THREE = "/disk3/logs"


async def start(
    disk: SimDisk,
    metadata: KnownMetadata,
    *ledgers: str,
    seed: int = 1,
    bookie_id: str = "b1",
    root: str = ROOT,
    journals: tuple[str, ...] = (),
) -> DataDirectory:
    """Claim and release, as a bookie that starts and stops."""
    settings = BookieSettings(
        bookie_id=bookie_id,
        data_directory=root,
        metadata="memory:",
        journal={"segment_bytes": 2 * MIB},
        storage={"min_free_bytes": 0, "write_cache_bytes": 8 * MIB},
        journal_directories=journals,
        ledger_directories=ledgers,
    )
    directory = await claim(settings, disk, metadata, SeededRng(seed))
    await directory.release()
    return directory


async def move(disk: SimDisk, old: str, new: str) -> None:
    """Have what lies in one directory lie in another one."""
    await disk.make_directory(new)
    for name in await disk.list(old):
        await disk.replace_file(f"{new}/{name}", disk.peek(f"{old}/{name}"))
        await disk.unlink(f"{old}/{name}")


async def clear(disk: SimDisk, path: str) -> None:
    for name in await disk.list(path):
        await disk.unlink(f"{path}/{name}")


async def test_without_the_setting_nothing_is_different() -> None:
    disk, metadata = SimDisk(), KnownMetadata()
    directory = await start(disk, metadata)
    assert directory.places.ledger_paths == (OWN,)
    assert disk.peek(f"{ROOT}/FORMAT").startswith(b"tallybook bookie-directory 1\n")
    assert (await start(disk, metadata, OWN)).places == directory.places
    assert disk.peek(f"{ROOT}/FORMAT").startswith(b"tallybook bookie-directory 1\n")


def test_the_files_of_the_documentation_are_what_is_written() -> None:
    page = (Path(__file__).parents[2] / "docs/formats/cookie.md").read_text()
    places = own_places("/dir")
    places = replace(places, ledgers=(*places.ledgers, Place("ledgers", "3f0c77a1", "/disk2/tallybook")))
    uuid, cluster = "6f4c1d0e-52a7-4b0e-9d55-0c2f6f6f0b11", "0b7a9c1e-8f14-4d57-a0f5-3e9d2c1b4a60"
    listed = encode_record("bookie-directory", 2, {"directory": uuid, "journal": "begun", **values_of(places, "/dir")})
    for file in (listed, PlaceCookie("bookie-1", uuid, cluster, "ledgers-3f0c77a1").encode()):
        assert f"```\n{file.decode()}```" in page
    assert listed_places(decode_record("bookie-directory", 2, listed, "FORMAT"), "/dir") == places


async def test_directories_are_named_once_and_known_again() -> None:
    disk, metadata = SimDisk(), KnownMetadata()
    first = await start(disk, metadata, OWN, TWO)
    assert first.places.ledger_paths == (OWN, TWO)
    assert (await start(disk, metadata, OWN, TWO, seed=2)).places == first.places
    assert (await start(disk, metadata, TWO, OWN, seed=3)).places == first.places
    # A version that looks into the data directory alone must not start on it.
    assert disk.peek(f"{ROOT}/FORMAT").startswith(b"tallybook bookie-directory 2\n")


async def test_a_bookie_may_keep_nothing_but_its_index_in_the_data_directory() -> None:
    disk, metadata = SimDisk(), KnownMetadata()
    assert (await start(disk, metadata, TWO, THREE)).places.ledger_paths == (TWO, THREE)
    assert (await start(disk, metadata, TWO, THREE)).places.ledger_paths == (TWO, THREE)


async def test_a_directory_may_be_added_later() -> None:
    disk, metadata = SimDisk(), KnownMetadata()
    await start(disk, metadata)
    await disk.make_directory(f"{TWO}/lost+found")
    assert (await start(disk, metadata, OWN, TWO)).places.ledger_paths == (OWN, TWO)
    later = await start(disk, metadata, OWN, THREE, TWO, seed=2)
    assert later.places.ledger_paths == (OWN, TWO, THREE)


async def test_the_data_directory_may_be_moved_as_a_whole() -> None:
    disk, metadata = SimDisk(), KnownMetadata()
    await start(disk, metadata, OWN, TWO)
    for part in ("", "/journal", "/ledgers", "/index"):
        await disk.make_directory(f"/moved{part}")
        there = await disk.list(f"{ROOT}{part}")
        names = [name for name in there if f"{ROOT}{part}/{name}" not in disk.state.directories]
        for name in names:
            await disk.replace_file(f"/moved{part}/{name}", disk.peek(f"{ROOT}{part}/{name}"))
    moved = await start(disk, metadata, "/moved/ledgers", TWO, root="/moved")
    assert moved.places.ledger_paths == ("/moved/ledgers", TWO)


async def test_a_directory_may_be_moved_to_another_path_and_is_known_by_its_cookie() -> None:
    disk, metadata = SimDisk(), KnownMetadata()
    first = await start(disk, metadata, OWN, TWO)
    await disk.replace_file(f"{TWO}/{log_name(7)}", b"a log")
    await move(disk, TWO, THREE)
    moved = await start(disk, metadata, OWN, THREE)
    assert [place.title for place in moved.places] == [place.title for place in first.places]
    assert moved.places.ledger_paths == (OWN, THREE)
    assert (await start(disk, metadata, OWN, THREE)).places == moved.places


@pytest.mark.parametrize("lost", [OWN, TWO])
async def test_j13_one_of_two_directories_that_came_back_empty_is_refused_by_name(lost: str) -> None:
    disk, metadata = SimDisk(), KnownMetadata()
    await start(disk, metadata, OWN, TWO)
    await clear(disk, lost)
    with pytest.raises(ForeignDirectory, match=f"{lost} is missing or empty"):
        await start(disk, metadata, OWN, TWO)
    assert await disk.list(lost) == []


async def test_j28_a_directory_of_another_bookie_is_refused() -> None:
    disk, metadata = SimDisk(), KnownMetadata()
    await start(disk, metadata, TWO)
    for ledgers in ((f"{ROOT}9/ledgers", TWO), (TWO,)):
        with pytest.raises(ForeignDirectory, match=f"{TWO} belongs to bookie b1 .* not to b9"):
            await start(disk, metadata, *ledgers, bookie_id="b9", root=f"{ROOT}9")
    for foreign in (OWN, ROOT):
        with pytest.raises(ForeignDirectory, match=f"{foreign} is, or belongs to, the data directory of bookie b1"):
            await start(disk, metadata, foreign, bookie_id="b9", root=f"{ROOT}9")


async def test_j28_two_directories_that_were_swapped_are_refused() -> None:
    disk, metadata = SimDisk(), KnownMetadata()
    await start(disk, metadata, OWN, TWO, THREE)
    await move(disk, TWO, "/aside")
    await move(disk, THREE, TWO)
    await move(disk, "/aside", THREE)
    with pytest.raises(ForeignDirectory, match=f"{TWO} is known as ledgers-.* carries .* swapped"):
        await start(disk, metadata, OWN, TWO, THREE)


async def test_j28_a_directory_of_journals_is_not_taken_for_one_of_entry_logs_nor_the_other_way_round() -> None:
    disk, metadata = SimDisk(), KnownMetadata()
    await start(disk, metadata, OWN, TWO, journals=(THREE,))
    await move(disk, THREE, "/aside")
    await move(disk, TWO, THREE)
    with pytest.raises(ForeignDirectory, match=f"{THREE} is known as journal-.* carries the cookie of ledgers-"):
        await start(disk, metadata, OWN, TWO, journals=(THREE,))
    with pytest.raises(ForeignDirectory, match="/aside is named for ledgers, and carries the cookie of journal-"):
        await start(disk, metadata, OWN, "/aside", journals=(f"{ROOT}/journal",))
    with pytest.raises(ForeignDirectory, match=f"{ROOT}/journal is named for ledgers, and carries .* journal-own"):
        await start(disk, metadata, OWN, f"{ROOT}/journal")


async def test_j28_a_copy_of_a_directory_is_refused_beside_it() -> None:
    disk, metadata = SimDisk(), KnownMetadata()
    await start(disk, metadata, OWN, TWO)
    await disk.make_directory(THREE)
    await disk.replace_file(f"{THREE}/cookie", disk.peek(f"{TWO}/cookie"))
    with pytest.raises(ForeignDirectory, match=f"{TWO} and {THREE} both carry the cookie of ledgers-"):
        await start(disk, metadata, OWN, TWO, THREE)


async def test_j28_a_directory_with_anything_in_it_is_not_taken_in_use() -> None:
    disk, metadata = SimDisk(), KnownMetadata()
    await disk.make_directory(TWO)
    await disk.replace_file(f"{TWO}/thesis.doc", b"!")
    with pytest.raises(ForeignDirectory, match=rf"{TWO} .* is not empty: it holds thesis\.doc"):
        await start(disk, metadata, OWN, TWO)
    assert disk.peek(f"{TWO}/thesis.doc") == b"!"
    assert (await start(disk, metadata, OWN)).places.ledger_paths == (OWN,)


@pytest.mark.parametrize(("gone", "left"), [(TWO, OWN), (OWN, TWO)])
async def test_a_directory_is_given_up_only_where_it_holds_no_entry_logs(gone: str, left: str) -> None:
    disk, metadata = SimDisk(), KnownMetadata()
    uuid = (await start(disk, metadata, OWN, TWO)).cookie.directory_uuid
    await disk.replace_file(f"{gone}/{log_name(3)}", b"a log")
    with pytest.raises(ForeignDirectory, match=f"{gone} holds entry logs, and is not configured any more"):
        await start(disk, metadata, left)
    await disk.unlink(f"{gone}/{log_name(3)}")
    # Lost, but known to have been there.
    await write_lengths(disk, gone, bytes.fromhex(uuid.replace("-", "")), {3: 4096})
    with pytest.raises(ForeignDirectory, match=f"{gone} holds entry logs"):
        await start(disk, metadata, left)
    await write_lengths(disk, gone, bytes.fromhex(uuid.replace("-", "")), {})
    assert (await start(disk, metadata, left)).places.ledger_paths == (left,)
    # And may come back.
    assert set((await start(disk, metadata, OWN, TWO)).places.ledger_paths) == {OWN, TWO}


async def test_a_directory_that_cannot_be_found_is_not_given_up() -> None:
    disk, metadata = SimDisk(), KnownMetadata()
    await start(disk, metadata, OWN, TWO)
    await clear(disk, TWO)
    with pytest.raises(ForeignDirectory, match=f"ledgers-.* is not configured any more, and cannot be found at {TWO}"):
        await start(disk, metadata, OWN)


async def test_a_directory_that_got_its_cookie_and_was_not_listed_is_taken_by_the_next_start() -> None:
    disk, metadata = SimDisk(), KnownMetadata()
    cookie = (await start(disk, metadata)).cookie
    await disk.make_directory(TWO)
    carried = PlaceCookie(cookie.bookie_id, cookie.directory_uuid, cookie.cluster_id, "ledgers-0000aaaa")
    await disk.replace_file(f"{TWO}/cookie", carried.encode())
    places = (await start(disk, metadata, OWN, TWO)).places
    assert [place.title for place in places] == ["journal-own", "ledgers-own", "ledgers-0000aaaa"]


async def test_damage_in_the_cookie_of_a_place_is_found_and_the_file_named() -> None:
    disk, metadata = SimDisk(), KnownMetadata()
    await start(disk, metadata, OWN, TWO)
    good = disk.peek(f"{TWO}/cookie")
    for damaged in (good[:-1], b"", bytes(len(good)), good[:20] + b"\xff" + good[21:]):
        await disk.replace_file(f"{TWO}/cookie", damaged)
        with pytest.raises(DamagedFile, match=f"{TWO}/cookie"):
            await start(disk, metadata, OWN, TWO)


async def test_a_place_that_another_process_holds_is_refused_and_nothing_stays_locked() -> None:
    disk, metadata = SimDisk(), KnownMetadata()
    await start(disk, metadata, OWN, TWO)
    held = await disk.lock(TWO)
    for _ in range(2):
        with pytest.raises(DirectoryInUse, match=TWO):
            await start(disk, metadata, OWN, TWO)
    await held.release()
    await start(disk, metadata, OWN, TWO)
