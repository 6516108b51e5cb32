"""Ownership of a data directory: every way in which it may not belong to the bookie (J13, J28, checklist 19 and 20)."""

import pytest

from tallybook.bookie.directories.cookie import Cookie, decode_cookie
from tallybook.bookie.directories.layout import DataDirectory, claim, replace_identity
from tallybook.bookie.directories.limbo import Limbo, load_limbo
from tallybook.bookie.recovery.accepted_loss import accept_loss
from tallybook.bookie.storage.text_record import encode_record
from tallybook.core.errors import (
    DamagedFile,
    DirectoryInUse,
    DiskFailed,
    DiskFull,
    ForeignDirectory,
    InvalidConfig,
    MetadataConflict,
)
from tallybook.core.settings import BookieSettings
from tallybook.runtime.rng import SeededRng
from tallybook.sim.deterministic import SimDisk

ROOT = "/data/b1"


class Registry:
    """The metadata store, as far as cookies go."""

    def __init__(self, cluster: str = "cluster-a") -> None:
        self.cluster = cluster
        self.cookies: dict[str, bytes] = {}

    async def cluster_id(self) -> str:
        return self.cluster

    async def read_cookie(self, bookie_id: str) -> bytes | None:
        return self.cookies.get(bookie_id)

    async def id_counter(self) -> int:
        return 64

    async def write_cookie(self, bookie_id: str, cookie: bytes, *, replace: bool = False) -> None:
        if not replace and self.cookies.get(bookie_id, cookie) != cookie:
            raise MetadataConflict("another cookie")
        self.cookies[bookie_id] = cookie


def settings(bookie_id: str = "b1", root: str = ROOT, min_free_bytes: int = 0) -> BookieSettings:
    return BookieSettings(
        bookie_id=bookie_id, data_directory=root, metadata="memory:", storage={"min_free_bytes": min_free_bytes}
    )


async def start(disk: SimDisk, registry: Registry, seed: int = 1, **changes: object) -> DataDirectory:
    """Claim and release, as a bookie that starts and stops."""
    directory = await claim(settings(**changes), disk, registry, SeededRng(seed))  # type: ignore[arg-type]
    await directory.release()
    return directory


async def remove(disk: SimDisk, prefix: str) -> None:
    """Lose every file under ``prefix``."""
    for path in [f"{prefix}/{name}" for name in await disk.list(prefix)]:
        if path in disk.state.directories:
            await remove(disk, path)
        else:
            await disk.unlink(path)


@pytest.mark.parametrize("bookie_id", ["b1", ""], ids=["", "an id that is made up"])
async def test_a_fresh_directory_is_laid_out_and_registered_and_keeps_its_identity(bookie_id: str) -> None:
    disk, registry = SimDisk(), Registry()
    await disk.make_directory(f"{ROOT}/lost+found")  # of a mount point
    cookie = (await start(disk, registry, bookie_id=bookie_id)).cookie
    assert cookie.bookie_id.startswith(bookie_id or "bookie-")
    assert (await start(disk, registry, seed=2, bookie_id=bookie_id)).cookie == cookie
    for name in ("cookie", "journal/cookie", "ledgers/cookie", "index/cookie"):
        assert decode_cookie(disk.peek(f"{ROOT}/{name}"), name) == cookie
    assert registry.cookies == {cookie.bookie_id: cookie.encode()}
    with pytest.raises(ForeignDirectory, match="needs an empty directory"):
        await replace_identity(settings(bookie_id), disk, registry, SeededRng(2), registry.id_counter)
    assert (await start(disk, registry, bookie_id=bookie_id)).cookie == cookie


async def test_j28_a_registered_bookie_with_an_empty_directory_is_refused_and_the_directory_named() -> None:
    registry = Registry()
    await start(SimDisk(), registry)
    with pytest.raises(ForeignDirectory, match=rf"b1 is registered.*{ROOT}.*--replace"):
        await start(SimDisk(), registry)


@pytest.mark.parametrize("part", ["journal", "ledgers"])
async def test_j13_a_part_that_came_back_empty_is_refused_by_name(part: str) -> None:
    disk, registry = SimDisk(), Registry()
    await start(disk, registry)
    await remove(disk, f"{ROOT}/{part}")
    with pytest.raises(ForeignDirectory, match=f"{ROOT}/{part}"):
        await start(disk, registry)


async def test_j28_a_directory_that_lost_its_cookie_but_not_its_data_is_refused() -> None:
    disk, registry = SimDisk(), Registry()
    await start(disk, registry)
    await disk.unlink(f"{ROOT}/cookie")
    with pytest.raises(ForeignDirectory, match="lost its identity"):
        await start(disk, registry)


