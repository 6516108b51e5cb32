"""Changes that a process may make to the metadata of a secured cluster: by its certificate and by file permissions."""

import asyncio
import os
import re
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp

import pytest

from tallybook.core.access import Role
from tallybook.core.errors import AccessDenied, DamagedFile, InvalidConfig, NoSuchCluster
from tallybook.metadata.records.security_required import RECORD, decode_required, require_security, requires_security
from tallybook.metadata.uri import open_metadata
from tallybook.runtime.clock import RealClock
from tallybook.runtime.rng import SystemRng
from tallybook.runtime.security.authority import Subject

ROOT = Path(__file__).resolve().parents[2]
OTHER = 12_345
"""A user, or a group, that this process is not."""


async def opened(path: Path, security: object = ""):
    return await open_metadata(
        f"sqlite://{path}", create=True, clock=RealClock(), rng=SystemRng(), security=str(security)
    )


def issued(authority, place: Path, role: Role, rules: str = "") -> Path:
    authority.issue(place, Subject(role, place.name, ("127.0.0.1",)), days=1)
    if rules:
        (place / "access.toml").write_text(rules)
    return place


@pytest.mark.parametrize("role", Role)
async def test_only_a_reader_may_not_change_the_metadata(authority, tmp_path, role):
    path, place = tmp_path / "data" / "metadata.db", issued(authority, tmp_path / "who", role)
    async with await opened(path) as made:
        await made.store.cluster_id()
    async with await opened(path, place) as metadata:
        if role is not Role.READER:
            await metadata.store.write_record("name", b"value", None)
            return
        assert await metadata.store.read_record("name") is None
        with pytest.raises(AccessDenied, match="tallybook://reader/who may only read: writing record name is refused"):
            await metadata.store.write_record("name", b"value", None)


RULES = """
[[principal]]
name = "team"
roles = ["{}"]
certificates = ["tallybook://writer/who"]
"""


async def test_the_rules_in_a_directory_count_more_than_the_name_of_a_certificate(authority, tmp_path):
    path = tmp_path / "data" / "metadata.db"
    place = issued(authority, tmp_path / "who", Role.WRITER, RULES.format("reader"))
    async with await opened(path) as made:
        await made.store.cluster_id()
    async with await opened(path, place) as metadata:
        with pytest.raises(AccessDenied, match=r"team \(tallybook://writer/who\) may only read"):
            await metadata.store.next_ledger_id()


async def test_a_process_without_a_security_directory_may_only_read_if_the_cluster_requires_one(authority, tmp_path):
    path, place = tmp_path / "data" / "metadata.db", issued(authority, tmp_path / "b1", Role.BOOKIE)
    async with await opened(path) as before:
        await before.store.write_record("name", b"value", None)
    async with await opened(path, place) as bookie:
        await require_security(bookie.store, RealClock(), SystemRng())
        await require_security(bookie.store, RealClock(), SystemRng())
    async with await opened(path) as stranger:
        with pytest.raises(AccessDenied, match="requires security, but this process has no security directory"):
            await stranger.store.delete_record("name", 1)
        with pytest.raises(AccessDenied):
            await require_security(stranger.store, RealClock(), SystemRng(), required=False)
    async with await opened(path, place) as admin:
        await require_security(admin.store, RealClock(), SystemRng(), required=False)
    async with await opened(path) as anonymous:
        await anonymous.store.write_record("other", b"value", None)


@pytest.mark.parametrize("value", [b"", b"{}", b'{"required": 1}', b'{"format": 2, "required": false}'])
async def test_a_record_that_cannot_be_understood_requires_security(tmp_path, value):
    async with await opened(tmp_path / "metadata.db") as metadata:
        assert not await requires_security(metadata.store)
        await metadata.store.write_record(RECORD, value, None)
        assert await requires_security(metadata.store)


