"""Directories of entry logs outside of the data directory: recognized by their cookies, and refused if wrong."""

from dataclasses import replace
from pathlib import Path

import pytest

from tallybook.bookie.directories.layout import DataDirectory, claim
from tallybook.bookie.directories.storage_directories import (
    DirectoryCookie,
    StorageDirectory,
    listed_directories,
    own_directories,
    values_of,
)
from tallybook.bookie.storage.entry_log.format import log_name
from tallybook.bookie.storage.entry_log.lengths import write_lengths
from tallybook.bookie.storage.text_record import decode_record, encode_record
from tallybook.core.errors import DamagedFile, DirectoryInUse, ForeignDirectory
from tallybook.core.limits import MIB
from tallybook.core.settings import BookieSettings
from tallybook.runtime.rng import SeededRng
from tallybook.sim.deterministic import SimDisk
from tallybook.sim.stage.disk_bookie import KnownMetadata

ROOT = "/data/b1"
OWN = f"{ROOT}/ledgers"
TWO = "/disk2/logs"
THREE = "/disk3/logs"


class Host:
    """The disks of a host, and the metadata that its bookies know."""

    def __init__(self) -> None:
        self.disk, self.metadata = SimDisk(), KnownMetadata()

    async def start(
        self, *ledgers: str, seed: int = 1, bookie_id: str = "b1", root: str = ROOT, journals: tuple[str, ...] = ()
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
        directory = await claim(settings, self.disk, self.metadata, SeededRng(seed))
        await directory.release()
        return directory

    async def move(self, old: str, new: str) -> None:
        """Have what lies in one directory lie in another one."""
        await self.disk.make_directory(new)
        for name in await self.disk.list(old):
            await self.disk.replace_file(f"{new}/{name}", self.disk.peek(f"{old}/{name}"))
        await self.clear(old)

    async def clear(self, path: str) -> None:
        for name in await self.disk.list(path):
            await self.disk.unlink(f"{path}/{name}")


@pytest.fixture
def host() -> Host:
    return Host()


async def test_without_the_setting_nothing_is_different(host: Host) -> None:
    directory = await host.start()
    assert directory.directories.ledger_paths == (OWN,)
    assert host.disk.peek(f"{ROOT}/FORMAT").startswith(b"tallybook bookie-directory 1\n")
    assert (await host.start(OWN)).directories == directory.directories
    assert host.disk.peek(f"{ROOT}/FORMAT").startswith(b"tallybook bookie-directory 1\n")


def test_the_files_of_the_documentation_are_what_is_written() -> None:
    page = (Path(__file__).parents[2] / "docs/reference/formats/cookie.md").read_text()
    places = own_directories("/dir")
    places = replace(places, ledgers=(*places.ledgers, StorageDirectory("ledgers", "3f0c77a1", "/disk2/tallybook")))
    uuid, cluster = "6f4c1d0e-52a7-4b0e-9d55-0c2f6f6f0b11", "0b7a9c1e-8f14-4d57-a0f5-3e9d2c1b4a60"
    listed = encode_record("bookie-directory", 2, {"directory": uuid, "journal": "begun", **values_of(places, "/dir")})
    for file in (listed, DirectoryCookie("bookie-1", uuid, cluster, "ledgers-3f0c77a1").encode()):
        assert f"```\n{file.decode()}```" in page
    assert listed_directories(decode_record("bookie-directory", 2, listed, "FORMAT"), "/dir") == places


async def test_directories_are_named_once_and_known_again(host: Host) -> None:
    first = await host.start(OWN, TWO)
    assert first.directories.ledger_paths == (OWN, TWO)
    assert (await host.start(OWN, TWO, seed=2)).directories == first.directories
    assert (await host.start(TWO, OWN, seed=3)).directories == first.directories
    # A version that looks into the data directory alone must not start on it.
    assert host.disk.peek(f"{ROOT}/FORMAT").startswith(b"tallybook bookie-directory 2\n")


async def test_a_bookie_may_keep_nothing_but_its_index_in_the_data_directory(host: Host) -> None:
    assert (await host.start(TWO, THREE)).directories.ledger_paths == (TWO, THREE)
    assert (await host.start(TWO, THREE)).directories.ledger_paths == (TWO, THREE)


async def test_a_directory_may_be_added_later(host: Host) -> None:
    await host.start()
    await host.disk.make_directory(f"{TWO}/lost+found")
    assert (await host.start(OWN, TWO)).directories.ledger_paths == (OWN, TWO)
    later = await host.start(OWN, THREE, TWO, seed=2)
    assert later.directories.ledger_paths == (OWN, TWO, THREE)


async def test_the_data_directory_may_be_moved_as_a_whole(host: Host) -> None:
    await host.start(OWN, TWO)
    for part in ("", "/journal", "/ledgers", "/index"):
        await host.disk.make_directory(f"/moved{part}")
        there = await host.disk.list(f"{ROOT}{part}")
        names = [name for name in there if f"{ROOT}{part}/{name}" not in host.disk.state.directories]
        for name in names:
            await host.disk.replace_file(f"/moved{part}/{name}", host.disk.peek(f"{ROOT}{part}/{name}"))
    moved = await host.start("/moved/ledgers", TWO, root="/moved")
    assert moved.directories.ledger_paths == ("/moved/ledgers", TWO)


async def test_a_directory_may_be_moved_to_another_path_and_is_known_by_its_cookie(host: Host) -> None:
    first = await host.start(OWN, TWO)
    await host.disk.replace_file(f"{TWO}/{log_name(7)}", b"a log")
    await host.move(TWO, THREE)
    moved = await host.start(OWN, THREE)
    assert [each.title for each in moved.directories] == [each.title for each in first.directories]
    assert moved.directories.ledger_paths == (OWN, THREE)
    assert (await host.start(OWN, THREE)).directories == moved.directories


@pytest.mark.parametrize("lost", [OWN, TWO])
async def test_j13_one_of_two_directories_that_came_back_empty_is_refused_by_name(host: Host, lost: str) -> None:
    await host.start(OWN, TWO)
    await host.clear(lost)
    with pytest.raises(ForeignDirectory, match=f"{lost} is missing or empty"):
        await host.start(OWN, TWO)
    assert await host.disk.list(lost) == []


async def test_j28_a_directory_of_another_bookie_is_refused(host: Host) -> None:
    await host.start(TWO)
    for ledgers in ((f"{ROOT}9/ledgers", TWO), (TWO,)):
        with pytest.raises(ForeignDirectory, match=f"{TWO} belongs to bookie b1 .* not to b9"):
            await host.start(*ledgers, bookie_id="b9", root=f"{ROOT}9")
    for foreign in (OWN, ROOT):
        with pytest.raises(ForeignDirectory, match=f"{foreign} is, or belongs to, the data directory of bookie b1"):
            await host.start(foreign, bookie_id="b9", root=f"{ROOT}9")


async def test_j28_two_directories_that_were_swapped_are_refused(host: Host) -> None:
    await host.start(OWN, TWO, THREE)
    await host.move(TWO, "/aside")
    await host.move(THREE, TWO)
    await host.move("/aside", THREE)
    with pytest.raises(ForeignDirectory, match=f"{TWO} is listed as ledgers-.* has the cookie of .* swapped"):
        await host.start(OWN, TWO, THREE)


async def test_j28_a_directory_of_journals_is_not_taken_for_one_of_entry_logs_nor_vice_versa(host: Host) -> None:
    await host.start(OWN, TWO, journals=(THREE,))
    await host.move(THREE, "/aside")
    await host.move(TWO, THREE)
    with pytest.raises(ForeignDirectory, match=f"{THREE} is listed as journal-.* has the cookie of ledgers-"):
        await host.start(OWN, TWO, journals=(THREE,))
    with pytest.raises(ForeignDirectory, match="/aside is configured for ledgers, and has the cookie of journal-"):
        await host.start(OWN, "/aside", journals=(f"{ROOT}/journal",))
    with pytest.raises(ForeignDirectory, match=f"{ROOT}/journal is configured for ledgers, and has .* journal-own"):
        await host.start(OWN, f"{ROOT}/journal")


async def test_j28_a_copy_of_a_directory_is_refused_beside_it(host: Host) -> None:
    await host.start(OWN, TWO)
    await host.disk.make_directory(THREE)
    await host.disk.replace_file(f"{THREE}/cookie", host.disk.peek(f"{TWO}/cookie"))
    with pytest.raises(ForeignDirectory, match=f"{TWO} and {THREE} both carry the cookie of ledgers-"):
        await host.start(OWN, TWO, THREE)


async def test_j28_a_directory_with_anything_in_it_is_not_taken_in_use(host: Host) -> None:
    await host.disk.make_directory(TWO)
    await host.disk.replace_file(f"{TWO}/thesis.doc", b"!")
    with pytest.raises(ForeignDirectory, match=rf"{TWO} .* is not empty: it holds thesis\.doc"):
        await host.start(OWN, TWO)
    assert host.disk.peek(f"{TWO}/thesis.doc") == b"!"
    assert (await host.start(OWN)).directories.ledger_paths == (OWN,)


@pytest.mark.parametrize(("gone", "left"), [(TWO, OWN), (OWN, TWO)])
async def test_a_directory_is_given_up_only_where_it_holds_no_entry_logs(host: Host, gone: str, left: str) -> None:
    uuid = (await host.start(OWN, TWO)).cookie.directory_uuid
    await host.disk.replace_file(f"{gone}/{log_name(3)}", b"a log")
    with pytest.raises(ForeignDirectory, match=f"{gone} holds entry logs, and is no longer configured"):
        await host.start(left)
    await host.disk.unlink(f"{gone}/{log_name(3)}")
    # Lost, but known to have been there.
    await write_lengths(host.disk, gone, bytes.fromhex(uuid.replace("-", "")), {3: 4096})
    with pytest.raises(ForeignDirectory, match=f"{gone} holds entry logs"):
        await host.start(left)
    await write_lengths(host.disk, gone, bytes.fromhex(uuid.replace("-", "")), {})
    assert (await host.start(left)).directories.ledger_paths == (left,)
    # And may be added again.
    assert set((await host.start(OWN, TWO)).directories.ledger_paths) == {OWN, TWO}


async def test_a_directory_that_cannot_be_found_is_not_given_up(host: Host) -> None:
    await host.start(OWN, TWO)
    await host.clear(TWO)
    with pytest.raises(ForeignDirectory, match=f"ledgers-.* is no longer configured, and cannot be found at {TWO}"):
        await host.start(OWN)


async def test_a_directory_that_got_its_cookie_and_was_not_listed_is_taken_by_the_next_start(host: Host) -> None:
    cookie = (await host.start()).cookie
    await host.disk.make_directory(TWO)
    carried = DirectoryCookie(cookie.bookie_id, cookie.directory_uuid, cookie.cluster_id, "ledgers-0000aaaa")
    await host.disk.replace_file(f"{TWO}/cookie", carried.encode())
    directories = (await host.start(OWN, TWO)).directories
    assert [each.title for each in directories] == ["journal-own", "ledgers-own", "ledgers-0000aaaa"]


async def test_damage_in_the_cookie_of_a_place_is_found_and_the_file_named(host: Host) -> None:
    await host.start(OWN, TWO)
    good = host.disk.peek(f"{TWO}/cookie")
    for damaged in (good[:-1], b"", bytes(len(good)), good[:20] + b"\xff" + good[21:]):
        await host.disk.replace_file(f"{TWO}/cookie", damaged)
        with pytest.raises(DamagedFile, match=f"{TWO}/cookie"):
            await host.start(OWN, TWO)


async def test_a_place_that_another_process_holds_is_refused_and_nothing_stays_locked(host: Host) -> None:
    await host.start(OWN, TWO)
    held = await host.disk.lock(TWO)
    for _ in range(2):
        with pytest.raises(DirectoryInUse, match=TWO):
            await host.start(OWN, TWO)
    await held.release()
    await host.start(OWN, TWO)