async def test_j28_the_directory_of_another_bookie_is_refused() -> None:
    """Also that of another cluster, and of a bookie whose registration was removed; none of them stays locked."""
    disk, registry = SimDisk(), Registry("cluster-a")
    await start(disk, registry)
    with pytest.raises(ForeignDirectory, match="belongs to bookie b1, not to b2"):
        await start(disk, registry, bookie_id="b2")
    with pytest.raises(ForeignDirectory, match=r"cluster-a.*cluster-b"):
        await start(disk, Registry("cluster-b"))
    registry.cookies.clear()
    with pytest.raises(ForeignDirectory, match="registration was removed"):
        await start(disk, registry)


async def test_j28_an_older_directory_of_a_replaced_bookie_is_refused() -> None:
    old, new, registry = SimDisk(), SimDisk(), Registry()
    await start(old, registry)
    replaced = await replace_identity(settings(), new, registry, SeededRng(2), registry.id_counter)
    assert registry.cookies["b1"] == replaced.encode()
    assert (await start(new, registry)).cookie == replaced
    with pytest.raises(ForeignDirectory, match="registered with another directory"):
        await start(old, registry)


class Refused(Exception):
    """Says a check."""


class Check:
    """The checks before a bookie is given up."""

    def __init__(self, *, refuses: bool = False) -> None:
        self.asked: list[str] = []
        self._refuses = refuses

    async def __call__(self, bookie_id: str) -> None:
        self.asked.append(bookie_id)
        if self._refuses:
            raise Refused


async def test_nothing_is_given_up_by_a_replacement_that_a_check_refuses() -> None:
    old, new, registry, check = SimDisk(), SimDisk(), Registry(), Check(refuses=True)
    first = await start(old, registry)
    for _ in range(2):
        with pytest.raises(Refused):
            await replace_identity(settings(), new, registry, SeededRng(2), registry.id_counter, check=check)
    assert check.asked == ["b1", "b1"]
    assert (await start(old, registry)).cookie == first.cookie
    with pytest.raises(ForeignDirectory, match="b1 is registered"):
        await start(new, registry)


class Cut(Exception):
    """The power fails."""


async def test_a_replacement_that_was_cut_off_is_checked_also_where_only_its_draft_says_whose_it_is() -> None:
    old, new, registry = SimDisk(), SimDisk(), Registry()
    await start(old, registry)

    async def cut(_bookie_id: str, _directory_uuid: str) -> None:
        raise Cut

    with pytest.raises(Cut):
        await replace_identity(settings(), new, registry, SeededRng(2), registry.id_counter, note=cut)
    check = Check(refuses=True)
    with pytest.raises(Refused):
        await replace_identity(settings(""), new, registry, SeededRng(3), registry.id_counter, check=check)
    assert check.asked == ["b1"]


async def test_a_replacement_that_has_given_up_the_old_directory_is_finished_without_a_check() -> None:
    old, new, registry, check = SimDisk(), SimDisk(), Registry(), Check(refuses=True)
    await start(old, registry)
    write_cookie = registry.write_cookie

    async def cut(bookie_id: str, cookie: bytes, *, replace: bool = False) -> None:
        await write_cookie(bookie_id, cookie, replace=replace)
        raise Cut

    registry.write_cookie = cut  # type: ignore[method-assign]
    with pytest.raises(Cut):
        await replace_identity(settings(), new, registry, SeededRng(2), registry.id_counter)
    registry.write_cookie = write_cookie  # type: ignore[method-assign]
    replaced = await replace_identity(settings(""), new, registry, SeededRng(3), registry.id_counter, check=check)
    assert (replaced.bookie_id, check.asked) == ("b1", [])


async def test_a_note_that_an_auditor_removes_before_the_old_directory_is_given_up_is_written_again() -> None:
    old, new, registry = SimDisk(), SimDisk(), Registry()
    await start(old, registry)
    notes: dict[str, str] = {}
    write_cookie = registry.write_cookie

    async def note(bookie_id: str, directory_uuid: str) -> None:
        notes[bookie_id] = directory_uuid

    async def slowly(bookie_id: str, cookie: bytes, *, replace: bool = False) -> None:
        notes.clear()
        await write_cookie(bookie_id, cookie, replace=replace)

    registry.write_cookie = slowly  # type: ignore[method-assign]
    replaced = await replace_identity(settings(), new, registry, SeededRng(2), registry.id_counter, note=note)
    assert notes == {"b1": replaced.directory_uuid}


async def test_a_part_of_another_bookie_is_refused() -> None:
    disk, registry = SimDisk(), Registry()
    await start(disk, registry)
    other = Cookie("b9", "other-uuid", "cluster-a")
    await disk.replace_file(f"{ROOT}/journal/cookie", other.encode())
    with pytest.raises(ForeignDirectory, match=f"{ROOT}/journal belongs to bookie b9"):
        await start(disk, registry)