def test_only_a_client_whose_store_is_guarded_and_a_bookie_open_a_metadata_store():
    parts = ("archive", "bookie", "cli", "client", "gateway", "offload", "repair", "spark", "stream")
    files = [file for part in parts for file in (ROOT / part).rglob("*.py")]
    opening = {str(file.relative_to(ROOT)) for file in files if re.search(r"[^_]open_metadata\(", file.read_text())}
    assert opening == {"client/environment.py", "bookie/process/server.py"}


# -- the rights of the file ----------------------------------------------------------------------------------------


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that every user may look into; that of other tests is closed to them."""
    made = Path(mkdtemp())
    made.chmod(0o755)
    yield made
    rmtree(made)


PROGRAM = """
import asyncio, os, sys
from tallybook.core.errors import TallybookError
from tallybook.metadata.sqlite.client import open_sqlite
from tallybook.runtime.boot_clock import RealBootClock
from tallybook.runtime.clock import RealClock
from tallybook.runtime.rng import SystemRng

async def main(path, what):
    world = dict(clock=RealClock(), rng=SystemRng(), boot_clock=RealBootClock(), timeout_seconds=2)
    if os.geteuid() == 0:
        os.setuid(65_534)  # not before: what is imported may lie where only root looks
    async with await open_sqlite(path, create=False, **world, reads_only=what == "read") as metadata:
        print((await metadata.store.read_record("name")).value.decode())

try:
    asyncio.run(main(*sys.argv[1:]))
except TallybookError as error:
    print(f"{type(error).__name__}: {error.message}")