async def test_a_directory_with_foreign_files_is_refused_and_left_alone() -> None:
    disk, registry = SimDisk(), Registry()
    await disk.make_directory(ROOT)
    await disk.replace_file(f"{ROOT}/thesis.doc", b"!")
    with pytest.raises(ForeignDirectory, match=r"thesis\.doc"):
        await start(disk, registry)
    assert set(await disk.list(ROOT)) == {"LOCK", "thesis.doc"}
    assert not registry.cookies


async def test_a_directory_in_use_is_refused_and_free_again_after_its_release() -> None:
    disk, registry = SimDisk(), Registry()
    directory = await claim(settings(), disk, registry, SeededRng(1))
    with pytest.raises(DirectoryInUse):
        await start(disk, registry)
    await directory.release()
    await start(disk, registry)


async def test_a_missing_format_file_is_named() -> None:
    disk, registry = SimDisk(), Registry()
    await start(disk, registry)
    await disk.unlink(f"{ROOT}/FORMAT")
    with pytest.raises(DamagedFile, match=f"{ROOT}/FORMAT is missing"):
        await start(disk, registry)


async def test_a_directory_that_cannot_be_written_is_refused_in_one_sentence() -> None:
    disk, registry = SimDisk(), Registry()
    await start(disk, registry)
    disk.fail("write", "probe")
    disk.fail("create", "probe")
    with pytest.raises(DiskFailed, match=f"data directory {ROOT} cannot be written"):
        await start(disk, registry)
    disk.faults.clear()
    await start(disk, registry)


async def test_a_directory_with_too_little_space_is_refused_in_one_sentence() -> None:
    disk, registry = SimDisk(capacity_bytes=1 << 30), Registry()
    await start(disk, registry, min_free_bytes=1000)
    needed = (
        rf"{3 << 29} are needed: {1 << 30} to be left free .* and {1 << 29} for the journal \(8 segments of {1 << 26}\)"
    )
    with pytest.raises(DiskFull, match=rf"{ROOT} has \d+ bytes free, {needed}"):
        await start(disk, registry, min_free_bytes=1 << 30)


async def test_a_bookie_id_that_cannot_be_one_is_refused_before_anything_is_written() -> None:
    disk, registry = SimDisk(), Registry()
    unchecked = settings().model_copy(update={"bookie_id": "no spaces please"})
    with pytest.raises(InvalidConfig):
        await claim(unchecked, disk, registry, SeededRng(1))
    assert set(await disk.list(ROOT)) == {"LOCK"}


@pytest.mark.parametrize("name", ["FORMAT", "limbo"])
async def test_j28_a_file_of_another_data_directory_is_refused_by_name_and_accepted_loss_does_not_take_it(
    name: str,
) -> None:
    disk, registry = SimDisk(), Registry()
    first = await start(disk, registry)
    other = await start(disk, registry, seed=2, bookie_id="b2", root="/data/b2")
    assert other.cookie.directory_uuid != first.cookie.directory_uuid
    path = f"{ROOT}/{name}"
    await disk.replace_file(path, disk.peek(f"/data/b2/{name}"))
    refusal = rf"{path} belongs to data directory {other.cookie.directory_uuid}.*--accept-loss"
    with pytest.raises(ForeignDirectory, match=refusal):
        await start(disk, registry)
    with pytest.raises(ForeignDirectory, match=refusal):
        await accept_loss(settings(), disk, registry, registry.id_counter)
    await disk.unlink(path)
    await accept_loss(settings(), disk, registry, registry.id_counter)
    await start(disk, registry)


async def test_an_empty_directory_with_the_limbo_marker_of_another_one_replaces_no_bookie() -> None:
    disk, registry = SimDisk(), Registry()
    first = await start(disk, registry)
    await disk.make_directory("/data/new")
    await disk.replace_file("/data/new/limbo", disk.peek(f"{ROOT}/limbo"))
    with pytest.raises(ForeignDirectory, match="/data/new/limbo belongs to data directory"):
        await replace_identity(settings(root="/data/new"), disk, registry, SeededRng(2), registry.id_counter)
    assert registry.cookies["b1"] == first.cookie.encode()


async def test_files_of_a_version_that_did_not_say_whose_they_are_go_on_and_say_so_from_then_on() -> None:
    disk, registry = SimDisk(), Registry()
    first = await start(disk, registry)
    old_format = encode_record("bookie-directory", 1, {"journal": "begun"})
    old_limbo = encode_record("limbo", 1, {"events": "1", "below": "50"})
    await disk.replace_file(f"{ROOT}/FORMAT", old_format)
    await disk.replace_file(f"{ROOT}/limbo", old_limbo)
    again = await start(disk, registry)
    uuid = first.cookie.directory_uuid
    assert again.format == {"journal": "begun", "directory": uuid}
    assert await load_limbo(disk, f"{ROOT}/limbo") == Limbo(1, 50, directory=uuid)