"""


async def as_stranger(path: Path, what: str) -> str:
    """The content or error that a process of another user gets; of the same user unless the tests run as root."""
    command = [sys.executable, "-c", PROGRAM, str(path), what]
    run = partial(subprocess.run, command, capture_output=True, text=True, check=True, timeout=30)
    return (await asyncio.to_thread(run)).stdout.strip()


def let_read(directory: Path, mode: int = 0o444) -> None:
    for file in directory.iterdir():
        file.chmod(mode)
    directory.chmod(0o555)


async def test_a_new_file_and_those_beside_it_are_their_owners_alone(place):
    async with await opened(place / "data" / "metadata.db") as metadata:
        await metadata.store.write_record("name", b"value", None)
        files = {file.name: stat.S_IMODE(file.stat().st_mode) for file in (place / "data").iterdir()}
    assert files == dict.fromkeys(("metadata.db", "metadata.db-wal", "metadata.db-shm"), 0o600)


async def test_the_right_to_read_the_file_is_enough_to_read_and_not_to_write(place):
    path = place / "data" / "metadata.db"
    async with await opened(path) as cluster:
        await cluster.store.write_record("name", b"value", None)
        let_read(path.parent)
        assert await as_stranger(path, "read") == "value"
        assert "cannot be written by this user" in await as_stranger(path, "write")
        path.parent.chmod(0o755)


async def test_without_the_right_to_read_the_file_nothing_is_read(place):
    path = place / "data" / "metadata.db"
    async with await opened(path) as cluster:
        await cluster.store.write_record("name", b"value", None)
        let_read(path.parent, 0o000)
        assert "cannot be read now: this user may not write it" in await as_stranger(path, "read")
        path.parent.chmod(0o755)


async def test_metadata_that_no_process_of_the_cluster_has_open_cannot_be_read_without_the_right_to_write(place):
    path = place / "data" / "metadata.db"
    async with await opened(path) as cluster:
        await cluster.store.write_record("name", b"value", None)
    let_read(path.parent)
    assert "a process of the cluster must have it open" in await as_stranger(path, "read")
    path.parent.chmod(0o755)


async def test_a_reader_makes_no_metadata(authority, tmp_path):
    reader = issued(authority, tmp_path / "who", Role.READER)
    with pytest.raises(NoSuchCluster):
        await opened(tmp_path / "data" / "metadata.db", reader)
    assert not (tmp_path / "data").exists()


async def test_a_directory_or_a_file_that_every_user_may_change_is_refused(place):
    path = place / "data" / "metadata.db"
    async with await opened(path) as metadata:
        await metadata.store.cluster_id()
    path.parent.chmod(0o777)
    with pytest.raises(InvalidConfig, match=r"every user of this machine may replace .*: chmod o-w"):
        await opened(path)
    path.parent.chmod(0o755)
    path.chmod(0o666)
    with pytest.raises(InvalidConfig, match=r"every user of this machine may change .*: chmod o-w"):
        await opened(path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
@pytest.mark.parametrize("what", ["data", "data/metadata.db"])
@pytest.mark.parametrize(
    ("owner", "group", "mode", "refused"),
    [
        (OTHER, 0, 0o700, rf"user {OTHER} may (change|replace) .*/metadata.db.*: chown 0 "),
        (0, OTHER, 0o770, rf"group {OTHER} may (change|replace) .*/metadata.db.*: chmod g-w "),
        (0, OTHER, 0o750, ""),
        (0, 0, 0o770, ""),
    ],
)
async def test_only_root_this_user_and_its_groups_may_write_what_is_opened_for_writing(
    place, what, owner, group, mode, refused
):
    path = place / "data" / "metadata.db"
    async with await opened(path) as metadata:
        await metadata.store.cluster_id()
    os.chown(place / what, owner, group)
    (place / what).chmod(mode)
    with pytest.raises(InvalidConfig, match=refused) if refused else nullcontext():
        async with await opened(path):
            pass


async def test_a_file_of_another_user_is_read(place):
    path = place / "data" / "metadata.db"
    async with await opened(path) as cluster:
        await cluster.store.write_record("name", b"value", None)
        if os.geteuid() == 0:
            for file in (path.parent, *path.parent.iterdir()):
                os.chown(file, OTHER, OTHER)
        let_read(path.parent)
        assert await as_stranger(path, "read") == "value"
        path.parent.chmod(0o755)


async def test_files_that_every_user_may_read_are_closed_to_them_once_they_are_opened_for_writing(place, caplog):
    path = place / "data" / "metadata.db"
    async with await opened(path) as before:
        await before.store.write_record("name", b"value", None)
        for file in path.parent.iterdir():
            file.chmod(0o644)
        async with await opened(path):
            modes = {stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
        await before.store.write_record("name", b"other", 1)
    assert modes == {0o640}, "a group may be one of readers"
    told = [record.tallybook_fields["path"] for record in caplog.records if "open to every" in record.getMessage()]
    assert told == [f"{path}{end}" for end in ("", "-wal", "-shm")]


@pytest.mark.parametrize("shared", [".", "target"])
async def test_a_link_is_followed_only_where_no_other_user_can_put_a_file_into_either_directory(place, shared):
    target = place / "target" / "elsewhere.db"
    (place / "metadata.db").symlink_to(target)
    target.parent.mkdir(mode=0o700)
    target.write_bytes(b"")
    async with await opened(place / "metadata.db") as metadata:
        await metadata.store.cluster_id()
    (place / shared).chmod(0o1777)
    with pytest.raises(InvalidConfig, match=r"every user of this machine may replace .*: give it a directory of its"):
        await opened(place / "metadata.db")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
@pytest.mark.parametrize("end", ["-wal", "-shm", "-journal"])
async def test_a_file_of_another_user_beside_the_metadata_is_refused(place, end):
    path = place / "data" / "metadata.db"
    async with await opened(path) as metadata:
        await metadata.store.cluster_id()
    planted = path.with_name(path.name + end)
    planted.write_bytes(b"")
    os.chown(planted, OTHER, OTHER)
    with pytest.raises(InvalidConfig, match=rf"user {OTHER} may change .*/metadata.db{end}: chown 0 "):
        await opened(path)


def test_a_record_that_says_neither_yes_nor_no_is_damaged():
    with pytest.raises(DamagedFile):
        decode_required(b"[]")
